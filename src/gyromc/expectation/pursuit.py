"""One plan on its way to an error: the first stage, the bias, the rest of the run.

Input: a plan, the error asked for and the limits. Output: a `Pursuit` with the run, the first stage and the bias of every
observable, and the reason why it ended; `StepTooLarge` where the step size must become smaller first.
"""

import math
import time

from gyromc.checks import require
from gyromc.estimation.bias import Bias, predicted_or_not
from gyromc.estimation.estimates import Estimate
from gyromc.expectation.biases import SHARE, check_biases, known_biases, unknown
from gyromc.expectation.chains import GrowingRun
from gyromc.expectation.limits import End, Limits, Wanted
from gyromc.plan import Plan
from gyromc.results import Run
from gyromc.show.interruption import Interruption
from gyromc.show.numbers import duration
from gyromc.show.progress import Progress
from gyromc.statistics.stopping import FirstStage

__all__ = ["Pursuit"]

FIRST_SHARE = 4  # the first stage is a quarter of what the plan expects to need …
FEWEST, MOST = 256, 2**16  # … but between so many steps,
BURN_INS = 5  # and at least so many times the burn-in
CONSTANT = 1e-6  # standard deviation over mean of an observable that does not vary, in float32
MOST_LOOKS = 6
LONGEST = 86400.0  # seconds that a run without limits may take
SAME = 1 + 1e-9


class Pursuit:
    """A plan that runs until an error is reached, a limit is spent, or Ctrl-C is pressed."""

    def __init__(self, plan: Plan, asked: Wanted, limits: Limits, stop: Interruption, shown: Progress):
        self.plan, self.asked, self.limits, self.stop, self.shown = plan, asked, limits, stop, shown
        self.chains = GrowingRun(plan, asked.engine, limits, stop, shown)
        self.stages: dict[str, FirstStage] = {}
        self.sd: dict[str, float] = {}  # posterior standard deviations, from the first stage
        self.biases: dict[str, Bias] = dict.fromkeys(plan.observables, unknown("the run ended before it was looked at"))

    @property
    def gradients(self) -> int:
        """How many gradients the run has computed."""
        return self.chains.gradients

    def follow(self) -> End:
        """Run until something ends it."""
        began, first = time.perf_counter(), self._first_length()
        allowed = self.limits.steps(self.plan, first)
        self._check_gradients(allowed, first)
        self.chains.advance(allowed)
        self._begin()
        if end := self._ended(allowed < first):
            return self._reached() or end
        self.biases.update(self.asked.biases or {})
        if time.perf_counter() - began < self.limits.seconds_left:
            self.biases.update(known_biases(self.chains, self._errors(), self.asked.biases or {}))
            check_biases(self.chains, self.biases, self._errors(), first)
        else:
            late = unknown("`seconds` leave no time to measure it")
            self.biases.update({name: late for name, one in self.biases.items() if one.value is None})
        for _ in range(MOST_LOOKS):
            if end := self._reached():
                return end
            needed = self._needed()
            self._check_duration(needed)
            allowed = self.limits.steps(self.plan, needed)
            self.chains.advance(allowed)
            self._renew()
            if end := self._ended(allowed < needed):
                return self._reached() or end
        return self._reached() or End.LOOKS

    def missed(self, row: Estimate) -> bool:
        """Whether an estimate has not reached the error."""
        return row.name in self._errors() and not row.total_error <= SAME * self._errors()[row.name]

    def finished(self) -> Run:
        """The run; biases that a formula gives are brought to its length first, since they contain the effect of the start."""
        run = self.chains.run
        exact = [name for name, one in self.biases.items() if one.start]
        if exact and run.steps_done > min(stage.steps for stage in self.stages.values()):
            found = predicted_or_not(run)
            self.biases.update({name: found[name] for name in exact})
        return run

    def _first_length(self) -> int:
        return max(min(MOST, max(FEWEST, self.plan.num_steps // FIRST_SHARE)), BURN_INS * self.plan.burn_in)

    def _begin(self) -> None:
        """Take the first stage and the posterior standard deviations from the run so far; later steps keep no draws."""
        run = self.chains.run
        for name, row in run.items():
            variance = row.posterior_variance
            require(
                math.isfinite(variance),
                f"The posterior variance of {name!r} is {variance}, so no error in posterior standard deviations can be "
                "reached. Estimate something that grows more slowly.",
            )
            self.sd[name] = math.sqrt(variance)
            self.stages[name] = FirstStage(row.good, run.steps_done, row.uncorrected is not None)
        self.constant = {name for name, row in run.items() if self.sd[name] <= CONSTANT * abs(row.mean)}
        self.chains.keep_no_more_draws()
        self._describe()

    def _renew(self) -> None:
        """Where later steps contradict the variance of the first stage, all steps so far become the first stage."""
        run = self.chains.run
        for name, row in run.items():
            corrected, first = row.uncorrected is not None, self.stages[name]
            if corrected != first.corrected or first.refuted(row.good, run.steps_done):
                self.stages[name] = FirstStage(row.good, run.steps_done, corrected)
        self._describe()

    def _errors(self) -> dict[str, float]:
        """The error asked for in the units of each observable that varies."""
        return {name: self.asked.error * sd for name, sd in self.sd.items() if name not in self.constant}

    def _needed(self) -> float:
        """How many steps the error needs, by the first stage of each observable."""
        return max((self._steps_for(name, error) for name, error in self._errors().items()), default=0)

    def _steps_for(self, name: str, error: float) -> float:
        one = self.biases[name]
        bias = 0.0 if one.value is None else math.hypot(one.value, one.error) / error
        return self.stages[name].steps_for(error * math.sqrt(1 - min(bias, SHARE) ** 2))

    def _reached(self) -> End | None:
        return End.REACHED if self._needed() <= self.chains.done else None

    def _ended(self, short: bool) -> End | None:
        """Why the run cannot go on, or None; `short`: the gradients did not allow all the steps that were wanted."""
        if self.stop:
            return End.INTERRUPTED
        if self.limits.seconds_left <= 0:
            return End.SECONDS
        return End.GRADIENTS if short else None

    def _check_gradients(self, allowed: int, first: int) -> None:
        cost = self.plan.num_chains * self.plan.oracle.gradients(self.plan.burn_in + first)
        require(
            allowed >= 1,
            f"`gradients` = {self.limits.gradients:g} are too few: {self.plan.num_chains} chains with a burn-in of "
            f"{self.plan.burn_in} steps take {cost:,} for the first look at the error, and {self.limits.gradients_spent:,} were "
            "spent before. Pass that many or more.",
        )

    def _check_duration(self, needed: float) -> None:
        """Raise `InvalidInput` for a run without limits that would take more than a day."""
        left, asked = (needed - self.chains.done) * self.chains.seconds_a_step, self.asked.error
        require(
            not self.limits.none or left <= LONGEST,
            f"An error of {asked:g} posterior standard deviations needs {needed:.2g} steps of {self.plan.num_chains} chains, "
            f"about {duration(left)}. Pass a larger `error` ({asked * math.sqrt(left / 3600):.1g} takes an hour), or `seconds` "
            "to get what there is after that time.",
        )

    def _describe(self) -> None:
        """Show the largest error so far."""
        done = self.chains.done
        sizes = {name: self.stages[name].error(done).std_error / self.sd[name] for name in self._errors()}
        if sizes:
            worst = max(sizes, key=lambda name: sizes[name])
            self.shown.describe(f"error {sizes[worst]:.2g} of {self.asked.error:g} ({worst}), η = {self.plan.eta_text}")
