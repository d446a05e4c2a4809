"""Predictors in a service: the file of NumPy, programs made beforehand, no rows."""

import datetime
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import CASES
from jaxcp import _numbers, risk, scores, sets
from jaxcp.calibration.exporting import drawn

# No jax, no jaxcp: a folder has a predictor, its inputs, and what jax made of them.
SERVICE = """
import importlib.util, pathlib, sys
import numpy as np
sys.modules["jax"] = sys.modules["jaxcp"] = None
for folder in pathlib.Path(sys.argv[1]).iterdir():
    spec = importlib.util.spec_from_file_location("predictor", folder / "predictor.py")
    predictor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(predictor)
    known = np.load(folder / "rows.npz")
    preds = [known[k] for k in known if k[0] == "x"]
    groups = known["groups"] if "groups" in known else None
    preds = tuple(preds) if len(preds) > 1 else preds[0]
    for name, found in predictor.sets(preds, groups).items():
        expected = known[name]
        same = found.dtype == expected.dtype and found.shape == expected.shape
        if not (same and np.array_equal(found, expected, equal_nan=True)):
            print(folder.name, name, (found != expected).sum(), "of", found.size)
"""
SERVED = [
    "absolute-3d", "normalized", "asymmetric-cqr", "lac", "raps-randomized",
    "multilabel-pixels", "box-inner",
]  # fmt: skip
ALSO = [
    "residual-lower", "two-sided", "aps", "saps-randomized", "truncated",
    "absolute", "signed", "residual", "scaled-residual", "cqr", "gamma",
    "aps-one-class", "aps-randomized", "raps", "multilabel", "multilabel-heat", "saps",
    "saps-one-class",
    "margin", "log-margin", "given", "topk", "distance-largest", "rectangle",
    "box-offset", "box-maximum", "rectified",
]  # fmt: skip
REFUSED = {
    "log-lac": "exp",
    "quantiles": "a sum with a product",
    "entmax": "scan",
    "binned": "cummax",
    "custom-level-set": "sets of kind LevelSet",
    "claims": "sets of kind Kept",
    "distance": "sets of kind Ball",
    "mahalanobis": "sets of kind Ellipsoid",
    "rectified-aps": "too many values",  # predictions in two layers
}


def predictor_of(name, alpha=0.2, rows=200):
    case = CASES[name]
    preds, y = case.batch(rows)
    return jaxcp.calibrate(case.score, preds, y).at(alpha)


def served(predictor, folder):
    """Returns the names of the file."""
    names = {}
    exec(predictor.export(folder).read_text(), names)
    return names


def keep(folder, predictor, preds, groups=None):
    """Writes a predictor with inputs and the sets that jax makes of them."""
    predictor.export(folder)
    found = predictor(preds) if groups is None else predictor(preds, groups=groups)
    named = jax.tree.leaves_with_path(found)
    rows = {jax.tree_util.keystr(k, simple=True): np.asarray(v) for k, v in named}
    rows |= {f"x{i}": v for i, v in enumerate(jax.tree.leaves(preds))}
    rows |= {} if groups is None else {"groups": groups}
    np.savez(folder / "rows.npz", **rows)


def check_without_jax(folder):
    words = [sys.executable, "-c", SERVICE, str(folder)]
    assert subprocess.check_output(words, text=True) == ""


def test_the_file_makes_the_same_sets_without_jax(tmp_path):
    """To the last bit: kinds of sets, other thresholds, groups, hard rows."""
    for name in SERVED:
        keep(tmp_path / name, predictor_of(name), CASES[name].batch(2000)[0])
    check_without_jax(tmp_path)


def test_files_of_hard_rows_and_groups(tmp_path):
    keep_hard_rows(tmp_path)
    check_without_jax(tmp_path)


@pytest.mark.slow
def test_all_files_make_the_same_sets(tmp_path):
    for name in ALSO:
        keep(tmp_path / name, predictor_of(name), CASES[name].batch(10_000)[0])
    check_without_jax(tmp_path)
    check_drawn(ALSO)


