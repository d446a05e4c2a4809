"""Wrong calls of metrics."""

import jax
import jax.numpy as jnp
import pytest

from jaxcp import metrics
from jaxcp.sets import BoundingBox, Box, Ellipsoid, Interval, LabelSet
from rows import KEY, SETS9, X2, P, X, Y, refuses

BOXES = jnp.array([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0]])
CROSSED = BOXES[:, jnp.array([2, 1, 0, 3])]


WRONG = {
    "no groups": (
        lambda: metrics.group_coverage(SETS9, X, None, num_groups=3),
        "groups as an array, got NoneType",
    ),
    "no rates": (
        lambda: metrics.excess_coverage_risk(SETS9, X, None, 0.1),
        "rates as a value, got None",
    ),
    "coverage of boxes": (
        lambda: metrics.coverage(BoundingBox(BOXES[:, :2], BOXES[:, 2:]), BOXES[:, :2]),
        r"y of shape \(2, 4\) like sets, got \(2, 2\)",
    ),
    "IoU of crossed boxes": (lambda: metrics.iou(BOXES, CROSSED), "b with x_min <="),
    "IoU of one crossed box": (
        lambda: metrics.iou([3, 0, 1, 1], BOXES),
        r"a with x_min <= x_max and y_min <= y_max, got \[3 0 1 1\]$",
    ),
    "IoU of points": (lambda: metrics.iou(BOXES, X2), r"b of shape \(..., 4\)"),
    "no sets": (lambda: metrics.coverage((X, X), X), "sets with contains"),
    "a pair of ends": (
        lambda: metrics.mean_size((X, X)),
        r"got tuple; numpy.stack\(ends, axis=1\) makes an array of a pair of ends",
    ),
    "a list of sets": (
        lambda: metrics.mean_size(list(SETS9)),
        r"got list; sets\[ints\] and sets\[mask\] are batches",
    ),
    "ends of three": (
        lambda: metrics.mean_size(P),
        r"an array \(m, 2\) of ends or a mask \(m, k\), got float\d+\(9, 3\)",
    ),
    "one end": (lambda: metrics.coverage(X, X), r"got float\d+\(9,\)"),
    "boxes as an array": (
        lambda: metrics.coverage(Box(P, P).to_numpy(), P),
        r"got float\d+\(9, 3, 2\)",
    ),
    "a mask of one set": (lambda: metrics.mean_size(Y > 0), r"got bool\(9,\)"),
    "words for ends": (
        lambda: metrics.mean_size([["low", "high"]]),
        "sets with contains.*, got list",
    ),
    "a path for sets": (lambda: metrics.mean_size("sets.csv"), "got str"),
    "ends of other rows": (
        lambda: metrics.coverage(SETS9.to_numpy(), X[:3]),
        "y with 9 rows like sets, got 3",
    ),
    "ends for labels": (
        lambda: metrics.singleton_rate(SETS9.to_numpy()),
        "sets of kind LabelSet, got Interval",
    ),
    "a mask for ends": (
        lambda: metrics.winkler_score(P > 0, X, 0.1),
        "sets of kind Interval, got LabelSet",
    ),
    "full intervals": (
        lambda: metrics.full_rate(SETS9),
        "sets of kind LabelSet, got Interval",
    ),
    "a class for sets": (lambda: metrics.mean_size(Interval), "sets with contains"),
    "no y": (lambda: metrics.coverage(SETS9, None), "y as an array, got NoneType"),
    "a mask of numbers": (
        lambda: metrics.mean_size(LabelSet(P)),
        r"a mask of 2 axes, bool, got float\d+\(9, 3\)",
    ),
    "one label set": (
        lambda: metrics.empty_rate(LabelSet(Y > 0)),
        r"a mask of 2 axes, bool, got bool\(9,\)",
    ),
    "corners of three": (
        lambda: metrics.coverage(BoundingBox(P, P), jnp.ones((9, 4))),
        r"targets of shape \(6,\), got \(4,\)",
    ),
    "several targets for a label set": (
        lambda: metrics.coverage(LabelSet(P > 0), P.astype(int)),
        r"y of shape \(9,\) like sets, got \(9, 3\)",
    ),
    "an IoU of nothing": (lambda: metrics.iou(None, BOXES), "a as an array"),
    "eta of nothing": (
        lambda: metrics.coverage_width_criterion(SETS9, X, 0.1, eta=None),
        "eta as a number, got None",
    ),
    "edges of nothing": (
        lambda: metrics.size_stratified_coverage(SETS9, X, edges=[jnp.nan]),
        "edges without NaN",
    ),
    "a flag for a count": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_bins=True),
        "num_bins as an int >= 1, got True",
    ),
    "a window of nothing": (
        lambda: metrics.worst_window_coverage(SETS9, X, 0),
        "window as an int >= 1, got 0",
    ),
    "a window of a share": (
        lambda: metrics.worst_window_coverage(SETS9, X, 0.5),
        "window as an int >= 1, got 0.5",
    ),
    "a window of more than all": (
        lambda: metrics.worst_window_coverage(SETS9, X, 10),
        "window <= 9, the number of rows, got 10",
    ),
    "several windows": (
        lambda: metrics.worst_window_coverage(SETS9, X, Y),
        r"window of shape \(\), got \(9,\); use jax.vmap",
    ),
    "infinite inputs": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2.at[1, 0].set(jnp.inf)),
        r"finite x, got inf at \(1, 0\)",
    ),
    "strata in two ways": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_bins=2, edges=[1]),
        "one of num_bins, num_ranges, edges, got 2 for Interval",
    ),
    "strata in no way": (
        lambda: metrics.size_stratified_coverage(SETS9, X),
        "got 0 for Interval",
    ),
    "ranges of widths": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_ranges=2),
        "num_ranges only for label sets, got Interval",
    ),
    "too many ranges": (
        lambda: metrics.size_stratified_coverage(LabelSet(P > 0), Y, num_ranges=5),
        "num_ranges <= 4, got 5",
    ),
    "edges that fall": (
        lambda: metrics.size_stratified_coverage(SETS9, X, edges=[2, 1]),
        "edges that increase",
    ),
    "sizes of another length": (
        lambda: metrics.hsic(SETS9, X, sizes=X[:3]),
        "sizes with 9 rows like sets, got 3",
    ),
    "a bandwidth of 0": (
        lambda: metrics.hsic(SETS9, X, bandwidths=(1.0, 0.0)),
        "bandwidths > 0, got 0.0",
    ),
    "no permutations": (
        lambda: metrics.hsic_test(KEY, SETS9, X, num_permutations=0),
        "num_permutations as an int >= 1, got 0",
    ),
    "calibration rows in place of their number": (
        lambda: metrics.conditional_coverage_error(
            KEY, SETS9, X, X2, 0.1, num_calibration=X
        ),
        "num_calibration as an int >= 1, got",
    ),
    "interval score of labels": (
        lambda: metrics.winkler_score(LabelSet(P > 0), Y, 0.1),
        "sets of kind Interval, got LabelSet",
    ),
    "singletons of intervals": (
        lambda: metrics.singleton_rate(SETS9),
        "sets of kind LabelSet, got Interval",
    ),
    "pinball score of a band": (
        lambda: metrics.pinball_score(P, X, 0.1),
        r"preds of shape \(9,\), got \(9, 3\)",
    ),
    "pinball": (
        lambda: metrics.pinball_score(X, X, 1.0),
        r"level in \(0, 1\), got 1.0",
    ),
    "rates of coverage": (
        lambda: metrics.excess_coverage_risk(SETS9, X, X, 0.1),
        r"rates in \[0, 1\], got 2.0 at 1",
    ),
    "directions of other inputs": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2, directions=P),
        r"directions of shape \(9, 2\), got \(9, 3\)",
    ),
    "summary": (lambda: metrics.summary(SETS9, X, 90), r"alpha in \(0, 1\), got 90"),
    "ellipsoid and other targets": (
        lambda: metrics.coverage(Ellipsoid(X2, X2, X), X[:, None]),
        r"target of shape \(2,\), got \(1,\)",
    ),
    "inputs of other rows": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X[:8], 0.1),
        "x with 9 rows like y, got 8",
    ),
    "NaN inputs": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X * jnp.nan, 0.1),
        "finite x, got nan at 0",
    ),
    "no cells": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X, 0.1, num_cells=0),
        "num_cells as an int >= 1, got 0",
    ),
    "share": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X, share=0.0),
        r"share in \(0, 1\], got 0.0",
    ),
    "targets unlike boxes": (
        lambda: metrics.coverage(Box(P, P), X),
        r"y of shape \(9, 3\) like sets, got \(9,\)",
    ),
    "coverage of unequal lengths": (
        lambda: metrics.coverage(Interval(X, X), X[:3]),
        "y with 9 rows like sets, got 3",
    ),
    "coverage of labels from 1": (
        lambda: metrics.coverage(LabelSet(P > 0), Y + 1),
        "y in 0, ..., 2, got 3",
    ),
    "coverage of float labels": (
        lambda: metrics.coverage(LabelSet(P > 0), X),
        "y of an integer type, got float",
    ),
    "coverage of groups": (
        lambda: metrics.group_coverage(Interval(X, X), X, Y, num_groups=2),
        "groups in 0, ..., 1, got 2",
    ),
    "one set": (
        lambda: metrics.coverage(Interval(0.0, 1.0), 0.5),
        r"sets with a leading axis, got a scalar; \[value\] is one row",
    ),
    "one target": (
        lambda: metrics.coverage(Interval(X[:1], X[:1]), 0.5),
        r"y with a leading axis, got a scalar; \[value\] is one row",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.hsic(SETS9, X, bandwidths=1.0),
        lambda: metrics.hsic(SETS9, X, bandwidths=(1.0,)),
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2, directions=X2[:0]),
        lambda: jax.jit(
            lambda s: metrics.worst_slab_coverage(KEY, SETS9, X, X2, share=s)
        )(0.1),
        lambda: jax.jit(lambda g: metrics.summary(SETS9, X, 0.1, g))(Y),
        lambda: metrics.coverage(SETS9),
        lambda: metrics.coverage(SETS9, X, 0.1),
        lambda: metrics.class_coverage(LabelSet(P > 0)),
        lambda: metrics.singleton_rate(LabelSet(P > 0), Y),
        lambda: metrics.group_coverage(SETS9, X, Y, 0.1),
        lambda: metrics.coverage_gap(SETS9, X, Y, num_groups=9),
        lambda: metrics.winkler_score(SETS9, X, 0.1, eta=1.0),
    ],
)
def test_python_and_jax_refuse_the_rest(call):
    with pytest.raises((TypeError, ValueError)):
        call()
