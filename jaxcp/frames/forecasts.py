"""Sets of forecasts in long frames, of pandas or polars: a row for each step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.certificates.promises import Promised
from jaxcp.held.rows import Held
from jaxcp.quantiles import levels
from jaxcp.quantiles.thresholds import thresholds
from jaxcp.typing import Number


@pytree
class ForecastCalibration(Promised):
    """Scores of forecasts in a frame, which gives the ends of new ones as columns.

    Made by `frames.forecast`.

    Args:
      held: The rows that calibrate: the place of each score among the distinct ones,
        with step, series or cluster. A path is one row with `by="path"`.
      scores: Distinct scores in their order, and +inf, shape (d + 1,), a float64 array
        of numpy.
      by: What has a threshold of its own: "step", "series", "all" or "path".
      horizon: Steps of a path H; those of the longest where it does not matter.
      series: Names of the series with `by="series"`, as they come in the frame, or
        None: `dict(zip(cp.series, cp.quantile(alpha)))` has the threshold of each.
      columns: Names of the columns: of series, times, origins and forecasts, and of
        scales, or None.
      spacing: Time from step to step with `by="step"` and "path", in seconds for dates;
        NaN where that is not always the same.

    See also:
      frames.forecast, Calibration, save
    """

    held: Held
    scores: np.ndarray
    by: str = static()
    horizon: int = static()
    series: tuple[Any, ...] | None = static()
    columns: tuple[str | None, ...] = static()
    spacing: np.ndarray

    @property
    def promise(self) -> str:
        """What sets keep to, in words with a place for {alpha}."""
        event = "Y in set" if self.by != "path" else "enough of a path in its band"
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
        rank: Any = self.held.rank(levels.one_alpha(alpha))  # type: ignore[arg-type]
        place = np.asarray(self.held.threshold(rank)).astype(float)
        return self.scores[np.clip(place, 0, len(self.scores) - 1).astype(int)]

    @_checks.with_alpha
    def __call__(self, frame: Any, alpha: Any) -> Any:
        """Returns the frame with two columns more for each alpha, the ends of the sets.

        They are named as in nixtla's libraries: at alpha = 0.1 `model-lo-90` and
        `model-hi-90` for forecasts `model`, 95 for 0.05 and 97.5 for 0.025.

        Args:
          frame: New forecasts, with the columns that calibrated but the targets; if it
            has no origins, each series is one path. Other columns are kept.
          alpha: Miscoverage level, a number or several in a list.

        Returns:
          A new frame of the same kind, index and order. Ends have the float type of
          the forecasts, else float64, and are rounded outwards: no target whose score
          is the threshold is out.

        Raises:
          ValueError: as `frames.forecast`; for series that calibrated nothing with
            `by="series"`, for paths longer than those that calibrated with `by="step"`,
            of another length with `by="path"`; for a gap in a path, where all steps
            that calibrated were equally far apart; or if a column has the name of an
            end.

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
        paths, least = _paths(frame, at), self.horizon if self.by == "path" else 1
        which = _which(frame, at, self.by, paths, least, self.horizon, self.series)
        fits = ~(abs(paths[-1] / self.spacing - 1) >= 0.5)  # also where it is NaN
        expected = f"steps {float(self.spacing):g} apart, as calibrated"
        _check_rows(frame, at, fits, expected, paths[-1], "; give the whole path")
        center, scales = _numbers(frame, at, yhat), _numbers(frame, at, scale, " > 0")
        dtype = kind if (kind := _column(frame, yhat).dtype).kind == "f" else float
        alpha, ends = np.asarray(alpha) if isinstance(alpha, Array) else alpha, {}
        for one in levels.as_alpha(alpha).ravel():
            q, percent = self.quantile(one)[which], float(100 * (1 - one))
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
    keeps its digits. Step h is the place of a time within its path, that of one series
    and origin, from 1; rows may come in any order.

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
        times, or times as text; for a time that comes twice in a path; for paths of
        different lengths with `by="step"` or "path"; for `new_series` with
        `by="series"`; for a `fraction` without `by="path"`, or outside (0, 1].

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
      not fitted on the targets that calibrate.

    Cost:
      O(n log n): sorts of the rows and of the scores, on the host. A threshold takes
      O(n), with `new_series` by step O(H n).

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
    at, groups, known = [id, time, cutoff], None, None
    order, _, length, gaps = paths = _paths(frame, at)
    _checks.check_count("the number of rows", len(order), 1)
    center, scales = _numbers(frame, at, yhat), _numbers(frame, at, scale, " > 0")
    # Order alone decides: places among the distinct scores lose no digits on a device;
    # in single precision places beyond 2^24 are rounded up.
    errors = abs(_numbers(frame, at, y) - center) / scales
    distinct, values = np.unique(errors, return_inverse=True)
    ids, horizon = _names.on_host(id, _column(frame, id)), int(length.max())
    series = _names.Names(_names.distinct(ids)[0]) if by == "series" else None
    which = _which(frame, at, by, paths, horizon, horizon, series)
    if by in ("step", "series"):
        groups, known = jnp.asarray(which), len(series or range(horizon))
    elif by == "path":
        ids, rank = ids[order[::horizon]], levels.counts_of(fraction, horizon)
        values = thresholds(values[order].reshape(-1, horizon).T, rank)
    clusters = jnp.asarray(_names.cluster_codes(ids)) if new_series else None
    held = Held(jnp.asarray(values), None, None, groups, known, clusters).of_clusters()
    spacing = np.unique(gaps[~np.isnan(gaps)])
    regular = len(spacing) == 1 and by in ("step", "path")
    settings = by, horizon, series, (*at, yhat, scale)
    spacing = spacing[0] if regular else np.array(np.nan)
    return ForecastCalibration(held, np.append(distinct, np.inf), *settings, spacing)


