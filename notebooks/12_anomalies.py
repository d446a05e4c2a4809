# %% [markdown]
# # Anomalies
#
# A detector has seen normal cases alone, and gives every new case a number: the larger,
# the stranger. How large is too large? *Conformal p-values* answer for any detector. We
# use them one by one, on a hundred cases at once, and on a stream that changes.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import IsolationForest

import jaxcp
from jaxcp import outliers, plotting, pvalues

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_TRIALS = 1000 if FAST else 20_000
NUM_TRAIN, NUM_CALIBRATION = 78, 199
LEVEL = 0.1

# %% [markdown]
# ## Data and a detector
#
# Thirty measurements of the cells of a tumor. Of 569 tumors 357 are benign: these are
# the normal cases, and the malignant ones are the anomalies. An isolation forest is
# fitted on 78 benign tumors. The other 279 are held out.

# %%
x, is_benign = load_breast_cancer(return_X_y=True)
rng = np.random.default_rng(0)
benign = rng.permutation(x[is_benign == 1])
malignant = rng.permutation(x[is_benign == 0])

forest = IsolationForest(n_estimators=100, random_state=0).fit(benign[:NUM_TRAIN])
nominal = jnp.asarray(-forest.score_samples(benign[NUM_TRAIN:]))
strange = jnp.asarray(-forest.score_samples(malignant))
print(len(nominal), "normal cases held out,", len(strange), "anomalies")
print(f"median score: {jnp.median(nominal):.3f} and {jnp.median(strange):.3f}")

# %% [markdown]
# ## p-values
#
# Some of the held-out normal cases calibrate. The p-value of a new case is the share of
# these, and of itself, that are at least as strange: p = (1 + #{S_i >= s}) / (n + 1). A
# normal case has p <= t with probability at most t. No threshold of the detector is
# needed, and no law of its scores.

# %%
calibration, new = nominal[:NUM_CALIBRATION], nominal[NUM_CALIBRATION:]
p_normal = outliers.outlier_p_values(calibration, new)
p_strange = outliers.outlier_p_values(calibration, strange)
for name, p in [("normal cases", p_normal), ("anomalies", p_strange)]:
    print(f"the first {name}:", *(f"{value:.3f}" for value in p[:5]))
print(f"p <= 0.1: {np.mean(p_normal <= 0.1):.3f} of the normal cases,", end=" ")
print(f"{np.mean(p_strange <= 0.1):.3f} of the anomalies")

# %% [markdown]
# ## Many at once
#
# A hundred new cases come in, and twenty of them are anomalies. Whoever reports each
# case with p <= 0.1 reports about eight normal ones as well. What counts is the share
# of false reports among all reports. *Benjamini and Hochberg* keep its mean, the false
# discovery rate, below a level of our choice: here below 0.1, times the share of normal
# cases, 0.8. The p-values share their calibration cases and so depend on each other.
# The bound holds all the same (Bates et al., 2023).
#
# A bound on a mean has to be seen on many replicates. Each deals the held-out normal
# cases into calibration and new ones, and draws twenty anomalies.

# %%
NUM_STRANGE = 20
is_strange = jnp.arange(len(new) + NUM_STRANGE) >= len(new)
rules = {
    "each p <= 0.1": lambda p: p <= LEVEL,
    "Benjamini-Hochberg": lambda p: pvalues.benjamini_hochberg(p, LEVEL),
    "Storey": lambda p: pvalues.storey_benjamini_hochberg(p, LEVEL),
}


def deal(key):
    key_nominal, key_strange = jax.random.split(key)
    dealt = jax.random.permutation(key_nominal, nominal)
    drawn = jax.random.choice(key_strange, strange, (NUM_STRANGE,), replace=False)
    tests = jnp.concatenate([dealt[NUM_CALIBRATION:], drawn])
    return dealt[:NUM_CALIBRATION], tests


def trial(key):
    p = outliers.outlier_p_values(*deal(key))
    found = {}
    for name, rule in rules.items():
        reports = rule(p)
        false = jnp.sum(reports & ~is_strange)
        found[name] = {
            "share of false reports": false / jnp.maximum(jnp.sum(reports), 1),
            "anomalies found": jnp.sum(reports & is_strange) / NUM_STRANGE,
        }
    return found


found = jaxcp.simulate(
    trial, jax.random.key(1), NUM_TRIALS, reduce=jaxcp.simulation.Moments()
)
print("                     false reports         anomalies found")
for name in rules:
    moments = found[name]
    false, power = moments["share of false reports"], moments["anomalies found"]
    error = false.standard_error
    print(f"{name:20s} {false.mean:.4f} +- {error:.4f}      {power.mean:.3f}")

# %% [markdown]
# Storey's rule estimates the share of normal cases, and so comes closer to the level.
# Its proof is for independent p-values. With those of a small calibration set the share
# of false reports may exceed the level.
#
# ## One calibration set
#
# All of this holds on average over calibration sets. A user has one. Given this set,
# P(p <= 0.1) for a normal case is a fixed number, and for about half of all sets it is
# above 0.1. *Conditional p-values* are larger, and valid for all but a share delta of
# the sets, at all t together. p-values depend on ranks alone, so uniform numbers stand
# for the scores of any detector here, and we know the probability exactly.

