from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import risk
from jaxcp.scores import LAC, Absolute, Custom, MultiLabel

REFERENCE = Path(__file__).parents[1] / "reference" / "risk"
FNR = risk.false_negative_rate


def cases(name):
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        found = {}
        for key in file.files:
            case, what = key.split("__")
            found.setdefault(case, {})[what] = file[key]
    return found


CRC, TABLES, RCPS = map(cases, ("crc", "crc_tables", "rcps"))
COLUMN = Custom(lambda pred, y: pred, inverse=lambda pred, q: q)  # the set is q


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def x64(request):
    with jax.enable_x64(request.param):
        yield request.param


def entry(column, losses):
    """The loss in the column that a threshold names; the first and last beyond."""
    place = jnp.clip(jnp.floor(column), 0, len(losses) - 1)
    return losses[jnp.nan_to_num(place).astype(int)]


def calibrate_table(losses, loss=entry, **options):
    size = losses.shape[1]
    options = {"grid": np.arange(float(size))} | options
    return risk.calibrate_risk(loss, COLUMN, np.zeros(len(losses)), losses, **options)


def index_of(q):
    return np.where(np.isinf(q) & (np.asarray(q) > 0), -1, q)


@pytest.mark.parametrize("case", CRC)
def test_false_negative_rates_are_controlled_to_the_float(case, x64):
    v = CRC[case]
    bound = float(Fraction(str(v["bound"])))
    options = {"bound": bound}
    calibrated = partial(risk.calibrate_risk, FNR, MultiLabel(), **options)
    if bound < 1:  # of the vectors alone: known losses beyond it would be refused
        calibrated = jax.jit(calibrated)
    cp = calibrated(jnp.asarray(1 - v["e"], float), v["y"])
    for alpha, q, mean in zip(v["alphas"], v["q"], v["risk"], strict=True):
        found = cp.quantile(Fraction(str(alpha)))
        assert_array_equal(found, q.astype(found.dtype))
        assert_allclose(cp.risk(found), mean, atol=1e-6)


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_losses(case):
    v = TABLES[case]
    bound = float(Fraction(str(v["bound"])))
    with jax.enable_x64(True):
        cp = calibrate_table(v["losses"], bound=bound)
        weighted = calibrate_table(v["losses"], bound=bound, weights=v["weights"])
        tail = calibrate_table(v["losses"], bound=bound, tail=float(v["tau"]))
        rough = calibrate_table(v["rough"], bound=bound, monotone=False)
        groups = {"groups": v["groups"], "num_groups": int(v["num_groups"])}
        groups = calibrate_table(v["losses"], bound=bound, **groups)
        for i, alpha in enumerate(v["alphas"]):
            alpha = Fraction(str(alpha))
            assert index_of(cp.quantile(alpha)) == v["index"][i]
            found = [weighted.quantile(alpha, test_weight=w) for w in v["test_weights"]]
            assert_array_equal(index_of(found), v["windex"][i])
            assert_array_equal(index_of(groups.quantile(alpha)), v["group_index"][i])
            assert index_of(rough.quantile(alpha)) == v["mono_index"][i]
            if alpha < 1:
                assert index_of(tail.quantile(alpha)) == v["quantile_index"][i]


@pytest.mark.parametrize("case", RCPS)
def test_risk_with_high_probability(case):
    v = RCPS[case]
    with jax.enable_x64(True):
        cp = calibrate_table(v["losses"])
        binary = np.arange(v["losses"].shape[1]) < v["first_zero"][:, None]
        flags = calibrate_table(binary.astype(float), lambda q, row: entry(q, row) > 0)
        for i, j in np.ndindex(len(v["alphas"]), len(v["deltas"])):
            levels = float(v["alphas"][i]), float(v["deltas"][j])
            found = [
                index_of(c.quantile(levels[0], delta=levels[1])) for c in (cp, flags)
            ]
            assert_array_equal(found, [v["hb_index"][i, j], v["binomial_index"][i, j]])


