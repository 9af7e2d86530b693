"""tune: the sampler with the smallest expected error for a problem and a budget, as a plan that `gyromc.run` takes.

The solver of `expect`, whose chains have no step-size bias, gives means with errors, draws and a covariance. Short runs of some
samplers at falling step sizes, started from these draws, show their bias and variance. The best one is run again, longer and with
other random numbers, and that trial says what to expect: being chosen does not flatter it.
"""

import dataclasses
import math
import warnings as messages
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gyromc import engines
from gyromc.checks import leaves, numbers, positive, require, shown, whole
from gyromc.dynamics import overdamped
from gyromc.errors import DivergenceError, GyromcWarning, InvalidInput
from gyromc.estimation.estimate import HEAVY, heavy_tailed
from gyromc.flat import is_array
from gyromc.observables import linear, square
from gyromc.oracles import Exact, Oracle
from gyromc.plan import Plan
from gyromc.results import flat_draws
from gyromc.show.numbers import duration, plain
from gyromc.show.records import Column, Records, plain_attributes
from gyromc.show.tables import Shown, Table
from gyromc.targets import Target
from gyromc.tuning.trials import FAMILIES, MANY, SETTINGS, Family, Trial, cost_of_a_gradient, refer

__all__ = ["Expected", "Tried", "Tuned", "tune"]


