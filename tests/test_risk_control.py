from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import risk
from jaxcp.scores import Custom, MultiLabel

REFERENCE = Path(__file__).parent / "reference" / "risk"
FNR = risk.false_negative_rate


def cases(name):
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        found = {}
        for key in file.files:
            case, what = key.split("__")
            found.setdefault(case, {})[what] = file[key]
    return found


CRC, TABLES, RCPS = map(cases, ("crc", "crc_tables", "rcps"))
COLUMN = Custom(lambda pred, y: pred, inverse=lambda pred, q: q)  # the set is q


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def x64(request):
    with jax.enable_x64(request.param):
        yield request.param


def entry(column, losses):
    """The loss in the column that a threshold names; the first and last beyond."""
    place = jnp.clip(jnp.floor(column), 0, len(losses) - 1)
    return losses[jnp.nan_to_num(place).astype(int)]


def calibrate_table(losses, loss=entry, **options):
    size = losses.shape[1]
    options = {"grid": np.arange(float(size))} | options
    return risk.calibrate_risk(loss, COLUMN, np.zeros(len(losses)), losses, **options)


def index_of(q):
    return np.where(np.isinf(q) & (np.asarray(q) > 0), -1, q)


@pytest.mark.parametrize("case", CRC)
def test_false_negative_rates_are_controlled_to_the_float(case, x64):
    v = CRC[case]
    bound = float(Fraction(str(v["bound"])))
    options = {"bound": bound}
    calibrated = partial(risk.calibrate_risk, FNR, MultiLabel(), **options)
    if bound < 1:  # of the vectors alone: known losses beyond it would be refused
        calibrated = jax.jit(calibrated)
    cp = calibrated(jnp.asarray(1 - v["e"], float), v["y"])
    for alpha, q, mean in zip(v["alphas"], v["q"], v["risk"], strict=True):
        found = cp.quantile(Fraction(str(alpha)))
        assert_array_equal(found, q.astype(found.dtype))
        assert_allclose(cp.risk(found), mean, atol=1e-6)


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_losses(case):
    v = TABLES[case]
    bound = float(Fraction(str(v["bound"])))
    with jax.enable_x64(True):
        cp = calibrate_table(v["losses"], bound=bound)
        weighted = calibrate_table(v["losses"], bound=bound, weights=v["weights"])
        tail = calibrate_table(v["losses"], bound=bound, tail=float(v["tau"]))
        rough = calibrate_table(v["rough"], bound=bound, monotone=False)
        groups = {"groups": v["groups"], "num_groups": int(v["num_groups"])}
        groups = calibrate_table(v["losses"], bound=bound, **groups)
        for i, alpha in enumerate(v["alphas"]):
            alpha = Fraction(str(alpha))
            assert index_of(cp.quantile(alpha)) == v["index"][i]
            found = [weighted.quantile(alpha, test_weight=w) for w in v["test_weights"]]
            assert_array_equal(index_of(found), v["windex"][i])
            assert_array_equal(index_of(groups.quantile(alpha)), v["group_index"][i])
            assert index_of(rough.quantile(alpha)) == v["mono_index"][i]
            if alpha < 1:
                assert index_of(tail.quantile(alpha)) == v["quantile_index"][i]
