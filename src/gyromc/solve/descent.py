"""Descents of many points at once towards the bulk of a law, by L-BFGS on all of them with one batched gradient.

Input: a function that returns U and ∇U at every row, and starting points. Output: the points where chains begin. A descent ends
where the fall of U that a Newton step promises is what a draw of the law has anyway, ½∇UᵀH⁻¹∇U ≤ d/2: the mode itself of a
hierarchical model can be a spike that holds no mass, and chains that begin there stay there.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

__all__ = ["Descent", "descend_all"]

Rows = Float[np.ndarray, "rows d"]
Evaluate = Callable[[Rows], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class DescentSettings:
    """The numbers of the descents.

    - `iterations`: at most; badly scaled models take a hundred.
    - `memory`: pairs of steps and gradient changes that are kept, as is usual.
    - `least`: iterations before a descent may end: before, its curvature is not known.
    - `armijo`: part of the promised fall that a step must bring.
    - `shrink`: factor for a step that does not.
    """

    iterations: int = 200
    memory: int = 8
    least: int = 5
    armijo: float = 1e-4
    shrink: float = 0.3


@dataclasses.dataclass(frozen=True, eq=False)
class Descent:
    """Where the descents ended: points, U and ∇U there, and how many batched gradients they took."""

    theta: Rows
    potential: np.ndarray
    gradient: Rows
    calls: int


def descend_all(
    evaluate: Evaluate,
    theta: Rows,
    stopped: Callable[[], bool] = lambda: False,
    settings: DescentSettings | None = None,
) -> Descent:
    """Descend from every row; rows where U is not finite stay where they are."""
    settings = settings or DescentSettings()
    rows, d = theta.shape
    theta = np.array(theta, float)
    value, slope = evaluate(theta)
    value, slope = np.where(np.isfinite(value), value, np.inf), np.where(np.isfinite(slope), slope, 0.0)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    length, calm, slow = np.ones(rows), np.zeros(rows, int), np.zeros(rows, int)
    done, calls = ~np.isfinite(value), 1
    direction = -slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
    for iteration in range(settings.iterations):
        if done.all() or stopped():
            break
        moved = theta + length[:, None] * direction
        new_value, new_slope = evaluate(moved)
        calls += 1
        promised = settings.armijo * length * np.einsum("nd,nd->n", slope, direction)
        finite = np.isfinite(new_value) & np.isfinite(new_slope).all(axis=1)
        good = finite & (new_value <= value + promised) & ~done
        pairs = [*pairs, _pair(theta, moved, slope, new_slope, good)][-settings.memory :]
        fall = np.where(good, value - new_value, np.inf)
        theta, slope = np.where(good[:, None], moved, theta), np.where(good[:, None], new_slope, slope)
        value = np.where(good, new_value, value)
        newton = _two_loops(slope, pairs)
        downhill = np.einsum("nd,nd->n", newton, slope)
        calm = np.where(good, np.where(downhill <= d, calm + 1, 0), calm)
        slow = np.where(good, np.where(fall < 1e-3 * d, slow + 1, 0), slow)
        length = np.where(good, 1.0, length * settings.shrink)
        done |= ((calm >= 2) & (iteration >= settings.least)) | (slow >= 3) | (length < 1e-12)
        plain = slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
        direction = np.where(good[:, None], np.where(downhill[:, None] > 0, -newton, -plain), direction)
    return Descent(theta, value, slope, calls)


def _pair(theta: Rows, moved: Rows, slope: Rows, new_slope: Rows, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The step and the change of the gradient of every row, zero where the step was refused or the curvature not positive."""
    step = np.where(good[:, None], moved - theta, 0.0)
    change = np.where(good[:, None], new_slope - slope, 0.0)
    curved = np.einsum("nd,nd->n", step, change)
    positive = curved > 1e-10 * np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    return step * positive[:, None], change * positive[:, None]


def _two_loops(slope: Rows, pairs: list[tuple[np.ndarray, np.ndarray]]) -> Rows:
    """H⁻¹∇U of every row, by the two loops of L-BFGS."""
    found, kept = slope.copy(), []
    scale = 1.0 / np.maximum(1.0, np.linalg.norm(slope, axis=1))
    for step, change in pairs:
        product, square = np.einsum("nd,nd->n", step, change), np.einsum("nd,nd->n", change, change)
        scale = np.where(product > 0, product / np.where(square > 0, square, 1.0), scale)
    for step, change in reversed(pairs):
        product = np.einsum("nd,nd->n", step, change)
        inverse = np.where(product > 0, 1.0 / np.where(product > 0, product, 1.0), 0.0)
        share = inverse * np.einsum("nd,nd->n", step, found)
        found -= share[:, None] * change
        kept.append((share, inverse))
    found *= scale[:, None]
    for (step, change), (share, inverse) in zip(pairs, reversed(kept), strict=True):
        found += (share - inverse * np.einsum("nd,nd->n", change, found))[:, None] * step
    return found
