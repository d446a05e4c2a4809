"""The lines of the showcase for anomalies and for boxes of objects."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.data import anomaly
from experiments.pictures.showcase_methods import ALPHA, Method, Pool, split
from jaxcp import datasets, detection, scores
from jaxcp.sets import Interval

NUM_METHODS = 5
DIGIT = 1


def strange_digits(key: Array) -> Iterator[Method]:
    """Yields a line for each detector: one digit is nominal, the others are strange.

    The sets hold the scores that raise no alarm, so that their coverage is one minus
    the false positive rate; the size is the share of anomalies that they let through.
    """
    _, x, y = anomaly.digits(None)
    key_order, key_fit = jax.random.split(key)
    order = np.asarray(jax.random.permutation(key_order, len(x)))
    x, y = x[order], y[order]
    nominal, strange = x[y == DIGIT], x[y != DIGIT]
    for name, fit in anomaly.DETECTORS.items():
        score = fit(key_fit, nominal[:60])
        rows, anomalies = (jnp.asarray(score(v)) for v in (nominal[60:], strange))
        groups = jnp.zeros(len(rows), int)
        pool = Pool("strange digits", rows, rows, groups, 1, 79, {})

        def let_through(sets, anomalies=anomalies):
            return jnp.mean(anomalies <= sets.upper[0])

        yield Method(name, pool, quiet, size=let_through)


def quiet(pool: Pool, calibration: Array, test: Array) -> Interval:
    """Returns the scores below the threshold of an alarm, for every test row."""
    q = jaxcp.conformal_quantile(pool.y[calibration], ALPHA)
    return Interval(jnp.full(test.shape, -jnp.inf), jnp.full(test.shape, q))


def objects(key: Array) -> Iterator[Method]:
    """Yields a line for each kind of box, on the matched objects of generated scenes.

    The size is the area of a box; the groups are small and large objects.
    """
    preds, true, _ = datasets.scenes(key, 160).lists()
    pairs = detection.match_images(preds, true, min_iou=0.3)
    preds, true = pairs.preds[pairs.matched][:400], pairs.true[pairs.matched][:400]
    area = jnp.prod(true[:, 2:] - true[:, :2], axis=1)
    groups = (area > jnp.median(area)).astype(int)
    pool = Pool("objects", true, true, groups, 2, 199, {"boxes": preds})
    for name, score in {
        "boxes, four quantiles": scores.BoxOffset(),
        "boxes, maximum": scores.BoxOffset(maximum=True),
        "inner boxes, maximum": scores.BoxOffset(inner=True, maximum=True),
    }.items():
        yield Method(name, pool, split(score, "boxes"))


def all_methods(key: Array) -> Iterator[Method]:
    """Yields the lines of the table."""
    key_digits, key_objects = jax.random.split(key)
    yield from strange_digits(key_digits)
    yield from objects(key_objects)
