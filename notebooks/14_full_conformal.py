# %% [markdown]
# # At least 1 - alpha, from all the rows
#
# Fifty rows, none to spare, and a promise of at least 1 - alpha: *full conformal
# prediction* keeps it. The jackknife+ promises 1 - 2 alpha. Full conformal prediction
# fits the model to all rows and to the new point, with each target that the new point
# might have. For ridge regression, kernels and neighbors this needs no refit at all,
# and costs no more than the jackknife+.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures, scale

import jaxcp
from jaxcp import datasets, learners, metrics, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_ROWS = 50
NUM_NEW = 100  # that test the sets
NUM_TRIALS = 20 if FAST else 400
NUM_REPLICATES = 2_000 if FAST else 20_000
NUM_FEATURES = jnp.array([10, 25, 40, 45, 50, 55, 60, 80])
KINDS = "studentized", "ordinary", "deleted"
METHODS = "jackknife", "jackknife+", *(f"full, {kind}" for kind in KINDS)
ALPHA = 0.1

plt.rcParams.update(plotting.style(**{"figure.dpi": 90}))

# %% [markdown]
# ## One set
#
# A value y is in the set of a new point if it does not look strange there. So give the
# new point the trial target y, fit to all n + 1 rows, and compare its score, the
# absolute residual, with those of the n others. The set holds the y whose score is at
# most the k-th smallest of theirs, with the conformal rank k. No row is treated apart
# from the others, so that the new score takes each rank with the same probability, and
# coverage is exactly k / (n + 1) if no scores tie.
#
# Here are nine rows. First in the slow way: 401 trial targets, 401 fits.

# %%
ridge, score = learners.Ridge(1.0), scores.Absolute()
key_rows, key_fit, key_few = jax.random.split(jax.random.key(0), 3)
x, y = datasets.linear(key_rows, 10, num_features=1)
x, y, x_new = x[:9], y[:9], x[9:]
trials = jnp.linspace(-5, 5, 401)


def residuals(trial):
    rows, targets = jnp.concatenate([x, x_new]), jnp.append(y, trial)
    params = ridge.fit(key_fit, rows, targets, jnp.ones(10))
    return jnp.abs(targets - ridge.predict(params, rows))


found = jax.jit(jax.vmap(residuals))(trials)
others, own = found[:, :9], found[:, 9]
rank = int(jaxcp.conformal_rank(9, 0.2))
threshold = jax.vmap(jaxcp.kth_smallest, (0, None))(others, rank)
inside = trials[own <= threshold]
print(f"rank {rank}: y from {inside.min():.2f} to {inside.max():.2f}")

# %% [markdown]
# And in the fast way. As y moves, the residual of each row moves along a line, and that
# of the new point along a steeper one. So each row's score meets the new one's twice,
# once on each side of the prediction f, and both places have a formula. The upper end
# of the set is the k-th of the meetings on the right, the lower end the k-th on the
# left: two selections, as in the jackknife+.

# %%
cp = jaxcp.full_conformal(key_few, ridge, score, x, y, residuals="ordinary")
interval = cp(x_new, alpha=0.2)[0]
print(f"full_conformal: {interval.lower:.2f} to {interval.upper:.2f}")

state = ridge.augmented(ridge.prepare(x, y, jnp.ones(9, bool)), x_new)
r, v = state.residuals, state.shares[0]
right = jnp.abs(r) / (1 + jnp.sign(r) * v)  # residuals of the new point, where it meets
left = -jnp.abs(r) / (1 - jnp.sign(r) * v)

figure, ax = plt.subplots(figsize=(6, 3.6))
ax.plot(trials, others, color="gray", linewidth=0.8)
ax.plot([], [], color="gray", linewidth=0.8, label="scores of the nine rows")
ax.plot(trials, threshold, "C0", linewidth=2.5, label="the 8th smallest of them")
ax.plot(trials, own, "C1", linewidth=2.5, label="score of the new point")
for meetings, label in ((left, None), (right, "where the two meet")):
    places = state.preds + state.spread * meetings
    ax.plot(places, jnp.abs(meetings), "C1o", markersize=4, label=label)
    chosen = jnp.argsort(jnp.abs(meetings))[rank - 1]  # an end of the set
    ax.plot(places[chosen], jnp.abs(meetings[chosen]), "C1o", markersize=10)
ax.axvspan(interval.lower, interval.upper, color="C2", alpha=0.2, label="the set")
ax.set(xlabel="trial target y of the new point", ylabel="absolute residual")
ax.set(xlim=(-5, 5), ylim=(0, 4))
ax.legend(loc="upper center", ncols=2)
plt.show()

