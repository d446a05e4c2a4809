# %% [markdown]
# # Intervals for a network
#
# A flax network predicts how a disease progresses from ten measurements of a patient.
# *Split conformal prediction* turns any such model into intervals that hold the truth
# with probability 1 - alpha. It asks for nothing but some rows that the model was not
# trained on, and takes the right order statistic of its errors there.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_diabetes

import jaxcp
from jaxcp import learners, metrics, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_STEPS = 100
NUM_SPLITS = 200 if FAST else 20_000
ALPHA = 0.1

# %% [markdown]
# ## Data
#
# 442 patients. A third trains the model, a third calibrates it, and on the last third
# we look at what comes out. Targets are in units of a hundred.

# %%
x, y = (jnp.asarray(v, jnp.float32) for v in load_diabetes(return_X_y=True))
x, y = (x - x.mean(0)) / x.std(0), y / 100
order = jax.random.permutation(jax.random.key(0), len(y))
train, cal, test = jnp.split(order, [143, 292])
print(len(train), "rows train,", len(cal), "calibrate,", len(test), "test")

# %% [markdown]
# ## A prediction
#
# The library wants a pure function `predict(params, x)`. `nnx.split` makes one from a
# flax module; a `GradientLearner` trains it with any optax optimizer, in one scan.


# %%
def network(key):
    rngs = nnx.Rngs(key)
    layers = nnx.Linear(10, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 1, rngs=rngs)
    return nnx.Sequential(*layers)


structure, _ = nnx.split(nnx.eval_shape(network, jax.random.key(1)))


def predict(params, x):
    return nnx.merge(structure, params)(x)[:, 0]


learner = learners.GradientLearner(
    init=lambda key: nnx.split(network(key))[1],
    predict=predict,
    loss=optax.squared_error,
    optimizer=optax.adam(0.01),
    num_steps=NUM_STEPS,
)
fit = jax.jit(learner.fit)
params = fit(jax.random.key(2), x[train], y[train], jnp.ones(len(train)))
print("error of the mean: ", jnp.std(y[test]))
print(
    "error of the model:", jnp.sqrt(jnp.mean((y[test] - predict(params, x[test])) ** 2))
)

# %% [markdown]
# ## Sets
#
# Two lines. The score is the absolute error; the calibration keeps the scores of the
# held-out rows, and serves every level alpha from there.

# %%
cp = jaxcp.split_conformal(predict, params, scores.Absolute(), x[cal], y[cal])
sets = cp(x[test], alpha=ALPHA)

print("threshold:", cp.calibration.quantile(ALPHA))
print(
    "the first interval:", (sets.lower[0], sets.upper[0]), "and the truth", y[test][0]
)

# %% [markdown]
# ## Coverage
#
# On these test rows:

# %%
print("coverage:", metrics.coverage(sets, y[test]))
print("width:   ", metrics.mean_size(sets))

# %% [markdown]
# One split says little: with 149 calibration rows and as many test rows the coverage is
# random. Its law is known. Over all ways to deal the held-out rows into calibration and
# test, coverage is k / (n + 1) on average, with k the rank of the threshold. We deal
# them twenty thousand times, in one program.

# %%
held_out = jnp.concatenate([cal, test])
preds, targets = predict(params, x[held_out]), y[held_out]
n = len(cal)


def trial(key):
    order = jax.random.permutation(key, len(held_out))
    old, new = order[:n], order[n:]
    cp = jaxcp.calibrate(scores.Absolute(), preds[old], targets[old])
    return metrics.coverage(cp(preds[new], alpha=ALPHA), targets[new])


coverages = jaxcp.simulate(trial, jax.random.key(3), NUM_SPLITS)
exact = jaxcp.conformal_rank(n, ALPHA) / (n + 1)
error = coverages.std() / NUM_SPLITS**0.5
print(f"mean coverage {coverages.mean():.4f} +- {error:.4f}, in theory {exact:.4f}")

# %% [markdown]
# ## Picture

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
ranked = jnp.argsort(predict(params, x[test]))
plotting.plot_intervals(
    jnp.arange(len(test)),
    jax.tree.map(lambda v: v[ranked], sets),
    y[test][ranked],
    ax=left,
)
left.set(xlabel="patient, in order of the prediction", ylabel="progression")
values, counts = np.unique(coverages, return_counts=True)
right.bar(values, counts, 0.005, color="tab:blue", alpha=0.5)
right.axvline(exact, color="tab:red", label="k / (n + 1)")
right.set(xlabel="coverage of a split", yticks=[])
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The claim

# %%
assert abs(coverages.mean() - exact) < 4 * error
print("coverage is k / (n + 1), whatever the model")
