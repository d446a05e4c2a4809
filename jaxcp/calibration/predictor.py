"""A score at one level: sets of new predictions, without the rows of calibration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._arrays import is_concrete
from jaxcp._batching import alike, by_rows, invert, invert_each, on_host
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.exporting import drawn, exported
from jaxcp.certificates.promises import NO_PROMISE, Promised
from jaxcp.held import taking
from jaxcp.held.rows import at_groups
from jaxcp.saving.files import write_whole
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, Predict, PyTree, Score

_NONE = _checks.optional(None)
_FIXED = ("alpha", "delta")  # of all test points


class Scored(Promised):
    """A score, and what is known of its predictions, labels and groups."""

    score: Score
    row_shapes: taking.RowShapes | None = None
    classes: tuple[Hashable, ...] | None = None
    num_groups: int | None = None
    group_names: tuple[Hashable, ...] | None = None
    by_label: bool = False  # whether groups that are left out are the labels
    label_groups: Array | None = None  # groups of the k labels, for sets by label

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("predict"):
                raise AttributeError(f"expected cp(preds, alpha=0.1), got {name}")
            return object.__getattribute__(self, name)  # raises, of its own

    def _rows(self, preds, columns, y=_NONE, u=_NONE, *, for_sets=False):
        """Returns predictions, targets, uniforms and context, after checks.

        Predictions without information, such as sigma <= 0, are fine `for_sets`.
        """
        self._check()
        taking.check_columns(self.classes, preds)
        preds, y, u, *found = _checks.rows(preds=preds, y=y, u=u, **columns)
        taking.check_row_shapes(self.score, preds, self.row_shapes)
        inputs.check(self.score, preds, None if for_sets else y)
        pairs = zip(columns, found, strict=True)
        return preds, y, u, {name: v for name, v in pairs if v is not None}

    def compile(
        self, sizes: Iterable[int], preds: PyTree = None, **context: Any
    ) -> None:
        """Compiles the programs of sets of so many rows, so that requests need not.

        Numbers of rows up to the same power of two share a program on a CPU, if there
        are not many (2^15 numbers), or need no other call here: 5, 6, 7 and 8 do. A
        calibration of more than 2^14 rows has one for each number; its predictor,
        `at(alpha)`, has not.

        Args:
          sizes: Numbers of rows.
          preds: A few predictions as at calibration, or inputs where there is a model.
            Defaults to drawn ones, where their shapes are known and the score takes
            such.
          **context: What else a call takes, with as many rows: `groups`, `u`, `x`; and
            `delta`. Levels make no difference, but their shape: `alpha`.

        Returns:
          None.

        Raises:
          ValueError: as calling this, for predictions that have to be given, and for a
            size that is no int >= 0.

        Cost:
          One call for each size, of few rows three.

        See also:
          Calibration.at, Predictor.export, save

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp.compile([1, 64])
          >>> cp.at(0.1).compile([1, 64])
        """
        if preds is None and self.row_shapes and not getattr(self, "predict", None):
            rows = jax.device_put(drawn(self.score, self.row_shapes, 1, float))
            with suppress(ValueError):  # of scores that take no such rows
                inputs.check(self.score, rows)
                preds = rows
        _checks.check_given(preds=preds)
        _checks.check_kind("sizes as a list", sizes, Iterable)
        for size in (sizes := list(sizes)):
            _checks.check_count("sizes", size, 0)
        if self.num_groups is not None and self.label_groups is None:
            names = self.group_names or range(self.num_groups)
            context = {"groups": [names[0]] * len(jax.tree.leaves(preds)[0]), **context}
        warm(self, sizes, preds, context)

    def _groups_of(self, preds, groups, y=None, mask=None):
        """Returns the groups of test points, which may be their labels, as a column."""
        if self.num_groups is None:
            if groups is not None:
                raise ValueError("expected groups only of a calibration with groups")
            return _NONE
        if groups is None:
            self._check_labels_are_groups(preds)
            groups = taking.coded(self.classes, y, mask)
            if self.label_groups is not None and groups is not None:
                groups = at_labels(self.label_groups, _checks.rows(y=groups))
        elif self.label_groups is not None:
            raise ValueError("expected groups=None for groups of labels, got groups")
        elif self.group_names is not None:
            cure = (
                "; group_names=[...] at calibration can name it: its sets are infinite,"
                " or with min_size= those of small groups"
            )
            groups = _names.group_codes(self.group_names, groups, mask, cure)
        return _checks.groups(groups, self.num_groups)._replace(required=False)

    def _given_groups(self, groups):
        """Returns the groups of test points, which must be given, as a column."""
        if groups is None and self.num_groups is not None:
            raise ValueError("expected groups of the new inputs, one each, got None")
        return self._groups_of(None, groups)

    def _check_labels_are_groups(self, preds):
        """Raises ValueError unless each group is a label of the score."""
        if not (self.by_label and inputs.has_labels(self.score)):
            raise ValueError(
                "expected the group of each test point, got groups=None; only scores "
                "of labels have classes for groups"
            )
        if self.group_names not in (None, self.classes):
            raise ValueError(
                "expected the group of each test point, got groups=None, for which the "
                f"group_names {self.group_names} have to be the classes {self.classes}"
            )
        preds = _checks.rows(preds=preds)
        taking.check_row_shapes(self.score, preds, self.row_shapes)
        k, known = taking.num_labels(self.score, preds), self.label_groups
        expected = self.num_groups if known is None else len(known)
        if k != expected:
            raise ValueError(
                f"expected predictions of {expected} classes (groups), got {k}"
            )

    def _check(self):
        """Raises ValueError for a rule that jax does not know, or without a score."""
        _checks.check_pytree("the rule", self, "jaxcp.calibrate")
        inputs.check_own_score(self, "a rule")


@pytree
class Predictor(Scored):
    """Sets at one level: a score and its thresholds, without the rows of calibration.

    Made by `cp.at(alpha)`. A call takes no pass over rows, a file has a few numbers,
    and `map(predictor, batches)` makes sets of batches one after the other.

    Args:
      score: The nonconformity score.
      q: Threshold, shape () or (c,), or one for each group, shape (g,) or (g, c).
      alpha: Level of the sets, as it was given.
      claim: What the sets keep to, in words with a place for {alpha}; "" where the rule
        says nothing.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels of the sets, or None.
      num_groups: Number of groups g, or None.
      group_names: Names of the groups, or None.
      by_label: Whether groups that are left out are the labels.
      label_groups: Groups of the labels, whose thresholds q are, or None.
      predict: Function `(params, x) -> preds`, or None to be called with predictions.
      params: First argument of `predict`, any pytree.
      assumption: What the promise assumes, in words.

    Guarantee:
      That of the calibration at this level: `promise`.

    Assumption:
      Those of the calibration: `assumption`.

    Cost:
      O(1) besides the sets: no number of rows of calibration matters.

    See also:
      Calibration.at, Calibration, save

    Example:
      >>> from jaxcp.scores import Absolute
      >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
      >>> predictor = cp.at(0.2)
      >>> predictor(jnp.array([0.0, 1.0])).upper
      Array([8., 9.], dtype=float32)
      >>> predictor.promise
      'P(Y in set) >= 1 - 0.2, on average over calibration sets'
    """

    score: Score
    q: Array
    alpha: PyTree
    claim: str = static()
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    num_groups: int | None = static(default=None)
    group_names: tuple[Hashable, ...] | None = static(default=None)
    by_label: bool = static(default=False)
    label_groups: Array | None = None
    predict: Predict | None = static(default=None)
    params: PyTree = None
    assumption: str = static(default="")

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes", "group_names")

    @property
    def promise(self) -> str:
        """What the sets keep to, in words."""
        if not self.claim:
            return "none: the rule says nothing of what its sets keep to"
        levels = [
            str(v) if is_concrete(v) else "alpha" for v in jax.tree.leaves(self.alpha)
        ]
        return self.claim.replace("{alpha}", ", ".join(levels))

    def _described(self) -> dict[str, str]:
        return {"claim": self.promise}

    @_checks.with_digits
    @_checks.by_labels
    def __call__(self, preds: PyTree, *, groups: ArrayLike | None = None) -> AnySet:
        """Returns the prediction sets of new predictions.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration; inputs
            where there is a function `predict`.
          groups: Group of each test point, int or by name, shape (m,), for thresholds
            of groups; left out where these are the labels.

        Returns:
          Sets with leading axis m: to the last bit those of the calibration.

        Raises:
          ValueError: as calling the calibration.
        """
        if self.predict is not None:
            preds = predictions(self.predict, self.params, preds)
        columns = {"groups": self._groups_of(preds, groups)}
        preds, _, _, context = self._rows(preds, columns)
        sets = by_rows(sets_at, self.score, self.q, rows=(preds, context))
        return _names.named(sets, self.classes)

    def export(self, folder: str | os.PathLike) -> Path:
        """Writes `predictor.py`, the sets in NumPy alone: for a service without jax.

        `from predictor import sets` there gives `sets(preds, groups=None)`, a dict of
        arrays: `lower` and `upper` of intervals and boxes, `mask` of labels. It checks
        what comes in, but for what a score of yours refuses. `labels(found)` has the
        labels by name, `clip(found, lower, upper)` the part within bounds,
        `to_dict(found)` what JSON takes. The numbers stand in the file: thresholds,
        names and settings, no rows of calibration. It takes predictions; the model is
        yours to call before.

        The program of the score's sets is traced, and each operation written as a line
        of NumPy, for scores of your own too.

        Args:
          folder: Where `predictor.py` is written, in place of one that is there.

        Returns:
          The path of the file.

        Raises:
          ValueError: for a predictor with a model; of a rule without words for its
            promise and assumption; for sets without ends or labels; for
            predictions whose shapes are not known; for names that Python cannot write;
            and for scores whose sets NumPy cannot compute to the same bits: those that
            take exp, log or powers, or add a product as it is, which XLA may round
            once.
          OSError: if the file cannot be written.

        Guarantee:
          That of the predictor: its sets, in the precision of the thresholds, to the
          last bit of the kind of CPU that writes the file, which tries it on drawn rows
          first. Numbers below the least normal one count as 0.

        Cost:
          A program or two of jax are compiled, for that trial.

        See also:
          save, Calibration.at, sets.Interval

        Example:
          >>> import sys, tempfile
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> folder = tempfile.mkdtemp()
          >>> cp.at(0.2).export(folder).name
          'predictor.py'
          >>> sys.path.insert(0, folder)
          >>> import predictor
          >>> predictor.to_dict(predictor.sets([0.0]))
          {'lower': [-8.0], 'upper': [8.0]}
        """
        if self.predict is not None:
            raise ValueError(
                "expected a predictor that takes predictions, got one with a model; "
                "export cp.calibration.at(alpha), and call the model yourself"
            )
        if not self.claim:
            raise ValueError(NO_PROMISE)
        path = Path(folder) / "predictor.py"
        text = exported(self)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
        return path


@jit
def sets_at(score, q, preds, context):
    """Returns {y : score(pred, y) <= q} of every row, at the threshold of its group."""
    if not context:
        return invert(score, preds, q)
    return invert_each(score, preds, at_groups(q, context["groups"]))


def warm(call, sizes, rows, context):
    """Calls with so many rows each, of those that are given again and again."""
    if "alpha" not in context and not isinstance(call, Predictor):
        context = {"alpha": 0.5, **context}
    for size in dict.fromkeys(v for most in sizes for v in alike(most)):
        again = lambda v: np.resize(v, (size, *np.shape(v)[1:]))  # noqa: B023, E731
        known = {k: v if k in _FIXED else again(v) for k, v in context.items()}
        jax.block_until_ready(call(jax.tree.map(again, rows), **known))


def at_labels(label_groups: Array, y: Array) -> Array:
    """Returns the groups of labels; -1 for labels out of range."""
    own: Any = np if on_host(label_groups, y) else jnp  # np compiles nothing
    label_groups, y = own.asarray(label_groups), own.asarray(y)
    inside = (y >= 0) & (y < len(label_groups))
    return own.where(inside, label_groups[own.where(inside, y, 0)], -1)


def predictions(predict, params, x):
    """Returns predict(params, x); errors say how to pass methods and networks."""
    try:
        return predict(params, x)
    except Exception as error:
        is_own = isinstance(predict, FunctionType) and _takes_two(predict)
        if is_own or params is not None:
            raise
        kind = getattr(predict, "__qualname__", type(predict).__name__)
        raise ValueError(
            f"expected predict(params, x), got {kind}, which fails with two arguments; "
            "for a method write lambda _, x: model.predict(x), for a network lambda _, "
            "x: network(x), with params None"
        ) from error


def _takes_two(predict):
    """Returns whether a function takes two arguments."""
    try:
        inspect.signature(predict).bind(None, None)
    except TypeError:
        return False
    return True
