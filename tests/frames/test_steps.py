"""Steps by the calendar: every row has the threshold of its step, or is refused."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from jaxcp.frames import forecast

BERLIN = "Europe/Berlin"


def dates(freq, start="2019-01-07", zone=None, periods=1500):
    return pd.Series(pd.date_range(start, periods=periods, freq=freq, tz=zone))


def some_days(*weekdays):
    days = dates("D", periods=1500)
    return days[days.dt.weekday.isin(weekdays)].reset_index(drop=True)


EXCHANGE = some_days(0, 1, 2, 3, 4)  # but for holidays
EXCHANGE = EXCHANGE.drop(EXCHANGE.sample(40, random_state=0).index)
# Times one after another, where a table with origins leaves no doubt.
SURE = {
    "integers": pd.Series(range(10**6, 10**6 + 1500)),
    "every fifth": pd.Series(range(0, 7500, 5)),
    "tenths": pd.Series(np.arange(1500) * 0.1),
    "quarters of years": pd.Series(2000 + np.arange(1500) / 4),
    "days": dates("D"),
    "days in a zone": dates("D", zone=BERLIN),
    "days at noon": dates("D") + pd.Timedelta("12h"),
    "dates of Python": dates("D").dt.date,
    "weeks": dates("W-WED", periods=400),
    "four weeks": dates("28D", periods=200),
    "months": dates("MS", periods=300),
    "month ends": dates("ME", periods=300),
    "quarters": dates("QS", periods=150),
    "quarter ends": dates("QE", periods=150),
    "years": dates("YS", start="1900-01-01", periods=150),
    "hours": dates("h"),
    "hours in a zone": dates("h", start="2019-03-01", zone=BERLIN),
    "minutes": dates("15min", start="2019-03-20", zone=BERLIN),
    "periods of months": pd.Series(pd.period_range("2000-01", periods=300, freq="M")),
    "periods of days": pd.Series(pd.period_range("2000-01", periods=300, freq="D")),
}
WEEKDAYS = {
    "business days": some_days(0, 1, 2, 3, 4),
    "Sunday to Thursday": some_days(6, 0, 1, 2, 3),
    "closed on Sundays": some_days(0, 1, 2, 3, 4, 5),
    "Tuesdays and Thursdays": some_days(1, 3),
    "an exchange": EXCHANGE.reset_index(drop=True),
    "business month ends": dates("BME", periods=200),
    "six hours of local time": pd.Series(
        pd.date_range("2019-03-01", periods=1500, freq="6h").tz_localize(BERLIN)
    ),
}


def table(times, origins, steps):
    """The rows of these steps of paths at origins, by their places among times."""
    place, step = (v.ravel() for v in np.meshgrid(origins, steps, indexing="ij"))
    ds, cutoff = (times.iloc[v].reset_index(drop=True) for v in (place + step, place))
    frame = pd.DataFrame({"unique_id": "a", "ds": ds, "cutoff": cutoff, "m": 0.0})
    return frame.assign(y=1.0 * step)


def answers(cp, rows):
    """Thresholds, which are steps, of each path; NaN where rows are refused."""
    try:
        return cp(rows.drop(columns="y"), 0.5)["m-hi-50"].to_numpy()
    except ValueError:
        return np.full(len(rows), np.nan)


def draw(rng, times):
    horizon = int(rng.integers(1, 8))
    steps = np.arange(1, horizon + 1) + int(rng.choice([0, 0, 0, 5]))
    count, stride = int(rng.integers(4, 20)), int(rng.choice([1, 1, 2, 5, 7]))
    last = len(times) - 20
    count = min(count, (last // 2 - 1) // stride)
    first = int(rng.integers(0, last // 2 - count * stride))
    past = first + stride * np.arange(count)
    return steps, past, rng.integers(0, last, 4)


def judged(times, seed):
    """Counts of rows that are right, wrong, refused, and refused in vain."""
    rng, found = np.random.default_rng(seed), np.zeros(4, int)
    steps, past, new = draw(rng, times)
    cp = forecast(table(times, past, steps), yhat="m")
    for origin in new:
        path = table(times, [origin], np.arange(1, steps[-1] + 3))
        parts = [path[path.y == step] for step in path.y]  # alone
        parts += [path[path.y.isin(steps)], path[rng.random(len(path)) < 0.7]]
        parts += [path[(path.y > 1) & (path.y <= len(steps) + 1)]]  # as many rows
        for rows in parts:
            got, known = answers(cp, rows), rows.y.isin(steps).all()
            refused = np.isnan(got)
            wrong = ~refused & (abs(got - rows.y) > 1e-9)
            found += (
                (~refused & ~wrong).sum(),
                wrong.sum(),
                refused.sum(),
                refused.sum() if known else 0,
            )
    return found
