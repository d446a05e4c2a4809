"""Training through calibration: soft sets, the loss of their size, learned scores.

Train on one part of the data, then calibrate exactly on rows that the training did not
see: the sets of `jaxcp.calibrate` then cover with probability >= 1 - alpha, whatever
was trained and however. Nothing trained has a guarantee before that.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.training.losses import SizeLoss, conformal_training_loss
    from jaxcp.training.soft import soft_membership, soft_size
    from jaxcp.training.tuning import select_score, train_score

# fmt: off
__all__ = [
    "SizeLoss", "conformal_training_loss", "select_score", "soft_membership",
    "soft_size", "train_score",
]
# fmt: on
