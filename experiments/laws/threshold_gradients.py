"""Gradients through the conformal threshold: which of them settle as n grows.

`python -m experiments.laws.threshold_gradients --out DIR`

Scores are S = abs(y - theta x), x ~ N(0, 4), y = (theta + 1/2) x + N(0, 1): the error
y - theta x is normal with variance 2, and the threshold of the population,
tau = z sqrt(1 + 4 d^2) with z the normal quantile and d = 1/2, has the slope
d tau / d theta = -4 d z / sqrt(1 + 4 d^2) = -2.33. It is what training wants: the
expected slope of a score that is equal to tau. A batch of n scores estimates it by

* one-hot: the slope of the score that is the threshold. Its standard deviation is that
  of the slope of one score, sqrt(2), for every n;
* nearest: the mean over the sqrt(n) scores nearest to the threshold, whose forward
  value stays exact;
* kernel: weights around the exact threshold that fall off with bandwidth n^(-1/3);
* soft: the slope of the soft quantile of this bandwidth, whose value is not exact.

Bias, standard deviation and root mean squared error over 20,000 batches of each size.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array
from scipy.stats import norm

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import simulation

ALPHA, SLOPE, SPREAD = 0.1, 0.5, 2.0  # d, and the standard deviation of x
SIZES = (50, 100, 250, 500, 1000, 2000, 4000)
NUM_TRIALS = 20_000
COLORS = {"one-hot": "C5", "nearest": "C0", "kernel": "C2"}
COLORS["soft"] = "C1"


def true_slope() -> float:
    """Returns d tau / d theta of the population."""
    scale = math.sqrt(1 + (SLOPE * SPREAD) ** 2)
    return -norm.ppf(1 - ALPHA / 2) * SLOPE * SPREAD**2 / scale


def quantiles(n: int) -> dict:
    """Returns the thresholds of n scores, which differ by their gradients."""
    bandwidth = n ** (-1 / 3)
    soft = partial(jaxcp.soft_conformal_quantile, alpha=ALPHA, bandwidth=bandwidth)
    exact = partial(jaxcp.conformal_quantile, alpha=ALPHA)
    return {
        "one-hot": exact,
        "nearest": partial(exact, nearest=math.isqrt(n)),
        "kernel": partial(soft, hard=True),
        "soft": soft,
    }


def trial(n: int, key: Array) -> dict:
    """Returns the errors of the slopes and of the values in one batch."""
    x, noise = jax.random.normal(key, (2, n)) * jnp.array([SPREAD, 1.0])[:, None]
    y = SLOPE * x + noise  # theta is 0
    exact = jaxcp.conformal_quantile(jnp.abs(y), ALPHA)
    errors = {}
    for name, quantile in quantiles(n).items():
        tau = lambda theta, q=quantile: q(jnp.abs(y - theta * x))  # noqa: E731
        value, slope = jax.value_and_grad(tau)(0.0)
        errors[name] = {"slope": slope - true_slope(), "value": value - exact}
    return errors


def table(n: int, key: Array) -> list[dict]:
    """Returns a line for each kind of gradient."""
    moments = jaxcp.simulate(
        partial(trial, n), key, NUM_TRIALS, reduce=simulation.Moments(), progress=True
    )
    lines = []
    for name, of in moments.items():
        bias, spread = float(of["slope"].mean), float(of["slope"].variance) ** 0.5
        value = of["value"]
        lines.append(
            {
                "n": n,
                "gradient": name,
                "bias": bias,
                "+-": spread / NUM_TRIALS**0.5,
                "standard deviation": spread,
                "rmse": math.hypot(bias, spread),
                "value off by": math.hypot(value.mean, value.variance**0.5),
            }
        )
    return lines


def draw(lines: list[dict]):
    """Draws the root mean squared error against n, and bias beside spread."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, color in COLORS.items():
        mine = [line for line in lines if line["gradient"] == name]
        of = lambda key, mine=mine: np.abs([line[key] for line in mine])  # noqa: E731
        axes[0].loglog(of("n"), of("rmse"), "o-", ms=4, color=color, label=name)
        axes[1].loglog(of("n"), of("bias"), "o-", ms=4, color=color)
        axes[1].loglog(of("n"), of("standard deviation"), ":", color=color)
    axes[0].set(xlabel="scores n", ylabel="root mean squared error of the slope")
    axes[1].set(xlabel="scores n", ylabel="absolute bias (solid), deviation (dotted)")
    axes[0].legend(frameon=False)
    for ax in axes:
        ax.set_xticks(SIZES, SIZES)
        ax.minorticks_off()
    return figure


def main() -> None:
    """Prints the table, saves it and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    keys = jax.random.split(jax.random.key(0), len(SIZES))
    lines = [line for of in zip(SIZES, keys, strict=True) for line in table(*of)]
    title = f"d tau / d theta = {true_slope():.4f}, {NUM_TRIALS} batches of each size"
    print_table(title, lines)
    settings = {"alpha": ALPHA, "batches": NUM_TRIALS, "slope": true_slope()}
    save_results(args.out, "threshold_gradients", lines, settings)
    save_figure(draw(lines), args.out, "threshold_gradients")


if __name__ == "__main__":
    main()
