"""run: compute the averages of a plan with one of the engines.

The input is a `Plan`, the output a `Run`. An engine only moves all chains by a number of steps; everything around that is the
same for every engine and is here: chunks, progress, Ctrl-C, kept draws, failures, continuation.
"""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from gyromc.checks import free_memory, one_of, positive, require, require_memory, shown, whole
from gyromc.engines.choice import ENGINES, choose
from gyromc.engines.state import batch_length
from gyromc.errors import DivergenceError, GyromcWarning
from gyromc.evaluation import over_rows
from gyromc.plan import Plan
from gyromc.prediction.stability import advice
from gyromc.results import Cause, EngineState, Failure, Run, RunOptions
from gyromc.show.interruption import interruptible
from gyromc.show.numbers import duration
from gyromc.show.progress import Progress, say
from gyromc.show.progress import progress as show_progress
from gyromc.targets import CosinePerturbed, Quadratic
from gyromc.targets.regressions import WithLikelihood
from gyromc.targets.separable import why_not_in_jax

__all__ = ["draws_bytes", "resume", "run"]

CHUNK_SECONDS = 0.25  # how often progress is shown and Ctrl-C is checked
FEW_CHAINS = 64  # with more chains than this, errors come from the spread between chains
BLOCKS = (128, 8)  # kept of each chain, for few chains and for many
SANE_RANGE = 1e8  # times the start's own size
MOST_ON_DEVICE = 2**26  # bytes of kept draws
MOST_CHAIN_STEPS = 10**17
LONG = 3600  # seconds, after which the time is said beforehand
STEPS_A_SECOND = 10**9  # of all chains together, at best
GRADIENTS_A_CHECK = 100  # that U is finite
MOST_AT_ONCE = 2**24  # numbers that are read to compute U of several chains together
FIRST_WORK = 2**30  # multiplications, at most, before the clock is looked at
FINITE = (Quadratic, CosinePerturbed, WithLikelihood)  # U, wherever θ is; where eᵗ overflows, the gradient tells


def run(
    plan: Plan,
    engine: str = "auto",
    *,
    chunk_size: int | None = None,
    progress: bool | Callable[[int], object] | None = None,
    on_divergence: str = "raise",
    thin: int | None = None,
    sane_range: float | None = None,
    keep_blocks: int | None = None,
    keep_draws: int | None = None,
) -> Run:
    """Run the chains of a plan and average its observables.

    Ctrl-C ends the run after the current chunk and returns what is done, marked `partial`.

    **Arguments:**

    - `plan`: what to compute.
    - `engine`: `"pallas"` (GPU), `"lanes"` (CPU), `"scan"` (any target), or `"auto"` for the fastest that can run the plan;
      `run.engine_reason` gives the reason for the choice.
    - `chunk_size`: steps between two looks at the clock; never changes the numbers. Left out: about a quarter of a second.
    - `progress`: show a progress bar; left out: when standard error is a terminal. A function is called instead, with the
      number of steps made since its last call.
    - `on_divergence`: `"raise"`, or `"report"` to leave failed chains out, list them in `run.failures` and warn.
    - `thin`: keep every n-th state as `run.draws`; the memory this takes is printed to standard error before the run. Left out:
      no state is kept.
    - `sane_range`: a chain with a coordinate beyond this has diverged; left out: 10⁸ times the size of the start, at least 10⁸.
    - `keep_blocks`: keep averages over about so many (between half of it and all) equal stretches of each chain, from which the
      error of single chains is computed; left out: 128, or 8 for more than 64 chains, which vary enough among themselves.
    - `keep_draws`: the old name of `thin`.

    **Returns:** a `Run`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"sum": gm.observables.linear([1.0, 1.0])}, step_size=0.1, num_chains=100)
    low, high = gm.run(plan).interval("sum", 0.99)
    assert low < 0 < high
    ```
    """
    require(isinstance(plan, Plan), f"`run` takes a `Plan`: got {type(plan).__name__}.")
    if keep_draws is not None:
        require(thin is None, "`keep_draws` is the old name of `thin`: pass `thin` alone.")
        warnings.warn("`keep_draws=n` has become `thin=n`.", DeprecationWarning, stacklevel=2)
        thin = keep_draws
    _check_length(plan)
    options = _options(plan, engine, chunk_size, progress, on_divergence, thin, sane_range, keep_blocks)
    return _execute(plan, None, options)


