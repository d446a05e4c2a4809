"""Calls of TorchCP beside ours. Each function returns ours, theirs, and what explains a
difference. The keys of `CALLS` are words of the first column on the page."""

import jax
import numpy as np

import jaxcp
from experiments.peers.calls_data import ALPHA, classifier, ends, labels, line, numbers
from jaxcp import scores


def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns logits and labels of calibration rows, and logits of new rows."""
    rows = labels()
    model, (x, y) = classifier(rows), rows.part("cal")
    new = model.decision_function(rows.part("new")[0])
    return model.decision_function(x), y, new


def sets_of(theirs, score, of=jax.nn.softmax):
    """Returns masks of label sets by a score of theirs and of ours."""
    import torch
    from torchcp.classification.predictor import SplitPredictor

    held, y, new = (torch.tensor(v) for v in logits())
    predictor = SplitPredictor(theirs)
    predictor.calculate_threshold(held, y, ALPHA)
    held, y, new = logits()
    ours = jaxcp.calibrate(score, of(held), y)(of(new), ALPHA)
    return ours.mask, predictor.predict_with_logits(torch.tensor(new)).numpy()


def lac():
    """Returns sets of probabilities."""
    from torchcp.classification.score import LAC

    return sets_of(LAC(), scores.LAC())


def log_lac():
    """Returns sets of logarithms of probabilities."""
    from torchcp.classification.score import LAC

    return sets_of(LAC("log_softmax"), scores.LogLAC(), of=lambda v: v)


def aps():
    """Returns sets of cumulated probabilities, not randomized."""
    from torchcp.classification.score import APS

    return sets_of(APS(randomized=False), scores.APS())


def raps():
    """Returns sets of cumulated probabilities with a penalty, not randomized."""
    from torchcp.classification.score import RAPS

    return sets_of(RAPS(randomized=False, penalty=0.1, kreg=1), scores.RAPS(0.1, 1))


def top_k():
    """Returns sets of the most probable labels."""
    from torchcp.classification.score import TOPK

    return sets_of(TOPK(randomized=False), scores.TopK())


def saps():
    """Returns sets of the rank and the largest probability, not randomized.

    Theirs score the most probable label 0 where it calibrates, and p where it predicts.
    """
    from torchcp.classification.score import SAPS

    held, y, new = logits()
    p, p_new = (np.asarray(jax.nn.softmax(v)) for v in (held, new))
    of_all = np.asarray(jax.vmap(scores.SAPS(0.1).labels)(p))[np.arange(len(y)), y]
    q = jaxcp.conformal_quantile(np.where(p.argmax(1) == y, 0.0, of_all), ALPHA)
    explained = np.asarray(jax.vmap(scores.SAPS(0.1).labels)(p_new)) <= q
    ours, theirs = sets_of(SAPS(randomized=False, weight=0.1), scores.SAPS(0.1))
    return ours, theirs, explained


def margin():
    """Returns sets of margins."""
    from torchcp.classification.score import Margin

    return sets_of(Margin(), scores.Margin())


def entmax():
    """Returns sets of the losses of entmax."""
    from torchcp.classification.score import EntmaxScore

    return sets_of(EntmaxScore(gamma=1.5), scores.Entmax(1.5), of=lambda v: v)


def by_class():
    """Returns sets with a threshold for each class."""
    import torch
    from torchcp.classification.predictor import ClassConditionalPredictor
    from torchcp.classification.score import LAC

    held, y, new = logits()
    predictor = ClassConditionalPredictor(LAC())
    predictor.calculate_threshold(torch.tensor(held), torch.tensor(y), ALPHA)
    theirs = predictor.predict_with_logits(torch.tensor(new)).numpy()
    p, p_new = jax.nn.softmax(held), jax.nn.softmax(new)
    cp = jaxcp.calibrate_groups(scores.LAC(), p, y, y, num_groups=4)
    return cp(p_new, ALPHA).mask, theirs


def itself():
    """Returns a model of torch that returns its input."""
    import torch

    model = torch.nn.Identity()
    model.unused = torch.nn.Parameter(torch.zeros(1))  # says which device it is on
    return model


def p_values():
    """Returns the p-values of all classes."""
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import LAC

    held, y, new = logits()
    predictor = SplitPredictor(LAC(), itself())
    batch = torch.tensor(held).float(), torch.tensor(y)
    predictor.calibrate([batch], ALPHA)
    theirs = predictor.predict_p(torch.tensor(new).float()).numpy()
    cp = jaxcp.calibrate(scores.LAC(), jax.nn.softmax(held), y)
    return cp.p_values(jax.nn.softmax(new)), theirs


def intervals(theirs, score, of):
    """Returns intervals by a score of theirs and of ours, for the same predictions."""
    import torch
    from torchcp.regression.predictor import SplitPredictor

    (x, y), (new, _) = numbers().part("cal"), numbers().part("new")
    columns = [torch.tensor(np.stack(of(v), -1)).float() for v in (x, new)]
    predictor = SplitPredictor(theirs, itself())
    predictor.calibrate([(columns[0], torch.tensor(y)[:, None].float())], ALPHA)
    found = predictor.predict(columns[1])[:, 0].numpy()
    pred = lambda v: of(v)[0] if len(of(v)) == 1 else of(v)  # noqa: E731
    return ends(jaxcp.calibrate(score, pred(x), y)(pred(new), ALPHA)), found


def absolute():
    """Returns intervals of absolute residuals."""
    from torchcp.regression.score import ABS

    model = line(numbers())
    return intervals(ABS(), scores.Absolute(), lambda x: (model.predict(x),))


def quantiles():
    """Returns intervals of two predicted quantiles."""
    from torchcp.regression.score import CQR

    return intervals(CQR(), scores.CQR(), two_ends)


def relative_quantiles():
    """Returns intervals of CQR-r; theirs move the ends by a millionth of the share."""
    from torchcp.regression.score import CQRR

    ours, theirs = intervals(CQRR(), scores.CQR(), two_ends)
    new, _ = numbers().part("new")
    return ours, theirs, np.stack(two_ends(new), -1)


def two_ends(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns predictions of two quantiles."""
    center = x[:, 0]
    return center - 0.5 - abs(x[:, 1]), center + 0.5 + abs(x[:, 1])


CALLS = {
    "calculate_threshold": lac,
    "log_softmax": log_lac,
    "APS(randomized=False)": aps,
    "RAPS(": raps,
    "TOPK(": top_k,
    "SAPS(": saps,
    "Margin()": margin,
    "EntmaxScore(": entmax,
    "ClassConditionalPredictor": by_class,
    "predict_p": p_values,
    "ABS()": absolute,
    "CQR()": quantiles,
    "CQRR()": relative_quantiles,
}
