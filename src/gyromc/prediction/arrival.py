"""From a start far out to where a solution of the Poisson equation can be trusted: the chain without its noise.

Input: starts, a test for being inside, the mean of one step, h - μ. Output: an `Arrival`, or that the chain goes to infinity.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows

NEAR = 3.0  # standard deviations, within which a fitted φ is used
MOST_STARTS = 100
MOST_STEPS = 2000
FEW_STEPS = 50  # in which a chain that goes to infinity gets there, each step being larger than the one before
WITHOUT_NOISE = 0.1  # error of the sum along the way, which leaves out the noise, as a share


def some_starts(plan: Plan) -> np.ndarray:
    """Rows of z₀: all starts, or a hundred spread over them."""
    rows = start_rows(plan)
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_STARTS)).astype(int)]


def mean_step(plan: Plan, step_size: float | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """One step of the chain without noise, of rows of z; `step_size`: the plan's own where it is left out."""
    G, eta, d = plan.dynamics.D + plan.dynamics.Q, plan.eta if step_size is None else step_size, plan.dim

    def step(z: np.ndarray) -> np.ndarray:
        return z - eta * np.concatenate([plan.flat_target.gradients(z[:, :d]), z[:, d:]], axis=1) @ G.T  # E3

    return step


@dataclasses.dataclass(frozen=True, eq=False)
class Arrival:
    """Where the starts are after so many steps without noise, and what h - μ adds up to on the way: its mean over the starts."""

    z: np.ndarray
    steps: int
    total: float

    @property
    def error(self) -> float:
        """The error of the sum, which leaves out the noise."""
        return WITHOUT_NOISE * abs(self.total)


def arrive(
    starts: np.ndarray, inside: Callable, step: Callable, values: Callable, num_steps: int, burn_in: int = 0
) -> Arrival | None:
    """Follow every start until it is inside, summing after `burn_in` steps; None where one is not in time."""
    here, total = np.array(starts, float), 0.0
    for k in range(min(MOST_STEPS, num_steps + burn_in)):
        away = ~inside(here)
        if not away.any():
            return Arrival(here, k, total)
        if k >= burn_in:
            total += float(np.sum(values(here[away]))) / len(here)
        here[away] = step(here[away])
        if not np.all(np.isfinite(here)):
            return None
    return None


def leaves(plan: Plan) -> bool:
    """Whether the chain of Euler-Maruyama without noise goes to infinity from one of the plan's starts."""
    here = some_starts(plan)
    with np.errstate(all="ignore"):
        for k in range(min(FEW_STEPS, plan.burn_in + plan.num_steps)):
            here = mean_step(plan, float(plan.step_size(k)) if callable(plan.step_size) else None)(here)
            if not np.all(np.isfinite(here)):
                return True
    return False
