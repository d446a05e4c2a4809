"""Predictive systems: distribution functions and CRPS beside NumPy and crepes.

`python -m experiments.speed.predictive_speed [--out DIR]`

NumPy sorts the residuals and looks targets up in them, with prefix sums for the CRPS.
crepes goes through all pairs. Seconds are of the clock, and of the processor, of all
its threads, in turns; ratios are of the processor, which other work disturbs less.
First calls are of one process that has compiled nothing before.
"""

import importlib.util
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import scores
from jaxcp.predictive import calibrate_predictive

MANY, FEW, REPEATS, GROUPS = 100_000, 10_000, 25, 10
LEVELS = np.linspace(0.05, 0.95, 19)


def numpy_cdf(residuals, mu, y, u):
    """Returns Q(y, u) by a sort and two searches."""
    ordered, z = np.sort(residuals), y - mu
    below, up_to = (np.searchsorted(ordered, z, side=s) for s in ("left", "right"))
    return (below + u * (1 + up_to - below)) / (len(residuals) + 1)


def numpy_crps(residuals, mu, y):
    """Returns the CRPS by a sort and prefix sums, residuals around their mean."""
    n, center = len(residuals), residuals.mean()
    s, z = np.sort(residuals - center), y - mu - center
    sums = np.append(0, np.cumsum(s, dtype=float))
    j = np.searchsorted(s, z)
    spread = np.sum((2 * np.arange(1, n + 1) - 1 - n) / n * s) / n
    return (z * (2 * j - n) - 2 * sums[j] + sums[-1]) / n - spread


def rows(n):
    """Returns predictions and targets that calibrate, and those of the test points."""
    draw = np.random.default_rng(0)
    return draw.normal(size=(4, n)).astype("f"), draw.random(n, "f")


def crepes_crps(mu_cal, y_cal, mu, y):
    """Returns a function that asks crepes for the mean CRPS, or None without it."""
    if importlib.util.find_spec("crepes") is None:
        return None
    from crepes import ConformalPredictiveSystem

    system = ConformalPredictiveSystem().fit(y_cal - mu_cal)
    return lambda: system.evaluate(mu, y=y, metrics=["CRPS"])["CRPS"]


def comparisons(n: int, repeats: int = REPEATS) -> list[dict]:
    """Returns lines with the seconds of both ways, and what their ratios are."""
    (mu_cal, y_cal, mu, y), u = rows(n)
    system = calibrate_predictive(scores.Residual(), mu_cal, y_cal)
    asked = jnp.asarray(mu), jnp.asarray(y)
    given, residuals = jnp.asarray(u), y_cal - mu_cal
    tasks = {
        "cdf": {
            "jaxcp": lambda: system.cdf(*asked, u=given),
            "NumPy": lambda: numpy_cdf(residuals, mu, y, u),
        },
        "CRPS": {
            "jaxcp": lambda: system.crps(*asked),
            "NumPy": lambda: numpy_crps(residuals, mu, y),
        },
    }
    found = []
    for task, calls in tasks.items():
        np.testing.assert_allclose(*(call() for call in calls.values()), atol=1e-5)
        times = in_turns(calls, repeats)
        own = times["jaxcp"].cpu
        for way, seconds in times.items():
            line = {"task": task, "n = m": n, "way": way, "s": seconds.median}
            ratio = own / seconds.cpu if way == "NumPy" else None
            found.append(line | {"CPU s": seconds.cpu, "jaxcp / it": ratio})
        peer = task == "CRPS" and n <= FEW  # of 10^5 it takes minutes
        slow = crepes_crps(mu_cal, y_cal, mu, y) if peer else None
        if slow is not None:
            taken, cpu, value = timed(slow)
            assert abs(value - np.mean(calls["jaxcp"]())) < 1e-4
            line = {"task": task, "n = m": n, "way": "crepes", "s": taken}
            found.append(line | {"CPU s": cpu, "it / jaxcp": cpu / own})
    return found


def timed(call) -> tuple[float, float, object]:
    """Returns the seconds of a call on the wall and of the processor, and its value."""
    start = time.perf_counter(), time.process_time()
    value = jax.block_until_ready(call())
    return time.perf_counter() - start[0], time.process_time() - start[1], value


def first_calls(n: int = 2000) -> list[dict]:
    """Returns the seconds of the first call of each verb, and of the second."""
    (mu_cal, y_cal, mu, y), u = rows(n)
    key, found = jax.random.key(1), []
    for name, many in {"": {}, ", groups": {"num_groups": GROUPS}}.items():
        own = {"groups": np.arange(n) % GROUPS} if many else {}
        old = scores.Residual(), mu_cal, y_cal
        make = partial(calibrate_predictive, *old, **own, **many)
        seconds, cpu, system = timed(make)
        verbs = {
            "sets": partial(system, mu, 0.1),
            "cdf": partial(system.cdf, mu, y, u=u),
            "quantile": partial(system.quantile, mu, LEVELS, side="upper"),
            "crps": partial(system.crps, mu, y),
            "mean": partial(system.mean, mu),
            "draw": partial(system.draw, key, mu, 100),
        }
        line = {"verb": f"calibrate_predictive{name}", "first s": seconds}
        found.append(line | {"CPU s": cpu})
        for verb, call in verbs.items():
            times = [timed(partial(call, **own)) for _ in range(2)]
            line = {"verb": f"{verb}{name}", "first s": times[0][0]}
            found.append(line | {"CPU s": times[0][1], "second s": times[1][0]})
    return found


def main() -> None:
    """Prints first calls, then both ways at two sizes."""
    args = arguments(__doc__, compiles=True).parse_args()
    first = first_calls()
    found = comparisons(MANY) + comparisons(FEW)
    print_table("First calls", first)
    print_table("Distribution functions and CRPS", found)
    settings = {"n": MANY, "groups": GROUPS, "levels": len(LEVELS)}
    save_results(args.out, "predictive_speed", found, settings)
    save_results(args.out, "predictive_speed_first", first, settings)


if __name__ == "__main__":
    main()
