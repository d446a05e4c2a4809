"""Wrong calls of quantiles, p-values and tests of outliers."""

import jax.numpy as jnp

import jaxcp
from jaxcp import outliers, pvalues
from rows import X, Y, refuses

P_VALUES = X / 10


WRONG = {
    "quantile of nothing": (
        lambda: jaxcp.empirical_quantile(X[:0], 0.5),
        r"values of shape \(l, ...\), got \(0,\)",
    ),
    "quantile at no level": (
        lambda: jaxcp.empirical_quantile(X, 1.5),
        r"level in \[0, 1\], got 1.5",
    ),
    "levels unlike groups": (
        lambda: jaxcp.grouped_conformal_quantile(X, Y, [0.1, 0.2], num_groups=3),
        r"alpha of shape \(\) or \(3,\), one a group, got \(2,\)",
    ),
    "a count": (lambda: jaxcp.conformal_rank(9.0, 0.1), "an integer count, got float"),
    "negative count": (lambda: jaxcp.conformal_rank(-1, 0.1), "count >= 0, got -1"),
    "scalar scores": (
        lambda: jaxcp.conformal_quantile(1.0, 0.1),
        "scores with a leading axis, got a scalar",
    ),
    "bandwidth of 0": (
        lambda: jaxcp.soft_conformal_quantile(X, 0.1, bandwidth=0.0),
        "bandwidth > 0, got 0.0",
    ),
    "weights unlike scores": (
        lambda: jaxcp.weighted_conformal_quantile(X, X[:2], 0.1),
        r"one shape \(n,\), got \(9,\) and \(2,\)",
    ),
    "no uniforms of a stream": (
        lambda: pvalues.sequential_p_values(X, None),
        "u as an array, got NoneType",
    ),
    "outliers": (lambda: outliers.is_outlier(X, X, 5), r"alpha in \(0, 1\), got 5"),
    "scores in a column": (
        lambda: outliers.outlier_p_values(X[:, None], X),
        r"scores of shape \(n,\), got \(9, 1\)",
    ),
    "NaN calibration scores": (
        lambda: outliers.outlier_p_values(X.at[2].set(jnp.nan), X),
        "scores without NaN, got nan at 2",
    ),
    "uniforms of another length": (
        lambda: outliers.outlier_p_values(X, X, u=P_VALUES[:3]),
        "u with 9 rows like test_scores, got 3",
    ),
    "weights of another length": (
        lambda: outliers.outlier_p_values(X, X, weights=X[:3]),
        "weights with 9 rows like scores, got 3",
    ),
    "test weights alone": (
        lambda: outliers.outlier_p_values(X, X, test_weights=X),
        "test_weights only with weights",
    ),
    "groups": (
        lambda: outliers.grouped_outlier_p_values(X, Y, X, Y + 1, num_groups=3),
        "test_groups in 0, ..., 2, got 3",
    ),
    "delta": (
        lambda: outliers.conditional_outlier_p_values(X, X, 1.0),
        r"delta in \(0, 1\), got 1.0",
    ),
    "conditional p-values of another kind": (
        lambda: outliers.conditional_outlier_p_values(X, X, 0.1, method="exact"),
        r"method as one of \['simes', 'dkw'\], got 'exact'",
    ),
    "negative p-values": (
        lambda: pvalues.benjamini_hochberg(-P_VALUES, 0.1),
        "p_values >= 0, got -0.1",
    ),
    "false discovery rate in percent": (
        lambda: pvalues.benjamini_hochberg(P_VALUES, 10),
        r"level in \(0, 1\), got 10",
    ),
    "Storey's threshold": (
        lambda: pvalues.storey_benjamini_hochberg(P_VALUES, 0.1, threshold=1),
        r"threshold in \(0, 1\), got 1",
    ),
    "p-values above 1 in a stream": (
        lambda: pvalues.watch(pvalues.SimpleJumper(), X),
        r"p_values in \[0, 1\], got 2.0 at 1",
    ),
    "a power above 1": (
        lambda: pvalues.watch(pvalues.PowerMartingale(2.0), P_VALUES),
        r"epsilon in \(0, 1\], got 2.0",
    ),
    "a jump above 1": (
        lambda: pvalues.watch(pvalues.SimpleJumper(1.5), P_VALUES),
        r"jump in \[0, 1\], got 1.5",
    ),
    "a mixture of nothing": (
        lambda: pvalues.watch(pvalues.MixtureMartingale(0), P_VALUES),
        "num_powers as an int >= 1, got 0",
    ),
    "a class for a martingale": (
        lambda: pvalues.watch(pvalues.SimpleJumper, P_VALUES),
        "martingale as a value, got the class",
    ),
    "alarm level": (lambda: pvalues.alarm_level(0), r"alpha in \(0, 1\), got 0"),
    "several powers": (
        lambda: pvalues.watch(pvalues.PowerMartingale(P_VALUES), P_VALUES),
        r"epsilon of shape \(\), got \(9,\); use jax.vmap",
    ),
    "no level": (
        lambda: pvalues.benjamini_hochberg(P_VALUES, None),
        "level as a number, got None",
    ),
    "no delta": (
        lambda: outliers.conditional_outlier_p_values(X, X, None),
        "delta as a number, got NoneType",
    ),
    "a vector for a score": (
        lambda: jaxcp.conformal_p_value(X, X),
        r"score, u and test_weight of shape \(\)",
    ),
    "negative p-values of hypotheses": (
        lambda: pvalues.holm(-P_VALUES, 0.1),
        "p_values >= 0, got -0.1",
    ),
    "delta of hypotheses": (
        lambda: pvalues.bonferroni(P_VALUES, 1),
        r"delta in \(0, 1\), got 1",
    ),
    "starts twice": (
        lambda: pvalues.fixed_sequence(P_VALUES, 0.1, starts=(1, 1)),
        r"starts without repetitions, got \[1, 1\]",
    ),
    "no starts": (
        lambda: pvalues.fixed_sequence(P_VALUES, 0.1, starts=()),
        r"starts of shape \(j,\), got \(0,\)",
    ),
    "shares above 1": (
        lambda: pvalues.graphical(P_VALUES[:2], 0.1, X[:2], jnp.zeros((2, 2))),
        "weights of at most 1 together, got",
    ),
    "a share passed to itself": (
        lambda: pvalues.graphical(P_VALUES[:2], 0.1, P_VALUES[:2], jnp.eye(2)),
        "transitions with a diagonal of 0, got 1.0",
    ),
    "u": (lambda: jaxcp.conformal_p_value(X, 1.0, u=2.0), r"u in \[0, 1\], got 2.0"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
