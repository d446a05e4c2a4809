"""Every method of the library on real data, over random splits.

`python -m experiments.pictures.showcase --out DIR`; with `--quick` a part of them in a
minute, one picture, and the names of what is left out. The lines of that part are those
of the whole.

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

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
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
        showcase_methods,
        showcase_predictive,
        showcase_quick,
        showcase_risk,
        showcase_streams,
    )
    from experiments.pictures.showcase_methods import ALPHA, Method, Pool
    from experiments.tools.reporting import arguments, format_row, save_results
    from jaxcp import metrics
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    sys.exit(
        f"expected the package {package}, got none: the extra `experiments` brings it, "
        "pip install '.[experiments]'"
    )

LEGEND = """# coverage: mean over splits, or over a stream; +-: its standard error
# mean size: width of intervals (on streams of finite ones), number of labels, area,
# volume, share let through
# worst group: coverage of the worst half of the rows, class, or tenth of a stream
# without a guarantee, for contrast: unweighted, the jackknife, never updated, and of
# inputs that are filled in none for rows that lack some"""
COUNTS = {
    "methods": showcase_methods.NUM_METHODS,
    "detection": showcase_detection.NUM_METHODS,
    "risk": showcase_risk.NUM_METHODS,
    "conditional": showcase_conditional.NUM_METHODS,
    "predictive": showcase_predictive.NUM_METHODS,
    "missing": showcase_methods.NUM_MISSING,
}
SPLITS = {"": 400, "CV+, CQR": 200, "two outputs": 20, "many labels": 200}
SETTINGS = {"alpha": ALPHA, "splits": SPLITS, "seed": 0}
Parts = dict[str, Callable[[], Iterator[Method]]]
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


def parts(keys: Array, folder: Path | None, pools: dict[str, Pool]) -> Parts:
    """Returns the parts of the table; the last three use pools of those before."""
    key_conditional, key_predictive, key_missing = map(jax.random.key, (3, 4, 5))
    methods = showcase_methods
    return {
        "methods": lambda: methods.all_methods(keys[0], folder),
        "detection": lambda: showcase_detection.all_methods(keys[3]),
        "risk": lambda: showcase_risk.all_methods(keys[4], folder),
        "conditional": lambda: showcase_conditional.all_methods(key_conditional, pools),
        "predictive": lambda: showcase_predictive.all_methods(key_predictive, pools),
        "missing": lambda: methods.missing_methods(key_missing, pools),
    }


def numbered(made: Parts, quick: bool) -> Iterator[tuple[int, Method]]:
    """Yields methods with their numbers in the whole table, by which keys are drawn."""
    first = 0
    for name, make in made.items():
        found = zip(itertools.count(first), make(), strict=False)
        yield from showcase_quick.chosen(found, name) if quick else found
        first += COUNTS[name]


def lines(
    keys: Array, folder: Path | None, pools: dict[str, Pool], quick: bool
) -> Iterator[dict]:
    """Yields the line of each method over splits, and notes the pools."""
    for number, method in numbered(parts(keys, folder, pools), quick):
        yield evaluate(method, jax.random.fold_in(keys[1], number))
        pools.setdefault(method.pool.data, method.pool)


def shown(found: Iterator[dict], total: int) -> list[dict]:
    """Returns all lines, each of which is printed when it is there."""
    table = []
    with tqdm(found, total=total, unit="method", disable=None) as bar:
        for line in bar:
            table.append(line)
            bar.write(format_line(line))
    return table


def main() -> None:
    """Prints the table line by line and saves it with its figures."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with the real data")
    parser.add_argument("--quick", action="store_true", help="a part, in a minute")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(format_row({name: name for name in WIDTHS}, WIDTHS), flush=True)
    figures = showcase_quick if args.quick else showcase_figures
    count = showcase_quick.NUM_METHODS if args.quick else sum(COUNTS.values())
    keys, pools = jax.random.split(jax.random.key(0), 5), {}
    stream = showcase_streams.load(keys[2], args.data)
    found = itertools.chain(
        lines(keys, args.data, pools, args.quick),
        showcase_streams.lines(stream, ALPHA, figures.STREAMS),
    )
    table = shown(found, count + len(figures.STREAMS))
    print(LEGEND)
    save_results(args.out, figures.NAME, table, SETTINGS)
    figures.draw(args.out, table, pools, stream, ALPHA)


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
