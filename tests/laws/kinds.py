"""The table of sets: five of each kind, the last two nothing and everything."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from jaxcp.cross._votes import VoteSet
from jaxcp.scores import Absolute
from jaxcp.sets import (
    Ball,
    Balls,
    Band,
    Batch,
    BoundingBox,
    Box,
    Ellipsoid,
    Interval,
    Intervals,
    Kept,
    LabelMask,
    LabelSet,
    LevelSet,
)

INF, M = np.inf, 5


@jaxcp.pytree
class Between(Batch):
    """A set of one's own as data: six lines."""

    center: jax.Array
    radii: jax.Array

    def contains(self, y):
        distance = jnp.linalg.norm(y - self.center, axis=-1)
        return (self.radii[..., 0] <= distance) & (distance <= self.radii[..., 1])

    def size(self):
        return jnp.pi * (self.radii[..., 1] ** 2 - self.radii[..., 0] ** 2)


@jaxcp.pytree
class Around(Batch):
    """An interval of one's own: ends and the shape of a target are enough."""

    middle: jax.Array
    half: jax.Array

    def contains(self, y):
        return jnp.abs(y - self.middle) <= self.half

    def ends(self):
        return self.middle - self.half, self.middle + self.half

    def with_ends(self, lower, upper):
        return Around((lower + upper) / 2, (upper - lower) / 2)

    def target_shape(self):
        return ()

    def checked(self, num_sets):
        return self


def ended(values, nothing, everything):
    """Returns values (5, ...), of which the last two are those that are given."""
    values = np.array(values)
    values[3], values[4] = nothing, everything
    return values


def _numbers():
    """Sets of points and of labels, with the targets that are asked for."""
    d = 2
    rng = np.random.default_rng(7)
    mu, half, y, z = rng.normal(size=(4, M, d)).astype("f")
    half, radius = abs(half) + np.float32(0.1), 0.5 + abs(z[:, 0])
    low, high = np.array([[[-2, 0.5]], [[-1, 2]]], "f")
    radius = ended(radius, -1, INF)
    scale = np.tril(np.ones((d, d), "f")) * half[:, None]
    ones, first = np.ones((M, 1, 1), "f"), np.zeros((M, 1), "i4")
    balls = Ellipsoid(mu[:, None, None], np.ones((M, 1, 1, d), "f"), ones)
    levels = jax.vmap(lambda pred, q: LevelSet(Absolute(), pred, jnp.full(d, q)))
    ends = ended(mu - half, INF, -INF), ended(mu + half, -INF, INF)
    line = ended(mu[:, 0] - 1, 1, -INF), ended(mu[:, 0] + half[:, 0], -1, INF)
    pieces = ended(mu + low, INF, [-INF, INF]), ended(mu + high, -INF, [INF, -INF])
    corners = ended(mu - 2, INF, -INF), ended(mu + 2, -INF, INF)
    true = np.concatenate([mu - y / 2, mu + half], axis=1)
    inner = np.concatenate([mu - half, mu + half], axis=1)
    near = np.float32(0.1)
    return {
        "intervals": (Interval(*line), y[:, 0]),
        "boxes": (Box(*ends), y / 2),
        "bands": (Band(*ends, ndim=1), y / 2),
        "bands of a share": (Band(*ends, ndim=1, fraction=0.5), y / 2),
        "bounding boxes": (BoundingBox(*corners), true),
        "inner boxes": (BoundingBox(mu - near, mu + near, True), inner),
        "balls": (Balls(np.stack([mu, z], axis=1), ended(abs(z[:, 0]), -1, INF)), y),
        "ball": (Ball(mu, radius), y),
        "diamonds": (Ball(mu, radius, 1), y),
        "cubes": (Ball(mu, radius, INF), y),
        "unions": (Intervals(*pieces), y[:, 0]),
        "axes": (Ellipsoid(mu, half, radius), y),
        "ellipsoids": (Ellipsoid(mu, scale, radius), y),
        "levels": (levels(mu, ended(np.full(M, 0.8, "f"), -1, INF)), y / 2),
        "votes": (VoteSet(balls, first + 1, first), y),
        "own": (Between(mu, np.stack([np.zeros(M, "f"), 1 + abs(z[:, 0])], axis=1)), y),
        "own intervals": (Around(mu[:, 0], ended(radius, -1, INF)), y[:, 0]),
    }


def _labels():
    k = 3
    mask = ended(np.random.default_rng(8).random((M, k)) < 0.7, False, True)
    pixels = np.zeros((M, 2, k), bool)
    pixels[:, 1, 0] = True
    share = np.full(M, 0.5, "f")
    return {
        "labels": (LabelSet(mask), np.arange(M) % k),
        "labels out of range": (LabelSet(mask), np.arange(M) - 1),
        "masks": (LabelMask(mask), np.eye(k, dtype=bool)[np.arange(M) % k]),
        "pixels": (LabelMask(np.stack([mask, ~mask], axis=1), ndim=2), pixels),
        "claims": (Kept(mask, share), np.arange(M * k).reshape(M, k) % 2),
    }


@functools.cache
def batches():
    """A set of each kind as (sets with leading axis m, targets of each)."""
    return jax.tree.map(jnp.asarray, _numbers() | _labels())


KINDS = [*batches()]
# Whose last two are not nothing and everything.
NO_ENDS = "inner boxes", "votes", "own", "pixels", "claims", "labels out of range"
