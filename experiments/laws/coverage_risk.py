"""Methods of the coverage grid: sets with probability 1 - delta, and risk control."""

import jax.numpy as jnp
from jax import Array

import jaxcp
from experiments.laws.coverage_laws import CUTS, Problem
from experiments.laws.coverage_methods import ABSOLUTE, WIDTH, Method, Sets, parts
from jaxcp import risk, scores

DELTA = 0.1


def likely(problem: Problem, alpha: float):
    """Returns split conformal sets that hold with probability 1 - delta."""
    (pred, y), (new, y_new) = parts(problem, (problem.mu, problem.y))
    cp = jaxcp.calibrate(ABSOLUTE, pred, y)
    return cp(new, alpha, delta=DELTA), y_new


def above_cuts(problem: Problem) -> tuple[Array, Array]:
    """Returns the chance that y lies above each cut, and whether it does."""
    above = problem.y[:, None] > jnp.array(CUTS)[None]
    return 1 - jnp.clip(jnp.cumsum(problem.p, axis=1)[:, :-1], 0, 1), above


def all_labels(problem: Problem, alpha: float):
    """Returns sets of cuts that hold all those below y."""
    (p, y), (p_new, y_new) = parts(problem, above_cuts(problem))
    return jaxcp.calibrate(scores.MultiLabel(), p, y)(p_new, alpha), y_new


def controlled(loss, delta: float | None = None) -> Sets:
    """Returns intervals that keep the mean of a loss."""

    def sets(problem, alpha):
        (pred, y), (new, y_new) = parts(problem, (problem.mu, problem.y))
        cp = risk.calibrate_risk(loss, ABSOLUTE, pred, y)
        return cp(new, alpha, delta=delta), y_new

    return sets


METHODS = [
    Method("split, delta", likely, True, delta=DELTA, oracle=WIDTH),
    Method("all labels", all_labels),
    Method("risk, miscoverage", controlled(risk.miscoverage), True, oracle=WIDTH),
    Method(
        "risk, miscoverage, delta",
        controlled(risk.miscoverage, DELTA),
        True,
        delta=DELTA,
        oracle=WIDTH,
    ),
]
