# %% [markdown]
# # Calibrated probabilities
#
# A classifier says 0.9, and is right in 70 % of such cases. Isotonic regression of rows
# that the model has not seen repairs that on average, but says 0 and 1 after a handful
# of rows. Venn-Abers predictors give two probabilities, one of which is calibrated for
# every number of rows; the distance between them says how much the rows tell.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from jaxcp import metrics, plotting, predictive

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_HELD, NUM_NEW = 200, 2000
NUM_TRIALS = 2000 if FAST else 20_000

plt.rcParams.update(plotting.style(**{"figure.dpi": 90}))

# %% [markdown]
# ## A model that is too bold
#
# The logit of the event is x, and the model has learnt 4 x.


# %%
def draw(key, n):
    key_x, key_y = jax.random.split(key)
    x = 1.5 * jax.random.normal(key_x, (n,))
    return jax.nn.sigmoid(4 * x), jax.random.bernoulli(key_y, jax.nn.sigmoid(x))


held, y = draw(jax.random.key(0), NUM_HELD)
new, y_new = draw(jax.random.key(1), NUM_NEW)
p0, p1 = predictive.venn_abers(held, y, new)
p = predictive.merge_pairs(p0, p1, loss="log")
print(f"mean width of a pair {jnp.mean(p1 - p0):.3f}")

# %% [markdown]
# ## Before and after
#
# The dots of the model are off the diagonal; after Venn-Abers, from 200 rows, they are
# near it. Bars are shares of rows.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained", sharey=True)
for ax, (name, probs) in zip(
    axes, {"model": new, "Venn-Abers": p}.items(), strict=True
):
    plotting.plot_reliability(probs, y_new, ax=ax, legend=name == "model")
    ax.set_title(name)
plt.show()

# %%
for name, probs in {"model": new, "Venn-Abers": p}.items():
    score = metrics.brier_score(probs, y_new)
    error = metrics.expected_calibration_error(probs, y_new, num_bins=10)
    print(f"{name:10} Brier {score:.3f}, ECE {error:.3f}")

# %% [markdown]
# ## The pair along the score
#
# Isotonic regression lies between the two. It is 0 at the left and 1 at the right, as
# if nothing could happen there; the pair says how little the rows know.

# %%
grid = jnp.linspace(0, 1, 400)
low, high = predictive.venn_abers(held, y, grid)
order = jnp.argsort(held)
figure, ax = plt.subplots(layout="constrained")
ax.fill_between(grid, low, high, alpha=0.3, linewidth=0, label="p0 to p1")
ax.plot(grid, predictive.merge_pairs(low, high, loss="log"), label="merged")
fit = predictive.isotonic(held, y)
ax.step(held[order], fit[order], where="mid", label="isotonic regression")
odds = grid / (1 - grid)
ax.plot(grid, 1 / (1 + odds ** (-1 / 4)), "--", color="gray", label="true")
ax.set(xlabel="score of the model", ylabel="probability")
ax.legend()
plt.show()

# %% [markdown]
# ## The guarantee, by simulation
#
# Let P be the one of p0 and p1 that belongs to the label Y of the new row. E[Y | P] = P
# exactly, so that (Y - P) h(P) has mean 0 for every function h; for 20 rows, too. The
# merged probability has no such guarantee: it is drawn towards 1/2.


# %%
def trial(key):
    scores, labels = draw(key, 21)
    p0, p1 = predictive.venn_abers(scores[:20], labels[:20], scores[20:])
    label = labels[20].astype(int)
    merged = predictive.merge_pairs(p0, p1, loss="log")[0]
    return jnp.where(label == 1, p1, p0)[0], merged, label


keys = jax.random.split(jax.random.key(2), NUM_TRIALS)
right, merged, label = jax.jit(jax.vmap(trial))(keys)


def errors(probs):
    """Means of (Y - P) h(P) in standard errors, for h = 1, p and p^2."""
    terms = jnp.stack([(label - probs) * probs**power for power in range(3)])
    return np.asarray(terms.mean(1) / terms.std(1) * NUM_TRIALS**0.5)


for name, probs in {"P": right, "merged": merged}.items():
    print(f"{name:6}", np.round(errors(probs), 1))

# %% [markdown]
# ## The claim
#
# The Brier score falls, the probabilities of the model are rejected by the test of
# calibration, and the pair is calibrated within four standard errors.

# %%
assert metrics.brier_score(p, y_new) < metrics.brier_score(new, y_new)
assert metrics.calibration_test(new, y_new, kind="kuiper").p_value < 1e-6
assert np.all(abs(errors(right)) < 4)
print("one of both probabilities is calibrated")
