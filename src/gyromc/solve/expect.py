"""expect: posterior expectations with a stated error. Warm up, sample, regress on zero-mean functions, check, continue.

Input: a target, observables (every parameter when left out), an error in posterior standard deviations and limits of time and
gradients. Output: a `Posterior`. The limits hold from the first call; Ctrl-C returns what there is.
"""

import dataclasses
import enum
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc.checks import coverage, positive, whole
from gyromc.errors import GyromcWarning
from gyromc.fields.functions import choose_fields
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, PosteriorMean, by_site
from gyromc.show.interruption import interruptible
from gyromc.show.numbers import duration, listed
from gyromc.show.progress import Progress
from gyromc.show.progress import progress as show_progress
from gyromc.solve.chains import ChainSettings, LangevinChains
from gyromc.solve.minibatch import MinibatchChains, NoServiceError, serves_minibatches
from gyromc.solve.question import Question
from gyromc.solve.sampling import Sampling, rotation_gain
from gyromc.targets import Target

__all__ = ["expect"]


@dataclasses.dataclass(frozen=True)
class ExpectSettings:
    """How long `expect` goes on.

    - `seconds`: that a call without limits may take.
    - `first_look`, `growth`: sampling rounds before the first estimate, and the factor to the next. Chains of a mixture that
      ended after 24 had missed a thousandth of its mass, which sharpened errors do not see.
    - `heavy`: kurtosis of an observable from which on its tails need more states: `longer` times those of the first look, with
      fewer than `few_parameters`, which cost little, up to `longest` times. E x² of a mild funnel with three parameters was
      silently wrong for 1 of 20 seeds without, E log τ of a logistic model with 100 groups for 1 of 5.
    - `warm_share`: of limited gradients or seconds that warm-up may take.
    - `few_gradients`, `few_chains`, `few_steps`: up to this limit of gradients, so many chains make rounds of so many steps, and
      rows of the regression are single states. With 4,400 gradients on radon, all counted, that is worth 11 independent draws
      per gradient; 32 chains, which leave 2 rounds for the metric, 1.
    - `mixed`: split R-hat up to which an error counts as reached; `unmixed`: from which on a warning is given.
    - `again`, `apart`: how often rounds with an R-hat above `apart` become warm-up: the chains had not found the law yet.
    - `reserve`: times the last look's seconds that are kept for the answer.
    - `show`: seconds after which the progress line shows a first estimate, however rough.
    """

    seconds: float = 30.0
    first_look: int = 60
    growth: float = 1.5
    few_parameters: int = 12
    heavy: float = 4.5
    longer: float = 2.0
    longest: float = 5.0
    warm_share: float = 0.45
    few_gradients: float = 30_000
    few_chains: int = 16
    few_steps: int = 12
    mixed: float = 1.02
    unmixed: float = 1.1
    again: int = 2
    apart: float = 1.3
    reserve: float = 2.0
    show: float = 3.0


SETTINGS = ExpectSettings()
NOT_ADJUSTED = (
    "Chains with mini-batches have no Metropolis step: errors do not contain the step-size bias that the regression leaves. It "
    "is small where the posterior is near Gaussian, as it is with many rows."
)


class End(enum.StrEnum):
    """Why sampling ended; the text completes a sentence about an error that was not reached."""

    REACHED = "the error is reached"
    SECONDS = "the time allowed is spent: pass a larger `seconds`"
    GRADIENTS = "the gradients allowed are spent: pass a larger `gradients`"
    INTERRUPTED = "it was interrupted"


