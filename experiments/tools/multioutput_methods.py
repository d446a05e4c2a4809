"""The multi-output methods, on any model with the functions of `jaxcp.models`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

import jaxcp
from jaxcp import scores

ALPHA = 0.2
REFERENCE, RANK = 0, 1  # roles of draws: of the base score, and to rank it among


@dataclass(frozen=True)
class Source:
    """A model with parameters, and the key of its draws at a set of inputs.

    Parameters are leaves of the scores and so of every set; `frozen` makes them
    constants of the program instead, for many sets in one.
    """

    model: object
    params: object
    key: Array
    num_draws: int = 100
    frozen: bool = False

    def draws(self, x: Array, role: int) -> Array:
        """Returns draws at every input, shape (n, num_draws, d)."""
        sample = partial(self.model.sample, self.params)
        return jaxcp.draw(self.key, sample, x, self.num_draws, role=role)

    def density(self) -> scores.Density:
        """Returns the density score; AttributeError for what the model lacks."""
        score = scores.Density.of(self.model, self.params)
        return score if not self.frozen else _with_constants(score)

    def latent(self) -> scores.Latent:
        """Returns the latent score; AttributeError for what the model lacks."""
        score = scores.Latent.of(self.model, self.params)
        return score if not self.frozen else _with_constants(score)


def _with_constants(score):
    """Returns the score with its functions closed over their parameters."""
    leaves = jax.tree.leaves(score)
    functions = [
        getattr(score, name)
        for name in ("log_prob", "sample", "inverse", "forward")
        if hasattr(score, name)
    ]
    closed = [lambda *args, f=f: f(*args) for f in functions]
    dim = [score.dim] if hasattr(score, "dim") else []
    return type(score)(*closed, *dim) if leaves else score


@dataclass(frozen=True)
class Method:
    """A score and what it reads: `score(source)`, `preds(source, x)`."""

    name: str
    score: Callable[[Source], object]
    preds: Callable[[Source, Array], object]


def moments(draws: Array) -> tuple[Array, Array]:
    """Returns the mean of draws and a triangular factor of their covariance."""
    mean = jnp.mean(draws, axis=1)
    away = draws - mean[:, None]
    covariance = jnp.einsum("nld,nle->nde", away, away) / draws.shape[1]
    return mean, jnp.linalg.cholesky(covariance)


def with_densities(source: Source, x: Array) -> tuple[Array, Array]:
    """Returns draws and their log densities."""
    draws, density = source.draws(x, REFERENCE), source.density()
    return draws, _log_densities(density, x, draws)


@jax.jit
def _log_densities(density, x, draws):
    return jax.vmap(lambda v, ys: -jax.vmap(density, (None, 0))(v, ys))(x, draws)


def both(source: Source, x: Array) -> tuple[Array, Array]:
    """Returns reference draws, and draws to rank among."""
    return source.draws(x, REFERENCE), source.draws(x, RANK)


def ranked(source: Source, x: Array) -> tuple[Array, Array]:
    """Returns the input, and draws to rank its density among."""
    return x, source.draws(x, RANK)


def all_methods(alpha: float) -> list[Method]:
    """Returns the methods; some scores and predictions depend on the level."""
    return [
        Method(
            "M-CP",
            lambda s: scores.Rectangle(),
            lambda s, x: scores.Rectangle.bounds(s.draws(x, REFERENCE), alpha),
        ),
        Method(
            "Mahalanobis",
            lambda s: scores.Mahalanobis(),
            lambda s, x: moments(s.draws(x, REFERENCE)),
        ),
        Method("DR-CP", lambda s: s.density(), lambda s, x: x),
        Method("C-HDR", lambda s: scores.CDF(s.density()), ranked),
        Method(
            "C-HDR, extended", lambda s: scores.CDF(s.density(), extended=True), ranked
        ),
        Method("PCP", lambda s: scores.PCP(), lambda s, x: s.draws(x, REFERENCE)),
        Method("HD-PCP", lambda s: s.density() and scores.HDPCP(alpha), with_densities),
        Method("C-PCP", lambda s: scores.CDF(scores.PCP()), both),
        Method(
            "C-PCP, extended", lambda s: scores.CDF(scores.PCP(), extended=True), both
        ),
        Method("CP2-PCP", lambda s: scores.CP2PCP(alpha), both),
        Method("L-CP", lambda s: s.latent(), lambda s, x: x),
    ]


METHODS = all_methods(ALPHA)


def calibrated(method: Method, source: Source, x: Array, y: Array):
    """Returns the calibration of a method on the draws of a source."""
    return jaxcp.calibrate(method.score(source), method.preds(source, x), y)


def offered(source: Source) -> list[Method]:
    """Returns the methods that a model can serve."""

    def serves(method):
        try:
            method.score(source)
        except AttributeError:
            return False
        return True

    return [method for method in METHODS if serves(method)]


@jax.jit
def conditional_coverage(
    sets, targets: Array, alpha: float
) -> tuple[Array, Array, Array]:
    """Returns coverage, the conditional error and the noise taken off it.

    Args:
      sets: Sets with leading axis m.
      targets: Fresh targets at each input, shape (m, r, d).
      alpha: Miscoverage level.

    Returns:
      Mean coverage, the mean over inputs of (coverage - (1 - alpha))^2 without its
      bias, and that bias, the mean of p (1 - p) / r.
    """
    inside = jax.vmap(lambda s, ys: jax.vmap(s.contains)(ys))(sets, targets)
    rates = jnp.mean(inside, axis=1)
    noise = jnp.mean(rates * (1 - rates)) / (targets.shape[1] - 1)
    return jnp.mean(rates), jnp.mean((rates - (1 - alpha)) ** 2) - noise, noise