# %% [markdown]
# ## Where it matters
#
# Fifty rows, and more and more features. With about as many features as rows, a fit
# goes through every point, and one row overturns it. A feature that is 0 in every row
# does nothing in a ridge regression, so that we can `vmap` over the number of features.
#
# The jackknife takes leave-one-out errors for the errors of the one fit to all rows.
# The jackknife+ predicts with each of the leave-one-out fits.


# %%
def sample(key, num_features):
    key_b, key_x, key_y = jax.random.split(key, 3)
    exists = jnp.arange(80) < num_features
    b = jax.random.normal(key_b, (80,)) * exists
    x = jax.random.normal(key_x, (NUM_ROWS + NUM_NEW, 80)) * exists
    mean = x @ b * (10**0.5 / jnp.linalg.norm(b))
    return x, mean + jax.random.normal(key_y, mean.shape)


def judge(num_features, key):
    key_data, key_plus, *keys = jax.random.split(key, 5)
    x, y = sample(key_data, num_features)
    rows = learners.Ridge(0.01, intercept=False), score, x[:NUM_ROWS], y[:NUM_ROWS]
    plus = jaxcp.jackknife_plus(key_plus, *rows)
    methods = {"jackknife": plus.naive, "jackknife+": plus}
    for key, kind in zip(keys, KINDS, strict=True):
        methods[f"full, {kind}"] = jaxcp.full_conformal(key, *rows, residuals=kind)
    table = {}
    for name, method in methods.items():
        sets = method(x[NUM_ROWS:], alpha=ALPHA)
        table[name] = {
            "coverage": metrics.coverage(sets, y[NUM_ROWS:]),
            "width": metrics.median_size(sets),
            "infinite": metrics.infinite_rate(sets),
        }
    return table


found = jaxcp.simulate(
    lambda key: jax.vmap(judge, (0, None))(NUM_FEATURES, key),
    jax.random.key(1),
    NUM_TRIALS,
    batch_size=4,
)
coverage = {name: v["coverage"].mean(0) for name, v in found.items()}
width = {name: np.median(v["width"], 0) for name, v in found.items()}
infinite = {name: v["infinite"].mean(0) for name, v in found.items()}
for title, table in ("coverage", coverage), ("share of infinite", infinite):
    print(f"{title:18}", *(f"{p:6d}" for p in NUM_FEATURES))
    for name in METHODS:
        print(f"{name:18}", *(f"{value:6.3f}" for value in table[name]))

# %% [markdown]
# With 50 features the jackknife covers far too little. The jackknife+ covers, and full
# conformal prediction covers k / (n + 1).
#
# Which residuals? Where a fit nearly goes through its rows, *ordinary* residuals of all
# rows are tiny, and say nothing: most sets are infinite. Those of the leave-one-out
# fits, *deleted* ones, do not help much. *Studentized* residuals are divided by the
# standard deviation that the fit leaves them. No other row can then move with y as fast
# as the new point does, so that the set is always an interval, and finite here. They
# are the default.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.3))
looks = dict(zip(METHODS, ("C0o-", "C1s-", "C2^-", "C3v-", "C4d-"), strict=True))
for name in METHODS[:3]:
    axes[0].plot(NUM_FEATURES, coverage[name], looks[name], label=name)
    axes[1].plot(NUM_FEATURES, width[name], looks[name])
for name in METHODS[2:]:
    axes[2].plot(NUM_FEATURES, infinite[name], looks[name], label=name)
axes[0].axhline(1 - ALPHA, color="gray", linestyle="--", label=f"1 − α = {1 - ALPHA}")
axes[0].set(ylabel="coverage", ylim=(0.6, 1.01), title=f"{NUM_ROWS} rows")
axes[1].set(ylabel="median width", yscale="log", title=f"{NUM_TRIALS} replicates")
axes[1].minorticks_off()
axes[1].set_yticks([4, 8, 16, 32], ["4", "8", "16", "32"])
axes[2].set(ylabel="share of infinite sets", ylim=(-0.02, 1), title="which residuals?")
for ax in axes:
    ax.set(xlabel="features")
axes[0].legend(loc="lower right")
axes[2].legend(loc="upper right")
plt.show()

# %% [markdown]
# ## Exactly
#
# The promise is k / (n + 1), at every alpha. Twenty rows, fifteen features, noise with
# heavy tails: many replicates, each with data and a new point of its own, in one
# program. A target is in the set at alpha where its p-value is above alpha, so one
# p-value for each replicate tells coverage at all alphas.


