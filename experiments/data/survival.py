"""Lower bounds of survival times: a synthetic law, and real times with drawn censoring.

`python -m experiments.data.survival --out DIR`

The law: x uniform, T = exp(x + 0.8 N(0, 1)), C exponential with rate 0.2 + 0.5 x, 400
calibration rows, cutoff 2, alpha = 0.1. The predicted time is exp(x).

Of real times the truth is not known where they are censored. So rows with an event are
taken alone, and censored anew by a law that is known: exponential, at a rate that rises
with the predicted time from 0.2 to 1.5 in units of one over the cutoff, the median time
of the rows that fit. A third fits least squares to logarithms of observed times, a
third calibrates, and a third tests. In one set nothing needs drawing: all of rossi were
followed for 52 weeks, so that C is 52 for each, and a bound of at most 52 can be
checked.

Sets are those of lifelines (GBSG2, lung, rossi) and scikit-survival (veteran, whas500,
flchain), where they are installed; without them the table of the law is all.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import learners, survival

ALPHA, NUM_TRIALS, NUM_SPLITS = 0.1, 20_000, 1000
SIZE, CUTOFF = 400, 2.0
LOWEST, HIGHEST = 0.2, 1.5  # rates of censoring, in one over the cutoff
RIDGE = learners.Ridge(1.0)
OBSERVED, PLAIN, SEEN = "bound of min(T, C)", "rows with C >= c, no weights", "C seen"
DRAWN, EVENTS, MARGINAL = "C drawn", "rows with events", "Kaplan-Meier of C"
METHODS = OBSERVED, PLAIN, SEEN, DRAWN, EVENTS, MARGINAL
EXPECTED = {OBSERVED: 0.989, PLAIN: 0.884, SEEN: 0.903}  # seen before, of the law
INSTALL = "expected lifelines or scikit-survival for real times: pip install "
INSTALL += "lifelines scikit-survival"


@dataclass(frozen=True)
class Data:
    """Times of an event, all seen, and standardized features."""

    name: str
    x: Array
    time: Array
    follow_up: float | None = None  # C of all rows, if it is one number


def bounds(
    key: Array,
    at_least: Callable[[Array, Array], Array],
    old: tuple[Array, Array, Array, Array],
    new: tuple[Array, Array],
    cutoff: Array,
) -> dict[str, Array]:
    """Returns lower bounds of new rows by method.

    Args:
      key: Random key.
      at_least: Law (x, c) of censoring: P(C >= c given x).
      old: Inputs, predictions, times T and C of the rows that calibrate.
      new: Inputs and predictions.
      cutoff: Time c.
    """
    x, pred, t, c = old
    x_new, pred_new = new
    time, event, one = jnp.minimum(t, c), t <= c, jnp.ones_like(t)
    p, p_new = at_least(x, cutoff), at_least(x_new, cutoff)

    def lower(censoring, p=p, p_new=p_new, cutoff=cutoff):
        given = {"cutoff": cutoff, "probability": p}
        cp = survival.calibrate_lower(pred, time, censoring, **given)
        return cp(pred_new, ALPHA, probability=p_new).lower

    same = jnp.ones_like(p_new)
    curve = learners.KaplanMeier(reverse=True).fit(time, event)
    drawn = survival.impute_censoring(key, at_least, x, time, event)
    beyond = jnp.where(event, jnp.inf, time)
    return {
        OBSERVED: lower(jnp.inf * one, one, same, jnp.inf),
        PLAIN: lower(c, one, same),
        SEEN: lower(c),
        DRAWN: lower(drawn),
        EVENTS: lower(beyond, at_least(x, jnp.minimum(time, cutoff))),
        MARGINAL: lower(
            beyond,
            curve(None, jnp.minimum(time, cutoff)),
            jnp.full_like(p_new, curve(None, cutoff)),
        ),
    }


def judged(found: dict[str, Array], t: Array) -> dict[str, dict[str, Array]]:
    """Returns coverage, mean bound and share of bounds without information."""
    return {
        name: {
            "coverage": jnp.mean(t >= bound),
            "bound": jnp.mean(jnp.maximum(bound, 0)),
            "infinite": jnp.mean(jnp.isinf(bound)),
        }
        for name, bound in found.items()
    }


def law_trial(key: Array) -> dict:
    """Returns how bounds of one new unit do, by method, under the law."""
    key_x, key_t, key_c, key_draw = jax.random.split(key, 4)
    x = jax.random.uniform(key_x, (SIZE + 1,))
    t = jnp.exp(x + 0.8 * jax.random.normal(key_t, x.shape))
    rate = lambda x: 0.2 + 0.5 * x  # noqa: E731
    c = jax.random.exponential(key_c, x.shape) / rate(x)
    rows = x, jnp.exp(x), t, c
    old, new = ([v[part] for v in rows] for part in (slice(SIZE), slice(SIZE, None)))
    at_least = lambda x, c: jnp.exp(-rate(x) * c)  # noqa: E731
    found = bounds(key_draw, at_least, tuple(old), tuple(new[:2]), CUTOFF)
    return judged(found, new[2])


def split_trial(data: Data, key: Array) -> dict:
    """Returns how bounds of a third of the rows do, by method, of one split."""
    key_order, key_fit, key_c, key_draw = jax.random.split(key, 4)
    order = jax.random.permutation(key_order, len(data.time))
    fit, old, new = jnp.split(order, [len(order) // 3, 2 * len(order) // 3])
    x, t = data.x, data.time
    cutoff = jnp.median(t[fit])
    known = data.follow_up is not None
    if known:
        cutoff, c = jnp.asarray(data.follow_up), jnp.full_like(t, data.follow_up)
        at_least = lambda pred, c: jnp.ones_like(pred)  # noqa: E731
    observed = jnp.minimum(t, c) if known else t
    params = RIDGE.fit(key_fit, x[fit], jnp.log(observed[fit]), jnp.ones(len(fit)))
    pred = jnp.exp(RIDGE.predict(params, x))
    if not known:
        low, high = jnp.quantile(pred[fit], jnp.array([0.05, 0.95]))

        def rate(pred):
            place = jnp.clip((pred - low) / (high - low), 0, 1)
            return (LOWEST + (HIGHEST - LOWEST) * place) / cutoff

        at_least = lambda pred, c: jnp.exp(-rate(pred) * c)  # noqa: E731
        c = jax.random.exponential(key_c, t.shape) / rate(pred)
    rows = pred[old], pred[old], t[old], c[old]
    found = bounds(key_draw, at_least, rows, (pred[new], pred[new]), cutoff)
    return judged(found, t[new])


def columns(frame, time: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns standardized features, categories as flags, and times above 0."""
    import pandas

    x = pandas.get_dummies(frame.drop(columns=time), drop_first=True, dtype=float)
    x = x.fillna(x.mean())
    x = (x - x.mean()) / x.std().replace(0, 1)
    return x.to_numpy(), np.maximum(frame[time].to_numpy(float), 0.5)


