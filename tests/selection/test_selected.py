"""Sets of selected rows: vectors, all swaps, the law, what is refused."""

from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import cut, promised, same
from jaxcp import pvalues, selection
from jaxcp.scores import LAC, Absolute, Labelwise, Normalized
from rows import refuses

VECTORS = np.load(Path(__file__).parents[1] / "reference/selected.npz")
ABSOLUTE = Absolute()


@jaxcp.pytree
class Clipped(Labelwise):
    """LAC of two labels, for a number that is the probability once it is clipped."""

    def labels(self, pred):
        p = jnp.clip(pred, 0, 1)
        return jnp.stack([p, 1 - p])


def first(pred):
    return pred[0]


RULES = {
    "top": lambda g, by: selection.top(int(g["rule"]), by=by),
    "above": lambda g, by: selection.above(float(g["rule"]), by=by),
    "bh": lambda g, by: selection.by_p_values(float(g["cut"]), float(g["rule"]), by=by),
    "p": lambda g, by: selection.by_p_values(
        float(g["cut"]), float(g["rule"]), stepwise=False, by=by
    ),
}


def calibrated(g, rule, dtype):
    """Returns the calibration of a vector, and its test predictions."""
    n, cast = len(g["mu"]), partial(np.asarray, dtype=dtype)
    mu, test = cast(g["mu"]), cast(g["test_mu"])
    if "mask" in g:
        rows, by = (Clipped(), mu, g["y"].astype(int)), None
    else:
        scale, by = cast(g["scale"]), first
        rows = Normalized(), (mu, scale[:n]), cast(g["y"])
        test = test, scale[n:]
    made = RULES[rule.split("_")[0]](g, by)
    return selection.calibrate_selected(*rows, rule=made), test


CASES = ["top", "top_ties", "above", "bh_labels", "bh_numbers", "p"]


@pytest.mark.parametrize(
    "case, dtype",
    [(case, np.float64) for case in CASES]
    + [(case, np.float32) for case in ("top_ties", "bh_labels", "bh_numbers")],
)
def test_vectors(case, dtype):
    names = [k for k in VECTORS if k.startswith(f"{case}_")]
    if case == "top":
        names = [k for k in names if "ties" not in k]
    g = {k[len(case) + 1 :]: VECTORS[k] for k in names}
    with jax.enable_x64(dtype is np.float64):
        cp, test = calibrated(g, case, dtype)
        alpha = float(g["alpha"])
        found = cp(test, alpha)
        assert_array_equal(found.selected, g["selected"])
        assert_array_equal(found.indices, np.flatnonzero(g["selected"]))
        rows, places, _ = cp._of_selected(test)
        own, q = jax.jit(inner)(rows, places, rows.rank(alpha))
        for null, name in enumerate(["above", "below"]):
            assert_array_equal(own[null], g[f"rows_{name}"][g["selected"]])
        q = q.reshape(len(places), -1)
        expected = np.stack([g["threshold_above"], g["threshold_below"]], 1)
        eps = 4 * np.finfo(dtype).eps
        assert_allclose(q, expected[g["selected"]][:, : q.shape[1]], rtol=eps)
        if "mask" in g:
            assert_array_equal(found.sets.mask, g["mask"][g["selected"]])
            return
        kinds = {"top": jaxcp.sets.Interval, "above": jaxcp.sets.Interval}
        kind = kinds.get(case.split("_")[0], jaxcp.sets.Intervals)
        assert isinstance(found.sets, kind)
        grid = g["grid"].astype(dtype)
        inside = contained(found.sets, grid)
        assert_array_equal(inside, g["in_set"][g["selected"]])


def inner(rows, places, rank=None):
    """Returns which rows refer to each place, for b = 0, 1, and its thresholds."""
    at = lambda null: jax.vmap(lambda j: rows.weights_at(j, null)[0] > 0)(places)  # noqa: E731
    q = None if rank is None else jax.vmap(lambda j: rows.threshold(rank, j))(places)
    return jnp.stack([at(False), at(True)]), q


