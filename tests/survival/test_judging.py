"""Coverage of lower bounds on censored rows: unbiased, with its error, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxcp
from jaxcp import learners, metrics, scores, survival
from jaxcp.sets import Box, Interval
from rows import refuses

KEY, M, INF = jax.random.key(0), 200, np.inf


def lower(bound):
    bound = jnp.asarray(bound, float)
    return Interval(bound, jnp.full(bound.shape, INF))


def rate(x):
    """Of censoring: of those who live long, and have large bounds, fewer are seen."""
    return 0.1 + 0.5 * x


def rows_of(key):
    key_x, key_t, key_c = jax.random.split(key, 3)
    x = jax.random.uniform(key_x, (M,))
    t = jnp.exp(x + 0.8 * jax.random.normal(key_t, (M,)))
    return x, t, jax.random.exponential(key_c, (M,)) / rate(x)


def mean_of_the_seen(sets, time, p):
    """What needs no events: the mean of 1(time >= L) / P(C >= L)."""
    return jnp.mean((time >= sets.lower) / p)


def test_the_estimate_is_unbiased_and_its_error_right():
    """With C dependent on x as T is; that of the observed times is 0.07 too low."""
    num_sets = 4000

    def trial(key):
        x, t, c = rows_of(key)
        sets, time = lower(0.5 * jnp.exp(x)), jnp.minimum(t, c)
        law = lambda at: jnp.exp(-rate(x) * at)  # noqa: E731
        found = survival.coverage(sets, time, t <= c, law)
        other = mean_of_the_seen(sets, time, law(sets.lower))
        return found.coverage, found.error, other, metrics.coverage(sets, time)

    keys = jax.random.split(KEY, num_sets)
    estimate, error, other, naive = map(np.asarray, jax.jit(jax.vmap(trial))(keys))
    true = 1 - jax.scipy.stats.norm.cdf(
        np.log(0.5) / 0.8
    )  # T >= L: log T - x >= log .5
    spread, root = np.std(estimate), num_sets**0.5
    assert abs(estimate.mean() - true) < 4 * spread / root
    noise = np.std(error**2) / root + spread**2 * (2 / num_sets) ** 0.5
    assert abs(np.mean(error**2) - spread**2) < 4 * noise
    assert abs(other.mean() - true) < 4 * np.std(other) / root
    assert np.std(other) > 1.2 * spread  # as right, and varies more
    assert naive.mean() < true - 0.05


def test_ties_of_events_and_censorings_are_events():
    """On a grid of times P(C >= t) is right, and P(C > t) is not; with a curve, too."""
    num_sets = 1000

    def trial(key):
        key_t, key_c, key_fit = jax.random.split(key, 3)
        t, c = (jax.random.randint(k, (M,), 1, 6) * 1.0 for k in (key_t, key_c))
        sets, time, event = lower(jnp.full(M, 3.0)), jnp.minimum(t, c), t <= c
        at_least = survival.coverage(sets, time, event, lambda t: (6 - t) / 5)
        beyond = survival.coverage(sets, time, event, lambda t: (5 - t) / 5)
        fresh = jax.random.randint(key_fit, (2, 5 * M), 1, 6) * 1.0
        curve = learners.KaplanMeier(reverse=True)
        curve = curve.fit(jnp.min(fresh, axis=0), fresh[0] <= fresh[1])
        fitted = survival.coverage(sets, time, event, curve)
        return at_least.coverage, fitted.coverage, beyond.coverage

    found = jax.jit(jax.vmap(trial))(jax.random.split(KEY, num_sets))
    at_least, fitted, beyond = map(np.asarray, found)
    for values in (at_least, fitted):  # P(T >= 3) = 3 / 5
        assert abs(values.mean() - 0.6) < 4 * np.std(values) / num_sets**0.5
    assert beyond.mean() < 0.55


def test_without_censoring_it_is_the_coverage():
    _, t, _ = rows_of(KEY)
    sets = lower(jnp.where(jnp.arange(M) % 9 == 0, -INF, 0.8))
    found = survival.coverage(sets, t, np.ones(M), jnp.ones_like)
    covered = np.asarray(metrics.covered(sets, t))
    assert_allclose(found.coverage, covered.mean(), rtol=1e-6)
    assert_allclose(found.error, covered.std(ddof=1) / M**0.5, rtol=1e-5)
    ends = np.stack(sets.ends(), axis=1)
    assert survival.coverage(ends, t, np.ones(M), np.ones_like) == found
    censored = survival.coverage(sets, t, np.zeros(M), lambda t: 0 * t)
    assert censored == (1, 0)  # no miss is seen, and no weight is read


def test_formula_by_a_loop_and_in_clusters():
    x, t, c = map(np.asarray, rows_of(KEY))
    time, event, ids = np.minimum(t, c), t <= c, np.arange(M) // 3
    sets = lower(np.exp(x))
    p = np.exp(-rate(x) * time)
    terms = [1 - event[i] * (time[i] < sets.lower[i]) / p[i] for i in range(M)]
    law = lambda at: np.exp(-rate(x) * np.asarray(at))  # noqa: E731  # of the host
    found = survival.coverage(sets, time, event, law)
    assert_allclose(found.coverage, np.mean(terms), rtol=1e-5)
    assert_allclose(found.error, np.std(terms, ddof=1) / M**0.5, rtol=1e-5)
    means = [np.mean(np.array(terms)[ids == k]) for k in range(ids[-1] + 1)]
    found = survival.coverage(sets, time, event, law, clusters=ids.astype(str))
    assert_allclose(found.coverage, np.mean(means), rtol=1e-5)
    assert_allclose(found.error, np.std(means, ddof=1) / len(means) ** 0.5, rtol=1e-5)


def test_programs_and_numbers_without_an_answer():
    x, t, c = rows_of(KEY)
    time, event = jnp.minimum(t, c), t <= c

    def found(scale, at):
        sets = lower(jnp.exp(scale * x))
        return survival.coverage(sets, time, event, lambda t: at * jnp.exp(-t)).coverage

    scales = jnp.array([0.0, 0.5])
    one_by_one = [found(v, 1.0) for v in scales]
    together = jax.jit(jax.vmap(found, (0, None)))(scales, 1.0)
    assert_allclose(together, one_by_one, rtol=1e-6)
    assert np.isnan(jax.jit(found)(0.5, 0.0)) and np.isnan(jax.jit(found)(0.5, jnp.nan))
    assert np.isfinite(jax.grad(found, argnums=1)(0.5, 0.9))
    sets = lower(jnp.where(jnp.arange(M) == 3, jnp.nan, 0.5))
    assert np.isnan(survival.coverage(sets, time, event, jnp.ones_like).coverage)
    nothing = survival.coverage(sets[:0], time[:0], event[:0], jnp.ones_like)
    assert np.isnan(nothing).all()
    one = survival.coverage(sets[:1], time[:1], event[:1], jnp.ones_like)
    assert one.coverage in (0, 1) and np.isnan(one.error)
    with jax.enable_x64(True):
        wide = survival.coverage(
            lower(np.full(3, 0.5)), np.ones(3), np.ones(3), np.ones_like
        )
        assert {v.dtype.name for v in wide} == {"float64"}


def calibrated():
    x, t, c = map(np.asarray, rows_of(KEY))
    time, p = np.minimum(t, c), np.exp(-rate(x))
    cp = survival.calibrate_lower(np.exp(x), time, c, cutoff=1.0, probability=p)
    return cp, (np.exp(x), time), {"probability": p}, x, t <= c


def test_a_report_of_bounds_judges_censored_rows():
    cp, (preds, time), context, x, event = calibrated()
    law = lambda t: np.exp(-rate(x) * np.asarray(t))  # noqa: E731
    seen, site = {"event": event, "censoring": law}, np.where(x > 0.5, "north", "south")
    page = jaxcp.report(cp, preds, time, 0.1, groups=site, **seen, **context)
    sets = cp(preds, 0.1, **context)
    found = survival.coverage(sets, time, event, law)
    naive = metrics.coverage(sets, time)
    cells = [f"<td>{float(v):.4g}</td>" for v in (*found, naive)]
    assert cells[0] in page and cells[1] in page and cells[2] not in page
    in_north = np.flatnonzero(site == "north")
    p = law(time)[in_north]
    rows = sets[in_north], time[in_north], event[in_north]
    north = survival.coverage(*rows, lambda _: p)
    assert f"<td>{float(north.coverage):.4g}</td>" in page
    assert "without those censored below bounds" in page
    for given, words in (
        ({}, "expected event and censoring of the new rows, since times of Lower"),
        ({"event": event}, "expected censoring of the new rows"),
        ({"censoring": law}, "expected event of the new rows.*numpy.ones"),
    ):
        with pytest.raises(ValueError, match=words):
            jaxcp.report(cp, preds, time, 0.1, **given, **context)
    other = jaxcp.calibrate(scores.Absolute(), preds, time)
    with pytest.raises(ValueError, match="calibrate_lower alone, got some for Calibr"):
        jaxcp.report(other, preds, time, 0.1, event=event)


TWO = lower([2.0, 2.0]), [1.0, 3.0], [1, 0]
CALLS = {
    "never seen": (
        lambda: survival.coverage(*TWO, lambda t: t - 1),
        r"in \(0, 1\] where an event is a miss, got 0.0 at 0; bounds beyond the last",
    ),
    "above 1": (lambda: survival.coverage(*TWO, lambda t: 2 * t), "got 2.0 at 0"),
    "no law": (
        lambda: survival.coverage(*TWO, 0.5),
        r"censoring, P\(C >= t\) of times t, as a function, got 0.5",
    ),
    "the curve of the times": (
        lambda: survival.coverage(*TWO, learners.KaplanMeier().fit(*TWO[1:])),
        r"law of C, KaplanMeier\(reverse=True\), got T's",
    ),
    "not fitted": (
        lambda: survival.coverage(*TWO, learners.KaplanMeier(reverse=True)),
        r"expected what fit\(time, event\) returns",
    ),
    "shape": (
        lambda: survival.coverage(*TWO, lambda t: t[:1]),
        r"expected censoring\(time\) of shape \(2,\), got \(1,\)",
    ),
    "flags": (
        lambda: survival.coverage(*TWO[:2], [1.0, 3.0], np.ones_like),
        "event as flags or 0 and 1, got 3.0 at 1",
    ),
    "lengths": (
        lambda: survival.coverage(*TWO[:2], [True], np.ones_like),
        "event with 2 rows like sets, got 1",
    ),
    "NaN": (
        lambda: survival.coverage(TWO[0], [1.0, np.nan], [1, 1], np.ones_like),
        "time without NaN",
    ),
    "upper ends": (
        lambda: survival.coverage(Interval(np.zeros(2), np.ones(2)), *TWO[1:], None),
        r"sets \[bound, inf\), as censored times have no upper bounds, got 1.0 at 0",
    ),
    "boxes": (
        lambda: survival.coverage(
            Box(np.zeros((2, 2)), np.ones((2, 2))), *TWO[1:], np.ones_like
        ),
        "sets of kind Interval, got Box",
    ),
    "clusters": (
        lambda: survival.coverage(*TWO, np.ones_like, clusters=[1]),
        "clusters with 2 rows like time, got 1",
    ),
}


test_wrong_calls_are_refused_in_words = refuses(CALLS)
