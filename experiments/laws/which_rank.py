"""Which order statistic common recipes and libraries take, and the coverage of it.

`python -m experiments.laws.which_rank --out DIR`

The calibration scores are 1, ..., n, so that a threshold names its rank: 9.5 lies half
way between the 9th and the 10th. The coverage that follows is exact, for uniform
scores: rank / (n + 1), and 1 for an infinite threshold. The conformal rank is
ceil((n + 1) (1 - alpha)), and infinite if that is n + 1; to refuse is right there only.
Libraries take part where they are installed.
"""

import importlib.util
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results

ALPHA, SIZES = 0.1, (5, 9, 20, 99, 100)


def recipes() -> dict[str, Callable[[np.ndarray, float], float]]:
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


def peers() -> dict[str, Callable[[np.ndarray, float], float]]:
    """Returns the thresholds of the libraries that are installed."""
    known = {"crepes": by_crepes, "mapie": by_mapie, "deel": by_puncc}
    found = {n: f for n, f in known.items() if importlib.util.find_spec(n)}
    names = {"mapie": "MAPIE", "deel": "PUNCC"}
    return {names.get(name, name): f for name, f in found.items()}


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

        def fit(self, x, y, **options):
            return None

        def predict(self, x, **options):
            return np.zeros(len(x))

        def copy(self):
            return self

    cp = SplitCP(Zero(), train=False)
    cp.fit(X_calib=np.zeros((len(scores), 1)), y_calib=scores)
    return cp.predict(np.zeros((1, 1)), alpha=alpha)[2][0]


def rank_taken(threshold: Callable, n: int, alpha: float) -> float | None:
    """Returns which of n scores a threshold is; None if it is refused."""
    scores = np.arange(1.0, n + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(threshold(np.random.default_rng(0).permutation(scores), alpha))
    except Exception:
        return None


def rows() -> list[dict]:
    """Returns a row for each contender: the rank and coverage at each size."""
    ours = {"jaxcp": lambda s, a: float(jaxcp.conformal_quantile(s, a))}
    table = []
    for name, threshold in (ours | peers() | recipes()).items():
        row, right = {"threshold": name}, []
        for n in SIZES:
            taken = rank_taken(threshold, n, ALPHA)
            row[f"n = {n}"] = "refused" if taken is None else round(taken, 3)
            coverage = None if taken is None else min(taken / (n + 1), 1.0)
            row[f"coverage, {n}"] = coverage
            exact = exact_rank(n, ALPHA)
            right.append(taken == exact or (taken is None and exact == np.inf))
        table.append(row | {"right": f"{sum(right)} of {len(right)}"})
    return table


def exact_rank(n: int, alpha: float) -> float:
    """Returns the conformal rank in rational arithmetic, infinite for n + 1."""
    rank = -((n + 1) * (1 - Fraction(str(alpha))) // -1)
    return float(rank) if rank <= n else np.inf


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__).parse_args()
    exact = {"threshold": "conformal rank"}
    exact |= {f"n = {n}": exact_rank(n, ALPHA) for n in SIZES}
    table = [exact, *rows()]
    print_table(f"threshold of scores 1, ..., n at alpha = {ALPHA}", table)
    save_results(args.out, "which_rank", table, {"alpha": ALPHA, "sizes": SIZES})


if __name__ == "__main__":
    main()
