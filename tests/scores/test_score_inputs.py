"""What scores take: said once, in docstrings, at the door and where draws are free."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import CASES
from jaxcp import scores
from jaxcp.scores import inputs
from jaxcp.sets import Interval

X = jnp.arange(1.0, 10.0)
OF_BASE = "cdf-known"  # takes what its base does
DECLARED = [
    name
    for name, case in CASES.items()
    if inputs.of(case.score).text != "any arrays" and name != OF_BASE
]


@pytest.mark.parametrize("name", DECLARED)
def test_docstrings_say_what_scores_take(name):
    score = CASES[name].score
    of_base = getattr(score, "cdf", None) is not None or hasattr(score, "limits")
    if of_base or isinstance(score, scores.TwoSided):
        score = score.base  # takes what the base does, whose docstring says it
    words = " ".join(inspect.getdoc(type(score)).split())
    assert "`pred`" in words
    assert inputs.of(score).text in words


def test_only_scores_of_functions_declare_nothing():
    score = CASES[OF_BASE].score
    assert inputs.of(score).text == inputs.of(score.base).text
    kinds = {type(CASES[name].score) for name in {*CASES} - {*DECLARED, OF_BASE}}
    assert kinds == {scores.Custom, scores.Density, scores.Latent}


@pytest.mark.parametrize(
    "score, free",
    [
        (scores.Normalized(), [False, False]),
        (scores.APS(randomized=True), [False, False]),
        (scores.PCP(), [True]),
        (scores.Claims(), [True, True]),
        (scores.HDPCP(0.1), [True, True]),
        (scores.CDF(scores.PCP(), randomized=True), [True, True, False]),
        (scores.CDF(scores.CQR()), [False, False, True]),
        (scores.CDF(scores.Density(jnp.dot)), [False, False, False, True]),
        (scores.CDF(scores.CDF(scores.PCP())), [True, True, True]),
        (scores.Rectified(scores.CDF(scores.PCP())), [True, True, False]),
    ],
    ids=lambda v: "",
)
def test_only_draws_and_claims_have_a_free_axis(score, free):
    assert list(inputs.of(score).free_axes(len(free))) == free


@jaxcp.pytree
class Around:
    """A score of a user, with a rule of its own."""

    limit: float
    takes = inputs.numbers()

    def __call__(self, pred, y):
        return jnp.abs(y - pred)

    def invert(self, pred, q):
        return Interval(pred - q, pred + q)

    def check(self, preds, y=None, mask=None):
        if np.any(np.asarray(preds) > self.limit):
            raise ValueError(f"expected preds <= {self.limit}")


def test_what_a_score_takes_and_its_own_check_both_hold():
    jaxcp.calibrate(Around(9.0), X, X)
    with pytest.raises(ValueError, match=r"expected preds <= 5\.0"):
        jaxcp.calibrate(Around(5.0), X, X)
    with pytest.raises(ValueError, match="expected preds as one array"):
        jaxcp.calibrate(Around(9.0), (X, X), X)
    base = scores.CDF(Around(5.0))
    with pytest.raises(ValueError, match=r"expected preds <= 5\.0"):
        jaxcp.calibrate(base, (X, X[:, None]), X)
    with pytest.raises(ValueError, match="expected preds as one array"):
        jaxcp.calibrate(base, ((X, X), X[:, None]), X)


def test_parts_are_named_and_checked_one_by_one():
    takes = inputs.parts(mu=inputs.numbers(positive=True), tie_breaker=inputs.uniform())
    assert takes.text == "(mu, tie breaker)"
    takes.check((X, X / 10), X, None)
    for preds, message in [
        (X, r"as a tuple \(mu, tie breaker\), got \(9,\)"),
        ((X - 1, X / 10), "preds > 0, got 0.0 at 0"),
        ((X, X), r"u in \[0, 1\], got 2.0 at 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            takes.check(preds, X, None)


def test_a_score_without_a_declaration_takes_anything():
    score = scores.Custom(lambda pred, y: jnp.abs(y - pred["mean"]))
    assert inputs.of(score) is inputs.anything()
    assert jaxcp.calibrate(score, {"mean": X}, X + 1).quantile(0.5) == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_ranks_of_many_labels_in_narrow_types(dtype):
    """Sets of the k most probable labels are those that rank up to k."""
    p = -jnp.arange(3000).astype(jnp.float32)
    p = (p / 3000).astype(dtype)
    ranks = scores.TopK().labels(p)
    assert len(np.unique(np.asarray(ranks))) == 3000
    for q in (257.0, 2049.0):
        mask = scores.TopK().invert(p, jnp.asarray(q, ranks.dtype)).mask
        assert mask.sum() == q == (ranks <= q).sum()


@pytest.mark.parametrize("gamma", [1.0, 1.5, 3.0])
def test_entmax_is_the_same_in_every_batch(gamma):
    """To the last bit, as floats that are added up in another order are not."""
    z = jax.random.normal(jax.random.key(0), (64, 31))
    score = scores.Entmax(gamma)
    together = jax.jit(jax.vmap(score.labels))(z)
    each = jax.jit(jax.vmap(score, (0, None)))
    for rows in (1, 7, 64):
        assert_array_equal(each(z[:rows], 3), together[:rows, 3])
    assert score(z[0], 3) == together[0, 3]


def test_margins_at_their_ends():
    z = jnp.array([3e3, 2e3, -1e3, 2e3, -jnp.inf])
    for score in (scores.LogMargin(), scores.Entmax(1.0), scores.Entmax(1 + 1e-5)):
        assert_allclose(score.labels(z), [0, 1e3, 4e3, 1e3, jnp.inf], rtol=1e-4)
        assert np.all(np.isfinite(jax.jacrev(score.labels)(z)))
        assert_array_equal(score.labels(z[:1]), [0])
        assert np.all(np.isnan(score.labels(z.at[1].set(jnp.nan))))
    assert_allclose(jax.grad(scores.Entmax(2.0))(z[:4], 2), [1, 1, -3, 1], rtol=1e-6)
    slope = jax.grad(lambda gamma: scores.Entmax(gamma)(z[:4], 2))
    assert np.isfinite(slope(1.0)) and slope(1.5) > 0
    assert_array_equal(scores.Margin().labels(jnp.ones(1)), [-1])
    assert np.all(np.isnan(scores.Margin().labels(jnp.array([0.5, jnp.nan, 0.2]))))
