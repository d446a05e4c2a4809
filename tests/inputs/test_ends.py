"""Values checked by their ends, here or far away: the errors of looking at each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxcp
from jaxcp import _checks, scores
from jaxcp.scores import inputs

N, K = 300, 4
BAD = {"nothing": None, "nan": np.nan, "below": -0.5, "above": 1.5, "inf": np.inf}
KINDS = {
    "probabilities": scores.LAC(),
    "logits": scores.LogLAC(),
    "flags": scores.MultiLabel(),
    "numbers": scores.Absolute(),
}


def message(score, preds, y, mask):
    try:
        inputs.check(score, preds, y, mask)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_every_value(kind, dtype, far, monkeypatch):
    """Whatever is bad, in a row that counts, is hidden, or without a mask."""
    score, masks = KINDS[kind], (None, jnp.arange(N) != 123, jnp.zeros(N, bool))
    y = {"flags": jnp.zeros((N, K)), "numbers": jnp.zeros((N, K))}.get(
        kind, jnp.zeros(N, int)
    )
    found, expected = [], []
    for value in BAD.values():
        preds = np.full((N, K), 1 / K, np.float32)
        if value is not None:
            preds[123, 1] = value
        preds = jnp.asarray(preds, dtype)
        for mask in masks:
            for target in (y, y if kind in ("flags", "numbers") else y.at[7].set(K)):
                with monkeypatch.context() as patch:
                    patch.setattr(_checks, "are_far", lambda v: far)
                    found.append(message(score, preds, target, mask))
                    patch.setattr(_checks, "are_between", lambda *_: False)
                    expected.append(message(score, preds, target, mask))
    assert found == expected
    assert (kind == "numbers" or any(found)) and None in found


def test_rows_that_are_just_off(monkeypatch):
    """A sum is judged in double precision where it is near what is allowed."""
    for off in (0.9e-3, 0.999e-3, 1.001e-3, 1.1e-3):
        p = jnp.full((N, K), 1 / K).at[5, 0].add(off)
        exact = np.asarray(p).sum(axis=1, dtype=float)
        for far in (False, True):
            monkeypatch.setattr(_checks, "are_far", lambda v, far=far: far)
            refused = message(scores.LAC(), p, None, None) is not None
            assert refused == (abs(exact[5] - 1) > 1e-3)


@pytest.mark.parametrize("place", [0, 20_000, 39_999])
def test_values_spread_over_devices(place):
    """The least of all devices may lack a NaN of one."""
    v, good = np.full(40_000, 0.5, np.float32), np.zeros(40_000, np.float32)
    v[place] = np.nan
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    v, good = (jax.device_put(a, rows) for a in (v, good))
    score, said = scores.Absolute(), f"without NaN, got nan at {place}"
    with pytest.raises(ValueError, match=f"preds {said}"):
        jaxcp.calibrate(score, v, good)
    with pytest.raises(ValueError, match=f"y {said}"):
        jaxcp.calibrate(score, good, v)
    with pytest.raises(ValueError, match=f"finite weights >= 0, got nan at {place}"):
        jaxcp.calibrate(score, good, good, weights=v)
    assert jaxcp.calibrate(score, good, good).quantile(0.1) == 0
