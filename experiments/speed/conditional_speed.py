"""Conditional calibration: the time for all test points, and that of MAPIE.

`python -m experiments.speed.conditional_speed [--out DIR]`

Features are an intercept, and normal numbers; scores are absolute, and their spread
grows with the first feature. A call is the fit of the level and the sets of all test
points. Seconds are of the processor, of all its threads, in turns; MAPIE takes part
where it is installed (its exact way), and computes in double precision. The first call
is of a process that has imported everything, by the clock on the wall.
"""

import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import scores

ALPHA, NUM_FEATURES = 0.1, 10
SIZES = (1000, 1000), (5000, 1000), (5000, 5000)  # rows, test points
NUM_MAPIE = 1000  # rows up to which MAPIE takes part
NUM_SMALL, NUM_RUNS = 60, 1000  # replicates of few rows
REPEATS = {"jaxcp": 15, "MAPIE": 3}
FIRST = """import time
from experiments.speed import conditional_speed
from experiments.tools.compiled import compile_anew
compile_anew()
rows = conditional_speed.data(1000)
start = time.perf_counter()
conditional_speed.half_widths(*rows)
print(time.perf_counter() - start)
"""


def data(n: int, m: int = 1000, p: int = NUM_FEATURES) -> tuple[np.ndarray, ...]:
    """Returns features and scores of n rows, and features of m test points."""
    draw = np.random.default_rng(0)
    phi = draw.standard_normal((n + m, p)).astype(np.float32)
    phi[:, 0] = 1
    y = draw.standard_normal(n) * (1 + 0.5 * np.abs(phi[:n, 1]))
    return phi[:n], y.astype(np.float32), phi[n:]


def half_widths(phi: np.ndarray, y: np.ndarray, phi_new: np.ndarray) -> np.ndarray:
    """Returns half the width of each interval."""
    cp = jaxcp.calibrate_conditional(scores.Absolute(), np.zeros_like(y), y, phi)
    sets = cp(np.zeros(len(phi_new), y.dtype), ALPHA, features=phi_new)
    return np.asarray(sets.upper)


def by_mapie(phi: np.ndarray, y: np.ndarray, phi_new: np.ndarray) -> np.ndarray:
    """Returns the same by MAPIE."""
    from mapie.conditional_conformal_prediction import (
        ConditionalSplitConformalRegressor,
    )
    from sklearn.dummy import DummyRegressor

    model = DummyRegressor(strategy="constant", constant=0.0).fit(phi, y)
    cp = ConditionalSplitConformalRegressor(
        lambda x: x, model, confidence_level=1 - ALPHA, prefit=True
    )
    cp.conformalize(phi.astype(float), y.astype(float))
    return cp.predict_interval(phi_new.astype(float))[1][:, 1, 0]


def measure(n: int, m: int) -> list[dict]:
    """Returns the seconds of both ways, and how many half widths are alike."""
    rows, name = data(n, m), f"n = {n}, m = {m}, p = {NUM_FEATURES}"
    ways = {"jaxcp": half_widths}
    if n <= NUM_MAPIE and importlib.util.find_spec("mapie"):
        ways["MAPIE"] = by_mapie
    found = {k: way(*rows) for k, way in ways.items()}
    repeats = min(REPEATS[way] for way in ways)
    calls = {k: lambda f=f: f(*rows) for k, f in ways.items()}
    times = {k: v.cpu for k, v in in_turns(calls, repeats).items()}
    ours = found["jaxcp"]
    return [
        {
            "rows": name,
            "by": way,
            "CPU s": seconds,
            "it / jaxcp": seconds / times["jaxcp"] if way != "jaxcp" else None,
            "alike": float(np.mean(np.isclose(found[way], ours, rtol=1e-4))),
        }
        for way, seconds in times.items()
    ]


def replicate(key: jax.Array) -> jax.Array:
    """Returns the randomized threshold of one test point, among few rows."""
    key_phi, key_y, key_u = jax.random.split(key, 3)
    phi = jax.random.bernoulli(key_phi, 0.5, (NUM_SMALL + 1, 4)).at[:, 0].set(True)
    y, zero = jax.random.normal(key_y, (NUM_SMALL,)), jnp.zeros(NUM_SMALL)
    phi = phi.astype(float)
    cp = jaxcp.calibrate_conditional(scores.Absolute(), zero, y, phi[:-1])
    u = jax.random.uniform(key_u, ())
    return cp.quantile(ALPHA, features=phi[-1], u=u)


def replicates() -> dict:
    """Returns the seconds of replicates with four overlapping groups, under vmap."""
    run = jax.jit(jax.vmap(replicate))
    keys = jax.random.split(jax.random.key(0), NUM_RUNS)
    seconds = in_turns({"jaxcp": lambda: run(keys)}, REPEATS["jaxcp"])["jaxcp"].cpu
    name = f"{NUM_RUNS} replicates, n = {NUM_SMALL}, p = 4"
    return {"rows": name, "by": "jaxcp", "CPU s": seconds}


def first_call() -> dict:
    """Returns the seconds of the first call of a process, compiled anew."""
    run = [sys.executable, "-c", FIRST]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    name = "n = 1000, m = 1000, p = 10, first call"
    return {"rows": name, "by": "jaxcp", "s": float(lines.split()[-1])}


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, times=True).parse_args()
    rows = [row for size in SIZES for row in measure(*size)]
    rows += [replicates(), first_call()]
    print_table("Conditional calibration", rows)
    settings = {"alpha": ALPHA, "repeats": REPEATS, "dtype": "float32"}
    save_results(args.out, "conditional_speed", rows, settings)


if __name__ == "__main__":
    main()
