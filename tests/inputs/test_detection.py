from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment

import jaxcp
from helpers import cases, reference
from jaxcp import datasets, detection, metrics, scores


@cache
def images():
    """Boxes of 60 images: predictions, truths and confidences, in lists."""
    return datasets.scenes(jax.random.key(0), 60).lists()


KINDS = {
    "additive": scores.BoxOffset(),
    "relative": scores.BoxOffset(relative=True),
    "additive, maximum": scores.BoxOffset(maximum=True),
    "relative, maximum": scores.BoxOffset(relative=True, maximum=True),
    "inner": scores.BoxOffset(inner=True),
    "inner, maximum": scores.BoxOffset(inner=True, relative=True, maximum=True),
}


@pytest.mark.parametrize("case", cases("puncc/boxwise").values())
@pytest.mark.parametrize("way", ["outer", "inner"])
@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_agreement_with_the_published(case, kind, way):
    score = scores.BoxOffset(relative=kind == "multiplicative", inner=way == "inner")
    cp = jaxcp.calibrate(score, case["cal_pred"], case["cal_true"])
    for i, alpha in enumerate(case[f"{kind}_alphas"]):
        corners = cp(case["test_pred"], alpha).corners()
        assert_allclose(corners, case[f"{kind}_exact_{way}"][i], atol=5e-4)


def test_matching_agrees_with_the_published():
    case = reference("puncc/metrics")
    for min_iou, part, name in [(0.5, slice(9), "hung"), (0.3, slice(4), "hung4")]:
        preds, true = case["hung_pred"][part], case["hung_true"]
        index, matched = detection.match_boxes(preds, true, min_iou=min_iou)
        assert_array_equal(matched, case[f"puncc_{name}_valid"])
        found = preds[np.asarray(index)[np.asarray(matched)]]
        assert_allclose(found, case[f"puncc_{name}_pred"])


def test_matching_is_an_optimal_assignment():
    """Against scipy, with more truths than predictions and the other way round."""
    rng = np.random.default_rng(0)
    for b, t in [(7, 5), (5, 7), (1, 3), (4, 4)]:
        lower, true_lower = rng.random((b, 2)), rng.random((t, 2))
        preds = np.hstack([lower, lower + 0.6])
        true = np.hstack([true_lower, true_lower + 0.6])
        iou = np.asarray(metrics.iou(preds, true))
        index, matched = (np.asarray(v) for v in _match(preds, true))
        rows, columns = linear_sum_assignment(-iou)
        best = sum(v for v in iou[rows, columns] if v > 0.2)
        kept = np.flatnonzero(matched)
        assert_allclose(iou[index[kept], kept].sum(), best, rtol=1e-5)
        assert len(set(index[kept])) == len(kept)
        assert np.all(iou[index[kept], kept] > 0.2)
        assert np.all(index[~matched] == -1)


def _match(preds, true, **masks):
    return detection.match_boxes(preds, true, min_iou=0.2, **masks)


def test_padding_is_never_matched():
    box = jnp.array([0.0, 0.0, 2.0, 2.0])
    boxes = jnp.stack([box, box + 10, box + 20])
    masks = {"pred_mask": [False, True, True], "true_mask": [True, True, False]}
    index, _ = _match(boxes, boxes, **masks)
    assert index.tolist() == [-1, 1, -1]
    batch = jax.jit(jax.vmap(lambda p, t: _match(p, t)[1]))
    assert_array_equal(batch(boxes[None], boxes[None]), [[True] * 3])
    assert _match(boxes[:0], boxes)[1].tolist() == [False] * 3
    assert _match(boxes, boxes[:0])[0].shape == (0,)
    at_the_limit = detection.match_boxes(boxes, boxes, min_iou=1.0)[1]
    assert not np.any(at_the_limit)  # strictly above


