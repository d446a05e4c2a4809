"""Risk control on scores of 80 labels, COCO: CRC, RCPS, learn then test.

Each function returns the lines of a table over random splits of the images. What the
authors printed stands in columns of its own; the scores are theirs for the false
negative rate, and another network's for the false discovery rate.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from jaxcp import pvalues, risk, scores, sets

NAME = "coco_tresnetxl.npz"
MULTI, FNR = scores.MultiLabel(), risk.false_negative_rate
CRC = {  # (n, alpha): the published mean loss and number of labels
    (1000, 0.1): (0.0988, 2.93),
    (2000, 0.1): (None, None),
    (2000, 0.05): (None, None),
    (100, 0.1): (None, None),
    (100, 0.02): (None, None),
}
NUM_SPLITS, NUM_TESTED = 300, 100
DELTA = 0.1
HOEFFDING, BETTING = "Hoeffding-Bentkus", "betting, grid of 0.005"
RCPS = ((1000, 0.1), (2000, 0.1), (2000, 0.05))
STEPS = np.linspace(1, 0, 201, dtype=np.float32)  # thresholds, the largest sets first
LEVELS = (0.05, 0.1, 0.2, 0.5)  # of the false discovery rate
NUM_ROWS, NUM_THRESHOLDS = 4000, 1500
CUTS = np.linspace(1, 0, NUM_THRESHOLDS, dtype=np.float32)  # the smallest sets first
PROCEDURES = {
    "Bonferroni": pvalues.bonferroni,
    "Holm": pvalues.holm,
    "150 starts": partial(
        pvalues.fixed_sequence, starts=tuple(range(0, NUM_THRESHOLDS, 10))
    ),
    "one start": pvalues.fixed_sequence,
}
PUBLISHED = {  # medians of the false discovery rate, by level
    "Bonferroni": (0.0363, 0.0795, 0.1752, 0.4685),
    "150 starts": (0.0387, 0.0826, 0.1783, 0.4710),
}


class Images(NamedTuple):
    """Scores of the labels, and which are true, (rows, labels)."""

    p: Array
    y: Array


def coco(folder: Path) -> Images:
    """Returns the scores of a network on COCO, 4952 images and 80 labels."""
    path = folder / NAME
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, scores of labels of COCO")
    with np.load(path) as data:
        return Images(jnp.asarray(data["sgmd"]), jnp.asarray(data["labels"] > 0))


def losses_of(found, y: Array) -> Array:
    """Returns the share of true labels that each set leaves out, (rows,)."""
    return jax.vmap(FNR)(found, y)


def split(key: Array, rows: int, n: int) -> tuple[Array, Array]:
    """Returns n calibration rows at random, and the others."""
    order = jax.random.permutation(key, rows)
    return order[:n], order[n:]


def controlled(
    data: Images, n: int, alpha: float, delta: float | None, key: Array
) -> dict:
    """Returns the loss and the size of the sets of one split: CRC, RCPS with delta."""
    old, new = split(key, len(data.y), n)
    cp = risk.calibrate_risk(FNR, MULTI, data.p[old], data.y[old])
    found = cp(data.p[new], alpha, delta=delta)
    return measured(found, data.y[new])


def measured(found, y: Array) -> dict:
    """Returns the mean loss and the mean number of labels of sets."""
    size = jax.vmap(lambda s: s.size())(found)
    return {"risk": jnp.mean(losses_of(found, y)), "size": jnp.mean(size)}


def on_grid(data: Images, table: Array, n: int, alpha: float, key: Array) -> dict:
    """Returns the same for the threshold that betting accepts, from the largest down.

    Args:
      data: The images.
      table: Losses of all rows at the thresholds `STEPS`, (rows, thresholds).
      n: Number of calibration rows.
      alpha: Level of the risk.
      key: Random key of the split.
    """
    old, new = split(key, len(data.y), n)
    valid = risk.learn_then_test(
        table[old], alpha, DELTA, method="fixed_sequence", p_value="betting"
    )
    index, some = risk.best(valid, -jnp.asarray(STEPS))
    q = jnp.where(some, jnp.asarray(STEPS)[index], 1.0)
    found = jax.vmap(lambda p: MULTI.invert(p, q))(data.p[new])
    return measured(found, data.y[new])


@jax.jit
def losses_at_steps(data: Images) -> Array:
    """Returns the loss of every row at every threshold of `STEPS`."""

    def of_row(row):
        one = lambda q: FNR(MULTI.invert(row.p, q), row.y)  # noqa: E731
        return jax.vmap(one)(jnp.asarray(STEPS))

    return jax.lax.map(of_row, data, batch_size=64)


@jax.jit
def discoveries(data: Images) -> Array:
    """Returns the share of false labels among scores > t, of every row and threshold.

    The set without labels has none.
    """

    def of_row(row):
        def one(t):
            return risk.false_discovery_rate(sets.LabelMask(row.p > t), row.y)

        return jax.vmap(one)(jnp.asarray(CUTS))

    return jax.lax.map(of_row, data, batch_size=16)


def tested(data: Images, table: Array, key: Array) -> dict:
    """Returns what each procedure accepts in one split, at every level.

    Args:
      data: The images.
      table: As `discoveries` returns it.
      key: Random key of the split.
    """
    old, new = split(key, len(data.y), NUM_ROWS)
    losses, rest = table[old], table[new]
    cuts = jnp.asarray(CUTS)

    def chosen(p, procedure):
        index, some = risk.best(procedure(p, DELTA), -cuts)
        index = jnp.where(some, index, 0)  # the empty sets, if none is accepted
        size = jnp.mean(jnp.sum(data.p[new] > cuts[index], axis=1))
        return {"risk": jnp.mean(rest[:, index]), "size": size, "t": cuts[index]}

    return {
        alpha: {name: chosen(p, procedure) for name, procedure in PROCEDURES.items()}
        for alpha in LEVELS
        for p in [risk.p_value(losses, alpha)]
    }


def crc_lines(data: Images, key: Array, num_splits: int = NUM_SPLITS) -> list[dict]:
    """Returns a line for each number of rows and level: the mean loss, and its band."""
    lines = []
    for (n, alpha), published in CRC.items():
        found = jaxcp.simulate(
            partial(controlled, data, n, alpha, None), key, num_splits, batch_size=4
        )
        lines.append(
            {"n": n, "alpha": alpha}
            | means(found)
            | {"at least": alpha - 2 / (n + 1), "at most": alpha}
            | {"published": published[0], "published size": published[1]}
        )
    return lines


def rcps_lines(data: Images, key: Array, num_splits: int = NUM_TESTED) -> list[dict]:
    """Returns a line for each bound: the mean loss, and how often it is above alpha."""
    table, lines = losses_at_steps(data), []
    for n, alpha in RCPS:
        trials = {
            HOEFFDING: partial(controlled, data, n, alpha, DELTA),
            BETTING: partial(on_grid, data, table, n, alpha),
        }
        for bound, trial in trials.items():
            found = jaxcp.simulate(trial, key, num_splits, batch_size=4)
            above = float(np.mean(np.asarray(found["risk"]) > alpha))
            lines.append(
                {"bound": bound, "n": n, "alpha": alpha}
                | means(found)
                | {"above alpha": above, "at most": DELTA}
            )
    return lines


def ltt_lines(data: Images, key: Array, num_splits: int = NUM_TESTED) -> list[dict]:
    """Returns a line for each procedure and level: the median, and the published."""
    trial = partial(tested, data, discoveries(data))
    found = jaxcp.simulate(trial, key, num_splits, batch_size=1)
    lines = []
    for name in PROCEDURES:
        published = PUBLISHED.get(name, (None,) * len(LEVELS))
        for alpha, theirs in zip(LEVELS, published, strict=True):
            values = {k: np.asarray(v) for k, v in found[alpha][name].items()}
            above = float(np.mean(values["risk"] > alpha))
            lines.append(
                {"procedure": name, "alpha": alpha}
                | {"median FDR": float(np.median(values["risk"])), "published": theirs}
                | {"above alpha": above}
                | {"labels": float(np.median(values["size"]))}
                | {"threshold": float(np.median(values["t"]))}
            )
    return lines


def means(found: dict) -> dict:
    """Returns the mean loss with its standard error, and the mean number of labels."""
    losses = np.asarray(found["risk"], float)
    error = losses.std() / len(losses) ** 0.5
    size = float(np.mean(found["size"]))
    return {"FNR": float(losses.mean()), "+-": float(error), "labels": size}
