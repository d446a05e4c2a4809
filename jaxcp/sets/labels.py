"""Sets of labels."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_array
from jaxcp._pytree import pytree
from jaxcp.sets._arithmetic import answer_shape, without_axis
from jaxcp.sets._batches import Batch, on_host
from jaxcp.typing import Number


@pytree
class LabelSet(Batch):
    """A set of labels out of 0, ..., k - 1; it may be empty.

    Args:
      mask: True for the labels in the set, bool of shape (k,).

    Example:
      >>> LabelSet(jnp.array([True, False, True])).contains(2)
      Array(True, dtype=bool)
    """

    mask: Array

    def contains(self, y: Number) -> Array:
        """Returns whether label `y` is in the set; labels out of range are not.

        A batch with a mask of shape (m, k) takes labels of shape (m,) or (m, 1), or one
        for all.
        """
        y = as_array("y", y).astype(int)  # a narrow type may not hold every label
        mask = as_array("mask", self.mask)
        k = mask.shape[-1]
        if mask.ndim == 1:
            inside = mask.at[y].get(mode="fill", fill_value=False)
        else:
            y = without_axis(y, mask.ndim - 1)
            batch = answer_shape(y.shape, mask.shape[:-1])
            mask = jnp.broadcast_to(mask, (*batch, k))
            place = jnp.broadcast_to(jnp.clip(y, 0, k - 1), batch)
            inside = jnp.take_along_axis(mask, place[..., None], axis=-1)[..., 0]
        return inside & (y >= 0) & (y < k)

    def size(self) -> Array:
        """Returns the number of labels, int of shape ()."""
        return jnp.sum(self.mask, axis=-1)

    def is_empty(self) -> Array:
        """Returns whether there is no label in the set, bool of shape ()."""
        return ~jnp.any(self.mask, axis=-1)

    def members(self) -> Array:
        """Returns which labels are in the set, bool of shape (k,)."""
        return self.mask

    def target_shape(self) -> tuple[int, ...]:
        """Returns the shape of a label, ()."""
        return ()

    def checked(self, num_sets: int) -> "LabelSet":
        """Returns the sets if their mask is of shape (m, k), bool."""
        if self.mask.ndim != 2 or self.mask.dtype != bool:
            mask = f"{self.mask.dtype}{self.mask.shape}"
            raise ValueError(f"expected a mask of shape (m, k), bool, got {mask}")
        return self

    def to_numpy(self) -> np.ndarray:
        """Returns which labels are in each set, bool of shape (m, k)."""
        return on_host(self.mask)

    def _batch(self):
        return np.shape(self.mask)[:-1]
