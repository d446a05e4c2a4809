"""Coverage where it matters: at each x, in overlapping groups, and exactly on average.

`python -m experiments.laws.conditional [--data DIR] [--out DIR]`

Gibbs, Cherian, Candes: x ~ U(0, 5), y = Poisson(sin^2 x + 0.1) + 0.03 x e, and one row
in a hundred 25 e' more; a quartic fit on 2,000 rows, 1,000 calibration rows, signed
scores at alpha / 2 a side, ten cells of x as groups. Their figures are of one training
set, ours of another one in each trial: how far split misses in a cell hangs on the set.
They do not say whether their conditional sets are plain or randomized; theirs agree
with randomized ones in both cells, and overall lie between the two, nearer to these.
Sets by conditional calibration with uniforms are the intersection of two one-sided
ones, at alpha / 2 each with uniforms of its own.

Overlapping groups: E f(X) (covered - (1 - alpha)) for the flag f of each group, over
replicates of 60 calibration rows and one test point. Uniforms make it 0 exactly,
and without it is at most p / (n + 1) E max f(X_i) with p features.

With `--data DIR` also coverage in overlapping groups of concrete.csv and
communities.csv, over random splits in four parts.
"""

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
from jaxcp import learners, scores
from jaxcp.conditional import Gaussian
from jaxcp.sets import Interval

ALPHA = 0.1
NUM_FIT, NUM_CAL, NUM_TEST, NUM_TRIALS = 2000, 1000, 500, 200
NUM_CELLS, BANDWIDTH, DEGREE, END = 10, 0.25, 4, 5.0
PUBLISHED = {  # miscoverage: marginal, x in [1, 2], x in [3, 4]
    "split": (0.102, 0.187, 0.045),
    "conditional": (0.097, 0.098, 0.101),  # plain or randomized: not said
    "conditional, randomized": (0.097, 0.098, 0.101),
}
EXACT = {"conditional": 0.0905, "conditional, randomized": 0.1}  # all x, own values
REGIONS = {"all x": (0, 5), "1 to 2": (1, 2), "3 to 4": (3, 4)}
NUM_SETS, NUM_BINS = 200, 50  # training sets; bins of the figure
GROUP_ROWS, NUM_GROUP_TRIALS = 60, 100_000
GROUPS = ("all", "x < 2", "1 < x < 3.5", "x > 3")
NUM_SPLITS, REAL_BANDWIDTH = 40, 1.0  # of standardized columns of the groups
REAL = {  # groups: a column, and whether the rows above its quantile are meant
    "concrete": {
        "young": ("Age", 0.3, False),
        "much water": ("Water", 0.7, True),
        "fly ash": ("Fly Ash", 0.6, True),
        "much cement": ("Cement", 0.7, True),
    },
    "communities": {
        "large": ("population", 0.7, True),
        "poor": ("medIncome", 0.3, False),
        "black": ("racepctblack", 0.7, True),
        "hispanic": ("racePctHisp", 0.7, True),
    },
}
RIDGE = learners.Ridge(1.0)
KERNEL, REAL_KERNEL = Gaussian(BANDWIDTH), Gaussian(REAL_BANDWIDTH)
ABOVE = scores.Residual()


def draw(key: Array, n: int) -> tuple[Array, Array]:
    """Returns n rows of the law of Gibbs et al."""
    key_x, key_count, key_noise, key_rare = jax.random.split(key, 4)
    x = jax.random.uniform(key_x, (n,), maxval=END)
    count = jax.random.poisson(key_count, jnp.sin(x) ** 2 + 0.1)
    noise, far = jax.random.normal(key_noise, (2, n))
    rare = jax.random.bernoulli(key_rare, 0.01, (n,))
    return x, count + 0.03 * x * noise + 25 * rare * far


def powers(x: Array) -> Array:
    """Returns polynomials of x up to the fourth, of x in (-1, 1): as well-behaved."""
    return jnp.vander(2 * x / END - 1, DEGREE + 1, increasing=True)


def cells(x: Array) -> Array:
    """Returns the cell of each x, of ten."""
    return jnp.clip((x * NUM_CELLS / END).astype(int), 0, NUM_CELLS - 1)


