"""One table of scores drives the law, transform and coverage tests."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import scores
from jaxcp.certificates import promises
from jaxcp.sets import Interval

NUM_CASES = 10_000


@dataclass(frozen=True)
class Case:
    """A score with a law of (pred, y) for one example: `draw(key) -> (pred, y)`."""

    score: Any
    draw: Callable
    exact: bool = False  # whether sets and scores agree to the last bit

    def batch(self, n, start=0):
        """Returns rows of a pool that is drawn once: random draws compile slowly."""
        return jax.tree.map(lambda v: v[start : start + n], _pool(self.draw))

    def one(self):
        return jax.tree.map(lambda v: jnp.asarray(v[0]), _pool(self.draw))


@cache
def _pool(draw):
    rows = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), NUM_CASES))
    return jax.tree.map(np.asarray, rows)


def promised(cp, alpha, **how):
    """Returns the number of a promise, read from the words that are printed.

    What is promised for coverage, or what the mean of a loss is at most. The laws test
    this number: a promise that is too large fails them.
    """
    words = promises.promised(cp, **how).promise.replace("{alpha}", str(alpha))
    return eval(re.search(r"[<>]= ([\d(][\d.e+*/() -]*)", words)[1])


def num_groups_promised(cp):
    """Returns for how many groups a promise is, read from its words."""
    return int(re.search(r"in each of (\d+) group", promises.promised(cp).promise)[1])


@jax.jit
def scores_of(score, preds, y):
    return jax.vmap(score)(preds, y)


@jax.jit
def labels_of(score, preds):
    return jax.vmap(score.labels)(preds)


@jax.jit
def sets_of(score, preds, q):
    return jax.vmap(score.invert)(preds, q)


@jax.jit
def inside(sets, y):
    return jax.vmap(lambda s, target: s.contains(target))(sets, y)


def _point(shape=()):
    def draw(key):
        mu, noise = jax.random.normal(key, (2, *shape))
        return 3 * mu, 3 * mu + noise

    return draw


def _scaled(lowest):
    def draw(key):
        mu, noise = jax.random.normal(key, (2,))
        sigma = jax.random.uniform(jax.random.fold_in(key, 2), (), minval=lowest)
        return (mu, sigma), mu + jnp.abs(sigma) * noise

    return draw


def _band(shape=()):
    def draw(key):
        mu, noise, half = jax.random.normal(key, (3, *shape))
        return (mu - half, mu + half), mu + noise  # half of the bands are crossed

    return draw


def _positive(key):
    mu, noise = jax.random.normal(key, (2,))
    return jnp.exp(mu), jnp.exp(mu) * (1 + 0.3 * noise)


def _labels(k, randomized=False, ties=False):
    def draw(key):
        noise = jax.random.uniform(key, (2 * k + 1,), minval=1e-6)
        p = jax.nn.softmax(5 * noise[:k])
        if ties:  # in eighths: equal probabilities, and zeros
            eighths = jnp.floor(8 * p) / 8
            p = eighths.at[jnp.argmax(p)].add(1 - jnp.sum(eighths))
        gumbel = -jnp.log(-jnp.log(noise[k:-1]))
        y = jnp.argmax(jnp.log(p) + gumbel)
        return ((p, noise[-1]) if randomized else p), y

    return draw


def _several(*shape):
    """Probabilities in eighths, so that thresholds tie, and the mask of what holds."""

    def draw(key):
        u, v = jax.random.uniform(key, (2, *shape))
        p = jnp.floor(9 * u) / 8
        return p, v < p / 2

    return draw


def _heat(*shape):
    """Heat in halves on both sides of 0, so that thresholds tie, and what holds."""

    def draw(key):
        p, y = _several(*shape)(key)
        return 4 * p - 2, y

    return draw


def _field(*shape):
    """A field, and scales along its last axis: the first point is left out."""

    def draw(key):
        mu, noise = jax.random.normal(key, (2, *shape))
        key = jax.random.fold_in(key, 2)
        scale = jax.random.uniform(key, shape[-1:], minval=0.1)
        y = mu + jnp.broadcast_to(scale, shape) * noise
        return (mu, scale.at[0].set(jnp.inf)), y

    return draw


def _claims(m):
    """Confidences in quarters, so that claims tie, some padded, and which are true."""

    def draw(key):
        noise, u, v = jax.random.normal(key, (3, m))
        confidences = jnp.round(8 * noise) / 4
        return (confidences, u > -0.5), v < 1 + confidences / 2

    return draw


def _logits(k, ties=False):
    draw_labels = _labels(k, ties=ties)

    def draw(key):
        p, y = draw_labels(key)
        return jnp.log(p), y

    return draw


def _distance(pred, y):
    return jnp.abs(y - pred) / (1 + jnp.abs(pred))


def _around(pred, q):
    return Interval(pred - q * (1 + jnp.abs(pred)), pred + q * (1 + jnp.abs(pred)))


def _twice_around(pred, q):
    return _around(pred, 2 * jnp.abs(q))


def _box(key):
    mu, half, noise = jax.random.normal(key, (3, 2))
    return (mu - half, mu + half), mu + 2 * noise


def _bounding_box(key):
    place, sides, noise = jax.random.normal(key, (3, 4))
    lower, sides = 3 * place[:2], jnp.exp(sides[:2])
    true = lower + 0.5 * noise[:2]
    true = jnp.concatenate([true, true + sides * jnp.exp(0.5 * noise[2:])])
    return jnp.concatenate([lower, lower + sides]), true


def _ellipsoid(key):
    mu, noise, *rows = jax.random.normal(key, (4, 2))
    scale = jnp.tril(jnp.stack(rows), -1) + jnp.diag(jnp.exp(rows[0]))
    return (mu, scale), mu + 3 * noise


def _draws(*sizes, d=2, ties=False):
    """Sets of draws of N(mu, I) around their common mu, and a target from the same."""

    def draw(key):
        points = jax.random.normal(key, (sum(sizes) + 2, d))
        points = jnp.round(points) if ties else points
        mu, y, points = 5 * points[0], points[1], points[2:] + 5 * points[0][None]
        ends = np.cumsum(sizes)
        parts = [points[b - a : b] for a, b in zip(sizes, ends, strict=True)]
        return (tuple(parts) if len(parts) > 1 else parts[0]), mu + y

    return draw


def _ranked(draw):
    """Draws with log densities that fall with the distance from their mean."""

    def with_densities(key):
        points, y = draw(key)
        away = points - jnp.mean(points, axis=0)[None]
        return (points, -jnp.sum(away**2, axis=1)), y

    return with_densities


def _uniform(draw):
    def with_uniform(key):
        pred, y = draw(key)
        return (*pred, jax.random.uniform(jax.random.fold_in(key, 1))), y

    return with_uniform


def _centered(num_draws, randomized=False, d=2, ties=False):
    """A mean as base prediction, draws around it, and a uniform."""
    draw_points = _draws(1, num_draws, d=d, ties=ties)

    def draw(key):
        (mu, draws), y = draw_points(key)
        u = jax.random.uniform(jax.random.fold_in(key, 1))
        return ((mu[0], draws, u) if randomized else (mu[0], draws)), y

    return draw


def _scalars(num_draws):
    draw_points = _centered(num_draws, d=1)

    def draw(key):
        (mu, draws), y = draw_points(key)
        return (mu[0], draws[:, 0]), y[0]

    return draw


def _log_normal(mu, y):
    return -jnp.sum((y - mu) ** 2) / 2


def _rayleigh(pred, s):
    """The law of the norm of two standard normal numbers."""
    return -jnp.expm1(-(s**2) / 2)


def _with_tau(draw, *shape):
    """Predictions with what the quantile of their scores is predicted to be."""

    def with_tau(key):
        pred, y = draw(key)
        size = jax.random.fold_in(key, 1)
        return (pred, jax.random.uniform(size, shape, minval=0.1, maxval=2)), y

    return with_tau


def _exponential(s, tau):
    """The law of exponential scores with mean tau."""
    return -jnp.expm1(-s / tau)


def _crossed(key):
    """Predicted quantiles that cross, in quarters so that some are equal."""
    at, *noise, y = jax.random.normal(key, (7,))
    x = jnp.array([-1.3, -0.5, 0.0, 0.5, 1.3]) + jnp.stack(noise) / 2
    return jnp.round(4 * (at + x)) / 4, at + y


def _on_line(places, draw_labels):
    """Probabilities of bins between places, or near them, and a target around them."""

    def draw(key):
        pred, j = draw_labels(key)
        place = jax.random.uniform(jax.random.fold_in(key, 1))
        step = places[(j + 1) % len(places)] - places[j]
        return pred, 1.1 * (places[j] + place * step)  # a few beyond all

    return draw


DENSITY = scores.Density(_log_normal)
LEVELS = jnp.array([0.1, 0.3, 0.5, 0.7, 0.9])
EDGES = jnp.array([-4.0, -2, -1.5, -1, 0, 0.5, 2.5, 5])

CASES = {
    "absolute": Case(scores.Absolute(), _point()),
    "absolute-3d": Case(scores.Absolute(), _point((3,))),
    "signed": Case(scores.Signed(), _point()),
    "residual": Case(scores.Residual(), _point()),
    "residual-lower": Case(scores.Residual("lower"), _point((3,))),
    "scaled-residual": Case(scores.ScaledResidual(), _scaled(0.1)),
    "two-sided": Case(scores.TwoSided(scores.ScaledResidual()), _scaled(0.1)),
    "quantiles": Case(scores.PredictedQuantiles(LEVELS), _crossed),
    "quantiles-lower": Case(scores.PredictedQuantiles(LEVELS, "lower"), _crossed),
    "dcp": Case(scores.DCP(LEVELS), _crossed),
    "normalized": Case(scores.Normalized(), _scaled(0.1)),
    "normalized-bad-sigma": Case(scores.Normalized(), _scaled(-0.5)),
    "cqr": Case(scores.CQR(), _band()),
    "asymmetric-cqr": Case(scores.AsymmetricCQR(), _band()),
    "gamma": Case(scores.Gamma(), _positive),
    "lac": Case(scores.LAC(), _labels(5), exact=True),
    "log-lac": Case(scores.LogLAC(), _logits(5), exact=True),
    "aps": Case(scores.APS(), _labels(7, ties=True), exact=True),
    "aps-one-class": Case(scores.APS(), _labels(1), exact=True),
    "aps-randomized": Case(scores.APS(True), _labels(5, True), exact=True),
    "raps": Case(scores.RAPS(0.0137, 2), _labels(30), exact=True),
    "raps-randomized": Case(scores.RAPS(0.3, 1, True), _labels(6, True), exact=True),
    "multilabel": Case(scores.MultiLabel(), _several(5)),
    "multilabel-pixels": Case(scores.MultiLabel(), _several(2, 3)),
    "multilabel-heat": Case(scores.MultiLabel(bounded=False), _heat(4)),
    "band": Case(scores.Band(), _field(4)),
    "band-share": Case(scores.Band(0.7), _field(2, 5)),
    "claims": Case(scores.Claims(), _claims(6)),
    "saps": Case(scores.SAPS(0.0137), _labels(7, ties=True), exact=True),
    "saps-one-class": Case(scores.SAPS(0.1, True), _labels(1, True), exact=True),
    "saps-randomized": Case(scores.SAPS(0.3, True), _labels(30, True), exact=True),
    "margin": Case(scores.Margin(), _labels(7, ties=True), exact=True),
    "log-margin": Case(scores.LogMargin(), _logits(7, ties=True), exact=True),
    "entmax": Case(scores.Entmax(1.5), _logits(17, ties=True), exact=True),
    "entmax-largest": Case(scores.Entmax(1.0), _logits(5), exact=True),
    "given": Case(scores.Given(), _logits(5, ties=True), exact=True),
    "truncated": Case(
        scores.Truncated(scores.LAC(), jnp.array([1, 2, 3, 4, 5, 6, 7])),
        _labels(7, ties=True),
        exact=True,
    ),
    "binned": Case(scores.Binned(EDGES), _on_line(EDGES, _labels(7, ties=True))),
    "binned-one": Case(scores.Binned(EDGES[:2]), _on_line(EDGES[:2], _labels(1))),
    "binned-randomized": Case(
        scores.Binned(EDGES, True), _on_line(EDGES, _labels(7, True, ties=True))
    ),
    "interpolated": Case(scores.Interpolated(EDGES), _on_line(EDGES, _labels(8))),
    "topk": Case(scores.TopK(), _labels(7, ties=True), exact=True),
    "custom": Case(scores.Custom(_distance, _around), _point()),
    "custom-level-set": Case(scores.Custom(_distance), _point()),
    "custom-start": Case(scores.Custom(_distance, start=lambda mu: mu), _point()),
    "distance": Case(scores.Distance(), _point((3,))),
    "distance-sum": Case(scores.Distance(1), _point((2,))),
    "distance-largest": Case(scores.Distance(jnp.inf), _point((3,))),
    "rectangle": Case(scores.Rectangle(), _box),
    "box-offset": Case(scores.BoxOffset(), _bounding_box),
    "box-inner": Case(scores.BoxOffset(inner=True, relative=True), _bounding_box),
    "box-maximum": Case(scores.BoxOffset(relative=True, maximum=True), _bounding_box),
    "mahalanobis": Case(scores.Mahalanobis(), _ellipsoid),
    "density": Case(DENSITY, _point((2,))),
    "latent": Case(scores.Latent(lambda mu, y: (y - mu) / 2), _point((2,))),
    "pcp": Case(scores.PCP(), _draws(7)),
    "hdpcp": Case(scores.HDPCP(0.3), _ranked(_draws(8))),
    "cp2pcp": Case(scores.CP2PCP(0.2), _draws(5, 6)),
    "c-pcp": Case(scores.CDF(scores.PCP()), _draws(4, 9)),
    "c-pcp-extended": Case(scores.CDF(scores.PCP(), extended=True), _draws(4, 9)),
    "c-pcp-ties": Case(
        scores.CDF(scores.PCP(), randomized=True), _uniform(_draws(3, 9, ties=True))
    ),
    "c-hdr-extended-ties": Case(
        scores.CDF(DENSITY, extended=True), _centered(9, ties=True)
    ),
    "cdf-absolute": Case(scores.CDF(scores.Absolute()), _scalars(9)),
    "cdf-known": Case(scores.CDF(scores.Mahalanobis(), cdf=_rayleigh), _ellipsoid),
    "rectified": Case(scores.Rectified(scores.Absolute()), _with_tau(_point())),
    "rectified-ratio": Case(
        scores.Rectified(scores.CQR(), "ratio"), _with_tau(_band((3,)), 3)
    ),
    "rectified-law": Case(
        scores.Rectified(scores.Distance(), _exponential), _with_tau(_point((3,)))
    ),
    "rectified-draws": Case(
        scores.Rectified(scores.CDF(scores.PCP())), _with_tau(_draws(4, 9))
    ),
    "rectified-lac": Case(
        scores.Rectified(scores.LAC(), "ratio"), _with_tau(_labels(5)), exact=True
    ),
    "rectified-aps": Case(
        scores.Rectified(scores.APS(True)), _with_tau(_labels(5, True)), exact=True
    ),
    "rectified-boxes": Case(
        scores.Rectified(scores.BoxOffset(), "ratio"), _with_tau(_bounding_box)
    ),
}
WIDER = scores.Custom(_distance, _twice_around)
LARGER = {  # whose sets hold more than {y : score <= q}, and say so
    "aps-inclusive": Case(scores.APS(inclusive=True), _labels(7, ties=True), True),
    "raps-inclusive": Case(
        scores.RAPS(0.3, 1, True, inclusive=True), _labels(6, True), exact=True
    ),
    "claims-share": Case(scores.Claims(0.7), _claims(6)),
    "custom-wider": Case(WIDER, _point()),
    "cdf-wider": Case(scores.CDF(WIDER), _scalars(9)),
    "rectified-wider": Case(scores.Rectified(WIDER), _with_tau(_point())),
    "rectified-inclusive": Case(
        scores.Rectified(scores.APS(inclusive=True)),
        _with_tau(_labels(7, ties=True)),
        exact=True,
    ),
}
ONE_OF_EACH = [
    "absolute",
    "signed",
    "scaled-residual",
    "two-sided",
    "quantiles",
    "dcp",
    "normalized",
    "cqr",
    "asymmetric-cqr",
    "gamma",
    "lac",
    "aps",
    "raps-randomized",
    "saps-randomized",
    "margin",
    "entmax",
    "multilabel",
    "band",
    "claims",
    "topk",
    "custom",
    "custom-start",
    "distance",
    "box-maximum",
    "binned-randomized",
    "interpolated",
    "mahalanobis",
    "latent",
    "cp2pcp",
    "c-pcp-extended",
    "c-pcp-ties",
    "cdf-known",
    "rectified",
    "rectified-ratio",
]
LABELS = [name for name, case in CASES.items() if hasattr(case.score, "labels")]


def components(case):
    """Returns the number of components of the scores of a case."""
    shape = jax.eval_shape(lambda key: case.score(*case.draw(key)), jax.random.key(0))
    return int(np.prod(shape.shape))


def reference(name):
    """Returns the arrays of a reference file, by case where it has cases."""
    path = Path(__file__).parent / "reference" / f"{name}.npz"
    assert zipfile.is_zipfile(path)
    return dict(np.load(path, allow_pickle=False))


def cases(name):
    """Returns the arrays of each case of a reference file, by the case's name."""
    separator = "__" if name.startswith(("distributional", "mapie", "risk")) else "_"
    by_case = {}
    for array, value in reference(name).items():
        case, _, what = array.partition(separator)
        by_case.setdefault(case, {})[what] = value
    return by_case


