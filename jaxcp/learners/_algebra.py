"""Weighted least squares, and factors W of (X'X + penalty I)^-1 = W W'.

A factor of the inverse loses as many digits as the design has, not twice as many. One
Cholesky factor of the Gram matrix makes the rows of a design orthonormal up to the
square of its condition number; a second one makes them so up to rounding, wherever the
first came near, at a tenth of the cost of singular values. A bad design makes NaN or
rows that are far from orthonormal, and is left to these.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float, at_least_single
from jaxcp.typing import Number, PyTree

# Accelerators would round the products to 10 bits.
dot = partial(jnp.matmul, precision="highest")

_NEAR = 0.25  # |Q'Q - I|, below which Q has full rank and its own factor no error
_SMALL = 64  # columns of a system that is solved by products
_LEAF = 24  # columns of a triangle that one thread inverts
_ROUGH = 0.3  # share of W W' that rounding may move, before eigenvalues know better
MARGIN = 8  # roundings of a singular value that is zero


def columns(y: Array) -> Array:
    """Returns targets of shape (n, ...) as a matrix, one column an output."""
    return y.reshape(len(y), math.prod(y.shape[1:]))


def matrix(x: PyTree, num_columns: int | None = None) -> Array:
    """Returns inputs of shape (n, p) as floats, or raises ValueError."""
    if jnp.ndim(x) != 2 or num_columns not in (None, jnp.shape(x)[1]):
        p = "p" if num_columns is None else num_columns
        raise ValueError(f"expected x of shape (n, {p}), got {jnp.shape(x)}")
    return as_float(x)


def solve(system: Array, targets: Array) -> Array:
    """Returns the solution of a symmetric system, by LU: it may be nearly singular.

    In the type of the targets, at least single precision: LAPACK has no narrower one.
    """
    dtype, targets = targets.dtype, at_least_single(targets)
    system = system.astype(targets.dtype)  # a penalty may be of a wider type

    def by_platform(_, b):
        default = jnp.linalg.solve
        return lax.platform_dependent(system, b, cpu=_solve_each, default=default)

    matvec = partial(dot, system)
    solution = lax.custom_linear_solve(matvec, targets, by_platform, symmetric=True)
    return solution.astype(dtype)


@jax.custom_batching.custom_vmap
def _solve_each(system, targets):
    """Returns the solution of one system; under vmap one system at a time."""
    return jnp.linalg.solve(system, targets)


@_solve_each.def_vmap
def _solve_batch(axis_size, batched, system, targets):
    """Returns the solutions of a batch: of one system, its targets are more columns."""
    if not batched[0]:
        moved = jnp.moveaxis(targets, 0, -1)
        # Systems of an outer batch come with all targets at once.
        shape = len(system), math.prod(moved.shape[1:])
        solution = _solve_each(system, moved.reshape(shape))
        return jnp.moveaxis(solution.reshape(moved.shape), -1, 0), True
    # One by one: jaxlib 0.10 hands a batch of LAPACK calls to a pool and waits for it
    # in a thread of the same pool. As many batches at a time as the CPU has cores wait
    # for each other without end.
    one_by_one = jax.custom_batching.sequential_vmap(_solve_each)
    axes = 0, 0 if batched[1] else None
    return jax.vmap(one_by_one, axes)(system, targets), True


def in_single(x: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Returns data in single precision or a wider type: sums of n rows overflow half.

    The type is that of the data, also where that of the weights is wider.
    """
    x, y = at_least_single(x), at_least_single(y)
    return x, y, weights.astype(x.dtype)


def centers(x: Array, weights: Array, intercept: bool) -> Array:
    """Returns the weighted mean of each column, or zeros without an intercept."""
    if not intercept:
        return jnp.zeros(x.shape[1:], x.dtype)
    total = jnp.sum(weights)
    return dot(weights, x) / jnp.where(total > 0, total, 1)


def gram_of(x: Array, penalty: Number, weights: Array) -> Array:
    """Returns X' diag(weights) X + penalty I, shape (p, p)."""
    eye = jnp.eye(x.shape[1], dtype=x.dtype)
    return dot((weights[:, None] * x).T, x) + penalty * eye


def weighted(gram, weights):
    """Returns square roots s of weights, and diag(s) gram diag(s), regular at s = 0."""
    sizes = jnp.sqrt(weights)
    # Rows left out: coefficient 0, and no 0 / 0.
    own = jnp.diag((weights == 0).astype(gram.dtype))
    return sizes, sizes[:, None] * gram * sizes[None] + own


