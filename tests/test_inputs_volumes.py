"""Wrong calls of volumes and of membership."""

import jax.numpy as jnp

import jaxcp
from jaxcp.scores import Custom, Density, Latent
from jaxcp.sets import Balls, LabelSet, membership
from rows import KEY, SETS9, X, refuses

DRAWS = jnp.zeros((9, 5, 2))
DISC = Balls(jnp.zeros((1, 2)), jnp.array(1.0))


WRONG = {
    "points that do not fit": (
        lambda: membership(DISC, DRAWS[0, :, :1]),
        r"points of shape \(l, 1\) for a target of shape \(1,\), l >= 1, got \(1, 2\)",
    ),
    "points and many sets": (
        lambda: membership(SETS9, X),
        r"one set, without a leading axis, got sets of shape \(9,\)",
    ),
    "volume of many sets": (
        lambda: jaxcp.volume(KEY, Balls(DRAWS, X)),
        "one Balls, got several: use jax.vmap",
    ),
    "NaN": (lambda: membership(DISC, jnp.full((2, 2), jnp.nan)), "points without NaN"),
    "volume of labels": (
        lambda: jaxcp.volume(KEY, LabelSet(jnp.ones(3, bool))),
        "or Latent score, got LabelSet",
    ),
    "volume of any score": (
        lambda: jaxcp.volume(KEY, Custom(jnp.maximum).invert(X, 1.0)),
        "got LevelSet of the score Custom",
    ),
    "volume without a sampler": (
        lambda: jaxcp.volume(KEY, Density(jnp.dot).invert(X, 1.0)),
        "Density score with `sample`",
    ),
    "volume without a forward map": (
        lambda: jaxcp.volume(KEY, Latent(jnp.dot).invert(X, 1.0)),
        "Latent score with `forward` and `dim`",
    ),
    "volume from Sobol points of a sampler": (
        lambda: jaxcp.volume(KEY, Density(jnp.dot, jnp.dot).invert(X, 1.0), sobol=True),
        "sobol=False",
    ),
    "no points": (lambda: jaxcp.volume(KEY, DISC, 0), "num_samples as an int"),
    "no key": (lambda: jaxcp.volume(0, DISC), "a key from jax.random.key"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
