"""Forecasts in long frames: definitions row by row, laws, types, refusals."""

import dataclasses
import datetime as dt
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import promised
from jaxcp import frames, scores
from jaxcp.frames import forecast
from jaxcp.quantiles._cells import cell_thresholds
from jaxcp.saving import _classes

MODES = {
    "step": {"by": "step"},
    "series": {"by": "series"},
    "all": {"by": "all"},
    "path": {"by": "path"},
    "path, fraction": {"by": "path", "fraction": 0.7},
    "step, new series": {"by": "step", "new_series": True},
    "all, new series": {"by": "all", "new_series": True},
    "path, new series": {"by": "path", "new_series": True},
}
MODES |= {f"{k}, scale": v | {"scale": "s"} for k, v in MODES.items()}
each_mode = pytest.mark.parametrize("name", MODES)


def panel(seed=0, origins=(4, 9, 12, 7, 6, 8), horizon=3):
    """A long frame, rows in a random order, as many origins a series as said."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"id {i}", 10 * c, 10 * c + 2 * h + 1)  # times are not the steps
        for i, count in enumerate(origins)
        for c in range(count)
        for h in range(horizon)
    ]
    frame = pd.DataFrame(rows, columns=["unique_id", "cutoff", "ds"])
    frame["m"] = rng.normal(size=len(frame))
    frame["y"] = frame.m + rng.normal(size=len(frame)).round(1)  # ties
    frame["s"] = rng.uniform(0.5, 2, len(frame))
    return frame.sample(frac=1, random_state=seed)


def slow(frame, alpha, by, new_series=False, scale=None, fraction=1.0):
    """Returns the threshold of each key, by loops: step, series, or None."""
    paths = {}
    for row in frame.to_dict("records"):
        paths.setdefault((row["unique_id"], row["cutoff"]), []).append(row)
    found = {}  # key -> series -> scores
    for (series, _), rows in paths.items():
        rows.sort(key=lambda row: row["ds"])
        path = [abs(r["y"] - r["m"]) / (r[scale] if scale else 1.0) for r in rows]
        if by == "path":
            k = math.ceil(Fraction(str(fraction)) * len(path))
            path = [sorted(path)[k - 1]]
        for h, value in enumerate(path):
            key = {"step": h, "series": series}.get(by)
            found.setdefault(key, {}).setdefault(series, []).append(value)
    return {key: _threshold(rows, alpha, new_series) for key, rows in found.items()}


def _threshold(rows, alpha, new_series):
    """min{v : mass above v + mass of the new row <= alpha of all}, in fractions."""
    mass = [
        (value, Fraction(1, len(values) if new_series else 1))
        for values in rows.values()
        for value in values
    ]
    spare = Fraction(str(alpha)) * (sum(w for _, w in mass) + 1) - 1
    for v in sorted(value for value, _ in mass):
        if sum(w for value, w in mass if value > v) <= spare:
            return v
    return math.inf


@each_mode
def test_every_mode_is_its_definition(name):
    options, past, new = MODES[name], panel(), panel(seed=1)
    cp = forecast(past, yhat="m", **options)
    out = cp(new.drop(columns="y"), [0.1, 0.3])
    step = new.groupby(["unique_id", "cutoff"])["ds"].rank().astype(int) - 1
    half = new.s if "scale" in options else 1.0
    for alpha, level in ((0.1, "90"), (0.3, "70")):
        expected = slow(past, alpha, **options)
        key = {"step": step, "series": new.unique_id}.get(options["by"])
        q = expected[None] if key is None else key.map(expected)
        assert_allclose(out[f"m-lo-{level}"], new.m - half * q, rtol=1e-14, atol=1e-14)
        assert_allclose(out[f"m-hi-{level}"], new.m + half * q, rtol=1e-14, atol=1e-14)


@each_mode
def test_the_order_of_rows_and_what_else_a_frame_has_change_nothing(name):
    options, past = MODES[name], panel()
    new = panel(seed=1).assign(more=pd.Categorical(["a"] * 138))
    new.index = pd.MultiIndex.from_product([["x", "y"], range(69)], names=["k", None])
    before = new.copy()
    cp = forecast(past, yhat="m", **options)
    again = forecast(past.sample(frac=1, random_state=5), yhat="m", **options)
    order = [again.series.index(v) for v in cp.series] if cp.series else ...
    assert_array_equal(cp.quantile(0.2), again.quantile(0.2)[order])
    out = cp(new, 0.2)
    pd.testing.assert_frame_equal(new, before)
    pd.testing.assert_frame_equal(out[new.columns], new)
    assert [*out.columns] == [*new.columns, "m-lo-80", "m-hi-80"]
    rows = new.sample(frac=1, random_state=7)
    pd.testing.assert_frame_equal(cp(rows, 0.2), out.loc[rows.index])


def test_the_band_is_that_of_the_score():
    past = panel(horizon=5)
    errors = (past.y - past.m).groupby([past.unique_id, past.cutoff])
    paths = jnp.stack([jnp.asarray(path.to_numpy()) for _, path in errors])
    for fraction in (1.0, 0.5, 0.81):
        cp = forecast(past, yhat="m", by="path", fraction=fraction)
        preds = jnp.zeros_like(paths), jnp.ones_like(paths)
        own = jaxcp.calibrate(scores.Band(fraction), preds, paths)
        for alpha in (0.05, 0.3):
            assert_allclose(cp.quantile(alpha), own.quantile(alpha), rtol=1e-6)


@pytest.mark.parametrize("by", ["step", "path"])
def test_all_turns_of_independent_series_miss_as_many_as_they_may(by):
    """Each of n + 1 series is the new one in turn: n + 1 - k of them miss."""
    past, alpha = panel(3, origins=[1] * 12, horizon=3), 0.25
    past["y"] = past.m + np.random.default_rng(3).normal(size=len(past))
    missed = []
    for series in past.unique_id.unique():
        mine = past.unique_id == series
        out = forecast(past[~mine], yhat="m", by=by)(past[mine], alpha)
        outside = ~out.y.between(out["m-lo-75"], out["m-hi-75"])
        outside = outside[out.ds.sort_values().index]
        missed.append(outside.any() if by == "path" else outside.to_numpy())
    k = int(jaxcp.conformal_rank(11, alpha))
    assert_array_equal(np.sum(missed, axis=0), 12 - k)


@pytest.mark.parametrize("by", ["step", "all", "path"])
def test_series_in_turn_miss_at_most_alpha(by):
    """Clusters of many and of few paths, whose rows are alike."""
    past, alpha = panel(4, origins=(1, 1, 8, 1, 8, 1, 1, 8, 1, 1)), 0.3
    own = {name: rate for rate, name in enumerate(past.unique_id.unique())}
    past["y"] = past.m + past.unique_id.map(own) + (past.y - past.m) / 10
    missed = []
    for series in own:
        mine = past.unique_id == series
        cp = forecast(past[~mine], yhat="m", by=by, new_series=True)
        out = cp(past[mine], alpha)
        outside = ~out.y.between(out["m-lo-70"], out["m-hi-70"])
        if by == "path":
            outside = outside.groupby(out.cutoff).any()
        missed.append(outside.mean())
    assert np.mean(missed) <= 1 - promised(cp, alpha) + 1e-9


def test_coverage_of_paths_and_of_steps_by_simulation():
    """Of random walks: a band covers whole paths, steps have each their own."""
    rng, n, m, horizon, trials, alpha = np.random.default_rng(6), 15, 40, 4, 100, 0.2
    ids = np.repeat(np.arange(n + m), horizon)
    frame = pd.DataFrame({"unique_id": ids, "ds": np.tile(np.arange(horizon), n + m)})
    frame = frame.assign(cutoff=0, m=0.0)
    is_past, found = ids < n, {"step": [], "path": []}
    for _ in range(trials):
        walks = rng.normal(size=(n + m, horizon)).cumsum(axis=1)
        frame["y"] = walks.ravel()
        for by, shares in found.items():
            out = forecast(frame[is_past], yhat="m", by=by)(frame[~is_past], alpha)
            inside = out.y.between(out["m-lo-80"], out["m-hi-80"]).to_numpy()
            inside = inside.reshape(m, horizon)
            shares.append((inside.all(1) if by == "path" else inside[:, 1]).mean())
    law = int(jaxcp.conformal_rank(n, alpha)) / (n + 1)
    for shares in found.values():
        error = np.std(shares) / math.sqrt(trials)
        assert abs(np.mean(shares) - law) < 4 * error


IDS = {
    "text": lambda i: [f"s{v}" for v in i],
    "integers": lambda i: i * 10**12 - 5,
    "floats": lambda i: i / 2,
    "categories": lambda i: pd.Categorical.from_codes(i, ["c", "a", "b", "unused"]),
    "dates": lambda i: pd.to_datetime("2024-01-01") + pd.to_timedelta(i, unit="D"),
    "pairs": lambda i: pd.Series([("a", int(v)) for v in i]),
}
ZONED = pd.Timestamp("2024-10-27", tz="Europe/Berlin")  # an hour comes twice
TIMES = {
    "integers": lambda t: t,
    "large integers": lambda t: t + 2**62,
    "floats": lambda t: t / 7,
    "dates": lambda t: pd.Timestamp("2024-01-01") + pd.to_timedelta(t, unit="D"),
    "zoned": lambda t: ZONED + pd.to_timedelta(t, unit="h"),
    "days of Python": lambda t: [dt.date(2024, 1, 1) + dt.timedelta(int(d)) for d in t],
    "periods": lambda t: pd.period_range("2024-01", periods=99, freq="M")[t],
}


@pytest.mark.parametrize("kind", [*IDS, *TIMES])
@pytest.mark.parametrize("by", ["series", "path"])
def test_ids_and_times_of_all_kinds(kind, by):
    past = panel(origins=(4, 6, 5))
    codes = past.unique_id.str[-1].astype(int).to_numpy()
    columns = {"unique_id": IDS.get(kind, IDS["text"])(codes)}
    if kind in TIMES:
        columns |= {k: TIMES[kind](past[k].to_numpy()) for k in ("ds", "cutoff")}
    other = past.copy()
    for name, values in columns.items():
        other[name] = pd.Series(values).set_axis(past.index)
    expected = forecast(past, yhat="m", by=by)(past, 0.3)
    out = forecast(other, yhat="m", by=by)(other, 0.3)
    pd.testing.assert_frame_equal(out[other.columns], other)
    for end in ("m-lo-70", "m-hi-70"):
        assert_array_equal(out[end], expected[end])


def test_an_integer_is_not_the_place_of_a_name():
    past = panel(origins=(4, 6)).assign(unique_id=lambda f: f.unique_id.str[-1])
    cp = forecast(past, yhat="m", by="series")
    with pytest.raises(ValueError, match="expected series that calibrated, got 0 at"):
        cp(past[:1].assign(unique_id=0), 0.3)


def test_digits_are_those_of_the_caller():
    past = panel()
    past["m"], past["y"] = 1e9, 1e9 + np.arange(len(past)) / 4
    cp = forecast(past, yhat="m", by="all")
    out = cp(past, 0.1)
    k = int(jaxcp.conformal_rank(138, 0.1))
    assert_array_equal(out["m-hi-90"], 1e9 + (k - 1) / 4)
    assert out["m-hi-90"].dtype == np.float64
    assert np.mean(past.y <= out["m-hi-90"]) == k / 138  # its own row is inside
    for kind in ("float16", "float32", "float64"):
        assert cp(past.assign(m=0.5).astype({"m": kind}), 0.1)["m-lo-90"].dtype == kind
    for kind in ("int8", "int64", "object"):
        assert cp(past.assign(m=7).astype({"m": kind}), 0.1)["m-hi-90"].dtype == float
    nullable = cp(past.assign(m=pd.array([7] * len(past), "Int64")), 0.1)
    assert_array_equal(nullable["m-hi-90"], 7 + (k - 1) / 4)


@pytest.mark.parametrize("scale", [None, "s"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_no_score_up_to_the_threshold_is_out_by_rounding(kind, scale):
    """Of numbers with one decimal 7 % are, where their own score is the threshold."""
    rng = np.random.default_rng(8)
    y, m = (rng.integers(0, 1000, 4000) / 10 for _ in range(2))
    frame = pd.DataFrame({"unique_id": np.arange(4000), "cutoff": 0, "ds": 0, "y": y})
    frame = frame.assign(m=m, s=rng.integers(1, 30, 4000) / 10).astype({"m": kind})
    cp = forecast(frame, yhat="m", by="series", scale=scale)
    out = cp(frame, 0.5)  # each by its own row
    assert out.y.between(out["m-lo-50"], out["m-hi-50"]).all()
    center = frame.m.astype(float)
    half = abs(out.y - center)
    eps = np.finfo(kind).eps * (center + 2 * half)
    assert (abs(out["m-lo-50"] - (center - half)) <= 3 * eps).all()
    assert (abs(out["m-hi-50"] - (center + half)) <= 3 * eps).all()


def test_single_precision_holds_targets_between_its_numbers():
    frame = panel().assign(m=1e9, y=1e9 + np.arange(138) / 4).astype({"m": "float32"})
    out = forecast(frame, yhat="m", by="all")(frame, 0.1)
    assert out.y.between(out["m-lo-90"], out["m-hi-90"]).mean() >= 0.9


@pytest.mark.parametrize("alpha", [0.1, 1 - 0.9, Fraction(1, 10), jnp.array(0.1)])
def test_levels_are_named_by_their_decimal(alpha):
    cp = forecast(panel(), yhat="m")
    assert [*cp(panel(), alpha).columns[-2:]] == ["m-lo-90", "m-hi-90"]
    assert cp(panel(), [0.05, np.float32(0.1)]).columns[-1] == "m-hi-90"
    out = cp(panel(), [0.05, 0.025, Fraction(1, 3)])
    names = ["m-lo-95", "m-hi-95", "m-lo-97.5", "m-hi-97.5", "m-lo-66.6666666667"]
    assert [*out.columns[6:11]] == names
    assert (out["m-hi-95"] <= out["m-hi-97.5"]).all()


def test_few_rows_and_none():
    one = pd.DataFrame({"unique_id": ["a"], "ds": [1], "cutoff": 0, "y": 2.0, "m": 1.0})
    new = one.drop(columns=["y", "cutoff"])  # one path a series, without an origin
    for by in ("step", "series", "all", "path"):
        cp = forecast(one, yhat="m", by=by)
        assert_array_equal(cp(new, 0.4)[["m-lo-60", "m-hi-60"]], [[-np.inf, np.inf]])
        ends = cp(new, 0.5)[["m-lo-50", "m-hi-50"]]
        assert_allclose(ends, [[0.0, 2.0]], atol=1e-15)
        empty = cp(new[:0], 0.1)
        assert [*empty.columns] == ["unique_id", "ds", "m", "m-lo-90", "m-hi-90"]
        assert len(empty) == 0
    ties = panel().assign(y=1.0, m=0.0)
    assert_array_equal(forecast(ties, yhat="m").quantile(0.1), np.ones(3))


@each_mode
def test_levels_near_one(name):
    cp = forecast(panel(), yhat="m", **MODES[name])
    assert np.all(cp.quantile(1 - 1e-9) <= cp.quantile(1 - 1e-6))


def test_short_paths_have_the_first_steps():
    past = panel()
    cp = forecast(past, yhat="m")
    new = pd.DataFrame({"unique_id": "new", "ds": [5, 3], "m": 0.0})
    assert_array_equal(cp(new, 0.2)["m-hi-80"], cp.quantile(0.2)[[1, 0]])


def changed(**columns):
    return panel().reset_index(drop=True).assign(**columns)


def with_value(name, value):
    frame = changed()
    frame[name] = frame[name].astype(object if value is None else frame[name].dtype)
    frame.loc[7, name] = value
    return frame


WRONG = {
    "y missing": (with_value("y", np.nan), {}, "expected finite y, got nan at 7, uniq"),
    "yhat infinite": (with_value("m", np.inf), {}, "expected finite m, got inf at 7"),
    "id missing": (with_value("unique_id", None), {}, "unique_id without missing ones"),
    "time missing": (
        changed(ds=pd.Series(pd.to_datetime("2024-01-01"), range(1))),
        {},
        "ds without missing ones",
    ),
    "text": (changed(ds="1/2/2024"), {}, "expected ds as dates .*, got text"),
    "times": (changed(ds=pd.Series([1, "a"] * 69)), {}, "ds as dates .*, got text"),
    "columns": (
        pd.concat([changed(), changed()[["m"]]], axis=1),
        {},
        r"one column 'm', got \[.*'m'\]",
    ),
    "index": (
        changed().set_index("unique_id"),
        {},
        r"one column 'unique_id', got .*; reset_index\(\) makes columns of an index",
    ),
    "no column": (changed(), {"cutoff": "c"}, "one column 'c', got .*'ds'"),
    "a dict": ({"y": 1}, {}, r"a frame .*, got dict; pandas.DataFrame\(columns\) is"),
    "typo": (
        changed().rename(columns={"m": "lgbm"}),
        {"yhat": "lgmb"},
        "did you mean 'lgbm'",
    ),
    "target": (changed(), {"yhat": "y"}, r"expected y and yhat .*as two columns, got"),
    "target as scale": (changed(), {"scale": "y"}, "expected y and yhat"),
    "no rows": (changed()[:0], {}, "the number of rows as an int >= 1, got 0"),
    "twice": (pd.concat([changed(), changed()[:1]]), {}, "each ds once in a path"),
    "scale": (changed(s=0.0), {"scale": "s"}, "expected finite s > 0, got 0.0 at 0"),
    "gap": (changed()[1:], {}, "expected 3 steps in each path, got 2 at"),
    "gap, band": (changed()[1:], {"by": "path"}, "expected 3 steps in each path"),
    "by": (changed(), {"by": "horizon"}, "expected by as one of"),
    "series": (changed(), {"by": "series", "new_series": True}, "new_series without"),
    "share": (changed(), {"fraction": 0.5}, 'expected fraction with by="path"'),
    "fraction": (changed(), {"by": "path", "fraction": 2}, r"fraction in \(0, 1\)"),
    "words": (changed(y="a"), {}, "expected y as numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_right_is_refused(name):
    frame, options, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        forecast(frame, **{"yhat": "m"} | options)


def test_gaps_are_no_matter_where_steps_are_not():
    for options in ({"by": "series"}, {"by": "all"}, {"by": "all", "new_series": True}):
        forecast(panel()[1:], yhat="m", **options)


@pytest.mark.parametrize("kind", ["hours", "numbers", "days of a zone", "months"])
@pytest.mark.parametrize("by", ["step", "path"])
def test_a_gap_in_a_new_path_is_noticed(kind, by, tmp_path):
    times = {
        "hours": pd.date_range("2026-03-01", periods=30, freq="h"),
        "numbers": pd.Series(range(0, 300, 10)),
        "days of a zone": pd.date_range("2026-03-20", periods=30, tz="Europe/Berlin"),
        "months": pd.date_range("2026-01-31", periods=30, freq="ME"),
    }[kind]
    past = panel(horizon=3).sort_values(["unique_id", "cutoff", "ds"])
    past = past[past.cutoff == 0].assign(ds=[*times[:3]] * 6)
    # Over the night in which clocks change, of the days.
    new = past.drop(columns=["y", "cutoff"]).assign(ds=[*times[8:11]] * 6)
    jaxcp.save(tmp_path / "cp.npz", forecast(past, yhat="m", by=by))
    cp = jaxcp.load(tmp_path / "cp.npz")
    assert np.isfinite(cp(new, 0.3)["m-lo-70"]).all()
    gap = new.assign(ds=[*times[8:10], times[11]] * 6)
    told = {"hours": "3 hours", "numbers": "30", "months": "3 months"}
    with pytest.raises(ValueError, match=f"got {told.get(kind, '72 hours')} at 2"):
        cp(gap, 0.3)
    every = forecast(past, yhat="m", by="all")
    assert np.isfinite(every(gap, 0.3)["m-lo-70"]).all()


def test_new_forecasts_that_cannot_be_right_are_refused():
    past = changed()
    new = past.drop(columns="y")
    longer = pd.concat([new, new.assign(ds=new.ds + 100)])
    cp = forecast(past, yhat="m")
    for frame, words in (
        (longer, "expected at most 3 steps in each path, got 6 at 0, unique_id"),
        (new.assign(m=np.nan), "expected finite m"),
        (pd.concat([new, new]), "each ds once in a path"),
        (cp(new, 0.1), r"a frame without columns \['m-lo-90', 'm-hi-90'\]"),
    ):
        with pytest.raises(ValueError, match=words):
            cp(frame, 0.1)
    with pytest.raises(ValueError, match="expected 3 steps in each path, got 2"):
        forecast(past, yhat="m", by="path")(new[new.ds % 10 < 5], 0.1)
    with pytest.raises(ValueError, match="series that calibrated, got z at 0"):
        forecast(past, yhat="m", by="series")(new[:3].assign(unique_id="z"), 0.1)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\)"):
        cp(new, 90)
    with pytest.raises(ValueError, match="alpha as one level or several, got none"):
        cp(new, [])
    with pytest.raises(TypeError, match="expected alpha"):
        cp(new)


def test_a_report_of_forecasts_names_the_cure():
    cp = forecast(panel(), yhat="m")
    with pytest.raises(ValueError, match=r"got one of frames; .* metrics.by_group"):
        jaxcp.report(cp, panel(), panel().y, 0.1)


@each_mode
def test_saved_and_loaded(name, tmp_path):
    cp = forecast(panel(), yhat="m", **MODES[name])
    jaxcp.save(tmp_path / "cp.npz", cp)
    again = jaxcp.load(tmp_path / "cp.npz")
    pd.testing.assert_frame_equal(again(panel(), 0.1), cp(panel(), 0.1))
    leaves, structure = jax.tree.flatten(cp)
    assert isinstance(jax.tree.unflatten(structure, leaves), frames.ForecastCalibration)


@each_mode
def test_files_of_version_0_3_give_whole_paths_what_they_gave(name):
    cp = forecast(panel(), yhat="m", **MODES[name])
    fields = {f.name: getattr(cp, f.name) for f in dataclasses.fields(cp)}
    del fields["steps"]
    distinct, places = np.unique(cp.held.values, return_inverse=True)
    fields["held"] = dataclasses.replace(cp.held, values=jnp.asarray(places))
    fields |= {"scores": np.append(distinct, np.inf), "spacing": np.array(np.nan)}
    older = _classes.made(frames.ForecastCalibration, fields)
    pd.testing.assert_frame_equal(older(panel(), 0.1), cp(panel(), 0.1))
    if MODES[name]["by"] in ("step", "path"):
        with pytest.raises(ValueError, match="expected 3 steps in each path, got 2"):
            older(panel()[1:], 0.1)


def test_nothing_is_compiled(programs):
    """However long a panel is."""
    for options in MODES.values():
        for length in (31, 32, 33):
            past = panel(origins=[length, 3, 4])
            cp = forecast(past, yhat="m", **options)
            cp(past.drop(columns="y"), [0.1, 0.3])
            cp.quantile(Fraction(1, 3))
    assert not programs


def test_clusters_of_many_sizes_are_counted_in_fractions():
    """In floats a third of them is on the wrong side."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        rows = rng.integers(1, 8, size=int(rng.integers(1, 12)))
        clusters = np.repeat(np.arange(len(rows)), rows)
        scores = rng.integers(0, 12, len(clusters)).astype(float)
        by_cluster = {k: scores[clusters == k].tolist() for k in set(clusters.tolist())}
        for alpha in (Fraction(1, 3), Fraction(1, 4), Fraction(2, 5), Fraction(1, 10)):
            q = cell_thresholds(scores, 0 * clusters, 1, alpha, clusters)
            assert q == _threshold(by_cluster, alpha, new_series=True)


