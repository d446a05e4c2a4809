"""Which order statistic verbs, libraries and common recipes take: an audit of ranks.

`python -m experiments.peers.ranks --out DIR`

The calibration scores are 1, ..., n, so that a threshold names its rank: 9.5 lies half
way between the 9th and the 10th. The coverage that follows is exact, for uniform
scores: rank / (n + 1), and 1 for an infinite threshold. The oracle is the conformal
rank ceil((n + 1) (1 - alpha)) in integers, infinite if that is n + 1; to refuse is
right there only. Our verbs are held against it at all n to 10^4 and chosen ones to
10^7, libraries and recipes at `SITES`. Libraries take part where they are installed.

After the audit of ranks in conformal libraries, DOI 10.5281/zenodo.21799203: written
anew, from its question.
"""

import importlib.metadata
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import scores
from jaxcp.predictive import calibrate_predictive

ALPHA, SIZES = 0.1, (5, 9, 20, 99, 100)
LEVELS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
FEW = (2, 4, 5, 8, 9, 10, 18, 19, 20, 29, 38, 39, 49, 50, 98, 99, 100, 199)
SITES = tuple(itertools.product(FEW, LEVELS))
MOST, ROWS, LARGE = 10_000, 2_000, 10_000_000
THOUSANDTHS, HUNDREDTHS = range(1, 1000), range(10, 1000, 10)
CHECKED = 1, 2, 10, 50, 100, 101, 200, 333, 500, 900, 999  # of a thousand

Threshold = Callable[[np.ndarray, float], float]


def recipes() -> dict[str, Threshold]:
    """Returns thresholds as code in the wild computes them, from scores and alpha."""

    def level(n, alpha):
        return np.ceil((n + 1) * (1 - alpha)) / n

    return {
        "np.quantile(s, 1 - a)": lambda s, a: np.quantile(s, 1 - a),
        "np.quantile(s, ceil((n+1)(1-a)) / n)": lambda s, a: np.quantile(
            s, min(level(len(s), a), 1)
        ),
        "the same, method='higher'": lambda s, a: np.quantile(
            s, min(level(len(s), a), 1), method="higher"
        ),
        "the same, inverted_cdf": lambda s, a: np.quantile(
            s, min(level(len(s), a), 1), method="inverted_cdf"
        ),
        "sorted(s)[int(n (1-a))]": lambda s, a: np.sort(s)[int(len(s) * (1 - a))],
        "sorted(s)[ceil(n (1-a)) - 1]": lambda s, a: np.sort(s)[
            int(np.ceil(len(s) * (1 - a))) - 1
        ],
        "sorted(s)[ceil((n+1)(1-a)) - 1], clipped": lambda s, a: np.sort(s)[
            min(int(np.ceil((len(s) + 1) * (1 - a))), len(s)) - 1
        ],
    }


def peers() -> dict[str, Threshold]:
    """Returns the thresholds of the libraries that are installed."""
    known = {
        ("crepes", "crepes"): by_crepes,
        ("mapie", "MAPIE"): by_mapie,
        ("deel", "puncc"): by_puncc,
        ("torchcp", "torchcp"): by_torchcp,
        ("statsforecast", "statsforecast"): by_statsforecast,
        ("sktime", "sktime"): by_sktime,
    }
    return {
        f"{name} {importlib.metadata.version(name)}": by
        for (module, name), by in known.items()
        if importlib.util.find_spec(module)
    }


def by_crepes(scores: np.ndarray, alpha: float) -> float:
    """Returns half the width of an interval of crepes."""
    from crepes import ConformalRegressor

    model = ConformalRegressor().fit(residuals=scores)
    return model.predict_int(np.zeros(1), confidence=1 - alpha)[0, 1]


def by_mapie(scores: np.ndarray, alpha: float) -> float:
    """Returns half the width of an interval of MAPIE."""
    from mapie.regression import SplitConformalRegressor
    from sklearn.dummy import DummyRegressor

    model = DummyRegressor(strategy="constant", constant=0.0).fit([[0.0]], [0.0])
    cp = SplitConformalRegressor(model, confidence_level=1 - alpha, prefit=True)
    cp.conformalize(np.zeros((len(scores), 1)), scores)
    return cp.predict_interval(np.zeros((1, 1)))[1][0, 1, 0]


def by_puncc(scores: np.ndarray, alpha: float) -> float:
    """Returns half the width of an interval of PUNCC."""
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.regression import SplitCP

    class Zero(BasePredictor):
        def __init__(self):
            super().__init__(model=None, is_trained=True)

        def fit(self, X, y, **options):
            return None

        def predict(self, X, **options):
            return np.zeros(len(X))

        def copy(self):
            return self

    cp = SplitCP(Zero(), train=False)
    cp.fit(X_calib=np.zeros((len(scores), 1)), y_calib=scores)
    return cp.predict(np.zeros((1, 1)), alpha=alpha)[2][0]


def by_torchcp(scores: np.ndarray, alpha: float) -> float:
    """Returns the threshold of TorchCP."""
    import torch
    from torchcp.utils.common import calculate_conformal_value

    return float(calculate_conformal_value(torch.tensor(scores), alpha))


