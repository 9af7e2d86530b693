"""What a martingale leaves of the error of an average, for targets that are not Gaussian (T9).

Input: a plan with `martingale=True` and a weighted sample. Output: N·Var of the corrected average. With φ the control variate's
function, y⁺ = Ay + B(∇H + δ) + Cξ and ȳ⁺ = Ay + B∇H,
    h(y_k) - ψ_k = const + φ(y_k) - φ(y_{k+1}) + ρ(y_k) + χ_k,
ρ = h - φ(y) + φ(ȳ⁺) is 0 on a Gaussian; χ, what δ adds to φ(y⁺), is not correlated in time; φ(y_k) - φ(y_{k+1}) leaves the ends.
"""

import dataclasses
import functools
import math

import numpy as np

from gyromc.approx.sample import Sample
from gyromc.dynamics import augment
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.martingale import doubled_sum, martingale, symmetric_root
from gyromc.prediction.poisson.plug_in import Fitted
from gyromc.schemes.moments import oracle_covariances

POINTS = 500  # at which the oracle's covariance is evaluated


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """What martingales leave of all observables of one plan; `fitted` is the plug-in on the same sample."""

    plan: Plan
    sample: Sample
    fitted: Fitted

    @functools.cached_property
    def _states(self) -> tuple[np.ndarray, np.ndarray]:
        """y and ȳ⁺ at the sample's points, centred; a memory is drawn from its law given z on the nearest Gaussian."""
        plan, step, rng = self.plan, self.plan.step_matrices, np.random.default_rng(0)
        fit, theta, n = plan.model.gaussian_fit, self.sample.theta, plan.dynamics.size
        r = rng.standard_normal((len(theta), n - plan.dim))
        forces = np.concatenate([plan.flat_target.gradients(theta), r], axis=1)
        y = z = np.concatenate([theta - fit.mean, r], axis=1)
        if plan.state_size > n:
            X = doubled_sum(step.transition(augment(fit.precision, plan.augmented)), step.C @ step.C.T)
            onto = np.linalg.solve(X[:n, :n], X[:n, n:])
            root = symmetric_root(X[n:, n:] - X[n:, :n] @ onto)
            y = np.concatenate([z, z @ onto + rng.standard_normal((len(z), len(root))) @ root], axis=1)
        return y, y @ step.A.T + forces @ step.B.T

    @functools.cached_property
    def _noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the sample, drawn by weight, and the oracle's covariance at each."""
        rows = np.random.default_rng(0).choice(len(self.sample.theta), POINTS, p=self.sample.weights)
        return rows, oracle_covariances(self.plan.flat_target, self.plan.prepared_oracle, self.sample.theta[rows])

    def left(self, name: str, values: np.ndarray) -> Number:
        """What is left of N·Var for one observable, given at the sample's points: of ρ, of χ and of both ends of a chain."""
        plan, found, w, (y, after) = self.plan, martingale(self.plan), self.sample.weights, self._states
        j = list(plan.observables).index(name)
        v, p, weight = found.slope[j], found.direction[found.owner == j], found.weight[found.owner == j]
        variance = lambda x: float(w @ (x - w @ x) ** 2)
        phi = y @ v + (y @ p.T) ** 2 @ weight
        rho = values - phi + after @ v + (after @ p.T) ** 2 @ weight  # T9
        # Of ρ as for one exponential: V/η for small η, Var ρ for large.
        size, of_rho = variance(rho), self.fitted.solve(rho).variance
        left, error = size, of_rho.error / plan.eta
        if size > 0 and of_rho.value > 0:
            left = size / math.tanh(plan.eta * size / of_rho.value)
            error = left * of_rho.error / of_rho.value
        # E[χ²]: fourth moments as of a Gaussian.
        rows, Sigma = self._noise
        B = plan.step_matrices.B[:, : plan.dim]
        slope, bend = (
            (v + 2 * ((after[rows] @ p.T) * weight) @ p) @ B,
            Sigma.mean(axis=0) @ ((B.T @ p.T) * weight) @ (p @ B),
        )
        left += float(
            np.mean(np.einsum("si,sij,sj->s", slope, Sigma, slope, optimize=True)) + 2 * np.sum(bend * bend.T)
        )
        ends = (2 if plan.burn_in else 1) * variance(phi) / plan.num_steps
        return Number(left + ends, error + ends)
