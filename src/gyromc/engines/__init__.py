"""run: do what a plan says, in chunks, with progress, and report every failure (E3, E4).

Receives a plan; hands on a `Run`. An engine moves all chains on by a number of steps; what surrounds that, the same for
every engine, is here: chunks, progress, Ctrl-C, failures, continuation.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gyromc.checks import positive, require, whole
from gyromc.engines import lanes, pallas, scan
from gyromc.errors import DivergenceError, GyromcWarning
from gyromc.estimation import statistics
from gyromc.plan import Plan
from gyromc.results import EngineState, Failure, Run

__all__ = ["ENGINES", "draws_bytes", "run"]

ENGINES = {"pallas": pallas, "lanes": lanes, "scan": scan}
"""The engines by name, the fastest first: modules with `why_not(plan)`, `initial_state(plan)` and `Session`."""
CHUNK_SECONDS = 0.25  # how often progress moves and Ctrl-C is heard
FEW_CHAINS = 64  # with more chains than this, errors come from the spread between chains
BLOCKS = (128, 8)  # kept of each chain, for few chains and for many
SANE_RANGE = 1e8  # times the start's own size


@dataclasses.dataclass(frozen=True)
class _Options:
    engine: str
    reason: str
    chunk_size: int | None
    progress: bool | Callable[[int], object] | None
    on_divergence: str
    keep_draws: int | None
    sane_range: float
    keep_blocks: int


def run(
    plan: Plan,
    engine: str = "auto",
    *,
    chunk_size: int | None = None,
    progress: bool | Callable[[int], object] | None = None,
    on_divergence: str = "raise",
    keep_draws: int | None = None,
    sane_range: float | None = None,
    keep_blocks: int | None = None,
) -> Run:
    """Do what the plan says: the averages (E4) over chains moved by (E3).

    Ctrl-C ends the run after the current chunk and returns what is done, marked `partial`.

    **Arguments:**

    - `plan`: what to compute.
    - `engine`: `"pallas"` (GPU), `"lanes"` (CPU), `"scan"` (any target), or `"auto"` for the fastest that can do the plan;
      `run.engine_reason` says why that one.
    - `chunk_size`: steps between two looks at the clock; never changes the numbers. Left out: about a quarter of a second.
    - `progress`: show a progress bar; left out: when standard error is a terminal. A function is called with the number of steps
      made since its last call instead.
    - `on_divergence`: `"raise"`, or `"report"` to leave failed chains out, name them in `run.failures` and warn.
    - `keep_draws`: keep every n-th state as `run.draws`; the memory it takes is said on standard error before the run.
    - `sane_range`: a chain with a coordinate beyond this has diverged; left out: 10⁸ times the size of the start, at least 10⁸.
    - `keep_blocks`: keep averages over about so many (between half of it and all) equal stretches of each chain, from which the
      error of single chains comes; left out: 128, or 8 for more than 64 chains, whose errors come from the spread between them.

    **Returns:** a `Run`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"sum": gm.observables.linear([1.0, 1.0])}, step_size=0.1, num_chains=100)
    result = gm.run(plan)
    low, high = result.interval("sum", 0.99)
    assert low < 0 < high
    ```
    """
    require(isinstance(plan, Plan), f"`run` takes a `Plan`: got {type(plan).__name__}.")
    engine, reason = _choose(plan, engine)
    require(
        on_divergence in ("raise", "report"),
        f'`on_divergence` must be "raise" or "report": got {on_divergence!r}.',
    )
    options = _Options(
        engine=engine,
        reason=reason,
        chunk_size=None if chunk_size is None else whole(chunk_size, "chunk_size", least=1),
        progress=progress,
        on_divergence=on_divergence,
        keep_draws=None if keep_draws is None else whole(keep_draws, "keep_draws", least=1),
        sane_range=_sane_range(plan) if sane_range is None else positive(sane_range, "sane_range"),
        keep_blocks=BLOCKS[plan.num_chains > FEW_CHAINS]
        if keep_blocks is None
        else whole(keep_blocks, "keep_blocks", least=2, most=2**16),
    )
    return _execute(plan, None, options)


def _choose(plan: Plan, name: str) -> tuple[str, str]:
    """The engine's name, the first that can do the plan for `auto`, and why it is that one."""
    require(
        name in ("auto", *ENGINES),
        f"Unknown engine {name!r}. Engines: {', '.join(ENGINES)}; `auto` picks the fastest that can do the plan.",
    )
    reasons = {candidate: engine.why_not(plan) for candidate, engine in ENGINES.items()}
    able = [candidate for candidate, reason in reasons.items() if reason is None]
    others = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason is not None)
    require(able, f"No engine can do this plan. {others}.")
    if name != "auto":
        require(
            name in able,
            f"Engine `{name}` cannot do this plan: {reasons[name]}. `{able[0]}` can; `auto` would take it.",
        )
        return name, "asked for"
    faster = [f"not {candidate}: {reasons[candidate]}" for candidate in list(ENGINES)[: list(ENGINES).index(able[0])]]
    return able[0], "; ".join(faster) or "the fastest that can do the plan"


def draws_bytes(plan: Plan, keep_draws: int) -> int:
    """The memory that keeping every `keep_draws`-th state of every chain takes."""
    return -(-plan.num_steps // keep_draws) * plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize


def _sane_range(plan: Plan) -> float:
    size = 0.0 if plan.starts.theta is None else float(np.max(np.abs(plan.starts.theta)))
    return SANE_RANGE * max(1.0, size)


def _execute(plan: Plan, before: Run | None, options: _Options) -> Run:
    began = time.perf_counter()
    if options.keep_draws is not None:
        _announce_draws(plan, options.keep_draws, quiet=options.progress is False)
    with contextlib.ExitStack() as stack:
        if plan.dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
        state = ENGINES[options.engine].initial_state(plan) if before is None else before.state
        loop = _Loop(plan, state, options)
        compile_time = time.perf_counter() - began
        interrupted = stack.enter_context(_interruptible())
        advance = stack.enter_context(_progress(plan, state.step, options.progress))
        while loop.step < plan.num_steps + plan.burn_in and not interrupted:
            advance(loop.chunk())
            if options.on_divergence == "raise":
                loop.raise_if_failed()
    state = loop.state()
    partial = state.step < plan.num_steps + plan.burn_in
    if partial:
        warnings.warn(
            f"Interrupted: averages over {max(0, state.step - plan.burn_in)} of {plan.num_steps} steps. "
            "`run.continue_()` does the rest.",
            GyromcWarning,
            stacklevel=3,
        )
    failures = _failures(plan, state)
    if failures:
        message = _explain(plan, failures, options)
        if options.on_divergence == "raise":
            raise DivergenceError(message)
        warnings.warn(message, GyromcWarning, stacklevel=3)
    earlier = (before.wall_time, before.compile_time) if before else (0.0, 0.0)
    return Run(
        plan=plan,
        engine=options.engine,
        engine_reason=options.reason,
        state=state,
        wall_time=earlier[0] + time.perf_counter() - began,
        compile_time=earlier[1] + compile_time,
        partial=partial,
        failures=failures,
        draws=loop.draws(before),
        resume=lambda longer, earlier_run: _execute(longer, earlier_run, options),
    )


class _Loop:
    """The chunks of one execution: what has to be cut where, and what is collected on the way."""

    def __init__(self, plan: Plan, state: EngineState, options: _Options):
        self.plan, self.options = plan, options
        self.step = state.step
        self.total = plan.num_steps + plan.burn_in
        self.length = statistics.batch_length(plan.num_steps, options.keep_blocks)
        self.snapshots = {k: v for k, v in state.snapshots.items() if k % self.length == 0}
        self.clocks = {k: state.clocks[k] for k in self.snapshots}
        self.slots = 0 if options.keep_draws is None else _slots(plan, options.keep_draws)
        self.kept: list[np.ndarray] = []
        self.pace = options.chunk_size or 64
        self.session = ENGINES[options.engine].Session(plan, state, options.sane_range, options.keep_draws, self.slots)

    def chunk(self) -> int:
        """Make the next few steps; returns how many."""
        burn_in, thin = self.plan.burn_in, self.options.keep_draws
        count = min(self.pace, self.total - self.step)
        done = self.step - burn_in
        count = min(count, -done if done < 0 else self.length - done % self.length)
        first_slot = 0
        if thin is not None:
            first_slot = max(0, -(-done // thin))
            count = min(count, (first_slot + self.slots) * thin - done)
        began = time.perf_counter()
        self.session.advance(count, first_slot)
        spent = time.perf_counter() - began
        self.step += count
        if self.options.chunk_size is None:
            self.pace = max(1, min(2 * self.pace, int(self.pace * CHUNK_SECONDS / max(spent, 1e-6)) + 1, 2**20))
        if self.step > burn_in and (self.step - burn_in) % self.length == 0:
            state = self.session.state()
            self.snapshots[self.step - burn_in], self.clocks[self.step - burn_in] = state.sums, sum(state.clock)
        if thin is not None:
            filled = max(0, -(-(self.step - burn_in) // thin)) - first_slot
            self.kept.append(self.session.kept(filled))
        return count

    def raise_if_failed(self) -> None:
        if self.session.failed():
            raise DivergenceError(_explain(self.plan, _failures(self.plan, self.state()), self.options))

    def state(self) -> EngineState:
        return dataclasses.replace(self.session.state(), snapshots=dict(self.snapshots), clocks=dict(self.clocks))

    def draws(self, before: Run | None) -> Any:
        """Kept states, chains × draws, shaped like the parameters."""
        if self.options.keep_draws is None:
            return None
        theta = np.concatenate(self.kept).swapaxes(0, 1)
        with jax.enable_x64(theta.dtype == np.float64):
            new = jax.tree.map(np.asarray, jax.vmap(jax.vmap(self.plan.unravel))(theta))
        if before is None or before.draws is None:
            return new
        return jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), before.draws, new)


def _slots(plan: Plan, thin: int, most_bytes: int = 2**26) -> int:
    """How many draws are held on the device between two trips to the host."""
    row = plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize
    return max(1, min(-(-plan.num_steps // thin), most_bytes // row))


def _announce_draws(plan: Plan, thin: int, quiet: bool) -> None:
    size, free = draws_bytes(plan, thin), _free_memory()
    count = -(-plan.num_steps // thin)
    text = f"{count} draws × {plan.num_chains} chains × {plan.dim} parameters ({plan.dtype}): {size / 2**20:.1f} MiB"
    require(
        size < 0.8 * free,
        f"Keeping {text} does not fit into the {free / 2**20:.0f} MiB of free memory. "
        f"Pass `keep_draws={thin * -(-size // int(0.4 * free))}` or more, or fewer chains.",
    )
    if not quiet:
        print(f"gyromc: keeping {text}", file=sys.stderr)


def _free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system says."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


@contextlib.contextmanager
def _interruptible() -> Iterator[list]:
    """A list that is empty until Ctrl-C is pressed; a second Ctrl-C interrupts at once."""
    pressed: list = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    previous = signal.getsignal(signal.SIGINT)

    def press(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        print("gyromc: stopping after this chunk (Ctrl-C again to drop it)", file=sys.stderr)

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def _progress(plan: Plan, done: int, wanted: bool | Callable[[int], object] | None) -> Iterator:
    """A function to call with the number of steps made; shows a bar on standard error where wanted."""
    if callable(wanted):
        yield wanted
        return
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(plan.dynamics.name, total=plan.num_steps + plan.burn_in, completed=done)
        yield lambda count: bar.advance(task, count)


def _failures(plan: Plan, state: EngineState) -> tuple[Failure, ...]:
    """The chains that left the sane range or met NaN, in the order in which they did."""
    sums, names = state.sums, list(plan.observables)
    failures = []
    for chain in sorted(np.flatnonzero(state.failed_at >= 0), key=lambda c: state.failed_at[c]):
        bad = [name for name, s in zip(names, sums[chain], strict=True) if not np.isfinite(s)]
        if bad and np.all(np.isfinite(state.z[chain])):
            reason = f"observable {', '.join(bad)} is NaN or infinite, though the state is finite"
        else:
            reason = (
                "the state left the sane range"
                if np.all(np.isfinite(state.z[chain]))
                else "the state became NaN or infinite"
            )
        failures.append(Failure(int(chain), int(state.failed_at[chain]), reason))
    return tuple(failures)


def _explain(plan: Plan, failures: tuple[Failure, ...], options: _Options) -> str:
    """What failed, where, the likely cause and what to do."""
    from gyromc.prediction.stability import advice

    first = failures[0]
    chains = f"{len(failures)} of {plan.num_chains} chains failed" if len(failures) > 1 else "1 chain failed"
    remedy = (
        "Fix the observable, or leave it out."
        if first.reason.startswith("observable")
        else f"{advice(plan)} (A state beyond {options.sane_range:.3g} counts as diverged; `sane_range` moves that.)"
    )
    keep = (
        "They are left out of means and errors; `run.failures` names them."
        if options.on_divergence == "report"
        else 'Pass `on_divergence="report"` to go on without failed chains.'
    )
    return f"{chains}, the first: {first}. {remedy} {keep}"
