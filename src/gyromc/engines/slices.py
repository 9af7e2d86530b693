"""Sessions of the engines: `scan` on a mesh, `lanes` and `pallas` on slices of the chains.

Input: a plan, the state of its chains and the options of a run. Output: a session. Each process, and each device of `pallas`,
moves its own slice of the chains, with the random numbers that these chains have in one piece, so the averages are the same, bit
for bit, on any number of them. Slices meet only where their states, sums and draws are read.
"""

import copy
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from gyromc import processes
from gyromc.engines import lanes, pallas, scan
from gyromc.engines.meshes import shares
from gyromc.engines.protocol import Engine, Session
from gyromc.plan import Plan
from gyromc.results import EngineState, RunOptions

__all__ = ["Slices", "open_session", "why_not_on_mesh"]

ROWS = ("z", "high", "low", "failed_at", "generator")  # the fields of a state with one row per chain
SLICED = (lanes, pallas)


def why_not_on_mesh(engine: Any, mesh: Any) -> str | None:
    """Why an engine cannot run on a mesh, or None."""
    wanted = " and ".join(f"`{axis}`" for axis in shares(mesh))
    return f"only `scan` shares the axis {wanted} of a mesh" if wanted and engine is not scan else None


def open_session(engine: Engine, plan: Plan, state: EngineState, options: RunOptions, slots: int) -> Session:
    """The session of a run on this process, where there is one, its part of the chains on this process."""
    arguments = plan, state, options.sane_range, options.thin, slots
    if engine is scan:
        return scan.Session(*arguments, mesh=options.mesh)
    devices: list[Any] = [None]
    if engine is pallas and options.mesh is not None:
        own = processes.index()
        devices = [device for device in options.mesh.devices.flat if device.process_index == own]
    if engine not in SLICED or processes.count() * len(devices) == 1:
        return engine.Session(*arguments)
    return Slices(engine, devices, *arguments)


class Slices:
    """The chains of one plan in slices: those of this process here, one for each of its `devices`."""

    def __init__(
        self,
        engine: Any,
        devices: list[Any],
        plan: Plan,
        state: EngineState,
        sane_range: float,
        thin: int | None,
        slots: int,
    ):
        self.plan, self.begun, self.steps = plan, state, 0
        total = processes.count() * len(devices)
        edges = np.linspace(0, plan.num_chains, total + 1).round().astype(int)
        edges = edges[processes.index() * len(devices) :][: len(devices) + 1]
        self.own = slice(edges[0], edges[-1])
        bounds = [(device, a, b) for device, a, b in zip(devices, edges[:-1], edges[1:], strict=True) if a < b]
        self.devices = [device for device, _, _ in bounds]
        made = [lambda a=a, b=b: self._part(engine, a, b, sane_range, thin, slots) for _, a, b in bounds]
        self.sessions: list[Session] = self._each(made)

    def _part(self, engine: Any, first: int, last: int, sane_range: float, thin: int | None, slots: int) -> Session:
        """A session of the chains from `first` to `last`."""
        part = copy.copy(self.plan)  # the same pieces; a row of `start` for each chain would not fit fewer of them
        object.__setattr__(part, "num_chains", int(last - first))
        arguments = part, _rows_of(self.begun, slice(first, last)), sane_range, thin, slots
        return pallas.Session(*arguments, first_chain=int(first)) if engine is pallas else engine.Session(*arguments)

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
