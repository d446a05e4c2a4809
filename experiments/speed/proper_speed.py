"""How long proper scores of draws and of many targets take, side by side.

`python -m experiments.speed.proper_speed --out DIR`

Against vectorized numpy, and scoringrules where it is installed, whose loops numba
compiles if that is there too. Calls are taken in turns. "jaxcp / it" above 1 means that
we lose.
"""

import importlib.util
from collections.abc import Callable

import jax
import numpy as np

from experiments.speed.metrics_speed import compare
from experiments.tools.reporting import arguments, run_tables
from jaxcp import metrics
from jaxcp.predictive import Atoms

ROWS, DRAWS, OUTPUTS = 1000, 100, 16  # of energy and variogram scores
ENSEMBLES = 10_000, 100  # rows and draws of the CRPS
MANY = 10_000, 100_000  # atoms, and targets among them


def normals(seed: int, *shape: int) -> np.ndarray:
    """Returns standard normal numbers in single precision."""
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def numpy_energy(draws: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean energy score by the differences of all pairs, row by row."""
    near = np.linalg.norm(draws - y[:, None], axis=2).mean()
    pairs = (np.linalg.norm(d[:, None] - d[None], axis=2).mean() for d in draws)
    return float(near - np.mean(list(pairs)) / 2)


def numpy_variogram(draws: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean variogram score of order 1/2, row by row."""

    def row(draws, y):
        steps = np.sqrt(np.abs(draws[:, :, None] - draws[:, None])).mean(axis=0)
        return np.sum((np.sqrt(np.abs(y[:, None] - y)) - steps) ** 2)

    return float(np.mean([row(*of) for of in zip(draws, y, strict=True)]))


def numpy_crps(draws: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean CRPS of draws by sorted rows."""
    k = draws.shape[1]
    ranks = (2 * np.arange(1, k + 1) - k - 1).astype("f") / k
    spread = np.sort(draws, axis=1) @ ranks / k
    return float(np.mean(np.abs(draws - y[:, None]).mean(axis=1) - spread))


def numpy_crps_among(atoms: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the CRPS of one set of atoms at many targets."""
    s, n = np.sort(atoms), len(atoms)
    sums = np.append(0, np.cumsum(s, dtype=float))
    below = np.searchsorted(s, y)
    near = (y * (2 * below - n) - 2 * sums[below] + sums[-1]) / n
    return near - np.sum(s * ((2 * np.arange(1, n + 1) - n - 1) / n)) / n


def scoringrules_calls(draws, y) -> dict[str, Callable]:
    """Returns the energy score of scoringrules, if it is installed."""
    if importlib.util.find_spec("scoringrules") is None:
        return {}
    peer = importlib.import_module("scoringrules")
    if draws.ndim == 2:
        return {"scoringrules": lambda: np.mean(peer.crps_ensemble(y, draws))}
    return {"scoringrules": lambda: np.mean(peer.es_ensemble(y, draws))}


def draws_times() -> list[dict]:
    """Times scores of draws."""
    draws, y = normals(0, ROWS, DRAWS, OUTPUTS), normals(1, ROWS, OUTPUTS)
    ours = jax.device_put((draws, y))
    calls = {
        "jaxcp": lambda: metrics.energy_score(*ours),
        "numpy": lambda: numpy_energy(draws, y),
    } | scoringrules_calls(draws, y)
    rows = agree_and_compare(f"energy score, {ROWS} x {DRAWS} x {OUTPUTS}", calls)
    calls = {
        "jaxcp": lambda: metrics.variogram_score(*ours),
        "numpy": lambda: numpy_variogram(draws, y),
    }
    rows += agree_and_compare(f"variogram score, {ROWS} x {DRAWS} x {OUTPUTS}", calls)
    draws, y = normals(2, *ENSEMBLES), normals(3, ENSEMBLES[0])
    few = jax.device_put((draws, y))
    calls = {
        "jaxcp": lambda: metrics.crps(*few),
        "numpy": lambda: numpy_crps(draws, y),
    } | scoringrules_calls(draws, y)
    return rows + agree_and_compare("CRPS, 10^4 x 100", calls)


def many_times() -> list[dict]:
    """Times the CRPS of one set of atoms at as many targets."""
    rows = []
    for n in MANY:
        values, y = normals(4, n), normals(5, n)
        atoms, targets = Atoms(jax.device_put(values)), jax.device_put(y)
        calls = {
            "jaxcp": lambda atoms=atoms, targets=targets: atoms.crps(targets),
            "numpy": lambda values=values, y=y: numpy_crps_among(values, y),
        }
        rows += agree_and_compare(f"CRPS, {n} targets among as many atoms", calls)
    return rows


def agree_and_compare(task: str, calls: dict) -> list[dict]:
    """Returns lines with the times of some calls, which give the same numbers."""
    values = [np.asarray(call(), float) for call in calls.values()]
    for value in values[1:]:
        np.testing.assert_allclose(value, values[0], rtol=1e-4, atol=1e-5)
    return compare(task, calls, repeats=15)


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {"draws": draws_times, "many": many_times}
    run_tables(args.out, "proper_speed", tables, {"dtype": "float32"})


if __name__ == "__main__":
    main()
