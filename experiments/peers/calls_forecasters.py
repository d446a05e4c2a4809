"""Intervals of forecasting libraries beside ours, from the same errors. Each function
returns ours, theirs, and what explains a difference. The keys of `CALLS` are words of
the first column on the page."""

import numpy as np
import pandas as pd

import jaxcp
from experiments.peers.calls_data import ALPHA, quiet
from experiments.peers.ranks import by_sktime, by_statsforecast
from jaxcp import frames

LEVEL = 1 - ALPHA
LENGTH, WINDOWS = 60, 29


def errors(n: int = WINDOWS) -> np.ndarray:
    """Returns sizes of n errors."""
    return np.random.default_rng(0).gamma(2.0, size=n)


def series() -> pd.DataFrame:
    """Returns two series of days, as statsforecast reads them."""
    days = pd.date_range("2026-01-01", periods=LENGTH)
    steps = np.random.default_rng(1).normal(size=(2, LENGTH))
    parts = [
        pd.DataFrame({"unique_id": name, "ds": days, "y": np.cumsum(v)})
        for name, v in zip("ab", steps, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def of_statsforecast():
    """Returns half widths from the same errors; theirs are interpolated."""
    s = errors()
    ours = jaxcp.conformal_quantile(s, ALPHA)
    return ours, by_statsforecast(s, ALPHA), np.quantile(s, LEVEL)


def both_signs():
    """Returns half widths from the same errors; theirs are of errors of both signs."""
    s = errors()
    theirs = by_statsforecast(s, ALPHA, "conformal_distribution")
    explained = np.quantile(np.append(-s, s), 1 - ALPHA / 2)
    return jaxcp.conformal_quantile(s, ALPHA), theirs, explained


def of_sktime():
    """Returns half widths from the same errors; theirs are interpolated."""
    s = errors()
    return (
        jaxcp.conformal_quantile(s, ALPHA),
        by_sktime(s, ALPHA),
        np.quantile(s, LEVEL),
    )


def frames_of_statsforecast():
    """Returns thresholds of a cross-validation frame, and the ranks done by hand."""
    from statsforecast import StatsForecast
    from statsforecast.models import Naive

    model = StatsForecast([Naive()], freq="D", n_jobs=1)
    past = model.cross_validation(df=series(), h=2, n_windows=WINDOWS, step_size=1)
    cp = frames.forecast(past, yhat="Naive")
    sizes = abs(past.y - past.Naive).to_numpy().reshape(-1, 2)
    k = int(jaxcp.conformal_rank(len(sizes), ALPHA))
    out = cp(model.forecast(df=series(), h=2).assign(cutoff=past.ds.max()), alpha=ALPHA)
    half = (out["Naive-hi-90"] - out.Naive).to_numpy()[:2]
    return half, np.sort(sizes, axis=0)[k - 1]


def of_darts(n: int):
    """Returns half widths of n past forecasts of one series."""
    from darts import TimeSeries
    from darts.models import LinearRegressionModel
    from darts.models.forecasting.conformal_models import ConformalNaiveModel

    y = np.cumsum(np.random.default_rng(2).normal(size=100))
    line = TimeSeries.from_values(y)
    model = LinearRegressionModel(lags=1).fit(line[:50])
    cp = ConformalNaiveModel(model, [ALPHA / 2, 0.5, 1 - ALPHA / 2], cal_length=n)
    with quiet():
        made = cp.predict(1, line, predict_likelihood_parameters=True)
        past = model.historical_forecasts(line, start=50, retrain=False)
    low, _, high = made.values()[0]
    sizes = abs(y[50:] - past.values()[:, 0])[-n:]
    found = np.array([(high - low) / 2])
    return np.array([jaxcp.conformal_quantile(sizes, ALPHA)]), found, sizes.max()


def of_skforecast():
    """Returns half widths from the same residuals; theirs are interpolated."""
    from skforecast.recursive import ForecasterRecursive
    from sklearn.linear_model import LinearRegression

    y = pd.Series(np.cumsum(np.random.default_rng(3).normal(size=100)))
    model = ForecasterRecursive(LinearRegression(), lags=2)
    with quiet():
        model.fit(y, store_in_sample_residuals=True)
        made = model.predict_interval(
            1, method="conformal", interval=LEVEL, use_binned_residuals=False
        )
    sizes = abs(model.in_sample_residuals_)
    half = (made.upper_bound - made.lower_bound).to_numpy() / 2
    explained = np.quantile(sizes, LEVEL)
    return np.array([jaxcp.conformal_quantile(sizes, ALPHA)]), half, explained


CALLS = {
    "cross_validation(": frames_of_statsforecast,
    'ConformalIntervals(method="conformal_error")': of_statsforecast,
    'method="conformal_distribution"': both_signs,
    'sktime ConformalIntervals(method="conformal")': of_sktime,
    "ConformalNaiveModel(": lambda: of_darts(20)[:2],
    "ConformalNaiveModel, fewer than nine": lambda: of_darts(8),
    'predict_interval(method="conformal"': of_skforecast,
}
