"""Conformal anomaly detection: one digit is nominal, the others are anomalies.

`python -m experiments.data.anomaly --out DIR` (scikit-learn's digits), or with
`--data DIR` (t10k-images-idx3-ubyte.gz and its labels).

Two detectors are fitted once on part of the nominal images: scikit-learn's isolation
forest, and a flax autoencoder whose score is the error of reconstruction. The other
nominal images are split at random into calibration and test rows, 2000 times, and
joined by anomalies. Over such splits the false positive rate at level alpha is exactly
floor(alpha (n + 1)) / (n + 1), and the false discovery rate is bounded by the level.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools import networks
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import outliers, plotting, pvalues

LEVELS = (0.05, 0.1, 0.2, 0.3)
NUM_SPLITS = 2000
DELTA = 0.1
EACH, GIVEN = "every row apart", f"given the set, delta = {DELTA}"
BH, STOREY = "Benjamini-Hochberg", "Storey"
STREAM = 100  # nominal images, and then as many anomalies


@dataclass(frozen=True)
class Pool:
    """Scores of the rows that no detector has seen; larger is stranger."""

    nominal: Array
    anomalies: Array
    num_calibration: int
    num_anomalies: int


def digits(folder: Path | None) -> tuple[str, np.ndarray, np.ndarray]:
    """Returns name, images in [0, 1] as rows, and labels."""
    if folder is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return "digits", x / 16, y

    def read(name, header):
        path = folder / name
        if not path.exists():
            raise FileNotFoundError(f"expected {path}, ten thousand digits of MNIST")
        return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)

    x = read("t10k-images-idx3-ubyte.gz", 16).reshape(10_000, -1) / 255
    return "MNIST", x, read("t10k-labels-idx1-ubyte.gz", 8)


def isolation_forest(key: Array, x: np.ndarray):
    """Returns the anomaly score of scikit-learn's isolation forest."""
    from sklearn.ensemble import IsolationForest

    seed = int(jax.random.bits(key)) % 2**31
    forest = IsolationForest(random_state=seed).fit(x)
    return lambda x: -forest.score_samples(x)


def autoencoder(key: Array, x: np.ndarray):
    """Returns the error of reconstruction of a network with a narrow middle."""
    center = x.mean(axis=0)

    def error(out, x):
        return jnp.sum((out - x) ** 2, axis=1)

    x = jnp.asarray(x - center)
    network = networks.train(key, error, x, x, num_out=x.shape[1], num_hidden=8)
    return lambda x: error(network(x - center), x - center)


DETECTORS = {"isolation forest": isolation_forest, "autoencoder": autoencoder}


def split(pool: Pool, key: Array) -> tuple[Array, Array, Array]:
    """Returns scores of calibration and test rows, and which of these are nominal."""
    key_nominal, key_anomalies = jax.random.split(key)
    nominal = jax.random.permutation(key_nominal, pool.nominal)
    n, shape = pool.num_calibration, (pool.num_anomalies,)
    strange = jax.random.choice(key_anomalies, pool.anomalies, shape, replace=False)
    is_nominal = jnp.arange(len(nominal) - n + len(strange)) < len(nominal) - n
    return nominal[:n], jnp.append(nominal[n:], strange), is_nominal


def trial(pool: Pool, key: Array) -> dict:
    """Returns what each procedure finds in one split, at every level."""
    scores, test, is_nominal = split(pool, key)
    p = outliers.outlier_p_values(scores, test)
    careful = outliers.conditional_outlier_p_values(scores, test, DELTA)
    found = {
        EACH: lambda a: p <= a,
        GIVEN: lambda a: careful <= a,
        BH: lambda a: pvalues.benjamini_hochberg(p, a),
        STOREY: lambda a: pvalues.storey_benjamini_hochberg(
            p, a, num_calibration=pool.num_calibration
        ),
    }

    def rates(flags):
        false, true = jnp.sum(flags & is_nominal), jnp.sum(flags & ~is_nominal)
        return {
            "false positives": false / jnp.sum(is_nominal),
            "false discoveries": false / jnp.maximum(false + true, 1),
            "power": true / jnp.sum(~is_nominal),
        }

    levels = jnp.asarray(LEVELS)
    return {
        name: jax.vmap(lambda a, f=procedure: rates(f(a)))(levels)
        for name, procedure in found.items()
    }


def table(detector: str, pool: Pool, results: dict) -> list[dict]:
    """Returns a line for each procedure and level: the rate it controls, and power."""
    n, lines = pool.num_calibration, []
    m = len(pool.nominal) - n
    share = m / (m + pool.num_anomalies)
    for name in (EACH, GIVEN, BH, STOREY):
        rates = results[name]
        for i, level in enumerate(LEVELS):
            exact = np.floor(level * (n + 1) + 1e-9) / (n + 1)
            controls, bound = {
                EACH: ("false positives", exact),
                GIVEN: ("false positives", level),
                BH: ("false discoveries", share * level),
                STOREY: ("false discoveries", level),
            }[name]
            rate = np.asarray(rates[controls][:, i])
            lines.append(
                {
                    "detector": detector,
                    "procedure": name,
                    "level": level,
                    "controls": controls,
                    "rate": float(rate.mean()),
                    "+-": float(rate.std() / len(rate) ** 0.5),
                    "bound": float(bound),
                    "power": float(rates["power"][:, i].mean()),
                }
            )
    return lines


