"""Forecasts a day ahead: bands of 24 hours, and streams whose answers come a day late.

`python -m experiments.data.forecasts --data DIR [--trials N] [--out DIR]`

DIR holds prices.csv.gz, spot prices of France, and solar_atlanta.csv. Ridge fits all 24
hours of a day on the days before those that are judged: prices on those of the day and
of the week before, the load that is forecast and the weekday; radiation on that of the
day before and on means of the week before. alpha = 0.1.

Bands: days in an order that is drawn, many times, so that they are exchangeable: those
that scales are taken from, n that calibrate, and the rest. Then joint coverage of a
`Band` is k / (n + 1). Beside, the same days in order of time. Bonferroni takes each
hour at alpha / 24 and is infinite below n = 239; clamped, it takes the largest score
then, as CF-RNN. A scale is at least a hundredth of the mean one: at night nothing errs.

Streams: hours in order, each answer 24 steps late; AR(1) with phi = 0.9, and noise
whose scale jumps after 2,000 steps. "At once" learns each hour before the next, which
nobody can; "by hour" is a stream for each hour of the day, whose answers are in time.
Similar and SPCI read the latest hours that are known, a day before where answers are
late. Widths are means of the finite sets, the worst coverage is that of 500 steps.

Peers, where they are installed: prices of half a year, a week before as the forecast,
30 days at a time with intervals of the errors of the 60 days before them.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.peers.forecast_peers import peer_lines
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.series import solar
from jaxcp import learners, metrics, online, scores, sets

ALPHA, HOURS, NUM_TRIALS = 0.1, 24, 200
PAST, DELAY, WINDOW, STEPS = 500, 24, 500, 10_000
PHI, JUMPS, EVERY = 0.9, (1.0, 3.0, 0.5, 2.0, 1.0), 2000
LEAST_SCALE, DECAY, WORST, ABSOLUTE = 0.01, 0.6, 500, scores.Absolute()
EXPERTS = 0.001 * 2.0 ** np.arange(8)
CONSTANT, RMS, ENVELOPE = "band, constant", "band, root mean square", "band, envelope"
SHARE, SINGLE = "band, 95 % of the hours", "an hour alone"
BONFERRONI, CLAMPED = "Bonferroni", "Bonferroni, clamped"
BANDS = (CONSTANT, RMS, ENVELOPE, SHARE, SINGLE, BONFERRONI, CLAMPED)
LEARNED = LATE, AT_ONCE, BY_HOUR = "a day late", "at once", "by hour"
ALL_WAYS = ("ACI", "DtACI, 8 experts", "Similar", "SPCI")  # others a day late alone


@dataclass(frozen=True)
class Days:
    """Forecasts of days, and what came, after those that fit: shape (d, 24) each."""

    name: str
    center: Array
    y: Array
    scale_rows: int  # days that scales are taken from
    sizes: tuple[int, ...]  # days that calibrate


def price_rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns features and prices of days."""
    path = folder / "prices.csv.gz"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, hourly spot prices")
    rows = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding=None)
    of_day = [v for v in rows.dtype.names if v.startswith(("dow", "lag"))]
    hours = np.stack([rows[v] for v in of_day], axis=1)[::HOURS]
    load = rows["conso"].reshape(-1, HOURS)
    return np.hstack([hours, load]), rows["Spot"].reshape(-1, HOURS)


def price_days(folder: Path, fit: int = 500) -> Days:
    """Returns prices after the days that fit: all hours by all features."""
    x, y = price_rows(folder)
    x = (x - x[:fit].mean(0)) / x[:fit].std(0)
    center = fitted(learners.Ridge(10.0), x, y, fit)
    return Days("prices", center, jnp.asarray(y[fit:]), 200, (200, 400))


def solar_days(folder: Path, fit: int = 100) -> Days:
    """Returns radiation after the days that fit: each hour by itself of days before."""
    y = np.asarray(solar(folder)[1]).reshape(-1, HOURS)
    weeks = np.stack([y[i : i + 7].mean(0) for i in range(len(y) - 7)])
    x, y = np.stack([weeks, y[6:-1]], axis=-1), y[7:]
    ridge = learners.Ridge(1.0, intercept=False)  # 0 at night
    center = fitted(ridge, x.reshape(-1, 2), y.ravel(), fit * HOURS)
    return Days("solar", center.reshape(-1, HOURS), jnp.asarray(y[fit:]), 50, (100,))


