"""Bayesian intervals and their conformal forms: Fong and Holmes, 2021, diabetes.

`python -m experiments.laws.conformal_bayes --out DIR`

scikit-learn's diabetes data, inputs and target standardized, 50 random splits into 309
rows and 133 to test, alpha = 0.2. The model is linear with normal errors; its posterior
is drawn exactly, where the paper runs a Markov chain. Three priors: a wide one of the
coefficients, one that holds them at 0, and one of the noise that holds it far below
what it is. For the last the published lines are of a model with a sparse prior of the
coefficients, in place of the normal one here; our scale of the noise, 0.02, is a choice
that gives the published length.
"""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array, lax
from jax.scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import learners, metrics, scores
from jaxcp.sets import Interval

ALPHA, NUM_SPLITS, NUM_DRAWS, NUM_POINTS, MARGIN = 0.2, 50, 8000, 100, 2.0
PRIORS = {  # standard deviation of the coefficients, scale of the half-normal noise
    "wide prior": (5.0, 1.0),
    "coefficients near 0": (0.001, 1.0),
    "noise too small": (5.0, 0.02),
}
PUBLISHED = {
    ("wide prior", "Bayes"): (0.805, 1.85),
    ("wide prior", "conformal Bayes"): (0.809, 1.86),
    ("coefficients near 0", "Bayes"): (0.779, 2.56),
    ("coefficients near 0", "conformal Bayes"): (0.794, 2.60),
    ("noise too small", "Bayes"): (0.563, 1.14),
    ("noise too small", "conformal Bayes"): (0.809, 1.87),
    ("ridge", "full, ordinary"): (0.809, 1.86),
    ("ridge", "full, studentized"): (None, None),
    ("ridge", "split"): (0.810, 1.91),
}
MARKERS = {
    "Bayes": "s",
    "conformal Bayes": "o",
    "full, ordinary": "D",
    "full, studentized": "v",
    "split": "^",
}
RIDGE, ABSOLUTE = learners.Ridge(0.004), scores.Absolute()
SIGMAS = np.geomspace(1e-3, 10, 4000)  # steps of a twentieth of a posterior deviation
AT_A_TIME = 7  # test points: 133 are 19 times as many


def log_marginal(x: Array, y: Array, prior_sd: float, sigmas: Array) -> Array:
    """Returns log p(y | sigma) of y ~ N(x b, sigma^2 I), b ~ N(0, prior_sd^2 I).

    Up to a constant, for each of many sigma, from one decomposition of `x`, of shape
    (n, p) with p <= n.
    """
    u, s, _ = jnp.linalg.svd(x, full_matrices=False)
    z = u.T @ y
    rest = jnp.sum((y - u @ z) ** 2)
    # y has variances sigma^2 + prior_sd^2 s_j^2 along u_j, and sigma^2 elsewhere.
    variances = sigmas[:, None] ** 2 + (prior_sd * s[None]) ** 2
    along = jnp.sum(jnp.log(variances) + z[None] ** 2 / variances, axis=1)
    elsewhere = 2 * (len(y) - len(s)) * jnp.log(sigmas) + rest / sigmas**2
    return -(along + elsewhere) / 2


def posterior(
    key: Array,
    x: Array,
    y: Array,
    num_draws: int,
    prior_sd: float,
    noise_scale: float,
    sigmas: Array,
) -> tuple[Array, Array]:
    """Returns independent draws of coefficients, (t, p), and of sigma, (t,).

    y ~ N(x b, sigma^2 I), b ~ N(0, prior_sd^2 I), sigma ~ HalfNormal(noise_scale):
    sigma from its marginal on a geometric grid, the coefficients given sigma from their
    normal law. Exact up to the grid.
    """
    key_sigma, key_b = jax.random.split(key)
    logs = log_marginal(x, y, prior_sd, sigmas) - (sigmas / noise_scale) ** 2 / 2
    logs = logs + jnp.log(sigmas)  # the cells of a geometric grid grow as sigma
    sigma = sigmas[jax.random.categorical(key_sigma, logs, shape=(num_draws,))]
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    # Along v_j: precision s_j^2 / sigma^2 + 1 / prior_sd^2, mean s_j z_j of its share.
    variances = 1 / ((s[None] / sigma[:, None]) ** 2 + prior_sd**-2)
    means = variances * (s * (u.T @ y))[None] / sigma[:, None] ** 2
    noise = jax.random.normal(key_b, means.shape)
    return (means + jnp.sqrt(variances) * noise) @ vt, sigma


