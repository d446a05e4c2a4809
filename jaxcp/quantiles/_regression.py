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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import just_below, varying_like
from jaxcp.quantiles.selection import weighted_select

_dot = partial(jnp.matmul, precision="highest")
_PIVOTS = 20  # in a round, after which the rounding of what they update is undone
_ROUNDS = 20  # at most, and one more for each feature


class Vertex(NamedTuple):
    """A basis, and for each other row the bound that its dual is at."""

    inverse: Array  # of the features of basic rows, (p, p)
    basis: Array  # (p,), -1 for rows that do not exist
    upper: Array  # (n + 1,), whether the dual of a row is at 1 - alpha


class Fit(NamedTuple):
    """The vertex at a level, and how features are read."""

    alpha: Array
    whiten: Array  # (p, p)
    kept: Array  # (p,), False where a feature depends on those before it
    vertex: Vertex


class _Problem(NamedTuple):
    scores: Array  # (n + 1,), the last one that of the test point
    features: Array  # (n, p)
    own: Array  # (p,), of the last row
    push: Array  # (p,), phi that weighs U
    u: Array
    alpha: Array

    def at(self, row):
        """Returns the features of a row; zeros for -1."""
        n = len(self.features)
        found = self.features[jnp.clip(row, 0, n - 1)] if n else self.own
        return jnp.where(row < 0, 0, jnp.where(row == n, self.own, found))

    def times(self, d):
        """Returns phi_i'd of all rows."""
        return jnp.append(_dot(self.features, d), _dot(self.own, d))

    def sum(self, counts):
        """Returns the sum of features, each as often as it counts."""
        return _dot(counts[:-1], self.features) + counts[-1] * self.own

    def basic(self, basis):
        """Returns features and scores of basic rows, of the identity at -1."""
        found = jax.vmap(self.at)(basis) + jnp.diag(jnp.where(basis < 0, 1.0, 0.0))
        return found, jnp.where(basis < 0, 0, self.scores[basis])


class _Walk(NamedTuple):
    vertex: Vertex
    r: Array  # residuals, (n + 1,)
    inside: Array  # whether a row is basic, (n + 1,)
    below: Array  # sum of the features of rows below, less a whole number, (p,)
    rest: Array  # (1 - alpha) sum of all features, less the same number, (p,)
    endless: Array  # whether an edge has no end, shape ()


def fit(scores: Array, features: Array, alpha: Array) -> Fit:
    """Returns the vertex of rows (n,) and (n, p), without a test point."""
    scores, features = lax.stop_gradient((scores, features))
    alpha, p = jnp.asarray(alpha, scores.dtype), features.shape[1]
    whiten, kept = whitening(features)
    phis, none = _read(features, whiten, kept), jnp.zeros(p, scores.dtype)
    known = jnp.append(_bounded(scores), 0), phis
    problem = _Problem(*known, none, none, 0 * alpha, alpha)
    eye = jnp.eye(p, dtype=scores.dtype)
    start = Vertex(eye, jnp.full(p, -1), problem.scores > 0)
    return Fit(alpha, whiten, kept, _solve(problem, start, long=True)[0].vertex)


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
    walk, is_done = _solve(problem, vertex)
    vertex, endless = walk.vertex, walk.endless
    unbounded = jnp.isinf(scores)
    finite = jnp.where(unbounded, 0, scores)
    q, w, errors = _value(finite, features, fitted, vertex, phi)
    error = jnp.where(_is_unit(w), 0, _dot(jnp.abs(w), errors))
    if u is None:
        shift = error
    else:
        eta, ties = _dual_at_threshold(problem, walk, errors, w, projects)
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
    walk, is_done = _solve(problem, vertex)
    walk = _start(problem, walk.vertex)
    eta, (_, basis, upper) = _edge(problem, walk)[0], walk.vertex
    bound = jnp.where(upper[-1], 1 - fitted.alpha, -fitted.alpha)
    is_basic = walk.inside[-1]
    basic = jnp.sum(jnp.where(basis == len(features), eta, 0))
    found = jnp.where(is_basic, basic, bound)
    errors = _errors(problem, walk.vertex, *known[1:3], fitted.whiten)
    off = jnp.where(is_basic, _nearest(problem, walk, walk.r), jnp.abs(walk.r[-1]))
    ties = off <= jnp.max(errors)
    found = _least_norm(problem, walk.vertex, errors, found, found, ties, projects)
    return jnp.where(is_done & jnp.any(phi != 0), found, 0)


