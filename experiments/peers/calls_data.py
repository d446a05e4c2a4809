"""Rows and fitted models that libraries are compared on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import numpy as np

ALPHA = 0.1
KEY = jax.random.key(0)


class Rows(NamedTuple):
    """Rows of a task: to fit a model, to calibrate, and new ones."""

    x: np.ndarray
    y: np.ndarray

    def part(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and targets of "fit", "cal" or "new"."""
        parts = {"fit": slice(300), "cal": slice(300, 500), "new": slice(500, 540)}
        return self.x[parts[name]], self.y[parts[name]]


def numbers() -> Rows:
    """Returns rows with a number to predict, whose noise varies."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(540, 3)).astype(np.float32).astype(float)
    noise = rng.normal(size=540)
    y = x[:, 0] + (0.5 + abs(x[:, 1])) * noise
    return Rows(x, y.astype(np.float32).astype(float))


def labels() -> Rows:
    """Returns rows with one of four classes to predict."""
    rng = np.random.default_rng(1)
    y = rng.integers(4, size=540)
    x = 1.2 * np.eye(4)[y] + rng.normal(size=(540, 4))
    return Rows(x, y)


def line(rows: Rows):
    """Returns a linear model fitted on the first part."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(*rows.part("fit"))


def classifier(rows: Rows):
    """Returns a logistic regression fitted on the first part."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(*rows.part("fit"))


def quantile_models(rows: Rows) -> list:
    """Returns models of the lower and upper quantile, and of the median."""
    from sklearn.linear_model import QuantileRegressor

    levels = ALPHA / 2, 1 - ALPHA / 2, 0.5
    models = [QuantileRegressor(quantile=v, alpha=0.0) for v in levels]
    return [model.fit(*rows.part("fit")) for model in models]


def ends(sets) -> np.ndarray:
    """Returns the ends of intervals of ours, shape (m, 2)."""
    return np.stack([sets.lower, sets.upper], axis=-1)


@contextmanager
def quiet() -> Iterator[None]:
    """Hides the warnings of a library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
