"""First effects of a finite step size: the bias of first order in η, what the oracle's noise adds to V, and the start.

Input: a plan, a weighted sample and φ with 𝒜φ = h - μ(h). Output: `StepEffects`. With E[f(z⁺)] = f + η𝒜f + η²ℬf + … the
stationary law has π_η(h) - μ(h) = -ημ(ℬφ) + …, and integration by parts gives
    -μ(ℬφ) = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ GΣGᵀ)), G = D+Q, Σ(θ) the oracle's covariance,
for Euler-Maruyama. Balanced noise has GΣGᵀ - GSGᵀ instead of GΣGᵀ; a scheme of second order has the last term only, with what it
takes off its noise subtracted (`first_order`). From a start far out,
where no φ can be trusted, chains are followed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import linalg

from gyromc.approx.sample import Sample
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.martingale import doubled_sum, projection
from gyromc.observables import Observable
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.exact.chain import LinearChain, Noise, batch_noise, chain_around, oracle_noise
from gyromc.prediction.exact.closed_forms import fluctuation_constant, quadratic_fluctuation_constant
from gyromc.prediction.following import SETTINGS, Transient, followed
from gyromc.prediction.poisson.plug_in import Polynomial
from gyromc.schemes import Balanced, StepMatrices, step_matrices
from gyromc.schemes.integrators import LeimkuhlerMatthews
from gyromc.schemes.moments import gradient_moments, oracle_covariances

MOST_DENSE = 512  # parameters
MOST_TURNS = 300  # of the iteration for a stationary covariance
SAME = 1e-6  # relative change at which it stops
NOTHING = 1e-9  # share of the noise that is rounding


def brought(plan: Plan) -> np.ndarray:
    """GSGᵀ, S = E[ĝĝᵀ], for a balanced scheme: the covariance per η² that it leaves to the gradients; 0 for others."""
    D, G = plan.dynamics.D, plan.dynamics.D + plan.dynamics.Q
    if not isinstance(plan.scheme, Balanced):
        return np.zeros_like(D)
    own = plan.scheme.second_moment
    S = gradient_moments(plan).second if own is None else own.dense()
    S = np.diag(S) if S.ndim == 1 else S
    return G @ (S if len(S) == len(D) else augment(S, plan.augmented)) @ G.T  # T7


def noise_limit(plan: Plan) -> float:
    """The largest step size at which a balanced scheme has noise left to draw, W = 2ηD - η²GSGᵀ ⪰ 0; infinite for others."""
    if not isinstance(plan.scheme, Balanced):
        return math.inf
    top = float(linalg.eigh(brought(plan), plan.dynamics.D, eigvals_only=True)[-1])
    return 2 / top if top > 0 else math.inf


def additive_noise(plan: Plan) -> np.ndarray:
    """GΣGᵀ: what an additive oracle adds to the covariance of the drift, per η²; 0 for others."""
    G = (plan.dynamics.D + plan.dynamics.Q)[:, : plan.dim]
    return (float(plan.oracle.tau) ** 2 if isinstance(plan.oracle, Gaussian) else 0.0) * G @ G.T


class FirstOrder(NamedTuple):
    """The first order of a scheme's bias: E[f(z⁺)] = f + η𝒜f + η²ℬf + …, ℬ = ℬ_drift + ½tr((GΣGᵀ - less)∇²f)."""

    drift: bool  # whether ℬ_drift is Euler's; for a scheme of second order there is none
    less: np.ndarray  # n × n


@functools.lru_cache(maxsize=16)
def first_order(plan: Plan) -> FirstOrder | None:
    """The first order of a plan's scheme; None where it is not known."""
    scheme, none = plan.scheme, np.zeros_like(plan.dynamics.D)
    if scheme.is_euler:
        return FirstOrder(True, none)
    if isinstance(scheme, Balanced):
        return FirstOrder(True, brought(plan))
    if not scheme.linear or scheme.order < 2:
        return None
    if plan.scheduled or isinstance(plan.oracle, Exact):
        return FirstOrder(False, none)
    if plan.dim > MOST_DENSE:
        return None
    if isinstance(scheme, LeimkuhlerMatthews):  # it takes off DΣD, and more of higher order in η
        G = plan.dynamics.D + plan.dynamics.Q
        return FirstOrder(False, G @ gradient_moments(plan).of_state(plan.augmented)[1] @ G.T)
    full = _covariance(step_matrices(scheme, plan.dynamics, plan.eta))
    return FirstOrder(False, (full - _covariance(plan.step_matrices)) / plan.eta**2)


def _covariance(step: StepMatrices) -> np.ndarray:
    """Of what one draw of ξ adds to z: now, and through the memory in the next step."""
    n = step.n
    whole = step.C[:n] + step.A[:n, n:] @ step.C[n:]
    return whole @ whole.T


def no_first_order(plan: Plan) -> bool:
    """Whether the bias is of second order in η: the scheme is, and takes off all the noise that its gradients bring."""
    found = first_order(plan)
    if found is None or found.drift or not isinstance(plan.oracle, Exact | Gaussian):
        return False
    noise = additive_noise(plan)
    return bool(np.max(np.abs(noise - found.less)) <= NOTHING * max(np.max(np.abs(noise)), NOTHING))


