"""Selection of rows: false ones among them under shift, their exact share, and time.

`python -m experiments.laws.selection --out DIR`

Test rows with y > 1 are selected by predictions, where the inputs of the test rows
are tilted by exp(x); the share of false discoveries of each procedure is set beside the
level. Nominal rows that are fixed have an exact share. A detector that draws at random
finds other rows at each run: means of e-values agree more. The sizes of weighted
selection are timed against a NumPy loop over the test rows. "jaxcp / it" above 1 means
that we lose.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, run_tables, save_results
from experiments.tools.timing import in_turns
from jaxcp import outliers, pvalues

LEVEL, NUM_RUNS = 0.2, 5000
NUM_CAL, NUM_TEST, THRESHOLD = 300, 100, 1.0  # under shift
PRUNINGS = ("heterogeneous", "homogeneous", "deterministic")
LAWS = [  # n, m, nominal rows, level: level (n + 1) / m is whole, but for the last
    (99, 10, 10, 0.1),
    (199, 20, 12, 0.2),
    (999, 50, 40, 0.1),
    (149, 20, 20, 0.1),
]
REPETITIONS, NUM_NOMINAL = 10, 40
SIZES = (1000, 5000)


def shifted_trial(key: jax.Array) -> dict:
    """Returns the share of false discoveries and the power of each procedure."""
    key_x, key_y, key_xi = jax.random.split(key, 3)
    n, m = NUM_CAL, NUM_TEST
    # Of a standard normal density, exp(x) times it is that around 1.
    x = jax.random.normal(key_x, (n + m,)) + (jnp.arange(n + m) >= n)
    y = x + jax.random.normal(key_y, (n + m,))
    rows, weights = (x[:n], y[:n], THRESHOLD, x[n:]), jnp.exp(x)
    own = {"weights": weights[:n], "test_weights": weights[n:]}
    plain = pvalues.selection_p_values(*rows)
    weighted = pvalues.selection_p_values(*rows, **own)
    found = {
        "BH, shift ignored": pvalues.benjamini_hochberg(plain, LEVEL),
        "BH, weighted p-values": pvalues.benjamini_hochberg(weighted, LEVEL),
    }
    for kind in PRUNINGS:
        select = partial(pvalues.weighted_selection, key_xi, *rows, **own)
        found[f"weighted selection, {kind}"] = select(level=LEVEL, pruning=kind)
    return {name: rates(flags, y[n:] > THRESHOLD) for name, flags in found.items()}


def rates(found: jax.Array, true: jax.Array) -> dict:
    """Returns the share of false discoveries, and that of what is to be found."""
    false, right = jnp.sum(found & ~true), jnp.sum(found & true)
    return {
        "FDR": false / jnp.maximum(false + right, 1),
        "power": right / jnp.maximum(jnp.sum(true), 1),
    }


def law_trial(law: tuple, key: jax.Array) -> dict:
    """Returns the share of false discoveries where the nominal rows are fixed."""
    n, m, nominal, level = law
    key_old, key_new = jax.random.split(key)
    old = jax.random.normal(key_old, (n,))
    strange = jnp.arange(m) >= nominal
    new = jax.random.normal(key_new, (m,)) + 2.5 * strange
    p = pvalues.selection_p_values(old, jnp.zeros(n), 1, new)
    return rates(pvalues.benjamini_hochberg(p, level), strange)


def repeated_trial(key: jax.Array) -> dict:
    """Returns rates and the disagreement of two runs of a detector that draws."""
    key_old, key_new, *keys = jax.random.split(key, 4)
    n, m = NUM_CAL, NUM_TEST
    old, strange = jax.random.normal(key_old, (n,)), jnp.arange(m) >= NUM_NOMINAL
    new = jax.random.normal(key_new, (m,)) + 3 * strange

    def run(key):
        noise = 0.7 * jax.random.normal(key, (REPETITIONS, n + m))
        scores, test = old[None] + noise[:, :n], new[None] + noise[:, n:]
        p = outliers.outlier_p_values(scores[0], test[0])
        e = pvalues.e_values(scores, test, LEVEL / 2).mean(axis=0)
        return {
            "BH, one run": pvalues.benjamini_hochberg(p, LEVEL),
            f"e-BH, mean of {REPETITIONS}": pvalues.e_benjamini_hochberg(e, LEVEL),
        }

    first, second = map(run, keys)
    return {
        name: rates(flags, strange) | {"disagreement": jnp.mean(flags != second[name])}
        for name, flags in first.items()
    }


def simulated(trial, key: jax.Array) -> dict:
    """Returns what a trial tells, over replicates."""
    return jaxcp.simulate(trial, key, NUM_RUNS, batch_size=500)


def line(name: dict, found: dict) -> dict:
    """Returns a row of a table: means, and the standard error after the first."""
    row = dict(name)
    for i, (what, values) in enumerate(found.items()):
        row[what] = float(np.mean(values))
        if i == 0:
            row["+-"] = float(np.std(values) / len(values) ** 0.5)
    return row


def shift() -> list[dict]:
    """Compares procedures under covariate shift."""
    found = simulated(shifted_trial, jax.random.key(0))
    return [line({"procedure": k, "level": LEVEL}, v) for k, v in found.items()]


def laws() -> list[dict]:
    """Compares the share of false discoveries with level m0 / m."""
    rows = []
    for i, law in enumerate(LAWS):
        n, m, nominal, level = law
        found = simulated(partial(law_trial, law), jax.random.key(i))
        whole = (level * (n + 1) / m) % 1 < 1e-9
        name = {"n": n, "m": m, "nominal": nominal, "level": level}
        exact = level * nominal / m if whole else None
        rows.append(line(name, found) | {"exact": exact})
    return rows


def repetitions() -> list[dict]:
    """Compares one run of a random detector with means of e-values."""
    found = simulated(repeated_trial, jax.random.key(0))
    return [line({"procedure": k, "level": LEVEL}, v) for k, v in found.items()]


def numpy_selection(pred, y, threshold, test, weights, own, level) -> np.ndarray:
    """Returns what weighted selection finds without uniforms, one row at a time."""
    v, test_v = np.where(y > threshold, np.inf, -pred), -test
    order, m, total = np.argsort(v), len(test), weights.sum()
    mass = np.append(0, np.cumsum(weights[order]))
    ordered = np.sort(test_v)
    below = mass[np.searchsorted(v[order], ordered)]
    at_most = mass[np.searchsorted(v[order], test_v, side="right")]
    first, end = (np.searchsorted(ordered, test_v, side=s) for s in ("left", "right"))
    sizes, ranks = np.ones(m, int), np.arange(1, m + 1)
    for j in range(m):
        aux, rank = below.copy(), ranks.copy()
        aux[end[j] :] += own[j]
        rank[: first[j]] += 1  # the p-value of row j, 0, comes before
        fits = np.flatnonzero(m * aux <= level * rank * (total + own[j]))
        sizes[j] = rank[fits[-1]] if fits.size else 1
    found = (at_most + own) / (total + own) <= level * sizes / m
    counts = np.cumsum(np.bincount(sizes[found], minlength=m + 1))
    return found & (sizes <= np.flatnonzero(counts >= np.arange(m + 1))[-1])


def speed() -> list[dict]:
    """Times weighted selection, and p-values with Benjamini-Hochberg."""
    rows, deterministic = [], partial(pvalues.weighted_selection, pruning=PRUNINGS[-1])
    for n in SIZES:
        args = timed_rows(n)
        wide = [np.asarray(v, float) for v in args]
        calls = {
            "jaxcp": lambda a=args: deterministic(None, *a, level=LEVEL),
            "NumPy, loop over rows": lambda w=wide: numpy_selection(*w, LEVEL),
        }
        ours, theirs = (np.asarray(call()) for call in calls.values())
        assert np.sum(ours != theirs) <= 1 and theirs.sum() > n / 20
        rows += compared(f"n = m = {n}", calls)
    return rows


def timed_rows(n: int) -> list[jax.Array]:
    """Returns predictions, targets, the threshold, test predictions and weights."""
    key_x, key_y = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (2 * n,)) + (jnp.arange(2 * n) >= n)
    y = x[:n] + jax.random.normal(key_y, (n,)) / 2
    return [x[:n], y, jnp.array(0.5), x[n:], jnp.exp(x[:n]), jnp.exp(x[n:])]


def compared(task: str, calls: dict) -> list[dict]:
    """Returns times; the first call is ours."""
    times = in_turns(calls, seconds=20)
    ours = next(iter(times.values()))
    return [
        {
            "task": task,
            "by": name,
            "s": each.median,
            "least s": each.least,
            "CPU s": each.cpu,
            "jaxcp / it": None if each is ours else ours.median / each.median,
        }
        for name, each in times.items()
    ]


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, times=True).parse_args()
    settings = {"runs": NUM_RUNS, "n": NUM_CAL, "m": NUM_TEST}
    tables = {"shift": shift, "laws": laws, "repetitions": repetitions}
    for name, measure in tables.items():
        rows = measure()
        print_table(f"{name}, {NUM_RUNS} runs", rows)
        save_results(args.out, f"selection_{name}", rows, settings)
    run_tables(args.out, "selection", {"speed": speed}, {"dtype": "float32"})


if __name__ == "__main__":
    main()