def test_images_are_padded_and_masked_inside():
    preds, true, _ = images()
    assert any(len(v) == 0 for v in true)  # no object in an image
    assert any(len(p) < len(t) for p, t in zip(preds, true, strict=True))
    pairs = detection.match_images(preds, true, min_iou=0.5)
    assert pairs.present.sum() == sum(map(len, true))
    rows, all_iou = (
        [],
        np.asarray(metrics.iou(np.concatenate(preds), np.concatenate(true))),
    )
    for p, t in zip(preds, true, strict=True):
        iou, all_iou = all_iou[: len(p), : len(t)], all_iou[len(p) :, len(t) :]
        columns = zip(*linear_sum_assignment(-iou), strict=True)
        kept = sorted((j, i) for i, j in columns if iou[i, j] > 0.5)
        rows += [(p[i], t[j]) for j, i in kept]
    found = (
        np.asarray(pairs.preds[pairs.matched]),
        np.asarray(pairs.true[pairs.matched]),
    )
    assert_allclose(found, np.moveaxis(np.array(rows), 1, 0))


def test_calibration_on_images_is_calibration_on_pairs():
    preds, true, confidences = images()
    pairs = detection.match_images(
        preds, true, min_iou=0.4, confidences=confidences, min_confidence=0.5
    )
    rows = pairs.matched
    by_hand = jaxcp.calibrate(scores.BoxOffset(), pairs.preds[rows], pairs.true[rows])
    cp = detection.calibrate_boxes(
        scores.BoxOffset(),
        preds,
        true,
        min_iou=0.4,
        confidences=confidences,
        min_confidence=0.5,
    )
    assert_allclose(cp.quantile(0.2), by_hand.quantile(0.2))
    few = [p[c >= 0.5] for p, c in zip(preds, confidences, strict=True)]
    kept = detection.match_images(few, true, min_iou=0.4)
    assert kept.matched.sum() == pairs.matched.sum() < sum(map(len, true))


def test_a_crowded_image_is_matched_apart():
    """It pads no other image; the result does not depend on the company."""
    preds, true, _ = images()
    lower = 40 * np.stack(np.divmod(np.arange(70), 10), axis=1)
    crowd = np.hstack([lower, lower + 30.0])
    mixed = detection.match_images([*preds, crowd], [*true, crowd + 5], min_iou=0.5)
    alone = detection.match_images(preds, true, min_iou=0.5)
    assert mixed.matched.sum() == alone.matched.sum() + 70
    rows = np.asarray(alone.matched)
    first = np.flatnonzero(np.asarray(mixed.matched))[: rows.sum()]
    assert_array_equal(mixed.preds[first], alone.preds[rows])


def test_boxes_of_small_integers():
    preds = np.array([[10, 10, 50, 50], [12, 9, 60, 60], [30, 30, 90, 99]], np.uint8)
    true = np.array([[8, 11, 52, 49], [12, 12, 66, 66], [28, 31, 91, 90]], np.uint8)
    for kind in (np.uint8, np.uint16, np.uint32):
        cp = jaxcp.calibrate(scores.BoxOffset(), preds.astype(kind), true.astype(kind))
        assert_array_equal(cp.scores[0], [2, -1, 2, -1])
    cp = jaxcp.calibrate(scores.BoxOffset(maximum=True), preds, true)
    assert_allclose(cp(preds[:1], 0.3).corners(), [[4, 4, 56, 56]], rtol=1e-6)


def test_classes_match_their_own_with_confidences_of_their_own():
    box = np.array([0.0, 0.0, 2.0, 2.0])
    preds, true = [np.stack([box, box + 0.1])], [np.stack([box, box + 0.2])]
    options = {"pred_labels": [[1, 0]], "true_labels": [[0, 1]], "min_iou": 0.3}
    pairs = detection.match_images(preds, true, **options)
    assert_allclose(pairs.preds, np.stack([box + 0.1, box]), rtol=1e-6)
    for least in (0.3, [0.3, 0.3]):  # as confident as asked is enough
        exactly = {"confidences": [[0.3, 0.3]], "min_confidence": least}
        assert detection.match_images(preds, true, **options, **exactly).matched.all()
    options |= {"confidences": [[0.6, 0.6]], "min_confidence": [0.5, 0.7]}
    pairs = detection.match_images(preds, true, **options)
    assert pairs.matched.tolist() == [True, False]
    some = detection.match_images(
        [[box], []],
        [[box], []],
        min_iou=0.5,
        pred_labels=[[1], []],
        true_labels=[[1], []],
    )
    assert some.matched.tolist() == [True, False]  # the second row is padding


