"""Bands of whole fields: solutions of the Burgers equation, predicted by a network.

`python -m experiments.data.fields --out DIR`

The equation is u_t + u u_x = 0.05 u_xx on a circle, solved by the formula of Hopf and
Cole. A start is a random wave of at most four periods, its size log-uniform in 0.25 to
1.5. A field is u at 32 times and 64 places, 2048 points. A flax network predicts its 64
leading principal components from the start.

1000 fields fit the network, 400 others give the scales: the root mean square of the
residuals, their envelope, and a second network that predicts them from the start. Of
500 more, 100 drawn at random calibrate and 400 test, many times over. Each split covers
with probability k / (n + 1) = 91 / 101, given everything before it, so that the mean
over the splits must agree with this. Bands hold all points of a field, or 95 % of them.

Beside: a quantile for each point, which holds one point at that level and says nothing
of the field; Bonferroni, which needs n >= 2048 / alpha - 1 = 20,479 fields that
calibrate; and Bonferroni that takes the largest of the n where it must be infinite, as
some packages do. A band is missed if too few points are inside: then "missed points"
is the mean share of those outside.

`--quick` fits for a sixth of the steps, and splits 50 times.
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.networks import train
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import plotting, scores, sets
from jaxcp.certificates import certificate

ALPHA, SHARE, VISCOSITY = 0.1, 0.95, 0.05
NUM_FIT, NUM_SCALE, NUM_CALIBRATE, NUM_TEST = 1000, 400, 100, 400
NUM_TIMES, NUM_PLACES, NUM_WAVES = 32, 64, 4
NUM_PARTS, COARSE = 64, (4, 8)  # outputs of the networks
NUM_STEPS, NUM_SPLITS, QUICK = 2000, 300, 6
SMALLEST, LARGEST = 0.25, 1.5  # sizes of waves at the start
EVERY, SOME = "all points", "95 % of them"
POINTWISE, BONFERRONI = "quantile a point", "Bonferroni"
CLAMPED = "Bonferroni, clamped"
EXACT = certificate(NUM_CALIBRATE, ALPHA).coverage  # k / (n + 1)
ONE_POINT = {  # how often one point is inside, exactly
    POINTWISE: EXACT,
    BONFERRONI: 1.0,
    CLAMPED: NUM_CALIBRATE / (NUM_CALIBRATE + 1),
}
CIRCLE = 2 * np.pi
TIMES = np.arange(1, NUM_TIMES + 1) / NUM_TIMES
ORDERS = np.arange(1, NUM_WAVES + 1)
PLACES = CIRCLE * np.arange(NUM_PLACES) / NUM_PLACES
Predict = Callable[[Array], Array]


def draw_start(key: Array) -> tuple[Array, Array]:
    """Returns the coefficients of sines and cosines of a random start, shape (k,)."""
    key_size, key_waves = jax.random.split(key)
    low, high = np.log([SMALLEST, LARGEST])
    size = jnp.exp(jax.random.uniform(key_size, minval=low, maxval=high))
    sines, cosines = size * jax.random.normal(key_waves, (2, NUM_WAVES)) / ORDERS[None]
    return sines, cosines


def wave(start: tuple[Array, Array], x: Array) -> Array:
    """Returns u at places x at the start."""
    terms = zip(*start, ORDERS, strict=True)
    return sum(a * jnp.sin(k * x) + b * jnp.cos(k * x) for a, b, k in terms)


def burgers(start: tuple[Array, Array], times: Array, places: Array) -> Array:
    """Returns u at times and places, shape (len(times), len(places)).

    u(x, t) is the mean of (x - y) / t over points y with weights
    exp(-((x - y)^2 / (2 t) + U(y)) / (2 viscosity)), U' = u at the start: a softmax.
    """
    sines, cosines = start
    steps = np.arange(-192, 193) * CIRCLE / 128  # y - x, beyond what may come in time
    far = jnp.outer(0.5 / times, steps**2)[:, None]
    potential = (cosines / ORDERS, -sines / ORDERS)
    heights = wave(potential, places[:, None] + steps[None])[None]
    weights = jax.nn.softmax(-(far + heights) / (2 * VISCOSITY))
    return -(weights @ steps) / times[:, None]


def draw_fields(key: Array, num: int) -> tuple[Array, Array]:
    """Returns starts at the places, (num, places), and fields (num, times, places)."""
    starts = jax.vmap(draw_start)(jax.random.split(key, num))
    x = jax.vmap(wave, (0, None))(starts, PLACES)
    solve = lambda start: burgers(start, TIMES, PLACES)  # noqa: E731
    return x, jax.lax.map(solve, starts)


def fit_center(key: Array, x: Array, y: Array, num_steps: int) -> Predict:
    """Returns `predict(x)`, fields of a network of their principal components."""
    flat = y.reshape(len(y), -1)
    _, sizes, parts = np.linalg.svd(flat, full_matrices=False)
    sizes, parts = sizes[:NUM_PARTS] / len(y) ** 0.5, parts[:NUM_PARTS]
    loss = lambda out, y: jnp.sum((out * sizes[None] - y) ** 2, axis=1)  # noqa: E731
    size = {"num_out": NUM_PARTS, "num_hidden": 128, "num_steps": num_steps}
    outputs = train(key, loss, x, flat @ parts.T, decay=1e-2, **size)
    return lambda x: ((outputs(x) * sizes[None]) @ parts).reshape(-1, *y.shape[1:])


def fit_scale(key: Array, x: Array, residuals: Array, num_steps: int) -> Predict:
    """Returns `predict(x)`, scales whose logarithms are linear between 4 x 8 points.

    The loss is the negative log density of a Laplace distribution.
    """
    shape, num_out = residuals.shape[1:], int(np.prod(COARSE))
    flags = jnp.eye(num_out).reshape(-1, *COARSE)
    parts = jax.image.resize(flags, (num_out, *shape), "linear").reshape(num_out, -1)
    errors = jnp.abs(residuals).reshape(len(residuals), -1)

    def loss(out, errors):
        log_scale = out @ parts
        return jnp.mean(log_scale + errors * jnp.exp(-log_scale), axis=1)

    size = {"num_out": num_out, "num_steps": num_steps, "step_size": 3e-3}
    outputs = train(key, loss, x, errors, decay=1.0, **size)
    return lambda x: jnp.exp(outputs(x) @ parts).reshape(-1, *shape)


def predictions(key: Array, num_steps: int) -> tuple[Array, Array, dict[str, Array]]:
    """Returns fields, their centers and their scales by name, of rows that nobody saw.

    All are of shape (m, times, places).
    """
    key_data, key_fit, key_scale = jax.random.split(key, 3)
    sizes = NUM_FIT, NUM_SCALE, NUM_CALIBRATE + NUM_TEST
    x, y = draw_fields(key_data, sum(sizes))
    cut = np.cumsum(sizes)[:-1]
    (x_fit, x_scale, x), (y_fit, y_scale, y) = jnp.split(x, cut), jnp.split(y, cut)
    predict = fit_center(key_fit, x_fit, y_fit, num_steps)
    residuals = y_scale - predict(x_scale)
    predict_scale = fit_scale(key_scale, x_scale, residuals, num_steps // 4)
    constants = {
        "constant": jnp.ones(y.shape[1:]),
        "root mean square": scores.root_mean_square(residuals),
        "envelope": scores.envelope(residuals, ALPHA),
    }
    scales = {name: jnp.broadcast_to(v, y.shape) for name, v in constants.items()}
    return y, predict(x), scales | {"predicted": predict_scale(x)}


def beside(center: Array, residuals: Array) -> dict[str, sets.Band]:
    """Returns bands of a threshold for each point, of absolute residuals (n, ...)."""
    bonferroni = jaxcp.conformal_quantile(residuals, ALPHA / residuals[0].size)
    halves = {
        POINTWISE: jaxcp.conformal_quantile(residuals, ALPHA),
        BONFERRONI: bonferroni,
        CLAMPED: jnp.minimum(bonferroni, jnp.max(residuals, axis=0)),
    }
    return {
        name: sets.Band(center - half[None], center + half[None], ndim=2)
        for name, half in halves.items()
    }


def judged(bands: sets.Band, y: Array) -> dict[str, Array]:
    """Returns coverage, width, points inside, and points outside of missed bands."""
    inside = jnp.mean((bands.lower <= y) & (y <= bands.upper), axis=(1, 2))
    missed = ~bands.contains(y)
    return {
        "coverage": 1 - jnp.mean(missed),
        "width": jnp.mean(bands.size()),
        "points": jnp.mean(inside),
        "outside": jnp.sum(jnp.where(missed, 1 - inside, 0)),
        "missed": jnp.sum(missed),
    }


def split_trial(y: Array, center: Array, scales: dict[str, Array], key: Array) -> dict:
    """Returns how bands of 400 fields do, calibrated on 100, of one split."""
    order = jax.random.permutation(key, len(y))
    old, new = order[:NUM_CALIBRATE], order[NUM_CALIBRATE:]
    bands = {}
    for name, scale in scales.items():
        for fraction, points in ((1.0, EVERY), (SHARE, SOME)):
            score = scores.Band(fraction)
            cp = jaxcp.calibrate(score, (center[old], scale[old]), y[old])
            bands[name, points] = cp((center[new], scale[new]), ALPHA)
    residuals = jnp.abs(y[old] - center[old])
    for name, band in beside(center[new], residuals).items():
        bands[name, EVERY] = band
    return {names: judged(band, y[new]) for names, band in bands.items()}


def line(names: tuple[str, str], results: dict) -> dict:
    """Returns the line of one kind of band: means over the splits."""
    found = {name: np.asarray(v, float) for name, v in results.items()}
    error = lambda v: float(np.std(v) / len(v) ** 0.5)  # noqa: E731
    missed = np.sum(found["missed"])
    return {
        "band": names[0],
        "holds": names[1],
        "coverage": float(np.mean(found["coverage"])),
        "+-": error(found["coverage"]),
        "exact": None if names[0] in ONE_POINT else EXACT,
        "spread": float(np.std(found["coverage"])),
        "width": float(np.mean(found["width"])),
        "points inside": float(np.mean(found["points"])),
        "+- points": error(found["points"]),
        "exact points": ONE_POINT.get(names[0]),
        "missed points": float(np.sum(found["outside"]) / missed) if missed else None,
    }


def draw(y: Array, center: Array, scale: Array, key: Array) -> plt.Figure:
    """Draws a field that its band misses, its center, the band's width, and where."""
    order = jax.random.permutation(key, len(y))
    old, new = order[:NUM_CALIBRATE], order[NUM_CALIBRATE:]
    cp = jaxcp.calibrate(scores.Band(), (center[old], scale[old]), y[old])
    bands = cp((center[new], scale[new]), ALPHA)
    i = int(jnp.argmin(bands.contains(y[new])))
    band, field, middle = bands[i], y[new[i]], center[new[i]]
    figure, axes = plt.subplots(1, 3, figsize=(13, 2.6), layout="constrained")
    limits = {"vmin": float(jnp.min(field)), "vmax": float(jnp.max(field))}
    look = {"label": "the field", "legend": "lower left", "ax": axes[0]}
    plotting.plot_band(band, field, **look, **limits)
    picture = axes[1].imshow(middle, cmap="gray", **limits)
    axes[1].set(xticks=[], yticks=[])
    figure.colorbar(picture, ax=axes[1], label="its center")
    plotting.plot_band(band, label="the width of its band", cmap="viridis", ax=axes[2])
    for ax in axes:
        ax.set(xlabel="place", ylabel="time, downward")
    figure.suptitle(
        "A field of the Burgers equation that its band of all points misses"
    )
    return figure


