# %% [markdown]
# # Training through calibration
#
# Usually a classifier is trained for its likelihood, and its sets are calibrated later.
# *Conformal training* trains it for small sets. Each batch calibrates with one half,
# predicts soft sets for the other half, and takes a gradient step on their size,
# through the threshold. Afterwards the classifier is calibrated as usual, and its sets
# cover as usual. But they are smaller.

# %%
import os
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxcp
from jaxcp import metrics, plotting, scores, training

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_SEEDS = 20 if FAST else 60
NUM_STEPS = {"cross-entropy": 80, "set size": 150}
BATCH_SIZE = 400
ALPHA = 0.05

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## The slope of a threshold
#
# The threshold is one of the scores, and its slope is the slope of this score. This
# slope is exact, but very noisy, and more data do not help. We want the expected slope
# of scores *at* the threshold. The mean slope of the scores nearest to the threshold
# estimates it. The value of the threshold does not change.


# %%
def slope(key, nearest):
    x, noise = jax.random.normal(key, (2, 4000))
    y = 0.5 * x + 0.5 * noise

    def threshold(theta):
        return jaxcp.conformal_quantile(abs(y - theta * x), 0.1, nearest=nearest)

    return jax.grad(threshold)(0.0)


keys = jax.random.split(jax.random.key(0), 200)
for m in (1, 63):
    slopes = jax.jit(jax.vmap(slope, (0, None)), static_argnums=1)(keys, m)
    print(f"nearest={m}: {slopes.mean():.2f}, standard deviation {slopes.std():.2f}")

# %% [markdown]
# ## Data and model
#
# Digits of 8 x 8 pixels with much noise, and a classifier without hidden layers. (Where
# nearly every set has one label already, there is nothing to gain.)

# %%
x, y = load_digits(return_X_y=True)
key_noise, key_order = jax.random.split(jax.random.key(1))
x, y = x / 16 + 0.3 * jax.random.normal(key_noise, x.shape), jnp.asarray(y)
train, held_out = jnp.split(jax.random.permutation(key_order, len(x)), [600])
structure, _ = nnx.split(nnx.Linear(64, 10, rngs=nnx.Rngs(0)))


def logits(params, x):
    return nnx.merge(structure, params)(x)


# %% [markdown]
# ## Two losses
#
# The usual one, cross-entropy, and the size of sets. `LogLAC` is minus the log
# probability of a label. With `target_size=1`, sets of one label cost nothing. A missed
# label costs as much as one label too many.


# %%
def cross_entropy(params, x, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y)
    return losses.mean()


def set_size(params, x, y):
    z, half = logits(params, x), BATCH_SIZE // 2
    size = training.conformal_training_loss(
        scores.LogLAC(),
        z[:half],
        y[:half],
        z[half:],
        ALPHA,
        temperature=1.0,
        target_size=1,
        y=y[half:],
        classification_weights=1.0,
    )
    return jnp.log(size)


# %% [markdown]
# ## Training
#
# The same optimizer for both, and many seeds at once: training is a scan, seeds are a
# `vmap`. Each loss has the number of steps that suits it best, out of 40, 80, 150 and
# 300. Cross-entropy overfits first. After 300 steps it would be easy to beat.


# %%
def trained(loss, num_steps, key):
    key_init, key_steps = jax.random.split(key)
    _, params = nnx.split(nnx.Linear(64, 10, rngs=nnx.Rngs(key_init)))
    optimizer = optax.adam(0.02)

    def step(carry, key):
        params, state = carry
        rows = jax.random.choice(key, train, (BATCH_SIZE,))
        updates, state = optimizer.update(
            jax.grad(loss)(params, x[rows], y[rows]), state
        )
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(key_steps, num_steps)
    return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]


# %% [markdown]
# ## Sets and coverage
#
# Training gives no guarantee. Calibration on rows that training has not seen does:
# coverage is at least 1 - alpha, for either model.


# %%
def judged(loss, num_steps, key):
    key_train, key_split = jax.random.split(key)
    params = trained(loss, num_steps, key_train)
    old, new = jnp.split(jax.random.permutation(key_split, held_out), [599])
    cp = jaxcp.calibrate(scores.LogLAC(), logits(params, x[old]), y[old])
    sets = cp(logits(params, x[new]), alpha=ALPHA)
    return {
        "size": metrics.mean_size(sets),
        "coverage": metrics.coverage(sets, y[new]),
    }


