"""Every method of the library on real data, over random splits.

`python -m experiments.pictures.showcase --out DIR`

Models are trained once on a part of each data set that is then set aside; the rest is
split at random into calibration and test rows, 400 times in one program for each method
(200 times for CV+ of quantiles and many labels, 20 times for two outputs). Over such
splits the mean coverage of an exact method is k / (n + 1). Full conformal prediction
and the jackknife family fit on the calibration rows themselves. The stream methods run
once along an hourly series: solar radiation with `--data DIR`, else a generated one;
their worst group is the worst tenth of the stream. Two outputs, the loads of buildings,
are those of energy.csv with `--data DIR`, else generated; their size is a volume. Many
labels are those of COCO, else generated. For anomalies the coverage is one minus the
false positive rate and the size the share of anomalies let through; for boxes the size
is an area, for bounds from one side the mean bound; for risk control the coverage is
one minus the false negative rate. With delta all calibration sets but a share delta
cover as much.
"""

import time
from itertools import chain
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm.auto import tqdm

import jaxcp
from experiments.pictures import (
    showcase_conditional,
    showcase_detection,
    showcase_figures,
    showcase_predictive,
    showcase_risk,
    showcase_streams,
)
from experiments.pictures.showcase_methods import (
    ALPHA,
    NUM_METHODS,
    Method,
    all_methods,
    missing_methods,
)
from experiments.tools.reporting import arguments, format_row, save_results
from jaxcp import metrics

LEGEND = """# coverage: mean over splits, or over a stream; +-: its standard error
# mean size: width of intervals (on streams of finite ones), number of labels, area,
# volume, share let through
# worst group: coverage of the worst half of the rows, class, or tenth of a stream
# without a guarantee, for contrast: unweighted, the jackknife, never updated, and of
# inputs that are filled in none for rows that lack some"""
WIDTHS = {
    "method": 24,
    "coverage": 8,
    "+-": 6,
    "target": 6,
    "mean size": 9,
    "worst group": 11,
    "seconds": 7,
    "data": 14,
}


def evaluate(method: Method, key: Array) -> dict:
    """Returns the line of a method, from all splits in one vmapped program."""
    pool = method.pool

    def trial(key):
        key_split, key_tilt = jax.random.split(key)
        order = jax.random.permutation(key_split, len(pool.y))
        calibration, test = jnp.split(order, [pool.num_calibration])
        if method.tilt is not None:
            p = method.tilt(pool.x)[test]
            test = jax.random.choice(key_tilt, test, test.shape, p=p / jnp.sum(p))
        sets = method.sets(pool, calibration, test)
        return {"size": method.size(sets)} | covered(method, sets, test)

    start = time.perf_counter()
    num_splits = method.num_splits
    results = jaxcp.simulate(trial, key, num_splits, batch_size=num_splits)
    results = jax.tree.map(np.asarray, results)
    return {
        "method": method.name,
        "coverage": float(results["coverage"].mean()),
        "+-": float(results["coverage"].std() / num_splits**0.5),
        "target": 1 - ALPHA,
        "mean size": float(results["size"].mean()),
        "+- size": size_error(results["size"]),
        "worst group": float(np.nanmean(results["by group"], axis=0).min()),
        "seconds": time.perf_counter() - start,
        "data": pool.data,
    }


def size_error(sizes: np.ndarray) -> float | None:
    """Returns the standard error of the mean size, None where one is infinite."""
    finite = np.isfinite(sizes).all()
    return float(sizes.std() / len(sizes) ** 0.5) if finite else None


def covered(method: Method, sets, test: Array) -> dict:
    """Returns the coverage of sets of these test rows, of all and of each group."""
    pool, y = method.pool, method.pool.y[test]
    groups, k = pool.groups[test], pool.num_groups
    if method.hits is None:
        by_group = metrics.group_coverage(sets, y, groups, num_groups=k)
        return {"coverage": metrics.coverage(sets, y), "by group": by_group}
    hits, one = method.hits(sets, y), jax.nn.one_hot(groups, k)
    by_group = hits @ one / jnp.sum(one, axis=0)
    return {"coverage": jnp.mean(hits), "by group": by_group}


def main() -> None:
    """Prints the table line by line and saves it with its figures."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with the real data")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    key_models, key_splits, key_stream, key_more, key_labels = jax.random.split(
        jax.random.key(0), 5
    )
    print(format_row({name: name for name in WIDTHS}, WIDTHS))
    table, pools = [], {}
    total = NUM_METHODS + len(showcase_streams.METHODS)
    total += showcase_detection.NUM_METHODS + showcase_risk.NUM_METHODS
    total += showcase_conditional.NUM_METHODS + showcase_predictive.NUM_METHODS
    with tqdm(desc="methods", total=total, unit="method", disable=None) as bar:
        methods = chain(
            all_methods(key_models, args.data),
            showcase_detection.all_methods(key_more),
            showcase_risk.all_methods(key_labels, args.data),
            showcase_conditional.all_methods(jax.random.key(3), pools),
            showcase_predictive.all_methods(jax.random.key(4), pools),
            missing_methods(jax.random.key(5), pools),
        )
        for i, method in enumerate(methods):
            table.append(evaluate(method, jax.random.fold_in(key_splits, i)))
            pools.setdefault(method.pool.data, method.pool)
            bar.write(format_line(table[-1]))
            bar.update()
        stream = showcase_streams.load(key_stream, args.data)
        for line in showcase_streams.lines(stream, ALPHA):
            table.append(line)
            bar.write(format_line(line))
            bar.update()
    print(LEGEND)
    settings = {
        "alpha": ALPHA,
        "splits": {"": 400, "CV+, CQR": 200, "two outputs": 20, "many labels": 200},
        "seed": 0,
    }
    save_results(args.out, "showcase", table, settings)
    showcase_figures.draw(args.out, table, pools, stream, ALPHA)


def format_line(line: dict) -> str:
    """Returns a line of the table: the name first, then the coverage as 0.xxx."""
    digits = {"mean size": 2, "seconds": 1, "+-": 4}
    shown = {
        name: f"{v:.{digits.get(name, 3)}f}" if isinstance(v, float) else v
        for name, v in line.items()
    }
    return format_row(shown, WIDTHS)


if __name__ == "__main__":
    main()
