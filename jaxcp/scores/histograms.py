"""Scores of predicted histograms and of densities on a grid: sets are unions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, rounding
from jaxcp._tree import pytree, static
from jaxcp.scores import inputs
from jaxcp.scores.labels import masses
from jaxcp.sets.unions import Intervals, joined
from jaxcp.typing import Number, PyTree


@pytree
class Binned:
    """The mass of all bins at least as dense as the bin of the target: HPD-split.

    sum of p_i over the bins with p_i / width_i >= p_j / width_j, bin j that of y; of
    equally dense bins those up to j count. Sets are the densest bins, where neighbors
    are one interval. A target on an edge is in both bins and has the smaller score; one
    beyond the outer edges scores +inf, so that finite thresholds leave it out.

    `pred` is p, shape (k,): the probabilities of the bins. With `randomized=True` it is
    (p, u), u uniform on [0, 1] and drawn by the caller for each row; the score is then
    less by u times the mass of the bin. Scores have at least single precision.

    Args:
      edges: Edges of the bins, increasing and finite, shape (k + 1,), in units of the
        target.
      randomized: Whether `pred` carries a uniform: smaller sets, few ties.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`. With true probabilities, and
      u, the score is uniform given the input.

    Assumption:
      Exchangeable examples, a model fitted on other data, edges that were chosen
      without the rows that calibrate, and, where `randomized`, uniforms that are fresh
      for every row.

    Cost:
      One sort of the k bins for a score and for a set.

    References:
      Izbicki, Shimizu, Stern, CD-split and HPD-split: Efficient Conformal Regions in
      High Dimensions, Journal of Machine Learning Research, 2022.

    See also:
      scores.Interpolated, scores.Density, scores.APS, sets.Intervals, uniforms

    Example:
      >>> score = Binned(jnp.array([0.0, 1.0, 2.0, 4.0]))
      >>> p = jnp.array([0.5, 0.125, 0.375])
      >>> score(p, jnp.array(3.0)).item()
      0.875
      >>> score.invert(p, 0.875).pieces()
      (Array([ 0.,  2., inf], dtype=float32), Array([  1.,   4., -inf], dtype=float32))
    """

    edges: Array
    randomized: bool = static(default=False)

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the mass of bins at least as dense, shape (); +inf beyond them."""
        lower, upper, scores = self._bins(pred)
        return jnp.min(jnp.where((lower <= y) & (y <= upper), scores, jnp.inf))

    def invert(self, pred: PyTree, q: Array) -> Intervals:
        """Returns the bins that score at most q, the whole line for +inf."""
        lower, upper, scores = self._bins(pred)
        return _union(lower, upper, scores <= q, q)

    @property
    def takes(self) -> inputs.Input:
        """A probability for each bin, and a uniform if `randomized`."""
        return inputs.on_line(inputs.probabilities(randomized=self.randomized))

    def check(self, preds: PyTree, *_: Array | None) -> None:
        """Raises ValueError for edges that do not increase, or are too few or many."""
        p = preds[0] if self.randomized else preds
        _check_places("edges", self.edges, p.shape[1] + 1)

    def _bins(self, pred):
        """Returns the ends of bins and their scores, each of shape (k,)."""
        p, u = pred if self.randomized else (pred, 0.0)
        p, edges = _alike(p, self.edges)
        p = jnp.clip(p, 0, 1)
        scores = masses(p, jnp.asarray(u, p.dtype), p / jnp.diff(edges))
        return edges[:-1], edges[1:], scores


@pytree
class Interpolated:
    """Minus the density at the target, linear between the points of a grid: R2CCP.

    Sets are {y : density >= -q}, intervals whose ends lie between points of the grid. A
    target beyond the grid, where no density is predicted, scores +inf: sets then end
    with the grid at all finite thresholds, also where the density is 0 on a part of it.
    (A score of 0, as of a density that is 0 there, would make them the whole line at a
    threshold of 0.) If more targets lie beyond than may be missed, the threshold is
    +inf and sets are the whole line.

    `pred` is p, shape (k,): densities >= 0 at the points, up to one factor for all
    rows, such as a softmax over them.

    Args:
      grid: Points, increasing and finite, shape (k,), k >= 2, in units of the target.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and a grid that was chosen
      without the rows that calibrate.

    Cost:
      O(log k) time for a score; O(k) for a set of k points.

    References:
      Guha, Natarajan, Mollenhoff, Khan, Ndiaye, Conformal Prediction via
      Regression-as-Classification, ICLR, 2024.

    See also:
      scores.Binned, scores.Density, sets.Intervals

    Example:
      >>> score, p = Interpolated(jnp.arange(4.0)), jnp.array([0.0, 0.5, 0.25, 0.25])
      >>> score(p, jnp.array(0.5)).item()
      -0.25
      >>> jnp.stack(score.invert(p, -0.375).pieces()).round(5)
      Array([[0.75,  inf,  inf],
             [1.5 , -inf, -inf]], dtype=float32)
    """

    grid: Array

    takes = inputs.on_line(inputs.columns())
    rounds_up = True  # ends have room for rounding

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns minus the density at `y`, shape (); +inf beyond the grid."""
        grid, p = self._points(pred)
        inside = (grid[0] <= y) & (y <= grid[-1])
        y = jnp.where(inside, y, grid[0])
        i = jnp.clip(jnp.searchsorted(grid, y, side="right"), 1, len(grid) - 1)
        width, before, after = grid[i] - grid[i - 1], y - grid[i - 1], grid[i] - y
        # Of terms >= 0: their sum has the relative precision of a float. Maxima keep
        # compilers from fusing products with their sum, which would round differently.
        terms = p[i - 1] * (after / width), p[i] * (before / width)
        density = jnp.maximum(terms[0], 0) + jnp.maximum(terms[1], 0)
        return jnp.where(inside, -density, jnp.inf)

    def invert(self, pred: Array, q: Number) -> Intervals:
        """Returns {density >= -q} on the grid, the whole line for +inf."""
        grid, p = self._points(pred)
        q = jnp.asarray(q, p.dtype)
        level = -jnp.where(jnp.isfinite(q), q, 0)
        level *= 1 - jnp.sign(level) * 4 * jnp.finfo(p.dtype).eps  # room for rounding
        high = (p >= level) & (q > -jnp.inf)
        first, last, before, after = high[:-1], high[1:], grid[:-1], grid[1:]
        # From the lower of two densities, where the difference keeps its digits.
        gap = jnp.where(first != last, jnp.abs(p[1:] - p[:-1]), 1)
        step = (after - before) * ((level - jnp.minimum(p[1:], p[:-1])) / gap)
        at = jnp.where(last, before + step, after - step)
        lower = jnp.where(first, before, jnp.maximum(at - rounding(at), before))
        upper = jnp.where(last, after, jnp.minimum(at + rounding(at), after))
        return _union(lower, upper, first | last, q)

    def check(self, preds: Array, y: Array | None, mask: Array | None) -> None:
        """Raises ValueError for negative densities, and for points out of order."""
        _check_places("grid", self.grid, max(preds.shape[1], 2))
        expected = "densities >= 0 (of logits: jax.nn.softmax)"
        _checks.check_range(lambda p: p >= 0, expected, preds, mask)

    def _points(self, pred):
        """Returns the grid and the densities in one type, each of shape (k,)."""
        p, grid = _alike(pred, self.grid)
        return grid, p


def _alike(p, places):
    """Returns probabilities and places in one type that holds both."""
    p, places = at_least_single(as_float(p)), as_float(jnp.asarray(places))
    return p.astype(kind := jnp.result_type(p, places)), places.astype(kind)


def _union(lower, upper, held, q):
    """Returns the union of the pieces that are held, the whole line for +inf."""
    lower = jnp.where(q == jnp.inf, jnp.nan, lower)  # `joined` makes the line of it
    return joined(lower, jnp.where(held, upper, -jnp.inf))


def _check_places(name, places, length):
    """Raises ValueError unless there are so many numbers, increasing and finite."""
    _checks.check_shape(name, (length,), jnp.shape(places))
    rises = lambda v: (v > -np.inf) & (v < np.append(v[1:], np.inf))  # noqa: E731
    places = as_float(as_array(name, places))  # some may be one number then
    _checks.check_values(rises, f"{name} that increase, and are finite", places)
