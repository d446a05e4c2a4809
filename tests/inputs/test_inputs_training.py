"""Wrong calls of training."""

import jax.numpy as jnp
import optax

from jaxcp import training
from jaxcp.scores import APS, LAC, PCP, RAPS, BoxOffset, Custom
from rows import KEY, P, X, Y, refuses


def size(score, preds, q=1.0, temperature=1.0, **options):
    return lambda: training.soft_size(
        score, preds, q, temperature=temperature, **options
    )


def membership(y, q):
    return lambda: training.soft_membership(LAC(), P, y, q, temperature=1.0)


def loss(alpha=0.1, preds=P, **options):
    of = training.conformal_training_loss
    return lambda: of(LAC(), P, Y, preds, alpha, temperature=1.0, **options)


def train(score=None, **options):
    score = RAPS(0.1, 1) if score is None else score
    options = {"optimizer": optax.sgd(1.0), "num_steps": 1} | options
    return lambda: training.train_score(
        KEY, score, P, Y, 0.1, temperature=1.0, **options
    )


def select(penalty, p=P, y=Y, alpha=0.1):
    return lambda: training.select_score(KEY, RAPS(penalty, 1), p, y, alpha)


WRONG = {
    "temperature": (size(LAC(), P, 0.5, temperature=0.0), "temperature > 0, got 0.0"),
    "several temperatures": (
        size(LAC(), P, 0.5, temperature=X),
        r"temperature of shape \(\), got \(9,\)",
    ),
    "a level set": (
        size(Custom(jnp.maximum), X, 1.0),
        "a key from jax.random.key, got NoneType",
    ),
    "balls, no key": (size(PCP(), P[:, :, None], 1.0), "a key from jax.random.key"),
    "inner boxes": (
        size(BoxOffset(inner=True, maximum=True), jnp.ones((9, 4)), 1.0),
        "sets to make small, got inner boxes",
    ),
    "many q": (size(LAC(), P, X), r"q of shape \(\) or \(3,\), got \(9,\)"),
    "many q of labels": (membership(Y, X), r"q of shape \(\) or \(3,\), got \(9,\)"),
    "fewer targets": (membership(Y[1:], 1.0), "y with 9 rows like preds, got 8"),
    "gradients": (
        loss(bandwidth=0.1, nearest=3),
        "one of bandwidth and nearest, got 0.1 and 3",
    ),
    "alpha 1": (loss(alpha=1.0), r"alpha in \(0, 1\), got 1.0"),
    "levels": (
        loss(alpha=jnp.array([0.1, 0.2])),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "the nearest none": (loss(nearest=0), "nearest as an int >= 1, got 0"),
    "weights without labels": (
        loss(size_weights=jnp.ones(3)),
        "y as a value, got None",
    ),
    "weights of other labels": (
        loss(y=Y, size_weights=jnp.ones(2)),
        r"size_weights of shape \(3,\), got \(2,\)",
    ),
    "negative weights": (
        loss(y=Y, classification_weights=-jnp.eye(3)),
        "finite classification_weights >= 0, got -1.0",
    ),
    "nothing to train": (train(APS()), "a score with hyperparameters, got APS"),
    "training an inclusive score": (
        size(APS(inclusive=True), P, 0.5),
        "inclusive=False to train with, got inclusive=True",
    ),
    "halves with other labels": (
        loss(preds=jnp.full((9, 2), 0.5)),
        r"preds with rows of shapes \[\(3,\)\] like preds_cal, got \[\(2,\)\]",
    ),
    "no sets": (loss(preds=P[:0]), "preds with at least 1 row, got 0"),
    "choosing, not valid": (select([0.1, -1.0]), "penalty >= 0, got -1.0"),
    "balls at three thresholds": (
        size(PCP(), P[:, :, None], X[:3], key=KEY),
        r"q of shape \(\), got \(3,\)",
    ),
    "too few rows": (
        train(),
        "more rows, got 9: half of them give an infinite threshold",
    ),
    "choosing by too few rows": (
        select([0.1, 1.0]),
        "more rows, got 9: half of them give an infinite threshold",
    ),
    "choosing at two levels": (
        select([0.1, 1.0], alpha=[0.1, 0.2]),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "choosing by one row": (select(X, P[:1], Y[:1]), "more rows, got 1"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