def draw_p_values(pools: dict[str, Pool], key: Array):
    """Draws the p-values of one split, nominal rows and anomalies apart."""
    figure, axes = plt.subplots(1, len(pools), figsize=(10, 4), layout="constrained")
    for ax, (name, pool) in zip(axes, pools.items(), strict=True):
        scores, test, is_nominal = split(pool, key)
        p = outliers.outlier_p_values(scores, test)
        plotting.plot_p_values(p, is_nominal, num_bins=20, ax=ax)
        ax.set_title(name)
    return figure


def draw_rates(lines: list[dict]):
    """Draws the rates that are controlled against their levels."""
    detectors = list(dict.fromkeys(line["detector"] for line in lines))
    figure, axes = plt.subplots(
        1, len(detectors), figsize=(10, 4), sharey=True, layout="constrained"
    )
    for ax, detector in zip(axes, detectors, strict=True):
        ax.plot([0, max(LEVELS)], [0, max(LEVELS)], "k--", linewidth=0.8)
        mine = [line for line in lines if line["detector"] == detector]
        for name in dict.fromkeys(line["procedure"] for line in mine):
            rows = [line for line in mine if line["procedure"] == name]
            what = f"{name}: {rows[0]['controls']}"
            ax.plot(LEVELS, [line["rate"] for line in rows], "o-", ms=4, label=what)
        ax.set(title=detector, xlabel="level")
    axes[0].set_ylabel("rate")
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def draw_stream(pools: dict[str, Pool], key: Array):
    """Draws the capital of three martingales; anomalies come after `STREAM` images."""
    martingales = {
        "simple jumper": pvalues.SimpleJumper(),
        "mixture": pvalues.MixtureMartingale(),
        "power, epsilon 0.7": pvalues.PowerMartingale(0.7),
    }
    figure, axes = plt.subplots(1, len(pools), figsize=(10, 4), layout="constrained")
    key_before, key_after, key_u = jax.random.split(key, 3)  # one stream of images
    for ax, (name, pool) in zip(axes, pools.items(), strict=True):
        before = jax.random.permutation(key_before, pool.nominal)[:STREAM]
        after = jax.random.permutation(key_after, pool.anomalies)[:STREAM]
        stream = jnp.append(before, after)
        u = jax.random.uniform(key_u, stream.shape)
        p = pvalues.sequential_p_values(stream, u)
        for label, martingale in martingales.items():
            _, log_capital = pvalues.watch(martingale, p)
            ax.plot(log_capital / np.log(10), label=label)
        alarm = pvalues.alarm_level(0.01) / np.log(10)
        ax.axhline(alarm, color="C5", linestyle="--", label="alarm, 0.01")
        ax.axvline(len(before), color="gray", linewidth=0.8, label="anomalies come")
        ax.set(title=name, xlabel="image")
    axes[0].set_ylabel("log10 of the capital")
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def main() -> None:
    """Prints the table, saves it and the figures."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with MNIST's test images")
    parser.add_argument("--digit", type=int, default=1, help="the nominal digit")
    args = parser.parse_args()
    data, x, y = digits(args.data)
    key_order, key_fit, key_split, *key_figures = jax.random.split(jax.random.key(0), 5)
    order = np.asarray(jax.random.permutation(key_order, len(x)))
    x, is_nominal = x[order], y[order] == args.digit
    nominal, strange = x[is_nominal], x[~is_nominal]
    num_train = len(nominal) // 3
    n = len(nominal) // 2 // 20 * 20 - 1  # so that alpha (n + 1) is whole
    lines, pools = [], {}
    for name, fit in DETECTORS.items():
        score = fit(key_fit, nominal[:num_train])
        rows = [jnp.asarray(score(v)) for v in (nominal[num_train:], strange)]
        pools[name] = Pool(*rows, n, len(nominal) // 10)
        results = jaxcp.simulate(
            lambda key, pool=pools[name]: trial(pool, key),
            key_split,
            NUM_SPLITS,
            batch_size=500,
            progress=True,
        )
        lines += table(name, pools[name], results)
    title = f"{data}: {args.digit} is nominal, n = {n}, {NUM_SPLITS} splits"
    print_table(title, lines)
    settings = {"data": data, "digit": args.digit, "n": n, "splits": NUM_SPLITS}
    save_results(args.out, "anomaly", lines, settings)
    for name, figure in {
        "anomaly_p_values": draw_p_values(pools, key_figures[0]),
        "anomaly_rates": draw_rates(lines),
        "anomaly_stream": draw_stream(pools, key_figures[1]),
    }.items():
        save_figure(figure, args.out, name)


if __name__ == "__main__":
    main()