def _dual_at_threshold(
    problem: _Problem, walk: _Walk, errors: Array, w: Array, projects: bool
) -> tuple[Array, Array]:
    """Returns the dual of least norm of a test point whose score is phi'g = w'S_B.

    And whether calibration rows tie there.
    """
    eta, level = _edge(problem, walk)[0], problem.u
    # If no other row ties: with the dual e of the test point the basis has those of
    # U = e, eta + (U - e) w, and |eta + (U - e) w|^2 + e^2 is least at this e.
    square = _dot(w, w)
    alone = (_dot(w, eta) + level * square) / (1 + square)
    basic, values = problem.basic(walk.vertex.basis)
    _, g = _interpolated(basic, values, walk.vertex.inverse)
    off = _nearest(problem, walk, problem.scores - problem.times(g))
    ties = off <= jnp.max(errors)
    eta = _least_norm(problem, walk.vertex, errors, level, alone, ties, projects)
    return eta, ties


def _nearest(problem: _Problem, walk: _Walk, r: Array) -> Array:
    """Returns the least |r_i| of calibration rows off the basis, shape ()."""
    counts = ~walk.inside[:-1] & jnp.any(problem.features != 0, 1)
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
    (inverse, basis, upper), low, high = walk.vertex, -problem.alpha, 1 - problem.alpha
    basic, values = problem.basic(basis)
    inverse, g = _interpolated(basic, values, inverse)
    own = problem.own + problem.push
    rows = jnp.concatenate([problem.features, own[None]])
    w, fits = _dot(rows, inverse), _dot(rows, g)
    room = _dot(jnp.abs(w), errors)
    is_unit = _is_unit(w)  # features of a basic row: it ties iff it has its score
    fits = jnp.where(is_unit, _dot(jnp.round(w), values), fits)
    room = jnp.where(is_unit, 0, room)
    tied = walk.inside | (jnp.abs(problem.scores - fits) <= room)
    tied = tied.at[n].set(tied[n] | jnp.any(problem.push != 0))  # at its threshold
    eta = jnp.where(upper, high, low).at[n].set(eta_new)
    at = jnp.where(basis < 0, n + 1, basis)
    eta = eta.at[at].set(_edge(problem, walk)[0], mode="drop")
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


def _with_test_point(scores, features, phi, fitted, score, u=None):
    """Returns the problem with one more row: of this score, or that weighs u alone."""
    alpha, whiten, kept, (inverse, basis, upper) = fitted
    own = _read(phi, whiten, kept)
    push, own = (0 * own, own) if u is None else (own, 0 * own)
    known = _bounded(jnp.append(scores, score)), _read(features, whiten, kept)
    problem = _Problem(*known, own, push, 0 * alpha if u is None else u, alpha)
    fit = _dot(own, _dot(inverse, problem.basic(basis)[1]))
    is_above = problem.scores[-1] > fit
    upper = jnp.append(_resized(upper[:-1], len(scores)), is_above)
    return problem, Vertex(inverse, basis, upper)


def _value(
    scores: Array, features: Array, fitted: Fit, vertex: Vertex, phi: Array
) -> tuple[Array, Array, Array]:
    """Returns phi'g at a vertex, linear in scores of its basis, shares, and errors."""
    _, whiten, kept, _ = fitted
    inverse, basis, _ = vertex
    rows = _read(features, whiten, kept), *3 * (jnp.zeros_like(phi),)
    problem = _Problem(jnp.append(scores, 0), *rows, fitted.alpha)
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


def _solve(
    problem: _Problem, vertex: Vertex, long: bool = False
) -> tuple[_Walk, Array]:
    """Returns the walk at the vertex where all duals are in bounds, and if it is there.

    Its flag `endless` says that there is none, for the objective falls without end.
    """
    tol = _tolerance(problem.scores)
    goes_on = lambda w: ~w.endless & (_edge(problem, w)[2] > tol)  # noqa: E731

    def improve(carry):
        walk, count, *_ = carry
        more = lambda c: goes_on(c[0]) & (c[1] < _PIVOTS)  # noqa: E731
        step = lambda c: (_pivot(problem, c[0], long), c[1] + 1)  # noqa: E731
        walk, _ = lax.while_loop(more, step, (_start(problem, walk.vertex), 0))
        return walk, count + 1, goes_on(walk)

    most, none = _ROUNDS + len(problem.own), jnp.zeros_like(problem.own)
    inside, ends = jnp.zeros_like(vertex.upper), jnp.array(False)
    walk = _Walk(vertex, 0 * problem.scores, inside, none, none, ends)
    start = varying_like((walk, jnp.array(0), jnp.array(True)), problem)
    more = lambda c: c[2] & (c[1] < most)  # noqa: E731
    walk, _, is_left = lax.while_loop(more, improve, start)
    return walk, ~is_left


def _start(problem: _Problem, vertex: Vertex) -> _Walk:
    """Returns the residuals and sums at a vertex, its inverse with less rounding."""
    inverse, basis, upper = vertex
    basic, values = problem.basic(basis)
    inverse, g = _interpolated(basic, values, inverse)
    n = len(upper)
    places = jnp.where(basis < 0, n, basis)
    inside = jnp.zeros(n, bool).at[places].set(True, mode="drop")
    r = jnp.where(inside, 0, problem.scores - problem.times(g))
    total = problem.sum(jnp.ones(n, r.dtype))
    whole = jnp.round((1 - problem.alpha) * total)  # counts of flags stay exact
    below = problem.sum((~upper & ~inside).astype(r.dtype)) - whole
    rest = (total - whole) - problem.alpha * total
    endless = varying_like(jnp.array(False), r)
    return _Walk(Vertex(inverse, basis, upper), r, inside, below, rest, endless)


