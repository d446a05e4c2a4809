"""Wrong calls of quantiles, p-values and tests of outliers."""

import jax.numpy as jnp

import jaxcp
from jaxcp import outliers, pvalues, risk
from rows import KEY, X, Y, refuses

P_VALUES = X / 10


def select(key=KEY, weights=X, test_weights=X, level=0.1, **options):
    """Selects rows among nine others."""
    rows = X, Y, 1, X, weights, test_weights
    return pvalues.weighted_selection(key, *rows, level, **options)


WRONG = {
    "quantile at no level": (
        lambda: jaxcp.empirical_quantile(X, 1.5),
        r"level in \[0, 1\], got 1.5",
    ),
    "levels unlike groups": (
        lambda: jaxcp.grouped_conformal_quantile(X, Y, [0.1, 0.2], num_groups=3),
        r"alpha of shape \(3,\), got \(2,\)",
    ),
    "a count": (lambda: jaxcp.conformal_rank(9.0, 0.1), "an integer count, got float"),
    "negative count": (
        lambda: jaxcp.conformal_rank(-1, 0.1),
        "count >= 0, got -1",
    ),
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
        "weights with 9 rows like scores, got 2",
    ),
    "no uniforms of a stream": (
        lambda: pvalues.sequential_p_values(X, None),
        "u as a value, got None",
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
        "test_weights only with calibration weights",
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
    "Storey's threshold with few calibration rows": (
        lambda: pvalues.storey_benjamini_hochberg(
            P_VALUES, 0.1, threshold=0.75, num_calibration=3
        ),
        "threshold below 3 / 4 with num_calibration=3, got 0.75; 1 is the only p-value",
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
        r"score of shape \(\), got \(9,\); use jax.vmap",
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
    "predictions that are NaN": (
        lambda: pvalues.selection_p_values(X.at[2].set(jnp.nan), Y, 1, X),
        "pred without NaN, got nan at 2",
    ),
    "targets unlike predictions": (
        lambda: pvalues.selection_p_values(X, Y[:3], 1, X),
        "y with 9 rows like pred, got 3",
    ),
    "thresholds unlike targets": (
        lambda: pvalues.selection_p_values(X, Y, X[:3], X),
        r"threshold of shape \(9,\), got \(3,\)",
    ),
    "no threshold": (
        lambda: pvalues.selection_p_values(X, Y, None, X),
        "threshold as a value, got None",
    ),
    "a threshold that is NaN": (
        lambda: pvalues.selection_p_values(X, Y, float("nan"), X),
        "threshold without NaN, got nan",
    ),
    "test weights of a selection alone": (
        lambda: pvalues.selection_p_values(X, Y, 1, X, test_weights=X),
        "test_weights only with calibration weights",
    ),
    "no key of a selection": (
        lambda: select(None),
        "a key from jax.random.key, got NoneType",
    ),
    "no weights of a selection": (
        lambda: select(weights=None),
        "weights as a value, got None",
    ),
    "no test weights of a selection": (
        lambda: select(test_weights=None),
        "test_weights as a value, got None",
    ),
    "negative test weights of a selection": (
        lambda: select(test_weights=-X),
        "finite test_weights >= 0, got -1.0 at 0",
    ),
    "level of a selection": (lambda: select(level=1), r"level in \(0, 1\), got 1"),
    "pruning": (
        lambda: select(pruning="none"),
        r"pruning as one of \['heterogeneous', .*\], got 'none'",
    ),
    "negative e-values": (
        lambda: pvalues.e_benjamini_hochberg(-X, 0.1),
        "e_values >= 0, got -1.0",
    ),
    "e-values of other repetitions": (
        lambda: pvalues.e_values(jnp.ones((2, 9)), jnp.ones((3, 9)), 0.1),
        r"repetitions of test_scores of shape \(2,\), got \(3,\)",
    ),
    "scores that are NaN for e-values": (
        lambda: pvalues.e_values(X.at[0].set(jnp.nan), X, 0.1),
        "scores without NaN, got nan at 0",
    ),
    "losses above their bound": (
        lambda: risk.value_at_risk(X, 0.5, 0.1),
        "losses of at most 1.0, got 2.0 at 1",
    ),
    "losses that are NaN": (
        lambda: risk.conditional_value_at_risk(X.at[3].set(jnp.nan), 0.5, 0.1, bound=9),
        "losses without NaN, got nan at 3",
    ),
    "losses in columns": (
        lambda: risk.value_at_risk(jnp.ones((9, 2)), 0.5, 0.1),
        r"losses of shape \(n,\), got \(9, 2\)",
    ),
    "the quantile at 0": (
        lambda: risk.value_at_risk(P_VALUES, 0, 0.1),
        r"beta in \(0, 1\), got 0",
    ),
    "the mean beyond all": (
        lambda: risk.conditional_value_at_risk(P_VALUES, 1, 0.1),
        r"beta in \[0, 1\), got 1",
    ),
    "several beta": (
        lambda: risk.value_at_risk(P_VALUES, P_VALUES, 0.1),
        "beta as a number, got ",
    ),
    "delta of a quantile": (
        lambda: risk.value_at_risk(P_VALUES, 0.5, 1.0),
        r"delta in \(0, 1\), got 1.0",
    ),
    "one quantile alone for a mean": (
        lambda: risk.conditional_value_at_risk(P_VALUES, 0.5, 0.1, method="single"),
        r"method as one of \['simes', 'dkw'\], got 'single'",
    ),
    "large delta": (
        lambda: risk.cdf_bounds(9, 0.6, "dkw"),
        r"delta in \(0, 0.5\] for dkw, got 0.6",
    ),
    "bounds of -1 draws": (lambda: risk.cdf_bounds(-1, 0.1), "n as an int >= 0"),
    "a bound that is NaN": (
        lambda: risk.value_at_risk(P_VALUES, 0.5, 0.1, bound=float("nan")),
        "bound that is not NaN, got nan",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
