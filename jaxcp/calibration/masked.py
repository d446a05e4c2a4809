"""Calibration for each pattern of hidden inputs: rows are hidden as test rows are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.calibration.calibrating import predicted
from jaxcp.calibration.predictor import predictions
from jaxcp.calibration.split import GroupCalibration
from jaxcp.certificates.promises import Promised
from jaxcp.held import taking
from jaxcp.typing import AnySet, ArrayLike, Number, Predict, PyTree, Score

_MOST = 2**26  # numbers that a model is given at a time: 256 MB in single precision


@pytree
class MaskedCalibration(Promised):
    """Rows that are hidden further, as each test row is, before a model sees them.

    Made by `calibrate_masked`. It is called with inputs of the test rows.

    Args:
      predict: `(params, x) -> preds`, over the leading axis of x.
      params: Whatever `predict` takes, any pytree.
      score: The nonconformity score.
      x: Inputs of the rows, shape (n, d), `fill` where they are hidden.
      y: Targets of the rows, shape (n, ...); labels as 0, ..., k - 1.
      missing: True where an input is hidden, bool of shape (n, d).
      fill: What hidden inputs become, shape () or (d,).
      classes: Names of the labels, used by sets and targets, or None.
      columns: Columns of the frame that inputs were, which later frames have, or None.
      flagged: Whether `missing` was given, as it then is for test rows.

    See also:
      calibrate_masked, SplitConformal, GroupCalibration
    """

    predict: Predict = static()
    params: PyTree
    score: Score
    x: Array
    y: Array
    missing: Array
    fill: Array
    classes: tuple[Hashable, ...] | None = static(default=None)
    columns: tuple[Hashable, ...] | None = static(default=None)
    flagged: bool = static(default=False)
    promise = "P(Y in set given which inputs are missing) >= 1 - {alpha}"
    assumption = (
        "rows of calibration and new ones are {rows}, the model and the imputer saw "
        "neither, and which inputs are missing is independent of inputs and targets"
    )

    def at_masks(self, masks: ArrayLike) -> GroupCalibration:
        """Returns the calibration for given masks, each a group of its own.

        Group g has the rows whose mask is within masks[g], hidden to exactly this one:
        `.quantile(alpha)` has a threshold for each, `.certificate(alpha)` what is sure,
        `.held.counts()` how many rows there are.

        Args:
          masks: True where an input is hidden, array of shape (g, d), at least one.

        Returns:
          A `GroupCalibration` of g groups.

        Raises:
          ValueError: if `masks` are no flags of shape (g, d), or as `calibrate`.

        Guarantee:
          1 - alpha in each group: given the mask of a test row.

        Assumption:
          Those of `calibrate_masked`.

        Cost:
          g n predictions and scores.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> x = jnp.array([[1.0, 0.0], [2.0, jnp.nan], [3.0, 1.0], [jnp.nan, 2.0]])
          >>> first = lambda _, x: jnp.nan_to_num(x[:, 0])
          >>> y = jnp.array([2.0, 2.0, 6.0, 9.0])
          >>> cp = calibrate_masked(first, None, Absolute(), x, y)
          >>> each = cp.at_masks([[False, False], [False, True], [True, True]])
          >>> each.held.counts().tolist(), each.quantile(0.5).tolist()
          ([2, 3, 4], [3.0, 1.0, 6.0])
        """
        masks = _flags("masks", masks, (*np.shape(masks)[:1], self.x.shape[1]))
        g, n = len(masks), len(self.x)
        beyond = 1.0 * ~masks @ (1.0 * self.missing.T)  # how many, (g, n)
        within = beyond == 0
        groups = _names.Groups(np.repeat(np.arange(g), n), g, None)
        y = jnp.tile(self.y, (g, *(1,) * (self.y.ndim - 1)))
        rows = self._preds(masks), y, None, within.reshape(-1), groups
        held, shapes = taking.scored(self.score, *rows)
        known = held.values, held.groups, held.mask, g, shapes, None, self.classes
        return GroupCalibration(self.score, *known)

    @_checks.with_alpha
    def __call__(
        self,
        x: ArrayLike,
        alpha: ArrayLike,
        *,
        missing: ArrayLike | None = None,
        delta: Number | None = None,
        u: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets of test rows.

        With m the mask of a test row: {y : s(f(x), y) <= q}, q the conformal quantile
        of the scores of the rows whose mask is within m, each hidden to exactly m.

        Args:
          x: Inputs of the test rows, shape (m, d), NaN where they are hidden.
          alpha: Miscoverage level, shape ().
          missing: True where an input is hidden beside those that are NaN, shape (m,
            d); these may have any value in `x`. Needed if it was given at calibration.
          delta: Probability of a bad calibration set, as for `Calibration`.
          u: Uniforms for smoothed sets, shape (m,), as for `Calibration`.

        Returns:
          Sets with leading axis m, infinite where fewer than 1/alpha - 1 rows have a
          mask within that of the test row.

        Raises:
          ValueError: if `x` and `missing` are not of shape (m, d), and as calling a
            `GroupCalibration`.

        Guarantee:
          P(Y in set | mask) >= 1 - alpha for each mask; with `delta` given the
          calibration data too, with probability 1 - delta over these.

        Assumption:
          Those of `calibrate_masked`.

        Cost:
          n predictions for each distinct mask among the test rows, in one call of
          `predict` of up to 2^26 inputs; within a program, where masks are not known,
          n for each test row.
        """
        preds, groups, calibration = self._at(x, missing)
        _checks.check_scalars(alpha=alpha)
        return calibration(preds, alpha, groups=groups, delta=delta, u=u)

    @_checks.by_labels
    def p_values(
        self, x: ArrayLike, y: Any = None, *, missing: Any = None, u: Any = None
    ) -> Array:
        """Returns how exceptional targets are among the rows with their mask.

        Args:
          x: Inputs of the test rows, shape (m, d), NaN where they are hidden.
          y: Targets, shape (m, ...); left out, each label is a candidate.
          missing: True where an input is hidden, shape (m, d), as for the sets.
          u: Uniforms for smoothed p-values, shape (m,).

        Returns:
          p-values, shape (m,), or (m, k) of all k labels: the share of the rows within
          the mask, and the test row, that are at least as strange.

        Raises:
          ValueError: as calling this.

        Guarantee:
          P(p <= alpha | mask) <= alpha for each mask.

        Assumption:
          Those of `calibrate_masked`.

        Cost:
          That of the sets.
        """
        preds, groups, calibration = self._at(x, missing)
        return calibration.p_values(preds, y, groups=groups, u=u)

    def _at(self, x, missing):
        """Returns predictions of test rows, the groups of their masks, and these."""
        _check_columns(self.columns, x=x, missing=missing)
        if self.flagged and missing is None:
            cure = "numpy.isnan(x) flags NaN"
            raise ValueError(f"expected missing, as at calibration, got None; {cure}")
        x, masks = _hidden(x, missing, self.fill, self.x.shape[1])
        preds = predictions(self.predict, self.params, _framed(x, self.columns))
        if not isinstance(masks, np.ndarray):  # traced: each row has a mask of its own
            return preds, jnp.arange(len(masks)), self.at_masks(masks)
        given = masks if len(masks) else np.ones((1, self.x.shape[1]), bool)
        found, groups = np.unique(given, axis=0, return_inverse=True)
        return preds, groups.reshape(-1)[: len(masks)], self.at_masks(found)

    def _preds(self, masks):
        """Returns predictions of the rows hidden to each mask, one after another."""

        def of(masks):
            hidden = masks[:, None] | self.missing[None]
            x = _filled(self.x[None], hidden, self.fill).reshape(-1, self.x.shape[1])
            x = _framed(x, self.columns)
            return _arrays.as_arrays(preds=predictions(self.predict, self.params, x))

        size = max(_MOST // max(self.x.size, 1), 1)
        parts = [of(masks[i : i + size]) for i in range(0, max(len(masks), 1), size)]
        return jax.tree.map(lambda *v: jnp.concatenate(v), *parts)


@_checks.verb
def calibrate_masked(
    predict: Predict,
    params: PyTree,
    score: Score,
    x: ArrayLike,
    y: ArrayLike,
    missing: ArrayLike | None = None,
    *,
    fill: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> MaskedCalibration:
    """Returns a conformal predictor for inputs with missing entries (MDA-Exact).

    For a test row whose hidden inputs are m, the calibration rows are those whose mask
    is within m, each hidden further to exactly m before the model sees it: sets cover
    for each pattern of missing inputs, and not only on average.

    Args:
      predict: Prediction function `(params, x) -> preds`, over the leading axis of x,
        with its imputer; it need not be jax.
      params: First argument of `predict`, any pytree (also None).
      score: Nonconformity score of one example.
      x: Inputs of the calibration set, numbers of shape (n, d), NaN (or None, NA)
        where they are hidden. A model outside of jax is given numpy arrays where these
        come in, and of a frame frames with its columns.
      y: Targets, shape (n, ...), or labels.
      missing: True where an input is hidden beside those that are NaN, shape (n, d).
      fill: What hidden inputs become before the model sees them, shape () or (d,), such
        as means of training rows. Defaults to NaN, for a model that imputes.
      classes: Names of the k labels, as for `calibrate`.

    Returns:
      A `MaskedCalibration`: call it with inputs of test rows, NaN where hidden.

    Raises:
      ValueError: if `x` and `missing` are not of shape (n, d), `fill` has another
        shape, `predict` is no function, or as `calibrate`: also if predictions of rows
        with hidden inputs are NaN.

    Guarantee:
      P(Y in set | mask) >= 1 - alpha for each mask of a test row, however rare. A mask
      that fewer than 1/alpha - 1 rows are within has infinite sets.

    Assumption:
      Exchangeable calibration and test examples, masks that are independent of inputs
      and targets (missing completely at random), and a model and an imputer that were
      fitted on other rows.

    Cost:
      n predictions, and n for each distinct mask of the test rows when it is called;
      never for all 2^d masks.

    References:
      Zaffran, Dieuleveut, Josse, Romano, Conformal Prediction with Missing Values,
      ICML, 2023.

    See also:
      split_conformal, calibrate_groups, metrics.group_coverage, MaskedCalibration

    Example:
      >>> from jaxcp.scores import Absolute
      >>> x = jnp.array([[1.0, 0.0], [2.0, jnp.nan], [3.0, 1.0], [4.0, 2.0]])
      >>> total = lambda _, x: x.sum(axis=1)
      >>> y = jnp.array([1.0, 3.0, 5.0, 7.0])
      >>> cp = calibrate_masked(total, None, Absolute(), x, y, fill=0.0)
      >>> cp(jnp.array([[1.0, 1.0], [1.0, jnp.nan]]), alpha=0.4).upper
      Array([3., 3.], dtype=float32)
    """
    names, flagged = taking.classes_of(score, classes), missing is not None
    columns = tuple(x.columns) if hasattr(x, "columns") else None
    _check_columns(columns, missing=missing, fill=fill)
    own: Any = np.nan if fill is None else fill
    own = own if isinstance(own, Array) else _arrays.as_numpy("fill", own)
    x, missing = _hidden(x, missing, own)
    preds = predicted(predict, params, _framed(x, columns))
    taking.scored(score, preds, y, classes=names)  # its checks, before a test row
    y = taking.held_rows(score, preds, y, None, None, classes=names).values[1]
    rows = x, y, missing, own, names, columns, flagged
    return MaskedCalibration(predict, params, score, *rows)


def _framed(x, columns):
    """Returns inputs as a frame where they came as one, and have values."""
    if columns is None or not _arrays.is_concrete(x):
        return x
    return import_module("pandas").DataFrame(np.asarray(x), columns=columns)


def _check_columns(columns, **named):
    """Raises ValueError for frames and series of other columns, or in other orders."""
    for name, v in named.items():
        if columns is not None and hasattr(v, "iloc"):
            found = tuple(v.columns if np.ndim(v) == 2 else v.index)
            if found != columns:
                raise ValueError(
                    f"expected {name} of the columns {columns}, in order, got {found}"
                )


def _flags(name, value, shape):
    """Returns flags of a shape, of numpy where they are known: it compiles nothing."""
    found = _checks.flags(name, value)
    _checks.check_shape(name, shape, found.shape)
    return np.asarray(found) if _arrays.is_concrete(found) else found


def _hidden(x, missing, fill, width="d"):
    """Returns inputs with hidden ones filled, and which these are, (n, d)."""
    x = x if isinstance(x, Array) else _arrays.as_numpy("x", x)
    if x.ndim != 2 or width not in ("d", x.shape[1]):
        raise ValueError(f"expected x of shape (n, {width}), got {x.shape}")
    if x.dtype == object:  # with None or NA
        given = [np.nan if _names.is_missing(v) else v for v in np.ravel(x)]
        x = np.array(given).reshape(x.shape)
    if x.dtype.kind in "OSUM":
        raise ValueError(f"expected x as numbers, got {x.dtype}")
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
    hidden = _flags("x", x != x, x.shape)  # NaN alone differs from itself
    if missing is not None:
        hidden = hidden | _flags("missing", missing, x.shape)
    return _filled(x, hidden, fill), hidden


def _filled(x, hidden, fill):
    """Returns inputs with other values where they are hidden."""
    _checks.check_shape("fill", x.shape[-1:] if np.ndim(fill) else (), np.shape(fill))
    own = np if {*map(type, (x, hidden))} == {np.ndarray} else jnp
    x = own.asarray(x)
    return own.where(hidden, own.broadcast_to(fill, x.shape).astype(x.dtype), x)
