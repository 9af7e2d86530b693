"""expect: posterior expectations with a stated error. Warm up, sample, regress on zero-mean functions, check, continue.

Input: a target, observables (every parameter when left out), an error in posterior standard deviations and limits of time and
gradients. Output: a `Posterior`. The limits hold from the first call; Ctrl-C returns what there is. `Solver` is one question on
its way to an answer: it leaves chains and the sums over their states, from which `answer` makes the posterior.
"""

import dataclasses
import enum
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc.checks import coverage, flag, one_of, positive, whole
from gyromc.coordinates import Coordinates, check_coordinates, funnel_shaped, learn
from gyromc.errors import GyromcWarning
from gyromc.fields.functions import FieldGroup, FieldSettings, choose_fields
from gyromc.machine import one_blas_thread
from gyromc.model import check_gradient
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, PosteriorMean, by_site
from gyromc.show.interruption import interruptible
from gyromc.show.numbers import duration, listed
from gyromc.show.progress import Progress
from gyromc.show.progress import progress as show_progress
from gyromc.solve.chains import ChainSettings, LangevinChains
from gyromc.solve.minibatch import MinibatchChains, NoServiceError, serves_minibatches
from gyromc.solve.question import Question
from gyromc.solve.sampling import Sampling, posterior_means
from gyromc.targets import Target

__all__ = ["Limits", "Solver", "answer", "expect"]

MOVED = (
    "Chains moved in coordinates learned from their draws, because one parameter changes the scale of others. Errors are those "
    "of plain averages; the model written with standardised effects (non-centred) has smaller ones."
)
NOT_ADJUSTED = (
    "Chains with mini-batches have no Metropolis step: errors do not contain the step-size bias that the regression leaves. It "
    "is small where the posterior is near Gaussian, as it is with many rows."
)


