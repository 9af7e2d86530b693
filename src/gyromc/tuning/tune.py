"""tune: the sampler with the smallest expected error for a problem and a budget, as a plan that `gyromc.run` takes.

Input: a target or a plan, and a budget. Output: a `Tuned`. The solver gives an unbiased answer, draws and a covariance. Short
runs of some samplers at falling step sizes, started from these draws, show their bias and variance. The best one is run again,
longer and with other random numbers, and that trial says what to expect: being chosen does not flatter it.
"""

import dataclasses
import math
import warnings as messages
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gyromc.checks import leaves, numbers, positive, require, shown, whole
from gyromc.dynamics import overdamped
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation.estimate import HEAVY, heavy_tailed
from gyromc.flat import is_array
from gyromc.observables import linear, square
from gyromc.oracles import Exact, Oracle
from gyromc.plan import Plan
from gyromc.targets import Target
from gyromc.tuning.trials import FAMILIES, MANY, Family, Trial, cost_of_a_gradient, refer, try_plan
from gyromc.tuning.tuned import Expected, Tried, Tuned

__all__ = ["tune"]


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """The numbers of the choice.

    - `error`: that is aimed at without a budget, in posterior standard deviations.
    - `reference`: gradients of the solver, at least and at most; between them it takes as many as the budget has.
    - `screening`: steps of all chains in one trial, likewise.
    - `final`: steps in the last trial, likewise, for `longer` times as many as the plan has: its bias is then known to half its
      standard error, and what happens in one run of four is seen.
    - `finals`: how many samplers get such a trial at most, where the first ones turn out worse than their short trials.
    - `trial_chains`: whose averages give a variance to 13 %.
    - `halvings`: of a step size at which chains diverge; `sizes`: step sizes of a sampler that are measured.
    - `better`: what a later sampler's RMSE must be of an earlier one's: the choice must not follow noise.
    - `chains`: of a plan; more would waste steps on burn-in, fewer leave its own standard error unknown.
    - `burnt`: share of a chain that burn-in takes at most.
    - `fewest`: steps of a chain.
    - `means`, `squares`: parameters whose means and squares are the observables where none are given.
    """

    error: float = 0.01
    reference: tuple[float, float] = (100_000, 400_000)
    screening: tuple[float, float] = (6_400, 32_000)
    final: tuple[float, float] = (32_000, 512_000)
    longer: float = 4.0
    finals: int = 4
    trial_chains: int = 64
    halvings: int = 8
    sizes: int = 4
    better: float = 0.95
    chains: int = 32
    burnt: float = 0.2
    fewest: int = 20
    means: int = 200
    squares: int = 50


