"""First effects of a finite step size: the bias to first order in η, and what the oracle's noise adds to V.

Input: a plan, a weighted sample and φ with 𝒜φ = h - μ(h). Output: `StepEffects`. With E[f(z⁺)] = f + η𝒜f + η²ℬf + … the
stationary law has π_η(h) - μ(h) = -ημ(ℬφ) + …, and integration by parts gives
    -μ(ℬφ) = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ GΣGᵀ)), G = D+Q, Σ(θ) the oracle's covariance,
for Euler-Maruyama. Balanced noise has GΣGᵀ - GSGᵀ instead of GΣGᵀ; a scheme of second order has the last term only, with what it
takes off its noise subtracted (`scheme_effects.first_order`).
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from gyromc.oracles.moments import oracle_covariances
from gyromc.plan import Plan
from gyromc.prediction.arrival import NEAR, arrive, mean_step, some_starts
from gyromc.prediction.methods import Number
from gyromc.prediction.poisson.hermite import Polynomial
from gyromc.prediction.scheme_effects import first_order, no_first_order
from gyromc.shape.importance import Sample

DRAWS = 4000
POINTS = 2000  # draws with Hessians
MOST_NUMBERS = 4_000_000  # in the Hessians of all points


@dataclasses.dataclass(frozen=True, eq=False)
class StepEffects:
    """The first effects of a plan's step size, from one set of draws for all observables."""

    plan: Plan
    sample: Sample

    @functools.cached_property
    def draws(self) -> tuple[np.ndarray, np.ndarray]:
        """z and ∇H."""
        return draws_with_forces(self.plan, self.sample, DRAWS)

    @functools.cached_property
    def _points(self) -> np.ndarray:
        """The draws at which Hessians are evaluated."""
        return self.draws[0][: min(POINTS, max(200, MOST_NUMBERS // self.plan.dynamics.size**2))]

    @functools.cached_property
    def _noise(self) -> np.ndarray:
        """GΣGᵀ."""
        return noise_of_drift(self.plan, self._points)

    @functools.cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """G∇²H Q∇H, and G∇²H D + GΣGᵀ - less; without the parts of the drift for a scheme of second order."""
        order = first_order(self.plan)
        assert order is not None
        if not order.drift:
            return np.zeros_like(self._points), self._noise - order.less
        z, d, D, Q = self._points, self.plan.dim, self.plan.dynamics.D, self.plan.dynamics.Q
        K = np.broadcast_to(np.eye(z.shape[1]), (len(z), z.shape[1], z.shape[1])).copy()
        K[:, :d, :d] = self.plan.flat_target.hessians(z[:, :d])
        turned = np.einsum("sjk,sk->sj", K, self.draws[1][: len(z)] @ Q.T) @ (D + Q).T
        return turned, np.einsum("ij,sjk,kl->sil", D + Q, K, D, optimize=True) + self._noise - order.less

    def floor(self, poisson: Polynomial) -> float:
        """s: N·Var is V/η + s + …"""
        return floor_over(poisson, self._points, self._noise)

    def slope(self, poisson: Polynomial) -> Number | None:
        """The bias per unit of step size for φ of degree at least 2 (a linear φ gives none), and its standard error.

        None where the scheme has no first order, or where it is not known.
        """
        if no_first_order(self.plan) or first_order(self.plan) is None:
            return None
        turned, bending = self._factors
        rotated = np.sum(poisson.gradients(self._points) * turned, axis=1)
        bent = np.einsum("sij,sji->s", poisson.hessians(self._points), bending)
        terms = (rotated - bent) / 2
        return Number(float(np.mean(terms)), float(np.std(terms) / np.sqrt(len(terms))))

    def transient(self, poisson: Polynomial, h: Callable[[np.ndarray], np.ndarray]) -> Number | None:
        """Σ_k η(E h(z_k) - μ(h)) from the plan's starts, h given as h - μ(h) of rows of θ; None where they do not arrive.

        Beyond three standard deviations a fitted φ is unreliable: there a start follows the chain without noise.
        """
        plan, d = self.plan, self.plan.dim
        center, root = self.sample.moments()

        def inside(z):
            return np.sum(np.linalg.solve(root, (z[:, :d] - center).T) ** 2, axis=0) <= NEAR**2 * d

        found = arrive(some_starts(plan), inside, mean_step(plan), lambda z: h(z[:, :d]), plan.num_steps)
        if found is None:
            return None
        return Number(plan.eta * found.total - float(np.mean(poisson.values(found.z))), plan.eta * found.error)


def draws_with_forces(plan: Plan, sample: Sample, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Up to `points` draws of z = (θ, r) from a weighted sample of θ, and ∇H at each."""
    rng = np.random.default_rng(0)
    theta = sample.theta[rng.choice(len(sample.theta), min(points, len(sample.theta)), p=sample.weights)]
    z = with_momenta(plan, theta, rng)
    return z, np.concatenate([plan.flat_target.gradients(theta), z[:, plan.dim :]], axis=1)


def with_momenta(plan: Plan, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of z from rows of θ: standard normal momenta are added where the plan has some."""
    r = rng.standard_normal(theta.shape) if plan.augmented else np.zeros((len(theta), 0))
    return np.concatenate([theta, r], axis=1)


def noise_of_drift(plan: Plan, z: np.ndarray) -> np.ndarray:
    """GΣ(θ)Gᵀ at rows of z: the covariance that the oracle gives the drift."""
    G, d = plan.dynamics.D + plan.dynamics.Q, plan.dim
    Sigma = oracle_covariances(plan.flat_target, plan.prepared_oracle, z[:, :d])
    return np.einsum("ij,sjk,lk->sil", G[:, :d], Sigma, G[:, :d], optimize=True)


def floor_over(poisson: Polynomial, z: np.ndarray, noise: np.ndarray) -> float:
    """s = μ(⟨∇φ, GΣGᵀ∇φ⟩) over rows of z, `noise` from `noise_of_drift`: what the oracle adds to N·Var."""
    slope = poisson.gradients(z)
    return float(np.mean(np.einsum("si,sij,sj->s", slope, noise, slope, optimize=True)))  # T1: s
