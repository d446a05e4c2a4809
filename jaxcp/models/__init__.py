"""Small generative models: laws of y given x, trained in one scan. They need flax.

Each is a description with `fit(key, x, y) -> params` and, as far as the model has them,
the pure functions `sample(params, key, x, n)`, `log_prob(params, x, y)`,
`to_latent(params, x, y)` and `from_latent(params, x, z)` of one example. Any other
model with these functions plugs into the same scores.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.models.flows import CouplingFlow, FlowMatching
    from jaxcp.models.mixtures import GaussianNetwork, MixtureNetwork

__all__ = ["CouplingFlow", "FlowMatching", "GaussianNetwork", "MixtureNetwork"]
