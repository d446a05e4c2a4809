"""Full conformal sets and p-values of all learners against fits one by one.

A target y is in the set if and only if p(y) > alpha, and p(y) counts the residuals of
fits on n + 1 rows, made by a few lines of NumPy for each learner.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_full_neighbors import GOLDEN, KEY, SMOOTHER, of_nearest

import jaxcp
from jaxcp import scores
from jaxcp.learners import (
    Affine,
    GradientLearner,
    KernelRidge,
    NearestNeighbors,
    Ridge,
)

ALPHAS = np.array([0.1, 0.3, 0.5])
COUNT = 12  # designs of one size
FAR = np.array([-1e3, -3.0, -1.0, 0.0, 0.2, 1.0, 3.0, 1e3])


def of_ridge(x, y):
    """Least squares with an intercept and a penalty: residuals and leverages."""
    design = np.column_stack([np.ones(len(x)), x])
    price = 0.5 * np.diag([0.0] + [1.0] * x.shape[1])
    return of_hat(design @ np.linalg.pinv(design.T @ design + price) @ design.T, y)


def of_kernel(x, y):
    gram = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(axis=2))
    return of_hat(gram @ np.linalg.inv(gram + 0.3 * np.eye(len(x))), y)


def of_smoother(x, y):
    kernel = np.exp(-((x - x.T) ** 2))
    return of_hat(kernel / kernel.sum(axis=1, keepdims=True), y)


def of_hat(hat, y):
    return y - hat @ y, 1 - np.diag(hat)


LEARNERS = {
    "ridge": (Ridge(0.5), of_ridge),
    "kernel ridge": (KernelRidge(0.3), of_kernel),
    "neighbors": (NearestNeighbors(3), lambda x, y: (of_nearest(x, y, 3), 1.0)),
    "two refits": (Affine(Ridge(0.5)), of_ridge),
    "smoother": (Affine(SMOOTHER), of_smoother),
}
rows_of, new_of = (
    partial(jax.tree.map, lambda v, part=part: v[part])
    for part in (slice(0, 8), slice(8, 9))
)
QUICK = {"neighbors-studentized", "smoother-ordinary"}
POWERS = {"studentized": 0.5, "ordinary": 0, "deleted": 1}


def cases():
    found = []
    for name, (learner, _) in LEARNERS.items():
        kinds = ["ordinary"] if isinstance(learner, Affine) else POWERS
        found += [(name, kind) for kind in kinds]
    marks = [() if "-".join(case) in QUICK else pytest.mark.slow for case in found]
    return [
        pytest.param(*case, id="-".join(case), marks=mark)
        for case, mark in zip(found, marks, strict=True)
    ]


def p_value(residuals, x, y, kind, weights):
    """The share of rows at least as strange as the last, and whether one is as near."""
    errors, left = residuals(x, y)
    strange = np.abs(errors) / left ** POWERS[kind] * np.ones(len(y))
    ties = np.abs(strange[:-1] - strange[-1]) <= 1e-9 * (1 + strange[-1])
    kept = (strange >= strange[-1]) | np.append(ties, True)
    return weights @ kept / weights.sum(), ties.any()


@pytest.mark.parametrize("name, kind", cases())
def test_sets_and_p_values_are_those_of_all_fits(name, kind):
    """Of rows and distances that tie, masked, weighted and not."""
    (learner, residuals), rng = LEARNERS[name], np.random.default_rng(3)
    x = rng.integers(0, 4, (COUNT, 9, 1)).astype(float)
    x[::2] += rng.normal(size=x[::2].shape)
    y = rng.normal(size=(COUNT, 8)).round(1)
    weights = rng.random((COUNT, 9))
    weights[::3] = 1
    mask = rng.random((COUNT, 8)) < np.linspace(0.2, 1.2, COUNT)[:, None]
    inputs = {"at": x[..., 0]} if name == "smoother" else x

    @jax.jit
    @jax.vmap
    def run(x, y, mask, weights):
        (x, weights), (new, weight) = (part((x, weights)) for part in (rows_of, new_of))
        cp = jaxcp.full_conformal(
            *(KEY, learner, scores.Absolute(), x, y),
            **{"residuals": kind, "mask": mask, "calibration_weights": weights},
        )
        sets = jax.vmap(lambda alpha: cp(new, alpha, test_weights=weight))(ALPHAS)
        ends = jnp.stack([sets.lower[:, 0], sets.upper[:, 0]])
        near = jnp.concatenate([ends + step for step in (0, -1e-6, 1e-6)]).ravel()
        at = jnp.append(jnp.where(jnp.isfinite(near), near, 0), FAR)
        new, weight = jax.tree.map(lambda v: jnp.repeat(v, len(at), 0), (new, weight))
        return ends, at, cp.p_values(new, at, test_weights=weight)

    with jax.enable_x64(True):
        found = run(inputs, y, mask, weights)
    for i, (ends, at, p) in enumerate(zip(*map(np.asarray, found), strict=True)):
        keep = np.append(mask[i], True)
        for new, got in zip(at, p, strict=True):
            rows = x[i][keep], np.append(y[i], new)[keep], kind, weights[i][keep]
            expected, ties = p_value(residuals, *rows)
            if ties:  # rounding decides
                continue
            assert abs(got - expected) < 1e-9, (i, new)
            inside, kept = (ends[0] <= new) & (new <= ends[1]), got > ALPHAS
            if kind == "studentized" or name == "neighbors":
                np.testing.assert_array_equal(inside, kept)
            assert np.all(inside | ~kept), (i, new)  # holes may be closed


@pytest.mark.parametrize("kind", ["studentized", "deleted"])
def test_golden_intervals_of_neighbors(kind):
    x, y, x_new = (GOLDEN[name] for name in ("x", "y", "x_new"))
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-5)):
        with jax.enable_x64(dtype is np.float64):
            data = [jnp.asarray(v, dtype) for v in (x, y)]
            learner, new = NearestNeighbors(4), jnp.asarray(x_new, dtype)
            options = KEY, learner, scores.Absolute(), *data
            cp = jaxcp.full_conformal(*options, residuals=kind)
            for alpha, expected in zip(
                GOLDEN["alphas"], GOLDEN["interval"].swapaxes(0, 1), strict=True
            ):
                found = cp(new, alpha.item())
                ends = np.stack([found.lower, found.upper], axis=1)
                np.testing.assert_allclose(ends, expected, rtol=tolerance)


def test_coverage_of_neighbors_is_exact():
    """Of inputs on a grid, where distances tie: k / (n + 1) over the targets."""

    @jax.jit
    @jax.vmap
    def covered(key):
        keys = jax.random.split(key)
        x = jax.random.randint(keys[0], (20, 2), 0, 4).astype(float)
        y = x[:, 0] + jax.random.normal(keys[1], (20,))
        rows = x[:-1], y[:-1]
        cp = jaxcp.full_conformal(KEY, NearestNeighbors(3), scores.Absolute(), *rows)
        return cp(x[-1:], 0.25).contains(y[-1:])[0]

    count = 4_000
    mean = np.mean(covered(jax.random.split(KEY, count)))
    assert abs(mean - 0.75) < 4 * np.sqrt(0.75 * 0.25 / count)


LOGISTIC = GradientLearner(
    init=lambda key: jnp.zeros((2, 2)),
    predict=lambda params, x: jax.nn.softmax(x @ params),
    loss=lambda p, y: -jnp.log(p[y]),
    optimizer=optax.adam(0.1),
    num_steps=5,
)
DOORS = {
    "cells": lambda x, y, mask: jaxcp.discretized_conformal(
        KEY, Ridge(1.0), scores.Absolute(), x, y, [-1.0, 0.0, 1.0], mask=mask
    ),
    "labels": lambda x, y, mask: jaxcp.full_conformal(
        KEY, LOGISTIC, scores.LAC(), x, np.where(mask, y > 0, 9), mask=mask
    ),
    "influence": lambda x, y, mask: jaxcp.influence_conformal(
        KEY, LOGISTIC, x, np.where(mask, y > 0, 9), num_labels=2, mask=mask
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_padding_may_hold_anything(door):
    rng, mask = np.random.default_rng(0), np.arange(12) % 4 > 0
    x, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    new, target = x[:3] + 0.1, np.arange(3) % 2
    padded = np.where(mask[:, None], x, np.nan), np.where(mask, y, np.nan)
    found, known = (
        DOORS[door](*rows, mask).p_values(new, target) for rows in (padded, (x, y))
    )
    np.testing.assert_array_equal(found, known)
    assert np.any(known < 1)
