"""Training through calibration: smaller sets at the same coverage.

`python -m experiments.data.conformal_training --out DIR` (scikit-learn's digits,
diabetes), or with `--data DIR` (MNIST's t10k-images-idx3-ubyte.gz and its labels;
airfoil.txt and concrete.csv).

Labels, after Stutz et al. 2022: a linear classifier of 10,000 digits at alpha = 0.01,
trained by cross-entropy, or by the size of the sets that one half of each batch of 500
calibrates for the other (log-LAC scores, temperature 1, sets of one label cost nothing,
and as much as a label for a missed one). The threshold of the batch has the one-hot
gradient, the mean of the sqrt(250) nearest scores', or is the soft quantile. Then all
are calibrated exactly, on rows that no training saw: coverage is 1 - alpha for all, and
what differs is the size. A part of the gain is in the scale of the logits alone: one
more line scales those of cross-entropy by the factor that makes APS sets smallest, on
one half of the rows that calibrate, and calibrates on the other. 20 random splits, side
by side in one program; they share images, so that errors are a little larger than said.

Numbers: `experiments.data.width_training` does the same for the width of intervals.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax import Array

import jaxcp
from experiments.data import width_training
from experiments.data.anomaly import digits
from experiments.tools.networks import minimize
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import metrics, scores, training

ALPHA, NUM_SEEDS = 0.01, 20
NUM_CLASSES, BATCH_SIZE, STEP_SIZE = 10, 500, 0.01
TEMPERATURE, NUM_STEPS = 1.0, 500
SCALES, SCALED = (0.7, 1.0, 1.4, 2.0, 2.8), "cross-entropy, scaled"
METHODS = {  # what tells conformal training the slope of the threshold
    "cross-entropy": None,
    SCALED: None,
    "conformal, one-hot": {"nearest": 1},
    "conformal, nearest": {},
    "conformal, soft": {"bandwidth": 0.5},
}
PUBLISHED = {"cross-entropy": 2.50, "conformal, soft": 2.14}  # APS on all of MNIST
JUDGED = {"APS": scores.APS(randomized=True), "LAC": scores.LogLAC()}


def linear(key: Array, num_features: int):
    """Returns a classifier without hidden layers: its structure and parameters."""
    layer = nnx.Linear(num_features, NUM_CLASSES, rngs=nnx.Rngs(key))
    return nnx.split(layer)


def loss(options: dict | None, logits: Array, y: Array) -> Array:
    """Returns the loss of a batch."""
    if options is None:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return jnp.mean(losses)
    half = len(y) // 2
    size = training.conformal_training_loss(
        scores.LogLAC(),
        logits[:half],
        y[:half],
        logits[half:],
        ALPHA,
        temperature=TEMPERATURE,
        target_size=1,
        y=y[half:],
        classification_weights=1.0,
        **options,
    )
    return jnp.log(size)


def best_scale(logits: Array, y: Array, u: Array) -> Array:
    """Returns the factor of logits with the smallest APS sets, among half the rows."""
    half = len(y) // 2

    def size(scale):
        p, score = jax.nn.softmax(scale * logits), JUDGED["APS"]
        cp = jaxcp.calibrate(score, (p[:half], u[:half]), y[:half])
        return metrics.mean_size(cp((p[half:], u[half:]), ALPHA))

    scales = jnp.asarray(SCALES)
    return scales[jnp.argmin(jax.lax.map(size, scales))]


def trial(x: Array, y: Array, name: str, num_steps: int, key: Array) -> dict:
    """Returns sizes and coverage after exact calibration, on one split in 2:1:1."""
    options = METHODS[name]
    key_order, key_init, key_steps, key_u = jax.random.split(key, 4)
    order = jax.random.permutation(key_order, len(x))
    train, old, new = jnp.split(order, [len(x) // 2, len(x) * 3 // 4])
    structure, params = linear(key_init, x.shape[1])

    def batch_loss(params, key):
        rows = jax.random.choice(key, train, (min(BATCH_SIZE, len(train)),))
        return loss(options, nnx.merge(structure, params)(x[rows]), y[rows])

    keys = jax.random.split(key_steps, num_steps)
    params = minimize(batch_loss, params, keys, STEP_SIZE)
    logits = nnx.merge(structure, params)(x)
    u = jax.random.uniform(key_u, (len(x),))
    if name == SCALED:
        tune, old = jnp.split(old, [len(old) // 2])
        logits *= best_scale(logits[tune], y[tune], u[tune])
    preds = {"APS": (jax.nn.softmax(logits), u), "LAC": logits}
    found = {"accuracy": jnp.mean(jnp.argmax(logits[new], axis=1) == y[new])}
    for judge, score in JUDGED.items():
        before, after = (
            jax.tree.map(lambda v, r=r: v[r], preds[judge]) for r in (old, new)
        )
        sets = jaxcp.calibrate(score, before, y[old])(after, ALPHA)
        found[judge] = metrics.mean_size(sets)
        found[f"{judge} coverage"] = metrics.coverage(sets, y[new])
    return found


def table(results: dict[str, dict]) -> list[dict]:
    """Returns a line for each score and way to train: means over splits and errors."""
    base, lines = results["cross-entropy"], []
    for score in JUDGED:
        for name, of in results.items():
            columns = {
                "size": of[score],
                "change, %": 100 * (of[score] / base[score] - 1),
                "coverage": of[f"{score} coverage"],
            }
            line = {"sets": score, "training": name}
            for what, values in columns.items():
                line[what] = float(values.mean())
                line[f"{what} +-"] = float(values.std(ddof=1) / len(values) ** 0.5)
            line["accuracy"] = float(of["accuracy"].mean())
            line["published"] = PUBLISHED.get(name) if score == "APS" else None
            lines.append(line)
    return lines


def draw(results: dict[str, dict]):
    """Draws the sizes of every split, before and after conformal training."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for ax, score in zip(axes, JUDGED, strict=True):
        sizes = [of[score] for of in results.values()]
        ax.boxplot(sizes, tick_labels=[n.replace(", ", ",\n") for n in results])
        ax.set_ylabel(f"mean size of {score} sets, alpha = {ALPHA}")
    return figure


def main() -> None:
    """Prints the tables, saves them and the figures."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with MNIST and regression")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    args = parser.parse_args()
    data, x, y = digits(args.data)
    x, y = jnp.asarray(x, float), jnp.asarray(y, int)
    keys, results = jax.random.split(jax.random.key(0), args.seeds), {}
    for name in METHODS:
        run = jax.jit(jax.vmap(partial(trial, x, y, name, NUM_STEPS)))
        results[name] = jax.tree.map(np.asarray, run(keys))
        print(f"{name}: done", flush=True)
    lines = table(results)
    title = f"{data}, {len(x)} images, alpha = {ALPHA}, {args.seeds} splits"
    print_table(title, lines)
    settings = {"data": data, "alpha": ALPHA, "seeds": args.seeds, "steps": NUM_STEPS}
    save_results(args.out, "conformal_training", lines, settings)
    save_figure(draw(results), args.out, "conformal_training")
    width_training.run(args.data, args.out, args.seeds)


if __name__ == "__main__":
    main()
