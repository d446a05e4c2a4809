"""What sets offer: a protocol for each thing that some of them can do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol, Self, runtime_checkable

from jax import Array


@runtime_checkable
class Set(Protocol):
    """A prediction set for one example: any object that knows its members.

    The next protocols say what else a set may offer. They look at its methods, not at
    its class. A method is for one example; leading axes are batches.

    See also:
      sets.Interval, sets.membership
    """

    def contains(self, y: Array) -> Array:
        """Returns whether `y` is in the set, a bool of shape ()."""


@runtime_checkable
class HasSize(Set, Protocol):
    """A set with a size in closed form: sizes, their means and strata by size.

    See also:
      metrics.sizes, metrics.mean_size
    """

    def size(self) -> Array:
        """Returns the width, count or volume of the set, shape ()."""


@runtime_checkable
class MayBeEmpty(Set, Protocol):
    """A set that knows whether it is empty; others are where their size is 0.

    See also:
      metrics.empty_rate
    """

    def is_empty(self) -> Array:
        """Returns whether nothing is in the set, a bool of shape ()."""


@runtime_checkable
class HasLabels(Set, Protocol):
    """A set of labels out of 0, ..., k - 1: metrics of classes and of single labels.

    See also:
      sets.LabelSet, metrics.class_coverage
    """

    def members(self) -> Array:
        """Returns which labels are in the set, bool of shape (k,)."""


@runtime_checkable
class HasMarks(Set, Protocol):
    """A set of several labels, or of pixels, whose target is a mask: losses of these.

    See also:
      sets.LabelMask, risk.false_negative_rate
    """

    def marks(self) -> Array:
        """Returns what is in the set, bool of the shape of a target."""


@runtime_checkable
class HasNames(Set, Protocol):
    """A set of labels that may have names: calibrations with `classes` give theirs.

    See also:
      sets.LabelSet, sets.LabelMask, calibrate
    """

    def named(self, classes: Iterable[Hashable] | None) -> Self:
        """Returns the set with these k names for its labels, or without for None."""

    def codes(self, y: Any) -> Any:
        """Returns labels by the names of the set as 0, ..., k - 1."""


@runtime_checkable
class HasShapes(Set, Protocol):
    """A set that checks its own arrays, and says what its targets look like.

    Metrics then refuse targets of another shape; a single output may come with an axis
    of its own or without.

    See also:
      metrics.coverage
    """

    def checked(self, num_sets: int) -> Self:
        """Returns a batch of so many sets; ValueError for arrays of other shapes."""

    def target_shape(self) -> tuple[int, ...]:
        """Returns the shape of one target."""


@runtime_checkable
class HasEnds(Set, Protocol):
    """A set of all targets between two ends, which is closed: an interval or a box.

    See also:
      sets.Interval, sets.Box
    """

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper): y is in the set iff all(lower <= y <= upper).

        Each of the shape of a target; leading axes are batches.
        """

    def with_ends(self, lower: Array, upper: Array) -> HasEnds:
        """Returns the set of this kind with other ends."""


@runtime_checkable
class HasPieces(Set, Protocol):
    """A set on the line that is a union of closed intervals, with gaps between them.

    Metrics of intervals refuse it: it has more ends than two.

    See also:
      sets.Intervals
    """

    def pieces(self) -> tuple[Array, Array]:
        """Returns (lower, upper): y is in the set iff any(lower <= y <= upper).

        Each of shape (k,), pieces that do not meet; leading axes are batches.
        """

    def hull(self) -> HasEnds:
        """Returns the smallest interval that holds all pieces."""


@runtime_checkable
class HasWidths(Set, Protocol):
    """A set that says how wide it is, so that metrics notice lost digits.

    See also:
      metrics.coverage
    """

    def widths(self) -> Array:
        """Returns how far the ends of each number are apart, shaped as a target."""


@runtime_checkable
class HasBounds(Set, Protocol):
    """A set that fits into a box: pictures show what lies in it.

    See also:
      plotting.plot_region
    """

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of a box around it, each of shape (d,)."""


@runtime_checkable
class HasLogSize(Set, Protocol):
    """A set in R^d with a volume in closed form, for `jaxcp.volume`.

    See also:
      volume
    """

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf for nothing."""


@runtime_checkable
class HasEstimate(Set, Protocol):
    """A set in R^d whose volume is estimated, for `jaxcp.volume` and training.

    See also:
      volume, training.soft_size
    """

    def estimate_log_size(
        self, key: Array, num_samples: int, *, sobol: bool
    ) -> tuple[Array, Array]:
        """Returns the log of the volume and its standard error, each of shape ().

        From `num_samples` points, scrambled Sobol points if `sobol`.
        """


@runtime_checkable
class HasSoftSize(Set, Protocol):
    """A set with a size that has a gradient where it is crossed too, for training.

    See also:
      training.soft_size
    """

    def soft_size(self, temperature: Array) -> Array:
        """Returns the size with lengths w as temperature log(1 + exp(w / temperature)).

        Shape (), in units of the target. For temperature -> 0 it is `size()`.
        """


@runtime_checkable
class HasRounding(Set, Protocol):
    """A set that may hold targets beyond its threshold by rounding.

    See also:
      sets.LevelSet.exact, sets.Ball.exact
    """

    def exact(self) -> Self:
        """Returns the set without them."""


# What a predictor returns: a `Set`, or a batch of them, of the kind that its score
# gives (Interval, LabelSet, ...). Which one no annotation of a predictor can say.
AnySet = Any