def test_no_images_and_no_pairs():
    nothing = detection.match_images([], [], min_iou=0.5)
    assert nothing.matched.shape == (0,)
    cp = detection.calibrate_boxes(
        scores.BoxOffset(), [[]], [[[0, 0, 1, 1]]], min_iou=0.5
    )
    box = cp(jnp.array([[0.0, 0.0, 1.0, 1.0]]), 0.5)
    assert_array_equal(box.corners(), [[-np.inf, -np.inf, np.inf, np.inf]])
    assert box.size() == np.inf


@pytest.mark.slow
def test_a_detector_six_pixels_short_on_two_sides():
    """One sign for all sides, as in the theory text, covers nothing here."""
    key_true, key_noise = jax.random.split(jax.random.key(0))
    lower = jax.random.uniform(key_true, (1000, 2), maxval=100.0)
    true = jnp.concatenate([lower, lower + 40], axis=1)
    noise = 0.5 * jax.random.normal(key_noise, (1000, 4))
    preds = true + noise - jnp.array([[0, 0, 6, 6]])
    old, new = slice(500), slice(500, None)
    for score in KINDS.values():
        boxes = jaxcp.calibrate(score, preds[old], true[old])(preds[new], 0.2)
        assert metrics.coverage(boxes, true[new]) > 0.8 - 4 * 0.4 / 500**0.5
    errors = preds[old] - true[old]
    q = jaxcp.conformal_quantile(errors, 0.05)
    outer = jnp.concatenate(
        [preds[new, :2] - q[None, :2], preds[new, 2:] + q[None, 2:]], 1
    )
    assert (
        metrics.coverage(jaxcp.sets.BoundingBox(outer[:, :2], outer[:, 2:]), true[new])
        == 0
    )


@pytest.mark.slow
def test_coverage_of_boxes_over_replicates():
    """The maximum covers exactly k / (n + 1); Bonferroni at least 1 - alpha."""
    n, alpha, trials = 39, 0.2, 10_000

    def trial(key):
        key_sides, key_noise = jax.random.split(key)
        sides = jax.random.uniform(key_sides, (n + 1, 2), minval=10.0, maxval=90.0)
        true = jnp.concatenate([jnp.zeros((n + 1, 2)), sides], axis=1)
        noise = jax.random.normal(key_noise, (n + 1, 4)) * jnp.tile(sides, 2) / 20
        preds = true + noise - jnp.array([[0, 0, 3, 3]])

        def covered(score):
            cp = jaxcp.calibrate(score, preds[:n], true[:n])
            return metrics.coverage(cp(preds[n:], alpha), true[n:])

        return {name: covered(score) for name, score in KINDS.items()}

    keys = jax.random.split(jax.random.key(0), trials)
    error = 4 * np.sqrt(alpha * (1 - alpha) / trials)
    for name, covered in jax.jit(jax.vmap(trial))(keys).items():
        rate = np.mean(covered)
        if "maximum" in name:
            assert abs(rate - 32 / 40) < error, name
        else:
            assert rate > 1 - alpha - error, name


def test_flat_predictions_have_no_unit():
    score = scores.BoxOffset(relative=True, maximum=True)
    flat, true = jnp.array([1.0, 1.0, 1.0, 5.0]), jnp.array([0.0, 0.0, 9.0, 9.0])
    assert score(flat, true) == 1.0  # a quarter above, a whole height below
    box = score.invert(flat, jnp.asarray(0.5))
    assert_allclose(box.corners(), [-np.inf, -1, np.inf, 7], rtol=1e-6)
    slope = jax.jit(jax.grad(lambda p: jnp.sum(score(p, true))))(flat)
    assert np.all(np.isfinite(slope))


def test_scenes():
    scenes = datasets.scenes(jax.random.key(0), 60)
    boxes = np.asarray(scenes.true_boxes[scenes.true_mask])
    assert np.all(boxes[:, :2] < boxes[:, 2:])
    assert np.all((boxes >= 0) & (boxes <= 256))
    preds, true, confidences = images()
    assert [len(v) for v in confidences] == [len(v) for v in preds]
    pairs = detection.match_images(preds, true, min_iou=0.5)
    errors = np.asarray(pairs.preds - pairs.true)[np.asarray(pairs.matched)]
    assert_allclose(errors.mean(axis=0), [0, 0, -6, -6], atol=1.0)
    missed = 1 - pairs.matched.sum() / pairs.present.sum()
    assert abs(missed - 0.1) < 0.06
