"""run: compute the averages of a plan with one of the engines, which only move all chains by a number of steps.

All else is here: which engine, what a run takes in memory, chunks, progress, Ctrl-C, kept draws, failures, continuation.
"""

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from gyromc import processes
from gyromc.checks import one_of, positive, require, shown, whole
from gyromc.engines import suitability
from gyromc.engines.base import Engine, check_state
from gyromc.engines.failures import DensityCheck, explanation, failures_of
from gyromc.engines.meshes import read_mesh
from gyromc.errors import DivergenceError, GyromcWarning, InvalidInput, MissingExtra
from gyromc.extras import needs
from gyromc.flat import shaped
from gyromc.io.checkpoints import Checkpoints, require_same, same_start
from gyromc.model import check_gradient
from gyromc.plan import Plan
from gyromc.results import EngineState, Run, RunOptions
from gyromc.runtime.machine import free_memory, require_memory
from gyromc.show.progress import Interruption, Progress, delayed, interruptible, say, unhurried
from gyromc.show.progress import progress as show_progress
from gyromc.targets import StreamedRegression


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How the steps of a run are cut into chunks, which changes no number, and what is said beforehand."""

    seconds: float = 0.25  # of a chunk: how often progress is shown and Ctrl-C is checked
    first: int = 64  # steps of the first chunk, at most
    first_work: int = 2**30  # multiplications of it, a second or so before anything is known about the speed
    longest: int = 2**20  # steps of a chunk
    on_device: int = 2**26  # bytes of kept draws before they are copied to the host
    worth_saying: int = 100 * 2**20  # bytes of draws, from which on they are said beforehand
    most_years: float = 3.0  # of a run at this pace
    pace: float = 1e9  # steps a second, of all chains together, which a large GPU reaches
    few_chains: int = 64  # with more, errors come from the variation between chains
    blocks: tuple[int, int] = (128, 8)  # block averages that are kept of each chain, for few chains and for many
    sane: float = 1e8  # a chain further out than this, times the size of the start, has diverged


SETTINGS = LoopSettings()


class _OnDemand:
    """An engine that is imported when a plan suits it; where a package is missing for it, it runs no plan and says so."""

    def __init__(self, module: str, unsuited: Callable[[Plan, Any], str | None]):
        self.module, self.unsuited = module, unsuited

    def why_not(self, plan: Plan, mesh: Any = None) -> str | None:
        try:
            return self.unsuited(plan, mesh) or self.__getattr__("why_not")(plan, mesh)
        except MissingExtra as missing:
            text = str(missing)
            return f"it would be faster, but {text[0].lower()}{text[1:]}"

    def __getattr__(self, name: str) -> Any:
        with needs("fast", "engine `lanes`"):
            return getattr(import_module(self.module), name)


ENGINES: dict[str, Engine] = {
    "pallas": cast(Engine, _OnDemand("gyromc.engines.pallas", suitability.pallas)),
    "lanes": cast(Engine, _OnDemand("gyromc.engines.lanes", suitability.lanes)),
    "scan": cast(Engine, _OnDemand("gyromc.engines.scan", suitability.scan)),
}
"""The engines by name, the fastest first."""


def choose(plan: Plan, name: str = "auto", mesh: Any = None) -> tuple[str, str]:
    """The engine that runs a plan, for `"auto"` the fastest that can, and the reason; `InvalidInput` where it cannot."""
    one_of(name, ("auto", *ENGINES), "engine", " `auto` takes the fastest that can do the plan.")
    if name != "auto":
        reason = ENGINES[name].why_not(plan, mesh)
        if reason is None:
            return name, "asked for"
        able, _ = choose(plan, mesh=mesh)
        raise InvalidInput(f"Engine `{name}` cannot do this plan: {reason}. `{able}` can; `auto` would take it.")
    reasons: list[str] = []
    for candidate, engine in ENGINES.items():
        reason = engine.why_not(plan, mesh)
        if reason is None:
            return candidate, "; ".join(f"not {why}" for why in reasons) or "the fastest that can do the plan"
        reasons.append(f"{candidate}: {reason}")
    raise InvalidInput(f"No engine can do this plan. {'; '.join(reasons)}.")


def _kept_blocks(plan: Plan) -> int:
    """How many block averages of each chain are kept, at most, from which the error of single chains is computed."""
    return SETTINGS.blocks[plan.num_chains > SETTINGS.few_chains]


def _check_length(plan: Plan) -> None:
    """Raise `InvalidInput` for a run that would take years."""
    steps = plan.num_steps + plan.burn_in
    years = plan.num_chains * steps / SETTINGS.pace / (365.25 * 86400)
    time_of = f"{years:,.1f} years at {SETTINGS.pace:.0e} steps a second"
    remedy = "Pass a smaller `num_steps` or `num_chains`; `run.continue_(more_steps)` extends a run."
    require(years <= SETTINGS.most_years, f"{plan.num_chains} chains × {steps} steps would take {time_of}. {remedy}")


def run_bytes(plan: Plan) -> int:
    """The most bytes that a run and the reading of its averages take, without data, draws and compiled programs.

    For each chain: its state at the start, in the engine, at the end and in the making, and with a martingale as much again for
    the noise and the gradients that it is made of; anchors of two vectors in six copies; sums in two parts in four
    copies; blocks, as they are copied when averages are read; random numbers and marks of failure.
    """
    numbers = (8 if plan.martingale else 4) * plan.state_size + 12 * plan.dim * plan.oracle.moving
    sums = len(plan.observables) * (1 + plan.martingale) * (8 + 4 * min(_kept_blocks(plan), plan.num_steps))
    return plan.num_chains * (np.dtype(plan.dtype).itemsize * numbers + 8 * sums + 160)


def draws_bytes(plan: Plan, thin: int) -> int:
    """The bytes that every `thin`-th state of every chain takes."""
    return math.ceil(plan.num_steps / thin) * plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize


def _announce(plan: Plan, thin: int, quiet: bool) -> None:
    """Print to standard error what many draws take; raises `InvalidInput` when they and the run do not fit into memory."""
    size, free = draws_bytes(plan, thin), free_memory()
    shape = f"{math.ceil(plan.num_steps / thin)} draws × {plan.num_chains} chains × {plan.dim} parameters"
    text = f"{shape} ({plan.dtype}): {size / 2**20:.0f} MiB"
    fits = 2 * size + run_bytes(plan) < 0.8 * free  # twice at the end, when they are put together
    remedy = f"Pass `thin={thin * max(2, -(-size // int(0.4 * free)))}` or more, or fewer chains."
    what = f"Keeping {text}, twice at the end,"
    require(fits, f"{what} does not fit into the {free / 2**20:.0f} MiB of free memory. {remedy}")
    if size >= SETTINGS.worth_saying and not quiet:
        say(f"keeping {text}")


def run(
    plan: Plan,
    engine: str = "auto",
    *,
    progress: bool | Callable[[int], object] | None = None,
    on_divergence: str = "raise",
    thin: int | None = None,
    sane_range: float | None = None,
    checkpoint: str | Path | None = None,
    every: str | int = "60s",
    keep: int = 3,
    mesh: Any = None,
) -> Run:
    """Run the chains of a plan and average its observables.

    Ctrl-C ends the run after the current chunk and returns what is done, marked `partial`.

    With `checkpoint`, what is done is saved from time to time. The same call, after the process ended or was killed, goes on
    from the newest checkpoint, and the result equals that of a run that was never interrupted, bit for bit. SIGTERM and Ctrl-C
    save before they end the run.

    **Arguments:**

    - `plan`: what to compute.
    - `engine`: `"pallas"` (GPU), `"lanes"` (CPU), `"scan"` (any target), or `"auto"` for the fastest that can run the plan;
      `run.engine_reason` gives the reason for the choice.
    - `progress`: show a progress bar; left out: when standard error is a terminal. A function is called instead, with the
      number of steps made since its last call.
    - `on_divergence`: `"raise"`, or `"report"` to leave failed chains out, list them in `run.failures` and warn.
    - `thin`: keep every n-th state as `run.draws`; the memory this takes is printed to standard error before the run. Left out:
      no state is kept.
    - `sane_range`: a chain with a coordinate beyond this has diverged; left out: 10⁸ times the size of the start, at least 10⁸.
    - `checkpoint`: a directory for checkpoints of this plan alone; made where there is none. Left out: nothing is saved.
    - `every`: how often: `"30s"`, `"5min"`, `"2h"`, or a number of steps.
    - `keep`: how many checkpoints stay; where the newest is damaged, the one before it is used.
    - `mesh`: a `jax.sharding.Mesh`, or a dictionary of sizes, with axes out of `"chains"`, `"data"` (rows) and `"parameters"`:
      what is spread over several devices (docs/scale.md). Left out: the chains, over all devices. On a CPU the axis `"chains"`
      never changes the numbers.

    **Returns:** a `Run`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"sum": gm.observables.linear([1.0, 1.0])}, step_size=0.1, num_chains=100)
    low, high = gm.run(plan).interval("sum", 0.99)
    print(low < 0 < high)  # True
    ```
    """
    require(isinstance(plan, Plan), f"`run` takes a `Plan`: got {type(plan).__name__}.")
    _check_length(plan)
    about = "`every` and `keep` are about checkpoints: pass `checkpoint`, a directory for them, or leave them out."
    require(checkpoint is not None or (every, keep) == ("60s", 3), about)
    mesh = read_mesh(mesh)
    name, reason = choose(plan, engine, mesh)
    known = progress is None or isinstance(progress, bool) or callable(progress)
    require(known, f"`progress` must be True, False, None or a function: got {shown(progress)}.")
    each = f"{plan.state_size:,} numbers and {len(plan.observables):,} observables"
    what = f"{plan.num_chains:,} chains, each with {each},"
    require_memory(run_bytes(plan), what, "Take fewer chains; several runs with different seeds can be averaged.")
    if sane_range is None:
        theta = () if plan.starts.theta is None else plan.starts.theta
        sane_range = SETTINGS.sane * max(1.0, float(np.max(np.abs(theta), initial=0.0)))
    options = RunOptions(
        engine=name,
        reason=reason,
        progress=progress,
        on_divergence=one_of(on_divergence, ("raise", "report"), "on_divergence"),
        thin=None if thin is None else whole(thin, "thin", least=1, most=2**31 - 1),
        sane_range=positive(sane_range, "sane_range"),
        mesh=mesh,
    )
    if processes.count() > 1:
        require_same(plan, options)
    if checkpoint is None:
        return _execute(plan, None, options)
    with delayed() as ended, Checkpoints(checkpoint, plan, options, every, keep, ended) as checkpoints:
        before = checkpoints.newest()
        return _execute(plan if before is None else before.plan, before, options, checkpoints)


def resume(plan: Plan, before: Run, mesh: Any = None) -> Run:
    """Continue a run up to the steps of `plan`, with the options it was started with, on another mesh where one is given."""
    options = before.options
    assert options is not None
    if mesh is not None:
        options = dataclasses.replace(options, mesh=read_mesh(mesh))
    choose(plan, options.engine, options.mesh)
    _check_length(plan)
    if processes.count() > 1:
        require_same(plan, options, before.state.step)
    return _execute(plan, before, options)


def _execute(plan: Plan, before: Run | None, options: RunOptions, checkpoints: Checkpoints | None = None) -> Run:
    """Make the steps that `before`, if any, still lacks, and return all that is known then."""
    began, written = time.perf_counter(), _written(plan)
    again = "was written to since the target was made. Make the target again: it reads other rows."
    require(not written, f"{written} {again}")
    if processes.count() > 1:
        plan = same_start(plan)
    if processes.index() > 0:
        options = dataclasses.replace(options, progress=False)  # process 0 speaks for all
    if options.thin is not None:
        _announce(plan, options.thin, quiet=options.progress is False)
    with contextlib.ExitStack() as stack:
        if plan.dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
        # From here on, since a press while XLA compiles would strike in its code.
        interrupted = stack.enter_context(interruptible("stopping after this chunk (Ctrl-C again to drop it)"))
        if before is not None:
            check_state(before.state, ENGINES[options.engine], plan)
        state = ENGINES[options.engine].initial_state(plan) if before is None else before.state
        if options.engine == "scan" and processes.count() == 1:
            check_gradient(plan.model, plan.dtype)
        loop = _Loop(plan, state, options, before)
        compile_time = time.perf_counter() - began
        wanted = options.progress
        if callable(wanted):
            progress = Progress(advance=wanted)  # type: ignore[arg-type]  # steps are whole numbers
        else:
            progress = stack.enter_context(show_progress(loop.total, wanted, plan.dynamics.name, state.step))
        result = lambda: loop.result(time.perf_counter() - began, compile_time)
        ended, stopped = Interruption() if checkpoints is None else checkpoints.ended, (False, False)
        while loop.step < loop.total and not any(stopped := _heard(interrupted, ended)):
            progress.advance(loop.chunk(None if checkpoints is None else checkpoints.steps))
            if loop.step == loop.total:
                loop.check_density()
            loop.raise_failures()
            if checkpoints is not None and checkpoints.due(loop.step):
                checkpoints.save(result(), loop.kept)
        if checkpoints is not None and checkpoints.last != loop.step:
            with unhurried():
                checkpoints.save(result(), loop.kept)
        if stopped[0]:
            loop.check_density()  # after the last checkpoint: a run that is resumed from it makes no check here
            loop.raise_failures()
    run = dataclasses.replace(result(), draws=loop.draws())
    _warn(run, options)
    return run


def _heard(*signals: Interruption) -> tuple[bool, ...]:
    """Whether each of the signals came to any process; then all of them go on as if it had come to themselves."""
    # What comes during the exchange is heard at the next one: a process that stopped at once would leave the others waiting.
    heard = [False] * len(signals)
    for theirs in processes.everyone([[signal.pressed, signal.number] for signal in signals]):
        for i, (pressed, number) in enumerate(theirs):
            if pressed:
                heard[i] = signals[i].pressed = True
                signals[i].number = signals[i].number or number
    return tuple(heard)


def _warn(run: Run, options: RunOptions) -> None:
    """Warn about a run that was interrupted, whose rows were written to, or whose chains failed."""
    found, done = [], f"{run.steps_done} of {run.plan.num_steps} steps"
    if run.partial:
        found.append(f"Interrupted: averages over {done}. `run.continue_()` does the rest.")
    if written := _written(run.plan):
        mixed = "its averages mix what was there before and after. Run it again."
        found.append(f"{written} was written to while the run read rows from it: {mixed}")
    if run.failures:  # otherwise raised above
        found.append(explanation(run.plan, run.failures, options))
    for text in found:
        warnings.warn(text, GyromcWarning, stacklevel=4)


def _written(plan: Plan) -> str:
    """The files of rows that were written to since the plan's target was made and checked; empty where none was."""
    return plan.target.source.changed() if isinstance(plan.target, StreamedRegression) else ""


class _Loop:
    """The chunks of one execution: where they must end, and what is collected from them."""

    def __init__(self, plan: Plan, state: EngineState, options: RunOptions, before: Run | None):
        self.plan, self.options, self.before = plan, options, before
        self.step, self.total = state.step, plan.num_steps + plan.burn_in
        # A power of two, so that the blocks of a longer run are unions of those of a shorter one.
        self.length = 1 << max(0, math.ceil(math.log2(plan.num_steps / _kept_blocks(plan))))
        self.snapshots = {k: v for k, v in state.snapshots.items() if k % self.length == 0}
        self.clocks = {k: state.clocks[k] for k in self.snapshots}
        # How many draws are stored on the device before they are copied to the host.
        self.slots = 0
        if options.thin is not None:
            draws = math.ceil(plan.num_steps / options.thin)
            self.slots = max(1, min(draws, SETTINGS.on_device * draws // draws_bytes(plan, options.thin)))
        # Draws × chains × d; those of an earlier run first.
        self.kept: list[np.ndarray] = []
        if before is not None and before.draws is not None:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(before.draws)]
            rows = [leaf.reshape(*leaf.shape[:2], math.prod(leaf.shape[2:])) for leaf in leaves]
            self.kept = [(rows[0] if len(rows) == 1 else np.concatenate(rows, axis=2)).swapaxes(0, 1)]
        self.density = DensityCheck(plan, state, () if before is None else before.failures)
        work = plan.num_chains * plan.dim * plan.oracle.evaluations(plan.target)
        self.pace = max(1, min(SETTINGS.first, SETTINGS.first_work // work))
        given = options.sane_range, options.thin, self.slots, options.mesh
        self.session = ENGINES[options.engine].open_session(plan, state, *given)

    def chunk(self, stop_every: int | None = None) -> int:
        """Make the next few steps, up to the next multiple of `stop_every`; returns how many."""
        burn_in, thin = self.plan.burn_in, self.options.thin
        done, count = self.step - burn_in, min(self.pace, self.total - self.step)
        if stop_every is not None:
            count = min(count, stop_every - self.step % stop_every)
        count = min(count, -done if done < 0 else self.length - done % self.length)
        first_slot = 0
        if thin is not None:
            first_slot = max(0, -(-done // thin))
            count = min(count, (first_slot + self.slots) * thin - done)
        count = processes.agree(count)  # it depends on the clock
        began = time.perf_counter()
        self.session.advance(count, first_slot)
        spent = time.perf_counter() - began
        self.step += count
        growth = 16 if spent < SETTINGS.seconds / 100 else 2  # many short chunks would cost more than their steps
        wanted = int(self.pace * SETTINGS.seconds / max(spent, 1e-6)) + 1
        self.pace = max(1, min(growth * self.pace, wanted, SETTINGS.longest))
        if self.step > burn_in and (self.step - burn_in) % self.length == 0:
            state = self.session.state()
            self.snapshots[self.step - burn_in], self.clocks[self.step - burn_in] = state.sums, sum(state.clock)
            if self.density.due(self.step):
                self.check_density()
        if thin is not None:
            filled = max(0, -(-(self.step - burn_in) // thin)) - first_slot
            self.kept.append(self.session.kept(filled))
        return count

    def check_density(self) -> None:
        """Note the chains that stand where the density is zero."""
        if not self.density.known and self.density.step != self.step:
            self.density(self.session.state())

    def raise_failures(self) -> None:
        """Raise `DivergenceError` where chains have failed and the run does not go on without them."""
        # Asked on every process.
        if self.options.on_divergence == "raise" and (self.session.failed() or self.density.outside):
            failures = failures_of(self.plan, self.state(), self.density.outside)
            raise DivergenceError(explanation(self.plan, failures, self.options))

    def state(self) -> EngineState:
        """The state of the chains, with the sums at the end of each block."""
        state = self.session.state()
        marks = {"failed_at": self.density.marked(state.failed_at), "checked": self.density.step}
        return dataclasses.replace(state, snapshots=dict(self.snapshots), clocks=dict(self.clocks), **marks)

    def result(self, seconds: float, compile_time: float) -> Run:
        """Where the chains stand, as a run without its draws; times are added to those of the run before."""
        state, before = self.state(), self.before
        return Run(
            plan=self.plan,
            engine=self.options.engine,
            engine_reason=self.options.reason,
            state=state,
            wall_time=(before.wall_time if before else 0.0) + seconds,
            compile_time=(before.compile_time if before else 0.0) + compile_time,
            partial=state.step < self.total,
            failures=failures_of(self.plan, state, self.density.outside),
            options=self.options,
            resume=resume,
        )

    def draws(self) -> Any:
        """Kept states, chains × draws, shaped like the parameters; those of an earlier run first."""
        if self.options.thin is None:
            return None
        # Each part is dropped as soon as it is copied: draws are in memory twice at most.
        parts, self.kept, done = self.kept[::-1], [], 0
        theta = np.empty((self.plan.num_chains, sum(map(len, parts)), self.plan.dim), self.plan.dtype)
        while parts:
            part = parts.pop()
            theta[:, done : done + len(part)] = part.swapaxes(0, 1)
            done += len(part)
        return shaped(self.plan.unravel, theta)
