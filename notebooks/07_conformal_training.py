# %% [markdown]
# # Training through calibration
#
# A classifier is trained for one thing, and its sets are calibrated later. *Conformal
# training* trains it for the sets: each batch calibrates with one half, predicts soft
# sets for the other, and takes a gradient step on their size, through the threshold.
# Afterwards all is calibrated as usual, and covers as usual. What changed is the size.

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
from jaxcp import metrics, scores, training

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_SEEDS = 20 if FAST else 60
NUM_STEPS = {"cross-entropy": 80, "set size": 150}
BATCH_SIZE = 400
ALPHA = 0.05

# %% [markdown]
# ## The slope of a threshold
#
# The threshold is one of the scores. Its own slope is that of this one score: exact,
# and so noisy that more data do not help. What we want is the expected slope of scores
# *at* the threshold, and the mean over its nearest neighbors estimates it. The value
# of the threshold stays what it is, to the last bit.


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
# Digits of eight by eight pixels, as a bad camera sees them, and a classifier without
# hidden layers. (Where nearly every set has one label already, nothing is to be won.)

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
# The usual one, and the size of sets. `LogLAC` scores a label by minus its log
# probability; `target_size=1` lets sets of one label be, and a missed label costs as
# much as one that is too many.


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
# The same optimizer for both, and many seeds side by side: training is a scan, seeds
# are a `vmap`. Each loss has the number of steps, of 40, 80, 150 and 300, that suits it
# best: cross-entropy overfits first, and beating it after 300 steps would be easy.


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
# Training left no guarantee. Calibration on rows that it has not seen gives it back:
# `1 - alpha`, for either model.


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

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
before, after = (results[name]["size"] for name in ("cross-entropy", "set size"))
ends = [0.97 * min(after.min(), before.min()), 1.03 * max(after.max(), before.max())]
left.plot(ends, ends, color="black", linewidth=0.8)
left.plot(before, after, "o", color="tab:blue")
left.set(xlabel="mean size after cross-entropy", ylabel="after training for size")
for i, (name, of) in enumerate(results.items()):
    right.plot(jnp.full(NUM_SEEDS, i), of["coverage"], "o", alpha=0.5, label=name)
right.axhline(1 - ALPHA, color="black", linewidth=0.8)
right.set(xticks=[0, 1], xticklabels=results, xlim=(-0.5, 1.5), ylabel="coverage")
plt.show()

# %% [markdown]
# ## A score can be trained, too
#
# Hyperparameters of a score are leaves of a pytree. `train_score` learns them by the
# same loss, `select_score` takes the best of a grid; on rows that do not calibrate.
# Here the penalty of RAPS, for probabilities with a noisy tail. Without one it is APS.

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