def fitted(ridge: learners.Ridge, x: np.ndarray, y: np.ndarray, fit: int) -> Array:
    """Returns forecasts of the rows after those that the ridge is fit on."""
    x, y = jnp.asarray(x, float), jnp.asarray(y, float)
    params = ridge.fit(jax.random.key(0), x[:fit], y[:fit], jnp.ones(fit))
    return ridge.predict(params, x[fit:])


def law_days() -> Days:
    """Returns days of independent hours, whose scale rises fivefold."""
    noise = jax.random.normal(jax.random.key(2), (2000, HOURS))
    y = noise * jnp.linspace(1, 5, HOURS)
    return Days("independent hours", jnp.zeros(y.shape), y, 100, (100,))


def bands(days: Days, n: int, order: Array) -> dict[str, tuple[sets.Band, Array]]:
    """Returns bands, and what came, of days that neither scale nor calibrate."""
    apart, old, new = jnp.split(order, [days.scale_rows, days.scale_rows + n])
    center, y = days.center, days.y
    errors, sizes = (y - center)[apart], jnp.abs(y - center)[old]
    rms = scores.root_mean_square(errors)
    scales = {CONSTANT: jnp.ones(HOURS), RMS: rms, SHARE: rms}
    scales[ENVELOPE] = scores.envelope(errors, ALPHA)
    found = {}
    for name, scale in scales.items():
        scale = jnp.maximum(scale, LEAST_SCALE * jnp.mean(scale))
        preds = center, jnp.broadcast_to(scale, center.shape)
        score = scores.Band(0.95 if name == SHARE else 1.0)
        cp = jaxcp.calibrate(score, jax.tree.map(lambda v: v[old], preds), y[old])
        found[name] = cp(jax.tree.map(lambda v: v[new], preds), ALPHA)
    alone, each = (jaxcp.conformal_quantile(sizes, a) for a in (ALPHA, ALPHA / HOURS))
    clamped = jnp.minimum(each, jnp.max(sizes, axis=0))
    for name, q in {SINGLE: alone, BONFERRONI: each, CLAMPED: clamped}.items():
        found[name] = sets.Band(center[new] - q, center[new] + q)
    return {name: (issued, y[new]) for name, issued in found.items()}


def judged(bands: sets.Band, y: Array) -> dict[str, Array]:
    """Returns coverage of whole days and of hours, width and the share of infinite."""
    hours = (bands.lower <= y) & (y <= bands.upper)
    return {
        "joint coverage": metrics.coverage(bands, y),
        "hours": jnp.mean(hours),
        "width": metrics.mean_size(bands),
        "infinite": jnp.mean(jnp.isinf(bands.size())),
    }


def band_trial(days: Days, n: int, key: Array | None) -> dict[str, dict[str, Array]]:
    """Returns what came of each method, days in an order that is drawn, or by time."""
    order = jnp.arange(len(days.y))
    order = order if key is None else jax.random.permutation(key, order)
    found = bands(days, n, order)
    return {name: judged(*found[name]) for name in BANDS}


def band_lines(days: Days, n: int, trials: int) -> list[dict]:
    """Returns the lines of one number of days that calibrate."""
    trial = partial(band_trial, days, n)
    drawn = jaxcp.simulate(trial, jax.random.key(0), trials)
    by_time = jax.jit(lambda: trial(None))()
    return [
        {"data": days.name, "days": n, "method": name}
        | means(drawn[name])
        | {"by time": float(by_time[name]["joint coverage"])}
        for name in BANDS
    ]


def means(results: dict[str, Array]) -> dict[str, float]:
    """Returns means over trials, and the standard error of joint coverage."""
    values = {k: np.asarray(v, float) for k, v in results.items()}
    joint = values.pop("joint coverage")
    found = {"joint coverage": joint.mean(), "+-": joint.std() / len(joint) ** 0.5}
    found |= {k: v.mean() for k, v in values.items()}
    return {k: round(float(v), 4) for k, v in found.items()}


def series(days: list[Days]) -> dict[str, tuple[Array, Array]]:
    """Returns forecasts and values of every stream."""
    found = {d.name: (d.center.ravel(), d.y.ravel()) for d in days}
    key_regression, key_jumps = jax.random.split(jax.random.key(1))
    count, zeros = PAST + DELAY + STEPS, jnp.zeros(PAST + DELAY + STEPS)
    noise = jax.random.normal(key_regression, (count,)) * (1 - PHI**2) ** 0.5
    step = lambda last, e: (PHI * last + e,) * 2  # noqa: E731
    found["AR(1)"] = zeros, jax.lax.scan(step, jnp.zeros(()), noise)[1]
    scale = jnp.repeat(jnp.array(JUMPS), EVERY, total_repeat_length=STEPS)
    scale = jnp.concatenate([jnp.ones(PAST + DELAY), scale])
    found["jumps"] = zeros, scale * jax.random.normal(key_jumps, (count,))
    return found


