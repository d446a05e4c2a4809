"""Risk control of three tasks: segmentation, answers that may be withheld, a shift.

The masks are generated: level sets of smooth random fields, of which a model sees a
part. The digits that get no answer are real.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.data import anomaly
from experiments.tools import networks
from jaxcp import risk, scores

MULTI, FNR = scores.MultiLabel(), risk.false_negative_rate
DELTA, LEVELS = 0.1, (0.05, 0.1, 0.2)
SHAPE, NUM_IMAGES, NUM_POPULATION, NUM_TRIALS = (32, 32), 100, 1000, 300
HALF = "pixels above 1/2"
METHODS = {"CRC": None, f"RCPS, delta = {DELTA}": DELTA}
NUM_ANSWERS, ERRORS = 1000, 0.1  # calibration rows, and the level of errors
GRID = np.linspace(1, 0, 101, dtype=np.float32)  # of confidence, the surest first
NUM_SHIFTED, TRIPLES, SHIFT = 100, 3, 0.2


def fields(key: Array, num: int, shape: tuple[int, int], width: float) -> Array:
    """Returns smooth Gaussian fields of variance 1, (num, h, w).

    Args:
      key: Random key.
      num: Number of fields.
      shape: Height and width in pixels.
      width: Standard deviation of the filter, in pixels.
    """
    noise = jax.random.normal(key, (num, *shape))
    down, right = (_filter(size, width) for size in shape)
    return jnp.einsum("ih,nhw,jw->nij", down, noise, right)


def _filter(size, width):
    """Returns the rows of a Gaussian filter, each of norm 1."""
    at = jnp.arange(size)
    rows = jnp.exp(-0.5 * ((at[:, None] - at[None]) / width) ** 2)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def masks(key: Array, num: int, shape: tuple[int, int] = SHAPE) -> tuple[Array, Array]:
    """Returns a model's probabilities of pixels, and the true masks, (num, h, w).

    The true mask is where a smooth field is high; the model sees the field with an
    error as smooth, and is too sure of it.
    """
    key_truth, key_error, key_level = jax.random.split(key, 3)
    truth = fields(key_truth, num, shape, 4.0)
    seen = 0.96 * truth + 0.28 * fields(key_error, num, shape, 2.0)
    level = 1 + 0.3 * jax.random.normal(key_level, (num, 1, 1))
    return jax.nn.sigmoid(4 * (seen - level)), truth > level


def thresholds(key: Array) -> dict:
    """Returns the threshold of each method and level, from fresh images."""
    cp = risk.calibrate_risk(FNR, MULTI, *masks(key, NUM_IMAGES))
    return {
        (name, alpha): cp.quantile(alpha, delta=delta)
        for name, delta in METHODS.items()
        for alpha in LEVELS
    } | {(HALF, 0.5): jnp.asarray(0.5)}


@jax.jit
def outcome(population: risk.RiskCalibration, qs: Array) -> tuple[Array, Array]:
    """Returns the risk of each threshold, and the share of pixels that it keeps."""
    share = lambda q: jnp.mean(1 - population.preds <= q)  # noqa: E731
    return jax.lax.map(lambda q: (population.risk(q), share(q)), qs)


def segmentation_lines(key: Array, num_trials: int = NUM_TRIALS) -> list[dict]:
    """Returns a line for each method and level: the risk over calibration sets.

    The risk of a threshold is the mean loss of very many other images.
    """
    key_population, key_trials = jax.random.split(key)
    population = risk.calibrate_risk(FNR, MULTI, *masks(key_population, NUM_POPULATION))
    found = jaxcp.simulate(thresholds, key_trials, num_trials)
    lines = []
    for (name, alpha), qs in found.items():
        risks, shares = outcome(population, qs[:1] if name == HALF else qs)
        risks, delta = np.asarray(risks, float), METHODS.get(name)
        lines.append(
            {"method": name, "alpha": None if name == HALF else alpha}
            | {"n": NUM_IMAGES, "risk": float(risks.mean())}
            | {"+-": float(risks.std() / len(risks) ** 0.5)}
            | {"at most": alpha if name == "CRC" else None}
            | {"above alpha": float(np.mean(risks > alpha)), "share at most": delta}
            | {"share of pixels": float(np.mean(shares))}
        )
    return lines


def draw_masks(key: Array, alpha: float = 0.1, num: int = 4) -> plt.Figure:
    """Draws images with what 1/2 and the controlled threshold find, miss and add."""
    key_old, key_new = jax.random.split(key)
    cp = risk.calibrate_risk(FNR, MULTI, *masks(key_old, NUM_IMAGES))
    p, y = (np.asarray(v) for v in masks(key_new, num))
    found = {"above 1/2": p >= 0.5, f"risk {alpha}": np.asarray(cp(p, alpha).mask)}
    figure, axes = plt.subplots(
        num, 1 + len(found), figsize=(5, 1.7 * num), layout="constrained"
    )
    for i, row in enumerate(axes):
        row[0].imshow(p[i], cmap="gray", vmin=0, vmax=1)
        row[0].contour(y[i], [0.5], colors="C1", linewidths=1)
        for ax, (name, mask) in zip(row[1:], found.items(), strict=True):
            ax.imshow(_colored(mask[i], y[i]))
            missed = float(FNR(jax.tree.map(jnp.asarray, _set(mask[i])), y[i]))
            ax.set_xlabel(f"misses {missed:.0%}", fontsize="small")
            if i == 0:
                ax.set_title(name)
    axes[0, 0].set_title("probability, truth")
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    colors = {"found": FOUND, "missed": MISSED, "added": ADDED}
    patches = [plt.Rectangle((0, 0), 1, 1, color=c) for c in colors.values()]
    figure.legend(patches, colors, loc="outside lower center", ncols=3)
    return figure


FOUND, MISSED, ADDED = (0.0, 0.45, 0.7), (0.84, 0.37, 0.0), (0.8, 0.8, 0.8)


def _set(mask):
    return MULTI.invert(jnp.asarray(mask, float), jnp.asarray(0.5))


def _colored(mask, y):
    """Returns an image: what is found, missed, and added."""
    image = np.ones((*y.shape, 3))
    for rows, color in ((mask & y, FOUND), (~mask & y, MISSED), (mask & ~y, ADDED)):
        image[rows] = color
    return image


class Answers(NamedTuple):
    """Confidence in the likeliest label, and whether it is right, of unseen rows."""

    confidence: Array
    correct: Array
    start: int  # index of the first threshold to test, from rows set aside


def answers(key: Array, folder: Path | None) -> Answers:
    """Trains a small network on some digits; 500 others say where the tests start."""
    _, x, y = anomaly.digits(folder)
    key_order, key_fit = jax.random.split(key)
    order = np.asarray(jax.random.permutation(key_order, len(y)))
    x, y = jnp.asarray(x[order], float), jnp.asarray(y[order], int)
    num_train, num_first = len(y) // 20, len(y) // 20
    network = networks.train(
        key_fit,
        networks.label_loss,
        x[:num_train],
        y[:num_train],
        num_out=10,
        num_steps=100,
    )
    p = jax.nn.softmax(network(x[num_train:]))
    confidence, correct = jnp.max(p, axis=1), jnp.argmax(p, axis=1) == y[num_train:]
    rest = len(confidence) - num_first
    start = first_start(np.asarray(confidence[:num_first]), num_answers(rest))
    return Answers(confidence[num_first:], correct[num_first:], start)


def num_answers(num_rows: int) -> int:
    """Returns the number of calibration rows."""
    return min(NUM_ANSWERS, num_rows // 3)


def first_start(confidence: np.ndarray, n: int) -> int:
    """Returns the first threshold at which enough of n rows would have an answer.

    A test without errors can reject from m answers on, (1 - alpha)^m <= delta; here
    twice as many are expected.
    """
    needed = 2 * np.log(DELTA) / np.log1p(-ERRORS)
    answered = np.mean(confidence[:, None] >= GRID[None], axis=0)
    return int(np.argmax(n * answered >= needed))


def withheld(data: Answers, key: Array) -> dict:
    """Returns errors given an answer, and the share of answers, by procedure."""
    n = num_answers(len(data.correct))
    order = jax.random.permutation(key, len(data.correct))
    (old, new), grid = (order[:n], order[n:]), jnp.asarray(GRID)
    confidence, correct = data.confidence[old], data.correct[old]
    rest, right = data.confidence[new], data.correct[new]
    asked = confidence[:, None] >= grid[None]
    counts = risk.Counts(
        jnp.sum(asked & ~correct[:, None], axis=0), jnp.sum(asked, axis=0)
    )

    def sequence(*starts):
        return risk.selective_threshold(
            confidence, correct, ERRORS, DELTA, grid=GRID, starts=starts
        )[0]

    def best(method):
        valid = risk.learn_then_test(counts, ERRORS, DELTA, method=method)
        index, some = risk.best(valid, -grid)
        return jnp.where(some, grid[index], jnp.inf)

    errors = lambda t: jnp.mean((rest >= t) & ~right) / jnp.mean(rest >= t)  # noqa: E731
    allowed = jnp.nan_to_num(jax.vmap(errors)(grid)) <= ERRORS
    found = {
        "fixed sequence, from the top": sequence(0),
        "fixed sequence, from where rows are": sequence(data.start),
        "fixed sequence, 10 starts": sequence(*range(data.start, len(GRID), 5)[:10]),
        "Holm": best("holm"),
        "Bonferroni": best("bonferroni"),
        "oracle": jnp.min(jnp.where(allowed, grid, jnp.inf)),
    }
    share = lambda t: jnp.mean(rest >= t)  # noqa: E731
    return {
        name: {"errors": jnp.nan_to_num(errors(t)), "answered": share(t)}
        for name, t in found.items()
    }


def selective_lines(data: Answers, key: Array, num_trials: int = 1000) -> list[dict]:
    """Returns a line for each procedure: errors, how often too many, and answers."""
    found = jaxcp.simulate(partial(withheld, data), key, num_trials)
    return [
        {"procedure": name}
        | {"errors": float(np.mean(values["errors"])), "alpha": ERRORS}
        | {"above alpha": float(np.mean(np.asarray(values["errors"]) > ERRORS))}
        | {"at most": None if name == "oracle" else DELTA}
        | {"answered": float(np.mean(values["answered"]))}
        | {"never answers": float(np.mean(np.asarray(values["answered"]) == 0))}
        for name, values in found.items()
    ]


def shifted(key: Array) -> dict:
    """Returns the loss of one test row from another law of inputs, by weights or not.

    x is uniform on (-1, 1), of a test row with the density e^x; three errors a row,
    normal with the spread 1 + x; the loss is the share of errors above the threshold.
    """
    key_x, key_test, key_errors = jax.random.split(key, 3)
    x = jax.random.uniform(key_x, (NUM_SHIFTED,), minval=-1, maxval=1)
    low, high = jnp.exp(-1.0), jnp.exp(1.0)
    new = jnp.log(low + jax.random.uniform(key_test) * (high - low))
    noise = jnp.abs(jax.random.normal(key_errors, (NUM_SHIFTED + 1, TRIPLES)))
    errors = (1 + jnp.append(x, new))[:, None] * noise
    p = jnp.exp(-errors)  # a threshold on 1 - p is one on the errors
    y = jnp.ones(p.shape, bool)

    def loss(weights, weight):
        cp = risk.calibrate_risk(FNR, MULTI, p[:-1], y[:-1], weights=weights)
        q = cp.quantile(SHIFT, test_weight=weight)
        return FNR(MULTI.invert(p[-1], q), y[-1])

    return {
        "weighted": loss(jnp.exp(x), jnp.exp(new)),
        "unweighted": loss(None, None),
    }


def shift_lines(key: Array, num_trials: int = 50_000) -> list[dict]:
    """Returns the mean loss under a shift, with weights and without."""
    found = jaxcp.simulate(shifted, key, num_trials)
    return [
        {"method": name, "n": NUM_SHIFTED, "alpha": SHIFT}
        | {"risk": float(np.mean(values))}
        | {"+-": float(np.std(values) / num_trials**0.5)}
        | {"at most": SHIFT if name == "weighted" else None}
        for name, values in found.items()
    ]
