"""Labels whose shares shift: true, estimated and no weights, one threshold a label.

`python -m experiments.data.label_shift --data DIR --out DIR`

DIR holds MNIST's t10k-images-idx3-ubyte.gz and its labels; without it the rows are
scikit-learn's digits. A logistic regression is fitted once to half of the images. Rows
of a trial are drawn from the other half by their labels: old ones mostly digits that
are easy to tell, new ones mostly hard ones, w(y) = 9 or 1/9. 1,000 old rows calibrate,
1,000 others and the 1,000 new inputs give the ratio, and the new rows test, at alpha =
0.1 with LAC. Beside the true ratio stand those by moments and by EM, and no weights;
effective says how many equal rows the weighted ones are worth.

Podkopaev and Ramdas, 2021; Lipton et al., 2018; Saerens et al., 2002.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.data.anomaly import digits
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import learners, metrics, scores

ALPHA, NUM_TRIALS, NUM_ROWS, NUM_CLASSES = 0.1, 2000, 1000, 10
HARD = np.isin(np.arange(NUM_CLASSES), [2, 3, 5, 8, 9])
OLD, NEW = (jnp.asarray(np.where(more, 0.18, 0.02)) for more in (~HARD, HARD))
METHODS = "no weights", "true ratio", "moments", "EM"


def predicted(folder: Path | None) -> tuple[str, Array, Array]:
    """Returns a name, probabilities and labels of the half that was not fitted."""
    from sklearn.linear_model import LogisticRegression

    name, x, y = digits(folder)
    order = np.random.default_rng(0).permutation(len(x))
    fit, rest = np.array_split(order, 2)
    model = LogisticRegression(max_iter=200).fit(x[fit], y[fit])
    probs = model.predict_proba(x[rest])
    return name, jnp.asarray(probs, float), jnp.asarray(y[rest].astype(int))


def drawn(key: Array, y: Array, shares: Array) -> Array:
    """Returns rows with these shares of labels."""
    each = shares / jnp.bincount(y, length=NUM_CLASSES)
    return jax.random.choice(key, len(y), (NUM_ROWS,), p=each[y])


def trial(probs: Array, y: Array, key: Array) -> dict:
    """Returns coverage, size of sets, error of the ratio and effective rows."""
    keys = jax.random.split(key, 3)
    old, other, new = map(drawn, keys, [y] * 3, (OLD, OLD, NEW))
    given = probs[other], y[other], probs[new]
    ratios = {
        "no weights": jnp.ones(NUM_CLASSES),
        "true ratio": NEW / OLD,
        "moments": learners.label_ratio(*given),
        "EM": learners.label_ratio(*given, method="em"),
    }
    return {name: judge(probs, y, old, new, w) for name, w in ratios.items()}


def judge(probs: Array, y: Array, old: Array, new: Array, w: Array) -> dict:
    """Returns how sets of the new rows do with weights of labels."""
    cp = jaxcp.calibrate(scores.LAC(), probs[old], y[old], weights=w[y[old]])
    each = jnp.broadcast_to(w, (NUM_ROWS, NUM_CLASSES))
    sets = cp(probs[new], ALPHA, test_weights=each)
    return {
        "coverage": metrics.coverage(sets, y[new]),
        "size": jnp.mean(metrics.sizes(sets)),
        "error of w": jnp.max(jnp.abs(w - NEW / OLD)),
        "effective": cp.effective_size(),
    }


def line(name: str, results: dict) -> dict:
    """Returns the line of one method: means over trials."""
    means = {k: float(np.mean(v, dtype=float)) for k, v in results.items()}
    error = float(np.std(results["coverage"]) / len(results["coverage"]) ** 0.5)
    coverage = means.pop("coverage")
    return {"method": name, "coverage": coverage, "+-": error, **means}


def draw(name: str, results: dict) -> plt.Figure:
    """Draws how coverage varies between trials."""
    figure, ax = plt.subplots(layout="constrained")
    for method in METHODS:
        values = np.asarray(results[method]["coverage"])
        label = f"{method}: mean {values.mean():.3f}"
        ax.hist(values, 40, alpha=0.5, label=label)
    ax.axvline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
    ax.set(xlabel="coverage of one trial", ylabel="trials")
    ax.set_title(f"{name}: shares of labels shift")
    ax.legend(frameon=False, loc="upper left")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with MNIST's test images")
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    args = parser.parse_args()
    name, *rows = predicted(args.data)
    one = partial(trial, *rows)
    results = jaxcp.simulate(one, jax.random.key(0), args.trials, progress=True)
    table = [line(method, results[method]) for method in METHODS]
    print_table(f"{name}, alpha = {ALPHA}, {args.trials} trials", table)
    settings = {"data": name, "alpha": ALPHA, "trials": args.trials, "seed": 0}
    save_results(args.out, "label_shift", table, settings | {"rows": NUM_ROWS})
    save_figure(draw(name, results), args.out, "label_shift")


if __name__ == "__main__":
    main()
