"""Linear quantile regression by pivots: the vertex that minimizes, and not near it.

    min_g sum_i rho(S_i - g'phi_i) - U g'phi,  rho(r) = (1 - alpha) r^+ + alpha r^-

At a vertex p rows, the basis, have residual 0; every other row has its dual eta_i at a
bound, 1 - alpha above the fit and -alpha below. A pivot moves along the edge of a basic
row whose dual is out of bounds, to a row that it meets. What is kept of a row is the
bound of its dual, never the sign of its residual: ties would cycle. At the start the
basis is p rows that do not exist, with bounds [0, 0]: features may be dependent, and
rows of zeros change nothing. An infinite score is one that is large beyond all others.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._numbers import just_below, varying_like
from jaxcp.quantiles._keys import from_keys, to_keys

_dot = partial(jnp.matmul, precision="highest")
_PIVOTS = 20  # in a round, after which the rounding of what they update is undone
_ROUNDS = 20  # at most, and one more for each feature


class Vertex(NamedTuple):
    """A basis, and for each other row the bound that its dual is at."""

    inverse: Array  # of the features of basic rows, (p, p)
    basis: Array  # (p,), -1 for rows that do not exist
    side: Array  # (n + 1,): 1 where the dual is at 1 - alpha, -1 at -alpha, 0 if basic


class Fit(NamedTuple):
    """The vertex at a level, and how features are read."""

    alpha: Array
    whiten: Array  # (p, p)
    kept: Array  # (p,), False where a feature depends on those before it
    vertex: Vertex


class _Problem(NamedTuple):
    scores: Array  # (n + 1,), the last one that of the test point
    features: Array  # (n, p)
    own: Array | None  # (p,), of the last row, None for zeros
    push: Array | None  # (p,), phi that weighs U, None for zeros
    u: Array
    alpha: Array
    whole: Array  # (1 - alpha) sum of all features, rounded, (p,)
    rest: Array  # what it is more than that, (p,)
    largest: Array  # feature, at least 1, shape ()

    def at(self, rows: Array) -> Array:
        """Returns the features of rows (...,); zeros for -1."""
        n, p = self.features.shape
        found = jnp.zeros((*rows.shape, p), self.features.dtype)
        if n:
            found = jnp.take(self.features, rows, axis=0, mode="clip")
        rows = rows[..., None]
        own = 0 if self.own is None else self.own
        return jnp.where(rows < 0, 0, jnp.where(rows == n, own, found))

    def times(self, d: Array) -> Array:
        """Returns phi_i'd of all rows."""
        fits = _dot(self.features, d)
        if self.own is None:
            return jnp.pad(fits, (0, 1))
        return jnp.append(fits, _dot(self.own, d))

    def sum(self, counts: Array) -> Array:
        """Returns the sum of features, each as often as it counts."""
        total = _dot(counts[:-1], self.features)
        return total if self.own is None else total + counts[-1] * self.own

    def basic(self, basis: Array) -> tuple[Array, Array]:
        """Returns features and scores of basic rows, of the identity at -1."""
        values = jnp.take(self.scores, basis, mode="clip")
        rows = self.at(basis) + jnp.diag(jnp.where(basis < 0, 1.0, 0.0))
        return rows, jnp.where(basis < 0, 0, values)


def _problem(
    scores: Array,
    features: Array,
    alpha: Array,
    u: Array | None = None,
    *,
    own: Array | None = None,
    push: Array | None = None,
) -> _Problem:
    """Returns the problem of these rows, with the sum of their features."""
    u = jnp.zeros_like(alpha) if u is None else u
    total = _dot(jnp.ones(len(features), scores.dtype), features)
    total = total if own is None else total + own
    whole = jnp.round((1 - alpha) * total)  # counts of flags stay exact
    rest = (total - whole) - alpha * total
    largest = jnp.max(jnp.abs(features), initial=1)
    return _Problem(scores, features, own, push, u, alpha, whole, rest, largest)


class _Walk(NamedTuple):
    vertex: Vertex
    rows: Array  # features of the basis, zeros at -1, (p, p)
    r: Array  # residuals, (n + 1,)
    below: Array  # sum of the features of rows below, less the whole number, (p,)


class _Edge(NamedTuple):
    """Duals of the basis, (p,), and the row that is to leave it."""

    duals: Array
    leaves: Array  # one of the basis, where the dual is worst, (p,)
    excess: Array  # by how much it is out of bounds, shape ()
    rises: Array  # whether it is too high