@pytest.mark.parametrize(
    "name", ["normalized", pytest.param("raps-randomized", marks=pytest.mark.slow)]
)
def test_files_in_double_precision(name, tmp_path):
    with jax.enable_x64(True):
        preds, y = CASES[name].batch(2000)
        preds = jax.tree.map(lambda v: v.astype(float), preds)
        cp = jaxcp.calibrate(CASES[name].score, preds, y).at(0.2)
        keep(tmp_path / name, cp, preds)
    check_without_jax(tmp_path)


def keep_hard_rows(folder):
    tiny = np.float32(2.0**-149) * np.arange(-3, 4, dtype="f")
    x = np.array([0, -0.0, 1e-38, 3.4e38, -3.4e38, 1e-45, 8, -8], "f")
    x = np.concatenate([x, tiny, np.arange(1.0, 10.0, dtype="f")])
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9, "f"), np.arange(1.0, 10.0))
    keep(folder / "exact ends", cp.at(0.2), x)
    keep(folder / "infinite", cp.at(0.01), x)
    keep(folder / "empty", cp.at(0.999), x)
    groups = np.arange(len(x)) % 3
    score, y = scores.Normalized(), 1.3 * np.arange(24, dtype="f")
    known = (score, (x, x**0 + groups), y)
    numbered = jaxcp.calibrate_groups(*known, groups, num_groups=3)
    rows = x, abs(x) + 1  # for jax a sigma below 1e-38 is 0 in some programs alone
    keep(folder / "numbers", numbered.at(0.3), rows, groups[::-1])
    named = jaxcp.calibrate_groups(*known, np.array(["b", "a", "c"])[groups])
    keep(folder / "names", named.at(0.3), rows, np.array(["a", "b"])[groups % 2])
    pair = jaxcp.calibrate(scores.CQR(), np.stack([x - 1, x + 1], 1), y).at(0.2)
    keep(folder / "pairs", pair, np.stack([x, x], 1))
    case = CASES["aps-randomized"]
    (p, u), y = jax.tree.map(np.copy, case.batch(400))
    p[:50, 0] += p[:50, 1]
    p[:50, 1] = 2.0**-149  # which arithmetic takes for 0
    rows, kinds = (case.score, (p, u), y), {"label_groups": [0, 0, 1, 1, 2]}
    keep(
        folder / "label groups", jaxcp.calibrate_groups(*rows, **kinds).at(0.1), (p, u)
    )
    labels = jaxcp.calibrate_groups(*rows, y, num_groups=5).at(0.1)
    keep(folder / "labels", labels, (p, u))
    keep(folder / "other groups", labels, (p, u), np.arange(400) % 5)
    inclusive = jaxcp.calibrate(scores.RAPS(0.1, 1, inclusive=True), p, y).at(0.3)
    keep(folder / "inclusive", inclusive, p)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_in_words(name, tmp_path):
    """Nothing is written; what the file cannot do is named, and what to do instead."""
    with pytest.raises(ValueError, match="keep this predictor where jax is") as told:
        predictor_of(name).export(tmp_path / "none")
    assert type(CASES[name].score).__name__ in str(told.value)
    assert f"({REFUSED[name]}" in str(told.value)
    assert not (tmp_path / "none").exists()


def test_a_score_of_yours_has_a_file(tmp_path):
    inverse = lambda mu, q: sets.Interval(mu - 2 * q, jnp.maximum(mu, 0) + q)  # noqa: E731
    score = scores.Custom(lambda mu, y: abs(y - mu), inverse)
    mu, y = CASES["absolute"].batch(100)
    predictor = jaxcp.calibrate(score, mu, y).at(0.1)
    found = served(predictor, tmp_path)["sets"](mu)
    assert_array_equal(found["lower"], predictor(mu).lower)
    assert_array_equal(found["upper"], predictor(mu).upper)
    apart = lambda mu, q: sets.Interval(mu - _numbers.apart(q * mu), mu + q)  # noqa: E731
    score = scores.Custom(lambda mu, y: abs(y - mu), apart)
    assert jaxcp.calibrate(score, mu, y).at(0.1).export(tmp_path).exists()


