"""Every method of the library on the problems of `coverage_laws`, and its level."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.laws.coverage_laws import CUTS, NUM_TEST, Problem
from experiments.tools import multioutput_methods
from jaxcp import datasets, learners, online, outliers, scores
from jaxcp.conditional import Gaussian
from jaxcp.predictive import calibrate_predictive
from jaxcp.sets import Interval

NUM_FOLDS = 5
Sets = Callable[[Problem, float], tuple[object, Array]]  # sets and their targets
Level = Callable[[int, float], float]


@dataclass(frozen=True)
class Method:
    """A row of the grid.

    `exact`: coverage is k / (n + 1), else at least `level(n, alpha)`, None promises
    nothing. `refits`: given the rows coverage has no known law. `delta`: k is the rank
    with it. `oracle`: the kind of oracle that sizes compare with.
    """

    name: str
    sets: Sets
    exact: bool = False
    refits: bool = False
    level: Level | None = lambda n, alpha: 1 - alpha
    delta: float | None = None
    oracle: str | None = None
    num_trials: int = 2000


def parts(problem: Problem, rows):
    """Returns calibration and test rows of a pytree."""
    n = problem.n
    old = jax.tree.map(lambda v: v[:n], rows)
    return old, jax.tree.map(lambda v: v[n:], rows)


def split(score, preds: Callable[[Problem], object], target: str = "y") -> Sets:
    """Returns split conformal sets."""

    def sets(problem, alpha):
        rows = preds(problem), getattr(problem, target)
        (pred, y), (new, y_new) = parts(problem, rows)
        return jaxcp.calibrate(score, pred, y)(new, alpha), y_new

    return sets


def of_quantiles(kind: Callable) -> Sets:
    """Returns split conformal sets with a score of predicted quantiles."""
    return lambda problem, alpha: split(kind(jnp.array(LEVELS)), quantiles)(
        problem, alpha
    )


def system(problem: Problem, alpha: float):
    """Returns the intervals of a predictive system of predicted quantiles."""
    (pred, y), (new, y_new) = parts(problem, (quantiles(problem), problem.y))
    score = scores.PredictedQuantiles(jnp.array(LEVELS))
    return calibrate_predictive(score, pred, y)(new, alpha), y_new


def mondrian(problem: Problem, alpha: float):
    """Returns group-wise sets; two groups of inputs."""
    groups = (problem.x[:, 1] > 0.5).astype(int)
    old, new = parts(problem, (problem.mu, problem.y, groups))
    cp = jaxcp.calibrate_groups(scores.Absolute(), *old, num_groups=2)
    return cp(new[0], alpha, groups=new[2]), new[1]


def conditional(randomized: bool = False) -> Sets:
    """Returns sets with thresholds linear in flags of groups that overlap."""

    def sets(problem, alpha):
        x = problem.x
        flags = [jnp.ones_like(x[:, 0]), x[:, 1] > 0.5, x[:, 0] > 0.3]
        rows = problem.mu, problem.y, jnp.stack(flags, axis=1)
        old, (mu, y, own) = parts(problem, rows)
        cp = jaxcp.calibrate_conditional(ABSOLUTE, *old)
        u = problem.u[problem.n :] if randomized else None
        return cp(mu, alpha, features=own, u=u), y

    return sets


def local(randomized: bool = False) -> Sets:
    """Returns sets of rows near each test point: LCP, or RLCP."""

    def sets(problem, alpha):
        kernel = Gaussian(0.5)
        old, (mu, y, x) = parts(problem, (problem.mu, problem.y, problem.x))
        cp = jaxcp.calibrate_local(ABSOLUTE, *old, kernel)
        anchors = kernel.draw(problem.key, x) if randomized else None
        return cp(mu, alpha, x=x, anchors=anchors), y

    return sets


def class_wise(problem: Problem, alpha: float):
    """Returns sets with a threshold for each class."""
    (p, y), (p_new, y_new) = parts(problem, (problem.p, problem.label))
    cp = jaxcp.calibrate_groups(scores.LAC(), p, y, y, num_groups=len(CUTS) + 1)
    return cp(p_new, alpha), y_new


def weighted(problem: Problem, alpha: float):
    """Returns sets under a covariate shift, by weights: x_1 has the density 2 x_1."""
    n, ratio = problem.n, 2 * problem.x[:, 0]
    cp = jaxcp.calibrate(
        scores.Absolute(), problem.mu[:n], problem.y[:n], weights=ratio[:n]
    )
    new = 2 * problem.x_tilted[n:, 0]
    return cp(problem.mu_tilted[n:], alpha, test_weights=new), problem.y_tilted[n:]


def fixed_weights(problem: Problem, alpha: float):
    """Returns sets with weights that fade with age (NexCP)."""
    weights = online.nexcp_weights(problem.n, 0.99)
    (mu, y), (mu_new, y_new) = parts(problem, (problem.mu, problem.y))
    cp = jaxcp.calibrate(scores.Absolute(), mu, y, weights=weights)
    return cp(mu_new, alpha), y_new


def pairs(problem: Problem, alpha: float):
    """Returns sets for rows of new clusters, where old ones have two rows each."""
    ids = jnp.arange(problem.n) // 2
    (mu, y), (mu_new, y_new) = parts(problem, (problem.mu, problem.y))
    return jaxcp.calibrate(ABSOLUTE, mu, y, clusters=ids)(mu_new, alpha), y_new


def hidden(problem: Problem, alpha: float):
    """Returns sets where each input is hidden in three rows of ten."""
    x = jnp.where(jax.random.bernoulli(problem.key, 0.3, problem.x.shape), jnp.nan, 0)
    (x, y), (x_new, y_new) = parts(problem, (x + problem.x, problem.y))
    predict = lambda _, x: 10 + 2 * x[:, 0] - x[:, 1]  # noqa: E731
    cp = jaxcp.calibrate_masked(predict, None, ABSOLUTE, x, y, fill=0.5)
    return cp(x_new, alpha), y_new


def cross(make: Callable, way: str = "__call__") -> Sets:
    """Returns sets of a method that fits on the calibration rows."""

    def sets(problem, alpha):
        (x, y), (x_new, y_new) = parts(problem, (problem.x, problem.y))
        return getattr(make(problem.key, x, y), way)(x_new, alpha), y_new

    return sets


def jackknife(key: Array, x: Array, y: Array):
    """Returns the jackknife+ of a ridge."""
    return jaxcp.jackknife_plus(key, learners.Ridge(1.0), scores.Absolute(), x, y)


def folds(key: Array, x: Array, y: Array):
    """Returns CV+ of a ridge."""
    ridge = learners.Ridge(1.0)
    return jaxcp.cv_plus(key, ridge, scores.Absolute(), x, y, num_folds=NUM_FOLDS)


def bagged(key: Array, x: Array, y: Array):
    """Returns the jackknife+ after 20 bootstrap fits of a ridge."""
    return jaxcp.jackknife_plus_after_bootstrap(
        key, learners.Ridge(1.0), scores.Absolute(), x, y, num_resamples=20
    )


def full(learner) -> Sets:
    """Returns full conformal intervals of a learner with a closed form.

    Targets lie about 0 then, as those of kernels must.
    """

    def sets(problem, alpha):
        (x, y), (x_new, y_new) = parts(problem, (problem.x, problem.y - 10))
        cp = jaxcp.full_conformal(problem.key, learner, ABSOLUTE, x, y)
        return cp(x_new, alpha), y_new

    return sets


def full_labels(problem: Problem, alpha: float):
    """Returns full conformal sets of labels, by a refit for each label."""
    (x, y), (x_new, y_new) = parts(problem, (problem.x, problem.label))
    cp = jaxcp.full_conformal(problem.key, INDICATORS, scores.LAC(), x, y)
    return cp(x_new, alpha), y_new


def discretized(problem: Problem, alpha: float):
    """Returns full conformal sets by a refit for each of 20 trial values."""
    (x, y), (x_new, y_new) = parts(problem, (problem.x, problem.y))
    ridge, grid = learners.Ridge(1.0), jnp.linspace(4.0, 18.0, 20)
    cp = jaxcp.discretized_conformal(problem.key, ridge, ABSOLUTE, x, y, grid)
    return cp(x_new, alpha), y_new


def fit_indicators(key, x, labels, weights):
    """Returns a ridge on the indicators of the labels."""
    targets = jax.nn.one_hot(labels, len(CUTS) + 1)
    return learners.Ridge(1.0).fit(key, x, targets, weights)


def predict_labels(params, x):
    """Returns probabilities of the labels."""
    return jax.nn.softmax(4 * learners.Ridge(1.0).predict(params, x))


def streamed(method, delay: int = 0) -> Sets:
    """Returns the sets of an online method along the test rows."""

    def sets(problem, alpha):
        (mu, y), (mu_new, y_new) = parts(problem, (problem.mu, problem.y))
        signed = isinstance(method, online.SPCI)
        state = method.init(y - mu if signed else jnp.abs(y - mu), alpha)
        rows = mu_new, y_new, alpha
        return online.run(method, state, *rows, delay=delay)[1], y_new

    return sets


def ensemble(problem: Problem, alpha: float):
    """Returns EnbPI of a ridge along the test rows."""
    (x, y), (x_new, y_new) = parts(problem, (problem.x, problem.y))
    ridge, absolute = learners.Ridge(1.0), scores.Absolute()
    bags = jaxcp.enbpi(problem.key, ridge, absolute, x, y, num_resamples=20)
    window = online.SlidingWindow(absolute)
    state = window.init(bags.scores, alpha=alpha, mask=bags.mask)
    return online.run(window, state, bags.aggregate(x_new), y_new, alpha)[1], y_new


def quiet(problem: Problem, alpha: float):
    """Returns the sets of scores that are no outliers."""
    old, new = parts(problem, jnp.abs(problem.y - problem.mu))
    strange = outliers.is_outlier(old, new, alpha=alpha)
    lower = jnp.where(strange, jnp.inf, -jnp.inf)  # in the set iff not called strange
    return Interval(lower, jnp.full(NUM_TEST, jnp.inf)), new


def boxes(problem: Problem) -> Array:
    """Returns the boxes that the detector finds: always the same, and off."""
    return jnp.broadcast_to(jnp.array([41.0, 40.0, 80.0, 91.0]), problem.box.shape)


def sides(problem: Problem) -> tuple[Array, Array]:
    """Returns the sides of the boxes as a path of four points, and their scales."""
    return boxes(problem), problem.sigma[:, None]


def several(name: str) -> Sets:
    """Returns the regions of a multi-output method for a model that is too simple."""

    def sets(problem, alpha):
        one = {m.name: m for m in multioutput_methods.all_methods(alpha)}[name]
        law, x = datasets.Unimodal(), problem.x[:, :1] + 0.5
        source = multioutput_methods.Source(law, None, problem.key, 20, frozen=True)
        (pred, y), (new, y_new) = parts(problem, (one.preds(source, x), problem.pair))
        return jaxcp.calibrate(one.score(source), pred, y)(new, alpha), y_new

    return sets


def aggregated(n: int, alpha: float) -> float:
    """Returns the level that CV+ promises (Barber et al. 2021, theorem 4)."""
    k = NUM_FOLDS
    slack = min(2 * (1 - 1 / k) / (n / k + 1), (1 - k / n) / (k + 1))
    return 1 - 2 * alpha - slack


def twice(n: int, alpha: float) -> float:
    """Returns the level that the jackknife+ promises."""
    return 1 - 2 * alpha


def mu(problem: Problem) -> Array:
    """Returns predicted centers."""
    return problem.mu


def normal(problem: Problem) -> tuple[Array, Array]:
    """Returns predicted centers and scales."""
    return problem.mu, problem.sigma


def band(problem: Problem) -> tuple[Array, Array]:
    """Returns predicted lower and upper quantiles."""
    return problem.mu - problem.sigma, problem.mu + problem.sigma


def quantiles(problem: Problem) -> Array:
    """Returns predicted quantiles, one column for each level."""
    steps = jax.scipy.stats.norm.ppf(jnp.array(LEVELS))
    return problem.mu[:, None] + problem.sigma[:, None] * steps[None]


def on_grid(problem: Problem) -> Array:
    """Returns predicted densities on a grid, up to a factor: those of Cauchy's law."""
    gaps = jnp.asarray(GRID)[None] - problem.mu[:, None]
    return 1 / (problem.sigma[:, None] + gaps**2 / problem.sigma[:, None])


