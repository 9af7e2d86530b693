"""Second moments of stochastic gradients under the posterior: P = E[∇²U] and Σ = E[Cov(ĝ | θ)], so that E[ĝĝᵀ] = P + Σ (T7).

Input: a plan. Output: `GradientMoments`, exact on a Gaussian target with noise that is quadratic in θ; elsewhere over an
importance sample where that can be trusted, and from the gradients of a pilot run where it cannot. Computed once for each oracle
of a model, with an estimate of its error, and frozen: nothing adapts while a chain is averaged.
"""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import scipy

from gyromc.approx.sample import MOST_PARAMETERS, Sample
from gyromc.approx.secondmoments import MatrixEstimate, over_blocks
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning
from gyromc.oracles import Exact, Gaussian
from gyromc.oracles.moments import mean_covariance
from gyromc.schemes.pilot import ENOUGH, pilot
from gyromc.targets import Target
from gyromc.targets.regressions import KnownLikelihood

MOST_CURVED = 4e8  # multiplications for a mean curvature
POINTS = 512  # at which curvature and noise are averaged
BLOCKS = 8  # of these points, whose differences give the error
MOST_EXACT = 200  # entries of z, up to which a Lyapunov equation is solved
TINY = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class GradientMoments:
    """P and Σ of ∇U and ĝ: d × d, or d numbers where only diagonals are kept.

    `relative_error` is the standard error of P + Σ over its size in the worst direction, or its root mean square over
    coordinates where only diagonals are kept; 0 where both are exact.
    """

    curvature: np.ndarray
    noise: np.ndarray
    source: str
    relative_error: float = 0.0

    @property
    def second(self) -> np.ndarray:
        """S = E[ĝĝᵀ]."""
        return self.curvature + self.noise  # T7

    def of_state(self, augmented: bool) -> tuple[np.ndarray, np.ndarray]:
        """P and Σ of the gradient of H = U + ½|r|²."""
        return augment(self.curvature, augmented), augment(self.noise, augmented, of_momenta=0.0)


def gradient_moments(plan: Any) -> GradientMoments:
    """P and Σ for a plan's model and oracle, computed once for both.

    Where S = P + Σ is known to no better than 5 %, a `GyromcWarning` says so, once for each step size.
    """
    found = plan.model.computed.find("gradient moments", (plan.oracle,))
    if found is None:
        found = _gradient_moments(plan)
        plan.model.computed.keep("gradient moments", (plan.oracle,), found)
    told = "error of gradient moments", (plan.oracle, plan.eta)
    if found.relative_error > ENOUGH and not plan.model.computed.find(*told):
        plan.model.computed.keep(*told, True)
        _warn(plan, found)
    return found


def _gradient_moments(plan: Any) -> GradientMoments:
    model, target = plan.model, plan.flat_target
    known = target.gaussian()
    if known is not None:
        K, mean = known
        root = np.linalg.cholesky(np.linalg.inv(K))
        d = len(mean)
        points = mean + math.sqrt(d) * np.concatenate([root.T, -root.T])  # the mean of a quadratic function is exact
        return GradientMoments(K, _noise(plan, points), "exact")
    sample = model.trusted_sample if model.dim <= MOST_PARAMETERS else None
    if sample is not None:
        rows = sample.theta[np.random.default_rng(0).choice(len(sample.weights), POINTS, p=sample.weights)]
        P, noise = _curvature(target, sample, rows), _noise_with_error(plan, rows)
        return GradientMoments(P.matrix, noise.matrix, sample.source, P.plus(noise).relative_error)
    found = pilot(plan)
    source = f"a pilot run of {found.num_steps} steps"
    return GradientMoments(found.curvature, found.noise, source, found.relative_error)


def _curvature(target: Target, sample: Sample, rows: np.ndarray) -> MatrixEstimate:
    """E[∇²U]: of a regression by its own formula; of others from the gradients at the sample, without Hessians."""
    if not isinstance(target, KnownLikelihood):
        return sample.mean_curvature()
    used = rows[: max(2 * BLOCKS, int(MOST_CURVED / (target.num_data * rows.shape[1])))]
    return over_blocks(np.array([target.mean_hessian(part) for part in np.array_split(used, BLOCKS)]))


def _noise(plan: Any, rows: np.ndarray) -> np.ndarray:
    if isinstance(plan.oracle, Exact):
        return np.zeros((plan.dim, plan.dim))
    return mean_covariance(plan.flat_target, plan.prepared_oracle, rows)


def _noise_with_error(plan: Any, rows: np.ndarray) -> MatrixEstimate:
    """E[Σ(θ)] over the rows, with the error that their number leaves."""
    if isinstance(plan.oracle, Exact | Gaussian):  # the same at every point
        return over_blocks(np.array([_noise(plan, rows[:1])] * 2))
    return over_blocks(np.array([_noise(plan, part) for part in np.array_split(rows, BLOCKS)]))


def _warn(plan: Any, found: GradientMoments) -> None:
    """Say how far off S may be, and the variances of `balanced` with it."""
    percent = lambda x: f"{100 * x:.2g} %" if x < 1 else "100 % or more"
    warnings.warn(
        f"The second moment S of the gradients comes from {found.source} and has a relative error of about "
        f"{percent(found.relative_error)}; variances under `balanced` may be off by {percent(variance_effect(plan, found))} "
        "because of it. Pass `S` to `balanced`, a smaller `step_size`, or a `start` near the mode.",
        GyromcWarning,
        stacklevel=3,
    )


def variance_effect(plan: Any, found: GradientMoments) -> float:
    """The relative error of stationary variances under `balanced` that the relative error δ of S leaves.

    In one dimension ηδs/(2-ηp), p and s being P and S in units of D⁻¹: with many parameters for the largest of them, with fewer
    by the exact covariance X = MXMᵀ + δη²GSGᵀ of a Gaussian with curvature P, M = I - ηGP, in its worst direction.
    """
    eta, dynamics = plan.eta, plan.dynamics
    if found.curvature.ndim == 1 or dynamics.size > MOST_EXACT:
        P, S = (x if x.ndim == 1 else np.diag(x) for x in (found.curvature, found.second))
        scale = np.abs(np.asarray(dynamics.drift(np.ones(dynamics.size))))[: plan.dim]
        p, s = scale * P, scale * S
        return float(found.relative_error * np.max(eta * s / np.maximum(2 - eta * p, TINY)))
    P, noise = found.of_state(plan.augmented)
    G = dynamics.D + dynamics.Q
    M = np.eye(len(P)) - eta * G @ P
    if np.linalg.eigvalsh(P)[0] <= 0 or np.max(np.abs(np.linalg.eigvals(M))) >= 1:
        return math.inf
    X = scipy.linalg.solve_discrete_lyapunov(M, eta**2 * G @ (P + noise) @ G.T)
    root = np.linalg.cholesky(P)
    return float(found.relative_error * np.max(np.linalg.eigvalsh(root.T @ X @ root)[-1]))
