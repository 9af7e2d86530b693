"""What a scheme's own noise means for bias, variance and step size, where that differs from Euler-Maruyama's.

Input: a plan with a linear scheme and a constant step size. Output: the covariance that the scheme draws less than with exact
gradients or as Euler (per η²), the largest step size at which it can draw its noise, and N·Var with its V on the Gaussian
nearest to the target.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import linalg

from gyromc.dynamics import augment
from gyromc.martingale import doubled_sum, projection
from gyromc.observables import Observable
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import chain_around
from gyromc.prediction.exact.closed_forms import fluctuation_constant, quadratic_fluctuation_constant
from gyromc.prediction.exact.noise import Noise
from gyromc.schemes import Balanced, StepMatrices, step_matrices
from gyromc.schemes.integrators import LeimkuhlerMatthews
from gyromc.schemes.moments import gradient_moments

MOST_DENSE = 512  # parameters
NOTHING = 1e-9  # share of the noise that is rounding


def second_moment(plan: Plan) -> np.ndarray:
    """S = E[ĝĝᵀ] of the gradients of H, as the plan's balanced scheme takes it: n × n."""
    assert isinstance(plan.scheme, Balanced)
    own = plan.scheme.second_moment
    S = gradient_moments(plan).second if own is None else own.dense()
    S = np.diag(S) if S.ndim == 1 else S
    return S if len(S) == plan.dynamics.size else augment(S, plan.augmented)


def brought(plan: Plan) -> np.ndarray:
    """GSGᵀ for a balanced scheme: the covariance per η² that it leaves to the gradients; 0 for others."""
    D, G = plan.dynamics.D, plan.dynamics.D + plan.dynamics.Q
    return G @ second_moment(plan) @ G.T if isinstance(plan.scheme, Balanced) else np.zeros_like(D)  # T7


def noise_limit(plan: Plan) -> float:
    """The largest step size at which a balanced scheme has noise left to draw, W = 2ηD - η²GSGᵀ ⪰ 0; infinite for others."""
    if not isinstance(plan.scheme, Balanced):
        return math.inf
    top = float(linalg.eigh(brought(plan), plan.dynamics.D, eigvals_only=True)[-1])
    return 2 / top if top > 0 else math.inf


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
    G, tau = (plan.dynamics.D + plan.dynamics.Q)[:, : plan.dim], getattr(plan.oracle, "tau", 0.0)
    noise = float(tau) ** 2 * G @ G.T
    return bool(np.max(np.abs(noise - found.less)) <= NOTHING * max(np.max(np.abs(noise)), NOTHING))


def not_gaussian(plan: Plan) -> float:
    """How far the target is from a Gaussian: the largest |eigenvalue - 1| of its mean curvature times its covariance, at most 1.

    Balanced noise is exact on a Gaussian: this share of the second order that Euler has there counts as its error. 1 for others.
    """
    if not isinstance(plan.scheme, Balanced) or plan.dim > MOST_DENSE:
        return 1.0
    curvature, P = gradient_moments(plan).curvature, plan.model.gaussian_fit.precision
    return min(1.0, float(np.max(np.abs(linalg.eigh(curvature, P, eigvals_only=True) - 1))))


class Leading(NamedTuple):
    """N·Var of an average on the Gaussian nearest to the target, at the plan's own step size, and V there."""

    variance: float
    V: float

    def floor(self, V: float, step_size: float) -> float:
        """s with N·Var = V/η + s: as on the Gaussian, or in proportion where V is so much smaller that nothing would be left."""
        s = self.variance - self.V / step_size
        return s if V / step_size + s > 0 else (self.variance * step_size / self.V - 1) * V / step_size


def gaussian_variance(plan: Plan, h: Observable) -> Leading | None:
    """N·Var and V for h projected on linear and quadratic functions; None where matrices would be too large or ∇h is not finite.

    With C the stationary covariance and Φ = Σ_k (M^k)ᵀHM^k, N·Var = 2uᵀ(I-M)⁻¹Cu - uᵀCu for uᵀy and 4 tr(ΦCHC) - 2 tr(HCHC) for
    yᵀHy. For balanced noise and uᵀy that is V/η - Var(h).
    """
    if plan.dim > MOST_DENSE:
        return None
    fit, moments, m = plan.model.gaussian_fit, gradient_moments(plan), plan.state_size
    chain = chain_around(plan, fit.precision, fit.mean, Noise(moments.noise), np.zeros((1, m)))
    C = doubled_sum(chain.M, chain.W)
    found = projection(plan, h, fit)
    if found is None:
        return None
    slope, form = found
    D, Q, P, n = plan.dynamics.D, plan.dynamics.Q, augment(fit.precision, plan.augmented), plan.dynamics.size
    u = np.concatenate([slope, np.zeros(m - plan.dim)])
    variance = float(2 * u @ np.linalg.solve(np.eye(m) - chain.M, C @ u) - u @ C @ u)
    V = fluctuation_constant(D, Q, P, u[:n])
    if form is not None:
        H = np.zeros((m, m))
        H[: plan.dim, : plan.dim] = form
        HC = H @ C
        variance += float(4 * np.sum((doubled_sum(chain.M.T, H) @ C) * HC.T) - 2 * np.sum(HC * HC.T))
        V += quadratic_fluctuation_constant(D, Q, P, H[:n, :n])
    return Leading(variance, V)