@dataclasses.dataclass(frozen=True)
class Expected:
    """What to expect of one observable's mean over all chains: RMSE `expected`, √(bias² + bias_error² + std_error²).

    `bias` is as a trial measured it against the solver's mean, `sd` the posterior standard deviation of the observable.
    """

    expected: float
    bias: float
    std_error: float
    sd: float
    bias_error: float = 0.0

    @property
    def relative(self) -> float:
        """The RMSE in posterior standard deviations; 0 for an observable that does not vary."""
        return self.expected / self.sd if self.sd > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Tried:
    """A sampler, the step sizes at which it was tried, and what the best of them would give with the whole budget.

    `rmse` and `bias` are root mean squares over observables, in posterior standard deviations.
    """

    name: str
    step_sizes: tuple[float, ...]
    step_size: float
    rmse: float
    bias: float
    note: str = ""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tuned(Shown, Records[Expected]):
    """A tuned plan: `tuned.plan` for `gyromc.run`, `tuned.expected["name"]` the RMSE to expect of `run.mean["name"]`.

    **Attributes:**

    - `plan`; `expected`, `bias`, `bias_error`, `std_error`, `sd` by observable: see `Expected`.
    - `tried`: a tuple of `Tried`, what was measured; `reason`: what was chosen, in a sentence.
    - `gains`: how many times more gradients the best `"reversible"` sampler, the best `"rotating"` one (pairs of parameters, or
      with momenta) and, where a plan was given, the `"untuned plan"` would need for the same error, from their trials.
    - `gradients`: what the plan costs in gradients over all the data; `spent`: what tuning cost; `seconds`: how long a run takes
      on this machine, without compiling.
    - `warnings`: what could not be known, and what would help.
    """

    plan: Plan
    rows: Mapping[str, Expected]
    tried: tuple[Tried, ...]
    gains: Mapping[str, float]
    gradients: float
    spent: float
    seconds: float
    reason: str
    warnings: list[str]

    _result = "tuning"
    expected = Column[float]("The RMSE of the mean over all chains.")
    bias = Column[float]("The part of it that is bias.")
    bias_error = Column[float]("The standard error of what the trials measured as bias.")
    std_error = Column[float]("The part of it that is chance.")
    sd = Column[float]("The posterior standard deviation of the observable.")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists, ready for JSON."""
        return {
            "plan": self.plan.summary(),
            "observables": {name: plain_attributes(row, *vars(row)) for name, row in self.items()},
            "tried": [plain_attributes(one, *vars(one)) for one in self.tried],
            "gains": {name: plain(value) for name, value in self.gains.items()},
            **plain_attributes(self, "gradients", "spent", "seconds", "reason"),
            "warnings": self.warnings,
        }

    def shown(self) -> Sequence[Table | str]:
        """The reason, what was tried, what to expect, and what could not be known."""
        sizes = lambda one: ", ".join(f"{eta:.3g}" for eta in one.step_sizes)
        found = lambda one: [f"{x:.3g}" for x in (one.step_size, one.rmse, one.bias)]
        tried = [[one.name, sizes(one), *found(one), one.note] for one in self.tried]
        columns = ("sampler", "step sizes tried", "best step size", "RMSE in posterior sds", "of it bias", "")
        bias = lambda row: f"{row.bias:.2g} ± {row.bias_error:.1g}"
        errors = lambda row: (f"{row.expected:.3g}", f"{row.relative:.3g}", bias(row), f"{row.std_error:.2g}")
        expected = [[name, *errors(row)] for name, row in self.items()]
        rows = ("observable", "expected RMSE", "in posterior sds", "bias", "std error")
        return [
            self.reason,
            Table(columns, tried, "What was tried", left=(columns[0], columns[1], columns[-1])),
            *(f"{name}: {gain:.3g} times the gradients for the same error" for name, gain in self.gains.items()),
            Table(rows, expected, "What to expect of the means over all chains"),
            f"The plan costs {self.gradients:,.4g} gradients, about {duration(self.seconds)} on this machine; tuning cost "
            f"{self.spent:,.4g}.",
            *(f"warning: {text}" for text in self.warnings),
        ]


def tune(
    target_or_plan: Target | Plan,
    observables: Mapping[str, Any] | None = None,
    *,
    gradients: float | None = None,
    error: float | None = None,
    seconds: float | None = None,
    oracle: Oracle | None = None,
    num_chains: int | None = None,
    start: Any = None,
    seed: int = 0,
    say: Callable[[str], object] | None = None,
) -> Tuned:
    """The plan with the smallest expected error for a budget.

    **Arguments:**

    - `target_or_plan`: a target of `gyromc.targets`, or a plan, whose observables, start and budget are used where these are left
      out.
    - `observables`: what to average, by name, as for `gyromc.Plan`; left out: the parameters and their squares.
    - `gradients`: the budget, in gradients over all the data: a mini-batch gradient counts by the rows it reads.
    - `error`: in place of a budget, the RMSE to reach for every observable, in posterior standard deviations.
    - `seconds`: in place of a budget, how long the run may take on this machine.
    - `oracle`: where gradients come from (`gyromc.oracles`); left out: mini-batches where there are many rows, else all rows.
    - `num_chains`: of the plan; left out: as many as burn-in allows, up to 32.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`.
    - `seed`: of the tuning and of the plan.
    - `say`: a function such as `print` that gets a line after each stage.

    **Returns:** a `Tuned`: `.plan`, `.expected`, and an account that prints. Without a budget the error is 0.01.

    ```python
    import gyromc as gm
    target = gm.targets.LogisticRegression([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0], [1.0, 0.0]], [0, 0, 1, 1], prior_scale=1.0)
    tuned = gm.tune(target, observables={"slope": gm.observables.linear([0.0, 1.0])}, gradients=20_000)
    run = gm.run(tuned.plan)
    print(tuned.expected["slope"] < 0.02 * tuned.sd["slope"])  # True
    ```
    """
    given, budget = target_or_plan, {"gradients": gradients, "error": error, "seconds": seconds}
    budget = {name: positive(value, name) for name, value in budget.items() if value is not None}
    came = " and ".join(f"`{name}`" for name in budget)
    require(len(budget) <= 1, f"Pass one of `gradients`, `error` and `seconds`: got {came}.")
    if isinstance(given, Plan) and not budget:
        budget = {"gradients": given.gradients * cost_of_a_gradient(given)}
    seed = whole(seed, "seed", least=0)
    num_chains = None if num_chains is None else whole(num_chains, "num_chains", least=1, most=10**6)
    require(say is None or callable(say), f"`say` must be a function such as `print`: got {shown(say)}.")
    with messages.catch_warnings():
        messages.simplefilter("ignore", GyromcWarning)  # of trials; what matters is in the account
        base = _base(given, observables, seed, start)
        tuning = Tuning(base, budget or {"error": SETTINGS.error}, num_chains, oracle, say or (lambda line: None))
        return tuning.finished(given if isinstance(given, Plan) else None)


def _base(given: Target | Plan, observables: Mapping[str, Any] | None, seed: int, start: Any = None) -> Plan:
    """A plan with the target, the observables and the start, from which all others are made."""
    if isinstance(given, Plan):
        others = "this plan's are in other coordinates. Pass `plan.replace(coordinates=None)`."
        require(given.coordinates is None, f"`tune` looks for D and Q in θ, and {others}")
        require(start is None, "`start` goes with a target: a plan has its own. Pass `plan.replace(start=…)`.")
        return given.replace(
            observables=given.observables if observables is None else observables,
            dynamics=overdamped(given.dim), oracle=None, scheme="euler", step_size=0.1, num_steps=1, burn_in=0, num_chains=1,
            start=given.unravel(given.model.start), martingale=False, weighting="uniform", seed=seed,
        )  # fmt: skip
    came = type(given).__name__
    require(isinstance(given, Target), f"`tune` takes a target of `gyromc.targets` or a `Plan`: got {came}.")
    own = getattr(given, "start", None)
    start = own if start is None else start
    if given.dim is None and start is None:
        remedy = "Pass `start`, parameters of that shape, such as `start=np.zeros(2)`."
        raise InvalidInput(f"{came} does not know the shape of its parameters. {remedy}")
    vector = own is None if given.dim is not None else is_array(start) and numbers(start, "start").ndim == 1
    why = "these are no vector, whose entries are averaged without it"
    require(observables is not None or vector, f"Pass `observables`, functions of the parameters by name: {why}.")
    d = sum(np.size(leaf) for _, leaf in leaves(start, "start")) if given.dim is None else given.dim
    if observables is None:
        rows = np.eye(min(d, SETTINGS.means), d)
        observables = {f"theta[{i}]": linear(row) for i, row in enumerate(rows)}
        if d <= SETTINGS.squares:
            observables |= {f"theta[{i}]²": square(row) for i, row in enumerate(rows)}
    short: Any = {"step_size": 0.1, "num_steps": 1, "num_chains": 1}
    return Plan(target=given, dynamics=overdamped(d), observables=observables, start=start, seed=seed, **short)


class Tuning:
    """The reference, the trials of every sampler, and the choice. `steps`: of all chains, that the budget allows."""

    def __init__(self, base: Plan, budget: dict[str, float], num_chains: int | None, oracle: Oracle | None, say: Any):
        self.num_chains, self.count = num_chains, 0
        self.error, self.seconds = budget.get("error"), budget.get("seconds")
        # about as many as the budget has, before anything is known
        total = budget.get("gradients", 1e5 if self.error is None else 1 / self.error**2)
        self.known = known = refer(base, oracle, float(np.clip(total, *SETTINGS.reference)))
        self.steps = total / (cost_of_a_gradient(known.plan) if "gradients" in budget else 1.0)
        self.spent = known.gradients
        errors = known.error / np.where(known.sd > 0, known.sd, np.inf)
        say(f"reference: {known.gradients:,.0f} gradients, errors up to {np.max(errors):.2g} posterior sds")
        say(f"gradients: from {_reads(known.plan)}")
        self.trials: dict[Family, list[Trial]] = {}
        families = FAMILIES if known.dense else MANY
        # on a Gaussian with exact gradients none of them has a bias, and the first is as good as any
        for family in families[:1] if known.exact else families:
            if family.turn and known.plan.dim == 1:
                continue
            if not (found := self._tried(family)):
                say(f"trials of {family.name}: all diverged")
                continue
            self.trials[family], best = found, min(found, key=self.score)
            say(f"trials of {family.name}: step size {best.plan.eta:.3g}, RMSE {self.score(best):.2g} posterior sds")

    def _tried(self, family: Family) -> list[Trial]:
        """Trials at step sizes that become smaller by halves, until the expected error rises."""
        found, first = [], family.first_step(self.known)
        for halvings in range(SETTINGS.halvings):
            eta = first / 2**halvings
            plan = family.plan(self.known, eta)
            _, burn_in, steps = self.lengths(family, eta)
            most = float(np.clip(self.steps, *SETTINGS.screening)) / SETTINGS.trial_chains
            trial = None if plan is None else self.attempt(plan, SETTINGS.trial_chains, int(min(steps, most)), burn_in)
            if trial is None:
                continue
            if self.seconds is not None and not self.trials and not found:
                self.steps = max(self.seconds * trial.rate, 100.0)
            found.append(trial)
            if len(found) == SETTINGS.sizes or (len(found) > 1 and self.score(trial) > self.score(found[-2])):
                break
        return found

    def attempt(self, plan: Plan, chains: int, steps: int, burn_in: int, ours: bool = True) -> Trial | None:
        """Run a plan from posterior draws, against the reference; None where a chain diverged or was thrown far out.

        In the neck of a funnel a step that suits the bulk does that; it is rare, and averages of few chains do not show it.
        """
        known = self.known
        self.count += 1
        self.spent += chains * (steps + burn_in) * cost_of_a_gradient(plan)
        seed = known.plan.seed + 1000 * self.count
        lengths = {"num_chains": chains, "num_steps": steps, "burn_in": burn_in}
        own = plan.replace(**lengths, start=known.start(chains, seed), seed=seed).knowing(known.plan.model)
        try:
            run = engines.run(own, progress=False, thin=max(1, steps // SETTINGS.looks) if known.dense else None)
        except (DivergenceError, InvalidInput):
            return None
        reach = SETTINGS.thrown * known.farthest(known.draws)
        if run.draws is not None and known.farthest(flat_draws(run.draws, ~run.diverged)) > reach:
            return None
        averages = np.stack([run.averages[name] for name in own.observables], axis=1)
        scale = np.where(known.sd > 0, known.sd, np.inf)
        mean, away = averages.mean(axis=0), averages - averages.mean(axis=0)
        square = np.mean(away**2, axis=0)
        tails = np.maximum(np.mean(away**4, axis=0) / np.where(square > 0, square, 1.0) ** 2 - 3, 0.0)
        # few chains that were thrown far out decide a variance, and the next run may have more of them
        variance = averages.var(axis=0, ddof=1) / scale**2 * (1 + np.sqrt(tails / chains))
        error = np.sqrt(variance / chains + (known.error / scale) ** 2)
        rate = chains * (steps + burn_in) / max(run.wall_time - run.compile_time, 1e-6)
        return Trial(own, (mean - known.mean) / scale, error, variance, steps, rate, ours and known.exact, tails)

    def score(self, trial: Trial, share: float = 1.0) -> float:
        """The RMSE to expect with a share of the steps: over all observables, or of the worst where an error is asked for."""
        squares = trial.variance * trial.steps / (share * self.steps) + sum(trial.squared_bias())
        return math.sqrt(float(np.mean(squares) if self.error is None else np.max(squares)))

    def best(self, family: Family) -> Trial:
        """The trial with the smallest error."""
        return min(self.trials[family], key=self.score)

    def lengths(self, family: Family, eta: float) -> tuple[int, int, int]:
        """Chains of the plan, and the burn-in and steps of each: as many chains as leave most steps after burn-in."""
        wanted = family.burn_in(eta)
        chains = self.num_chains or int(np.clip(SETTINGS.burnt * self.steps // wanted, 1, SETTINGS.chains))
        each = max(int(min(self.steps / chains, 2**31 - 1)), SETTINGS.fewest)
        burn_in = min(wanted, int(SETTINGS.burnt * each))
        return chains, burn_in, max(each - burn_in, SETTINGS.fewest)

    def choose(self) -> tuple[Family, Trial]:
        """The best sampler with a longer trial, which takes the place of the short one before the choice is made again."""
        finals: list[Trial] = []
        while True:
            diverged = "chains of every sampler diverged at every step size that was tried"
            remedy = f"{' '.join(self.known.warnings)} Use `gyromc.expect`, or write the model in other coordinates."
            require(bool(self.trials), f"No plan can be recommended: {diverged}. {remedy}")
            chosen, *others = self.trials
            for one in others:
                if self.score(self.best(one)) < SETTINGS.better * self.score(self.best(chosen)):
                    chosen = one
            trial = self.best(chosen)
            if self.error is not None:
                # steps until every observable has the error asked for, as if a bias that forbids it were none
                allowed = self.error**2 - sum(trial.squared_bias())
                allowed = np.where(allowed > 0.1 * self.error**2, allowed, self.error**2)
                needed = float(np.max(trial.variance * trial.steps / allowed)) / (1 - SETTINGS.burnt)
                self.steps = max(needed, SETTINGS.fewest)
            if trial in finals or len(finals) == SETTINGS.finals:
                return chosen, trial
            _, burn_in, steps = self.lengths(chosen, trial.plan.eta)
            total = float(np.clip(SETTINGS.longer * self.steps, *SETTINGS.final))
            chains = int(np.clip(total / (steps + burn_in), SETTINGS.trial_chains, 1024))
            final = self.attempt(trial.plan, chains, int(min(steps, total / chains)), burn_in)
            self.trials[chosen].remove(trial)
            if final is not None:
                self.trials[chosen].append(final)
                finals.append(final)
            elif not self.trials[chosen]:
                del self.trials[chosen]

    def finished(self, given: Plan | None) -> Tuned:
        """The choice as a plan, with its account."""
        family, final = self.choose()
        known, seed = self.known, self.known.plan.seed
        if self.seconds is not None:  # the longer trial knows the speed better
            self.steps = max(self.seconds * final.rate, 100.0)
        chains, burn_in, steps = self.lengths(family, final.plan.eta)
        lengths = {"num_chains": chains, "num_steps": steps, "burn_in": burn_in}
        plan = final.plan.replace(**lengths, start=known.start(chains, seed), seed=seed).knowing(final.plan.model)
        bias, unknown = final.squared_bias()
        chance = final.variance * final.steps / (chains * steps)
        table = known.sd * np.sqrt([bias + unknown + chance, bias, chance, np.ones_like(bias), unknown])
        rows = {name: Expected(*map(float, column)) for name, column in zip(plan.observables, table.T, strict=True)}
        tried = []
        for one, trials in self.trials.items():
            best, sizes = self.best(one), tuple(sorted((each.plan.eta for each in trials), reverse=True))
            biased = math.sqrt(float(np.mean(sum(best.squared_bias()))))
            note = "chosen" if one is family else ""
            tried.append(Tried(one.name, sizes, best.plan.eta, self.score(best), biased, note))
        gains = self._gains(final, given)
        total, seconds = plan.gradients * cost_of_a_gradient(plan), chains * (steps + burn_in) / final.rate
        doubts, unsure = list(known.warnings), "and may be too small by a factor of 2 or more"
        if doubts:
            doubts.append(f"The errors to expect are measured against these chains, {unsure}.")
        if plan.burn_in < family.burn_in(plan.eta):
            takes = f"burn-in takes {plan.burn_in} of the {family.burn_in(plan.eta)} steps it should"
            doubts.append(f"The budget is too small: {takes}. Pass more `gradients`, or fewer `num_chains`.")
        if heavy := heavy_tailed(plan, known.draws):
            doubts.append(f"{', '.join(heavy)}: {HEAVY}")
        uneven = zip(rows, np.broadcast_to(final.excess > SETTINGS.uneven, len(rows)), strict=True)
        if few := [name for name, far in uneven if far and name not in heavy]:
            decided = f"{', '.join(few)}: few chains of the trial decide the error to expect, {unsure}"
            doubts.append(f"{decided}. Pass more `gradients`, or average something that grows more slowly.")
        worst = max(row.relative for row in rows.values())
        if self.error is not None and worst > 1.1 * self.error:
            reached = f"{worst:.2g} in place of {self.error:g} posterior standard deviations"
            why = "because of the bias of the step size, or of what trials know of it. `gyromc.expect` has no such bias"
            doubts.append(f"The error asked for may not be reached: {reached}, {why}.")
        reason = f"{family.name}, whitened by the {'covariance' if known.dense else 'scales'} of the solver's chains; "
        reason += f"gradients from {_reads(plan)}; step size {plan.eta:.3g}, {chains} chains × {steps} steps after "
        reason += f"{burn_in} of burn-in{', with the martingale control variate' if plan.martingale else ''}."
        return Tuned(plan, rows, tuple(tried), gains, total, self.spent, seconds, reason, doubts)

    def _gains(self, final: Trial, given: Plan | None) -> dict[str, float]:
        """How many times more gradients others need for the same error, from their trials."""
        own, gains = self.score(final), {}
        ratio = lambda error: (error / own) ** 2 if own > 0 else math.nan
        for one in self.trials:
            name = "rotating" if one.turn or one.friction else "reversible"
            gains[name] = min(ratio(self.score(self.best(one))), gains.get(name, math.inf))
        if given is not None and list(given.observables) == list(self.known.plan.observables):
            share = cost_of_a_gradient(self.known.plan) / cost_of_a_gradient(given)
            steps = min(self.steps * share, SETTINGS.screening[1]) / SETTINGS.trial_chains
            trial = self.attempt(given, SETTINGS.trial_chains, max(int(steps), SETTINGS.fewest), 0, ours=False)
            gains["untuned plan"] = math.inf if trial is None else ratio(self.score(trial, share))
        return gains


def _reads(plan: Plan) -> str:
    return "all rows" if isinstance(plan.oracle, Exact) else plan.oracle.name
