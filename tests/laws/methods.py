"""The table of methods: how each is made of a few rows, and what is asked of it.

A method joins the laws of `test_methods.py` by a row here. Its rows are a dict of
arrays (n, ...), so that a law cuts, masks, repeats or permutes all alike.
A law that does not hold for it is named with the reason.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from jaxcp import (
    causal,
    conditional,
    learners,
    online,
    outliers,
    pvalues,
    risk,
    scores,
    selection,
)
from jaxcp import predictive as systems
from jaxcp import survival as times
from jaxcp.sets import Interval

N, M, ALPHA = 20, 6, 0.3  # one size for all, so that programs are shared
KEY = jax.random.key(0)
ABSOLUTE, RIDGE = scores.Absolute(), learners.Ridge(1.0)
APS = scores.APS(randomized=True)
OPTIONS = "weights", "mask", "classes", "group_names", "clusters"
CONTEXT = "groups", "test_weights"


@dataclass(frozen=True)
class Method:
    """Rows of calibration and of test points, a predictor of the former, its answers.

    Args:
      draw: Function (rng, n) of the rows, {name: array (n, ...)}; those of test points
        are drawn by it too.
      make: Function of the rows, whose value is saved and asked.
      ask: Function (value, rows of test points, alpha) of {"sets": ..., "p": ...}.
      not_for: {law: why it does not hold, or cannot be asked}.
      p_values: Whether it has sets and p-values, which say the same.
      rtol: How near results are that are the same but for rounding.
      functions: What a file lacks and is given again, by name.
    """

    draw: Callable
    make: Callable
    ask: Callable
    not_for: dict[str, str] = field(default_factory=dict)
    rtol: float = 1e-6
    p_values: bool = False  # whether its sets are those of its p-values
    functions: dict[str, Callable] = field(default_factory=dict)

    def data(self, n=N, seed=0):
        rng = np.random.default_rng(seed)
        return self.draw(rng, n), self.draw(rng, M)

    def run(self, rows, test, alpha=ALPHA) -> dict[str, Any]:
        return self.ask(self.make(rows), test, alpha)

    def options(self):
        """Returns a mask and weights of N rows, if the method takes them."""
        known = {"mask": np.arange(N) % 7 != 1, "weights": np.linspace(0.5, 1, N)}
        return {k: v for k, v in known.items() if k not in self.not_for}

    def combinations(self, rows):
        """Yields N rows with each combination of the options."""
        for size in range(1 + len(self.options())):
            for some in itertools.combinations(self.options().items(), size):
                yield rows | dict(some)


def options(rows):
    return {name: rows[name] for name in OPTIONS if name in rows}


def context(test):
    return {name: test[name] for name in CONTEXT if name in test}


def point(*shape):
    def draw(rng, n):
        preds, noise = rng.normal(size=(2, n, *shape)).astype("f")
        return {"preds": preds, "y": preds + noise}

    return draw


NUMBERS = point()


def band(rng, n):
    mu, noise, half = rng.normal(size=(3, n)).astype("f")
    return {"preds": np.stack([mu - abs(half), mu + abs(half)], 1), "y": mu + noise}


def draws(rng, n):
    points = rng.normal(size=(n, 6, 2)).astype("f")
    return {"preds": points[:, 1:], "y": points[:, 0]}


def labels(rng, n, randomized=False):
    p, u = rng.dirichlet(np.ones(3), n).astype("f"), rng.random(n, "f")
    y = np.where(u < 0.7, np.argmax(p, axis=1), rng.integers(3, size=n))
    return {"preds": (p, rng.random(n, "f")) if randomized else p, "y": y}


def with_uniforms(rng, n):
    return labels(rng, n, randomized=True)


def several(rng, n):
    p = rng.random((n, 4), "f")
    return {"preds": p, "y": rng.random((n, 4)) < p}


def paths(rng, n):
    center, noise = rng.normal(size=(2, n, 4)).astype("f")
    scale = rng.uniform(0.5, 2, (n, 4)).astype("f")
    return {"preds": (center, scale), "y": center + scale * noise}


def claims(rng, n):
    c, there = rng.normal(size=(n, 4)).astype("f"), rng.random((n, 4)) < 0.8
    return {"preds": (c, there), "y": rng.normal(size=(n, 4)) < 1 + c}


def grouped(draw):
    return lambda rng, n: draw(rng, n) | {"groups": np.arange(n) % 3}


def uneven(draw):
    """Groups of a half, a third and a sixth of the rows."""
    return lambda rng, n: draw(rng, n) | {"groups": np.arange(n) % 6 % 4 % 3}


def clustered(draw):
    """Clusters of one to four rows."""
    return lambda rng, n: draw(rng, n) | {"clusters": np.arange(n) ** 2 % 11}


def fits(draw, b=4):
    """Rows of b fits, of which each leaves out every b-th row."""

    def of_fits(rng, n):
        rows = draw(rng, n)
        preds = np.stack(
            [rows["preds"], *(draw(rng, n)["preds"] for _ in range(b - 1))]
        )
        if preds.ndim > 2:  # of labels: sums of 1
            preds = preds / preds.sum(axis=-1, keepdims=True)
        held_out = np.arange(n)[:, None] % b == np.arange(b)
        return rows | {"preds": np.stack(preds, axis=1), "held_out": held_out}

    return of_fits


def inputs(rng, n):
    x, noise = rng.normal(size=(n, 2)).astype("f"), rng.normal(size=n).astype("f")
    return {"x": x, "y": x[:, 0] - x[:, 1] + noise}


def classified(rng, n):
    rows = inputs(rng, n)
    return rows | {"y": np.argmax([*rows["x"].T, rows["y"] - rows["x"][:, 0]], axis=0)}


def held_out(rng, n):
    return inputs(rng, n) | {"fits": 1.0 * (np.arange(n)[:, None] % 4 != np.arange(4))}


def numbers(rng, n):
    return {"y": rng.normal(size=n).astype("f")}


def split(score, draw, verb=jaxcp.calibrate, not_for=None):
    def make(rows):
        if "groups" not in rows:
            return verb(score, rows["preds"], rows["y"], **options(rows))
        named = {} if "group_names" in rows else {"num_groups": 3}
        data = rows["preds"], rows["y"], rows["groups"]
        return verb(score, *data, **named, **options(rows))

    def ask(cp, test, alpha):
        given = context(test)
        p = cp.p_values(test["preds"], test["y"], **given)
        found = {"sets": cp(test["preds"], alpha, **given), "p": p}
        if isinstance(cp, jaxcp.Calibration) and cp.clusters is not None:
            found["all"] = cp.all_rows(test["preds"], alpha)
        return found if "test_weights" in given else found | {"q": cp.quantile(alpha)}

    return Method(draw, make, ask, not_for or {}, p_values=True)


def within(score, preds, y, *, weights=None, **options):
    """Returns the calibration with weights that are known by bounds, of width 0."""
    box = None if weights is None else (weights, weights + 0)
    return jaxcp.calibrate(score, preds, y, weights=box, **options)


def predictive(score, draw):
    """A distribution: its function, a bound, its mean, and how good it is."""

    def make(rows):
        own = {"groups": rows["groups"]} if "groups" in rows else {}
        own |= {} if not own or "group_names" in rows else {"num_groups": 3}
        data = rows["preds"], rows["y"]
        return systems.calibrate_predictive(score, *data, **own, **options(rows))

    def ask(system, test, alpha):
        given, (preds, y) = context(test), (test["preds"], test["y"])
        groups = {k: v for k, v in given.items() if k == "groups"}
        u = np.linspace(0.1, 0.9, len(y)).astype("f")
        return {
            "sets": system(preds, alpha, **given),
            "cdf": system.cdf(preds, y, u=u, **given),
            "bound": system.quantile(preds, [1 - alpha, 0.5], side="upper", **given),
            "crps": system.crps(preds, y, **groups),
            "mean": system.mean(preds, **groups),
        }

    return Method(draw, make, ask, rtol=1e-5)


def by_label_groups(score, *rows, **given):
    """Labels 0 and 2 share a threshold; label 1 is rare and has that of all rows."""
    known = {"label_groups": np.array([0, -1, 0]), "rare": "all"}
    return jaxcp.calibrate_groups(score, *rows, **known, **given)


def some_share(score, *rows, **given):
    """Of twenty rows or so the third group shares, with the rows of the second."""
    return jaxcp.calibrate_groups(score, *rows, min_size=7, **given)


def by_features(score, draw):
    """Conditional calibration: features of a row stand beside it."""

    def make(rows):
        data = rows["preds"], rows["y"], rows["features"]
        return jaxcp.calibrate_conditional(score, *data, **options(rows))

    def ask(cp, test, alpha):
        given = {"features": test["features"]}
        u = np.linspace(0.1, 0.9, len(test["preds"])).astype("f")
        dual = cp.dual(test["preds"], test["y"], alpha, **given)
        ways = {"u": cp(test["preds"], alpha, **given, u=u), "dual": dual}
        return {"sets": cp(test["preds"], alpha, **given)} | ways

    def with_features(rng, n):
        x = rng.random(n, "f")
        return draw(rng, n) | {"features": np.stack([1 + 0 * x, x], axis=1)}

    return Method(with_features, make, ask, MASK | HALF, rtol=1e-5)


def by_kernel(drawn):
    """Local calibration by rows near x: with anchors RLCP, without LCP."""

    def make(rows):
        data = rows["preds"], rows["y"], rows["x"], conditional.Gaussian(0.5)
        return jaxcp.calibrate_local(ABSOLUTE, *data, **options(rows))

    def ask(cp, test, alpha):
        near = {k: test[k] for k in ("x", "anchors")[: 1 + drawn]}
        p = cp.p_values(test["preds"], test["y"], **near)
        return {"sets": cp(test["preds"], alpha, **near), "p": p}

    def with_inputs(rng, n):
        x = rng.random((n, 2), "f")
        return NUMBERS(rng, n) | {"x": x, "anchors": x + 0.1}

    shape = {"traces": "its door asks for the shape of a weight"}
    return Method(with_inputs, make, ask, MASK | HALF | shape, 1e-5, p_values=True)


def of_arm(score, draw, bound=None):
    """The outcome of one arm, with known propensities or within a box of them."""

    def make(rows):
        data = rows["preds"], rows["y"], rows["treated"], rows["propensity"]
        return causal.calibrate_outcome(score, *data, **options(rows))

    def ask(cp, test, alpha):
        given = {"propensity": test["propensity"]}
        p = cp.p_values(test["preds"], test["y"], **given)
        return {"sets": cp(test["preds"], alpha, **given), "p": p}

    def with_arms(rng, n):
        e = rng.uniform(0.5, 0.9, n).astype("f")
        box = e if bound is None else causal.propensity_box(e, bound)
        treated = {"treated": rng.random(n, "f") < e}
        return draw(rng, n) | treated | {"propensity": jax.tree.map(np.asarray, box)}

    return Method(with_arms, make, ask, MASK, p_values=True)


def of_effects(score, draw):
    """Intervals of effects in place of targets."""

    def make(rows):
        y, half = rows["y"], abs(rows["half"])
        effects = Interval(*jax.numpy.asarray([y - half, y + half]))
        return causal.calibrate_effect(score, rows["preds"], effects, **options(rows))

    def ask(cp, test, alpha):
        given = context(test)
        p = cp.p_values(test["preds"], test["y"], **given)
        return {"sets": cp(test["preds"], alpha, **given), "p": p}

    def with_halves(rng, n):
        return draw(rng, n) | {"half": rng.random(n, "f")}

    not_for = OF_ARRAYS | {"lengths": "intervals have two ends"}
    return Method(with_halves, make, ask, not_for, p_values=True)


def lower_bounds():
    """Times seen up to 0.2, where rows have a censoring time of at least that."""

    def make(rows):
        data = rows["preds"], rows["y"], rows["censoring"]
        given = {"cutoff": 0.2, "probability": rows["probability"]}
        return times.calibrate_lower(*data, **given, **options(rows))

    def ask(cp, test, alpha):
        given = {"probability": test["probability"]}
        p = cp.p_values(test["preds"], test["y"], **given)
        return {"sets": cp(test["preds"], alpha, **given), "p": p}

    def seen(rng, n):
        rows, p = NUMBERS(rng, n), rng.uniform(0.2, 1, n).astype("f")
        return rows | {"probability": p, "censoring": rows["y"] + rng.random(n, "f")}

    return Method(seen, make, ask, MASK, p_values=True)


@partial(jax.jit, static_argnames="alpha")
def of_all(cp, preds, alpha):
    """Outside of a program there would be sets of the selected rows alone."""
    return cp(preds, alpha).sets


def beyond_first(p):
    return 1 - p[0]


def selected(score, rule, draw, **functions):
    def make(rows):
        known = options(rows)
        return selection.calibrate_selected(
            score, rows["preds"], rows["y"], rule=rule, **known
        )

    def ask(cp, test, alpha):
        p = jnp.nan_to_num(cp.p_values(test["preds"], test["y"]))
        return {"sets": of_all(cp, test["preds"], alpha), "p": p}

    traces = {"traces": "its sets come from a program of this level, see test_selected"}
    not_for = MASK | traces | OF_ARRAYS
    return Method(draw, make, ask, not_for, functions=functions)


def first(preds):
    """Fits in front: (n, b, ...) as (b, n, ...)."""
    return preds.swapaxes(0, 1)


def cross(score, draw, not_for=None):
    def make(rows):
        data = first(rows["preds"]), rows["y"], first(rows["held_out"])
        return jaxcp.cross_calibrate(score, *data, **options(rows))

    def ask(cp, test, alpha):
        preds, given = first(test["preds"]), context(test)
        ways = {"sets": cp(preds, alpha, **given)}
        if draw is not LABELS_OF_FITS:
            ways |= {"minmax": cp.minmax(preds, alpha, **given)}
        return ways if given else ways | {"aggregate": cp.aggregate(preds)}

    return Method(draw, make, ask, not_for or {}, rtol=1e-5)


def fitted(verb, draw=inputs, score=ABSOLUTE, not_for=None, p_values=False, **more):
    """A verb that fits a learner to x and y, in ridge's closed form by default."""
    learner = more.pop("learner", RIDGE)

    def make(rows):
        data = rows["x"], rows["y"]
        data += (first(rows["fits"]),) if "fits" in rows else ()
        given = {k: v for k, v in options(rows).items() if k != "weights"}
        if "weights" in rows:
            given["calibration_weights"] = rows["weights"]
        if "groups" in rows:
            given |= {"groups": rows["groups"], "num_groups": 3}
        return verb(KEY, learner, score, *data, **given, **more, check=False)

    def ask(cp, test, alpha):
        given = context(test)
        found = {"sets": cp(test["x"], alpha, **given)}
        if p_values:
            return found | {"p": cp.p_values(test["x"], test["y"], **given)}
        for way in ("minmax", "naive"):
            found[way] = getattr(cp, way)(test["x"], alpha, **given)
        return found if given else found | {"aggregate": cp.aggregate(test["x"])}

    functions = {"fit": fit_centers, "predict": near_centers}
    functions = functions if learner is CENTERS else {}
    return Method(draw, make, ask, not_for or {}, 1e-3, p_values, functions)