class _Round(NamedTuple):
    """A walk with less rounding at its start, and as many pivots as do no harm."""

    walk: _Walk
    edge: _Edge
    endless: Array  # whether the edge has no end, shape ()
    pivots: Array  # how many


class _Solution(NamedTuple):
    vertex: Vertex
    duals: Array  # of the basis, (p,)
    endless: Array  # whether the objective falls without end, shape ()
    goes_on: Array  # whether there was no end to the search
    rounds: Array  # how many


def fit(scores: Array, features: Array, alpha: Array) -> Fit:
    """Returns the vertex of rows (n,) and (n, p), without a test point."""
    scores, features = lax.stop_gradient((scores, features))
    alpha, p = jnp.asarray(alpha, scores.dtype), features.shape[1]
    whiten, kept = whitening(features)
    values = jnp.append(_bounded(scores), 0)
    problem = _problem(values, _read(features, whiten, kept), alpha)
    vertex = Vertex(
        inverse=jnp.eye(p, dtype=scores.dtype),
        basis=jnp.full(p, -1),
        side=_side(problem.scores > 0),
    )
    return Fit(alpha, whiten, kept, _solve(problem, vertex, long=True).vertex)


def coefficients(
    scores: Array, features: Array, level: Array, *, below: bool = True
) -> Array:
    """Returns g of the regression at a level, shape (p,), 0 for what rows do not know.

    The left limit in the level, if `below`: the order of rows does not matter then, but
    of n rows in single precision it is the solution at a level that is 1e-4 less.
    """
    fitted = fit(scores, features, 1 - level + below * 3 * _tolerance(scores))
    at = lambda phi: _value(scores, features, fitted, fitted.vertex, phi)[0]  # noqa: E731
    return jax.vmap(at)(jnp.eye(features.shape[1], dtype=scores.dtype))


def threshold(
    scores: Array,
    features: Array,
    fitted: Fit,
    phi: Array,
    u: Array | None = None,
    *,
    projects: bool = True,
) -> Array:
    """Returns the threshold at phi, for U = 1 - alpha or u - alpha, shape ().

    It is phi'g, the left limit in U, without `u` rounded outwards. With `u` it is the
    largest score whose dual of least norm is below U: phi'g or the next float below,
    where rows tie moved by the error of phi'g.
    +inf for features of zeros, and where too many pivots do not end. Unless it projects
    NaN where rows may tie.
    """
    left = (1 if u is None else u) - fitted.alpha
    known = lax.stop_gradient((scores, features, phi))
    problem, vertex = _with_test_point(*known, fitted, 0, left)
    vertex, duals, endless, goes_on, _ = _solve(problem, vertex)
    unbounded = jnp.isinf(scores)
    finite = jnp.where(unbounded, 0, scores)
    q, w, errors = _value(finite, features, fitted, vertex, phi)
    error = jnp.where(_is_unit(w), 0, _dot(jnp.abs(w), errors))
    if u is None:
        shift = error
    else:
        eta, ties = _dual_at_threshold(problem, vertex, duals, errors, w, projects)
        error = jnp.where(ties, error, 0)
        # The left limit in U, as of phi'g: where they are equal but for rounding it is
        # not below.
        is_in = eta < left - 3 * _tolerance(problem.scores)
        shift = jnp.where(is_in, error, jnp.minimum(just_below(q) - q, -error))
    q += lax.stop_gradient(shift)
    found = jnp.append(jnp.where(unbounded, jnp.sign(scores), 0), 0)[vertex.basis]
    large = jnp.sum(lax.stop_gradient(found) * w)
    q = jnp.where(jnp.abs(large) > _near(phi), jnp.sign(large) * jnp.inf, q)
    # Along an edge without an end, and where rows know nothing, phi'g follows U.
    endless |= jnp.any((vertex.basis < 0) & (jnp.abs(w) > _near(phi)))
    q = jnp.where(endless, jnp.where(left > 0, jnp.inf, -jnp.inf), q)
    is_done = ~goes_on
    q = jnp.where(is_done & jnp.any(phi != 0) & ~jnp.isnan(q), q, jnp.inf)
    if u is None or projects:
        return q
    return jnp.where(jnp.isnan(eta) & jnp.isfinite(q), jnp.nan, q)


