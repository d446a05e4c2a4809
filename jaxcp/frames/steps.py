"""Steps of paths: how many steps ahead a row is, by the clocks that explain the past.

The offset of a row is the time on a clock from the origin of its path to it. A clock
explains the past where all paths have the same offsets: a step is then the place of an
offset among them, and a row with another offset has no step.
"""

from __future__ import annotations

from datetime import UTC, date
from typing import Any, NamedTuple

import numpy as np

from jaxcp import _names
from jaxcp._tree import pytree, static

_NEVER = -(2**62)  # the offset of a time that a clock does not have
_NEAR = 1e-3  # of the distance of two steps, up to which floats are equal
_HOUR = 3600 * 10**9  # nanoseconds
_EARLIEST = np.datetime64("0001-01-01", "D")

Clock = tuple[str, ...]  # a name, then settings


class Times(NamedTuple):
    """Times of rows.

    Args:
      kind: "numbers", "dates", "dates with a zone" or "periods of M" (or another one).
      values: Numbers, ordinals of periods, or dates, in UTC where they have a zone.
      wall: Dates as clocks on the wall show them; else `values`.
    """

    kind: str
    values: np.ndarray
    wall: np.ndarray


class Paths(NamedTuple):
    """Where rows are in their paths; each series and origin is a path.

    Args:
      order: Rows path by path, in order of time.
      place: Place of each row in its path, from 0.
      length: Number of rows in the path of each row.
      first: First row in the path of each row.
      origins_differ: Whether there are several origins.
    """

    order: np.ndarray
    place: np.ndarray
    length: np.ndarray
    first: np.ndarray
    origins_differ: bool


