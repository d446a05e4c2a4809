"""Risk control against its exact laws: CRC, PAC sets, betting, many hypotheses.

`python -m experiments.laws.risk_laws --out DIR`

The risk of CRC on rows of m labels, all independent and without ties, is Beta(c + 1,
nm - c), c = floor(m (alpha (n + 1) - 1)); PAC sets miss their level with a binomial
probability; the upper bound by betting lies below the mean with probability delta at
most, here where it comes closest; and no procedure for many hypotheses rejects a true
one with probability above delta. Beside betting stands MAPIE's bound, where MAPIE is
installed.
"""

import importlib.util
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import pvalues, risk, scores

ALPHA = DELTA = 0.1
NUM_REPLICATES, NUM_FAMILIES = 100_000, 20_000
SIZES = ((99, 4, "0.1"), (19, 3, "0.2"), (50, 7, "0.05"))  # n, m, alpha
BETS = ((50, 0.1), (200, 0.1), (500, 0.1), (500, 0.2), (2000, 0.05))  # n, delta
NUM_RUNS, NUM_MAPIE = 20_000, 2000
MEANS = {
    "Bernoulli(0.2)": 0.2,
    "Bernoulli(0.05)": 0.05,
    "Beta(0.3, 1.2)": 0.2,
    "Beta(2, 8)": 0.2,
    "thirds": 0.15,
}
NUM_HYPOTHESES = 20
CHAIN = np.eye(NUM_HYPOTHESES, k=1, dtype=np.float32)  # each hands on to the next
PROCEDURES = {
    "Bonferroni": pvalues.bonferroni,
    "Holm": pvalues.holm,
    "fixed sequence": pvalues.fixed_sequence,
    "fixed sequence, 4 starts": partial(
        pvalues.fixed_sequence, starts=tuple(range(0, NUM_HYPOTHESES, 5))
    ),
    "fallback graph": partial(
        pvalues.graphical,
        weights=np.full(NUM_HYPOTHESES, 1 / NUM_HYPOTHESES, np.float32),
        transitions=CHAIN,
    ),
}


def crc_law(n: int, m: int, alpha: str) -> tuple[int, int]:
    """Returns the parameters of the Beta law of the risk of CRC."""
    c = int(m * (Fraction(alpha) * (n + 1) - 1))
    return c + 1, n * m - c


def crc_threshold(n: int, m: int, alpha: float, delta: float | None, key: Array):
    """Returns the threshold for n rows of m labels whose scores are uniform.

    Its risk is the chance that another score is larger.
    """
    p = jax.random.uniform(key, (n, m))
    cp = risk.calibrate_risk(
        risk.false_negative_rate, scores.MultiLabel(), p, jnp.ones((n, m), bool)
    )
    return cp.quantile(alpha, delta=delta)


def crc_lines(key: Array) -> list[dict]:
    """Returns the law of the risk: its mean, and a Kolmogorov test against Beta."""
    lines = []
    for n, m, alpha in SIZES:
        trial = partial(crc_threshold, n, m, float(alpha), None)
        risks = 1 - np.asarray(jaxcp.simulate(trial, key, NUM_REPLICATES), float)
        law = stats.beta(*crc_law(n, m, alpha))
        lines.append(
            {"n x labels": f"{n} x {m}", "alpha": float(alpha)}
            | {"risk": float(risks.mean())}
            | {"+-": float(risks.std() / len(risks) ** 0.5), "exact": law.mean()}
            | {"Kolmogorov p-value": float(stats.kstest(risks, law.cdf).pvalue)}
        )
    return lines


def pac_threshold(n: int, delta: float | None, key: Array) -> Array:
    """Returns the threshold for n uniform scores, which is its coverage."""
    y = jax.random.uniform(key, (n,))
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(n), y)
    return cp.quantile(ALPHA, delta=delta)


def pac_lines(key: Array) -> list[dict]:
    """Returns how often sets cover less than 1 - alpha, and the exact chance of it."""
    lines = []
    for n in (99, 1000):
        for delta in (None, DELTA):
            trial = partial(pac_threshold, n, delta)
            coverage = np.asarray(jaxcp.simulate(trial, key, NUM_REPLICATES), float)
            rank = int(jaxcp.conformal_rank(n, ALPHA, delta=delta))
            lines.append(
                {"n": n, "delta": "none" if delta is None else delta, "rank": rank}
                | share("misses", coverage < 1 - ALPHA)
                # P(U_(k) < 1 - alpha): at least k of n below, at most n - k above.
                | {"exact": float(stats.binom(n, ALPHA).cdf(n - rank))}
                | {"at most": delta}
            )
    n, m = 99, 4
    for name, delta in (("CRC", None), ("RCPS", DELTA)):
        trial = partial(crc_threshold, n, m, ALPHA, delta)
        risks = 1 - np.asarray(jaxcp.simulate(trial, key, NUM_REPLICATES), float)
        lines.append(
            {"n": f"{n} x {m}, {name}", "delta": "none" if delta is None else delta}
            | share("misses", risks > ALPHA)
            | {"exact": float(misses(n, m, delta)), "at most": delta}
        )
    return lines


