"""tune: the sampler with the smallest expected error for a problem and a budget, as a plan that `gyromc.run` takes.

A target or a plan in, a `Tuned` out. A survey finds the modes, the width and the curvature of the law. Oracles are weighed by the
rows they read, samplers by short trials at falling step sizes, whose bias and variance are measured. The plan with the smallest
expected squared error for the budget is chosen; nothing adapts once it runs.
"""

import dataclasses
import math
import warnings as messages
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc.checks import leaves, require, whole
from gyromc.dynamics import overdamped
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation.diagnostics import HEAVY, heavy_tailed
from gyromc.evaluation import Meter, metered
from gyromc.observables import linear, square
from gyromc.oracles import Oracle
from gyromc.plan import Plan
from gyromc.schemes.moments import GradientMoments
from gyromc.targets import Target
from gyromc.tuning.blocks import merits
from gyromc.tuning.budget import Budget, cost_of_a_gradient
from gyromc.tuning.families import EULER, FAMILIES
from gyromc.tuning.gaussian_errors import plain_error, plan_error
from gyromc.tuning.ladder import Circumstances, Ladder, climb
from gyromc.tuning.many_parameters import tune_many
from gyromc.tuning.readings import Reading, given_reading, readings
from gyromc.tuning.sizing import needed_burn_in, sized, steps_per_second
from gyromc.tuning.survey import Pilot, Survey, survey
from gyromc.tuning.trial import observed, reference_values
from gyromc.tuning.tuned import SHORTFALL, Expected, Tried, Tuned

__all__ = ["tune"]

MOST_DENSE = 1000  # parameters: beyond, matrices are too large
MOST_SQUARES, MOST_MEANS = 50, 200  # parameters whose squares and means are the observables where none are given
POINTS = (512, 2048)  # of a survey
LEAST_CHAINS, MOST_CHAINS = (16, 48), 256  # of a trial: where gradients are counted, and where an error must be known
POINTS_SHARE, CHAINS_SHARE = 1 / 40, 1 / 2500  # of the budget in gradients
SHARE = 0.1  # of the budget, beyond which no further family is tried
FEW = 20_000  # gradients, below which rotations are tried only where they have something to gain
UNKNOWN, LEAST_LEFT = (
    0.01,
    1e-4,
)  # N·Var that exact gradients leave to an average: where it cannot be measured, and at least
LONGEST = 12.0  # powers of ten of gradients, where an error is asked for
BETTER = (0.95, 0.8)  # RMSE of a later family against that of an earlier one, to be preferred; where trials may mislead
REMEDY = "Check the result against NUTS, which adapts its step size to the curvature, or write the model with less dependence."


