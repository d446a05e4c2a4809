"""How hard each row is, from rows of training: a scale for `Normalized`."""

from __future__ import annotations

import dataclasses
import zlib
from itertools import repeat
from typing import Any

import jax
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_host_array
from jaxcp._batching import rows_at_a_time
from jaxcp.learners import _hosting

_FEW, _DISTINCT = 5, 0.99  # rows that are looked at, and the share that differs


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Difficulty:
    """The difficulty sigma > 0 of rows: `scores.Normalized` reads (pred, sigma).

    `fit(x, ...)` to rows of training returns the fitted one, and that, called with
    other rows, returns their sigma = d + beta. By kind, d is

    * "knn": the mean absolute residual of the k nearest rows of training; without
      residuals the standard deviation of their targets; without targets the sum of
      their distances. Columns are scaled to [0, 1] by the rows of training.
    * "model": what a copy of `model`, fitted to absolute residuals, predicts, at
      least 0.
    * "spread": the standard deviation of what the members of an ensemble predict, such
      as the trees of a fitted forest.

    Args:
      kind: "knn", "model" or "spread".
      model: An unfitted model with `fit(X, y)` and `predict(X)` for "model"; for
        "spread" a fitted one with `estimators_`, or a list of fitted models.
      num_neighbors: Number k of rows for "knn".
      beta: What is added, > 0, in units of d: choose it below most residuals.
      fitted: Rows of training, their targets and residuals; `fit` sets it.

    Raises:
      ValueError: for an unknown kind, a model that does not fit it, or `beta` <= 0.

    Guarantee:
      None of its own: `calibrate` covers at least 1 - alpha whatever sigma is, for rows
      that did not fit it.

    Assumption:
      Rows of training are not those that calibrate: most of 5 rows or more that were
      in the fit are refused. Residuals are of rows that their model did not see
      (out-of-fold, `sklearn.model_selection.cross_val_predict`): those of a model on
      its own rows are valid here too, but too alike to tell hard rows from easy ones.

    Cost:
      On the host. "knn": all distances from new rows to those of training, in blocks;
      "model": one fit; "spread": the predictions of all members.

    References:
      Papadopoulos, Gammerman, Vovk, Normalized Nonconformity Measures for Regression
      Conformal Prediction, Artificial Intelligence and Applications, 2008.

    See also:
      scores.Normalized, conditional.bins, learners.Estimator, learners.MeanScale

    Example:
      >>> from sklearn.linear_model import LinearRegression
      >>> from sklearn.model_selection import cross_val_predict
      >>> rng = np.random.default_rng(0)
      >>> x = rng.uniform(size=(400, 1))
      >>> y = x[:, 0] + x[:, 0] * rng.normal(size=400)  # harder on the right
      >>> model = LinearRegression().fit(x[:200], y[:200])
      >>> errors = y[:200] - cross_val_predict(LinearRegression(), x[:200], y[:200])
      >>> difficulty = Difficulty("knn").fit(x[:200], residuals=errors)
      >>> preds, sigma = model.predict(x[200:]), difficulty(x[200:])
      >>> cp = jaxcp.calibrate(jaxcp.scores.Normalized(), (preds, sigma), y[200:])
      >>> new = np.array([[0.1], [0.9]])
      >>> sizes = cp((model.predict(new), difficulty(new)), alpha=0.1).size()
      >>> bool(sizes[1] > 3 * sizes[0])
      True
    """

    kind: str
    model: Any = None
    _: dataclasses.KW_ONLY
    num_neighbors: int = 25
    beta: float = 0.01
    fitted: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        _checks.check_one_of("kind", self.kind, ("knn", "model", "spread"))
        _checks.check_count("num_neighbors", self.num_neighbors, 1)
        positive = lambda b: (b > 0) & (b < np.inf)  # noqa: E731
        beta = _checks.check_number("beta", self.beta, positive, "> 0")
        object.__setattr__(self, "beta", beta)
        if self.kind == "model":
            _hosting.check_model(self.model, needs_predict=True)
        members = self._members()
        are_models = isinstance(members, list | tuple) and members
        are_models = are_models and all(hasattr(one, "predict") for one in members)
        if self.kind == "spread" and not are_models:
            expected = "a fitted ensemble with a list estimators_, or a list of models"
            raise ValueError(f"expected {expected}, got {type(self.model).__name__}")

    @_checks.by_labels
    def fit(self, x: Any, y: Any = None, *, residuals: Any = None) -> Difficulty:
        """Returns the difficulty fitted to rows of training.

        Args:
          x: Inputs, shape (n, p): an array or a frame; numbers for "knn".
          y: Targets, shape (n,), for "knn" without residuals.
          residuals: Targets less predictions, shape (n,): for "model", and for "knn".

        Returns:
          A `Difficulty` that is called with other rows.

        Raises:
          ValueError: if lengths differ, values are missing, infinite or traced, all
            residuals are 0, or there are fewer rows than `num_neighbors` for "knn".
        """
        rows, model = self._inputs(x), self.model
        y = _numbers("y", y, rows.shape[:1])
        residuals = _numbers("residuals", residuals, rows.shape[:1])
        if residuals is not None and not residuals.any():
            raise ValueError(
                "expected residuals of rows that the model did not see, got 0 in all; "
                "sklearn.model_selection.cross_val_predict predicts out of fold"
            )
        if self.kind == "model":
            _checks.check_given(residuals=residuals)
            model = _hosting.unfitted(model).fit(_hosting.as_rows(x), abs(residuals))
        if self.kind == "knn":
            _checks.check_count("the number of rows", len(rows), self.num_neighbors)
        return dataclasses.replace(
            self, model=model, fitted=(rows, y, residuals, _columns(x))
        )

    def __call__(self, x: Any) -> np.ndarray:
        """Returns sigma > 0 of rows that were not in the fit, shape (m,).

        Raises:
          ValueError: before `fit`; for inputs of another shape, frames with columns in
            another order, traced inputs, and for most of 5 rows or more that were in
            the fit.
        """
        _checks.check_given(**{"what fit(x, ...) returns": self.fitted})
        rows, found, known = self._inputs(x), _columns(x), self.fitted[-1]
        if found and known and found != known:
            raise ValueError(f"expected x with columns {known} as in fit, got {found}")
        _checks.check_shape("x", (len(rows), *self.fitted[0].shape[1:]), rows.shape)
        if len(rows) >= _FEW:
            _check_new(rows, self.fitted[0])
        if self.kind == "model":
            raw = self.model.predict(_hosting.as_rows(x))
        elif self.kind == "spread":
            raw = np.std([*self._of_members(x)], axis=0)
        else:
            block = rows_at_a_time(len(self.fitted[0]))
            parts = np.split(rows, range(block, len(rows), block))
            raw = np.concatenate([self._of_neighbors(part) for part in parts])
        raw = _numbers("difficulties", raw, rows.shape[:1])
        return np.maximum(raw, 0) + self.beta

    def _of_members(self, x):
        plain, every = x if hasattr(x, "toarray") else np.asarray(x), slice(None)
        columns = getattr(self.model, "estimators_features_", repeat(every))  # of bags
        for one, own in zip(self._members(), columns, strict=False):
            # Trees of a forest know no names of columns, members fitted to frames do.
            yield one.predict(x if hasattr(one, "feature_names_in_") else plain[:, own])

    def _of_neighbors(self, rows):
        x, y, residuals, _ = self.fitted
        low, span = x.min(axis=0), np.ptp(x, axis=0)
        x, rows = (np.clip((v - low) / (span + (span == 0)), 0, 1) for v in (x, rows))
        away = np.square(x).sum(axis=1)[None] - 2 * rows @ x.T  # less |row|^2
        near = np.argpartition(away, self.num_neighbors - 1)[:, : self.num_neighbors]
        if residuals is not None:
            return abs(residuals[near]).mean(axis=1)
        if y is not None:
            return y[near].std(axis=1)
        return np.linalg.norm(rows[:, None] - x[near], axis=2).sum(axis=1)

    def _members(self):
        return getattr(self.model, "estimators_", self.model)

    def _inputs(self, x):
        """Returns rows as an array (n, p): numbers, or text where others may be."""
        _hosting.check_untraced(self, x)
        x = as_host_array("x", x.toarray() if hasattr(x, "toarray") else x)
        if x.ndim != 2:
            raise ValueError(f"expected x of shape (n, p), got {x.shape}")
        if self.kind == "knn":
            return _numbers("x", x, x.shape)
        return x.astype(float if x.dtype.kind in "biuf" else str)


def _columns(x):
    return tuple(map(str, getattr(x, "columns", ())))


def _check_new(rows, old):
    """Raises ValueError for rows of the fit, where nearly all of these differ.

    A new row is then one of them in about 1 of 100 cases (Good and Turing).
    """
    kind = np.result_type(rows, old)  # text has the width of the longest word
    rows, old = rows.astype(kind), old.astype(kind)
    new, known = ([zlib.crc32(row.tobytes()) for row in v] for v in (rows, old))
    codes, counts = np.unique(known, return_counts=True)
    once = codes[counts == 1]
    seen = np.isin(new, once).sum()
    if len(once) >= _DISTINCT * len(old) and 2 * seen > len(rows):
        raise ValueError(
            f"expected rows that were not in the fit, got {seen} of {len(rows)} that "
            "were; fit to rows of training, and calibrate on others"
        )


def _numbers(name, values, shape):
    """Returns finite numbers of a shape, or None."""
    if values is not None:
        values = _checks.numbers(name, values, shape)
        _checks.check_values(np.isfinite, f"finite {name}", values)
    return values
