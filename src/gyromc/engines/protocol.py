"""What an engine must provide: the `Protocol`s that `scan`, `lanes` and `pallas` are checked against.

An engine is a module with two functions, `why_not` and `initial_state`, and a class `Session`. A session holds the chains of one
plan and moves all of them by a number of steps; the loop in `gyromc.engines.loop` does the rest.
"""

from typing import Any, Protocol

import numpy as np

from gyromc.plan import Plan
from gyromc.results import EngineState

__all__ = ["Engine", "Session", "SessionClass"]


class Session(Protocol):
    """The chains of one plan while they run."""

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        """Move every chain by `num_steps` steps; states kept on the way go to slots, draw number `first_slot` to slot 0."""
        ...

    def failed(self) -> bool:
        """Whether any chain has failed so far."""
        ...

    def kept(self, count: int) -> np.ndarray:
        """The draws in the first `count` slots: draws × chains × d."""
        ...

    def sums(self) -> tuple[Any, float]:
        """The sums of the observables so far, which `np.asarray` reads now or later, and the sum of their weights."""
        ...

    def state(self) -> EngineState:
        """The state of all chains, as arrays on the host."""
        ...


class SessionClass(Protocol):
    """How a session is made."""

    def __call__(self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, /) -> Session:
        """Prepare and compile everything, without making a step.

        A chain with a coordinate beyond `sane_range` has failed. Every `thin`-th state after burn-in is kept (None: no state);
        one call of `advance` stores at most `slots` of them.
        """
        ...


class Engine(Protocol):
    """A module that runs plans."""

    @property
    def Session(self) -> SessionClass:
        """The class of its sessions."""
        ...

    def why_not(self, plan: Plan) -> str | None:
        """Why this engine cannot run the plan, or None when it can."""
        ...

    def initial_state(self, plan: Plan) -> EngineState:
        """The state of all chains before the first step."""
        ...