# %%
DELTA = 0.1
levels = np.array([0.02, 0.05, 0.1, 0.2])
grid = (jnp.arange(10_000) + 0.5) / 10_000  # the quantiles of a normal score


def rates(key):
    scores = jax.random.uniform(key, (NUM_CALIBRATION,))
    p = {
        "on average": outliers.outlier_p_values(scores, grid),
        "conditional": outliers.conditional_outlier_p_values(scores, grid, DELTA),
    }
    close = levels[:, None] + 1e-6  # p-values are fractions, rounded
    return {name: jnp.mean(v[None] <= close, axis=1) for name, v in p.items()}


given = jaxcp.simulate(rates, jax.random.key(2), NUM_TRIALS // 10)
is_misled = {name: v > levels + 1e-4 for name, v in given.items()}
print("share of sets whose P(p <= t) exceeds t")
print("t            ", *(f"{t:5.2f}" for t in levels), "  any")
for name in ("on average", "conditional"):
    above = is_misled[name]
    shares = np.append(above.mean(axis=0), above.any(axis=1).mean())
    print(f"{name:12s} ", *(f"{share:.3f}" for share in shares))

careful = outliers.conditional_outlier_p_values(calibration, strange, DELTA)
print(f"anomalies with p <= 0.1: {np.mean(p_strange <= 0.1):.3f} on average,", end=" ")
print(f"{np.mean(careful <= 0.1):.3f} conditional")

# %% [markdown]
# ## A stream
#
# Cases come one by one. After forty normal cases something changes, and a third of the
# following sixty are anomalies. A *test martingale* bets against the claim that nothing
# changes. Its capital grows while p-values are too small. As long as nothing changes it
# reaches 1 / alpha with probability at most alpha, ever. So one may look after every
# case, and raise an alarm at 1 / alpha.
#
# The p-value of a case of a stream is its rank among all cases so far, smoothed by a
# uniform number. Only such p-values are independent, as bets require. The calibration
# cases come first, and no bets are made on them.

# %%
ALPHA = 0.05
NUM_QUIET = 40
alarm = pvalues.alarm_level(ALPHA)


def capital(key, calibration, cases):
    scores = jnp.concatenate([calibration, cases])
    u = jax.random.uniform(key, scores.shape)
    p = pvalues.sequential_p_values(scores, u)[NUM_CALIBRATION:]
    return pvalues.watch(pvalues.MixtureMartingale(), p)[1]


def stream(key):
    key_deal, key_order, key_quiet, key_changed = jax.random.split(key, 4)
    past, tests = deal(key_deal)
    later = jax.random.permutation(key_order, tests[NUM_QUIET:])  # anomalies come last
    changed = jnp.concatenate([tests[:NUM_QUIET], later])
    return {
        "quiet": capital(key_quiet, past, tests[: len(new)]),
        "changed": capital(key_changed, past, changed),
    }


streams = jaxcp.simulate(stream, jax.random.key(3), NUM_TRIALS // 10)
raised = {name: np.asarray(v >= alarm) for name, v in streams.items()}
false_alarms = raised["quiet"].any(axis=1)
noticed = raised["changed"][:, NUM_QUIET:].any(axis=1)
delays = raised["changed"][noticed, NUM_QUIET:].argmax(axis=1) + 1
print(f"alarms in a quiet stream: {false_alarms.mean():.4f}, at most {ALPHA}")
print(f"the change is noticed:    {noticed.mean():.3f} of the streams,", end=" ")
print(f"by the median after {np.median(delays):.0f} cases")

# %% [markdown]
# ## Picture
#
# The p-values of normal cases are uniform, those of anomalies are small. On the right,
# the capital of five streams: it rises soon after the change.

# %% tags=["thumbnail"]
with plt.rc_context(plotting.style()):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    both = jnp.concatenate([p_normal, p_strange])
    plotting.plot_p_values(both, jnp.arange(len(both)) < len(new), ax=left)
    right.plot(np.exp(streams["changed"][:5]).T, linewidth=1)
    right.axhline(1 / ALPHA, linestyle="--", color=plt.rcParams["text.color"])
    right.axvline(NUM_QUIET, linestyle=":", color=plt.rcParams["text.color"])
    above = {"xytext": (0, 4), "textcoords": "offset points"}
    right.annotate("alarm", (2, 1 / ALPHA), **above)
    right.annotate("anomalies begin", (NUM_QUIET - 1, 300), ha="right", **above)
    right.set(yscale="log", xlabel="case of the stream", ylabel="capital")
    plt.show()

# %% [markdown]
# ## The claim

# %%
NORMAL = 1 - NUM_STRANGE / len(is_strange)  # the share of normal cases
for name, bound in [("Benjamini-Hochberg", LEVEL * NORMAL), ("Storey", LEVEL)]:
    false = found[name]["share of false reports"]
    assert false.mean < bound + 4 * false.standard_error
assert found["each p <= 0.1"]["share of false reports"].mean > 2 * LEVEL
error = (DELTA * (1 - DELTA) / len(given["conditional"])) ** 0.5
assert is_misled["conditional"].any(axis=1).mean() < DELTA + 4 * error
error = (ALPHA * (1 - ALPHA) / len(false_alarms)) ** 0.5
assert false_alarms.mean() < ALPHA + 4 * error
print("false reports and false alarms stay below their bounds")
