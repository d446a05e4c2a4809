"""What is saved is loaded with the same bits, and nothing of a file is run."""

import dataclasses
import datetime
import functools
import io
import itertools
import json
import pickle
import pkgutil
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_array_equal
from test_learners import ALL as LEARNERS

import jaxcp
from helpers import CASES, DENSITY
from jaxcp import (
    certificates,
    datasets,
    learners,
    metrics,
    models,
    online,
    pvalues,
    scores,
    sets,
    simulation,
)
from jaxcp.saving import _classes, _nodes

KEY, ABSOLUTE = jax.random.key(0), scores.Absolute()
X = jnp.asarray(np.linspace(-1.0, 2.0, 20))
Y = jnp.asarray(X + np.sin(40 * np.asarray(X)))
CP = jaxcp.calibrate(ABSOLUTE, X, Y)


@jaxcp.pytree
class Scaled:
    factor: float
    exponent: int = jaxcp.static(default=1)

    def __call__(self, pred, y):
        return self.factor * jnp.abs(y - pred) ** self.exponent

    def invert(self, pred, q):
        half = (q / self.factor) ** (1 / self.exponent)
        return sets.Interval(pred - half, pred + half)


class Pair(NamedTuple):
    first: jax.Array
    second: object = None


def about(path):
    """Returns the text of a file."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("jaxcp.json"))


def rewritten(path, change):
    """Changes the text of a file."""
    with np.load(path) as file:
        entries = {f"{k}.npy": v for k, v in file.items() if k != "jaxcp.json"}
    text = about(path)
    change(text)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("jaxcp.json", json.dumps(text))
        for name, value in entries.items():
            with archive.open(name, "w") as entry:
                np.lib.format.write_array(entry, value)


def at(value, name):
    """Returns what is at a dotted name; of a partial its function."""
    for part in filter(None, name.split(".")):
        if isinstance(value, functools.partial):
            value = value.args[int(part)]
        elif isinstance(value, dict | list) or type(value) is tuple:
            value = value[int(part) if isinstance(value, list | tuple) else part]
        else:
            value = getattr(value, part)
    return value.func if isinstance(value, functools.partial) else value


def again(path, value, types=()):
    """Returns a value that was saved and loaded, with its own functions."""
    jaxcp.save(path, value)
    given = {hole["name"]: at(value, hole["name"]) for hole in about(path)["holes"]}
    return jaxcp.load(path, types=types, **given)


def assert_same(a, b):
    """Types, fields and every bit of arrays are the same; functions are one."""
    assert type(a) is type(b)
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        assert a.dtype == b.dtype
        return assert_same(jax.random.key_data(a), jax.random.key_data(b))
    if isinstance(a, jax.Array | np.ndarray | np.generic):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, list | tuple) and not hasattr(a, "_fields"):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, functools.partial):
        assert_same([a.func, a.args, a.keywords], [b.func, b.args, b.keywords])
    elif _classes.is_value(type(a)):
        assert_same(_classes.fields_of(a), _classes.fields_of(b))
    elif hasattr(a, "__self__"):
        assert a.__func__ is b.__func__
        assert_same(a.__self__, b.__self__)
    else:
        assert a is b or repr(a) == repr(b)


# Every score, rule, method, learner, set


@pytest.mark.parametrize("name", [c for c in CASES if "bad" not in c])
def test_calibrations_of_every_score(tmp_path, name):
    case = CASES[name]
    preds, y = case.batch(20)
    cp = jaxcp.calibrate(case.score, preds, y)
    loaded = again(tmp_path / "cp.npz", cp)
    assert_same(cp, loaded)
    answers = jax.jit(lambda cp: (cp(preds, 0.2), cp.p_values(preds, y)))
    region, p_values = answers(cp)
    with jax.no_tracing():  # its structure is the same
        assert_same((region, p_values), answers(loaded))
    assert_same(region, again(tmp_path / "sets.npz", region))


def rules():
    mask, weights = X > -0.5, jnp.exp(-abs(X))
    groups = jnp.arange(20) % 3
    probs = jax.nn.softmax(jnp.sin(jnp.arange(60.0)).reshape(20, 3))
    aps = scores.APS(randomized=True)
    of_groups = functools.partial(jaxcp.calibrate_groups, num_groups=3)
    yield "masked", jaxcp.calibrate(ABSOLUTE, X, Y, mask=mask)
    yield "weighted", jaxcp.calibrate(ABSOLUTE, X, Y, weights=weights)
    yield "components", jaxcp.calibrate(scores.Signed(), X, Y)
    yield "groups", of_groups(ABSOLUTE, X, Y, groups, mask=mask)
    yield "classes", of_groups(scores.LAC(), probs, groups, groups)
    yield "randomized", jaxcp.calibrate(aps, (probs, (X + 1) / 3), groups)
    names = np.array(["a", "\u00e9", "c"])
    of_names = functools.partial(jaxcp.calibrate, scores.LAC(), probs, classes=names)
    yield "names", of_names(names[groups])
    yield "names of groups", of_groups(ABSOLUTE, X, Y, names[groups], group_names=names)
    yield "one row", jaxcp.calibrate(ABSOLUTE, X[:1], Y[:1])
    yield "no rows", jaxcp.calibrate(ABSOLUTE, X[:0], Y[:0])
    yield "infinite", jaxcp.Calibration(ABSOLUTE, jnp.array([jnp.inf, 1.0, -0.0]))
    yield "batch", jax.vmap(jaxcp.calibrate, (None, 0, 0))(ABSOLUTE, X[None], Y[None])


@functools.cache
def every_rule():
    return dict(rules())


RULES = [
    "masked",
    "weighted",
    "components",
    "groups",
    "classes",
    "randomized",
    "names",
    "names of groups",
    "one row",
    "no rows",
    "infinite",
    "batch",
]


def test_every_rule_is_named():
    assert list(every_rule()) == RULES


@pytest.mark.parametrize("name", RULES)
def test_every_rule(tmp_path, name):
    cp = every_rule()[name]
    loaded = again(tmp_path / "cp.npz", cp)
    assert_same(cp, loaded)
    assert jax.tree.structure(cp) == jax.tree.structure(loaded)
    quantile = jax.vmap(lambda cp: cp.quantile(0.2)) if name == "batch" else None
    quantile = quantile or (lambda cp: cp.quantile(0.2))
    assert_same(quantile(cp), quantile(loaded))
    assert_same(quantile(cp), jax.jit(quantile)(loaded))


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_and_its_parameters(tmp_path, name):
    x, y = datasets.linear(jax.random.key(1), 20)
    learner = LEARNERS[name]
    params = jax.jit(learner.fit)(KEY, x, y, np.ones(20, np.float32))
    loaded, loaded_params = again(tmp_path / "fit.npz", (learner, params))
    assert_same((learner, params), (loaded, loaded_params))
    before, after = jax.jit(learner.predict), jax.jit(loaded.predict)
    assert_same(before(params, x), after(loaded_params, x))


def test_a_predictor_with_an_aggregation_of_its_own(tmp_path):
    """The others are methods of the law of files."""
    x, y = datasets.linear(jax.random.key(1), 20)
    options = {"num_resamples": 9, "aggregation": "median"}
    cp = jaxcp.enbpi(jax.random.key(2), learners.Ridge(1.0), ABSOLUTE, x, y, **options)
    loaded = again(tmp_path / "cp.npz", cp)
    assert_same(cp, loaded)
    for way in ("__call__", "minmax", "naive"):
        assert_same(getattr(cp, way)(x, 0.2), getattr(loaded, way)(x, 0.2))


@pytest.mark.parametrize("aggregation", [None, "median", lambda v, held: v[0]])
def test_cross_calibrations(tmp_path, aggregation):
    """Of predictions that were made elsewhere: the models are saved in their way."""
    fits = jnp.stack([X, X + 0.1, X - 0.2])
    held_out = jnp.arange(20)[None] % 3 == jnp.arange(3)[:, None]
    options = {}
    if aggregation is not None:
        held_out = held_out | (jnp.arange(20) < 9)[None]
        options = {"aggregation": aggregation}
    cp = jaxcp.cross_calibrate(ABSOLUTE, fits, Y, held_out, **options)
    loaded = again(tmp_path / "cp.npz", cp)
    assert_same(cp, loaded)
    assert jax.tree.structure(cp) == jax.tree.structure(loaded)
    assert_same(cp(fits, 0.2), jax.jit(loaded)(fits, 0.2))


def others():
    intervals = CP(X, 0.2)
    covered = metrics.coverage(intervals, Y)
    draws = jax.random.normal(KEY, (30, 2))
    yield "certificate", CP.certificate(0.1)
    yield "test", certificates.coverage_test(np.ones((3, 4), bool), 9, 0.1)
    yield (
        "estimate",
        simulation.Moments().combine([], jax.ShapeDtypeStruct((2,), float)),
    )
    yield "statistics", (simulation.Moments(), simulation.Quantiles((0.1, 0.9)))
    yield "summary", metrics.summary(intervals, Y, 0.2)
    yield "table", metrics.by_group(intervals, Y, np.arange(len(Y)) % 2)
    yield "volumes", metrics.mean_volume(KEY, sets.Balls(draws[None], X[:1]))
    yield "bet", pvalues.SimpleJumper()
    yield "masks", sets.LabelMask(jnp.ones((2, 3), bool), classes=("a", "b", "c"))
    yield "scenes", datasets.scenes(KEY, 3)
    yield "several", {"a": (CP, [covered, None]), 2: "text", ("b", 1.5): CP}
    yield "model", models.CouplingFlow(num_steps=7)


@functools.cache
def every_other():
    return dict(others())


OTHERS = [
    "certificate",
    "test",
    "estimate",
    "statistics",
    "summary",
    "table",
    "volumes",
    "bet",
    "masks",
    "scenes",
    "several",
    "model",
]


def test_every_other_value_is_named():
    assert list(every_other()) == OTHERS


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_value(tmp_path, name):
    value = every_other()[name]
    assert_same(value, again(tmp_path / "value.npz", value))


EVERY_FAMILY = " ".join(
    f"jaxcp.{m.name}." for m in pkgutil.iter_modules(jaxcp.__path__)
)


def test_names_of_classes_are_public_and_their_own():
    names = _classes.named(EVERY_FAMILY)
    assert names["jaxcp.scores.CQR"] is scores.CQR
    assert names["jaxcp.Calibration"] is jaxcp.Calibration
    assert names["jaxcp.models.CouplingFlow"] is models.CouplingFlow
    assert names["jaxcp.certificates.Certificate"] is certificates.Certificate
    for name, cls in names.items():
        assert _classes.name_of(cls) == name
        assert name.count(".") <= 2 and "._" not in name.rpartition(".")[0]
    homes = scores, sets, online, learners
    values = [getattr(home, name) for home in homes for name in home.__all__]
    values = [c for c in values if isinstance(c, type) and _classes.is_value(c)]
    assert len(values) > 40
    assert set(values) <= set(names.values())


# Leaves


def test_containers_of_the_library_come_back(tmp_path, monkeypatch):
    """A tuple with methods of its own, as a dict."""
    cls = type("Words", (tuple,), {"__module__": "jaxcp.scores.custom"})
    monkeypatch.setattr(scores.custom, "Words", cls, raising=False)
    assert_same(cls("ab"), again(tmp_path / "a", cls("ab")))
    yours = type("Words", (tuple,), {})
    with pytest.raises(ValueError, match="got Words; save"):
        jaxcp.save(tmp_path / "a", yours("ab"))


LEAVES = {
    "bfloat16": jnp.arange(3, dtype=jnp.bfloat16),
    "float16": jnp.array(1.5, jnp.float16),
    "float8": jnp.array([0.5, 1.0], jnp.float8_e4m3fn),
    "int4": jnp.array([1, -2], jnp.int4),
    "int8": jnp.array([[1, -2]], jnp.int8),
    "unsigned": jnp.array([1, 2], jnp.uint16),
    "bool": jnp.array([True, False]),
    "complex": jnp.array(1 + 2j),
    "nan": jnp.array([jnp.nan, -jnp.nan, jnp.inf, -jnp.inf, -0.0, 1e-45]),
    "empty": jnp.zeros((4, 0)),
    "no rows": jnp.zeros((0, 3)),
    "weak": jnp.asarray(2.5),
    "weak integer": jnp.asarray(3),
    "weak rows": jax.lax.full((3,), 1.5),
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(3), 4).reshape(2, 2),
    "other keys": jax.random.key(3, impl="rbg"),
    "old key": jax.random.PRNGKey(3),
    "numpy": np.arange(4.0)[::2],
    "by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big endian": np.arange(3, dtype=">f8"),
    "numpy text": np.array(["a", "bc"]),
    "numpy number": np.float32(0.1),
    "numpy flag": np.bool_(True),
    "numpy word": np.str_("w"),
    "numpy bfloat16": np.asarray(jnp.ones(2, jnp.bfloat16))[0],
    "time": np.datetime64("2026-01-02"),
    "times": np.array(["2026-01-02", "NaT"], "M8[s]"),
    "floats": [0.1, -0.0, float("inf"), float("-inf"), 1e308, 5e-324],
    "not a number": float("nan"),
    "integers": (0, -1, 2**70, True, False, None),
    "text": ["", "\u00e9 \ud800 \x00", 'a "quote"'],
    "tuples": ((), [], {}, ((1,),), {"a": {"b": ()}}),
    "keys of dicts": {1: 2, "1": 3, (1, "a"): 4, None: 5},
    "fraction": Fraction(1, 3),
    "bytes": b"\x00\xff",
    "complex number": complex(1, float("inf")),
    "dtype": (np.dtype("float32"), np.dtype(jnp.bfloat16)),
    "dates": [
        datetime.date(2026, 1, 2),
        datetime.time(1, 2),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    ],
}


@pytest.mark.parametrize("name", LEAVES)
def test_every_leaf(tmp_path, name):
    assert_same(LEAVES[name], again(tmp_path / "a", LEAVES[name]))
    assert_same({"a.b": LEAVES[name]}, again(tmp_path / "a", {"a.b": LEAVES[name]}))


def test_double_precision_is_not_lost_in_silence(tmp_path):
    with jax.enable_x64(True):
        cp = jaxcp.calibrate(ABSOLUTE, np.zeros(20), np.asarray(Y, float) + 1e-12)
        loaded = again(tmp_path / "cp.npz", cp)
        assert_same(cp, loaded)
        assert loaded.quantile(0.2).dtype == np.float64
        assert_same(cp.quantile(0.2), loaded.quantile(0.2))
    with (
        jax.enable_x64(False),
        pytest.raises(
            ValueError, match=r"double precision for float64; set JAX_ENABLE"
        ),
    ):
        jaxcp.load(tmp_path / "cp.npz")
    single = again(tmp_path / "cp.npz", CP)
    with jax.enable_x64(True):
        assert_same(single, jaxcp.load(tmp_path / "cp.npz"))


def test_arrays_in_several_places_are_written_once(tmp_path):
    a = jnp.arange(3.0)
    first, second = again(tmp_path / "a", [a, {"b": a}])
    assert_array_equal(first, second["b"])
    assert list(np.load(tmp_path / "a")) == ["jaxcp.json", "0"]


def test_names_of_entries_never_clash(tmp_path):
    names = [
        "jaxcp.json",
        "file",
        "a/b",
        "../a",
        "a.b",
        "",
        "\x00",
        "x" * 999,
        "E\u0301",
    ]
    value = {name: jnp.full(2, float(i)) for i, name in enumerate(names)}
    value["a"] = {"b": jnp.full(2, 99.0)}
    assert_same(value, again(tmp_path / "a", value))


def test_numpy_alone_reads_the_arrays(tmp_path):
    jaxcp.save(tmp_path / "cp.npz", {"cp": CP})
    assert_array_equal(np.load(tmp_path / "cp.npz")["cp.scores"], CP.scores)


# Functions, structures, classes


def test_functions_are_given_again(tmp_path):
    path = tmp_path / "cp.npz"
    predict = lambda slope, x: slope * x  # noqa: E731
    cp = jaxcp.split_conformal(predict, jnp.array(0.5), ABSOLUTE, X, Y)
    jaxcp.save(path, cp)
    loaded = jaxcp.load(path, predict=predict)
    assert_same(cp, loaded)
    assert_same(cp(X, 0.2), loaded(X, 0.2))


def scaled(scale, pred, y):
    return jnp.abs(y - pred) / scale["s"]


def test_arguments_that_are_bound_are_saved(tmp_path):
    path = tmp_path / "cp.npz"
    scale = {"s": jnp.array(3.0)}
    score = scores.Custom(functools.partial(scaled, scale))
    cp = jaxcp.calibrate(score, X, Y)
    jaxcp.save(path, cp)
    loaded = jaxcp.load(path, evaluate=scaled)
    assert_same(cp, loaded)
    assert jax.tree.structure(cp) == jax.tree.structure(loaded)
    with pytest.raises(ValueError, match="a function without bound arguments"):
        jaxcp.load(path, evaluate=functools.partial(scaled, scale))
    static = scores.Custom(functools.partial(lambda n, pred, y: y**n, 2))
    assert_same(static, again(path, static))


def test_names_that_several_fields_have_are_given_whole(tmp_path):
    path, f, g = tmp_path / "a", lambda pred, y: y, lambda pred, y: 2 * y
    pair = [scores.Custom(f), {"b": scores.Custom(g, lambda pred, q: None)}]
    jaxcp.save(path, pair)
    inverse = lambda pred, q: q  # noqa: E731
    with pytest.raises(ValueError, match=r'"1.b.evaluate": ...}, inverse=...'):
        jaxcp.load(path, evaluate=f, inverse=inverse)
    names = {"0.evaluate": f, "1.b.evaluate": g, "inverse": inverse}
    one, two = jaxcp.load(path, **names)
    assert (one.evaluate.func, two["b"].evaluate.func) == (f, g)
    assert two["b"].inverse.func is inverse
    assert_same([f, g, f], again(path, [f, g, f]))
    assert len(about(path)["holes"]) == 2  # a function in two places is given once


def test_optimizers_and_bound_methods(tmp_path):
    learner = LEARNERS["gradient"]
    path, f = tmp_path / "a", lambda *args: 0
    jaxcp.save(path, learner)
    loaded = jaxcp.load(path, init=f, predict=f, loss=f, optimizer=optax.adam(0.1))
    assert loaded.num_steps == learner.num_steps
    assert loaded.optimizer.init is not None
    two = LEARNERS["two functions"]
    jaxcp.save(path, two)
    assert about(path)["holes"] == []  # methods of values of the library
    assert_same(two, jaxcp.load(path))


def test_structures_of_other_libraries_are_given_again(tmp_path):
    path = tmp_path / "cp.npz"
    structure, params = nnx.split(nnx.Linear(1, 1, rngs=nnx.Rngs(1)))
    predict = lambda params, x: nnx.merge(structure, params)(x)[:, 0]  # noqa: E731
    cp = jaxcp.split_conformal(predict, params, ABSOLUTE, X[:, None], Y)
    jaxcp.save(path, cp)
    like = nnx.split(nnx.Linear(1, 1, rngs=nnx.Rngs(2)))[1]
    loaded = jaxcp.load(path, predict=predict, params=like)
    assert_same(cp(X[:, None], 0.2), loaded(X[:, None], 0.2))
    with pytest.raises(ValueError, match=r"params .another of class State"):
        jaxcp.load(path, predict=predict)
    wide = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(2)))[1]
    with pytest.raises(ValueError, match=r"float32\(1, 1\) at .* got .*\(2, 1\) at"):
        jaxcp.load(path, predict=predict, params=wide)
    ordered = OrderedDict(b=X, a=1)
    assert_same(ordered, again(path, [ordered])[0])


@pytest.mark.slow
def test_scores_of_trained_models(tmp_path):
    flow = models.CouplingFlow(num_couplings=2, num_steps=2)
    params = flow.fit(KEY, X, jnp.stack([X, Y], axis=1))
    score = scores.Density.of(flow, params)
    jaxcp.save(tmp_path / "a", score)
    like = nnx.split(flow.network(nnx.Rngs(0), 1, 2))
    loaded = jaxcp.load(tmp_path / "a", structure=like[0], state=like[1])
    assert_same(score(X[:1], Y[:2]), loaded(X[:1], Y[:2]))


@pytest.mark.parametrize("cls", [Scaled, Pair])
def test_classes_of_the_user_are_given_again(tmp_path, cls):
    path, value = tmp_path / "a", cls(jnp.array(2.0), 3)
    assert_same(value, again(path, value, types=cls))
    assert_same(value, again(path, value, types=[Scaled, Pair]))
    with pytest.raises(
        ValueError, match=f"dataclasses of yours, {cls.__name__}, got none"
    ):
        jaxcp.load(path)
    for wrong in ([cls, cls], [value], ["Scaled"], int):
        with pytest.raises(ValueError, match=r"frozen dataclasses of yours, .*, got"):
            jaxcp.load(path, types=wrong)


def test_calibrations_of_own_scores(tmp_path):
    cp = jaxcp.calibrate(Scaled(2.0), X, Y)
    loaded = again(tmp_path / "a", cp, types=Scaled)
    assert jax.tree.structure(cp) == jax.tree.structure(loaded)
    assert_same(cp(X, 0.2), loaded(X, 0.2))


def test_classes_that_jax_registers(tmp_path):
    """With arrays they are their fields, without any they are given whole."""
    scale = dataclasses.dataclass(frozen=True)(type("Scale", (Scaled,), {}))
    scale = jax.tree_util.register_dataclass(scale, ["factor"], ["exponent"])
    assert_same(scale(X), again(tmp_path / "a", scale(X), types=scale))
    plain = jax.tree_util.register_static(type("Plain", (scores.Absolute,), {}))
    cp, other = jaxcp.calibrate(plain(), X, Y), plain()
    jaxcp.save(tmp_path / "a", cp)
    loaded = jaxcp.load(tmp_path / "a", score=other)
    assert loaded.score is other
    assert_same(cp.scores, loaded.scores)
    with pytest.raises(ValueError, match=r"Plain with .*, none, got Absolute with"):
        jaxcp.load(tmp_path / "a", score=ABSOLUTE)


def test_classes_of_one_name_are_refused(tmp_path):
    other = jaxcp.pytree(type("Scaled", (), {"__annotations__": {"factor": float}}))
    with pytest.raises(ValueError, match="other names, got two Scaled"):
        jaxcp.save(tmp_path / "a", [Scaled(1.0), other(2.0)])


def test_fields_that_came_later_have_their_defaults(tmp_path):
    path = tmp_path / "a"
    jaxcp.save(path, CP)

    def drop(text):
        i = text["value"]["fields"].index("row_shapes")
        del text["value"]["fields"][i], text["value"]["items"][i]

    rewritten(path, drop)
    assert jaxcp.load(path).row_shapes is None

    def rename(text):
        text["value"]["fields"][0] = "metric"

    rewritten(path, rename)
    with pytest.raises(ValueError, match="Calibration of other fields, "):
        jaxcp.load(path)


# Files


def test_files_are_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "cp.any suffix"
    jaxcp.save(str(path), {"old": X})
    jaxcp.save(path, CP)
    assert_same(CP, jaxcp.load(str(path)))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        jaxcp.save(path, {"new": X})
    assert_same(CP, jaxcp.load(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_of_this_format_by_hand(tmp_path):
    """What version 0.1 wrote is read by all versions that have its format."""
    path = tmp_path / "cp.npz"
    score = {"is": "value", "class": "jaxcp.scores.Absolute", "fields": [], "items": []}
    array = {"is": "array", "type": "float32", "entry": "scores"}
    shapes = {"is": "tuple", "items": [{"is": "tuple", "items": []}]}
    value = {
        "is": "value",
        "class": "jaxcp.Calibration",
        "fields": ["score", "scores", "weights", "mask", "row_shapes"],
        "items": [score, array, None, None, shapes],
    }
    text = {"format": 1, "jaxcp": "0.1.0", "holes": [], "types": [], "value": value}
    np.savez(path, scores=np.arange(1, 10, dtype=np.float32))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("jaxcp.json", json.dumps(text))
    assert float(jaxcp.load(path).quantile(0.2)) == 8


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "cp.npz"
    jaxcp.save(path, CP)
    whole = path.read_bytes()
    for content in (b"", b"text", pickle.dumps(1), whole[:-1], whole[:300]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"file of jaxcp.save, got .*BadZipFile"):
            jaxcp.load(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(ValueError, match=r"expected a file of jaxcp.save, got .*CRC"):
        jaxcp.load(path)
    np.savez(path, scores=np.ones(3))
    with pytest.raises(ValueError, match=r"expected a file of jaxcp.save, got .*json"):
        jaxcp.load(path)
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"expected a file of jaxcp.save"):
        jaxcp.load(tmp_path / "a.npy")
    with pytest.raises(FileNotFoundError):
        jaxcp.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        jaxcp.save(tmp_path / "none" / "cp.npz", CP)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"format": 2, "jaxcp": "9.0"},
            r"format 2, not 1\), which jaxcp 9",
        ),
        ({"value": {"is": "eval"}}, "a file of jaxcp.save, got .*KeyError: 'eval'"),
        ({"value": {"is": "value", "class": "os.system"}}, "KeyError: 'os.system'"),
        (
            {"value": {"is": "value", "class": "jaxcp.Next"}},
            r"Next'\), which jaxcp .* wrote; load it there",
        ),
        ({"value": {"is": "yours", "class": "int"}}, "KeyError: 'int'"),
        ({"value": {"is": "given", "hole": 1}}, "expected a file of jaxcp.save"),
        ({"value": {"is": "array", "entry": "b", "type": "f4"}}, "of jaxcp.save.*'b'"),
        (
            {"value": {"is": "method", "of": 3, "name": "__init__"}},
            "expected a file of jaxcp.save, got",
        ),
        ({"value": [[]]}, "expected a file of jaxcp.save"),
        ({"holes": 3}, "expected a file of jaxcp.save"),
    ],
)
def test_changed_files_are_refused_and_run_nothing(tmp_path, change, message):
    path = tmp_path / "cp.npz"
    jaxcp.save(path, CP)
    rewritten(path, lambda text: text.update(change))
    with pytest.raises(ValueError, match=message):
        jaxcp.load(path)


def with_entries(path, compression=zipfile.ZIP_STORED, **more):
    """Writes the entries of a file again, and more."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in (entries | more).items():
            archive.writestr(name, value)