@pytree
class Steps:
    """What tells the steps of rows: offsets of the steps, on clocks that must agree.

    Args:
      kind: Kind of the times.
      origin: What offsets start from: "cutoff", "first" for the first row of a path, or
        "zero" for times that are numbers of steps.
      clocks: The c clocks, each by its name and settings.
      offsets: Offset of each step on each clock, shape (c, H), increasing.
    """

    kind: str = static()
    origin: str = static()
    clocks: tuple[Clock, ...] = static()
    offsets: np.ndarray

    def steps(
        self, times: Times, origins: Times | None, paths: Paths
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the step of each row from 0, -1 for none, and offsets, shape (c, n).

        Without origins the first row of a path is its first step, and others follow;
        so they do among holidays, which may be any day.
        """
        from_first = self.origin != "zero" and origins is None
        offsets = np.array(
            [_offsets(v, self.origin, times, origins, paths) for v in self.clocks]
        )
        offsets = offsets + from_first * self.offsets[:, :1]
        places = np.array([*map(_places, self.offsets, offsets)])
        agree = (places == places[0]).all(0)
        if from_first or any(clock[0] == "weekdays" for clock in self.clocks):
            agree &= places[0] == paths.place
        return np.where(agree, places[0], -1), offsets

    def told(self, offsets: np.ndarray) -> str:
        """Returns an offset on each clock in the words of a message."""
        texts = []
        for (clock, *_), offset in zip(self.clocks, offsets, strict=True):
            if clock in ("wall", "elapsed"):
                texts.append(_counted(offset / _HOUR, "hours"))
            else:
                is_there = offset > _NEVER / 2
                texts.append(_counted(offset, clock) if is_there else f"no {clock}")
        return " or ".join(texts)


def _counted(number: float, units: str) -> str:
    """Returns a number with its unit: 1 month, 2 months; of plain numbers none."""
    if units == "numbers":
        return f"{number:g}"
    return f"{number:g} {units.removesuffix('s') if number == 1 else units}"


def read_times(column: Any, values: np.ndarray) -> Times | None:
    """Returns the times of a column, `values` in numpy, or None for text and others."""
    if values.dtype.kind == "M":
        zone = getattr(column.dtype, "tz", getattr(column.dtype, "time_zone", None))
        if zone is None:
            return Times("dates", values, values)
        is_pandas = hasattr(column.dt, "tz_localize")  # else polars
        to_wall = column.dt.tz_localize if is_pandas else column.dt.replace_time_zone
        return Times("dates with a zone", values, to_wall(None).to_numpy())
    if values.dtype.kind == "m":
        values = values.astype("timedelta64[ns]").astype(np.int64)
    items = values.tolist() if values.dtype == object else []
    first = next(iter(items), None)
    if isinstance(first, date):
        kind, in_utc = "dates", items
        if getattr(first, "tzinfo", None) is not None:
            kind = "dates with a zone"
            in_utc = [item.astimezone(UTC).replace(tzinfo=None) for item in items]
            items = [item.replace(tzinfo=None) for item in items]
        return Times(kind, *np.array([in_utc, items], "datetime64[us]"))
    kind = "numbers"
    frequencies = {getattr(item, "freqstr", None) for item in items}
    if len(frequencies) == 1 and None not in frequencies:  # periods of pandas
        kind = f"periods of {frequencies.pop()}"
        values = np.array([item.ordinal for item in items])
    values = _names.on_host("times", values)
    if values.dtype.kind not in "biuf":
        return None
    values = values.astype(float if values.dtype.kind == "f" else np.int64)
    return Times(kind, values, values)


def find_steps(
    times: Times, origins: Times | None, paths: Paths, horizon: int
) -> tuple[Steps, bool]:
    """Returns what tells the steps of paths with H rows each, and whether it explains.

    Where nothing does, by the first clock and the offsets of most paths: then some row
    has another step than its place, or none.
    """
    by_cutoff = origins is not None and origins.kind == times.kind
    origins = origins if by_cutoff else None
    starts = ["cutoff" if by_cutoff else "first"]
    guesses: list[Steps] = []
    if times.kind == "numbers" and paths.origins_differ:
        starts.insert(by_cutoff, "zero")
    for origin in starts:
        for clocks in _clocks(times, origins, horizon):
            explaining = {}
            for clock in clocks:
                offsets = _offsets(clock, origin, times, origins, paths)
                of_paths = np.sort(offsets[paths.order].reshape(-1, horizon), axis=0)
                usual = of_paths[len(of_paths) // 2]
                if "holidays" in clock:  # days that are nowhere in the table
                    days, first_days = _places_on_table(times, origins)
                    offsets = _offsets(("numbers",), origin, days, first_days, paths)
                    usual = np.arange(horizon) + by_cutoff
                guesses.append(Steps(times.kind, origin, (clock,), usual[None]))
                if (_places(usual, offsets) == paths.place).all():
                    explaining[clock] = usual
            # Steps that are equally far apart are likelier than others.
            regular = {c: v for c, v in explaining.items() if not np.diff(v, 2).any()}
            if chosen := regular or explaining:
                offsets = np.array([*chosen.values()])
                return Steps(times.kind, origin, tuple(chosen), offsets), True
    return guesses[0], False


def _clocks(times: Times, origins: Times | None, horizon: int) -> list[list[Clock]]:
    """Returns clocks that may explain the past, the likeliest first.

    Of those in one list all that explain it have to agree on a new row.
    """
    if not times.kind.startswith("dates"):
        return [[("numbers",)]]
    clocks_on_walls = [times.wall] if origins is None else [times.wall, origins.wall]
    if any(np.ptp(wall - _days(wall)) for wall in clocks_on_walls):
        return [[("elapsed",)], [("wall",)]]  # hours, minutes
    days = [np.unique(_days(wall)) for wall in clocks_on_walls]
    months: list[Clock] = []
    if len(days[0]) > 1 and all(len(np.unique(_months(v))) == len(v) for v in days):
        months = [("months", *map(_anchor, days))]  # quarters and years, too
    calendar: list[Clock] = [("wall",)]
    # The days of the week that come up, with those from Monday to Friday.
    of_week = [(v.astype(int) + 3) % 7 for v in (days[0], np.concatenate(days))]
    for weekdays in of_week:
        in_week = np.isin(np.arange(7), [*range(5), *weekdays])
        if len({*of_week[1]}) > 1 and not in_week.all():
            calendar.append(("weekdays", "".join(map(str, in_week.astype(int)))))
    # The same day of the month, again and again, leaves no doubt.
    are_sure = horizon > 1 and months and "any" not in months[0]
    likely = [months, calendar] if are_sure else [calendar + months]
    return [*likely, [("elapsed",)], [(*c, "holidays") for c in calendar[1:]]]


def _anchor(days: np.ndarray) -> str:
    """Returns the day of the month of all days, "end" or "any"."""
    if (_months(days + 1) > _months(days)).all():
        return "end"
    of_month = np.unique(days - _months(days))
    return str(of_month[0].astype(int)) if len(of_month) == 1 else "any"


def _offsets(
    clock: Clock, origin: str, times: Times, origins: Times | None, paths: Paths
) -> np.ndarray:
    """Returns how far each row is from its origin, in ticks or nanoseconds."""
    ticks, is_tick = _ticks(clock, times, is_origin=False)
    if origin == "zero":
        return ticks
    if origins is None:
        start, is_start = ticks[paths.first], is_tick[paths.first]
    else:
        start, is_start = _ticks(clock, origins, is_origin=True)
    offsets = ticks - start
    if offsets.dtype.kind == "m":
        offsets = offsets.astype("timedelta64[ns]").astype(np.int64)
    return np.where(is_tick & is_start, offsets, _NEVER)


def _places_on_table(times: Times, origins: Times | None) -> tuple[Times, Times | None]:
    """Returns the place of each day among all days of the table."""
    walls = [times.wall] if origins is None else [times.wall, origins.wall]
    table = np.unique(_days(np.concatenate(walls)))
    days = [np.searchsorted(table, _days(wall)) for wall in walls]
    places = [Times("numbers", day, day) for day in days]
    return places[0], None if origins is None else places[1]


def _ticks(
    clock: Clock, times: Times, is_origin: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns times on a clock, and whether each is one that the clock has."""
    name, *settings = clock
    if name in ("numbers", "elapsed", "wall"):
        ticks = times.wall if name == "wall" else times.values
        return ticks, np.ones(len(ticks), bool)
    days = _days(times.wall)
    if name == "weekdays":
        mask = settings[0]
        # Of an origin on another day the last one before counts.
        count = np.busday_count(_EARLIEST, days + 1, weekmask=mask)
        return count, is_origin | np.is_busday(days, weekmask=mask)
    month, anchor = _months(days), settings[is_origin]
    if anchor == "any":
        is_tick = np.ones(len(days), bool)
    elif anchor == "end":
        is_tick = _months(days + 1) > month
    else:
        is_tick = (days - month).astype(int) == int(anchor)
    return month.astype(int), is_tick


def _places(usual: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns the place of each offset among the usual ones, -1 if it is none."""
    apart = np.diff(usual)
    places = np.searchsorted(usual[:-1] + apart / 2, offsets)
    room = 0.0
    if usual.dtype.kind == "f":  # 0.1 + 0.2 is 0.3
        room = _NEAR * min(apart, default=abs(usual[0]))
    return np.where(abs(offsets - usual[places]) <= room, places, -1)


def _days(wall: np.ndarray) -> np.ndarray:
    return wall.astype("datetime64[D]")


def _months(days: np.ndarray) -> np.ndarray:
    return days.astype("datetime64[M]")
