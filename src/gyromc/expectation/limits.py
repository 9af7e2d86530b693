"""What `expect` was asked for, what it may spend, and why it ended."""

import dataclasses
import enum
import math
import time
from collections.abc import Mapping
from typing import Any

from gyromc.checks import positive
from gyromc.estimation.bias import Bias
from gyromc.plan import Plan

__all__ = ["End", "Limits", "StepTooLarge", "Wanted"]


class StepTooLarge(Exception):
    """The step size must be made `times` smaller; the message says why."""

    def __init__(self, why: str, times: int = 2):
        super().__init__(why)
        self.times = times


class End(enum.Enum):
    """Why a run ended."""

    REACHED = enum.auto()
    GRADIENTS = enum.auto()
    SECONDS = enum.auto()
    INTERRUPTED = enum.auto()
    LOOKS = enum.auto()


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The error, in posterior standard deviations, the engine, and the biases where they are known before the run."""

    error: float
    engine: str
    biases: Mapping[str, Bias] | None = None


@dataclasses.dataclass
class Limits:
    """The most gradients and the latest time, infinite where there is no limit; and the gradients of what was given up."""

    gradients: float
    deadline: float
    gradients_spent: int = 0

    @classmethod
    def read(cls, gradients: Any, seconds: Any, began: float) -> "Limits":
        """The arguments of `expect`, checked."""
        return cls(
            math.inf if gradients is None else positive(gradients, "gradients"),
            math.inf if seconds is None else began + positive(seconds, "seconds"),
        )

    @property
    def none(self) -> bool:
        """Whether there is no limit."""
        return math.isinf(self.gradients) and math.isinf(self.deadline)

    @property
    def seconds_left(self) -> float:
        """Until the latest time."""
        return self.deadline - time.perf_counter()

    def affords(self, gradients: float) -> bool:
        """Whether so many gradients are left."""
        return self.gradients_spent + gradients <= self.gradients

    def steps(self, plan: Plan, wanted: float) -> int:
        """How many averaged steps of the plan, from its start, the gradients allow; at most `wanted`."""
        cost = lambda steps: plan.num_chains * plan.oracle.gradients(steps + plan.burn_in)
        if math.isinf(self.gradients):
            return int(wanted)
        low, high = 0, int(min(wanted, self.gradients)) + 1  # a step takes a gradient at least
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.affords(cost(middle)) else (low, middle)
        return low