def _column(frame, name):
    """Returns a column as numpy; times of pandas with a zone would be slow objects."""
    if (names := [*getattr(frame, "columns", ())]).count(name) != 1:
        cure = "reset_index() makes columns of an index"
        raise ValueError(f"expected one column {name!r}, got {names}; {cure}")
    is_zoned = getattr(frame[name].dtype, "tz", None) is not None
    return frame[name].to_numpy(**{"dtype": "datetime64[ns]"} if is_zoned else {})


def _numbers(frame, at, name, bound=""):
    """Returns a column of finite numbers as float64; 1 where there are no scales."""
    values = _checks.numbers(name, [1.0] if name is None else _column(frame, name))
    fits = np.isfinite(values) & (values > (0 if bound else -np.inf))
    cure = "; leave out its whole path: without one row the steps of others are wrong"
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


def _paths(frame, at):
    """Returns the rows path by path; step and length of path of each, and time before.

    Each series and origin is a path. Steps count from 0. The time is that since the
    step before, in seconds for dates, NaN for the first.
    """
    id, time, *cutoff = at
    times, path = _times(time, _column(frame, time)), np.zeros(1, int)
    for name in (id, *cutoff):
        codes = _names.cluster_codes(_column(frame, name), name=name).astype(int)
        path = path * (codes.max(initial=0) + 1) + codes
    order = np.lexsort((times, path))
    first = lambda v: np.append(True, v[1:] != v[:-1])[: len(v)]  # noqa: E731
    new, later = first(path[order]), first(times[order])
    start, number, back = np.flatnonzero(new), np.cumsum(new) - 1, np.argsort(order)
    once, expected = (new | later)[back], f"each {time} once in a path"
    _check_rows(frame, at, once, expected, _column(frame, time))
    step, gaps = np.arange(len(order)) - start[number], np.diff(times[order])
    gaps = gaps / np.timedelta64(1, "s") if gaps.dtype.kind == "m" else gaps
    gaps = np.where(new, np.nan, np.append(np.nan, gaps)[: len(new)])[back]
    return order, step[back], np.bincount(number)[number[back]], gaps


def _times(name, times):
    """Returns times as values of numpy that have their order."""
    _names.cluster_codes(times, name=name)  # or one is missing
    kinds = {*map(type, times.tolist())} if times.dtype.kind in "OU" else ()
    if str in kinds:  # else dates or periods of Python
        raise ValueError(f"expected {name} as dates (pandas.to_datetime), got text")
    return np.unique(times, return_inverse=True)[1] if kinds else times


def _which(frame, at, by, paths, least, most, series):
    """Returns which threshold is that of each row, as an index, after checks."""
    _, step, length, _ = paths
    if by == "series":
        ids = _names.on_host(at[0], _column(frame, at[0]))
        places = _names.equal_places(series, ids)
        fits = places < len(series)
        _check_rows(frame, at, fits, "series that calibrated", _names.as_list(ids))
        return places
    if by != "all":
        expected = f"{'at most ' * (least < most)}{most} steps in each path"
        _check_rows(frame, at, (least <= length) & (length <= most), expected, length)
    return step if by == "step" else ...
