"""Distributions of atoms: against vectors, loops, the law of their cdf, and edges."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import learners, scores
from jaxcp.predictive import Atoms
from jaxcp.predictive.atoms import crps_among
from references import kth_smallest, p_value, rank

FOLDER = Path(__file__).parents[1] / "reference/distributional"
CPS = np.load(FOLDER / "cps.npz")
LIMITS = {"float32": 1e-5, "float64": 1e-9}
KEY, INF = jax.random.key(0), np.inf
RNG = np.random.default_rng(0)


def vector(case):
    """Returns what the vectors say, with atoms in units of the target."""
    of = {k[len(case) + 2 :]: CPS[k] for k in CPS if k.startswith(f"{case}__")}
    scores_ = (of["y_cal"] - of["mu_cal"]) / of["sigma_cal"]
    of["values"] = of["mu"][:, None] + of["sigma"][:, None] * scores_
    return of


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("case", ["ties", "normalized", "weighted", "whole", "tiny"])
def test_vectors(case, dtype):
    of, limit = vector(case), LIMITS[dtype]
    with jax.enable_x64(dtype == "float64"):
        atoms, m = Atoms(of["values"]), len(of["y"])
        if case == "weighted":
            weights = np.tile(of["weights"], (m, 1))
            atoms = Atoms(of["values"], weights, of["test_weights"])
        found = {
            "cdf": atoms.cdf(of["y"], u=of["u"]),
            "crps": atoms.crps(of["y"]),
            "upper": atoms.quantile(of["levels"], side="upper"),
            "lower": atoms.quantile(of["levels"], side="lower"),
        }
        for name, value in found.items():
            assert value.dtype == dtype
            assert_allclose(value, of[name], rtol=limit, atol=limit, err_msg=name)


def slow_crps(values, y, weights, fair=False):
    """E|C - y| - E|C - C'| / 2, pair by pair."""
    near, far, total = 0.0, 0.0, sum(weights)
    others = total**2 - sum(w**2 for w in weights) if fair else total**2
    for value, weight in zip(values, weights, strict=True):
        near += weight * abs(value - y) / total
        for other, mass in zip(values, weights, strict=True):
            far += weight * mass * abs(value - other) / (2 * others)
    return near - far


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_loops_from_the_definitions(offset):
    values = np.round(RNG.normal(size=12), 1).astype("f") + np.float32(offset)
    y = np.append(values[:4], offset + np.array([-9, 0.05, 9])).astype("f")
    atoms, wide = Atoms(jnp.asarray(values)), values.astype(float)
    weights = RNG.integers(0, 3, 12).astype("f")
    weighted = Atoms(jnp.asarray(values), jnp.asarray(weights))
    for fair in (False, True):
        each = [slow_crps(wide, v, np.ones(12), fair) for v in y.astype(float)]
        assert_allclose(atoms.crps(y, fair=fair), each, rtol=1e-5)
        each = [slow_crps(wide, v, weights, fair) for v in y.astype(float)]
        assert_allclose(weighted.crps(y, fair=fair), each, rtol=1e-5)
    each = [p_value(-wide, -v, 0.3) for v in y]
    assert_allclose(atoms.cdf(y, u=0.3), each, rtol=1e-6)
    for level in ("0.1", "0.4", "0.9"):
        upper, lower = rank(12, str(1 - Fraction(level))), 13 - rank(12, level)
        found = [atoms.quantile(float(level), side=v) for v in ("upper", "lower")]
        assert_array_equal(found, [kth_smallest(values, k) for k in (upper, lower)])


@pytest.mark.parametrize("ties", [False, True])
def test_each_value_in_turn_makes_the_cdf_uniform(ties):
    """Each of n + 1 values is the target once, and the others are the atoms."""
    values = np.array([0, 1, 1, 1, 2, 5, 5] if ties else np.arange(7)) / 4.0
    n = len(values) - 1
    others = np.stack([np.delete(values, i) for i in range(n + 1)])
    atoms, y = Atoms(jnp.asarray(others)), jnp.asarray(values)
    low, high = (np.asarray(atoms.cdf(y, u=u)) for u in (0.0, 1.0))
    for t in np.linspace(0, 1, 29):  # P(Q(Y, U) <= t) = t
        shares = np.clip((t - low) / (high - low), 0, 1)
        assert_allclose(shares.mean(), t, atol=1e-6)
    for level in (0.1, 0.25, 0.5, 0.9):
        upper, lower = (atoms.quantile(level, side=v) for v in ("upper", "lower"))
        assert np.mean(y <= upper) >= level - 1e-6
        assert np.mean(y < lower) <= level + 1e-6


