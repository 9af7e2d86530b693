"""Two step sizes compared over the same time: does the larger one change what a run averages?

Input: a function that makes a plan for a step size, and a first step size. Output: a `Check`: the step size whose averages agree
with those at half of it. Agreement means: no observable differs by more than 4 standard errors and by more than a tenth of its
standard deviation. A chain that diverges counts as disagreement.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from gyromc.engines.loop import run
from gyromc.errors import DivergenceError, GyromcWarning
from gyromc.observables import Observable
from gyromc.plan import Plan

__all__ = ["Check", "Flat", "check_step", "ran", "with_squares"]

ERRORS, DEVIATIONS = 4.0, 0.1


class Flat(Observable):
    """An observable of parameters of any shape, as a function of the vector θ, less a constant; squared where wanted."""

    h: Observable
    unravel: Callable
    center: Any = 0.0
    power: int = 1

    def __call__(self, params):
        value = jnp.asarray(self.h(self.unravel(params)))
        return (value - jnp.asarray(self.center, value.dtype)) ** self.power


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """What the comparison found.

    - `step_size`: the step size to take; `halvings`: how often the first was halved.
    - `agrees`: whether its averages agreed with those at half of it; None where the gradients did not suffice to look.
    - `differences`: of the last comparison, in standard deviations, by observable.
    - `gradients`: how many were used.
    - `theta`: the last states of the chains.
    """

    step_size: float
    halvings: int
    agrees: bool | None
    differences: Mapping[str, float]
    gradients: int
    theta: np.ndarray


def with_squares(observables: Mapping[str, Observable], unravel: Callable, point: Any) -> dict[str, Observable]:
    """The observables as functions of θ, less their values at a point, and the squares of these."""
    found: dict[str, Observable] = {}
    for name, h in observables.items():
        center = np.asarray(h(unravel(jnp.asarray(point))))
        found[name] = Flat(h, unravel, center)
        found[f"{name}, squared"] = Flat(h, unravel, center, 2)
    return found


def ran(plan: Plan) -> Any:
    """The run of a plan in engine `scan`; None where a chain diverged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GyromcWarning)  # on the length of a run that is short on purpose
            return run(plan, "scan", progress=False)
    except DivergenceError:
        return None


def check_step(
    make: Callable[[float, int], Plan],
    step_size: float,
    steps: int,
    gradients: int,
    hot: Callable[[np.ndarray], bool] = lambda theta: False,
) -> Check | None:
    """Halve the step size until its averages agree with those at half of it, or the gradients are used up.

    **Arguments:**

    - `make`: returns the plan for a step size and a number of steps; its observables are those of `with_squares`.
    - `step_size`: the first to look at.
    - `steps`: of the run at the first step size; others have the same length in time.
    - `gradients`: at most so many are computed.
    - `hot`: whether states are more widely spread than the law; then a step size does not count as agreeing.

    **Returns:** a `Check`; None where no step size that was tried gave finite averages.
    """
    spent, halvings, before, differences, too_hot = 0, 0, None, {}, False
    while True:
        plan = make(step_size / 2**halvings, steps * 2**halvings)
        if spent + plan.gradients > gradients:
            break
        found, spent = _seen(plan), spent + plan.gradients
        if before is not None and found is not None:
            differences, agrees = _differences(before, found)
            if agrees and not too_hot:
                return _result(2 * found.step_size, halvings - 1, True, differences, spent, found)
        before, halvings = found, halvings + 1
        too_hot = found is not None and hot(found.theta)
    return None if before is None else _result(before.step_size, halvings - 1, None, differences, spent, before)


@dataclasses.dataclass(frozen=True, eq=False)
class _Seen:
    """What is kept of a run: its averages and their errors, and the last states."""

    mean: Mapping[str, float]
    std_error: Mapping[str, float]
    theta: np.ndarray
    step_size: float


def _seen(plan: Plan) -> _Seen | None:
    found = ran(plan)
    if found is None:
        return None
    means, errors = ({name: x[name] for name in plan.observables} for x in (found.mean, found.std_error))
    return _Seen(means, errors, np.array(found.state.z[:, : plan.dim]), plan.eta)


def _result(eta, halvings, agrees, differences, spent, found: _Seen) -> Check:
    return Check(eta, halvings, agrees, differences, spent, found.theta)


def _differences(coarse: Any, fine: Any) -> tuple[dict[str, float], bool]:
    """The differences of the means in standard deviations, and whether all of them are small or within their errors."""
    sizes, agrees = {}, True
    for name in fine.mean:
        if f"{name}, squared" not in fine.mean:
            continue
        variance = fine.mean[f"{name}, squared"] - fine.mean[name] ** 2
        gap = abs(coarse.mean[name] - fine.mean[name])
        error = math.hypot(coarse.std_error[name], fine.std_error[name])
        deviation = math.sqrt(max(variance, 0.0))
        sizes[name] = gap / deviation if deviation > 0 else 0.0
        agrees = agrees and not (gap > ERRORS * error and gap > DEVIATIONS * deviation)
    return sizes, agrees
