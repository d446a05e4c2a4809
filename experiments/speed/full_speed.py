"""Speed of full conformal prediction, side by side with the jackknife+ and NumPy.

`python -m experiments.speed.full_speed --out DIR`

Medians after compilation, taken in turns; the least and the CPU time of all cores
beside them. A grid of refits, as the literature has it, asks for every test point and
trial value whether the value belongs to the set: here one factorization and one product
a test point, in NumPy, for some of the test points, and the time of all by proportion.
"""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcp
from experiments.speed.cross_speed import ridge_data
from experiments.tools.reporting import arguments, run_tables
from experiments.tools.timing import in_turns
from jaxcp import datasets, learners, scores

ALPHA, PENALTY = 0.1, 1.0
NUM_TRIED, NUM_POINTS = 100, 20  # trial values of the target; test points on the grid
RIDGE, ABSOLUTE = learners.Ridge(PENALTY), scores.Absolute()
REFITS = "10^4 ridge refits, n = 100"
LABELS = "150 fits of 100 Adam steps, n = 200"


def numpy_full_conformal(x, y, x_new) -> tuple[np.ndarray, np.ndarray]:
    """Returns studentized full conformal intervals of a ridge in closed form."""
    n, p = x.shape
    center, level = x.mean(axis=0), y.mean()
    x, y, x_new = x - center, y - level, x_new - center
    inverse = np.linalg.inv(x.T @ x + PENALTY * np.eye(p, dtype=x.dtype))
    coef, new = inverse @ (x.T @ y), x_new @ inverse
    residuals, rest = y - x @ coef, 1 - 1 / n - np.sum((x @ inverse) * x, axis=1)
    spread = 1 + 1 / n + np.sum(new * x_new, axis=1)
    # v_i with the sign of r_i, and the root of (1 + g)(1 - h_i) + v_i^2
    shares = (new @ x.T + x.dtype.type(1 / n)) * np.sign(residuals)
    root = shares**2
    root += (spread[:, None] * rest).astype(x.dtype)
    np.sqrt(root, out=root)
    errors, k = np.abs(residuals), int(jaxcp.conformal_rank(n, ALPHA))
    below, above = errors / (root - shares), np.divide(errors, root + shares, out=root)
    low, high = (np.partition(v, k - 1, axis=1)[:, k - 1] for v in (below, above))
    preds = level + x_new @ coef
    return preds - spread * low, preds + spread * high


def numpy_grid(x, y, x_new, tried) -> np.ndarray:
    """Returns which trial values belong to the sets of the test points, by refits."""
    k, kept = int(jaxcp.conformal_rank(len(x), ALPHA)), []
    targets = np.empty((len(x) + 1, len(tried)), x.dtype)
    targets[:-1], targets[-1] = y[:, None], tried
    for row in x_new:
        design = np.vstack([x, row])
        errors = _errors_of_refits(design, targets)
        kept.append(errors[-1] <= np.partition(errors[:-1], k - 1, axis=0)[k - 1])
    return np.stack(kept)


def _errors_of_refits(design, targets):
    """Returns studentized residuals of a ridge for each column of targets."""
    design, targets = design - design.mean(axis=0), targets - targets.mean(axis=0)
    gram = design.T @ design + PENALTY * np.eye(design.shape[1], dtype=design.dtype)
    inverse = np.linalg.inv(gram)
    errors = np.abs(targets - design @ (inverse @ (design.T @ targets)))
    leverages = np.sum((design @ inverse) * design, axis=1) + 1 / len(design)
    return errors / np.sqrt(1 - leverages)[:, None]


def ridge_times() -> list[dict]:
    """Times the sets of a ridge, the fit with them, against others."""
    data = ridge_data()
    x, y, x_new = (jnp.asarray(v, jnp.float32) for v in data)
    single, key = tuple(v.astype(np.float32) for v in data), jax.random.key(0)
    calls = {
        "jaxcp": lambda: jaxcp.full_conformal(key, RIDGE, ABSOLUTE, x, y)(x_new, ALPHA),
        "jaxcp, jackknife+": lambda: jaxcp.jackknife_plus(key, RIDGE, ABSOLUTE, x, y)(
            x_new, ALPHA
        ),
        "numpy, float32": lambda: numpy_full_conformal(*single),
        "numpy, float64": lambda: numpy_full_conformal(*data),
    }
    sets, (lower, upper) = calls["jaxcp"](), calls["numpy, float64"]()
    assert np.abs(sets.lower - lower).max() < 1e-4
    assert np.abs(sets.upper - upper).max() < 1e-4
    times = in_turns(calls)
    shape = f"ridge, n = m = {len(x)}, p = {x.shape[1]}"
    lines = [timed(shape, name, seconds, 1) for name, seconds in times.items()]
    tried = np.linspace(-1.25, 1.25, NUM_TRIED) * np.abs(data[1]).max()
    some = single[2][:NUM_POINTS]
    on_grid = lambda: numpy_grid(*single[:2], some, tried.astype(np.float32))  # noqa: E731
    inside = (tried >= lower[:NUM_POINTS, None]) & (tried <= upper[:NUM_POINTS, None])
    assert np.mean(on_grid() != inside) < 1e-3  # a trial value may lie at an end
    grid = in_turns({"grid": on_grid}, repeats=5)["grid"]
    lines.append(
        timed(shape, f"grid of {NUM_TRIED} refits", grid, len(x_new) / NUM_POINTS)
    )
    return [line | {"jaxcp / it": lines[0]["s"] / line["s"]} for line in lines]


