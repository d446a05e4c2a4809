"""Agreement of the metrics with published implementations, where these are right."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from helpers import cases, reference
from jaxcp import metrics
from jaxcp.sets import BoundingBox, Interval, LabelSet

REGRESSION = cases("mapie/metrics_regression")
CLASSIFICATION = cases("mapie/metrics_classification")
CONDITIONAL = cases("mapie/metrics_conditional")


def by_level(case):
    """Returns intervals for every level: a leading axis to vmap over."""
    return Interval(*case["iv"].transpose(1, 2, 0))


@pytest.mark.parametrize("name", REGRESSION)
def test_intervals(name):
    """Where intervals are crossed the peer swaps their ends, but not for coverage."""
    case, y = REGRESSION[name], jnp.asarray(REGRESSION[name]["y"])
    sets, alpha = by_level(case), jnp.asarray(1 - case["levels"])
    ends = np.sort(np.stack([sets.lower, sets.upper]), axis=0)
    swapped = Interval(*ends)
    crossed = np.any(sets.lower > sets.upper)

    @jax.jit
    @jax.vmap
    def found(sets, swapped, alpha):
        return {
            "coverage": metrics.coverage(sets, y),
            "width": metrics.mean_size(swapped),
            "mwi": metrics.winkler_score(swapped, y, alpha),
        } | {
            key: metrics.coverage_width_criterion(sets, y, alpha, eta=number(key[7:]))
            for key in case
            if key.startswith("cwc") and not crossed
        }

    for key, value in found(sets, swapped, alpha).items():
        assert_allclose(value, case[key], rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", REGRESSION)
def test_sizes(name):
    """Size-stratified coverage and HSIC, by the width of intervals, crossed or not."""
    case, y = REGRESSION[name], jnp.asarray(REGRESSION[name]["y"])
    sets = by_level(case)
    sizes = np.abs(sets.upper - sets.lower)
    # Some widths differ by less than single precision tells.
    order = np.array([np.unique(v, return_inverse=True)[1] for v in sizes])
    for key in case:
        if key.startswith("fix_hsic"):
            bandwidths = tuple(number(v) for v in key.split("_")[2:])
            found = jax.vmap(
                lambda s, size, b=bandwidths: metrics.hsic(
                    s, y, bandwidths=b, sizes=size
                )
            )(sets, sizes)
            assert_allclose(found, case[key], atol=1e-7)
            unrooted = metrics.hsic(
                jax.tree.map(lambda v: v[0], sets),
                y,
                bandwidths=bandwidths,
                rooted=False,
                sizes=sizes[0],
            )
            assert_allclose(unrooted, found[0] ** 2, rtol=1e-6)
        elif re.fullmatch(r"ssc_b\d+", key) and not case["ssc_ties_" + key[4:]]:
            found, least = jax.vmap(
                lambda s, size, b=int(key[5:]): [
                    metric(s, y, num_bins=b, sizes=size)
                    for metric in (
                        metrics.size_stratified_coverage,
                        metrics.min_size_stratified_coverage,
                    )
                ]
            )(sets, order)
            assert_allclose(found, case[key], rtol=1e-5)
            assert_allclose(least, case["ssc_score_" + key[4:]], rtol=1e-5)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_label_sets(name):
    case, y = CLASSIFICATION[name], jnp.asarray(CLASSIFICATION[name]["y"])
    sets = LabelSet(np.moveaxis(case["sets"], -1, 0))

    @jax.jit
    @jax.vmap
    def found(sets):
        values = {
            "coverage": metrics.coverage(sets, y),
            "width": metrics.mean_size(sets),
        }
        for key in case:
            bins, is_score = key.split("_")[-1], key.startswith("ssc_score")
            if not key.startswith("ssc") or key.endswith("error"):
                continue
            metric = (
                metrics.min_size_stratified_coverage
                if is_score
                else metrics.size_stratified_coverage
            )
            ranges = None if bins == "all" else int(bins[1:])
            values[key] = metric(sets, y, num_ranges=ranges)
        return values

    for key, value in found(sets).items():
        assert_allclose(value, case[key], rtol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditional(name):
    case = CONDITIONAL[name]
    sets, y, alpha = Interval(*case["iv"].T), case["y"], 1 - case["level"].item()
    for weighted, key in [(False, "covgap"), (True, "wcovgap")]:
        gap = metrics.coverage_gap(
            sets, y, case["groups"], alpha, num_groups=7, weighted=weighted
        )
        assert_allclose(gap, case[key], rtol=1e-5)
    risk = metrics.excess_coverage_risk(sets, y, case["oof"], alpha)
    assert_allclose(risk, case["ert"], rtol=1e-5)
    for key in case:
        if key.startswith("wsc"):
            worst = metrics.worst_slab_coverage(
                jax.random.key(0),
                sets,
                y,
                case["x"],
                share=number(key[5:]),
                directions=case["dirs"],
                holdout=False,
            )
            assert_allclose(worst, case[key], rtol=1e-5)


def test_averages_and_overlap():
    case = reference("puncc/metrics")
    sets = Interval(case["lo"], case["hi"])
    assert_allclose(metrics.coverage(sets, case["y"]), case["puncc_reg_coverage"])
    swapped = Interval(*np.sort([case["lo"], case["hi"]], axis=0))  # as the peer does
    assert_allclose(metrics.mean_size(swapped), case["puncc_reg_sharpness"], rtol=1e-5)
    labels = LabelSet(case["membership"])
    by_class = metrics.class_coverage(labels, case["labels"])
    assert_allclose(by_class, case["puncc_cls_classwise_coverage"], rtol=1e-6)
    assert_allclose(metrics.mean_size(labels), case["puncc_cls_size"], rtol=1e-6)
    outer = BoundingBox(case["box_outer"][:, :2], case["box_outer"][:, 2:])
    covered = metrics.coverage(outer, case["box_true"])
    assert_allclose(covered, case["puncc_od_coverage"], rtol=1e-6)
    pairs = metrics.iou(case["iou_a"], case["iou_b"])
    assert_allclose(pairs, case["exact_iou"], atol=1e-6)


def number(text):
    """Returns the number in the name of an array: 0p5 is 0.5, m1 is -1."""
    return float(text.replace("p", ".").replace("m", "-"))
