"""Batches that are filled up to share a program: the same numbers as by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import CASES, ONE_OF_EACH, same
from jaxcp import _batching, metrics, scores
from jaxcp.sets import Box, Interval, LabelSet

SIZES = 1, 2, 5, 17, 100, 129  # and 3, which is not slow
ABSOLUTE = scores.Absolute()
FEW = "absolute", "asymmetric-cqr", "raps-randomized", "multilabel", "cp2pcp"
OTHERS = sorted(set(CASES) - set(ONE_OF_EACH) - {"normalized-bad-sigma"})  # refused


def of_calibration(score, preds, y, test_preds, test_y, **rows):
    cp = jaxcp.calibrate(score, preds, y, **rows)
    q, sets = cp.quantile(0.3), cp(test_preds, 0.3)
    return cp.scores, q, jax.tree.leaves(sets), cp.p_values(test_preds, test_y)


def check_calibration(name, n):
    """A vector of another length may round functions such as log otherwise."""
    case = CASES[name]
    data = (*case.batch(n), *case.batch(n, start=1000))
    exact = jax.jit(lambda *data: of_calibration(case.score, *data))(*data)
    found = of_calibration(case.score, *data)
    assert all(isinstance(v, jax.Array) for v in jax.tree.leaves(found))
    same(found, exact, rtol=3e-7 if name == "density" else 0.0)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW))
        for name in ONE_OF_EACH
    ],
)
def test_scores_thresholds_sets_and_p_values(name):
    check_calibration(name, 3)


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_many_numbers_of_rows(name, n):
    check_calibration(name, n)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_all_scores(name):
    check_calibration(name, 5)


def rows(n, start=0):
    values = np.random.default_rng(start).normal(size=(4, n)).astype(np.float32)
    weights = np.minimum(abs(values[2]), 1)
    return jnp.asarray(values[0]), jnp.asarray(values[0] + values[1]), weights


@pytest.mark.parametrize(
    "n, which",
    [(n, "both") for n in (0, 1, 5)]
    + [(5, "weights"), (5, "mask"), pytest.param(17, "both", marks=pytest.mark.slow)],
)
def test_weights_and_masks(which, n):
    preds, y, weights = rows(n)
    given = {"weights": weights, "mask": weights > 0.5}
    given = given if which == "both" else {which: given[which]}
    data = preds, y, *rows(11, 1)[:2]
    exact = jax.jit(lambda given: of_calibration(ABSOLUTE, *data, **given))(given)
    found = of_calibration(ABSOLUTE, *data, **given)
    same(found[:3], exact[:3])
    same(found[3], exact[3], rtol=0.0 if which == "mask" else 1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_groups(weighted):
    preds, y, weights = rows(17)
    groups, test_groups = jnp.arange(17) % 3, jnp.arange(5) % 4 % 3
    test_preds, test_y, _ = rows(5, 1)
    weights = jnp.asarray(weights) if weighted else None

    def run(preds, y, weights):
        cp = jaxcp.calibrate_groups(
            ABSOLUTE, preds, y, groups, num_groups=3, weights=weights, mask=y < 1.5
        )
        sets = cp(test_preds, 0.3, groups=test_groups)
        p = cp.p_values(test_preds, test_y, groups=test_groups)
        return cp.scores, cp.quantile(0.3), sets, p

    found, exact = run(preds, y, weights), jax.jit(run)(preds, y, weights)
    same(found[:3], exact[:3])
    same(found[3], exact[3], rtol=1e-6 if weighted else 0.0)


def test_classes_and_weights_of_test_points():
    p = jax.nn.softmax(jnp.asarray(np.random.default_rng(0).normal(size=(21, 3))))
    y, w = jnp.arange(21) % 3, jnp.linspace(0.1, 2, 21)

    def run(p, y, w):
        cp = jaxcp.calibrate_groups(scores.LAC(), p, y, y, num_groups=3)
        weighted = jaxcp.calibrate(scores.LAC(), p, y, weights=w)
        return cp(p, 0.2), weighted(p[:7], 0.2, test_weights=w[:7])

    same(run(p, y, w), jax.jit(run)(p, y, w))


@jaxcp.pytree
class OfMean(jaxcp.Calibration):
    def threshold(self, rank, test_weights=None):
        return jnp.mean(self.scores)


@jaxcp.pytree
class OfLargest(jaxcp.GroupCalibration):
    def threshold(self, rank, groups=None, test_weights=None):
        return jnp.max(jnp.zeros(2).at[self.groups].add(1))


def test_classes_made_of_calibrations_read_their_own_rows():
    values, preds = jnp.arange(5.0), jnp.zeros(3)
    cp = OfMean(ABSOLUTE, values)
    assert_array_equal(cp(preds, 0.2).upper, jnp.full(3, 2.0))
    assert cp.quantile(0.2) == 2
    of_groups = OfLargest(ABSOLUTE, values, jnp.zeros(5, int), None, 2)
    sets = of_groups(preds, 0.2, groups=jnp.zeros(3, int))
    assert_array_equal(sets.upper, jnp.full(3, 5.0))


SETS = {
    "intervals": lambda mu, width: Interval(mu - width, mu + width),
    "some infinite": lambda mu, width: Interval(
        mu - width, jnp.where(width > 1, jnp.inf, mu)
    ),
    "boxes": lambda mu, width: Box(
        jnp.stack([mu, -width], 1), jnp.stack([mu + width, width], 1)
    ),
    "labels": lambda mu, width: LabelSet(
        jnp.stack([mu > 0, width > 0.5, mu + width > 0], 1)
    ),
}


def of_metrics(kind, mu, y, width):
    sets, m = SETS[kind](mu, width), len(mu)
    if kind == "boxes":
        y = jnp.stack([y, 0 * y], axis=1)
    if kind == "labels":
        y = (jnp.abs(y) * 10).astype(int) % 3
    groups = jnp.arange(m) % 2
    found = dict(metrics.summary(sets, y, 0.2, groups, num_groups=3, num_bins=4))
    found["covered"] = metrics.covered(sets, y)
    found["sizes"] = metrics.sizes(sets)
    return found | {name: metric(sets, y, groups) for name, metric in METRICS.items()}


METRICS = {
    "coverage": lambda s, y, g: metrics.coverage(s, y),
    "mean": lambda s, y, g: metrics.mean_size(s),
    "median": lambda s, y, g: metrics.median_size(s),
    "empty": lambda s, y, g: metrics.empty_rate(s),
    "infinite": lambda s, y, g: metrics.infinite_rate(s),
    "groups": lambda s, y, g: metrics.group_coverage(s, y, g, num_groups=2),
    "gap": lambda s, y, g: metrics.coverage_gap(
        s, y, g, 0.1, num_groups=2, weighted=True
    ),
    "bins": lambda s, y, g: metrics.size_stratified_coverage(s, y, num_bins=3),
    "edges": lambda s, y, g: metrics.size_stratified_coverage(s, y, edges=[0.5, 1]),
    "hsic": lambda s, y, g: metrics.hsic(s, y, rooted=False),
}


@pytest.mark.parametrize("m", [1, 5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SETS)
def test_metrics(kind, m):
    mu, y, width = rows(m, 2)
    data = mu, y, jnp.asarray(width)
    exact = jax.jit(lambda *data: of_metrics(kind, *data))(*data)
    found = of_metrics(kind, *data)
    assert found.keys() == exact.keys()
    for name, value in found.items():
        assert np.shape(value) == exact[name].shape
        assert_allclose(value, exact[name], rtol=1e-5, atol=1e-7, err_msg=name)
    for name in ("coverage", "covered", "median", "empty", "infinite", "bins"):
        assert_array_equal(found[name], exact[name])


def test_scores_of_intervals():
    mu, y, width = rows(5, 2)

    def run(mu, y, width):
        sets = Interval(mu - width, mu + width)
        khosravi = metrics.khosravi_coverage_width_criterion(sets, y, 0.2, eta=5.0)
        return metrics.interval_score(sets, y, 0.2), khosravi

    same(run(mu, y, width), jax.jit(run)(mu, y, width), rtol=1e-6)


def fold(score, preds, y, test_preds, test_y):
    cp = jaxcp.calibrate(score, preds, y)
    sets = cp(test_preds, 0.2)
    cp.quantile(0.2), cp.p_values(test_preds, test_y)
    metrics.covered(sets, test_y), metrics.sizes(sets)
    metrics.coverage(sets, test_y), metrics.mean_size(sets)
    metrics.summary(sets, test_y, 0.2)
    return cp


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("labels", [False, True])
def test_other_numbers_of_rows_compile_nothing(labels, precision, programs):
    """All of one octave share their programs, from the first on."""
    draw = np.random.default_rng(0)

    def data(n):
        if not labels:
            return draw.normal(size=(2, n)).astype(precision)
        return draw.dirichlet(np.ones(3), n).astype(precision), draw.integers(3, size=n)

    score = scores.LAC() if labels else ABSOLUTE
    fold(score, *data(67), *data(33))
    programs.clear()
    for i in range(1, 10):
        cp = fold(score, *data(67 + 6 * i), *data(33 + 3 * i))
        assert cp.scores.shape == (67 + 6 * i,)
    assert programs == []


def test_rows_are_filled_up_where_they_are_few():
    sizes = []
    program = lambda v, count: sizes.append(len(v))  # noqa: E731
    for n in 9, 100, 128, 1025, 2**14 + 1:
        _batching.counted(program, np.zeros(n))
        _batching.counted(program, np.zeros(n), by_pairs=True)
    few = [64, 16, 256, 128, 128, 128]
    assert sizes == [*few, 2048, 1025, 2**14 + 1, 2**14 + 1]


@pytest.mark.parametrize(
    "n, cheap, size",
    [
        *[(n, 256, n) for n in (0, 1, 2, 8, 64, 128, 256, 512)],
        *[(n, 256, 64) for n in (3, 9, 50, 63)],
        *[(n, 256, 256) for n in (65, 129, 255)],
        *[(n, 256, 1024) for n in (513, 900, 907)],
        *[(n, 63, 16) for n in (9, 15)],
        *[(n, 255, 128) for n in (65, 127)],
        (257, 2**20, 1024),
        (1025, 2**20, 4096),
    ],
)
def test_sizes_that_rows_are_filled_up_to(n, cheap, size):
    assert _batching._size(n, cheap) == size


def of_context(cp, preds, y, **context):
    return cp(preds, 0.3, **context), cp.p_values(preds, y, **context)


def of_kinds(n, m):
    """Returns what calibrations of each kind find, with rows of all other sizes."""
    preds, y, weights = rows(n)
    test_preds, test_y, test_weights = rows(m, 1)
    groups, test_groups = jnp.arange(n) % 3, jnp.arange(m) % 3
    u = jnp.linspace(0.1, 0.9, m)
    p = jnp.stack([jnp.abs(preds), jnp.ones(n)], 1) / (1 + jnp.abs(preds))[:, None]
    labels = (y > 0).astype(int)
    plain = jaxcp.calibrate(ABSOLUTE, preds, y)
    weighted = jaxcp.calibrate(ABSOLUTE, preds, y, weights=jnp.asarray(weights))
    grouped = jaxcp.calibrate_groups(ABSOLUTE, preds, y, groups, num_groups=3)
    lac = jaxcp.calibrate(scores.LAC(), p, labels)
    line = jnp.stack([jnp.ones(n), preds], 1)
    test_line = jnp.stack([jnp.ones(m), test_preds], 1)
    conditional = jaxcp.calibrate_conditional(ABSOLUTE, preds, y, line)
    kernel = jaxcp.conditional.Gaussian(1.0)
    local = jaxcp.calibrate_local(ABSOLUTE, preds, y, preds[:, None], kernel)
    system = jaxcp.predictive.calibrate_predictive(scores.Residual(), preds, y)
    ends = plain(test_preds, 0.3)
    own = {"test_weights": jnp.asarray(test_weights)}
    near = {"x": test_preds[:, None], "anchors": test_preds[:, None] + 0.1}
    return {
        "scores": plain.scores,
        "thresholds": [cp.quantile(0.3) for cp in (plain, grouped, lac)],
        "plain": of_context(plain, test_preds, test_y),
        "smoothed": of_context(plain, test_preds, test_y, u=u),
        "weights": weighted(test_preds, 0.3, **own),
        "groups": of_context(grouped, test_preds, test_y, groups=test_groups),
        "labels": [lac(p[:m], 0.3), lac.p_values(p[:m])],
        "conditional": conditional(test_preds, 0.3, features=test_line),
        "local": local(test_preds, 0.3, **near),
        "predictor": plain.at(0.3)(test_preds),
        "covered": metrics.covered(ends, test_y),
        "rates": [metrics.coverage(ends, test_y), metrics.infinite_rate(ends)],
        "floats": {
            "weights": weighted.p_values(test_preds, test_y, **own),
            "cdf": system.cdf(test_preds, test_y, u=u),
            "crps": system.crps(test_preds, test_y),
            "sizes": [metrics.mean_size(ends), metrics.sizes(ends)],
            "interval score": metrics.interval_score(ends, test_y, 0.3),
        },
    }


@pytest.mark.parametrize(
    "n, m", [(9, 5), *(pytest.param(*v, marks=pytest.mark.slow) for v in [(70, 6)])]
)
def test_nothing_depends_on_the_size_filled_up_to(n, m, monkeypatch):
    """Sets, thresholds and shares to the last bit, sums of floats but for rounding."""
    found = of_kinds(n, m)
    monkeypatch.setattr(_batching, "_size", lambda n, cheap: 1 << (n - 1).bit_length())
    expected = of_kinds(n, m)
    same(found.pop("floats"), expected.pop("floats"), rtol=1e-6)
    same(found, expected)


def test_few_numbers_of_rows_share_programs(programs):
    """9 and 50 rows share all, 900 and 907 too: at most two programs of each kind."""
    counts = {}
    jax.clear_caches()
    for n in 9, 50, 900, 907:
        programs.clear()
        preds, y, _ = (np.asarray(v) for v in rows(n))
        fold(ABSOLUTE, preds, y, preds[:7], y[:7])
        counts[n] = len(programs)
    assert counts[50] == counts[907] == 0
    assert 0 < counts[900] <= counts[9]


def test_what_is_traced_or_lies_elsewhere_is_left_alone():
    v = jnp.arange(5.0)
    program = jax.jit(lambda v: v + len(v))
    expected = v + 5
    run = lambda v: _batching.by_rows(program, rows=(v,))  # noqa: E731
    assert_array_equal(run(v), v + 64)
    assert_array_equal(jax.jit(run)(v), expected)
    assert_array_equal(jax.vmap(run)(v[None])[0], expected)
    assert_array_equal(jax.jvp(run, (v,), (v,))[0], expected)
    assert_array_equal(run(jax.device_put(v, jax.devices()[1])), expected)
    assert run(jnp.zeros(2**14 + 1))[0] == 2**14 + 1
    assert run(jnp.zeros((3, 2**14)))[0, 0] == 3
    assert jax.jit(lambda: run(v))().shape == (5,)  # all known, inside of a program


def test_arrays_given_are_copied():
    """The memory of the caller may change later."""
    y = np.ones(64, np.float32)
    cp = jaxcp.calibrate(ABSOLUTE, np.zeros(64, np.float32), y, weights=y)
    y[:] = 7
    assert_array_equal(cp.scores, np.ones(64))
    assert_array_equal(cp.weights, np.ones(64))
