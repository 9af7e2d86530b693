"""The test for strict variance reduction (E7): V < V_0 exactly when ∫ |⟨Q∇H, ∇φ₀⟩|² dμ > 0, φ₀ solving 𝒜₀φ₀ = h - μ(h).

Input: that integral with its error, V and V_0. Output: a `Reduction`.
"""

import dataclasses

import numpy as np

from gyromc.prediction.poisson.hermite import Polynomial

ROUNDING = 1e-20  # of the scale |Q|²V_0: smaller integrals are zero up to rounding


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Whether the rotation Q strictly lowers V, and the integral that decides it."""

    strict: bool
    integral: float
    ratio: float  # V / V_0

    def __bool__(self) -> bool:
        return self.strict

    def __str__(self) -> str:
        found = "strict" if self.strict else "none"
        return f"{found}, ∫|⟨Q∇H, ∇φ₀⟩|²dμ = {self.integral:.6g}, V/V_0 = {self.ratio:.6g}"


def reduction(integral: float, Q: np.ndarray, V: float, V_0: float, error: float = 0.0) -> Reduction:
    """The reduction is strict when the integral exceeds rounding and three times its own error."""
    scale = float(np.linalg.norm(Q, 2)) ** 2 * max(V_0, 0.0)
    return Reduction(bool(integral > max(ROUNDING * scale, 3 * error)), integral, V / V_0 if V_0 > 0 else 1.0)


def sampled_integral(draws: tuple[np.ndarray, np.ndarray], Q: np.ndarray, poisson: Polynomial) -> tuple[float, float]:
    """∫ |⟨Q∇H, ∇φ₀⟩|² dμ over draws of z with ∇H at each, and its standard error."""
    z, forces = draws
    terms = np.sum(poisson.gradients(z) * (forces @ Q.T), axis=1) ** 2  # E7
    return float(np.mean(terms)), float(np.std(terms) / np.sqrt(len(terms)))
