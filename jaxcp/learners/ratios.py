"""Ratios of test to calibration laws: of labels whose shares shift, and of inputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks, resampling
from jaxcp._arrays import as_arrays, count_groups, is_concrete
from jaxcp._names import as_names, codes
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit
from jaxcp.learners._hosting import as_rows, check_untraced
from jaxcp.learners.general import check_learner
from jaxcp.typing import AnyLearner, ArrayLike, FitsOnHost, Number, PyTree

_STEPS = 5000  # of EM, at most


@_checks.by_labels
def label_ratio(
    probs: ArrayLike,
    y: ArrayLike,
    new_probs: ArrayLike,
    *,
    method: str = "moments",
    classes: Iterable[Hashable] | None = None,
) -> Array:
    """Returns how much more frequent each label is among new rows: w = q / p.

    With M[i, j] the share of rows with prediction i (the most probable label) and label
    j, and m[i] the share of new rows with prediction i, "moments" solves M w = m, clips
    w at 0 and scales it so that sum_y p(y) w(y) = 1. "em" repeats q(y) = mean over new
    rows of P(y | x) w(y) / sum_c P(c | x) w(c), w = q / p, from q = p until q stands
    still, at most 5,000 times.

    Args:
      probs: Probabilities of the k labels from one classifier, shape (n, k), of rows
        with the old shares.
      y: Their labels 0, ..., k - 1, or names of them, shape (n,).
      new_probs: Probabilities from the same classifier for new rows, shape (m, k).
      method: "moments" or "em".
      classes: Names of the k labels, as `model.classes_`, used in `y`.

    Returns:
      Weights w, shape (k,): `weights=w[y]` calibrates, and `test_weights` are w for
      each test point. +inf for a label without rows, by "em".

    Raises:
      ValueError: if shapes or labels do not fit, a probability is outside [0, 1], there
        are no rows, the method is unknown, or by "moments" M is singular, as for a
        label that has no rows or is never predicted. Traced, w then is +inf.

    Guarantee:
      None in finite samples. w tends to q / p for many rows: "moments" for any
      classifier with an invertible M, "em" for one with calibrated probabilities.

    Assumption:
      Shares of labels shift, and inputs given the label do not. These rows trained
      neither the classifier nor calibrate.

    Cost:
      O(n + m + k^3) by "moments", O(m k) for each step by "em". It has no gradient.

    References:
      Lipton, Wang, Smola, Detecting and Correcting for Label Shift with Black Box
      Predictors, ICML, 2018.
      Saerens, Latinne, Decaestecker, Adjusting the Outputs of a Classifier to New a
      Priori Probabilities: A Simple Procedure, Neural Computation, 2002.

    See also:
      calibrate, learners.density_ratio

    Example:
      >>> probs = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8]])
      >>> new_probs = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.1, 0.9]])
      >>> label_ratio(probs, jnp.array([0, 0, 1, 1]), new_probs)
      Array([0.5, 1.5], dtype=float32)
    """
    _checks.check_one_of("method", method, ("moments", "em"))
    probs, new_probs = _checks.rows(probs=probs), _checks.rows(new_probs=new_probs)
    k = new_probs.shape[-1]
    for name, rows in {"probs": probs, "new_probs": new_probs}.items():
        _checks.check_count(f"the number of rows of {name}", len(rows), 1)
        _checks.check_shape(name, (len(rows), k), rows.shape)
        _checks.check_uniforms(name, rows)
    if classes is not None:
        y = codes(as_names("classes", classes), "y", y, "the classes")
    probs, y = _checks.rows(probs=probs, y=_checks.groups(y, k))
    if method == "em":
        return _by_likelihood(y, new_probs)
    w, rank = _by_moments(probs, y, new_probs)
    if is_concrete(rank) and rank < k:
        raise ValueError(
            f"expected a confusion matrix of rank {k}, got {rank}: some labels have no "
            "rows, are never predicted, or not told apart; give rows of each label, "
            "merge such labels, or take method='em'"
        )
    return w


@jax.jit
def _by_moments(probs, y, new_probs):
    """Returns weights that solve the confusion matrix, and its rank; +inf below k."""
    k = probs.shape[1]
    matrix = _shares(k * jnp.argmax(probs, axis=1) + y, k * k, probs).reshape(k, k)
    new = _shares(jnp.argmax(new_probs, axis=1), k, probs)
    rank, w = jnp.linalg.matrix_rank(matrix), jnp.linalg.solve(matrix, new)
    w = jnp.maximum(w, 0) / jnp.sum(jnp.sum(matrix, axis=0) * jnp.maximum(w, 0))
    return jnp.where(rank == k, w, jnp.inf), rank


def _shares(codes, k, like):
    """Returns the shares of codes 0, ..., k - 1, by counts that do not round."""
    dtype = at_least_single(as_float(like)).dtype
    return count_groups(codes, k).astype(dtype) / len(codes)


@jax.jit
def _by_likelihood(y, new_probs):
    # Saerens et al. 2002, eq. (2.9)
    new_probs = lax.stop_gradient(at_least_single(as_float(new_probs)))
    p = _shares(y, new_probs.shape[1], new_probs)
    divisor = jnp.where(p > 0, p, 1)  # where there are no rows q stays 0

    def step(state):
        count, q, _ = state
        joint = new_probs * (q / divisor)[None]
        total = jnp.sum(joint, axis=1, keepdims=True)
        return count + 1, jnp.mean(joint / jnp.where(total > 0, total, 1), axis=0), q

    eps = jnp.finfo(p.dtype).eps
    going = lambda s: (s[0] < _STEPS) & jnp.any(jnp.abs(s[1] - s[2]) > eps)  # noqa: E731
    q = lax.while_loop(going, step, (jnp.zeros((), int), p, p + 1))[1]
    return jnp.where(p > 0, q / divisor, jnp.inf)


def density_ratio(
    key: Array,
    learner: AnyLearner,
    x: PyTree,
    new_x: PyTree,
    *,
    num_folds: int = 5,
    clip: Number = 0.01,
) -> tuple[Array, Array]:
    """Returns likelihood ratios of new to old inputs, from a classifier of the two.

    With p the probability that an input is new, from a fit without this input, the
    ratio is (n' / m') p / (1 - p), n' and m' the old and new inputs of this fit; p is
    clipped to [clip, 1 - clip] before.

    Args:
      key: Random key, for folds and fits.
      learner: A learner that predicts the probability of label 1, shape (n,), or those
        of labels 0 and 1, shape (n, 2): an `Estimator` of a classifier, or of your own.
      x: Inputs that calibrate, leading axis n: an array or a frame for an `Estimator`,
        else a pytree of arrays.
      new_x: New inputs like `x`, leading axis m.
      num_folds: Number of folds K of old and of new inputs, from 2 to the fewer.
      clip: How near to 0 and 1 probabilities may be, in (0, 0.5): no ratio exceeds
        (n' / m') (1 - clip) / clip.

    Returns:
      `weights` of the old inputs, shape (n,), and `test_weights` of the new ones, (m,).

    Raises:
      ValueError: if counts, shapes or columns do not fit, a concrete prediction is no
        probability (such as log odds, or NaN), or as the fits of an `Estimator`.

    Guarantee:
      None in finite samples: sets cover 1 - alpha less the distance in total variation
      that the error of the ratio makes, clipping included.

    Assumption:
      Inputs shift, and targets given inputs do not.

    Cost:
      K fits to (1 - 1/K)(n + m) rows; those of jax in one program.

    References:
      Tibshirani, Barber, Candes, Ramdas, Conformal Prediction Under Covariate Shift,
      NeurIPS, 2019.

    See also:
      calibrate, weighted_conformal_quantile, learners.label_ratio, learners.Estimator

    Example:
      >>> from sklearn.linear_model import LogisticRegression
      >>> from jaxcp.learners import Estimator
      >>> rng = np.random.default_rng(0)
      >>> x, new_x = rng.normal(size=(400, 1)), rng.normal(1.0, size=(200, 1))
      >>> learner = Estimator(LogisticRegression())
      >>> w, new_w = density_ratio(jax.random.key(0), learner, x, new_x)
      >>> w.shape, new_w.shape, bool(w.mean() < new_w.mean())
      ((400,), (200,), True)
    """
    _checks.check_key(key)
    clip = _checks.check_number(
        "clip", clip, lambda c: (c > 0) & (c < 0.5), "in (0, 0.5)"
    )
    if isinstance(learner, FitsOnHost):
        check_untraced(learner, key, x, new_x)
        x, new_x = map(as_rows, (x, new_x))
        n, m = map(learner.num_rows, (x, new_x))
    else:
        x, new_x = _checks.rows(x=x), _checks.rows(new_x=new_x)
        _checks.check_like_rows("new_x", new_x, _checks.shapes_of_rows(x))
        n, m = _checks.num_rows(x=x), _checks.num_rows(new_x=new_x)
    *keys, key = jax.random.split(key, 3)
    folds = [resampling.k_fold(*of, num_folds) for of in zip(keys, (n, m), strict=True)]
    weights, is_new = jnp.concatenate(folds, axis=1), np.arange(n + m) >= n
    rows = jax.tree.map(_joined, x, new_x)
    if isinstance(learner, FitsOnHost):
        fits = learner.fit_all(key, rows, is_new.astype(int), np.asarray(weights))
        preds = learner.predict_held_out(fits, rows, np.asarray(weights) == 0)
    else:
        check_learner(learner, rows, as_float(is_new))
        preds = _predictions(learner, key, rows, as_float(is_new), weights)
    fold, new = jnp.argmin(weights, axis=0), jnp.sum(weights[:, n:], axis=1)
    own = as_arrays(preds=preds)[fold, np.arange(n + m)]
    p = own[:, 1] if own.shape[1:] == (2,) else own
    _checks.check_shape("predictions, a probability each,", (n + m,), p.shape)
    _checks.check_uniforms("predictions, probabilities,", p)
    p = jnp.clip(p, clip, 1 - clip)
    ratios = (jnp.sum(weights[:, :n], axis=1) / new)[fold] * p / (1 - p)
    return ratios[:n], ratios[n:]


def _joined(old, new):
    """Returns inputs one after the other: frames, or arrays."""
    if hasattr(old, "iloc"):
        names = [tuple(getattr(v, "columns", ())) for v in (old, new)]
        if set(names[0]) != set(names[1]):  # which would be filled with NaN
            raise ValueError(f"expected new_x with columns {names[0]}, got {names[1]}")
        return import_module("pandas").concat([old, new])
    return (jnp if isinstance(old, Array) else np).concatenate([old, new])


@jit
def _predictions(learner, key, x, is_new, weights):
    fit = lambda key, w: learner.predict(learner.fit(key, x, is_new, w), x)  # noqa: E731
    return jax.vmap(fit)(jax.random.split(key, len(weights)), weights)