def labels_of(key, n, k):
    """Predictions with a quarter of the labels true, at least one a row."""
    p = jax.random.uniform(key, (n, k))
    return p, (p * 7919 % 1 < 0.25).at[:, 0].set(True)


@pytest.mark.parametrize("n", [1, 9, 10, 40])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3, 0.9])
def test_flags_give_split_conformal(key, n, alpha):
    """And with `delta` its rank that holds with probability 1 - delta."""
    pred, y = jax.random.normal(key, (2, n)).round(1)  # with ties
    rows = Absolute(), pred, y
    cp, split = risk.calibrate_risk(risk.miscoverage, *rows), jaxcp.calibrate(*rows)
    for delta in (None, 0.1):
        q = split.quantile(alpha, delta=delta)
        found = cp.quantile(alpha, delta=delta)
        assert_allclose(found, q, rtol=1e-6, atol=1e-6)  # ends of intervals are rounded
        assert jnp.isinf(q) or cp.risk(found) <= alpha


def test_false_negatives_are_weighted_scores(key, x64):
    """Of labels with weights 1 / #labels, and the gradient is theirs."""
    p, y = labels_of(key, 50, 6)
    weights = (y / jnp.sum(y, axis=1, keepdims=True)).ravel()

    def weighted(p, alpha):
        return jaxcp.weighted_conformal_quantile((1 - p).ravel(), weights, alpha)

    def controlled(p, alpha):
        return risk.calibrate_risk(FNR, MultiLabel(), p, y).quantile(alpha)

    for alpha in (0.01, 0.05, 0.1, 0.3, 0.77):
        assert controlled(p, alpha) == weighted(p, alpha)
    pair = controlled, weighted
    slopes = [jax.jit(jax.grad(partial(f, alpha=0.1)))(p) for f in pair]
    assert np.any(slopes[0])
    assert_allclose(*slopes, atol=1e-6)


def test_gradient_of_smooth_losses(key, x64):
    """By the implicit function theorem, against differences."""
    pred, y = jax.random.normal(key, (2, 30), float)
    loss = risk.shortfall(4.0)

    def q_of(shift, alpha=1.5):
        rows = Absolute(), pred * shift, y
        return risk.calibrate_risk(loss, *rows, bound=4.0).quantile(alpha)

    slope, step = jax.grad(q_of)(1.0), 1e-4 if x64 else 3e-3
    difference = (q_of(1 + step) - q_of(1 - step)) / (2 * step)
    assert_allclose(slope, difference, rtol=2e-3 if x64 else 0.05)
    assert slope != 0
    level = jnp.array(0.4)
    by_alpha = jax.jit(jax.grad(lambda a: q_of(1.0, a)))(level)
    ends = q_of(1.0, level + step), q_of(1.0, level - step)
    assert_allclose(by_alpha, (ends[0] - ends[1]) / (2 * step), rtol=0.05)


def test_several_losses_take_the_largest_threshold(key):
    p, y = labels_of(key, 60, 5)
    count = lambda s, y: jnp.sum(y & ~s.mask).astype(float)  # noqa: E731
    rows = MultiLabel(), p, y
    both = risk.calibrate_risk((FNR, count), *rows, bound=(1, 5), tail=(None, 1.0))
    one = risk.calibrate_risk(FNR, *rows)
    other = risk.calibrate_risk(count, *rows, bound=5, tail=1.0)
    for alphas in ((0.2, 0.1), (0.02, 0.9)):
        single = one.quantile(alphas[0]), other.quantile(alphas[1])
        assert both.quantile(alphas) == max(single)
    assert_allclose(both.risk(0.5), [one.risk(0.5), other.risk(0.5)])


