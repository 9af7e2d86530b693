"""One plan on its way to an error: the first stage, the bias, the rest of the run.

Input: a plan, the error asked for and the limits. Output: a `Pursuit` with the run, the first stage and the bias of every
observable, and the reason why it ended; `StepTooLarge` where the step size must become smaller first.
"""

import dataclasses
import enum
import math
import time
import warnings
from typing import Any

import numpy as np

from gyromc.checks import positive, require
from gyromc.engines import run as run_plan
from gyromc.errors import DivergenceError, GyromcWarning
from gyromc.estimation import bias as biases
from gyromc.estimation.bias import Bias
from gyromc.estimation.estimates import Estimate
from gyromc.estimation.richardson import NEXT_TERM, extrapolated
from gyromc.oracle_moments import why_no_moments
from gyromc.plan import Plan
from gyromc.results import Cause, Run
from gyromc.show.interruption import Interruption
from gyromc.show.numbers import duration
from gyromc.show.progress import Progress
from gyromc.statistics.stopping import FirstStage
from gyromc.targets.separable import why_not_in_jax

__all__ = ["Asked", "End", "Limits", "Pursuit", "StepTooLarge"]

FIRST_SHARE = 4  # the first stage is a quarter of what the plan expects to need …
FEWEST, MOST = 256, 2**16  # … but between so many steps,
BURN_INS = 5  # and at least so many times the burn-in
DRAWS = 64  # kept of each chain in the first stage, for posterior standard deviations …
MOST_BYTES = 2**26  # … in at most so much memory
PIECE_SECONDS = 0.5  # between two looks at the clock
BIAS_SHARE = 0.7  # of the error that the bias may be; the Monte Carlo error gets the rest, at least 0.71 of it
PAIRED_SHARE = 2  # pairs of chains make half the steps of the first stage,
FEWEST_PAIRED, LONGER = 128, 16.0  # at least so many, and at most so many times more where that is too few
CONSTANT = 1e-6  # standard deviation over mean of an observable that does not vary, in float32
MOST_LOOKS = 6
LONGEST = 86400.0  # seconds that a run without limits may take
SAME = 1 + 1e-9


class StepTooLarge(Exception):
    """The step size must be made smaller; the message says why."""


class End(enum.Enum):
    """Why a run ended."""

    REACHED = enum.auto()
    GRADIENTS = enum.auto()
    SECONDS = enum.auto()
    INTERRUPTED = enum.auto()
    LOOKS = enum.auto()


@dataclasses.dataclass(frozen=True)
class Asked:
    """The error, in posterior standard deviations, and the engine."""

    error: float
    engine: str


@dataclasses.dataclass
class Limits:
    """What may be spent, and what was."""

    gradients: float
    deadline: float
    gradients_spent: int = 0

    @classmethod
    def read(cls, gradients: Any, seconds: Any, began: float) -> "Limits":
        """The arguments of `expect`, checked; infinite where they are left out."""
        return cls(
            math.inf if gradients is None else positive(gradients, "gradients"),
            math.inf if seconds is None else began + positive(seconds, "seconds"),
        )

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def affords(self, gradients: float) -> bool:
        """Whether so many gradients are left."""
        return self.gradients_spent + gradients <= self.gradients

    def steps(self, plan: Plan, wanted: float) -> int:
        """How many averaged steps of the plan, from its start, the gradients allow; at most `wanted`."""
        cost = lambda steps: plan.num_chains * plan.oracle.gradients(int(steps) + plan.burn_in)
        if self.affords(cost(wanted)):
            return int(wanted)
        low, high = 0, int(wanted)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.affords(cost(middle)) else (low, middle)
        return low


