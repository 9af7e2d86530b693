"""First effects of a finite step size: the bias of first order in η, what it adds to V, and the start.

Input: a plan, a weighted sample and φ with 𝒜φ = h - μ(h). Output: `StepEffects`; `on_nearest_gaussian` has all orders for the
Gaussian nearest to the target. With E[f(z⁺)] = f + η𝒜f + η²ℬf + … the stationary law has π_η(h) - μ(h) = -ημ(ℬφ) + …, and
integration by parts gives, with G = D+Q and Σ(θ) the oracle's covariance,
    -μ(ℬφ) = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ GΣGᵀ))
for Euler-Maruyama. Balanced noise has GΣGᵀ - GSGᵀ for GΣGᵀ; schemes of second order have the last term only, GΣGᵀ less what they
take off their noise. Far out gradients are steep and the noise of mini-batches grows: no expansion holds there, and chains are
`followed` from the plan's starts until they come to the bulk of the target.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from gyromc.approx.modes import GaussianApproximation
from gyromc.approx.sample import Sample
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.exact.chain import LinearChain, Noise, batch_noise, chain_around, oracle_noise, start_rows
from gyromc.prediction.exact.closed_forms import fluctuation_constant, quadratic_fluctuation_constant
from gyromc.prediction.martingale import doubled_sum, projection
from gyromc.prediction.poisson.plug_in import Polynomial
from gyromc.runtime.evaluation import doubled
from gyromc.schemes import Balanced, step_matrices
from gyromc.schemes.integrators import LeimkuhlerMatthews
from gyromc.schemes.moments import gradient_moments, gradients, oracle_covariances

MOST_DENSE = 512  # parameters
MOST_TURNS = 300  # of the iteration for a stationary covariance
ROUNDING = 1e-9  # share of the noise
SAME = 1e-6  # relative change at which it stops


def brought(plan: Plan) -> np.ndarray:
    """The covariance per η² that a scheme leaves to the gradients: GSGᵀ, S = E[ĝĝᵀ], for a balanced one; 0 for Euler."""
    scheme, dynamics, G = plan.scheme, plan.dynamics, plan.dynamics.D + plan.dynamics.Q
    if isinstance(scheme, Balanced):
        own = scheme.second_moment
        S = gradient_moments(plan).second if own is None else own.dense()
        S = np.diag(S) if S.ndim == 1 else S
        return G @ (S if len(S) == len(G) else augment(S, plan.augmented)) @ G.T  # T7
    if scheme.order < 2 or scheme.needs_prepared or isinstance(plan.oracle, Exact):
        return 0 * G
    if isinstance(scheme, LeimkuhlerMatthews):  # and more of higher order in η
        return G @ gradient_moments(plan).of_state(plan.augmented)[1] @ G.T
    # What one draw of ξ adds to z: now, and through the memory in the next step.
    drawn = lambda step: step.C[: step.n] + step.A[: step.n, step.n :] @ step.C[step.n :]
    full, left = drawn(step_matrices(scheme, dynamics, plan.eta)), drawn(plan.step_matrices)
    return (full @ full.T - left @ left.T) / plan.eta**2


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


def drifts(plan: Plan) -> bool:
    """Whether the drift alone makes a bias of first order, as Euler's does; that of a scheme of second order does not."""
    return plan.scheme.is_euler or isinstance(plan.scheme, Balanced)


@functools.lru_cache(maxsize=16)
def has_slope(plan: Plan) -> bool:
    """Whether the first order of the bias is computed: a scheme of second order has one where gradient noise is left."""
    none = plan.scheduled or not plan.scheme.linear or isinstance(plan.oracle, Exact) or plan.dim > MOST_DENSE
    if plan.oracle.moving or drifts(plan) or none:
        return drifts(plan) and not plan.oracle.moving
    own = additive_noise(plan)
    left = np.max(np.abs(own - brought(plan)))
    return not isinstance(plan.oracle, Gaussian) or bool(left > ROUNDING * max(np.max(np.abs(own)), ROUNDING))


