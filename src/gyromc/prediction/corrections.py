"""First effects of a finite step size: the bias of Euler-Maruyama to first order in η, and what the oracle's noise adds to V.

Input: a plan, a weighted sample and φ with 𝒜φ = h - μ(h). Output: `Corrections`. With E[f(z⁺)] = f + η𝒜f + η²ℬf + … the
stationary law has π_η(h) - μ(h) = -ημ(ℬφ) + …, and integration by parts gives
    -μ(ℬφ) = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ GΣGᵀ)), G = D+Q, Σ(θ) the oracle's covariance.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.evaluation import over_rows
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows
from gyromc.prediction.poisson.hermite import Polynomial
from gyromc.shape.importance import Sample
from gyromc.targets import SumOverData

POINTS = 2000
MOST_DATA = 2000


@dataclasses.dataclass(frozen=True)
class Corrections:
    """First effects of a finite step size."""

    bias_slope: float  # per unit of step size
    bias_slope_error: float
    floor: float  # s: N·Var is V/η + s + …
    transient: float | None  # -φ(z₀): divided by Nη, the bias due to the start; None for a start far outside the sample


def oracle_covariances(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """Σ(θ) = Cov[ĝ | θ] at every row: rows × d × d."""
    d, oracle, target = plan.dim, plan.prepared_oracle, plan.flat_target
    if isinstance(oracle, Exact):
        return np.zeros((len(rows), d, d))
    if isinstance(oracle, Gaussian):
        return np.broadcast_to(float(oracle.tau) ** 2 * np.eye(d), (len(rows), d, d))
    assert isinstance(oracle, Batch)
    assert isinstance(target, SumOverData)
    N = target.num_data
    picked = np.arange(N) if N <= MOST_DATA else np.random.default_rng(0).choice(N, MOST_DATA, replace=False)
    center = np.asarray(oracle.center, float) if isinstance(oracle, ControlVariate) else None
    scale = np.asarray(oracle.noise_factor(N) * N**2 / (oracle.size * len(picked)))
    return over_rows(_batch_covariance, rows, target, center, picked, scale, chunk=256)


def _batch_covariance(target, center, picked, scale, theta):
    def one(i):
        g = target.batch_gradient(theta, i[None])
        return g if center is None else g - target.batch_gradient(center, i[None])

    terms = jax.vmap(one)(jnp.asarray(picked))
    terms = terms - terms.mean(axis=0)
    return scale * terms.T @ terms


def corrections(plan: Plan, sample: Sample, poisson: Polynomial) -> Corrections:
    """Bias slope, floor and transient of one observable, averaged over up to `POINTS` draws of the sample.

    `poisson` is φ, of degree at least 2: a linear φ gives no bias.
    """
    z, slope_H = draws_with_forces(plan, sample, POINTS)
    theta = z[:, : plan.dim]
    D, Q = plan.dynamics.D, plan.dynamics.Q
    G, n, d = D + Q, len(D), plan.dim
    K = np.broadcast_to(np.eye(n), (len(z), n, n)).copy()
    K[:, :d, :d] = plan.flat_target.hessians(theta)
    slope, curve = poisson.gradients(z), poisson.hessians(z)
    noise = np.einsum("ij,sjk,lk->sil", G[:, :d], oracle_covariances(plan, theta), G[:, :d], optimize=True)
    rotated = np.einsum("si,ij,sjk,sk->s", slope, G, K, slope_H @ Q.T, optimize=True)
    bent = np.einsum("sij,jk,skl,li->s", curve, G, K, D, optimize=True) + np.einsum("sij,sji->s", curve, noise)
    terms = (rotated - bent) / 2
    return Corrections(
        bias_slope=float(np.mean(terms)),
        bias_slope_error=float(np.std(terms) / np.sqrt(len(terms))),
        floor=float(np.mean(np.einsum("si,sij,sj->s", slope, noise, slope))),  # T1: s
        transient=_transient(plan, sample, poisson),
    )


def draws_with_forces(plan: Plan, sample: Sample, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Up to `points` draws of z = (θ, r) from a weighted sample of θ, and ∇H at each."""
    rng = np.random.default_rng(0)
    theta = sample.theta[rng.choice(len(sample.theta), min(points, len(sample.theta)), p=sample.weights)]
    r = rng.standard_normal(theta.shape) if plan.augmented else np.zeros((len(theta), 0))
    return np.concatenate([theta, r], axis=1), np.concatenate([plan.flat_target.gradients(theta), r], axis=1)


def _transient(plan: Plan, sample: Sample, poisson: Polynomial) -> float | None:
    """μ(φ) - φ(z₀), averaged over the starts; None beyond four standard deviations, where a fitted φ is unreliable."""
    starts = start_rows(plan)[:100]
    center = sample.weights @ sample.theta
    scatter = (sample.theta - center).T @ ((sample.theta - center) * sample.weights[:, None])
    away = starts[:, : plan.dim] - center
    distance = np.sqrt(np.einsum("si,si->s", away, np.linalg.solve(scatter, away.T).T) / plan.dim)
    if np.max(distance) > 4:
        return None
    r = np.random.default_rng(0).standard_normal(sample.theta.shape)
    z = np.concatenate([sample.theta, r], axis=1) if plan.augmented else sample.theta
    return float(sample.weights @ poisson.values(z) - np.mean(poisson.values(starts)))
