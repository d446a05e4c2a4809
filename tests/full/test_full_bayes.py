"""Conformal Bayes: its p-values by their definition, at any size of the likelihoods."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

import jaxcp
from helpers import cut, same
from jaxcp import sets
from rows import refuses

FOLDER = Path(__file__).parents[1] / "reference/distributional"
REFERENCE = {k[7:]: v for k, v in np.load(FOLDER / "full_bayes.npz").items()}
ROWS, CANDIDATES = REFERENCE["log_likelihoods"], REFERENCE["candidate_log_likelihoods"]
GRID = np.linspace(-3, 3, CANDIDATES.shape[1])


def reference(rows, candidates):
    """P-values and effective sizes by sums in logs, one term for each draw."""
    rows, candidates = np.asarray(rows, float), np.asarray(candidates, float)
    with np.errstate(divide="ignore"):
        sums = logsumexp(rows[:, :, None] + candidates[:, None], axis=0)
        own = logsumexp(2 * candidates, axis=0)
    below = sums <= own + 1e-9
    sizes = np.exp(2 * logsumexp(candidates, axis=0) - own)
    return (1 + np.sum(below, axis=0)) / (1 + rows.shape[1]), sizes


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def test_reference_vectors(dtype):
    found = jaxcp.conformal_bayes(ROWS, CANDIDATES, 0.2)
    assert found.p_values.dtype == dtype
    accuracy = 1e-5 if dtype == "float32" else 1e-9
    assert_allclose(found.p_values, REFERENCE["p_values"], rtol=accuracy)
    assert_allclose(found.effective_sizes, REFERENCE["ess"], rtol=accuracy)
    assert_array_equal(found.sets.mask, REFERENCE["p_values"] > 0.2)


@pytest.mark.parametrize("offset", [0, -1e4, 1e4])
@pytest.mark.parametrize("spread", [0.1, 30, 3000])
def test_likelihoods_of_any_size_whose_maxima_lie_at_different_draws(
    dtype, spread, offset
):
    """Products of the likelihoods underflow; ten candidates are rows, and tie."""
    rng = np.random.default_rng(0)
    rows, candidates = rng.normal(size=(2, 100, 30)) * spread + offset
    candidates += spread * np.linspace(-5, 1, 30)
    candidates[:, -10:] = rows[:, :10]
    rows, candidates = rows.astype(dtype), candidates.astype(dtype)
    found = jaxcp.conformal_bayes(rows, candidates, 0.3)
    p_values, sizes = reference(rows, candidates)
    assert len(set(p_values)) > 3
    assert_allclose(found.p_values, p_values, rtol=1e-6)
    assert_allclose(found.effective_sizes, sizes, rtol=1e-3 if offset else 1e-4)


def test_rows_that_no_product_of_floats_can_tell_apart(dtype):
    """Each factor underflows where the other is largest: sums are exp(-1500) of it.

    The first row is half as likely as the candidate, the second twice.
    """
    far, half = 1500.0, np.log(2)
    rows = np.array([[0, 0], [-far - half, -far + half]], dtype)
    candidates = np.array([[-3 * far], [-far]], dtype)
    assert_allclose(reference(rows, candidates)[0], [2 / 3])
    found = jaxcp.conformal_bayes(rows, candidates, 0.4)
    assert_allclose(found.p_values, [2 / 3], rtol=1e-6)


def test_one_draw_compares_densities():
    rows, candidates = [[-1.0, -2.0, -3.0, -2.0]], [[-0.5, -2.0, -2.5, -4.0]]
    found = jaxcp.conformal_bayes(rows, candidates, 0.3)
    assert_allclose(found.p_values, np.array([5, 4, 2, 1]) / 5, rtol=1e-6)
    assert_allclose(found.effective_sizes, 1)
    assert found.sets.labels() == [0, 1, 2]


def test_impossible_rows_and_candidates():
    """An impossible candidate is below all rows but those that are impossible, too."""
    inf = np.inf
    rows = np.array([[-1, -inf, -inf, -2], [-3, -inf, 0, -inf]])
    candidates = np.array([[-inf, -1, -inf, -500.0], [-inf, -inf, -1, -500]])
    found = jaxcp.conformal_bayes(rows, candidates, 0.3)
    # With the first draw alone exp(-1) ties with the first row and beats the others.
    assert_allclose(found.p_values, np.array([2, 5, 4, 2]) / 5, rtol=1e-6)
    assert_allclose(found.effective_sizes, [0, 1, 1, 2])


def test_ranks_are_exact_and_no_rows_keep_everything():
    none = jaxcp.conformal_bayes(ROWS[:, :0], CANDIDATES, 0.2)
    assert_allclose(none.p_values, 1)
    assert none.sets.mask.all()
    few = jaxcp.conformal_bayes(ROWS[:, :3], CANDIDATES, 0.2, grid=GRID).sets
    assert_array_equal(few.hull().to_numpy(), [-np.inf, np.inf])  # k > n
    for alpha in (1 / 13, Fraction(1, 13), 2 / 26):  # p in multiples of 1 / 26
        found = jaxcp.conformal_bayes(ROWS, CANDIDATES, alpha)
        assert_array_equal(found.sets.mask, np.round(26 * found.p_values) > 2)
    nothing = jaxcp.conformal_bayes(ROWS, CANDIDATES[:, :0], 0.2)
    assert nothing.p_values.shape == (0,) and nothing.sets.is_empty()
    nobody = np.zeros((len(ROWS), 0, 12))
    assert jaxcp.conformal_bayes(ROWS, nobody, 0.2, grid=GRID).sets.lower.shape == (
        0,
        12,
    )


def test_rows_off_a_traced_mask_do_not_count():
    mask = np.arange(25) % 3 > 0
    rows = np.where(mask[None], ROWS, np.nan)
    traced = jax.jit(lambda m: jaxcp.conformal_bayes(rows, CANDIDATES, 0.3, mask=m))
    fewer = jaxcp.conformal_bayes(ROWS[:, mask], CANDIDATES, 0.3)
    same(traced(mask), fewer, rtol=1e-6)


def test_cells_of_a_grid_are_joined():
    found = jaxcp.conformal_bayes(ROWS, CANDIDATES, 0.2, grid=GRID)
    (kept,) = np.nonzero(REFERENCE["p_values"] > 0.2)
    assert_array_equal(np.diff(kept), 1)
    step = GRID[1] - GRID[0]
    ends = GRID[kept[0]] - step / 2, GRID[kept[-1]] + step / 2
    assert found.sets.num_pieces() == 1
    assert_allclose(found.sets.to_numpy()[0], ends, rtol=1e-6)
    assert_allclose(found.sets.size(), len(kept) * step, rtol=1e-5)


def test_gaps_and_outer_cells():
    """Two modes: pieces around each; cells at the ends reach to infinity."""
    modes, y = np.array([[-2.0], [2.0]]), np.array([-2.1, -2.0, -1.9, 1.9, 2.0, 2.1])
    density = lambda y: np.logaddexp(norm.logpdf(y, -2, 0.1), norm.logpdf(y, 2, 0.1))  # noqa: E731
    grid = np.linspace(-3, 3, 61)
    rows, candidates = density(y) + 0 * modes, density(grid) + 0 * modes
    found = jaxcp.conformal_bayes(rows, candidates, 0.3, grid=grid).sets
    assert found.num_pieces() == 2
    assert not found.contains(0.0) and found.contains(-2.02)
    assert_allclose(found.to_numpy()[:2, 0], [-2.15, 1.85], rtol=1e-5)
    short = jaxcp.conformal_bayes(rows, candidates[:, 10:12], 0.3, grid=grid[10:12])
    assert_array_equal(short.sets.hull().to_numpy(), [-np.inf, np.inf])
    one = jaxcp.conformal_bayes(rows, candidates[:, 30:31], 0.3, grid=grid[30:31])
    assert one.sets.is_empty()
    falls = jax.jit(lambda g: jaxcp.conformal_bayes(rows, candidates, 0.3, grid=g))
    whole = falls(jnp.asarray(-grid)).sets.hull()
    assert_array_equal(whole.to_numpy(), [-np.inf, np.inf])


def test_many_test_points_are_a_loop(dtype):
    """By draws first, in blocks of candidates."""
    rng = np.random.default_rng(1)
    candidates = rng.normal(size=(300, 40, 50)).astype(dtype)  # more than a block
    found = jaxcp.conformal_bayes(ROWS, candidates, 0.2, grid=np.arange(50.0))
    for i in (0, 17, 39):
        one = jaxcp.conformal_bayes(ROWS, candidates[:, i], 0.2, grid=np.arange(50.0))
        same(cut(found, i), one, rtol=1e-5)
    assert found.sets.size().shape == (40,)
    each = jax.vmap(lambda c: jaxcp.conformal_bayes(ROWS, c, 0.2), in_axes=1)
    assert_array_equal(each(jnp.asarray(candidates)).p_values, found.p_values)


def test_composes():
    rows, candidates = jnp.asarray(ROWS), jnp.asarray(CANDIDATES)
    run = lambda a: jaxcp.conformal_bayes(rows, candidates, a, grid=GRID)  # noqa: E731
    alphas = jnp.array([0.1, 0.2, 0.3])
    for found, alpha in zip(jax.vmap(run)(alphas).sets, (0.1, 0.2, 0.3), strict=True):
        assert_array_equal(found.to_numpy(), run(alpha).sets.to_numpy())
    assert_array_equal(jax.jit(run)(0.2).p_values, run(0.2).p_values)

    def total(rows, candidates, grid):
        found = jaxcp.conformal_bayes(rows, candidates, 0.2, grid=grid)
        sizes = jnp.sum(found.effective_sizes) + found.sets.size()
        return jnp.sum(found.p_values) + sizes

    wild = candidates.at[:, 0].set(-jnp.inf).at[0, 1].set(-jnp.inf).at[:, 2].add(-300)
    slopes = jax.grad(total, argnums=(0, 1, 2))(rows * 50, wild, jnp.asarray(GRID))
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert_array_equal(slopes[0], 0)  # p-values are steps
    assert np.abs(slopes[1][:, 1]).max() > 0 and not slopes[1][:, 0].any()


def test_traced_values_that_are_no_densities_keep():
    run = jax.jit(lambda r, c: jaxcp.conformal_bayes(r, c, 0.2).p_values)
    rows, candidates = jnp.asarray(ROWS), jnp.asarray(CANDIDATES)
    plain = run(rows, candidates)
    for value in (jnp.nan, jnp.inf):
        with_row = run(rows.at[3, 5].set(value), candidates)
        assert jnp.all(with_row >= plain)
        with_candidate = run(rows, candidates.at[3, 5].set(value))
        assert with_candidate[5] == 1
        assert_array_equal(jnp.delete(with_candidate, 5), jnp.delete(plain, 5))


def test_coverage_of_a_model_that_is_wrong(key):
    """N(theta, 1) with a standard normal prior, for data of N(1, 4): k / (n + 1)."""
    n, num_draws, num_trials = 9, 300, 4000

    def trial(key):
        key_y, key_draws = jax.random.split(key)
        y = 1 + 2 * jax.random.normal(key_y, (n + 1,))
        draws = jax.random.normal(key_draws, (num_draws, 1)) / (n + 1) ** 0.5
        theta = jnp.sum(y[:n]) / (n + 1) + draws
        logs = norm.logpdf(y[None], theta)
        found = jaxcp.conformal_bayes(logs[:, :n], logs[:, n:], 0.2)
        return found.sets.mask[0]

    covered = jax.jit(jax.vmap(trial))(jax.random.split(key, num_trials))
    error = (0.8 * 0.2 / num_trials) ** 0.5
    assert abs(jnp.mean(covered) - 0.8) < 4 * error


test_wrong_calls = refuses(
    {
        "complex": (
            lambda: jaxcp.conformal_bayes(ROWS + 0j, CANDIDATES, 0.2),
            "log_likelihoods as real numbers, got complex",
        ),
        "candidates of one draw": (
            lambda: jaxcp.conformal_bayes(ROWS, CANDIDATES[0], 0.2),
            r"shape \(t, g\) or \(t, m, g\), got \(12,\)",
        ),
        "infinite": (
            lambda: jaxcp.conformal_bayes(ROWS, CANDIDATES + np.inf, 0.2),
            r"candidate_log_likelihoods below infinity, .* got inf at \(0, 0\)",
        ),
        "a grid of another length": (
            lambda: jaxcp.conformal_bayes(ROWS, CANDIDATES, 0.2, grid=GRID[:5]),
            r"grid of shape \(12,\), got \(5,\)",
        ),
        "a grid that falls": (
            lambda: jaxcp.conformal_bayes(ROWS, CANDIDATES, 0.2, grid=-GRID),
            r"grid in increasing order, got 2.4.* at 1; numpy.unique",
        ),
        "an infinite grid": (
            lambda: jaxcp.conformal_bayes(
                ROWS, CANDIDATES, 0.2, grid=np.append(GRID[:-1], np.inf)
            ),
            "grid of finite values, got inf at 11",
        ),
    }
)


def test_sets_are_of_the_library():
    found = jaxcp.conformal_bayes(ROWS, CANDIDATES, 0.2)
    assert isinstance(found.sets, sets.LabelSet)
    names = found.sets.named(list("abcdefghijkl")).labels()
    assert names == ["e", "f", "g", "h", "i"]
