"""Rows that are not alike: how pooled calibration covers them, and how the right one.

`python -m experiments.laws.rows --out DIR`

Each design is a function of a key that draws calibration rows and one more, and tells
whether the target of this one is covered: naively, and by the method for the design.
All promise at least 1 - alpha. Another design is one more line of `DESIGNS`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import scores

ALPHA, NUM_TRIALS = 0.2, 40_000
NUM_CLUSTERS, LARGEST = 9, 8  # clusters of one row, or of eight
SHARES, NEW_SHARES = np.array([0.8, 0.2]), np.array([0.2, 0.8])  # of two labels
NUM_LABELED, NUM_ANSWERS, NUM_CLAIMS = 40, 19, 8


def clusters(key: Array, *, together: bool = False, ties: bool = False) -> dict:
    """Covers a row of a new cluster, or all: large clusters have small errors."""
    key_size, key_own, key_row, key_noise = jax.random.split(key, 4)
    shape = (NUM_CLUSTERS + 1, LARGEST)
    is_large = jax.random.bernoulli(key_size, 0.5, shape[:1])[:, None]
    own = jax.random.normal(key_own, (shape[0], 1))  # what rows of a cluster share
    errors = abs(own + jax.random.normal(key_noise, shape)) * jnp.where(is_large, 1, 3)
    errors = jnp.round(errors) if ties else errors
    counts = is_large | (jnp.arange(LARGEST) == 0)[None]
    size = jnp.sum(counts, axis=1, keepdims=True)
    flat, row = (
        lambda v: v[:-1].ravel(),
        jax.random.randint(key_row, (), 0, size[-1, 0]),
    )
    if together:
        largest = jnp.max(jnp.where(counts, errors, -jnp.inf), axis=1)
        weighted = quantile_of_rows(flat(errors), flat(counts / size))
        right = jaxcp.conformal_quantile(largest[:-1], ALPHA)
        return {"naive": largest[-1] <= weighted, "right": largest[-1] <= right}
    pooled = jaxcp.conformal_quantile(flat(errors), ALPHA, mask=flat(counts))
    right = quantile_of_rows(flat(errors), flat(counts / size))
    return {"naive": errors[-1, row] <= pooled, "right": errors[-1, row] <= right}


def quantile_of_rows(errors: Array, weights: Array) -> Array:
    """Returns the threshold with 1 as the weight of the row to come."""
    one = jnp.ones(())
    return jaxcp.weighted_conformal_quantile(errors, weights, ALPHA, test_weight=one)


def labels(key: Array) -> dict:
    """Covers a row whose labels have other shares: those of label 1 are harder."""
    key_old, key_new, key_error = jax.random.split(key, 3)
    n, p = NUM_LABELED, jnp.asarray(SHARES)
    y = jax.random.choice(key_old, 2, (n,), p=p)
    y = jnp.append(y, jax.random.choice(key_new, 2, p=jnp.asarray(NEW_SHARES)))
    errors = abs(jax.random.normal(key_error, (n + 1,))) * (1 + 2 * y)
    weights = jnp.asarray(NEW_SHARES / SHARES)[y]
    plain = jaxcp.conformal_quantile(errors[:n], ALPHA)
    right = jaxcp.weighted_conformal_quantile(
        errors[:n], weights[:n], ALPHA, test_weight=weights[n]
    )
    return {"naive": errors[n] <= plain, "right": errors[n] <= right}


def claims(key: Array, share: float) -> dict:
    """Keeps claims of which a share is true; naively by all false claims together."""
    key_claims, key_there, key_true = jax.random.split(key, 3)
    n, shape = NUM_ANSWERS, (NUM_ANSWERS + 1, NUM_CLAIMS)
    confidences = jnp.round(8 * jax.random.normal(key_claims, shape)) / 8  # ties
    there = jax.random.bernoulli(key_there, 0.7, shape)
    true = jax.random.normal(key_true, shape) < 2 * confidences
    score, new = scores.Claims(share), (confidences[n:], there[n:])
    cp = jaxcp.calibrate(score, (confidences[:n], there[:n]), true[:n])
    false = (there & ~true)[:n].ravel()
    pooled = jaxcp.conformal_quantile(confidences[:n].ravel(), ALPHA, mask=false)
    naive = score.invert((new[0][0], new[1][0]), pooled)
    return {
        "naive": naive.contains(true[n]),
        "right": cp(new, ALPHA).contains(true[n:])[0],
    }


DESIGNS: dict[tuple[str, str], Callable] = {  # and the method for each
    ("a row of a new cluster", "rows weigh 1/N"): clusters,
    ("the same, with ties", "rows weigh 1/N"): partial(clusters, ties=True),
    ("all rows of a new cluster", "largest errors"): partial(clusters, together=True),
    ("labels with other shares", "ratios of shares"): labels,
    ("all claims true", "scores of answers"): partial(claims, share=1.0),
    ("0.7 of the claims true", "scores of answers"): partial(claims, share=0.7),
}


def line(design: str, method: str) -> dict:
    """Returns how often a design is covered, naively and rightly."""
    key = jax.random.fold_in(jax.random.key(0), [*DESIGNS].index((design, method)))
    found = jaxcp.simulate(DESIGNS[design, method], key, NUM_TRIALS)
    row: dict = {"design": design, "method": method, "promised": 1 - ALPHA}
    for way, covered in found.items():
        rate = float(np.mean(covered))
        row |= {way: rate, f"+- {way}": (rate * (1 - rate) / NUM_TRIALS) ** 0.5}
    return row


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__).parse_args()
    table = [line(*names) for names in DESIGNS]
    print_table(f"rows that are not alike, alpha = {ALPHA}, {NUM_TRIALS} trials", table)
    save_results(args.out, "rows", table, {"alpha": ALPHA, "trials": NUM_TRIALS})


if __name__ == "__main__":
    main()