@dataclasses.dataclass(frozen=True)
class SolverSettings:
    """How long the solver goes on.

    - `seconds`: that a call without limits may take.
    - `first_look`, `growth`: sampling rounds before the first estimate, and the factor to the next. Chains of a mixture that
      ended after 24 had missed a thousandth of its mass, which sharpened errors do not see.
    - `few_parameters`, `longest`: below, the first look comes later in proportion, up to so many times. E x² of a mild funnel
      with three parameters was silently wrong for 1 of 20 seeds without, and mean z² of a GARCH model 3 in place of 1.
    - `heavy`, `longer`: kurtosis of an observable from which on its tails need so many times the rounds of a first look. E log τ
      of a logistic model with 100 groups was silently wrong for 1 of 5 seeds without.
    - `warm_share`: of limited gradients or seconds that warm-up may take.
    - `few_gradients`, `few`, `few_warm_share`: up to this limit of gradients chains are those of `few`, rows of the regression
      are single states, and warm-up takes less. Warm-up is four rounds then: from starts twice as wide some chains of radon were
      still falling from the spike of its log-scale after it, and one that accepts a third of its steps stays where it began.
      With 4,400 gradients, all counted, effective draws per gradient are 397 for heart's coefficients, 56 for parameters of eight
      schools (2.2 for τ), 23 for radon's counties and 14 for all that is asked of radon (squared errors averaged over seeds 300
      to 323, which nothing was chosen on; with wide starts radon had about 1 over seeds 0 to 23).
    - `mixed`: split R-hat up to which an error counts as reached; `unmixed`: from which on a warning is given.
    - `again`, `apart`: how often rounds with an R-hat above `apart` become warm-up: the chains had not found the law yet.
    - `learnings`: how often coordinates are learned, each time from what the last ones let chains reach.
    - `reserve`: times the last look's seconds that are kept for the answer.
    - `flat`: a virial so near 1 that U rises by a twentieth of what it would under a law, or less.
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
    few: ChainSettings = dataclasses.field(
        default_factory=lambda: ChainSettings(chains=16, steps=12, start_width=1.0, stuck_acceptance=0.5)
    )
    few_warm_share: float = 0.25
    mixed: float = 1.02
    unmixed: float = 1.1
    again: int = 2
    apart: float = 1.3
    learnings: int = 3
    reserve: float = 2.0
    flat: float = 0.05
    show: float = 3.0


SETTINGS = SolverSettings()


class End(enum.StrEnum):
    """Why sampling ended; the text completes a sentence about an error that was not reached."""

    REACHED = "the error is reached"
    SECONDS = "the time allowed is spent: pass a larger `seconds`"
    GRADIENTS = "the gradients allowed are spent: pass a larger `gradients`"
    INTERRUPTED = "it was interrupted"


@dataclasses.dataclass(frozen=True)
class Limits:
    """When it began, the latest time and the most gradients."""

    began: float
    deadline: float
    gradients: float

    @classmethod
    def read(cls, seconds: Any, gradients: Any, began: float) -> "Limits":
        """The arguments of `expect`, checked."""
        if seconds is None and gradients is None:
            seconds = SETTINGS.seconds
        most = math.inf if seconds is None else positive(seconds, "seconds")
        return cls(began, began + most, math.inf if gradients is None else positive(gradients, "gradients"))

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
        coordinates: Coordinates | str | None = None,
        may_learn: bool = True,
        rotations: bool = True,
    ):
        self.coordinates, self.may_learn, self.learned, self.rotations = coordinates, may_learn, False, rotations
        self.question, self.error, self.limits, self.stop, self.shown = question, error, limits, stop, shown
        self.few = limits.gradients <= SETTINGS.few_gradients
        self.warm_share = SETTINGS.few_warm_share if self.few else SETTINGS.warm_share
        self.seed, self.settings, self.all_rows = seed, settings or (SETTINGS.few if self.few else None), False
        self.chains = self._new_chains()
        self.sampling: Sampling | None = None
        self.end, self.warm_gradients, self.look_seconds = End.REACHED, 0, 0.0
        self.cut_warm_up: End | None = None

    def _new_chains(self) -> LangevinChains | MinibatchChains:
        model = self.question.model
        if not self.all_rows and serves_minibatches(model.flat_target, model.dim):
            return MinibatchChains(model, self.seed, self.settings)
        out_of_time = lambda: self._ended() in (End.INTERRUPTED, End.SECONDS)
        return LangevinChains(model.flat_target, model.dim, self.seed, out_of_time, self.settings)

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
        check_gradient(self.question.model)
        self.chains.begin(self.question.start)
        if isinstance(self.coordinates, Coordinates) and isinstance(self.chains, LangevinChains):
            self.chains.move_to(self.coordinates)
        self._warm_up()
        if self.coordinates == "learned" or self._funnel():
            self._learn()
        for again in range(SETTINGS.again + 1):
            self.begin_sampling()
            end = self._sample(last=again == SETTINGS.again)
            if end is not None:
                self.end = end
                return
            # what has not mixed was warm-up
            self._warm_up(at_least=len(self.chains.warm))

    def _funnel(self) -> bool:
        """Whether the draws have the shape of a funnel, and coordinates may be learned: none were given, a metric is a matrix."""
        chains = self.chains
        if self.coordinates is not None or not self.may_learn or self.few or not isinstance(chains, LangevinChains):
            return False
        return 2 < chains.dim <= chains.settings.most_dense and funnel_shaped(chains.warm_states()[0])

    def _learn(self) -> None:
        """Go on in coordinates fitted to the draws, and fit them again from what these let chains reach."""
        chains = self.chains
        if not isinstance(chains, LangevinChains):
            return
        for turn in range(SETTINGS.learnings):
            self.shown.describe(f"learning coordinates, turn {turn + 1}")
            chains.move_to(learn(chains.thetas(chains.warm_states()[0])))
            self.learned = True
            self._warm_up()

    def _values(self, states: np.ndarray) -> np.ndarray:
        """All observables at every row of states."""
        return self.question.values(self.chains.thetas(states))

    def _warm_up(self, at_least: int = 0) -> None:
        target = len(self.chains.warm) + at_least
        while not (self.chains.settled and len(self.chains.warm) >= target):
            ended = self._ended(self.warm_share)
            # Without a round there is nothing to estimate.
            if ended is not None and len(self.chains.warm) >= (1 if ended is End.INTERRUPTED else 2):
                self.cut_warm_up = None if ended is End.GRADIENTS else ended
                break
            show = self.shown.visible and self.chains.warm and self.limits.spent > SETTINGS.show
            rough = self._rough_estimate() if show else ""
            self.shown.describe(f"warming up, round {len(self.chains.warm) + 1}{rough}")
            self.chains.warm_up()
            self.shown.advance(self.chains.settings.steps)

    def _rough_estimate(self) -> str:
        """The first observable from the last round of warm-up, for the progress line."""
        theta = self.chains.warm[-1].theta
        values = self._values(theta.reshape(-1, theta.shape[-1]))[:, 0].reshape(theta.shape[:2]).mean(axis=0)
        error = values.std(ddof=1) / math.sqrt(len(values))
        return f", {self.question.names[0]} about {values.mean():.4g} ± {error:.2g}"

    def begin_sampling(self) -> Sampling:
        """Choose the fields from warm-up states, and begin the sums."""
        theta, gradient = self.chains.warm_states()
        covariance = self.chains.metric.covariance() if self.question.model.dim <= 500 else None
        fields = choose_fields(theta, gradient, covariance, FieldSettings(rotations=self.rotations))
        rows = self.chains.settings.chains * self.chains.settings.steps
        values = self._values(np.resize(theta[-rows:], (rows, theta.shape[1])))
        chains = self.chains.settings.chains
        center = values.mean(axis=0)
        self.sampling = Sampling(fields, self._values, center, chains, short=self.few, learned=self.learned)
        self.warm_gradients = self.chains.gradients
        return self.sampling

    def _sample(self, last: bool) -> End | None:
        """Sample until the error or a limit is reached; None where chains have not mixed and warm-up should go on."""
        sampling = self.sampling
        assert sampling is not None
        if isinstance(self.chains, MinibatchChains):
            next_look = self.chains.first_look
        else:
            # few parameters cost little, and their tails need many states
            more = min(SETTINGS.longest, max(1.0, SETTINGS.few_parameters / self.chains.dim))
            next_look = round(SETTINGS.first_look * more)
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
            if not last and np.nanmax(r_hat) > SETTINGS.apart and self._ended(self.warm_share) is None:
                return None

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
        heavy = isinstance(self.chains, LangevinChains) and np.nanmax(sharp.kurtosis) > SETTINGS.heavy
        enough = round(SETTINGS.first_look * SETTINGS.longer) if heavy else 0
        return float(relative[worst]), enough


@one_blas_thread()
def expect(
    target: Target | Plan,
    observables: Mapping[str, Any] | None = None,
    error: float = 0.01,
    *,
    seconds: float | None = None,
    gradients: float | None = None,
    level: float = 0.95,
    start: Any = None,
    coordinates: Coordinates | str | None = None,
    rotations: bool = True,
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
    - `coordinates`: of `gyromc.coordinates`, in which chains move; "learned": fitted to the warm-up's draws. Left out:
      the plan's, and learned where one parameter is seen to change the scale of others, as in a funnel.
    - `rotations`: whether zero-mean functions with a rotation are used; without them the same draws have larger errors, which
      shows what rotations gain.
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
    # From here on, since a press while XLA compiles would strike in its code.
    with interruptible("stopping; what is done will be estimated") as stop, show_progress(None, progress) as shown:
        question = Question.read(target, observables, start)
        coordinates = target.coordinates if coordinates is None and isinstance(target, Plan) else coordinates
        if isinstance(coordinates, str):
            one_of(coordinates, ["learned"], "coordinates", " Or pass a value of `gm.coordinates`.")
        elif coordinates is not None:
            check_coordinates(coordinates, question.start)
        chosen: Any = {"coordinates": coordinates, "rotations": flag(rotations, "rotations")}
        solver = Solver(question, error, limits, lambda: bool(stop), shown, whole(seed, "seed", least=0), **chosen)
        solver.solve()
    found = answer(solver, level)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=3)
    return found


def answer(solver: Solver, level: float) -> Posterior:
    """The posterior, with the warnings it needs."""
    sampling, chains = solver.sampling, solver.chains
    if sampling is None:
        sampling = solver.begin_sampling()
        for kept in chains.warm[len(chains.warm) // 2 :]:
            sampling.add(kept)
    sharp, r_hat = sampling.sharpened(), sampling.r_hat()
    states, weights, values = sampling.draws()
    draws = chains.thetas(states)
    rows = posterior_means(solver.question.names, sharp, sharp.std_error, chains.settings.chains - 1, r_hat, level)
    # the median over the observables that use rotations
    turned = [i for i, group in enumerate(sharp.groups) if group in (FieldGroup.ROTATION, FieldGroup.QUADRATIC)]
    account = Account(
        "warm up, sample, regress", chains.settings.chains, sampling.states * chains.settings.chains, chains.gradients,
        solver.warm_gradients, solver.limits.spent, float(np.mean(sampling.acceptance)), chains.step_size,
        float(np.median(sharp.rotation_gain[turned])) if turned else 1.0,
    )  # fmt: skip
    said = _warnings(solver, rows, sampling)
    hints = [NOT_ADJUSTED] if isinstance(chains, MinibatchChains) else [MOVED] if solver.learned else []
    return Posterior(rows, level, draws, weights, values, said, hints, account, solver.question.model)


def _warnings(solver: Solver, rows: Mapping[str, PosteriorMean], sampling: Sampling) -> list[str]:
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
    flat = [test for test in tests if not abs(test.virial - 1) > SETTINGS.flat]
    if tests:
        labels = solver.question.coordinates
        off = listed(by_site(labels, [labels[test.coordinate] for test in flat or tests]))
        said.append(
            f"The density hardly falls along {off}: the posterior seems improper, and such means do not exist. Give these "
            "parameters a proper prior."
            if flat
            else f"The draws do not follow the target: a variance seems wrong by {100 * abs(tests[0].virial):.0f} % "
            f"({abs(tests[0].z):.1f} standard errors) along {off}. Chains do not reach a part of the posterior, "
            "such as the neck of a funnel: write the model in other coordinates (non-centred)."
        )
    # an error that is not a number was not reached
    missed = {n: row.relative_error for n, row in rows.items() if not row.relative_error <= solver.error * (1 + 1e-9)}
    if missed:
        worst = max(missed, key=lambda name: missed[name])
        took = duration(solver.limits.spent * (missed[worst] / solver.error) ** 2)
        said.append(
            f"The error asked for, {solver.error:g} posterior standard deviations, is not reached for {group(list(missed))}, "
            f"at most {missed[worst]:.2g} ({worst}): {solver.end}{'' if flat else f'; about {took} would be needed'}."
        )
    if solver.cut_warm_up is not None:
        interrupted = solver.cut_warm_up is End.INTERRUPTED
        how, remedy = (
            ("interrupted", "") if interrupted else ("cut short by the time allowed", " Allow more `seconds`.")
        )
        said.append(f"Warm-up was {how}: errors may be larger than stated.{remedy}")
    return said
