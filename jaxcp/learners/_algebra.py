"""Weighted least squares in primal and dual form, and each fit without one row.

With `s` the square roots of the weights and A = diag(s) K diag(s) + penalty I, the dual
coefficients are linear in the targets: c = M y with M = diag(s) A^-1 diag(s), or, with
an unpenalized intercept u'y, M and u from the inverse of A bordered by s. Leaving row i
out of a linear system changes its solution by a multiple of column i of the inverse.

Cholesky factors that know when they are good, and what to do for those that are not.

The rows of a design by one Cholesky factor of its Gram matrix are orthonormal up to the
square of its condition number; a second one makes them so up to rounding, wherever the
first came near. A bad design makes NaN or rows that are far from orthonormal.

Factors W of (X'X + penalty I)^-1 = W W', with derivatives of any order.

A factor of the inverse loses as many digits as the design has, not twice as many. By
Cholesky factors where these are as good as singular values, which cost ten times more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float, at_least_single
from jaxcp.typing import Number, PyTree

# Accelerators would round the products to 10 bits.
dot = partial(jnp.matmul, precision="highest")


def columns(y: Array) -> Array:
    """Returns targets of shape (n, ...) as a matrix, one column an output."""
    return y.reshape(len(y), math.prod(y.shape[1:]))


def matrix(x: PyTree, num_columns: int | None = None) -> Array:
    """Returns inputs of shape (n, p) as floats, or raises ValueError."""
    if jnp.ndim(x) != 2:
        raise ValueError(f"expected x of shape (n, p), got {jnp.shape(x)}")
    if num_columns is not None and x.shape[1] != num_columns:
        raise ValueError(f"expected x with {num_columns} columns, got {x.shape[1]}")
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
def _solve_each(system: Array, targets: Array) -> Array:
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
    if batched[1]:
        return lax.map(lambda pair: _solve_each(*pair), (system, targets)), True
    return lax.map(lambda one: _solve_each(one, targets), system), True


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


def primal(x: Array, y: Array, penalty: Number, weights: Array) -> Array:
    """Returns argmin_b sum_i w_i (y_i - x_i b)^2 + penalty |b|^2, shape (p, d)."""
    weighted = weights[:, None] * x
    gram = dot(weighted.T, x) + penalty * jnp.eye(x.shape[1], dtype=x.dtype)
    return solve(gram, dot(weighted.T, y))


def primal_without_each(
    x: Array, y: Array, penalty: Number, intercept: bool
) -> tuple[Array, Array]:
    """Returns coefficients (n, p, d) and intercepts (n, d) of all leave-one-out fits.

    `x` and `y` are centered if there is an intercept, so that the Gram matrix of (1, x)
    has two blocks. R_i = (y_i - fit_i) / (1 - H_ii) and b_-i = b - G^-1 x_i R_i.
    """
    n, p = x.shape
    gram = dot(x.T, x) + penalty * jnp.eye(p, dtype=x.dtype)
    coef = solve(gram, dot(x.T, y))
    leverages = solve(gram, x.T).T  # G^-1 x_i in row i
    share = 1 / n if intercept else 0.0
    own = share + jnp.sum(x * leverages, axis=1)
    held_out = (y - dot(x, coef)) / (1 - own)[:, None]
    coefs = coef[None] - leverages[:, :, None] * held_out[:, None, :]
    return coefs, -share * held_out


def dual(
    gram: Array, penalty: Number, weights: Array, intercept: bool
) -> tuple[Array, Array]:
    """Returns (M, u): coefficients of the rows are M y and the intercept is u'y."""
    root = jnp.sqrt(weights)
    diagonal = penalty + (weights == 0)  # rows left out: coefficient 0, and no 0 / 0
    system = root[:, None] * gram * root[None] + jnp.diag(diagonal.astype(gram.dtype))
    identity = jnp.eye(len(root), dtype=gram.dtype)
    if not intercept:
        inverse = solve(system, identity)
        return root[:, None] * inverse * root[None], jnp.zeros_like(root)
    # The coefficients sum to zero, so a constant in the kernel changes nothing, and
    # keeps the matrix regular where centered rows interpolate.
    scale = jnp.mean(jnp.diag(gram)) + 1
    inverse = solve(system + scale * root[:, None] * root[None], identity)
    column = dot(inverse, root)
    u = column / jnp.where(jnp.any(weights > 0), dot(root, column), 1)
    inverse = inverse - column[:, None] * u[None]
    return root[:, None] * inverse * root[None], root * u


