"""Chains in slices: each process, and each GPU of engine `pallas`, moves its own slice of them.

Input: a plan, the state of its chains and how a session of some of them is made. Output: a session of all. A slice has the random
numbers that its chains have in one piece, so the averages are the same, bit for bit, on any number of processes and devices.
Slices meet only where their states, sums and draws are read.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from gyromc import processes
from gyromc.engines.base import Session
from gyromc.plan import Plan
from gyromc.results import EngineState

ROWS = ("z", "high", "low", "failed_at", "generator")  # the fields of a state with one row per chain
Make = Callable[[Plan, EngineState, int], Session]
"""A session of a plan's chains in a state, whose first one has this number among all."""


def sliced(make: Make, plan: Plan, state: EngineState, devices: Sequence[Any] = (None,)) -> Session:
    """A session of all chains: of slices where several processes compute, or this one has several `devices`."""
    if processes.count() * len(devices) == 1:
        return make(plan, state, 0)
    return Slices(make, plan, state, devices)


class Slices:
    """The chains of one plan in slices: those of this process here, one for each of its `devices`."""

    def __init__(self, make: Make, plan: Plan, state: EngineState, devices: Sequence[Any]):
        self.plan, self.begun, self.steps = plan, state, 0
        total = processes.count() * len(devices)
        edges = np.linspace(0, plan.num_chains, total + 1).round().astype(int)
        edges = edges[processes.index() * len(devices) :][: len(devices) + 1]
        self.own = slice(edges[0], edges[-1])
        bounds = [(device, a, b) for device, a, b in zip(devices, edges[:-1], edges[1:], strict=True) if a < b]
        self.devices = [device for device, _, _ in bounds]
        self.sessions: list[Session] = self._each([lambda a=a, b=b: self._part(make, a, b) for _, a, b in bounds])

    def _part(self, make: Make, first: int, last: int) -> Session:
        """A session of the chains from `first` to `last`."""
        part = copy.copy(self.plan)  # the same pieces; a row of `start` for each chain would not fit fewer of them
        object.__setattr__(part, "num_chains", int(last - first))
        return make(part, _rows_of(self.begun, slice(first, last)), int(first))

    def _each(self, functions: list[Callable[[], Any]]) -> list[Any]:
        """What the functions return, each called on its own device, at the same time."""

        def called(device: Any, function: Callable[[], Any]) -> Any:
            with jax.default_device(device):
                return function()

        if len(functions) <= 1:
            return [called(*pair) for pair in zip(self.devices, functions, strict=True)]
        with ThreadPoolExecutor(len(functions)) as pool:
            return list(pool.map(called, self.devices, functions))

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        self._each([lambda s=s: s.advance(num_steps, first_slot) for s in self.sessions])
        self.steps += num_steps

    def failed(self) -> bool:
        return any(processes.everyone(any(session.failed() for session in self.sessions)))

    def kept(self, count: int) -> np.ndarray:
        if count == 0:
            return np.zeros((0, self.plan.num_chains, self.plan.dim), self.plan.dtype)
        own = [session.kept(count).swapaxes(0, 1) for session in self.sessions]
        none = np.zeros((0, count, self.plan.dim), self.plan.dtype)
        return processes.joined(np.concatenate([none, *own])).swapaxes(0, 1)

    def sums(self) -> tuple[Any, float]:
        state = self.state()
        return state.sums, sum(state.clock)

    def state(self) -> EngineState:
        states = [session.state() for session in self.sessions]
        if not states:  # more processes than chains
            states = [dataclasses.replace(_rows_of(self.begun, self.own), step=self.begun.step + self.steps)]
        whole = {}
        for name in ROWS:
            rows = [getattr(state, name) for state in states]
            whole[name] = None if rows[0] is None else processes.joined(np.concatenate(rows))
        clock = processes.agree(list(states[0].clock))
        return EngineState(step=states[0].step, clock=(clock[0], clock[1]), **whole)


def _rows_of(state: EngineState, own: slice) -> EngineState:
    """The state of some of the chains."""
    rows = {name: getattr(state, name) for name in ROWS}
    return dataclasses.replace(state, **{name: None if x is None else x[own] for name, x in rows.items()})
