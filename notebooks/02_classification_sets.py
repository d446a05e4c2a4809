# %% [markdown]
# # Label sets for digits
#
# A classifier that has seen fifty handwritten digits reads the others. Where it is
# unsure, one label is not enough: we ask for a *set* of labels that holds the truth
# with probability 1 - alpha. Several scores give such sets. All keep the promise, but
# they differ in how many labels they spend, and on which images.

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

# %% [markdown]
# ## Data
#
# 1797 images of 8 x 8 pixels. The classifier learns from fifty of them, 599 calibrate
# it, and on the rest we look at what comes out.

# %%
x, y = (jnp.asarray(v) for v in load_digits(return_X_y=True))
x = x.astype(jnp.float32) / 16
order = jax.random.permutation(jax.random.key(0), len(y))
train, held_out = jnp.split(order, [NUM_TRAIN])

# %% [markdown]
# ## A prediction
#
# A linear layer and a softmax. A `GradientLearner` trains it with any optax optimizer,
# in one scan. The scores for labels read probabilities `p`, a row for each image, so
# any classifier will do.


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
# The simplest score is one minus the probability of the label, `LAC`. Calibration finds
# a threshold, and a set holds the labels whose scores are within it.

# %%
old, new = slice(NUM_CALIBRATE), slice(NUM_CALIBRATE, None)
cp = jaxcp.calibrate(scores.LAC(), p[old], y[old])
sets = cp(p[new], alpha=ALPHA)
print("threshold:", cp.quantile(ALPHA))
print("coverage: ", metrics.coverage(sets, y[new]))
print("mean size:", metrics.mean_size(sets))

# %% [markdown]
# `APS` goes down the labels from the likeliest on. The score of a label is the
# probability of all labels before it, plus its own. There are three ways to treat the
# label at which this sum crosses the threshold:
#
# - let chance decide, `randomized=True`: the one to begin with. The score then reads a
#   uniform `u` beside `p`, and covers exactly;
# - leave it out, the default. Where the classifier is very sure the first label crosses
#   already, and the set is empty: on the easiest images of all. A network that is sure
#   of nearly all images makes it worse: scores tie at a sum of 1, the threshold is 1,
#   and every set holds every label;
# - take it in, `inclusive=True`. No set is empty, but sets are larger than need be.
#
# `RAPS` adds a price for each label after the first `k_reg`, against long tails. For
# `TopK` the score is the rank of the label and nothing else.

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
# The new images of which the classifier is least sure. The true label is ringed, in red
# where the set misses it.

# %%
hard = jnp.argsort(p[new].max(1))[:NUM_SHOWN]
figure, axes = plt.subplots(
    1, 3, figsize=(8.5, 5), width_ratios=[1, 6, 6], layout="constrained"
)
framed = jnp.pad(x[new][hard].reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
axes[0].imshow(framed.reshape(-1, 10), cmap="gray_r", aspect="auto")
axes[0].set_axis_off()
for ax, name in zip(axes[1:], ["LAC", "APS, randomized"], strict=True):
    shown = jax.tree.map(lambda v: v[hard], sets_of(*methods[name], old, new))
    plotting.plot_label_sets(shown, y[new][hard], ax=ax)
    ax.set(title=name, ylabel="")
plt.show()

# %% [markdown]
# ## Coverage
#
# One split says little. We deal the held-out images into old and new ones again and
# again, and judge the sets of all methods in one program. Beside the coverage of all
# images we ask for that of each class, and for that of each level of difficulty. The
# level says how likely the likeliest label is: a fifth of the images each, the easiest
# first. With `calibrate_groups` each class has a threshold of its own.

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
# `LAC`, `APS` and `RAPS` cover 0.9, as they should. `TopK` can only give one label to
# all or two labels to all, and so it covers more, and so do inclusive sets.
#
# ## Pictures of coverage
#
# 0.9 over all images is not 0.9 everywhere. The small sets of `LAC` come at the price
# of the hard images and of some classes. Plain `APS` fails on the easy images, where it
# is empty. Randomized `APS` is the most even, and a threshold for each class helps all
# classes to their 0.9.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for name in ["LAC", "APS", "APS, randomized"]:
    left.plot(range(NUM_LEVELS), mean["by level"][name], "o-", label=name)
left.set(xlabel="difficulty of the images", ylabel="coverage", ylim=(0.5, 1.02))
left.set_xticks(range(NUM_LEVELS), ["easiest", *[""] * (NUM_LEVELS - 2), "hardest"])
for name, color in [("LAC", "tab:blue"), ("LAC, by class", "tab:red")]:
    right.plot(range(10), mean["by class"][name], "o", color=color, label=name)
right.set(xlabel="class", xticks=range(10), ylim=(0.5, 1.02))
for ax in (left, right):
    ax.axhline(1 - ALPHA, color="black", linestyle="--", linewidth=0.8)
    ax.legend(frameon=False, loc="lower center")
plt.show()

# %% [markdown]
# ## The claim
#
# Scores that do not tie cover k / (n + 1) on average, with k the rank of the threshold.
# `LAC` spends the fewest labels. With a threshold for each class, all have 1 - alpha.

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