def test_transforms_agree(key):
    """Levels and rows are traced, scan goes through."""
    p, y = jax.vmap(lambda k: labels_of(k, 99, 40))(jax.random.split(key, 40))
    q_of = lambda p, y, a=0.1: risk.calibrate_risk(FNR, MultiLabel(), p, y).quantile(a)  # noqa: E731
    many = jax.jit(jax.vmap(q_of))(p, y)
    assert_array_equal(many[:5], [q_of(*row) for row in zip(p[:5], y[:5], strict=True)])
    traced = jax.jit(q_of)(p[0], y[0], jnp.float32(0.1))
    assert traced == many[0]
    scanned = jax.lax.scan(lambda c, row: (c, q_of(*row)), 0, (p[:3], y[:3]))[1]
    assert_array_equal(scanned, many[:3])
    table = jax.vmap(lambda a: q_of(p[0], y[0], a))(jnp.array([0.1, 0.2]))
    assert table[0] == many[0]


def test_a_loss_with_parameters():
    scaled = lambda scale, s, y: scale * FNR(s, y)  # noqa: E731
    p, y = labels_of(jax.random.key(1), 30, 4)

    def q_of(scale):
        loss = partial(scaled, scale)
        return risk.calibrate_risk(loss, MultiLabel(), p, y).quantile(0.1)

    both = jax.vmap(q_of)(jnp.array([0.5, 1.0]))
    assert_array_equal(both, [q_of(jnp.array(0.5)), q_of(jnp.array(1.0))])
    assert both[0] < both[1]


def test_suprema_of_losses_that_rise(key):
    """At every threshold at which a set changes, by definition."""
    p, y = labels_of(key, 40, 5)
    loss = risk.false_discovery_rate
    with pytest.raises(ValueError, match="does not rise with the threshold"):
        risk.calibrate_risk(loss, MultiLabel(), p, y)
    cp = risk.calibrate_risk(loss, MultiLabel(), p, y, monotone=False)
    e, y = 1 - np.asarray(p), np.asarray(y)
    places = np.concatenate([[-np.inf], np.unique(e)])
    kept = e[None] <= places[:, None, None]
    rates = np.sum(kept & ~y, -1) / np.maximum(np.sum(kept, -1), 1)
    sums = np.maximum.accumulate(rates[::-1])[::-1].sum(1)
    for alpha in (0.2, 0.6, 0.8, 0.9):
        fits = places[sums + 1 <= alpha * 41 + 1e-4]
        assert cp.quantile(alpha) == (fits[0] if fits.size else np.inf)


def test_groups_and_weights(key):
    p, y = labels_of(key, 60, 5)
    groups = np.array(["a", "b", "c"])[np.arange(60) % 3]
    cp = risk.calibrate_risk(FNR, MultiLabel(), p, y, groups=groups)

    def single(i, **more):
        return risk.calibrate_risk(FNR, MultiLabel(), p[i::3], y[i::3], **more)

    expected = [single(i).quantile(0.2) for i in range(3)]
    assert_array_equal(cp.quantile(0.2), expected)
    assert_allclose(cp.risk(0.5), [single(i).risk(0.5) for i in range(3)], rtol=1e-6)
    sets = cp(p[:3], 0.2, groups=["c", "a", "b"])
    q = np.array([expected[2], expected[0], expected[1]])
    assert_array_equal(sets.mask, 1 - p[:3] <= q[:, None])
    w = jnp.exp(p[:, 0])
    cp = risk.calibrate_risk(FNR, MultiLabel(), p, y, groups=groups, weights=w)
    sets = cp(p[:2], 0.2, groups=["b", "a"], test_weights=[0.5, 2.0])
    for row, (i, weight) in enumerate([(1, 0.5), (0, 2.0)]):
        q = single(i, weights=w[i::3]).quantile(0.2, test_weight=weight)
        assert_array_equal(sets.mask[row], 1 - p[row] <= q)