def test_sums_of_products_are_refused(tmp_path):
    """XLA may round once what NumPy rounds twice; doubles and halves round nothing."""
    mu, y = CASES["gamma"].batch(100)
    for half_of in (
        lambda mu, q: mu * q,
        lambda mu, q: -jnp.stack([q * mu, mu])[0],
        lambda mu, q: jnp.sum(jnp.stack([q, mu]) ** 2),
        lambda mu, q: (3 * q).astype(mu.dtype)[None][0],
    ):
        inverse = lambda mu, q, of=half_of: sets.Interval(mu - of(mu, q), mu + q)  # noqa: E731
        score = scores.Custom(lambda mu, y: abs(y - mu) / mu, inverse)
        with pytest.raises(ValueError, match="a sum with a product"):
            jaxcp.calibrate(score, mu, y).at(0.1).export(tmp_path)


def test_what_comes_in_is_checked(tmp_path):
    p, y = CASES["lac"].batch(200)
    groups = np.array(["farm", "city"])[np.arange(200) % 2]
    classes = list("abcde")
    cp = jaxcp.calibrate_groups(scores.LAC(), p, y, groups, classes=classes).at(0.1)
    found = served(cp, tmp_path)
    call = found["sets"]
    for preds, given, words in (
        (p, groups[:3], r"groups of shape \(200,\), got \(3,\)"),
        (p[:1], ["sea"], r"groups among \('city', 'farm'\), got 'sea' in row 0"),
        (p[:1], None, "expected the group of each row"),
        (p[:1, :4], ["farm"], r"rows of shape \(5,\) as at calibration"),
        (p[0], ["farm"], "rows of shape"),
        (np.full((1, 5), np.nan), ["farm"], "preds without NaN, got nan in row 0"),
        (np.log(p[:1]), ["farm"], "of logits: their softmax"),
        (
            p[:2] * [[1], [2]],
            ["farm"] * 2,
            "sum to 1 in each row, got a sum of 2 in row 1",
        ),
        ([["x"] * 5], ["farm"], "preds as real numbers"),
        (np.ma.masked_less(p[:1], 1), ["farm"], "preds without masked values"),
    ):
        with pytest.raises(ValueError, match=words):
            call(preds, given)
    assert call(p[:0], [])["mask"].shape == (0, 5)
    mine = call(p[:4], ["farm", "city"] * 2)
    theirs = cp(p[:4], groups=["farm", "city"] * 2)
    assert found["labels"](mine) == theirs.labels()
    assert found["to_dict"](mine) == theirs.to_dict()
    with pytest.raises(ValueError, match="expected intervals or boxes to clip"):
        found["clip"](mine, 0)
    alone = served(predictor_of("cqr"), tmp_path)
    with pytest.raises(ValueError, match="expected preds as a tuple of 2 arrays"):
        alone["sets"](np.zeros(3))
    with pytest.raises(ValueError, match="expected groups=None"):
        alone["sets"]((np.zeros(3), np.zeros(3)), [0, 0, 0])


def test_what_scores_refuse_is_refused(tmp_path):
    """As by jax: logits, boxes, and integers that jax would round."""
    for name, bad, words in (
        ("log-margin", np.full((1, 7), np.inf), r"logits below \+inf"),
        ("box-inner", np.array([[0, 0, -1, 1.0]]), "x_min <= x_max"),
        ("absolute", np.array([2**33 + 1]), "preds up to 2147483647, or as floats"),
        ("absolute", np.array([2**64 - 1], "uint64"), "preds up to 2147483647"),
    ):
        predictor = predictor_of(name)
        call = served(predictor, tmp_path)["sets"]
        with pytest.raises(ValueError, match=words):
            call(bad)
        if name != "absolute":
            with pytest.raises(ValueError, match=words):
                predictor(bad)
    whole = np.array([2**24 + 1, -(2**31) + 1])
    assert_array_equal(call(whole)["lower"], predictor(jnp.asarray(whole)).lower)


