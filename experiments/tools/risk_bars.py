"""Where the figures of risk control must lie: exact, published, or own values.

Published are the first line of the false negative rate, its number of labels, and the
medians of the false discovery rate; what has no name below is our own.
"""

PROCEDURES = {  # published: the median false discovery rate by level
    "Bonferroni": (0.0363, 0.0795, 0.1752, 0.4685),
    "150 starts": (0.0387, 0.0826, 0.1783, 0.4710),
}
HARDEST = (  # cells in which bounds by betting come closest to delta
    ("Bernoulli(0.2)", 50, 0.1),
    ("Bernoulli(0.2)", 500, 0.2),
    ("Bernoulli(0.05)", 50, 0.1),
    ("Bernoulli(0.05)", 200, 0.1),
    ("Bernoulli(0.05)", 500, 0.1),
    ("Bernoulli(0.05)", 500, 0.2),
    ("Bernoulli(0.05)", 2000, 0.05),
    ("thirds", 50, 0.1),
    ("thirds", 200, 0.1),
    ("thirds", 500, 0.2),
)

RISK = {
    "risk_speed_crc": [
        (("CRC, 1000 x 80", "numpy, bisection"), "jaxcp / it", "<= 1.5"),
        (("CRC, 4952 x 80", "numpy, bisection"), "jaxcp / it", "<= 0.6"),
        (("CRC, 1000 x 80", "MAPIE"), "jaxcp / it", "<= 0.002"),
    ],
    "risk_speed_many": [("numpy, sort and cumulative sum", "jaxcp / it", "<= 3")],
    "risk_speed_betting": [("numpy, cumulative sums", "jaxcp / it", "<= 0.5")],
    "risk_speed_counts": [("jaxcp", "ms", "<= 1")],
    "risk_control_crc": [
        ((1000, 0.1), "FNR", "0.098 to 0.1"),
        ((1000, 0.1), "labels", "2.93 +- 0.02"),
        ((2000, 0.1), "FNR", "0.09942 +- 4 errors"),
        ((2000, 0.05), "FNR", "0.04978 +- 4 errors"),
        ((100, 0.1), "FNR", "0.09244 +- 4 errors"),
        ((100, 0.02), "FNR", "0.0122 +- 4 errors"),
    ],
    "risk_control_rcps": [
        ((bound, n, alpha), "above alpha", "<= 0.2")  # 0.1 and 3 errors of 100 splits
        for bound in ("Hoeffding-Bentkus", "betting, grid of 0.005")
        for n, alpha in ((1000, 0.1), (2000, 0.1), (2000, 0.05))
    ],
    "risk_control_ltt": [
        ((name, alpha), "median FDR", f"{value} +- 0.003")
        for name, values in PROCEDURES.items()
        for alpha, value in zip((0.05, 0.1, 0.2, 0.5), values, strict=True)
    ],
    "risk_control_answers": [
        ("fixed sequence, from the top", "never answers", ">= 0.9"),
        ("fixed sequence, from where rows are", "above alpha", "<= 0.1"),
        ("fixed sequence, 10 starts", "above alpha", "<= 0.1"),
        ("Holm", "above alpha", "<= 0.1"),
    ],
    "risk_control_shift": [
        ("weighted", "risk", "<= 0.2"),
        ("weighted", "risk", "0.1893 +- 0.006"),
        ("unweighted", "risk", "0.287 +- 0.006"),
    ],
    "risk_control_precision": [(("holm", 0), "jaxcp", ">= 1")],
    "risk_laws_crc": [
        line
        for rows, exact in (
            ("99 x 4", 37 / 397),
            ("19 x 3", 10 / 58),
            ("50 x 7", 11 / 351),
        )
        for line in (
            (rows, "risk", f"{exact:.6f} +- 4 errors"),
            (rows, "Kolmogorov p-value", ">= 0.001"),
        )
    ],
    "risk_laws_pac": [
        ((99, 0.1), "misses", "0.0612 +- 4 errors"),
        ((99, "none"), "misses", "0.46448 +- 4 errors"),
    ],
    "risk_laws_betting": [
        (f"{law}, n = {n}, delta = {delta}", "misses", f"<= {delta}")
        for law, n, delta in HARDEST
    ],
}
