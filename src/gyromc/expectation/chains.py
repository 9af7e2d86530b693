"""The chains of a plan, run in pieces of about half a second where the time is limited, so that it is looked at in between.

Input: a plan. Output: a `Run` that grows; a run in pieces equals one long run exactly.
"""

import dataclasses
import math
import warnings

from gyromc.checks import require
from gyromc.engines import run as run_plan
from gyromc.errors import DivergenceError, GyromcWarning
from gyromc.expectation.limits import Limits, StepTooLarge
from gyromc.plan import Plan
from gyromc.results import Cause, Run
from gyromc.show.interruption import Interruption
from gyromc.show.progress import Progress

__all__ = ["GrowingRun"]

PIECE_SECONDS = 0.5
SMALLEST_PIECE = 16
DRAWS = 64  # kept of each chain, for posterior standard deviations …
MOST_BYTES = 2**26  # … in at most so much memory


class GrowingRun:
    """A plan that runs in pieces."""

    def __init__(self, plan: Plan, engine: str, limits: Limits, stop: Interruption, shown: Progress):
        self.plan, self.engine, self.limits, self.stop, self.shown = plan, engine, limits, stop, shown
        self._run: Run | None = None
        self._draws = None

    @property
    def run(self) -> Run:
        """The run so far, with the draws of its first steps."""
        assert self._run is not None
        return dataclasses.replace(self._run, draws=self._draws) if self._draws is not None else self._run

    @property
    def done(self) -> int:
        """How many states of each chain are averaged."""
        return 0 if self._run is None else self._run.steps_done

    @property
    def gradients(self) -> int:
        """How many gradients the run has computed."""
        return 0 if self._run is None else self._run.gradient_evaluations

    @property
    def seconds_a_step(self) -> float:
        """The time that a step of all chains takes, without compilation."""
        run = self._run
        return 0.0 if run is None else max(0.0, run.wall_time - run.compile_time) / max(1, run.state.step)

    def advance(self, steps: int) -> None:
        """Average `steps` steps in all, or as many as there is time for; raises where chains fail or none was averaged."""
        while self.done < steps and not self.stop and self.limits.seconds_left > 0:
            count, before = steps - self.done, self.done
            if math.isfinite(self.limits.deadline):  # each piece may compile anew: no pieces without need
                rate = self.seconds_a_step
                count = min(count, max(SMALLEST_PIECE, int(PIECE_SECONDS / rate)) if rate else SMALLEST_PIECE)
            self._piece(count, steps)
            self.shown.advance(self.done - before)
        if self.stop and not self.done:
            raise KeyboardInterrupt
        require(
            self.done,
            f"`seconds` were spent on tuning and burn-in, which took {max(0.0, -self.limits.seconds_left):.1f} s more, before "
            "any state was averaged: pass more of them.",
        )

    def keep_no_more_draws(self) -> None:
        """Keep the draws so far and none of the steps to come."""
        run = self.run
        assert run.options is not None
        self._draws = run.draws
        self._run = dataclasses.replace(run, draws=None, options=dataclasses.replace(run.options, thin=None))

    def _piece(self, count: int, steps: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self._run is None:
                kept = max(1, min(DRAWS, MOST_BYTES // (4 * self.plan.num_chains * self.plan.dim)))
                plan, thin = self.plan.replace(num_steps=count), max(1, steps // kept)
                self._run = run_plan(plan, self.engine, progress=False, on_divergence="report", thin=thin)
            else:
                self._run = self._run.continue_(count)
        for one in caught:  # an interruption and failures are reported by what follows
            if not issubclass(one.category, GyromcWarning):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        failures = self._run.failures
        if not failures:
            return
        if failures[0].cause in (Cause.OBSERVABLE_NOT_FINITE, Cause.DENSITY_NOT_POSITIVE):
            said = [str(one.message) for one in caught if issubclass(one.category, GyromcWarning)]
            raise DivergenceError(said[-1] if said else str(failures[0]))
        raise StepTooLarge(f"{len(failures)} of {self.plan.num_chains} chains failed, the first: {failures[0]}")
