"""Speed of simulations: against numpy and peers, on more devices, with checkpoints.

`python -m experiments.speed.simulation_speed --out DIR`

A replicate draws n = 100 normal scores, calibrates, and has the exact coverage of its
threshold, erf(q / sqrt 2). Ratios come from one run, in which contenders take turns,
and from another in which NumPy and XLA are kept to AVX2.
Peers are timed on fewer replicates, and their time is scaled. Tasks on several devices
run in processes of their own, since devices are counted when jax starts.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import erf

import jaxcp
from experiments.tools.reporting import arguments, median_seconds, run_tables
from experiments.tools.timing import in_turns
from jaxcp import simulation

ALPHA, N, NUM_TRIALS, NUM_SCORES = 0.1, 100, 1_000_000, 10_000_000
BATCH = 2**14  # replicates at once, of spans
BANDWIDTH = {"NVIDIA H100": 3.35e12, "NVIDIA H200": 4.8e12}  # bytes a second


def trial(key: Array) -> dict:
    """Returns the coverage of one calibrated predictor, given its calibration set."""
    scores = jnp.abs(jax.random.normal(key, (N,)))
    q = jaxcp.conformal_quantile(scores, ALPHA)
    return {"coverage": jax.scipy.special.erf(q / 2**0.5)}


def run(num_trials: int = NUM_TRIALS, **options):
    """Returns the estimate of mean and variance of coverage."""
    key, moments = jax.random.key(0), simulation.Moments()
    return jaxcp.simulate(trial, key, num_trials, reduce=moments, **options)["coverage"]


def by_numpy(num_trials: int = NUM_TRIALS) -> tuple[float, float]:
    """Returns the same from numpy, by hand, in batches that fit the cache."""
    rng, batch = np.random.default_rng(0), 4000
    k = int(jaxcp.conformal_rank(N, ALPHA))
    coverages = []
    for _ in range(num_trials // batch):
        scores = np.abs(rng.standard_normal((batch, N), dtype=np.float32))
        q = np.partition(scores, k - 1, axis=1)[:, k - 1]
        coverages.append(erf(q / 2**0.5))
    coverage = np.concatenate(coverages)
    return coverage.mean(dtype=float), coverage.var(dtype=float)


def by_crepes(num_trials: int) -> float:
    """Returns the mean coverage from crepes, one replicate after the other."""
    from crepes import ConformalRegressor

    rng, covered = np.random.default_rng(0), []
    for _ in range(num_trials):
        scores = np.abs(rng.standard_normal(N))
        model = ConformalRegressor().fit(residuals=scores)
        q = model.predict_int(np.zeros(1), confidence=1 - ALPHA)[0, 1]
        covered.append(erf(q / 2**0.5))
    return np.mean(covered)


def by_mapie(num_trials: int) -> float:
    """Returns the mean coverage from MAPIE for a model that predicts zero."""
    from mapie.regression import SplitConformalRegressor
    from sklearn.dummy import DummyRegressor

    model = DummyRegressor(strategy="constant", constant=0.0).fit([[0.0]], [0.0])
    rng, covered, x = np.random.default_rng(0), [], np.zeros((N, 1))
    for _ in range(num_trials):
        cp = SplitConformalRegressor(model, confidence_level=1 - ALPHA, prefit=True)
        cp.conformalize(x, rng.standard_normal(N))
        covered.append(erf(cp.predict_interval(x[:1])[1][0, 1, 0] / 2**0.5))
    return np.mean(covered)


def replicates() -> list[dict]:
    """Times 10^6 replicates of {draw, calibrate, exact coverage}."""
    warnings.simplefilter("ignore")
    calls, factor = {"jaxcp": run, "numpy": by_numpy}, {}
    for name, call, count in (("crepes", by_crepes, 1000), ("MAPIE", by_mapie, 100)):
        if importlib.util.find_spec(name.lower()):
            calls[name], factor[name] = lambda c=call, m=count: c(m), NUM_TRIALS / count
    times, rows = in_turns(calls, repeats=5), []
    bars = {"numpy": "<= 0.6", "crepes": "<= 0.2", "MAPIE": "<= 0.01"}
    for name, seen in times.items():
        scale = factor.get(name, 1)
        rows.append(
            {
                "10^6 x {draw 100, calibrate, coverage}": name,
                "s": scale * seen.median,
                "jaxcp / it": times["jaxcp"].median / (scale * seen.median),
                "bar": bars.get(name),
                "CPU s": scale * seen.cpu,
                "jaxcp / it, CPU": times["jaxcp"].cpu / (scale * seen.cpu),
            }
        )
    return rows


def devices() -> list[dict]:
    """Times the same on one and two CPU devices, and on a single core."""
    tasks = {"1 device, 1 core": (1, 1), "1 device": (1, None), "2 devices": (2, None)}
    times = {name: [] for name in tasks}
    for _ in range(3):
        for name, (count, cores) in tasks.items():
            times[name].append(_in_process("simulate", count, cores))
    best = {name: float(np.median(seconds)) for name, seconds in times.items()}
    return [
        {
            "10^6 replicates on": name,
            "s": s,
            "it / 2 devices": s / best["2 devices"],
            "bar": ">= 1.6" if name == "1 device" else None,
        }
        for name, s in best.items()
    ]


def quantiles() -> list[dict]:
    """Times the exact order statistic of 10^7 scores on devices, and by numpy."""
    x = np.random.default_rng(0).standard_normal(NUM_SCORES, dtype=np.float32)
    k = int(jaxcp.conformal_rank(NUM_SCORES, ALPHA)) - 1
    by_partition = median_seconds({"": lambda: np.partition(x, k)[k]}, repeats=5)[""]
    rows = [{"quantile of 10^7 scores": "np.partition", "s": by_partition}]
    for count in (1, 2):
        row = {"quantile of 10^7 scores": f"sharded over {count} CPU devices"}
        row["s"] = _in_process("quantile", count)
        rows.append(row | {"bar": "<= 0.3" if count == 2 else None})
    return rows


def overheads() -> list[dict]:
    """Times progress bars and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        paths = iter(range(1000))

        def saved():
            return run(checkpoint=Path(folder) / str(next(paths)), progress=True)

        times = median_seconds({"plain": run, "saved": saved}, repeats=5)
    share = times["saved"] / times["plain"] - 1
    return [
        {"10^6 replicates": "plain", "s": times["plain"]},
        {
            "10^6 replicates": "progress and checkpoint",
            "s": times["saved"],
            "overhead": share,
            "bar": "< 0.03",
        },
    ]