seeds = jax.random.split(jax.random.key(2), NUM_SEEDS)
results = {}
for name, loss in {"cross-entropy": cross_entropy, "set size": set_size}.items():
    run = partial(judged, loss, NUM_STEPS[name])
    results[name] = jax.jit(jax.vmap(run))(seeds)
    size, coverage = results[name]["size"], results[name]["coverage"]
    print(f"{name:14} size {size.mean():.3f}, coverage {coverage.mean():.3f}")

# %% [markdown]
# ## Picture
#
# On the left each point is a seed, with the mean number of labels in its sets. Below
# the diagonal, sets are smaller after training for their size. The other panels are
# means over seeds with two standard errors: the coverage is the same, the size is not.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
before, after = (results[name]["size"] for name in ("cross-entropy", "set size"))
ends = [0.97 * min(after.min(), before.min()), 1.03 * max(after.max(), before.max())]
axes[0].plot(ends, ends, "--", color="gray", label="equal")
axes[0].plot(before, after, "o", markersize=4, label="a seed")
axes[0].set(xlabel="labels, cross-entropy", ylabel="labels, set size")
axes[0].set(xlim=ends, ylim=ends, aspect="equal")
axes[0].legend(loc="upper left")
means = {k: [of[k].mean() for of in results.values()] for k in ("coverage", "size")}
twice = {
    k: [2 * of[k].std() / NUM_SEEDS**0.5 for of in results.values()] for k in means
}
plotting.plot_comparison(
    list(results),
    means["coverage"],
    means["size"],
    ALPHA,
    coverage_errors=twice["coverage"],
    size_errors=twice["size"],
    size_name="mean number of labels",
    ax=axes[1:],
)
axes[0].set_title(f"{NUM_SEEDS} seeds")
axes[1].set_title(f"n = 599, alpha = {ALPHA}")
axes[1].locator_params(axis="x", nbins=4)
axes[2].set(yticks=[], xlim=(1.7, 2))
plt.show()

# %% [markdown]
# ## A score can be trained, too
#
# Hyperparameters of a score are leaves of a pytree. `train_score` learns them with the
# same loss. `select_score` takes the best of a grid. Both use rows that are not used
# for calibration. Here we learn the penalty of RAPS, for probabilities with a noisy
# tail. RAPS without a penalty is APS.

# %%
key_noise, key_y, key_train, key_grid = jax.random.split(jax.random.key(3), 4)
labels = jax.random.randint(key_y, (1500,), 0, 20)
noise = jax.random.normal(key_noise, (1500, 20))
p = jax.nn.softmax(noise + 2 * (jnp.arange(20) == labels[:, None]))
tune, old, new = jnp.split(jnp.arange(1500), 3)

none = scores.RAPS(0.0, 2.0)
learned = training.train_score(
    key_train,
    none,
    p[tune],
    labels[tune],
    0.1,
    optimizer=optax.adam(0.02),
    num_steps=100,
    temperature=0.05,
    project=lambda s: scores.RAPS(jnp.maximum(s.penalty, 0), 2.0),  # k_reg stays
)
grid = scores.RAPS(jnp.array([0.0, 0.01, 0.1, 1.0]), 2.0)
chosen = training.select_score(key_grid, grid, p[tune], labels[tune], 0.1)
sizes = {}
for name, score in {"none": none, "learned": learned, "chosen": chosen}.items():
    sets = jaxcp.calibrate(score, p[old], labels[old])(p[new], alpha=0.1)
    sizes[name] = metrics.mean_size(sets)
    print(f"penalty {name:8} {score.penalty:.3f}: size {sizes[name]:.2f}, ", end="")
    print(f"coverage {metrics.coverage(sets, labels[new]):.3f}")

# %% [markdown]
# ## The claim

# %%
change = after / before - 1
error = change.std() / NUM_SEEDS**0.5
print(f"size changed by {100 * change.mean():.1f} % +- {100 * error:.1f}")
for of in results.values():
    assert abs(of["coverage"].mean() - (1 - ALPHA)) < 0.01
assert change.mean() < -2 * error
assert sizes["learned"] < sizes["none"] and sizes["chosen"] < sizes["none"]