def by_cluster(*data, **given):
    """The jackknife+ over pairs of rows; an odd last one is a cluster by itself."""
    return jaxcp.jackknife_plus(*data, **given, clusters=np.arange(len(data[4])) // 2)


def fit_centers(key, x, y, weights):
    own = (y[None] == np.arange(3)[:, None]) * weights[None]
    return (own @ x + 1e-3) / (own.sum(axis=1, keepdims=True) + 1e-3)


def near_centers(centers, x):
    return jax.nn.softmax(-((x[:, None] - centers[None]) ** 2).sum(axis=2))


CENTERS = learners.FunctionLearner(fit_centers, near_centers)


def controlled(loss, draw=NUMBERS, score=ABSOLUTE, **more):
    not_for = LOSSES | more.pop("not_for", {})

    def make(rows):
        given = options(rows)
        if "groups" in rows:
            given |= {"groups": rows["groups"], "num_groups": 3}
        return risk.calibrate_risk(
            loss, score, rows["preds"], rows["y"], **given, **more
        )

    def ask(cp, test, alpha):
        alpha = (alpha, 2 * alpha) if isinstance(loss, tuple) else alpha
        return {"sets": cp(test["preds"], alpha, **context(test))}

    return Method(draw, make, ask, not_for)


def stream(method, not_for=None, **delay):
    sizes = (lambda v: v) if isinstance(method, online.SPCI) else abs

    def make(rows):
        return method.init(sizes(rows["y"] - rows["preds"]), ALPHA)

    def ask(state, test, alpha):
        rows = test["preds"], test["y"]
        state, sets = online.run(method, state, *rows, alpha, **delay)
        return {"sets": sets, "state": state}

    return Method(NUMBERS, make, ask, STREAM | (not_for or {}), rtol=1e-5)


def stream_by_group(own):
    """Groups by number, or by the names that `test_names_are_their_codes` gives."""

    def make(rows):
        words = rows["groups"].dtype.kind == "U"
        given = {"group_names": ("ant", "bee", "cat")} if words else {"num_groups": 3}
        method = online.ByGroup(own, **given)
        past = abs(rows["y"] - rows["preds"])
        given = {"groups": rows["groups"], "length": len(past)}
        return method, method.init(past, ALPHA, **given)

    def ask(value, test, alpha):
        preds = test["groups"], test["preds"]
        return {"sets": online.run(*value, preds, test["y"], alpha)[1]}

    traces = {"traces": "its init maps that of the method"} | OF_ARRAYS
    return Method(grouped(NUMBERS), make, ask, STREAM | traces, rtol=1e-5)


def late_stream(method):
    """All sets are issued first; their targets come in the opposite order."""

    def make(rows):
        return method.init(abs(rows["y"] - rows["preds"]), ALPHA)

    def ask(state, test, alpha):
        q = method.quantile(state, alpha)
        for pred, y in zip(test["preds"][::-1], test["y"][::-1], strict=True):
            state = method.update(state, pred, y, alpha, threshold=q)
        return {"sets": method.predict(state, test["preds"][0], alpha), "state": state}

    return Method(NUMBERS, make, ask, STREAM | OF_ARRAYS, rtol=1e-5)


def of_scores(function, draw=numbers, not_for=None):
    """A verb that returns p-values or flags: its value is the rows."""

    def make(rows):
        return rows

    def ask(rows, test, alpha):
        return {"p": function(rows, test, alpha)}

    return Method(draw, make, ask, not_for or {})


def predicted(score, draw):
    def make(rows):
        data, own = (rows["x"], rows["y"]), options(rows)
        if "groups" in rows:
            own |= {} if "group_names" in rows else {"num_groups": 3}
            own |= {"groups": rows["groups"]}
        return jaxcp.split_conformal(linear, SLOPES, score, *data, **own)

    def ask(cp, test, alpha):
        given = context(test)
        p = cp.p_values(test["x"], test["y"], **given)
        return {"sets": cp(test["x"], alpha, **given), "p": p}

    return Method(draw, make, ask, OF_ARRAYS, 1e-5, True, {"predict": linear})


SLOPES = np.array([0.5, -1.0], "f")


def linear(slopes, x):
    return x @ slopes.astype(x.dtype)


def by_mask():
    """Of two inputs none, either or both are missing."""

    def make(rows):
        data = rows["x"], rows["y"], rows["missing"]
        return jaxcp.calibrate_masked(linear, SLOPES, ABSOLUTE, *data, fill=0.0)

    def ask(cp, test, alpha):
        given = {"missing": test["missing"]}
        p = cp.p_values(test["x"], test["y"], **given)
        return {"sets": cp(test["x"], alpha, **given), "p": p}

    def with_masks(rng, n):
        masks = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], bool)
        return inputs(rng, n) | {"missing": masks[rng.permutation(n) % 4]}

    lacks = OPTION | {"repeated": "it has no weights"} | OF_ARRAYS
    lacks |= {"NaN": "NaN is a missing input"}
    return Method(with_masks, make, ask, lacks, 1e-5, True, {"predict": linear})