def covered_by(
    key: Array,
    parts: tuple[tuple, tuple, tuple],
    num_groups: int = NUM_CELLS,
    kernel: Gaussian = KERNEL,
) -> dict[str, tuple]:
    """Returns which targets each method covers, and how wide its sets are.

    Parts are those for tau, for calibration and for tests, each (x, mu, y, features,
    groups): `groups` are the disjoint ones of Mondrian calibration, `x` what local
    weights are of. Tau is of other rows than those of calibration.
    """
    fit, old, new = parts
    x, mu, y, phi, groups = old
    x_new, mu_new, y_new, phi_new, groups_new = new
    signed, (key_u, key_anchors) = scores.Signed(), jax.random.split(key)
    of_groups = {"groups": groups_new}
    mondrian = jaxcp.calibrate_groups(signed, mu, y, groups, num_groups=num_groups)
    tau, tau_new = (quantiles(fit, part) for part in (old, new))
    rectified = jaxcp.calibrate(scores.Rectified(signed), (mu, tau), y)
    local = jaxcp.calibrate_local(signed, mu, y, x, kernel)
    conditional = jaxcp.calibrate_conditional(signed, mu, y, phi)
    sets = {
        "split": jaxcp.calibrate(signed, mu, y)(mu_new, ALPHA),
        "Mondrian": mondrian(mu_new, ALPHA, **of_groups),
        "conditional": conditional(mu_new, ALPHA, features=phi_new),
        "conditional, randomized": randomized(key_u, old, new),
        "RLCP": local(mu_new, ALPHA, x=x_new, anchors=kernel.draw(key_anchors, x_new)),
        "LCP": local(mu_new, ALPHA, x=x_new),
        "rectified": rectified((mu_new, tau_new), ALPHA),
    }
    return {k: (v.contains(y_new), v.upper - v.lower) for k, v in sets.items()}


def randomized(key: Array, old: tuple, new: tuple) -> Interval:
    """Returns [mu - q_0, mu + q_1], each end a randomized one at alpha / 2."""
    (_, mu, y, phi, _), (_, mu_new, _, phi_new, _) = old, new
    ends = []
    for key_side, sign in zip(jax.random.split(key), (-1, 1), strict=True):
        cp = jaxcp.calibrate_conditional(ABOVE, sign * mu, sign * y, phi)
        u = jax.random.uniform(key_side, mu_new.shape)
        ends.append(sign * cp(sign * mu_new, ALPHA / 2, features=phi_new, u=u).upper)
    return Interval(*ends)


def quantiles(fit: tuple, rows: tuple) -> Array:
    """Returns tau of both sides: the quantile of signed scores of other rows, in x."""
    _, mu, y, phi, _ = fit
    cp = jaxcp.calibrate_conditional(scores.Signed(), mu, y, phi)
    return jax.vmap(lambda phi: cp.quantile(ALPHA, features=phi))(rows[3])


def parts_of(key: Array) -> tuple[tuple, tuple, tuple]:
    """Returns fit, calibration and test rows, with the predictions of a quartic fit."""
    keys = jax.random.split(key, 3)
    drawn = [
        draw(k, n) for k, n in zip(keys, (NUM_FIT, NUM_CAL, NUM_TEST), strict=True)
    ]
    x, y = drawn[0]
    weights = jnp.linalg.lstsq(powers(x), y)[0]

    def part(x, y):
        in_cells = jax.nn.one_hot(cells(x), NUM_CELLS)
        return x[:, None], powers(x) @ weights, y, in_cells, cells(x)

    return tuple(part(*rows) for rows in drawn)


def trial(key: Array) -> dict[str, Array]:
    """Returns miscoverage of each method in each region, at each x, and widths."""
    key_data, key_sets = jax.random.split(key)
    parts = parts_of(key_data)
    x = parts[2][0][:, 0]
    inside = [(low <= x) & (x < high) for low, high in REGIONS.values()]
    bins = jax.nn.one_hot((x * NUM_BINS / END).astype(int), NUM_BINS)
    found = {"rows": bins.sum(0)}
    for name, (covered, width) in covered_by(key_sets, parts).items():
        shares = [jnp.sum(~covered & some) / jnp.sum(some) for some in inside]
        found[name] = {
            "miss": jnp.stack(shares),
            "covered": covered @ bins,
            "median width": jnp.median(width),
            "infinite": jnp.mean(jnp.isinf(width)),
        }
    return found


