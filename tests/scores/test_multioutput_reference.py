"""Multi-output scores against formulas: no count and no membership may differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import cases, reference, scores_of
from jaxcp import scores

FILES = ["gauss_d2", "banana_d2", "mixture_d3", "gauss_d8", "lattice_d2"]
# Densities and latent codes are given: the "target" of these scores is the number.
DENSITY = scores.Density(lambda pred, log_prob: log_prob)
LATENT = scores.Latent(lambda pred, z: z)


@jax.jit
def thresholds(score, preds, q):
    return jax.vmap(score.threshold, (0, None))(preds, q)


@jax.jit
def members(score, preds, q, y):
    """Returns which of its candidates (m, c, ...) are in the set of each row."""

    def row(pred, targets):
        return jax.vmap(score.invert(pred, q).contains)(targets)

    return jax.vmap(row)(preds, y)


def parts(data, part):
    """Returns what the scores read: references, draws, densities, targets, codes."""
    get = lambda name: data[f"{name}_{part}"]  # noqa: E731
    z = get("z") if f"z_{part}" in data else None
    log_probs = get("logp_mc"), get("logp_ref"), get("logp_y")
    return get("samples_ref"), get("samples_mc"), *log_probs, get("y"), z, get("u")


def inputs(data, name, part, alpha):
    """Returns (score, preds, y) of a method for calibration or test rows."""
    ref, mc, logp_mc, logp_ref, logp_y, y, z, u = parts(data, part)
    nothing = np.zeros(len(y), np.float32)
    return {
        "pcp": lambda: (scores.PCP(), ref, y),
        "cpcp": lambda: (scores.CDF(scores.PCP()), (ref, mc), y),
        "cpcp_rand": lambda: (
            scores.CDF(scores.PCP(), randomized=True),
            (ref, mc, u),
            y,
        ),
        "cp2pcp": lambda: (scores.CP2PCP(alpha), (ref, mc), y),
        "hdpcp": lambda: (scores.HDPCP(alpha), (ref, logp_ref), y),
        "mcp": lambda: (scores.Rectangle(), scores.Rectangle.bounds(mc, alpha), y),
        "drcp": lambda: (DENSITY, nothing, logp_y),
        "chdr": lambda: (scores.CDF(DENSITY), (nothing, logp_mc), logp_y),
        "chdr_rand": lambda: (
            scores.CDF(DENSITY, randomized=True),
            (nothing, logp_mc, u),
            logp_y,
        ),
        "lcp": lambda: (LATENT, nothing, z),
    }[name]()


def candidates(data, name):
    if name in ("drcp", "chdr", "chdr_rand"):
        return data["logp_y_cand"]
    return data["z_cand" if name == "lcp" else "y_cand"]


NORMALIZED = {"cpcp": 0, "chdr": 0, "cpcp_rand": 1, "chdr_rand": 1}  # by K or K + 1
METHODS = [*NORMALIZED, "pcp", "cp2pcp", "hdpcp", "mcp", "drcp", "lcp"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("file", FILES)
def test_scores_thresholds_and_members(file, name):
    data = reference(f"multioutput/{file}")
    if f"q_{name}" not in data:
        pytest.skip("the reference has no such score for this model")
    draws = data["samples_mc_cal"].shape[1]
    unit = draws + NORMALIZED[name] if name in NORMALIZED else 1
    by_alpha = data[f"score_{name}_cal"].ndim == 2
    for i, alpha in enumerate(data["alphas"].tolist()):
        score, preds, y = inputs(data, name, "cal", alpha)
        cp = jaxcp.calibrate(score, preds, y)
        expected = data[f"score_{name}_cal"][i if by_alpha else ...]
        assert_allclose(np.asarray(cp.scores) / unit, expected, rtol=1e-5, atol=1e-5)
        q = cp.quantile(alpha)
        assert_allclose(
            np.asarray(q) / unit, data[f"q_{name}"][i], rtol=1e-5, atol=1e-6
        )
        _, preds, y = inputs(data, name, "test", alpha)
        targets = np.concatenate([y[:, None], candidates(data, name)], axis=1)
        inside = np.asarray(members(score, preds, q, targets))
        assert_array_equal(inside[:, 0], data[f"in_{name}_test"][i])
        assert_array_equal(inside[:, 1:], data[f"in_{name}_cand"][i])


@pytest.mark.parametrize("file", FILES)
def test_counts(file):
    data = reference(f"multioutput/{file}")
    for name in ("cpcp", "chdr"):
        for part in ("cal", "test"):
            score, preds, y = inputs(data, name, part, 0.1)
            counts = scores_of(score, preds, y)
            assert_array_equal(counts, data[f"count_{name}_{part}"])
        each = jax.vmap(lambda p, ys, s=score: jax.vmap(lambda v: s(p, v))(ys))
        counts = jax.jit(each)(preds, candidates(data, name))
        assert_array_equal(counts, data[f"count_{name}_cand"])


@pytest.mark.parametrize("name", ["cpcp", "chdr"])
@pytest.mark.parametrize("file", FILES)
def test_thresholds_at_each_input(file, name):
    """Regions are open: ours is the last number below the draw score."""
    data = reference(f"multioutput/{file}")
    score, preds, _ = inputs(data, name, "test", 0.1)
    for i, q in enumerate(data[f"q_{name}"]):
        draws = data["samples_mc_test"].shape[1]
        found = thresholds(score, preds, jnp.asarray(q * draws))
        expected = data[f"thr_{name}_test"][i]
        assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        whole = np.isinf(q) or q == 1
        assert_array_equal(np.isinf(found), whole)


@pytest.mark.parametrize("case", ["smooth", "ties"])
def test_any_base_score(case):
    data = cases("multioutput/cdf_generic")[case]
    base = scores.Custom(lambda pred, y: y)
    mc, y, u = (data[k] for k in ("base_mc", "base_y", "u"))
    nothing, k = np.zeros(len(u), np.float32), mc.shape[1]

    @jax.jit
    def ranks(score, preds):
        return jax.vmap(lambda p, v: jax.vmap(lambda t: score(p, t))(v))(preds, y)

    counts = np.asarray(ranks(scores.CDF(base), (nothing, mc)))
    assert_array_equal(counts, data["count_le"])
    assert_allclose(counts / k, data["score"], rtol=1e-6)
    assert_allclose((1 + counts) / (1 + k), data["score_plus"], rtol=1e-6)
    randomized = scores.CDF(base, randomized=True)
    randomized = np.asarray(ranks(randomized, (nothing, mc, u)))
    assert_allclose(randomized / (1 + k), data["score_rand"], rtol=1e-6, atol=1e-7)