def bayes(rows, test, alpha):
    found = jaxcp.conformal_bayes(
        -((rows["y"][None] - DRAWS[:, None]) ** 2),
        -((test["y"][None] - DRAWS[:, None]) ** 2),
        alpha,
        **options(rows),
    )
    return found.p_values


DRAWS = np.linspace(-1, 1, 5).astype("f")
OF_ARRAYS = {"labels of rows": "arrays are computed from its rows first"}
MASK = {"weights": "it has none", "repeated": "it has no weights"}
OPTION = {"mask": "it has none", "weights": "it has none"}
HALF = {"half precision": "solves a system: jax has none in halves"}
ONE_BY_ONE = {"repeated": "a row's fit leaves out that row, not its copies"}
FIT = {"repeated": "fits see the copies; calibration weights do not weigh fits"}
MODEL = {"NaN": "what a model says is its own"}
PLACES = {"permuted": "which rows a fit sees depends on their places or a key"}
STREAM = OPTION | {"repeated": "it has no weights", "permuted": "in order of time"}
STREAM |= {"large levels": "a level of a stream moves"}
STREAM |= {"lengths": "its past is one column", "NaN": "in its past it is infinite"}
NO_LEVEL = {"levels": "it has p-values alone"}
LARGEST = {"NaN": "a NaN score is larger than all"}
FLAT = {"gradients": "counts have no slopes"}
ELSEWHERE = dict.fromkeys(("jit", "traces", "half precision"), "in test_transforms")
SIZES_COUNT = {"repeated": "groups are small by their rows, not by weights"}
LOSSES = {"half precision": "losses are numbers in single precision at least"}
LOSSES |= {"large levels": "a level of losses may be large"}
CLUSTERS = {"weights": "clusters make them"}
LABELS_OF_FITS = fits(labels)
GRID = np.linspace(-3, 3, 7).astype("f")
JACKKNIFE = {"mask": "it has none"} | ONE_BY_ONE | HALF
LEARNED = {"mask": "it has none"} | FIT | HALF