def methods(high: float, spread: float) -> dict[str, online.Stream]:
    """Returns the methods, for past scores up to `high`, of a spread."""
    return {
        "sliding window": online.SlidingWindow(ABSOLUTE),
        "NexCP": online.NexCP(ABSOLUTE, 0.99),
        "ACI": online.ACI(ABSOLUTE, 0.01),
        "DtACI, 8 experts": online.DtACI(ABSOLUTE, EXPERTS),
        "tracking": online.PID(ABSOLUTE, 0.05 * high),
        "PID, integrator": online.PID(ABSOLUTE, 0.05 * high, high),
        "decay": online.PID(ABSOLUTE, high, decay=DECAY),
        "SF-OGD": online.SFOGD(ABSOLUTE, high),
        "Similar": online.Similar(ABSOLUTE, 0.3 * spread, lags=1, window=WINDOW),
        "SPCI": online.SPCI(lags=1, window=WINDOW, every=DELAY),
    }


def stream_lines(name: str, preds: Array, y: Array) -> list[dict]:
    """Returns the lines of one stream, by when answers are learned."""
    past, first = (y - preds)[:PAST], PAST + DELAY  # known when the stream starts
    size, found = jnp.abs(past), []
    preds, y = (v[first:] for v in (preds, y))
    for kind, method in methods(jnp.max(size), jnp.std(size)).items():
        scores_before = past if kind == "SPCI" else size
        for learned in LEARNED if kind in ALL_WAYS else LEARNED[:1]:
            issued = issued_sets(method, scores_before, preds, y, learned)
            line = {"data": name, "method": kind, "learned": learned}
            found.append(line | stream_figures(issued, y[: len(issued.lower)]))
    return found


def issued_sets(
    method: online.Stream, past: Array, preds: Array, y: Array, learned: str
) -> sets.Interval:
    """Returns the sets of a stream; one for each hour of the day has no delay."""

    def stream(past, preds, y):
        delay = DELAY if learned == LATE else 0
        state = method.init(past, ALPHA)
        return online.run(method, state, preds, y, ALPHA, delay=delay)[1]

    if learned != BY_HOUR:
        return stream(past, preds, y)
    days = lambda v: v[len(v) % HOURS :].reshape(-1, HOURS).T  # noqa: E731
    end = len(y) // HOURS * HOURS
    issued = jax.jit(jax.vmap(stream))(days(past), days(preds[:end]), days(y[:end]))
    return jax.tree.map(lambda v: v.T.ravel(), issued)


def stream_figures(issued: sets.Interval, y: Array) -> dict:
    """Returns the figures of the sets of one stream."""
    width = issued.size()
    infinite = jnp.isinf(width)
    worst = metrics.worst_window_coverage(issued, y, WORST)
    found = {
        "coverage": metrics.coverage(issued, y),
        "width": jnp.sum(jnp.where(infinite, 0, width)) / jnp.sum(~infinite),
        "infinite": jnp.mean(infinite),
        "worst 500": worst,
    }
    found = {k: round(float(v), 4) for k, v in found.items()}
    return found | {"longest miss": int(metrics.longest_miss(issued, y))}


def options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    return parser.parse_args()


def main() -> None:
    """Prints and saves the tables."""
    args = options()
    days = [price_days(args.data), solar_days(args.data)]
    found = {
        "bands": [
            row
            for d in [*days, law_days()]
            for n in d.sizes
            for row in band_lines(d, n, args.trials)
        ],
        "streams": [
            row
            for name, rows in series(days).items()
            for row in stream_lines(name, *rows)
        ],
        "peers": peer_lines(price_rows(args.data)[1].ravel(), ALPHA),
    }
    settings = {"alpha": ALPHA, "trials": args.trials, "delay": DELAY, "seed": 0}
    for name, rows in found.items():
        print_table(f"{name}, alpha = {ALPHA}", rows)
        save_results(args.out, f"forecasts_{name}", rows, settings)


if __name__ == "__main__":
    main()
