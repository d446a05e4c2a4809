"""Scores whose sets are their own, and mutants of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own import CASES, OWN

import jaxcp
from helpers import ONE_OF_EACH
from jaxcp import _tree, scores
from jaxcp.scores import Custom
from jaxcp.sets import Box, Interval, LabelSet

RNG = np.random.default_rng(0)
N = 60
PREDS = jnp.asarray(2 + RNG.exponential(size=N), float)
Y = PREDS + jnp.asarray(RNG.normal(size=N), float)
PAIRS = PREDS - 0.3, PREDS + 0.4
P = jax.nn.softmax(jnp.asarray(RNG.normal(size=(N, 4)), float))
LABELS = jnp.asarray(RNG.integers(0, 4, N))


QUICK = {*ONE_OF_EACH, *OWN}


def usable(case):
    """Rows of a case but for those that calibration refuses."""
    preds, y = case.batch(200)
    if isinstance(case.score, scores.Normalized):
        keep = preds[1] > 0
        return tuple(part[keep] for part in preds), y[keep]
    return preds, y


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in CASES
    ],
)
def test_every_score_of_the_library_passes(name):
    scores.check(CASES[name].score, *usable(CASES[name]))


@pytest.mark.parametrize("score", [scores.APS(inclusive=True), scores.LAC()], ids=str)
def test_label_sets_that_are_larger_on_purpose(score):
    scores.check(score, P, LABELS)


@pytest.mark.parametrize("offset, scale", [(1e5, 1), (0, 1e-8), (1, 0), (-3, 1e6)])
def test_whatever_the_units(offset, scale):
    preds, y = (offset + scale * v for v in (PREDS, Y))
    for score in (scores.Absolute(), ABSOLUTE, scores.Signed()):
        scores.check(score, preds, y)
    scores.check(scores.CQR(), (preds - scale, preds + scale), y)


def test_double_precision():
    with jax.enable_x64(True):
        preds, y = (np.asarray(v, float) for v in (PREDS, Y))
        scores.check(ABSOLUTE, preds, y)
        with pytest.raises(ValueError, match="expected invert"):
            scores.check(inverse(lambda p, q: Interval(p - q, p + q - 1e-9)), preds, y)


def inverse(make):
    return Custom(lambda pred, y: jnp.abs(y - pred), make)


def of_pairs(make):
    return Custom(lambda pred, y: jnp.maximum(pred[0] - y, y - pred[1]), make)


def two_sided(make):
    return Custom(lambda pred, y: jnp.stack([pred - y, y - pred]), make)


ABSOLUTE = inverse(lambda p, q: Interval(p - q, p + q))
MUTANTS = {
    "another score": inverse(lambda p, q: Interval(p - q * p, p + q * p)),
    "wrong sign": inverse(lambda p, q: Interval(p + q, p - q)),
    "missing root": Custom(lambda p, y: (y - p) ** 2, ABSOLUTE.inverse),
    "another unit": inverse(lambda p, q: Interval(p - 100 * q, p + 100 * q)),
    "half as wide": inverse(lambda p, q: Interval(p - q / 2, p + q / 2)),
    "a little narrow": inverse(lambda p, q: Interval(p - 0.999 * q, p + q)),
    "a little wide": inverse(lambda p, q: Interval(p - q, p + q + 0.05)),
    "one side": inverse(lambda p, q: Interval(p - q, p + jnp.inf)),
    "swapped arguments": Custom(
        lambda y, p: jnp.abs(y - p) / p, lambda p, q: Interval(p - q * p, p + q * p)
    ),
    "not everything": inverse(
        lambda p, q: Interval(p - jnp.minimum(q, 1e3), p - 0.5 + jnp.minimum(q, 1e3))
    ),
    "never empty": inverse(
        lambda p, q: Interval(p - jnp.maximum(q, 1), p + jnp.maximum(q, 1))
    ),
    "negated": Custom(lambda p, y: -jnp.abs(y - p), ABSOLUTE.inverse),
    "swapped components": two_sided(lambda p, q: Interval(p - q[1], p + q[0])),
    "one component": two_sided(lambda p, q: Interval(p - q[0], p + q[0])),
    "sum of components": two_sided(
        lambda p, q: Interval(p - jnp.sum(q), p + jnp.sum(q))
    ),
}
MUTANTS_OF_PAIRS = {
    "grown inward": of_pairs(lambda p, q: Interval(p[0] + q, p[1] - q)),
    "other ends": of_pairs(lambda p, q: Interval(p[1] - q, p[0] + q)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name):
    with pytest.raises(ValueError, match=r"expected invert\(pred, q\) to .* of row \d"):
        scores.check(MUTANTS[name], PREDS, Y)


@pytest.mark.parametrize("name", MUTANTS_OF_PAIRS)
def test_mutants_of_pairs_are_caught(name):
    with pytest.raises(ValueError, match=r"expected invert\(pred, q\) to .* of row \d"):
        scores.check(MUTANTS_OF_PAIRS[name], PAIRS, Y)


def test_the_originals_of_the_mutants_pass():
    scores.check(ABSOLUTE, PREDS, Y)
    scores.check(ABSOLUTE, PREDS[:1], Y[:1])
    scores.check(of_pairs(lambda p, q: Interval(p[0] - q, p[1] + q)), PAIRS, Y)
    scores.check(two_sided(lambda p, q: Interval(p - q[0], p + q[1])), PREDS, Y)
    scores.check(Custom(ABSOLUTE.evaluate), PREDS.tolist(), np.asarray(Y))
    scores.check(ABSOLUTE, jnp.arange(9), jnp.arange(9)[::-1])  # integers
    padded = inverse(lambda p, q: Interval(p - q - 1e-5, p + q + 1e-5))
    scores.check(padded, PREDS, Y)  # outward, by less than a thousandth


def test_a_mutant_in_one_dimension_of_a_box():
    y = jnp.stack([Y, PREDS], axis=1)
    preds = jnp.stack([PREDS, Y], axis=1)
    make = lambda f: Custom(  # noqa: E731
        lambda p, y: jnp.max(jnp.abs(y - p)),
        lambda p, q: Box(p - q, p + q * jnp.array([1.0, f])),
    )
    scores.check(make(1.0), preds, y)
    with pytest.raises(ValueError, match=r"to hold the target of row \d"):
        scores.check(make(0.9), preds, y)


@jaxcp._tree.pytree
class Label:
    """A score of labels with parts that may be wrong."""

    alone: object = jaxcp._tree.static()
    table: object = jaxcp._tree.static(default=lambda p: 1 - p)
    members: object = jaxcp._tree.static(default=lambda s, q: s <= q)

    def __call__(self, pred, y):
        return self.alone(pred, y)

    def labels(self, pred):
        return self.table(pred)

    def invert(self, pred, q):
        return LabelSet(self.members(1 - pred, q))


def in_range(pred, y):
    return jnp.where((y >= 0) & (y < 4), 1 - pred[y], jnp.inf)


@pytest.mark.parametrize(
    "score, message",
    [
        (Label(lambda p, y: 1 - p[y]), "the score jnp.inf for label -1, which is none"),
        (Label(in_range, lambda p: p), r"expected score\(pred, y\) to be labels\(pred"),
        (Label(in_range, lambda p: 1 - p[::-1]), r"to be labels\(pred\)\[y\]"),
        (Label(in_range, lambda p: 1 - p[None]), r"labels\(pred\) of shape \(k,\)"),
        (Label(in_range, members=lambda s, q: s > q), r"expected invert\(pred, q\)"),
        (
            Label(in_range, members=lambda s, q: (s <= q) & (s > jnp.min(s))),
            r"expected invert\(pred, q\) to hold",
        ),
    ],
    ids=["clamps", "of p", "reversed", "rows", "complement", "without the best"],
)
def test_mutants_of_labels_are_caught(score, message):
    scores.check(Label(in_range), P, LABELS)
    with pytest.raises(ValueError, match=message):
        scores.check(score, P, LABELS)


def drawn(pred, y):
    return jnp.abs(y - pred) * np.random.default_rng().uniform(1, 2)


@pytest.mark.parametrize(
    "score, message",
    [
        (Custom(lambda p, y: jnp.full((2, 2), y)), r"shape \(\) or \(c,\), got \(2, 2"),
        (Custom(lambda p, y: jnp.log(p - 3)), "expected scores without NaN, got nan"),
        (Custom(drawn), "depends on pred and y of its row alone"),
        (
            inverse(lambda p, q: Interval(PREDS - q, PREDS + q)),
            r"of shape \(\), got \(60,\)",
        ),
        (Custom(lambda p, y: np.abs(np.asarray(y - p))), "pure jax functions of one"),
        (Custom(lambda p, y: y - p if y > p else p - y), "jnp.where for a branch"),
        (inverse(lambda p, q: Interval(p - float(q), p)), "call other libraries by"),
    ],
    ids=["matrix", "nan", "drawn", "batch", "numpy", "branch", "float"],
)
def test_scores_that_are_no_scores(score, message):
    with pytest.raises(ValueError, match=message):
        scores.check(score, PREDS, Y)


def test_jax_says_why_a_score_cannot_be_traced():
    with pytest.raises(ValueError, match="got Custom with values that jax") as caught:
        scores.check(Custom(lambda p, y: np.asarray(y) - p), PREDS, Y)
    assert isinstance(caught.value.__cause__, jax.errors.TracerArrayConversionError)


def test_arguments_are_those_of_calibrate():
    with pytest.raises(ValueError, match="expected y with 60 rows like preds, got 59"):
        scores.check(ABSOLUTE, PREDS, Y[1:])
    with pytest.raises(ValueError, match="expected preds without NaN, got nan at 3"):
        scores.check(ABSOLUTE, PREDS.at[3].set(jnp.nan), Y)
    with pytest.raises(ValueError, match="sum to 1 in each row"):
        scores.check(scores.LAC(), 2 * P, LABELS)
    with pytest.raises(ValueError, match="number of rows as an int >= 1, got 0"):
        scores.check(ABSOLUTE, PREDS[:0], Y[:0])


def test_traced_values_are_not_looked_at():
    jax.jit(lambda y: scores.check(MUTANTS["wrong sign"], PREDS, y))(Y)
    with pytest.raises(ValueError, match=r"expected invert\(pred, q\) to"):
        jax.jit(lambda: scores.check(MUTANTS["wrong sign"], PREDS, Y))()


def test_only_the_first_thousand_rows_are_read():
    late = jnp.arange(1200) > 1000
    score = Custom(
        lambda pred, y: jnp.abs(y - pred[0]),
        lambda p, q: Interval(p[0] - q * (1 - p[1]), p[0] + q),
    )
    preds, y = (jnp.tile(v, 20) for v in (PREDS, Y))
    scores.check(score, (preds, late.astype(float)), y)
    with pytest.raises(ValueError, match="to hold the target of row"):
        scores.check(score, (preds[201:], late[201:].astype(float)), y[201:])


def test_classes_of_one_structure_are_told_apart():
    def make(factor):
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass(frozen=True)
        class Distance:
            unit: float = 1.0

            def __call__(self, pred, y):
                return jnp.abs(y - pred) * self.unit

            def invert(self, pred, q):
                return Interval(pred - factor * q, pred + factor * q)

        return Distance()

    good, bad = make(1), make(2)
    assert _tree.classes_of([good, 1]) != _tree.classes_of([bad, 1])
    scores.check(good, PREDS, Y)
    with pytest.raises(ValueError, match=r"expected invert\(pred, q\)"):
        scores.check(bad, PREDS, Y)


def test_no_key_is_used_twice():
    with jax.debug_key_reuse(True):
        scores.check(scores.Absolute(), PREDS, Y)


def test_constants_of_a_score_are_staged_as_by_calibrate():
    """Each would be a program of its own otherwise."""
    staged = []

    def evaluate(pred, y):
        staged.append(isinstance(jnp.ones(()), jax.core.Tracer))
        return jnp.abs(y - pred)

    scores.check(Custom(evaluate, ABSOLUTE.inverse), PREDS, Y)
    assert staged and all(staged)
