"""A page on a calibration and its sets: what is promised, and what new rows say."""

from __future__ import annotations

import io
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import jax
import numpy as np

import jaxcp
from jaxcp import _checks, metrics
from jaxcp._names import told
from jaxcp.certificates.promises import NO_PROMISE, promised
from jaxcp.metrics._sets import as_sets, check_sets
from jaxcp.metrics.overview import has_size
from jaxcp.plotting import _axes, coverage, intervals, regions, sizes
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, HasPieces, PyTree

_ROWS, _EXAMPLES, _LABELS = 100, 15, 30  # of pictures, at most
_INK = "#757575"  # of pictures; becomes the color of the page's text
_LOOK = {"text.parse_math": False, "figure.figsize": (4.6, 3.2)}
_OF_LAWS = " (of i.i.d. rows without ties)"
_DRAWING = threading.Lock()  # matplotlib has one style for all threads


class Page(str):
    """A page of HTML: a string, which notebooks show."""

    def __repr__(self) -> str:
        """Returns how long it is; `print` shows all of it."""
        return f"Page of {len(self):,} characters"

    def _repr_html_(self):
        look = "border:0;width:100%;height:48rem"
        return f'<iframe srcdoc="{escape(self)}" style="{look}"></iframe>'


@_checks.by_labels
def report(
    cp: Any,
    preds: PyTree,
    y: ArrayLike,
    alpha: Any,
    *,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    event: ArrayLike | None = None,
    censoring: Any = None,
    path: Any = None,
    **context: Any,
) -> Page:
    """Returns a page of HTML on the sets of a calibration, on test rows.

    What the sets keep to in words, what that assumes, numbers of rows, coverage beside
    what the certificate says, coverage and sizes by group, pictures and versions. The
    page loads nothing, follows the light or dark theme of its reader, and prints. Of
    risk control it has the mean loss with its error (of several losses the first).
    Times of `survival.calibrate_lower` may be censored: their coverage is estimated by
    `survival.coverage`, from `event` and `censoring`.

    Args:
      cp: What is called with predictions (or inputs) and alpha: a calibration, of
        groups or of risk too, `SplitConformal`, cross or full conformal prediction.
      preds: Predictions for test rows, or inputs, with leading axis m.
      y: Targets of these rows, shape (m, ...), or labels.
      alpha: Level of the sets, a number.
      groups: Group of each test row, int or by name, shape (m,); for a calibration
        without groups also flags of groups that overlap, shape (m, g).
      clusters: Cluster of each test row, as for `metrics.by_group`, shape (m,).
      event: True where the event was seen and y is not the time of censoring, shape
        (m,); for `survival.calibrate_lower` alone, which needs it.
      censoring: P(C >= t), as for `survival.coverage`; for the same.
      path: File to write the page to. Defaults to none.
      context: What else the call takes, such as `delta` or `test_weights`.

    Returns:
      The page, a string; notebooks show it.

    Raises:
      ValueError: as the call, and as `metrics.by_group`; for bounds of times without
        `event` and `censoring`, or where sets of another kind have them; and for what
        has no words for what it promises and assumes: a rule of your own without
        `promise` and `assumption`, or a function.
      ImportError: if matplotlib is not installed.
      OSError: if the file cannot be written.

    Cost:
      That of the sets and of `metrics.by_group`, and a second or so for the pictures,
      of at most 100 rows but for the sizes.

    See also:
      metrics.by_group, metrics.summary, survival.coverage, Calibration.certificate

    Example:
      >>> from jaxcp.scores import Absolute
      >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(99), jnp.arange(99.0))
      >>> page = report(cp, jnp.zeros(50), 2 * jnp.arange(50.0), alpha=0.1)
      >>> "P(Y in set) &gt;= 1 - 0.1, on average over calibration sets" in page
      True
    """
    if not callable(cp) or isinstance(cp, jaxcp.Predictor):
        raise ValueError(f"expected cp to be called with alpha, got {type(cp)}")
    if isinstance(cp, jaxcp.frames.ForecastCalibration):
        cure = "judge the columns of its ends with metrics.by_group or metrics.summary"
        raise ValueError(
            f"expected cp whose call returns sets, got one of frames; {cure}"
        )
    base, named = cp, {}
    while (inner := getattr(base, "calibration", None)) is not None:
        base = inner
    loss, tail = (getattr(base, k, (None,))[0] for k in ("losses", "tails"))
    takes = getattr(base, "label_groups", None) is None  # else groups of labels
    if takes and groups is not None and getattr(base, "num_groups", None) is not None:
        context["groups"] = groups
        named = {"num_groups": base.num_groups, "group_names": base.group_names}
    given = as_sets(cp(preds, alpha, **context))
    sets, codes = check_sets(given, y)
    judge = _judge(base, event, censoring, _beyond(loss, tail))
    by = partial(judge, sets, codes, clusters=clusters)
    head, (_, *mean) = by(np.zeros(len(codes), int), num_groups=1).rows()
    shown = np.ones(len(codes), bool)
    if event is not None:  # else a miss is not known to be one
        shown = np.asarray(event, bool) | np.asarray(metrics.covered(sets, codes) > 0)
    draws = [*_draws(given, np.asarray(y), sets, codes, shown)]
    lines = [("all rows", *mean)]
    if groups is not None:
        table = by(groups, **named)
        lines += table.rows()[1:]
        if loss is None and np.ndim(alpha) == 0:
            draws.append(_of_groups(table, alpha))
    promise, facts = _facts(cp, base, alpha, **context)
    facts["Rows"] = f"{len(codes):,} new rows"
    if event is not None:
        facts["Coverage"] = "of times until the event, by weights 1 / P(C >= time)"
    if clusters is not None:
        facts["Means"] = "over clusters of new rows, each counts the same"
    if held := getattr(base, "_each_once", getattr(base, "held", None)):
        facts["Rows"] = f"{np.sum(held.counts()):,} calibration rows, {facts['Rows']}"
    found = [f"{v.__name__} {v.__version__}" for v in (jaxcp, jax, np)]
    if tail is not None or getattr(base, "several", False):
        of = "losses" if tail is None else f"flags of loss > {tail}"
        facts["Mean loss"] = f"mean of {of}" + ", the first" * base.several
    frame = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    page = frame.substitute(
        alpha=escape(str(alpha)),
        promise=escape(promise),
        facts="".join(map(_row, facts.items())),
        head=_row([name.replace("_", " ") for name in head], "th"),
        lines="".join(map(_row, lines)),
        figures="".join(_figure(*each) for each in draws),
        versions=", ".join([*found, f"Python {platform.python_version()}"]),
    )
    if path is not None:
        Path(path).write_text(page, "utf-8")
    return Page(page)


