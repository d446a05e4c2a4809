# %% [markdown]
# # Label sets for digits
#
# A classifier is trained on fifty handwritten digits and reads the others. Where it is
# unsure, one label is not enough. We ask for a *set* of labels that holds the truth
# with probability 1 - alpha. Several scores give such sets. All keep the promise, but
# they differ in how many labels a set has, and on which images it errs.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits

import jaxcp
from jaxcp import learners, metrics, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_TRAIN = 50
NUM_CALIBRATE = 599
NUM_DEALS = 100 if FAST else 3_000
NUM_LEVELS = 5  # of difficulty
NUM_SHOWN = 8
ALPHA = 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data
#
# 1797 images of 8 x 8 pixels. Fifty train the classifier, 599 calibrate it, and the
# other 1148 test the sets.

# %%
x, y = (jnp.asarray(v) for v in load_digits(return_X_y=True))
x = x.astype(jnp.float32) / 16
order = jax.random.permutation(jax.random.key(0), len(y))
train, held_out = jnp.split(order, [NUM_TRAIN])

# %% [markdown]
# ## A prediction
#
# A linear layer and a softmax, trained by a `GradientLearner`. The scores for labels
# need probabilities `p`, a row for each image, so any classifier will do.


# %%
def predict(params, x):
    weights, bias = params
    return x @ weights + bias


learner = learners.GradientLearner(
    init=lambda key: (jnp.zeros((64, 10)), jnp.zeros(10)),
    predict=predict,
    loss=optax.softmax_cross_entropy_with_integer_labels,
    optimizer=optax.adam(0.05),
    num_steps=100,
)
fit = jax.jit(learner.fit)
params = fit(jax.random.key(1), x[train], y[train], jnp.ones(NUM_TRAIN))

x, y = x[held_out], y[held_out]  # from here on only these
p = jax.nn.softmax(predict(params, x))
print(f"{len(y)} images held out, accuracy {jnp.mean(p.argmax(1) == y):.3f}")

# %% [markdown]
# ## Sets
#
# The simplest score is `LAC`: one minus the probability of the label. Calibration finds
# a threshold, and a set holds the labels whose scores are at most the threshold.

# %%
old, new = slice(NUM_CALIBRATE), slice(NUM_CALIBRATE, None)
cp = jaxcp.calibrate(scores.LAC(), p[old], y[old])
sets = cp(p[new], alpha=ALPHA)
print(f"threshold: {cp.quantile(ALPHA):.3f}")
print(f"coverage:  {metrics.coverage(sets, y[new]):.3f}")
print(f"mean size: {metrics.mean_size(sets):.3f}")

# %% [markdown]
# `APS` sorts the labels, the most probable first. The score of a label is the sum of
# the probabilities up to its own. There are three ways to treat the label at which this
# sum crosses the threshold:
#
# - Let chance decide, `randomized=True`. Begin with this one. The score then reads a
#   uniform number `u` beside `p`, and covers exactly.
# - Leave it out, the default. Where the classifier is very sure, the first label
#   crosses the threshold already and the set is empty. So the easiest images are
#   missed. A network that is sure of nearly all images has another problem: scores tie
#   at a sum of 1, the threshold is 1, and every set holds every label.
# - Take it in, `inclusive=True`. No set is empty, but sets are larger than needed.
#
# `RAPS` adds a penalty for each label after the first `k_reg`, so that sets have fewer
# labels of small probability. For `TopK` the score is the rank of the label alone.

# %%
u = jax.random.uniform(jax.random.key(2), y.shape)
methods = {
    "LAC": (scores.LAC(), p),
    "APS": (scores.APS(), p),
    "APS, inclusive": (scores.APS(inclusive=True), p),
    "APS, randomized": (scores.APS(randomized=True), (p, u)),
    "RAPS, randomized": (scores.RAPS(0.05, 2, randomized=True), (p, u)),
    "TopK": (scores.TopK(), p),
}


def sets_of(score, preds, old, new):
    before = jax.tree.map(lambda v: v[old], preds)
    after = jax.tree.map(lambda v: v[new], preds)
    return jaxcp.calibrate(score, before, y[old])(after, alpha=ALPHA)


# %% [markdown]
# ## Hard images
#
# The new images of which the classifier is least sure. A circle marks the true label,
# a cross marks a true label that is not in the set.

# %% tags=["thumbnail"]
hard = jnp.argsort(p[new].max(1))[:NUM_SHOWN]
images = x[new][hard].reshape(-1, 8, 8)
figure, axes = plt.subplots(1, 2, figsize=(9, 4.5))
for ax, name in zip(axes, ["LAC", "APS, randomized"], strict=True):
    shown = sets_of(*methods[name], old, new)
    plotting.plot_label_sets(shown[hard], y[new][hard], images=images, ax=ax)
    ax.set_title(f"{name}, alpha = {ALPHA}")
plt.show()

# %% [markdown]
# ## Coverage
#
# One split says little. We deal the held-out images into old and new ones again and
# again, and judge the sets of all methods in one program. We ask for the coverage of
# all images, of each class, and of each level of difficulty. The levels sort the images
# by their largest probability: a fifth of the images each, the easiest first. With
# `calibrate_groups` each class has a threshold of its own.

# %%
by_ease = jnp.argsort(jnp.argsort(-p.max(1)))
level = by_ease * NUM_LEVELS // len(y)