def _interpolated(basic: Array, values: Array, inverse: Array) -> tuple[Array, Array]:
    """Returns the inverse with less rounding, and g of the plane through the basis."""
    inverse = 2 * inverse - _dot(inverse, _dot(basic, inverse))  # Newton's step
    g = _dot(inverse, values)
    return inverse, g + _dot(inverse, values - _dot(basic, g))


def _edge(problem, walk):
    """Returns duals of the basis, which is worst, by how much, and if it is too high.

    eta_B = -Phi_B^-T c, c = sum of eta_i phi_i off the basis, and U phi.
    """
    inverse, basis, _ = walk.vertex
    real, upper = basis >= 0, jnp.where(basis >= 0, 1 - problem.alpha, 0)
    own = jnp.where(real[:, None], problem.basic(basis)[0], 0).sum(0)
    c = walk.rest - walk.below - (1 - problem.alpha) * own
    c, w = _dot(c, inverse), _dot(problem.push, inverse)
    # The left limit in U: duals as they are at a U that is less by next to nothing.
    slack = jnp.where(jnp.abs(w) > 1e-3, 3 * _tolerance(problem.scores), 0)
    eta = slack * jnp.sign(w) - problem.u * w - c
    high, low = eta - upper, jnp.where(real, -problem.alpha, 0) - eta
    excess = jnp.maximum(high, low)
    j = jnp.argmax(excess)
    return eta, j, excess[j], high[j] >= low[j]


def _pivot(problem, walk, long):
    """Returns the walk after one step, beyond rows as long as it pays if `long`."""
    (inverse, basis, upper), r, inside, below, rest, _ = walk
    _, j, excess, rises = _edge(problem, walk)
    d = jnp.where(rises, -inverse[:, j], inverse[:, j])
    a = problem.times(d)
    rounding = 8 * jnp.finfo(a.dtype).eps * jnp.sum(jnp.abs(d))
    rounding *= jnp.max(jnp.abs(problem.features), initial=1)
    blocks = (jnp.where(upper, a, -a) > rounding) & ~inside
    t = jnp.where(blocks, jnp.maximum(r / jnp.where(blocks, a, 1), 0), jnp.inf)
    turns = jnp.where(blocks, jnp.abs(a), 0)
    # Each row beyond turns the slope, from -excess, by |a|, also of rows that tie.
    step = weighted_select(t, turns, excess) if long else jnp.min(t)
    meets, rows = t == step, jnp.arange(len(r))
    if long:
        left = excess - jnp.sum(jnp.where(t < step, turns, 0))
        last = meets & (jnp.cumsum(jnp.where(meets, turns, 0)) >= left)
        meets = jnp.where(jnp.any(last), last, meets)
    e = jnp.argmax(meets)
    passed = (t < step) | ((t == step) & (rows < e))
    leaves, enters = rows == basis[j], rows == e
    leaving, entering = map(problem.at, (basis[j], e))
    # Of rows below: those passed change sides, `leaving` may come, `entering` goes.
    if long:
        below += problem.sum(jnp.where(passed, jnp.where(upper, 1, -1), 0.0))
    below += jnp.where(rises, 0, leaving) - jnp.where(upper[e], 0, entering)
    upper = jnp.where(leaves, rises, upper ^ passed)
    r = jnp.where(leaves, jnp.where(rises, step, -step), r - step * a)
    inside = (inside & ~leaves) | enters
    y = _dot(entering, inverse)
    column = inverse[:, j] / y[j]
    inverse = (inverse - jnp.outer(column, y)).at[:, j].set(column)
    vertex, r = Vertex(inverse, basis.at[j].set(e), upper), jnp.where(inside, 0, r)
    moved, ray = _Walk(vertex, r, inside, below, rest, walk.endless), jnp.isinf(step)
    kept = jax.tree.map(lambda old, new: jnp.where(ray, old, new), walk, moved)
    return kept._replace(endless=ray)


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
        q = (q - jnp.outer(column, shares)).at[:, j].set(column)
        w = (w - jnp.outer(own, shares)).at[:, j].set(own)
        return q, w, kept.at[j].set(is_new)

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


def _resized(flags, n):
    return jnp.pad(flags[:n], (0, max(n - len(flags), 0)))


def _tolerance(rows):
    """Returns by how much rounding may move the duals of so many rows."""
    eps = jnp.finfo(rows.dtype).eps
    return eps ** (2 / 3) + len(rows) * eps / 8


def _near(phi):
    return 5 * _tolerance(phi)
