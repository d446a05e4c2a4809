"""Sets of forecasts in long frames, of pandas or polars: a row for each step."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.certificates.promises import Promised
from jaxcp.frames.steps import Paths, Steps, Times, find_steps, read_times
from jaxcp.held.rows import Held
from jaxcp.quantiles import levels
from jaxcp.quantiles._cells import cell_thresholds
from jaxcp.typing import Number

_CURE = "; give whole paths, or number times and origins by integers of your calendar"


@pytree
class ForecastCalibration(Promised):
    """Scores of forecasts in a frame, which gives the ends of new ones as columns.

    Made by `frames.forecast`.

    Args:
      held: The rows that calibrate: the score of each, float64 of numpy, with step,
        series or cluster. A path is one row with `by="path"`.
      scores: Scores, of which rows have places, in files of version 0.3; else None.
      by: What has a threshold of its own: "step", "series", "all" or "path".
      horizon: Steps of a path H; those of the longest where it does not matter.
      series: Names of the series with `by="series"`, as they come in the frame, or
        None: `dict(zip(cp.series, cp.quantile(alpha)))` has the threshold of each.
      columns: Names of the columns: of series, times, origins and forecasts, and of
        scales, or None.
      spacing: Distance of steps, or NaN, in files of version 0.3; else None.
      steps: The offsets `ds - cutoff` of the steps, with `by="step"` and "path".
      share: Share of a path that a band holds at least, in words, with `by="path"`.

    See also:
      frames.forecast, Calibration, save
    """

    held: Held
    scores: np.ndarray | None
    by: str = static()
    horizon: int = static()
    series: tuple[Any, ...] | None = static()
    columns: tuple[Any, ...] = static()
    spacing: np.ndarray | None = None
    steps: Steps | None = None
    share: str | None = static(default=None)

    @property
    def promise(self) -> str:
        """What sets keep to, in words with a place for {alpha}."""
        event = "Y in set"
        if self.by == "path":  # a file of 0.3 does not say how much of it
            share = "a share" if self.share is None else self.share
            part = "" if share == "1" else f"at least {share} of "
            event = f"{part}a path in its band"
        rows = {"step": " at each step of a new path", "series": " in each series"}
        of_series = " of a series that did not calibrate" * bool(
            self.held.clusters is not None
        )
        return f"P({event}) >= 1 - {{alpha}}{rows.get(self.by, '')}{of_series}"

    @property
    def assumption(self) -> str:
        """What that assumes, in words."""
        if self.held.clusters is not None:
            rows = "series that calibrate and the new one, each with all of its paths,"
        else:
            rows = "paths" if self.by in ("step", "path") else "rows"
            rows += " that calibrate and the new one"
        return f"{rows} are exchangeable, and the model saw neither's targets"

    def quantile(self, alpha: Number) -> np.ndarray:
        """Returns the thresholds at alpha, float64, of numpy.

        How far a target may be from its forecast, in scales where there are some: of
        each step, shape (H,), of each series, shape (g,), else of all, shape (). +inf
        where there are too few rows.
        """
        rows, exact = self.held, levels.one_alpha(alpha)
        values = np.asarray(rows.values)
        cells = np.zeros(len(values), int) if rows.groups is None else rows.groups
        clusters = None if rows.clusters is None else np.asarray(rows.clusters)
        q = cell_thresholds(
            values, np.asarray(cells), rows.num_groups or 1, exact, clusters
        )
        if self.scores is not None:  # the last is +inf
            q = self.scores[np.minimum(q, len(self.scores) - 1).astype(int)]
        return q.reshape(rows.shape)[()]

    @_checks.with_alpha
    def __call__(self, frame: Any, alpha: Any) -> Any:
        """Returns the frame with two columns more for each alpha, the ends of the sets.

        They are named as in nixtla's libraries: at alpha = 0.1 `model-lo-90` and
        `model-hi-90` for forecasts `model`, 95 for 0.05 and 97.5 for 0.025.

        Args:
          frame: New forecasts, with the columns that calibrated but the targets. With
            origins any steps of a path; without each series is one path, from its first
            step and without a gap. Other columns are kept.
          alpha: Miscoverage level, a number or several in a list.

        Returns:
          A new frame of the same kind, index and order. Ends have the float type of
          the forecasts, else float64, and are rounded outwards: no target whose score
          is the threshold is out.

        Raises:
          ValueError: as `frames.forecast`; for series that calibrated nothing with
            `by="series"`, for paths longer than those that calibrated with `by="step"`,
            of another length with `by="path"`; for a row whose step did not calibrate
            or is not sure: after a gap in a path without origins, or where days of the
            week without others may be holidays; for no alpha; or if a column has the
            name of an end.

        Guarantee:
          That of `frames.forecast`.

        Assumption:
          Those of `frames.forecast`.

        Cost:
          O(n) for each alpha, and one sort of the rows.

        Example:
          >>> import pandas as pd
          >>> past = {"cutoff": 0, "ds": 1, "y": [1, 3], "model": 0}
          >>> new = pd.DataFrame({"unique_id": ["c"], "ds": [2], "model": [5]})
          >>> past = pd.DataFrame(past | {"unique_id": ["a", "b"]})
          >>> cp = forecast(past, yhat="model")
          >>> print(cp(new, alpha=0.5))
            unique_id  ds  model  model-lo-50  model-hi-50
          0         c   2      5          2.0          8.0
        """
        *at, cutoff, yhat, scale = self.columns
        at += [cutoff] * (cutoff in getattr(frame, "columns", ()))
        times, paths = _paths(frame, at)
        which: Any = ...
        if self.by == "series":
            which = _places_of_series(frame, at, self.series or ())
        elif self.by != "all":
            # Files of version 0.3 have no offsets: there whole paths alone are sure.
            least = self.horizon if self.by == "path" or self.steps is None else 1
            fits = (least <= paths.length) & (paths.length <= self.horizon)
            most = "at most " * (least < self.horizon) + str(self.horizon)
            _check_rows(frame, at, fits, f"{most} steps in each path", paths.length)
            step = paths.place
            if self.steps is not None:
                step = _steps_of_rows(frame, at, self.steps, times, paths, least > 1)
            which = step if self.by == "step" else ...
        center, scales = _numbers(frame, at, yhat), _numbers(frame, at, scale, " > 0")
        dtype = kind if (kind := _column(frame, yhat).dtype).kind == "f" else float
        alpha, ends = np.asarray(alpha) if isinstance(alpha, Array) else alpha, {}
        alphas = levels.as_alpha(alpha).ravel()
        if not len(alphas):
            raise ValueError("expected alpha as one level or several, got none")
        for level in alphas:
            q, percent = self.quantile(level)[which], float(100 * (1 - level))
            for side, sign in (("lo", -1), ("hi", 1)):
                end = _end(center, scales, q, sign, dtype)
                ends[f"{yhat}-{side}-{percent:.12g}"] = end
        if taken := [name for name in ends if name in frame.columns]:
            raise ValueError(f"expected a frame without columns {taken}; drop them")
        return (getattr(frame, "assign", None) or frame.with_columns)(**ends)


def forecast(
    frame: Any,
    *,
    yhat: str,
    y: str = "y",
    id: str = "unique_id",
    time: str = "ds",
    cutoff: str = "cutoff",
    by: str = "step",
    new_series: bool = False,
    scale: str | None = None,
    fraction: Number = 1.0,
) -> ForecastCalibration:
    """Returns the calibration of forecasts in the long frame of a cross-validation.

    A row for each series, origin and step. Scores are abs(y - yhat), divided by the
    scale if there is one, in double precision on the host, whatever jax has: 1e9 + 0.25
    keeps its digits. Rows may come in any order; a path is all rows of one series and
    origin. Step h is the place of a time within its path, from 1, where all paths have
    the same offsets `ds - cutoff`: of numbers, of periods, of dates by months, by days
    of the local clock or by days of the week, of hours by time elapsed. A new row has
    the step of its offset, and is refused where that is not sure.

    Args:
      frame: A frame of pandas or polars, as statsforecast's and mlforecast's
        `cross_validation` returns it, with columns of these names.
      yhat: Column of the forecasts of a model.
      y: Column of the targets.
      id: Column of the series: text, numbers, dates, categories.
      time: Column of the times of the targets: dates, times, periods or numbers.
      cutoff: Column of the origins of the forecasts, any values.
      by: What has a threshold of its own. "step" is each step h = 1, ..., H. "series"
        is each series. "all" is one for all rows. "path" is one for whole paths, which
        makes a joint band: the score of a path is the largest of its steps
        (`scores.Band`).
      new_series: Whether forecasts are for series that did not calibrate. Those are
        clusters then: each weighs 1, however many rows it has (`calibrate`).
      scale: Column of predicted scales > 0, in units of the targets: sets are as wide
        as their scale. Defaults to None: 1.
      fraction: Share of the steps of a path that the band holds at least, a number in
        (0, 1], read as a decimal, with `by="path"` alone.

    Returns:
      A `ForecastCalibration`: call it with the frame of new forecasts and alpha.

    Raises:
      ValueError: for a column that is missing, or no rows; for targets, forecasts or
        scales that are not finite, or scales <= 0; for missing series, origins or
        times, or times as text; for a time that comes twice in a path; with `by="step"`
        or "path" for paths of different lengths or offsets, but for days without
        holidays; for `y` as `yhat` or `scale`; for `new_series` with `by="series"`; for
        a `fraction` without `by="path"`, or outside (0, 1].

    Guarantee:
      At least 1 - alpha at each step of a new path with `by="step"`, and for all of its
      steps together with "path": of n paths exactly k/(n + 1), k of `conformal_rank`,
      without ties. With "series" and "all" for a row like those that calibrate. With
      `new_series` for a path of a series that did not calibrate; with "all" for a row
      of it at random. It holds on average over calibration sets.

    Assumption:
      The new path and those that calibrated are exchangeable, with "series" and "all"
      their rows: errors of one path are alike, and the guarantee is approximate for few
      paths. Paths of one series at several origins overlap or follow one another, and
      its law may change: they are not exchangeable in time, and the guarantee is
      approximate. With `new_series` only the series need to be exchangeable, each with
      all of its paths, and the new path is one of its series' at random. The model was
      not fitted on the targets that calibrate. Rows of new forecasts without origins
      begin at the first step.

    Cost:
      O(n log n): sorts of the rows and of the scores, on the host by numpy: nothing is
      compiled. A threshold takes O(n), with `new_series` O(n log n).

    References:
      Diquigiovanni, Fontana, Vantini, Conformal Prediction Bands for Multivariate
      Functional Data, Journal of Multivariate Analysis, 2022.
      Dunn, Wasserman, Ramdas, Distribution-Free Prediction Sets for Two-Layer
      Hierarchical Models, Journal of the American Statistical Association, 2023.

    See also:
      scores.Band, calibrate, calibrate_groups, online.run

    Example:
      >>> import pandas as pd
      >>> past = pd.DataFrame({"unique_id": "a", "cutoff": [0, 0, 1, 1, 2, 2]})
      >>> past["ds"] = past["cutoff"] + [1, 2, 1, 2, 1, 2]
      >>> past["y"], past["model"] = [1, 4, 2, 5, 3, 9], 0.0
      >>> new = pd.DataFrame({"unique_id": "a", "ds": [4, 5], "model": [7.0, 7.0]})
      >>> cp = forecast(past, yhat="model")
      >>> print(cp(new, alpha=0.25))
        unique_id  ds  model  model-lo-75  model-hi-75
      0         a   4    7.0          4.0         10.0
      1         a   5    7.0         -2.0         16.0
      >>> cp = forecast(past, yhat="model", by="path")
      >>> cp.quantile(0.25)
      np.float64(9.0)
    """
    _checks.check_one_of("by", by, ("step", "series", "all", "path"))
    levels.check_share("fraction", fraction)
    if (by != "path" and fraction != 1) or (by == "series" and new_series):
        expected = 'fraction with by="path", and new_series without by="series"'
        raise ValueError(f"expected {expected}, got {by=}, {fraction=}, {new_series=}")
    if y in (yhat, scale):
        raise ValueError(f"expected y and yhat (and scale) as two columns, got {y!r}")
    at = [id, time, cutoff]
    times, paths = _paths(frame, at)
    _checks.check_count("the number of rows", len(paths.order), 1)
    center, scales = _numbers(frame, at, yhat), _numbers(frame, at, scale, " > 0")
    values = abs(_numbers(frame, at, y) - center) / scales
    ids, horizon = _names.on_host(id, _column(frame, id)), int(paths.length.max())
    series = _names.Names(_names.distinct(ids)[0]) if by == "series" else None
    steps, num_cells = None, None
    cells: Any = None
    number: Any = fraction
    share = levels.as_decimal(number)
    if series is not None:
        cells, num_cells = _places_of_series(frame, at, series), len(series)
    elif by != "all":
        expected = f"{horizon} steps in each path"
        _check_rows(frame, at, paths.length == horizon, expected, paths.length)
        origins = read_times(frame[cutoff], _column(frame, cutoff))
        steps, explains = find_steps(times, origins, paths, horizon)
        if not explains:
            _steps_of_rows(frame, at, steps, times, paths, whole=True)
        if by == "step":
            cells, num_cells = paths.place, horizon
        else:
            # ceil(f H) = H - floor((1 - f) H), the rank of H - 1 scores at 1 - f.
            rank = levels.exact_rank(horizon - 1, 1 - share)
            by_path = values[paths.order].reshape(-1, horizon)
            values = np.sort(by_path, axis=1)[:, rank - 1]
            ids = ids[paths.order[::horizon]]
    clusters = _names.cluster_codes(ids) if new_series else None
    # Thresholds take less time where rows come sorted, in their cells.
    order = np.lexsort((values,) if cells is None else (values, cells))
    held = Held(
        values=values[order],
        groups=None if cells is None else cells[order],
        num_groups=num_cells,
        clusters=None if clusters is None else clusters[order],
    )
    return ForecastCalibration(
        held=held,
        scores=None,
        by=by,
        horizon=horizon,
        series=series,
        columns=(*at, yhat, scale),
        steps=steps,
        share=str(share) if by == "path" else None,
    )


def _column(frame: Any, name: str) -> np.ndarray:
    """Returns a column as numpy, of dates with a zone those in UTC."""
    columns = [*getattr(frame, "columns", ())]
    if not columns or hasattr(frame, "collect"):  # a dict, or a frame without its rows
        cure = ".collect() reads it" if columns else "pandas.DataFrame(columns) is one"
        got = type(frame).__name__
        raise ValueError(f"expected a frame of pandas or polars, got {got}; {cure}")
    if columns.count(name) != 1:
        cure = "reset_index() makes columns of an index"
        if near := get_close_matches(name, {*map(str, columns)} - {name}, 1):
            cure = f"did you mean {near[0]!r}?"
        raise ValueError(f"expected one column {name!r}, got {columns}; {cure}")
    has_zone = getattr(frame[name].dtype, "tz", None) is not None
    # Times of pandas with a zone would be slow objects.
    return frame[name].to_numpy(**{"dtype": "datetime64[ns]"} if has_zone else {})


def _numbers(frame, at, name, bound=""):
    """Returns a column of finite numbers as float64; 1 where there are no scales."""
    values = _checks.numbers(name, [1.0] if name is None else _column(frame, name))
    fits = np.isfinite(values) & (values > (0 if bound else -np.inf))
    cure = "; leave out its whole path: all paths have the same steps"
    _check_rows(frame, at, fits, f"finite {name}{bound}", values, cure)
    return values


def _end(center, scales, q, sign, dtype):
    """Returns ends that no target with a score of at most q is beyond, in a type."""
    end, out = center + sign * scales * q, sign * np.inf
    # A score is rounded twice, its bound once: by 3 eps / 2 in all, and then its end.
    far = np.nextafter(center + sign * scales * q * (1 + 2 * np.finfo(float).eps), out)
    end = np.where(abs(np.nextafter(end, out) - center) / scales <= q, far, end)
    near = end.astype(dtype)
    return np.where(sign * near < sign * end, np.nextafter(near, out), near)


def _check_rows(frame, at, fits, expected, got, cure=""):
    """Raises ValueError for the first row that does not fit, and says where it is."""
    if not fits.all():
        i = np.argmin(fits)
        where = ", ".join(f"{name} {_column(frame, name)[i]}" for name in at)
        raise ValueError(f"expected {expected}, got {got[i]} at {i}, {where}{cure}")


def _paths(frame: Any, at: list[str]) -> tuple[Times, Paths]:
    """Returns the times of rows and their paths; each series and origin is one."""
    id, time, *cutoff = at
    values = _column(frame, time)
    if values.dtype == object or (values != values).any():
        _names.cluster_codes(values, name=time)  # raises for a missing one
    times = read_times(frame[time], values)
    if times is None:
        expected = f"{time} as dates (pandas.to_datetime), periods or numbers"
        raise ValueError(f"expected {expected}, got text, or objects of several kinds")
    path = np.zeros(len(times.values), int)
    for name in (id, *cutoff):
        codes = _names.cluster_codes(_column(frame, name), name=name).astype(int)
        path = path * (codes.max(initial=0) + 1) + codes
    order = np.lexsort((times.values, path))
    is_start = np.diff(path[order], prepend=-1) != 0
    is_later = np.append(True, np.diff(times.values[order]).astype(bool))[: len(order)]
    back = np.argsort(order)
    once = (is_start | is_later)[back]
    _check_rows(frame, at, once, f"each {time} once in a path", values)
    start, number = np.flatnonzero(is_start), np.cumsum(is_start) - 1
    paths = Paths(
        order=order,
        place=(np.arange(len(order)) - start[number])[back],
        length=np.bincount(number)[number[back]],
        first=order[start[number]][back],
        origins_differ=bool((codes != codes[:1]).any()),
    )
    return times, paths


def _steps_of_rows(
    frame: Any, at: list[str], steps: Steps, times: Times, paths: Paths, whole: bool
) -> np.ndarray:
    """Returns the step of each row from 0, after checks; of whole paths its place."""
    _, time, *cutoff = at
    names, kinds, origins = [time], [times.kind], None
    if steps.origin == "cutoff" and cutoff:
        origins = read_times(frame[cutoff[0]], _column(frame, cutoff[0]))
        names, kinds = [time, *cutoff], [times.kind, getattr(origins, "kind", "names")]
    for name, kind in zip(names, kinds, strict=True):
        if kind != steps.kind and len(paths.order):
            expected = f"{name} as {steps.kind}, as calibrated"
            raise ValueError(f"expected {expected}, got {kind}")
    step, offsets = steps.steps(times, origins, paths)
    fits = step == paths.place if whole else step >= 0
    if not fits.all():
        row = int(np.argmin(fits))
        usual = [steps.told(known) for known in steps.offsets.T]
        shown = ", ".join(usual if len(usual) < 5 else [*usual[:3], "...", usual[-1]])
        in_a_row = ", in a row" if whole or not cutoff else ""
        expected = f"{time} at a step that calibrated, {shown} ahead{in_a_row}"
        got = {row: steps.told(offsets[:, row])}
        _check_rows(frame, at, fits, expected, got, _CURE)
    return step


def _places_of_series(frame: Any, at: list[str], series: tuple[Any, ...]) -> np.ndarray:
    """Returns the place of the series of each row among those that calibrated."""
    ids = _names.on_host(at[0], _column(frame, at[0]))
    places = _names.equal_places(series, ids)
    is_known = places < len(series)
    _check_rows(frame, at, is_known, "series that calibrated", _names.as_list(ids))
    return places