def _judge(base: Any, event: Any, censoring: Any, loss: Any) -> Callable:
    """Returns what makes a table of groups, after checks of what it needs."""
    of_censored = getattr(base, "_by_group", None)
    name, seen = type(base).__name__, {"event": event, "censoring": censoring}
    missing = [k for k, value in seen.items() if value is None]
    if of_censored is None and len(missing) < 2:
        raise ValueError(
            "expected event and censoring for bounds of survival.calibrate_lower "
            f"alone, got some for {name}"
        )
    if of_censored is None:
        return partial(metrics.by_group, loss=loss)
    if missing:
        raise ValueError(
            f"expected {' and '.join(missing)} of the new rows, since times of {name} "
            "may be censored, got None; event=flags of the times that are events, "
            "censoring=P(C >= t), as learners.KaplanMeier(reverse=True).fit(time, "
            "event) of other rows. Where all are: numpy.ones(m), numpy.ones_like"
        )
    return partial(of_censored, **seen)


def _beyond(loss, tail):
    """Returns the loss, or whether it is beyond its tail."""
    return loss if tail is None else lambda one, y: loss(one, y) > tail


def _facts(cp, base, alpha, *, delta=None, u=None, test_weights=None, **_):
    """Returns what is promised, and what is known of it by name."""
    promise, assumption = promised(cp, delta, ratios=test_weights is not None)
    if not promise:
        raise ValueError(NO_PROMISE)
    laws, why = (), "nothing as a number"
    with suppress(ValueError):  # of which nothing is known
        if u is None and hasattr(cp, "certificate"):
            laws = cp.certificate(alpha, **{} if delta is None else {"delta": delta})
    laws = laws if isinstance(laws, tuple) else (laws,)
    names = told(getattr(base, "group_names", None) or range(len(laws)))
    proved = [f"{v}: {law}" for v, law in zip(names, laws, strict=False)]
    proved = "; ".join(proved if len(laws) > 1 else map(str, laws)) or why
    score = [base.score] if hasattr(base, "score") else []
    return promise.replace("{alpha}", str(alpha)), {
        "If": assumption,
        "Proved": proved + _OF_LAWS * any(getattr(v, "rank", None) for v in laws),
        "Method": ", ".join([type(cp).__name__, *map(repr, score)]),
    }


def _row(cells, tag="td"):
    """Returns a row of a table, whose first cell is a head."""
    first, *others = map(escape, cells)
    rest = "".join(f"<{tag}>{cell}</{tag}>" for cell in others)
    return f'<tr><th scope="row">{first}</th>{rest}</tr>'


def _draws(given, y, sets, codes, shown):
    """Yields titles, and what draws some of the sets shown and the sizes of all."""
    pick = lambda rows: jax.tree.map(lambda v: np.asarray(v)[rows], given)  # noqa: E731
    if isinstance(as_intervals(sets), Interval | HasPieces):
        targets = np.asarray(codes).ravel()
        rows = _axes.thinned(np.flatnonzero(shown), _ROWS)
        rows = rows[np.argsort(targets[rows])]
        x, draw = np.arange(len(rows)), partial(intervals.plot_intervals, kind="bars")
        title = f"{len(rows)} of the new rows, in the order of their targets"
        title += ", without those censored below bounds" * (not shown.all())
        yield title, partial(draw, x, pick(rows), targets[rows]), "row"
    elif isinstance(sets, HasLabels) and sets.members().shape[1] <= _LABELS:
        some, draw = slice(_EXAMPLES), regions.plot_label_sets
        yield "The first sets", partial(draw, pick(some), y[some])
    if has_size(sets):
        yield "Sizes of all sets", partial(sizes.plot_sizes, sets)


def _of_groups(table, alpha):
    """Returns a title, and what draws the coverage of groups."""
    look = {"ms": 6, "color": _axes.COVERED, "label": "coverage, two standard errors"}
    rates, n = coverage.rates_of_table(table), np.asarray(table["n"])
    draw = partial(
        coverage.draw_groups, None, table.names, n, rates, float(alpha), look
    )
    return "Coverage of groups", draw


def _figure(title, draw, name=None):
    """Returns a picture as text of SVG, in the colors of the page around it."""
    with _DRAWING, _axes.pyplot().rc_context(_axes.style(ink=_INK, **_LOOK)):
        ax, text = draw(), io.StringIO()
        ax.set_xlabel(name or ax.get_xlabel())
        ax.figure.savefig(text, format="svg", metadata={"Date": None})
        _axes.pyplot().close(ax.figure)
    svg = text.getvalue().replace(_INK, "currentColor")
    svg = f'<svg role="img" aria-label="{title}"' + svg[svg.index("<svg") + 4 :]
    svg = svg.replace(_axes.COVERED.lower(), "var(--edge)")
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>"