def dual(gram, penalty, weights, intercept):
    """Returns M, u: coefficients of the rows are c = M y and the intercept is u'y.

    A fit without row i errs by R_i = c_i / M_ii and has the coefficients c - M_i R_i.
    """
    sizes, system = weighted(gram, weights)
    identity = jnp.eye(len(gram), dtype=gram.dtype)
    # The coefficients sum to zero, so a constant in the kernel changes nothing, and
    # keeps the matrix regular where centered rows interpolate.
    scale = (jnp.mean(jnp.diag(gram)) + 1) * intercept
    system = system + penalty * identity + scale * sizes[:, None] * sizes[None]
    inverse = solve(system, identity)
    column = dot(inverse, sizes) * intercept
    u = column / jnp.where(intercept & jnp.any(weights > 0), dot(sizes, column), 1)
    inverse = inverse - column[:, None] * u[None]
    return sizes[:, None] * inverse * sizes[None], sizes * u


def _cholesky_solve(gram, targets):
    """Returns L^-1 targets with L L' = gram.

    Products are quicker than substitution in small systems, for which LAPACK would
    start threads. With one step of refinement they are as exact.
    """
    lower = lax.linalg.cholesky(gram, symmetrize_input=False)
    if len(gram) > _SMALL:
        return _substitute(lower, targets)
    inverse = _inverse(lower)
    found = dot(inverse, targets)
    return found + dot(inverse, targets - dot(lower, found))


def _inverse(lower):
    """Returns L^-1, by halves of a size for which LAPACK starts no threads."""
    size = len(lower)
    if size <= _LEAF:
        return _substitute(lower, jnp.eye(size, dtype=lower.dtype))
    half = size // 2
    above, below = _inverse(lower[:half, :half]), _inverse(lower[half:, half:])
    across = -dot(below, dot(lower[half:, :half], above))
    return jnp.block([[above, jnp.zeros_like(across.T)], [across, below]])


def _substitute(lower, targets):
    solve = lax.linalg.triangular_solve
    return solve(lower, targets, left_side=True, lower=True)


def root(values: Array) -> Array:
    """Returns square roots; compilers divide by one as by an approximation of it."""
    return lax.optimization_barrier(jnp.sqrt(values))


def lengths(x: Array, penalty: Array, *, of_all: bool = False) -> Array:
    """Returns the lengths of the columns of (x, sqrt(penalty) I), or 1 of zeros.

    As powers of two, by which products do not round.
    """
    squares = lax.stop_gradient(jnp.sum(x**2, axis=0) + penalty)
    if of_all:
        squares = jnp.broadcast_to(jnp.max(squares, initial=0), squares.shape)
    exponent = jnp.frexp(jnp.where(squares > 0, squares, 1))[1] // 2
    return jnp.ldexp(jnp.ones_like(squares), exponent)


@jax.custom_jvp
def whiten(x: Array, penalty: Array, units: Array) -> tuple[Array, ...]:
    """Returns W with W W' = (x'x + penalty I)^-1, shape (p, p), and x W.

    In units of the columns, so that theirs cost no digits. Directions of a singular
    value that is zero but for rounding are columns of the third matrix, in the same
    units, and zero in W, as in a pseudo-inverse. Last the largest singular value.
    """
    factor, *others = _factors(x / units[None], jnp.sqrt(penalty) / units)
    return factor / units[:, None], *others


def by_triangles(x, diagonal):
    """Returns whether W, x W, ... are good, where (x, diag) W is orthonormal.

    Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015, CholeskyQR2. The size is at least
    the largest singular value, at most p^(1/4) times as much.
    """
    n, p = x.shape
    eye = jnp.eye(p, dtype=x.dtype)
    gram = dot(x.T, x) + jnp.diag(diagonal**2)
    white = _cholesky_solve(gram, jnp.concatenate([x.T, eye], axis=1))
    rows, factor = white[:, :n], white[:, n:] * diagonal[None]
    gram_of_white = dot(rows, rows.T) + dot(factor, factor.T)
    good = jnp.sum((gram_of_white - eye) ** 2) < _NEAR**2  # and not NaN
    white = _cholesky_solve(gram_of_white, white).T
    size = jnp.sum(gram**2) ** 0.25
    return good, (white[n:], white[:n], jnp.zeros_like(factor), size)


def _by_singular_values(x, diagonal):
    rotation, triangle = jnp.linalg.qr(jnp.concatenate([x, jnp.diag(diagonal)]))
    left, sizes, turned = jnp.linalg.svd(triangle, full_matrices=False)
    size = jnp.max(sizes, initial=0)
    known = sizes > _noise(x, size)
    inverse = jnp.where(known, 1 / jnp.where(known, sizes, 1), 0)
    rows = dot(rotation, left)[: len(x)] * known[None]
    return turned.T * inverse[None], rows, turned.T * ~known[None], size


def _noise(x, size):
    """Returns the singular value, or eigenvalue, that may be zero but for rounding."""
    return (MARGIN + x.shape[1]) * jnp.finfo(x.dtype).eps * size


