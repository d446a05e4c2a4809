"""2^31 rows and more: refused in words in single precision, counted in double.

Nothing of that size is in memory: functions are only traced.
"""

import inspect
import re
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec as P
from test_open_shapes import OF_SCORES

import jaxcp
from jaxcp import (
    causal,
    detection,
    learners,
    metrics,
    online,
    outliers,
    predictive,
    pvalues,
    risk,
    scores,
    selection,
    sets,
    survival,
    training,
)
from jaxcp.quantiles.levels import as_alpha, exact_rank, ranks
from rows import POINTWISE

MANY = 3 * 10**9
MODULES = jaxcp, detection, learners, metrics, online, outliers, pvalues, risk, training
MODULES += (predictive, causal, selection, survival)
WORDS = (
    f"expected at most 2147483646 rows in single precision, got {MANY}; switch double "
)


def rows(*shape, dtype="f", n=MANY):
    return jax.ShapeDtypeStruct((n, *shape), dtype)


# What has a row for each example, by the name of the argument.
NAMES = "y preds values weights x pred test_pred test_weights losses covered p_values"
NAMES += " scores test_scores e_values confidence correct preds_cal y_cal first risks"
INTERVALS = sets.Interval(rows(), rows())
LABELS = sets.LabelSet(rows(3, dtype=bool))
NAMES += " probs p0 p1 time event censoring probability treated propensity"
ROWS = dict.fromkeys(NAMES.split(), rows()) | {"sets": INTERVALS}
ROWS |= dict.fromkeys(("groups", "test_groups"), rows(dtype=int))
ROWS |= {
    "draws": rows(3),
    "log_densities": rows(),
    "held_out": rows(3, dtype=bool),
    "pred_boxes": rows(3, 4),
    "true_boxes": rows(3, 4),
}
NUMBERS = "alpha delta level beta share threshold q bandwidth temperature min_iou eta"
NUMBERS += " target u score_value rates costs cutoff"
OTHERS = dict.fromkeys(NUMBERS.split(), 0.1) | {"grid": np.linspace(0, 1, 5)}
OTHERS |= {"key": jax.random.key(0), "learner": learners.Ridge(1.0)}
OTHERS |= {"score": scores.Absolute(), "loss": risk.miscoverage}
GRADIENT = learners.GradientLearner(
    lambda key: jnp.zeros(()),
    lambda p, x: p * x[:, 0],
    lambda a, b: (a - b) ** 2,
    optax.sgd(0.1),
    3,
)
OTHERS |= {"predict": lambda params, x: x, "mesh": jax.make_mesh((1,), ("rows",))}
OTHERS |= dict.fromkeys(("k", "num_groups", "num_folds", "num_resamples"), 3)
OTHERS |= dict.fromkeys(("num_labels", "num_steps", "num_draws"), 3)
# Arguments of one function that differ from these, or are not required.
OWN = {
    "calibrate_effect": {"effects": INTERVALS},
    "calibrate_groups": {"num_groups": 3},
    "calibrate_masked": {"predict": lambda _, x: x[:, 0], "x": rows(2)},
    "calibrate_selected": {"rule": selection.top(3)},
    "class_coverage": {"sets": LABELS, "y": rows(dtype=int)},
    "conformal_p_value": {"score": 0.0},
    "conformal_training_loss": {"temperature": 0.1},
    "survival.coverage": {"censoring": jnp.ones_like},
    "effect_sets": {"control": INTERVALS, "treatment": INTERVALS},
    "full_rate": {"sets": LABELS},
    "impute_censoring": {"model": lambda x, c: 0 * c},
    "influence_conformal": {"learner": GRADIENT, "num_labels": 3},
    "report": {"cp": jaxcp.calibrate(scores.Absolute(), np.zeros(9), np.arange(9.0))},
    "run": {"method": online.ACI(scores.Absolute(), 0.1)},
    "select_score": {"scores": scores.Absolute()},
    "singleton_rate": {"sets": LABELS},
    "train_score": {"temperature": 0.1, "alpha": 0.1},
    "worst_window_coverage": {"window": 3},
}
LOSS, HOST = "of one example", "reads boxes of each image on the host"
LEFT_OUT = dict.fromkeys(("calibrate_boxes", "match_images"), HOST)
LEFT_OUT |= {"propensity_box": "number by number"}
LOSSES = "false_discovery_rate false_negative_rate false_positive_count miscoverage"
LOSSES += " dice_loss iou_loss"
LEFT_OUT |= dict.fromkeys(LOSSES.split(), LOSS)


def doors():
    """Yields every public function with an argument that has rows."""
    for module in MODULES:
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and name not in LEFT_OUT:
                needed = {
                    k
                    for k, p in inspect.signature(function).parameters.items()
                    if p.default is p.empty and p.kind != p.VAR_KEYWORD
                }
                if needed & ROWS.keys():
                    family = module.__name__.removeprefix("jaxcp.")
                    yield f"{family}.{name}", function, needed


