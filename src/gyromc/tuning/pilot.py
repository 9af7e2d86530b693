"""A pilot run: where the law of a target lies and how wide it is, where no mode says so.

A target over vectors and a start in; a `Pilot` out: states of many chains, their mean and covariance, and whether they settled.
The chains are Langevin with a Metropolis test, so that no step size makes them diverge; step size and covariance adapt while
they run. They are a start and a scale for a plan, not an estimate.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.evaluation import doubled
from gyromc.shape.laplace import Laplace
from gyromc.targets import Target

__all__ = ["Pilot", "pilot"]

CHAINS, STEPS, ROUNDS = 64, 150, 10
RADIUS = 2.0  # starts are uniform over so much around the start, as in NumPyro
ACCEPTED = 0.57  # of the proposals, the best share for Langevin proposals
ADAPTS = 0.3
GROWS = 1.6  # a spread that is this much larger in the last rounds than in those before has not settled
LEAST_ACCEPTED = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Pilot:
    """What a pilot run found: the last states of its chains, mean and precision over the last rounds, and what did not settle."""

    states: np.ndarray
    center: Laplace
    unsettled: np.ndarray  # coordinates whose spread still grew


def pilot(target: Target, start: np.ndarray, seed: int = 0) -> Pilot | None:
    """A pilot run from points around `start`; None where the density is not finite there or nothing moves."""
    rng = np.random.default_rng(seed)
    around = start + rng.uniform(-RADIUS, RADIUS, (8 * CHAINS, len(start)))
    U, slopes = target.potentials(around), target.gradients(around)
    fit = around[np.isfinite(U) & np.all(np.isfinite(slopes), axis=1)]
    if not len(fit):
        return None
    x = fit[rng.choice(len(fit), CHAINS, replace=len(fit) < CHAINS)]
    root, log_step, parts = np.eye(len(start)), math.log(0.1), []
    for turn in range(ROUNDS):
        with jax.enable_x64(True):
            key = jax.random.fold_in(jax.random.key(seed), turn)
            moved = _round(doubled(target), key, jnp.asarray(x), jnp.asarray(root), jnp.asarray(log_step))
        x, log_step, path, share = (np.asarray(part, float) for part in moved)
        parts.append(path.reshape(-1, len(start)))
        root = _root(parts[-1])
    if share < LEAST_ACCEPTED or not np.all(np.isfinite(x)):
        return None
    late, before = np.concatenate(parts[-ROUNDS // 3 :]), np.concatenate(parts[ROUNDS // 3 : -ROUNDS // 3])
    covariance = _covariance(np.concatenate([before, late]))
    grown = np.std(late, axis=0) > GROWS * np.std(before, axis=0)
    return Pilot(x, Laplace(late.mean(axis=0), np.linalg.inv(covariance)), np.flatnonzero(grown))


def _covariance(rows: np.ndarray) -> np.ndarray:
    """The covariance, with a little of its diagonal so that it is positive definite."""
    found = np.atleast_2d(np.cov(rows.T))
    return 0.95 * found + 0.05 * np.diag(np.diag(found)) + 1e-12 * np.eye(len(found))


def _root(rows: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(_covariance(rows))


@eqx.filter_jit
def _round(target: Target, key, x, root, log_step):
    """`STEPS` steps of every chain: last states, step size, every tenth state, and the share of proposals accepted at the end."""
    energy = jax.vmap(jax.value_and_grad(target.potential))

    def log_proposal(to, start, slope, step):
        white = jax.scipy.linalg.solve_triangular(root, (to - start).T, lower=True).T + step * slope @ root
        return -jnp.sum(white**2, axis=1) / (4 * step)

    def one(carry, key):
        x, U, slope, log_step = carry
        step, (key_noise, key_test) = jnp.exp(log_step), jax.random.split(key)
        noise = jax.random.normal(key_noise, x.shape, x.dtype)
        to = x + (jnp.sqrt(2 * step) * noise - step * slope @ root) @ root.T
        U_to, slope_to = energy(to)
        gain = U - U_to + log_proposal(x, to, slope_to, step) - log_proposal(to, x, slope, step)
        chance = jnp.where(
            jnp.isfinite(gain) & jnp.all(jnp.isfinite(slope_to), axis=1), jnp.exp(jnp.minimum(gain, 0)), 0
        )
        taken = jax.random.uniform(key_test, chance.shape) < chance
        x, slope = (jnp.where(taken[:, None], new, old) for new, old in ((to, x), (slope_to, slope)))
        share = jnp.mean(chance)
        return (x, jnp.where(taken, U_to, U), slope, log_step + ADAPTS * (share - ACCEPTED)), (x, share)

    (x, _, _, log_step), (path, shares) = jax.lax.scan(one, (x, *energy(x), log_step), jax.random.split(key, STEPS))
    return x, log_step, path[STEPS // 2 :: 10], jnp.mean(shares[STEPS // 2 :])
