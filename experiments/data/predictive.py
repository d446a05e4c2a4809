"""Predictive distributions of real targets: plain, normalized, Mondrian, full.

`python -m experiments.data.predictive --data DIR [--out DIR]`: house.csv, concrete.csv
and abalone.csv in DIR; without it scikit-learn's diabetes.

House prices are split as in the notebook of crepes, once, with its seed; they are
scaled to [0, 1], and intervals clipped to it, as there. The others are split at random,
and figures are means over splits. A forest predicts. Normalized systems divide by the
variance of its trees, Mondrian ones have five groups of predictions, with edges from
rows out of the bag: crepes takes those of the rows that calibrate. Quantiles are those
of the predictions of the trees, whose leaves have few rows each: a quantile forest.
Full conformal prediction is of a ridge on all rows that the others fit and calibrate
with.

`PIT p` is that of `pit_test`, the median over splits, and `p < 0.05` the share of
splits. Groups are tested apart, and their smallest p-value is multiplied by their
number. Values of full conformal prediction are uniform, but together they do not follow
the law of the test.
"""

import csv
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import train_test_split

import jaxcp
from experiments.data.width_training import concrete
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import certificates, learners, scores
from jaxcp.predictive import calibrate_predictive

ALPHA, NUM_GROUPS, BETA, BLOCK = 0.1, 5, 0.01, 500
LEVELS = (0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95)
NUM_SPLITS, NUM_TREES = 10, 100
HOUSE_TREES, HOUSE_SEED = 500, 602211023  # of the notebook of crepes
DATE = (0, 4), (4, 6), (6, 8)  # year, month, day
PUBLISHED = {  # there, by crepes 0.5: CRPS, and mean width in [0, 1]
    "plain": (0.0074, 0.0423),
    "normalized": (0.0070, 0.0464),
    "Mondrian": (0.0071, 0.0419),
    "Mondrian, normalized": (0.0068, 0.0449),
}


class Part(NamedTuple):
    """Rows, what the models predict for them, and their groups."""

    x: np.ndarray
    y: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    quantiles: np.ndarray
    groups: np.ndarray


class Judged(NamedTuple):
    """What is known of each test row: CRPS, ends of its interval, and its PIT."""

    crps: np.ndarray
    ends: tuple[np.ndarray, np.ndarray]
    pit: np.ndarray


def house(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns 21,613 sales in King County, and prices scaled to [0, 1]."""
    with (folder / "house.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    names = [name for name in table[0] if name not in ("id", "date", "price")]
    x = [[float(row[name]) for name in names] for row in table]
    dates = [[float(row["date"][i:j]) for i, j in DATE] for row in table]
    price = np.array([float(row["price"]) for row in table])
    scaled = (price - price.min()) / (price.max() - price.min())
    return np.concatenate([x, dates], axis=1), scaled


def abalone(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns 4,177 shells, their sex as flags, and numbers of rings."""
    table = np.loadtxt(folder / "abalone.csv", delimiter=",", dtype=str)
    sex = table[:, :1] == np.array([["F", "I", "M"]])
    x = np.concatenate([sex, table[:, 1:-1].astype(float)], axis=1)
    return x, table[:, -1].astype(float)


def parts_of(x: np.ndarray, y: np.ndarray, seed: int) -> list[tuple]:
    """Returns half of the rows that fit, a quarter that calibrates, one that tests."""
    order = np.random.default_rng(seed).permutation(len(y))
    ends = len(y) // 2, len(y) * 3 // 4
    return [(x[rows], y[rows]) for rows in np.split(order, ends)]


def as_crepes(x: np.ndarray, y: np.ndarray) -> list[tuple]:
    """Returns the rows that fit, that calibrate and that test, of crepes' notebook."""
    state = np.random.RandomState(HOUSE_SEED)
    split = partial(train_test_split, random_state=state)
    x, x_new, y, y_new = split(x, y, test_size=0.5)
    x, x_held, y, y_held = split(x, y, test_size=0.25)
    return [(x, y), (x_held, y_held), (x_new, y_new)]


def predicted(fit: tuple, others: list[tuple], num_trees: int) -> list[Part]:
    """Returns other rows with what models of the first rows predict for them."""
    options = {"n_estimators": num_trees, "oob_score": True, "n_jobs": -1}
    forest = RandomForestRegressor(random_state=0, **options).fit(*fit)
    known = np.var(trees(forest, fit[0]), axis=0)
    least, most = known.min(), known.max()
    shares = np.linspace(0, 1, NUM_GROUPS + 1)[1:-1]
    edges = np.quantile(forest.oob_prediction_, shares)

    def part(x, y):
        each = trees(forest, x)
        mu, share = each.mean(0), (each.var(0) - least) / (most - least)
        quantiles = np.quantile(each, LEVELS, axis=0).T
        groups = np.searchsorted(edges, mu)
        return Part(x, y, mu, np.clip(share, 0, 1) + BETA, quantiles, groups)

    return [part(*rows) for rows in others]


def trees(forest: RandomForestRegressor, x: np.ndarray) -> np.ndarray:
    """Returns what each tree of a forest predicts for each input, shape (t, m)."""
    return np.stack([tree.predict(x) for tree in forest.estimators_])


def systems(held: Part, new: Part, u: np.ndarray) -> dict[str, Judged]:
    """Returns what split conformal systems say of the test rows."""
    ways = {
        "plain": (scores.Residual(), "mu"),
        "normalized": (scores.ScaledResidual(), "sigma"),
        "quantiles": (scores.PredictedQuantiles(jnp.array(LEVELS)), "quantiles"),
    }
    take = lambda rows, name: (  # noqa: E731
        (rows.mu, rows.sigma) if name == "sigma" else getattr(rows, name)
    )
    found = {}
    for way, (score, name) in ways.items():
        old, now = take(held, name), take(new, name)
        made = {way: calibrate_predictive(score, old, held.y)}
        if name != "quantiles":
            grouped = "Mondrian" if way == "plain" else f"Mondrian, {way}"
            own = {"groups": held.groups, "num_groups": NUM_GROUPS}
            made[grouped] = calibrate_predictive(score, old, held.y, **own)
        for title, system in made.items():
            own = {"groups": new.groups} if title != way else {}
            pit = system.cdf(now, new.y, u=u, **own)
            ends = system(now, ALPHA, **own).ends()
            found[title] = Judged(system.crps(now, new.y, **own), ends, pit)
    return found


def full(known: tuple, new: tuple, u: np.ndarray) -> Judged:
    """Returns what full conformal prediction of a ridge says of the test rows."""
    x, y = known
    center, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1)
    key, ridge, signed = jax.random.key(0), learners.Ridge(1.0), scores.Signed()
    standard = lambda v: (v - center) / scale  # noqa: E731
    cp = jaxcp.full_conformal(key, ridge, signed, standard(x), y)
    parts = []
    for start in range(0, len(u), BLOCK):
        rows = slice(start, start + BLOCK)
        atoms, asked = cp.predictive(standard(new[0][rows])), new[1][rows]
        ends = [atoms.quantile(ALPHA / 2, side="lower")]
        ends.append(atoms.quantile(1 - ALPHA / 2, side="upper"))
        parts.append((atoms.crps(asked), *ends, atoms.cdf(asked, u=u[rows])))
    crps, lower, upper, pit = (np.concatenate(v) for v in zip(*parts, strict=True))
    return Judged(crps, (lower, upper), pit)


