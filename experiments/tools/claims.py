"""What the page of results says: ten claims, and where we lose, with figures."""

from typing import NamedTuple

from experiments.tools.bars import EMPIRICAL


class Claim(NamedTuple):
    """A sentence, and the figure for it: by table, values of its row, and column."""

    said: str
    table: str
    key: object
    column: str


_MILLION, _KERNEL = "simulation_speed_replicates", "kernel_speed_kernel"
CLAIMS = (
    Claim(
        "Ranks of all n to 10^4 and 999 levels: the share that is exact",
        "ranks_verbs",
        ("conformal_rank", "all n to 10^4"),
        "share right",
    ),
    Claim(
        "Full conformal prediction without a held-out set: coverage, exactly 91 / 101",
        "full_conformal",
        ("A", "full, studentized"),
        "coverage",
    ),
    Claim(
        "As many columns as rows, where the jackknife fails: the jackknife+ covers",
        "jackknife_barber",
        (100, "jackknife+"),
        "coverage",
    ),
    Claim(
        "Selection under covariate shift at level 0.2: false discovery rate",
        "selection_shift",
        "weighted selection, heterogeneous",
        "FDR",
    ),
    Claim(
        "EnbPI on a series of solar radiation, at alpha = 0.1: coverage as published",
        "enbpi_solar",
        (1654, EMPIRICAL),
        "coverage",
    ),
    Claim(
        "Labels of images of COCO, at alpha = 0.1: the share that is missed",
        "risk_control_crc",
        (1000, 0.1),
        "FNR",
    ),
    Claim(
        "APS sets of MNIST, of a network that is trained for small sets: change in %",
        "conformal_training",
        ("APS", "conformal, nearest"),
        "change, %",
    ),
    Claim(
        "A million times {draw 100 scores, calibrate, exact coverage}: time / MAPIE's",
        _MILLION,
        "MAPIE",
        "jaxcp / it",
    ),
    Claim(
        "The k-th smallest of 1000 rows of 1000 numbers: time / that of `np.partition`",
        _KERNEL,
        "1000 x 1000",
        "jaxcp / numpy",
    ),
    Claim(
        "Full conformal ridge, n = m = 2000: time / that of our jackknife+",
        "full_speed_ridge",
        "jaxcp, jackknife+",
        "jaxcp / it",
    ),
)
LOSSES = (
    Claim(
        "The k-th smallest of one row of 1000 numbers: time / that of `np.partition`",
        "kernel_speed_small",
        "1 x 1000",
        "jaxcp / numpy",
    ),
    Claim(
        "Of 100 rows of 10,000, both kept to AVX2",
        f"{_KERNEL}_avx2",
        "100 x 10000",
        "jaxcp / numpy",
    ),
    Claim(
        "Weighted quantile of 10^6 scores: time / that of a plain one",
        "kernel_speed_weights",
        "1 x 1000000",
        "weighted / plain",
    ),
    Claim(
        "Seconds to compile the kernel for 10^7 scores",
        _KERNEL,
        "1 x 10000000",
        "compile s",
    ),
    Claim(
        "The million calibrations: time / that of vectorized NumPy",
        _MILLION,
        "numpy",
        "jaxcp / it",
    ),
    Claim(
        "The same, with the time of all cores added up",
        _MILLION,
        "numpy",
        "jaxcp / it, CPU",
    ),
    Claim(
        "A million calibrations: time on one device / on two of the same processor",
        "simulation_speed_devices",
        "1 device",
        "it / 2 devices",
    ),
    Claim(
        "Risk control of 1000 images with 80 labels: time / that of a sort in NumPy",
        "risk_speed_crc",
        ("CRC, 1000 x 80", "numpy, sort of the true"),
        "jaxcp / it",
    ),
    Claim(
        "Examples of docstrings whose first call takes more than 2 s",
        "first_calls_counts",
        "first call above 2 s",
        "count",
    ),
    Claim(
        "Seconds for every method of the showcase, nothing compiled before",
        "runs",
        "showcase",
        "seconds",
    ),
)
