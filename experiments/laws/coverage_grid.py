"""Every method of the library under four laws: coverage, and width against an oracle.

`python -m experiments.laws.coverage_grid --out DIR`

The rows of the table are method x n x law x alpha; a cell of the grid is one method at
one n, one program for all laws and levels, in a file of its own: the run can be killed,
and the same command goes on. `--executor dask` runs cells in worker processes,
`--processes 2` each cell in two processes that make one program.

A p-value says whether coverage is what it must be: by its exact law (two-sided) where
there is one; by its exact mean, k / (n + 1), for methods that refit with every test
row, whose coverage follows no known law, and for ranks with delta; else whether it is
below what is promised. The oracle covers at every x: label sets, which need to cover
only on average, can be smaller than its sets.
"""

import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import tyro
from jax import Array

import jaxcp
from experiments.laws import coverage_methods, coverage_risk
from experiments.laws.coverage_laws import (
    LAWS,
    NUM_TEST,
    draw,
    oracle_labels,
    oracle_width,
)
from experiments.laws.coverage_methods import Method
from experiments.tools import compiled
from experiments.tools.reporting import (
    print_table,
    save_figure,
    save_results,
    use_style,
)
from jaxcp import certificates, distributed, metrics, simulation

ALPHAS = (0.05, 0.1, 0.2)
METHODS = [*coverage_methods.METHODS, *coverage_risk.METHODS]
BY_NAME = {method.name: method for method in METHODS}
ORACLES = {"width": oracle_width, "labels": oracle_labels}


@dataclass(frozen=True)
class Settings:
    """Coverage of every method of the library, at every level and size, by law."""

    out: Path = Path("results/coverage_grid")
    """Folder of the cells, the table (CSV) and the figure."""
    sizes: tuple[int, ...] = (20, 100)
    """Numbers of calibration rows."""
    methods: tuple[str, ...] = field(default_factory=lambda: tuple(BY_NAME))
    """Methods, by name."""
    num_trials: int | None = None
    """Replicates of a cell, of 20 test rows each; 2000, of several outputs 500."""
    seed: int = 0
    executor: Literal["none", "dask"] = "none"
    """Where cells run: one after the other here, or in workers of Dask."""
    processes: int = 1
    """Processes of one program that run each cell together."""


def cell(method: str, n: int, num_trials: int, seed: int) -> list[dict]:
    """Returns the rows of one method at one size, from all replicates."""
    row = BY_NAME[method]
    trial = lambda key: jax.vmap(lambda law: one(row, key, law, n))(jnp.arange(4))  # noqa: E731
    out = jaxcp.simulate(
        trial,
        jax.random.key(seed),
        num_trials,
        reduce={"covered": None, "size": simulation.Moments()},
    )
    covered, sizes = np.asarray(out["covered"]), out["size"].mean
    return [
        {"law": law, "alpha": alpha}
        | judged(row, covered[:, i, j], n, alpha)
        | sized(row, law, alpha, float(sizes[i, j]))
        for i, law in enumerate(LAWS)
        for j, alpha in enumerate(ALPHAS)
    ]


def one(method: Method, key: Array, law: Array, n: int) -> dict:
    """Returns one replicate: how many of the test rows are covered at each level."""
    problem = draw(key, law, n)
    covered, size = [], []
    for alpha in ALPHAS:
        sets, y = method.sets(problem, alpha)
        covered.append(jnp.sum(jax.vmap(lambda s, v: s.contains(v))(sets, y)))
        size.append(metrics.mean_size(sets) if method.oracle else jnp.nan)
    return {"covered": jnp.stack(covered), "size": jnp.array(size)}


def judged(method: Method, counts: np.ndarray, n: int, alpha: float) -> dict:
    """Returns coverage beside what it must be, and whether it is."""
    coverage = counts.mean() / NUM_TEST
    error = counts.std(ddof=1) / NUM_TEST / len(counts) ** 0.5
    row = {"coverage": float(coverage), "+-": float(error)}
    if method.refits or method.delta is not None:
        rank = jaxcp.conformal_rank(n, alpha, delta=method.delta)
        level = float(rank) / (n + 1)
        away = math.erfc(abs(coverage - level) / max(error, 1e-9) / 2**0.5)
        return row | {"must be": "=", "level": level, "p-value": away}
    if method.exact:
        test = certificates.coverage_test(counts, n, alpha, num_test=NUM_TEST)
        return row | {"must be": "=", "level": test.expected, "p-value": test.p_value}
    if method.level is None:
        return row | {"must be": "", "level": 1 - alpha, "p-value": None}
    level = method.level(n, alpha)
    below = 0.5 * math.erfc(-(coverage - level) / max(error, 1e-9) / 2**0.5)
    return row | {"must be": ">=", "level": level, "p-value": below}