SETTINGS = TuneSettings()
UNSURE = "The errors to expect are measured against these chains, and may be too small by a factor of 2 or more."


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
    assert tuned.expected["slope"] < 0.02 * tuned.sd["slope"]
    ```
    """
    given, budget = target_or_plan, {"gradients": gradients, "error": error, "seconds": seconds}
    budget = {name: positive(value, name) for name, value in budget.items() if value is not None}
    require(
        len(budget) <= 1,
        f"Pass one of `gradients`, `error` and `seconds`: got {' and '.join(f'`{name}`' for name in budget)}.",
    )
    if isinstance(given, Plan) and not budget:
        budget = {"gradients": given.gradients * cost_of_a_gradient(given)}
    seed = whole(seed, "seed", least=0)
    num_chains = None if num_chains is None else whole(num_chains, "num_chains", least=1, most=10**6)
    require(say is None or callable(say), f"`say` must be a function such as `print`: got {shown(say)}.")
    with messages.catch_warnings():
        messages.simplefilter("ignore", GyromcWarning)  # of trials; what matters is in the account
        tuning = Tuning(_base(given, observables, seed, start), budget or {"error": SETTINGS.error}, num_chains)
        tuning.try_all(oracle, say or (lambda line: None))
        return tuning.finished(given if isinstance(given, Plan) else None)


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
    """A sampler, its trials by falling step size, and the step sizes at which chains diverged."""

    family: Family
    trials: list[Trial]
    given_up: list[float]


class Tuning:
    """One tuning: the reference, the trials of every sampler, and the choice. `steps`: of all chains, that the budget allows."""

    def __init__(self, base: Plan, budget: dict[str, float], num_chains: int | None):
        self.base, self.budget, self.num_chains, self.seed = base, budget, num_chains, base.seed
        self.error, self.seconds = budget.get("error"), budget.get("seconds")
        self.spent, self.count = 0.0, 0
        self.candidates: list[Contender] = []

    def try_all(self, oracle: Oracle | None, say: Callable) -> None:
        """Ask the solver, then try every sampler."""
        # about as many as the budget has, before anything is known
        total = self.budget.get("gradients", 1e5 if self.error is None else 1 / self.error**2)
        self.known = known = refer(self.base, oracle, float(np.clip(total, *SETTINGS.reference)), self.seed)
        self.steps = total / (cost_of_a_gradient(known.plan) if "gradients" in self.budget else 1.0)
        self.spent = known.gradients
        errors = known.error / np.where(known.sd > 0, known.sd, np.inf)
        say(f"reference: {known.gradients:,.0f} gradients, errors up to {np.max(errors):.2g} posterior sds")
        say(f"gradients: from {_reads(known.plan)}")
        families = MANY
        if known.dense:
            # on a Gaussian with exact gradients none of them has a bias, and the first is as good as any
            families = FAMILIES[:1] if known.exact else FAMILIES
        for family in families:
            if family.turn and known.plan.dim == 1:
                continue
            found = self._tried(family)
            if not found.trials:
                say(f"trials of {family.name}: all diverged")
                continue
            best = self.best(found)
            say(f"trials of {family.name}: step size {best.plan.eta:.3g}, RMSE {self.score(best):.2g} posterior sds")
            self.candidates.append(found)

    def attempt(self, plan: Plan, chains: int, steps: int, burn_in: int, exact: bool = False) -> Trial | None:
        """A trial with random numbers of its own, its gradients counted."""
        self.count += 1
        self.spent += chains * (steps + burn_in) * cost_of_a_gradient(plan)
        return try_plan(plan, self.known, chains, steps, burn_in, self.seed + 1000 * self.count, exact)

    def _tried(self, family: Family) -> Contender:
        """Trials at step sizes that become smaller by halves, until the expected error rises."""
        found, eta = Contender(family, [], []), 2 * family.first_step(self.known)
        while len(found.trials) < SETTINGS.sizes and len(found.given_up) <= SETTINGS.halvings:
            eta /= 2
            plan = family.plan(self.known, eta)
            _, burn_in, steps = self.lengths(family, eta)
            most = float(np.clip(self.steps, *SETTINGS.screening)) / SETTINGS.trial_chains
            shape = SETTINGS.trial_chains, int(min(steps, most)), burn_in
            trial = None if plan is None else self.attempt(plan, *shape, self.known.exact)
            if plan is None or trial is None:
                found.given_up.append(eta)
                continue
            if self.seconds is not None and not self.candidates and not found.trials:
                self.steps = max(self.seconds * trial.rate, 100.0)
            found.trials.append(trial)
            if len(found.trials) > 1 and self.score(trial) > self.score(found.trials[-2]):
                break
        return found

    def score(self, trial: Trial, share: float = 1.0) -> float:
        """The RMSE to expect with a share of the steps: over all observables, or of the worst where an error is asked for."""
        overall = np.mean if self.error is None else np.max
        return math.sqrt(float(overall(trial.squared_error(share * self.steps))))

    def best(self, candidate: Contender) -> Trial:
        """The trial with the smallest error."""
        return min(candidate.trials, key=self.score)

    def lengths(self, family: Family, eta: float) -> tuple[int, int, int]:
        """Chains of the plan, and the burn-in and steps of each: as many chains as leave most steps after burn-in."""
        wanted = family.burn_in(eta)
        chains = self.num_chains or int(np.clip(SETTINGS.burnt * self.steps // wanted, 1, SETTINGS.chains))
        each = max(int(min(self.steps / chains, 2**31 - 1)), SETTINGS.fewest)
        burn_in = min(wanted, int(SETTINGS.burnt * each))
        return chains, burn_in, max(each - burn_in, SETTINGS.fewest)

    def choose(self) -> tuple[Contender, Trial]:
        """The best sampler with a longer trial of it, like the plan itself.

        That trial takes the place of the short one, and the choice is made again until it falls on a sampler that had it.
        """
        finals: list[Trial] = []
        while True:
            require(
                bool(self.candidates),
                "No plan can be recommended: chains of every sampler diverged at every step size that was tried. "
                f"{' '.join(self.known.warnings)} Use `gyromc.expect`, or write the model in other coordinates.",
            )
            chosen = self.candidates[0]
            for one in self.candidates[1:]:
                if self.score(self.best(one)) < SETTINGS.better * self.score(self.best(chosen)):
                    chosen = one
            trial = self.best(chosen)
            if self.error is not None:
                self.steps = self._needed(trial)
            if trial in finals or len(finals) == SETTINGS.finals:
                return chosen, trial
            _, burn_in, steps = self.lengths(chosen.family, trial.plan.eta)
            total = float(np.clip(SETTINGS.longer * self.steps, *SETTINGS.final))
            chains = int(np.clip(total / (steps + burn_in), SETTINGS.trial_chains, 1024))
            final = self.attempt(trial.plan, chains, int(min(steps, total / chains)), burn_in, self.known.exact)
            chosen.trials.remove(trial)
            if final is None:
                chosen.given_up.append(trial.plan.eta)
                self.candidates = [one for one in self.candidates if one.trials]
            else:
                chosen.trials.append(final)
                finals.append(final)

    def _needed(self, trial: Trial) -> float:
        """Steps until every observable has the error asked for, burn-in included; as if a bias that forbids it were none."""
        assert self.error is not None
        allowed = self.error**2 - sum(trial.squared_bias())
        allowed = np.where(allowed > 0.1 * self.error**2, allowed, self.error**2)
        return max(float(np.max(trial.variance * trial.steps / allowed)) / (1 - SETTINGS.burnt), SETTINGS.fewest)

    def finished(self, given: Plan | None) -> Tuned:
        """The choice as a plan, with its account."""
        chosen, final = self.choose()
        if self.seconds is not None:  # the longer trial knows the speed better
            self.steps = max(self.seconds * final.rate, 100.0)
        chains, burn_in, steps = self.lengths(chosen.family, final.plan.eta)
        start, model = self.known.start(chains, self.seed), final.plan.model
        plan = final.plan.replace(
            num_chains=chains, num_steps=steps, burn_in=burn_in, start=start, seed=self.seed
        ).knowing(model)
        bias, unknown = final.squared_bias()
        chance = final.variance * final.steps / (plan.num_chains * plan.num_steps)
        table = self.known.sd * np.sqrt([bias + unknown + chance, bias, chance, np.ones_like(bias), unknown])
        rows = {name: Expected(*map(float, column)) for name, column in zip(plan.observables, table.T, strict=True)}
        tried = tuple(self._line(one, "chosen" if one is chosen else "") for one in self.candidates)
        gains = self._gains(final, given)
        total, seconds = plan.gradients * cost_of_a_gradient(plan), chains * (steps + burn_in) / final.rate
        doubts = [*self.known.warnings, *([UNSURE] if self.known.warnings else [])]
        doubts += _doubts(chosen.family, plan, rows, self.known.draws, self.error)
        reason = (
            f"{chosen.family.name}, whitened by the {'covariance' if self.known.dense else 'scales'} of the solver's chains; "
            f"gradients from {_reads(plan)}; step size {plan.eta:.3g}, {chains} chains × {steps} steps after {burn_in} of burn-in"
            f"{', with the martingale control variate' if plan.martingale else ''}."
        )
        return Tuned(plan, rows, tried, gains, total, self.spent, seconds, reason, doubts)

    def _line(self, one: Contender, note: str) -> Tried:
        trial, failed = self.best(one), ", ".join(f"{x:.2g}" for x in one.given_up)
        sizes = tuple(sorted((*one.given_up, *(each.plan.eta for each in one.trials)), reverse=True))
        bias = math.sqrt(float(np.mean(sum(trial.squared_bias()))))
        note = "; ".join(filter(None, (note, f"diverged at {failed}" if failed else "")))
        return Tried(one.family.name, sizes, trial.plan.eta, self.score(trial), bias, trial.draws_per_gradient, note)

    def _gains(self, final: Trial, given: Plan | None) -> dict[str, float]:
        """How many times more gradients others need for the same error, from their trials."""
        own = self.score(final)
        ratio = lambda error: (error / own) ** 2 if own > 0 else math.nan
        gains = {}
        for one in self.candidates:
            name = "rotating" if one.family.turn or one.family.friction else "reversible"
            gains[name] = min(ratio(self.score(self.best(one))), gains.get(name, math.inf))
        if given is not None and list(given.observables) == list(self.known.plan.observables):
            share = cost_of_a_gradient(self.known.plan) / cost_of_a_gradient(given)
            steps = min(self.steps * share, SETTINGS.screening[1]) / SETTINGS.trial_chains
            trial = self.attempt(given, SETTINGS.trial_chains, max(int(steps), SETTINGS.fewest), 0)
            gains["untuned plan"] = math.inf if trial is None else ratio(self.score(trial, share))
        return gains


def _reads(plan: Plan) -> str:
    return "all rows" if isinstance(plan.oracle, Exact) else plan.oracle.name


def _doubts(
    family: Family, plan: Plan, rows: Mapping[str, Expected], draws: np.ndarray, error: float | None
) -> Iterator[str]:
    """What may go wrong with the plan, and what would help."""
    if plan.burn_in < family.burn_in(plan.eta):
        yield (
            f"The budget is too small: burn-in takes {plan.burn_in} of the {family.burn_in(plan.eta)} steps it should. Pass more "
            "`gradients`, or fewer `num_chains`."
        )
    if heavy := heavy_tailed(plan, draws):
        yield f"{', '.join(heavy)}: {HEAVY}"
    worst = max(row.relative for row in rows.values())
    if error is not None and worst > 1.1 * error:
        yield (
            f"The error asked for may not be reached: {worst:.2g} in place of {error:g} posterior standard deviations, because "
            "of the bias of the step size, or of what trials know of it. `gyromc.expect` has no such bias."
        )


def _base(given: Target | Plan, observables: Mapping[str, Any] | None, seed: int, start: Any = None) -> Plan:
    """A plan with the target, the observables and the start, from which all others are made."""
    if isinstance(given, Plan):
        require(
            given.coordinates is None,
            "`tune` looks for D and Q in θ, and this plan's are in other coordinates. Pass `plan.replace(coordinates=None)`.",
        )
        require(start is None, "`start` goes with a target: a plan has its own. Pass `plan.replace(start=…)`.")
        return given.replace(
            observables=given.observables if observables is None else observables,
            dynamics=overdamped(given.dim), oracle=None, scheme="euler", step_size=0.1, num_steps=1, burn_in=0, num_chains=1,
            start=given.unravel(given.model.start), martingale=False, weighting="uniform", seed=seed,
        )  # fmt: skip
    require(
        isinstance(given, Target),
        f"`tune` takes a target of `gyromc.targets` or a `Plan`: got {type(given).__name__}.",
    )
    own = getattr(given, "start", None)
    start = own if start is None else start
    if given.dim is None and start is None:
        raise InvalidInput(
            f"{type(given).__name__} does not know the shape of its parameters. Pass `start`, parameters of that shape, such as "
            "`start=np.zeros(2)`."
        )
    require(
        observables is not None
        or (own is None if given.dim is not None else is_array(start) and numbers(start, "start").ndim == 1),
        "Pass `observables`, functions of the parameters by name: these are no vector, whose entries are averaged without it.",
    )
    d = sum(np.size(leaf) for _, leaf in leaves(start, "start")) if given.dim is None else given.dim
    if observables is None:
        rows = np.eye(min(d, SETTINGS.means), d)
        observables = {f"theta[{i}]": linear(row) for i, row in enumerate(rows)}
        if d <= SETTINGS.squares:
            observables |= {f"theta[{i}]²": square(row) for i, row in enumerate(rows)}
    return Plan(
        target=given, dynamics=overdamped(d), step_size=0.1, num_steps=1, num_chains=1, start=start, seed=seed,
        observables=observables,
    )  # fmt: skip