def p(problem: Problem) -> Array:
    """Returns predicted probabilities of the labels."""
    return problem.p


def p_u(problem: Problem) -> tuple[Array, Array]:
    """Returns predicted probabilities, and uniforms to break ties."""
    return problem.p, problem.u


ABSOLUTE = scores.Absolute()
TRACKING, FALLING = online.PID(ABSOLUTE, 0.05), online.PID(ABSOLUTE, 0.5, decay=0.6)
SIMILAR = online.Similar(ABSOLUTE, 0.5, window=100)
SCALED = scores.TwoSided(scores.ScaledResidual())
INDICATORS = learners.FunctionLearner(fit_indicators, predict_labels)
WIDTH, LABELS = "width", "labels"
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
FAR = (-990.0, 1010.0)  # as good as no target lies beyond
EDGES = np.array([FAR[0], *CUTS, FAR[1]], np.float32)
GRID = np.array([FAR[0], *np.linspace(0, 20, 41), FAR[1]], np.float32)
STEPS = np.array([0.001, 0.01, 0.1], np.float32)  # jax must not start at import
UNTIED = ("Mahalanobis", "DR-CP", "PCP", "HD-PCP", "CP2-PCP", "L-CP")
EXTENDED = ("C-PCP, extended", "C-HDR, extended")