def sized(method: Method, law: str, alpha: float, size: float) -> dict:
    """Returns the mean size beside that of an oracle that knows the law."""
    if method.oracle is None:
        return {"size": None, "oracle": None, "size / oracle": None}
    oracle = ORACLES[method.oracle](law, alpha)
    return {"size": size, "oracle": oracle, "size / oracle": size / oracle}


@contextmanager
def executor(name: str) -> Iterator[Executor | None]:
    """Opens the executor of this name."""
    if name == "none":
        yield None
        return
    from dask.distributed import Client

    # A process for each core; a cell is one program that leaves Python alone.
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    with Client(n_workers=workers, threads_per_worker=1, dashboard_address=None) as c:
        yield c.get_executor()


def plot(rows: list[dict], n: int, alpha: float):
    """Returns a figure: coverage by method and law, and width over the oracle's."""
    rows = [row for row in rows if row["n"] == n and row["alpha"] == alpha]
    names = [name for name in BY_NAME if any(row["method"] == name for row in rows)]
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 1.5 + 0.22 * len(names)), sharey=True, width_ratios=(3, 2)
    )
    for i, law in enumerate(LAWS):
        here = {row["method"]: row for row in rows if row["law"] == law}
        y = np.array([names.index(name) for name in here]) + 0.15 * (i - 1.5)
        coverage, error = (
            np.array([row[k] for row in here.values()]) for k in ("coverage", "+-")
        )
        axes[0].errorbar(coverage, y, xerr=2 * error, fmt=".", label=law)
        ratio = [row["size / oracle"] or np.nan for row in here.values()]
        axes[1].plot(np.array(ratio, float), y, ".", label=law)
    for name in names:
        row = next(row for row in rows if row["method"] == name)
        style = {"=": "|", ">=": 9}.get(row["must be"])
        if style:
            at = row["level"], names.index(name)
            axes[0].plot(*at, marker=style, color="gray", ms=5)
    axes[0].axvline(1 - alpha, color="gray", linewidth=0.8)
    axes[0].set(
        xlabel="coverage", title=f"n = {n}, alpha = {alpha}; | exact, > promised"
    )
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[1].axvline(1, color="gray", linewidth=0.8)
    axes[1].set(xlabel="mean size / oracle's")
    axes[1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    return figure


def run(settings: Settings) -> None:
    """Runs the cells that are missing, and shows all."""
    unknown = set(settings.methods) - set(BY_NAME)
    if unknown:
        raise SystemExit(f"expected methods among {', '.join(BY_NAME)}, got {unknown}")
    cells = [
        {
            "method": name,
            "n": n,
            "num_trials": settings.num_trials or BY_NAME[name].num_trials,
            "seed": settings.seed,
        }
        for name in settings.methods
        for n in settings.sizes
    ]
    folder, first = settings.out / "cells", jax.process_index() == 0
    with executor(settings.executor) as workers:
        records = simulation.run_grid(cell, cells, folder, workers, progress=first)
    if not first:
        return
    rows = [
        record["settings"] | row
        for record in records
        if record["status"] == "done"
        for row in record["results"]
    ]
    about = {"alphas": ALPHAS, "sizes": settings.sizes, "seed": settings.seed}
    save_results(settings.out, "coverage_grid", rows, about)
    for alpha in ALPHAS:
        shown = [row for row in rows if row["alpha"] == alpha]
        hidden = ("alpha", "num_trials", "seed", "size", "oracle")
        table = [{k: v for k, v in r.items() if k not in hidden} for r in shown]
        print_table(f"alpha = {alpha}", table)
    use_style()
    for n in settings.sizes:
        save_figure(plot(rows, n, 0.1), settings.out, f"coverage_grid_{n}")
    tested = [row for row in rows if row["p-value"] is not None]
    worst = min(tested, key=lambda row: row["p-value"])
    chance = min(worst["p-value"] * len(tested), 1)
    print(f"smallest of {len(tested)} p-values: {worst['p-value']:.2g} ", end="")
    print(f"({worst['method']}); one as small by chance: <= {chance:.2g}")


def main() -> None:
    """Runs the grid, in one process or in several that make one program."""
    settings = tyro.cli(Settings, description=__doc__)
    compiled.compile_quickly()
    if settings.processes > 1 and "JAX_PROCESS_ID" not in os.environ:
        command = ["-m", "experiments.laws.coverage_grid", *sys.argv[1:]]
        sys.exit(max(map(abs, distributed.launch(settings.processes, command))))
    if settings.processes > 1:
        distributed.initialize()
    run(settings)


if __name__ == "__main__":
    main()