def by_statsforecast(
    scores: np.ndarray, alpha: float, method: str = "conformal_error"
) -> float:
    """Returns half the width of a conformal interval of statsforecast."""
    from statsforecast.models import Naive
    from statsforecast.utils import ConformalIntervals

    # The last value is the forecast: its errors are the steps of the series.
    y, level = np.append(0.0, np.cumsum(scores)), round(100 * (1 - alpha))
    cut = ConformalIntervals(n_windows=len(scores), h=1, method=method)
    made = Naive(prediction_intervals=cut).forecast(y=y, h=1, level=[level])
    return float(made[f"hi-{level}"][0] - made["mean"][0])


def by_sktime(scores: np.ndarray, alpha: float) -> float:
    """Returns half the width of a conformal interval of sktime."""
    import pandas
    from sktime.forecasting.conformal import ConformalIntervals
    from sktime.forecasting.dummy import ForecastKnownValues

    # The forecast is zero. For one step, version 1.2 takes errors of two steps: the
    # errors of the series after its first two values.
    y, zeros = np.append(np.zeros(2), scores), np.zeros(len(scores) + 3)
    forecaster = ForecastKnownValues(pandas.Series(zeros))
    model = ConformalIntervals(forecaster, "conformal", initial_window=1)
    made = model.fit(pandas.Series(y), fh=[1]).predict_interval(coverage=1 - alpha)
    return float(made.to_numpy()[0, 1])


