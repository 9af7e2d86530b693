"""tune: the sampler with the smallest expected error for a problem and a budget, as a plan that `gyromc.run` takes.

Input: a target or a plan, and a budget. Output: a `Tuned`. The solver gives an unbiased answer, draws and a covariance; short runs
of some samplers at falling step sizes, started from these draws, show their bias and variance; the best one is run again, longer
and with other random numbers, and that trial says what to expect: the choice does not flatter it. Nothing adapts once a plan runs.
"""

import dataclasses
import math
import warnings as messages
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc.checks import leaves, positive, require, whole
from gyromc.dynamics import overdamped
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation.diagnostics import HEAVY, heavy_tailed
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
    - `final`: steps in the last trial, likewise, for twice as many as the plan has: its bias is then known to less than its
      standard error.
    - `trial_chains`: whose averages give a variance to 13 %.
    - `halvings`: of a step size at which chains diverge; `sizes`: step sizes of a sampler that are measured.
    - `better`: what a later sampler's RMSE must be of an earlier one's: the choice must not follow noise.
    - `chains`: of a plan; more would waste steps on burn-in, fewer leave its own standard error unknown.
    - `burnt`: share of a chain that burn-in takes at most.
    - `fewest`: steps of a chain.
    - `means`, `squares`: parameters whose means and squares are the observables where none are given.
    """

    error: float = 0.01
    reference: tuple[float, float] = (20_000, 200_000)
    screening: tuple[float, float] = (6_400, 32_000)
    final: tuple[float, float] = (32_000, 256_000)
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
    budget = Budget.read(gradients, error, seconds, target_or_plan)
    seed = whole(seed, "seed", least=0)
    num_chains = None if num_chains is None else whole(num_chains, "num_chains", least=1, most=10**6)
    with messages.catch_warnings():
        messages.simplefilter("ignore", GyromcWarning)  # of trials; what matters is in the account
        base = _base(target_or_plan, observables, seed, start)
        tuning = Tuning(base, budget, seed, oracle, num_chains, say or (lambda line: None))
        return tuning.finished(target_or_plan if isinstance(target_or_plan, Plan) else None)


@dataclasses.dataclass(frozen=True)
class Budget:
    """Exactly one of the three."""

    gradients: float | None = None
    error: float | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, gradients: Any, error: Any, seconds: Any, given: Any) -> "Budget":
        """The arguments of `tune`; a plan's own gradients where none is given."""
        named = {"gradients": gradients, "error": error, "seconds": seconds}
        asked = {name: positive(value, name) for name, value in named.items() if value is not None}
        require(
            len(asked) <= 1,
            f"Pass one of `gradients`, `error` and `seconds`: got {' and '.join(f'`{name}`' for name in asked)}.",
        )
        if asked:
            return cls(**asked)
        if isinstance(given, Plan):
            return cls(gradients=given.gradients * cost_of_a_gradient(given))
        return cls(error=SETTINGS.error)

    def guess(self, cost: float) -> float:
        """About how many steps it is, each of which costs so many gradients, before anything is known."""
        if self.gradients is not None:
            return self.gradients / cost
        return 1 / self.error**2 if self.error is not None else 1e5


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A sampler and its trials, the largest step size first; `given_up`: step sizes at which chains diverged."""

    family: Family
    trials: list[Trial]
    given_up: list[float]

    def best(self, score: Callable[[Trial], float]) -> Trial:
        """The trial with the smallest score."""
        return min(self.trials, key=score)


class Tuning:
    """One tuning: the reference, the trials of every sampler, and the choice."""

    def __init__(
        self,
        base: Plan,
        budget: Budget,
        seed: int,
        oracle: Oracle | None,
        num_chains: int | None,
        say: Callable[[str], object],
    ):
        self.budget, self.seed, self.num_chains, self.say = budget, seed, num_chains, say
        self.known = refer(base, oracle, float(np.clip(budget.guess(1.0), *SETTINGS.reference)), seed)
        known = self.known
        say(f"reference: {known.gradients:,.0f} gradients, errors up to {self._reference_error():.2g} posterior sds")
        self.cost = cost_of_a_gradient(known.plan)
        say(f"gradients: from {'all rows' if isinstance(known.plan.oracle, Exact) else known.plan.oracle.name}")
        self.spent, self.tried_seeds = known.gradients, 0
        self.steps = budget.guess(self.cost)
        families = (FAMILIES[:1] if known.exact else FAMILIES) if known.dense else MANY
        self.candidates: list[Candidate] = []
        for family in families:
            if family.turn and base.dim == 1:
                continue
            candidate = self._candidate(family)
            say(f"trials of {family.name}: {self._outcome(candidate)}")
            if candidate.trials:
                self.candidates.append(candidate)
        require(
            bool(self.candidates),
            "No plan can be recommended: every sampler diverged at every step size that was tried. "
            f"{' '.join(known.warnings)} Use `gyromc.expect`, or write the model in other coordinates.",
        )

    def _reference_error(self) -> float:
        sd = np.where(self.known.sd > 0, self.known.sd, np.inf)
        return float(np.max(self.known.error / sd))

    def _try(self, plan: Plan, chains: int, steps: int, burn_in: int, exact: bool = False) -> Trial | None:
        self.tried_seeds += 1
        self.spent += chains * (steps + burn_in) * cost_of_a_gradient(plan)
        return try_plan(plan, self.known, chains, steps, burn_in, self.seed + 1000 * self.tried_seeds, exact)

    def _candidate(self, family: Family) -> Candidate:
        """Trials at step sizes that become smaller by halves, until the expected error rises."""
        found = Candidate(family, [], [])
        eta, halvings = family.first_step(self.known), 0
        chains = SETTINGS.trial_chains
        most = float(np.clip(self.steps, *SETTINGS.screening)) / chains
        while halvings <= SETTINGS.halvings + len(found.trials) and len(found.trials) < SETTINGS.sizes:
            plan, trial = family.plan(self.known, eta), None
            if plan is not None:
                burn_in, steps = self._lengths(family, plan.eta, self.steps, self._chains(family, plan.eta, self.steps))
                trial = self._try(plan, chains, int(min(steps, most)), burn_in, self.known.exact)
                if trial is None:
                    found.given_up.append(plan.eta)
                elif self.budget.seconds is not None and not self.candidates and not found.trials:
                    self._set_rate(trial)
            if trial is not None:
                found.trials.append(trial)
                if len(found.trials) > 1 and self._score(found.trials[-1]) > self._score(found.trials[-2]):
                    break
            eta, halvings = eta / 2, halvings + 1
        return found

    def _set_rate(self, trial: Trial) -> None:
        """The number of steps that the seconds allow, from the speed of a second run of a trial, which compiles nothing."""
        again = self._try(trial.plan, trial.chains, trial.steps, trial.plan.burn_in) or trial
        self.steps = max(self.budget.seconds * self._rate(again), 100.0)

    @staticmethod
    def _rate(trial: Trial) -> float:
        return trial.chains * (trial.steps + trial.plan.burn_in) / trial.seconds

    def _score(self, trial: Trial) -> float:
        """What is made small: the root mean square error with the budget, or the steps that an error takes."""
        if self.budget.error is not None:
            return self._needed(trial, self.budget.error)
        return math.sqrt(float(np.mean(trial.squared_error(self.steps))))

    def _needed(self, trial: Trial, error: float) -> float:
        """Steps until every observable has the error; where its bias is larger, more the larger it is."""
        known, unknown = trial.squared_bias()
        allowed = error**2 - known - unknown
        if np.min(allowed) <= 0.1 * error**2:
            return 1e12 * float(np.max(known + unknown)) / error**2
        return float(np.max(trial.variance * trial.steps / allowed))

    def _chains(self, family: Family, eta: float, steps: float) -> int:
        """As many chains as leave most steps after burn-in."""
        if self.num_chains is not None:
            return self.num_chains
        return int(np.clip(SETTINGS.burnt * steps // family.burn_in(eta), 1, SETTINGS.chains))

    def _lengths(self, family: Family, eta: float, steps: float, chains: int) -> tuple[int, int]:
        """Burn-in and steps of a chain, where all chains together have so many steps."""
        each = max(int(steps / chains), SETTINGS.fewest)
        burn_in = min(family.burn_in(eta), int(SETTINGS.burnt * each))
        return burn_in, min(max(each - burn_in, SETTINGS.fewest), 2**31 - 1 - burn_in)

    def _chosen(self) -> tuple[Candidate, Trial]:
        """The sampler with the smallest score, an earlier one where a later is hardly better."""
        best = self.candidates[0]
        factor = SETTINGS.better if self.budget.error is None else SETTINGS.better**2
        for candidate in self.candidates[1:]:
            if self._score(candidate.best(self._score)) < factor * self._score(best.best(self._score)):
                best = candidate
        return best, best.best(self._score)

    def finished(self, given: Plan | None) -> Tuned:
        """The choice, measured once more, as a plan with its account."""
        final = None
        while final is None:
            candidate, trial = self._chosen()
            if self.budget.error is not None:
                self.steps = min(self._steps_for(trial), 1e12)
            final = self._final(candidate.family, trial)
            if final is None:  # rare divergence, which the longer trial met
                candidate.trials.remove(trial)
                candidate.given_up.append(trial.plan.eta)
                if not candidate.trials:
                    self.candidates.remove(candidate)
                require(
                    bool(self.candidates),
                    "No plan can be recommended: chains of every sampler diverged in longer trials.",
                )
        if self.budget.error is not None:
            self.steps = min(self._steps_for(final), 1e12)
        plan = self._sized(candidate.family, final.plan)
        rows = self._rows(final, plan)
        tried = [self._line(one, one is candidate) for one in self.candidates]
        total = plan.gradients * self.cost
        seconds = plan.num_chains * (plan.num_steps + plan.burn_in) / self._rate(final)
        gains = self._gains(candidate, final, given)
        doubts = self._doubts(candidate.family, plan, rows)
        return Tuned(plan, rows, tuple(tried), gains, total, self.spent, seconds, self._reason(candidate, plan), doubts)

    def _steps_for(self, trial: Trial) -> float:
        """Steps that the error asked for takes, burn-in included; where the bias is too large, as if there were none."""
        error = self.budget.error
        assert error is not None
        needed = self._needed(trial, error)
        if needed >= 1e11:
            needed = float(np.max(trial.variance)) * trial.steps / error**2
        return max(needed / (1 - SETTINGS.burnt), SETTINGS.fewest)

    def _final(self, family: Family, trial: Trial) -> Trial | None:
        """A trial like the plan itself, with more chains; shorter where the plan is very long."""
        chains = self._chains(family, trial.plan.eta, self.steps)
        burn_in, steps = self._lengths(family, trial.plan.eta, self.steps, chains)
        total = float(np.clip(2 * self.steps, *SETTINGS.final))
        chains = int(np.clip(total / (steps + burn_in), SETTINGS.trial_chains, 1024))
        steps = int(min(steps, total / chains))
        return self._try(trial.plan, chains, steps, burn_in, self.known.exact)

    def _sized(self, family: Family, plan: Plan) -> Plan:
        """The plan with its chains, steps, burn-in, starts and seed."""
        chains = self._chains(family, plan.eta, self.steps)
        burn_in, steps = self._lengths(family, plan.eta, self.steps, chains)
        start = self.known.start(chains, self.seed)
        sized = plan.replace(num_chains=chains, num_steps=steps, burn_in=burn_in, start=start, seed=self.seed)
        return sized.knowing(plan.model)

    def _rows(self, final: Trial, plan: Plan) -> dict[str, Expected]:
        known, unknown = final.squared_bias()
        chance = final.variance * final.steps / (plan.num_chains * plan.num_steps)
        sd = self.known.sd
        columns = zip(
            plan.observables, sd, sd * np.sqrt(known + unknown + chance), sd * np.sqrt(known), sd * np.sqrt(chance),
            sd * np.sqrt(unknown), strict=True,
        )  # fmt: skip
        return {
            name: Expected(float(total), float(bias), float(own), float(scale), float(error))
            for name, scale, total, bias, own, error in columns
        }

    def _rmse(self, trial: Trial) -> float:
        return math.sqrt(float(np.mean(trial.squared_error(self.steps))))

    def _line(self, candidate: Candidate, chosen: bool) -> Tried:
        trial = candidate.best(self._score)
        failed = f"diverged at {', '.join(f'{x:.2g}' for x in candidate.given_up)}" if candidate.given_up else ""
        sizes = sorted((*candidate.given_up, *(one.plan.eta for one in candidate.trials)), reverse=True)
        known, unknown = trial.squared_bias()
        draws = 1 / trial.per_gradient if trial.per_gradient > 0 else math.inf
        note = "; ".join(filter(None, ("chosen" if chosen else "", failed)))
        bias = math.sqrt(float(np.mean(known + unknown)))
        return Tried(candidate.family.name, tuple(sizes), trial.plan.eta, self._rmse(trial), bias, draws, note)

    def _gains(self, chosen: Candidate, final: Trial, given: Plan | None) -> dict[str, float]:
        """How many times more gradients others need for the same error."""
        own = self._rmse(final)
        ratio = lambda trial: (self._rmse(trial) / own) ** 2 if own > 0 else math.nan
        gains = {}
        plain = [one for one in self.candidates if not one.family.turn and not one.family.friction]
        if plain and chosen not in plain:
            gains["reversible"] = min(ratio(one.best(self._score)) for one in plain)
        elif plain:
            gains["reversible"] = 1.0
        if given is not None and list(given.observables) == list(self.known.plan.observables):
            share = self.cost / cost_of_a_gradient(given)
            steps = int(np.clip(self.steps * share / SETTINGS.trial_chains, SETTINGS.fewest, 500))
            trial = self._try(given, SETTINGS.trial_chains, steps, 0)
            error = math.inf if trial is None else math.sqrt(float(np.mean(trial.squared_error(self.steps * share))))
            gains["untuned plan"] = (error / own) ** 2 if own > 0 else math.nan
        return gains

    def _doubts(self, family: Family, plan: Plan, rows: Mapping[str, Expected]) -> list[str]:
        """What could not be known, and what would help."""
        doubts, error = list(self.known.warnings), self.budget.error
        if plan.burn_in < family.burn_in(plan.eta):
            doubts.append(
                f"The budget is too small: burn-in takes {plan.burn_in} of the {family.burn_in(plan.eta)} steps it should. Pass more "
                "`gradients`, or fewer `num_chains`."
            )
        if heavy := heavy_tailed(plan, self.known.draws):
            doubts.append(f"{', '.join(heavy)}: {HEAVY}")
        worst = max((row.relative for row in rows.values()), default=0.0)
        if error is not None and worst > 1.1 * error:
            doubts.append(
                f"The error asked for may not be reached: {worst:.2g} in place of {error:g} posterior standard deviations, because "
                "of the bias of the step size or what trials know of it. `gyromc.expect` has no such bias."
            )
        return doubts

    def _reason(self, candidate: Candidate, plan: Plan) -> str:
        reads = "all rows" if isinstance(plan.oracle, Exact) else plan.oracle.name
        shape = "covariance" if self.known.dense else "scales"
        return (
            f"{candidate.family.name}, whitened by the {shape} of the solver's chains; gradients from {reads}; step size "
            f"{plan.eta:.3g}, {plan.num_chains} chains × {plan.num_steps} steps after {plan.burn_in} of burn-in"
            f"{', with the martingale control variate' if plan.martingale else ''}."
        )

    def _outcome(self, candidate: Candidate) -> str:
        if not candidate.trials:
            return "all diverged"
        trial = candidate.best(self._score)
        return f"step size {trial.plan.eta:.3g}, RMSE {self._rmse(trial):.2g} posterior sds"


def _base(given: Target | Plan, observables: Mapping[str, Any] | None, seed: int, start: Any = None) -> Plan:
    """A plan with the target, the observables and the start, from which all others are made."""
    if isinstance(given, Plan):
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
    start = getattr(given, "start", None) if start is None else start
    if given.dim is None and start is None:
        raise InvalidInput(
            f"{type(given).__name__} does not know the shape of its parameters. Pass `start`, parameters of that shape, such as "
            "`start=np.zeros(2)`."
        )
    require(
        observables is not None or start is None or np.ndim(start) == 1,
        "Pass `observables`, functions of the parameters by name: these are no vector, whose entries are averaged without it.",
    )
    d = sum(np.size(leaf) for _, leaf in leaves(start, "start")) if given.dim is None else given.dim
    return Plan(
        target=given, dynamics=overdamped(d), step_size=0.1, num_steps=1, num_chains=1, start=start, seed=seed,
        observables=_default_observables(d) if observables is None else observables,
    )  # fmt: skip


def _default_observables(d: int) -> dict[str, Any]:
    """The parameters and, where there are not too many, their squares."""
    chosen = {f"theta[{i}]": linear(row) for i, row in enumerate(np.eye(d)[: SETTINGS.means])}
    if d <= SETTINGS.squares:
        chosen |= {f"theta[{i}]²": square(row) for i, row in enumerate(np.eye(d))}
    return chosen