def table(found: dict) -> list[dict]:
    """Returns miscoverage beside what is published, and what is exact."""
    rows = []
    for name, values in found.items():
        if name == "rows":
            continue
        row = {"method": name}
        for i, region in enumerate(REGIONS):
            share = np.asarray(values["miss"])[:, i]
            row[region] = float(share.mean())
            row["+-" + " " * i] = float(share.std(ddof=1) / len(share) ** 0.5)
            row["published" + " " * i] = PUBLISHED.get(name, (None,) * 3)[i]
        row["exact"] = EXACT.get(name)
        row["median width"] = float(np.mean(values["median width"]))
        row["infinite"] = float(np.mean(values["infinite"]))
        rows.append(row)
    return rows


def agreement(rows: list[dict]) -> str:
    """Returns which conditional sets of a table are nearer to those of the authors.

    And how many of its errors each is off, for all x, in [1, 2] and in [3, 4].
    """
    told, worst = [], {}
    for row in rows:
        if row["method"] in EXACT:
            values = zip(REGIONS, PUBLISHED[row["method"]], strict=True)
            off = {
                region: abs(row[region] - value) / row["+-" + " " * i]
                for i, (region, value) in enumerate(values)
            }
            near = " and ".join(k for k, v in off.items() if v <= 3) or "none"
            errors = ", ".join(f"{v:.1f}" for v in off.values())
            told.append(f"{row['method']} ({errors} errors off, within 3: {near})")
            worst[row["method"]] = max(off.values())
    return f"nearer to {min(worst, key=worst.get)}, of {' and '.join(told)}"


def draw_figure(found: dict) -> plt.Figure:
    """Returns coverage along x, a panel for each method, and that of split in all."""
    x = (np.arange(NUM_BINS) + 0.5) * END / NUM_BINS
    panels_of = {
        "split": "split",
        "conditional": "conditional, plain; Mondrian",
        "conditional, randomized": "conditional, randomized",
        "rectified": "rectified",
        "RLCP": "RLCP",
        "LCP": "LCP",
    }
    in_cells = {"conditional", "conditional, randomized", "rectified"}
    total = np.asarray(found["rows"]).sum(0)
    along = {k: np.asarray(found[k]["covered"]).sum(0) / total for k in panels_of}
    figure, panels = plt.subplots(
        2, 3, figsize=(9.6, 4.8), sharex=True, sharey=True, layout="constrained"
    )
    for name, panel in zip(panels_of, panels.ravel(), strict=True):
        if name in in_cells:
            for edge in np.linspace(0, END, NUM_CELLS + 1)[1:-1]:
                panel.axvline(edge, color="0.92", linewidth=1, zorder=0)
        panel.axhline(1 - ALPHA, color="0.6", linewidth=1, linestyle="--")
        panel.plot(x, along["split"], color="0.7", linewidth=1.2)
        panel.plot(x, along[name], linewidth=2)
        panel.set_title(panels_of[name])
    low = min(v.min() for v in along.values())
    panels[0, 0].set(xlim=(0, END), ylim=(np.floor(20 * low) / 20, 1))
    panels[0, 1].text(4.5, 0.66, "split", color="0.5", ha="right")
    panels[0, 1].text(2.55, 0.78, "lines: ten cells", color="0.5")
    panels[0, 0].text(0.1, 0.905, "0.9", color="0.5", va="bottom")
    figure.supxlabel("x")
    figure.supylabel("coverage")
    return figure


