"""What holds for every stream: a new method is one row of `STREAMS`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from streams import METHODS, STREAMS, D, FadingSteps, LastScore, Y

import jaxcp
from helpers import same
from jaxcp import online

pytestmark = pytest.mark.double
each_stream = pytest.mark.parametrize("name", STREAMS)
BESIDE = {"ByGroup", "Delayed", "Queue", "SPCI"}  # in files of their own
BESIDE |= {"ChangeMonitor", "ExchangeabilityMonitor", "RiskMonitor"}
BESIDE |= {"Stream", "confidence_sequence", "nexcp_weights", "run"}


def test_the_table_has_every_method():
    names = {type(method).__name__ for method in METHODS.values()}
    assert names == set(online.__all__) - BESIDE


@pytest.mark.parametrize("delay", [None, D], ids=["at once", "late"])
@each_stream
def test_pieces_steps_and_files_are_the_run_to_the_last_bit(name, delay, tmp_path):
    """No rows, three one by one, and the others after a file."""
    case, late = STREAMS[name], {"delay": delay}
    method = case.method
    # Tangents, and steps of other programs, may round in their own way.
    rtol = 1e-5 if name == "pid" else 1e-6 if delay is None else 0
    compare = partial(assert_allclose, rtol=rtol)
    whole, sets = case.run(case.start(), **late)
    state, none = case.run(case.start(), last=0, **late)
    assert len(none) == 0
    same(state if delay is None else state.state, case.start())
    uppers = []
    for t in range(3):
        pred = case.preds(t)
        before = method.predict(state, pred, 0.1)
        after, now = method.step(state, pred, Y[t], 0.1)
        assert_array_equal(before.upper, now.upper)
        same(method.update(state, pred, Y[t], 0.1), after)
        if delay is None:  # plain numbers; the threshold of now is that of the set
            same(method.update(state, pred, float(Y[t]), 0.1), after)
            q = case.threshold(method.quantile(state, 0.1), t)
            same(method.update(state, pred, Y[t], 0.1, threshold=q), after)
            assert_array_equal(method.score.invert(pred, q).upper, now.upper)
        uppers.append(now.upper)
        state = after
    with jax.no_tracing():  # a live stream compiles once
        method.step(state, pred, Y[t], 0.1)
        method.predict(state, pred, 0.1)
    jaxcp.save(tmp_path / "stream", (method, state))
    again, state = jaxcp.load(tmp_path / "stream", types={FadingSteps, LastScore})
    same(again, method)
    state, rest = case.run(state, first=3, method=again)
    compare(np.concatenate([np.stack(uppers), rest.upper]), sets.upper)
    assert jax.tree.structure(state) == jax.tree.structure(whole)
    jax.tree.map(compare, state, whole)


@each_stream
def test_series_and_hyperparameters_batch(name):
    """Two series at once, each with numbers of its own in place of the method's."""
    case = STREAMS[name]
    more = jax.tree.map(lambda v: 0.9 * jnp.asarray(v), case.method)
    methods, series = (case.method, more), (Y, 2 * Y)

    def ends(method, y):
        return case.run(case.start(method), y=y, method=method)[1].upper

    stack = partial(jax.tree.map, lambda *v: jnp.stack(jnp.asarray(v)))
    found = jax.jit(jax.vmap(ends))(stack(*methods), stack(*series))
    for i in range(2):
        assert_allclose(found[i], ends(methods[i], series[i]), rtol=1e-5, atol=1e-6)
