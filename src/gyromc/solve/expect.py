"""expect: posterior expectations with a stated error. Warm up, sample, regress on zero-mean functions, check, continue.

The limits hold from the first call; Ctrl-C returns what there is. `Solver` is one question on its way to an answer: it leaves
chains and the sums over their states, from which `answer` makes the posterior.
"""

import dataclasses
import enum
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from gyromc.checks import coverage, flag, one_of, positive, require, whole
from gyromc.coordinates import Coordinates, check_coordinates, funnel_shaped, learn
from gyromc.errors import GyromcWarning
from gyromc.fields import FieldGroup, FieldRegression, Fields, Sharpened, between, calibrated_weights, choose_fields
from gyromc.model import check_gradient
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, PosteriorMean, by_site
from gyromc.runtime.machine import one_blas_thread
from gyromc.show.numbers import duration, listed
from gyromc.show.progress import Progress, interruptible
from gyromc.show.progress import progress as show_progress
from gyromc.solve.chains import ChainSettings, LangevinChains, Round, WarmStart
from gyromc.solve.minibatch import MinibatchChains, NoServiceError, serves_minibatches
from gyromc.solve.question import Question
from gyromc.targets import Target

MOVED = (
    "Chains moved in coordinates learned from their draws, because one parameter changes the scale of others. Errors are those "
    "of plain averages; the model written with standardised effects (non-centred) has smaller ones."
)
NOT_ADJUSTED = (
    "Chains with mini-batches have no Metropolis step: errors do not contain the step-size bias that the regression leaves. It "
    "is small where the posterior is near Gaussian, as it is with many rows."
)


FEW = ChainSettings(chains=16, steps=12, start_width=1.0, stuck_acceptance=0.5)


@dataclasses.dataclass(frozen=True)
class SolverSettings:
    """How long the solver goes on, and what it keeps."""

    seconds: float = 30.0  # without another limit
    # Sampling rounds before the first estimate. Chains of a mixture that ended after 24 had missed a thousandth of its mass,
    # which sharpened errors do not see.
    first_look: int = 60
    growth: float = 1.5  # the factor to the next look
    # Below so many parameters the first look comes later in proportion, up to so many times, and from this kurtosis of an
    # observable on so many times later. Else mild funnels and variances of groups were silently wrong.
    few_parameters: int = 12
    longest: float = 5.0
    heavy: float = 4.5
    longer: float = 2.0
    warm_share: float = 0.45  # of limited gradients or seconds that warm-up may take
    few_gradients: float = (
        30_000  # up to this limit chains are those of `few`, and rows of the regression single states
    )
    few: ChainSettings = FEW
    few_warm_share: float = 0.25
    mixed: float = 1.02  # split R-hat up to which an error counts as reached …
    unmixed: float = 1.1  # … and from which on a warning is given
    again: int = 2  # how often rounds with an R-hat above `apart` become warm-up: the chains had not found the law yet
    apart: float = 1.3
    learnings: int = 3  # times that coordinates are learned, at most
    # Of a plain standard error, left in learned coordinates: what chains had not seen when they were learned, the regression
    # does not know (E v of a funnel was off by 8 errors).
    learned_share: float = 1.5
    reserve: float = 2.0  # times the last look's seconds that are kept for the answer
    show: float = 3.0  # seconds after which the progress line shows a first estimate, however rough
    draws: int = 250  # of each chain that are kept at most …
    per_round: int = 5  # … and of a round
    block: int = 5  # states that are one row of the regression …
    many: int = 150  # … where there are so many functions
    chance: float = 1e-4  # of the test of a variance to speak by chance
    virial: float = 0.1  # an error of it that would change no conclusion
    flat: float = 0.05  # a virial so near 1 that U hardly rises


SETTINGS = SolverSettings()


class End(enum.StrEnum):
    """Why sampling ended; the text completes a sentence about an error that was not reached."""

    REACHED = "the error is reached"
    SECONDS = "the time allowed is spent: pass a larger `seconds`"
    GRADIENTS = "the gradients allowed are spent: pass a larger `gradients`"
    INTERRUPTED = "it was interrupted"