def fits_first(preds):
    """Returns predictions with leading axes (b, n) in place of (n, b)."""
    return jax.tree.map(lambda v: np.swapaxes(np.asarray(v), 0, 1), preds)


def same(found, expected, rtol=0.0, like=True):
    """Checks that trees are the same: numbers, to the last bit unless `rtol` is given.

    Structure and types too, where `like`. A number may differ by rtol (1 + |number|).
    """
    assert not like or jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(a) == np.shape(b)
        assert not like or jnp.result_type(a) == jnp.result_type(b)
        if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if rtol and jnp.issubdtype(jnp.result_type(a), jnp.inexact):
            assert_allclose(a, b, rtol=rtol, atol=rtol)
        else:
            assert_array_equal(a, b)


def cut(rows, which):
    """Returns some of the rows of a tree."""
    return jax.tree.map(lambda v: v[which], rows)


def stacked(*trees):
    """Returns trees as one, with an axis in front."""
    return jax.tree.map(lambda *v: np.stack(v), *trees)


def composes(run, *each, rtol=0.0):
    """Checks that jit is eager and vmap is a loop, for each of several arguments."""
    expected = [run(*args) for args in each]
    same(jax.jit(run)(*each[0]), expected[0], rtol)
    together = jax.jit(jax.vmap(run))(*stacked(*each))
    for i, alone in enumerate(expected):
        same(cut(together, i), alone, rtol, like=False)


def loaded(value, folder, **functions):
    """Returns what a file gives back of a value."""
    jaxcp.save(folder / "value", value)
    return jaxcp.load(folder / "value", **functions)


def regression(n, p=2, seed=0, dtype="f"):
    """Returns inputs (n, p) and targets (n,): the sum of the inputs, and noise."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(n, p)), rng.normal(size=n)
    return x.astype(dtype), (x.sum(axis=1) + noise).astype(dtype)


def assert_intervals(sets, lower, upper, **tolerance):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    assert_allclose(sets.lower, lower, **tolerance)
    assert_allclose(sets.upper, upper, **tolerance)


def one_side_over(scale, center=lambda pred: pred[0]):
    """The signed error in units of `scale(pred)`, a component for each side."""

    def evaluate(pred, y):
        error = (y - center(pred)) / scale(pred)
        return jnp.stack([-error, error])

    def inverse(pred, q):
        mu, sigma = center(pred), scale(pred)
        return Interval(mu - q[0] * sigma, mu + q[1] * sigma)

    return scores.Custom(evaluate, inverse)
