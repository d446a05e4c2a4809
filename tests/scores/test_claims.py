"""Claims of answers: the score, the claims that are kept, and how many are true."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import cases, inside, scores_of, sets_of
from jaxcp import metrics, risk, sets
from jaxcp.scores import Claims

VECTORS = cases("claims")


def answers(seed, n, m, ties=False):
    """Confidences, which claims there are, and which are true."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(n, m)).astype("f")
    c = np.round(2 * c) / 2 if ties else c
    there, true = rng.random((n, m)) < 0.8, rng.normal(size=(n, m)) < 0.5 + c
    return (c, there), true


def by_definition(share, confidences, there, true):
    """The largest confidence from which up the claims hold less than the share."""
    c, true = confidences[there], true[there]
    held = [Fraction(int(true[c >= v].sum()), int((c >= v).sum())) for v in c]
    failing = [v for v, part in zip(c, held, strict=True) if part < Fraction(share)]
    return max(failing, default=-np.inf)


def authors_loop(share, confidences, there, true):
    """Claims one by one, downwards: where the share of truths first falls short."""
    order = np.argsort(-confidences[there])
    confidences, true = confidences[there][order], true[there][order]
    for j in range(len(true)):
        if np.mean(true[: j + 1]) < share:
            return confidences[j]
    return -np.inf  # theirs is -1e5