def dual_without_each(
    gram: Array, y: Array, penalty: Number, intercept: bool
) -> tuple[Array, Array]:
    """Returns dual coefficients (n, n, d) and intercepts (n, d) of leave-one-out fits.

    R_i = c_i / M_ii and c_-i = c - M_i R_i, whose i-th entry is 0.
    """
    inverse, u = dual(gram, penalty, jnp.ones(len(y), y.dtype), intercept)
    coef = dot(inverse, y)
    held_out = coef / jnp.diag(inverse)[:, None]
    coefs = coef[None] - inverse.T[:, :, None] * held_out[:, None, :]
    return coefs, dot(u, y)[None] - u[:, None] * held_out


_NEAR = 0.25  # |Q'Q - I|, below which Q has full rank and its own factor no error
_SMALL = 64  # columns of a system that is solved by products
_LEAF = 24  # columns of a triangle that one thread inverts


def by_triangles(x: Array, diagonal: Array) -> tuple[Array, ...]:
    """Returns whether W, x W and the size are good, where (x, diag) W is orthonormal.

    Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015, CholeskyQR2. The size is at least
    the largest singular value, at most p^(1/4) times as much.
    """
    n, p = x.shape
    gram = dot(x.T, x) + jnp.diag(diagonal**2)
    white = _solve(gram, jnp.concatenate([x.T, jnp.eye(p, dtype=x.dtype)], axis=1))
    rows, factor = white[:, :n], white[:, n:] * diagonal[None]
    gram_of_white = dot(rows, rows.T) + dot(factor, factor.T)
    off = gram_of_white - jnp.eye(p, dtype=x.dtype)
    good = jnp.sum(off**2) < _NEAR**2  # and not NaN
    white = _solve(gram_of_white, white).T
    return good, white[n:], white[:n], jnp.sum(gram**2) ** 0.25


def gram_by_triangles(gram: Array, penalty: Array) -> tuple[Array, Array]:
    """Returns W with W W' = (gram + penalty I)^-1, and at least its largest eigenvalue.

    NaN where it is not positive definite.
    """
    eye = jnp.eye(len(gram), dtype=gram.dtype)
    gram = gram + penalty * eye
    return _solve(gram, eye).T, jnp.sum(gram**2) ** 0.5


def _solve(gram, targets):
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


def unless_bad(
    quick: Callable[..., tuple[Array, Any]], sure: Callable[..., Any]
) -> Callable[..., Any]:
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
        every = [
            v if is_batched else jnp.broadcast_to(v, (size, *v.shape))
            for v, is_batched in zip(args, batched, strict=True)
        ]
        found = stack(*(v.reshape(-1, *v.shape[2:]) for v in every))
        split = lambda v: v.reshape(size, -1, *v.shape[1:])  # noqa: E731
        found = jax.tree.map(split, found)
        return found, jax.tree.map(lambda _: True, found)

    def at_once(*args):
        return jax.tree.map(lambda v: v[0], stack(*(v[None] for v in args)))

    each = jax.custom_batching.sequential_vmap(one)
    return partial(lax.platform_dependent, cpu=each, default=at_once)


_ROUGH = 0.3  # share of W W' that rounding may move, before eigenvalues know better
MARGIN = 8  # roundings of a singular value that is zero


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
    n, p = x.shape
    if p == 0:
        empty = jnp.zeros((0, 0), x.dtype)
        return empty, jnp.zeros((n, 0), x.dtype), empty, jnp.zeros((), x.dtype)
    factor, *others = _factors(x / units[None], jnp.sqrt(penalty) / units)
    return factor / units[:, None], *others


def _by_singular_values(x, diagonal):
    left, sizes, turned = _svd(jnp.concatenate([x, jnp.diag(diagonal)]))
    size = jnp.max(sizes)
    known = sizes > _noise(x, size)
    inverse = jnp.where(known, 1 / jnp.where(known, sizes, 1), 0)
    return (
        turned * inverse[None],
        left[: len(x)] * known[None],
        turned * ~known[None],
        size,
    )


def _by_triangles(x, diagonal):
    good, factor, rows, size = by_triangles(x, diagonal)
    return good, (factor, rows, jnp.zeros_like(factor), size)


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
    factor, size = gram_by_triangles(gram, penalty)
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


def _svd(x):
    rotation, triangle = jnp.linalg.qr(x)
    left, sizes, turned = jnp.linalg.svd(triangle, full_matrices=False)
    return dot(rotation, left), sizes, turned.T


_factors = unless_bad(_by_triangles, _by_singular_values)
_factors_of_gram = unless_bad(_by_triangle, _by_eigenvalues)
