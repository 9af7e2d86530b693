"""From a start far out to where a solution of the Poisson equation can be trusted: the chain without its noise.

Input: starts, a test for being inside, the mean of one step, h - μ. Output: the sum of h - μ along the way and where it ends.
"""

from collections.abc import Callable

import numpy as np

from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows

MOST_STARTS = 100
MOST_STEPS = 2000
WITHOUT_NOISE = 0.1  # error of the sum along the way, which leaves out the noise, as a share


def some_starts(plan: Plan) -> np.ndarray:
    """Rows of z₀: all starts, or a hundred spread over them."""
    rows = start_rows(plan)
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_STARTS)).astype(int)]


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
