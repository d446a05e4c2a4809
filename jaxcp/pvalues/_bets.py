"""Sums of bets that do not depend on earlier wins: no step waits for another."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp._numbers import kept
from jaxcp.typing import MemorylessMartingale, PyTree

_STRETCH = 2**15  # numbers of a stretch, of states with several numbers
_BLOCK = 32  # bets that one product sums up


def summed_bets(
    martingale: MemorylessMartingale, p_values: Array, state: PyTree
) -> tuple[PyTree, Array]:
    """Returns the state after a stream, and the log of the capital all along."""
    width = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(state))
    most = len(p_values) if width <= 1 else max(_STRETCH // width, 1)

    @jax.vmap
    def bets_of(p_value):
        bets = as_carry(martingale.log_bet(p_value), p_values.dtype)
        return jax.tree.map(lambda v, s: jnp.broadcast_to(v, s.shape), bets, state)

    def go(state, stretch):
        p_values, count = stretch
        bets = jax.tree.map(partial(kept, count=count), bets_of(p_values))
        states = jax.tree.map(running_sums, state, bets)
        log_capital = jax.vmap(martingale.log_capital)(states)
        return jax.tree.map(lambda v: v[-1], states), log_capital

    state, rows = lax.scan(go, state, _stretches(p_values, max(most, 1)))
    return state, rows.reshape(-1, *rows.shape[2:])[: len(p_values)]


def running_sums(start: Array, terms: Array) -> Array:
    """Returns start + terms[0] + ... + terms[i] for each i, also of infinities.

    Terms are one block or several whole ones.
    """
    if terms.ndim > 1 or not jnp.issubdtype(terms.dtype, jnp.floating):
        return _one_by_one(start, terms)
    # A product with an infinite number is NaN where it should be another number.
    finite = jnp.all(jnp.abs(terms) < jnp.inf)
    return lax.cond(finite, _in_blocks, _one_by_one, start, terms)


def _one_by_one(start, terms):
    return lax.scan(lambda total, term: (total + term,) * 2, start, terms)[1]


def _in_blocks(start, terms):
    """Returns running sums by products of blocks with a triangle of ones."""
    blocks = terms.reshape(-1, min(_BLOCK, len(terms)))
    ones = jnp.triu(jnp.ones((blocks.shape[1],) * 2, terms.dtype))
    sums = jnp.dot(blocks, ones, precision=lax.Precision.HIGHEST)
    _, before = lax.scan(lambda total, v: (total + v, total), start, sums[:, -1])
    return (sums + before[:, None]).reshape(-1)


def as_carry(state: PyTree, dtype: DTypeLike) -> PyTree:
    """Returns a state whose floats have the type of the p-values: a carry keeps it."""

    def cast(v):
        v = jnp.asarray(v)
        return v.astype(dtype) if jnp.issubdtype(v.dtype, jnp.floating) else v

    return jax.tree.map(cast, state)


def _stretches(p_values, most):
    """Returns p-values as rows of at most that many, and how many of each count."""
    n = len(p_values)
    length = -(-n // max(-(-n // most), 1))
    step = min(_BLOCK, max(length, 1))
    length = max(-(-length // step), 1) * step  # whole blocks, or no more than one
    rows = jnp.pad(p_values, (0, -n % length), constant_values=1).reshape(-1, length)
    counts = np.clip(n - length * np.arange(len(rows)), 0, length)
    return rows, None if rows.size == n else counts