def timed(shape: str, name: str, seconds, scale: float) -> dict:
    """Returns a line of times, all of them times the same number."""
    least, cpu = scale * seconds.least, scale * seconds.cpu
    return {shape: name, "s": scale * seconds.median, "least s": least, "CPU s": cpu}


def numpy_discretized(x, y, x_new, grid) -> np.ndarray:
    """Returns the widths of discretized sets between the first and the last value.

    All refits of a test point are columns of one product.
    """
    edges = (grid[1:] + grid[:-1]) / 2
    rounded = grid[np.searchsorted(edges, y)]
    low, high = np.append(grid[0], edges), np.append(edges, grid[-1])
    k, widths = int(jaxcp.conformal_rank(len(x), ALPHA)), []
    targets = np.empty((len(x) + 1, len(grid)), x.dtype)
    targets[:-1], targets[-1] = rounded[:, None], grid
    level = targets.mean(axis=0)
    for row in x_new:
        design = np.vstack([x, row])
        centered = design - design.mean(axis=0)
        gram = centered.T @ centered + PENALTY * np.eye(x.shape[1], dtype=x.dtype)
        preds = centered @ np.linalg.solve(gram, centered.T @ (targets - level)) + level
        q = np.partition(np.abs(y[:, None] - preds[:-1]), k - 1, axis=0)[k - 1]
        pieces = np.minimum(preds[-1] + q, high) - np.maximum(preds[-1] - q, low)
        widths.append(np.sum(np.maximum(pieces, 0)))
    return np.array(widths)


def logistic() -> learners.GradientLearner:
    """Returns multinomial logistic regression by Adam, five features, three labels."""
    return learners.GradientLearner(
        init=lambda key: (jnp.zeros((5, 3)), jnp.zeros(3)),
        predict=lambda params, x: jax.nn.softmax(x @ params[0] + params[1]),
        loss=lambda p, y: -jnp.log(p[y]),
        optimizer=optax.adam(0.1),
        num_steps=100,
    )


def refit_times() -> list[dict]:
    """Times sets by refits: of numbers on a grid, and of labels."""
    x, y = datasets.linear(jax.random.key(1), 200, num_features=5)
    grid, old, new = jnp.linspace(-4, 4, NUM_TRIED), slice(100), slice(100, None)
    single = tuple(np.asarray(v) for v in (x[old], y[old], x[new], grid))
    labels_x, labels = x, jnp.digitize(y, jnp.array([-0.5, 0.5]))
    key, learner = jax.random.key(0), logistic()

    def discretized():
        return jaxcp.discretized_conformal(key, RIDGE, ABSOLUTE, x[old], y[old], grid)(
            x[new], ALPHA
        )

    def by_labels():
        cp = jaxcp.full_conformal(key, learner, scores.LAC(), labels_x, labels)
        return cp(x[:50], ALPHA)

    ends = discretized()
    inside = jnp.clip(ends.upper, -4, 4) - jnp.clip(ends.lower, -4, 4)
    widths = np.sum(np.maximum(inside, 0), axis=1)
    assert np.abs(widths - numpy_discretized(*single)).max() < 1e-3
    calls = {
        ("jaxcp", REFITS): discretized,
        ("numpy", REFITS): lambda: numpy_discretized(*single),
        ("jaxcp", LABELS): by_labels,
    }
    times = in_turns(calls)
    ours = {name: v.median for (by, name), v in times.items() if by == "jaxcp"}
    return [
        {"by": by, **timed("refits", name, v, 1), "jaxcp / it": ours[name] / v.median}
        for (by, name), v in times.items()
    ]


LARGE = """
import json, time
import jax
import jaxcp
from experiments.tools.machines import peak_gib
from jaxcp import datasets, learners, scores
x, y = datasets.linear(jax.random.key(0), 20_000, num_features=20)
jax.block_until_ready((x, y))
before = peak_gib()
def run():
    cp = jaxcp.full_conformal(
        jax.random.key(1), learners.Ridge(1.0), scores.Absolute(),
        x[:10_000], y[:10_000],
    )
    return jax.block_until_ready(cp(x[10_000:], 0.1))
run()
start = time.perf_counter()
run()
seconds = time.perf_counter() - start
print(json.dumps([seconds, before, peak_gib()]))
"""


def large_sets() -> list[dict]:
    """Returns time and memory of many rows and test points."""
    words = [sys.executable, "-c", LARGE]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    seconds, before, after = json.loads(run.stdout.splitlines()[-1])
    return [
        {
            "full conformal": "n = m = 10^4, p = 20",
            "s": seconds,
            "GiB of the process": after,
            "GiB before": before,
            "GiB of an (n, m) array": 4e8 / 2**30,
        }
    ]


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {"ridge": ridge_times, "refits": refit_times, "large": large_sets}
    settings = {"alpha": ALPHA, "penalty": PENALTY, "dtype": "float32"}
    run_tables(args.out, "full_speed", tables, settings)


if __name__ == "__main__":
    main()
