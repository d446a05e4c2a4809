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
from jaxcp import causal, metrics, scores, selection, survival

ALPHA, NUM_TRIALS = 0.2, 40_000
NUM_CLUSTERS, LARGEST = 9, 8  # clusters of one row, or of eight
SHARES, NEW_SHARES = np.array([0.8, 0.2]), np.array([0.2, 0.8])  # of two labels
NUM_UNITS, NUM_SELECTABLE = 60, (20, 8)
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
    flat = lambda v: v[:-1].ravel()  # noqa: E731
    data = scores.Absolute(), jnp.zeros(flat(errors).shape), flat(errors)
    ids = jnp.broadcast_to(jnp.arange(shape[0])[:, None], shape)
    rows = {"mask": flat(counts)}
    cp = jaxcp.calibrate(*data, **rows, clusters=flat(ids))
    if together:
        largest = jnp.max(jnp.where(counts, errors, -jnp.inf), axis=1)[-1]
        right = cp.all_rows(jnp.zeros(1), ALPHA).upper[0]
        return {"naive": largest <= cp.quantile(ALPHA), "right": largest <= right}
    new = errors[-1, jax.random.randint(key_row, (), 0, size[-1, 0])]
    pooled = jaxcp.calibrate(*data, **rows).quantile(ALPHA)
    return {"naive": new <= pooled, "right": new <= cp.quantile(ALPHA)}


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


def outcomes(key: Array, *, boxed: bool = False) -> dict:
    """Covers the treated outcome of a unit: most treated ones have small errors.

    Boxed, the propensity is known up to a factor of 2 of its odds, and wrong by that.
    """
    key_x, key_y, key_arm = jax.random.split(key, 3)
    n = NUM_UNITS
    x = jax.random.uniform(key_x, (n + 1,))
    y = (2.2 - 2 * x) * jax.random.normal(key_y, (n + 1,))
    e = 0.1 + 0.8 * x**2
    treated = jax.random.bernoulli(key_arm, e)
    data = scores.Absolute(), jnp.zeros(n), y[:n]
    naive = jaxcp.calibrate(*data, mask=treated[:n]).quantile(ALPHA)
    odds = e / (1 - e) * jnp.where(x < 0.5, 2.0, 0.5)
    known = causal.propensity_box(odds / (1 + odds), 2.0) if boxed else e
    if boxed:  # naively with the wrong ones
        wrong = odds / (1 + odds)
        cp = causal.calibrate_outcome(*data, treated[:n], wrong[:n])
        naive = cp.quantile(ALPHA, propensity=wrong[n])
    old, new = (jax.tree.map(lambda v, at=at: v[at], known) for at in (slice(n), n))
    cp = causal.calibrate_outcome(*data, treated[:n], old)
    right = cp.quantile(ALPHA, propensity=new)
    return {"naive": abs(y[n]) <= naive, "right": abs(y[n]) <= right}


def times(key: Array) -> dict:
    """Bounds a time from below: those that are followed for long have short times."""
    key_x, key_time, key_end = jax.random.split(key, 3)
    n, cutoff = NUM_UNITS, 1.0
    x = jax.random.uniform(key_x, (n + 1,))
    time = jax.random.exponential(key_time, (n + 1,)) * jnp.exp(2 * x)
    rate = 0.3 + 2.5 * (1 - x)
    end = jax.random.exponential(key_end, (n + 1,)) / rate
    probability, preds = jnp.exp(-rate * cutoff), jnp.full(n + 1, 2.0)
    seen = jnp.minimum(time, end)
    data, given = (preds[:n], seen[:n], end[:n]), {"cutoff": cutoff}
    bounds = {}
    for way, p in {"naive": jnp.ones(n + 1), "right": probability}.items():
        cp = survival.calibrate_lower(*data, **given, probability=p[:n])
        bounds[way] = cp(preds[n:], ALPHA, probability=p[n:]).lower[0]
    return {way: time[n] >= low for way, low in bounds.items()}


def missing(key: Array) -> dict:
    """Covers a row without its first input, by a model that takes 0 for it."""
    key_x, key_noise, key_mask = jax.random.split(key, 3)
    n = NUM_UNITS
    x = jax.random.normal(key_x, (n + 1, 2))
    y = x @ jnp.array([2.0, 1.0]) + 0.5 * jax.random.normal(key_noise, (n + 1,))
    hidden = jax.random.bernoulli(key_mask, jnp.array([[0.3, 0.1]]), (n + 1, 2))
    hidden = hidden.at[n].set(jnp.array([True, False]))
    x = jnp.where(hidden, jnp.nan, x)
    data = scores.Absolute(), x[:n], y[:n]
    pooled = jaxcp.split_conformal(_linear, None, *data)
    cp = jaxcp.calibrate_masked(_linear, None, *data)
    sets = {"naive": pooled(x[n:], ALPHA), "right": cp(x[n:], ALPHA)}
    return {way: found.contains(y[n:])[0] for way, found in sets.items()}


def _linear(_, x):
    return jnp.nan_to_num(x) @ jnp.array([2.0, 1.0])


def selected(key: Array, rule: object) -> dict:
    """Covers each row that is selected, others are NaN; large predictions err most."""
    key_x, key_y = jax.random.split(key)
    n, m = NUM_SELECTABLE
    pred = jax.random.normal(key_x, (n + m,))
    y = pred + jnp.where(pred > 0.5, 3, 1) * jax.random.normal(key_y, (n + m,))
    data = scores.Absolute(), pred[:n], y[:n]
    found = selection.calibrate_selected(*data, rule=rule)(pred[n:], ALPHA)
    pooled = jaxcp.calibrate(*data)(pred[n:], ALPHA)
    hits = (metrics.covered(sets, y[n:]) for sets in (pooled, found.sets))
    known = [jnp.where(found.selected, hit, jnp.nan) for hit in hits]
    return dict(zip(("naive", "right"), known, strict=True))


DESIGNS: dict[tuple[str, str], Callable] = {  # and the method for each
    ("a row of a new cluster", "rows weigh 1/N"): clusters,
    ("the same, with ties", "rows weigh 1/N"): partial(clusters, ties=True),
    ("all rows of a new cluster", "largest errors"): partial(clusters, together=True),
    ("labels with other shares", "ratios of shares"): labels,
    ("the treated outcome", "1 / e"): outcomes,
    ("the same, e known within a box", "bounds"): partial(outcomes, boxed=True),
    ("a bound of censored times", "1 / P(C >= c)"): times,
    ("a row without its first input", "rows hidden alike"): missing,
    ("the 3 largest of 8", "rows in their place"): partial(
        selected, rule=selection.top(3)
    ),
    ("8 rows tested, y > 0.5", "rows in their place"): partial(
        selected, rule=selection.by_p_values(0.5, 0.4)
    ),
    ("all claims true", "scores of answers"): partial(claims, share=1.0),
    ("0.7 of the claims true", "scores of answers"): partial(claims, share=0.7),
}


def line(design: str, method: str) -> dict:
    """Returns how often a design is covered, naively and rightly."""
    key = jax.random.fold_in(jax.random.key(0), [*DESIGNS].index((design, method)))
    found = jaxcp.simulate(DESIGNS[design, method], key, NUM_TRIALS)
    row: dict = {"design": design, "method": method, "promised": 1 - ALPHA}
    for way, covered in found.items():
        rate = float(np.nanmean(covered))  # NaN: not selected
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
