"""Rows in batches, in files and on workers: the same bits as of all rows together."""

import pickle
from itertools import pairwise

import jax
import numpy as np
import pytest

import jaxcp
from helpers import CASES, cut, same
from jaxcp import risk, scores
from jaxcp.calibration import joining

N = 60
CUTS = {
    "uneven": [7, 8, 40],
    "empty first, and one row": [0, 1, 1, 33],
    "all at once": [],
}
NAMES = ["absolute", "absolute-3d", "lac", "aps-randomized", "distance", "pcp", "topk"]
ROUNDED = ["log-lac", "mahalanobis", "latent"]  # by how many rows a program has
WORDS = np.array(["a", "b", "c", "d", "e"])
rng = np.random.default_rng(0)
COLUMNS = {
    "nothing": {},
    "weights": {"weights": rng.uniform(size=N).astype(np.float32)},
    "both": {"weights": rng.uniform(size=N), "mask": rng.uniform(size=N) < 0.7},
}


def batches(rows, ends):
    for start, stop in pairwise([0, *ends, N]):
        yield cut(rows, slice(start, stop))


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", NAMES)
def test_batches_are_the_whole(name, columns, cuts):
    case = CASES[name]
    preds, y = case.batch(N)
    rows = {"preds": preds, "y": y, **COLUMNS[columns]}
    whole = jaxcp.calibrate(case.score, **rows)
    same(jaxcp.calibrate(case.score, batches=batches(rows, CUTS[cuts])), whole)
    groups = {"groups": np.arange(N) % 4 % 3}
    options = {"num_groups": 4}
    whole = jaxcp.calibrate_groups(case.score, **rows, **groups, **options)
    parts = batches(rows | groups, CUTS[cuts])
    same(jaxcp.calibrate_groups(case.score, batches=parts, **options), whole)


@pytest.mark.parametrize("name", ROUNDED)
def test_scores_that_programs_round_differ_in_the_last_digits(name):
    case = CASES[name]
    preds, y = case.batch(N)
    rows = {"preds": preds, "y": y}
    found = jaxcp.calibrate(case.score, batches=batches(rows, [7, 40]))
    same(found, jaxcp.calibrate(case.score, preds, y), rtol=2e-5)


