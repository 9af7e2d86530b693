"""What a martingale leaves of the error of an average, for targets that are not Gaussian (T9).

Input: a plan with `martingale=True` and a weighted sample of the posterior. Output: N·Var of the corrected average. With φ the
control variate's function, y⁺ = Ay + B(∇H + δ) + Cξ and ȳ⁺ = Ay + B∇H,
    h(y_k) - ψ_k = const + φ(y_k) - φ(y_{k+1}) + ρ(y_k) + χ_k,
ρ = h - φ(y) + φ(ȳ⁺) the residual of the Poisson equation (0 on a Gaussian), χ the part of φ's increment that δ makes. The first
difference leaves a boundary, ρ has the variance of an average of its own, and χ has no correlation in time.
"""

import dataclasses
import functools
import math

import numpy as np

from gyromc.approx.sample import Sample
from gyromc.dynamics import augment
from gyromc.martingale import Martingale, doubled_sum, martingale
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.poisson.plug_in import Fitted
from gyromc.schemes.moments import oracle_covariances

POINTS = 500  # at which the oracle's covariance is evaluated


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """The parts that all observables of one plan share."""

    plan: Plan
    sample: Sample

    @functools.cached_property
    def _martingale(self) -> Martingale:
        return martingale(self.plan)

    @functools.cached_property
    def _states(self) -> tuple[np.ndarray, np.ndarray]:
        """y and ȳ⁺ at the sample's points, centred; a memory is drawn from its law given z on the nearest Gaussian."""
        plan, step = self.plan, self.plan.step_matrices
        fit, rng, d, n = plan.model.gaussian_fit, np.random.default_rng(0), plan.dim, plan.dynamics.size
        theta = self.sample.theta
        r = rng.standard_normal((len(theta), n - d))
        z = np.concatenate([theta - fit.mean, r], axis=1)
        y = z
        if plan.state_size > n:
            M = step.transition(augment(fit.precision, plan.augmented))
            X = doubled_sum(M, step.C @ step.C.T)
            onto = np.linalg.solve(X[:n, :n], X[:n, n:])
            rest = X[n:, n:] - X[n:, :n] @ onto
            values, basis = np.linalg.eigh((rest + rest.T) / 2)
            drawn = rng.standard_normal((len(z), len(rest))) * np.sqrt(np.maximum(values, 0.0))
            y = np.concatenate([z, z @ onto + drawn @ basis.T], axis=1)
        forces = np.concatenate([plan.flat_target.gradients(theta), r], axis=1)
        return y, y @ step.A.T + forces @ step.B.T

    @functools.cached_property
    def _oracle(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the sample, drawn by weight, and the oracle's covariance at each."""
        rows = np.random.default_rng(0).choice(len(self.sample.theta), POINTS, p=self.sample.weights)
        return rows, oracle_covariances(self.plan.flat_target, self.plan.prepared_oracle, self.sample.theta[rows])

    def left(self, name: str, values: np.ndarray, fitted: Fitted) -> Number:
        """What is left of N·Var for one observable, given at the sample's points; `fitted` is the plug-in on the same sample.

        Three parts: the residual, what is not Gaussian; the noise of gradients; both ends of a chain.
        """
        j = list(self.plan.observables).index(name)
        found, w = self._martingale, self.sample.weights
        v, own = found.slope[j], found.owner == j
        p, weight = found.direction[own], found.weight[own]
        y, after = self._states
        phi = y @ v + (y @ p.T) ** 2 @ weight
        rho = values - phi + after @ v + (after @ p.T) ** 2 @ weight  # T9: 0 on a Gaussian, up to a constant
        boundary = (2 if self.plan.burn_in else 1) * _variance(w, phi) / self.plan.num_steps
        left, error = self._residual(rho, fitted)
        return Number(left + self._noise(v, p, weight) + boundary, error + boundary)

    def _residual(self, rho: np.ndarray, fitted: Fitted) -> tuple[float, float]:
        """N·Var of the average of ρ, as for one exponential: Var ρ·coth(η Var ρ/V(ρ)), V/η for small η and Var ρ for large.

        Its error is that of V(ρ).
        """
        variance, eta, found = _variance(self.sample.weights, rho), self.plan.eta, fitted.solve(rho)
        V = max(found.variance, 0.0)
        if variance == 0 or V == 0:
            return variance, found.std_error / eta
        left = variance / math.tanh(eta * variance / V)
        return left, left * found.std_error / V

    def _noise(self, v: np.ndarray, p: np.ndarray, weight: np.ndarray) -> float:
        """E[χ²]: δ with its own covariance at every point, its fourth moments as of a Gaussian."""
        rows, Sigma = self._oracle
        if not np.any(Sigma):
            return 0.0
        B, after = self.plan.step_matrices.B[:, : self.plan.dim], self._states[1][rows]
        slope = (v + 2 * ((after @ p.T) * weight) @ p) @ B
        bend = Sigma.mean(axis=0) @ ((B.T @ p.T) * weight) @ (p @ B)
        return float(np.mean(np.einsum("si,sij,sj->s", slope, Sigma, slope, optimize=True)) + 2 * np.sum(bend * bend.T))


def _variance(weights: np.ndarray, values: np.ndarray) -> float:
    mean = float(weights @ values)
    return float(weights @ (values - mean) ** 2)
