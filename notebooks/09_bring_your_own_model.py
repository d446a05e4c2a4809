# %% [markdown]
# # Bring your own model
#
# A score sees predictions, never models. So any model will do: calibrate with its
# predictions for some rows that it was not trained on. Here are a scikit-learn forest,
# a classifier, a PyTorch network, a flax network, an object with a conditional density,
# and finally a score of our own.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import jaxcp
from jaxcp import datasets, learners, metrics, plotting, scores, sets

try:
    import torch
except ImportError:  # this notebook runs without it, and skips a part
    torch = None

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_TREES, NUM_STEPS = (20, 100) if FAST else (200, 500)
NUM_ROWS = 1999  # each, to train, to calibrate and to test
ALPHA = 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data
#
# NumPy arrays, as a loader may give them. The noise grows with the input x.

# %%
x, y = map(np.array, datasets.heteroscedastic(jax.random.key(0), 3 * NUM_ROWS))
(x_train, x_old, x_new), (y_train, y_old, y_new) = np.split(x, 3), np.split(y, 3)
print(x_old.shape, y_old.shape, type(x_old).__name__)

# %% [markdown]
# ## A forest from scikit-learn
#
# The mean of its trees is a prediction. Their standard deviation says where the forest
# is less sure. `Normalized` takes a pair of mean and scale. The scale need not be
# right: calibration finds the factor.

# %%
seeds = jax.random.randint(jax.random.key(1), (2,), 0, 2**31 - 1).tolist()
forest = RandomForestRegressor(NUM_TREES, min_samples_leaf=10, random_state=seeds[0])
forest.fit(x_train, y_train)


def mean_and_scale(x):
    trees = np.stack([tree.predict(x) for tree in forest.estimators_])
    return trees.mean(axis=0), trees.std(axis=0)


cp = jaxcp.calibrate(scores.Normalized(), mean_and_scale(x_old), y_old)
intervals = cp(mean_and_scale(x_new), alpha=ALPHA)
coverages = {"forest": metrics.coverage(intervals, y_new)}
print(f"factor {cp.quantile(ALPHA):.2f}, coverage {coverages['forest']:.3f}")

# %% [markdown]
# ## A classifier
#
# Scores of labels need probabilities, such as those of `predict_proba`. Classes are 0,
# 1 and 2.

# %%
data = datasets.classes(jax.random.key(2), 3 * NUM_ROWS, separation=1.0)
points, labels = (np.split(np.array(v), 3) for v in data)
classifier = RandomForestClassifier(
    NUM_TREES, min_samples_leaf=10, random_state=seeds[1]
).fit(points[0], labels[0])

cp = jaxcp.calibrate(scores.LAC(), classifier.predict_proba(points[1]), labels[1])
label_sets = cp(classifier.predict_proba(points[2]), alpha=ALPHA)
coverages["classifier"] = metrics.coverage(label_sets, labels[2])
print(f"coverage {coverages['classifier']:.3f}")
print(f"mean number of labels {metrics.mean_size(label_sets):.2f}")

# %% [markdown]
# ## A network from PyTorch
#
# Tensors on the CPU go in as they are, also those that carry a gradient. Move others
# with `.cpu()`.

# %% tags=["not-compared"]
if torch is None:
    print("torch is not installed: this part is skipped")
else:
    inputs = [torch.from_numpy(v) for v in (x_train, x_old, x_new)]
    outputs = [torch.from_numpy(v) for v in (y_train, y_old, y_new)]
    waves = [torch.cat([v, torch.sin(2 * v), torch.cos(2 * v)], 1) for v in inputs]
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50)

    def loss():
        optimizer.zero_grad()
        value = torch.mean((model(waves[0])[:, 0] - outputs[0]) ** 2)
        value.backward()
        return value

    optimizer.step(loss)
    cp = jaxcp.calibrate(scores.Absolute(), model(waves[1])[:, 0], outputs[1])
    found = cp(model(waves[2])[:, 0], alpha=ALPHA)
    coverages["torch"] = metrics.coverage(found, outputs[2])
    print(f"coverage {coverages['torch']:.3f}")

# %% [markdown]
# ## A network from flax
#
# `nnx.split` separates a module into its structure and its parameters. With them we
# write a pure function `predict(params, x)`, which `split_conformal` takes together
# with inputs. Train the network as you like, here with a `GradientLearner`.


# %%
def network(key):
    rngs = nnx.Rngs(key)
    layers = nnx.Linear(1, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 1, rngs=rngs)
    return nnx.Sequential(*layers)


structure, _ = nnx.split(network(jax.random.key(3)))


def predict(params, x):
    return nnx.merge(structure, params)(x)[:, 0]