def rank_taken(threshold: Callable, n: int, alpha: float) -> float | None:
    """Returns which of n scores a threshold is; None if a ValueError refuses it."""
    scores = np.arange(1.0, n + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(threshold(np.random.default_rng(0).permutation(scores), alpha))
    except ValueError:
        return None


def taken_rows() -> list[dict]:
    """Returns a row for each contender: the rank and coverage at each size."""
    exact = {"threshold": "conformal rank"}
    table = [exact | {f"n = {n}": exact_rank(n, ALPHA) for n in SIZES}]
    for name, threshold in contenders().items():
        row = {"threshold": name}
        for n in SIZES:
            taken = rank_taken(threshold, n, ALPHA)
            row[f"n = {n}"] = "refused" if taken is None else round(taken, 3)
            row[f"coverage, {n}"] = None if taken is None else min(taken / (n + 1), 1.0)
        table.append(row)
    return table


def audit_rows() -> list[dict]:
    """Returns a row for each contender: at how many sites its rank is right."""
    return [
        {"threshold": name, **judged(threshold)}
        for name, threshold in contenders().items()
    ]


def contenders() -> dict[str, Threshold]:
    """Returns our threshold, those of libraries, and those of common recipes."""
    ours = {"jaxcp": lambda s, a: float(jaxcp.conformal_quantile(s, a))}
    return ours | peers() | recipes()


def judged(threshold: Threshold, sites: tuple = SITES) -> dict:
    """Returns how often a threshold is right, and in which way it is wrong."""
    found = {"right": 0, "too low": 0, "finite where infinite": 0, "too high": 0}
    found |= {"refused": 0}
    worst = 0.0
    for n, alpha in sites:
        taken, exact = rank_taken(threshold, n, alpha), exact_rank(n, alpha)
        found[verdict(taken, exact)] += 1
        if taken is not None:
            worst = min(worst, min(taken / (n + 1), 1.0) - (1 - alpha))
    return found | {"coverage below the promise by up to": round(-worst, 4) + 0.0}


def verdict(taken: float | None, exact: float) -> str:
    """Returns in which way a rank is wrong, or "right"; to refuse is right for inf."""
    if taken is None:
        return "right" if exact == np.inf else "refused"
    if np.isclose(taken, exact, rtol=0, atol=1e-9):  # sums of steps are rounded
        return "right"
    if exact == np.inf:
        return "finite where infinite"
    return "too low" if taken < exact else "too high"


def exact_rank(n: int, alpha: float) -> float:
    """Returns the conformal rank in rational arithmetic, infinite for n + 1."""
    rank = -((n + 1) * (1 - Fraction(str(alpha))) // -1)
    return float(rank) if rank <= n else np.inf


def exact_ranks(n: np.ndarray, thousandths: int) -> np.ndarray:
    """Returns conformal ranks in integers: n + 1 - floor((n + 1) a / 1000)."""
    return n + 1 - (n + 1) * thousandths // 1000


def verb_rows() -> list[dict]:
    """Returns a row for each verb of ours: the sites, and how many are right."""
    table = []
    for verb, where, checks in verbs():
        right = np.concatenate([np.ravel(v) for v in checks])
        counts = {"sites": right.size, "right": int(right.sum())}
        counts |= {"share right": float(right.mean())}
        table.append({"verb": verb, "where": where, **counts})
    return table


def verbs() -> Iterator[tuple[str, str, Iterator[np.ndarray]]]:
    """Yields our verbs, where they are checked, and whether each site is right."""
    every, rows = np.arange(MOST + 1), np.arange(ROWS + 1)
    large = np.array([*edges()])
    of = jaxcp.conformal_rank
    # A number is read as a decimal; counts on the device go another way.
    yield "conformal_rank", "all n to 10^4", ranks_right(of, every)
    yield "conformal_rank", "chosen n to 10^7", ranks_right(of, large)
    on_device = lambda n, a: of(jnp.asarray(n), a)  # noqa: E731
    yield (
        "conformal_rank, counts on the device",
        "all n to 10^4",
        ranks_right(on_device, every),
    )
    traced = lambda n, a: of(jnp.asarray(n), jnp.asarray(a))  # noqa: E731
    yield (
        "conformal_rank, alpha in an array",
        "all n to 2000",
        ranks_right(traced, rows),
    )
    yield (
        "conformal_rank, alpha in an array",
        "all n to 10^4, two digits",
        ranks_right(traced, every, HUNDREDTHS),
    )
    yield "conformal_quantile", "all n to 2000", quantiles_right(rows)
    yield "conformal_quantile", "n to 10^7", large_right()
    for name, threshold in held_verbs().items():
        yield name, "n to 200", sites_right(threshold)


def edges() -> Iterator[int]:
    """Yields n around powers of 2 and of 10 up to 10^7."""
    powers = {b**e for b in (2, 10) for e in range(3, 24) if b**e <= LARGE}
    yield from sorted({n + d for n in powers for d in (-2, -1, 0, 1)} - {LARGE + 1})


def ranks_right(of, n, levels=THOUSANDTHS) -> Iterator[np.ndarray]:
    """Yields whether ranks of all n are right, for each level in thousandths."""
    for a in levels:
        yield np.asarray(of(n, a / 1000)) == exact_ranks(n, a)


def quantiles_right(n) -> Iterator[np.ndarray]:
    """Yields whether thresholds of n of the scores 1, 2, ... have their ranks."""
    of = lambda s, a, m: jaxcp.conformal_quantile(s, a, mask=m)  # noqa: E731
    of = jax.jit(jax.vmap(of, (None, None, 0)))
    ordered = jnp.arange(1.0, len(n))
    held = ordered <= n[:, None]
    for a in CHECKED:
        exact = exact_ranks(n, a)
        found = of(ordered, jnp.asarray(a / 1000), held)
        yield np.asarray(found) == np.where(exact <= n, exact, np.inf)


def large_right() -> Iterator[np.ndarray]:
    """Yields whether thresholds of up to 10^7 scores have their ranks."""
    for n in (10**5, 10**6 - 1, 10**6, LARGE - 1, LARGE):
        mixed = jnp.asarray(np.random.default_rng(n).permutation(n) + 1.0)
        for a in CHECKED:
            exact = exact_ranks(n, a)
            found = float(jaxcp.conformal_quantile(mixed, a / 1000))
            yield np.array([found == exact])


def held_verbs() -> dict[str, Threshold]:
    """Returns thresholds of verbs that hold rows; all have 200, some masked."""
    center = np.zeros(200)

    def filled(s):
        return np.resize(s, 200), np.arange(200) < len(s)

    def plain(s, a, **options):
        y, mask = filled(s)
        cp = jaxcp.calibrate(scores.Absolute(), center, y, mask=mask, **options)
        return float(cp.quantile(a))

    def grouped(s, a):
        y, mask = filled(s)
        groups = np.where(mask, 1, 0)
        cp = jaxcp.calibrate_groups(scores.Absolute(), center, y, groups, num_groups=2)
        return float(cp.quantile(a)[1])

    def strange(s, a):
        # The largest of the scores, and of infinity, that is not refused.
        y, mask = filled(s)
        cp = jaxcp.calibrate(scores.Absolute(), center, y, mask=mask)
        tried = np.append(np.arange(1.0, 201), np.inf)
        p = np.asarray(cp.p_values(np.zeros(201), tried))
        return float(tried[p > a].max(initial=0.0))

    def system(s, a):
        y, mask = filled(s)
        found = calibrate_predictive(scores.Residual(), center, y, mask=mask)
        return float(found.quantile(np.zeros(1), 1 - a, side="upper")[0])

    return {
        "calibrate": plain,
        "calibrate, weights of one": lambda s, a: plain(s, a, weights=np.ones(200)),
        "calibrate_groups": grouped,
        "p_values": strange,
        "calibrate_predictive, one side": system,
    }


def sites_right(threshold: Threshold) -> Iterator[np.ndarray]:
    """Yields whether a threshold is right at each of the sites."""
    for n, alpha in SITES:
        taken = rank_taken(threshold, n, alpha)
        yield np.array([verdict(taken, exact_rank(n, alpha)) == "right"])


def main() -> None:
    """Prints and saves the tables."""
    args = arguments(__doc__).parse_args()
    about = {"alpha": ALPHA, "sizes": SIZES, "sites": len(SITES), "levels": LEVELS}
    tables = {"taken": taken_rows, "audit": audit_rows, "verbs": verb_rows}
    for name, made in tables.items():
        table = made()
        print_table(f"ranks: {name}", table)
        save_results(args.out, f"ranks_{name}", table, about)


if __name__ == "__main__":
    main()
