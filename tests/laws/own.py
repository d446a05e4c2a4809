"""Scores as users write them, with sets of their own: rows of the laws of scores."""

import jax
import jax.numpy as jnp

import helpers
import jaxcp
from helpers import Case
from jaxcp import scores
from jaxcp.sets import Batch


@jaxcp.pytree
class SAPS(scores.Labelwise):
    """Huang et al. 2024: of the probabilities only the largest counts."""

    penalty: float
    takes = scores.inputs.probabilities(randomized=True)

    def labels(self, pred):
        (p, u), highest = pred, jnp.max(pred[0])
        rank = 1 + jnp.argsort(jnp.argsort(-p))
        further = highest + (rank - 2 + u) * self.penalty
        return jnp.where(rank == 1, u * highest, further)


@jaxcp.pytree
class Ring(Batch):
    """All y in the plane whose distance from the center lies between two radii."""

    center: jax.Array
    inner: jax.Array
    outer: jax.Array

    def contains(self, y):
        distance = jnp.linalg.norm(y - self.center, axis=-1)
        return (self.inner <= distance) & (distance <= self.outer)

    def size(self):
        inner = jnp.maximum(self.inner, 0)
        return jnp.pi * jnp.maximum(jnp.maximum(self.outer, 0) ** 2 - inner**2, 0)

    def log_size(self):
        return jnp.log(self.size())


@jaxcp.pytree
class OnRing:
    """How far the target is from a circle around the prediction."""

    radius: float

    def __call__(self, pred, y):
        return jnp.abs(jnp.linalg.norm(y - pred) - self.radius)

    def invert(self, pred, q):
        return Ring(pred, self.radius - q, self.radius + q)


OWN = {
    "own-labels": Case(SAPS(0.2), helpers.CASES["raps-randomized"].draw),
    "own-ring": Case(OnRing(2.0), helpers.CASES["density"].draw),
}
CASES = helpers.CASES | OWN
