"""Metrics of each group in one table, with the names of the groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _arrays, _batching, _tree
from jaxcp._numbers import as_float, quotient
from jaxcp.metrics import _sets, losses, rates
from jaxcp.metrics.overview import Summary, has_size
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, Set

if TYPE_CHECKING:
    import pandas as pd


class GroupSummary(Summary):
    """A dict from names of metrics to arrays with an entry for each group.

    Made by `by_group`. A pytree, as `Summary` is, whose structure has the names. It
    prints as a table.

    Args:
      names: Names of the g groups.

    See also:
      metrics.by_group, metrics.Summary
    """

    names: tuple[Hashable, ...] = ()

    def to_pandas(self) -> pd.DataFrame:
        """Returns a frame with a row for each group, by its name."""
        import pandas as pd

        columns = {name: np.asarray(value) for name, value in self.items()}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="group"))

    def rows(self) -> list[tuple[str, ...]]:
        """Returns the table as text: a line of heads, and one for each group."""
        columns = [[name, *map(_shown, np.asarray(v))] for name, v in self.items()]
        return [*zip(["group", *map(str, self.names)], *columns, strict=True)]

    def __repr__(self) -> str:
        """Returns the table; of several levels, and while traced, the arrays."""
        if not _arrays.is_concrete(*self.values()) or jnp.ndim(self["n"]) != 1:
            return super().__repr__()
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pad = lambda row: [v.rjust(w) for v, w in zip(row, widths, strict=True)]  # noqa: E731
        return "\n".join(
            row[0].ljust(widths[0]) + "  " + "  ".join(pad(row)[1:]) for row in rows
        )


def _named(names, found):
    """Returns metrics of groups with their names."""
    table = GroupSummary(found)
    table.names = names
    return table


def _flatten(found):
    keys = (jax.tree_util.DictKey(name) for name in found)
    return tuple(zip(keys, found.values(), strict=True)), (tuple(found), found.names)


def _unflatten(structure, values):
    return _named(structure[1], zip(structure[0], values, strict=True))


jax.tree_util.register_pytree_with_keys(GroupSummary, _flatten, _unflatten)


def _shown(value):
    return f"{value:,}" if value.dtype.kind in "iu" else f"{value:.4g}"


def by_group(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    group_names: Iterable[Hashable] | None = None,
    num_groups: int | None = None,
    loss: Callable | None = None,
) -> GroupSummary:
    """Returns coverage and sizes within each group, with the names of the groups.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      groups: Group of each row, int or by name, shape (m,); flags of groups that
        overlap, shape (m, g), which may be a frame with their names.
      group_names: Names of the groups as for `group_coverage`.
      num_groups: Number of groups. Defaults to the largest one of `groups` plus 1,
        which has to be known: give it inside jit.
      loss: A loss of one example, as for `mean_loss`.

    Returns:
      A `GroupSummary`, a dict of arrays of shape (g,), of numpy outside of jit and
      vmap: "n", the number of rows, and "coverage" with "coverage_error", its standard
      error sqrt(c (1 - c) / n), always; "mean_size" for sets with a size, and, unless
      they are of labels, "mean_finite_size" and "infinite_rate"; for intervals the
      shares of targets that lie below and above, "missed_below" and "missed_above", for
      others "missed"; with a loss "mean_loss" and "mean_loss_error". NaN for groups
      without rows. `to_pandas()` makes a frame, and `names` are the groups.

    Raises:
      ValueError: as `group_coverage` and `mean_loss`, or if the number of groups is not
        known.

    Cost:
      O(m) time, in one program; O(m g) for flags.

    See also:
      metrics.group_coverage, metrics.summary, metrics.GroupSummary,
      plotting.plot_group_coverage, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> found = by_group(sets, y, ["north", "north", "south"])
      >>> found.names, found["coverage"].tolist()
      (('north', 'south'), [0.5, 1.0])
    """
    sets, y = _sets.check_sets(sets, y)
    given = rates.named_groups(y, groups, num_groups, group_names)
    options = {"loss": None if loss is None else losses.as_loss(loss)}
    options |= {"num_groups": given.count}
    found = _batching.counted(_by_group, sets, y, given.codes, **options)
    if _arrays.is_concrete(*found.values()):
        found = {name: np.array(value) for name, value in found.items()}
    return _named(given.names, found)


@_tree.jit(static_argnames="num_groups")
def _by_group(sets, y, groups, count, loss, num_groups):
    """Returns `by_group` of checked arguments, in one program."""

    def means(values, where=True):
        return rates.means_of(values, groups, num_groups, count, where)

    covered = _sets.is_covered(sets, y)
    rate, n = rates.rates_of(covered, groups, num_groups, count)
    error = jnp.sqrt(quotient(rate * (1 - rate), n))
    found = Summary(n=n, coverage=rate, coverage_error=error)
    if has_size(sets):
        sizes = as_float(_sets.closed_form_sizes(sets))
        found["mean_size"] = means(sizes)
        if not isinstance(sets, HasLabels):
            infinite = sizes == jnp.inf
            found["mean_finite_size"] = means(sizes, ~infinite)
            found["infinite_rate"] = means(_sets.where_known(infinite, sizes))
    ends = as_intervals(sets)
    if isinstance(ends, Interval):
        below = _sets.where_known(y.reshape(covered.shape) < ends.lower, covered)
        found["missed_below"] = means(below)
        found["missed_above"] = means(1 - covered - below)
    else:
        found["missed"] = means(1 - covered)
    if loss is not None:
        lost = losses.losses_of(loss, sets, y)
        found["mean_loss"] = means(lost)
        lost = lost - jnp.nanmean(lost)  # of small numbers squares keep their digits
        spread = jnp.maximum(means(lost**2) - means(lost) ** 2, 0)
        found["mean_loss_error"] = jnp.sqrt(quotient(spread, n - 1))
    return found