# %%
def replicate(key):
    key_x, key_y, key_fit = jax.random.split(key, 3)
    x = jax.random.normal(key_x, (21, 15))
    y = x.sum(axis=1) + jax.random.t(key_y, 3, (21,))
    least_squares = learners.Ridge(1e-4)
    cp = jaxcp.full_conformal(key_fit, least_squares, score, x[:20], y[:20])
    sets = cp(x[20:], alpha=ALPHA)
    return cp.p_values(x[20:], y[20:])[0], metrics.covered(sets, y[20:])[0]


p_values, covered = jaxcp.simulate(replicate, jax.random.key(2), NUM_REPLICATES)
alphas = jnp.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
shares = (p_values[:, None] > alphas).mean(axis=0)
exact = jnp.array([jaxcp.conformal_rank(20, float(a)) / 21 for a in alphas])
print("alpha      ", *(f"{a:6.2f}" for a in alphas))
print("k / (n + 1)", *(f"{value:6.3f}" for value in exact))
print("coverage   ", *(f"{value:6.3f}" for value in shares))

counts = np.bincount(np.rint(21 * np.asarray(p_values)).astype(int), minlength=22)[1:]
figure, ax = plt.subplots(figsize=(5.5, 2.6))
ax.bar(range(1, 22), counts / NUM_REPLICATES, color="C0", alpha=0.5)
ax.axhline(1 / 21, color="gray", linestyle="--", label="1 / 21")
ax.set(xlabel="21 times the p-value", ylabel="share", ylim=(0, 0.07))
ax.set_title(f"{NUM_REPLICATES:,} replicates of 20 rows")
ax.legend(loc="upper right")
plt.show()

# %% [markdown]
# ## Patients
#
# A hundred patients, ten measurements with their squares and products, and a path of
# penalties by `vmap`. The other 342 patients test the sets. Learners, predictors and
# sets are pytrees, so that the path is one program.

# %%
x, y = load_diabetes(return_X_y=True)
x = scale(PolynomialFeatures(2, include_bias=False).fit_transform(x))
x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y / 100, jnp.float32)
key_order, key_full, key_jack = jax.random.split(jax.random.key(3), 3)
old, new = jnp.split(jax.random.permutation(key_order, len(y)), [100])
penalties = jnp.logspace(-2, 4, 25)


def along(method, key):
    def sets_of(penalty):
        cp = method(key, learners.Ridge(penalty), score, x[old], y[old])
        return cp(x[new], alpha=ALPHA)

    return jax.jit(jax.vmap(sets_of))(penalties)


paths = {
    "full conformal": along(jaxcp.full_conformal, key_full),
    "jackknife+": along(jaxcp.jackknife_plus, key_jack),
}
figure, ax = plt.subplots(figsize=(5.5, 3))
for name, sets in paths.items():
    found = jax.vmap(metrics.coverage, (0, None))(sets, y[new])
    sizes = jax.vmap(metrics.mean_size)(sets)
    best = sizes.argmin()
    print(f"{name:14} narrowest {sizes[best]:.2f}, it covers {found[best]:.3f}")
    ax.plot(penalties, sizes, ".-", label=name)
ax.set(xlabel="penalty", ylabel="mean width", xscale="log")
ax.set_title(f"100 patients, 65 features, alpha = {ALPHA}")
ax.legend()
plt.show()

# %% [markdown]
# Where one row overturns the fit, on the left, full conformal prediction is narrower,
# and elsewhere the two agree. What differs is what we know: 1 - 2 alpha is 0.8, and
# full conformal prediction is sure of 0.9, at any penalty that was chosen without the
# targets.
#
# ## Labels
#
# Labels are few, so that every label can be tried: one refit for each label and new
# point, all in one program. The learner is a network of one layer, trained by a hundred
# steps on all rows. Coverage is a mean over many training sets; that of a single one
# with so few rows is off by a few hundredths.

# %%
softmax = learners.GradientLearner(
    init=lambda key: (jnp.zeros((2, 3)), jnp.zeros(3)),
    predict=lambda params, x: jax.nn.softmax(x @ params[0] + params[1]),
    loss=lambda p, label: -jnp.log(p[label]),
    optimizer=optax.adam(0.1),
    num_steps=100,
)