def options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--splits", type=int)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints and saves the table and the figure."""
    args = options()
    less = QUICK if args.quick else 1
    num_steps, num_splits = NUM_STEPS // less, args.splits or NUM_SPLITS // less
    key_rows, key_splits = jax.random.split(jax.random.key(0))
    y, center, scales = predictions(key_rows, num_steps)
    trial = partial(split_trial, y, center, scales)
    results = jaxcp.simulate(trial, key_splits, num_splits)
    kinds = [(name, points) for name in scales for points in (EVERY, SOME)]
    kinds += [(name, EVERY) for name in ONE_POINT]
    table = [line(names, results[names]) for names in kinds]
    print_table(f"bands of fields, alpha = {ALPHA}, {num_splits} splits", table)
    settings = {
        "alpha": ALPHA,
        "splits": num_splits,
        "fields that calibrate": NUM_CALIBRATE,
        "points of a field": NUM_TIMES * NUM_PLACES,
        "steps of the network": num_steps,
        "spread of the fields": round(float(jnp.std(y)), 3),
        "spread of the residuals": round(float(jnp.std(y - center)), 3),
        "seed": 0,
    }
    save_results(args.out, "fields", table, settings)
    save_figure(draw(y, center, scales["predicted"], key_splits), args.out, "fields")


if __name__ == "__main__":
    main()
