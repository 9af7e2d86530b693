"""From a start far out to where a solution of the Poisson equation can be trusted: the chain without its noise.

Input: starts, a test for being inside, the mean of one step, h - μ. Output: the sum of h - μ along the way and where it ends.
"""

from collections.abc import Callable

import numpy as np

from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows

NEAR = 3.0  # standard deviations, within which a fitted φ is used
MOST_STARTS = 100
MOST_STEPS = 2000
WITHOUT_NOISE = 0.1  # error of the sum along the way, which leaves out the noise, as a share


def some_starts(plan: Plan) -> np.ndarray:
    """Rows of z₀: all starts, or a hundred spread over them."""
    rows = start_rows(plan)
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_STARTS)).astype(int)]


def mean_step(plan: Plan) -> Callable[[np.ndarray], np.ndarray]:
    """One step of the chain without noise, of rows of z."""
    G, eta, d = plan.dynamics.D + plan.dynamics.Q, plan.eta, plan.dim

    def step(z: np.ndarray) -> np.ndarray:
        return z - eta * np.concatenate([plan.flat_target.gradients(z[:, :d]), z[:, d:]], axis=1) @ G.T  # E3

    return step


def arrive(
    starts: np.ndarray, inside: Callable, step: Callable, values: Callable, num_steps: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """For each start Σ_k values(z_k) until z is inside, and that z; None where some start does not arrive in time."""
    here, total = np.array(starts, float), np.zeros(len(starts))
    for _ in range(min(MOST_STEPS, num_steps)):
        away = ~inside(here)
        if not away.any():
            return total, here
        total[away] += values(here[away])
        here[away] = step(here[away])
        if not np.all(np.isfinite(here)):
            return None
    return None
