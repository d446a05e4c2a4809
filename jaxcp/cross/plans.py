"""Many fits of one learner: which leave out each row, and what they predict for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._arrays import as_arrays, as_numpy, is_concrete
from jaxcp._batching import map_blocks, map_evenly
from jaxcp._numbers import as_float, mean
from jaxcp._tree import jit, pytree, static
from jaxcp.learners import general
from jaxcp.learners._hosting import ModelFits, as_rows, keeping
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import FitsOnHost, Learner, PyTree, Splitter

Aggregation = str | Callable[[Array, Array], Array]


def left_out_by(held_out: Array, aggregation: Aggregation) -> OwnFit | Ensemble:
    """Returns the predictor of each row without it: the fits that held it out."""
    if not callable(aggregation):
        _checks.check_one_of("aggregation", aggregation, _KNOWN)
    if isinstance(aggregation, str) and is_concrete(held_out):
        held = np.asarray(held_out)
        if np.all(held.sum(axis=0) == 1):
            fold = jax.device_put(held.argmax(axis=0))
            return OwnFit(fold, len(held), str(aggregation))
    return Ensemble(jnp.asarray(held_out), aggregation)


def rows_left_out(mask: Array | None) -> Array | None:
    """Returns which rows have a score, None if all; raises ValueError if none has."""
    if mask is None or not is_concrete(mask):
        return mask
    if not np.any(np.asarray(mask)):
        raise ValueError(
            "expected some row with weight 0 in a resample, held out, got resamples "
            "that all hold every row"
        )
    return None if np.all(np.asarray(mask)) else mask


def check_alone(groups: Any, held_out: Any = None) -> None:
    """Raises ValueError for groups, unless each fit leaves out one row of its own."""
    if groups is None:
        return
    if held_out is not None and is_concrete(held_out):
        held = np.asarray(held_out)
        if max(held.sum(axis=axis).max(initial=0) for axis in (0, 1)) <= 1:
            return
    raise ValueError(
        "expected groups=None for fits that leave out several rows, got groups; these "
        "rows are of other groups too, and nothing is proved for each group: "
        "jackknife_plus(..., groups=) covers 1 - 2 alpha in each, and "
        "full_conformal(..., groups=) 1 - alpha"
    )


def clusters_of(y, ids, weights, groups, mask=None, held_out=None):
    """Returns the cluster of each row, None if each has its own, or without ids.

    Fits leave out whole clusters, or ValueError.
    """
    if ids is None:
        return None
    if weights is not None or groups is not None:
        raise ValueError(
            "expected clusters without weights and groups, got some; nothing is proved "
            "for both: one row of each cluster, drawn at random, takes them"
        )
    codes, count = _names.clusters_in_order(ids, mask)
    _checks.num_rows(y=y, clusters=codes)
    _checks.check_count("the number of clusters", count, 2)
    if held_out is not None and is_concrete(held_out, mask):
        _check_whole(np.asarray(held_out), codes, mask)
    return None if count == len(codes) else codes


def _check_whole(held, codes, mask):
    """Raises ValueError where a fit leaves out some rows of a cluster, and not all."""
    rows = slice(None) if mask is None else np.asarray(mask)
    _, first, own = np.unique(codes[rows], return_index=True, return_inverse=True)
    held = held[:, rows]
    if (split := (held != held[:, first[own]]).any(axis=1)).any():
        raise ValueError(
            "expected fits that leave out whole clusters, got rows of one with and "
            f"without fit {split.argmax()}; resampling.group_k_fold(key, ids, "
            "num_folds) == 0 leaves out whole ones"
        )


_OF_SPLITTERS = (
    "; CV+ is proved for a partition, each row left out by one fit on all other rows: "
    "ShuffleSplit and RepeatedKFold leave rows out again, TimeSeriesSplit fits on the "
    "past alone, which is no cross-validation; cross_conformal takes the weights of "
    "any fits, without this proof"
)


def are_splits(folds: Any) -> bool:
    """Returns whether folds are a splitter, or pairs (train, test) of row numbers."""
    _checks.check_given(folds=folds)
    return _is_splitter(folds) or _are_pairs(folds)


def _is_splitter(folds: Any) -> bool:
    is_array = isinstance(folds, str | bytes) or hasattr(folds, "shape")
    return not is_array and isinstance(folds, Splitter)  # arrays of torch can split


def _are_pairs(folds: Any) -> bool:
    if isinstance(folds, Iterator):
        return True
    return isinstance(folds, list | tuple) and all(
        isinstance(pair, list | tuple) and [*map(np.ndim, pair)] == [1, 1]
        for pair in folds
    )


def folds_of_splits(folds: Any, x: PyTree, y: Any, n: int) -> np.ndarray:
    """Returns the fold of each row, (n,), of a splitter or of (train, test) pairs.

    R_i = score(f_-k(i)(x_i), y_i), f_-k the fit on all rows but fold k (Barber et al.
    2021, section 3): test parts are a partition, train parts all other rows.
    """
    fold_of_row, times_left_out = np.zeros((2, n), int)
    for fold, (train, test) in enumerate(_pairs(folds, x, y, n)):
        in_train = _times_in_part(f"the train part of fold {fold}", train, n)
        in_test = _times_in_part(f"the test part of fold {fold}", test, n)
        expected = f"each row once in the two parts of fold {fold}"
        _check_once(expected, in_train + in_test)
        fold_of_row[in_test > 0] = fold
        times_left_out += in_test
    _check_once("folds that leave out each row once", times_left_out)
    return fold_of_row


def _check_once(expected: str, times: np.ndarray) -> None:
    _checks.check_values(lambda t: t == 1, expected, times, cure=_OF_SPLITTERS)


def _pairs(folds: Any, x: PyTree, y: Any, n: int) -> list[tuple[Any, Any]]:
    """Returns the (train, test) pairs of a splitter, or of those that are given."""
    if not _is_splitter(folds):
        pairs = [*folds]
        if _are_pairs(pairs):
            return pairs
        expected = "expected folds as pairs (train, test) of row numbers"
        raise ValueError(f"{expected}, got {pairs[0]!r:.50}")
    if not is_concrete(x, y):
        raise ValueError("expected x and y with values for a splitter, got traced ones")
    # Of inputs in several parts a splitter would not see how many rows there are.
    inputs = np.zeros((n, 1)) if isinstance(x, dict | tuple) else as_rows(x)
    try:
        return [*folds.split(inputs, as_rows(y))]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected folds as a splitter of x and y, got {type(folds).__name__}: "
            f"{error}; of one that needs groups give the pairs, "
            "folds=[*splitter.split(x, y, groups)]"
        ) from error


def _times_in_part(name: str, part: Any, n: int) -> np.ndarray:
    """Returns how often a part of a split has each row, (n,), by numbers or flags."""
    rows = as_numpy(name, part)
    rows = rows if rows.size else rows.astype(int)
    if rows.ndim != 1 or rows.dtype.kind not in "biu":
        got = f"{rows.dtype} of shape {rows.shape}"
        raise ValueError(f"expected {name} as row numbers, got {got}")
    if rows.dtype == bool:
        _checks.check_shape(name, (n,), rows.shape)
        return rows.astype(int)
    _checks.check_labels(name, rows, n)
    return np.bincount(rows, minlength=n)


def num_equal_folds(left_out: OwnFit | Ensemble, num_rows: int) -> int:
    """Returns how many folds of one size the rows that count make, or ValueError."""
    sizes = left_out.fold_sizes()
    by_one = isinstance(left_out.aggregation, str)
    if sizes is None or not by_one or np.sum(sizes) != num_rows:
        raise ValueError(
            "expected each row left out by one fit, as in jackknife_plus and cv_plus, "
            "got rows left out by several or none, or an aggregation of one's own; "
            "bags have no bound by counts"
        )
    sizes = sizes[sizes > 0]
    if np.min(sizes) < np.max(sizes):
        raise ValueError(
            f"expected folds of one size, got {np.min(sizes)} to {np.max(sizes)} rows; "
            "let the n mod K rows that are left over train in every fit and calibrate "
            "in none: in cross_conformal, weights of 1 for them in all fits"
        )
    return len(sizes)


@pytree
class OwnFit:
    """A fit for each row, the only one without it.

    Args:
      fold: The fit without each row, int of shape (n,).
      count: Number of fits b.
      aggregation: "mean" or "median" of the n predictions, for one at an input.
    """

    fold: Array
    count: int = static()
    aggregation: str = static(default="mean")
    mask = None  # every row has its fit

    def fold_sizes(self) -> np.ndarray:
        """Returns how many rows each fit left out; fits of its own for every row."""
        return np.bincount(np.asarray(self.fold), minlength=self.count)

    @property
    def rows_per_fit(self) -> int:
        """Rows that a fit alone predicts, rounded down."""
        return len(self.fold) // self.count

    def voting(self, rows: Array | None = None) -> Array:
        """Returns True for the fits that left out one of these rows, shape (b,)."""
        own = True if rows is None else rows
        return jnp.zeros(self.count, bool).at[self.fold].max(own)

    def voters(self, preds: PyTree) -> PyTree:
        """Returns the different predictions without a row at one input: those given."""
        return preds

    def without_each(self, preds: PyTree) -> PyTree:
        """Returns predictions without each row, (b, ...) to (n, ...), at one input."""
        return jax.tree.map(lambda v: v[self.fold], preds)

    def center(self, preds: PyTree) -> PyTree:
        """Returns the aggregate of `without_each`, (b, ...) to (...)."""
        if self.aggregation == "median":
            everyone = jnp.ones(len(self.fold), bool)
            each = self.without_each(preds)
            return jax.tree.map(lambda v: _median(v, everyone), each)
        shares = mean(self.fold[:, None] == jnp.arange(self.count)[None])
        return jax.tree.map(lambda v: _mean(v, shares), preds)

    def of_recorded(self, preds: PyTree) -> PyTree:
        """Returns predictions of rows without them, (b, n, ...) to (n, ...)."""
        rows = jnp.arange(len(self.fold))
        return jax.tree.map(lambda v: v[self.fold, rows], preds)

    def of_rows(self, fits: Fits, x: PyTree) -> PyTree:
        """Returns the prediction of every training row without it, leading axis n."""
        if self.count < len(self.fold):
            pick = lambda preds, i: jax.tree.map(lambda v: v[i], preds)  # noqa: E731
            return fits.at_each(pick, x, self.fold, width=self.count)
        each = general.take(fits.params, self.fold)  # n predictions, not n^2
        return general.predict_each(fits.learner, each, x)


@pytree
class Ensemble:
    """An average, for each row, of the fits without it.

    Args:
      held_out: True where a fit is without a row, shape (b, n).
      aggregation: "mean" or "median" of these fits, or a function of their values
        (b, ...) and of which are held out, (b,).
    """

    held_out: Array
    aggregation: Aggregation = static(default="mean")
    rows_per_fit = 0  # a fit alone predicts none

    def fold_sizes(self) -> np.ndarray | None:
        """Returns how many rows each fit left out, or None where they overlap."""
        held = np.asarray(self.held_out)
        return None if (held.sum(axis=0) > 1).any() else held.sum(axis=1)

    @property
    def count(self) -> int:
        """Number of fits b."""
        return len(self.held_out)

    @property
    def mask(self) -> Array:
        """True where some fit is without the row, shape (n,)."""
        if is_concrete(self.held_out):  # compiles nothing
            return jax.device_put(np.asarray(self.held_out).any(axis=0))
        return jnp.any(self.held_out, axis=0)

    def voting(self, rows: Array | None = None) -> Array:
        """Returns the rows that some fit is without, among these, shape (n,)."""
        return self.mask if rows is None else self.mask & rows

    def voters(self, preds: PyTree) -> PyTree:
        """Returns the different predictions without a row at one input: n of them."""
        return self.without_each(preds)

    def without_each(self, preds: PyTree) -> PyTree:
        """Returns predictions without each row, (b, ...) to (n, ...), at one input."""
        return jax.vmap(self._average, (None, 1))(preds, self.held_out)

    def center(self, preds: PyTree) -> PyTree:
        """Returns the aggregate of `without_each`, (b, ...) to (...)."""
        if self.aggregation != "mean":
            return self._average(self.without_each(preds), self.mask)
        counts = jnp.maximum(jnp.sum(self.held_out, axis=0), 1)
        shares = jnp.sum(self.held_out / counts[None], axis=1)
        return jax.tree.map(lambda v: _mean(v, shares), preds)

    def of_recorded(self, preds: PyTree) -> PyTree:
        """Returns predictions of rows without them, (b, n, ...) to (n, ...)."""
        return jax.vmap(self._average, (1, 1))(preds, self.held_out)

    def of_rows(self, fits: Fits, x: PyTree) -> PyTree:
        """Returns the prediction of every training row without it, leading axis n."""
        own = self.held_out.T
        return fits.at_each(self._average, x, own, width=fits.count)

    def _average(self, preds, held):
        """Returns the aggregate of the fits that are held out; of all where none is."""
        name, held = self.aggregation, held | ~jnp.any(held)
        combine = _KNOWN[name] if isinstance(name, str) else name
        return jax.tree.map(lambda v: combine(v, held), preds)


def _mean(values, weights):
    """Returns the weighted mean over the leading axis; 0 without any weight."""
    values = as_float(values)
    total = jnp.sum(weights)
    shares = (weights / jnp.where(total > 0, total, 1)).astype(values.dtype)
    # A fit that diverged spoils only the rows that use it.
    used = (shares > 0).reshape(-1, *(1,) * (values.ndim - 1))
    values = jnp.where(used, values, 0)
    return jnp.tensordot(shares, values, 1, precision="highest")


def _median(values, held):
    """Returns the median over the leading axis of the fits in `held`; 0 of none."""
    values = as_float(values)
    count = jnp.sum(held)
    ranks = jnp.stack([(count + 1) // 2, count // 2 + 1])
    columns = values.reshape(len(values), -1).T
    middle = jax.vmap(lambda v: kth_smallest(v, ranks, where=held))(columns)
    middle = jnp.where(count > 0, middle, 0)
    return jnp.mean(middle, axis=1).reshape(values.shape[1:])


_KNOWN = {"mean": _mean, "median": _median}


# Numbers of data that the fits of one program see: 256 MB in single precision.
_FIT_NUMBERS = 2**26


@pytree
class Recorded:
    """Fits known by their predictions alone, which take the place of inputs."""

    def rows(self, preds: PyTree) -> PyTree:
        """Returns something with a row for each input."""
        return jax.tree.leaves(preds)[0][0]

    def predict(self, preds: PyTree) -> PyTree:
        """Returns the predictions, leading axes (b, m)."""
        return preds

    def at_each(
        self, one: Callable[..., PyTree], preds: PyTree, *rows: PyTree, width: int
    ) -> PyTree:
        """Returns `one(preds, *row)` of the predictions (b, ...) at each input."""
        return map_blocks(jax.vmap(one), _by_input(preds), *rows, width=width)


@pytree
class HostFits:
    """Fits of a model outside of jax; the fit on all rows is made on demand.

    Args:
      learner: The learner.
      fitted: Its fits, on the host.
    """

    learner: FitsOnHost
    fitted: Any = static()

    @property
    def models(self) -> list:
        """The b fitted models."""
        return self.fitted.models

    @property
    def classes(self) -> Any:
        """Names of the labels that columns of probabilities stand for, or None."""
        return self.fitted.classes

    def keeping(self) -> AbstractContextManager[None]:
        """Attaches the fits to an error, for they may have taken long."""
        known = isinstance(self.fitted, ModelFits)
        return keeping(self.fitted) if known else nullcontext()

    def predict(self, x: Any) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        return as_arrays(preds=self.learner.predict_all(self.fitted, x))

    def predict_full(self, x: Any) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m."""
        return as_arrays(preds=self.learner.predict_full(self.fitted, x))

    def source(self, x: Any) -> tuple[Recorded, PyTree]:
        """Returns a source of predictions and its input: recorded predictions."""
        return Recorded(), self.predict(x)


