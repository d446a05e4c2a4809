"""Intervals of statsforecast and sktime beside those of the library, on the same days.

The forecast is the value of a week before. Of each block of days those of the first
week begin, `OLD` give errors, and `NEW` are judged, with intervals of these errors.
statsforecast and sktime give each hour its own interval. sktime forecasts from as many
hours as there are days, which it draws: one forecast takes it 0.1 s. Its residuals do
not depend on the method, and are computed once.
"""

import importlib.util
import time

import numpy as np

import jaxcp

BLOCKS, OLD, NEW, HOURS, WEEK = 6, 60, 30, 24, 7 * 24
OF_STATSFORECAST = ("conformal_distribution", "conformal_error")
OF_SKTIME = ("empirical", "conformal", "conformal_bonferroni")

Ends = dict[str, tuple[np.ndarray, np.ndarray]]  # by method: lower and upper, (NEW, 24)


def of_jaxcp(rows: np.ndarray, alpha: float) -> Ends:
    """Returns bands of whole days, and intervals of hours."""
    center, y = (v.reshape(-1, HOURS) for v in (rows[:-WEEK], rows[WEEK:]))
    sizes, found = np.abs(y - center)[:OLD], {}
    for name, of in {"an hour alone": sizes, "band": sizes.max(axis=1)}.items():
        q = jaxcp.conformal_quantile(of, alpha)
        found[name] = center[OLD:] - q, center[OLD:] + q
    return found


def of_statsforecast(rows: np.ndarray, alpha: float) -> Ends:
    """Returns intervals of statsforecast."""
    import pandas
    from statsforecast import StatsForecast
    from statsforecast.models import SeasonalNaive
    from statsforecast.utils import ConformalIntervals

    hours, level = pandas.date_range("2019", periods=len(rows), freq="h"), 1 - alpha
    frame = pandas.DataFrame({"unique_id": "a", "ds": hours, "y": rows})
    names = [f"SeasonalNaive-{end}-{100 * level:.0f}" for end in ("lo", "hi")]
    found = {}
    for method in OF_STATSFORECAST:
        made = StatsForecast([SeasonalNaive(WEEK)], freq="h").cross_validation(
            h=HOURS,
            df=frame,
            step_size=HOURS,
            n_windows=NEW,
            level=[round(100 * level)],
            prediction_intervals=ConformalIntervals(OLD, HOURS, method),
            refit=False,
        )
        found[method] = tuple(made[v].to_numpy().reshape(-1, HOURS) for v in names)
    return found


def of_sktime(rows: np.ndarray, alpha: float) -> Ends:
    """Returns intervals of sktime."""
    import pandas
    from sktime.forecasting.conformal import ConformalIntervals
    from sktime.forecasting.naive import NaiveForecaster

    np.random.seed(0)  # noqa: NPY002, the sample of hours has no other seed
    forecaster, series = NaiveForecaster("last", sp=WEEK), pandas.Series(rows)
    model = ConformalIntervals(
        forecaster, initial_window=WEEK, sample_frac=1 / HOURS, n_jobs=1
    )
    first = WEEK + OLD * HOURS
    model.fit(series[:first], fh=np.arange(1, HOURS + 1))
    found = {method: [] for method in OF_SKTIME}
    for hour in range(first, len(rows), HOURS):
        for method, days in found.items():
            model.method = method
            days.append(model.predict_interval(coverage=1 - alpha).to_numpy(float))
        model.update(series[hour : hour + HOURS], update_params=False)
    return {k: tuple(np.moveaxis(np.stack(days), -1, 0)) for k, days in found.items()}


PEERS = {"jaxcp": of_jaxcp, "statsforecast": of_statsforecast, "sktime": of_sktime}


def peer_lines(values: np.ndarray, alpha: float) -> list[dict]:
    """Returns the lines of each library on the last days, or that it is not installed.

    Args:
      values: Hourly values, shape (t,), whole days.
      alpha: Miscoverage level of the intervals.
    """
    found = []
    for library, call in PEERS.items():
        if importlib.util.find_spec(library) is None:
            found.append({"by": library, "method": "not installed"})
            continue
        start, ends = time.process_time(), []
        for block in range(BLOCKS, 0, -1):
            end = len(values) - (block - 1) * NEW * HOURS
            rows = values[end - WEEK - (OLD + NEW) * HOURS : end]
            ends.append((call(rows, alpha), rows[-NEW * HOURS :].reshape(-1, HOURS)))
        seconds = time.process_time() - start
        for method in ends[0][0]:
            parts = [(*made[method], y) for made, y in ends]
            line = {"by": library, "method": method} | figures(parts)
            found.append(line | {"CPU s, all methods": round(seconds, 3)})
    return found


def figures(parts: list[tuple[np.ndarray, ...]]) -> dict:
    """Returns coverage of days and hours, and width, of (lower, upper, y) of blocks."""
    lower, upper, y = (np.concatenate(v) for v in zip(*parts, strict=True))
    inside = (lower <= y) & (y <= upper)
    found = {"joint coverage": inside.all(axis=1).mean(), "hours": inside.mean()}
    found |= {"width": (upper - lower).mean()}
    return {k: round(float(v), 4) for k, v in found.items()}
