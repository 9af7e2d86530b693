"""Engine `pallas`: the whole loop in one GPU kernel, many chains per block, random numbers in registers.

Random numbers are Philox4x32-10 of (seed, chain, step, draw) alone and sums are kept in two floats, so results depend neither on
how chains are laid out in blocks nor on how steps are cut into chunks, and a run can be continued exactly. The kernel is compiled
by Pallas' Triton lowering. Plans that differ only in step size, seed or the numbers in their data share a kernel. Without a GPU,
`GYROMC_PALLAS_INTERPRET=1` lets the kernel be interpreted on the CPU: slow, for tests.
"""

from typing import Any

import jax
import numpy as np

from gyromc import processes
from gyromc.engines import base as protocol
from gyromc.engines import suitability
from gyromc.engines.base import initial_state
from gyromc.engines.meshes import sliced
from gyromc.engines.pallas.kernel import NEVER, Arrays, Inputs, compiled
from gyromc.engines.pallas.recipe import Recipe, check, make_recipe
from gyromc.engines.pallas.threads import Layout, why_no_triton
from gyromc.engines.suitability import interpreting
from gyromc.engines.unrolled import Unsupported
from gyromc.observables import Ridge
from gyromc.oracles import Batch
from gyromc.plan import Plan
from gyromc.results import EngineState
from gyromc.targets import SumOverData

__all__ = ["Session", "initial_state", "open_session", "why_not"]

LARGEST_TEAM = 8


def why_not(plan: Plan, mesh: Any = None) -> str | None:
    """Why this engine cannot run the plan, or None."""
    if reason := suitability.pallas(plan, mesh) or (None if interpreting() else why_no_triton()):
        return reason
    try:
        with jax.enable_x64(False):
            check(make_recipe(plan, team_size(plan))[0])
    except Unsupported as unsupported:
        return f"a kernel cannot hold {unsupported}: `scan` can"
    return None


def open_session(
    plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, mesh: Any = None
) -> protocol.Session:
    """A session of the chains that this process moves, in a slice for each of its devices on the mesh."""
    make = lambda part, rows, first: PallasSession(part, rows, sane_range, thin, slots, first_chain=first)
    own = processes.index()
    devices = [None] if mesh is None else [device for device in mesh.devices.flat if device.process_index == own]
    return sliced(make, plan, state, devices)


def team_size(plan: Plan) -> int:
    """How many threads share one chain: a power of two that depends on the plan's pieces alone."""
    ridges = sum(isinstance(h, Ridge) or plan.martingale for h in plan.observables.values())
    work = [1, ridges // 2 if ridges > 4 else 1]
    if isinstance(plan.flat_target, SumOverData):
        # One call of the generator gives a thread four rows; a full sum should give it a few as well.
        work.append((plan.oracle.size if isinstance(plan.oracle, Batch) else plan.flat_target.num_data) // 4)
    return min(LARGEST_TEAM, 1 << (max(work).bit_length() - 1))


def default_layout(plan: Plan, team: int) -> Layout:
    """Blocks of one warp until the GPU is full, of four warps beyond."""
    warps = 1 if plan.num_chains * team < 2**18 else 4
    return Layout(max(1, 32 * warps // team), warps, interpreting())


class PallasSession:
    """The chains of one plan on the device."""

    def __init__(
        self,
        plan: Plan,
        state: EngineState,
        sane_range: float,
        thin: int | None,
        slots: int,
        team: int | None = None,
        layout: Layout | None = None,
        first_chain: int = 0,
    ):
        # The first chain is numbered among those of all sessions: random numbers depend on a chain's number.
        self.plan, self.thin, self.step, self.first_chain = plan, thin, state.step, first_chain
        with jax.enable_x64(False):
            team = team or team_size(plan)
            layout = layout or default_layout(plan, team)
            self.recipe, tables = make_recipe(plan, team)
            blocks = -(-plan.num_chains // layout.chains)
            self.move = compiled(self.recipe, layout, blocks)
            seed = np.array([plan.seed & 0xFFFFFFFF, plan.seed >> 32], np.uint32)
            bound = np.array([sane_range], np.float32)
            self.inputs = jax.device_put(Inputs(np.zeros(4, np.int32), seed, bound, **tables))
            self.threads = jax.device_put(np.int32(plan.num_chains * team))
            self.arrays = _to_device(state, self.recipe, blocks * layout.chains)
            self.buffer = np.zeros((slots, plan.num_chains, plan.dim), np.float32) if slots else None
        self._launch(0)  # making no step compiles; `advance` would look for draws that are due before a later start

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        end = self.step + num_steps
        if self.thin is not None and self.buffer is not None:
            due = self.plan.burn_in + first_slot * self.thin
            for slot, step in enumerate(range(due, end, self.thin)):
                self._launch(step - self.step)
                self.buffer[slot] = np.asarray(self.arrays.y[: self.plan.dim, : self.plan.num_chains]).T
        self._launch(end - self.step)

    def _launch(self, num_steps: int) -> None:
        counts = np.array([self.step, num_steps, self.plan.burn_in, self.first_chain], np.int32)
        with jax.enable_x64(False):
            self.arrays, bad = self.move(self.inputs._replace(counts=counts), self.arrays, self.threads)
        self.bad = bool(bad)  # waits for the GPU
        self.step += num_steps

    def failed(self) -> bool:
        return self.bad

    def kept(self, count: int) -> np.ndarray:
        assert self.buffer is not None
        return self.buffer[:count].copy()

    def state(self) -> EngineState:
        host, R = jax.device_get(self.arrays), self.plan.num_chains
        slot, thread = _places(self.recipe)
        parts = (part.reshape(len(self.recipe.slots), -1, self.recipe.team) for part in (host.high, host.low))
        high, low = (np.ascontiguousarray(part[slot, :R, thread].T) for part in parts)
        # The first step at which any thread of a chain's team failed.
        first = host.failed_at.reshape(-1, self.recipe.team)[:R].min(axis=1)
        failed_at = np.where(first == NEVER, -1, first).astype(np.int32)
        clock = max(0, self.step - self.plan.burn_in) * self.plan.eta, 0.0
        return EngineState(self.step, np.ascontiguousarray(host.y[:, :R].T), high, low, clock, failed_at)


Session = PallasSession


def _to_device(state: EngineState, recipe: Recipe, total: int) -> Arrays:
    R = state.z.shape[0]
    failed_at = np.full(total, NEVER, np.int32)
    failed_at[:R] = np.where(state.failed_at < 0, NEVER, state.failed_at)
    y = np.pad(state.z.T, [(0, 0), (0, total - R)]).astype(np.float32)
    slot, thread = _places(recipe)
    # Of the two parts of the sums: slots × threads.
    parts = np.zeros((2, len(recipe.slots), total, recipe.team), np.float32)
    parts[:, slot, :R, thread] = np.stack([state.high, state.low]).transpose(2, 0, 1)
    high, low = parts.reshape(2, len(recipe.slots), -1)
    return jax.device_put(Arrays(y, high, low, np.repeat(failed_at, recipe.team)[None]))


def _places(recipe: Recipe) -> np.ndarray:
    """The slot and the thread of each column of the sums."""
    places = {i: (s, t) for s, slot in enumerate(recipe.slots) for t, i in enumerate(slot.members)}
    return np.array([places[i] for i in range(len(places))]).T