class Column:
    """What columns of all libraries of frames have in common."""

    def __init__(self, values):
        self.values, self.dtype = np.asarray(values), "a type of its own"

    def to_numpy(self):
        return self.values


class Frame:
    """As polars: columns by name, and a frame with more of them."""

    def __init__(self, **columns):
        self.own, self.columns = columns, [*columns]

    def __getitem__(self, name):
        return Column(self.own[name])

    def with_columns(self, **columns):
        return Frame(**self.own, **columns)


@each_mode
def test_frames_that_are_not_of_pandas(name):
    past = panel()
    other = Frame(**{k: past[k].to_numpy() for k in past})
    expected = forecast(past, yhat="m", **MODES[name])(past, 0.1)
    out = forecast(other, yhat="m", **MODES[name])(other, 0.1)
    assert out.columns == [*expected.columns]
    assert_array_equal(out["m-lo-90"].to_numpy(), expected["m-lo-90"])


def test_polars():
    polars = pytest.importorskip("polars")
    start, past = dt.datetime(2024, 1, 1, tzinfo=dt.UTC), panel().reset_index(drop=True)
    other = polars.DataFrame({k: past[k].tolist() for k in past}).with_columns(
        polars.Series("ds", [start + dt.timedelta(hours=int(t)) for t in past.ds]),
        polars.col("unique_id").cast(polars.Categorical),
    )
    for options in MODES.values():
        expected = forecast(past, yhat="m", **options)(past, 0.1)
        out = forecast(other, yhat="m", **options)(other.drop("y"), 0.1)
        assert out.drop("m-lo-90", "m-hi-90").equals(other.drop("y"))
        assert_array_equal(out["m-hi-90"].to_numpy(), expected["m-hi-90"])
    with pytest.raises(ValueError, match=r"got LazyFrame; .collect\(\) reads it"):
        forecast(other.lazy(), yhat="m")
    with pytest.raises(ValueError, match="expected finite y, got nan at 0"):
        forecast(other.with_columns(y=polars.lit(None, polars.Float64)), yhat="m")