def test_names_are_text_and_nothing_else(tmp_path):
    """Quotes, lines of Python, tuples and many: the file has the same names."""
    mu, y = CASES["absolute"].batch(60)
    code = '"); raise SystemExit; ("'
    for names in ([code, 'a"\n\\'], [(1, "a"), (2, "b")], list(map(str, range(30)))):
        rows = [names[i % len(names)] for i in range(60)]
        cp = jaxcp.calibrate_groups(scores.Absolute(), mu, y, rows).at(0.4)
        found = served(cp, tmp_path)["sets"](mu, rows)
        assert_array_equal(found["upper"], cp(mu, groups=rows).upper)


def test_clip_and_json_are_those_of_sets(tmp_path):
    predictor = predictor_of("absolute-3d", alpha=0.5)
    found, preds = served(predictor, tmp_path), CASES["absolute-3d"].batch(9)[0]
    for bounds in ((0, None), (None, 1.5), (np.array([-1, 0, 1]), 2)):
        mine, theirs = found["clip"](found["sets"](preds), *bounds), predictor(preds)
        assert_array_equal(mine["lower"], theirs.clip(*bounds).lower)
        assert found["to_dict"](mine) == theirs.clip(*bounds).to_dict()
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    mu, y = CASES["absolute"].batch(20)
    dates = jaxcp.calibrate_groups(scores.Absolute(), mu, y, days * 10).at(0.3)
    with pytest.raises(ValueError, match="keep this predictor where jax is"):
        dates.export(tmp_path)


def test_the_promise_of_a_level_that_is_not_known_has_no_number():
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9), np.arange(9.0))
    shapes = jax.eval_shape(cp.at, 0.1)
    assert shapes.promise == cp.at(0.1).promise.replace("0.1", "alpha")


def test_models_are_not_exported(tmp_path):
    x, y = CASES["absolute"].batch(50)
    cp = jaxcp.split_conformal(lambda _, x: x, None, scores.Absolute(), x, y)
    with pytest.raises(ValueError, match=r"export cp\.calibration\.at\(alpha\)"):
        cp.at(0.1).export(tmp_path)
    assert cp.calibration.at(0.1).export(tmp_path).exists()


def test_files_of_a_predictor_have_no_row(tmp_path):
    """Neither scores, predictions nor targets; that of a risk's calibration has."""
    rng = np.random.default_rng(7)
    p, noise = rng.uniform(size=(2, 60, 4)).astype("f")
    y = noise < p
    cp = risk.calibrate_risk(risk.false_negative_rate, scores.MultiLabel(), p, y)
    mu = rng.normal(size=60).astype("f")
    line = jaxcp.calibrate(scores.Absolute(), mu, mu + noise[:, 0])
    for name, value, rows in (("risk", cp, p), ("line", line, line.scores)):
        whole, level = tmp_path / f"{name}.npz", tmp_path / f"{name}.level.npz"
        jaxcp.save(whole, value)
        jaxcp.save(level, value.at(0.2))
        text = value.at(0.2).export(tmp_path).read_text()
        q = np.unique(value.at(0.2).q)
        for row in np.unique(rows):
            assert row.tobytes() in whole.read_bytes()
            if row not in q and not np.isin(1 - row, q):
                assert row.tobytes() not in level.read_bytes()
                assert repr(row.item()) not in text
        assert all(v.size < 60 for k, v in np.load(level).items() if k != "jaxcp.json")


