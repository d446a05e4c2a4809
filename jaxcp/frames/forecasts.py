"""Sets of forecasts in long frames, of pandas or polars: a row for each step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxcp import _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.held.rows import Held
from jaxcp.quantiles import levels
from jaxcp.quantiles.thresholds import thresholds
from jaxcp.typing import Number

_BY = "step", "series", "all", "path"
_OTHERS = '; by="step", "all" and "path" are for new ones too'


class Columns(NamedTuple):
    """Names of the columns of a frame, which also name a row in messages."""

    id: str
    time: str
    cutoff: str
    yhat: str
    scale: str | None


@pytree
class ForecastCalibration:
    """Scores of forecasts in a frame, which gives the ends of new ones as columns.

    Made by `frames.forecast`.

    Args:
      held: The rows that calibrate: the place of each score among the distinct ones,
        with step, series or cluster. A path is one row with `by="path"`.
      scores: Distinct scores in their order, and +inf, shape (d + 1,), a float64 array
        of numpy.
      by: What has a threshold of its own: "step", "series", "all" or "path".
      horizon: Steps of a path H; 0 where they do not matter.
      series: Names of the series with `by="series"`, in the order of `quantile`, or
        None.
      columns: Names of the columns: id, time, cutoff, yhat and scale.

    See also:
      frames.forecast, Calibration, save
    """

    held: Held
    scores: np.ndarray
    by: str = static()
    horizon: int = static()
    series: tuple[Hashable, ...] | None = static()
    columns: Columns = static()

    def quantile(self, alpha: Number) -> np.ndarray:
        """Returns the thresholds at alpha, float64, of numpy.

        How far a target may be from its forecast, in scales where there are some: of
        each step, shape (H,), of each series, shape (g,), else of all, shape (). +inf
        where there are too few rows.
        """
        rank: Any = self.held.rank(levels.one_alpha(alpha))  # type: ignore[arg-type]
        place = np.asarray(self.held.threshold(rank)).astype(float)
        return self.scores[np.minimum(place, len(self.scores) - 1).astype(int)]

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
          the forecasts, else float64.

        Raises:
          ValueError: as `frames.forecast`; for series that calibrated nothing with
            `by="series"`, for paths longer than those that calibrated with `by="step"`,
            of another length with `by="path"`; or if a column has the name of an end.

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
        alphas, yhat = np.ravel(levels.as_alpha(alpha)), self.columns.yhat
        center, scale, (_, step, *paths) = _read(frame, self.columns)
        which: Any = ...
        if self.by in ("step", "path"):
            least = 1 if self.by == "step" else self.horizon
            _check_steps(frame, self.columns, paths, least, self.horizon)
            which = step if self.by == "step" else ...
        elif self.series is not None:
            which = _places(frame, self.columns, self.series)
        ends, dtype = {}, _column(frame, yhat).to_numpy().dtype
        for one in alphas:
            half = scale * self.quantile(one)[which]
            percent = f"{float(100 * (1 - one)):.12g}"
            ends |= {f"{yhat}-lo-{percent}": center - half}
            ends |= {f"{yhat}-hi-{percent}": center + half}
        kind = dtype if dtype.kind == "f" else float
        return _joined(frame, {k: end.astype(kind) for k, end in ends.items()})


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
      ValueError: for a frame of another library, a column that is missing or comes
        twice, or no rows; for missing targets, forecasts, series, origins or times, or
        times as text; for a time that comes twice in a path; for paths of different
        lengths with `by="step"` or "path"; for `new_series` with `by="series"`; for a
        `fraction` without `by="path"`, or outside (0, 1].

    Guarantee:
      1 - alpha for a row of a new path: at each step with `by="step"`, in each series
      with "series", for a step drawn at random with "all". For all steps of a new path
      together with "path", of n paths exactly k/(n + 1), k of `conformal_rank`, without
      ties. With `new_series` the same for a path of a series that did not calibrate. It
      holds on average over calibration sets.

    Assumption:
      The new path and those that calibrated are exchangeable; with "series" those of
      one series. Paths of one series at several origins overlap or follow one another,
      and its law may change: they are not exchangeable in time, and the guarantee is
      approximate. With `new_series` only the series need to be exchangeable, each with
      all of its paths, and the new path one of them at random. The model was not
      fitted on the targets that calibrate.

    Cost:
      O(n log n): one sort of the rows and one of the scores; about 0.6 s for 10^6 rows
      on one core. A threshold takes O(n), with `new_series` by step O(H n).

    References:
      Stankeviciute, Alaa, van der Schaar, Conformal Time-Series Forecasting, NeurIPS,
      2021.
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
    _checks.check_one_of("by", by, _BY)
    levels.check_share("fraction", fraction)
    if (new_series and by == "series") or (fraction != 1 and by != "path"):
        raise ValueError(
            'expected new_series with by="step", "all" or "path" and fraction with '
            f'by="path", got by={by!r}, {new_series=}, {fraction=}'
        )
    columns, rows = Columns(id, time, cutoff, yhat, scale), dict[str, Any]()
    _column(frame, cutoff)  # new forecasts may have none
    center, scales, (order, step, *paths) = _read(frame, columns)
    # Order alone decides: places among the distinct scores lose no digits on a device.
    errors = abs(_numbers(frame, columns, y) - center) / scales
    distinct, values = np.unique(errors, return_inverse=True)
    ids, series, horizon = _ids(frame, columns), None, 0
    if by in ("step", "path"):
        horizon = int(paths[1][0])
        _check_steps(frame, columns, paths, horizon, horizon)
    if by == "step":
        rows = {"groups": jnp.asarray(step), "num_groups": horizon}
    elif by == "series":
        series = _names.as_names(id, [*dict.fromkeys(ids.tolist())])
        places = jnp.asarray(_places(frame, columns, series))
        rows = {"groups": places, "num_groups": len(series)}
    elif by == "path":
        points = jnp.asarray(values[order].reshape(-1, horizon).T)
        count = levels.count_of(fraction, horizon)
        values, ids = thresholds(points, jnp.asarray(count)), ids[paths[0]]
    if new_series:
        rows["clusters"] = jnp.asarray(_names.cluster_codes(ids))
    held = Held(jnp.asarray(values), **rows).of_clusters()
    known = by, horizon, series, columns
    return ForecastCalibration(held, np.append(distinct, np.inf), *known)


def _read(frame, columns):
    """Returns forecasts, their scales, and the paths that they are of."""
    paths, scale = _paths(frame, columns), 1.0
    if columns.scale is not None:
        scale = _numbers(frame, columns, columns.scale, " > 0")
    return _numbers(frame, columns, columns.yhat), scale, paths


def _column(frame, name):
    """Returns a column, which frames of both libraries have by its name."""
    columns = [*getattr(frame, "columns", ())]
    if columns.count(name) != 1:
        got = f"columns {columns}" if columns else type(frame).__name__
        got += "; frame.reset_index() makes columns of an index"
        raise ValueError(f"expected a frame with one column {name!r}, got {got}")
    return frame[name]


def _values(frame, name):
    """Returns a column of numpy; times with a zone are slow objects of pandas."""
    is_zoned = getattr((column := _column(frame, name)).dtype, "tz", None) is not None
    return column.to_numpy("datetime64[ns]") if is_zoned else column.to_numpy()


def _numbers(frame, columns, name, bounds=""):
    """Returns a column of finite numbers as float64."""
    values = _checks.numbers(name, _column(frame, name))
    fits = np.isfinite(values) & (values > (0 if bounds else -np.inf))
    cure = "; leave out its whole path: without one row the steps of others are wrong"
    _check_rows(frame, columns, fits, f"{name} as finite numbers{bounds}", values, cure)
    return values


def _check_rows(frame, columns, fits, expected, got, cure="", rows=None):
    """Raises ValueError for the first row that does not fit, and says where it is."""
    if not fits.all():
        i = row = np.argmin(fits)
        row = row if rows is None else rows[i]
        names = [name for name in columns[:3] if name in frame.columns]
        where = ", ".join(f"{k} {frame[k].to_numpy()[row]}" for k in names)
        where = f"in row {row} ({where})"
        raise ValueError(f"expected {expected}, got {got[i]} {where}{cure}")


def _paths(frame, columns):
    """Returns rows in the order of paths; steps; first rows and lengths of paths.

    Each series and origin is a path. Steps are those of the rows of the frame, from 0.
    """
    time, path = _times(frame, columns.time), 0
    for name in (columns.id, columns.cutoff):
        if name == columns.id or name in frame.columns:
            codes = _names.cluster_codes(_values(frame, name), name=name)
            path = path * (codes.max(initial=0) + 1) + codes.astype(int)
    order = np.lexsort((time, path))
    new, later = (v[order][1:] != v[order][:-1] for v in (path, time))
    once = f"each {columns.time} of a path once"
    _check_rows(frame, columns, new | later, once, time[order[1:]], "", order[1:])
    starts = np.append(np.arange(len(time) > 0), 1 + np.flatnonzero(new))
    lengths = np.diff(np.append(starts, len(time)))
    step = np.empty_like(order)
    step[order] = np.arange(len(time)) - np.repeat(starts, lengths)
    return order, step, order[starts], lengths


def _times(frame, name):
    """Returns times as values of numpy that have their order."""
    values = _values(frame, name)
    _names.cluster_codes(values, name=name)  # or one is missing
    if any(isinstance(v, str) for v in values[:1].tolist()):
        cure = f"pandas.to_datetime reads {values[0]!r:.40}"
        raise ValueError(f"expected {name} as dates or numbers, got text; {cure}")
    is_slow = values.dtype == object
    return np.unique(values, return_inverse=True)[1] if is_slow else values


def _check_steps(frame, columns, paths, least, most):
    """Raises ValueError for a path that is shorter or longer than expected."""
    first, length = paths
    fits = (least <= length) & (length <= most)
    steps = f"{most} steps" if least == most else f"at most {most} steps"
    _check_rows(frame, columns, fits, f"{steps} in each path", length, "", first)


def _ids(frame, columns):
    """Returns the series of each row."""
    return _names.on_host(columns.id, _column(frame, columns.id))


def _places(frame, columns, series):
    """Returns the place of the series of each row among known ones."""
    known = {name: place for place, name in enumerate(series)}
    ids = _ids(frame, columns)
    places = np.array([known.get(v, -1) for v in ids.tolist()], int)
    _check_rows(frame, columns, places >= 0, "series that calibrated", ids, _OTHERS)
    return places


def _joined(frame, ends):
    """Returns the frame with further columns, itself as it was."""
    if taken := [name for name in ends if name in frame.columns]:
        cure = f"frame.drop(columns={taken})"
        raise ValueError(f"expected a frame without {taken[0]!r}, got one; {cure}")
    if hasattr(frame, "with_columns"):  # polars
        series = type(frame[frame.columns[0]])
        return frame.with_columns([series(*end) for end in ends.items()])
    return frame.assign(**ends)
