"""Which latent sites of a model have a scale that is itself sampled: the necks of funnels.

Input: a posterior. Output: {site: the latent sites that its scale depends on}, read off the computation of the scale.
"""

from typing import Any

import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro import handlers

from gyromc.dependence import indices_read
from gyromc.interop.numpyro.posterior import Posterior

__all__ = ["scaled_by_latent"]


def scaled_by_latent(target: Posterior) -> dict[str, tuple[str, ...]]:
    """The latent sites whose distribution has a scale that depends on other latent sites."""

    def scales(theta) -> dict[str, Any]:
        args, kwargs = target.given()
        values = target.constrained(theta, deterministic=False)
        sites = handlers.trace(handlers.substitute(target.on(None), data=values)).get_trace(*args, **kwargs)
        return {name: _scale(sites[name]["fn"]) for name in target.sites}

    found = {}
    for name in target.sites:
        read = indices_read(lambda theta, name=name: jnp.sum(jnp.asarray(scales(theta)[name], float)), target.dim)
        others = tuple(site for site in target.sites_of(read) if site != name)
        if others:
            found[name] = others
    return found


def _scale(distribution) -> Any:
    """The scale of a location-scale family, behind its wrappers; 0 where there is none."""
    while isinstance(distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        distribution = distribution.base_dist
    if not isinstance(distribution.support, type(dist.constraints.real)) and not isinstance(
        distribution, dist.MultivariateNormal
    ):
        return 0.0
    return getattr(distribution, "scale", getattr(distribution, "scale_tril", 0.0))
