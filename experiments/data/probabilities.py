"""Calibrated probabilities: Venn-Abers beside isotonic regression and the raw ones.

`python -m experiments.data.probabilities --out DIR` (breast cancer, scikit-learn's
digits), or with `--data DIR` (MNIST in place of digits: t10k-images-idx3-ubyte.gz and
its labels).

A naive Bayes classifier, of principal components of the images, is fitted to a part of
the rows; another part calibrates, and the rest judges. Means over random splits, and
their standard errors. The log loss is infinite where a probability of 0 is wrong: such
splits are counted. Isotonic regression of classes is one for each against the rest,
divided by their sum.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.isotonic import IsotonicRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

from experiments.data.anomaly import digits
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import metrics
from jaxcp.predictive import merge_pairs, venn_abers, venn_abers_classes

NUM_SPLITS = {"breast cancer": 50, "digits": 10, "MNIST": 10}
SHARES = 0.4, 0.2  # that fit, and that calibrate
NUM_COMPONENTS, NUM_BINS = 30, 15


def isotonic(scores: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Returns scikit-learn's isotonic regression at new scores."""
    fit = IsotonicRegression(out_of_bounds="clip").fit(scores, labels)
    return fit.predict(test)


def of_event(probs: np.ndarray, labels: np.ndarray, test: np.ndarray) -> dict:
    """Returns the probabilities of class 1 by each way."""
    rows = probs[:, 1], labels, test[:, 1]
    p0, p1 = venn_abers(*rows)
    return {
        "raw": test[:, 1],
        "isotonic": isotonic(*rows),
        "Venn-Abers": np.asarray(merge_pairs(p0, p1, loss="log")),
    }


def of_classes(probs: np.ndarray, labels: np.ndarray, test: np.ndarray) -> dict:
    """Returns the probabilities of all classes by each way."""
    columns = zip(probs.T, test.T, strict=True)
    fits = [isotonic(s, labels == c, new) for c, (s, new) in enumerate(columns)]
    p = np.stack(fits, axis=1)
    p = np.where(p.sum(axis=1, keepdims=True) > 0, p, 1)  # all may be 0
    by_venn = {
        f"Venn-Abers, {scheme}": np.asarray(
            venn_abers_classes(probs, labels, test, scheme=scheme)
        )
        for scheme in ("pairs", "rest")
    }
    p = p / p.sum(axis=1, keepdims=True)
    return {"raw": test, "isotonic, rest": p} | by_venn


def judge(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Returns the scores of probabilities of one event, or of classes."""
    columns = np.stack([1 - p, p], axis=1) if p.ndim == 1 else p
    at_label = np.take_along_axis(columns, y[:, None], axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        log_loss = float(-np.mean(np.log(at_label)))
    kind = None if p.ndim == 1 else "top_label"
    p = np.clip(p, 0, 1)
    error = metrics.expected_calibration_error(p, y, num_bins=NUM_BINS, kind=kind)
    largest = columns.max(axis=1)
    hits = np.argmax(columns, axis=1) == y
    test = metrics.calibration_test(largest.clip(0, 1), hits, kind="kuiper")
    return {
        "log loss": log_loss,
        "Brier": float(metrics.brier_score(p, y)),
        "ECE": float(error),
        "Kuiper": float(test.statistic),
        "error": float(1 - np.mean(hits)),
    }


def splits(x: np.ndarray, y: np.ndarray, ways: Callable, num_splits: int) -> dict:
    """Returns the scores of every way on every split."""
    found = {}
    for i in range(num_splits):
        order = np.random.default_rng(i).permutation(len(y))
        ends = np.cumsum([int(share * len(y)) for share in SHARES])
        fit, held, new = np.split(order, ends)
        model = GaussianNB()
        if x.shape[1] > NUM_COMPONENTS:
            model = make_pipeline(PCA(NUM_COMPONENTS, random_state=0), model)
        model.fit(x[fit], y[fit])
        probs, test = model.predict_proba(x[held]), model.predict_proba(x[new])
        for way, p in ways(probs, y[held], test).items():
            found.setdefault(way, []).append(judge(p, y[new]))
    return found


def table(name: str, found: dict) -> list[dict]:
    """Returns means over splits, with their standard errors."""
    rows = []
    for way, scores in found.items():
        row = {"data": name, "probabilities": way}
        for key in scores[0]:
            values = np.array([s[key] for s in scores])
            finite = values[np.isfinite(values)]
            if key == "log loss":
                row["infinite splits"] = f"{np.mean(np.isinf(values)):.0%}"
                finite = values if len(finite) == len(values) else np.array([np.inf])
            row[key] = float(finite.mean())
            error = finite.std(ddof=1) / len(finite) ** 0.5 if len(finite) > 1 else 0.0
            row[f"+- {key}"] = float(error)
        rows.append(row)
    return rows


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    x, y = load_breast_cancer(return_X_y=True)
    rows = table("breast cancer", splits(x, y, of_event, NUM_SPLITS["breast cancer"]))
    name, x, y = digits(args.data)
    rows += table(name, splits(x, y.astype(int), of_classes, NUM_SPLITS[name]))
    print_table("Calibrated probabilities", rows)
    settings = {"splits": NUM_SPLITS, "bins": NUM_BINS, "shares": SHARES}
    save_results(args.out, "probabilities", rows, settings)


if __name__ == "__main__":
    main()
