"""The exact union of full conformal prediction, against refits at every candidate."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import learners, scores
from jaxcp.full.residuals import exact_union
from jaxcp.quantiles.levels import conformal_rank
from jaxcp.sets.unions import joined

GOLDEN = Path(__file__).parents[1] / "reference/distributional/full_ridge.npz"
POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
KEY = jax.random.key(0)
ROWS = 8  # of the largest random design; smaller ones are padded
ZERO = 1e-9

union = jax.jit(exact_union)
unions = jax.jit(jax.vmap(exact_union))


def augmented(x, y, x_new, penalty):
    """Residuals of all n + 1 rows as e = start + slope * y_new, and what rests."""
    rows = np.vstack([x, x_new])
    gram = rows.T @ rows + penalty * np.eye(rows.shape[1])
    hat = rows @ np.linalg.pinv(gram, rcond=1e-10) @ rows.T
    left = np.eye(len(rows)) - hat
    return left[:, :-1] @ y, left[:, -1], np.diag(left)


def arguments(x, y, x_new, penalty, power):
    """What `exact_union` takes: center, spread, residuals, shares, rho."""
    start, slope, rest = augmented(x, y, x_new, penalty)
    if rest[-1] < ZERO:
        return 0.0, np.inf, *np.zeros((3, len(y)))
    spread = 1 / rest[-1]
    center = -start[-1] * spread
    tied = rest[:-1] < ZERO
    residuals, shares = start[:-1] + slope[:-1] * center, -slope[:-1] * spread
    parts = residuals, shares, (spread * rest[:-1]) ** power
    return center, spread, *(np.where(tied, 0, part) for part in parts)


def candidates(x, y, x_new, penalty, power):
    """Returns where rows may begin or stop to keep, and targets between these."""
    start, slope, rest = augmented(x, y, x_new, penalty)
    scale = np.maximum(rest, ZERO) ** -power
    start, slope = start * scale, slope * scale
    sums, gaps = (np.stack([v[:-1] - v[-1], v[:-1] + v[-1]]) for v in (start, slope))
    steep = abs(gaps) > ZERO
    roots = np.sort(-sums[steep] / gaps[steep])
    beyond = np.r_[roots[:1] - 1, roots, roots[-1:] + 1] if len(roots) else np.zeros(2)
    wide = np.diff(beyond) > 1e-5
    return roots, ((beyond[:-1] + beyond[1:]) / 2)[wide]


def inside(x, y, x_new, penalty, power, rank, weights, test_weight, y_new):
    """Returns which targets are in the set, by the definition."""
    start, slope, rest = augmented(x, y, x_new, penalty)
    if rest[-1] < ZERO:
        return np.ones(len(y_new), bool)
    scores = abs(start[:, None] + slope[:, None] * y_new)
    scores = scores * np.maximum(rest, ZERO)[:, None] ** -power
    slack = 1e-8 * (1 + abs(y_new))
    tied = rest[:-1, None] < ZERO
    kept = tied | (scores[:-1] >= scores[-1] - slack * np.maximum(rest[-1], ZERO))
    if weights is None:
        return np.sum(~kept, axis=0) < rank
    total = int(weights.sum()) + test_weight
    won = (kept * weights[:, None]).sum(axis=0) + test_weight
    return np.array([int(v) > rank * total for v in won])


def distance(point, lower, upper):
    """Returns how far a target is from a union."""
    return np.min(np.maximum(0, np.maximum(lower - point, point - upper)))


def designs(count, rng):
    """Yields small designs with ties, repeated rows, zeros and extreme test points."""
    for i in range(count):
        n, p = rng.integers(1, ROWS + 1), rng.integers(1, 3 if i % 4 else ROWS + 1)
        if i % 3:
            x, y = rng.normal(size=(n, p)), rng.standard_t(3, n)
        else:
            x, y = rng.integers(-2, 3, (n, p)) * 1.0, rng.integers(-3, 4, n) * 1.0
        x_new = x[0] * 2 if i % 7 == 0 else rng.normal(size=p) * rng.choice([1, 3, 30])
        if i % 5 == 0:
            x[:, 0], x_new[0] = 1, 1
        penalty = rng.choice([0.0, 0.5, 2.0])
        yield (
            x,
            y,
            x_new,
            penalty,
            rng.integers(2),
            Fraction(rng.choice([1, 2, 3, 5]), 10),
        )


def padded(values, fill):
    return np.r_[values, np.full(ROWS - len(values), fill)]


def check(design, ends, rank, weights=None, test_weight=1):
    """Asserts that a union agrees with refits between and at its breakpoints."""
    lower, upper = ends
    roots, between = candidates(*design)
    known = rank, weights, test_weight
    found = [np.any((lower <= v) & (v <= upper)) for v in between]
    assert_array_equal(found, inside(*design, *known, between), str(design))
    for root in roots[inside(*design, *known, roots)]:
        assert distance(root, lower, upper) < 1e-6 * (1 + abs(root))
    assert np.all(lower[1:] >= upper[:-1])  # in order; empty ones come last
    empty = lower > upper
    assert np.all(lower[empty] == np.inf) and np.all(upper[empty] == -np.inf)
    assert np.all(lower[1:][~empty[1:]] > upper[:-1][~empty[1:]])  # they do not meet


def stacked(rows):
    return [jnp.asarray(np.stack(column)) for column in zip(*rows, strict=True)]


def test_random_designs_agree_with_refits():
    """Also where rows are masked: these are NaN here, and no rows of the refits."""
    cases, rows = [], []
    for x, y, x_new, penalty, power, alpha in designs(400, np.random.default_rng(0)):
        design = x, y, x_new, penalty, power
        rank = int(conformal_rank(len(y), alpha))
        center, spread, *parts = arguments(*design)
        parts = [padded(part, np.nan) for part in parts]
        counts = padded(np.ones(len(y), bool), False).astype(bool)
        rows.append((center, spread, *parts, rank, counts))
        cases.append((design, rank))
    with jax.enable_x64(True):
        lower, upper = map(np.asarray, jax.tree.leaves(unions(*stacked(rows))))
    for i, (design, rank) in enumerate(cases):
        check(design, (lower[i], upper[i]), rank)
    pieces = np.sum(lower <= upper, axis=1)
    assert np.any(pieces > 2) and np.all(pieces <= ROWS + 1) and np.all(pieces > 0)


def test_weights_decide_as_p_values_do():
    cases, rows = [], []
    rng = np.random.default_rng(1)
    for x, y, x_new, penalty, power, alpha in designs(200, rng):
        design = x, y, x_new, penalty, power
        weights, test_weight = rng.integers(0, 4, len(y)) * 1.0, int(rng.integers(1, 3))
        center, spread, *parts = arguments(*design)
        parts = [padded(part, 0) for part in parts]
        level = float(alpha), None, padded(weights, 0), float(test_weight)
        rows.append((center, spread, *parts, *(v for v in level if v is not None)))
        cases.append((design, alpha, weights, test_weight))
    with jax.enable_x64(True):
        weighted = jax.jit(jax.vmap(lambda *v: exact_union(*v[:6], None, *v[6:])))
        lower, upper = map(np.asarray, jax.tree.leaves(weighted(*stacked(rows))))
    for i, (design, *known) in enumerate(cases):
        check(design, (lower[i], upper[i]), *known)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_golden_vectors(dtype):
    exact = {"rtol": 1e-9, "atol": 1e-9}
    close = exact if dtype == "float64" else {"rtol": 2e-4, "atol": 1e-4}
    with np.load(GOLDEN) as file, jax.enable_x64(dtype == "float64"):
        for case in ("low", "lever"):
            known = {k.split("__")[1]: v for k, v in file.items() if case in k}
            x, y, alphas = known["x"], known["y"], known["alphas"]
            if known["intercept"]:
                continue
            ranks = jnp.stack([conformal_rank(len(y), float(a)) for a in alphas])
            each = jax.jit(
                jax.vmap(jax.vmap(exact_union, (*[None] * 5, 0)), (0,) * 5 + (None,))
            )
            for name, power in POWERS.items():
                given = [
                    arguments(x, y, v, known["penalty"], power) for v in known["x_new"]
                ]
                sets = each(*(v.astype(dtype) for v in stacked(given)), ranks)
                want = known[f"{name}_union"]
                found, count = sets.to_numpy(), want.shape[2]
                assert_allclose(found[:, :, :count], want, **close)
                assert np.all(found[:, :, count:] == [np.inf, -np.inf])


def ends(*args):
    """Returns the pieces of one union as pairs."""
    args = [jnp.asarray(v, float) if i < 5 else v for i, v in enumerate(args)]
    found = union(*args)
    return [tuple(v) for v in found.to_numpy().tolist() if v[0] <= v[1]]


WHOLE = [(-np.inf, np.inf)]


@pytest.mark.parametrize(
    ("rows", "rank", "pieces"),
    [
        (([], [], []), 1, WHOLE),  # no rows
        (([1.0], [0.0], [1.0]), 2, WHOLE),  # a rank beyond them
        (([1.0], [0.0], [1.0]), 1, [(8.0, 12.0)]),
        (([0.0], [0.5], [1.0]), 1, [(10.0, 10.0)]),  # one point
        (([0.0], [2.0], [1.0]), 1, WHOLE),  # ties at 0, and beyond nothing is lost
        (([0.0], [1.0], [1.0]), 1, WHOLE),  # ties everywhere
        (([3.0], [0.0], [0.0]), 1, WHOLE),  # infinite scores
        (([3.0], [2.0], [1.0]), 1, [(-np.inf, 12.0), (16.0, np.inf)]),
        (([-3.0], [2.0], [1.0]), 1, [(-np.inf, 4.0), (8.0, np.inf)]),
        (([2.0], [1.0], [1.0]), 1, [(-np.inf, 12.0)]),  # a half line
        (([2.0], [-1.0], [1.0]), 1, [(8.0, np.inf)]),
        (([np.nan], [0.0], [1.0]), 1, WHOLE),
        (([1.0], [np.nan], [1.0]), 1, WHOLE),
        # A point where one row begins to keep before another stops.
        (([1.0, 9.0, 9.0], [0.0, 8.0, 4.0], [1.0, 1.0, 5.0]), 1, [(8.0, 12.0)]),
        (
            ([3.0, 9.0], [2.0, 2.0], [1.0, 1.0]),
            1,
            [(-np.inf, 12.0), (16.0, 16.0), (28.0, np.inf)],
        ),
    ],
)
def test_pieces_by_hand(rows, rank, pieces):
    assert ends(10.0, 2.0, *rows, rank) == pieces


@pytest.mark.parametrize(
    "center, spread", [(np.nan, 2.0), (1.0, np.nan), (1.0, np.inf)]
)
def test_nothing_known_is_the_whole_line(center, spread):
    assert ends(center, spread, [1.0, 2.0], [0.0, 0.0], [1.0, 1.0], 1) == WHOLE


def test_n_plus_one_pieces_are_reached():
    """Each row has a hole of its own, away from those of others."""
    n = np.arange(8)
    residuals = 10.0 ** (n % 4) * np.where(n < 4, 1, -1)
    found = ends(0.0, 1.0, residuals, np.full(8, 4.0), np.full(8, 1.0), 1)
    assert len(found) == 9
    assert len(ends(0.0, 1.0, residuals, np.full(8, 4.0), np.full(8, 1.0), 2)) == 1


def test_mapped_and_with_slopes():
    """Ends move with the root that they are: center + spread r / (v +- rho)."""
    args = [jnp.float32(10.0), jnp.float32(2.0)]
    args += [jnp.array([3.0, -1.0]), jnp.array([2.0, 0.5]), jnp.array([1.0, 1.0])]
    batch = [jnp.stack([v, v]) for v in args]
    for rank, found in ((1, [[10 - 2 / 1.5, 12]]), (3, WHOLE)):
        one = union(*args, rank).to_numpy()
        assert_allclose(one[:1], found)
        assert_array_equal(unions(*batch, jnp.full(2, rank)).to_numpy(), [one, one])

    def width(args, rank):
        found = exact_union(*args, rank)
        lower, upper = (
            jnp.where(jnp.isfinite(v), v, 0) for v in (found.lower, found.upper)
        )
        return jnp.sum(upper - lower)

    slopes = jax.jit(jax.grad(width))
    found = slopes(args, 1)
    assert_allclose(found[1], 1 + 2 / 3, rtol=1e-6)
    assert_allclose(found[2], [2 / 3, -2 / 1.5], rtol=1e-6)
    assert_allclose(found[3], [-2 / 3, -2 / 1.5**2], rtol=1e-6)
    assert not any(np.any(v) for v in slopes(args, 3))


@pytest.mark.parametrize("residuals", ["ordinary", "deleted"])
def test_sets_hold_what_p_values_do_to_the_float(residuals):
    """At the ends of pieces, and at their neighbors."""
    rng = np.random.default_rng(0)
    x, x_new = rng.normal(size=(12, 1)), 4 * rng.normal(size=(40, 1))
    y = x[:, 0] + rng.standard_t(2, 12)
    fit = KEY, learners.Ridge(0.1, intercept=False), scores.Absolute(), x, y
    cp = jaxcp.full_conformal(*fit, residuals=residuals)
    sets = cp(x_new, 0.3, union=True)
    assert np.any(sets.num_pieces() > 1) == (residuals == "ordinary")
    ends = sets.to_numpy().reshape(40, -1)
    near = np.stack([np.nextafter(ends, -np.inf), ends, np.nextafter(ends, np.inf)])
    near = np.where(np.isfinite(near), near, 0).reshape(3, 40, -1)
    for target in np.moveaxis(near, 2, 0).reshape(-1, 40):
        inside = np.asarray(cp.p_values(x_new, target)) > 0.3
        assert_array_equal(sets.contains(target), inside)


@pytest.mark.parametrize(
    ("lower", "upper", "pieces"),
    [
        ([0, 1, 5, 3, 4, 9], [1, 2, 4, 4, 4, 8], [(0, 2), (3, 4)]),
        (
            [-np.inf, -1, 0, 3],
            [-2, -2, 2, np.inf],
            [(-np.inf, -2), (0, 2), (3, np.inf)],
        ),
        ([-np.inf, 0], [0, np.inf], WHOLE),
        ([0, 1, 2], [9, 3, 4], [(0, 9)]),  # nested
        ([1, 1], [1, 1], [(1, 1)]),
        ([0, 3], [-1, 2], []),
        ([0, 3, 5], [np.nan, 2, 6], WHOLE),
        ([-np.inf, np.inf], [-np.inf, np.inf], []),
        ([], [], []),
    ],
)
def test_pieces_that_touch_are_joined(lower, upper, pieces):
    lower, upper = jnp.array(lower, float), jnp.array(upper, float)
    sets = jax.jit(joined)(lower, upper)
    assert sets.lower.shape == lower.shape
    found = sets.to_numpy().tolist()
    assert [tuple(v) for v in found[: len(pieces)]] == pieces
    assert all(v == [np.inf, -np.inf] for v in found[len(pieces) :])


def test_joined_pieces_have_slopes():
    ends = jnp.array([[0.0, 1.0, 5.0]]), jnp.array([[1.0, 2.0, 6.0]])
    size = jax.jit(lambda *ends: jax.vmap(joined)(*ends).size()[0])
    lower, upper = jax.grad(size, argnums=(0, 1))(*ends)
    assert_array_equal(lower, [[-1, 0, -1]])
    assert_array_equal(upper, [[0, 1, 1]])
