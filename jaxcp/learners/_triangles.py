"""Cholesky factors that know when they are good, and what to do for those that are not.

The rows of a design by one Cholesky factor of its Gram matrix are orthonormal up to the
square of its condition number; a second one makes them so up to rounding, wherever the
first came near. A bad design makes NaN or rows that are far from orthonormal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp.learners._algebra import dot

_NEAR = 0.25  # |Q'Q - I|, below which Q has full rank and its own factor no error
_SMALL = 64  # columns of a system that is solved by products
_LEAF = 24  # columns of a triangle that one thread inverts


def whiten(x: Array, diagonal: Array) -> tuple[Array, ...]:
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


def whiten_gram(gram: Array, penalty: Array) -> tuple[Array, Array]:
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
