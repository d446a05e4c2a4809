"""Weighted least squares in primal and dual form, and each fit without one row.

With `s` the square roots of the weights and A = diag(s) K diag(s) + penalty I, the dual
coefficients are linear in the targets: c = M y with M = diag(s) A^-1 diag(s), or, with
an unpenalized intercept u'y, M and u from the inverse of A bordered by s. Leaving row i
out of a linear system changes its solution by a multiple of column i of the inverse.
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
        solves = {"cpu": _solve_each, "default": jnp.linalg.solve}
        return lax.platform_dependent(system, b, **solves)

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
