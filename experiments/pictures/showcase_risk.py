"""The lines of the showcase for sets of many labels: all of them, or a share of them.

Images of COCO with the data, else generated rows. For risk control the coverage is one
minus the false negative rate: the share of the true labels that are found.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from experiments.data import risk_coco
from experiments.pictures.showcase_methods import ALPHA, Method, Pool, rows, split
from jaxcp import risk

NUM_METHODS = 3
DELTA = 0.1
NUM_ROWS, NUM_CALIBRATION, NUM_LABELS = 1500, 499, 20


def generated(key: Array) -> risk_coco.Images:
    """Returns probabilities of 20 labels, and true ones that follow others nearby."""
    key_p, key_y = jax.random.split(key)
    logits = 3 * jax.random.normal(key_p, (NUM_ROWS, NUM_LABELS)) - 3
    noise = jax.random.logistic(key_y, logits.shape)
    return risk_coco.Images(jax.nn.sigmoid(logits), 0.7 * logits + noise > 0)


def labels(key: Array, folder: Path | None) -> Pool:
    """Returns rows of many labels; the groups have few and many true ones."""
    if folder is not None and (folder / risk_coco.NAME).exists():
        name, data = "COCO", risk_coco.coco(folder)
    else:
        name, data = "generated labels", generated(key)
    some = jax.random.permutation(key, len(data.y))[:NUM_ROWS]
    p, y = data.p[some], data.y[some]
    groups = (jnp.sum(y, axis=1) > 2).astype(int)
    return Pool(name, p, y, groups, 2, NUM_CALIBRATION, {"p": p})


def controlled(delta: float | None):
    """Returns sets that keep the false negative rate, with delta each time but few."""

    def sets(pool, calibration, test):
        old, y = rows(pool.preds["p"], calibration), pool.y[calibration]
        cp = risk.calibrate_risk(risk_coco.FNR, risk_coco.MULTI, old, y)
        return cp(rows(pool.preds["p"], test), ALPHA, delta=delta)

    return sets


def found(sets, y: Array) -> Array:
    """Returns the share of the true labels of each row that are in its set."""
    return 1 - risk_coco.losses_of(sets, y)


def all_methods(key: Array, folder: Path | None) -> Iterator[Method]:
    """Yields the lines of the table."""
    pool, few = labels(key, folder), {"num_splits": 200}
    yield Method("all labels", pool, split(risk_coco.MULTI, "p"), **few)
    yield Method("risk control", pool, controlled(None), hits=found, **few)
    name = f"risk, delta = {DELTA}"
    yield Method(name, pool, controlled(DELTA), hits=found, **few)
