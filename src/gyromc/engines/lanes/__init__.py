"""Engine `lanes`: chains as SIMD lanes on the CPU, with the whole loop in the cache.

Threads share blocks of 64 chains; every chain has its own stream of random numbers, so the result is the same for any number of
threads, blocks and chunks. `loop_of` compiles the loop with Numba, for one part of `gradients` and without what a plan does not
use, or loads it from a folder that only this user can write. `STAMP` changes with every file of this package: no loop of an older
version is loaded.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit

from gyromc.checks import cause
from gyromc.engines import base as protocol
from gyromc.engines import suitability
from gyromc.engines.base import initial_state as shared_state
from gyromc.engines.lanes import ahead, functions, gradients, kernel, program
from gyromc.engines.lanes.gradients import Part
from gyromc.engines.lanes.kernel import Chains, Program
from gyromc.engines.lanes.program import aligned, mapped_source
from gyromc.engines.lanes.users import VectorFunction, written
from gyromc.engines.lanes.vectors import LANES, WIDTH
from gyromc.engines.meshes import sliced
from gyromc.engines.unrolled import Unsupported
from gyromc.errors import GyromcWarning
from gyromc.plan import Plan
from gyromc.results import EngineState
from gyromc.runtime.machine import num_threads
from gyromc.show.files import private_folder

__all__ = ["Session", "initial_state", "num_threads", "open_session", "why_not"]

SETTINGS: Any = numba.config  # type: ignore[attr-defined]  # Numba adds its settings at run time
OPTIONS: Any = {"nogil": True, **functions.COMPILED}  # of the compiled loops
TASKS_PER_THREAD = 4  # so that the others take over from a thread that the system delays
_SOURCES = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
STAMP = int.from_bytes(hashlib.sha256(_SOURCES).digest()[:6], "little")


@functools.cache
def kernel_folder() -> Path | None:
    """Where compiled loops are stored; None, with one warning, where there is no safe place: they are pickles, which run code."""
    found = private_folder("gyromc-kernels", SETTINGS.CACHE_DIR)
    return found if isinstance(found, Path) else _not_stored(found)


def stored(loop):
    """A compiled function that is stored on disk, and that is used whether or not it can be read or written there."""
    folder, before = kernel_folder(), SETTINGS.CACHE_DIR
    if folder is None:
        return njit(**OPTIONS)(loop)
    try:
        SETTINGS.CACHE_DIR = str(folder)  # read when the function is made
        compiled: Any = njit(cache=True, **OPTIONS)(loop)
    finally:
        SETTINGS.CACHE_DIR = before
    for name, fault in (("load_overload", "a file there cannot be read"), ("save_overload", "it cannot be written")):
        act = getattr(compiled._cache, name)

        def forgiving(*arguments, act=act, fault=fault):
            try:
                return act(*arguments)
            except Exception as error:  # a damaged file raises what its reader stumbles on
                return _not_stored(f"{folder}: {fault} ({cause(error)})")

        setattr(compiled._cache, name, forgiving)
    return compiled


def _not_stored(fault: str) -> None:
    said = f"Compiled loops are not stored in {fault}. Every process compiles them anew, a few seconds each"
    remedy = "Set `NUMBA_CACHE_DIR` to a folder of your own that can be written."
    warnings.warn(f"{said}. {remedy}", GyromcWarning, stacklevel=3)


LOOP = """
def made(stamp):
    def loop(p, c, task, workspace):
        _ = stamp
        {}(p, c, task, workspace{})

    return loop