def classify(key):
    key_data, key_fit = jax.random.split(key)
    points, names = datasets.classes(key_data, 49, separation=1.5)
    cp = jaxcp.full_conformal(
        key_fit, softmax, scores.LAC(), points[:39], names[:39], check=False
    )
    sets = cp(points[39:], alpha=ALPHA)
    return metrics.coverage(sets, names[39:]), metrics.mean_size(sets)


found, sizes = jaxcp.simulate(classify, jax.random.key(4), NUM_TRIALS)
promised = jaxcp.conformal_rank(39, ALPHA) / 40
print(f"39 rows: {found.mean():.3f} covered, promised {promised:.3f}", end=", ")
print(f"{sizes.mean():.2f} labels a set")

# %% [markdown]
# ## Any learner
#
# Numbers cannot all be tried, and a plain grid of trial targets promises nothing: the
# true target lies between two of them. *Discretized* conformal prediction does. The
# fits see targets that are rounded to a grid, which is fixed beforehand, and scores see
# the targets themselves. It takes any learner that treats rows alike, and scores of any
# kind, at the price of one refit for each grid value: here 6000 small networks.

# %%
network = learners.GradientLearner(
    init=lambda key: jax.random.normal(key, (3, 8)),
    predict=lambda params, x: jnp.tanh(x * params[0] + params[1]) @ params[2],
    loss=optax.squared_error,
    optimizer=optax.adam(0.05),
    num_steps=100,
)
key_data, key_fit = jax.random.split(jax.random.key(6))
inputs, targets = datasets.heteroscedastic(key_data, 259)
grid = jnp.linspace(-3, 4, 30)
cp = jaxcp.discretized_conformal(
    key_fit, network, score, inputs[:59], targets[:59], grid
)
pieces = cp(inputs[59:], alpha=ALPHA)
print(f"{metrics.coverage(pieces, targets[59:]):.3f} covered", end=", ")
print(f"mean width {metrics.mean_size(pieces):.2f}")

# %% [markdown]
# ## A set with a gap
#
# With ordinary and deleted residuals the exact set need not be an interval. Here a
# cubic has ten rows, and hangs on a single one of them on the left. There a new point
# has so much leverage that the residual of that row may move faster than its own. Then
# `cp(x, alpha)` is an interval that holds the set, and `cp(x, alpha, union=True)` the
# set itself.

# %%
few = jax.random.normal(jax.random.key(5), (10, 2))
powers = jnp.arange(1, 4)
cubic = few[:, :1] ** powers
bent = jnp.sin(2 * few[:, 0]) + 0.3 * few[:, 1]
places = jnp.linspace(-3, 3, 61)
cp = jaxcp.full_conformal(
    jax.random.key(7), learners.Ridge(0.1), score, cubic, bent, residuals="deleted"
)
hull = cp(places[:, None] ** powers, alpha=0.2)
union = cp(places[:, None] ** powers, alpha=0.2, union=True)
num_pieces = union.num_pieces()
print(f"most pieces {num_pieces.max()}, sets with a gap {(num_pieces > 1).sum()}")

figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for ax, sets, title in zip(
    axes, (hull, union), ("interval", "union=True"), strict=True
):
    plotting.plot_intervals(places, sets, kind="bars", ax=ax, legend=False)
    ax.plot(few[:, 0], bent, "C1o", markersize=4)
    ax.set(title=title, xlabel="x", ylabel="y", ylim=(-5, 5))
plt.show()

# %% [markdown]
# ## The claim
#
# Full conformal prediction covers exactly k / (n + 1), also where the jackknife fails,
# with finite intervals; the closed form is the set that all the refits find.

# %%
middle = int(np.argmax(NUM_FEATURES == NUM_ROWS))
rank = int(jaxcp.conformal_rank(NUM_ROWS, ALPHA))
assert coverage["jackknife"][middle] < 0.8
assert np.all(np.abs(coverage["full, studentized"] - rank / (NUM_ROWS + 1)) < 0.03)
assert infinite["full, studentized"].max() == 0 < infinite["full, ordinary"].max()
errors = np.sqrt(exact * (1 - exact) / NUM_REPLICATES)
assert np.all(np.abs(shares - exact) < 4 * errors)
assert np.array_equal(covered, p_values > ALPHA)
assert abs(interval.lower - inside.min()) < 0.025 + 1e-6  # the step of the trials
assert abs(interval.upper - inside.max()) < 0.025 + 1e-6
assert num_pieces.max() > 1
name = "full, studentized"
print(f"{NUM_ROWS} features: jackknife {coverage['jackknife'][middle]:.2f}", end=", ")
print(f"full conformal {coverage[name][middle]:.2f}; 20 rows: {shares[1]:.3f}")