def p_value(pit: np.ndarray, n: np.ndarray, groups: np.ndarray) -> float:
    """Returns that of the test of PIT values, of n calibration rows in each group."""
    tests = [
        certificates.pit_test(pit[groups == g], int(n[g])).p_value
        for g in np.unique(groups)
    ]
    return min(1.0, min(tests) * len(tests))


def one(
    parts: list[tuple],
    num_trees: int,
    seed: int,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> dict[str, dict]:
    """Returns the figures of every way on one split, of intervals within limits."""
    fit, old, test = parts
    held, new = predicted(fit, [old, test], num_trees)
    u = np.random.default_rng(seed).random(len(new.y))
    found = systems(held, new, u)
    known = tuple(np.concatenate(v) for v in zip(fit, old, strict=True))
    found["full conformal, ridge"] = full(known, test, u)
    counts = {"Mondrian": np.bincount(held.groups, minlength=NUM_GROUPS)}
    rows = {}
    for way, (crps, ends, pit) in found.items():
        lower, upper = (np.clip(np.asarray(v), *limits) for v in ends)
        alone = np.array([len(known[1] if way.startswith("full") else held.y)])
        n = counts.get(way.split(",")[0], alone)
        groups = new.groups if len(n) > 1 else np.zeros(len(new.y), int)
        rows[way] = {
            "CRPS": float(np.mean(crps)),
            "width": float(np.mean(upper - lower)),
            "coverage": float(np.mean((lower <= new.y) & (new.y <= upper))),
            "PIT p": p_value(np.asarray(pit), n, groups),
        }
    return rows


def table(name: str, found: list[dict[str, dict]]) -> list[dict]:
    """Returns figures of all splits of a data set, with standard errors of several."""
    rows, count = [], len(found)
    for way in found[0]:
        row = {"data": name, "splits": count, "system": way}
        for key in ("CRPS", "width", "coverage"):
            values = np.array([rows[way][key] for rows in found])
            row[key] = float(values.mean())
            known = count > 1 and np.isfinite(values).all()
            error = values.std(ddof=1) / count**0.5 if known else None
            row[f"+- {key}"] = None if error is None else float(error)
        p_values = np.array([rows[way]["PIT p"] for rows in found])
        row |= {"PIT p": float(np.median(p_values))}
        rows.append(row | {"p < 0.05": f"{np.mean(p_values < 0.05):.0%}"})
    return rows


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    folder = args.data
    rows = []
    if folder is not None:
        found = one(as_crepes(*house(folder)), HOUSE_TREES, 0, (0.0, 1.0))
        for row in table("house prices", [found]):
            crps, width = PUBLISHED.get(row["system"], (None, None))
            rows.append(row | {"CRPS, crepes": crps, "width, crepes": width})
        data = {"concrete": concrete(folder), "abalone": abalone(folder)}
    else:
        data = {"diabetes": load_diabetes(return_X_y=True)}
    for name, (x, y) in data.items():
        splits = [one(parts_of(x, y, i), NUM_TREES, i) for i in range(NUM_SPLITS)]
        rows += table(name, splits)
    print_table("Predictive distributions", rows)
    settings = {"alpha": ALPHA, "groups": NUM_GROUPS, "levels": LEVELS}
    settings |= {"trees": NUM_TREES, "trees, house prices": HOUSE_TREES}
    save_results(args.out, "predictive", rows, settings)


if __name__ == "__main__":
    main()
