"""The lines of the showcase for coverage where it matters, and for more label scores.

They run on the pools of the diabetes and of the digits. What groups of classes, limits
of ranks, distances and predicted quantiles come from is a part of the pool that is set
aside, so that these lines have fewer test rows.
"""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.pictures.showcase_methods import (
    ALPHA,
    Method,
    Pool,
    class_wise,
    rows,
    split,
)
from jaxcp import conditional, learners, scores

NUM_METHODS = 14
ABSOLUTE, LAC, GIVEN = scores.Absolute(), scores.LAC(), scores.Given()
COLUMNS = (2, 8)  # of the diabetes: body mass, and a serum measurement
KERNEL = conditional.Gaussian(1.0)  # of these, which are standardized
NUM_ASIDE = {"diabetes": 74, "digits": 200}


def overlapping(flags: Array, u: Array | None = None):
    """Returns conditional calibration in groups that overlap, plain or randomized."""

    def sets(pool, calibration, test):
        preds, y = pool.preds["ridge"], pool.y[calibration]
        old = preds[calibration], y, flags[calibration]
        cp = jaxcp.calibrate_conditional(ABSOLUTE, *old)
        own = None if u is None else u[test]
        return cp(preds[test], ALPHA, features=flags[test], u=own)

    return sets


def local(x: Array, anchors: Array | None = None):
    """Returns local calibration: RLCP with an anchor for each row, else LCP."""

    def sets(pool, calibration, test):
        preds, y = pool.preds["ridge"], pool.y[calibration]
        cp = jaxcp.calibrate_local(
            ABSOLUTE, preds[calibration], y, x[calibration], KERNEL
        )
        z = None if anchors is None else anchors[test]
        return cp(preds[test], ALPHA, x=x[test], anchors=z)

    return sets


def grouped(label_groups: np.ndarray):
    """Returns sets with a threshold for each group of labels."""

    def sets(pool, calibration, test):
        old, y = rows(pool.preds["p"], calibration), pool.y[calibration]
        cp = jaxcp.calibrate_groups(LAC, old, y, label_groups=label_groups, rare="all")
        return cp(rows(pool.preds["p"], test), ALPHA)

    return sets


def aside(pool: Pool) -> tuple[Pool, Pool]:
    """Returns the first rows of a pool, and the pool of the others."""
    n = NUM_ASIDE[pool.data]

    def part(some):
        kept = pool.x[some], pool.y[some], pool.groups[some], rows(pool.preds, some)
        x, y, groups, preds = kept
        return replace(pool, x=x, y=y, groups=groups, preds=preds)

    return part(slice(n)), part(slice(n, None))


def patients(key: Array, pool: Pool) -> Iterator[Method]:
    """Yields the lines on the diabetes."""
    key_u, key_anchors, key_tau = jax.random.split(key, 3)
    above = {"older": 0, "sex": 1, "heavy": 2}
    values = {name: np.asarray(pool.x[:, i]) > 0 for name, i in above.items()}
    flags = conditional.indicators(values)
    u, x = jaxcp.uniforms(key_u, len(pool.y)), pool.x[:, COLUMNS]
    yield Method("conditional", pool, overlapping(flags))
    yield Method("conditional, randomized", pool, overlapping(flags, u))
    yield Method("RLCP", pool, local(x, KERNEL.draw(key_anchors, x)))
    yield Method("LCP", pool, local(x))
    first, rest = aside(pool)
    learner = learners.QuantileRegression((1 - ALPHA,))
    given = first.preds["ridge"], first.y, first.x[:, COLUMNS]
    tau = jaxcp.fit_quantile(key_tau, learner, ABSOLUTE, *given)
    preds = rest.preds["ridge"], tau(rest.x[:, COLUMNS])
    rest = replace(rest, preds={"ridge, tau": preds})
    for form in ("ratio", "difference"):
        score = scores.Rectified(ABSOLUTE, form)
        yield Method(f"rectified, {form}", rest, split(score, "ridge, tau"))


def digits(key: Array, pool: Pool) -> Iterator[Method]:
    """Yields the lines on the digits; logits are the logarithms of probabilities."""
    logs = {"log p": jnp.log(jnp.maximum(pool.preds["p"], 1e-30))}
    pool = replace(pool, preds=pool.preds | logs)
    yield Method("SAPS", pool, split(scores.SAPS(0.1), "p"))
    yield Method("SAPS, randomized", pool, split(scores.SAPS(0.1, True), "p, u"))
    yield Method("margin", pool, split(scores.Margin(), "p"))
    yield Method("log margin", pool, split(scores.LogMargin(), "log p"))
    yield Method("entmax", pool, split(scores.Entmax(1.5), "log p"))
    first, rest = aside(pool)
    p, y, k = first.preds["p"], first.y, pool.num_groups
    own = jax.vmap(LAC)(p, y)
    groups = conditional.group_classes(key, own, y, 3, num_classes=k, min_count=5)
    yield Method("groups of labels", rest, grouped(np.asarray(groups)))
    ranks = jnp.sum(p >= p[jnp.arange(len(y)), y][:, None], axis=1)
    limits = jnp.maximum(jax.ops.segment_max(ranks, y, k), 1)
    truncated = scores.Truncated(LAC, limits)
    yield Method("truncated, class-wise", rest, class_wise(truncated, "p"))
    near = {"distances": distances(rest.x, first.x, y, k)}
    yield Method(
        "given, distances", replace(rest, preds=near), split(GIVEN, "distances")
    )


def distances(x: Array, known: Array, labels: Array, k: int) -> Array:
    """Returns how far the nearest known row of each class is from each row, (n, k)."""
    far = jnp.linalg.norm(x[:, None] - known[None], axis=2)
    return jax.vmap(lambda d: jax.ops.segment_min(d, labels, k))(far)


def all_methods(key: Array, pools: dict[str, Pool]) -> Iterator[Method]:
    """Yields the lines of the table, on pools of other lines, by name."""
    key_patients, key_digits = jax.random.split(key)
    yield from patients(key_patients, pools["diabetes"])
    yield from digits(key_digits, pools["digits"])