learner = learners.GradientLearner(
    init=lambda key: nnx.split(network(key))[1],
    predict=predict,
    loss=optax.squared_error,
    optimizer=optax.adam(0.02),
    num_steps=NUM_STEPS,
)
params = learner.fit(jax.random.key(4), x_train, y_train, jnp.ones(NUM_ROWS))
cp = jaxcp.split_conformal(predict, params, scores.Absolute(), x_old, y_old)
found = cp(x_new, alpha=ALPHA)
coverages["flax"] = metrics.coverage(found, y_new)
print(f"coverage {coverages['flax']:.3f}")

# %% [markdown]
# ## A conditional density
#
# Libraries of flows, such as flowjax, have objects with `log_prob(y, condition)` and
# `sample(key, shape, condition)`. Two lambdas put the arguments in our order, the
# prediction first. Here the prediction is the input itself. With both functions we get
# sets that adapt to the input: `CDF` ranks the density of a target among those of
# draws. The class below stands for a trained flow. Its law is wrong, since our noise is
# not Laplace, and the sets cover all the same.


# %%
class Laplace:
    def center_and_scale(self, condition):
        return jnp.sin(2 * condition[0]), 0.1 + 0.5 * condition[0]

    def log_prob(self, y, condition):
        center, scale = self.center_and_scale(condition)
        return -jnp.abs(y - center) / scale - jnp.log(2 * scale)

    def sample(self, key, shape, condition):
        center, scale = self.center_and_scale(condition)
        return center + scale * jax.random.laplace(key, shape)


flow = Laplace()
sample = lambda key, x, n: flow.sample(key, (n,), condition=x)  # noqa: E731
density = scores.Density(lambda x, y: flow.log_prob(y, condition=x), sample)


def with_draws(key, x):
    return x, jaxcp.draw(key, sample, x, 100)


old, new = with_draws(jax.random.key(5), x_old), with_draws(jax.random.key(6), x_new)
score = scores.CDF(density, extended=True)  # extended: ranks do not tie
cp = jaxcp.calibrate(score, old, y_old)
coverages["density"] = metrics.coverage(cp(new, alpha=ALPHA), y_new)
print(f"coverage {coverages['density']:.3f}")

# %% [markdown]
# ## A score of our own
#
# Suppose that a target above its prediction does harm and one below does not. Then we
# want an upper bound. `Custom` takes the score of one example, large where the target
# is strange, and its inverse: the set of all y whose score is at most q. (Without the
# inverse, the sets can still say whether they contain a target, but have no ends.)

# %%
bound = scores.Custom(
    lambda pred, y: (y - pred[0]) / pred[1],
    lambda pred, q: sets.Interval(-jnp.inf, pred[0] + q * pred[1]),
)
cp = jaxcp.calibrate(bound, mean_and_scale(x_old), y_old)
bounds = cp(mean_and_scale(x_new), alpha=ALPHA)
coverages["upper bound"] = metrics.coverage(bounds, y_new)
print(f"coverage {coverages['upper bound']:.3f}")

# %% [markdown]
# ## Picture
#
# Every fifth test row, in the order of its input. The bounds on the right have no lower
# end.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharex=True, sharey=True)
few = np.argsort(x_new[:, 0])[::5]
pictures = {"mean and scale": intervals, "upper bound": bounds}
for ax, (name, found) in zip(axes, pictures.items(), strict=True):
    plotting.plot_intervals(
        x_new[few], found[few], y_new[few], legend=ax is axes[0], ax=ax
    )
    ax.set_title(f"forest, {name}, alpha = {ALPHA}")
    ax.set(xlabel="input x", ylabel="target y" if ax is axes[0] else "")
plt.show()

# %% [markdown]
# ## The claim
#
# All of them cover 1 - alpha, up to the chance of 1999 calibration and 1999 test rows.
# And arrays of every library give the same threshold, to the last bit. (Numbers in
# double precision become single, as always in jax, unless `jax_enable_x64` is on.)

# %%
center = np.asarray(mean_and_scale(x_old)[0], np.float32)
kinds = {"numpy": np.asarray, "jax": jnp.asarray, "list": np.ndarray.tolist}
if torch is not None:
    kinds["torch"] = torch.from_numpy
thresholds = {}
for name, as_kind in kinds.items():
    cp = jaxcp.calibrate(scores.Absolute(), as_kind(center), as_kind(y_old))
    thresholds[name] = cp.quantile(ALPHA).item()
print(f"threshold from arrays of every kind: {thresholds['numpy']:.4f}")

error = (ALPHA * (1 - ALPHA) * 2 / NUM_ROWS) ** 0.5
assert len(set(thresholds.values())) == 1
assert all(abs(rate - (1 - ALPHA)) < 4 * error for rate in coverages.values())
print("every model covers, and every container gives the same threshold")