class Sampling:
    """What is kept of the states that are averaged: the regression's sums, averages of every round, and a thinned sample."""

    def __init__(self, fields: Fields, values: Callable, center: np.ndarray, chains: int, short: bool, learned: bool):
        block = 1 if short or fields.count <= SETTINGS.many else SETTINGS.block
        self.fields, self.values = fields, values
        least = {"least": SETTINGS.learned_share} if learned else {}
        self.regression = FieldRegression(fields, chains, center, block, **least)
        self.rounds: list[np.ndarray] = []
        self.virials: list[np.ndarray] = []
        self.acceptance: list[float] = []
        self._kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._every, self._sharpened = 1, None

    def add(self, kept: Round) -> None:
        steps, chains, d = kept.theta.shape
        values = self.values(kept.theta.reshape(-1, d)).reshape(steps, chains, -1)
        self.regression.add(kept.theta, kept.gradient, values)
        self._sharpened = None
        self.rounds.append(values.mean(axis=0))
        self.virials.append(self.fields.virial(kept.theta, kept.gradient).mean(axis=0))
        self.acceptance.append(float(kept.acceptance.mean()))
        if len(self.rounds) % self._every == 0:
            pick = slice(steps // SETTINGS.per_round - 1, None, max(1, steps // SETTINGS.per_round))
            self._kept.append((kept.theta[pick], kept.gradient[pick], values[pick]))
            if len(self._kept) * SETTINGS.per_round > SETTINGS.draws:
                self._kept, self._every = self._kept[1::2], 2 * self._every

    def sharpened(self) -> Sharpened:
        """What the regression says of the states so far."""
        self._sharpened = self._sharpened or self.regression.sharpened()
        return self._sharpened

    def r_hat(self) -> np.ndarray:
        rounds, sd = np.array(self.rounds), self.regression.sd()
        half = len(rounds) // 2
        if half == 0:
            return np.full(len(sd), np.nan)
        apart = np.concatenate(rounds[: 2 * half].reshape(2, half, -1, len(sd)).mean(axis=1)).var(axis=0, ddof=1)
        within = np.maximum(sd**2 - apart, 1e-300 + 1e-12 * sd**2)
        return np.where(sd > 0, np.sqrt(1 + apart / within), 1.0)

    def wrong_variances(self) -> list[tuple[int, float, float]]:
        """Coordinates whose virial is not what the target says, beyond chance, the worst first: index, virial, z."""
        averages = np.mean(self.virials, axis=0)
        # Where U does not change at all, every chain has the same virial, 1, and its error is zero.
        mean, z = averages.mean(axis=0), averages.mean(axis=0) / np.maximum(between(averages), 1e-300)
        limit = -float(special.stdtrit(len(averages) - 1, SETTINGS.chance / (2 * len(mean))))
        off = np.flatnonzero(~np.isfinite(mean) | (np.abs(z) > limit) & (np.abs(mean) > SETTINGS.virial))
        return [(int(i), float(mean[i]), float(z[i])) for i in off[np.argsort(-np.abs(mean[off]))]]

    def draws(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kept states (chains × draws × d), their weights, and the observables there."""
        theta, gradient, values = (np.concatenate(parts).swapaxes(0, 1) for parts in zip(*self._kept, strict=True))
        d = theta.shape[2]
        weights = calibrated_weights(self.fields, theta.reshape(-1, d), gradient.reshape(-1, d))
        return theta, weights.reshape(theta.shape[:2]), values


@dataclasses.dataclass(eq=False)
class Solver:
    """One question on its way to an answer; `most_seconds` count from `began`."""

    question: Question
    error: float
    shown: Progress
    seed: int
    began: float = dataclasses.field(default_factory=time.perf_counter)
    most_seconds: float = math.inf
    most_gradients: float = math.inf
    stop: Callable[[], bool] = lambda: False
    settings: ChainSettings | None = None
    before: WarmStart | None = None
    coordinates: Coordinates | str | None = None
    may_learn: bool = True
    rotations: bool = True

    def __post_init__(self):
        self.few = self.most_gradients <= SETTINGS.few_gradients
        self.warm_share = SETTINGS.few_warm_share if self.few else SETTINGS.warm_share
        self.settings = self.settings or (SETTINGS.few if self.few else None)
        self.chains, self.learned = self._new_chains(), False
        self.sampling: Sampling | None = None
        self.end, self.warm_gradients, self.look_seconds = End.REACHED, 0, 0.0
        self.cut_warm_up: End | None = None

    def _new_chains(self, all_rows: bool = False) -> LangevinChains | MinibatchChains:
        model = self.question.model
        if not all_rows and serves_minibatches(model.flat_target, model.dim):
            return MinibatchChains(model, self.seed, self.settings)
        out_of_time = lambda: self._ended() in (End.INTERRUPTED, End.SECONDS)
        return LangevinChains(model.flat_target, model.dim, self.seed, out_of_time, self.settings)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def _ended(self, share: float = 1.0) -> End | None:
        """Why no further round is made, with a share of the limits."""
        if self.stop():
            return End.INTERRUPTED
        if self.spent + SETTINGS.reserve * self.look_seconds > share * self.most_seconds:
            return End.SECONDS
        step = self.chains.settings.chains * self.chains.settings.steps
        return End.GRADIENTS if self.chains.gradients + step > share * self.most_gradients else None

    def solve(self) -> None:
        """Warm up, sample and look until something ends it; with all rows where mini-batches do not serve."""
        try:
            self._solve()
        except NoServiceError:
            self.chains = self._new_chains(all_rows=True)
            self._solve()

    def _solve(self) -> None:
        self.shown.describe("finding where the posterior is")
        check_gradient(self.question.model)
        if self.before is not None and isinstance(self.chains, LangevinChains):
            self.chains.go_on(self.before)
        else:
            self.chains.begin(self.question.start)
        if isinstance(self.coordinates, Coordinates) and isinstance(self.chains, LangevinChains):
            self.chains.move_to(self.coordinates)
        self._warm_up()
        self._learn()
        for again in range(SETTINGS.again + 1):
            if (end := self._sample(self.begin_sampling(), last=again == SETTINGS.again)) is not None:
                self.end = end
                return
            # what has not mixed was warm-up
            self._warm_up(at_least=len(self.chains.warm))

    def _learn(self) -> None:
        """Where it is asked for, or draws have the shape of a funnel: go on in coordinates fitted to them, several times."""
        chains, may = self.chains, self.coordinates is None and self.may_learn and not self.few
        if not isinstance(chains, LangevinChains):
            return
        fits = may and 2 < chains.dim <= chains.settings.most_dense
        if self.coordinates != "learned" and not (fits and funnel_shaped(chains.warm_states()[0])):
            return
        for turn in range(SETTINGS.learnings):
            self.shown.describe(f"learning coordinates, turn {turn + 1}")
            chains.move_to(learn(chains.thetas(chains.warm_states()[0])))
            self.learned = True
            self._warm_up()

    def _values(self, states: np.ndarray) -> np.ndarray:
        return self.question.values(self.chains.thetas(states))

    def _warm_up(self, at_least: int = 0) -> None:
        target = len(self.chains.warm) + at_least
        while not (self.chains.settled and len(self.chains.warm) >= target):
            ended = self._ended(self.warm_share)
            # Without a round there is nothing to estimate.
            if ended is not None and len(self.chains.warm) >= (1 if ended is End.INTERRUPTED else 2):
                self.cut_warm_up = None if ended is End.GRADIENTS else ended
                break
            rough = ""
            if self.shown.visible and self.chains.warm and self.spent > SETTINGS.show:
                theta = self.chains.warm[-1].theta
                averages = self._values(theta.reshape(-1, theta.shape[-1]))[:, 0].reshape(theta.shape[:2]).mean(axis=0)
                rough = f", {self.question.names[0]} about {averages.mean():.4g} ± {between(averages):.2g}"
            self.shown.describe(f"warming up, round {len(self.chains.warm) + 1}{rough}")
            self.chains.warm_up()
            self.shown.advance(self.chains.settings.steps)

    def begin_sampling(self) -> Sampling:
        theta, gradient = self.chains.warm_states()
        covariance = self.chains.metric.covariance() if self.question.model.dim <= 500 else None
        fields = choose_fields(theta, gradient, covariance, self.rotations)
        chains = self.chains.settings.chains
        rows = chains * self.chains.settings.steps
        center = self._values(np.resize(theta[-rows:], (rows, theta.shape[1]))).mean(axis=0)
        self.sampling = Sampling(fields, self._values, center, chains, self.few, self.learned)
        self.warm_gradients = self.chains.gradients
        return self.sampling

    def _sample(self, sampling: Sampling, last: bool) -> End | None:
        """Sample until the error or a limit is reached; None where chains have not mixed and warm-up should go on."""
        # few parameters cost little, and their tails need many states
        more = min(SETTINGS.longest, max(1.0, SETTINGS.few_parameters / self.chains.dim))
        first = SETTINGS.first_look * more
        next_look = self.chains.first_look if isinstance(self.chains, MinibatchChains) else round(first)
        self.shown.describe("sampling")
        while True:
            sampling.add(self.chains.sample())
            self.shown.advance(self.chains.settings.steps)
            end = self._ended()
            if len(sampling.rounds) < next_look and end is None:
                if self.shown.visible and not self.look_seconds and self.spent > SETTINGS.show:
                    self._look(sampling)
                continue
            next_look = math.ceil(SETTINGS.growth * len(sampling.rounds))
            worst, enough = self._look(sampling)
            r_hat = sampling.r_hat()
            mixed = len(sampling.rounds) < 2 or np.nanmax(r_hat) <= SETTINGS.mixed
            if end is not None:
                return End.REACHED if worst <= self.error else end
            if worst <= self.error and mixed:
                if len(sampling.rounds) >= enough:
                    return End.REACHED
                next_look = enough
            if not last and np.nanmax(r_hat) > SETTINGS.apart and self._ended(self.warm_share) is None:
                return None

    def _look(self, sampling: Sampling) -> tuple[float, int]:
        """The largest error so far in posterior standard deviations, which is also shown, and how many rounds the tails need."""
        began = time.perf_counter()
        sharp = sampling.sharpened()
        relative = sharp.std_error / np.where(sharp.sd > 0, sharp.sd, np.inf)
        worst = int(np.argmax(relative))
        self.shown.describe(
            f"sampling, {self.question.names[worst]} {sharp.mean[worst]:.4g} ± {sharp.std_error[worst]:.2g}, "
            f"error {relative[worst]:.2g} of {self.error:g}"
        )
        self.look_seconds = time.perf_counter() - began
        heavy = isinstance(self.chains, LangevinChains) and np.nanmax(sharp.kurtosis) > SETTINGS.heavy
        return float(relative[worst]), round(SETTINGS.first_look * SETTINGS.longer) if heavy else 0


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

    It goes on until every observable has the error, or a limit is reached; then a warning says what is missing and what it would
    take. Ctrl-C returns the estimates so far.

    **Arguments:**

    - `target`: the law (`gyromc.targets`, `gyromc.interop.numpyro.target`), or a plan for it.
    - `observables`: functions of the parameters by name, of `gyromc.observables` or your own, returning a number or arrays; left
      out: every parameter, every site of a NumPyro model.
    - `error`: the standard error of every mean, in posterior standard deviations of its observable.
    - `seconds`, `gradients`: the most time from this call on, compilation included, and gradients over all the data; without
      either, 30 seconds.
    - `level`: of the intervals.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`; or the
      `ended` of a posterior that is nearly the same, such as that of fewer rows: its chains go on, with a shorter warm-up.
    - `coordinates`: of `gyromc.coordinates`, in which chains move; "learned": fitted to the warm-up's draws. Left out:
      the plan's, and learned where one parameter is seen to change the scale of others, as in a funnel.
    - `rotations`: whether zero-mean functions with a rotation are used; without, errors show what rotations gain.
    - `seed`: a whole number; the same seed gives the same numbers, unless time ends the run.
    - `progress`: show the stage and the error so far; left out: when standard error is a terminal.

    ```python
    import gyromc as gm
    found = gm.expect(gm.targets.Quadratic([1.0, 4.0]), {"x²": gm.observables.square([1.0, 0.0])}, error=0.01)
    print(round(found["x²"].mean, 2), found.warnings)  # 1.0 []
    ```
    """
    began = time.perf_counter()
    error, level = positive(error, "error"), coverage(level)
    seconds = SETTINGS.seconds if seconds is None and gradients is None else seconds
    options: Any = {
        "began": began,
        "most_seconds": math.inf if seconds is None else positive(seconds, "seconds"),
        "most_gradients": math.inf if gradients is None else positive(gradients, "gradients"),
        "rotations": flag(rotations, "rotations"),
    }
    # From here on, since a press while XLA compiles would strike in its code.
    with interruptible("stopping; what is done will be estimated") as stop, show_progress(None, progress) as shown:
        before = start if isinstance(start, WarmStart) else None
        question = Question.read(target, observables, None if before else start)
        require(
            before is None or before.theta.shape[1] == question.model.dim,
            "`start` is of a posterior of another dimension.",
        )
        coordinates = target.coordinates if coordinates is None and isinstance(target, Plan) else coordinates
        if isinstance(coordinates, str):
            one_of(coordinates, ["learned"], "coordinates", " Or pass a value of `gm.coordinates`.")
        elif coordinates is not None:
            check_coordinates(coordinates, question.start)
        options |= {"coordinates": coordinates, "before": before, "stop": lambda: bool(stop)}
        solver = Solver(question, error, shown, whole(seed, "seed", least=0), **options)
        solver.solve()
    found = answer(solver, level)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=3)
    return found


def answer(solver: Solver, level: float) -> Posterior:
    """The posterior, with the warnings it needs."""
    chains, early = solver.chains, solver.sampling is None
    sampling = solver.sampling or solver.begin_sampling()
    for kept in chains.warm[len(chains.warm) // 2 :] if early else []:
        sampling.add(kept)
    sharp, count = sampling.sharpened(), chains.settings.chains
    states, weights, values = sampling.draws()
    rows = posterior_means(solver.question.names, sharp, sharp.std_error, count - 1, sampling.r_hat(), level)
    # the median over the observables that use rotations
    turned = [i for i, group in enumerate(sharp.groups) if group in (FieldGroup.ROTATION, FieldGroup.QUADRATIC)]
    account = Account(
        "warm up, sample, regress", count, sampling.regression.states * count, chains.gradients, solver.warm_gradients,
        solver.spent, float(np.mean(sampling.acceptance)), chains.step_size,
        float(np.median(sharp.rotation_gain[turned])) if turned else 1.0,
    )  # fmt: skip
    hints = [NOT_ADJUSTED] if isinstance(chains, MinibatchChains) else [MOVED] if solver.learned else []
    said = _warnings(solver, rows, sampling)
    ended = chains.ended() if isinstance(chains, LangevinChains) else None
    return Posterior(
        rows, level, chains.thetas(states), weights, values, said, hints, account, solver.question.model, ended
    )


def posterior_means(
    names: Sequence[str], sharp: Sharpened, errors: np.ndarray, dof: int, r_hat: np.ndarray, level: float
) -> dict[str, PosteriorMean]:
    """What is reported of every observable."""
    columns = zip(names, sharp.mean, errors, sharp.sd, r_hat, sharp.gain, sharp.groups, strict=True)
    return {
        name: PosteriorMean(name, float(mean), float(error), dof, float(sd), float(r), float(gain), str(group), level)
        for name, mean, error, sd, r, gain, group in columns
    }


def _warnings(solver: Solver, rows: Mapping[str, PosteriorMean], sampling: Sampling) -> list[str]:
    """What may be wrong, grouped by site."""
    said, names = [], list(rows)
    unmixed = [name for name, row in rows.items() if row.r_hat > SETTINGS.unmixed]
    if unmixed:
        largest = max(rows[name].r_hat for name in unmixed)
        said.append(
            f"Chains have not mixed (R-hat up to {largest:.3g}): {listed(by_site(names, unmixed))}. There may be several modes, "
            "or the chains are too short: allow more `seconds`, or write the model in other coordinates."
        )
    wrong = sampling.wrong_variances()
    flat = [row for row in wrong if not abs(row[1] - 1) > SETTINGS.flat]
    if wrong:
        labels = solver.question.coordinates
        off = listed(by_site(labels, [labels[coordinate] for coordinate, _, _ in flat or wrong]))
        _, virial, z = wrong[0]
        said.append(
            f"The density hardly falls along {off}: the posterior seems improper, and such means do not exist. Give these "
            "parameters a proper prior."
            if flat
            else f"The draws do not follow the target: a variance seems wrong by {100 * abs(virial):.0f} % "
            f"({abs(z):.1f} standard errors) along {off}. Chains do not reach a part of the posterior, "
            "such as the neck of a funnel: write the model in other coordinates (non-centred)."
        )
    # an error that is not a number was not reached
    missed = {n: row.relative_error for n, row in rows.items() if not row.relative_error <= solver.error * (1 + 1e-9)}
    if missed:
        worst = max(missed, key=lambda name: missed[name])
        took = duration(solver.spent * (missed[worst] / solver.error) ** 2)
        said.append(
            f"The error asked for, {solver.error:g} posterior standard deviations, is not reached for "
            f"{listed(by_site(names, list(missed)))}, at most {missed[worst]:.2g} ({worst}): "
            f"{solver.end}{'' if flat else f'; about {took} would be needed'}."
        )
    if solver.cut_warm_up is End.INTERRUPTED:
        said.append("Warm-up was interrupted: errors may be larger than stated.")
    elif solver.cut_warm_up is not None:
        short = "Warm-up was cut short by the time allowed: errors may be larger than stated."
        said.append(f"{short} Allow more `seconds`.")
    return said