METHODS = {
    "split": split(ABSOLUTE, NUMBERS),
    "split of components": split(ABSOLUTE, point(2), not_for=ELSEWHERE),
    "split of one side": split(scores.Signed(), NUMBERS, not_for=ELSEWHERE),
    "split of bands": split(scores.CQR(), band, not_for=ELSEWHERE),
    "split of draws": split(scores.PCP(), draws, not_for=ELSEWHERE),
    "split of labels": split(scores.LAC(), labels),
    "split of ranked labels": split(
        scores.APS(randomized=True), with_uniforms, not_for=ELSEWHERE
    ),
    "split of paths": split(scores.Band(), paths, not_for=ELSEWHERE),
    "split of shares of paths": split(scores.Band(0.5), paths, not_for=ELSEWHERE),
    "split of claims": split(scores.Claims(), claims, not_for=ELSEWHERE | FLAT),
    "split of weights within bounds": split(ABSOLUTE, NUMBERS, within),
    "split of a function": predicted(ABSOLUTE, inputs),
    "split of a function by group": predicted(ABSOLUTE, grouped(inputs)),
    "missing inputs": by_mask(),
    "groups": split(ABSOLUTE, grouped(NUMBERS), jaxcp.calibrate_groups),
    "groups, of which some share": split(
        ABSOLUTE, uneven(NUMBERS), some_share, SIZES_COUNT
    ),
    "groups of labels, of which some share": split(
        scores.LAC(), uneven(labels), some_share, ELSEWHERE | SIZES_COUNT
    ),
    "classes, of which some share": split(
        scores.LAC(),
        lambda rng, n: (rows := uneven(labels)(rng, n)) | {"y": rows["groups"]},
        some_share,
        SIZES_COUNT,
    ),
    "groups of labels": split(scores.LAC(), grouped(labels), jaxcp.calibrate_groups),
    "classes": split(
        scores.LAC(),
        lambda rng, n: (rows := labels(rng, n)) | {"groups": rows["y"]},
        jaxcp.calibrate_groups,
    ),
    "split of clusters": split(ABSOLUTE, clustered(NUMBERS), not_for=CLUSTERS),
    "groups, with clusters": split(
        ABSOLUTE, clustered(grouped(NUMBERS)), jaxcp.calibrate_groups, CLUSTERS
    ),
    "predictive": predictive(scores.Residual(), NUMBERS),
    "predictive of groups": predictive(scores.Residual(), grouped(NUMBERS)),
    "conditional": by_features(ABSOLUTE, NUMBERS),
    "conditional of labels": by_features(scores.LAC(), labels),
    "groups of classes": split(scores.LAC(), labels, by_label_groups, MASK),
    "RLCP": by_kernel(drawn=True),
    "LCP": by_kernel(drawn=False),
    "outcome of an arm": of_arm(ABSOLUTE, NUMBERS),
    "outcome of an arm within a box": of_arm(ABSOLUTE, NUMBERS, bound=1.2),
    "label of an arm": of_arm(scores.LAC(), labels),
    "effects": of_effects(ABSOLUTE, NUMBERS),
    "lower bounds of times": lower_bounds(),
    "selected, the largest": selected(ABSOLUTE, selection.top(3), NUMBERS),
    "selected by p-values": selected(
        scores.LAC(),
        selection.by_p_values(0.5, 0.6, by=beyond_first),
        labels,
        by=beyond_first,
    ),
    "cross": cross(ABSOLUTE, fits(NUMBERS)),
    "cross of labels": cross(scores.LAC(), LABELS_OF_FITS),
    "cross conformal": fitted(jaxcp.cross_conformal, held_out, not_for=LEARNED),
    "jackknife+": fitted(jaxcp.jackknife_plus, not_for=JACKKNIFE),
    "jackknife+ by group": fitted(
        jaxcp.jackknife_plus, grouped(inputs), not_for=JACKKNIFE
    ),
    "jackknife+ by cluster": fitted(
        by_cluster,
        not_for=OPTION | HALF | PLACES | {"repeated": "rows weigh 1/N_k"},
    ),
    "CV+": fitted(jaxcp.cv_plus, num_folds=4, not_for=LEARNED | PLACES),
    "bootstrap": fitted(
        jaxcp.jackknife_plus_after_bootstrap,
        num_resamples=9,
        not_for=LEARNED | PLACES,
    ),
    "EnbPI": fitted(
        jaxcp.enbpi, num_resamples=9, block_size=2, not_for=LEARNED | PLACES
    ),
    "full": fitted(jaxcp.full_conformal, not_for=FIT | HALF, p_values=True),
    "full by group": fitted(
        jaxcp.full_conformal, grouped(inputs), not_for=FIT | HALF, p_values=True
    ),
    "full of labels by group": fitted(
        jaxcp.full_conformal,
        grouped(classified),
        scores.LAC(),
        learner=CENTERS,
        not_for=FIT | MODEL,
        p_values=True,
    ),
    "full of kernels": fitted(
        jaxcp.full_conformal,
        learner=learners.KernelRidge(0.5),
        not_for=FIT | HALF,
        p_values=True,
    ),
    "full of neighbors": fitted(
        jaxcp.full_conformal,
        learner=learners.NearestNeighbors(3),
        not_for=FIT,
        p_values=True,
    ),
    "full of labels": fitted(
        jaxcp.full_conformal,
        classified,
        scores.LAC(),
        learner=CENTERS,
        not_for=FIT | MODEL,
        p_values=True,
    ),
    "discretized": fitted(
        jaxcp.discretized_conformal,
        grid=GRID,
        not_for=FIT
        | HALF
        | {"traces": "its door asks for the shape of a score"}
        | {"NaN": "of an input that is not known the set is the line"},
        p_values=True,
    ),
    "Bayes": of_scores(
        bayes,
        not_for=OF_ARRAYS
        | {"weights": "it has none", "repeated": "rows reweigh the draws"},
    ),
    "risk": controlled(risk.miscoverage),
    "risk of masks": controlled(
        risk.false_negative_rate,
        several,
        scores.MultiLabel(),
        not_for={"gradients": "masks have no slopes"},
    ),
    "risk of clusters": controlled(
        risk.miscoverage, clustered(NUMBERS), not_for=CLUSTERS
    ),
    "risk by group": controlled(risk.miscoverage, grouped(NUMBERS)),
    "risks": controlled((risk.miscoverage, risk.shortfall(2.0)), bound=(1.0, 2.0)),
    "quantile risk": controlled(risk.shortfall(2.0), bound=2.0, tail=0.8),
    "ACI": stream(online.ACI(ABSOLUTE, 0.05)),
    "DtACI": stream(online.DtACI(ABSOLUTE, np.array([0.01, 0.1], "f"))),
    "PID": stream(online.PID(ABSOLUTE, 0.1)),
    "SFOGD": stream(online.SFOGD(ABSOLUTE, 0.1)),
    "NexCP": stream(online.NexCP(ABSOLUTE, 0.9)),
    "PID, falling steps": stream(online.PID(ABSOLUTE, 0.5, decay=0.6)),
    "similar": stream(online.Similar(ABSOLUTE, 0.5, lags=2, window=15)),
    "SPCI": stream(
        online.SPCI(1, window=15, every=3, num_levels=2),
        {"traces": "its fits are for the alpha of its init, see test_lags"},
    ),
    "window": stream(online.SlidingWindow(ABSOLUTE)),
    "ACI by group": stream_by_group(online.ACI(ABSOLUTE, 0.05)),
    "window by group": stream_by_group(online.SlidingWindow(ABSOLUTE)),
    "ACI with a delay": stream(online.ACI(ABSOLUTE, 0.05), delay=3),
    "late ACI": late_stream(online.ACI(ABSOLUTE, 0.05)),
    "outliers": of_scores(
        lambda rows, test, alpha: outliers.outlier_p_values(
            rows["y"], test["y"], **options(rows), **context(test)
        ),
        not_for=NO_LEVEL | LARGEST,
    ),
    "outliers by group": of_scores(
        lambda rows, test, alpha: outliers.grouped_outlier_p_values(
            rows["y"],
            rows["groups"],
            test["y"],
            test["groups"],
            num_groups=3,
            **options(rows),
        ),
        grouped(numbers),
        MASK | NO_LEVEL | LARGEST | {"names": "codes alone"},
    ),
    "outliers given their rows": of_scores(
        lambda rows, test, alpha: outliers.conditional_outlier_p_values(
            rows["y"], test["y"], 0.1
        ),
        not_for=OPTION | NO_LEVEL | LARGEST,
    ),
    "flags of outliers": of_scores(
        lambda rows, test, alpha: outliers.is_outlier(
            rows["y"], test["y"], alpha, **options(rows)
        ),
        not_for=MASK | FLAT | LARGEST,
    ),
    "selection": of_scores(
        lambda rows, test, alpha: pvalues.selection_p_values(
            rows["preds"],
            rows["y"],
            0.5,
            test["preds"],
            **options(rows),
            **context(test),
        ),
        NUMBERS,
        NO_LEVEL | {"NaN": "what is NaN is never selected"},
    ),
}

WITH_LEVELS = [  # those that have `cp.at(alpha)`
    name
    for name in METHODS
    if name.startswith(("split", "groups", "classes", "risk", "quantile risk"))
]


def of(law):
    """Names of the methods that a law is asked of."""
    return [name for name, method in METHODS.items() if law not in method.not_for]