def test_names_and_workers(tmp_path):
    preds, y = CASES["lac"].batch(N)
    rows = {"preds": preds, "y": WORDS[y], "groups": WORDS[np.arange(N) % 3]}
    options = {"classes": WORDS, "group_names": WORDS}
    whole = jaxcp.calibrate_groups(scores.LAC(), **rows, **options)
    found = jaxcp.calibrate_groups(scores.LAC(), batches=batches(rows, [9]), **options)
    same(found, whole)
    parts = [
        jaxcp.calibrate_groups(scores.LAC(), **part, **options)
        for part in batches(rows, [9, 31])
    ]
    files = [tmp_path / f"{i}.npz" for i in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        jaxcp.save(file, part)
    same(jaxcp.join(map(jaxcp.load, files)), whole)
    same(jaxcp.join(pickle.loads(pickle.dumps(parts))), whole)


def test_calibrations_of_risk():
    preds, y = CASES["lac"].batch(N)
    of = lambda p, y: risk.calibrate_risk(risk.miscoverage, scores.LAC(), p, y)  # noqa: E731
    same(jaxcp.join([of(preds[:20], y[:20]), of(preds[20:], y[20:])]), of(preds, y))


@pytest.mark.parametrize("kind", ["memmap", "dask"])
@pytest.mark.parametrize("name", ["lac", "cqr"])
def test_rows_in_files(name, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "_BYTES", 400)
    seen, of_batch = [], joining._of_batch
    note = lambda *given: seen.append(given[-2]) or of_batch(*given)  # noqa: E731
    monkeypatch.setattr(joining, "_of_batch", note)

    def far(v):
        if kind == "dask":
            return pytest.importorskip("dask.array").from_array(v, chunks=17)
        np.save(tmp_path / f"{len(list(tmp_path.iterdir()))}.npy", v)
        return np.load(max(tmp_path.iterdir()), mmap_mode="r")

    preds, y = CASES[name].batch(N)
    preds = tuple(np.sort(preds, axis=0)) if name == "cqr" else preds
    rows = jax.tree.map(far, preds), y.tolist()
    score = CASES[name].score
    same(jaxcp.calibrate(score, *rows), jaxcp.calibrate(score, preds, y))
    assert len(seen) > 1
    groups = WORDS[np.arange(N) // 20]  # most blocks have rows of one alone
    found = jaxcp.calibrate_groups(score, *rows, groups)
    same(found, jaxcp.calibrate_groups(score, preds, y, groups))
    with pytest.raises(ValueError, match=f"y with {N} rows like preds, got 59"):
        jaxcp.calibrate(score, rows[0], rows[1][1:])


def test_predictions_are_dropped_before_the_next_batch():
    class Noted(np.ndarray):
        alive = 0

        def __del__(self):
            Noted.alive -= self.base is None

    def make():
        assert Noted.alive == 0
        Noted.alive += 1
        return np.ndarray.__new__(Noted, 3, np.float32)

    jaxcp.calibrate(scores.Absolute(), batches=((make() * 0, [1, 2, 3]) for _ in "abc"))


P, Y = np.full((4, 2), 0.5, np.float32), np.zeros(4, int)
LAC, OF = scores.LAC(), jaxcp.calibrate(scores.LAC(), P, Y)
WEIGHTED = {"preds": P, "y": Y, "weights": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    "message, call",
    [
        ("either preds and y, or batches, got neither", lambda: jaxcp.calibrate(LAC)),
        ("got preds, y, batches", lambda: jaxcp.calibrate(LAC, P, Y, batches=[])),
        ("batches with at least", lambda: jaxcp.calibrate(LAC, batches=iter(()))),
        ("mapping with both, got nd", lambda: jaxcp.calibrate(LAC, batches=(P, Y))),
        (
            r"batches\[1\] with row_shapes \(\(2,\),\) as before, got \(\(1,\),\)",
            lambda: jaxcp.calibrate(LAC, batches=[(P, Y), (P[:, :1] * 2, Y)]),
        ),
        (
            r"batches\[1\] with weights None as before, got float32\[n\]",
            lambda: jaxcp.calibrate(LAC, batches=[(P, Y), WEIGHTED]),
        ),
        (
            r"calibrations\[1\] with score LAC\(\) as before, got APS",
            lambda: jaxcp.join([OF, jaxcp.calibrate(scores.APS(), P, Y)]),
        ),
        (r"calibrations\[1\] of calibrate.*got int", lambda: jaxcp.join([OF, 1])),
        (r"calibrate\(score, batches=", lambda: jaxcp.calibrate(LAC, iter([P]), Y)),
        (r"got zip; .*map\(cp.at\(alpha\)", lambda: OF(zip([P], [Y]), 0.1)),  # noqa: B905
    ],
)
def test_what_does_not_fit_is_refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_say_which_batch():
    with pytest.raises(ValueError, match="sum to 1") as error:
        jaxcp.calibrate(LAC, batches=[(P, Y), (P / 2, Y)])
    assert error.value.__notes__ == ["in batches[1]"]


class Stored:
    """An array in a file that is not in chunks, as of HDF5 by default."""

    chunks = None

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.nbytes = values.nbytes

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        return self.values[rows]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


@jaxcp.pytree
class Sum:
    """Predictions are a list of two."""

    def __call__(self, pred, y):
        return abs(pred[0] + pred[1] - y)

    def invert(self, pred, q):
        return jaxcp.sets.Interval(pred[0] + pred[1] - q, pred[0] + pred[1] + q)


@pytest.mark.parametrize("size", [100, 2**26])
def test_containers_of_rows_in_files(size, monkeypatch, tmp_path):
    monkeypatch.setattr(joining, "_BYTES", size)
    x, y = np.random.default_rng(0).normal(size=(2, 60)).astype("f")
    np.save(tmp_path / "y.npy", y)
    file = np.load(tmp_path / "y.npy", mmap_mode="r")
    whole = jaxcp.calibrate(Sum(), [x, x], y)
    assert isinstance(whole, jaxcp.Calibration)
    for preds, targets in [
        ([x, x], file),
        ([Stored(x), Stored(x)], y),
        ([Stored(x), x], y.tolist()),
    ]:
        found = jaxcp.calibrate(Sum(), preds, targets).scores
        np.testing.assert_array_equal(found, whole.scores)


def test_classes_are_the_groups_of_batches_too():
    p, y = np.full((6, 3), 1 / 3, np.float32), np.array(["c", "a", "b"] * 2)
    rows = [{"preds": p, "y": y, "groups": y}] * 2
    cp = jaxcp.calibrate_groups(LAC, batches=rows, classes=["c", "a", "b"])
    assert cp.group_names == ("c", "a", "b")
    assert cp.at(0.4)(p).mask.shape == (6, 3)


def test_a_score_that_stops_does_not_end_the_batches():
    def stops(pred, y):
        raise StopIteration

    score = scores.Custom(stops, lambda pred, q: jaxcp.sets.Interval(pred - q, pred))
    with pytest.raises(RuntimeError, match="got StopIteration"):
        jaxcp.calibrate(score, batches=[(Y * 1.0, Y * 1.0)])


@pytest.mark.parametrize("names", [(("a", 1), ("b",)), ("a", "1")])
def test_names_are_compared_as_they_are(names):
    def named(names):
        return jaxcp.calibrate(LAC, P, [names[i] for i in Y], classes=names)

    parts = [named(names), named(names)]
    assert jaxcp.join(parts).classes == names
    other = named(("a", 1))
    with pytest.raises(ValueError, match="with classes"):
        jaxcp.join([parts[0], other])