def retyped(text):
    text["value"]["items"][1]["type"] = "int32"


def doubled(text):
    for name in "fields", "items":
        text["value"][name] += text["value"][name][-1:]


def long_and_empty():
    file = io.BytesIO()
    np.save(file, np.zeros((10**9, 0), "f"))
    return file.getvalue()


HOSTILE = {
    "axes up to .* without numbers": lambda path: with_entries(
        path, **{"long.npy": long_and_empty()}
    ),
    "without compression": lambda path: with_entries(path, zipfile.ZIP_DEFLATED),
    "without compression, and not": lambda path: with_entries(path, zipfile.ZIP_BZIP2),
    "is no part": lambda path: with_entries(path, **{"x/scores": b""}),
    "each name once": lambda path: with_entries(path, scores=b""),
    "scores is of float32, not int32": lambda path: rewritten(path, retyped),
    "each name once, of score": lambda path: rewritten(path, doubled),
}


@pytest.mark.parametrize("found", HOSTILE)
def test_files_hold_the_value_and_nothing_else(tmp_path, found):
    jaxcp.save(tmp_path / "a", CP)
    HOSTILE[found](tmp_path / "a")
    with pytest.raises(ValueError, match=f"expected .*{found}"):
        jaxcp.load(tmp_path / "a")