def not_gaussian(plan: Plan) -> float:
    """How far E[∇²U] is from the inverse covariance, relatively in the worst direction; 1 at most, and where it is not known."""
    return plan.model.computed.once("not gaussian", (isinstance(plan.scheme, Balanced),), lambda: _not_gaussian(plan))


def _not_gaussian(plan: Plan) -> float:
    if plan.flat_target.gaussian() is not None:
        return 0.0
    if plan.dim > MOST_DENSE:
        return 1.0
    sample = plan.model.trusted_sample
    if sample is not None:
        curvature = sample.mean_curvature().matrix
    elif isinstance(plan.scheme, Balanced):  # whose noise is made of it
        curvature = gradient_moments(plan).curvature
    else:
        return 1.0
    try:
        ratios = linalg.eigh(curvature, plan.model.gaussian_fit.precision, eigvals_only=True)
    except (InvalidInput, ValueError, linalg.LinAlgError):  # no Gaussian, or infinite gradients
        return 1.0
    return min(1.0, float(np.max(np.abs(ratios - 1))))


@functools.lru_cache(maxsize=4)
def _stationary(plan: Plan) -> tuple[LinearChain, np.ndarray]:
    """The chain on the nearest Gaussian, and its stationary covariance under its own noise; `InvalidInput` where it has none."""
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
    widening: float  # the largest variance of the chain's law against that of the Gaussian
    of_projection: float  # the change of the variance if h is projected over the chain's law

    def floor(self, V: float, step_size: float) -> float:
        """s with N·Var = V/η + s: as on the Gaussian; in proportion where V is smaller, as of squares with two modes."""
        s = self.variance - self.V / step_size
        return s * V / self.V if V < self.V else s


def on_nearest_gaussian(plan: Plan, h: Observable) -> OnGaussian | None:
    """For h projected on linear and quadratic functions; None where nothing can be computed.

    With C the stationary covariance and Φ = Σ_k (M^k)ᵀHM^k, N·Var = 2uᵀ(I-M)⁻¹Cu - uᵀCu for uᵀy and 4 tr(ΦCHC) - 2 tr(HCHC) for
    yᵀHy. For balanced noise and uᵀy that is V/η - Var(h). C = P⁻¹ + ηE + … with AE + EAᵀ = AP⁻¹Aᵀ + GΣGᵀ - less.
    """
    if plan.dim > MOST_DENSE or not plan.scheme.linear:
        return None
    try:
        fit, d = plan.model.gaussian_fit, plan.dim
        found = projection(plan, h, fit)
        chain, C = _stationary(plan)
        law = GaussianApproximation(fit.mean, np.linalg.inv(C[:d, :d]), "the chain's law")
        wide = found and projection(plan, h, law)
    except (InvalidInput, np.linalg.LinAlgError):  # no Gaussian, or a step size beyond its limit
        return None
    if found is None:
        return None
    D, Q, P, n, m = plan.dynamics.D, plan.dynamics.Q, augment(fit.precision, plan.augmented), plan.dynamics.size, len(C)

    def variance_of(slope: np.ndarray, form: np.ndarray | None) -> float:
        u, H = np.pad(slope, (0, m - d)), np.zeros((m, m))
        variance = float(2 * u @ np.linalg.solve(np.eye(m) - chain.M, C @ u) - u @ C @ u)
        if form is not None:
            H[:d, :d] = form
            HC = H @ C
            variance += float(4 * np.sum((doubled_sum(chain.M.T, H) @ C) * HC.T) - 2 * np.sum(HC * HC.T))
        return variance

    slope, form = found
    variance = variance_of(slope, form)
    V, higher = fluctuation_constant(D, Q, P, np.pad(slope, (0, n - d))), 0.0
    if form is not None:
        H = np.pad(form, (0, n - d))
        V += quadratic_fluctuation_constant(D, Q, P, H)
        if has_slope(plan):
            A, G, of_target = (D + Q) @ P, (D + Q)[:, :d], np.linalg.inv(P)
            added = G @ chain.noise.constant @ G.T - brought(plan) + drifts(plan) * A @ of_target @ A.T
            first = plan.eta * linalg.solve_continuous_lyapunov(A, added)
            higher = float(np.sum(H * (C[:n, :n] - of_target - first)))
    widening = float(np.max(np.linalg.eigvals(C[:d, :d] @ fit.precision).real))
    of_projection = variance if wide is None else abs(variance_of(*wide) - variance)
    return OnGaussian(variance, V, higher, widening, of_projection)


