"""What the martingale control variate takes off an average on a Gaussian target, exactly (T9).

Input: a plan with `martingale=True` and its `LinearChain`. Output: an `Increment` for each observable: ψ_k = cᵀξ + Σ_t λ_t
[(q_tᵀξ)(2(p_tᵀy⁺ - o_t) - q_tᵀξ) - |q_t|²], centred like the chain. For a linear observable ψ = cᵀξ, and Cov(ξ_k, y_l) is
M^{l-k-1}C for l > k whatever the oracle's noise, so what it changes in the variance has a closed form.
"""

import dataclasses

import numpy as np

from gyromc.martingale import martingale
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import LinearChain, lift, power


@dataclasses.dataclass(frozen=True, eq=False)
class Increment:
    """ψ of one observable."""

    linear: np.ndarray  # c: n numbers
    weight: np.ndarray  # λ
    direction: np.ndarray  # p: terms × m
    offset: np.ndarray  # o, for the centred state
    noise: np.ndarray  # q: terms × n

    def forms(self, M: np.ndarray, entering: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L and R with ψ = (Lŷ)ᵀw + wᵀRw - tr R given y, ŷ = (y, 1), for y⁺ = My + Ew, w = (ξ, …) standard normal."""
        drawn = np.zeros((len(self.weight), entering.shape[1]))
        drawn[:, : self.noise.shape[1]] = self.noise
        ahead = np.column_stack([self.direction @ M, -self.offset])
        L = 2 * (drawn.T * self.weight) @ ahead
        L[: len(self.linear), -1] += self.linear
        R = (drawn.T * self.weight) @ (2 * self.direction @ entering - drawn)  # T9
        return L, (R + R.T) / 2


def increments(plan: Plan, chain: LinearChain) -> dict[str, Increment]:
    """ψ of every observable of a plan with a martingale, by name."""
    found, center = martingale(plan), lift(chain.mean, chain.size)
    parts = {}
    for j, name in enumerate(plan.observables):
        own = found.owner == j
        p = found.direction[own]
        parts[name] = Increment(found.linear[j], found.weight[own], p, found.offset[own] - p @ center, found.noise[own])
    return parts


def linear_change(chain: LinearChain, U: np.ndarray, c: np.ndarray, num_steps: int) -> np.ndarray:
    """What ψ = cᵀξ changes in the variance of the average of uᵀy, for rows of U and c: N|c|² - 2uᵀΣ_j (N-1-j)M^j Cc, over N²."""
    eye = np.eye(chain.size)
    Z = power(_longer, (1, chain.M, eye, np.zeros_like(eye)), num_steps)[3]
    shared = np.einsum("ki,ij,kj->k", U, Z @ chain.C, c, optimize=True)
    return np.sum(c**2, axis=1) / num_steps - 2 * shared / num_steps**2  # T9


def _longer(p: tuple, q: tuple) -> tuple:
    """(m, M^m, T_m = Σ_{j<m} M^j, Σ_{j<m} (m-1-j)M^j) of two stretches together."""
    return p[0] + q[0], p[1] @ q[1], p[2] + p[1] @ q[2], p[3] + q[0] * p[2] + p[1] @ q[3]