STRANGE = "1/0", "1/2/3", "nan", "1e99999999", "0" * 10**5, "(", "(i4,i4,)", "", 3, None


@pytest.mark.parametrize("text", STRANGE, ids=lambda text: str(text)[:9])
@pytest.mark.parametrize("kind", sorted(_nodes._TEXTS))
def test_every_reader_of_text_ends_soon(tmp_path, kind, text):
    """With a value, or a ValueError, whatever the text says."""
    jaxcp.save(tmp_path / "a", [])
    rewritten(tmp_path / "a", lambda v: v.update(value={"is": kind, "text": text}))
    start = time.process_time()
    try:
        jaxcp.load(tmp_path / "a")
    except ValueError as error:
        assert str(error).startswith("expected ")
    else:
        assert kind not in ("fraction", "dtype")  # no harm in the others
    assert time.process_time() - start < 0.5


def test_names_of_files_are_as_long_as_the_system_lets_them(tmp_path):
    path = tmp_path / ("a" * 255)
    assert_same(CP, again(path, CP))


def test_arrays_that_were_spread_over_devices(tmp_path):
    mesh = jax.make_mesh((2,), ("rows",))
    spread = jax.device_put(X, jax.NamedSharding(mesh, jax.P("rows")))
    loaded = again(tmp_path / "a", jaxcp.Calibration(ABSOLUTE, spread))
    assert_array_equal(loaded.scores, X)
    assert_same(loaded.quantile(0.2), jaxcp.Calibration(ABSOLUTE, X).quantile(0.2))