@dataclasses.dataclass(frozen=True)
class FollowSettings:
    """How many chains are followed, and how far."""

    chains: int = 256  # what happens to one in a hundred is seen in 92 of 100 predictions
    starts: int = 100  # different ones of the plan's
    at_once: int = 64  # steps of one compiled call, more than a chain that goes to infinity takes
    most_steps: int = 2048  # in all
    near: float = 3.0  # standard deviations within which a solution of the Poisson equation is used


FOLLOW = FollowSettings()


class Transient(NamedTuple):
    """What the start adds to a sum of h - μ(h) over a chain: its mean and its variance over chains, with their errors."""

    value: float
    error: float
    variance: float
    variance_error: float

    @classmethod
    def of(cls, sums: np.ndarray, drawn: bool = True) -> "Transient":
        """From the sums of single chains; `drawn`: whether chance decided them, so that others would have other sums."""
        squares, root = (sums - np.mean(sums)) ** 2, math.sqrt(len(sums))
        error, variance_error = (float(np.std(x)) / root if drawn else 0.0 for x in (sums, squares))
        return cls(float(np.mean(sums)), error, float(np.mean(squares)), variance_error)


class Followed:
    """The chains of one plan, computed in parts of `at_once` steps when they are asked for."""

    def __init__(self, plan: Plan):
        rows = start_rows(plan)
        self.plan, self._parts, memory = plan, [], plan.state_size - rows.shape[1]
        self.different = rows[np.linspace(0, len(rows) - 1, min(len(rows), FOLLOW.starts)).astype(int)]
        self.starts = np.tile(self.different, (-(-FOLLOW.chains // len(self.different)), 1))
        self._here: Any = np.pad(self.starts, ((0, 0), (0, memory)))

    @property
    def lost(self) -> int:
        """How many chains are not finite any more, of those steps that were made; at least one part is made."""
        self.part(0)
        return int(np.sum(~np.all(np.isfinite(self._parts), axis=(0, 1, 3))))

    def part(self, number: int) -> np.ndarray:
        """States z, steps × chains × n; the first one of the first part is the start."""
        while len(self._parts) <= number:
            first, own = len(self._parts) * FOLLOW.at_once, self.plan.step_size
            etas = [float(own(k)) if callable(own) else own for k in range(first, first + FOLLOW.at_once)]
            with jax.enable_x64(True):
                keys = jax.random.split(jax.random.fold_in(jax.random.key(self.plan.seed), first), len(etas))
                self._here, states = self._advance(self._here, keys, jnp.asarray(etas))
            self._parts.append(np.asarray(states))
        return self._parts[number]

    @functools.cached_property
    def _advance(self) -> Callable:
        """(y, keys, step sizes) → the last y, and z at every step."""
        plan, d, n = self.plan, self.plan.dim, self.plan.dynamics.size
        oracle = Exact() if plan.oracle.moving else plan.prepared_oracle  # anchors that move are not followed
        target, oracle, dynamics, scheme = doubled((plan.flat_target, oracle, plan.dynamics, plan.prepared_scheme))

        def step(y: Any, now: Any) -> tuple[Any, Any]:
            (first, second), eta = jax.random.split(now[0]), now[1]
            xi = jax.random.normal(second, (len(y), n), y.dtype)
            g = gradients(oracle, target, first, y, d, n)
            return jax.vmap(lambda y, g, xi: scheme(dynamics, y, g, xi, eta))(y, g, xi), y[:, :n]

        return jax.jit(lambda y, keys, etas: jax.lax.scan(step, y, (keys, etas)))

    def transient(self, inside: Callable, values: Callable, ahead: Callable) -> Transient:
        """Σ η(h(z_k) - μ(h)) after burn-in: h - μ(h) by `values` until chains are inside, then by `ahead`; NaN if one is not."""
        if np.all(inside(self.different)):
            return Transient.of(ahead(self.different), drawn=False)
        plan, chains = self.plan, len(self.starts)
        z, totals, away = self.starts.copy(), np.zeros(chains), np.ones(chains, bool)
        most = min(FOLLOW.most_steps, plan.num_steps + plan.burn_in)
        for number in range(-(-most // FOLLOW.at_once)):
            states = self.part(number)
            if not np.all(np.isfinite(states[:, away])):
                break
            flat = states.reshape(-1, states.shape[2])
            out = ~np.maximum.accumulate(inside(flat).reshape(states.shape[:2]), axis=0) & away
            k = number * FOLLOW.at_once + np.arange(len(states))[:, None]
            counted, h = out & (k >= plan.burn_in), np.zeros(out.shape)
            if np.any(counted):
                h[counted] = values(flat[counted.ravel()])
                totals += h.sum(axis=0)
            arrived = away & ~out[-1]
            z[arrived] = states[out.sum(axis=0)[arrived], arrived]
            away &= out[-1]
            if np.any(out & (k >= most - 1)):
                break
            if not np.any(away):
                return Transient.of(plan.eta * totals + ahead(z))
        return Transient(*[math.nan] * 4)


followed = functools.lru_cache(maxsize=4)(Followed)
"""The chains of a plan, the same ones for all its observables."""
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
        r = rng.standard_normal((len(theta), plan.dynamics.size - plan.dim))
        forces = np.concatenate([plan.flat_target.gradients(theta), r], axis=1)
        return np.concatenate([theta, r], axis=1), forces

    @functools.cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws z, and there G∇²H Q∇H, and G∇²H D + GΣGᵀ - less."""
        plan, (z, forces), d, n = self.plan, self.draws, self.plan.dim, self.plan.dynamics.size
        z, D, Q = z[: min(POINTS, max(200, MOST_NUMBERS // n**2))], plan.dynamics.D, plan.dynamics.Q
        G, K = D + Q, np.tile(np.eye(n), (len(z), 1, 1))
        K[:, :d, :d] = plan.flat_target.hessians(z[:, :d])
        K *= drifts(plan)
        Sigma = oracle_covariances(plan.flat_target, plan.prepared_oracle, z[:, :d])
        noise = np.einsum("ij,sjk,lk->sil", G[:, :d], Sigma, G[:, :d], optimize=True) - brought(plan)
        turned = np.einsum("sjk,sk->sj", K, forces[: len(z)] @ Q.T) @ G.T
        return z, turned, np.einsum("ij,sjk,kl->sil", G, K, D, optimize=True) + noise

    def slope(self, poisson: Polynomial) -> Number:
        """The bias per unit of step size for φ of degree at least 2 (a linear φ gives none), and its standard error."""
        z, turned, bending = self._factors
        rotated = np.sum(poisson.gradients(z) * turned, axis=1)
        terms = (rotated - np.einsum("sij,sji->s", poisson.hessians(z), bending)) / 2
        return Number(float(np.mean(terms)), float(np.std(terms) / np.sqrt(len(terms))))

    def transient(self, poisson: Polynomial, h: Callable[[np.ndarray], np.ndarray]) -> Transient:
        """Σ_k η(h(z_k) - μ(h)) from the plan's starts, h - μ(h) given; chains are followed to where a fitted φ is reliable."""
        d = self.plan.dim
        inside = lambda z: self.sample.square_distances(z[:, :d]) <= FOLLOW.near**2 * d
        return followed(self.plan).transient(inside, lambda z: h(z[:, :d]), lambda z: -poisson.values(z))
