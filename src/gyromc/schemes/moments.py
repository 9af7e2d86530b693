"""Second moments of stochastic gradients under the posterior: P = E[∇²U] and Σ = E[Cov(ĝ | θ)], so that E[ĝĝᵀ] = P + Σ (T7).

Input: a plan. Output: `GradientMoments`, exact on a Gaussian target with noise that is quadratic in θ; elsewhere over an
importance sample where that can be trusted, and from the gradients of a short pilot run where it cannot. Computed once for each
oracle of a model and frozen: nothing adapts while a chain is averaged.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled
from gyromc.oracle_moments import mean_covariance
from gyromc.oracles import Exact
from gyromc.targets.regressions import WithLikelihood

MOST_PARAMETERS = 60  # for importance sampling
MOST_CURVED = 4e8  # multiplications for a mean curvature
POINTS = 512  # at which curvature and noise are averaged
MOST_DENSE = 512  # parameters: above, the pilot keeps diagonals
PILOT_CHAINS, PILOT_STEPS = 8, 500
SMALLER = 8  # the pilot's step size, against the plan's


@dataclasses.dataclass(frozen=True, eq=False)
class GradientMoments:
    """P and Σ of ∇U and ĝ: d × d, or d numbers where only diagonals are kept."""

    curvature: np.ndarray
    noise: np.ndarray
    source: str

    @property
    def second(self) -> np.ndarray:
        """S = E[ĝĝᵀ]."""
        return self.curvature + self.noise  # T7

    def of_state(self, augmented: bool) -> tuple[np.ndarray, np.ndarray]:
        """P and Σ of the gradient of H = U + ½|r|²."""
        return augment(self.curvature, augmented), augment(self.noise, augmented, of_momenta=0.0)


def gradient_moments(plan: Any) -> GradientMoments:
    """P and Σ for a plan's model and oracle, computed once for both."""
    kept, key = plan.model._kept, ("gradient moments", id(plan.oracle))
    if key not in kept:
        kept[key] = plan.oracle, _gradient_moments(plan)  # the oracle stays alive, so that its id stays its own
    return kept[key][1]


def _gradient_moments(plan: Any) -> GradientMoments:
    model, target = plan.model, plan.flat_target
    known = target.gaussian()
    if known is not None:
        K, mean = known
        root = np.linalg.cholesky(np.linalg.inv(K))
        d = len(mean)
        points = mean + math.sqrt(d) * np.concatenate([root.T, -root.T])  # the mean of a quadratic function is exact
        return GradientMoments(K, _noise(plan, points), "exact")
    if model.dim <= MOST_PARAMETERS:
        rows = _points(model)
        if rows is not None:
            return GradientMoments(_curvature(model, rows), _noise(plan, rows), model.trusted_sample.source)
    return _pilot(plan)


def _curvature(model: Any, rows: np.ndarray) -> np.ndarray:
    """E[∇²U]: of a regression by its own formula; of others E[∇U∇Uᵀ] over all draws, which is the same without Hessians."""
    target = model.flat_target
    if isinstance(target, WithLikelihood):
        return target.mean_hessian(rows[: max(16, int(MOST_CURVED / (target.num_data * model.dim)))])
    sample = model.trusted_sample
    slopes = target.gradients(sample.theta)
    return (slopes.T * sample.weights) @ slopes


def _noise(plan: Any, rows: np.ndarray) -> np.ndarray:
    if isinstance(plan.oracle, Exact):
        return np.zeros((plan.dim, plan.dim))
    return mean_covariance(plan.flat_target, plan.prepared_oracle, rows)


def _points(model: Any) -> np.ndarray | None:
    """Points of the posterior, equally weighted; None where no importance sample can be had or trusted."""
    try:
        sample = model.trusted_sample
    except InvalidInput:  # no mode
        return None
    if sample is None:
        return None
    return sample.theta[np.random.default_rng(0).choice(len(sample.weights), POINTS, p=sample.weights)]


def _pilot(plan: Any) -> GradientMoments:
    """From gradients alone: a short Euler run, two independent gradients at every state.

    E[ĝ₁ĝ₂ᵀ] over two independent gradients at one point is E[∇U∇Uᵀ] = P, and E[ĝ₁ĝ₁ᵀ] is P + Σ.
    """
    diagonal = plan.dim > MOST_DENSE
    chains = 1 if diagonal else PILOT_CHAINS
    eta, steps, d = plan.eta / SMALLER, PILOT_STEPS, plan.dim
    with jax.enable_x64(True):
        target, oracle, dynamics = doubled((plan.flat_target, plan.prepared_oracle, plan.dynamics))
        start = jnp.broadcast_to(jnp.asarray(plan.model.start), (chains, d))
        z = jnp.concatenate([start, jnp.zeros((chains, dynamics.size - d))], axis=1)

        def gradients(key, theta):
            zeta = oracle.draw(key, target, chains, d, theta.dtype)
            return jax.vmap(lambda t, s: oracle.gradient(target, t, s))(theta, zeta)

        def step(carry, key):
            z, first, second, k = carry
            one, two, noise = jax.random.split(key, 3)
            g, other = gradients(one, z[:, :d]), gradients(two, z[:, :d])
            product = (lambda a, b: jnp.mean(a * b, axis=0)) if diagonal else (lambda a, b: a.T @ b / chains)
            counted = k >= steps // 2
            first = first + jnp.where(counted, product(g, g) + product(other, other), 0) / 2
            second = second + jnp.where(counted, product(g, other) + product(other, g), 0) / 2
            full = jnp.concatenate([g, z[:, d:]], axis=1)
            xi = jax.random.normal(noise, z.shape, z.dtype)
            drawn = jax.vmap(dynamics.noise)(xi)
            return (z - eta * jax.vmap(dynamics.drift)(full) + jnp.sqrt(2 * eta) * drawn, first, second, k + 1), None

        zero = jnp.zeros(d if diagonal else (d, d))
        keys = jax.random.split(jax.random.key(plan.seed), steps)
        (_, first, second, _), _ = jax.jit(lambda: jax.lax.scan(step, (z, zero, zero, 0), keys))()
    counted = steps - steps // 2
    S, P = np.asarray(first) / counted, np.asarray(second) / counted
    if not np.all(np.isfinite(S)):
        raise InvalidInput(
            "The second moment S of the gradients cannot be estimated: a pilot run from the start diverged. Pass `S` to "
            "`balanced`, a smaller `step_size`, or a `start` near the mode."
        )
    return GradientMoments(P, S - P, f"a pilot run of {steps} steps")