@jax.jit
def contained(sets, candidates):
    """Returns which candidates each set holds."""
    return jax.vmap(lambda own: jax.vmap(own.contains)(candidates))(sets)


def test_adjusted_sets_are_split_at_a_smaller_level():
    g = {k[4:]: VECTORS[k] for k in VECTORS if k.startswith("top_")}
    mu, y, test = (g[k].astype("f") for k in ("mu", "y", "test_mu"))
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=selection.top(3))
    found = cp.adjusted(test, 0.2)
    split = jaxcp.calibrate(ABSOLUTE, mu, y)(test[g["selected"]], g["fcr_alpha"].item())
    assert_array_equal(found.indices, np.flatnonzero(g["selected"]))
    assert_array_equal(found.sets.upper, split.upper)
    inside = jax.jit(lambda t: cp.adjusted(t, 0.2))(test)
    assert_array_equal(inside.sets.upper[found.indices], split.upper)


# The rules by their definitions, of places that hold (mu, whether y <= c).
LEVEL = 2, 5  # as a fraction


def p_counts(mu, below, test):
    return 1 + jnp.sum(below[:, None] & (mu[:, None] >= test[None]), axis=0)


def by_bh(mu, below, test):
    a, b = LEVEL
    counts, m = p_counts(mu, below, test), len(test)
    r = jnp.arange(1, m + 1)
    fits = b * m * jnp.sort(counts) <= a * (len(mu) + 1) * r
    return counts <= jnp.max(jnp.where(fits, jnp.sort(counts), 0))


def by_p(mu, below, test):
    a, b = LEVEL
    return b * p_counts(mu, below, test) <= a * (len(mu) + 1)


def by_rank(mu, below, test):
    place = jnp.arange(len(test))
    ties = (test[:, None] == test[None]) & (place[:, None] < place[None])
    return jnp.sum((test[:, None] > test[None]) | ties, axis=0) < 2


def by_cut(mu, below, test):
    return test > 1


DEFINED = {
    "top": (by_rank, selection.top(2)),
    "above": (by_cut, selection.above(1.0)),
    "bh": (by_bh, selection.by_p_values(0.0, 0.4)),
    "p": (by_p, selection.by_p_values(0.0, 0.4, stepwise=False)),
}


def all_swaps(flags, mu, below, test):
    """Returns selected rows and whether i is in R_j for b = 0, 1, shape (2, m, n)."""

    def swapped(b, j, i):
        marks = below.at[i].set(b)
        return flags(mu.at[i].set(test[j]), marks, test.at[j].set(mu[i]))[j]

    for axis in (2, 1, 0):
        spread = [None] * 3
        spread[axis] = 0
        swapped = jax.vmap(swapped, spread)
    places = jnp.array([False, True]), jnp.arange(len(test)), jnp.arange(len(mu))
    return flags(mu, below, test), swapped(*places)


@pytest.mark.parametrize("own", [False, True], ids=["closed", "own"])
@pytest.mark.parametrize("name", DEFINED)
def test_reference_rows_are_those_of_all_swaps(name, own, key):
    """1,000 cases of seven and five rows, with ties and infinities in most of them."""
    flags, rule = DEFINED[name]
    if own:
        rule = selection.Swaps(flags, threshold=0.0)
    pool = jnp.array([-np.inf, -0.0, 0.0, 1.0, 2.0, np.inf])

    def case(key):
        keys = jax.random.split(key, 3)
        mu = jax.random.choice(keys[0], pool, (7,))
        test = jax.random.choice(keys[1], pool, (5,))
        y = jax.random.randint(keys[2], (7,), -1, 2).astype(float)
        cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=rule)
        rows, places, _ = cp._of_selected(test)
        found, _ = inner(rows, places)
        return all_swaps(flags, mu, y <= 0, test), (rows.chosen[0], found)

    cases = jax.jit(jax.vmap(case))(jax.random.split(key, 1000))
    (selected, swaps), (chosen, found) = jax.tree.map(np.asarray, cases)
    assert_array_equal(chosen, selected)
    assert 0.1 < selected.mean() < 0.9
    assert_array_equal(found, swaps & selected[:, None, :, None])
    if name in ("bh", "p"):  # targets matter
        assert (swaps[:, 0] != swaps[:, 1])[selected].any()