def test_unit_weights_change_nothing(key):
    p, y = labels_of(key, 60, 5)
    one = risk.calibrate_risk(FNR, MultiLabel(), p, y)
    weighted = risk.calibrate_risk(FNR, MultiLabel(), p, y, weights=np.full(60, 3e30))
    for alpha in (0.01, 0.1, 0.5):
        assert weighted.quantile(alpha, test_weight=3e30) == one.quantile(alpha)


@pytest.mark.parametrize("loss", [FNR, risk.miscoverage])
def test_shards_are_one(key, loss):
    p, y = labels_of(key, 48, 5)
    whole = risk.calibrate_risk(loss, MultiLabel(), p, y)
    parts = jax.tree.map(lambda v: v.reshape(4, 12, 5), (p, y))

    def of_shard(p, y, **options):
        cp = risk.calibrate_risk(loss, MultiLabel(), p, y)
        return cp.quantile(0.2, axis_name="rows", **options)

    named = jax.vmap(of_shard, axis_name="rows")(*parts)
    assert_array_equal(named, np.full(4, whole.quantile(0.2)))
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("rows")
    for options in ({}, {"delta": 0.3}):
        shard = partial(of_shard, **options)
        program = jax.shard_map(
            shard, mesh=mesh, in_specs=(spec, spec), out_specs=jax.P()
        )
        assert jax.jit(program)(p, y) == whole.quantile(0.2, **options)


def test_infeasible_levels_and_few_rows(key):
    p, y = labels_of(key, 9, 5)
    cp = risk.calibrate_risk(FNR, MultiLabel(), p, y)
    assert cp.quantile(0.05) == jnp.inf  # alpha (n + 1) < B
    assert cp.risk(jnp.inf) == 0
    assert cp.quantile(0.1) == jnp.max(jnp.where(y, 1 - p, -jnp.inf))
    assert jnp.all(cp(p, 0.05).mask)
    none = risk.calibrate_risk(FNR, MultiLabel(), p, jnp.zeros_like(y))
    assert none.quantile(0.1) == -jnp.inf
    always = risk.calibrate_risk(lambda s, y: jnp.ones(()), MultiLabel(), p, y)
    assert always.quantile(0.5) == jnp.inf
    assert always.risk(jnp.inf) == 1
    zero = risk.calibrate_risk(FNR, MultiLabel(), p[:0], y[:0])
    assert zero.quantile(0.5) == jnp.inf
    slope = jax.grad(
        lambda p: risk.calibrate_risk(FNR, MultiLabel(), p, y).quantile(0.05)
    )
    assert_array_equal(slope(p), 0)


def test_nan_losses_count_as_the_bound(key):
    p, y = labels_of(key, 20, 5)
    broken = lambda s, y: jnp.where(y[1], jnp.nan, FNR(s, y))  # noqa: E731
    cp = risk.calibrate_risk(broken, MultiLabel(), p, y)
    full = lambda s, y: jnp.where(y[1], 1, FNR(s, y))  # noqa: E731
    same = risk.calibrate_risk(full, MultiLabel(), p, y)
    assert_array_equal(
        [cp.quantile(a) for a in (0.3, 0.6)], [same.quantile(a) for a in (0.3, 0.6)]
    )


def test_names_of_labels(key):
    p, y = labels_of(key, 20, 3)
    names = ["cat", "dog", "cow"]
    cp = risk.calibrate_risk(FNR, MultiLabel(), p, y, classes=names)
    assert cp(p[:1], 0.05).labels() == [names]  # +inf
    assert "RiskCalibration(score=MultiLabel" in repr(cp)
    probabilities = p / jnp.sum(p, axis=1, keepdims=True)
    single = np.array(names)[np.argmax(p, axis=1)]
    cp = risk.calibrate_risk(FNR, LAC(), probabilities, single, classes=names)
    assert set(cp(probabilities[:1], 0.3).labels()[0]) <= set(names)
    with pytest.raises(ValueError, match="rows of shape"):
        cp(jnp.full((2, 4), 0.25), 0.3)