def resume(plan: Plan, before: Run) -> Run:
    """Continue a run up to the steps of `plan`, with the options it was started with."""
    assert before.options is not None
    _check_length(plan)
    return _execute(plan, before, before.options)


def _check_length(plan: Plan) -> None:
    """Raise `InvalidInput` for a run that would take years."""
    steps = plan.num_steps + plan.burn_in
    years = plan.num_chains * steps / STEPS_A_SECOND / (365.25 * 86400)
    require(
        plan.num_chains * steps <= MOST_CHAIN_STEPS,
        f"{plan.num_chains} chains × {steps} steps would take {years:,.1f} years at {STEPS_A_SECOND:.0e} steps a second. Pass a "
        "smaller `num_steps` or `num_chains`; `run.continue_(more_steps)` extends a run.",
    )


def _check_memory(plan: Plan, keep_blocks: int) -> None:
    """Raise `InvalidInput` for a run whose chains, sums and blocks cannot fit, before any of them is made."""
    numbers = 3 * plan.state_size + 2 * plan.oracle.memory(
        plan.dim
    )  # position, gradient and noise; anchors, old and new
    states = np.dtype(plan.dtype).itemsize * numbers
    sums = 8 * len(plan.observables) * (1 + plan.martingale) * (2 + min(keep_blocks, plan.num_steps))
    require_memory(
        plan.num_chains * (states + sums),
        f"{plan.num_chains:,} chains, each with {plan.state_size:,} numbers and {len(plan.observables):,} observables,",
        "Take fewer chains; several runs with different seeds can be averaged.",
    )


def _options(plan: Plan, engine, chunk_size, progress, on_divergence, thin, sane_range, keep_blocks) -> RunOptions:
    """The arguments of `run`, checked and with their defaults worked out."""
    name, reason = choose(plan, engine)
    require(
        progress is None or isinstance(progress, bool) or callable(progress),
        f"`progress` must be True, False, None or a function: got {shown(progress)}.",
    )
    if keep_blocks is None:
        keep_blocks = BLOCKS[plan.num_chains > FEW_CHAINS]
    keep_blocks = whole(keep_blocks, "keep_blocks", least=2, most=2**16)
    _check_memory(plan, keep_blocks)
    if sane_range is None:
        theta = plan.starts.theta
        sane_range = SANE_RANGE * max(1.0, 0.0 if theta is None else float(np.max(np.abs(theta))))
    return RunOptions(
        engine=name,
        reason=reason,
        chunk_size=None if chunk_size is None else whole(chunk_size, "chunk_size", least=1),
        progress=progress,
        on_divergence=one_of(on_divergence, ("raise", "report"), "on_divergence"),
        thin=None if thin is None else whole(thin, "thin", least=1, most=2**31 - 1),
        sane_range=positive(sane_range, "sane_range"),
        keep_blocks=keep_blocks,
    )


def _execute(plan: Plan, before: Run | None, options: RunOptions) -> Run:
    """Make the steps that `before`, if any, still lacks, and return all that is known then."""
    began = time.perf_counter()
    least = plan.num_chains * (plan.num_steps + plan.burn_in - (before.state.step if before else 0)) / STEPS_A_SECOND
    if least > LONG and options.progress is not False:
        say(f"this takes at least {duration(least)}: {STEPS_A_SECOND:.0e} steps a second are the most that is reached")
    if options.thin is not None:
        _announce(plan, options.thin, quiet=options.progress is False)
    with contextlib.ExitStack() as stack:
        if plan.dtype == "float64":
            stack.enter_context(jax.enable_x64(True))
        state = ENGINES[options.engine].initial_state(plan) if before is None else before.state
        loop = _Loop(plan, state, options, before.failures if before else ())
        compile_time = time.perf_counter() - began
        interrupted = stack.enter_context(interruptible("stopping after this chunk (Ctrl-C again to drop it)"))
        wanted = options.progress
        if callable(wanted):
            progress = Progress(advance=wanted)  # type: ignore[arg-type]  # steps are whole numbers
        else:
            progress = stack.enter_context(show_progress(loop.total, wanted, plan.dynamics.name, state.step))
        while loop.step < loop.total and not interrupted:
            progress.advance(loop.chunk())
            if loop.step == loop.total or interrupted:
                loop.check_density()
            if options.on_divergence == "raise" and loop.failed():
                raise DivergenceError(_explain(plan, loop.failures(), options))
    state = loop.state()
    partial = state.step < loop.total
    if partial:
        warnings.warn(
            f"Interrupted: averages over {max(0, state.step - plan.burn_in)} of {plan.num_steps} steps. "
            "`run.continue_()` does the rest.",
            GyromcWarning,
            stacklevel=3,
        )
    failures = loop.failures(state)
    if failures:  # otherwise raised above
        warnings.warn(_explain(plan, failures, options), GyromcWarning, stacklevel=3)
    return Run(
        plan=plan,
        engine=options.engine,
        engine_reason=options.reason,
        state=state,
        wall_time=(before.wall_time if before else 0.0) + time.perf_counter() - began,
        compile_time=(before.compile_time if before else 0.0) + compile_time,
        partial=partial,
        failures=failures,
        draws=loop.draws(before),
        options=options,
        resume=resume,
    )