def dual(
    scores: Array,
    features: Array,
    fitted: Fit,
    phi: Array,
    score: Array,
    *,
    projects: bool = True,
) -> Array:
    """Returns the dual of a test point with this score, in [-alpha, 1 - alpha].

    That of least norm where rows tie; unless it projects NaN where they may. 0 for
    features of zeros, and where too many pivots do not end.
    """
    known = lax.stop_gradient((scores, features, phi, fitted, score))
    problem, vertex = _with_test_point(*known)
    solution = _solve(problem, vertex)
    walk = _start(problem, solution.vertex)
    eta, (_, basis, side) = _edge(problem, walk).duals, walk.vertex
    bound = jnp.where(side[-1] > 0, 1 - fitted.alpha, -fitted.alpha)
    is_basic = side[-1] == 0
    basic = jnp.sum(jnp.where(basis == len(features), eta, 0))
    found = jnp.where(is_basic, basic, bound)
    errors = _errors(problem, walk.vertex, *known[1:3], fitted.whiten)
    off = jnp.where(is_basic, _nearest(problem, side, walk.r), jnp.abs(walk.r[-1]))
    ties = off <= jnp.max(errors)
    found = _least_norm(problem, walk.vertex, errors, found, found, ties, projects)
    is_done = ~solution.goes_on
    return jnp.where(is_done & jnp.any(phi != 0), found, 0)


def _dual_at_threshold(
    problem: _Problem,
    vertex: Vertex,
    eta: Array,
    errors: Array,
    w: Array,
    projects: bool,
) -> tuple[Array, Array]:
    """Returns the dual of least norm of a test point whose score is phi'g = w'S_B.

    And whether calibration rows tie there.
    """
    level = problem.u
    # If no other row ties: with the dual e of the test point the basis has those of
    # U = e, eta + (U - e) w, and |eta + (U - e) w|^2 + e^2 is least at this e.
    square = _dot(w, w)
    alone = (_dot(w, eta) + level * square) / (1 + square)
    basic, values = problem.basic(vertex.basis)
    _, g = _interpolated(basic, values, vertex.inverse)
    off = _nearest(problem, vertex.side, problem.scores - problem.times(g))
    ties = off <= jnp.max(errors)
    eta = _least_norm(problem, vertex, errors, level, alone, ties, projects)
    return eta, ties


def _nearest(problem: _Problem, side: Array, r: Array) -> Array:
    """Returns the least |r_i| of calibration rows off the basis, shape ()."""
    counts = (side[:-1] != 0) & jnp.any(problem.features != 0, 1)
    return jnp.min(jnp.where(counts, jnp.abs(r[:-1]), jnp.inf), initial=jnp.inf)


