"""Learn then test, Pareto testing and selective answers."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from jaxcp import pvalues, risk
from rows import refuses

FOLDER = Path(__file__).parents[1] / "reference/risk"
PARETO, SELECTIVE = np.load(FOLDER / "pareto.npz"), np.load(FOLDER / "selective.npz")


def slow_selective(confidence, correct, alpha, delta, grid, starts):
    """One threshold after the other, from the definition."""
    valid, alive = np.zeros(len(grid), bool), False
    for i, t in enumerate(grid):
        answered = confidence >= t
        p = binom.cdf(np.sum(answered & ~correct), answered.sum(), alpha)
        alive = (alive or i in starts) and p <= delta / len(starts)
        valid[i] = alive
    return valid


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", ["base", "multi", "small"])
def test_selective_thresholds_are_those_of_exact_vectors(case, dtype):
    of = lambda name: SELECTIVE[f"{case}__{name}"]  # noqa: E731
    confidence, grid = of("confidence").astype(dtype), of("grid").astype(dtype)
    correct, starts = of("correct"), of("starts")
    with jax.enable_x64(dtype is np.float64):
        for i, alpha in enumerate(of("alphas").tolist()):
            for j, delta in enumerate(of("deltas").tolist()):
                threshold, valid = risk.selective_threshold(
                    confidence, correct, alpha, delta, grid=grid, starts=starts
                )
                # In single precision thresholds and confidences may become equal.
                exact = of("valid")[i, j]
                if dtype is np.float32:
                    exact = slow_selective(
                        confidence, correct, alpha, delta, grid, starts
                    )
                np.testing.assert_array_equal(valid, exact)
                smallest = grid[exact][-1] if exact.any() else np.inf
                assert threshold == smallest
                counts = risk.Counts(of("errors"), of("accepted"))
                by_counts = risk.learn_then_test(
                    counts, alpha, delta, method="fixed_sequence", starts=starts
                )
                np.testing.assert_array_equal(by_counts, of("valid")[i, j])


@pytest.mark.parametrize("steps", [7, 10, 100, 1000])
def test_the_rule_in_use_is_the_rule_that_was_tested(steps):
    """Votes lie on the grid, whose numbers single precision rounds up or down."""
    votes = np.random.default_rng(steps).integers(steps // 2, steps + 1, 3000) / steps
    single = jnp.asarray(votes)
    for last in np.arange(steps // 2 + 1, steps, max(steps // 16, 1)) / steps:
        for grid in (np.array([last]), jnp.array([last])):
            options = {"alpha": 0.1, "delta": 0.1, "grid": grid}
            found, _ = risk.selective_threshold(votes, votes > 0, **options)
            rules = votes >= np.asarray(found), votes >= found.item(), single >= found
            alike, _ = risk.selective_threshold(single, votes > 0, **options)
            answered = [np.sum(rule) for rule in (*rules, single >= alike)]
            assert answered == [np.sum(votes >= last)] * 4


def test_selective_answers_compose_and_have_edges():
    confidence = jnp.asarray(SELECTIVE["base__confidence"], float).at[3].set(jnp.nan)
    correct = jnp.asarray(SELECTIVE["base__correct"])
    call = functools.partial(
        risk.selective_threshold,
        alpha=0.2,
        delta=0.2,
        grid=SELECTIVE["base__grid"],
        starts=(8,),
    )
    eager, traced = call(confidence, correct), jax.jit(call)(confidence, correct)
    both = jax.vmap(call)(jnp.stack([confidence] * 2), jnp.stack([correct] * 2))
    for a, b, c in zip(eager, traced, both, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c[1])
    nobody = risk.selective_threshold(
        confidence[:0], correct[:0], 0.1, 0.1, grid=[0.5, 0.0]
    )
    assert nobody[0] == jnp.inf and not nobody[1].any()
    # (1 - 0.1)^22 <= 0.1: with 22 right answers it passes, with 21 it does not.
    for n, passes in ((22, True), (21, False)):
        ones = np.ones(n)
        found = risk.selective_threshold(ones, ones > 0, 0.1, 0.1, grid=[1.0])
        assert found[1].item() == passes


def test_answers_err_too_often_with_probability_delta(key):
    """Errors of a share that grows as confidence falls: the true risk is known."""
    runs, n, alpha, delta = 2000, 300, 0.2, 0.1
    grid = np.linspace(0.95, 0.0, 20)
    true = (1 - grid) / 2  # P(wrong, given confidence c) = 1 - c, c uniform

    def wrongly_valid(key):
        key_level, key_right = jax.random.split(key)
        level = jax.random.uniform(key_level, (n,))
        correct = jax.random.uniform(key_right, (n,)) < level
        _, valid = risk.selective_threshold(
            level, correct, alpha, delta, grid=grid, starts=(3,)
        )
        return jnp.any(valid & (true > alpha)), valid.any()

    wrong, found = jax.jit(jax.vmap(wrongly_valid))(jax.random.split(key, runs))
    assert wrong.mean() <= delta + 4 * np.sqrt(delta * (1 - delta) / runs)
    assert found.mean() > 0.5


@pytest.mark.parametrize("x64", [False, True])
def test_pareto_testing_is_that_of_exact_vectors(x64):
    of = lambda name: PARETO[f"base__{name}"]  # noqa: E731
    split, alpha, delta = int(of("split")), float(of("alpha")), float(of("delta"))
    losses = of("losses") * float(of("unit"))
    with jax.enable_x64(x64):
        first, rest = losses[:split], losses[split:]
        front = risk.pareto_front(first.mean(0), of("costs"))
        np.testing.assert_array_equal(front, of("front"))
        call = lambda *v: risk.pareto_test(*v, of("costs"), alpha, delta)  # noqa: E731
        for valid in (call(first, rest), jax.jit(call)(first, rest)):
            np.testing.assert_array_equal(valid, of("rejected"))
        index, found = risk.best(valid, -of("costs"))
        assert found and index == of("chosen")
        both = risk.learn_then_test(
            (losses, of("losses2")), (alpha, float(of("alpha2"))), delta
        )
        np.testing.assert_array_equal(both, of("rejected_both"))


def test_fronts_keep_equal_settings_and_no_nan():
    risks, costs = np.array([1.0, 1, 2, 0, np.nan]), np.array([1.0, 1, 0, 2, 0])
    assert risk.pareto_front(risks, costs).tolist() == [True] * 4 + [False]
    assert risk.pareto_front(risks[:2], np.array([1.0, 2.0])).tolist() == [True, False]


def test_pareto_testing_orders_risks_in_units_of_their_levels():
    errors = np.arange(200)[:, None] % np.array([[50, 25, 5]]) == 0
    losses, costs = 4.0 * errors, np.array([3.0, 2.0, 1.0])
    parts = (errors[:100], losses[:100]), (errors[100:], losses[100:])
    levels = {"alpha": (0.1, 1.5), "delta": 0.1, "bound": (1.0, 4.0)}
    assert risk.pareto_test(*parts, costs, **levels).tolist() == [True, True, False]


def test_errors_are_counted_in_integers_where_rows_count(key):
    """Exact binomial decisions of flags, integers, and counts, known or traced."""
    losses = jax.random.uniform(key, (400, 30)) < jnp.linspace(0, 0.3, 30)[None]
    where = jax.random.uniform(jax.random.fold_in(key, 1), (400, 30)) < 0.6
    where = where.at[:, 7].set(False)
    errors, trials = np.asarray(losses & where).sum(0), np.asarray(where).sum(0)
    p = binom.cdf(errors, trials, 0.2)
    assert p[7] == 1
    call = lambda v, w, m: risk.learn_then_test(v, 0.2, 0.1, where=w, method=m)  # noqa: E731
    for method in ("holm", "bonferroni", "fixed_sequence"):
        test = getattr(pvalues, method)
        exact = test(p, 0.1)
        traced = jax.jit(call, static_argnums=2)
        counts = jax.jit(lambda c, m=test: risk.learn_then_test(c, 0.2, 0.1, method=m))
        for valid in (
            call(losses, where, method),
            call(losses.astype(int), where, method),
            traced(losses, where, method),
            counts(risk.Counts(jnp.asarray(errors), jnp.asarray(trials))),
        ):
            np.testing.assert_array_equal(valid, exact)
    assert not exact[7]


def test_tiny_p_values_keep_their_digits_in_single_precision():
    """P(Bin(2000, 0.1) <= k) around delta / g = 1e-13 for g settings."""
    k = np.arange(40, 160)
    p = binom.cdf(k, 2000, 0.1)
    delta = 1e-11
    counts = risk.Counts(k, np.full(len(k), 2000))
    valid = risk.learn_then_test(counts, 0.1, delta, method="bonferroni")
    np.testing.assert_array_equal(valid, p <= delta / len(k))
    assert 0 < valid.sum() < len(k)


def test_own_procedures_bounds_beyond_one_and_several_risks(key):
    losses = 4 * jax.random.uniform(key, (300, 5)) * jnp.linspace(0.1, 1, 5)[None]
    onwards = jnp.asarray(np.eye(5, k=1), float)
    graph = lambda p, d: pvalues.graphical(p, d, jnp.full(5, 0.2), onwards)  # noqa: E731
    p = risk.p_value(losses / 4, 0.25)
    valid = risk.learn_then_test(losses, 1.0, 0.1, bound=4.0, method=graph)
    np.testing.assert_array_equal(valid, graph(p, 0.1))
    assert valid.tolist()[0] and not valid.tolist()[-1]
    errors = losses > 0.5
    both = risk.learn_then_test((losses, errors), (1.0, 0.2), 0.1, bound=(4.0, 1.0))
    largest = jnp.maximum(p, risk.p_value(errors, 0.2, method="binomial"))
    np.testing.assert_array_equal(both, pvalues.holm(largest, 0.1))
    bets = risk.learn_then_test(losses, 1.0, 0.1, bound=4.0, p_value="betting")
    assert np.all(bets >= risk.learn_then_test(losses, 1.0, 0.1, bound=4.0))
    assert not risk.learn_then_test(jnp.zeros((0, 3), bool), 0.1, 0.1).any()


def test_valid_settings_are_all_right_with_probability_one_minus_delta(key):
    """Rows of errors at levels just above alpha: every valid setting is wrong."""
    runs, n, g, alpha, delta = 4000, 100, 5, 0.2, 0.1
    u = jax.random.uniform(key, (runs, n, 1))  # the same rows at each setting
    rates = alpha + 0.001 * jnp.arange(1, g + 1)
    error = 4 * np.sqrt(delta * (1 - delta) / runs)
    for method in ("holm", "fixed_sequence"):
        call = functools.partial(
            risk.learn_then_test, alpha=alpha, delta=delta, method=method
        )
        wrong = jax.jit(jax.vmap(lambda u, c=call: c(u < rates[None]).any()))(u)
        assert wrong.mean() <= delta + error

    def pareto(u, costs=-rates):
        first, rest = u[:30] < rates[None], u[30:] < rates[None]
        return risk.pareto_test(first, rest, costs, alpha, delta).any()

    assert jax.jit(jax.vmap(pareto))(u).mean() <= delta + error


def test_best_is_first_among_equals_and_never_nan():
    valid = jnp.array([False, True, True, True, True])
    best = lambda u, v=valid: tuple(x.item() for x in risk.best(v, jnp.array(u)))  # noqa: E731
    assert best([9.0, jnp.nan, 1.0, 2.0, 2.0]) == (3, True)
    assert best([9, 1, 3, 3, 2]) == (2, True)
    assert best([9.0, -jnp.inf, jnp.nan, -jnp.inf, jnp.nan]) == (1, True)
    assert best([0.0] * 5, ~valid & False) == (0, False)
    assert jax.jit(risk.best)(valid, jnp.arange(5))[0] == 4


E2 = jnp.zeros((9, 2), bool)
ANSWERS = (jnp.ones(9), jnp.ones(9, bool))


def selective(grid=(1.0, 0.5), alpha=0.1, delta=0.1, starts=(0,), answers=ANSWERS):
    return lambda: risk.selective_threshold(
        *answers, alpha, delta, grid=jnp.array(grid), starts=starts
    )


def learn(losses=E2, alpha=0.1, delta=0.1, **options):
    return lambda: risk.learn_then_test(losses, alpha, delta, **options)


WRONG = {
    "no settings": (learn(E2[:, :0]), "number of settings as an int >= 1, got 0"),
    "delta in percent": (learn(delta=5), r"delta in \(0, 1\), got 5"),
    "alpha of errors above 1": (learn(alpha=2.0), r"alpha in \(0, 1\), got 2.0"),
    "a method": (learn(method="simes"), "method as one of .* got 'simes'"),
    "a loss above its bound": (learn(E2 + 2.0), r"losses in \[0, 1\], got 2.0"),
    "an integer that is no error": (learn(E2 + 2), "losses of 0 or 1 .*, got 2"),
    "levels of one of two risks": (
        learn((E2, E2), (0.1,)),
        "alpha for 2 losses, got 1",
    ),
    "rejections of another shape": (
        learn(method=lambda p, d: p[:1] < d),
        r"rejections of method of shape \(2,\), got \(1,\)",
    ),
    "more errors than trials": (
        learn(risk.Counts([1, 3], [2, 2])),
        "errors of at most the trials, got 3 at 1",
    ),
    "counts that are shares": (
        learn(risk.Counts([0.5], [2])),
        "errors as integers, got float32",
    ),
    "a mask of another shape": (
        learn(where=jnp.ones((9, 3), bool)),
        r"where of shape \(9, 2\), got \(9, 3\)",
    ),
    "a start beyond the grid": (
        learn(method="fixed_sequence", starts=(2,)),
        "starts in 0, ..., 1, got 2",
    ),
    "a growing grid": (selective((0.5, 1.0)), "grid in decreasing order, got 1.0 at 1"),
    "no grid": (selective(()), "starts in 0, ..., -1, got 0"),
    "selective alpha": (selective(alpha=1.5), r"alpha in \(0, 1\), got 1.5"),
    "selective delta": (selective(delta=0.0), r"delta in \(0, 1\), got 0"),
    "an array for alpha": (selective(alpha=jnp.array(0.1)), "alpha as a number"),
    "answers that are scores": (
        selective(answers=(jnp.ones(9), jnp.ones(9))),
        "correct as bool, got float32",
    ),
    "utilities of another length": (
        lambda: risk.best(jnp.ones(2, bool), jnp.ones(3)),
        r"utility of shape \(2,\), got \(3,\)",
    ),
    "costs of other settings": (
        lambda: risk.pareto_test(E2, E2, jnp.ones(3), 0.1, 0.1),
        "costs with 2 rows like risks, got 3",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
