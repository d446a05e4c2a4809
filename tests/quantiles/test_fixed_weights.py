"""Weights of calibration rows at every door: ratios, and fixed ones of at most 1."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import learners, outliers, pvalues, risk, scores

N = 9
KEY, ABSOLUTE, RIDGE = jax.random.key(0), scores.Absolute(), learners.Ridge(1.0)
SIGNED = scores.Signed()
X = jnp.linspace(-1.0, 1.0, N)
Y, NEW = X + jnp.sin(9 * X), jnp.array([0.1, 0.3])
ONE, SEVERAL = {"test_weight": 1.0}, {"test_weights": np.ones(2)}
FOLDS = np.arange(N) % 3 == np.arange(3)[:, None]
ALPHA = 0.3


def calibrated(weights, **options):
    return jaxcp.calibrate(ABSOLUTE, X, Y, weights=weights, **options)


def grouped(weights):
    groups = {"groups": np.zeros(N, int), "num_groups": 1}
    return jaxcp.calibrate_groups(ABSOLUTE, X, Y, weights=weights, **groups)


def jackknife(weights):
    given = X[:, None], Y
    return jaxcp.jackknife_plus(
        KEY, RIDGE, ABSOLUTE, *given, calibration_weights=weights
    )


def crossed(weights, score=ABSOLUTE):
    preds = jnp.broadcast_to(X, (3, N))
    return jaxcp.cross_calibrate(score, preds, Y, FOLDS, weights=weights)


def full(weights):
    given = X[:, None], Y
    return jaxcp.full_conformal(
        KEY, RIDGE, ABSOLUTE, *given, calibration_weights=weights
    )


def discretized(weights):
    given = X[:, None], Y, jnp.linspace(-2, 2, 5)
    return jaxcp.discretized_conformal(
        KEY, RIDGE, ABSOLUTE, *given, calibration_weights=weights
    )


def risky(weights):
    return risk.calibrate_risk(risk.miscoverage, ABSOLUTE, X, Y, weights=weights)


def selected(weights, **test):
    pred = {"pred": X, "y": Y, "threshold": 0.0, "test_pred": NEW}
    return pvalues.selection_p_values(**pred, weights=weights, **test)


def sharded(weights, **test):
    mesh = jax.make_mesh((1,), ("rows",))
    return jaxcp.sharded_conformal_quantile(X, ALPHA, mesh, weights=weights, **test)


def methods(made, cls, preds=NEW, groups=False, **calls):
    """Returns the doors of what `made(weights)` returns, by name."""
    group = {"groups": np.zeros(2, int)} if groups else {}
    calls = {"quantile": (ALPHA,), "__call__": (preds, ALPHA)} | calls

    def door(name, args, weights, **test):
        own = {} if name == "quantile" else group
        return getattr(made(weights), name)(*args, **own, **test)

    return {
        f"{cls}.{name}": partial(door, name, args)
        for name, args in calls.items()
        if args is not None
    }


def middle(atoms):
    return atoms.quantile(0.5, side="upper")


INPUTS, OF_FITS = NEW[:, None], jnp.broadcast_to(NEW, (3, 2))
DOORS = (
    methods(calibrated, "Calibration", p_values=(NEW, NEW))
    | methods(grouped, "GroupCalibration", groups=True, p_values=(NEW, NEW))
    | methods(risky, "RiskCalibration")
    | methods(full, "FullConformal", INPUTS, quantile=None, p_values=(INPUTS, NEW))
    | methods(
        discretized,
        "DiscretizedConformal",
        INPUTS,
        quantile=None,
        p_values=(INPUTS, NEW),
    )
    | methods(
        jackknife,
        "CrossConformal",
        INPUTS,
        minmax=(INPUTS, ALPHA),
        naive=(INPUTS, ALPHA),
    )
    | methods(
        crossed,
        "CrossCalibration",
        OF_FITS,
        minmax=(OF_FITS, ALPHA),
        naive=(NEW, ALPHA),
    )
    | {
        "FullConformal.predictive": lambda weights, **test: middle(
            full(weights).predictive(INPUTS, **test)
        ),
        "CrossCalibration.predictive": lambda weights, **test: middle(
            crossed(weights, SIGNED).predictive(OF_FITS, **test)
        ),
        "weighted_conformal_quantile": lambda weights, **test: (
            jaxcp.weighted_conformal_quantile(X, weights, ALPHA, **test)
        ),
        "sharded_conformal_quantile": sharded,
        "conformal_p_value": lambda weights, **test: jaxcp.conformal_p_value(
            X, 0.5, weights=weights, **test
        ),
        "outlier_p_values": lambda weights, **test: outliers.outlier_p_values(
            X, NEW, weights=weights, **test
        ),
        "selection_p_values": selected,
        "Held.p_values": lambda weights, **test: jaxcp.Held(
            jnp.asarray(X), jnp.asarray(weights)
        ).p_values(jnp.asarray(NEW), **test),
    }
)
# Of one test point, in place of several.
OF_ONE = {"weighted_conformal_quantile", "sharded_conformal_quantile"}
OF_ONE |= {"conformal_p_value", *(name for name in DOORS if "quantile" in name)}


def with_optional_test_weights():
    """Returns the public functions and methods that take test weights or none."""
    inner = "threshold", "level_and_context"
    is_door = lambda k: k == "__call__" or (k[0] != "_" and k not in inner)  # noqa: E731
    for module in (jaxcp, outliers, pvalues, risk):
        for name in module.__all__:
            value = getattr(module, name)
            members = {name: value}
            if inspect.isclass(value):
                own = vars(value).items()
                members = {f"{name}.{k}": v for k, v in own if is_door(k)}
            for full_name, member in members.items():
                if not inspect.isfunction(member):
                    continue
                parameters = inspect.signature(member).parameters.values()
                if any(
                    p.name[:11] == "test_weight" and p.default is None
                    for p in parameters
                ):
                    yield full_name


def test_every_door_is_in_the_table():
    by_context = {
        f"{kind}.{way}"
        for kind in ("CrossCalibration", "CrossConformal")
        for way in ("minmax", "naive")
    }  # they take what calling them takes
    assert set(DOORS) == by_context | set(with_optional_test_weights())


@pytest.mark.parametrize("name", DOORS)
def test_weights_above_1_need_test_weights(name):
    """They are refused with the cures, whatever the mask; of at most 1 they are not."""
    door, test = DOORS[name], ONE if name in OF_ONE else SEVERAL
    weights = jnp.linspace(0.1, 1.0, N)
    as_they_are, given = door(weights), door(weights, **test)
    jax.tree.map(np.testing.assert_array_equal, as_they_are, given)
    with pytest.raises(ValueError, match=r"weights <= 1 .* got 2.0 at 8; .* repeat"):
        door(weights.at[-1].set(2))
    jax.block_until_ready(door(2 * weights, **test))  # the word of the user
    jax.block_until_ready(jax.jit(door)(2 * weights))  # not known here


def test_rows_off_the_mask_have_no_weight():
    mask = np.arange(N) > 0
    weights = np.where(mask, 0.5, 9.0)
    cp = calibrated(weights, mask=mask)
    assert np.isfinite(cp.quantile(0.4))
    given = {"weights": weights, "mask": mask}
    outliers.outlier_p_values(X, NEW, **given)
    pvalues.selection_p_values(X, Y, 0.0, NEW, **given)


def test_training_weights_are_any():
    weights = 9.0 * ~FOLDS
    cp = jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X[:, None], Y, weights)
    assert np.all(np.isfinite(cp(INPUTS, ALPHA).upper))


SIZE, NUM_TRIALS, LEVEL = 20, 10_000, 0.2
WEIGHTS = {
    "fading": 0.8 ** np.arange(SIZE, 0, -1.0),
    "two kinds": np.repeat([0.1, 1.0], SIZE // 2),
    "one row": np.where(np.arange(SIZE) > 0, 0.0, 1.0),
    "ratios": None,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_guarantees(name):
    """1 - alpha, and 1 - 2 alpha of the jackknife+: fixed weights of rows that are
    exchangeable, none above the test weight, and ratios where inputs shift."""
    fixed = WEIGHTS[name]

    def trial(key):
        key_x, key_y = jax.random.split(key)
        x = jax.random.normal(key_x, (SIZE + 1,))
        x = x if fixed is not None else x.at[SIZE].add(1.0)
        y = jnp.exp(x / 2) * jax.random.normal(key_y, (SIZE + 1,))
        ratio, zeros = jnp.exp(x), jnp.zeros(SIZE + 1)
        weights = ratio[:SIZE] if fixed is None else fixed
        test = {"test_weights": ratio[SIZE:]} if fixed is None else {}
        split = jaxcp.calibrate(ABSOLUTE, zeros[:SIZE], y[:SIZE], weights=weights)
        rows = x[:SIZE, None], y[:SIZE]
        plus = jaxcp.jackknife_plus(
            KEY, RIDGE, ABSOLUTE, *rows, calibration_weights=weights
        )
        sets = split(zeros[SIZE:], LEVEL, **test), plus(x[SIZE:, None], LEVEL, **test)
        return jnp.stack([s.contains(y[SIZE:])[0] for s in sets])

    covered = jax.jit(jax.vmap(trial))(jax.random.split(KEY, NUM_TRIALS))
    for share, promised in zip(jnp.mean(covered, axis=0), (0.8, 0.6), strict=True):
        assert share > promised - 4 * (promised * (1 - promised) / NUM_TRIALS) ** 0.5


def test_why_larger_weights_are_refused():
    """One row of weight 9 covers half of exchangeable test points at 0.1."""

    def covers(key):
        score, new = jax.random.normal(key, (2,))
        weights = {"weights": jnp.array([9.0]), "test_weight": 1.0}
        return new <= jaxcp.weighted_conformal_quantile(
            score[None], alpha=0.1, **weights
        )

    share = jnp.mean(jax.jit(jax.vmap(covers))(jax.random.split(KEY, NUM_TRIALS)))
    assert abs(share - 0.5) < 4 * 0.5 / NUM_TRIALS**0.5
