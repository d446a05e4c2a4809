"""The stream methods of the showcase: one ensemble, many ways to stay calibrated."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.series import autoregression, solar
from jaxcp import learners, metrics, online, scores

ABSOLUTE = scores.Absolute()
NUM_RESAMPLES, SHARE_TRAINED = 30, 0.2
# Step sizes of thresholds are in units of the largest past score.
METHODS = {
    "never updated": lambda scale: online.SlidingWindow(ABSOLUTE, every=10**9),
    "EnbPI": lambda scale: online.SlidingWindow(ABSOLUTE),
    "EnbPI, once a day": lambda scale: online.SlidingWindow(ABSOLUTE, every=24),
    "NexCP": lambda scale: online.NexCP(ABSOLUTE, 0.99),
    "ACI": lambda scale: online.ACI(ABSOLUTE, 0.005, window=500),
    "DtACI": lambda scale: online.DtACI(
        ABSOLUTE, 0.001 * 2.0 ** np.arange(8), window=500
    ),
    "quantile tracking": lambda scale: online.PID(ABSOLUTE, 0.05 * scale),
    "PID": lambda scale: online.PID(ABSOLUTE, 0.05 * scale, 0.1 * scale),
    "tracking, falling steps": lambda scale: online.PID(ABSOLUTE, scale, decay=0.6),
    "tracking, a day late": lambda scale: online.PID(ABSOLUTE, 0.05 * scale),
    "SF-OGD": lambda scale: online.SFOGD(ABSOLUTE, scale),
    "similar scores": lambda scale: online.Similar(ABSOLUTE, scale / 50, window=500),
    "SPCI": lambda scale: online.SPCI(4, window=500, every=24),
}
DELAYS = {"tracking, a day late": 24}


@dataclass(frozen=True)
class Series:
    """The part of a series after training, its predictions, and scores of the past."""

    data: str
    y: Array
    preds: Array
    residuals: Array
    mask: Array | None


def load(key: Array, folder: Path | None) -> Series:
    """Fits a bootstrap ensemble of ridges to the first part of a series."""
    key_data, key_fit = jax.random.split(key)
    x, y = autoregression(key_data, 6000) if folder is None else solar(folder)
    name = "generated AR" if folder is None else "solar"
    n = int(SHARE_TRAINED * len(y))
    cp = jaxcp.enbpi(
        key_fit, learners.Ridge(1.0), scores.Signed(), x[:n], y[:n],
        num_resamples=NUM_RESAMPLES, block_size=24,
    )  # fmt: skip
    return Series(name, y[n:], cp.aggregate(x[n:]), cp.scores[:, 1], cp.mask)


def sets_of(name: str, series: Series, alpha: float):
    """Returns the intervals of one method along the series."""
    past = jnp.abs(series.residuals)
    method = METHODS[name](jnp.max(past))
    past = series.residuals if isinstance(method, online.SPCI) else past
    state = method.init(past, alpha, mask=series.mask)
    rows, delay = (series.preds, series.y, alpha), DELAYS.get(name, 0)
    return online.run(method, state, *rows, delay=delay)[1]


def lines(series: Series, alpha: float, names: Iterable[str]) -> Iterator[dict]:
    """Yields the line of each of these methods."""
    tenth = jnp.arange(len(series.y)) * 10 // len(series.y)
    for name in names:
        start = time.perf_counter()
        sets = sets_of(name, series, alpha)
        by_tenth = metrics.group_coverage(sets, series.y, tenth, num_groups=10)
        yield {
            "method": name,
            "coverage": float(metrics.coverage(sets, series.y)),
            "+-": None,
            "target": 1 - alpha,
            "mean size": float(metrics.mean_finite_size(sets)),
            "+- size": None,
            "worst group": float(jnp.min(by_tenth)),
            "seconds": time.perf_counter() - start,
            "data": series.data,
        }
