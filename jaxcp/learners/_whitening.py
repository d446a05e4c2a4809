"""Factors W of (X'X + penalty I)^-1 = W W', with derivatives of any order.

A factor of the inverse loses as many digits as the design has, not twice as many. By
Cholesky factors where these are as good as singular values, which cost ten times more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp.learners import _triangles
from jaxcp.learners._algebra import dot

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
    good, factor, rows, size = _triangles.whiten(x, diagonal)
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
    factor, size = _triangles.whiten_gram(gram, penalty)
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


_factors = _triangles.unless_bad(_by_triangles, _by_singular_values)
_factors_of_gram = _triangles.unless_bad(_by_triangle, _by_eigenvalues)