def test_edges():
    one, y = Atoms(jnp.array([2.0])), jnp.array([0.0, 2.0, INF])
    assert_array_equal(one.crps(y), [2, 0, INF])
    assert_array_equal(one.crps(y, fair=True), np.full(3, np.nan))
    none = Atoms(jnp.zeros((3, 0)))
    assert_array_equal(none.crps(y), np.full(3, np.nan))
    assert_allclose(none.cdf(y, u=0.3), np.full(3, 0.3), rtol=1e-6)
    assert_array_equal(none.quantile(0.5, side="upper"), np.full(3, INF))
    assert_array_equal(none.quantile(0.5, side="lower"), np.full(3, -INF))
    infinite = Atoms(jnp.array([-INF, 1.0, INF]))
    assert infinite.crps(1.0) == INF
    assert infinite.quantile(0.5, side="upper") == 1
    assert np.isnan(crps_among(jnp.array([jnp.nan, 1.0]), jnp.ones(1))).all()
    massless = Atoms(jnp.array([jnp.nan, 1.0, 3.0]), jnp.array([0.0, 1.0, 1.0]))
    assert massless.crps(1.0) == 0.5
    assert np.isnan(Atoms(jnp.ones(2), jnp.zeros(2)).crps(1.0))
    whole = Atoms(jnp.array([1, 2, 6]))
    assert_allclose(whole.crps(2), 5 / 3 - 10 / 9, rtol=1e-6)
    assert whole.crps(2).dtype == jnp.ones(()).dtype


def test_many_equal_numbers_stay_exact_far_from_zero():
    values = jnp.full(100_000, 1e4) + jnp.where(jnp.arange(100_000) % 2, 1.0, -1.0)
    found = crps_among(values, jnp.array([1e4, 1e4 + 1]))
    assert_allclose(found, [0.5, 0.5], rtol=1e-5)  # E|C - y| = 1, E|C - C'| = 1


def test_shapes_and_batches():
    values = jnp.asarray(RNG.normal(size=(4, 2, 6)).astype("f"))
    y, atoms = values[..., 0] + 0.1, Atoms(values)
    assert len(atoms) == 4 and atoms[1].values.shape == (2, 6)
    each = [
        [Atoms(v).crps(t) for v, t in zip(*row, strict=True)]
        for row in zip(values, y, strict=True)
    ]
    assert_allclose(atoms.crps(y), each, rtol=1e-5)
    assert_allclose(jax.vmap(lambda a, t: a.crps(t))(atoms, y), each, rtol=1e-5)
    assert_allclose(jax.jit(lambda a, t: a.crps(t))(atoms, y), each, rtol=1e-5)
    grid = jnp.stack([y, y + 1, y + 2], axis=-1)
    assert_allclose(atoms.cdf(grid, u=0.5)[..., 1], atoms.cdf(y + 1, u=0.5))
    assert_allclose(atoms.crps(grid)[..., 0], each, rtol=1e-5)
    assert atoms.quantile([0.1, 0.5], side="upper").shape == (4, 2, 2)
    draws = atoms.draw(KEY, 500)
    assert draws.shape == (4, 2, 500)
    assert all(
        set(d) <= set(v)
        for d, v in zip(np.asarray(draws[:, 0]), np.asarray(values[:, 0]), strict=True)
    )
    weighted = Atoms(values[0, 0], jnp.array([0.0, 1, 0, 0, 3, 0]))
    taken = np.asarray(weighted.draw(KEY, 4000) == values[0, 0, 4])
    assert abs(taken.mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)


def test_gradients_are_those_of_the_pairs_and_finite_at_ties():
    values, y = jnp.array([0.3, -1.0, 2.0, 0.9]), jnp.array([0.0, 1.5])
    weights = jnp.array([1.0, 2.0, 0.5, 3.0])

    def by_pairs(values, y, weights):
        p = weights / jnp.sum(weights)
        near = jnp.abs(values[None] - y[:, None]) @ p
        return jnp.sum(near - p @ jnp.abs(values[:, None] - values[None]) @ p / 2)

    slopes = jax.grad(lambda *of: jnp.sum(crps_among(*of)), (0, 1, 2))(
        values, y, weights
    )
    for a, b in zip(
        slopes, jax.grad(by_pairs, (0, 1, 2))(values, y, weights), strict=True
    ):
        assert_allclose(a, b, atol=1e-6)
    plain = jax.grad(lambda *of: jnp.sum(crps_among(*of)), (0, 1))
    expected = jax.grad(by_pairs, (0, 1))(values, y, jnp.ones(4))
    for a, b in zip(plain(values, y), expected, strict=True):
        assert_allclose(a, b, atol=1e-6)
    for odd in ([1.0, 1, 1, 2], [1.0, 1, 1, INF]):
        for slope in plain(jnp.array(odd), jnp.ones(2)):
            assert np.isfinite(slope).all()