def test_first_within(x64):
    x = jnp.array([0.25, 3.0, -jnp.inf, 0.0, 3.0])
    above = lambda v: jnp.sum(x > v)  # noqa: E731
    found = [jaxcp.first_within(above, b) for b in (-1, 0, 1, 2, 3, 4, 5)]
    assert_array_equal(found, [np.inf, 3, 3, 0.25, 0, -np.inf, -np.inf])
    assert found[0].dtype == jnp.zeros(()).dtype
    assert jaxcp.first_within(lambda v: jnp.nan * v, 1.0) == jnp.inf
    tiny = float(jnp.finfo(float).tiny)
    assert jaxcp.first_within(lambda v: (v < tiny).astype(float), 0.5) == tiny
    many = jax.vmap(lambda b: jaxcp.first_within(above, b, jnp.float16))
    assert_array_equal(many(jnp.array([1, 2])), np.array([3, 0.25], np.float16))


P, Y = np.full((4, 3), 0.5), np.ones((4, 3), bool)
BAD = {
    "beyond its bound": (
        dict(loss=lambda s, y: 2 * FNR(s, y)),
        "a loss, <lambda>, in .0, 1., got 2 of row 0",
    ),
    "negative": (dict(loss=lambda s, y: -FNR(s, y)), "in .0, 1., got -1"),
    "rising": (dict(loss=lambda s, y: 1 - FNR(s, y)), "does not rise"),
    "not a number": (
        dict(loss=lambda s, y: y),
        r"loss\(set, y\) of shape \(\), got \(3,\)",
    ),
    "no function": (
        dict(loss="fnr"),
        "loss, such as risk.false_negative_rate, as a function, got 'fnr'",
    ),
    "no loss": (dict(loss=()), "expected a loss"),
    "of numpy": (dict(loss=lambda s, y: float(np.asarray(y).sum())), "jax can trace"),
    "bound 0": (dict(bound=0), "finite bound > 0, got 0"),
    "infinite bound": (dict(bound=np.inf), "finite bound > 0"),
    "bounds": (dict(bound=(1, 1)), "bound for 1 losses, got 2"),
    "NaN": (dict(preds=np.full((4, 3), np.nan)), "preds without NaN"),
    "other mask": (dict(y=np.ones((4, 2), bool)), "mask of shape"),
    "a mask of an image file": (
        dict(y=np.full((4, 3), 255, np.uint8)),
        r"0 and 1, true .*, got 255 at \(0, 0\); of 0 and 255, or -1 and 1: y > 0",
    ),
    "shares": (dict(y=P), "y as flags or 0 and 1, .*, got 0.5"),
    "shares, of misses": (
        dict(y=P, loss=risk.miscoverage),
        "y as flags or 0 and 1, .*, got 0.5",
    ),
    "a label out of range": (
        dict(score=LAC(), preds=np.full((4, 2), 0.5), y=np.arange(4)),
        "got 2 at 2",
    ),
    "columns": (
        dict(preds=pd.DataFrame(P), y=pd.DataFrame(Y)[[2, 0, 1]]),
        r"columns of y in the order of those of preds \(0, 1, 2\), got \(2, 0, 1\)",
    ),
    "what returns a loss": (
        dict(loss=risk.shortfall),
        r"loss\(set, y\), got shortfall\(bound\); risk.best_match\(\) and",
    ),
    "tail": (dict(tail=1.0), r"tail in \[0, 1\), got 1.0"),
    "lengths": (dict(y=np.ones((5, 3), bool)), "4 rows"),
    "empty grid": (dict(grid=[]), r"grid of shape \(t,\)"),
    "grid": (dict(grid=[1.0, 0.0]), "increasing"),
    "no steps": (
        dict(
            score=Absolute(),
            preds=np.zeros(4),
            y=np.zeros(4),
            loss=risk.miscoverage,
            monotone=False,
        ),
        "expected grid with monotone=False",
    ),
    "names": (dict(classes=["a", "b"]), "classes with 3 names"),
    "weights": (dict(weights=[1, 1, 1, -1]), "weights >= 0"),
    "groups": (dict(groups=[0, 1, 2, 3], num_groups=3), "groups in 0, ..., 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    changed, message = BAD[case]
    given = {"loss": FNR, "score": MultiLabel(), "preds": P, "y": Y} | changed
    with pytest.raises(ValueError, match=message):
        risk.calibrate_risk(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(alpha=0), "alpha in"),
        (dict(alpha=1.0), "alpha in .0, 1., got 1.0"),
        (dict(alpha="0.1"), "alpha as a number, got str"),
        (dict(alpha=(0.1, 0.1)), r"alpha as a number or an array, got \(0.1, 0.1\)"),
        (dict(alpha=np.array([0.1, 0.2])), r"alpha of shape \(\)"),
        (dict(alpha=0.1, delta=1.5), "delta"),
        (dict(alpha=jnp.array(0.1), delta=0.1), "on the host"),
        (dict(alpha=0.1, test_weight=1.0), "test_weight only with"),
    ],
)
def test_bad_levels_are_refused(options, message):
    cp = risk.calibrate_risk(FNR, MultiLabel(), P, Y)
    with pytest.raises(ValueError, match=message):
        cp.quantile(**options)


