"""Claims of a language model of which few are false: Mohri and Hashimoto, 2024.

`python -m experiments.data.claims --data DIR --out DIR`

DIR holds claims.npz: for each of three sets of questions 50 answers, cut into claims
with the model's confidence and an annotator's truth. Published are six thresholds, in
float64: an answer keeps the claims above it. To the last bit they are those of
`scores.Claims`, whose score of an answer that needs no cut is -inf where theirs is
-1e5. Besides: how many answers are factual, each with a threshold from the 49 others,
and how many of the claims that costs. An answer is factual if a share of its claims
are true; before, all claims are kept.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import scores

NAMES = ("factscore", "MATH", "nq")  # by their number in `published`
ALPHAS = np.arange(5, 55, 5) / 100  # of the figure


def load(folder: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of claims.npz."""
    path = folder / "claims.npz"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, with answers cut into claims")
    return dict(np.load(path))


def rows_of(data: dict, name: str) -> tuple[tuple[Array, Array], Array]:
    """Returns the confidences and the mask of the claims, and which are true."""
    parts = (data[f"{name}__{part}"] for part in ("confidence", "mask", "true"))
    confidences, mask, true = map(jnp.asarray, parts)
    return (confidences, mask), true


@partial(jax.jit, static_argnames="share")
def left_out(preds: tuple[Array, Array], true: Array, share: float, alpha: Array):
    """Returns whether each answer is factual and how much is kept, by the others."""
    n, score = len(true), scores.Claims(share)

    def one(i: Array) -> tuple[Array, Array]:
        others = jnp.arange(n) != i
        sets = jaxcp.calibrate(score, preds, true, mask=others)(preds, alpha)
        return sets.contains(true)[i], sets.size()[i]

    return jax.vmap(one)(jnp.arange(n))


def line(data: dict, number: float, share: float, alpha: float, published: float):
    """Returns the line of one published threshold."""
    name = NAMES[int(number)]
    preds, true = rows_of(data, name)
    cp = jaxcp.calibrate(scores.Claims(share), preds, true)
    every = jax.vmap(cp.score.invert, (0, None))(preds, -jnp.inf)
    factual, kept = left_out(preds, true, share, alpha)
    q, n = float(cp.quantile(alpha)), len(true)
    rate = float(np.mean(factual))
    return {
        "answers": name,
        "share": share,
        "alpha": alpha,
        "threshold": q,
        "published": published,
        "off by": q - published,
        "factual before": float(np.mean(every.contains(true))),
        "factual": rate,
        "+-": (rate * (1 - rate) / n) ** 0.5,
        "expected": cp.certificate(alpha).coverage,
        "removed": 1 - float(np.sum(kept) / np.sum(every.size())),
    }


def curve(data: dict, name: str, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the share of factual answers, and of claims removed, by alpha."""
    preds, true = rows_of(data, name)
    run = jax.vmap(partial(left_out, preds, true, share))
    factual, kept = run(jnp.asarray(ALPHAS))
    return np.mean(factual, axis=1), 1 - np.sum(kept, axis=1) / np.sum(preds[1])


def draw(data: dict) -> plt.Figure:
    """Draws what is removed for how many factual answers, at a share of 1."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for i, name in enumerate(NAMES):
        factual, removed = curve(data, name, 1.0)
        axes[0].plot(1 - ALPHAS, factual, "o-", color=f"C{i}", label=name)
        axes[1].plot(factual, removed, "o-", color=f"C{i}", label=name)
    axes[0].plot(1 - ALPHAS, 1 - ALPHAS, color="gray", linestyle="--", linewidth=0.8)
    axes[0].set(xlabel="1 - alpha", ylabel="factual answers, left out one by one")
    axes[1].set(xlabel="factual answers", ylabel="share of the claims removed")
    axes[1].legend(frameon=False)
    figure.suptitle("Claims of a language model, all of those kept to be true")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # the published digits
    data = load(args.data)
    table = [line(data, *map(float, row)) for row in data["published"]]
    print_table("claims of a language model", table)
    save_results(args.out, "claims", table, {"answers of each": 50})
    save_figure(draw(data), args.out, "claims")


if __name__ == "__main__":
    main()
