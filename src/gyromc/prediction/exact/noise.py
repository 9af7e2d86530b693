"""Second moments of the oracle's noise δ = ĝ - ∇U where they are quadratic in θ: E[δδᵀ | θ] = C + Γ(zzᵀ) + terms linear in z.

Input: a plan, and the point that z = 0 stands for. Output: a `Noise`. For a mini-batch on rows x_i with curvatures w_i, δ is a
mean of b draws of Δ_iz + e_i with Δ_i = N w_i x_ix_iᵀ - Σ_j w_j x_jx_jᵀ. It is exact for linear regression, where w_i = 1.
"""

import dataclasses
import functools

import numpy as np

from gyromc.oracles import Batch, ControlVariate, Gaussian
from gyromc.plan import Plan
from gyromc.targets import LinearRegression

MOST_IN_TENSOR = 24  # parameters
ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """C, and for mini-batches what the other terms are made of."""

    constant: np.ndarray  # C: d × d, E[δδᵀ] at z = 0
    rows: np.ndarray | None = None  # √w_i x_i; None where the noise does not depend on the state
    errors: np.ndarray | None = None  # e_i, where they are known
    factor: float = 0.0  # f/(bN), f = (N-b)/(N-1) for distinct rows: exact because rows are drawn independently of z

    @property
    def additive(self) -> bool:
        """Whether the noise does not depend on the state."""
        return self.rows is None

    def growth(self, Y: np.ndarray) -> np.ndarray:
        """Γ(Y): what second moments Y = E[zzᵀ] of θ add to E[δδᵀ]; memory O(d²)."""
        assert self.rows is not None
        if self.tabulated:
            d = len(Y)
            return np.einsum("iajb,ab->ij", self.tensor[:, :d, :, :d], Y, optimize=True)
        x, N = self.rows, len(self.rows)
        weights = np.sum((x @ Y) * x, axis=1)
        return self.factor * N * (N * (x.T * weights) @ x - self.gram @ Y @ self.gram)  # T1: f Σᵢ ΔᵢYΔᵢ/(bN)

    @property
    def tabulated(self) -> bool:
        """Whether `tensor` is small, and cheaper than going over the rows."""
        assert self.rows is not None
        N, d = self.rows.shape
        return d <= MOST_IN_TENSOR and d**2 < N

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """Σ_i w_i x_ix_iᵀ."""
        assert self.rows is not None
        return self.rows.T @ self.rows

    @functools.cached_property
    def tensor(self) -> np.ndarray:
        """T with E[δδᵀ | z]_ij = Σ_ab T[i, a, j, b] ẑ_aẑ_b, ẑ = (z, 1): d × (d+1) × d × (d+1), for few parameters only."""
        d = len(self.constant)
        if self.rows is None:
            T = np.zeros((d, d + 1, d, d + 1))
            T[:, -1, :, -1] = self.constant
            return T
        e = np.zeros_like(self.rows) if self.errors is None else self.errors
        total = np.zeros((d * (d + 1), d * (d + 1)))
        for first in range(0, len(self.rows), ROWS_AT_ONCE):
            x = self.rows[first : first + ROWS_AT_ONCE]
            delta = len(self.rows) * x[:, :, None] * x[:, None, :] - self.gram  # T1: Δᵢ
            flat = np.concatenate([delta, e[first : first + ROWS_AT_ONCE, :, None]], axis=2).reshape(len(x), -1)
            total += flat.T @ flat
        return self.factor * total.reshape(d, d + 1, d, d + 1)  # T1


def oracle_noise(plan: Plan, mean: np.ndarray) -> Noise:
    """The noise of a plan's oracle around the target's mean, on a Gaussian target."""
    d, oracle, target = plan.dim, plan.prepared_oracle, plan.flat_target
    if isinstance(oracle, Batch) and isinstance(target, LinearRegression):
        X, y = target.design
        if isinstance(oracle, ControlVariate) and oracle.order == 2:
            assert oracle.complete  # rows' gradients are linear: nothing is left of them
            return Noise(np.zeros((d, d)))
        if isinstance(oracle, ControlVariate):
            away = mean - np.asarray(oracle.center, float)
            e = len(X) * (X @ away)[:, None] * X - X.T @ (X @ away)  # T1: Δᵢ(mean - center), no noise at the center
        else:
            e = len(X) * (X @ mean - y)[:, None] * X + float(target.prior_precision) * mean  # T1: eᵢ
        factor = batch_factor(oracle, len(X))
        return Noise(factor * e.T @ e, X, e, factor)
    tau = float(oracle.tau) if isinstance(oracle, Gaussian) else 0.0
    return Noise(tau**2 * np.eye(d))


def batch_factor(oracle: Batch, num_data: int) -> float:
    """f/(bN)."""
    return oracle.noise_factor(num_data) / (oracle.size * num_data)  # T1