def draws(key: Array) -> Array:
    """Returns the largest of the draws of a trial."""
    return jnp.max(jnp.abs(jax.random.normal(key, (N,))))


def alone(
    work: Callable, num_trials: int = NUM_TRIALS, batch: int = BATCH
) -> list[float]:
    """Returns sums of batches of what is done for each key, and nothing else."""
    key = jax.random.key(0)
    firsts = range(0, num_trials, batch)
    return [float(_sums(work, key, np.uint32(first), batch)) for first in firsts]


@partial(jax.jit, static_argnums=(0, 3))
def _sums(work, key, first, batch):
    keys = jax.vmap(jax.random.fold_in, (None, 0))(
        key, first + jnp.arange(batch, dtype=jnp.uint32)
    )
    return sum(map(jnp.sum, jax.tree.leaves(jax.vmap(work)(keys))))


def by_spans(num_trials: int, batch: int = BATCH, count: int = 2) -> tuple:
    """Returns the estimate of spans in processes of their own, and seconds of each."""
    cuts = [num_trials * i // count for i in range(count + 1)]
    words = [sys.executable, "-m", "experiments.speed.simulation_speed", "--span"]
    with tempfile.TemporaryDirectory() as out:
        started = [
            subprocess.Popen(
                [*words, *map(str, (num_trials, batch, *span)), "--out", f"{out}/{i}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i, span in enumerate(itertools.pairwise(cuts))
        ]
        seconds = [json.loads(p.communicate()[0].splitlines()[-1]) for p in started]
        start = time.process_time()
        merged = simulation.merge(out)["coverage"]
        return merged, [*seconds, time.process_time() - start]


def _span(num_trials, batch, start, stop, out):
    """Prints the seconds of all cores that a span takes, once its program is there."""
    run(num_trials, batch_size=batch, span=(start, min(start + batch, stop)))
    begin = time.process_time()
    run(num_trials, batch_size=batch, span=(start, stop), checkpoint=out)
    print(json.dumps(time.process_time() - begin))


def spans(
    num_trials: int = NUM_TRIALS, batch: int = BATCH, repeats: int = 5
) -> list[dict]:
    """Times draws, one run and two spans with their merge: seconds of all cores."""
    one = partial(run, num_trials, batch_size=batch)
    merged, seconds = by_spans(num_trials, batch)
    if not all(map(np.array_equal, merged, one())):
        raise ValueError("expected the same bits from spans")
    calls = {
        "draws alone": partial(alone, draws, num_trials, batch),
        "trial alone": partial(alone, trial, num_trials, batch),
        "one run": one,
    }
    cpu = {name: t.cpu for name, t in in_turns(calls, repeats).items()}
    more = [seconds, *(by_spans(num_trials, batch)[1] for _ in range(repeats // 2))]
    cpu["two spans in two processes"] = float(np.median([sum(v[:-1]) for v in more]))
    cpu["merge"] = float(np.median([v[-1] for v in more]))
    least = cpu["draws alone"]
    return [
        {f"{num_trials} replicates": name, "CPU s": s, "it / draws": s / least}
        for name, s in cpu.items()
    ]


def accelerator() -> list[dict]:
    """Times replicates and the kernel on a GPU, with the share of its bandwidth."""
    kind = jax.devices()[0].device_kind
    peak = next((v for k, v in BANDWIDTH.items() if kind.startswith(k)), None)
    x = jax.random.normal(jax.random.key(0), (NUM_SCORES,))
    rows = jax.random.normal(jax.random.key(1), (100_000, N))
    each = jax.jit(jax.vmap(lambda s: jaxcp.conformal_quantile(s, ALPHA)))
    times = median_seconds(
        {
            "10^6 replicates": run,
            "quantile of 10^7 scores": lambda: jaxcp.conformal_quantile(x, ALPHA),
            "quantiles of 10^5 rows of 100": lambda: each(rows),
        },
        repeats=5,
    )
    # One reading of the input is the least that a selection can do.
    least = {
        "quantile of 10^7 scores": x.nbytes,
        "quantiles of 10^5 rows of 100": rows.nbytes,
    }
    return [
        {
            "task": name,
            "device": kind,
            "s": s,
            "input read once / bandwidth": least[name] / s / peak
            if peak and name in least
            else None,
        }
        for name, s in times.items()
    ]


def _in_process(task, num_devices, cores=None):
    """Returns the seconds of a task in a process with so many devices and cores."""
    command = [
        sys.executable,
        "-m",
        "experiments.speed.simulation_speed",
        "--task",
        task,
    ]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)}
    pin = (lambda: os.sched_setaffinity(0, range(cores))) if cores else None
    done = subprocess.run(
        command, env=environment, preexec_fn=pin, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout.splitlines()[-1])


def _task(name):
    """Prints the seconds of a task on all devices of this process."""
    if name == "simulate":
        call = run
    else:
        mesh = jax.make_mesh((jax.device_count(),), ("rows",))
        rows = jax.NamedSharding(mesh, jax.P("rows"))
        x = np.random.default_rng(0).standard_normal(NUM_SCORES, dtype=np.float32)
        x = jax.device_put(x, rows)
        call = lambda: jaxcp.sharded_conformal_quantile(x, ALPHA, mesh)  # noqa: E731
    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    print(json.dumps(time.perf_counter() - start))


def main() -> None:
    """Prints and saves all tables."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--task", choices=["simulate", "quantile"], help="one, timed")
    parser.add_argument("--span", type=int, nargs=4, help="one, timed")
    args = parser.parse_args()
    if args.span:
        return _span(*args.span, args.out)
    if args.task:
        return _task(args.task)
    tables = {"replicates": replicates, "overheads": overheads}
    if jax.default_backend() == "cpu":
        tables |= {"devices": devices, "quantiles": quantiles, "spans": spans}
    else:
        tables |= {"accelerator": accelerator}
    settings = {"alpha": ALPHA, "n": N, "num_trials": NUM_TRIALS, "dtype": "float32"}
    run_tables(args.out, "simulation_speed", tables, settings, ("replicates",))
    return None


if __name__ == "__main__":
    main()