@whiten.defjvp
def _whiten_jvp(primals, tangents):
    (x, penalty, units), (dx, dpenalty, _) = primals, tangents
    factor, white, rest, size = whiten(x, penalty, units)
    moved = dot(dx, factor)
    bend = dot(white.T, moved)
    turned = _turned(factor, bend + bend.T, dpenalty)
    tangent = turned, moved + dot(x, turned), *map(jnp.zeros_like, (rest, size))
    return (factor, white, rest, size), tangent


@jax.custom_jvp
def whiten_gram(gram: Array, penalty: Array) -> tuple[Array, ...]:
    """Returns W, what it leaves out, and the size of `whiten` of x with x'x = gram."""
    return _factors_of_gram(gram, penalty)


def _by_eigenvalues(gram, penalty):
    squares, turned = jnp.linalg.eigh(gram)
    squares = jnp.maximum(squares, 0) + penalty
    size = jnp.max(squares, initial=0)
    known = squares > _noise(gram, size)
    inverse = jnp.where(known, 1 / root(jnp.where(known, squares, 1)), 0)
    return turned * inverse[None], turned * ~known[None], size


def _by_triangle(gram, penalty):
    eye = jnp.eye(len(gram), dtype=gram.dtype)
    system = gram + penalty * eye
    factor, size = _cholesky_solve(system, eye).T, jnp.sum(system**2) ** 0.5
    good = rounding(gram, factor) < _ROUGH  # and not NaN
    return good, (factor, jnp.zeros_like(factor), size)


def rounding(gram: Array, factor: Array) -> Array:
    """Returns what share of the inverse W W' the rounding of the matrix moves.

    |E| |W W'|, for rounding E of the entries and of their Cholesky factor, of the order
    eps n^(3/4) as seen; the norm by two steps of the power method.
    """
    if len(gram) == 0:
        return jnp.zeros((), gram.dtype)
    once = dot(factor, factor[jnp.argmax(jnp.sum(factor**2, axis=1))])
    twice = dot(factor, dot(factor.T, once))
    norm = jnp.sqrt(jnp.sum(twice**2) / jnp.sum(once**2))
    noise = jnp.finfo(gram.dtype).eps * len(gram) ** 0.75 * jnp.max(jnp.diag(gram))
    return lax.stop_gradient(noise * norm)


@whiten_gram.defjvp
def _whiten_gram_jvp(primals, tangents):
    factor, rest, size = whiten_gram(*primals)
    dgram, dpenalty = tangents
    turned = _turned(factor, dot(factor.T, dot(dgram, factor)), dpenalty)
    return (factor, rest, size), (turned, *map(jnp.zeros_like, (rest, size)))


def _turned(factor, bend, dpenalty):
    """Returns the tangent of a factor W of G^-1 from W'dG W without the penalty.

    dW = -1/2 W W'dG W gives d(W W') = -G^-1 dG G^-1, whatever rotation W has.
    """
    return -0.5 * dot(factor, bend + dpenalty * dot(factor.T, factor))


def unless_bad(quick, sure):
    """Returns quick(...), which says if it is good, and sure(...) where it is not.

    Also under vmap, where a `cond` would compute both. On CPUs one by one: see
    `_algebra.solve`. Elsewhere all at once, and surely if one of them is bad.
    """

    def one(*args):
        good, found = quick(*args)
        return lax.cond(good, lambda: found, lambda: sure(*args))

    @jax.custom_batching.custom_vmap
    def stack(*args):
        good, found = jax.vmap(quick)(*args)

        def mend():
            def choose(new, old):
                which = good.reshape(-1, *(1,) * (new.ndim - 1))
                return jnp.where(which, old, new)

            return jax.tree.map(choose, jax.vmap(sure)(*args), found)

        return lax.cond(jnp.all(good), lambda: found, mend)

    @stack.def_vmap
    def stack_of_stacks(size, batched, *args):
        axes = [0 if is_batched else None for is_batched in batched]
        every = jax.vmap(lambda *v: v, axes, axis_size=size)(*args)
        # No -1: systems of no rows have no numbers.
        found = stack(*(v.reshape(size * v.shape[1], *v.shape[2:]) for v in every))
        split = lambda v: v.reshape(size, len(v) // size, *v.shape[1:])  # noqa: E731
        found = jax.tree.map(split, found)
        return found, jax.tree.map(lambda _: True, found)

    def at_once(*args):
        return jax.tree.map(lambda v: v[0], stack(*(v[None] for v in args)))

    each = jax.custom_batching.sequential_vmap(one)
    return partial(lax.platform_dependent, cpu=each, default=at_once)


_factors = unless_bad(by_triangles, _by_singular_values)
_factors_of_gram = unless_bad(_by_triangle, _by_eigenvalues)