def expect(
    target: Target | Plan,
    observables: Mapping[str, Any] | None = None,
    error: float = 0.01,
    *,
    seconds: float | None = None,
    gradients: float | None = None,
    level: float = 0.95,
    start: Any = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Posterior:
    """Posterior expectations to a stated error, in seconds.

    Chains are warmed up together, sample, and their averages are sharpened by regression on functions whose mean is known to be
    zero. It goes on until every observable has the error, or a limit is reached; then a warning says what is missing and what it
    would take. Ctrl-C returns the estimates so far.

    **Arguments:**

    - `target`: the law (`gyromc.targets`, `gyromc.interop.numpyro.target`), or a plan for it.
    - `observables`: functions of the parameters by name, of `gyromc.observables` or your own, returning a number or arrays; left
      out: every parameter, every site of a NumPyro model.
    - `error`: the standard error of every mean, in posterior standard deviations of its observable.
    - `seconds`, `gradients`: the most time from this call on, compilation included, and the most gradients over all the data.
      Without either, 30 seconds.
    - `level`: of the intervals.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`.
    - `seed`: a whole number; the same seed gives the same numbers, unless time ends the run.
    - `progress`: show the stage and the error so far; left out: when standard error is a terminal.

    **Returns:** a `Posterior`.

    ```python
    import gyromc as gm
    found = gm.expect(gm.targets.Quadratic([1.0, 4.0]), {"x²": gm.observables.square([1.0, 0.0])}, error=0.01)
    assert abs(found["x²"].mean - 1) < 0.01 and not found.warnings
    ```
    """
    began = time.perf_counter()
    error, level = positive(error, "error"), coverage(level)
    limits = Limits.read(seconds, gradients, began)
    question = Question.read(target, observables, start)
    with interruptible("stopping; what is done will be estimated") as stop, show_progress(None, progress) as shown:
        solver = Solver(question, error, limits, lambda: bool(stop), shown, whole(seed, "seed", least=0))
        solver.solve()
    found = solver.posterior(level)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found


@dataclasses.dataclass(frozen=True)
class Limits:
    """When it began, the latest time and the most gradients; `stated` where the caller gave one."""

    began: float
    deadline: float
    gradients: float
    stated: bool

    @classmethod
    def read(cls, seconds: Any, gradients: Any, began: float) -> "Limits":
        """The arguments of `expect`, checked."""
        stated = not (seconds is None and gradients is None)
        most = math.inf if seconds is None else positive(seconds, "seconds")
        if not stated:
            most = SETTINGS.seconds
        return cls(began, began + most, math.inf if gradients is None else positive(gradients, "gradients"), stated)

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began


class Solver:
    """One question on its way to an answer."""

    def __init__(
        self,
        question: Question,
        error: float,
        limits: Limits,
        stop: Callable[[], bool],
        shown: Progress,
        seed: int,
        settings: ChainSettings | None = None,
    ):
        self.question, self.error, self.limits, self.stop, self.shown = question, error, limits, stop, shown
        self.few = limits.gradients <= SETTINGS.few_gradients
        few = ChainSettings(chains=SETTINGS.few_chains, steps=SETTINGS.few_steps) if self.few else None
        self.seed, self.settings, self.all_rows = seed, settings or few, False
        self.chains = self._new_chains()
        self.sampling: Sampling | None = None
        self.end, self.warm_gradients, self.look_seconds = End.REACHED, 0, 0.0
        self.cut_warm_up = False

    def _new_chains(self) -> LangevinChains | MinibatchChains:
        model = self.question.model
        if not self.all_rows and serves_minibatches(model.flat_target, model.dim):
            return MinibatchChains(model, self.seed, self.settings)
        return LangevinChains(model.flat_target, model.dim, self.seed, self._out_of_time, self.settings)

    def _out_of_time(self) -> bool:
        return self.stop() or time.perf_counter() + SETTINGS.reserve * self.look_seconds > self.limits.deadline

    def _ended(self, share: float = 1.0) -> End | None:
        """Why no further round is made, with a share of the limits."""
        if self.stop():
            return End.INTERRUPTED
        if time.perf_counter() + SETTINGS.reserve * self.look_seconds > self.limits.began + share * (
            self.limits.deadline - self.limits.began
        ):
            return End.SECONDS
        step = self.chains.settings.chains * self.chains.settings.steps
        return End.GRADIENTS if self.chains.gradients + step > share * self.limits.gradients else None

    def solve(self) -> None:
        """Warm up, sample and look until something ends it; with all rows where mini-batches do not serve."""
        try:
            self._solve()
        except NoServiceError:
            self.all_rows = True
            self.chains = self._new_chains()
            self._solve()

    def _solve(self) -> None:
        self.shown.describe("finding where the posterior is")
        self.chains.begin(self.question.start)
        self._warm_up()
        for again in range(SETTINGS.again + 1):
            self._begin_sampling()
            end = self._sample(last=again == SETTINGS.again)
            if end is not None:
                self.end = end
                return
            # what has not mixed was warm-up
            self._warm_up(at_least=len(self.chains.warm))

    def _warm_up(self, at_least: int = 0) -> None:
        target = len(self.chains.warm) + at_least
        while not (self.chains.settled and len(self.chains.warm) >= target):
            if len(self.chains.warm) >= 2 and (ended := self._ended(SETTINGS.warm_share)):
                self.cut_warm_up = ended is not End.GRADIENTS
                break
            if self.stop():
                if not self.chains.warm:
                    raise KeyboardInterrupt
                break
            show = self.shown.visible and self.chains.warm and self.limits.spent > SETTINGS.show
            rough = self._rough_estimate() if show else ""
            self.shown.describe(f"warming up, round {len(self.chains.warm) + 1}{rough}")
            self.chains.warm_up()
            self.shown.advance(self.chains.settings.steps)

    def _rough_estimate(self) -> str:
        """The first observable from the last round of warm-up, for the progress line."""
        theta = self.chains.warm[-1].theta
        values = self.question.values(theta.reshape(-1, theta.shape[-1]))[:, 0].reshape(theta.shape[:2]).mean(axis=0)
        error = values.std(ddof=1) / math.sqrt(len(values))
        return f", {self.question.names[0]} about {values.mean():.4g} ± {error:.2g}"

    def _begin_sampling(self) -> None:
        theta, gradient = self.chains.warm_states()
        covariance = self.chains.metric.covariance() if self.question.model.dim <= 500 else None
        fields = choose_fields(theta, gradient, covariance)
        rows = self.chains.settings.chains * self.chains.settings.steps
        values = self.question.values(np.resize(theta[-rows:], (rows, theta.shape[1])))
        chains = self.chains.settings.chains
        self.sampling = Sampling(fields, self.question.values, values.mean(axis=0), chains, short=self.few)
        self.warm_gradients = self.chains.gradients

    def _sample(self, last: bool) -> End | None:
        """Sample until the error or a limit is reached; None where chains have not mixed and warm-up should go on."""
        sampling = self.sampling
        next_look = self._first_look
        assert sampling is not None
        self.shown.describe("sampling")
        while True:
            kept = self.chains.sample()
            sampling.add(kept)
            self.shown.advance(self.chains.settings.steps)
            end = self._ended()
            if len(sampling.rounds) < next_look and end is None:
                if self.shown.visible and not self.look_seconds and self.limits.spent > SETTINGS.show:
                    self._looked(sampling)
                continue
            next_look = math.ceil(SETTINGS.growth * len(sampling.rounds))
            worst, enough = self._looked(sampling)
            r_hat = sampling.r_hat()
            mixed = len(sampling.rounds) < 2 or np.nanmax(r_hat) <= SETTINGS.mixed
            if end is not None:
                return End.REACHED if worst <= self.error else end
            if worst <= self.error and mixed and len(sampling.rounds) >= enough:
                return End.REACHED
            if worst <= self.error and mixed:
                next_look = enough
            if not last and np.nanmax(r_hat) > SETTINGS.apart and self._ended(SETTINGS.warm_share) is None:
                return None

    @property
    def _first_look(self) -> int:
        return self.chains.first_look if isinstance(self.chains, MinibatchChains) else SETTINGS.first_look

    def _looked(self, sampling: Sampling) -> tuple[float, int]:
        """The largest error so far in posterior standard deviations, which is also shown, and how many rounds the tails need."""
        began = time.perf_counter()
        sharp = sampling.sharpened()
        relative = np.where(sharp.sd > 0, sharp.std_error / np.where(sharp.sd > 0, sharp.sd, 1.0), 0.0)
        worst = int(np.argmax(relative))
        self.shown.describe(
            f"sampling, {self.question.names[worst]} {sharp.mean[worst]:.4g} ± {sharp.std_error[worst]:.2g}, "
            f"error {relative[worst]:.2g} of {self.error:g}"
        )
        self.look_seconds = time.perf_counter() - began
        longer = float(np.clip(SETTINGS.few_parameters / self.chains.dim, SETTINGS.longer, SETTINGS.longest))
        heavy = isinstance(self.chains, LangevinChains) and np.nanmax(sharp.kurtosis) > SETTINGS.heavy
        return float(relative[worst]), round(self._first_look * (longer if heavy else 1.0))

    def posterior(self, level: float) -> Posterior:
        """The answer, with the warnings it needs."""
        sampling, chains = self.sampling, self.chains
        if sampling is None:
            self._begin_sampling()
            sampling = self.sampling
            assert sampling is not None
            for kept in chains.warm[len(chains.warm) // 2 :]:
                sampling.add(kept)
        sharp, r_hat = sampling.sharpened(), sampling.r_hat()
        draws, weights, values = sampling.draws()
        errors, dof = sharp.std_error, chains.settings.chains - 1
        rows = {
            name: PosteriorMean(
                name, float(sharp.mean[i]), float(errors[i]), dof, float(sharp.sd[i]), float(r_hat[i]),
                float(sharp.gain[i]), str(sharp.groups[i]), level,
            )
            for i, name in enumerate(self.question.names)
        }  # fmt: skip
        account = Account(
            "warm up, sample, regress", chains.settings.chains, sampling.states * chains.settings.chains, chains.gradients,
            self.warm_gradients, self.limits.spent, float(np.mean(sampling.acceptance)), chains.step_size,
            rotation_gain(sharp),
        )  # fmt: skip
        said = self._warnings(rows, sampling)
        hints = [NOT_ADJUSTED] if isinstance(chains, MinibatchChains) else []
        return Posterior(rows, level, draws, weights, values, said, hints, account, self.question.model)

    def _warnings(self, rows: Mapping[str, PosteriorMean], sampling: Sampling) -> list[str]:
        """What may be wrong, grouped by site."""
        said, names = [], list(rows)
        group = lambda those: listed(by_site(names, those))
        unmixed = [name for name, row in rows.items() if row.r_hat > SETTINGS.unmixed]
        if unmixed:
            largest = max(rows[name].r_hat for name in unmixed)
            said.append(
                f"Chains have not mixed (R-hat up to {largest:.3g}): {group(unmixed)}. There may be several modes, or the chains "
                "are too short: allow more `seconds`, or write the model in other coordinates."
            )
        tests = sampling.tests()
        if tests:
            labels = self._coordinates()
            off = [labels[test.coordinate] for test in tests]
            said.append(
                f"The draws do not follow the target: a variance seems wrong by {100 * abs(tests[0].virial):.0f} % "
                f"({abs(tests[0].z):.1f} standard errors) along {group(off)}. Chains do not reach a part of the posterior, "
                "such as the neck of a funnel: write the model in other coordinates (non-centred)."
            )
        missed = {
            name: row.relative_error for name, row in rows.items() if row.relative_error > self.error * (1 + 1e-9)
        }
        if missed:
            worst = max(missed, key=lambda name: missed[name])
            took = self.limits.spent * (missed[worst] / self.error) ** 2
            said.append(
                f"The error asked for, {self.error:g} posterior standard deviations, is not reached for {group(list(missed))}, "
                f"at most {missed[worst]:.2g} ({worst}): {self.end}; about {duration(took)} would be needed."
            )
        if self.cut_warm_up:
            said.append(
                "Warm-up was cut short by the time allowed: errors may be larger than stated. Allow more `seconds`."
            )
        return said

    def _coordinates(self) -> list[str]:
        if self.question.parameters_only:
            return list(self.question.names)
        return [f"θ[{i}]" for i in range(self.question.model.dim)]
