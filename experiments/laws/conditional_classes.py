"""A hundred classes with few rows each: one threshold, one a class, one a group.

`python -m experiments.laws.conditional_classes [--out DIR]`

A row has normal logits, that of its class moved up and spread: in one of four ways, the
shape of the class. Probabilities are a softmax at a sharpness of each row's own, labels
are uniform, and scores are one less the probability (`scores.APS`). All methods have
the same calibration rows; groups of classes (`conditional.group_classes`), and limits
of ranks, are of as many other rows, limits the largest rank that a class has there.
RC3P takes limits and thresholds from the same rows: the least rank that less than alpha
of them are beyond, and the threshold at alpha less that share. Where each class has as
many rows, class-wise sets cover k / (n + 1).

Coverage of a class and sizes of sets are means over 20,000 rows of each shape, the same
in all trials, as good as exact. The gap is the mean over classes of the distance from
coverage to 1 - alpha. An infinite threshold covers all rows, and so widens it, too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm.auto import tqdm

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import conditional, scores

ALPHA = 0.1
NUM_CLASSES, NUM_GROUPS = 100, 4
SHAPES = ((2.5, 0.5), (3.0, 1.5), (4.0, 0.5), (4.5, 1.0))  # mean and spread of a logit
SHARPNESS = 0.5, 3.0
ROWS, EQUAL = (10, 20), (20, 50)  # of a class: on average, and in each
NUM_TRIALS, NUM_TEST = 100, 20_000
APS = scores.APS()
GROUPED = {"all": "grouped, rare as all", "infinite": "grouped, rare infinite"}


class Rows(NamedTuple):
    """Rows of the law, and the rank of the label of each: 1 for the smallest score."""

    p: Array
    y: Array
    score: Array
    rank: Array


class Sampled(NamedTuple):
    """Scores and ranks of many rows: of their labels, (4, m), and of another, (m,)."""

    score: np.ndarray
    rank: np.ndarray
    other_score: np.ndarray
    other_rank: np.ndarray


def shape_of(y: Array) -> Array:
    """Returns the shape of each class, of four."""
    return y % len(SHAPES)


@jax.jit
def rows_of(key: Array, y: Array) -> Rows:
    """Returns a row for each label."""
    key_logits, key_sharp = jax.random.split(key)
    mean, spread = jnp.asarray(SHAPES).T
    low, high = SHARPNESS
    own = jax.nn.one_hot(y, NUM_CLASSES)
    z = jax.random.normal(key_logits, (len(y), NUM_CLASSES))
    moved = mean[shape_of(y), None] + spread[shape_of(y), None] * z
    sharp = jax.random.uniform(key_sharp, (len(y), 1), minval=low, maxval=high)
    p = jax.nn.softmax(sharp * jnp.where(own > 0, moved, z))
    rank = jnp.sum(p >= p[jnp.arange(len(y)), y][:, None], axis=1)
    return Rows(p, y, jax.vmap(APS)(p, y), rank)


def draw(key: Array, rows: int, equal: bool) -> Rows:
    """Returns rows with labels that are uniform, or of which each is as frequent."""
    key_y, key_rows = jax.random.split(key)
    y = jnp.repeat(jnp.arange(NUM_CLASSES), rows)
    if not equal:
        y = jax.random.randint(key_y, y.shape, 0, NUM_CLASSES)
    return rows_of(key_rows, y)


def sample(key: Array, num_test: int = NUM_TEST) -> Sampled:
    """Returns scores and ranks of many rows of each shape, a tenth at a time."""
    own, other = [], []
    for part in jax.random.split(key, 10):
        y = jnp.repeat(jnp.arange(len(SHAPES)), num_test // 10)
        found = rows_of(part, y)
        last = jnp.full_like(y, NUM_CLASSES - 1)  # no label of these rows
        p = found.p[:, -1]
        rank = jnp.sum(found.p >= p[:, None], axis=1)
        own.append((found.score, found.rank))
        score = jax.vmap(APS)(found.p, last)
        other.append((score[:: len(SHAPES)], rank[:: len(SHAPES)]))
    by_shape = [
        np.reshape(v, (10, len(SHAPES), -1))
        for v in map(np.stack, zip(*own, strict=True))
    ]
    by_shape = [np.concatenate(v, axis=1) for v in by_shape]
    return Sampled(*by_shape, *(np.concatenate(v) for v in zip(*other, strict=True)))


def thresholds(key: Array, old: Rows, other: Rows) -> dict[str, tuple]:
    """Returns the threshold and the largest rank of each class, by method."""
    k, none = NUM_CLASSES, np.full(NUM_CLASSES, NUM_CLASSES)
    one = jaxcp.calibrate(APS, old.p, old.y).quantile(ALPHA)
    each = jaxcp.calibrate_groups(APS, old.p, old.y, old.y, num_groups=k)
    found = {
        "split": (jnp.full(k, one), none),
        "class-wise": (each.quantile(ALPHA), none),
        "true shapes as groups": (_grouped(old, shape_of(jnp.arange(k))), none),
    }
    groups = conditional.group_classes(
        key, other.score, other.y, NUM_GROUPS, num_classes=k
    )
    for rare, name in GROUPED.items():
        found[name] = _grouped(old, groups, rare), none
    limits = np.zeros(k, int)
    np.maximum.at(limits, np.asarray(other.y), np.asarray(other.rank))
    score = scores.Truncated(APS, jnp.asarray(limits))
    cp = jaxcp.calibrate_groups(score, old.p, old.y, old.y, num_groups=k)
    q = np.asarray(cp.quantile(ALPHA))
    # An infinite threshold has labels of an infinite score, those beyond the limits.
    found["truncated, class-wise"] = q, np.where(np.isinf(q), k, limits)
    found["RC3P, same rows"] = rc3p(*map(np.asarray, old[1:]))
    return {name: tuple(map(np.asarray, v)) for name, v in found.items()}


def _grouped(old, groups, rare=None):
    """Returns the threshold of each class, of the rows with a label in its group."""
    given = {"label_groups": np.asarray(groups), "rare": rare}
    cp = jaxcp.calibrate_groups(APS, old.p, old.y, **given)
    return cp.quantile(ALPHA)


def rc3p(y: np.ndarray, score: np.ndarray, rank: np.ndarray) -> tuple:
    """Returns thresholds and limits as Shi et al. 2024, both from the same rows."""
    found = []
    for c in range(NUM_CLASSES):
        s, r = np.sort(score[y == c]), rank[y == c]
        beyond = np.sum(r[:, None] > np.arange(NUM_CLASSES + 1), axis=0)
        limit = NUM_CLASSES if len(r) == 0 else int(np.argmax(beyond < ALPHA * len(r)))
        left = ALPHA - beyond[limit] / max(len(r), 1)
        place = int(jaxcp.conformal_rank(len(s), float(left)))
        found.append((s[place - 1] if place <= len(s) else np.inf, limit))
    q, limits = map(np.array, zip(*found, strict=True))
    return q, limits


def judged(sampled: Sampled, q: np.ndarray, limits: np.ndarray) -> dict:
    """Returns coverage of classes, its gap, infinite thresholds, and sizes of sets."""
    inside = lambda score, rank, c: np.mean((score <= q[c]) & (rank <= limits[c]))  # noqa: E731
    shapes = shape_of(np.arange(NUM_CLASSES))
    own = [inside(sampled.score[j], sampled.rank[j], c) for c, j in enumerate(shapes)]
    others = [
        inside(sampled.other_score, sampled.other_rank, c) for c in range(NUM_CLASSES)
    ]
    return {
        "coverage": np.mean(own),
        "gap x100": 100 * np.mean(np.abs(np.array(own) - (1 - ALPHA))),
        "infinite": np.mean(np.isinf(q)),
        "size": np.mean(own) + (1 - 1 / NUM_CLASSES) * np.sum(others),
    }


def trial(key: Array, sampled: Sampled, rows: int, equal: bool) -> dict[str, dict]:
    """Returns the figures of each method, of one calibration set."""
    key_old, key_other, key_groups = jax.random.split(key, 3)
    old, other = (draw(k, rows, equal) for k in (key_old, key_other))
    found = thresholds(key_groups, old, other)
    return {name: judged(sampled, *v) for name, v in found.items()}


def table(
    num_trials: int = NUM_TRIALS,
    rows: tuple[int, ...] = ROWS,
    equal: tuple[int, ...] = EQUAL,
    num_test: int = NUM_TEST,
) -> list[dict]:
    """Returns the means over calibration sets of each method and number of rows."""
    key_test, key_trials = jax.random.split(jax.random.key(0))
    sampled, lines = sample(key_test, num_test), []
    for i, n in enumerate((*rows, *equal)):
        keys = jax.random.split(jax.random.fold_in(key_trials, i), num_trials)
        each = i >= len(rows)
        runs = [trial(key, sampled, n, each) for key in tqdm(keys, desc=f"{n} rows")]
        lines += means(f"{n} in each" if each else n, runs)
    return lines


def means(rows: int | str, runs: list[dict]) -> list[dict]:
    """Returns a line for each method; the error is that of the coverage."""
    lines = []
    for name, figures in runs[0].items():
        values = {k: np.array([run[name][k] for run in runs]) for k in figures}
        mean = {k: float(v.mean()) for k, v in values.items()}
        line = {"rows a class": rows, "method": name, "coverage": mean.pop("coverage")}
        error = float(values["coverage"].std() / len(runs) ** 0.5)
        lines.append(line | {"+-": error} | mean)
    return lines


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__).parse_args()
    lines = table()
    print_table("A hundred classes with few rows each", lines)
    settings = {"alpha": ALPHA, "classes": NUM_CLASSES, "shapes": SHAPES}
    settings |= {"groups": NUM_GROUPS, "trials": NUM_TRIALS, "seed": 0}
    save_results(args.out, "conditional_classes", lines, settings)


if __name__ == "__main__":
    main()