CANDIDATES = np.arange(-4, 9) / 2


def in_set(mu, y, test, j, candidate):
    """Returns whether a target is in the set at 0.4, BH at 0.6 on y <= 1."""
    values, n, m = [], len(mu), len(test)
    for i in range(n):
        old, new, targets = mu.copy(), test.copy(), y.copy()
        old[i], new[j], targets[i] = test[j], mu[i], candidate
        counts = np.array([1 + np.sum((targets <= 1) & (old >= v)) for v in new])
        ordered = np.sort(counts)
        fits = 5 * m * ordered <= 3 * (n + 1) * np.arange(1, m + 1)
        if fits.any() and counts[j] <= ordered[fits].max():
            values.append(abs(y[i] - mu[i]))
    r = len(values)
    k = r + 1 - 2 * (r + 1) // 5
    q = np.inf if k > r else np.sort(values)[k - 1]
    return abs(candidate - test[j]) <= q


def test_a_loop_over_the_definition():
    """NumPy alone: swaps, ranks and thresholds, one candidate target at a time."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        mu, test = rng.integers(0, 5, 8) / 2, rng.integers(0, 5, 4) / 2
        y = mu + rng.integers(-2, 3, 8) / 2
        cp = selection.calibrate_selected(
            ABSOLUTE, mu, y, rule=selection.by_p_values(1.0, 0.6)
        )
        found = cp(test, 0.4)
        p = pvalues.selection_p_values(mu, y, 1.0, test)
        chosen = np.asarray(pvalues.benjamini_hochberg(p, 0.6))
        assert_array_equal(found.selected, chosen)
        inside = contained(found.sets, CANDIDATES)
        expected = [
            [in_set(mu, y, test, j, candidate) for candidate in CANDIDATES]
            for j in np.flatnonzero(chosen)
        ]
        assert_array_equal(inside, np.reshape(expected, inside.shape))


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize(
    "rule",
    [
        selection.above(-np.inf),
        selection.top(6),
        selection.top(9),
        lambda mu, below, test: test > -jnp.inf,
        selection.by_p_values(-9.0, 0.9),
    ],
    ids=["above", "top m", "top of more", "own", "no nulls"],
)
def test_no_selection_is_split(rule, dtype):
    with jax.enable_x64(dtype == "d"):
        mu, y = np.random.default_rng(1).normal(size=(2, 26)).astype(dtype)
        cp = selection.calibrate_selected(ABSOLUTE, mu[:20], y[:20], rule=rule)
        found, split = cp(mu[20:], 0.3), jaxcp.calibrate(ABSOLUTE, mu[:20], y[:20])
        assert found.selected.all()
        sets = found.sets if hasattr(found.sets, "ends") else found.sets.hull()
        for ours, theirs in zip(sets.ends(), split(mu[20:], 0.3).ends(), strict=True):
            assert ours.dtype == theirs.dtype
            assert_array_equal(ours, theirs)
        p = cp.p_values(mu[20:], y[20:])
        assert_allclose(p, split.p_values(mu[20:], y[20:]), rtol=1e-6)


def draw(key, n, m, ties):
    """Rows whose noise grows with the prediction: naive sets of the largest fail."""
    key_mu, key_noise = jax.random.split(key)
    mu = jax.random.normal(key_mu, (n + m,))
    mu = jnp.round(2 * mu) / 2 if ties else mu
    y = mu + jnp.exp(mu / 2) * jax.random.normal(key_noise, (n + m,))
    return mu, y


def law(key, rule, m, ties, count=4000):
    """Returns flags of selected rows, and which of them naive and right sets cover."""

    def trial(key):
        mu, y = draw(key, 20, m, ties)
        cp = selection.calibrate_selected(ABSOLUTE, mu[:20], y[:20], rule=rule)
        found = cp(mu[20:], 0.2)
        naive = jaxcp.calibrate(ABSOLUTE, mu[:20], y[:20])(mu[20:], 0.2)
        adjusted = found if rule.threshold is not None else cp.adjusted(mu[20:], 0.2)
        p = cp.p_values(mu[20:], y[20:])
        sets = naive, found.sets, adjusted.sets
        return found.selected, *(s.contains(y[20:]) for s in sets), p

    return map(np.asarray, jax.jit(jax.vmap(trial))(jax.random.split(key, count)))


def share(selected, flags):
    """Returns the share of selected rows with a flag, and its standard error."""
    mean, total = (selected & flags).sum() / selected.sum(), selected.sum(1)
    errors = (selected & flags).sum(1) - mean * total
    return mean, errors.std() / np.sqrt(len(total)) / total.mean()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", ["top", "bh"])
def test_selected_rows_are_covered(name, ties, key):
    """By `top`, and by Benjamini-Hochberg; adjusted sets: the false coverage rate."""
    top = name == "top"
    rule = selection.top(3) if top else selection.by_p_values(0.0, 0.4)
    selected, naive, right, adjusted, p = law(key, rule, 8 if top else 6, ties)
    mean, error = share(selected, right)
    mu, y, *_ = rows()
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=rule)
    assert mean >= promised(cp, 0.2) - 4 * error
    mean, error = share(selected, naive)
    assert mean < 0.8 - 4 * error
    missed, error = share(selected, p <= 0.2)
    assert missed <= 0.2 + 4 * error
    assert np.isnan(p[~selected]).all()
    if top:
        rate = (selected & ~adjusted).sum(1) / np.maximum(selected.sum(1), 1)
        assert rate.mean() <= 0.2 + 4 * rate.std() / np.sqrt(len(rate))


def rows(n=20, m=8):
    mu, y = np.random.default_rng(2).normal(size=(2, n + m)).astype("f")
    return mu[:n], (mu + y)[:n], mu[n:], (mu + y)[n:]


KINDS = {
    "top": selection.top(3),
    "above": selection.above(0.0),
    "bh": selection.by_p_values(0.0, 0.5),
    "p": selection.by_p_values(0.0, 0.3, stepwise=False),
    "own": selection.Swaps(by_bh, threshold=0.0),
}


@pytest.mark.parametrize("name", ["above", "bh", "own"])
def test_programs_have_all_rows(name):
    """Inside of jit the sets of rows that are not selected are infinite."""
    mu, y, test, _ = rows()
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=KINDS[name])
    eager, inside = cp(test, 0.3), jax.jit(lambda c, t: c(t, 0.3))(cp, test)
    assert 0 < len(eager.indices) < len(test)
    assert_array_equal(inside.selected, eager.selected)
    assert_array_equal(inside.indices, np.arange(len(test)))
    same(cut(inside.sets, eager.indices), eager.sets, rtol=1e-6)
    rest = inside.sets.size()[~np.asarray(eager.selected)]
    assert_array_equal(rest, np.inf)


@pytest.mark.parametrize("name", ["above", "bh", "own"])
def test_a_set_holds_what_has_a_large_p_value(name):
    mu, y, test, targets = rows()
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=KINDS[name])
    for alpha in (0.15, 0.4):
        found = cp(test, alpha)
        p = cp.p_values(test, targets)
        assert_array_equal(np.isnan(p), ~np.asarray(found.selected))
        inside = found.sets.contains(targets[np.asarray(found.indices)])
        assert_array_equal(inside, np.asarray(p)[found.indices] > alpha)


def test_masked_rows_do_not_count_for_the_cut():
    mu, y, test, targets = rows()
    mask = np.arange(20) % 3 > 0
    for rule in [KINDS["bh"]]:
        fewer = selection.calibrate_selected(ABSOLUTE, mu[mask], y[mask], rule=rule)
        cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=rule, mask=mask)
        ours, theirs = (
            jax.tree.leaves((c(test, 0.3), c.p_values(test, targets)))
            for c in (cp, fewer)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert_allclose(a, b, rtol=1e-6)


def test_labels_by_name():
    p = np.linspace(0.05, 0.95, 19)
    p, y = np.stack([1 - p, p], 1), np.where(np.arange(19) % 4, "good", "bad")
    y[:4] = "bad"
    rule = selection.by_p_values(0.5, 0.5, by=lambda pred: pred[1])
    cp = selection.calibrate_selected(LAC(), p, y, rule=rule, classes=("bad", "good"))
    found = cp(p[12:], 0.2)
    assert found.sets.classes == ("bad", "good")
    assert len(found.indices) > 0
    p_values = {name: cp.p_values(p[12:], [name] * 7) for name in ("bad", "good")}
    for place, labels in zip(found.indices, found.sets.labels(), strict=True):
        assert labels == [name for name in p_values if p_values[name][place] > 0.2]


def test_several_outputs_and_the_number_of_a_prediction():
    preds, noise = np.random.default_rng(3).normal(size=(2, 35, 2)).astype("f")
    rule, y = selection.top(2, by=lambda pred: pred[0] - pred[1]), preds + noise
    cp = selection.calibrate_selected(ABSOLUTE, preds[:30], y[:30], rule=rule)
    found, number = cp(preds[30:], 0.2), preds[:, 0] - preds[:, 1]
    assert_array_equal(found.indices, np.sort(np.argsort(number[30:])[-2:]))
    used = number[:30] > np.sort(number[30:])[-3]
    split = jaxcp.calibrate(ABSOLUTE, preds[:30][used], y[:30][used])
    assert_allclose(found.sets.upper, split(preds[30:][found.indices], 0.2).upper)


def test_numbers_that_are_nan_come_last_old_and_new():
    """As -inf: rows that would not be selected in a place are not its references."""
    mu, y, test, targets = rows()
    for rule in (partial(selection.top, 3), partial(selection.by_p_values, 0.0, 0.5)):
        found = []
        for last in (np.nan, -np.inf):
            made = rule(by=lambda pred, last=last: jnp.where(pred > 0.8, last, pred))
            cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=made)
            found.append((cp(test, 0.3), cp.p_values(test, targets)))
        assert 0 < len(found[0][0].indices) < len(test)
        same(*found)


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_scores_of_several_numbers(shape):
    """A rule that selects all rows is split, by components and for columns."""
    preds, y = np.random.default_rng(4).normal(size=(2, 26, *shape)).astype("f")
    rule = selection.above(-np.inf, by=lambda pred: jnp.ravel(pred)[0])
    cp = selection.calibrate_selected(ABSOLUTE, preds[:20], y[:20], rule=rule)
    split, new = jaxcp.calibrate(ABSOLUTE, preds[:20], y[:20]), (preds[20:], y[20:])
    for alpha in [0.3] if shape != (2,) else [0.3, [0.1, 0.3]]:
        ours, theirs = (c(new[0], alpha) for c in (cp, split))
        assert_array_equal(ours.sets.upper, theirs.upper)
    assert_allclose(cp.p_values(*new), split.p_values(*new), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types_keep_theirs(dtype):
    mu, y, test = (jnp.asarray(v, dtype) for v in rows()[:3])
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=KINDS["bh"])
    found, (wide, rest) = cp(test, 0.3), (v.astype(float) for v in (mu, test))
    p = pvalues.selection_p_values(wide, y.astype(float), 0.0, rest)
    assert_array_equal(found.selected, pvalues.benjamini_hochberg(p, 0.5))
    assert all(v.dtype == dtype for v in found.sets.pieces())


def test_levels_that_are_no_decimals():
    """floor((n + 1) level r / m) in integers, also of a third."""
    for level in (Fraction(1, 3), Fraction(2, 7), 0.35, np.float32(0.1)):
        exact = Fraction(str(level))
        rule = selection.by_p_values(0.0, level)
        for n, m in ((29, 1), (41, 3), (69, 10), (20, 7)):
            counts = [(n + 1) * exact * r // m for r in range(m + 1)]
            assert_array_equal(rule.budget(n, m), np.array(counts, int))


def test_edges():
    mu, y, test, _ = rows()
    none = selection.calibrate_selected(ABSOLUTE, mu, y, rule=selection.above(99.0))
    found = none(test, 0.2)
    assert (len(found.indices), len(found.sets)) == (0, 0)
    assert len(none.adjusted(test, 0.2).sets) == 0
    few = selection.calibrate_selected(ABSOLUTE, mu, y, rule=selection.top(1))
    assert_array_equal(few(test, 0.001).sets.upper, np.inf)
    wild = np.array([np.inf, -np.inf, 0.0, np.inf], "f")
    assert_array_equal(few(wild, 0.2).indices, [0])
    assert_array_equal(
        selection.calibrate_selected(
            ABSOLUTE, np.arange(5), np.arange(5), rule=selection.top(2)
        )(np.array([3, 1, 3, 2]), 0.4).indices,
        [0, 2],
    )
    everything = selection.Swaps(lambda mu, below, test: np.ones(len(test), bool))
    every = selection.calibrate_selected(ABSOLUTE, mu, y, rule=everything)
    assert_array_equal(every(test, 0.2).selected, True)
    traced = jax.jit(lambda t: few(t, 0.2).selected)(np.array([np.nan, 0.0], "f"))
    assert_array_equal(traced, [False, True])  # NaN comes last


@pytest.mark.parametrize("name", ["top", "above", "bh"])
def test_no_rows(name):
    """Of test points: no sets. Of calibration: all sets are infinite."""
    mu, y, test, _ = rows()
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=KINDS[name])
    none = cp(test[:0], 0.2)
    assert (len(none.selected), len(none.sets)) == (0, 0)
    cp = selection.calibrate_selected(ABSOLUTE, mu[:0], y[:0], rule=KINDS[name])
    assert_array_equal(cp(test, 0.2).sets.size(), np.inf)


def test_the_threshold_of_targets_is_between_the_halves():
    """Pieces meet at c where c is in the set, and c itself is below."""
    mu, y = np.arange(40.0), np.arange(40.0) + np.tile([0, 1, 3, 9], 10)
    rule = selection.by_p_values(20.0, 0.5)
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=rule)
    found = cp(np.array([22.0, 39.0, 3.0]), 0.2).sets
    c = np.float32(20)
    for own in found:
        lower, upper = own.pieces()
        inside = own.contains(c)
        assert inside == own.contains(c - np.float32(1e-3)) or not inside
        exists = lower <= upper
        assert not (exists[:1] & (upper[:1] == c) & (lower[1:] == c)).any()


REFUSED = {
    "rows of two numbers": (
        lambda: selection.calibrate_selected(
            LAC(), np.full((4, 2), 0.5), np.array([0, 1, 0, 1]), rule=selection.top(1)
        ),
        r"one number a row to select by, got 2; say which, as by=lambda",
    ),
    "no rule": (
        lambda: selection.calibrate_selected(ABSOLUTE, np.ones(3), np.ones(3), rule=3),
        r"rule such as selection.top\(20\), got int",
    ),
    "delta": (
        lambda: some()(np.ones(3), 0.1, delta=0.1),
        "delta=None for SelectedCalibration, whose coverage has no known law",
    ),
    "the threshold of one row": (
        lambda: some().quantile(0.1, place=0),
        "all test rows, which together .* got at most one",
    ),
    "an effective size": (
        lambda: some().effective_size(),
        r"got at most one; call cp\(preds, alpha\)",
    ),
    "one threshold for all": (
        lambda: some().at(0.1),
        "one threshold for all test points, got SelectedCalibration",
    ),
    "NaN for swaps": (
        lambda: some(selection.Swaps(by_bh, threshold=np.nan)),
        "threshold that is not NaN, got nan",
    ),
    "levels": (
        lambda: selection.by_p_values(0.0, [0.1, 0.2]),
        r"level of shape \(\), got \(2,\)",
    ),
    "a certificate": (
        lambda: some().certificate(0.1),
        "a known law, got SelectedCalibration; calibrate",
    ),
    "adjusted by p-values": (
        lambda: some(selection.by_p_values(0.0, 0.2)).adjusted(np.ones(3), 0.1),
        r"rule top or above, for which alpha \|S\| / m is proved, got ByPValues",
    ),
    "a mask and swaps": (
        lambda: selection.calibrate_selected(
            ABSOLUTE, np.ones(3), np.ones(3), rule=by_cut, mask=np.ones(3, bool)
        ),
        "mask=None for a rule by swaps",
    ),
    "no count": (lambda: selection.top(0), "k as an int >= 1, got 0"),
    "two ends": (
        lambda: selection.calibrate_selected(
            jaxcp.scores.CQR(),
            (np.zeros(9), np.ones(9)),
            np.ones(9),
            rule=selection.top(1),
        )((np.zeros(3), np.ones(3)), 0.2),
        "one number a row to select by, got 2; say which, as by=lambda pred",
    ),
    "NaN": (lambda: selection.above(np.nan), "c that is not NaN, got nan"),
    "level": (lambda: selection.by_p_values(0.0, 1.5), r"level in \(0, 1\), got 1.5"),
    "sets of points": (
        lambda: selection.calibrate_selected(
            jaxcp.scores.Custom(lambda pred, y: abs(y - pred)),
            np.ones(9),
            np.ones(9),
            rule=selection.by_p_values(0.0, 0.5),
        )(np.ones(3), 0.2),
        "sets that are intervals, unions of them or labels, .* got LevelSet",
    ),
    "flags of another shape": (
        lambda: some(lambda mu, below, test: mu > 0)(np.ones(2), 0.1),
        r"flags\(mu, below, test_mu\) of shape \(2,\), got \(3,\)",
    ),
}


def some(rule=None):
    rule = selection.top(1) if rule is None else rule
    return selection.calibrate_selected(ABSOLUTE, np.ones(3), np.ones(3), rule=rule)


test_wrong_calls_are_told_what_is_expected = refuses(REFUSED)


@pytest.mark.parametrize("name", ["above", "p"])
def test_called_again(name, programs):
    mu, y, test, _ = rows()
    cp = selection.calibrate_selected(ABSOLUTE, mu, y, rule=KINDS[name])
    cp(test, 0.4)
    before = len(programs)
    cp(test + 1e-3, 0.25)
    assert len(programs) == before


def test_frames_name_the_selected_rows_and_rules_are_made():
    pd = pytest.importorskip("pandas")
    mu = pd.Series([3.0, 1.0, 2.0], index=["a", "b", "c"])
    rows = ABSOLUTE, np.arange(9.0), np.arange(9.0) + 1
    cp = selection.calibrate_selected(*rows, rule=selection.top(2))
    found = cp(mu, alpha=0.4)
    assert [*found.to_pandas(mu).index] == ["a", "c"]
    assert [*found.to_pandas().index] == [0, 2]
    for wrong in (20, selection.top):
        with pytest.raises(ValueError, match=r"selection.top\(20\), got"):
            selection.calibrate_selected(*rows, rule=wrong)


@pytest.mark.parametrize("n", [9, 1500])
def test_ranks_of_few_and_of_many_counts_are_the_same(n):
    """On the host up to 1,024 counts, else in a program."""
    rows = jnp.arange(float(n)), jnp.arange(float(n)) + 1
    cp = selection.calibrate_selected(ABSOLUTE, *rows, rule=selection.top(2))
    expected = [r + 1 - (r + 1) // 10 for r in range(n + 1)]
    assert_array_equal(cp.rank(0.1), expected)
