"""Risk control by MAPIE, where it is installed: the same answers, times, what differs.

Each function takes data and returns lines of a table.
"""

import time
import warnings

import jax.numpy as jnp
import numpy as np

from experiments.data.risk_coco import FNR, MULTI, Images
from jaxcp import risk

ALPHA = DELTA = 0.1
NUM_ROWS = 1000
PRECISION = 0.7
CASES = (  # generated classes that no model is sure of
    {"class_sep": 0.8, "flip_y": 0.2},
    {"class_sep": 0.5, "n_features": 5},
)


def mapie_crc(p: np.ndarray, y: np.ndarray, alpha: float = ALPHA) -> float:
    """Returns MAPIE's threshold of scores, on its grid of 100."""
    from mapie.risk_control import MultiLabelClassificationController

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MultiLabelClassificationController(
            lambda x: x, method="crc", target_level=1 - alpha
        )
        model.calibrate(p, y.astype(int))
    return float(np.ravel(model.best_predict_param)[0])


def coco_lines(data: Images, num_splits: int = 3) -> list[dict]:
    """Returns thresholds of scores on COCO by both, and MAPIE's seconds, by split.

    Ours is exact; MAPIE's is the largest of its grid that its strict inequality lets
    pass, so that it lies below by up to one step of 0.01.
    """
    lines, rng = [], np.random.default_rng(0)
    for i in range(num_splits):
        rows = rng.permutation(len(data.y))[:NUM_ROWS]
        p, y = np.asarray(data.p)[rows], np.asarray(data.y)[rows]
        cp = risk.calibrate_risk(FNR, MULTI, jnp.asarray(p), jnp.asarray(y))
        ours = 1 - float(cp.quantile(ALPHA))
        start = time.perf_counter()
        theirs = mapie_crc(p, y)
        seconds = time.perf_counter() - start
        lines.append(
            {"split": i, "n": NUM_ROWS, "jaxcp": ours, "MAPIE": theirs}
            | {"difference": ours - theirs, "step": 0.01, "MAPIE s": seconds}
        )
    return lines


def fitted(case: dict):
    """Returns a logistic regression of one case, and 2000 new rows with labels."""
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression

    x, y = make_classification(4000, random_state=0, **case)
    model = LogisticRegression().fit(x[:2000], y[:2000])
    return model, x[2000:], y[2000:]


def precision_lines() -> list[dict]:
    """Returns how many thresholds each procedure accepts for a precision of 0.7.

    On MAPIE's own grid, 0 to 0.99: above the largest score nobody is positive, the
    p-value is not a number, and its default takes that for the smallest of all.
    """
    from mapie.risk_control import BinaryClassificationController

    lines = []
    for i, case in enumerate(CASES):
        model, x, y = fitted(case)
        scores, grid = model.predict_proba(x)[:, 1], np.linspace(0, 0.99, 100)
        chosen = scores[:, None] >= grid[None]
        counts = risk.Counts(
            jnp.asarray(np.sum(chosen & (y == 0)[:, None], axis=0)),
            jnp.asarray(np.sum(chosen, axis=0)),
        )
        for ours, theirs in (("bonferroni", "bonferroni"), ("holm", "bonferroni_holm")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                controller = BinaryClassificationController(
                    model.predict_proba,
                    "precision",
                    PRECISION,
                    1 - DELTA,
                    fwer_method=theirs,
                ).calibrate(x, y)
            valid = risk.learn_then_test(counts, 1 - PRECISION, DELTA, method=ours)
            lines.append(
                {"procedure": ours, "case": i}
                | {"largest score": float(scores.max())}
                | {"jaxcp": int(jnp.sum(valid))}
                | {"MAPIE": len(np.ravel(controller.valid_predict_params))}
            )
    return lines
