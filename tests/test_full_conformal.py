"""Full conformal prediction in closed form: against refits, papers' vectors and laws."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import certificates, learners, scores
from jaxcp.typing import Augments

FOLDER = Path(__file__).parent / "reference/distributional"
KEY, ABSOLUTE = jax.random.key(0), scores.Absolute()
POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
ALPHAS = np.array([0.3, 0.5])


def full(x, y, penalty=1.0, intercept=True, score=ABSOLUTE, **options):
    ridge = learners.Ridge(penalty, intercept)
    return jaxcp.full_conformal(KEY, ridge, score, x, y, **options)


def data(key, n=30, p=3, m=5, dtype=None):
    keys = jax.random.split(key, 3)
    x, x_new = (jax.random.normal(k, (r, p), dtype) for k, r in zip(keys, (n, m)))
    return x, jnp.sum(x, 1) + jax.random.normal(keys[2], (n,), dtype), x_new


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
        atoms = np.sort(full(*args).predictive(of["x_new"]), axis=1)
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
    x, y, mask, x_new, penalty = given = designs(rng, count, rows, 6)
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
    # Rows that interpolate all together: every residual is rounding.
    clear = np.all((of[2][:, :-1] > 1e-9) | ~mask, axis=1) | (of[2][:, -1] < 1e-9)
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