def training_sets(key: Array, num_sets: int = NUM_SETS) -> dict:
    """Returns how far miscoverage of split differs between training sets.

    Means over 20 calibration sets for each: what the published figures, of one training
    set, may be by chance.
    """

    def one(key):
        keys = jax.random.split(key, 2)
        x, y = draw(keys[0], NUM_FIT)
        weights = jnp.linalg.lstsq(powers(x), y)[0]

        def missed(key):
            x, y = draw(key, NUM_CAL + 5000)
            mu, n = powers(x) @ weights, NUM_CAL
            cp = jaxcp.calibrate(scores.Signed(), mu[:n], y[:n])
            covered = cp(mu[n:], ALPHA).contains(y[n:])
            inside = [(low <= x[n:]) & (x[n:] < high) for low, high in REGIONS.values()]
            return jnp.stack([jnp.sum(~covered & v) / jnp.sum(v) for v in inside])

        return jax.vmap(missed)(jax.random.split(keys[1], 20)).mean(0)

    shares = np.asarray(jaxcp.simulate(one, key, num_sets, batch_size=20))
    row = {"method": "split, deviation between training sets"}
    return row | dict(zip(REGIONS, shares.std(0, ddof=1).tolist(), strict=True))


def group_flags(x: Array) -> Array:
    """Returns the flags of four groups that overlap, shape (..., 4)."""
    return jnp.stack([x == x, x < 2, (x > 1) & (x < 3.5), x > 3], -1).astype(float)


def group_trial(key: Array) -> dict[str, Array]:
    """Returns f(X) (covered - (1 - alpha)) of one test point, without and with u."""
    key_x, key_e, key_u = jax.random.split(key, 3)
    n = GROUP_ROWS
    x = jax.random.uniform(key_x, (n + 1,), maxval=END)
    s = jnp.abs(jax.random.normal(key_e, (n + 1,))) * (0.3 + x)
    phi, zero = group_flags(x), jnp.zeros(n + 1)
    cp = jaxcp.calibrate_conditional(scores.Absolute(), zero[:n], s[:n], phi[:n])
    u = jax.random.uniform(key_u, (1,))
    own = {"features": phi[n:]}
    sets = {
        "plain": cp(zero[n:], ALPHA, **own),
        "randomized": cp(zero[n:], ALPHA, u=u, **own),
    }
    surplus = lambda sets: phi[n] * (sets.contains(s[n:])[0] - (1 - ALPHA))  # noqa: E731
    most = len(GROUPS) / (n + 1) * jnp.max(phi, axis=0)
    found = {name: surplus(v) for name, v in sets.items()}
    return found | {"flags": phi[n], "at most": most}


def group_table(num_trials: int = NUM_GROUP_TRIALS) -> list[dict]:
    """Returns the surplus of coverage in each group over all replicates."""
    found = jaxcp.simulate(group_trial, jax.random.key(1), num_trials, batch_size=500)
    flags, rows = np.asarray(found.pop("flags")), []
    most = np.mean(found.pop("at most"), axis=0)
    for name, surplus in found.items():
        for i, group in enumerate(GROUPS):
            values = np.asarray(surplus)[:, i].astype(float)
            error = float(values.std() / len(values) ** 0.5)
            rows.append(
                {
                    "sets": name,
                    "group": group,
                    "surplus": float(values.mean()),
                    "+-": error,
                    "at most": float(most[i]) if name == "plain" else 0.0,
                    "errors": float(values.mean() / error),
                    "coverage": 1 - ALPHA + float(values.sum() / flags[:, i].sum()),
                }
            )
    return rows


def read(folder: Path, name: str) -> tuple[list[str], np.ndarray]:
    """Returns the names of columns, and complete columns as numbers, the target last.

    Of communities those without missing numbers that describe a place, not its name.
    """
    lines = (folder / f"{name}.csv").read_text().splitlines()
    if name == "concrete":
        names = lines.pop(0).split(",")
    else:
        names = (folder / "communities_attributes.csv").read_text().split()[1:]
    values = [line.split(",") for line in lines if line.strip()]
    skipped = {"state", "county", "community", "communityname", "fold"}
    kept = [
        i
        for i, column in enumerate(names[: len(values[0])])
        if column not in skipped and all(row[i].strip() != "?" for row in values)
    ]
    numbers = np.array([[float(row[i]) for i in kept] for row in values])
    return [names[i] for i in kept], numbers


