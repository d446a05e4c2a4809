"""What every method keeps, in whichever way it is called: methods x laws."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
import methods
from helpers import cut, loaded, same, stacked
from jaxcp.sets import LabelSet
from methods import ABSOLUTE, ALPHA, METHODS, WITH_LEVELS, M, N, context, of


def law(name):
    return pytest.mark.parametrize("name", of(name))


leaves = jax.tree.leaves


def with_slopes(method, floats, rows, test):
    """Returns slopes of the sum of all that is finite in rows of floats, and all."""

    def total(floats):
        found = method.run(rows | floats, test)
        ends = [v for v in leaves(found) if jnp.issubdtype(v.dtype, jnp.inexact)]
        return sum(jnp.sum(jnp.where(jnp.isfinite(v), v, 0)) for v in ends), found

    return jax.grad(total, has_aux=True)(floats)


def floats_of(rows):
    is_float = lambda k: np.issubdtype(leaves(rows[k])[0].dtype, np.floating)  # noqa: E731
    return {k: rows[k] for k in ("preds", "x", "y") if k in rows and is_float(k)}


@law("jit")
def test_jit_is_eager_and_vmap_is_a_loop_for_any_number_of_rows(name):
    """Those of N rows have a program of their own, and others are filled up.

    With their slopes, which are finite: one program for both.
    """
    method = METHODS[name]
    method.run(*method.data())
    each = [method.data(N + 3, seed) for seed in range(2)]
    rows, test = stacked(*each)
    if "gradients" in method.not_for:
        mapped = jax.jit(jax.vmap(method.run))(rows, test)
    else:
        run = jax.jit(jax.vmap(partial(with_slopes, method)))
        slopes, mapped = run(floats_of(rows), rows, test)
        assert slopes and all(np.all(np.isfinite(v)) for v in leaves(slopes))
    for i in range(2):
        same(cut(mapped, i), method.run(*each[i]), method.rtol)


@pytest.mark.parametrize("name", [v for v in of("gradients") if v not in of("jit")])
def test_slopes_are_finite(name):
    method = METHODS[name]
    rows, test = method.data()
    slopes, _ = jax.jit(partial(with_slopes, method))(floats_of(rows), rows, test)
    assert slopes and all(np.all(np.isfinite(v)) for v in leaves(slopes))


@law("traces")
def test_other_rows_and_levels_trace_nothing(name):
    method = METHODS[name]
    method.run(*method.data())
    data = method.data(seed=1)
    with jax.no_tracing():
        method.run(*data, 0.4)


@law("large levels")
def test_sets_that_mostly_miss_come_with_one_warning_at_the_line_that_asks(name):
    method = METHODS[name]
    rows, test = method.data()
    value = method.make(rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for alpha in (0.9, 0.9, 0.5):
            found = method.ask(value, test, alpha)
    assert bool(caught) == ("sets" in found or name == "Bayes")
    assert len({warning.lineno for warning in caught}) == len(caught)
    for warning in caught:
        assert warning.filename == methods.__file__
        assert "sets that cover 10 %" in str(warning.message)


def test_calls_inside_of_calls_warn_once_and_traced_levels_never():
    rows = METHODS["split"].data()[0]
    preds, y = rows["preds"], rows["y"]
    cp = jaxcp.calibrate(ABSOLUTE, preds, y)
    split = jaxcp.split_conformal(lambda _, x: x, None, ABSOLUTE, preds, y)
    for call in [lambda a: cp(preds, a), lambda a: split(preds, alpha=a), split.at]:
        with pytest.warns(UserWarning, match="say alpha=0.25") as caught:
            call(np.float32(0.75))
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(0.5)
            if call != split.at:
                jax.jit(call)(0.75)


def labeled(rows, order):
    """Rows of pandas: what comes with the first argument is in another order."""
    first = []

    def of_pandas(name, v):
        frames = {1: pd.Series, 2: pd.DataFrame}
        by_fits = name in ("preds", "held_out", "fits") and {"held_out", "fits"} & {
            *rows
        }
        if by_fits or v.ndim not in frames:
            return v
        frame = frames[v.ndim](v, index=100 + np.arange(len(v)))
        first.append(name)
        return frame if name == first[0] else frame.iloc[order]

    return {
        name: jax.tree.map(partial(of_pandas, name), value)
        for name, value in rows.items()
    }


@law("labels of rows")
def test_labels_of_rows_say_which_belong_together(name):
    method = METHODS[name]
    rows, test = method.data()
    shuffle = np.random.default_rng(0).permutation
    for known in method.combinations(rows):
        value = method.make(labeled(known, shuffle(N)))
        if not isinstance(value, dict):  # of a verb, which reads its rows when asked
            same(value, method.make(known), like=False)
    found = method.run(labeled(rows, shuffle(N)), labeled(test, shuffle(M)))
    same(found, method.run(rows, test))


def far(rows, offset):
    """Numbers near 0 as integers or doubles near an offset; of a pair the centers."""
    if isinstance(rows, tuple):
        return far(rows[0], offset), *rows[1:]
    return (rows + np.float64(offset)).astype(type(offset))


def predicts_targets(name):
    """Whether sets are asked for of predictions in units of targets, outside of jit."""
    test = METHODS[name].data()[1]
    is_number = "y" in test and test["y"].dtype.kind == "f"
    without_ends = "split of draws", "selection"
    elsewhere = (*without_ends, "selected, the largest")  # which is asked inside of jit
    return is_number and {*test} >= {"preds"} and name not in elsewhere


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="double precision holds them")
@pytest.mark.parametrize("name", [name for name in METHODS if predicts_targets(name)])
def test_predictions_that_single_precision_cannot_hold_are_refused(name):
    method = METHODS[name]
    rows, test = method.data()
    value = method.make(rows)
    moved = {k: far(test[k], np.float64(2**31 + 65)) for k in ("preds", "y")}
    widths = np.asarray(method.ask(value, test, ALPHA)["sets"].widths())
    if not np.any(np.isfinite(widths) & (widths > 0)):
        pytest.skip("infinite and empty sets have no digits")
    with pytest.raises(ValueError, match=r"digits .*subtract an offset.*X64"):
        method.ask(value, test | moved, ALPHA)


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="double precision holds them")
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64])
def test_sets_hold_their_integers_or_are_refused(kind):
    rows = METHODS["split"].data()[0]
    preds, y = rows["preds"], rows["y"]
    cp = jaxcp.calibrate(ABSOLUTE, preds, y)
    split = jaxcp.split_conformal(lambda _, x: x, None, ABSOLUTE, preds, y)
    for offset in (2**12 + 1, 2**30 + 65):
        numbers = far(np.zeros(5), kind(offset))
        for call in (cp, split, lambda v, alpha: cp.at(alpha)(list(v))):
            if offset < 2**20:
                assert np.all(call(numbers, 0.3).contains(numbers.astype(float)))
                continue
            with pytest.raises(ValueError, match="preds with digits"):
                call(numbers, 0.3)
            with jax.enable_x64(True):
                assert np.all(call(numbers, 0.3).contains(numbers.astype(float)))


def test_sets_that_are_right_to_the_last_digits_have_lost_none():
    y = np.full(30, 0.1)
    cp = jaxcp.calibrate(ABSOLUTE, y, y)
    for sets in (cp(y, 0.2), cp.at(0.2)(list(y))):
        assert_array_equal(sets.upper, np.float32(0.1))


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="double precision holds them")
def test_a_prediction_far_from_others_is_seen():
    preds, y = METHODS["split"].data()[0].values()
    cp = jaxcp.calibrate(ABSOLUTE, preds, y)
    preds = np.append(preds.astype(float), 2.0**31 + 65)
    for call in (lambda v: cp(v, 0.3), cp.at(0.3), lambda v: cp.at(0.3)(preds=[*v])):
        call(preds[:-1])
        with pytest.raises(ValueError, match="got steps of"):
            call(preds)


def casts(tree, dtype):
    def cast(v):
        return v.astype(dtype) if np.issubdtype(v.dtype, np.floating) else v

    return jax.tree.map(cast, tree)


@pytest.mark.parametrize(
    "name, dtype",
    [(name, np.float16) for name in of("half precision")]
    + [
        pytest.param(name, np.float64, marks=pytest.mark.double)
        for name in METHODS
        if jax.config.jax_enable_x64
    ],
)
def test_results_have_the_precision_of_the_rows(name, dtype):
    method = METHODS[name]
    found = method.run(*casts(method.data(), dtype))
    for value in jax.tree.leaves(found.get("sets")):  # p-values are shares
        if jnp.issubdtype(value.dtype, jnp.inexact):
            assert value.dtype == dtype


@law("files")
def test_what_is_saved_answers_as_before(name, tmp_path):
    method = METHODS[name]
    rows, test = method.data()
    for known in method.combinations(rows):
        value = method.make(known)
        same(loaded(value, tmp_path, **method.functions), value)
    value = method.make(rows)
    again = loaded(value, tmp_path, **method.functions)
    same(method.ask(again, test, ALPHA), method.ask(value, test, ALPHA))


def unknown(v):
    """Rows of which nothing is known: numbers that are NaN, and labels of none."""
    if np.issubdtype(v.dtype, np.floating):
        return np.full_like(v, np.nan)
    return ~v if v.dtype == bool else np.full_like(v, -7)


@law("mask")
def test_masked_rows_are_as_if_deleted(name):
    """Whatever they hold: a row like the others, or nothing that is known."""
    method = METHODS[name]
    rows, test = method.data()
    mask = np.arange(N) % 7 != 1
    odd = method.data(seed=7)[0]

    def filled(kept, other):
        by_row = np.arange(N).reshape(-1, *[1] * (kept.ndim - 1))
        other = np.where(by_row == 8, unknown(kept), other)
        return np.where(mask[by_row], kept, other).astype(kept.dtype)

    known = jax.tree.map(filled, rows, odd) | {"mask": mask}
    found, expected = method.run(known, test), method.run(cut(rows, mask), test)
    same(found, expected, method.rtol)


@law("weights")
def test_unit_weights_are_none(name):
    method = METHODS[name]
    rows, test = method.data()
    weighted = rows | {"weights": np.ones(N, "f")}
    same(method.run(weighted, test), method.run(rows, test), method.rtol)


@pytest.mark.parametrize("name", [v for v in of("repeated") if v in of("weights")])
def test_integer_weights_are_repeated_rows(name):
    """Those off the mask in no copy, where there is one."""
    method = METHODS[name]
    rows, test = method.data()
    times = 1 + (np.arange(N) % 3 == 0)
    weighted = rows | method.options() | {"weights": times.astype("f")}
    found = method.run(weighted, test | {"test_weights": np.ones(M, "f")})
    times = times * weighted.get("mask", True)
    expected = method.run(cut(rows, np.repeat(np.arange(N), times)), test)
    same({k: found[k] for k in found}, {k: expected[k] for k in found}, method.rtol)


@law("permuted")
def test_the_order_of_rows_does_not_matter(name):
    method = METHODS[name]
    rows, test = method.data()
    order = np.random.default_rng(2).permutation(N)
    same(method.run(cut(rows, order), test), method.run(rows, test), method.rtol)


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_one_level_without_the_rows_has_the_same_sets(name, tmp_path):
    method = METHODS[name]
    rows, test = method.data()
    cp = method.make(rows)
    alpha = (ALPHA, 2 * ALPHA) if name == "risks" else ALPHA
    predictor = cp.at(alpha)
    sizes = [np.size(v) for v in jax.tree.leaves((predictor.score, predictor.q))]
    assert max(sizes) < N  # no rows
    known = {} if predictor.predict is None else {"predict": predictor.predict}
    jaxcp.save(tmp_path / "value", predictor)
    again = jaxcp.load(tmp_path / "value", **known)
    given, preds = context(test), test.get("x", test.get("preds"))
    for one in (predictor, again, jax.jit(lambda v: v)(predictor)):
        same(one(preds, **given), cp(preds, alpha, **given), 0)
    if "groups" in given:  # also by name, and within a program
        own, of_test = ({"groups": named(v)["groups"]} for v in (rows, test))
        by_name = method.make(rows | own).at(alpha)
        same(by_name(preds, **of_test), cp(preds, alpha, **given), 0)
        jitted = jax.jit(lambda value, *v: value(v[0], groups=v[1]))
        same(jitted(predictor, preds, given["groups"]), cp(preds, alpha, **given), 0)


def named(rows):
    """Rows whose labels and groups are words in the order of their codes.

    Off a mask they have one that is no name.
    """
    words = np.array(["ant", "bee", "cat"])
    kept = rows.get("mask", True)
    codes = {k: rows[k] for k in ("groups", "y") if k in rows}
    codes = {k: v for k, v in codes.items() if v.dtype == int}
    return rows | {k: np.where(kept, words[v], "?") for k, v in codes.items()}


class Columns(dict):
    """Rows that note which columns are read."""

    def __init__(self, rows):
        super().__init__(rows)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


def changed(method, change, least=1):
    """Yields rows and test points with one column changed, if so many are read."""
    parts = tuple(map(Columns, method.data()))
    method.run(*parts)
    for i, part in enumerate(parts):
        read = {name: dict(part)[name] for name in sorted(part.read)}
        read |= {} if i else method.options()
        for name, value in read.items():
            if len(part.read) >= least or name not in part:
                data = [*map(dict, parts)]
                data[i][name] = change(value)
                yield data[i][name], data


@law("levels")
def test_levels_out_of_range_are_refused(name):
    method = METHODS[name]
    rows, test = method.data()
    value = method.make(rows)
    words = r"^expected alpha (in \(0, 1\)|as a number|of shape)"
    for alpha in (0, 1.0, -0.1, np.nan, "0.1", (0.1,) * 5):
        with pytest.raises(ValueError, match=words):
            method.ask(value, test, alpha)


@law("lengths")
def test_columns_of_other_lengths_are_refused(name):
    method = METHODS[name]
    words = "^expected .*(rows like|shape|one length|leading axes)"
    for _, data in changed(method, lambda v: cut(v, slice(-1)), least=2):
        with pytest.raises(ValueError, match=words):
            method.run(*data)


@law("NaN")
def test_what_is_not_known_is_refused(name):
    """NaN anywhere, and labels and groups that are none."""
    method = METHODS[name]
    words = r"^expected .*(NaN|finite|in \(0, 1|in 0, ).* got (nan|-\d)"
    for column, data in changed(method, partial(jax.tree.map, unknown)):
        if leaves(column)[0].dtype != bool and column is not data[0].get("clusters"):
            with pytest.raises(ValueError, match=words):
                method.run(*data)


ROWS = {name: method.data()[0] for name, method in METHODS.items()}
NAMED = [k for k in of("names") if "groups" in ROWS[k] or ROWS[k]["y"].dtype == int]


@pytest.mark.parametrize("name", NAMED)
def test_names_are_their_codes(name):
    method = METHODS[name]
    rows, test = method.data()
    classes = {"classes": ("ant", "bee", "cat")} if rows["y"].dtype == int else {}
    masks = [{k: v} for k, v in method.options().items() if k == "mask"]
    for known in (rows | mask for mask in ({}, *masks)):
        found = method.run(named(known) | classes, named(test))
        same(found, method.run(known, test), like=False)


@pytest.mark.parametrize("name", [k for k, v in METHODS.items() if v.p_values])
def test_a_set_holds_what_has_a_large_p_value(name):
    method = METHODS[name]
    for seed in range(3):
        data = method.data(seed=seed)
        found = method.run(*data)
        inside = found["sets"].contains(data[1]["y"])
        assert_array_equal(inside, found["p"] > ALPHA)


WITH_GROUPS = [k for k, v in ROWS.items() if "groups" in v]


@pytest.mark.parametrize(
    "name, masked",
    [(name, False) for name in WITH_GROUPS]
    + [(name, True) for name in of("mask") if name in WITH_GROUPS],
)
def test_a_traced_group_that_is_unknown_excludes_nothing(name, masked):
    method = METHODS[name]
    rows, test = method.data()
    rows |= {"mask": np.arange(N) % 7 != 1} if masked else {}
    test |= {"groups": np.array([-1, 3, 99, 0, 1, 2])}
    found = jax.jit(lambda test: method.run(rows, test))(test)
    if "p" in found:
        assert_array_equal(found["p"][:3], 1)
    if "sets" in found:
        unknown = cut(found["sets"], slice(3))
        assert np.all(jax.tree.leaves(unknown.contains(test["y"][:3])))
        assert isinstance(unknown, LabelSet) or np.all(unknown.size() == np.inf)