class _Loop:
    """The chunks of one execution: where they must end, and what is collected from them."""

    def __init__(self, plan: Plan, state: EngineState, options: RunOptions, failures: tuple[Failure, ...]):
        self.plan, self.options = plan, options
        self.step = state.step
        self.total = plan.num_steps + plan.burn_in
        self.length = batch_length(plan.num_steps, options.keep_blocks)
        self.snapshots = {k: v for k, v in state.snapshots.items() if k % self.length == 0}
        self.clocks = {k: state.clocks[k] for k in self.snapshots}
        self.slots = 0  # how many draws are stored on the device before they are copied to the host
        if options.thin is not None:
            self.slots = max(1, min(_num_draws(plan, options.thin), MOST_ON_DEVICE // _row_bytes(plan)))
        self.kept: list[np.ndarray] = []
        self.outside = {f.chain: f.step for f in failures if f.cause is Cause.DENSITY_NOT_POSITIVE}
        self.checked = state.step  # when U was last computed
        self.known = isinstance(plan.target, FINITE) or why_not_in_jax(plan.target) is not None
        data = getattr(plan.flat_target, "num_data", 1)
        self.between = GRADIENTS_A_CHECK * max(1, data // plan.oracle.evaluations(plan.target))
        work = plan.num_chains * plan.dim * plan.oracle.evaluations(plan.target)
        self.pace = options.chunk_size or max(1, min(64, FIRST_WORK // work))
        self.session = ENGINES[options.engine].Session(plan, state, options.sane_range, options.thin, self.slots)

    def chunk(self) -> int:
        """Make the next few steps; returns how many."""
        burn_in, thin = self.plan.burn_in, self.options.thin
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
            growth = 16 if spent < CHUNK_SECONDS / 100 else 2  # many short chunks would cost more than their steps
            self.pace = max(1, min(growth * self.pace, int(self.pace * CHUNK_SECONDS / max(spent, 1e-6)) + 1, 2**20))
        if self.step > burn_in and (self.step - burn_in) % self.length == 0:
            self.snapshots[self.step - burn_in], self.clocks[self.step - burn_in] = self.session.sums()
            if self.step - self.checked >= self.between:
                self.check_density()
        if thin is not None:
            filled = max(0, -(-(self.step - burn_in) // thin)) - first_slot
            self.kept.append(self.session.kept(filled))
        return count

    def check_density(self) -> None:
        """Note the chains that stand where the density is zero: gradients can be finite there, and no engine computes U."""
        if self.known or self.checked == self.step:
            return
        self.checked = self.step
        state = self.session.state()
        rows, target = state.z[:, : self.plan.dim], self.plan.flat_target
        size = self.plan.dim + sum(np.size(leaf) for leaf in jax.tree.leaves(target))
        try:
            U = over_rows(_potential, rows, target, chunk=min(len(rows), max(1, MOST_AT_ONCE // size)))
        except Exception:  # a user's target that has a gradient only
            self.known = True
            return
        for chain in np.flatnonzero(~np.isfinite(U) & np.all(np.isfinite(rows), axis=1) & (state.failed_at < 0)):
            self.outside.setdefault(int(chain), self.step)

    def failed(self) -> bool:
        return bool(self.outside) or self.session.failed()

    def failures(self, state: EngineState | None = None) -> tuple[Failure, ...]:
        return _failures(self.plan, state or self.state(), self.outside)

    def state(self) -> EngineState:
        """The state of the chains, with the sums at the end of each block."""
        state = self.session.state()
        failed_at = np.array(state.failed_at)
        for chain, step in self.outside.items():
            failed_at[chain] = step if failed_at[chain] < 0 else min(step, failed_at[chain])
        snapshots = {k: np.asarray(sums) for k, sums in self.snapshots.items()}
        return dataclasses.replace(state, failed_at=failed_at, snapshots=snapshots, clocks=dict(self.clocks))

    def draws(self, before: Run | None) -> Any:
        """Kept states, chains × draws, shaped like the parameters; those of `before` first."""
        if self.options.thin is None:
            return None
        theta = np.concatenate(self.kept).swapaxes(0, 1)
        with jax.enable_x64(theta.dtype == np.float64):
            new = jax.tree.map(np.asarray, jax.vmap(jax.vmap(self.plan.unravel))(theta))
        if before is None or before.draws is None:
            return new
        return jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), before.draws, new)


def _potential(target, theta):
    return target.potential(theta)


def _failures(plan: Plan, state: EngineState, outside: Mapping[int, int]) -> tuple[Failure, ...]:
    """The chains that failed, in the order in which they did; those `outside` stood where the density is zero."""
    names = list(plan.observables)
    sums = state.sums[:, : len(names)]
    failures = []
    for chain in sorted(np.flatnonzero(state.failed_at >= 0), key=lambda c: state.failed_at[c]):
        finite = bool(np.all(np.isfinite(state.z[chain])))
        bad = tuple(name for name, s in zip(names, sums[chain], strict=True) if finite and not np.isfinite(s))
        cause = Cause.OBSERVABLE_NOT_FINITE if bad else Cause.OUT_OF_RANGE if finite else Cause.STATE_NOT_FINITE
        if outside.get(int(chain)) == state.failed_at[chain]:
            cause, bad = Cause.DENSITY_NOT_POSITIVE, ()
        failures.append(Failure(int(chain), int(state.failed_at[chain]), cause, bad))
    return tuple(failures)


def _explain(plan: Plan, failures: tuple[Failure, ...], options: RunOptions) -> str:
    """What failed, where, the likely cause and what to do."""
    first = failures[0]
    chains = f"{len(failures)} of {plan.num_chains} chains failed" if len(failures) > 1 else "1 chain failed"
    if first.cause is Cause.OBSERVABLE_NOT_FINITE:
        remedy = "Fix the observable, or leave it out."
    elif first.cause is Cause.DENSITY_NOT_POSITIVE:
        remedy = (
            "A chain steps over the edge of a bounded parameter. Transform it so that every real number is allowed, for example "
            "x = exp(θ) for x > 0, and add the log derivative of the transform to the log density."
        )
    else:
        remedy = (
            f"{advice(plan)} (A state beyond {options.sane_range:.3g} counts as diverged; `sane_range` moves that.)"
        )
    keep = (
        "They are left out of means and errors; `run.failures` names them."
        if options.on_divergence == "report"
        else 'Pass `on_divergence="report"` to go on without failed chains.'
    )
    return f"{chains}, the first: {first}. {remedy} {keep}"


def draws_bytes(plan: Plan, thin: int) -> int:
    """The bytes that every `thin`-th state of every chain takes."""
    return _num_draws(plan, thin) * _row_bytes(plan)


def _announce(plan: Plan, thin: int, quiet: bool) -> None:
    """Print to standard error what the draws take; raises `InvalidInput` when they do not fit into memory."""
    size, free = draws_bytes(plan, thin), free_memory()
    text = (
        f"{_num_draws(plan, thin)} draws × {plan.num_chains} chains × {plan.dim} parameters ({plan.dtype}): "
        f"{size / 2**20:.1f} MiB"
    )
    require(
        size < 0.8 * free,
        f"Keeping {text} does not fit into the {free / 2**20:.0f} MiB of free memory. "
        f"Pass `thin={thin * -(-size // int(0.4 * free))}` or more, or fewer chains.",
    )
    if not quiet:
        say(f"keeping {text}")


def _num_draws(plan: Plan, thin: int) -> int:
    return -(-plan.num_steps // thin)


def _row_bytes(plan: Plan) -> int:
    """One state of every chain."""
    return plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize
