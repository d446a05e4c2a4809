"""Programs for accelerators, read as text: no accelerator is needed."""

import jax
import jax.numpy as jnp
import pytest

import jaxcp
from jaxcp import scores

QUANTILE = lambda v: jaxcp.conformal_quantile(v, 0.1)  # noqa: E731
WEIGHTED = lambda v, w: jaxcp.weighted_conformal_quantile(v, w, 0.1)  # noqa: E731
LABEL_SCORES = {
    "LAC": scores.LAC(),
    "APS": scores.APS(),
    "RAPS": scores.RAPS(0.01, 5),
    "SAPS": scores.SAPS(0.1),
}
# Shapes of the arguments, and loops of the program: of bits, and of what scores add.
KERNELS = {
    "vector": (QUANTILE, [(1000,)], 1),
    "rows": (jax.vmap(QUANTILE), [(10**5, 100)], 1),
    "weighted": (WEIGHTED, [(10**6,), (10**6,)], 1),
    "weighted, far": (WEIGHTED, [(10**8,), (10**8,)], 1),
}


def text_for(platform, call, *shapes):
    """Returns the program for a platform: traced by shapes, in no memory."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = jax.jit(lambda *v: call(*v)).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def loops_without_sort(text):
    assert "stablehlo.sort" not in text and "custom_call" not in text
    return text.count("stablehlo.while")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", KERNELS)
def test_selections_are_one_loop(name, platform):
    call, shapes, loops = KERNELS[name]
    text = text_for(platform, call, *shapes)
    assert loops_without_sort(text) == loops and "xi8>" not in text


@pytest.mark.parametrize("shape", [(10**8,), (3, 2 * 10**7)])
def test_far_keys_are_counted_in_bytes_on_cuda(shape):
    call = QUANTILE if len(shape) == 1 else jax.vmap(QUANTILE)
    texts = {p: text_for(p, call, shape) for p in ("cpu", "cuda", "tpu")}
    assert loops_without_sort(texts["tpu"]) == 1 and "xi8>" not in texts["tpu"]
    assert loops_without_sort(texts["cuda"]) >= 4 and "xi8>" in texts["cuda"]
    assert texts["cuda"] == texts["cpu"]


@pytest.mark.parametrize("name", LABEL_SCORES)
def test_label_sets_are_one_block_on_accelerators(name, monkeypatch):
    """On a CPU 50,000 x 1000 probabilities are a loop of blocks that fit its cache."""
    score = LABEL_SCORES[name]
    preds, y = jnp.full((600, 1000), 1e-3), jnp.arange(600)  # fewer are sorted
    cp = jaxcp.calibrate(score, preds, y)
    loops = {}
    for i, platform in enumerate(("cpu", "cuda", "tpu")):
        monkeypatch.setattr(jax, "default_backend", lambda name=platform: name)
        shape = 50_000 + i, 1000  # of its own, or jax would use an earlier trace
        text = text_for(platform, lambda p: cp(p, alpha=0.1), shape)
        loops[platform] = loops_without_sort(text)
        assert ("tensor<96x521x1000xf32>" in text) == (platform == "cpu")
    assert loops["cuda"] == loops["tpu"] == loops["cpu"] - 1


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_groups_are_selected_without_a_sort(platform):
    groups = lambda v: jaxcp.grouped_conformal_quantile(  # noqa: E731
        v, jnp.arange(len(v)) % 100, 0.1, num_groups=100
    )
    loops_without_sort(text_for(platform, groups, (10**5,)))
