"""Full conformal prediction in closed form, against refits, vectors and laws."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from helpers import composes, cut, same
from jaxcp import certificates, learners, scores
from jaxcp.typing import Augments
from rows import refuses

FOLDER = Path(__file__).parents[1] / "reference/distributional"
KEY, ABSOLUTE = jax.random.key(0), scores.Absolute()
POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
ALPHAS = np.array([0.3, 0.5])


def full(x, y, penalty=1.0, intercept=True, score=ABSOLUTE, **options):
    ridge = learners.Ridge(penalty, intercept)
    return jaxcp.full_conformal(KEY, ridge, score, x, y, **options)


def data(n=30, p=3, m=5):
    rng = np.random.default_rng(0)
    x, x_new, noise = (rng.normal(size=shape) for shape in ((n, p), (m, p), n))
    return tuple(map(jnp.asarray, (x, x.sum(axis=1) + noise, x_new)))


def golden(name, case):
    arrays = np.load(FOLDER / f"{name}.npz")
    cut = len(case) + 2
    return {k[cut:]: arrays[k] for k in arrays if k.startswith(f"{case}__")}


def check_vectors(cp, of, residuals, tolerance):
    for i, alpha in enumerate(of["alphas"]):
        found = cp(of["x_new"], float(alpha)).to_numpy()
        expected = of[f"{residuals}_interval"][:, i]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["low", "interp", "lever"])
def test_vectors_of_ridge(case, dtype):
    of, tolerance = golden("full_ridge", case), {"float32": 1e-5, "float64": 1e-9}
    with jax.enable_x64(dtype == "float64"):
        args = of["x"], of["y"], float(of["penalty"]), bool(of["intercept"])
        for residuals in POWERS:
            cp = full(*args, residuals=residuals)
            check_vectors(cp, of, residuals, tolerance[dtype])
            x = np.repeat(of["x_new"], of["candidates"].shape[1], axis=0)
            p = cp.p_values(x, of["candidates"].ravel())
            np.testing.assert_allclose(p, of[f"{residuals}_p"].ravel(), rtol=1e-6)
        atoms = np.sort(full(*args).predictive(of["x_new"]).values, axis=1)
        limits = {"rtol": tolerance[dtype], "atol": tolerance[dtype]}
        np.testing.assert_allclose(atoms, of["atoms"], **limits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_of_kernel_ridge(dtype):
    of, tolerance = golden("full_kernel", "kernel"), {"float32": 1e-5, "float64": 1e-9}
    with jax.enable_x64(dtype == "float64"):
        learner = learners.KernelRidge(float(of["penalty"]), float(of["lengthscale"]))
        for residuals in POWERS:
            cp = jaxcp.full_conformal(
                KEY, learner, ABSOLUTE, of["x"], of["y"], residuals=residuals
            )
            check_vectors(cp, of, residuals, tolerance[dtype])


def designs(rng, count, rows, p):
    """Random designs with ties, repeated rows and columns, padded with masked rows."""
    normal = rng.normal(size=(count, rows, p))
    whole = rng.integers(-2, 3, (count, rows, p)).astype(float)
    x = np.where(rng.random((count, 1, 1)) < 0.5, normal, whole)
    counts, every = rng.integers(1, 9, count), np.arange(count)
    mask = rng.permuted(np.arange(rows) < counts[:, None], axis=1)
    x *= (np.arange(p) < rng.integers(1, p + 1, count)[:, None])[:, None]
    again = rng.random(count) < 0.3
    x[again, :, 0] = x[again, :, -1]
    twin = rng.integers(0, rows, (2, count))
    x[every, twin[0]] = x[every, twin[1]]
    y = np.where(rng.random((count, 1)) < 0.6, 1, 0) * rng.normal(size=(count, rows))
    y = np.where(y == 0, rng.integers(-1, 2, (count, rows)), y)
    x_new = x[every, twin[0]]
    others = rng.normal(size=(count, p)) * np.any(x != 0, axis=1)
    x_new = np.where(rng.random((count, 1)) < 0.6, 3 * others, x_new)
    penalty = rng.choice([0, 0.1, 1, 10], count)
    return np.where(mask[..., None], x, 7), y, mask, x_new, penalty


def refits(x, y, mask, x_new, penalty, intercept):
    """Residuals a + b y of all n + 1 rows, and their leverages left, by pinv."""
    x, y = np.concatenate([x, x_new[:, None]], axis=1), np.pad(y, ((0, 0), (0, 1)))
    counts = np.pad(mask, ((0, 0), (0, 1)), constant_values=True).astype(float)
    y, total = y * counts, counts.sum(1)
    base = counts[:, :, None] * counts[:, None] / total[:, None, None] * intercept
    x = counts[..., None] * x
    x = x - base @ x
    x = x - base @ x
    p = x.shape[2]
    stacked = np.sqrt(penalty)[:, None, None] * np.eye(p)
    inverse = np.linalg.pinv(np.concatenate([x, stacked], axis=1), rcond=1e-11)
    hat = base + x @ inverse[:, :, : x.shape[1]]
    maker = np.eye(x.shape[1]) - hat
    ours = (maker @ y[..., None])[..., 0], maker[..., -1]
    return *ours, np.diagonal(maker, axis1=1, axis2=2)


def p_of_refits(of, y, power, mask, weights, test_weights):
    """p-values of targets y (b, c), where scores equal but for rounding are equal."""
    constant, slope, left = of
    alone = -constant[:, -1] / np.where(left[:, -1] > 1e-9, left[:, -1], 1)
    size = 1e-11 * (1 + np.abs(alone) + np.abs(constant).max(1))[:, None, None]
    e = np.abs(constant[..., None] + slope[..., None] * y[:, None])
    tied = left[:, :-1, None] < 1e-9
    units = np.where(left < 1e-9, 1, left)[..., None] ** power
    score = np.where(e < size, 0, e / units)
    keep = score[:, :-1] >= score[:, -1:] * (1 - 1e-11)
    keep |= tied & (power > 0) | (left[:, -1] < 1e-9)[:, None, None]
    mass = np.where(mask, weights, 0)
    kept = np.sum(mass[..., None] * keep, axis=1) + test_weights
    return kept / (np.sum(mass, axis=1, keepdims=True) + test_weights)


def compare(seed, rows, intercept, residuals, count=1000):
    """Compares sets with refits beside each end, outside and inside."""
    rng = np.random.default_rng(seed)
    _, y, mask, *_ = given = designs(rng, count, rows, 6)
    weights = rng.choice([0.5, 1, 2, 3], (count, rows))
    test_weights = rng.choice([0.5, 1, 2], (count, 1))

    def one(x, y, mask, x_new, penalty, weights, test_weight):
        options = {"mask": mask, "residuals": residuals}
        plain = full(x, y, penalty, intercept, **options)
        options["calibration_weights"] = weights
        weighted = full(x, y, penalty, intercept, **options)
        sets = [plain(x_new[None], alpha) for alpha in ALPHAS]
        sets += [weighted(x_new[None], a, test_weights=test_weight) for a in ALPHAS]
        return jnp.stack([jnp.concatenate(s.ends()) for s in sets])

    ends = np.asarray(jax.jit(jax.vmap(one))(*given, weights, test_weights))
    of, ones = refits(*given, intercept), np.ones_like(weights)
    # Where rows or nearly the test point interpolate, refits are left to rounding.
    clear = np.all((of[2][:, :-1] > 1e-9) | ~mask, axis=1) & (of[2][:, -1] > 1e-4)
    clear |= of[2][:, -1] < 1e-9
    for i, alpha in enumerate([*ALPHAS, *ALPHAS]):
        lower, upper = ends[:, i, :1], ends[:, i, 1:]
        step = np.where(np.isfinite(upper - lower), upper - lower, 0) + 1
        step = 1e-5 * (step + np.abs(y).max(1, keepdims=True))
        known = weights if i > 1 else ones, test_weights if i > 1 else 1.0
        sides = ((lower, -1), (upper, 1))
        for (end, sign), kept in [(s, k) for s in sides for k in (False, True)]:
            at = np.where(np.isfinite(end), end + (-sign if kept else sign) * step, 1e4)
            at = np.where(np.isfinite(end), at, sign * 1e4)
            p = p_of_refits(of, at, POWERS[residuals], mask, *known)
            finite = np.isfinite(end) if not kept else True
            narrow = upper - lower < 3 * step
            wrong = (p > alpha + 1e-9) != kept
            if residuals != "studentized" and kept:
                wrong &= False  # an interval around holes
            wrong &= finite & ~(kept & narrow) & clear[:, None]
            assert not wrong.any(), (i, sign, kept, np.flatnonzero(wrong[:, 0]))
    assert np.mean(np.isfinite(ends)) > 0.3


@pytest.mark.parametrize(("rows", "intercept"), [(6, True), (12, False)])
def test_random_designs_agree_with_refits(rows, intercept):
    with jax.enable_x64(True):
        compare(rows, rows, intercept, "studentized")


@pytest.mark.slow
@pytest.mark.parametrize("residuals", list(POWERS))
@pytest.mark.parametrize(("rows", "intercept"), [(6, False), (12, True)])
def test_all_residuals_agree_with_refits(rows, intercept, residuals):
    with jax.enable_x64(True):
        compare(3, rows, intercept, residuals, 4000)


def test_the_learners_say_that_they_augment():
    for learner in (learners.Ridge(1.0), learners.KernelRidge(1.0)):
        assert isinstance(learner, Augments)


@pytest.mark.parametrize(("p", "penalty"), [(2, 0.0), (2, 0.3), (30, 100.0)])
def test_far_inputs_keep_their_digits(p, penalty):
    """Rows 1000 standard deviations from 0, and test inputs as far from the rows."""
    x, y, x_new = (np.asarray(v) for v in data(25, p, 4))
    x, x_new = x + 1000, x_new * np.array([1, 1, 1000, 1000])[:, None] + 1000
    x, y, x_new = (v.astype(np.float32) for v in (x, y, x_new))
    single = full(x, y, penalty)(x_new, 0.2).to_numpy()
    with jax.enable_x64(True):
        args = (v.astype(np.float64) for v in (x, y))
        double = full(*args, penalty)(x_new.astype(np.float64), 0.2).to_numpy()
    assert np.all(np.abs(single - double) < 1e-5 * np.diff(double))


@pytest.mark.parametrize("residuals", list(POWERS))
@pytest.mark.parametrize("score", [ABSOLUTE, scores.Signed()])
def test_a_target_is_in_the_set_iff_its_p_value_exceeds_alpha(score, residuals):
    x, y, x_new = data(19, 2, 40)
    cp = full(x, jnp.round(y), score=score, residuals=residuals)
    sets = cp(x_new, 0.2)
    for end, out in ((sets.lower, -jnp.inf), (sets.upper, jnp.inf)):
        finite = jnp.isfinite(end)
        assert jnp.any(finite)
        for y_new in (end, jnp.nextafter(end, out), jnp.nextafter(end, -out)):
            y_new = jnp.where(finite, y_new, 0)
            p = cp.p_values(x_new, y_new)
            kept = p > jnp.float32(0.2) * (1 + 1e-6)
            assert jnp.array_equal(kept, sets.contains(y_new))


def test_p_values_of_a_set_with_holes_are_those_of_the_union():
    of = golden("full_ridge", "lever")
    args = of["x"], of["y"], float(of["penalty"]), False
    cp = full(*args, residuals="ordinary")
    union = cp(of["x_new"], 0.5, union=True)
    assert jnp.max(union.num_pieces()) > 1
    for i, y in enumerate(of["candidates"].T):
        p = cp.p_values(of["x_new"], y)
        assert jnp.array_equal(p > 0.5, union.contains(y)), i
    hull, interval = union.hull(), cp(of["x_new"], 0.5)
    assert jnp.all(interval.lower <= hull.lower + 1e-4)
    assert jnp.all(interval.upper >= hull.upper - 1e-4)


def test_smoothed_p_values_are_between():
    x, y, x_new = data(9, 2, 6)
    cp, y_new = full(x, y), jnp.arange(6.0) - 3
    high = cp.p_values(x_new, y_new)
    low = cp.p_values(x_new, y_new, u=jnp.zeros(6))
    half = cp.p_values(x_new, y_new, u=jnp.full(6, 0.5))
    np.testing.assert_allclose(high - low, 0.1, rtol=1e-5)
    np.testing.assert_allclose(half, (high + low) / 2, rtol=1e-5)


def test_outputs_are_sides_of_a_box():
    x, y, x_new = data(40, 2, 3)
    both = jnp.stack([y, y**2], axis=1)
    cp, columns = full(x, both), [full(x, both[:, j]) for j in range(2)]
    box = cp(x_new, 0.2)
    sides = [c(x_new, 0.1) for c in columns]
    lower, upper = (
        jnp.stack([getattr(s, e) for s in sides], 1) for e in ("lower", "upper")
    )
    np.testing.assert_allclose(box.lower, lower, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(box.upper, upper, rtol=1e-4, atol=1e-5)
    p = cp.p_values(x_new, both[:3])
    each = [c.p_values(x_new, both[:3, j]) for j, c in enumerate(columns)]
    np.testing.assert_allclose(p, jnp.minimum(1, 2 * jnp.minimum(*each)), rtol=1e-6)
    assert cp.predictive(x_new).values.shape == (3, 2, 40)
    assert full(x, y[:, None])(x_new, 0.2).lower.shape == (3,)


def test_signed_sets_are_between_atoms():
    x, y, x_new = data(19, 2, 3)
    cp = full(x, y, score=scores.Signed())
    sets, atoms = cp(x_new, 0.2), np.sort(cp.predictive(x_new).values, axis=1)
    np.testing.assert_allclose(sets.upper, atoms[:, 17], rtol=1e-6)
    np.testing.assert_allclose(sets.lower, atoms[:, 1], rtol=1e-6)
    box = full(x, jnp.stack([y, -y], 1), score=scores.Signed())(x_new, 0.4)
    np.testing.assert_allclose(box.upper[:, 0], sets.upper, rtol=1e-4)
    np.testing.assert_allclose(box.lower[:, 1], -sets.upper, rtol=1e-4)


@pytest.mark.parametrize("p", [2, 40])
def test_rows_off_the_mask_are_not_there(p):
    x, y, x_new = data(30, p, 4)
    mask = jnp.arange(30) % 3 > 0
    weights = jnp.arange(30.0) / 29
    gone = jnp.where(mask[:, None], x, jnp.nan), jnp.where(mask, y, jnp.nan)
    for known in ({}, {"calibration_weights": weights}):
        alone = full(*cut((x, y), mask), **cut(known, mask))
        masked = full(*gone, mask=mask, **known)
        same(masked(x_new, 0.2), alone(x_new, 0.2), rtol=1e-4)


@jax.jit
def ends_of_kernel(penalty, lengthscale, x, y):
    rbf = learners.KernelRidge(penalty, lengthscale)
    cp = jaxcp.full_conformal(KEY, rbf, ABSOLUTE, x[:40], y[:40])
    return cp(x[40:], 0.1).ends()


@pytest.mark.parametrize("lengthscale", [0.05, 0.2, 2.0])
def test_kernel_sets_of_small_penalties_are_those_of_double_precision(lengthscale):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (50, 1)).astype(np.float32)
    y = (np.sin(6 * x[:, 0]) + 0.1 * rng.normal(size=50)).astype(np.float32)
    for penalty in (1e-3, 1e-4, 1e-5):
        of = penalty, lengthscale
        lower, upper = map(np.asarray, ends_of_kernel(*of, x, y))
        with jax.enable_x64(True):
            double = ends_of_kernel(*of, np.float64(x), np.float64(y))
            expected = [*map(np.asarray, double)]
        slack = 0.1 * (expected[1] - expected[0])
        np.testing.assert_array_less(abs(lower - expected[0]), slack)
        np.testing.assert_array_less(abs(upper - expected[1]), slack)


def test_few_rows_and_no_test_points():
    x, y, x_new = data(8, 2, 3)
    assert jnp.all(jnp.isinf(full(x, y)(x_new, 0.1).upper))  # k = 9 > n
    assert full(x, y)(x_new[:0], 0.2).lower.shape == (0,)
    assert full(x, y).p_values(x_new[:0], y[:0]).shape == (0,)
    one = full(x[:1], y[:1], 0.0)
    assert jnp.all(one(x_new, 0.6).upper == jnp.inf)  # it ties, with an intercept
    assert jnp.all(one.p_values(x_new, y[:3]) == 1)
    nothing = full(x, y, mask=jnp.zeros(8, bool))
    assert jnp.all(nothing(x_new, 0.6).lower == -jnp.inf)


def test_fits_that_interpolate_know_nothing():
    x, y, x_new = data(5, 9, 3)
    sets = full(x, y, 0.0)(x_new, 0.4)
    assert jnp.all((sets.lower == -jnp.inf) & (sets.upper == jnp.inf))
    assert jnp.all(full(x, y, 0.0).p_values(x_new, y[:3]) == 1)
    smoothed = full(x, y, 0.0).p_values(x_new, y[:3], u=jnp.full(3, 0.25))
    np.testing.assert_allclose(smoothed, 0.25)


def test_constant_targets_are_their_own_set():
    x, _, x_new = data(9, 2, 3)
    cp = full(x, jnp.full(9, 0.1))
    sets = cp(x_new, 0.2)
    assert jnp.all((sets.lower == jnp.float32(0.1)) & (sets.upper == jnp.float32(0.1)))
    assert jnp.all(cp.p_values(x_new, jnp.full(3, 0.1)) == 1)
    constant = full(jnp.full((9, 1), 0.7), jnp.arange(9.0), 0.0)
    assert jnp.all(jnp.isfinite(constant(jnp.full((2, 1), 0.7), 0.2).upper))
    assert jnp.all(jnp.isinf(constant(jnp.full((2, 1), 0.8), 0.2).upper))


def test_nan_is_the_whole_line():
    x, y, x_new = data(9, 2, 3)
    find = jax.jit(lambda x, y, x_new: full(x, y)(x_new, 0.2))
    bad = find(x, y, x_new.at[0, 1].set(jnp.nan).at[1, 0].set(jnp.inf))
    assert jnp.all(bad.lower[:2] == -jnp.inf)
    assert jnp.all(bad.upper[:2] == jnp.inf)
    assert jnp.isfinite(bad.upper[2])
    assert jnp.all(find(x, y.at[0].set(jnp.nan), x_new).upper == jnp.inf)
    alphas = jax.jit(full(x, y).__call__)(x_new, jnp.float32(1.5))
    assert jnp.all(alphas.is_empty())


def test_programs_and_blocks_of_more_inputs_than_rows():
    x, y, x_new = data(25, 30, 7)
    find = lambda penalty, y: full(x, y, penalty)(x_new, 0.2)  # noqa: E731
    composes(find, (1.0, y), (2.0, -y), rtol=1e-5)
    cp, blocks = full(x, y), full(x, y, batch_size=2)
    sets = cp(x_new, 0.2)
    same(blocks(x_new, 0.2), sets, rtol=1e-5)
    same(cp(x_new[:1], 0.2), cut(sets, slice(1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("p", "intercept"),
    [
        (2, False),
        (9, True),
        pytest.param(2, True, marks=pytest.mark.slow),
        pytest.param(9, False, marks=pytest.mark.slow),
    ],
)
def test_ends_have_gradients(p, intercept):
    with jax.enable_x64(True):
        x, y, x_new = data(8, p, 2)

        def ends(penalty, x, x_new):
            sets = full(x, y, penalty, intercept)(x_new, 0.25)
            return jnp.sum(sets.upper) - 2 * jnp.sum(sets.lower)

        at = (0.7, x, x_new)
        for i, gradient in enumerate(jax.jit(jax.grad(ends, (0, 1, 2)))(*at)):
            step = np.random.default_rng(i).normal(size=jnp.shape(at[i]))
            move = lambda t: [*at[:i], at[i] + t * step, *at[i + 1 :]]  # noqa: B023, E731
            slope = (ends(*move(1e-6)) - ends(*move(-1e-6))) / 2e-6
            np.testing.assert_allclose(jnp.sum(gradient * step), slope, rtol=1e-5)
        zero = jax.grad(ends, (0, 1))(0.0, x, x_new)
        assert all(jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(zero))


def test_kernel_ends_have_gradients():
    with jax.enable_x64(True):
        x, y, x_new = data(8, 2, 2)

        def end(penalty, scale):
            rbf = learners.KernelRidge(penalty, scale)
            cp = jaxcp.full_conformal(KEY, rbf, ABSOLUTE, x, y)
            return jnp.sum(cp(x_new, 0.25).upper)

        found = jax.grad(end, (0, 1))(0.3, 1.2)
        ends = end(0.3 + 1e-6, 1.2) - end(0.3 - 1e-6, 1.2)
        np.testing.assert_allclose(found[0], ends / 2e-6, rtol=1e-5)
        ends = end(0.3, 1.2 + 1e-6) - end(0.3, 1.2 - 1e-6)
        np.testing.assert_allclose(found[1], ends / 2e-6, rtol=1e-5)


def covered(key, n, p, penalty, alpha, residuals="studentized"):
    """Whether p exceeds alpha, a set covers, and its width, with errors of a t law."""
    keys = jax.random.split(key, 2)
    x = jax.random.normal(keys[0], (n + 1, p))
    y = jnp.sum(x, axis=1) + jax.random.t(keys[1], 3.0, (n + 1,))
    cp = full(x[:-1], y[:-1], penalty, residuals=residuals)
    sets = cp(x[-1:], alpha)
    kept = cp.p_values(x[-1:], y[-1:]) > alpha
    return kept[0], sets.contains(y[-1:])[0], sets.size()[0]


def check_coverage(count, n, p, penalty, alpha, residuals="studentized"):
    keys = jax.random.split(KEY, count)
    find = lambda key: covered(key, n, p, penalty, alpha, residuals)  # noqa: E731
    run = jax.jit(lambda keys: jax.lax.map(find, keys, batch_size=1000))
    kept, inside, sizes = run(keys)
    law = int(jaxcp.conformal_rank(n, alpha)) / (n + 1)
    error = (law * (1 - law) / count) ** 0.5
    assert abs(jnp.mean(kept) - law) < 4 * error
    # Intervals around sets with holes hold more.
    assert jnp.all(inside == kept if residuals == "studentized" else inside | ~kept)
    return sizes


def test_coverage_is_exact_with_nearly_as_many_features_as_rows():
    sizes = check_coverage(3000, 20, 15, 0.0, 0.1)  # 19 / 21
    assert jnp.all(jnp.isfinite(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("residuals", list(POWERS))
def test_coverage_over_many_replicates(residuals):
    runs = 100_000 if residuals == "studentized" else 20_000
    sizes = check_coverage(runs, 20, 15, 0.0, 0.1, residuals)
    assert jnp.all(jnp.isfinite(sizes)) == (residuals == "studentized")
    check_coverage(20_000, 12, 20, 2.0, 0.3, residuals)


def test_marginal_coverage_is_known():
    x, y, _ = data(9, 2, 3)
    known = full(x, y).certificate(0.25)
    assert isinstance(known, certificates.MarginalCertificate)
    assert (known.n, known.rank, known.coverage) == (9, 8, 0.8)
    assert full(x, y, mask=jnp.arange(9) > 4).certificate(0.1).coverage == 1
    for cp in (full(x, y, score=scores.Signed()), full(x, y, calibration_weights=y**2)):
        with pytest.raises(ValueError, match="no exact law"):
            cp.certificate(0.1)


X, Y, NEW = data(9, 2, 3)
BAD = {
    "columns of refits": (
        lambda: jaxcp.full_conformal(
            *(KEY, learners.Affine(learners.Ridge(1.0)), ABSOLUTE, X, Y),
            residuals="ordinary",
        )(NEW[:, :1], 0.5),
        r"x_new with rows of shape \(2,\) like x, got \(1,\)",
    ),
    "residuals of labels": (
        lambda: full(X, Y, score=scores.LAC(), residuals="raw"),
        "residuals as one of",
    ),
    "digits": (
        lambda: full(np.asarray(X), 1e9 + np.linspace(0, 1, len(X)) ** 2),
        "y with digits that single precision can hold",
    ),
    "complex": (lambda: full(X, Y + 1j), "y as real numbers, got complex"),
    "no outputs": (lambda: full(X, Y[:, None][:, :0]), r"d >= 1, got \(9, 0\)"),
    "a score": (lambda: full(X, Y, score=scores.CQR()), "discretized_conformal"),
    "no score": (lambda: full(X, Y, score=jnp.abs), "a score with an inverse"),
    "residuals": (
        lambda: full(X, Y, residuals="raw"),
        "residuals as one of .'ordinary', 'studentized', 'deleted'., got 'raw'",
    ),
    "penalty": (lambda: full(X, Y, -1.0), "penalty >= 0"),
    "key": (
        lambda: jaxcp.full_conformal(0, learners.Ridge(1.0), ABSOLUTE, X, Y),
        "a key from jax.random.key",
    ),
    "learner": (
        lambda: jaxcp.full_conformal(
            KEY, learners.QuantileRidge((0.1, 0.9), 1.0), ABSOLUTE, X, Y
        ),
        "learners.Affine.*discretized_conformal",
    ),
    "weights": (
        lambda: full(X, Y, calibration_weights=-(X[:, 0] ** 2)),
        "weights >= 0",
    ),
    "batch": (lambda: full(X, Y, batch_size=0), "batch_size as an int >= 1"),
    "columns": (lambda: full(X, Y)(NEW[:, :1], 0.1), r"x of shape \(n, 2\), got"),
    "test weights": (
        lambda: full(X, Y)(NEW, 0.1, test_weights=NEW[:, 0]),
        "test_weights only with calibration weights",
    ),
    "union": (
        lambda: full(X, X, residuals="ordinary")(NEW, 0.1, union=True),
        "union=True with scores.Absolute.* and one output",
    ),
    "targets": (lambda: full(X, Y).p_values(NEW, NEW), r"one target of shape \(\)"),
    "uniforms": (lambda: full(X, Y).p_values(NEW, Y[:3], u=Y[:3] + 5), "u in"),
}


@pytest.mark.parametrize(
    "x, y, penalty",
    [
        (X, np.full(len(X), 1e9 + 0.1), 1.0),  # no errors to lose
        (np.eye(len(X)), np.linspace(0, 1, len(X)) ** 2, 0.0),  # all interpolated
    ],
)
def test_rounding_without_errors_is_accepted(x, y, penalty):
    assert not np.isnan(full(x, y, penalty)(x[:1], 0.5).upper).any()


@pytest.mark.parametrize("learner", [learners.Ridge(1.0), learners.KernelRidge(1.0)])
def test_no_rows_give_the_whole_line(learner):
    cp = jaxcp.full_conformal(KEY, learner, ABSOLUTE, X[:0], Y[:0])
    found = cp(X[:2], 0.5)
    np.testing.assert_array_equal(found.lower, [-np.inf] * 2)
    np.testing.assert_array_equal(found.upper, [np.inf] * 2)
    np.testing.assert_array_equal(cp.p_values(X[:2], Y[:2]), [1, 1])


@pytest.mark.parametrize("residuals", ["studentized", "ordinary"])
def test_infinite_targets_are_outside_of_finite_sets(residuals):
    cp = full(X, Y, residuals=residuals)
    p = cp.p_values(X[:2], jnp.array([jnp.inf, -jnp.inf]))
    np.testing.assert_allclose(p, 1 / (len(X) + 1), rtol=1e-6)


test_bad_input = refuses(BAD)
