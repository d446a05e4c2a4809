# %% [markdown]
# # Intervals for a network
#
# A flax network predicts how a disease progresses within a year, from ten measurements
# of a patient. *Split conformal prediction* turns any such model into intervals that
# hold the truth with probability 1 - alpha. It needs some rows that the model was not
# trained on. It sorts the errors of the model on these rows, and takes one of them as
# half the width of every interval.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx
from sklearn.datasets import load_diabetes

import jaxcp
from jaxcp import learners, metrics, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_STEPS = 100
NUM_SPLITS = 200 if FAST else 20_000
ALPHA = 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data
#
# 442 patients. A third of them trains the model, a third calibrates it, and the last
# third tests the intervals. The target is a measure of the disease one year later, from
# 25 to 346. We divide it by a hundred.

# %%
x, y = (jnp.asarray(v, jnp.float32) for v in load_diabetes(return_X_y=True))
x, y = (x - x.mean(0)) / x.std(0), y / 100
order = jax.random.permutation(jax.random.key(0), len(y))
train, cal, test = jnp.split(order, [143, 292])
print(len(train), "rows train,", len(cal), "calibrate,", len(test), "test")

# %% [markdown]
# ## A prediction
#
# The library needs a pure function `predict(params, x)`. For a flax module, `nnx.split`
# separates the parameters from the structure. A `GradientLearner` trains the parameters
# with any optax optimizer, in one scan.


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
error = jnp.sqrt(jnp.mean((y[test] - predict(params, x[test])) ** 2))
print(f"standard deviation of the targets: {jnp.std(y[test]):.3f}")
print(f"root mean squared error of the model: {error:.3f}")

# %% [markdown]
# ## Sets
#
# Two lines. The score of a row is its absolute error. Calibration keeps the scores of
# the held-out rows. From them comes a threshold for every level alpha.

# %%
cp = jaxcp.split_conformal(predict, params, scores.Absolute(), x[cal], y[cal])
sets = cp(x[test], alpha=ALPHA)

print(f"threshold: {cp.calibration.quantile(ALPHA):.3f}")
print(f"first interval: [{sets.lower[0]:.3f}, {sets.upper[0]:.3f}]")
print(f"first target:   {y[test][0]:.3f}")

# %% [markdown]
# ## Coverage
#
# On these test rows:

# %%
print(f"coverage: {metrics.coverage(sets, y[test]):.3f}")
print(f"width:    {metrics.mean_size(sets):.3f}")

# %% [markdown]
# One split says little. With 149 calibration rows and 150 test rows the coverage is
# random, and its law is known. Over all ways to deal the held-out rows into calibration
# and test, coverage is k / (n + 1) on average, with k the rank of the threshold. We
# deal them twenty thousand times, in one program.

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
#
# On the left are the test patients of the first split. Every interval has the same
# width. On the right are the coverages of all splits, with the law that holds for every
# model: the number of covered test rows is beta-binomial.

# %% tags=["thumbnail"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
predicted = predict(params, x[test])
ranked = jnp.argsort(predicted)
plotting.plot_intervals(predicted[ranked], sets[ranked], y[test][ranked], ax=left)
left.set(xlabel="predicted progression / 100", ylabel="progression / 100")
left.set_title(f"{len(test)} test patients, alpha = {ALPHA}")
plotting.plot_coverage(coverages, n, ALPHA, num_test=len(test), ax=right)
right.set(xlabel=f"coverage of {len(test)} test patients")
right.set_title(f"{NUM_SPLITS:,} splits, n = {n}")
plt.show()

# %% [markdown]
# ## The claim

# %%
assert abs(coverages.mean() - exact) < 4 * error
print("coverage is k / (n + 1), whatever the model")