def misses(n: int, m: int, delta: float | None) -> float:
    """Returns the chance that the risk of n rows of m labels is above alpha."""
    c = crc_law(n, m, str(ALPHA))[0] - 1
    if delta is not None:
        c = int(m * n * risk.hoeffding_bentkus_level(n, ALPHA, delta) + 1e-9)
    return stats.beta(c + 1, n * m - c).sf(ALPHA)


def losses(law: str, n: int, key: Array) -> Array:
    """Returns n independent losses in [0, 1] of the law with this name."""
    kind, _, numbers = law.partition("(")
    if kind == "Bernoulli":
        return jax.random.bernoulli(key, float(numbers[:-1]), (n,)).astype(float)
    if kind == "Beta":
        a, b = (float(v) for v in numbers[:-1].split(", "))
        return jax.random.beta(key, a, b, (n,))
    p = jnp.array([0.7, 0.2, 0.05, 0.05])  # of 0, 1/3, 2/3 and 1
    return jax.random.choice(key, 4, (n,), p=p) / 3


def betting_misses(law: str, n: int, delta: float, key: Array) -> Array:
    """Returns whether the bound by betting lies below the mean.

    The bound is the largest mean that is not rejected: it lies below those that are.
    """
    p = risk.p_value(losses(law, n, key), MEANS[law], method="betting", delta=delta)
    return p <= delta


def betting_lines(key: Array) -> list[dict]:
    """Returns how often upper bounds by betting miss, and MAPIE's where installed."""
    with_mapie = importlib.util.find_spec("mapie") is not None
    lines = []
    for law in MEANS:
        for n, delta in BETS:
            slow = n == 2000 or law.startswith("Beta")
            runs = NUM_RUNS // 5 if slow else NUM_RUNS
            trial = partial(betting_misses, law, n, delta)
            found = np.asarray(jaxcp.simulate(trial, key, runs))
            cell = f"{law}, n = {n}, delta = {delta}"
            line = {"cell": cell} | share("misses", found) | {"at most": delta}
            if with_mapie and n <= 500:
                rows = np.asarray(drawn(key, partial(losses, law, n), NUM_MAPIE))
                line["MAPIE"] = mapie_misses(rows, MEANS[law], delta)
            lines.append(line)
    return lines


def drawn(key: Array, draw: Callable[[Array], Array], num: int) -> Array:
    """Returns `num` independent draws."""
    return jax.jit(jax.vmap(draw))(jax.random.split(key, num))


def mapie_misses(rows: np.ndarray, mean: float, delta: float) -> float:
    """Returns how often MAPIE's bound lies below the mean.

    Its risks are columns of one array: here the runs, at trial values on both sides of
    the mean. The bound of a run is the first that is rejected.
    """
    from mapie.risk_control.methods import get_r_hat_plus

    grid = np.array([0.0, mean, 1.0])
    low = [
        get_r_hat_plus(np.repeat(x[:, None], 3, 1), grid, "rcps", "wsr", delta, 0.25)[1]
        for x in rows.astype(float)
    ]
    return float(np.mean(np.array(low)[:, 0] <= mean))


def false_rejections(dependence: float, key: Array) -> dict:
    """Returns whether a procedure rejects any of 20 true hypotheses.

    The p-values are uniform, of normal numbers with this correlation.
    """
    key_common, key_own = jax.random.split(key)
    common = jax.random.normal(key_common)
    own = jax.random.normal(key_own, (NUM_HYPOTHESES,))
    z = dependence**0.5 * common + (1 - dependence) ** 0.5 * own
    p = jax.scipy.stats.norm.cdf(z)
    return {name: jnp.any(test(p, DELTA)) for name, test in PROCEDURES.items()}


def familywise_lines(key: Array) -> list[dict]:
    """Returns how often each procedure rejects a true hypothesis, by dependence."""
    lines = []
    for dependence in (0.0, 0.5, 1.0):
        trial = partial(false_rejections, dependence)
        found = jaxcp.simulate(trial, key, NUM_FAMILIES)
        lines += [
            {"procedure": name, "correlation": dependence}
            | share("rejects", np.asarray(values))
            | {"at most": DELTA}
            for name, values in found.items()
        ]
    return lines


def share(name: str, hits: np.ndarray) -> dict:
    """Returns how often something happens, with its standard error."""
    rate = float(np.mean(hits))
    return {name: rate, "+-": (rate * (1 - rate) / len(hits)) ** 0.5}


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__).parse_args()
    tables = {
        "crc": crc_lines,
        "pac": pac_lines,
        "betting": betting_lines,
        "familywise": familywise_lines,
    }
    settings = {"delta": DELTA, "replicates": NUM_REPLICATES, "seed": 0}
    for i, (name, lines_of) in enumerate(tables.items()):
        lines = lines_of(jax.random.fold_in(jax.random.key(0), i))
        print_table(name, lines)
        save_results(args.out, f"risk_laws_{name}", lines, settings)


if __name__ == "__main__":
    main()