def not_gaussian(plan: Plan) -> float:
    """How far the target is from a Gaussian: the largest |eigenvalue - 1| of its mean curvature times its covariance, at most 1.

    Balanced noise is exact on a Gaussian: this share of the second order that Euler has there counts as its error. 1 for others.
    """
    if not isinstance(plan.scheme, Balanced) or plan.dim > MOST_DENSE:
        return 1.0
    curvature, P = gradient_moments(plan).curvature, plan.model.gaussian_fit.precision
    return min(1.0, float(np.max(np.abs(linalg.eigh(curvature, P, eigvals_only=True) - 1))))


@functools.lru_cache(maxsize=4)
def _stationary(plan: Plan) -> tuple[LinearChain, np.ndarray]:
    """The chain on the Gaussian nearest to the target, and its stationary covariance; `InvalidInput` where it has none.

    The noise of mini-batches grows with the state, so their covariance is the one that the chain has under its own law.
    """
    fit, d = plan.model.gaussian_fit, plan.dim
    additive = isinstance(plan.oracle, Exact | Gaussian)
    noise = oracle_noise(plan, fit.mean) if additive else Noise(gradient_moments(plan).noise)
    chain = chain_around(plan, fit.precision, fit.mean, noise, np.zeros((1, plan.state_size)))
    C, grows = doubled_sum(chain.M, chain.W), batch_noise(plan, fit.mean)
    if grows is None:
        return chain, C
    of_target = np.linalg.inv(fit.precision)
    for _ in range(MOST_TURNS):
        added = chain.spread @ grows.growth(C[:d, :d] - of_target) @ chain.spread.T
        before, C = C, doubled_sum(chain.M, chain.W + added)
        if np.max(np.abs(C - before)) <= SAME * np.max(np.abs(C)):
            return chain, C
    raise InvalidInput("the noise of mini-batches leaves the chain no stationary covariance at this step size")


class OnGaussian(NamedTuple):
    """N·Var and V of an average on the Gaussian nearest to the target, and its bias beyond the first order in η."""

    variance: float
    V: float
    higher_bias: float

    def floor(self, V: float, step_size: float) -> float:
        """s with N·Var = V/η + s: as on the Gaussian, or in proportion where V is so much smaller that nothing would be left."""
        s = self.variance - self.V / step_size
        return s if V / step_size + s > 0 else (self.variance * step_size / self.V - 1) * V / step_size


def on_nearest_gaussian(plan: Plan, h: Observable) -> OnGaussian | None:
    """For h projected on linear and quadratic functions; None where matrices would be too large or ∇h is not finite.

    With C the stationary covariance and Φ = Σ_k (M^k)ᵀHM^k, N·Var = 2uᵀ(I-M)⁻¹Cu - uᵀCu for uᵀy and 4 tr(ΦCHC) - 2 tr(HCHC) for
    yᵀHy. For balanced noise and uᵀy that is V/η - Var(h). C = P⁻¹ + ηE + … with AE + EAᵀ = AP⁻¹Aᵀ + GΣGᵀ - less.
    """
    if plan.dim > MOST_DENSE:
        return None
    fit, m, found = plan.model.gaussian_fit, plan.state_size, projection(plan, h, plan.model.gaussian_fit)
    if found is None:
        return None
    chain, C = _stationary(plan)
    slope, form = found
    D, Q, P, n = plan.dynamics.D, plan.dynamics.Q, augment(fit.precision, plan.augmented), plan.dynamics.size
    u = np.concatenate([slope, np.zeros(m - plan.dim)])
    variance = float(2 * u @ np.linalg.solve(np.eye(m) - chain.M, C @ u) - u @ C @ u)
    V, higher = fluctuation_constant(D, Q, P, u[:n]), 0.0
    if form is not None:
        H = np.pad(form, (0, m - plan.dim))
        HC = H @ C
        variance += float(4 * np.sum((doubled_sum(chain.M.T, H) @ C) * HC.T) - 2 * np.sum(HC * HC.T))
        V += quadratic_fluctuation_constant(D, Q, P, H[:n, :n])
        if (order := first_order(plan)) is not None:
            A, G, of_target = (D + Q) @ P, (D + Q)[:, : plan.dim], np.linalg.inv(P)
            added = G @ chain.noise.constant @ G.T - order.less + (A @ of_target @ A.T if order.drift else 0.0)
            first = plan.eta * linalg.solve_continuous_lyapunov(A, added)
            higher = float(np.sum(H[:n, :n] * (C[:n, :n] - of_target - first)))
    return OnGaussian(variance, V, higher)


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
        """Draws of z = (θ, r), by weight, and ∇H at each."""
        plan, sample, rng = self.plan, self.sample, np.random.default_rng(0)
        theta = sample.theta[rng.choice(len(sample.theta), min(DRAWS, len(sample.theta)), p=sample.weights)]
        z = with_momenta(plan, theta, rng)
        return z, np.concatenate([plan.flat_target.gradients(theta), z[:, plan.dim :]], axis=1)

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

    def transient(self, poisson: Polynomial, h: Callable[[np.ndarray], np.ndarray]) -> Transient:
        """Σ_k η(h(z_k) - μ(h)) from the plan's starts, h given as h - μ(h) of rows of θ.

        Beyond three standard deviations a fitted φ is unreliable: there the chains are followed.
        """
        d, (center, root) = self.plan.dim, self.sample.moments()

        def inside(z: np.ndarray) -> np.ndarray:
            return np.sum(np.linalg.solve(root, (z[:, :d] - center).T) ** 2, axis=0) <= SETTINGS.near**2 * d

        return followed(self.plan).transient(inside, lambda z: h(z[:, :d]), lambda z: -poisson.values(z))


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