def judge(sets, y, level):
    return {
        "coverage": metrics.coverage(sets, y),
        "size": metrics.mean_size(sets),
        "empty": metrics.empty_rate(sets),
        "by class": metrics.class_coverage(sets, y),
        "by level": metrics.group_coverage(sets, y, level, num_groups=NUM_LEVELS),
    }


def trial(key):
    order = jax.random.permutation(key, len(y))
    old, new = order[:NUM_CALIBRATE], order[NUM_CALIBRATE:]
    sets = [sets_of(*method, old, new) for method in methods.values()]
    by_class = jaxcp.calibrate_groups(
        scores.LAC(), p[old], y[old], y[old], num_groups=10
    )
    sets.append(by_class(p[new], alpha=ALPHA))
    together = jax.tree.map(lambda *v: jnp.stack(v), *sets)
    return jax.vmap(judge, (0, None, None))(together, y[new], level[new])


names = [*methods, "LAC, by class"]
found = jaxcp.simulate(trial, jax.random.key(3), NUM_DEALS, batch_size=25)
mean = jax.tree.map(lambda v: dict(zip(names, v.mean(0), strict=True)), found)
spread = jax.tree.map(lambda v: dict(zip(names, v.std(0), strict=True)), found)

print(f"{'':20}coverage   size   empty")
for name in names:
    columns = f"{mean['coverage'][name]:.4f}{mean['size'][name]:9.2f}"
    print(f"{name:20}{columns}{mean['empty'][name]:8.3f}")

# %% [markdown]
# `LAC`, `APS` and `RAPS` cover 0.9, as they should. `TopK` gives the same number of
# labels to every image, here two, and so it covers more. Inclusive sets cover more,
# too.

# %%
errors = jax.tree.map(lambda v: 2 * v / NUM_DEALS**0.5, spread)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
plotting.plot_comparison(
    names,
    [mean["coverage"][name] for name in names],
    [mean["size"][name] for name in names],
    ALPHA,
    coverage_errors=[errors["coverage"][name] for name in names],
    size_errors=[errors["size"][name] for name in names],
    size_name="mean number of labels",
    ax=axes,
)
axes[0].set_title(f"{NUM_DEALS:,} deals, n = {NUM_CALIBRATE}")
plt.show()

# %% [markdown]
# ## Coverage of a part
#
# 0.9 over all images is not 0.9 in every part. The small sets of `LAC` cover hard
# images and some classes less often. Plain `APS` fails on the easiest images, where it
# is empty. Randomized `APS` is the most even over the levels. With a threshold for each
# class, all classes get their 0.9.

# %%
print("coverage by level, from the easiest images to the hardest:")
for name in ["LAC", "APS", "APS, randomized"]:
    print(f"{name:20}", *(f"{v:.3f}" for v in mean["by level"][name]))
print("coverage by class, from 0 to 9:")
for name in ["LAC", "LAC, by class"]:
    print(f"{name:20}", *(f"{v:.3f}" for v in mean["by class"][name]))

# %% [markdown]
# The new images of the first deal show the same, with errors of chance.

# %%
aps = sets_of(*methods["APS, randomized"], old, new)
cp = jaxcp.calibrate_groups(scores.LAC(), p[old], y[old], y[old], num_groups=10)
by_class = cp(p[new], alpha=ALPHA)
levels = ["easiest", "easy", "middle", "hard", "hardest"]
panels = {
    "LAC": (sets, level[new], levels),
    "APS, randomized": (aps, level[new], levels),
    "LAC, one threshold": (sets, y[new], range(10)),
    "LAC, a threshold for each class": (by_class, y[new], range(10)),
}
figure, axes = plt.subplots(
    2, 2, figsize=(9, 5.5), sharex=True, sharey="row", height_ratios=[1, 2]
)
for ax, name in zip(axes.flat, panels, strict=True):
    shown, groups, group_names = panels[name]
    plotting.plot_group_coverage(
        shown, y[new], groups, ALPHA, names=group_names, legend=False, ax=ax
    )
    ax.set(title=name, xlabel="")
axes[0, 0].set_ylabel("images")
axes[1, 0].set_ylabel("class")
for ax in axes[1]:
    ax.set_xlabel("coverage")
legend = axes[0, 0].get_legend_handles_labels()
figure.legend(*legend, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# ## The claim
#
# Without ties, sets cover k / (n + 1) on average, with k the rank of the threshold.
# The sets of `LAC` are the smallest. With a threshold for each class, every class is
# covered with probability 1 - alpha.

# %%
k = jaxcp.conformal_rank(NUM_CALIBRATE, ALPHA)
exact = k / (NUM_CALIBRATE + 1)
for name in ["LAC", "APS", "APS, randomized", "RAPS, randomized"]:
    error = spread["coverage"][name] / NUM_DEALS**0.5
    assert abs(mean["coverage"][name] - exact) < 4 * error, name
assert min(mean["coverage"][name] for name in ["APS, inclusive", "TopK"]) > exact
assert min(mean["size"], key=mean["size"].get) == "LAC"

error = spread["by class"]["LAC, by class"] / NUM_DEALS**0.5
assert (mean["by class"]["LAC, by class"] > 1 - ALPHA - 4 * error).all()
assert mean["by class"]["LAC"].min() < 0.8
print(f"coverage is {exact:.4f} for every score without ties")