DOORS = {name: (function, needed) for name, function, needed in doors()}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_refuses_them_in_words(name):
    function, needed = DOORS[name]
    other = OWN.get(name, OWN.get(name.split(".")[-1], {}))
    given = {k: (OTHERS | ROWS).get(k) for k in needed} | other
    is_big = lambda v: isinstance(v, jax.ShapeDtypeStruct)  # noqa: E731
    big = {k: v for k, v in given.items() if any(map(is_big, jax.tree.leaves(v)))}
    fixed = {k: v for k, v in given.items() if k not in big}
    assert big
    with pytest.raises(ValueError, match=re.escape(WORDS)):
        jax.eval_shape(lambda big: function(**fixed, **big), big)


@pytest.mark.parametrize("name", [k for k in POINTWISE if k != "aggregate"])
def test_test_points_too(name):
    make, call = POINTWISE[name]
    with pytest.raises(ValueError, match=re.escape(WORDS)):
        jax.eval_shape(partial(call, make(30)), rows())


def test_scores_that_are_given_to_a_calibration():
    for call in (
        lambda s: jaxcp.Calibration(scores.Absolute(), s).quantile(0.1),
        lambda s: jaxcp.Calibration(scores.Absolute(), s, mask=s > 0).quantile(0.1),
        lambda s: jaxcp.Held(s).rank(0.1),
        lambda s: jaxcp.Held(s).threshold(jnp.int32(3)),
    ):
        with pytest.raises(ValueError, match=re.escape(WORDS)):
            jax.eval_shape(call, rows())


def test_shards_are_counted_together():
    """Each holds few enough, all together do not."""
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("rows",))
    of_all = partial(jax.shard_map, mesh=mesh, in_specs=P("rows"), out_specs=P())
    axis = {"axis_name": "rows"}
    for call in (
        lambda s: jaxcp.conformal_quantile(s, 0.1, **axis),
        lambda s: jaxcp.conformal_quantile(s, 0.1, mask=s > 0, **axis),
        lambda s: jaxcp.kth_smallest(s, 3, **axis),
    ):
        with pytest.raises(ValueError, match=re.escape(WORDS)):
            jax.eval_shape(lambda s, call=call: of_all(call)(s), rows())


def test_weights_whose_words_hold_few_bits():
    with pytest.raises(ValueError, match="at most 268435456 rows in single precision"):
        call = lambda s: jaxcp.weighted_select(s, s, 1.0)  # noqa: E731
        jax.eval_shape(call, rows(n=2**28 + 1))


ALPHAS = [0.1, Fraction(1, 3), 0.123456789012345]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_ranks_are_those_of_integers(alpha):
    """Known and traced, up to what integers of 32 bits hold and of 64."""
    alpha = as_alpha(alpha)
    traced = jax.jit(lambda n: ranks(n, alpha))
    sizes = [9, 10**6, 2**31 - 2]
    for is_double, more in ((False, []), (True, [MANY, 2**33, 10**17])):
        with jax.enable_x64(is_double):
            for n in sizes + more:
                expected = exact_rank(n, alpha.item())
                assert int(ranks(n, alpha)) == int(traced(n)) == expected
    with pytest.raises(ValueError, match=re.escape(WORDS)):
        ranks(MANY, alpha)


def lines_of(jaxpr):
    """Yields the operations of a program, with those inside of them."""
    for line in jaxpr.eqns:
        yield line
        for inner in jaxprs_in_params(line.params):
            yield from lines_of(inner)


@pytest.mark.parametrize("name", OF_SCORES)
def test_double_precision_counts_them(name):
    """No sum of many rows, running sum or place among them is of 32 bits."""
    with jax.enable_x64(True):
        program = jax.make_jaxpr(OF_SCORES[name])(rows(dtype="d"))
        assert all(leaf.dtype == jnp.float64 for leaf in program.out_avals)
        for line in lines_of(program.jaxpr):
            name, found = line.primitive.name, [v.aval for v in line.outvars][:1]
            for out in found:
                most = out.size if name in ("cumsum", "iota") else 0
                if name == "reduce_sum" and out.size:
                    most = line.invars[0].aval.size // out.size
                assert most < 2**20 or out.dtype.itemsize == 8


@pytest.mark.parametrize(
    "count", [np.uint64(2**63 + 5), np.uint32(2**32 - 1), jnp.uint32(2**32 - 1)]
)
def test_counts_of_any_type_are_refused(count):
    with pytest.raises(ValueError, match="expected at most 2147483646 rows"):
        jaxcp.conformal_rank(count, 0.1)
