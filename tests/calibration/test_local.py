"""Local calibration: RLCP and LCP."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import scores
from jaxcp.conditional import Gaussian, Within

PATH = Path(__file__).parents[1] / "reference" / "conditional_local.npz"
KNOWN = dict(np.load(PATH))
N = len(KNOWN["scores"])
KERNELS = {"gauss": Gaussian(KNOWN["bandwidth"]), "ball": Within(KNOWN["radius"])}
LEVELS = [(j, float(a)) for j, a in enumerate(KNOWN["alphas"])]
ZEROS, ABSOLUTE = np.zeros(20, "f"), scores.Absolute()


def local(y, x, kernel, **options):
    return jaxcp.calibrate_local(
        ABSOLUTE, np.zeros(len(y), "f"), y, x, kernel, **options
    )


def known(kind):
    return local(KNOWN["scores"], KNOWN["x"][:N], KERNELS[kind])


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize(("j", "alpha"), LEVELS)
def test_thresholds_and_flags_are_those_of_the_vectors(kind, j, alpha):
    cp, s = known(kind), KNOWN["s_test"]
    near = {"x": KNOWN["x"][N:], "anchors": KNOWN[f"anchors_{kind}"]}
    q = cp(ZEROS, alpha, **near).upper
    np.testing.assert_allclose(q, KNOWN[f"{kind}_rlcp"][j], rtol=1e-6)
    smooth = cp(ZEROS, alpha, **near, u=KNOWN["u"])
    end, closed = KNOWN[f"{kind}_rlcp_smoothed"][j], KNOWN[f"{kind}_rlcp_closed"][j]
    inside = np.where(closed, s <= end, s < end)
    np.testing.assert_array_equal(smooth.contains(jnp.asarray(s)), inside)
    # The set is {p(v) > alpha}, which may end between two scores: those in it are
    # the vector's, whose threshold is the largest of them.
    q = np.asarray(cp(ZEROS, alpha, x=near["x"]).upper)
    largest = [np.max(KNOWN["scores"][KNOWN["scores"] <= v]) for v in q]
    largest = np.where(np.isinf(q), np.inf, largest)
    np.testing.assert_allclose(largest, KNOWN[f"{kind}_lcp"][j], rtol=1e-6)


@pytest.mark.parametrize("kind", KERNELS)
def test_an_effective_size_is_that_of_the_weights(kind):
    given = {"x": KNOWN["x"][N], "anchors": KNOWN[f"anchors_{kind}"][0]}
    w = KNOWN[f"{kind}_weights"][0]
    expected = np.sum(w) ** 2 / np.sum(w**2)
    np.testing.assert_allclose(known(kind).effective_size(**given), expected, rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 5, 60])
@pytest.mark.parametrize("ties", [False, True])
def test_a_flat_kernel_is_split_conformal_to_the_last_bit(n, ties):
    rng = np.random.default_rng(n)
    y = (rng.integers(5, size=n) if ties else rng.normal(size=n)).astype("f")
    x, mask = rng.normal(size=(n, 2)).astype("f"), np.arange(n) % 4 > 0
    cp = local(y, x, Gaussian(np.inf), mask=mask)
    split = jaxcp.calibrate(ABSOLUTE, np.zeros(n, "f"), y, mask=mask)
    test = {"x": np.ones((20, 2), "f")}
    for given in test, test | {"anchors": test["x"]}:
        for alpha in (0.05, 0.2, 0.5):
            found = cp(ZEROS, alpha, **given).upper
            expected = split(ZEROS, alpha).upper
            np.testing.assert_array_equal(found, expected)
        some = np.linspace(0, 3, 20, dtype="f")
        p = cp.p_values(ZEROS, some, **given), split.p_values(ZEROS, some)
        np.testing.assert_allclose(*p, rtol=1e-6)


def lcp_p_value(kernel, x, s, at, v):
    """(n + 1) p(v) of Guan 2023, by loops."""
    near = lambda a, b: float(kernel.weight(jnp.asarray(a), jnp.asarray(b)))  # noqa: E731
    rows = range(len(s))
    h = [near(x[i], at) for i in rows]
    new = sum(h[j] for j in rows if s[j] < v) / (sum(h) + 1)
    count = 1
    for i in rows:
        pairs = [near(x[i], x[j]) for j in rows]
        t = sum(pairs[j] for j in rows if s[j] < s[i]) + h[i] * (v < s[i])
        count += t / (sum(pairs) + h[i]) >= new * (1 - 1e-6)
    return count


def test_sets_are_those_of_p_values_from_the_paper():
    rng = np.random.default_rng(1)
    s, x = rng.integers(1, 9, size=9).astype("f"), rng.normal(size=9).astype("f")
    cp, at = local(s, x, Gaussian(0.7)), np.float32(0.3)
    some = np.unique([*s, *(s - 0.5), 20.0]).astype("f")
    expected = [lcp_p_value(cp.kernel, x, s, at, v) / 10 for v in some]
    zeros, x = np.zeros_like(some), np.full_like(some, at)
    found = cp.p_values(zeros, some, x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for alpha in (0.15, 0.35, 0.55):
        q = cp.quantile(alpha, x=at)
        np.testing.assert_array_equal(some <= q, np.array(expected) > alpha)


@jax.jit
def covered(kernel, keys):
    """Whether a new row is covered by RLCP, by its smoothed sets, and by LCP."""
    n, alpha = 19, 0.2

    def trial(key):
        keys = jax.random.split(key, 4)
        x = jax.random.normal(keys[0], (n + 1,))
        y = jnp.abs(x) * jax.random.normal(keys[1], (n + 1,))
        cp = local(y[:n], x[:n], kernel)
        at, new = x[n:], jnp.abs(y[n])
        drawn = {"x": at[0], "anchors": kernel.draw(keys[2], at)[0]}
        ways = drawn, drawn | {"u": jax.random.uniform(keys[3])}, {"x": at[0]}
        return jnp.array([new <= cp.quantile(alpha, **given) for given in ways])

    return jax.vmap(trial)(keys)


@pytest.mark.parametrize("kernel", [Gaussian(0.05), Gaussian(0.5), Within(0.4)])
def test_coverage_is_kept_at_every_bandwidth(kernel):
    trials, alpha = 4000, 0.2
    keys = jax.random.split(jax.random.key(0), trials)
    rlcp, smoothed, lcp = np.mean(covered(kernel, keys), axis=0)
    error = 4 * np.sqrt(alpha * (1 - alpha) / trials)
    assert min(rlcp, lcp) >= 1 - alpha - error
    assert abs(smoothed - (1 - alpha)) <= error


@pytest.mark.parametrize("drawn", [False, True])
def test_bounds_grow_as_scores_do(drawn):
    given = {"x": KNOWN["x"][N:]}
    given |= {"anchors": KNOWN["anchors_gauss"]} if drawn else {}

    def total(scale):
        cp = local(scale * KNOWN["scores"], KNOWN["x"][:N], KERNELS["gauss"])
        q = cp(jnp.asarray(ZEROS), 0.2, **given).upper
        return jnp.sum(q), q

    slope, q = jax.jit(jax.grad(total, has_aux=True))(1.0)
    np.testing.assert_allclose(slope, np.sum(q[np.isfinite(q)]), rtol=1e-4)


def test_several_components_and_no_test_points():
    y = np.random.default_rng(0).normal(size=(30, 2)).astype("f")
    x = np.arange(30.0, dtype="f")
    cp = jaxcp.calibrate_local(ABSOLUTE, np.zeros_like(y), y, x, Gaussian(np.inf))
    split = jaxcp.calibrate(ABSOLUTE, np.zeros_like(y), y)
    for given in {"x": x}, {"x": x, "anchors": x}:
        p = cp.p_values(0 * y, y, **given)
        np.testing.assert_allclose(p, split.p_values(0 * y, y), rtol=1e-6)
        q = cp.quantile(0.2, **{k: v[0] for k, v in given.items()})
        np.testing.assert_array_equal(q, split.quantile(0.2))
        none = cp(y[:0], 0.2, **{k: v[:0] for k, v in given.items()})
        assert len(none.upper) == 0


def test_far_from_all_rows_sets_are_infinite():
    cp = local(np.arange(9.0), np.zeros(9), Gaussian(1e-3))
    assert cp.quantile(0.2, x=5.0) == cp.quantile(0.2, x=5.0, anchors=5.0) == np.inf


def test_inputs_in_half_precision_have_weights_in_single():
    rng = np.random.default_rng(0)
    x, values = rng.integers(0, 10, 400), rng.random(400).astype("f")
    for dtype in (jnp.float16, jnp.bfloat16):
        whole, half = (
            local(values, jnp.asarray(x, t), Gaussian(3.0)) for t in ("f", dtype)
        )
        for drawn in ({}, {"anchors": jnp.asarray(5, dtype)}):
            given = {"x": jnp.asarray(4, dtype), **drawn}
            assert half.quantile(0.1, **given) == whole.quantile(0.1, **given)


class Near:
    """A kernel that jax does not know."""

    def weight(self, x, z):
        return jnp.exp(-((x - z) ** 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Gaussian(0.0), "bandwidth > 0"),
        (lambda: Within(-1.0), "radius > 0"),
        (lambda: local(np.ones(3), np.ones(3), None), "kernel as a value, got None"),
        (lambda: local(np.ones(3), np.ones(3), 0.3), "kernel with weight"),
        (lambda: local(np.ones(3), np.ones(3), Gaussian), "write Gaussian"),
        (lambda: local(np.ones(3), np.ones(3), Near()), "jaxcp.pytree"),
        (lambda: known("ball")(ZEROS, 0.1), "x of each test point"),
        (lambda: known("ball")(ZEROS, 0.1, x=np.ones((20, 3))), "rows of shape"),
        (
            lambda: known("ball")(ZEROS, 0.1, x=KNOWN["x"][N:], u=KNOWN["u"]),
            "u=None without anchors",
        ),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_traced_targets_without_a_value_have_infinite_scores():
    """In LCP, for sets and p-values."""
    rng = np.random.default_rng(0)
    y, x, preds = (
        rng.random(12).astype("f"),
        rng.random(12).astype("f"),
        np.zeros(12, "f"),
    )
    y[[3, 8]] = np.nan

    @jax.jit
    def answers(preds_old, y_old):
        cp = jaxcp.calibrate_local(ABSOLUTE, preds_old, y_old, x, Within(0.5))
        ends = cp(preds, 0.4, x=x).upper
        return ends, cp.p_values(preds, jnp.linspace(0, 1, 12), x=x)

    infinite = np.where(np.isnan(y), np.inf, 0).astype("f")
    expected = answers(infinite, np.nan_to_num(y))
    for found, right in zip(answers(preds, y), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6)
