"""The verb that calibrates by group (Mondrian)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from jaxcp import _checks, _named
from jaxcp.calibration import _rows as rows
from jaxcp.calibration.groups import GroupCalibration
from jaxcp.typing import ArrayLike, PyTree, Score


def calibrate_groups(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> GroupCalibration:
    """Returns the calibration of a score with one threshold a group (Mondrian).

    With `groups=y` for labels the sets are class-conditional; then predict without
    groups.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (n,), or its name.
      num_groups: Number of groups g (of classes k, for class-conditional sets). May be
        left out where groups have names.
      group_names: Names of the g groups, distinct hashable values; numbers are treated
        as in `classes`. Defaults to the classes if the groups are the labels `y`, to
        the categories of groups from pandas, else to the distinct groups in order.
        Groups that are integers need `num_groups` instead.
      weights: Weights >= 0 of the rows, shape (n,), as for `calibrate`.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the k labels, used in `y`, as for `calibrate`.

    Returns:
      A `GroupCalibration`: call it with predictions, alpha and groups.

    Raises:
      ValueError: as `calibrate`, and if a concrete group is out of range or none of the
        `group_names`, or their number is not known.

    Guarantee:
      1 - alpha within every group. A group with fewer than 1/alpha - 1 rows has
      infinite sets.

    Assumption:
      The calibration and test examples of a group are exchangeable, and groups are
      known at prediction.

    Cost:
      As `calibrate`; thresholds take O(g n) for each alpha.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      calibrate, grouped_conformal_quantile, metrics.group_coverage,
      metrics.class_coverage

    Example:
      >>> from jaxcp.scores import LAC
      >>> p = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
      >>> y = jnp.array([0, 0, 1, 1])
      >>> cp = calibrate_groups(LAC(), p, y, y, num_groups=2)
      >>> cp(jnp.array([[0.85, 0.15]]), alpha=0.4).mask
      Array([[ True, False]], dtype=bool)
      >>> y, sites = ["cat", "cat", "dog", "dog"], ["zoo", "farm", "zoo", "farm"]
      >>> cp = calibrate_groups(LAC(), p, y, sites, classes=["cat", "dog"])
      >>> cp.group_names, cp(p[:1], alpha=0.5, groups=["zoo"]).labels()
      (('farm', 'zoo'), [['cat']])
    """
    names = rows.classes_of(score, classes)
    if group_names is None and num_groups is None and names is not None:
        group_names = names if rows.are_labels(groups, y, names) else None
    given = _named.as_groups(groups, num_groups, group_names, mask)
    columns = _checks.groups(given.codes, given.count)
    scores, weights, mask, shapes, groups = rows.scored(
        score, preds, y, weights, mask, columns, names
    )
    named, count = (names, given.names), given.count
    return GroupCalibration(score, scores, groups, mask, count, shapes, weights, *named)