METHODS = [
    Method("split", split(ABSOLUTE, mu), True, oracle=WIDTH),
    Method("signed", split(scores.Signed(), mu), oracle=WIDTH),
    Method("gamma", split(scores.Gamma(), mu), True, oracle=WIDTH),
    Method("normalized", split(scores.Normalized(), normal), True, oracle=WIDTH),
    Method("CQR", split(scores.CQR(), band), True, oracle=WIDTH),
    Method("CQR, two-sided", split(scores.AsymmetricCQR(), band), oracle=WIDTH),
    Method("residual, one side", split(scores.Residual(), mu), True),
    Method("scaled, two sides", split(SCALED, normal), oracle=WIDTH),
    Method("quantiles, one side", of_quantiles(scores.PredictedQuantiles), True),
    Method("predictive system", system, oracle=WIDTH),
    Method("DCP", of_quantiles(scores.DCP), True, oracle=WIDTH),
    Method("binned", split(scores.Binned(EDGES), p)),
    Method("binned, randomized", split(scores.Binned(EDGES, True), p_u), True),
    Method("interpolated", split(scores.Interpolated(GRID), on_grid), True),
    Method("Mondrian", mondrian, oracle=WIDTH),
    Method("conditional", conditional(), oracle=WIDTH),
    Method("conditional, randomized", conditional(True)),
    Method("RLCP", local(True)),
    Method("LCP", local()),
    Method("rectified", split(scores.Rectified(ABSOLUTE), normal), True, oracle=WIDTH),
    Method("weighted, shifted x", weighted),
    Method("NexCP weights", fixed_weights, oracle=WIDTH),
    Method("clusters", pairs),
    Method("missing inputs", hidden),
    Method("jackknife+", cross(jackknife), level=twice, oracle=WIDTH),
    Method("jackknife-minmax", cross(jackknife, "minmax"), oracle=WIDTH),
    Method("jackknife", cross(jackknife, "naive"), level=None, oracle=WIDTH),
    Method("CV+", cross(folds), level=aggregated, oracle=WIDTH),
    Method("full", full(learners.Ridge(1.0)), True, True, oracle=WIDTH),
    Method("full, kernel", full(learners.KernelRidge(0.5, 0.7)), True, True),
    Method("full, neighbors", full(learners.NearestNeighbors(5)), True, True),
    Method("full, discretized", discretized, True, True, num_trials=500),
    Method("jackknife+ after boot.", cross(bagged), level=twice, oracle=WIDTH),
    Method("EnbPI", ensemble, level=None, oracle=WIDTH),
    Method("sliding window", streamed(online.SlidingWindow(ABSOLUTE)), oracle=WIDTH),
    Method("ACI", streamed(online.ACI(ABSOLUTE, 0.01)), level=None),
    Method(
        "DtACI",
        streamed(online.DtACI(ABSOLUTE, STEPS)),
        level=None,
    ),
    Method("quantile tracking", streamed(TRACKING), level=None),
    Method("tracking, late rows", streamed(TRACKING, 5), level=None),
    Method("tracking, falling", streamed(FALLING), level=None),
    Method("SF-OGD", streamed(online.SFOGD(ABSOLUTE, 0.05)), level=None),
    Method("similar scores", streamed(SIMILAR), level=None),
    Method("SPCI", streamed(online.SPCI(1, window=100)), level=None, num_trials=100),
    Method("LAC", split(scores.LAC(), p, "label"), oracle=LABELS),
    Method("APS", split(scores.APS(), p, "label"), oracle=LABELS),
    Method(
        "APS, randomized", split(scores.APS(True), p_u, "label"), True, oracle=LABELS
    ),
    Method("RAPS", split(scores.RAPS(0.05, 2), p, "label"), oracle=LABELS),
    Method(
        "RAPS, randomized",
        split(scores.RAPS(0.05, 2, True), p_u, "label"),
        True,
        oracle=LABELS,
    ),
    Method("SAPS", split(scores.SAPS(0.1), p, "label"), oracle=LABELS),
    Method("margin", split(scores.Margin(), p, "label"), oracle=LABELS),
    Method("entmax", split(scores.Entmax(1.5), p, "label"), oracle=LABELS),
    Method("full, labels", full_labels, True, True, oracle=LABELS, num_trials=500),
    Method("top k", split(scores.TopK(), p, "label"), oracle=LABELS),
    Method("class-wise LAC", class_wise, oracle=LABELS),
    Method("is_outlier", quiet, True),
    Method("boxes, four quantiles", split(scores.BoxOffset(), boxes, "box")),
    Method("boxes, maximum", split(scores.BoxOffset(maximum=True), boxes, "box"), True),
    Method("band of four points", split(scores.Band(), sides, "box"), True),
    Method("band, three of four", split(scores.Band(0.75), sides, "box"), True),
    *(
        Method(m.name, several(m.name), m.name in UNTIED + EXTENDED, num_trials=500)
        for m in multioutput_methods.METHODS
    ),
]