"""


def precisions(plan: Plan, p: Program) -> str:
    """The types of numbers that a compiled function is for: mapped rows can have a type of their own."""
    return "_".join(dict.fromkeys(str(np.dtype(kind)) for kind in (plan.dtype, p.file_rows.dtype, p.responses.dtype)))


def loop_of(plan: Plan, p: Program) -> Any:
    """The loop for a program; what it does not use is not compiled."""
    part = Part(p.part)
    parts = (
        part.name.lower(),
        "p.row_width" if part >= Part.BATCH and p.row_width > LANES else "LANES",
        {gradients.USERS: "users_slope", gradients.SINE: "sine_slope"}.get(p.slope_code, "known_slope"),
        "add_increments" if plan.martingale else "no_increments",
    )
    return compiled_loop(parts, precisions(plan, p))


@functools.cache
def compiled_loop(parts: tuple[str, ...], precision: str, function: str = "advance") -> Any:
    """A function with the given arguments after the first four, compiled once and stored on disk."""
    # Numba looks a stored loop up by the variables of the function, which must be numbers: a compiled function is another one in
    # every process. `stamp` changes with any file of this package: Numba would check this file alone.
    scope: dict[str, Any] = {**vars(functions), **vars(gradients), **vars(kernel), **vars(ahead), **globals()}
    exec(compile(LOOP.format(function, "".join(f", {part}" for part in parts)), __file__, "exec"), scope)
    loop = scope["made"](STAMP)
    # A name, and so a file, for each: two processes that add to one file can mix up its entries, and those of another version
    # may refer to classes that this one does not have.
    loop.__qualname__ = "_".join((function, *parts, precision, f"{STAMP:x}")).replace(".", "_")
    return stored(loop)


def initial_state(plan: Plan) -> EngineState:
    """The state of all chains before the first step, each with its own stream of random numbers."""
    state = shared_state(plan)
    generator = np.zeros((plan.num_chains, 6), np.uint32)  # four words of state, then the bits of a spare normal
    generator[:, :4] = functions.streams(plan.seed, plan.num_chains)
    high, low, failed_at = state.high.astype(float), state.low.astype(float), state.failed_at.astype(np.int64)
    return dataclasses.replace(state, high=high, low=low, failed_at=failed_at, generator=generator)


def why_not(plan: Plan, mesh: Any = None) -> str | None:
    """Why this engine cannot run the plan: its first piece that does not fit, or an operation that cannot be compiled."""
    reason = suitability.lanes(plan, mesh)
    slope = program.user_slope(plan.flat_target) if reason is None else None
    try:
        if slope is not None:
            written(*slope, str(plan.dtype))
    except Unsupported as error:
        return f"the slope of {type(plan.flat_target).__name__} uses {error}"
    return reason


def open_session(
    plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, mesh: Any = None
) -> protocol.Session:
    """A session of the chains that this process moves, of all where there is one process; each chain has its own stream."""
    return sliced(lambda part, rows, _: LanesSession(part, rows, sane_range, thin, slots), plan, state)


class LanesSession:
    """The chains of one plan, in blocks."""

    def __init__(self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int):
        self.plan, self.step, self.blocks = plan, state.step, -(-plan.num_chains // WIDTH)
        self.program = program.compile_program(plan, sane_range, thin)
        slope = program.user_slope(plan.flat_target)
        if slope is not None:
            # Kept here, since its machine code is released with it.
            self.users = VectorFunction(*slope, str(plan.dtype))
            self.program = self.program._replace(users=self.users.address)
        self.loop = loop_of(plan, self.program)
        self.threads, self.ahead = min(num_threads(), self.blocks), None
        dtype = np.dtype(plan.dtype)
        assert state.generator is not None
        spare = np.ascontiguousarray(state.generator[:, 4:]).view(dtype)[:, :1]
        parts = state.z.astype(dtype), state.generator[:, :4], spare, state.high, state.failed_at[:, None]
        kept = np.zeros(slots * self.blocks * plan.dim * WIDTH, dtype)
        self.chains = Chains._make([*map(self._to_lanes, parts), kept])
        if self.program.part == Part.BATCH_AHEAD:
            names = ("draw_ahead", "sort_ahead", "read_ahead")
            loops = [compiled_loop((), precisions(plan, self.program), name) for name in names]
            self.ahead = ahead.Ahead(self.program, self.chains, self.blocks, loops)
            self.program = self.ahead.program
        self.workspaces = [self._workspace() for _ in range(self.threads)]
        self._work(0, 0, 0, 0, self.workspaces[0])  # no blocks, no steps: compiles, or loads from the cache

    def _to_lanes(self, rows: np.ndarray) -> np.ndarray:
        """chains × columns → blocks × columns × WIDTH, flat; lanes past the last chain repeat it."""
        padded = np.pad(rows, ((0, self.blocks * WIDTH - len(rows)), (0, 0)), mode="edge")
        return aligned(padded.reshape(self.blocks, WIDTH, -1).swapaxes(1, 2))

    def _to_rows(self, lanes: np.ndarray) -> np.ndarray:
        rows = lanes.reshape(self.blocks, -1, WIDTH).swapaxes(1, 2).reshape(self.blocks * WIDTH, -1)
        return rows[: self.plan.num_chains].copy()

    def _workspace(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Buffers for one thread: floats; offsets of rows, padded with the empty row; sizes."""
        p, dtype = self.program, np.dtype(self.plan.dtype)
        in_scratch = LANES * 2 * p.row_width + p.padded_batch
        floats = (2 * p.m + p.d + p.draws + 1 + len(p.observed.shift)) * WIDTH + in_scratch
        empty = p.num_rows * p.row_width if self.ahead is None else self.ahead.empty
        offsets = np.full(LANES * max(1, p.padded_batch), empty, np.uint32)
        if p.part == Part.MAPPED_BATCH:
            # Where `copy_rows` copies the rows of a chain to.
            places = np.repeat(in_scratch + p.row_width * np.arange(p.padded_batch, dtype=np.uint32), LANES)
            floats += p.padded_batch * p.row_width
            offsets = np.concatenate([np.zeros_like(offsets), places])
        elif self.ahead is not None:
            offsets = np.append(offsets, np.uint32(0))
        return aligned(np.zeros(floats, dtype)), aligned(offsets), aligned(np.zeros(WIDTH, f"uint{8 * dtype.itemsize}"))

    def _work(self, first: int, last: int, num_steps: int, first_slot: int, workspace) -> None:
        self.loop(self.program, self.chains, (first, last, self.blocks, self.step, num_steps, first_slot), workspace)

    def _share(self, pool: concurrent.futures.Executor, begin: int, end: int, num_steps: int, first_slot: int) -> None:
        """Move the blocks from `begin` to `end`, each by one of the threads."""
        count = 1 if self.threads == 1 else TASKS_PER_THREAD * self.threads
        edges = np.linspace(begin, end, count + 1).astype(int)
        tasks = iter([(a, b) for a, b in itertools.pairwise(edges) if a < b])

        def share(workspace) -> None:
            for first, last in tasks:  # taking the next item of a list iterator is atomic
                if self.ahead is not None:
                    workspace[1][-1] = (first - begin) * num_steps * self.ahead.in_block
                self._work(first, last, num_steps, first_slot, workspace)

        list(pool.map(share, self.workspaces))

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        reads = self.program.part >= Part.MAPPED_BATCH
        mapped, began = mapped_source(self.plan.flat_target) if reads else None, self.step
        if mapped is not None:
            mapped.check_size()
        with concurrent.futures.ThreadPoolExecutor(self.threads) as pool:
            if self.ahead is None:
                self._share(pool, 0, self.blocks, num_steps, first_slot)
            else:
                for task in self.ahead.passes(self.blocks, began, num_steps):
                    self.ahead.read(pool, self.threads, task)
                    begin, end, self.step, count = task
                    self._share(pool, begin, end, count, first_slot)
        if mapped is not None and mapped.is_large():
            mapped.release()
            mapped.check_size()
        self.step = began + num_steps

    def failed(self) -> bool:
        return bool(np.any(self._to_rows(self.chains.failed_at)[:, 0] >= 0))

    def kept(self, count: int) -> np.ndarray:
        lanes = self.chains.kept.reshape(-1, self.blocks, self.plan.dim, WIDTH)[:count]
        rows = lanes.swapaxes(2, 3).reshape(lanes.shape[0], self.blocks * WIDTH, self.plan.dim)
        return rows[:, : self.plan.num_chains].copy()

    def state(self) -> EngineState:
        c, weight = self.chains, self.plan.eta * max(0, self.step - self.plan.burn_in)
        high = self._to_rows(c.sums)
        spare = self._to_rows(c.spare).view(np.uint32)
        generator = np.zeros((self.plan.num_chains, 6), np.uint32)
        generator[:, :4] = self._to_rows(c.generator)
        generator[:, 4 : 4 + spare.shape[1]] = spare
        clock, failed_at = (weight, 0.0), self._to_rows(c.failed_at)[:, 0]
        return EngineState(self.step, self._to_rows(c.z), high, np.zeros_like(high), clock, failed_at, generator)


Session = LanesSession