def _least_norm(
    problem: _Problem,
    vertex: Vertex,
    errors: Array,
    eta_new: Array,
    otherwise: Array,
    ties: Array,
    projects: bool,
) -> Array:
    """Returns the last row's dual of least norm if rows tie, or `otherwise`.

    Duals are optimal iff sum eta_i phi_i = 0 and rows off the plane have the bound of
    their side, as those of the vertex have, with `eta_new`. Of rows on the plane those
    of least norm are eta_i = clip(phi_i'v, -alpha, 1 - alpha) for some v, a multiplier.
    """
    if not projects:
        return jnp.where(ties, jnp.nan, otherwise)

    def project(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # Without a barrier XLA does before the loop what does not change in it.
        _, rows, at, room = lax.optimization_barrier((carry, problem, vertex, errors))
        return _on_face(rows, at, room, eta_new, otherwise), jnp.array(False)

    # One step or none: of a batch without ties none, under vmap too.
    start = varying_like((otherwise, ties), problem)
    return lax.while_loop(lambda carry: carry[1], project, start)[0]


def _on_face(
    problem: _Problem,
    vertex: Vertex,
    errors: Array,
    eta_new: Array,
    otherwise: Array,
) -> Array:
    """Returns the last row's dual of least norm, or `otherwise` off the plane."""
    walk, n = _start(problem, vertex), len(problem.features)
    (inverse, basis, side), low, high = walk.vertex, -problem.alpha, 1 - problem.alpha
    basic, values = problem.basic(basis)
    inverse, g = _interpolated(basic, values, inverse)
    own = cast(Array, problem.own if problem.push is None else problem.push)
    rows = jnp.concatenate([problem.features, own[None]])
    w, fits = _dot(rows, inverse), _dot(rows, g)
    room = _dot(jnp.abs(w), errors)
    is_unit = _is_unit(w)  # features of a basic row: it ties iff it has its score
    fits = jnp.where(is_unit, _dot(jnp.round(w), values), fits)
    room = jnp.where(is_unit, 0, room)
    tied = (side == 0) | (jnp.abs(problem.scores - fits) <= room)
    if problem.push is not None:  # the last row is at its threshold
        tied = tied.at[n].set(tied[n] | jnp.any(own != 0))
    eta = jnp.where(side > 0, high, low).at[n].set(eta_new)
    at = jnp.where(basis < 0, n + 1, basis)
    eta = eta.at[at].set(_edge(problem, walk).duals, mode="drop")
    v = _projected(rows, tied, eta, problem.alpha)
    return jnp.where(tied[n], jnp.clip(_dot(own, v), low, high), otherwise)


def _projected(rows: Array, tied: Array, duals: Array, alpha: Array) -> Array:
    """Returns v with sum phi_i (clip(phi_i'v, -alpha, 1 - alpha) - eta_i) = 0, (p,).

    The sum is over tied rows. It is the slope of a convex function of v in quadratic
    pieces: Newton's steps, each as long as the function falls, and few of them.
    """
    rows = jnp.where(tied[:, None], rows, 0)
    eps, size = jnp.finfo(rows.dtype).eps, jnp.max(jnp.sum(jnp.abs(rows), 0))

    def excess(fits: Array) -> Array:
        return jnp.clip(fits, -alpha, 1 - alpha) - duals

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        v, slope, count = carry
        fits = _dot(rows, v)
        inner = (fits > -alpha) & (fits < 1 - alpha)
        bend = _dot(rows.T, jnp.where(inner[:, None], rows, 0))
        ridge = eps ** (2 / 3) * size * jnp.eye(len(v), dtype=rows.dtype)
        d = -jnp.linalg.solve(bend + ridge, slope)
        moves = _dot(rows, d)

        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            t = (low + high) / 2
            falls = _dot(moves, excess(fits + t * moves)) < 0
            return jnp.where(falls, t, low), jnp.where(falls, high, t)

        falls = _dot(moves, excess(fits + moves)) <= 0
        low, _ = lax.fori_loop(0, 30, halve, (0 * eps, 1 + 0 * eps))
        v += jnp.where(falls, 1, low) * d
        return v, _dot(excess(_dot(rows, v)), rows), count + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return (jnp.max(jnp.abs(carry[1])) > 4 * eps * size) & (carry[2] < _ROUNDS)

    start = jnp.zeros_like(rows[0]), _dot(excess(0 * duals), rows), jnp.array(0)
    return lax.while_loop(goes_on, step, start)[0]


def _errors(
    problem: _Problem, vertex: Vertex, features: Array, phi: Array, whiten: Array
) -> Array:
    """Returns by how much rounding may move the plane at each basic row, shape (p,).

    At a row with features w'Phi_B it then moves phi'g = w'S_B by |w|' of this.
    """
    basic, values = problem.basic(vertex.basis)
    g = _dot(vertex.inverse, values)
    raw, _ = problem._replace(features=features, own=phi).basic(vertex.basis)
    sizes = _dot(jnp.abs(raw), _dot(jnp.abs(whiten), jnp.abs(g)))
    # Scores on both sides are rounded, by eps, and sums of p products, phi'W, w'Phi_B
    # and phi'g, by up to p eps / 2 of their sizes, which do not add up: of rows of many
    # kinds that tie on paper none came beyond half of this.
    eps = jnp.finfo(values.dtype).eps
    rounded = eps * (2 * jnp.abs(values) + len(g) / 2 * sizes)
    return rounded + jnp.abs(values - _dot(basic, g))  # what the fit leaves there


def _is_unit(w: Array) -> Array:
    """Returns whether features are those of one basic row, shape w.shape[:-1]."""
    counts = jnp.round(w)
    near = jnp.max(jnp.abs(w - counts), -1) <= _near(w.T)
    return near & (jnp.sum(jnp.abs(counts), -1) == 1)


def _with_test_point(
    scores: Array,
    features: Array,
    phi: Array,
    fitted: Fit,
    score: Array | float,
    u: Array | None = None,
) -> tuple[_Problem, Vertex]:
    """Returns the problem with one more row: of this score, or that weighs u alone."""
    alpha, whiten, kept, (inverse, basis, side) = fitted
    own = _read(phi, whiten, kept)
    rows = _bounded(jnp.append(scores, score)), _read(features, whiten, kept)
    is_above = jnp.array(False)
    if u is None:
        problem = _problem(*rows, alpha, own=own)
        fit = _dot(own, _dot(inverse, problem.basic(basis)[1]))
        is_above = problem.scores[-1] > fit
    else:
        problem = _problem(*rows, alpha, u, push=own)
    side = jnp.append(_resized(side[:-1], len(scores)), _side(is_above))
    return problem, Vertex(inverse, basis, side)


def _value(
    scores: Array, features: Array, fitted: Fit, vertex: Vertex, phi: Array
) -> tuple[Array, Array, Array]:
    """Returns phi'g at a vertex, linear in scores of its basis, shares, and errors."""
    alpha, whiten, kept, _ = fitted
    inverse, basis, _ = vertex
    values = jnp.append(scores, 0)
    problem = _problem(values, _read(features, whiten, kept), alpha)
    known = lax.stop_gradient((problem, vertex, features, phi, whiten))
    phi, (basic, values) = _read(phi, whiten, kept), problem.basic(basis)
    w, g = lax.stop_gradient((_dot(phi, inverse), _dot(inverse, values)))
    w += lax.stop_gradient(_dot(phi - _dot(w, basic), inverse))
    whole = jnp.round(w)  # a test point like a basic row has its score, to the last bit
    is_whole = jnp.all(jnp.abs(w - whole) <= _near(phi)) & jnp.any(whole != 0)
    w = jnp.where(is_whole, whole, w)
    moving = _dot(phi - _dot(w, basic), g)  # d(phi'g) = w'(dS - dPhi g) + dphi'g
    q = _dot(w, values) + (moving - lax.stop_gradient(moving))
    return q, w, _errors(*known)


def _solve(problem: _Problem, vertex: Vertex, long: bool = False) -> _Solution:
    """Returns the vertex where all duals are in bounds.

    Or one from where an edge is endless: the objective falls without end.
    """
    tol = _tolerance(problem.scores)

    def goes_on(state: _Round) -> Array:
        return ~state.endless & (state.edge.excess > tol)

    def step(state: _Round) -> _Round:
        walk, is_ray = _pivot(problem, state.walk, state.edge, long)
        walk = jax.tree.map(partial(jnp.where, is_ray), state.walk, walk)
        return _Round(walk, _edge(problem, walk), is_ray, state.pivots + 1)

    def improve(found: _Solution) -> _Solution:
        walk = _start(problem, found.vertex)
        start = _Round(walk, _edge(problem, walk), found.endless, jnp.array(0))
        more = lambda state: goes_on(state) & (state.pivots < _PIVOTS)  # noqa: E731
        last = lax.while_loop(more, step, start)
        return _Solution(
            vertex=last.walk.vertex,
            duals=last.edge.duals,
            endless=last.endless,
            goes_on=goes_on(last),
            rounds=found.rounds + 1,
        )

    start = _Solution(
        vertex=vertex,
        duals=jnp.zeros_like(problem.rest),
        endless=jnp.array(False),
        goes_on=jnp.array(True),
        rounds=jnp.array(0),
    )
    most = _ROUNDS + len(problem.rest)
    more = lambda found: found.goes_on & (found.rounds < most)  # noqa: E731
    return lax.while_loop(more, improve, varying_like(start, problem))


def _start(problem: _Problem, vertex: Vertex) -> _Walk:
    """Returns the residuals and sums at a vertex, its inverse with less rounding."""
    inverse, basis, side = vertex
    basic, values = problem.basic(basis)
    inverse, g = _interpolated(basic, values, inverse)
    below = problem.sum((side < 0).astype(values.dtype)) - problem.whole
    return _Walk(
        vertex=Vertex(inverse, basis, side),
        rows=jnp.where(basis[:, None] < 0, 0, basic),
        r=jnp.where(side == 0, 0, problem.scores - problem.times(g)),
        below=below,
    )


def _interpolated(basic: Array, values: Array, inverse: Array) -> tuple[Array, Array]:
    """Returns the inverse with less rounding, and g of the plane through the basis."""
    inverse = 2 * inverse - _dot(inverse, _dot(basic, inverse))  # Newton's step
    g = _dot(inverse, values)
    return inverse, g + _dot(inverse, values - _dot(basic, g))


def _edge(problem: _Problem, walk: _Walk) -> _Edge:
    """Returns the duals of the basis, and which is worst.

    eta_B = -Phi_B^-T c, c = sum of eta_i phi_i off the basis, and U phi.
    """
    inverse, basis, _ = walk.vertex
    real = basis >= 0
    c = problem.rest - walk.below - (1 - problem.alpha) * jnp.sum(walk.rows, 0)
    eta = -_dot(c, inverse)
    if problem.push is not None:
        w = _dot(problem.push, inverse)
        # The left limit in U: duals as they are at a U that is less by next to nothing.
        slack = jnp.where(jnp.abs(w) > 1e-3, 3 * _tolerance(problem.scores), 0)
        eta += slack * jnp.sign(w) - problem.u * w
    high = eta - jnp.where(real, 1 - problem.alpha, 0)
    low = jnp.where(real, -problem.alpha, 0) - eta
    excess = jnp.maximum(high, low)
    leaves = jnp.arange(len(eta)) == jnp.argmax(excess)
    rises = jnp.any(leaves & (high >= low))
    return _Edge(eta, leaves, jnp.max(excess), rises)


def _pivot(
    problem: _Problem, walk: _Walk, edge: _Edge, long: bool
) -> tuple[_Walk, Array]:
    """Returns the walk after one step, beyond rows as long as it pays if `long`.

    And whether the edge has no end.
    """
    inverse, basis, side = walk.vertex
    column = _entry(edge.leaves, inverse)
    d = jnp.where(edge.rises, -column, column)
    a = problem.times(d)
    rounding = 8 * jnp.finfo(a.dtype).eps * jnp.sum(jnp.abs(d)) * problem.largest
    blocks = (jnp.where(side > 0, a, -a) > rounding) & (side != 0)
    t = jnp.where(blocks, jnp.maximum(walk.r / jnp.where(blocks, a, 1), 0), jnp.inf)
    rows = jnp.arange(len(t))
    if long:
        # Each row beyond turns the slope, from -excess, by |a|, also of rows that tie.
        step, e = _reached(t, jnp.where(blocks, jnp.abs(a), 0), edge.excess)
    else:
        step = jnp.min(t)
        e = jnp.min(jnp.where(t == step, rows, len(t) - 1))
    passed = (t == step) & (rows < e)
    leaving, entering = _entry(edge.leaves, walk.rows.T), problem.at(e)
    enters_above = _dot(entering, d) > 0  # as it blocks
    # Of rows below: those passed change sides, `leaving` may come, `entering` goes.
    below = walk.below
    if long:
        passed |= t < step
        below += problem.sum(jnp.where(passed, side, 0).astype(a.dtype))
    below += jnp.where(edge.rises, 0, leaving) - jnp.where(enters_above, 0, entering)
    leaves = rows == _entry(edge.leaves, basis)
    sides = jnp.where(edge.rises, 1, -1)
    stays = (side == 0) | (rows == e)  # or comes: in the basis r is 0
    r = jnp.where(stays, 0, walk.r - step * a)
    r = jnp.where(leaves, sides * step, r)
    side = jnp.where(leaves, sides.astype(side.dtype), jnp.where(passed, -side, side))
    side = jnp.where(rows == e, 0, side)
    y = _dot(entering, inverse)
    column = column / _entry(edge.leaves, y)
    inverse = jnp.where(edge.leaves, column[:, None], inverse - jnp.outer(column, y))
    moved = _Walk(
        vertex=Vertex(inverse, jnp.where(edge.leaves, e, basis), side),
        rows=jnp.where(edge.leaves[:, None], entering, walk.rows),
        r=r,
        below=below,
    )
    return moved, jnp.isinf(step)


def _entry(leaves: Array, values: Array) -> Array:
    """Returns the entry on the last axis that leaves."""
    return jnp.sum(jnp.where(leaves, values, 0), -1)


def _reached(t: Array, turns: Array, excess: Array) -> tuple[Array, Array]:
    """Returns t >= 0 and the row where sums of turns reach the excess.

    Rows are in the order of t, then of their numbers; +inf if all fall short. Sums are
    exact: turns are whole numbers, of units of the total in a leading word, of what
    remains in a following one.
    """
    info, n = jnp.finfo(t.dtype), len(t)
    word = info.nmant - 1
    bits = n.bit_length() if isinstance(n, int) else word  # an export leaves it open
    total = jnp.sum(turns)
    total = lax.reduce_precision(jnp.where(total > 0, total, 1), info.nexp, 0)
    unit, part = total * 0.5**word, 2.0 ** (word - bits)
    leading = jnp.round(turns / unit)
    following = jnp.round((turns / unit - leading) * part)
    words = jnp.stack([leading, following])
    target = jnp.minimum(excess / unit, 2.0 ** (word + 1))
    whole = jnp.floor(target)
    rest = jnp.ceil((target - whole) * part)
    keys, rows = to_keys(t), jnp.arange(n)

    def settle_bit(
        found: tuple[Array, Array], bit: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        key, row = found[0] + bit[0], found[1] + bit[1]
        before = (keys < key) | ((keys == key) & (rows < row))
        first, second = _dot(words, before.astype(t.dtype))
        falls_short = (first - whole) + (second - rest) / part < 0
        key, row = (
            jnp.where(falls_short, new, old)
            for new, old in zip((key, row), found, strict=True)
        )
        return (key, row), None

    powers = 2 ** np.arange(info.bits - 1)[::-1], 2 ** np.arange(bits)[::-1]
    key_bits = jnp.asarray(np.append(powers[0], 0 * powers[1]), keys.dtype)
    row_bits = jnp.asarray(np.append(0 * powers[0], powers[1]), rows.dtype)
    start = varying_like((jnp.zeros((), keys.dtype), jnp.array(0)), (t, turns))
    (key, row), _ = lax.scan(settle_bit, start, (key_bits, row_bits))
    return from_keys(key, t.dtype), jnp.minimum(row, n - 1)


def _bounded(scores):
    """Returns scores with a large number for infinite ones."""
    info = jnp.finfo(scores.dtype)
    largest = jnp.where(jnp.isinf(scores), 0, jnp.abs(scores))
    most = jnp.max(largest, initial=info.tiny**0.5) / info.eps**0.5
    return jnp.clip(scores, -most, most)


def whitening(features):
    """Returns W with orthonormal features W, and which depend on those before them.

    Flags are left as they are: sums of them are counts, without rounding.
    """
    p = features.shape[1]
    sizes, cut = jnp.sqrt(jnp.sum(features**2, 0)), 0.5 * _tolerance(features[:0])
    rows = jnp.sqrt(jnp.sum(jnp.any(features != 0, 1)).astype(features.dtype))

    def orthogonalize(j, carry):  # Gram-Schmidt, by columns
        q, w, kept = carry
        size = jnp.sqrt(jnp.sum(q[:, j] ** 2))
        is_new = (size > cut * sizes[j]) | (sizes[j] == 0)
        # Whatever a test point has where all rows have zeros is outside of their span.
        scale = jnp.where(sizes[j] > 0, sizes[j], jnp.finfo(q.dtype).tiny ** 0.5)
        scale = rows / jnp.where(is_new & (size > 0), size, scale)
        column, own = jnp.where(is_new, scale * q[:, j], 0), scale * w[:, j]
        shares = jnp.where(jnp.arange(p) > j, _dot(column, q), 0) / rows**2
        is_j = jnp.arange(p) == j
        q = jnp.where(is_j, column[:, None], q - jnp.outer(column, shares))
        w = jnp.where(is_j, own[:, None], w - jnp.outer(own, shares))
        return q, w, jnp.where(is_j, is_new, kept)

    eye = jnp.eye(p, dtype=features.dtype)
    start = varying_like((features, eye, jnp.ones(p, bool)), features)
    _, w, kept = lax.fori_loop(0, p, orthogonalize, start)
    is_flags = jnp.all((features == 0) | (features == 1))
    return jnp.where(is_flags, eye, w), kept | is_flags


def _read(features, whiten, kept):
    """Returns whitened features; a dependent one is 0, but for what is not rounding."""
    found = _dot(features, whiten)
    kept = jnp.broadcast_to(kept, found.shape)
    return jnp.where(kept | (jnp.abs(found) > 1e-3), found, 0)


def _side(is_above: Array) -> Array:
    return jnp.where(is_above, 1, -1).astype(jnp.int8)


def _resized(side: Array, n: int) -> Array:
    return jnp.pad(side[:n], (0, max(n - len(side), 0)), constant_values=-1)


def _tolerance(rows):
    """Returns by how much rounding may move the duals of so many rows."""
    eps = jnp.finfo(rows.dtype).eps
    return eps ** (2 / 3) + len(rows) * eps / 8


def _near(phi):
    return 5 * _tolerance(phi)