CHILD = """
import sys, numpy as np, jax.numpy as jnp, jaxcp

folder = sys.argv[1]
given = {"evaluate": lambda scale, pred, y: jnp.abs(y - pred) / scale["s"]}
for i, name in enumerate(["cp", "groups", "custom", "cv", "online"]):
    load = lambda **given: jaxcp.load(f"{folder}/{name}.npz", **given)
    if name == "online":
        method, state = load()
        result = jaxcp.online.run(method, state, jnp.zeros(9), jnp.ones(9), 0.2)
    elif name == "cv":
        result = load()(jnp.ones((3, 2)), 0.2)
    else:
        result = load(**given if name == "custom" else {}).quantile(0.2)
    jaxcp.save(f"{folder}/{name} result.npz", result)
"""


@pytest.mark.slow
def test_a_new_process_has_the_same_bits(tmp_path):
    key_data, key = jax.random.split(KEY)
    x, y = datasets.linear(key_data, 40, num_features=2)
    groups = jaxcp.calibrate_groups(ABSOLUTE, X, Y, X > 0, num_groups=2)
    score = scores.Custom(functools.partial(scaled, {"s": jnp.array(0.3)}))
    custom = jaxcp.calibrate(score, X, Y)
    cv = jaxcp.cv_plus(key, learners.Ridge(1.0), ABSOLUTE, x, y, num_folds=4)
    method = online.ACI(ABSOLUTE, 0.05, window=9)
    state = method.init(CP.scores, 0.2)
    values = {"cp": CP, "groups": groups, "custom": custom, "cv": cv}
    for name, value in (values | {"online": (method, state)}).items():
        jaxcp.save(tmp_path / f"{name}.npz", value)
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=True)
    expected = {name: cp.quantile(0.2) for name, cp in values.items() if name != "cv"}
    expected["cv"] = cv(jnp.ones((3, 2)), 0.2)
    expected["online"] = online.run(method, state, jnp.zeros(9), jnp.ones(9), 0.2)
    for name, value in expected.items():
        assert_same(value, jaxcp.load(tmp_path / f"{name} result.npz"))


