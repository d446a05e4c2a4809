"""Draws of a model at every input, and uniforms for scores that take them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import map_evenly
from jaxcp._tree import as_function, jit
from jaxcp.typing import ArrayLike, PyTree

_DRAWS_AT_A_TIME = 2**17  # a model may need much memory for each


def draw(
    key: Array,
    sample: Callable[[Array, PyTree, int], Array],
    x: PyTree,
    num_draws: int,
    *,
    role: int = 0,
    indices: ArrayLike | None = None,
) -> Array:
    """Returns draws of a model at every input, for scores that read draws.

    The input with index i gets the key fold_in(fold_in(key, role), i): its draws depend
    neither on the other inputs nor on the batch or the call (except for rounding, where
    the model's arithmetic depends on the batch).

    Args:
      key: Random key that is used for nothing else, least of all for the data.
        Calibration and test inputs need different keys (or indices): the guarantee asks
        for draws that are fresh for every example.
      sample: `(key, x, n) -> (n, d)`, draws at one input. Bind parameters by
        `functools.partial(model.sample, params)`: then new ones compile nothing.
      x: Inputs, a pytree with leading axis n.
      num_draws: Number of draws l at each input.
      role: What the draws are for, an int: use different roles for the draws of the
        base score and those of `scores.CDF`, which must be independent.
      indices: Index of each input, int, shape (n,). Defaults to 0, ..., n - 1; give it
        where inputs come in batches or in another order.

    Returns:
      Draws, shape (n, l, d), in units of the targets.

    Raises:
      ValueError: if lengths differ, `num_draws` is not a positive int, or the function
        returns something else than `num_draws` rows.

    Cost:
      n l draws of the model, in blocks of at most 131,072 draws. One compilation for a
      function and shapes.

    See also:
      uniforms, scores.PCP, scores.CDF

    Example:
      >>> sample = lambda key, x, n: x[None] + jax.random.normal(key, (n, 2))
      >>> x = jnp.zeros((5, 1))
      >>> draws = draw(jax.random.key(0), sample, x, 100)
      >>> draws.shape
      (5, 100, 2)
      >>> alone = draw(jax.random.key(0), sample, x[3:4], 100, indices=[3])
      >>> jnp.array_equal(alone[0], draws[3]).item()
      True
    """
    _checks.check_key(key)
    places = _checks.vector(indices)._replace(required=False)
    x, indices = _checks.rows(x=x, indices=places)
    _checks.check_count("num_draws", num_draws, 1)
    _checks.check_count("role", role, 0)
    indices = jnp.arange(_checks.num_rows(x=x)) if indices is None else indices
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise ValueError(f"expected indices of an integer type, got {indices.dtype}")
    sample = as_function("sample", sample)
    return _draw(key, sample, x, role, indices, int(num_draws))


def uniforms(key: Array, n: int) -> Array:
    """Returns uniforms for randomized scores, one for each row.

    Args:
      key: Random key that is used for nothing else. Calibration and test rows need
        different ones: the guarantee asks for uniforms that are fresh for every row.
      n: Number of rows.

    Returns:
      Uniforms in [0, 1), shape (n,).

    Raises:
      ValueError: if `key` is no random key, or `n` is not an int >= 0.

    Cost:
      n random numbers.

    See also:
      draw, scores.APS, scores.RAPS

    Example:
      >>> from jaxcp.scores import APS
      >>> key_old, key_new = jax.random.split(jax.random.key(0))
      >>> probs, y = jnp.full((99, 10), 0.1), jnp.arange(99) % 10
      >>> preds = probs, uniforms(key_old, 99)
      >>> cp = jaxcp.calibrate(APS(randomized=True), preds, y)
      >>> sets = cp((probs[:5], uniforms(key_new, 5)), alpha=0.1)
      >>> len(sets)
      5
    """
    _checks.check_key(key)
    _checks.check_count("n", n, 0)
    return jax.random.uniform(key, (n,))


@jit(static_argnames="num_draws")
def _draw(key, sample, x, role, indices, num_draws):
    key = jax.random.fold_in(key, role)

    def one(inputs, i):
        draws = sample(jax.random.fold_in(key, i), inputs, num_draws)
        shape = jax.tree.map(jnp.shape, draws)
        if not isinstance(shape, tuple) or shape[:1] != (num_draws,):
            expected = f"sample(key, x, {num_draws}) of shape ({num_draws}, d)"
            raise ValueError(f"expected {expected}, got {shape}")
        return draws

    at_a_time = max(_DRAWS_AT_A_TIME // num_draws, 1)
    return map_evenly(one, x, indices, at_a_time=at_a_time)
