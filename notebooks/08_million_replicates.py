# %% [markdown]
# # A million replicates
#
# How often do calibrated sets cover? Not "about 0.9" of the time: a theorem says that
# coverage, given the calibration set, has a Beta law, whatever the model and the law of
# the data. We check it with a million simulated calibrations. We see how many
# calibration rows are needed. And an exact test finds wrong quantiles.

# %%
import math
import os
import tempfile

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxcp
from jaxcp import certificates, datasets, metrics, plotting, scores, simulation

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_TRIALS = 50_000 if FAST else 1_000_000
NUM_CALIBRATION, NUM_TEST = 99, 10
ALPHA = 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data, prediction, set
#
# One replicate is a pure function of a random key. It draws data, y = x plus normal
# noise, calibrates the model that predicts x, and makes ten sets. We return how many of
# them hold their target. Since the noise is normal, we also know the coverage given
# this calibration set: erf(q / sqrt(2)), with q the threshold.


# %%
def trial(key):
    x, y = datasets.linear(key, NUM_CALIBRATION + NUM_TEST, num_features=1)
    preds, old, new = x[:, 0], slice(NUM_CALIBRATION), slice(NUM_CALIBRATION, None)
    cp = jaxcp.calibrate(scores.Absolute(), preds[old], y[old])
    sets = cp(preds[new], alpha=ALPHA)
    coverage = jax.scipy.special.erf(cp.quantile(ALPHA) / math.sqrt(2))
    return {
        "coverage": coverage,
        "each": coverage,  # once more, to keep all values
        "hits": metrics.covered(sets, y[new]).sum().astype(int),
        "width": metrics.mean_size(sets),
    }


# %% [markdown]
# ## A simulation
#
# `jaxcp.simulate` runs replicates in batches, on all devices. `reduce` says what to
# keep: moments, which are exact sums whatever the batches, or every value (None). With
# a checkpoint, a run that was killed continues where it stopped. So does a call that
# asks for more: the second call below runs the other nine tenths. (`progress=True`
# shows a bar.)

# %%
moments = simulation.Moments()
statistics = {"coverage": moments, "each": None, "hits": None, "width": moments}


def run(num_trials, folder):
    key = jax.random.key(1)  # the same key: the same replicates
    return jaxcp.simulate(
        trial,
        key,
        num_trials,
        batch_size=2500,  # changes memory and speed, not the replicates
        reduce=statistics,
        checkpoint=folder,
    )


with tempfile.TemporaryDirectory() as folder:
    tenth = run(NUM_TRIALS // 10, folder)
    out = run(NUM_TRIALS, folder)

for part in (tenth, out):
    mean, error, *_, count = part["coverage"]
    print(f"{count:,} replicates: coverage {mean:.5f} +- {error:.5f}")
print(f"width: {out['width'].mean:.4f} +- {out['width'].standard_error:.4f}")

# %% [markdown]
# ## Coverage
#
# With n calibration rows the threshold is the k-th smallest score, where
# k = n + 1 - floor(alpha (n + 1)). If scores do not tie, coverage is k / (n + 1) on
# average. Given the calibration set it is random, with the law Beta(k, n + 1 - k). A
# certificate gives this law, without any simulation.

# %%
proof = certificates.certificate(NUM_CALIBRATION, ALPHA)
found = out["coverage"]
print(f"rank {proof.rank} of {proof.n}, law Beta{proof.law}")
print(f"mean:      {found.mean:.5f}  in theory {proof.coverage:.5f}")
print(f"deviation: {found.variance**0.5:.5f}  in theory {proof.standard_deviation:.5f}")

low, high = proof.interval(0.9)
each = np.asarray(out["each"])
share = np.mean((low <= each) & (each <= high))
print(f"in ({low:.3f}, {high:.3f}): {share:.4f} of replicates, in theory 0.9")

# %% [markdown]
# So with 99 rows, the coverage of one calibrated predictor depends on chance. With more
# rows it depends less.

# %% tags=["thumbnail"]
needed = certificates.calibration_size(ALPHA, slack=0.01, probability=0.9)
print(f"rows for a coverage of 0.9 +- 0.01, nine times in ten: {needed:,}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
plotting.plot_coverage(each, NUM_CALIBRATION, ALPHA, ax=left)
left.set_title(f"n = {NUM_CALIBRATION}, alpha = {ALPHA}")
sizes = 10 * np.geomspace(2, 2000, 60).astype(int) - 1
bands = [certificates.certificate(n, ALPHA).interval(0.9) for n in sizes]
right.fill_between(
    sizes, *np.transpose(bands), alpha=0.4, label="nine coverages in ten"
)
right.axhline(1 - ALPHA, color="gray", linestyle="--", label=f"1 − α = {1 - ALPHA}")
right.axvline(needed, ymax=0.7, color="gray", linestyle=":", label=f"{needed:,} rows")
right.set(xscale="log", xlabel="calibration rows n", ylabel="coverage given the rows")
right.legend()
right.set_title(f"alpha = {ALPHA}")
plt.show()

# %% [markdown]
# ## Wrong ranks
#
# The threshold has to be the right order statistic. `np.quantile(s, 1 - alpha)`, which
# many programs use, interpolates below it. A known remedy is the level
# ceil((n + 1)(1 - alpha)) / n with `method="higher"`. Here it takes the next order
# statistic, one too high. Even the rank alone is wrong in floating point:

# %%
exact = jaxcp.conformal_rank(99, 0.42)
in_floats = math.ceil((99 + 1) * (1 - 0.42))
print(f"n = 99, alpha = 0.42: rank {exact}, in floating point {in_floats}")

# %% [markdown]
# A test tells them apart. It counts the covered test points over many calibration
# sets, and compares the count with its exact law. The law allows for test points that
# share a calibration set. The p-value is small if the coverage is not that of the
# right rank.

# %%
draws = jax.random.normal(jax.random.key(2), (20_000, NUM_CALIBRATION + NUM_TEST))
old, new = np.split(np.abs(draws), [NUM_CALIBRATION], axis=1)
level = math.ceil((NUM_CALIBRATION + 1) * (1 - ALPHA)) / NUM_CALIBRATION
thresholds = {
    "conformal_quantile": jaxcp.conformal_quantile(old.T, ALPHA),
    "np.quantile": np.quantile(old, 1 - ALPHA, axis=1),
    "... higher": np.quantile(old, level, axis=1, method="higher"),
}
tests = {"the million": (out["hits"], NUM_CALIBRATION, ALPHA)}
for name, q in thresholds.items():
    hits = np.sum(new <= np.asarray(q)[:, None], axis=1)
    tests[name] = hits, NUM_CALIBRATION, ALPHA

p_values = {}
for name, given in tests.items():
    test = certificates.coverage_test(*given, num_test=NUM_TEST)
    p_values[name] = test.p_value
    print(f"{name:20s} coverage {test.coverage:.4f}   p-value {test.p_value:.1e}")

# %% [markdown]
# ## The claim

# %%
assert abs(found.mean - proof.coverage) < 4 * found.standard_error
assert abs(found.variance / proof.standard_deviation**2 - 1) < 0.02
assert p_values["the million"] > 0.001 and p_values["conformal_quantile"] > 0.001
assert p_values["np.quantile"] < 1e-6 and p_values["... higher"] < 1e-6
print("coverage has its Beta law, and the test finds wrong ranks")
