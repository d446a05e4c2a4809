"""APS sets of many classes: by jaxcp, numpy, MAPIE and PUNCC; and SAPS sets."""

import importlib.util
import json
import subprocess
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.timing import in_turns
from jaxcp import scores

ALPHA, NUM_CLASSES, NUM_ROWS = 0.1, 1000, 5000
SAPS = "jaxcp, SAPS"  # which is no way of APS


def label_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns calibration and test probabilities and calibration labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(2, NUM_ROWS, NUM_CLASSES))
    p = np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)
    y = np.array([rng.choice(NUM_CLASSES, p=row) for row in p[0]])
    return p[0].astype(np.float32), p[1].astype(np.float32), y


def numpy_aps(p: np.ndarray, p_test: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns APS sets as vectorized numpy computes them: by sorting every row."""

    def ranked(p):
        order = np.argsort(-p, axis=1)
        return order, np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)

    order, mass = ranked(p)
    rank = np.argmax(order == y[:, None], axis=1)
    calibration = mass[np.arange(len(y)), rank]
    k = int(jaxcp.conformal_rank(len(y), ALPHA))
    q = np.partition(calibration, k - 1)[k - 1]
    order, mass = ranked(p_test)
    sets = np.zeros(p_test.shape, bool)
    np.put_along_axis(sets, order, mass <= q, axis=1)
    return sets


def jaxcp_sets(score, p, p_test, y):
    """Returns the sets of a score, checks of the arguments included."""
    return jaxcp.calibrate(score, p, y)(p_test, ALPHA).mask


def label_times(puncc_python: str | None) -> list[dict]:
    """Times calibration and sets of APS with 1000 classes, 5000 + 5000 rows."""
    p, p_test, y = label_data()
    on_device = tuple(jnp.asarray(v) for v in (p, p_test, y))
    ours, theirs = (
        np.asarray(jaxcp_sets(scores.APS(), *on_device)),
        numpy_aps(p, p_test, y),
    )
    # The sums of numpy are rounded; ours are exact.
    assert np.mean(ours != theirs) < 1e-5
    calls = {
        "jaxcp": lambda: jaxcp_sets(scores.APS(), *on_device),
        SAPS: lambda: jaxcp_sets(scores.SAPS(0.1), *on_device),
        "numpy": lambda: numpy_aps(p, p_test, y),
    }
    if importlib.util.find_spec("mapie"):
        calls["MAPIE"] = lambda: mapie_aps(p, p_test, y)
    times = in_turns(calls, repeats=5)
    seconds = {name: v.median for name, v in times.items()}
    if puncc_python:
        seconds["PUNCC"] = puncc_seconds(puncc_python)
    return label_rows(seconds, times[SAPS].cpu / times["jaxcp"].cpu)


def label_rows(times: dict[str, float], of_saps: float) -> list[dict]:
    """Returns a row for each way of APS beside ours, and SAPS beside our APS.

    SAPS and APS are both ours, so that the time of all cores compares them.
    """
    at_least, rows = {"numpy": 1.0, "MAPIE": 3.0, "PUNCC": 3.0}, []
    for name, seconds in times.items():
        row = {"APS, 1000 classes, 5000 + 5000 rows": name, "ms": 1e3 * seconds}
        row["times jaxcp"] = None if name == SAPS else seconds / times["jaxcp"]
        row["at least"] = at_least.get(name)
        rows.append(row | {"SAPS / APS, CPU": of_saps if name == SAPS else None})
    return rows


def mapie_aps(p, p_test, y):
    """Returns the APS sets of MAPIE for a model that returns its input."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Identity(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(NUM_CLASSES)

        def fit(self, x, y):
            return self

        def predict_proba(self, x):
            return x.astype(float)  # MAPIE refuses sums that single precision rounds

        def predict(self, x):
            return np.argmax(x, axis=1)

        def __sklearn_is_fitted__(self):
            return True

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SplitConformalClassifier(
            Identity(), confidence_level=1 - ALPHA, conformity_score="aps", prefit=True
        )
        wide, wide_test = (
            v / v.sum(1, keepdims=True) for v in (p.astype(float), p_test.astype(float))
        )
        model.conformalize(wide, y)
        return model.predict_set(
            wide_test, conformity_score_params={"include_last_label": True}
        )[1]


PUNCC_PROGRAM = """
import json, sys, time
import numpy as np
from deel.puncc.api.prediction import IdPredictor
from deel.puncc.classification import APS
data = np.load(sys.argv[1])
p, p_test = (v / v.sum(1, keepdims=True) for v in (data["p"], data["p_test"]))
times = []
for _ in range(4):
    start = time.perf_counter()
    cp = APS(IdPredictor(), train=False, rand=False)
    cp.fit(X_calib=p, y_calib=data["y"])
    cp.predict(p_test, alpha=float(sys.argv[2]))
    times.append(time.perf_counter() - start)
print(json.dumps(sorted(times[1:])[1]))
"""


def puncc_seconds(python: str) -> float:
    """Returns the median seconds of PUNCC, run by its own interpreter."""
    p, p_test, y = label_data()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, p=p.astype(float), p_test=p_test.astype(float), y=y)
        run = subprocess.run(
            [python, "-c", PUNCC_PROGRAM, str(path), str(ALPHA)],
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(run.stdout.splitlines()[-1])
