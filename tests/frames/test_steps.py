"""Steps by the calendar: every row has the threshold of its step, or is refused."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from jaxcp.frames import forecast

BERLIN = "Europe/Berlin"


def dates(freq, start="2019-01-07", zone=None, periods=1500):
    return pd.Series(pd.date_range(start, periods=periods, freq=freq, tz=zone))


def some_days(*weekdays):
    days = dates("D", periods=1500)
    return days[days.dt.day_of_week.isin(weekdays)].reset_index(drop=True)


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


def draw(rng, times, first_step):
    """Steps, origins of the past, and new ones anywhere."""
    steps = np.arange(1, int(rng.integers(2, 9))) + first_step
    count, stride = int(rng.integers(4, 20)), int(rng.choice([1, 1, 2, 5, 7]))
    last = len(times) - 20
    count = min(count, (last // 2 - 1) // stride)
    start = int(rng.integers(0, last // 2 - count * stride))
    return steps, start + stride * np.arange(count), rng.integers(0, last, 4)


def judge(times, seed, first_steps=(0, 0, 0, 5)):
    """Counts of rows that are right, wrong, refused, and refused with a known step."""
    rng, counts = np.random.default_rng(seed), np.zeros(4, int)
    steps, past, new = draw(rng, times, int(rng.choice(first_steps)))
    try:
        cp = forecast(table(times, past, steps), yhat="m")
    except ValueError as error:
        assert "at a step that calibrated" in str(error)
        return np.array([0, 0, 0, 99])
    for origin in new:
        path = table(times, [origin], np.arange(1, steps[-1] + 3))
        parts = [path[path.y == step] for step in path.y]  # alone
        parts += [path[path.y.isin(steps)], path[rng.random(len(path)) < 0.7]]
        parts += [path[(path.y > 1) & (path.y <= len(steps) + 1)]]  # as many rows
        for rows in parts:
            ends = answers(cp, rows)
            is_refused, is_right = np.isnan(ends), abs(ends - rows.y) < 1e-9
            has_step = rows.y.isin(steps).all()
            wrong = ~is_refused & ~is_right
            kinds = is_right, wrong, is_refused, is_refused & has_step
            counts += [kind.sum() for kind in kinds]
    return counts


@pytest.mark.parametrize("name", SURE)
def test_each_row_has_the_threshold_of_its_step(name):
    right, wrong, refused, in_vain = sum(judge(SURE[name], seed) for seed in range(8))
    assert wrong == 0
    # Days from Monday to Friday may be business days, and four weeks may be months.
    assert right > 200 and in_vain <= 0.25 * right
    assert refused > in_vain  # steps that did not calibrate


@pytest.mark.parametrize("name", WEEKDAYS)
def test_calendars_that_may_have_holidays_are_right_or_refused(name):
    counts = sum(judge(WEEKDAYS[name], seed, [0]) for seed in range(8))
    assert counts[1] == 0


@pytest.mark.parametrize("name", ["business days", "an exchange", "closed on Sundays"])
def test_whole_paths_of_business_days_are_answered(name):
    """But those over a holiday, in which a day might be missing."""
    times, steps = WEEKDAYS[name], np.arange(1, 6)
    cp = forecast(table(times, np.arange(100, 200), steps), yhat="m")
    for origin in range(300, 340):
        path = table(times, [origin], steps)
        days = np.busday_count(
            path.cutoff[0].date(),
            path.ds.iloc[-1].date(),
            weekmask="1111110" if name == "closed on Sundays" else "1111100",
        )
        for rows in (path, path.drop(columns="cutoff")):
            expected = path.y if days == 5 else [np.nan] * 5
            if "cutoff" in rows or days == 5:
                assert_array_equal(answers(cp, rows), expected)
            assert np.isnan(answers(cp, rows.drop(index=2))).all()


ALL = SURE | {k: v for k, v in WEEKDAYS.items() if k != "an exchange"}


@pytest.mark.parametrize("name", ALL)
def test_without_origins_paths_start_at_their_first_step_and_have_no_gap(name):
    times, steps = ALL[name], np.arange(1, 6)
    cp = forecast(table(times, np.arange(20, 60), steps), yhat="m")
    band = forecast(table(times, np.arange(20, 60), steps), yhat="m", by="path")
    refused = 0
    for origin in range(80, 100):
        path = table(times, [origin], steps).drop(columns="cutoff")
        ends = answers(cp, path)
        refused += np.isnan(ends).all()
        assert np.isnan(ends).all() or (ends == path.y).all()
        assert np.isnan(answers(band, path)).all() == np.isnan(ends).all()
        for gap in (1, 2, 3):
            assert np.isnan(answers(cp, path.drop(index=gap))).all()
    assert refused == 0 or name in WEEKDAYS


@pytest.mark.parametrize("by", ["step", "path"])
@pytest.mark.parametrize("name", SURE)
def test_a_gap_in_the_past_is_refused_though_the_number_of_rows_is_right(name, by):
    past = table(SURE[name], np.arange(20, 40), [1, 2, 3, 4])
    longer = table(SURE[name], [45], [1, 2, 4, 5])
    with pytest.raises(
        ValueError, match=r"at a step that calibrated, .* at 8[0-3], uni"
    ):
        forecast(pd.concat([past, longer]), yhat="m", by=by)
    for other in ("all", "series"):
        forecast(pd.concat([past, longer]), yhat="m", by=other)


@pytest.mark.parametrize("name", SURE)
def test_a_band_is_for_whole_paths_of_its_steps(name):
    times = SURE[name]
    cp = forecast(table(times, np.arange(20, 40), [1, 2, 3]), yhat="m", by="path")
    assert (answers(cp, table(times, [60], [1, 2, 3])) == 3).all()
    for steps in ([4, 5, 6], [1, 2, 4], [2, 3, 4], [1, 2]):
        assert np.isnan(answers(cp, table(times, [60], steps))).all()


def test_a_summer_time_change_in_the_past_leaves_steps_as_they_are():
    times = dates("D", start="2025-03-01", zone=BERLIN)
    past = table(times, np.arange(0, 60, 2), np.arange(1, 8))
    path = table(times, [270], np.arange(1, 8))
    for rows in (path, path[1:], path.drop(index=3), path[-1:]):
        assert_array_equal(answers(forecast(past, yhat="m"), rows), rows.y)


def test_hours_of_a_local_clock_over_a_change_are_refused():
    local = dates("h", start="2025-03-25", zone=BERLIN).dt.tz_localize(None)
    with pytest.raises(ValueError, match="at a step that calibrated"):
        forecast(table(local, np.arange(0, 240, 24), np.arange(1, 25)), yhat="m")


def test_origins_that_are_names_and_times_that_are_numbers_of_steps():
    past = table(pd.Series(range(100)), np.arange(0, 40, 4), [1, 2, 3])
    names = past.assign(cutoff=past.cutoff.map("fold {}".format))
    cp = forecast(names, yhat="m")
    path = names[:3].assign(ds=[90, 91, 92])
    assert_array_equal(answers(cp, path), [1, 2, 3])
    assert np.isnan(answers(cp, path.assign(ds=[90, 92, 93]))).all()
    with pytest.raises(ValueError, match="at a step that calibrated"):
        forecast(past.assign(cutoff=past.cutoff // 4), yhat="m")  # as many numbers
    for cutoff in (names.cutoff, past.cutoff):  # 13, ..., 24 of 1, ..., 24
        steps = past.assign(cutoff=cutoff, ds=past.y.astype(int))
        cp = forecast(steps, yhat="m")
        assert_array_equal(answers(cp, steps[1:3]), [2, 3])
        assert np.isnan(answers(cp, steps[:1].assign(ds=4))).all()


def test_times_of_another_kind_are_refused():
    days, zoned = dates("D"), dates("D", zone=BERLIN)
    cp = forecast(table(days, np.arange(20, 40), [1, 2]), yhat="m")
    new = table(days, [60], [1, 2])
    for column, words in (
        (table(zoned, [60], [1, 2]).ds, "ds as dates, as calibrated, got dates with a"),
        (new.ds.dt.to_period("D"), "ds as dates, as calibrated, got periods of D"),
        (pd.Series([1, 2]), "ds as dates, as calibrated, got numbers"),
        (new.ds.astype(str), r"ds as dates \(pandas.to_datetime\), periods or numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            cp(new.assign(ds=column), 0.5)
    with pytest.raises(ValueError, match="cutoff as dates, as calibrated, got names"):
        cp(new.assign(cutoff="a"), 0.5)


def test_the_refusal_names_the_row_the_steps_and_the_cure():
    cp = forecast(table(SURE["months"], np.arange(20, 40), [1, 2, 3]), yhat="m")
    words = (
        "expected ds at a step that calibrated, 1 month, 2 months, 3 months ahead, "
        "got 4 months at 1, unique_id a, ds 2024-05-01.*, cutoff 2024-01-01.*; give "
        "whole paths, or number times and origins by integers of your calendar"
    )
    with pytest.raises(ValueError, match=words):
        cp(table(SURE["months"], [59], [2, 4]), 0.5)


def test_three_days_after_a_friday_are_one_business_day():
    times = WEEKDAYS["business days"]
    fridays = np.flatnonzero(times.dt.day_of_week == 4)[:20]
    cp = forecast(table(times, fridays, [1]), yhat="m")
    assert_array_equal(answers(cp, table(times, [fridays[-1] + 5], [1])), [1])
    monday = fridays[-1] + 1
    assert np.isnan(answers(cp, table(times, [monday], [3]))).all()  # three days, too
