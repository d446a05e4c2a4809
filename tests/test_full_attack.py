"""Full conformal sets and p-values of all learners against fits one by one.

A target y is in the set if and only if p(y) > alpha, and p(y) counts the residuals of
fits on n + 1 rows, made by a few lines of NumPy for each learner.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_full_neighbors import KEY, SMOOTHER, of_nearest, smooth

import jaxcp
from jaxcp import scores
from jaxcp.learners import Affine, KernelRidge, NearestNeighbors, Ridge

ALPHAS = (0.1, 0.3, 0.5)
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
    return of_hat(np.asarray(smooth(x - x.T, np.ones(len(x)))), y)


def of_hat(hat, y):
    return y - hat @ y, 1 - np.diag(hat)


LEARNERS = {
    "ridge": (Ridge(0.5), of_ridge),
    "kernel ridge": (KernelRidge(0.3), of_kernel),
    "neighbors": (NearestNeighbors(3), lambda x, y: (of_nearest(x, y, 3), 1.0)),
    "two refits": (Affine(Ridge(0.5)), of_ridge),
    "smoother": (Affine(SMOOTHER), of_smoother),
}
POWERS = {"studentized": 0.5, "ordinary": 0, "deleted": 1}


def cases():
    for name, (learner, _) in LEARNERS.items():
        kinds = ["ordinary"] if isinstance(learner, Affine) else POWERS
        yield from (pytest.param(name, kind, id=f"{name}-{kind}") for kind in kinds)


def p_value(residuals, x, y, kind, weights):
    """The share of rows at least as strange as the last, and whether one is as near."""
    errors, left = residuals(x, y)
    strange = np.abs(errors) / left ** POWERS[kind] * np.ones(len(y))
    ties = np.abs(strange[:-1] - strange[-1]) <= 1e-9 * (1 + strange[-1])
    kept = (strange >= strange[-1]) | np.append(ties, True)
    return weights @ kept / weights.sum(), ties.any()


@pytest.fixture(scope="module", params=cases())
def designs(request):
    """The learner, its brute force, and data of which rows and distances tie."""


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("name, kind", cases())
def test_sets_and_p_values_are_those_of_all_fits(name, kind, weighted):
    (learner, residuals), rng = LEARNERS[name], np.random.default_rng(3)
    x = rng.integers(0, 4, (COUNT, 9, 1)).astype(float)
    x[::2] += rng.normal(size=x[::2].shape)
    y = rng.normal(size=(COUNT, 8)).round(1)
    mask = rng.random((COUNT, 8)) < np.linspace(0.2, 1.2, COUNT)[:, None]
    weights = rng.random((COUNT, 9)) if weighted else np.ones((COUNT, 9))

    @jax.jit
    @jax.vmap
    def run(x, y, mask, weights):
        rows = {"at": x[:8, 0]} if name == "smoother" else x[:8]
        given = weights[:8] if weighted else None
        cp = jaxcp.full_conformal(
            KEY,
            learner,
            scores.Absolute(),
            rows,
            y,
            residuals=kind,
            mask=mask,
            calibration_weights=given,
        )
        new = {"at": x[8:, 0]} if name == "smoother" else x[8:]
        by = weights[8:] if weighted else None
        sets = [cp(new, alpha, test_weights=by) for alpha in ALPHAS]
        ends = jnp.stack([v for s in sets for v in (s.lower[0], s.upper[0])])
        at = jnp.concatenate([ends, ends - 1e-6, ends + 1e-6, jnp.asarray(FAR)])
        at = jnp.where(jnp.isfinite(at), at, 0)
        new = jax.tree.map(lambda v: jnp.repeat(v, len(at), 0), new)
        by = jnp.repeat(by, len(at)) if weighted else None
        return ends, at, cp.p_values(new, at, test_weights=by)

    with jax.enable_x64(True):
        ends, at, p = (np.asarray(v) for v in run(x, y, mask, weights))
    for i in range(COUNT):
        keep, rows = np.append(mask[i], True), np.append(y[i], 0.0)
        for j, new in enumerate(at[i]):
            rows[-1] = new
            expected, tied = p_value(
                residuals, x[i][keep], rows[keep], kind, weights[i][keep]
            )
            assert tied or abs(p[i, j] - expected) < 1e-9, (i, new)
            for alpha, lower, upper in zip(ALPHAS, *ends[i].reshape(-1, 2).T):
                inside = lower <= new <= upper
                # A superset is allowed where there are holes.
                assert inside or p[i, j] <= alpha + 1e-12, (i, new)
                if kind == "studentized" or name == "neighbors":
                    assert inside == (p[i, j] > alpha + 1e-12), (i, new)
