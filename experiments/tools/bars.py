"""Where the figures of the experiments must lie, by exact, published or own values.

A line of `BARS` is (row, column, limit): a row has these values, whatever the columns
they stand in, and the limit is read as it stands, "<= 2", ">= 8", "0.8 +- 0.01", "1 to
2", or "0.8 +- 3 errors" for as many of the standard errors beside the figure.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from experiments.tools.risk_bars import RISK

KERNEL = {  # times np.partition
    "1000 x 1000": 1.25,
    "100 x 10000": 1.25,
    "1 x 1000000": 1.25,
    "10000 x 100": 1.25,
    "10000 x 1024": 1,
    "100000 x 100": 1,
    "1 x 10000000": 1,
}
SHORT = ("10000 x 100", "100000 x 100")  # rows that are held once more
SMALL = ("1 x 1000", "1 x 10000", "1 x 30000", "1 x 100000", "200 x 100")
SMALL += ("500 x 100", "2000 x 100", "64 x 1000", "300 x 300")
WEIGHTED = ("1000 x 1000", "100 x 10000", "1 x 1000000", "10000 x 100")
EMPIRICAL, SPLIT = "EnbPI, empirical quantile", "split conformal"
ORDINARY, CUT = "full, ordinary", "full, ordinary, cut off"
LENGTHS = {  # published: of what, the mean of 50 replicates, its standard error
    "A": (ORDINARY, 3.529, 0.044),
    "B": (ORDINARY, 6.594, 0.254),
    "C": (ORDINARY, 20.606, 1.161),
    "A, p = 490, ridge": (ORDINARY, 3.354, 0.017),
    "A, p = 490, least squares": (CUT, 7.431, 0.164),
}

VERBS = ("sets", "cdf", "quantile", "crps", "mean", "draw")
RANKED = (
    ("conformal_rank", "all n to 10^4"),
    ("conformal_rank", "chosen n to 10^7"),
    ("conformal_rank, counts on the device", "all n to 10^4"),
    ("conformal_rank, alpha in an array", "all n to 2000"),
    ("conformal_rank, alpha in an array", "all n to 10^4, two digits"),
    ("conformal_quantile", "all n to 2000"),
    ("conformal_quantile", "n to 10^7"),
    *((verb, "n to 200") for verb in ("calibrate", "calibrate, weights of one")),
    *((verb, "n to 200") for verb in ("calibrate_groups", "p_values")),
    ("calibrate_predictive, one side", "n to 200"),
)
RUNS, FITS = "1000 replicates", "scikit-learn, fit_transform"
GROUPS = ("all", "x < 2", "1 < x < 3.5", "x > 3")  # that overlap
BARS = {
    "kernel_speed_kernel": [
        line
        for shape, most in KERNEL.items()
        for line in (
            (shape, "jaxcp / numpy", f"<= {most}"),
            (shape, "jaxcp / bits", "<= 1.1"),
            (shape, "compile s", "<= 0.5"),
            (shape, "temporary copies", f"<= {1.5 if shape in SHORT else 0.6}"),
        )
    ],
    "kernel_speed_small": [(shape, "jaxcp / bits", "<= 1.1") for shape in SMALL],
    "kernel_speed_weights": [
        line
        for shape in WEIGHTED
        for line in (
            (shape, "jaxcp / numpy", "<= 1"),
            (shape, "weighted / plain", "<= 3"),
        )
    ],
    "kernel_speed_labels": [
        ("numpy", "times jaxcp", ">= 1"),
        ("MAPIE", "times jaxcp", ">= 3"),
        ("PUNCC", "times jaxcp", ">= 3"),
        ("jaxcp, SAPS", "SAPS / APS, CPU", "<= 1.2"),
    ],
    "cross_speed_ridge": [
        ("jaxcp", "s", "<= 0.3"),
        ("numpy, float32", "jaxcp / it", "<= 2"),
        ("MAPIE", "jaxcp / it", "<= 0.1"),
    ],
    "cross_speed_networks": [
        ("jaxcp, flax", "s", "<= 2.5"),
        ("loop, scikit-learn", "it / jaxcp", ">= 8"),
    ],
    "cross_speed_large": [("n = 10^5, m = 10^4, K = 10", "GiB of the process", "<= 1")],
    "cross_speed_streams": [
        ("window of 2000, every = 1", "million steps / s", ">= 0.01"),
        ("ACI, window of 500", "million steps / s", ">= 0.1"),
        ("quantile tracking", "million steps / s", ">= 10"),
    ],
    "full_speed_ridge": [
        ("jaxcp, jackknife+", "jaxcp / it", "<= 2"),
        ("numpy, float32", "jaxcp / it", "<= 1.5"),
    ],
    "full_speed_refits": [
        (("jaxcp", "10^4 ridge refits, n = 100"), "s", "<= 0.1"),
        (("jaxcp", "150 fits of 100 Adam steps, n = 200"), "s", "<= 0.3"),
    ],
    "full_speed_large": [("n = m = 10^4, p = 20", "GiB of the process", "<= 1")],
    "multioutput_speed_scores": [
        (2, "jaxcp s", "<= 0.15"),
        (16, "jaxcp s", "<= 0.4"),
        (2, "temporaries MB", "<= 200"),
        (16, "temporaries MB", "<= 200"),
    ],
    "multioutput_speed_membership": [(1_000_000, "jaxcp s", "<= 0.5")],
    "multioutput_speed_training": [
        (name, "s with compilation", "<= 20")
        for name in ("CouplingFlow", "FlowMatching", "GaussianNetwork")
    ],
    "metrics_speed_metrics": [
        ("HSIC, 2000 rows", "s", "<= 0.05"),
        (("size strata, 100000 rows", "numpy"), "jaxcp / it", "<= 0.6"),
    ],
    "metrics_speed_outliers": [
        ("10^5 p-values among 10^5 scores", "s", "<= 0.1"),
        ("SimpleJumper, 10^6 p-values", "s", "<= 1"),
        ("MixtureMartingale, 10^6 p-values", "s", "<= 1"),
        ("PowerMartingale, 10^6 p-values", "s", "<= 1"),
        (("PowerMartingale, 10^6 p-values", "numpy"), "jaxcp / it", "<= 0.7"),
    ],
    "metrics_speed_memory": [(100_000, "MiB", "<= 100")],
    "proper_speed_draws": [
        (("energy score, 1000 x 100 x 16", "numpy"), "jaxcp / it", "<= 0.15"),
    ],
    "proper_speed_many": [
        (
            ("CRPS, 100000 targets among as many atoms", "numpy"),
            "jaxcp / it",
            "<= 0.8",
        ),
    ],
    "selection_shift": [
        ("BH, shift ignored", "FDR", ">= 0.3"),
        ("weighted selection, heterogeneous", "FDR", "<= 0.2"),
        ("weighted selection, homogeneous", "FDR", "<= 0.2"),
        ("weighted selection, deterministic", "FDR", "<= 0.2"),
    ],
    "selection_laws": [
        ((99, 10), "FDR", "0.1 +- 4 errors"),
        ((199, 20), "FDR", "0.12 +- 4 errors"),
        ((999, 50), "FDR", "0.08 +- 4 errors"),
    ],
    "conditional_law": [
        ("split", "all x", "0.102 +- 3 errors"),
        ("split", "1 to 2", "0.187 +- 3 errors"),
        ("split", "3 to 4", "0.045 +- 3 errors"),
        ("conditional", "all x", "0.0905 +- 3 errors"),
        ("conditional, randomized", "all x", "0.1 +- 3 errors"),
        ("conditional, randomized", "all x", "0.097 +- 3 errors"),
        ("conditional, randomized", "1 to 2", "0.098 +- 3 errors"),
        ("conditional, randomized", "3 to 4", "0.101 +- 3 errors"),
    ],
    "conditional_groups": [
        *[(("randomized", g), "surplus", "0 +- 4 errors") for g in GROUPS],
        *[(("plain", g), "coverage", ">= 0.9") for g in GROUPS],
        *[(("plain", g), "surplus", "<= 0.0656") for g in GROUPS],  # 4 / 61
    ],
    "conditional_classes": [
        ((10, "class-wise"), "infinite", "0.332 +- 0.02"),  # fewer than 9 of them
        ((10, "grouped, rare as all"), "infinite", "<= 0"),
        ((20, "true shapes as groups"), "gap x100", "<= 1.5"),
        (("20 in each", "class-wise"), "coverage", "0.9048 +- 0.005"),  # 19 / 21
        (("20 in each", "truncated, class-wise"), "coverage", ">= 0.9"),
        (("20 in each", "RC3P, same rows"), "coverage", "<= 0.89"),
    ],
    "rectified_law": [
        ("Absolute", "cell error x100", "1.18 +- 0.1"),
        ("Absolute", "mean width", "4.18 +- 0.1"),
        *[
            line
            for form in ("ratio", "difference")
            for line in (
                (f"rectified, {form}", "cell error x100", "<= 0.15"),
                (f"rectified, {form}", "mean width", "3.62 +- 0.1"),
            )
        ],
    ],
    "streams_first": [
        ("SPCI, 1000 steps, 4 lags", "CPU s", "<= 0.5"),
        ("SPCI, 1000 steps, 4 lags", "first init, CPU s", "<= 1.5"),
        ("SPCI, 1000 steps, 4 lags", "first run, CPU s", "<= 1.5"),
    ],
    "streams_lags": [
        ((0.9, "window"), "width", "3.3 +- 0.1"),
        ((0.9, "SPCI, window 1000"), "width", "1.46 +- 0.05"),
        ((0.9, "SPCI, window 1000"), "coverage", ">= 0.89"),
    ],
    "conditional_speed": [
        (("n = 1000, m = 1000, p = 10", "MAPIE"), "it / jaxcp", ">= 12"),
        ("n = 5000, m = 1000, p = 10", "CPU s", "<= 0.6"),
        ("n = 1000, m = 1000, p = 10, first call", "s", "<= 4"),
    ],
    "probability_speed": [
        ((f"{RUNS}, n = m = 100", "venn-abers"), "it / jaxcp", ">= 30"),
        ("n = 100000, m = 100000, 1000 levels", "CPU s", "<= 0.05"),
        (("isotonic, n = 10000", FITS), "jaxcp / it", "<= 1.5"),
        (("isotonic, n = 10000", "scikit-learn, fit"), "jaxcp / it", "<= 1.5"),
        (("isotonic, n = 100000", FITS), "jaxcp / it", "<= 6"),
        (("isotonic, n = 100000", "scikit-learn, fit"), "jaxcp / it", "<= 6"),
    ],
    "predictive_speed": [
        (("cdf", 100_000, "NumPy"), "jaxcp / it", "<= 0.8"),
        (("CRPS", 100_000, "NumPy"), "jaxcp / it", "<= 0.8"),
        (("CRPS", 10_000, "crepes"), "it / jaxcp", ">= 3000"),
    ],
    "predictive_speed_first": [
        (f"{verb}{groups}", "CPU s", "<= 1")
        for groups in ("", ", groups")
        for verb in VERBS
    ],
    "predictive": [  # in the notebook of crepes 0.5, of forests that are drawn anew
        line
        for way, crps, width in (
            ("plain", 0.0074, 0.0423),
            ("normalized", 0.0070, 0.0464),
            ("Mondrian", 0.0071, 0.0419),
            ("Mondrian, normalized", 0.0068, 0.0449),
        )
        for line in (
            (("house prices", way), "CRPS", f"{crps} +- 5 %"),
            (("house prices", way), "width", f"{width} +- 5 %"),
            (("house prices", way), "PIT p", ">= 0.01"),
        )
    ],
    "ranks_verbs": [(verb, "share right", ">= 1") for verb in RANKED],
    "band_laws": [
        *[
            ((law, method), "width", f"{width} +- 5 %")
            for law, method, width in (
                ("walk", "constant", 5.28),
                ("walk", "root mean square", 3.75),
                ("walk", "envelope", 3.71),
                ("noise", "root mean square", 6.016),  # closed form
                ("noise", "95 % of the points", 4.398),  # closed form
            )
        ],
        (("walk", "Bonferroni"), "width", ">= inf"),
        (("noise", "root mean square"), "coverage", "0.9005 +- 3 errors"),  # 181 / 201
        (("noise", "Bonferroni, clamped"), "coverage", "0.8191 +- 3 errors"),
    ],
    "bands": [
        (("largest", "NumPy"), "jaxcp / it", "<= 0.6"),
        (("95 %", "NumPy"), "jaxcp / it", "<= 0.6"),
    ],
    "local": [
        ("RLCP", "it / NumPy", "<= 0.7"),
        ("RLCP", "temporaries MB", "<= 20"),
        ("LCP", "temporaries MB", "<= 20"),
    ],
    "selection_repetitions": [("e-BH, mean of 10", "FDR", "<= 0.2")],
    "selection_speed": [
        (("n = m = 5000", "NumPy, loop over rows"), "jaxcp / it", "<= 0.1"),
    ],
    "simulation_speed_replicates": [
        ("numpy", "jaxcp / it", "<= 0.6"),
        ("crepes", "jaxcp / it", "<= 0.2"),
        ("MAPIE", "jaxcp / it", "<= 0.01"),
    ],
    "simulation_speed_overheads": [("progress and checkpoint", "overhead", "<= 0.03")],
    "simulation_speed_devices": [("1 device", "it / 2 devices", ">= 1.6")],
    "simulation_speed_quantiles": [("sharded over 2 CPU devices", "s", "<= 0.3")],
    "first_calls_counts": [
        ("first call above 2 s", "count", "<= 0"),
        ("compiled again for other data", "count", "<= 0"),
        ("compiled again for other numbers", "count", "<= 0"),
    ],
    "readme_start": [("second time", "all s", "<= 1.8")],
    "delays": [
        line
        for name in ("tracking", "ACI", "DtACI")
        for line in ((name, "CPU s", "<= 0.15"), (name, "first CPU s", "<= 1.5"))
    ],
    "monitors": [
        ("RiskMonitor", "CPU s", "<= 1"),
        ("ChangeMonitor", "CPU s", "<= 1"),
        ("ExchangeabilityMonitor, all at once", "CPU s", "<= 10"),
        ("ExchangeabilityMonitor, in batches", "CPU s", "<= 10"),
        ("ExchangeabilityMonitor, in batches", "bytes a step", "<= 8.1"),
    ],
    "monitors_beside": [
        ("all rows", "MAPIE / jaxcp", ">= 100"),
        ("one more", "MAPIE / jaxcp", ">= 100"),
    ],
    "panels": [
        ("tracking", "CPU s", "<= 5"),
        ("ACI", "CPU s", "<= 40"),
        ("ACI", "coverage", "0.9 +- 0.005"),
    ],
    "forecasts_bands": [
        *[
            ((name, days, f"band, {scale}"), "joint coverage", f"{exact} +- 4 errors")
            for name, days, exact in (  # k / (n + 1)
                ("prices", 200, 0.90050),
                ("prices", 400, 0.90025),
                ("solar", 100, 0.90099),
                ("independent hours", 100, 0.90099),
            )
            for scale in ("constant", "root mean square", "envelope")
        ],
        *[
            ((name, days, "Bonferroni"), "width", ">= inf")
            for name, days in (("prices", 200), ("solar", 100))
        ],
        (  # (100 / 101)^24
            ("independent hours", "Bonferroni, clamped"),
            "joint coverage",
            "0.788 +- 0.02",
        ),
    ],
    "forecasts_streams": [
        *[
            ((name, method, "a day late"), "coverage", "0.9 +- 0.005")
            for name in ("prices", "solar", "AR(1)", "jumps")
            for method in ("ACI", "tracking")
        ],
        (("AR(1)", "SPCI", "at once"), "coverage", ">= 0.89"),
        (("AR(1)", "SPCI", "at once"), "width", "1.434 +- 0.05"),
    ],
    "clusters": [
        ("clusters, numbers of jax", "it / weights", "<= 1.2"),
        ("clusters, numbers of NumPy", "it / weights", "<= 1.2"),
    ],
    "label_thresholds": [("one weight a label", "CPU s", "<= 2")],
    "selected": [
        ("top", "s", "<= 0.2"),
        ("above", "s", "<= 0.2"),
        ("by_p_values", "s", "<= 2"),
    ],
    "row_counts": [
        (name, "after the first s", "<= 1.5") for name in ("Absolute", "LAC", "APS")
    ],
    "function_cost": [
        ("of the library", "look us", "<= 10"),
        ("function of numbers", "look us", "<= 20"),
        ("own class", "look us", "<= 20"),
    ],
    "enbpi_solar": [
        line
        for hours, coverage, width, split_coverage, split_width in (
            (876, 0.895, 271.9, 0.531, 113.8),
            (1654, 0.904, 290.0, 0.657, 133.3),
            (2433, 0.908, 298.0, 0.700, 180.6),
        )
        for line in (
            ((hours, EMPIRICAL), "coverage", f"{coverage} +- 0.01"),
            ((hours, EMPIRICAL), "width", f"{width} +- 2 %"),
            ((hours, SPLIT), "coverage", f"{split_coverage} +- 2 errors"),
            ((hours, SPLIT), "width", f"{split_width} +- 2 errors"),
        )
    ],
    "fields": [
        *[
            ((scale, points), "coverage", f"{91 / 101:.6f} +- 4 errors")
            for scale in ("constant", "root mean square", "envelope", "predicted")
            for points in ("all points", "95 % of them")
        ],
        ("quantile a point", "coverage", "<= 0.9"),
        ("quantile a point", "points inside", f"{91 / 101:.6f} +- 4 errors"),
        ("Bonferroni", "coverage", ">= 1"),
        ("Bonferroni", "width", ">= inf"),  # 100 rows are fewer than 20,479
        ("Bonferroni, clamped", "coverage", "<= 0.9"),
        ("Bonferroni, clamped", "points inside", f"{100 / 101:.6f} +- 4 errors"),
    ],
    "full_conformal": [
        (("A", ORDINARY), "coverage", "0.901 +- 0.003"),
        (("A", ORDINARY), "length", "3.548 +- 0.02"),
        *[
            ((setting, method), "coverage", "0.90099 +- 4 errors")  # 91 / 101
            for setting in ("A", "B", "C")
            for method in ("full, studentized", "full, deleted")
        ],
        *[
            ((setting, method), "length", f"{length} +- {3 * error:.3f}")
            for setting, (method, length, error) in LENGTHS.items()
        ],
    ],
    "jackknife_barber": [
        ((100, "jackknife"), "coverage", "<= 0.65"),
        ((100, "jackknife+"), "coverage", ">= 0.88"),
    ],
    "covariate_shift": [
        ("no shift", "coverage", "0.902 +- 0.01"),
        ("shift, unweighted", "coverage", "0.822 +- 0.01"),
        ("shift, oracle", "coverage", "0.909 +- 0.01"),
        ("no shift", "length", "16.09 +- 2 %"),
        ("shift, unweighted", "length", "16.08 +- 2 %"),
        ("shift, oracle", "length", "20.94 +- 2 %"),
    ],
    "claims": [  # the published thresholds, to the last bit
        ((name, share), "off by", "0 to 0")
        for name, shares in (
            ("factscore", (1, 0.7)),
            ("MATH", (1,)),
            ("nq", (1, 0.9, 0.8)),
        )
        for share in shares
    ],
    "conformal_bayes": [  # the published splits, so the same figures but for draws
        (("wide prior", "Bayes"), "coverage", "0.805 +- 0.004"),
        (("wide prior", "conformal Bayes"), "coverage", "0.809 +- 0.002"),
        (("wide prior", "conformal Bayes"), "length", "1.86 +- 0.01"),
        (("noise too small", "Bayes"), "coverage", "<= 0.6"),
        (("noise too small", "conformal Bayes"), "coverage", "0.809 +- 0.004"),
        (("ridge", "full, ordinary"), "coverage", "0.808 +- 0.002"),
        (("ridge", "full, ordinary"), "length", "1.864 +- 0.005"),
        (("ridge", "full, studentized"), "coverage", "0.808 +- 0.003"),
    ],
    "multioutput_toys": [
        (("unimodal", "true law", "DR-CP"), "cond. x100", "1.35 to 1.8"),
        (("unimodal", "true law", "C-HDR"), "cond. x100", "<= 0.22"),
        (("unimodal", "true law", "C-PCP"), "cond. x100", "<= 0.22"),
        (("unimodal", "true law", "L-CP"), "cond. x100", "<= 0.03"),
        (("unimodal", "true law", "DR-CP"), "volume", "15.453 +- 3 errors"),
        (("unimodal", "true law", "L-CP"), "volume", "17.697 +- 3 errors"),
        (("unimodal", "half the noise", "C-HDR"), "volume", ">= inf"),
        (("unimodal", "half the noise", "C-HDR, extended"), "coverage", "0.8 +- 0.02"),
        *[
            (("bimodal", "true law", method), "volume", f"{volume} +- 5 %")
            for method, volume in (
                ("DR-CP", 23.1),
                ("C-HDR", 24.6),
                ("PCP", 33.0),
                ("C-PCP", 34.4),
                ("L-CP", 50.7),
            )
        ],
        (("one moon", "coupling flow", "C-HDR"), "coverage", "0.8 +- 0.03"),
        (("one moon", "coupling flow", "L-CP"), "coverage", "0.8 +- 0.03"),
    ],
    "threshold_gradients": [((4000, "nearest"), "rmse", "<= 0.25")],
    "conformal_training": [
        (("APS", "conformal, nearest"), "change, %", "<= -5"),
        (("APS", "conformal, nearest"), "coverage", "0.99 +- 3 errors"),
    ],
    "runs": [
        ("showcase", "seconds", "<= 90"),
        ("showcase", "second run s", "<= 45"),
        ("showcase", "peak GiB", "<= 2"),
    ],
} | RISK
# The same bars for the tables that are measured again with NumPy and XLA kept to AVX2.
MASKED = ("kernel_speed_kernel", "kernel_speed_small", "kernel_speed_weights")
MASKED += ("metrics_speed_metrics", "metrics_speed_outliers")
MASKED += ("simulation_speed_replicates",)
BARS["pit"] = [  # % of right systems that a test at 5 % rejects
    (f"n = {n}, m = {m}", test, limit)
    for n in (20, 100, 1000)
    for m in (20, 100, 1000)
    for test, limit in (
        ("Pearson, drawn", "<= 6"),
        ("Pearson, asymptotic", "4 to 6.5"),
        ("KS", "<= 5.5"),
    )
]
BARS |= {f"{table}_avx2": BARS[table] for table in MASKED}

_WEIGHTS = (
    "plain rows are counted three to eight times as fast as when the bar was set; two "
    "words of each weight are added up without rounding"
)
_EPYC = "on an AMD EPYC"
WHY = {  # a bar that is missed
    ("kernel_speed_kernel", "10000 x 100"): "the partition of NumPy has AVX-512; with "
    "both kept to AVX2 it is 1.18",
    ("kernel_speed_labels", "PUNCC"): f"4.9 {_EPYC}",
    ("metrics_speed_outliers", "PowerMartingale, 10^6 p-values"): f"0.7 {_EPYC}",
    ("metrics_speed_metrics_avx2", "size strata, 100000 rows"): f"0.35 {_EPYC}",
    ("proper_speed_many", "CRPS, 100000 targets among as many atoms"): "within the "
    "noise of two shared cores: 0.72 in a run before",
    ("predictive_speed_first", "quantile, groups"): "1.15 in a run before",
    ("bands", "largest"): "within the noise of two shared cores: 0.5 in a run before",
    ("function_cost", "function of numbers"): f"13 {_EPYC}",
    ("function_cost", "own class"): f"19.6 {_EPYC}",
    **dict.fromkeys(
        [(f"simulation_speed_replicates{masked}", "numpy") for masked in ("", "_avx2")],
        f"0.71 {_EPYC}, with AVX2 0.59",
    ),
    ("simulation_speed_overheads", "progress and checkpoint"): f"0.05 {_EPYC}",
    ("risk_speed_many", "numpy, sort and cumulative sum"): f"2.7 {_EPYC}",
    ("clusters", "clusters, numbers of NumPy"): "64 bits become 32 bits first",
    **{
        (f"kernel_speed_weights{masked}", row[0]): _WEIGHTS
        for row in BARS["kernel_speed_weights"]
        for masked in ("", "_avx2")
    },
    (
        "streams_first",
        "SPCI, 1000 steps, 4 lags",
    ): "each compiles the exact regression, which alone takes 2 s",
    ("bands", "95 %"): "the partition of NumPy has AVX-512; the kernel counts a row of "
    "65,536 up to 32 times",
    ("probability_speed", "1000 replicates, n = m = 100"): "33 beside other work, "
    "which slows the peer more",
    ("predictive_speed", "CRPS"): "of 10^4 atoms without a system it takes half the "
    "time",
    ("simulation_speed_devices", "1 device"): "one device already runs its large "
    "operations on both cores",
    ("conditional_law", "split"): "published of one training set, and this share "
    "deviates by 0.0051 between training sets",
    (
        "conditional_law",
        "conditional, randomized",
    ): "published of one training set; the "
    "exact value is 0.1, of plain sets 0.0905, further away",
    ("runs", "showcase"): "set for 23 methods, and measured with 60: each compiles a "
    "program of its own, for 1 to 6 s",
    ("first_calls_counts", "first call above 2 s"): "fits of generative models and "
    "`scenes`, with a dozen draws each; examples that draw, resample, fit and predict",
    ("first_calls_counts", "compiled again for other data"): "examples that make an "
    "optimizer of optax, which is made of new functions each time",
    ("first_calls_counts", "compiled again for other numbers"): "the same",
}


class Figure(NamedTuple):
    """One figure beside its bar; both values are None where it was not measured."""

    table: str
    row: str
    column: str
    limit: str
    value: float | None
    met: bool | None
    why: str


def judge(tables: dict[str, list[dict]]) -> Iterator[Figure]:
    """Yields every bar with its figure."""
    for table, lines in BARS.items():
        for key, column, limit in lines:
            yield figure(tables, table, key, column, limit)


def figure(
    tables: dict[str, list[dict]], table: str, key: object, column: str, limit: str
) -> Figure:
    """Returns a figure beside its bar, which is "" where there is none."""
    values = key if isinstance(key, tuple) else (key,)
    row = _find(tables.get(table, []), values)
    value, met = row.get(column), None
    if limit and value is not None:
        met = _holds(limit, value, _error(row, column))
    name, why = ", ".join(map(str, values)), WHY.get((table, values[0]), "")
    return Figure(table, name, column, limit, value, met, why)


def limit_of(table: str, key: object, column: str) -> str:
    """Returns the first bar of a figure, or "" if it has none."""
    lines = [line for line in BARS.get(table, []) if line[:2] == (key, column)]
    return lines[0][2] if lines else ""


def _find(rows, values):
    """Returns the first row that has all of these values, or an empty one."""
    return next((r for r in rows if all(v in r.values() for v in values)), {})


def _error(row, column):
    """Returns the standard error beside a figure: in the next column with a +-."""
    columns = list(row)
    after = columns[columns.index(column) + 1 :]
    return next((row[name] for name in after if "+-" in name), None)


def _holds(limit: str, value: float, error: float | None) -> bool:
    """Returns whether a figure is where it must be."""
    first, _, rest = limit.partition(" ")
    if first == "<=":
        return value <= float(rest)
    if first == ">=":
        return value >= float(rest)
    middle, (word, _, amount) = float(first), rest.partition(" ")
    if word == "to":
        return middle <= value <= float(amount)
    amount, _, unit = amount.partition(" ")
    scale = {"": 1.0, "%": middle / 100, "errors": error or math.nan}[unit]
    return abs(value - middle) <= float(amount) * scale
