"""A pilot run of NumPyro's NUTS: where a posterior lies and how wide it is, where its mode does not say so.

Input: a posterior. Output: a `Pilot`: draws as vectors, their mean and covariance, and what did not settle. It is short: a start
and a scale for a plan, not an estimate.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from gyromc.evaluation import doubled
from gyromc.interop.numpyro.posterior import Posterior
from gyromc.shape.laplace import Laplace
from gyromc.tuning.outline import Pilot

__all__ = ["pilot"]

CHAINS, WARMUP, DRAWS = 8, 300, 200
RADIUS = 2.0  # starts are uniform over so much around the origin, as in NumPyro
UNSETTLED = 1.8  # R-hat


def pilot(target: Posterior, seed: int = 0) -> Pilot | None:
    """A short NUTS run; None where the density is not finite around the origin."""
    points = np.random.default_rng(seed).uniform(-RADIUS, RADIUS, (16 * CHAINS, target.dim))
    usable = points[np.isfinite(target.potentials(points)) & np.all(np.isfinite(target.gradients(points)), axis=1)]
    if not len(usable):
        return None
    with jax.enable_x64(True):
        pieces = doubled(target)
        sampler = MCMC(
            NUTS(potential_fn=lambda theta: pieces.potential(theta)),
            num_warmup=WARMUP,
            num_samples=DRAWS,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(seed), init_params=jnp.asarray(usable[np.arange(CHAINS) % len(usable)]))
        drawn = np.asarray(sampler.get_samples(group_by_chain=True), float)
    if not np.all(np.isfinite(drawn)):
        return None
    with np.errstate(all="ignore"):
        moving = ~(split_gelman_rubin(drawn) < UNSETTLED)
    rows = drawn.reshape(-1, target.dim)
    found = np.atleast_2d(np.cov(rows.T))
    covariance = 0.95 * found + np.diag(0.05 * np.diag(found) + 1e-12)  # positive definite from few draws
    return Pilot(rows, Laplace(rows.mean(axis=0), np.linalg.inv(covariance)), np.flatnonzero(moving))