@pytest.mark.parametrize("most", [3, 32, 50, 100])
def test_one_size_is_made_for_all_up_to_its_power_of_two(most, programs):
    """Also where few rows are filled up further than the power."""
    draw, power = np.random.default_rng(0), 1 << (most - 1).bit_length()
    preds, y = draw.normal(size=(2, 40)).astype(np.float32)
    cp = jaxcp.calibrate(scores.Absolute(), preds, y)
    calls = cp.at(0.2), lambda v: cp(v, 0.2), lambda v: cp(v, 0.3)
    for each in (cp, cp.at(0.2)):
        each.compile([most], preds)
    programs.clear()
    for size in range(power // 2 + 1, power + 1):
        for call in calls:
            call(np.resize(preds, size))
    assert programs == []


def test_after_compile_no_request_compiles(programs):
    p, y = CASES["aps-randomized"].batch(60)
    lac = jaxcp.calibrate_groups(scores.LAC(), p[0], y, y % 3, num_groups=3)
    aps = jaxcp.calibrate(scores.APS(True), p, y)
    line = jaxcp.split_conformal(
        jax.jit(lambda w, x: x @ w), np.ones(5, "f"), scores.Absolute(), p[0], p[1]
    )
    masks = risk.calibrate_risk(
        risk.false_negative_rate, scores.MultiLabel(), p[0], p[0] > 0.2
    )
    jax.clear_caches()
    for cp in (lac, aps, masks, masks.at(0.1)):
        before = len(programs)
        cp.compile([1, 5])
        assert len(programs) > before
    before = len(programs)
    lac.at(0.1).compile([1, 5]), aps.at(0.1).compile([1, 5])
    assert len(programs) == before  # few known scores have their thresholds on the host
    line.compile([1, 7], p[0][:1])
    aps.compile([3], p, u=[0.5])
    before = len(programs)
    one, five = (tuple(v[:m] for v in p) for m in (1, 5))
    lac(one[0], 0.2, groups=[1])
    lac(five[0], 0.3, groups=np.arange(5) % 3)
    lac.at(0.1)(five[0], groups=np.arange(5) % 3)
    aps(one, 0.2), aps(five, 0.3), masks(five[0], 0.2)
    aps(tuple(v[:4] for v in p), 0.1, u=np.full(4, 0.2))
    line(p[0][:7], 0.1)
    jax.block_until_ready([aps.at(0.1)(five), masks.at(0.1)(one[0])])
    assert len(programs) == before
    for cp, sizes, words in (
        (line.at(0.1), [1], "expected preds as a value, got None"),
        (predictor_of("mahalanobis"), [1], "expected preds as a value, got None"),
        (lac, 5, "expected sizes as a list, got int"),
        (lac, [-1], "expected sizes as an int >= 0, got -1"),
        (lac, ["a"], "expected sizes as an int >= 0, got 'a'"),
    ):
        with pytest.raises(ValueError, match=words):
            cp.compile(sizes)


def test_drawn_predictions_are_those_of_the_score():
    check_drawn(SERVED)


def check_drawn(names):
    for name in names:
        preds, _ = CASES[name].batch(5)
        shapes = [v.shape[1:] for v in jax.tree.leaves(preds)]
        found = drawn(CASES[name].score, shapes, 5, np.float32)
        scores.inputs.check(CASES[name].score, jax.tree.map(jnp.asarray, found))


def test_json_has_no_infinite_numbers():
    ends = np.array([0.5, -np.inf, np.inf, np.nan]), np.array([1, np.inf, -np.inf, 0])
    found = json.loads(sets.Interval(*map(jnp.asarray, ends)).to_json())
    assert found["lower"][:2] == [0.5, None]
    assert found["upper"][:2] == [1, None]
    assert found["lower"][2] > found["upper"][2]  # empty, not the whole line
    assert found["lower"][3] is None
    for dtype in (int, jnp.bfloat16, "float16"):
        whole = sets.Interval(jnp.array([1], dtype), jnp.array([2], dtype))
        assert json.loads(whole.to_json()) == {"lower": [1], "upper": [2]}
    masks = sets.LabelMask(jnp.array([[[True, False]]]), ndim=2)
    assert json.loads(masks.to_json()) == {"mask": [[[True, False]]]}
    days = (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2))
    named = sets.LabelSet(jnp.array([[True, False]]), days)
    assert json.loads(named.to_json()) == {"labels": [["2026-01-01"]]}
    assert sets.Interval(jnp.zeros(()), jnp.ones(())).to_dict() == {
        "lower": 0.0,
        "upper": 1.0,
    }
