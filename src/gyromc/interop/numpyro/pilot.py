"""A pilot run of NumPyro's NUTS: where a posterior lies and how wide it is, where its modes do not say so.

Input: a posterior. Output: draws in rows of unconstrained parameters, for the survey of a tuning. It is short: starts and scales
for a plan, not an estimate.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from gyromc.checks import require
from gyromc.evaluation import doubled, spend
from gyromc.interop.numpyro.posterior import Posterior

__all__ = ["pilot"]

CHAINS, WARMUP, DRAWS = 8, 300, 200
RADIUS = 2.0  # starts are uniform over so much around the origin, as in NumPyro
UNSETTLED = 1.8  # R-hat


def pilot(target: Posterior, seed: int = 0) -> np.ndarray | None:
    """The draws of a short NUTS run, in rows; None where the density is not finite around the origin.

    `InvalidInput` names the sites in which the chains do not agree.
    """
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
        starts = jnp.asarray(usable[np.arange(CHAINS) % len(usable)])
        sampler.run(jax.random.key(seed), init_params=starts, extra_fields=("num_steps",))
        drawn = np.asarray(sampler.get_samples(group_by_chain=True), float)
        length = float(np.mean(sampler.get_extra_fields()["num_steps"]))
    spend(length * CHAINS * (WARMUP + DRAWS))  # steps of the warm-up are taken to be as long as those of the draws
    if not np.all(np.isfinite(drawn)):
        return None
    with np.errstate(all="ignore"):
        moving = np.flatnonzero(~(split_gelman_rubin(drawn) < UNSETTLED))
    require(
        not len(moving),
        "No plan can be recommended: the posterior is far from Gaussian, and a pilot run of NUTS does not settle. Look at "
        f"{', '.join(map(repr, target.sites_of(moving)))}: give weak priors to sites that the data leave open.",
    )
    return drawn.reshape(-1, target.dim)