def flags_of(name: str, names: list[str], x: np.ndarray) -> tuple[np.ndarray, list]:
    """Returns the flags of groups, (n, g), and the columns that they are of."""
    flags, columns = [], []
    for start, share, above in REAL[name].values():
        i = next(i for i, column in enumerate(names) if column.startswith(start))
        cut = np.quantile(x[:, i], share)
        flags.append(x[:, i] > cut if above else x[:, i] <= cut)
        columns.append(i)
    return np.stack(flags, 1), columns


def real(folder: Path, name: str) -> list[dict]:
    """Returns coverage in overlapping groups and widths, over random splits.

    A quarter of the rows each for the model, for tau, to calibrate and to test. The
    disjoint groups of Mondrian calibration are all combinations of flags.
    """
    names, data = read(folder, name)
    flags, columns = flags_of(name, names, data[:, :-1])
    x = data[:, :-1] - data[:, :-1].mean(0)
    x, y = x / np.maximum(x.std(0), 1e-9), data[:, -1]
    groups = flags @ 2 ** np.arange(flags.shape[1])
    phi = np.concatenate([np.ones((len(x), 1)), flags], 1)
    quarter = len(x) // 4
    x, y, phi = (jnp.asarray(v, jnp.float32) for v in (x, y, phi))

    @jax.jit
    def one(key):
        key_order, key_sets = jax.random.split(key)
        order = jax.random.permutation(key_order, len(x))[: 4 * quarter]
        mine, *rows = order.reshape(4, quarter)
        params = RIDGE.fit(key, x[mine], y[mine], jnp.ones(quarter))
        mu = RIDGE.predict(params, x)
        columns_of = x[:, np.array(columns)], mu, y, phi, groups
        parts = tuple(tuple(jnp.asarray(v)[some] for v in columns_of) for some in rows)
        found = covered_by(key_sets, parts, 2 ** flags.shape[1], REAL_KERNEL)
        return parts[2][3], found

    runs = [one(key) for key in jax.random.split(jax.random.key(2), NUM_SPLITS)]
    return real_table(name, runs)


def real_table(name: str, runs: list) -> list[dict]:
    """Returns coverage of each method, of all rows and in each group, and widths."""
    rows = []
    for method in runs[0][1]:
        pairs = [(np.asarray(phi), found[method]) for phi, found in runs]
        shares = [(np.asarray(c) @ phi) / phi.sum(0) for phi, (c, _) in pairs]
        widths = np.stack([np.asarray(width) for _, (_, width) in pairs])
        finite, share = np.isfinite(widths), np.mean(shares, 0)
        row = {"data": name, "method": method, "coverage": float(share[0])}
        row["+-"] = float(np.std([v[0] for v in shares]) / len(shares) ** 0.5)
        row |= {k: float(v) for k, v in zip(REAL[name], share[1:], strict=True)}
        row["mean width, finite"] = float(widths[finite].mean())
        rows.append(row | {"infinite": float(1 - finite.mean())})
    return rows


def main() -> None:
    """Prints and saves the tables and the figure."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    found = jaxcp.simulate(trial, jax.random.key(0), NUM_TRIALS, batch_size=2)
    rows = [*table(found), training_sets(jax.random.key(3))]
    print_table("The law of Gibbs, Cherian, Candes", rows)
    settings = {
        "alpha": ALPHA,
        "trials": NUM_TRIALS,
        "rows": [NUM_FIT, NUM_CAL, NUM_TEST],
    }
    settings |= {"bandwidth": BANDWIDTH, "seed": 0}
    settings["published conditional sets"] = agreement(rows)
    save_results(args.out, "conditional_law", rows, settings)
    save_figure(draw_figure(found), args.out, "conditional")
    rows, settings = group_table(), {"alpha": ALPHA, "rows": GROUP_ROWS, "seed": 1}
    print_table("Surplus of coverage in groups that overlap", rows)
    settings["replicates"] = NUM_GROUP_TRIALS
    save_results(args.out, "conditional_groups", rows, settings)
    for name in REAL if args.data else ():
        rows = real(args.data, name)
        print_table(f"Groups of {name}", rows)
        settings = {"alpha": ALPHA, "splits": NUM_SPLITS, "groups": REAL[name]}
        settings |= {"bandwidth": REAL_BANDWIDTH, "seed": 2}
        save_results(args.out, f"conditional_{name}", rows, settings)


if __name__ == "__main__":
    main()