def of_lifelines() -> Iterator[Data]:
    """Yields times of lifelines, of rows with an event, and rossi as it is."""
    from lifelines import datasets

    rows = {"GBSG2": (datasets.load_gbsg2(), "time", "cens", 1)}
    rows |= {"lung": (datasets.load_lung(), "time", "status", 1)}
    rows |= {"rossi": (datasets.load_rossi(), "week", "arrest", 1)}
    for name, (frame, time, event, flag) in rows.items():
        seen = frame[frame[event] == flag].drop(columns=event)
        yield Data(name, *map(jnp.asarray, columns(seen, time)))
    frame = rows["rossi"][0]
    x, t = columns(frame.drop(columns="arrest"), "week")
    # Nobody without an arrest was lost before week 52: later than it, by any time.
    t = np.where(frame["arrest"] == 1, t, 53.0)
    yield Data("rossi, C = 52", jnp.asarray(x), jnp.asarray(t), follow_up=52.0)


def of_scikit_survival() -> Iterator[Data]:
    """Yields times of scikit-survival, of rows with an event."""
    from sksurv import datasets

    loads = {"veteran": datasets.load_veterans_lung_cancer}
    loads |= {"whas500": datasets.load_whas500, "flchain": datasets.load_flchain}
    for name, load in loads.items():
        x, y = load()
        event, time = y.dtype.names
        frame = x.assign(time_of_event=y[time])[y[event]]
        frame = frame.drop(columns=["chapter"], errors="ignore")  # the cause of death
        yield Data(name, *map(jnp.asarray, columns(frame, "time_of_event")))


def real() -> list[Data]:
    """Returns the sets of the packages that are installed."""
    found = []
    for load in (of_lifelines, of_scikit_survival):
        try:
            found += load()
        except ImportError as error:
            print(f"{INSTALL} ({error})")
    return found


def line(data: str, name: str, results: dict, expected: float | None = None) -> dict:
    """Returns the line of one method, beside what was seen before."""
    coverages = np.asarray(results["coverage"], float)
    return {
        "data": data,
        "method": name,
        "coverage": round(float(coverages.mean()), 4),
        "+-": round(float(coverages.std() / len(coverages) ** 0.5), 4),
        "seen before": expected,
        "mean bound": round(float(np.mean(results["bound"], dtype=float)), 4),
        "infinite": round(float(np.mean(results["infinite"], dtype=float)), 4),
    }


def options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--splits", type=int, default=NUM_SPLITS)
    return parser.parse_args()


def main() -> None:
    """Prints and saves the table."""
    args, key = options(), jax.random.key(0)
    results = jaxcp.simulate(law_trial, key, args.trials, progress=True)
    table = [line("law", k, results[k], EXPECTED.get(k)) for k in METHODS]
    for data in real():
        results = jaxcp.simulate(partial(split_trial, data), key, args.splits)
        name = f"{data.name}, {len(data.time)} rows"
        table += [line(name, k, results[k]) for k in METHODS]
    print_table(f"lower bounds of times, alpha = {ALPHA}", table)
    settings = {"alpha": ALPHA, "trials": args.trials, "splits": args.splits, "seed": 0}
    save_results(args.out, "survival", table, settings)


if __name__ == "__main__":
    main()