def tune(
    target_or_plan: Target | Plan,
    *,
    observables: Mapping[str, Any] | None = None,
    gradients: float | None = None,
    error: float | None = None,
    seconds: float | None = None,
    oracle: Oracle | None = None,
    num_chains: int | None = None,
    pilot: Pilot | None = None,
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
    - `oracle`: where gradients come from (`gyromc.oracles`); left out: all rows or mini-batches, whichever is cheaper.
    - `num_chains`: of the plan; left out: as many as burn-in allows, up to 64.
    - `pilot`: a function that returns draws of the law, in rows of θ; it is called where the modes do not show where the law is.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`; the search for
      modes begins there.
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
    num_chains = None if num_chains is None else whole(num_chains, "num_chains", least=1)
    with metered() as meter, messages.catch_warnings():
        messages.simplefilter("ignore", GyromcWarning)  # of trials; what matters is in the account
        base = _base(target_or_plan, observables, seed, start)
        if base.dim > MOST_DENSE:
            return _many(base, target_or_plan, budget, seed, oracle, num_chains)
        tuning = _Tuning.of(base, budget, seed, oracle, num_chains, pilot, say or (lambda line: None), meter)
        return tuning.finished(target_or_plan if isinstance(target_or_plan, Plan) else None, meter)


@dataclasses.dataclass(frozen=True, eq=False)
class _Tuning:
    """Everything that was found before the choice is made into a plan."""

    around: Circumstances
    budget: Budget
    read: list[Reading]
    ladders: list[Ladder]
    untried: list[str]
    num_chains: int | None

    @classmethod
    def of(
        cls,
        base: Plan,
        budget: Budget,
        seed: int,
        oracle: Oracle | None,
        num_chains: int | None,
        pilot: Pilot | None,
        say: Callable[[str], object],
        meter: Meter,
    ) -> "_Tuning":
        points = int(np.clip(POINTS_SHARE * budget.guess, max(POINTS[0], 10 * min(base.dim, 60)), POINTS[1]))
        found = survey(base.model, points, seed, pilot)
        base.model.remember(found.fit)
        say(f"survey: {found.fit.source}{'' if found.trusted else ', which may not represent the posterior'}")
        around = _circumstances(base, found, seed)
        weighed = readings(base, found, around.left) if oracle is None else [given_reading(base, found, oracle)]
        least = LEAST_CHAINS[budget.error is not None]
        chains = int(np.clip(CHAINS_SHARE * budget.guess / weighed[0].cost, least, MOST_CHAINS))
        read = base.replace(oracle=weighed[0].oracle)
        around = dataclasses.replace(
            around, base=read, noise=weighed[0].noise, chains=chains, sure=budget.error is not None
        )
        say(f"gradients: from {weighed[0].name}")
        moments = GradientMoments(found.second, around.noise, "a survey of the posterior")
        base.model.remember(found.fit, around.base.oracle, moments)
        steps = budget.steps(weighed[0].cost)
        kept: list[Ladder] = []
        untried: list[str] = []
        last = 0.0  # gradients that the trials of a family cost
        for family in FAMILIES if not _exact(around) else FAMILIES[:1]:
            before = meter.gradients
            if kept and budget.gradients is not None and before + last > SHARE * budget.gradients:
                untried.append(family.name)
                continue
            if family.turn and (base.dim == 1 or (budget.guess < FEW and _independent(kept, steps))):
                continue
            ladder = climb(family, around, steps, min((one.rmse(steps) for one in kept), default=math.inf))
            kept += [] if ladder is None else [ladder]
            last = meter.gradients - before
            say(f"trials of {family.name}: {'all diverged' if ladder is None else _outcome(ladder, steps)}")
        if not kept:
            euler = climb(EULER, around, steps)
            kept += [] if euler is None else [euler]
        require(
            bool(kept),
            "No plan can be recommended: every sampler diverged at every step size that was tried. "
            f"{' '.join(found.doubts)} {REMEDY}".strip(),
        )
        return cls(around, budget, weighed, kept, untried, num_chains)

    def chosen(self, steps: float) -> Ladder:
        """The ladder with the smallest error, an earlier family where a later one is hardly better."""
        best, better = self.ladders[0], BETTER[bool(self.around.survey.doubts)]
        for ladder in self.ladders[1:]:
            if ladder.rmse(steps) < better * best.rmse(steps):
                best = ladder
        return best

    def finished(self, given: Plan | None, meter) -> Tuned:
        """The choice as a plan, with its account."""
        cost, budget = self.read[0].cost, self.budget
        if budget.error is not None:
            steps = self._steps_for(budget.error)
        else:
            steps = budget.steps(cost)
        ladder = self.chosen(steps)
        plan = sized(ladder, self.around, ladder.best(steps), steps, self.num_chains)
        rate = steps_per_second(plan) if budget.seconds is not None or budget.error is not None else None
        if budget.seconds is not None and rate is not None:
            steps = max(rate * budget.seconds, 100.0)
            ladder = self.chosen(steps)
            plan = sized(ladder, self.around, ladder.best(steps), steps, self.num_chains)
        return self._account(ladder, plan, given, meter.gradients, rate)

    def _steps_for(self, error: float) -> float:
        """How many gradients the error needs for every observable: the fewest over families, each at its best step size.

        Where the bias is not known well enough for any number of them: those that make the Monte Carlo error as small.
        """

        def reached(ladder: Ladder, steps: float, biased: bool) -> bool:
            eta = ladder.best(steps)
            squared = ladder.squared_error(eta, steps) - (0.0 if biased else ladder.squared_bias(eta))
            return float(np.max(squared)) <= error**2

        able = [ladder for ladder in self.ladders if reached(ladder, 10.0**LONGEST, True)]
        needed = []
        for ladder in able or self.ladders:
            low, high = 0.0, LONGEST
            while high - low > 0.02:
                middle = (low + high) / 2
                low, high = (low, middle) if reached(ladder, 10.0**middle, bool(able)) else (middle, high)
            needed.append(10.0**high)
        return min(needed)

    def _account(self, ladder: Ladder, plan: Plan, given: Plan | None, spent: float, rate: float | None) -> Tuned:
        eta, steps, spread = plan.eta, plan.num_chains * plan.num_steps, self.around.spread
        squared = ladder.squared_bias(eta)
        chance = ladder.per_gradient(eta) / steps + ladder.boundary(eta, steps, plan.num_chains)
        unknown = ladder.bias_error(eta)
        known = np.sqrt(np.maximum(squared - unknown**2, 0.0) if ladder.sure else squared)
        columns = zip(plan.observables, spread, np.sqrt(squared + chance), known, np.sqrt(chance), unknown, strict=True)
        rows = {name: _expected(float(sd), *map(float, numbers)) for name, sd, *numbers in columns}
        own = math.sqrt(float(np.mean(squared + chance)))
        tried, gains = self._compared(ladder, steps, own, given)
        seconds = None if rate is None else plan.num_chains * (plan.num_steps + plan.burn_in) / rate
        doubts = self._doubts(plan, rows)
        by_theory = merits(np.linalg.eigvalsh(self.around.survey.fit.precision))
        total, reason = plan.gradients * self.read[0].cost, self._reason(ladder, plan)
        return Tuned(plan, rows, tuple(tried), gains, total, spent, seconds, reason, doubts, by_theory)

    def _compared(
        self, ladder: Ladder, steps: float, own: float, given: Plan | None
    ) -> tuple[list[Tried], dict[str, float]]:
        """What was tried, and how many times more gradients others need for the error `own`."""
        observables, fit = self.around.base.observables.values(), self.around.survey.fit
        tried = [_line(one, steps, "chosen" if one is ladder else "") for one in self.ladders]
        total = steps * self.read[0].cost
        plain, at = plain_error(fit, total, quadratic=any(not getattr(h, "is_linear", False) for h in observables))
        draws = 1 / (plain**2 * total)
        tried.append(Tried("plain SGLD, on a Gaussian", (), at, plain, math.nan, draws, "for comparison"))
        reversible = min((one.rmse(steps) for one in self.ladders if not one.family.turn), default=math.nan)
        gains = {"plain SGLD": (plain / own) ** 2, "reversible": (reversible / ladder.rmse(steps)) ** 2}
        if given is not None:
            same = list(given.observables) == list(self.around.base.observables)
            theirs = total / cost_of_a_gradient(given)
            untuned = plan_error(given, fit, self.around.spread, theirs) if same else math.nan
            gains["untuned plan"] = (untuned / own) ** 2
        return tried, gains

    def _doubts(self, plan: Plan, rows: dict[str, Expected]) -> list[str]:
        """What could not be known, and what would help."""
        found, error = self.around.survey, self.budget.error
        doubts = [*found.doubts]
        if not found.trusted and plan.burn_in < needed_burn_in(found, plan.eta):
            doubts.append(
                f"The budget is too small: chains last {plan.num_steps * plan.eta:.2g} relaxation times after a burn-in of "
                f"{plan.burn_in * plan.eta:.2g}, and may still be near their starts."
            )
        if doubts:
            doubts.append(REMEDY)
        if heavy := heavy_tailed(plan, found.theta):
            doubts.append(f"{', '.join(heavy)}: {HEAVY}")
        biases = [row.largest_bias / row.sd for row in rows.values() if row.sd > 0]
        if error is not None and max(biases, default=0.0) > error:
            doubts.append(
                f"{SHORTFALL} ({error:g}): short trials know the bias to {max(biases):.2g} posterior standard deviations only. "
                "`gyromc.expect` measures it."
            )
        return doubts

    def _reason(self, ladder: Ladder, plan: Plan) -> str:
        read = self.read[0]
        rows = (
            ""
            if len(self.read) == 1
            else f" ({', '.join(f'{r.name}: {r.merit:.3g}' for r in self.read)} rows per draw)"
        )
        return (
            f"{ladder.family.name}, whitened by {self.around.survey.fit.source}; gradients from {read.name}{rows}; step size "
            f"{plan.eta:.3g}, {plan.num_chains} chains × {plan.num_steps} steps after {plan.burn_in} of burn-in, with the "
            "martingale control variate."
            + (f" Not tried, because the budget is small: {'; '.join(self.untried)}." if self.untried else "")
        )


def _many(
    base: Plan, given: Target | Plan, budget: Budget, seed: int, oracle: Oracle | None, num_chains: int | None
) -> Tuned:
    """More parameters than matrices allow."""
    require(
        budget.gradients is not None,
        f"With more than {MOST_DENSE} parameters (here {base.dim:,}) errors are not predicted: pass `gradients`.",
    )
    used = oracle or (given.oracle if isinstance(given, Plan) else None)
    share = 1.0 if used is None else cost_of_a_gradient(base.replace(oracle=used))
    return tune_many(base, used, budget.guess, share, seed, num_chains, fixed=oracle is not None)


def _expected(sd: float, error: float, bias: float, chance: float, unknown: float) -> Expected:
    """From numbers in posterior standard deviations; a constant, whose spread is infinite here, has no error."""
    if not math.isfinite(sd):
        return Expected(0.0, 0.0, 0.0, 0.0)
    return Expected(sd * error, sd * bias, sd * chance, sd, sd * unknown)


def _exact(around: Circumstances) -> bool:
    """Whether every family is exact, so that one trial is enough: a Gaussian with exact gradients."""
    return around.base.flat_target.gaussian() is not None and not np.any(around.noise)


def _independent(ladders: list[Ladder], steps: float) -> bool:
    """Whether some sampler already makes more than an independent draw per gradient: a rotation then has little to gain."""
    return any(float(np.mean(ladder.per_gradient(ladder.best(steps)))) < 1.0 for ladder in ladders)


def _outcome(ladder: Ladder, steps: float) -> str:
    return f"step size {ladder.best(steps):.3g}, RMSE {ladder.rmse(steps):.2g} posterior standard deviations"


def _line(ladder: Ladder, steps: float, note: str) -> Tried:
    eta = ladder.best(steps)
    sizes = sorted((*ladder.given_up, *(rung.eta for rung in ladder.rungs)), reverse=True)
    failed = f"too large: {', '.join(f'{x:.2g}' for x in ladder.given_up)}" if ladder.given_up else ""
    draws = 1 / float(np.mean(ladder.per_gradient(eta)))
    bias = math.sqrt(float(np.mean(ladder.squared_bias(eta))))
    return Tried(
        ladder.family.name, tuple(sizes), eta, ladder.rmse(steps), bias, draws, "; ".join(filter(None, (note, failed)))
    )


def _base(given: Target | Plan, observables: Mapping[str, Any] | None, seed: int, start: Any = None) -> Plan:
    """A plan with the target, the observables and the start, from which all others are made."""
    if isinstance(given, Plan):
        require(start is None, "`start` goes with a target: a plan has its own. Pass `plan.replace(start=…)`.")
        return given.replace(
            observables=given.observables if observables is None else observables,
            dynamics=overdamped(given.dim), oracle=None, scheme="euler", step_size=0.1, num_steps=1, burn_in=0, num_chains=1,
            start=given.unravel(given.model.start), martingale=True, weighting="uniform", seed=seed,
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
        target=given, dynamics=overdamped(d), step_size=0.1, num_steps=1, num_chains=1, start=start, martingale=True,
        observables=_default_observables(d) if observables is None else observables, seed=seed,
    )  # fmt: skip


def _default_observables(d: int) -> dict[str, Any]:
    """The parameters and, where there are not too many, their squares."""
    chosen = {f"theta[{i}]": linear(row) for i, row in enumerate(np.eye(d)[:MOST_MEANS])}
    if d <= MOST_SQUARES:
        chosen |= {f"theta[{i}]²": square(row) for i, row in enumerate(np.eye(d))}
    return chosen


def _circumstances(base: Plan, found: Survey, seed: int) -> Circumstances:
    """Spreads and reference means of the observables, from the survey's points."""
    weights, d = found.weights, base.dim
    plain = observed(base.model, base.observables)(found.theta)
    bad = [name for name, column in zip(base.observables, plain.T, strict=True) if not np.all(np.isfinite(column))]
    require(
        not bad,
        f"Observable {', '.join(map(repr, bad[:3]))} is NaN or infinite at points of the posterior: define it everywhere.",
    )
    spread = np.sqrt(np.maximum(weights @ (plain - weights @ plain) ** 2, 0.0))
    spread = np.where(
        spread > 1e-12 * (1 + np.abs(weights @ plain)), spread, np.inf
    )  # a constant has no error to weigh
    values = reference_values(base, found.fit, found.theta, found.gradients)
    mean = weights @ values
    errors = np.sqrt(np.sum(weights[:, None] ** 2 * (values - mean) ** 2, axis=0)) / spread
    exact = base.flat_target.gaussian() is not None
    errors = np.maximum(errors, 1e-6) if found.trusted and (exact or _differs(found)) else np.full(len(mean), np.inf)
    left = np.mean(weights @ ((values - mean) / spread) ** 2) if _differs(found) else UNKNOWN
    return Circumstances(base, found, np.zeros((d, d)), spread, mean, errors, max(LEAST_LEFT, float(left)), seed)


def _differs(found: Survey) -> bool:
    """Whether the points' gradients are their own, and not those of the fit: then a mean over them says something new."""
    return not np.allclose(found.gradients, (found.theta - found.fit.mean) @ found.fit.precision)