class Pursuit:
    """A plan that runs until an error is reached, a limit is spent, or Ctrl-C is pressed."""

    def __init__(self, plan: Plan, asked: Asked, limits: Limits, stop: Interruption, shown: Progress):
        self.plan, self.asked, self.limits, self.stop, self.shown = plan, asked, limits, stop, shown
        self.run: Run | None = None
        self.stages: dict[str, FirstStage] = {}
        self.sd: dict[str, float] = {}  # posterior standard deviations, from the first stage
        self.biases = {name: Bias(None, "unknown: the run ended before it was looked at") for name in plan.observables}
        self.draws: Any = None
        self.clock = [0.0, 0]  # seconds and steps, without the first piece, which compiles

    # --- what happens, in this order

    def follow(self) -> End:
        """Run until something ends it."""
        began = time.perf_counter()
        first = min(MOST, max(FEWEST, self.plan.num_steps // FIRST_SHARE))
        first = max(first, BURN_INS * self.plan.burn_in)
        allowed = self.limits.steps(self.plan, first)
        require(
            allowed >= 1,
            f"`gradients` = {self.limits.gradients:g} are too few: {self.plan.num_chains} chains with a burn-in of "
            f"{self.plan.burn_in} steps take {self.plan.num_chains * self.plan.oracle.gradients(self.plan.burn_in + first):,} for "
            f"the first look at the error, and {self.limits.gradients_spent:,} were spent before. Pass that many or more.",
        )
        self.advance(allowed)
        self.begin()
        if end := self.ended(allowed < first):
            return end
        spent = time.perf_counter() - began
        if spent < self.limits.seconds_left:
            self.biases = self.known_biases()
            self.check_biases(first)
        else:
            self.biases = {name: Bias(None, "unknown: `seconds` leave no time to measure it") for name in self.biases}
        for _ in range(MOST_LOOKS):
            needed = self.needed()
            if needed <= self.done:
                return End.REACHED
            self.check_duration(needed)
            allowed = self.limits.steps(self.plan, needed)
            self.advance(allowed)
            self.renew()
            if end := self.ended(allowed < needed):
                return End.REACHED if self.needed() <= self.done else end
        return End.LOOKS

    def advance(self, steps: int) -> None:
        """Average so many steps in all, in pieces of about half a second."""
        piece = 16 if self.run is None else max(16, self.done // 2)
        while self.done < steps and not self.stop and self.limits.seconds_left > 0:
            seconds, made = self.clock
            if made:
                piece = min(4 * piece, int(PIECE_SECONDS * made / max(seconds, 1e-9)))
            count, before, began = min(max(1, piece), steps - self.done), self.done, time.perf_counter()
            self._run_piece(count)
            if before:
                self.clock = [seconds + time.perf_counter() - began, made + count]
            self.shown.advance(self.done - before)
        require(
            self.done > 0 or self.stop,
            "`seconds` were spent on tuning and burn-in, before any state was averaged: pass more of them.",
        )
        if not self.done:
            raise KeyboardInterrupt

    def _run_piece(self, count: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self.run is None:
                kept = max(1, min(DRAWS, MOST_BYTES // (4 * self.plan.num_chains * self.plan.dim)))
                thin = max(1, self.plan.num_steps // FIRST_SHARE // kept)
                self.run = run_plan(
                    self.plan.replace(num_steps=count),
                    self.asked.engine,
                    progress=False,
                    on_divergence="report",
                    thin=thin,
                )
            else:
                self.run = self.run.continue_(count)
        for one in caught:  # an interruption and failures are said by what follows
            if not issubclass(one.category, GyromcWarning):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        self._check_failures([str(one.message) for one in caught])

    def _check_failures(self, said: list[str]) -> None:
        failures = self.state.failures
        if not failures:
            return
        if failures[0].cause in (Cause.OBSERVABLE_NOT_FINITE, Cause.DENSITY_NOT_POSITIVE):
            raise DivergenceError(said[-1] if said else str(failures[0]))
        raise StepTooLarge(f"{len(failures)} of {self.plan.num_chains} chains failed, the first: {failures[0]}")

    def begin(self) -> None:
        """Take the first stage and the posterior standard deviations from the run so far; later steps keep no draws."""
        run = self.state
        for name, row in run.items():
            self.sd[name] = math.sqrt(row.posterior_variance)
            self.stages[name] = FirstStage(row.good, run.steps_done, row.uncorrected is not None)
            require(
                math.isfinite(self.sd[name]),
                f"The posterior variance of {name!r} is {row.posterior_variance}, so no error in posterior standard deviations can be "
                "reached. Estimate something that grows more slowly.",
            )
        self.draws, options = run.draws, run.options
        assert options is not None
        self.run = dataclasses.replace(run, draws=None, options=dataclasses.replace(options, thin=None))
        self.describe()

    def renew(self) -> None:
        """Where later steps contradict the variance of the first stage, all steps so far become the first stage."""
        run = self.state
        for name, row in run.items():
            corrected, first = row.uncorrected is not None, self.stages[name]
            if corrected != first.corrected or first.refuted(row.good, run.steps_done):
                self.stages[name] = FirstStage(row.good, run.steps_done, corrected)
        self.describe()

    # --- the bias

    def known_biases(self) -> dict[str, Bias]:
        """The bias of every observable: exact on Gaussian targets, else from pairs of chains at two step sizes, else predicted."""
        names, found = list(self.plan.observables), {}
        sources = [self._predicted, self._paired]
        if self.plan.flat_target.gaussian() is None:
            sources.reverse()
        for source in sources:
            lacking = [name for name in names if name not in found or not self._settled(name, found[name])]
            if not lacking or self.stop:
                break
            for name, one in source(lacking).items():
                if (
                    name not in found
                    or found[name].value is None
                    or (one.value is not None and one.error < found[name].error)
                ):
                    found[name] = one
        return {**self.biases, **found}

    def _settled(self, name: str, one: Bias) -> bool:
        """Whether a bias is known well enough to say if it is too large."""
        if one.value is None:
            return False
        return one.error <= BIAS_SHARE * self.scale(name) or abs(one.value) > 2 * self._noise(one)

    def _noise(self, one: Bias) -> float:
        """The part of a bias' error that is not its own next order."""
        assert one.value is not None
        return math.sqrt(max(0.0, one.error**2 - (NEXT_TERM * self._relative_step * one.value) ** 2))

    @property
    def _relative_step(self) -> float:
        return self.plan.eta / biases.largest_step_size(self.plan)

    def _predicted(self, names: list[str]) -> dict[str, Bias]:
        found = biases.predicted_or_not(self.state)
        return {name: found[name] for name in names}

    def _paired(self, names: list[str]) -> dict[str, Bias]:
        """From pairs of chains at η and η/2 that share their noise; longer ones where the noise hides a bias that matters."""
        reason = why_not_in_jax(self.plan.flat_target) or why_no_moments(self.plan.oracle)
        if reason:
            return {name: Bias(None, f"unknown: chains cannot be paired here: {reason}") for name in names}
        steps, found = max(FEWEST_PAIRED, self.done // PAIRED_SHARE), {}
        for _ in range(2):
            cost = 3 * self.plan.num_chains * self.plan.oracle.gradients(steps + self.plan.burn_in)
            if not self.limits.affords(self.gradients + cost):
                return found or {name: Bias(None, "unknown: `gradients` leave too few to measure it") for name in names}
            self.limits.gradients_spent += cost
            try:
                found = extrapolated(self.plan.replace(num_steps=steps), names)
            except KeyboardInterrupt:
                return found
            except Exception as error:
                raise StepTooLarge(f"pairs of chains failed: {error}") from error
            vague = [
                self._noise(found[name]) / self.scale(name) for name in names if not self._settled(name, found[name])
            ]
            longer = min(LONGER, (2 * max(vague) / BIAS_SHARE) ** 2) if vague else 1.0
            if longer < 2 or self.stop:
                break
            steps = int(longer * steps)
        return found

    def check_biases(self, first: int) -> None:
        """Raise `StepTooLarge` where a bias is too large for the error and a smaller step size can be afforded."""
        again = 2 * self.plan.num_chains * self.plan.oracle.gradients(first + self.plan.burn_in)
        if not self.limits.affords(self.gradients + again):
            return
        for name, one in self.biases.items():
            if one.value is None or self.constant(name):
                continue
            noise = self._noise(one)
            size = math.sqrt(one.value**2 + one.error**2 - noise**2)
            if size > BIAS_SHARE * self.scale(name) and abs(one.value) > 2 * noise:
                raise StepTooLarge(
                    f"the discretisation bias of {name} was {abs(one.value) / self.sd[name]:.2g} ± {one.error / self.sd[name]:.1g} "
                    f"posterior standard deviations, too much for an error of {self.asked.error:g}"
                )

    # --- numbers

    @property
    def state(self) -> Run:
        """The run so far."""
        assert self.run is not None
        return self.run

    @property
    def done(self) -> int:
        """How many states of each chain are averaged."""
        return 0 if self.run is None else self.run.steps_done

    @property
    def gradients(self) -> int:
        """How many gradients this run has computed."""
        return 0 if self.run is None else self.run.gradient_evaluations

    def scale(self, name: str) -> float:
        """The error asked for, in the units of the observable."""
        return self.asked.error * self.sd[name]

    def constant(self, name: str) -> bool:
        """Whether an observable does not vary."""
        return self.sd[name] <= CONSTANT * abs(self.state[name].mean)

    def needed(self) -> float:
        """How many steps the error needs, by the first stage of each observable."""
        return max((self._steps_for(name) for name in self.stages if not self.constant(name)), default=0)

    def _steps_for(self, name: str) -> float:
        one = self.biases[name]
        bias = math.hypot(one.value, one.error) / self.scale(name) if one.value is not None else 0.0
        return self.stages[name].steps_for(self.scale(name) * math.sqrt(1 - min(bias, BIAS_SHARE) ** 2))

    def missed(self, row: Estimate) -> bool:
        """Whether an estimate has not reached the error."""
        return not self.constant(row.name) and not row.total_error <= SAME * self.scale(row.name)

    def ended(self, short: bool) -> End | None:
        """Why the run cannot go on, or None; `short`: the gradients did not allow all the steps that were wanted."""
        if self.stop:
            return End.INTERRUPTED
        if self.limits.seconds_left <= 0:
            return End.SECONDS
        return End.GRADIENTS if short else None

    def check_duration(self, needed: float) -> None:
        """Raise `InvalidInput` for a run without limits that would take more than a day."""
        seconds, made = self.clock
        left = (needed - self.done) * seconds / made if made else 0.0
        limited = math.isfinite(self.limits.gradients) or math.isfinite(self.limits.deadline)
        require(
            limited or left <= LONGEST,
            f"An error of {self.asked.error:g} posterior standard deviations needs {needed:.2g} steps of {self.plan.num_chains} chains, "
            f"about {duration(left)}. Pass a larger `error` ({self.asked.error * math.sqrt(left / 3600):.1g} takes an hour), or "
            "`seconds` to get what there is after that time.",
        )

    def describe(self) -> None:
        """Show the largest error so far."""
        sizes = {
            name: stage.error(self.done).std_error / self.sd[name]
            for name, stage in self.stages.items()
            if not self.constant(name)
        }
        if sizes:
            worst = max(sizes, key=lambda name: np.nan_to_num(sizes[name]))
            self.shown.describe(f"error {sizes[worst]:.2g} of {self.asked.error:g} ({worst}), η = {self.plan.eta_text}")

    def finished(self) -> Run:
        """The run, with the draws of its first stage."""
        if self.plan.flat_target.gaussian() is not None and self.biases and not self.stop:
            self.biases = {**self.biases, **self._exact_now()}
        return dataclasses.replace(self.state, draws=self.draws)

    def _exact_now(self) -> dict[str, Bias]:
        """The biases that a formula gives, for the steps that were made: the effect of the start is part of them."""
        old = [
            name for name, one in self.biases.items() if one.value is not None and one.method.startswith("predicted")
        ]
        return self._predicted(old) if old else {}
