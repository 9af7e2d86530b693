"""How U grows away from its mode: what decides whether a chain that went far comes back.

Input: a target and its Laplace approximation. Output: a `Growth` with mean Hessians K̄ along rays from the mode, for which
∇U(m+s) = K̄s. Where ∇U grows linearly those far out decide; where it grows faster, no step size is stable from everywhere, and
those at the edge of what a long chain visits are used.
"""

import dataclasses

import numpy as np

from gyromc.approx.gaussian import GaussianApproximation, inverse_root
from gyromc.targets import Target

RAYS = 16
EDGE = 20.0  # U above its minimum: a chain goes beyond with a probability of about e⁻²⁰
FAR = (30.0, 100.0)  # radii against that edge
LINEAR = 1.5  # by which curvature along a ray may rise between them


@dataclasses.dataclass(frozen=True, eq=False)
class Growth:
    """Mean Hessians away from the mode, and whether ∇U grows faster than linearly."""

    hessians: list[np.ndarray]
    faster: bool


def growth(target: Target, center: GaussianApproximation) -> Growth:
    """The growth of U along rays from its mode: ± the stiffest directions, and random ones."""
    d = len(center.mean)
    stiff = np.linalg.eigh(center.precision)[1][:, ::-1][:, : RAYS // 4].T
    drawn = np.random.default_rng(0).standard_normal((RAYS // 4, d)) @ inverse_root(center.precision).T
    v = np.concatenate([stiff, drawn])
    v = np.concatenate([v, -v]) / np.linalg.norm(np.concatenate([v, v]), axis=1, keepdims=True)
    edge = _edges(target, center, v)
    near, *far = (_secants(target, center, s * edge * v) for s in (1.0, *FAR))
    rises = [b > LINEAR * max(a, 1e-12) for (a, _), (b, _) in zip(*far, strict=True)]
    chosen = near if any(rises) else far[-1]
    return Growth([K for _, K in chosen if np.all(np.isfinite(K))], any(rises))


def _edges(target: Target, center: GaussianApproximation, v: np.ndarray) -> np.ndarray:
    """How far along each ray U is `EDGE` above the mode, one column, by bisection."""
    bottom = target.potentials(center.mean[None])[0]
    low, high = np.zeros(len(v)), np.full(len(v), 1e-3 / np.sqrt(np.linalg.eigvalsh(center.precision)[-1]))
    rise = lambda r: _above(target.potentials(center.mean + r[:, None] * v) - bottom)
    for _ in range(60):
        inside = rise(high) < EDGE
        if not np.any(inside):
            break
        low, high = np.where(inside, high, low), np.where(inside, 2 * high, high)
    for _ in range(20):
        middle = (low + high) / 2
        inside = rise(middle) < EDGE
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return low[:, None]


def _above(energy: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(energy), energy, np.inf)


def _secants(target: Target, center: GaussianApproximation, s: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Curvature along each s, and the Hessian at the mode with the least change (of rank one) that has K̄s = ∇U(m+s)."""
    with np.errstate(all="ignore"):
        g = target.gradients(center.mean + s)
        found = []
        for step, slope in zip(s, g, strict=True):
            missing = slope - center.precision @ step
            along = float(missing @ step)
            K = center.precision + (np.outer(missing, missing) / along if along else 0.0)
            found.append((float(slope @ step / (step @ step)), K))
    return found