@pytest.mark.parametrize("x64", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("case", VECTORS)
def test_vectors(case, x64):
    known = {k: np.asarray(v) for k, v in VECTORS[case].items()}
    with jax.enable_x64(x64):
        rounded = lambda v: np.asarray(jnp.asarray(v, float))  # noqa: E731
        score = Claims(known["share"].item())
        old, new = (
            (rounded(known[f"{part}confidence"]), known[f"{part}mask"])
            for part in ("", "test_")
        )
        y = known["test_truth"]
        assert_array_equal(
            scores_of(score, old, known["truth"]), rounded(known["scores"])
        )
        assert_array_equal(scores_of(score, new, y), rounded(known["test_scores"]))
        cp = jaxcp.calibrate(score, old, known["truth"])
        for i, alpha in enumerate(known["alphas"]):
            assert cp.quantile(alpha) == rounded(known["threshold"][i])
            kept = cp(new, alpha)
            assert_array_equal(kept.mask, known["kept"][i])
            assert_array_equal(kept.contains(y), known["share_holds"][i])
            assert_array_equal(kept.size(), known["kept"][i].sum(axis=1))


@pytest.mark.parametrize("share", ["1", "0.9", "0.7", "0.5", "1/3"])
def test_the_score_is_the_authors_loop_without_ties_and_the_definition_with(share):
    score = Claims(float(Fraction(share)))
    preds, y = answers(0, 1000, 12)
    rows = list(zip(*preds, y, strict=True))
    loop = [authors_loop(float(Fraction(share)), *row) for row in rows]
    assert_array_equal(scores_of(score, preds, y), loop)
    preds, y = answers(1, 1000, 12, ties=True)
    rows = list(zip(*preds, y, strict=True))
    defined = [by_definition(share, *row) for row in rows]
    found = scores_of(score, preds, y)
    assert_array_equal(found, defined)
    assert 0.01 < np.mean(np.isinf(found)) < 0.99


def test_shares_are_compared_as_decimals_are_written():
    """k of n are a share of the number k / n, for all n up to 100, and no less is."""
    n = np.repeat(np.arange(1, 101), 100)
    k = np.minimum(np.tile(np.arange(1, 101), 100), n)
    kept = np.arange(100)[None] < n[:, None]
    for lack in (0, 1):
        true = np.arange(100)[None] < (k - lack)[:, None]
        held = jax.jit(lambda s, y: s.contains(y))
        for share in (k / n, (k / n).astype("f")):
            assert_array_equal(held(sets.Kept(kept, share), true), lack == 0)


def test_a_share_below_1_may_be_reached_again():
    """Then sets hold more than {score <= q}: the share at q, not at all above it."""
    pred, y = (jnp.arange(4.0, 0, -1), np.ones(4, bool)), np.array([0, 1, 1, 1])
    score = Claims(0.7)
    assert score(pred, y) == 4 and not score.exact and Claims().exact
    assert [bool(score.invert(pred, q).contains(y)) for q in range(-1, 5)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip
    preds, y = answers(2, 1000, 8, ties=True)
    cuts = np.arange(-4, 4.5, 0.5, dtype="f")
    every = lambda s: np.array(  # noqa: E731
        [inside(sets_of(s, preds, np.full(1000, q, "f")), y) for q in cuts]
    )
    for share in (1.0, 0.7):
        held = every(Claims(share))
        above = np.logical_and.accumulate(held[::-1])[::-1]  # and at stricter ones
        found = np.asarray(scores_of(Claims(share), preds, y))
        assert_array_equal(found[None] <= cuts[:, None], above)
        assert np.any(held & ~above) == (share < 1)


def test_all_claims_true_keeps_all():
    preds, y = answers(3, 40, 6)
    cp = jaxcp.calibrate(Claims(), preds, np.ones_like(y))
    assert cp.quantile(0.1) == -np.inf
    kept = cp(preds, 0.1)
    assert_array_equal(kept.mask, preds[1])
    assert_array_equal(cp.p_values(preds, np.ones_like(y)), 1)
    assert np.all(jaxcp.calibrate(Claims(), preds, 0 * y)(preds, 0.01).is_empty())


def test_answers_without_claims_padding_and_other_lengths():
    (c, there), y = answers(4, 30, 6)
    there[:10] = False
    cp = jaxcp.calibrate(Claims(), (np.where(there, c, np.nan), there), y)
    assert_array_equal(np.sort(cp.scores)[:10], -np.inf)
    other = jaxcp.calibrate(Claims(), (np.where(there, c, 9.0), there), ~there | y)
    assert_array_equal(cp.scores, other.scores)
    wide = [np.pad(v, [(0, 0), (0, 3)]) for v in (c, there)]
    kept = cp(tuple(wide), 0.3)
    assert_array_equal(kept.mask[:, :6], cp((c, there), 0.3).mask)
    assert not kept.mask[:, 6:].any() and kept[:10].is_empty().all()
    assert np.all(kept[:10].contains(np.zeros((10, 9), bool)))
    none = jaxcp.calibrate(Claims(), (c[:0], there[:0]), y[:0])
    assert none.quantile(0.1) == np.inf and none((c, there), 0.1).size().sum() == 0
    nothing = jaxcp.calibrate(Claims(), (c[:, :0], there[:, :0]), y[:, :0])
    assert nothing.quantile(0.1) == -np.inf
    one = jaxcp.calibrate(Claims(), (c[-1:], there[-1:]), 0 * y[-1:])
    assert one.quantile(0.5) == c[-1][there[-1]].max() and one.quantile(0.4) == np.inf


def test_infinite_confidences_integers_and_flags_as_numbers():
    c = np.array([np.inf, 2, -np.inf])
    there, y = np.ones(3, bool), np.array([0, 1, 1])
    assert Claims()((c, there), y) == np.inf
    assert not Claims().invert((c, there), np.inf).mask.any()
    assert Claims()((c, there), 1 - y) == 2
    assert_array_equal(Claims().invert((c, there), -np.inf).mask, [True, True, False])
    whole = Claims()((np.arange(3), 1 * there), y)
    assert whole == 0 and jnp.issubdtype(whole.dtype, jnp.floating)
    assert Claims(1)((np.arange(3), there), y.astype("f")) == 0


def test_narrow_confidences_and_shares_that_are_none():
    preds, y = answers(10, 30, 4)
    narrow = jnp.asarray(preds[0], jnp.bfloat16), preds[1]
    cp, wide = (jaxcp.calibrate(Claims(), p, y) for p in (narrow, preds))
    assert cp.quantile(0.2) == wide.quantile(0.2).astype(jnp.bfloat16)
    for share in (0, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"expected share in \(0, 1\], got"):
            jaxcp.calibrate(Claims(share), preds, y)
    for share in ("most", [0.5, 0.7]):
        with pytest.raises(ValueError, match="expected share as a number, got"):
            jaxcp.calibrate(Claims(share), preds, y)


def test_gradients_are_those_of_one_confidence():
    c, there = jnp.array([3.0, 1.0, 2.0, 5.0]), np.array([True, True, True, False])
    slope = jax.grad(lambda c: Claims()((c, there), np.array([1, 0, 0, 0])))(c)
    assert_array_equal(slope, [0, 0, 1, 0])
    slope = jax.grad(lambda c: Claims()((c, there), np.ones(4)))(c)
    assert_array_equal(slope, 0)


def test_shares_under_vmap_are_those_of_a_loop():
    preds, y = answers(5, 60, 6, ties=True)
    shares = np.array([0.4, 0.75, 1.0], "f")

    @jax.jit
    def kept(share):
        cp = jaxcp.calibrate(Claims(share), preds, y)
        found = cp(preds, 0.2)
        return found, found.contains(y), cp.p_values(preds, y)

    together = jax.vmap(kept)(shares)
    for i, share in enumerate(shares):
        found = kept(share)
        for a, b in zip(*map(jax.tree.leaves, (together, found)), strict=True):
            assert_array_equal(a[i], b)


def test_groups_features_delta_and_certificates():
    """One feature is split, indicators are groups."""
    preds, y = answers(6, 90, 5, ties=True)
    topic = np.arange(90) % 3
    score, one = Claims(0.7), np.ones((90, 1), "f")
    split = jaxcp.calibrate(score, preds, y)
    groups = jaxcp.calibrate_groups(score, preds, y, topic, num_groups=3)
    flat = jaxcp.calibrate_conditional(score, preds, y, one)
    by_topic = jaxcp.calibrate_conditional(score, preds, y, np.eye(3, dtype="f")[topic])
    found = flat(preds, 0.2, features=one)
    assert_array_equal(found.mask, split(preds, 0.2).mask)
    found = by_topic(preds, 0.2, features=np.eye(3, dtype="f")[topic])
    kept = groups(preds, 0.2, groups=topic)
    assert_array_equal(found.mask, kept.mask)
    sure = split.quantile(0.2, delta=0.1)
    assert sure == np.sort(split.scores)[split.rank(0.2, 0.1) - 1] > split.quantile(0.2)
    assert "at least" in str(split.certificate(0.2))
    whole = jaxcp.calibrate(Claims(), preds, y)
    assert "at least" not in str(whole.certificate(0.2))


def test_sets_are_those_of_p_values_at_a_share_of_1():
    preds, y = answers(7, 50, 5, ties=True)
    for share in (1.0, 0.6):
        cp = jaxcp.calibrate(Claims(share), preds, y)
        held, likely = cp(preds, 0.25).contains(y), cp.p_values(preds, y) > 0.25
        assert np.all(held[likely]) and (share < 1 or np.all(held == likely))


def test_kept_claims_as_data():
    kept = sets.Kept(np.array([[True, False, True], [False] * 3]), np.array([1, 0.5]))
    assert kept.labels() == [[0, 2], []] and kept[0].labels() == [0, 2]
    assert kept.size().tolist() == [2, 0] and kept.is_empty().tolist() == [False, True]
    assert [one.size().item() for one in kept] == [2, 0]
    assert kept.to_dict() == {"labels": [[0, 2], []]}
    named = kept.named(["edema", "nodule", "effusion"])
    assert named[0].labels() == ["edema", "effusion"]
    assert list(named.to_pandas()) == ["edema", "nodule", "effusion"]
    assert_array_equal(kept.to_numpy(), kept.mask)
    y = np.array([[1, 0, 1], [0, 0, 0]])
    assert metrics.coverage(kept, y) == 1 and metrics.coverage(kept, 1 - y) == 0.5
    lost = jax.vmap(risk.false_discovery_rate)(kept, np.array([[1, 0, 0], [0, 0, 0]]))
    assert lost.tolist() == [0.5, 0]
    with pytest.raises(ValueError, match=r"y as masks of shape \(3,\), got \(2, 2\)"):
        kept.contains(y[:, :2])


def replicate(key, share, ties, m=8, n=19):
    """Whether the share of claims kept of one more answer is true, at alpha = 0.2."""
    key_c, key_there, key_true = jax.random.split(key, 3)
    c = jax.random.normal(key_c, (n + 1, m))
    c = jnp.round(c) if ties else c
    there = jax.random.uniform(key_there, (n + 1, m)) < 0.8
    # Without ties each answer has a false claim, so that scores are finite.
    there = there if ties else there.at[:, 0].set(True)
    true = jax.random.normal(key_true, (n + 1, m)) < 1 + c
    true = true if ties else true.at[:, 0].set(False)
    cut = lambda at: jax.tree.map(lambda v: v[at], (c, there))  # noqa: E731
    cp = jaxcp.calibrate(Claims(share), cut(slice(n)), true[:n])
    return cp(cut(slice(n, None)), 0.2).contains(true[n:])[0]


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_the_share_is_kept_as_often_as_promised(share):
    """Exactly 16 of 20 times without ties, at a share of 1; at least, otherwise."""
    keys = jax.random.split(jax.random.key(8), 10_000)
    for ties in (False, True):
        run = jax.jit(jax.vmap(lambda key, t=ties: replicate(key, share, t)))
        rate = np.mean(run(keys))
        error = 4 * (0.2 * 0.8 / len(keys)) ** 0.5
        assert rate >= 0.8 - error
        if share == 1 and not ties:
            assert rate <= 0.8 + error


def test_the_mean_share_of_false_claims_is_a_risk():
    """The least threshold above which (sum of largest losses + 1) / (n + 1) is kept."""
    (c, there), y = answers(9, 60, 4, ties=True)
    rows = Claims(), (c, there), y
    cp = risk.calibrate_risk(risk.false_discovery_rate, *rows, monotone=False)
    cuts = np.unique([-np.inf, *c[there]])
    kept = there & (c > cuts[:, None, None])
    losses = (kept & ~y).sum(axis=2) / np.maximum(kept.sum(axis=2), 1)
    largest = np.maximum.accumulate(losses[::-1])[::-1]
    fits = largest.sum(axis=1) + 1 <= 0.2 * 61 + 1e-6
    assert cp.quantile(0.2) == cuts[np.argmax(fits)] and 0 < fits.mean() < 1
    assert_array_equal(cp((c, there), 0.2).mask, kept[np.argmax(fits)])


def test_the_experiment_tells_what_is_kept(tmp_path):
    """By hand: five answers, each with a threshold from the four others."""
    pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
    from experiments.data import claims

    c = np.array([[3.0, 1], [5, 2], [4, 9], [6, 0], [7, 8]])
    true = np.array([[0, 1], [1, 0], [0, 1], [1, 1], [1, 1]], bool)
    parts = {"confidence": c, "true": true, "mask": np.ones((5, 2), bool)}
    data = {f"MATH__{name}": v for name, v in parts.items()}
    found = claims.line(data, 1, 1.0, 0.4, 3.0)
    # Scores 3, 2, 4, -inf, -inf: rank 4 of 5, and of the four others rank 3.
    assert (found["threshold"], found["off by"], found["answers"]) == (3.0, 0.0, "MATH")
    assert found["factual before"] == pytest.approx(2 / 5)
    assert found["expected"] == pytest.approx(4 / 6)
    # Thresholds 2, 3, 2, 3, 3: kept are 3; 5; 4, 9; 6; 7, 8.
    assert found["factual"] == pytest.approx(3 / 5)
    assert found["removed"] == pytest.approx(3 / 10)
    with pytest.raises(FileNotFoundError, match=r"claims\.npz"):
        claims.load(tmp_path)