LOADED = """
import pickle, sys, jaxcp

assert "jaxcp.scores" not in sys.modules and "jaxcp.online" not in sys.modules
for name in sys.argv[2:]:
    value = jaxcp.load(f"{sys.argv[1]}/{name}.npz")
    assert type(pickle.loads(pickle.dumps(value))) is type(value)
    jaxcp.save(f"{sys.argv[1]}/{name} again.npz", value)
print("flax" in sys.modules)
"""
NAMED = """
import json, sys

for text in sys.argv[1:]:
    for module in [m for m in sys.modules if m.partition(".")[0] == "jaxcp"]:
        del sys.modules[module]
    from jaxcp.saving import _classes
    names = json.loads(text)
    missing = {*names} - {*_classes.named(text)}
    assert not missing, missing
"""


def test_a_process_that_has_loaded_nothing_knows_the_classes(tmp_path):
    """Of states, rules, losses by name, and what other families are part of."""
    method = online.ACI(scores.CQR(), 0.05, window=9)
    preds = jnp.stack([X - 1, X + 1], -1)
    values = {
        "state": (method, method.init(CP.scores, 0.2)),
        "rule": jaxcp.calibrate_groups(scores.CQR(), preds, Y, X > 0, num_groups=2),
        "loss": [jaxcp.risk.false_negative_rate],
        "system": jaxcp.predictive.calibrate_predictive(scores.Residual(), X, Y),
    }
    for name, value in values.items():
        jaxcp.save(tmp_path / f"{name}.npz", value)
    words = [sys.executable, "-c", LOADED, str(tmp_path), *values]
    assert subprocess.check_output(words, text=True) == "False\n"
    for name, value in values.items():
        assert_same(value, jaxcp.load(tmp_path / f"{name} again.npz"))


@pytest.mark.slow
def test_each_class_is_found_where_no_module_is_loaded():
    names = sorted(_classes.named(EVERY_FAMILY))
    family = lambda name: name.rpartition(".")[0]  # noqa: E731
    families = [list(of_one) for _, of_one in itertools.groupby(names, family)]
    listed = next(of_one for of_one in families if family(of_one[0]) == "jaxcp")
    apart = [of_one for of_one in families if of_one is not listed]
    apart += [[name] for name in listed]
    words = [json.dumps(names) for names in apart]
    subprocess.run([sys.executable, "-c", NAMED, *words], check=True)


def test_density_functions_keep_their_place(tmp_path):
    assert_same(DENSITY, again(tmp_path / "a", DENSITY))
    assert DENSITY.sample is None