def test_delta_needs_rows_that_are_known():
    def q_of(mask):
        cp = risk.calibrate_risk(FNR, MultiLabel(), P, Y, mask=mask)
        return cp.quantile(0.1, delta=0.1)

    with pytest.raises(ValueError, match="on the host"):
        jax.jit(q_of)(np.ones(4, bool))
    weighted = risk.calibrate_risk(FNR, MultiLabel(), P, Y, weights=np.ones(4))
    with pytest.raises(ValueError, match="delta=None with weights"):
        weighted.quantile(0.1, delta=0.1)
    with pytest.raises(ValueError, match="of a calibration with groups"):
        weighted(P, 0.1, groups=np.zeros(4, int))


def risks_of(key, count, n=99, m=4, alpha=0.1, delta=None):
    """The true risk of thresholds from rows of m uniform labels."""
    rows = jax.random.uniform(key, (count, n, m))
    true = jnp.ones((n, m), bool)

    def threshold(p):
        cp = risk.calibrate_risk(FNR, MultiLabel(), p, true)
        return cp.quantile(alpha, delta=delta)

    return 1 - np.asarray(jax.jit(jax.vmap(threshold))(rows), float)


def test_few_calibration_sets_have_more_risk_with_delta(key):
    for m in (1, 4):
        wrong = np.mean(risks_of(key, 10_000, m=m, delta=0.1) > 0.1)
        assert wrong <= 0.1 + 4 * (0.09 / 10_000) ** 0.5


@pytest.mark.parametrize("count", [10**4, pytest.param(10**5, marks=pytest.mark.slow)])
def test_the_law_of_the_risk(key, count):
    """Beta(c + 1, n m - c), c = floor(m (alpha (n + 1) - 1)): mean 37 / 397."""
    from scipy import stats

    law = stats.beta(37, 99 * 4 - 36)
    found = np.concatenate(
        [risks_of(k, 10**4) for k in jax.random.split(key, count // 10**4)]
    )
    assert abs(found.mean() - 37 / 397) < 4 * law.std() / count**0.5
    assert stats.kstest(found, law.cdf).pvalue > 1e-3


def test_later_calibrations_trace_nothing():
    traced = []

    def loss(set, y):
        traced.append(y.shape)
        return risk.miscoverage(set, y)

    def is_sensible(shift):
        y = jnp.arange(9.0) + shift
        cp = risk.calibrate_risk(loss, Absolute(), jnp.zeros(9), y)
        return cp.quantile(0.2 + shift / 10) > cp.risk(3.0 + shift)

    assert is_sensible(0.0)
    once = len(traced)
    assert is_sensible(1.0) and len(traced) == once