def test_atoms_of_full_conformal_prediction():
    x = RNG.normal(size=(12, 2)).astype("f")
    y = (x[:, 0] + RNG.normal(size=12)).astype("f")
    both, mask = np.stack([y, -y], 1), np.arange(12) % 4 > 0
    ridge, new = learners.Ridge(1.0), x[:3] + 0.5
    fit = lambda y, **of: jaxcp.full_conformal(KEY, ridge, scores.Signed(), x, y, **of)  # noqa: E731
    atoms = fit(y).predictive(new)
    assert_array_equal(fit(both).predictive(new)[0].values.shape, (2, 12))
    p = fit(y).p_values(new, y[:3])  # of both sides, by Bonferroni
    sides = [1 - atoms.cdf(y[:3], u=0.0), atoms.cdf(y[:3], u=1.0)]
    assert_allclose(p, np.minimum(1, 2 * np.minimum(*sides)), rtol=1e-5)
    masked = fit(y, mask=mask).predictive(new)
    alone = jaxcp.full_conformal(KEY, ridge, scores.Signed(), x[mask], y[mask])
    assert_allclose(masked.crps(y[:3]), alone.predictive(new).crps(y[:3]), rtol=1e-4)
    weights = np.linspace(0.1, 1, 12).astype("f")
    weighted = fit(y, calibration_weights=weights)
    sets = weighted(new, 0.4, test_weights=np.ones(3))
    upper = weighted.predictive(new, test_weights=np.ones(3)).quantile(
        0.8, side="upper"
    )
    assert_allclose(upper, sets.upper, rtol=1e-6)


def test_atoms_of_cross_conformal_prediction_end_the_plus_sets():
    n, m, b = 12, 3, 4
    preds, new = (
        RNG.normal(size=(b, n)).astype("f"),
        RNG.normal(size=(b, m)).astype("f"),
    )
    y, fold = RNG.normal(size=n).astype("f"), np.arange(n) % b
    held_out = fold == np.arange(b)[:, None]
    cp = jaxcp.cross_calibrate(scores.Signed(), preds, y, held_out)
    atoms, sets = cp.predictive(new), cp(new, 0.4)
    one = jaxcp.cross_calibrate(scores.Residual(), preds, y, held_out)
    assert_array_equal(one.predictive(new).values, atoms.values)
    expected = new.T[:, fold] + (y - preds[fold, np.arange(n)])
    assert_allclose(atoms.values, expected, rtol=1e-5, atol=1e-6)
    assert_allclose(atoms.quantile(0.8, side="upper"), sets.upper, rtol=1e-6)
    assert_allclose(atoms.quantile(0.2, side="lower"), sets.lower, rtol=1e-6)
    x = RNG.normal(size=(n, 2)).astype("f")
    fits = jaxcp.cv_plus(KEY, learners.Ridge(1.0), scores.Signed(), x, y, folds=fold)
    assert_allclose(
        fits.calibration.predictive(fits.fits.predict(x)).quantile(0.8, side="upper"),
        fits(x, 0.4).upper,
        rtol=1e-5,
    )
    for score in (scores.Absolute(), scores.CQR()):
        pair = (preds, preds + 1) if isinstance(score, scores.CQR) else preds
        cp = jaxcp.cross_calibrate(score, pair, y, held_out)
        with pytest.raises(
            ValueError, match=f"with its sign.*got {type(score).__name__}"
        ):
            cp.predictive((new, new + 1) if isinstance(score, scores.CQR) else new)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda a: a.cdf(jnp.zeros(3), u=0.5),
            r"axes of y of shape \(2,\), got \(3,\)",
        ),
        (lambda a: a.cdf(jnp.zeros(2), u=2.0), r"u in \[0, 1\], got 2.0"),
        (
            lambda a: a.cdf(jnp.zeros(2), u=jnp.ones(3)),
            "Incompatible types for broadcasting",
        ),
        (lambda a: a.crps(jnp.full(2, jnp.nan)), "y without NaN"),
        (lambda a: a.quantile(1.5, side="upper"), r"level in \(0, 1\), got 1.5"),
        (lambda a: a.quantile(0.5, side="middle"), "side as one of"),
        (lambda a: a.draw(KEY, 0), "num_draws as an int >= 1"),
        (lambda a: Atoms(a.values, -a.values).crps(1.0), "finite weights >= 0"),
        (lambda a: Atoms(a.values, a.values[0]).crps(1.0), "inconsistent sizes"),
        (
            lambda a: Atoms(a.values, None, jnp.ones(2)).cdf(jnp.ones(2), u=0.5),
            "test_weight only with calibration weights",
        ),
    ],
)
def test_wrong_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call(Atoms(jnp.ones((2, 3))))


def test_saved_and_loaded(tmp_path):
    atoms = Atoms(jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3)), jnp.ones(2))
    jaxcp.save(tmp_path / "atoms", atoms)
    found = jaxcp.load(tmp_path / "atoms")
    assert isinstance(found, Atoms)
    assert_array_equal(found.crps(jnp.zeros(2)), atoms.crps(jnp.zeros(2)))


def test_atoms_that_say_nothing_or_are_no_numbers():
    nothing = Atoms(np.ones(2), np.zeros(2))
    assert np.all(np.isnan(nothing.draw(KEY, 3)))
    with pytest.raises(ValueError, match="values without NaN"):
        Atoms([1.0, np.nan]).cdf(1.0, u=0.5)
