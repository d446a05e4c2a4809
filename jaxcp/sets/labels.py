"""Sets of labels: of one, or of several at once, as of pixels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, quotient
from jaxcp._tree import pytree, static
from jaxcp.sets.batches import Batch, Shape, without_axis
from jaxcp.typing import Number


class Marks(Batch):
    """What sets with a mask have in common, and names of its last axis."""

    mask: Array
    classes: tuple[Hashable, ...] | None
    _ndim: ClassVar[int] = 1  # axes of the mask of one set

    def __post_init__(self) -> None:
        if self.classes is not None:
            self._check_one_axis("names for masks")
            _names.keep_names(self, "classes")
            _names.check_count("classes", self.classes, np.shape(self.mask)[-1])

    def size(self) -> Array:
        """Returns the number of labels or pixels, int of shape ()."""
        return jnp.sum(self.mask, axis=self._axes(), dtype=int)

    def is_empty(self) -> Array:
        """Returns whether there is nothing in the set, bool of shape ()."""
        return ~jnp.any(self.mask, axis=self._axes())

    def labels(
        self, classes: Iterable[Hashable] | None = None
    ) -> list[Hashable] | list[list[Hashable]]:
        """Returns the labels in the set by name, in order of the columns of one axis.

        A list of them; for a batch a list of such lists. By `classes` if given, else by
        the names that the set has, else as 0, ..., k - 1. An error while traced.
        """
        self._check_one_axis("labels() of masks")
        names = (self if classes is None else self.named(classes)).classes
        mask = np.asarray(self.mask)
        return _listed(mask, names or range(mask.shape[-1]))

    def named(self, classes: Iterable[Hashable] | None) -> Self:
        """Returns the set with k names for its labels, or without for None."""
        if classes is self.classes:
            return self
        return replace(self, classes=classes)  # type: ignore[type-var]

    def checked(self, num_sets: int) -> Self:
        """Returns the sets if their mask has one leading axis, bool."""
        mask = self.mask
        if mask.ndim != self._ndim + 1 or mask.dtype != bool:
            expected = f"a mask of {self._ndim + 1} axes, bool"
            raise ValueError(f"expected {expected}, got {mask.dtype}{mask.shape}")
        return super().checked(num_sets)

    def to_numpy(self) -> np.ndarray:
        """Returns what is in each set, bool of shape (m, ...)."""
        return np.array(self.mask)

    def to_dict(self) -> dict[str, Any]:
        """Returns the labels in each set by name; for several axes the mask, as lists.

        Example:
          >>> LabelSet(jnp.array([[True, False], [True, True]])).to_dict()
          {'labels': [[0], [0, 1]]}
        """
        return {"labels": self.labels()} if self._ndim == 1 else super().to_dict()

    def _batch(self):
        shape = np.shape(self.mask)
        return shape[: len(shape) - self._ndim]

    def _axes(self):
        return tuple(range(-self._ndim, 0))

    def _columns(self, names):
        self._check_one_axis("a frame of masks")
        names = self.classes if names is None else names
        return list(range(np.shape(self.mask)[-1]) if names is None else names)

    def _check_one_axis(self, what):
        if self._ndim != 1:
            raise ValueError(
                f"expected {what} of one axis of labels, got {self._ndim}; the field "
                "mask holds them as an array"
            )


class _Several(Marks):
    """What sets have in common whose targets are masks."""

    def marks(self) -> Array:
        """Returns what is in the set, bool of the shape of a target."""
        return self.mask

    def codes(self, y: Any) -> Any:
        """Returns masks as they are: their columns are the labels."""
        return y

    def target_shape(self) -> Shape:
        """Returns the shape of a target, that of one mask."""
        shape = np.shape(self.mask)
        return shape[len(shape) - self._ndim :]

    def _flags(self, y):
        """Returns masks of what is true and of what is in the set, of one shape."""
        mask, y = as_array("mask", self.mask), as_array("y", y)
        shape = self.target_shape()
        if y.shape[max(y.ndim - self._ndim, 0) :] != shape:
            raise ValueError(f"expected y as masks of shape {shape}, got {y.shape}")
        return jnp.broadcast_arrays(y != 0, mask)


@pytree
class LabelMask(_Several):
    """A set of labels, or of pixels, that is to hold all the true ones of an example.

    The target is a mask too, and it is in the set if all of its labels are: an example
    without any is in every set. It may be empty.

    Args:
      mask: True for what is in the set, bool of `ndim` axes.
      ndim: How many axes the mask of one set has: 1 for labels, 2 for pixels.
      classes: Names of the labels of one axis, k distinct hashable ones, or None.

    See also:
      scores.MultiLabel, sets.LabelSet, risk.false_negative_rate, typing.HasMarks

    Example:
      >>> kept = LabelMask(jnp.array([True, False, True]))
      >>> bool(kept.contains(jnp.array([True, False, False])))
      True
      >>> LabelMask(kept.mask, classes=("cat", "dog", "bird")).labels()
      ['cat', 'bird']
      >>> LabelMask(jnp.ones((5, 2, 2), bool), ndim=2).size()  # pixels of five images
      Array([4, 4, 4, 4, 4], dtype=int32)
    """

    mask: Array
    ndim: int = static(default=1)
    classes: tuple[Hashable, ...] | None = static(default=None)

    def __post_init__(self) -> None:
        _checks.check_count("ndim", self.ndim, 0)
        super().__post_init__()

    _ndim = property(lambda self: self.ndim)

    def contains(self, y: Any) -> Array:
        """Returns whether all labels of the mask `y` are in the set.

        `y` has the shape of one set, bool or 0 and 1; a batch takes one for each set,
        or one for all.
        """
        true, mask = self._flags(y)
        return jnp.all(~true | mask, axis=self._axes())


@pytree
class Kept(_Several):
    """Claims of an answer that are kept: at least a share of them is to be true.

    The target says which claims are true. It is in the set if

    #{kept and true} >= share #{kept},

    also where nothing is kept. A `LabelMask` asks the opposite: that all that is true
    is in it. The share is compared by one division in the type of `share`, rounded to
    the nearest float: 7 of 10 are a share of 0.7.

    Args:
      mask: True for claims that are kept, bool of shape (m,).
      share: Least share of true claims among those kept, in (0, 1], shape (). A batch
        has one for each set.
      classes: Names of the claims, m distinct hashable ones, or None: where all answers
        make the same ones, as findings in a report.

    See also:
      scores.Claims, sets.LabelMask, risk.false_discovery_rate

    Example:
      >>> kept = Kept(jnp.array([True, False, True]), share=1.0)
      >>> bool(kept.contains(jnp.array([True, False, True])))
      True
      >>> bool(kept.contains(jnp.array([True, True, False])))
      False
      >>> kept.size(), kept.labels()
      (Array(2, dtype=int32), [0, 2])
    """

    mask: Array
    share: Array
    classes: tuple[Hashable, ...] | None = static(default=None)

    def contains(self, y: Any) -> Array:
        """Returns whether at least the share of the claims kept are true.

        `y` has the shape of one set, bool or 0 and 1; a batch takes one for each set,
        or one for all.
        """
        true, mask = self._flags(y)
        return is_share(true & mask, mask, self.share)


def is_share(part: Array, whole: Array, share: Number) -> Array:
    """Returns whether a share of the flags of the whole, if any, are in the part."""
    count, number = (jnp.sum(v, axis=-1, dtype=int) for v in (part, whole))
    share = jnp.broadcast_to(as_float(share), count.shape)
    found = quotient(count.astype(share.dtype), jnp.maximum(number, 1))
    return (number == 0) | (found >= share)


@pytree
class LabelSet(Marks):
    """A set of labels out of 0, ..., k - 1, which may have names; it may be empty.

    Args:
      mask: True for the labels in the set, bool of shape (k,).
      classes: Names of the labels, k distinct hashable ones, or None. Targets are then
        given by name: always if a name is a number; else integers still are labels
        0, ..., k - 1.

    See also:
      scores.LAC, metrics.singleton_rate, metrics.mean_size

    Example:
      >>> LabelSet(jnp.array([True, False, True])).contains(2)
      Array(True, dtype=bool)
      >>> pets = LabelSet(jnp.array([True, False]), classes=("cat", "dog"))
      >>> pets.labels(), bool(pets.contains("dog"))
      (['cat'], False)
    """

    mask: Array
    classes: tuple[Hashable, ...] | None = static(default=None)

    def contains(self, y: Any) -> Array:
        """Returns whether label `y` is in the set; labels out of range are not.

        A batch with a mask of shape (m, k) takes labels of shape (m,) or (m, 1), or one
        for all. ValueError for a concrete label that is none of the names there are, or
        no whole number; a traced one is not in the set.
        """
        y = _as_places(as_array("y", self.codes(y)))
        mask = as_array("mask", self.mask)
        k = mask.shape[-1]
        if mask.ndim == 1:
            inside = mask.at[y].get(mode="fill", fill_value=False)
        else:
            y = without_axis(y, mask.ndim - 1)
            batch = jnp.broadcast_shapes(y.shape, mask.shape[:-1])
            mask = jnp.broadcast_to(mask, (*batch, k))
            place = jnp.broadcast_to(jnp.clip(y, 0, k - 1), batch)
            inside = jnp.take_along_axis(mask, place[..., None], axis=-1)[..., 0]
        return inside & (y >= 0) & (y < k)

    def members(self) -> Array:
        """Returns which labels are in the set, bool of shape (k,)."""
        return self.mask

    def codes(self, y: Any) -> Any:
        """Returns labels by name as 0, ..., k - 1; k for a traced one that is none.

        Without names, and where integers are no names, labels as they are. ValueError
        for a concrete label that is none of the names.
        """
        if self.classes is None:
            return y
        return _names.codes(self.classes, "y", y, "the classes")

    def target_shape(self) -> Shape:
        """Returns the shape of a label, ()."""
        return ()


def _as_places(y):
    """Returns labels as integers, -1 for what is no whole number."""
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return y.astype(int)  # narrow types may not hold all
    _checks.check_values(lambda v: v == np.floor(v), "y as whole numbers", y)
    return jnp.where(y == jnp.floor(y), y, -1).astype(int)


def _listed(mask, names):
    """Returns the names of the labels in each row of a mask."""
    if mask.ndim > 2:
        return [_listed(part, names) for part in mask]
    found = [names[place] for place in np.nonzero(mask)[-1].tolist()]
    if mask.ndim == 1:
        return found
    ends = np.cumsum(np.sum(mask, axis=1)).tolist()
    return [found[start:end] for start, end in pairwise([0, *ends])]
