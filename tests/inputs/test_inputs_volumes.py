"""Wrong calls of volumes and of membership."""

import jax.numpy as jnp
import pytest

import jaxcp
from jaxcp.metrics import mean_volume
from jaxcp.scores import Custom, Density, Latent
from jaxcp.sets import Balls, Box, Interval, Intervals, LabelSet, LevelSet, membership
from rows import KEY, SETS9, X2, X, refuses

DRAWS = jnp.zeros((9, 5, 2))
SQUARE, LINE = Box(jnp.zeros(2), jnp.ones(2)), Interval(0.0, 1.0)
DISC = Balls(jnp.zeros((1, 2)), jnp.array(1.0))


def distance(pred, y):
    return jnp.abs(y - pred).sum()


WRONG = {
    "points that do not fit": (
        lambda: membership(DISC, DRAWS[0, :, :1]),
        r"points of shape \(l, 1\) for a target of shape \(1,\), l >= 1, got \(1, 2\)",
    ),
    "points and many sets": (
        lambda: membership(SETS9, X),
        r"one set, got sets of shape \(9,\)",
    ),
    "volume of many sets": (
        lambda: jaxcp.volume(KEY, Balls(DRAWS, X)),
        "one Balls, got several: use jax.vmap",
    ),
    "NaN": (lambda: membership(DISC, jnp.full((2, 2), jnp.nan)), "points without NaN"),
    "volume of labels": (
        lambda: jaxcp.volume(KEY, LabelSet(jnp.ones(3, bool))),
        "volume in, got LabelSet",
    ),
    "volume of any score": (
        lambda: jaxcp.volume(KEY, Custom(jnp.maximum).invert(X, 1.0)),
        "estimate_log_size, as Density, got Custom",
    ),
    "volume of labels in a box": (
        lambda: jaxcp.volume(KEY, LabelSet(jnp.ones(3, bool)), within=SQUARE),
        "set in R.d, got labels: metrics.sizes counts",
    ),
    "volume in a box without end": (
        lambda: jaxcp.volume(KEY, DISC, within=Box(X[:2], jnp.array([9.0, jnp.inf]))),
        "within as a finite box, got inf at 1",
    ),
    "volume in boxes": (
        lambda: jaxcp.volume(KEY, DISC, within=Box(-DRAWS[:, 0], DRAWS[:, 0])),
        r"within as one box, ends \(d,\), got ends \(9, 2\) and \(9, 2\)",
    ),
    "volume in a number": (
        lambda: jaxcp.volume(KEY, DISC, within=3.0),
        "within as a Box or an Interval, got float",
    ),
    "volumes in boxes of other rows": (
        lambda: mean_volume(KEY, SETS9, within=Interval(X[:2], X[:2])),
        "within with 9 rows like sets, got 2",
    ),
    "volume of many sets in a box": (
        lambda: jaxcp.volume(KEY, SETS9, within=Interval(0.0, 1.0)),
        "one Interval, got several: use jax.vmap",
    ),
    "volume in a box of other targets": (
        lambda: jaxcp.volume(KEY, DISC, within=Box(X[:3], X[:3])),
        r"points of shape \(l, 3\) for a target of shape \(3,\)",
    ),
    "pieces without a bracket": (
        lambda: LevelSet(Custom(jnp.maximum), 0.0, 1.0).intervals(3.0),
        "within as a Box or an Interval, got float",
    ),
    "pieces on no grid": (
        lambda: LevelSet(Custom(jnp.maximum), 0.0, 1.0).intervals(LINE, num_points=1),
        "num_points as an int >= 2, got 1",
    ),
    "no pieces": (
        lambda: LevelSet(Custom(jnp.maximum), 0.0, 1.0).intervals(LINE, max_pieces=0),
        "max_pieces as an int >= 1, got 0",
    ),
    "unions of other rows": (
        lambda: jaxcp.metrics.coverage(Intervals(X2[:2], X2), X),
        "sets of one length",
    ),
    "unions without an axis": (
        lambda: jaxcp.metrics.coverage(Intervals(X, X), X),
        r"Intervals of shape \(9,\), got \(\)",
    ),
    "volume without a sampler": (
        lambda: jaxcp.volume(KEY, Density(jnp.dot).invert(X, 1.0)),
        "sample as a value, got None",
    ),
    "volume without a forward map": (
        lambda: jaxcp.volume(KEY, Latent(jnp.dot).invert(X, 1.0)),
        "forward as a value, got None",
    ),
    "volume from Sobol points of a sampler": (
        lambda: jaxcp.volume(KEY, Density(jnp.dot, jnp.dot).invert(X, 1.0), sobol=True),
        "sobol=False",
    ),
    "no points": (lambda: jaxcp.volume(KEY, DISC, 0), "num_samples as an int"),
    "no key": (lambda: jaxcp.volume(0, DISC), "a key from jax.random.key"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)


def test_many_level_sets_have_no_volume_in_a_box():
    sets = jaxcp.calibrate(Custom(distance), X2, X2)(X2, 0.2)
    with pytest.raises(ValueError, match="vmap got inconsistent sizes"):
        jaxcp.volume(KEY, sets, within=SQUARE)
    with pytest.raises(ValueError, match="one LevelSet, got several"):
        jaxcp.volume(KEY, sets[:2], within=SQUARE)