@pytree
class Fits:
    """b fits of a learner, and one on all rows.

    Args:
      learner: The learner.
      params: Parameters of the fits, leading axis b except in shared parts.
      full: Parameters of the fit on all rows.
      count: Number of fits b.
    """

    learner: Learner
    params: PyTree
    full: PyTree
    count: int = static()
    classes = None  # labels are 0, ..., k - 1

    def keeping(self) -> AbstractContextManager[None]:
        """Keeps nothing when there is an error."""
        return nullcontext()

    def predict(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        # One program, as in those for sets: single operations round otherwise.
        return _predict_all(self, x)

    def predict_full(self, x: PyTree) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m."""
        _checks.check_given(x=x)
        x = as_arrays(x=x)
        return predict_once(self.learner, self.full, x)

    def rows(self, x: PyTree) -> PyTree:
        """Returns something with a row for each input: the inputs."""
        return x

    def source(self, x: PyTree) -> tuple[Fits, PyTree]:
        """Returns a source of predictions and its input: these fits, and inputs."""
        return self, _checks.rows(x=x)

    def by_input(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (m, b)."""
        return _by_input(self.predict(x))

    def at_each(
        self, one: Callable[..., PyTree], x: PyTree, *rows: PyTree, width: int
    ) -> PyTree:
        """Returns `one(preds, *row)` of what all fits predict, (b, ...), at each input.

        `width` is how many intermediate numbers `one` makes, as for `map_blocks`.
        """
        block = lambda x, *rows: jax.vmap(one)(self.by_input(x), *rows)  # noqa: E731
        return map_blocks(block, x, *rows, width=width)


def fit_all(learner, keys, x, y, weights, batch_size):
    """Returns the parameters of a fit for each row of weights, in one program."""
    fit = lambda key, row: learner.fit(key, x, y, row)  # noqa: E731
    first = lambda keys, weights: fit(keys[0], weights[0])  # noqa: E731
    axes = general.axes(jax.eval_shape(first, keys, weights))
    together = partial(_with_shared_parts, jax.vmap(fit, out_axes=axes))
    width = sum(leaf.size for leaf in jax.tree.leaves((x, y))) or 1
    size = batch_size or max(_FIT_NUMBERS // width, 1)
    if size >= len(weights):
        return together(keys, weights)
    jax.eval_shape(together, keys, weights)

    def own(key, row):
        part = lambda p: None if general.is_shared(p) else p  # noqa: E731
        return jax.tree.map(part, fit(key, row), is_leaf=general.is_shared)

    params = map_evenly(own, keys, weights, at_a_time=size)
    # The shared parts of one fit; the rest of it is not computed.
    return jax.tree.map(
        lambda part, own: part if general.is_shared(part) else own,
        fit(keys[0], weights[0]),
        params,
        is_leaf=general.is_shared,
    )


def _with_shared_parts(fits, keys, weights):
    """Returns all fits; raises ValueError where a shared part differs between them."""
    try:
        return fits(keys, weights)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError(
            "expected parts of the parameters in learners.Shared to depend on x alone, "
            f"got one that varies with key, y or weights: {error}"
        ) from error


def _by_input(preds):
    """Returns predictions with leading axes (m, b) in place of (b, m)."""
    return jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), preds)


@jit
def predict_once(learner: Learner, params: PyTree, x: PyTree) -> PyTree:
    """Returns predictions of one fit, leading axis m."""
    return learner.predict(params, x)


@jit
def _predict_all(fits, x):
    axes = general.axes(fits.params), None
    predict = jax.vmap(fits.learner.predict, axes, axis_size=fits.count)
    return predict(fits.params, x)