def bayes(key: Array, rows: tuple, test: tuple, prior: tuple) -> dict:
    """Returns coverage, length and effective draws of Bayes and conformal Bayes."""
    key_posterior, key_y = jax.random.split(key)
    (x, y), (x_new, y_new) = rows, test
    x, x_new = (jnp.hstack([jnp.ones((len(v), 1)), v]) for v in (x, x_new))
    sigmas = jnp.asarray(SIGMAS)
    b, sigma = posterior(key_posterior, x, y, NUM_DRAWS, *prior, sigmas)
    density = lambda y, mean: norm.logpdf(y, mean, sigma[:, None])  # noqa: E731
    conformal = partial(jaxcp.conformal_bayes, density(y[None], b @ x.T), alpha=ALPHA)
    grid = jnp.linspace(jnp.min(y) - MARGIN, jnp.max(y) + MARGIN, NUM_POINTS)
    errors = sigma * jax.random.normal(key_y, sigma.shape)

    def one(point):
        x, y = point
        mean = b @ x
        levels = ALPHA / 2, 1 - ALPHA / 2
        own = Interval(*(jaxcp.empirical_quantile(mean + errors, a) for a in levels))
        sets = conformal(density(grid[None], mean[:, None]), grid=grid).sets
        at_y = conformal(density(y, mean[:, None]))
        return {
            "Bayes": (own.contains(y), own.size(), NUM_DRAWS),
            "conformal Bayes": (
                at_y.sets.mask[0],
                sets.size(),
                at_y.effective_sizes[0],
            ),
        }

    found = lax.map(one, (x_new, y_new), batch_size=AT_A_TIME)
    return jax.tree.map(jnp.mean, found)


@jax.jit
def trial(key: Array, rows: tuple, test: tuple) -> dict:
    """Returns coverage, length and effective draws of each method on one split."""
    found = {}
    for name, prior in PRIORS.items():
        key, key_bayes = jax.random.split(key)
        for method, values in bayes(key_bayes, rows, test, prior).items():
            found[name, method] = values
    key_split, key_full = jax.random.split(key)
    x, y = rows
    half = len(y) // 2
    params = RIDGE.fit(key_split, x[:half], y[:half], jnp.ones(half))
    ridge = {
        "split": jaxcp.split_conformal(
            RIDGE.predict, params, ABSOLUTE, x[half:], y[half:]
        )
    }
    for kind in ("ordinary", "studentized"):
        ridge[f"full, {kind}"] = jaxcp.full_conformal(
            key_full, RIDGE, ABSOLUTE, x, y, residuals=kind, check=False
        )
    for method, cp in ridge.items():
        sets = cp(test[0], ALPHA)
        covered = metrics.coverage(sets, test[1])
        found["ridge", method] = covered, metrics.mean_size(sets), jnp.nan
    return found


def splits() -> list[tuple]:
    """Returns the published splits: rows of x and y, and those to test."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    size, found = int(0.7 * len(y)), []
    for j in range(NUM_SPLITS):
        x_, x_new, y_, y_new = train_test_split(
            x, y, train_size=size, random_state=100 + j
        )
        found.append(jax.tree.map(jnp.asarray, ((x_, y_), (x_new, y_new))))
    return found


def table() -> list[dict]:
    """Returns the published and the measured line of each method."""
    keys = jax.random.split(jax.random.key(0), NUM_SPLITS)
    pairs = zip(tqdm(keys), splits(), strict=True)
    results = [jax.device_get(trial(key, *split)) for key, split in pairs]
    rows = []
    for (name, method), published in PUBLISHED.items():
        values = zip(*(result[name, method] for result in results), strict=True)
        coverage, length, draws = map(np.array, values)
        rows.append(
            {
                "model": name,
                "method": method,
                "coverage": float(np.mean(coverage)),
                "+-": _error(coverage),
                "published": published[0],
                "length": float(np.mean(length)),
                "+- ": _error(length),
                "published length": published[1],
                "effective draws": None if name == "ridge" else float(np.mean(draws)),
            }
        )
    return rows


def _error(values):
    return float(np.std(values, ddof=1) / len(values) ** 0.5)


def draw(rows: list[dict]) -> plt.Figure:
    """Draws length against coverage, ours and published."""
    figure, ax = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    models = [*PRIORS, "ridge"]
    for row in rows:
        style = MARKERS[row["method"]], f"C{models.index(row['model'])}"
        label = f"{row['method']}, {row['model']}"
        at = row["coverage"], row["length"]
        ax.plot(*at, style[0], color=style[1], label=label, fillstyle="none")
        if row["published"] is not None:
            at = row["published"], row["published length"]
            ax.plot(*at, "x", color=style[1])
    ax.plot([], [], "x", color="gray", label="published")
    ax.axvline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
    ax.set(xlabel="coverage", ylabel="mean length", title="Fong and Holmes, diabetes")
    ax.legend(frameon=False)
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    rows = table()
    print_table(f"diabetes, alpha = {ALPHA}, {NUM_SPLITS} splits", rows)
    settings = {"alpha": ALPHA, "splits": NUM_SPLITS, "draws": NUM_DRAWS}
    settings |= {"points": NUM_POINTS, "priors": PRIORS, "seed": 0}
    save_results(args.out, "conformal_bayes", rows, settings)
    save_figure(draw(rows), args.out, "conformal_bayes")


if __name__ == "__main__":
    main()
