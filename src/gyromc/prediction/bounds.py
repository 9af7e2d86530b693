"""Constants of smoothness and dissipativity (the paper's §2): L, m, M and b of a potential U.

Input: a plan. Output: `Bounds` with ‖∇²U‖ ≤ L, ‖∇³U‖ ≤ M, ⟨∇U(x)-∇U(y), x-y⟩ ≥ m|x-y|² - b, from a formula for built-in targets
and from sampled Hessians for others; and, where it is known, the matrix P for which ∇U(θ) - Pθ is bounded.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.evaluation import over_rows
from gyromc.plan import Plan
from gyromc.targets import CosinePerturbed, LogisticRegression


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Constants of U; `certified` when they come from a formula rather than from sampled points."""

    L: float
    m: float
    M: float
    b: float
    source: str
    far: np.ndarray | None = None  # P with ∇U(θ) - Pθ bounded
    certified: bool = True
    quadratic: bool = False


def bounds(plan: Plan) -> Bounds | None:
    """The constants of a plan's target; None where its Hessian cannot be formed."""
    target, d = plan.flat_target, plan.dim
    known = target.gaussian()
    if known is not None:
        spectrum = np.linalg.eigvalsh(known[0])
        L, m = float(spectrum[-1]), float(spectrum[0])
        return Bounds(L, m, 0.0, 0.0, "the eigenvalues of the precision", known[0], quadratic=True)
    if isinstance(target, CosinePerturbed):
        beta = abs(float(target.beta))
        # 2|β||Δ| ≤ εΔ² + β²/ε in each coordinate: m = 1-ε costs b = dβ²/ε; for |β| < 1 convexity gives m = 1-|β|, b = 0.
        m, b = (1 - beta, 0.0) if beta < 1 else (0.5, 2 * d * beta**2)
        return Bounds(1 + beta, m, beta, b, "∇²U = 1 - β cos θ_i", np.eye(d))
    if isinstance(target, LogisticRegression):
        p, X = float(target.prior_precision), np.asarray(target.X, float)
        top = float(np.linalg.eigvalsh(X.T @ X)[-1])
        longest = float(np.max(np.linalg.norm(X, axis=1)))
        M = top * longest / (6 * np.sqrt(3))  # |σ″| ≤ 1/(6√3)
        return Bounds(p + top / 4, p, M, 0.0, "0 ≤ σ′ ≤ 1/4 and the prior", p * np.eye(d))
    return _sampled(plan)


def _third(target, pair):
    """The derivative of ∇²U at x in the direction v."""
    x, v = jnp.split(pair, 2)
    return jax.jvp(lambda t: jax.hessian(target.potential)(x + t * v), (0.0,), (1.0,))[1]


def _sampled(plan: Plan, points: int = 64) -> Bounds | None:
    """Extremes of ∇²U and ∇³U over points spread around the mode: estimates, from below for L and M, from above for m."""
    if plan.dim > 200:
        return None
    center = plan.model.laplace
    rng = np.random.default_rng(0)
    spread = np.linalg.inv(np.linalg.cholesky(center.precision)).T
    scale = rng.choice([0.5, 1.0, 3.0, 10.0], (points, 1))
    rows = center.mean + scale * rng.standard_normal((points, plan.dim)) @ spread.T
    spectra = np.linalg.eigvalsh(plan.flat_target.hessians(rows))
    finite = spectra[np.all(np.isfinite(spectra), axis=1)]
    directions = rng.standard_normal((points, plan.dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    jerk = over_rows(_third, np.concatenate([rows, directions], axis=1), plan.flat_target, chunk=64)
    jerk = np.abs(np.linalg.eigvalsh(jerk[np.all(np.isfinite(jerk), axis=(1, 2))]))
    L, m, M = float(np.abs(finite).max()), float(finite.min()), float(np.max(jerk, initial=0.0))
    return Bounds(L, m, M, 0.0, f"Hessians at {points} points", certified=False)
