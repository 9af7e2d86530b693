"""Chains of a regression: a tuned plan, made long enough for draws, run and repaired where it must be.

A target and the directions whose means are wanted in; the plan and its run out. `gyromc.tune` chooses the sampler for the means
and squares of the coefficients; the run then averages the coefficients.
"""

import dataclasses
import math

import numpy as np

from gyromc import engines
from gyromc.errors import DivergenceError
from gyromc.observables import linear, square
from gyromc.plan import Plan
from gyromc.results import Run
from gyromc.targets import Target
from gyromc.tuning.tune import tune
from gyromc.tuning.tuned import Expected, Tuned

__all__ = ["run_plan", "tuned_plan"]

MOST_LENGTHENING = 16.0
MOST_SQUARES = 30  # coefficients whose squares are tuned for too: these see the bias of posterior spreads
APART = 2.0  # relaxation times between two kept states
BURN_IN = 5.0  # relaxation times


def tuned_plan(
    target: Target, coefficients: dict[str, np.ndarray], error: float, chains: int, draws: int, seed: int
) -> Tuned:
    """A tuned plan for the coefficients, with so many chains and steps enough for so many draws."""
    means = {name: linear(direction) for name, direction in coefficients.items()}
    squares = {f"{name}²": square(direction) for name, direction in coefficients.items() if np.any(direction)}
    few = len(coefficients) <= MOST_SQUARES and target.gaussian() is None
    found = tune(target, observables=means | squares if few else means, error=error, seed=seed)
    plan, eta = found.plan, found.plan.eta
    before = plan.num_chains * plan.num_steps
    steps = max(math.ceil(before / chains), math.ceil(draws / chains) * math.ceil(APART / eta))
    longer = plan.replace(
        observables=means,
        num_chains=chains,
        num_steps=steps,
        burn_in=max(plan.burn_in, math.ceil(BURN_IN / eta)),
        start=np.resize(plan.start, (chains, plan.dim)),  # some chains begin alike and part in the burn-in
    ).knowing(plan.model)
    shrunk = math.sqrt(before / (chains * steps))
    rows = {name: _with_error(found[name], shrunk) for name in means}
    reason = (
        f"{found.reason} Lengthened to {chains} chains × {steps} steps after {longer.burn_in} of burn-in, for {draws} "
        "nearly independent draws."
    )
    changes = {"gradients": found.gradients / plan.gradients * longer.gradients, "seconds": None, "reason": reason}
    reached = all(row.expected <= 1.2 * error * row.sd for row in rows.values())
    kept = [text for text in found.warnings if not (reached and text.startswith("The error"))]  # of the shorter plan
    return dataclasses.replace(found, plan=longer, rows=rows, warnings=kept, **changes)


def _with_error(row: Expected, factor: float) -> Expected:
    """What to expect with the Monte Carlo error multiplied by a factor; of a constant, no error at all."""
    if not math.isfinite(row.sd):
        return Expected(0.0, 0.0, 0.0, 0.0)
    chance = factor * row.std_error
    return dataclasses.replace(row, std_error=chance, expected=math.hypot(row.bias, chance))


def run_plan(tuned: Tuned, T: np.ndarray, unseen: np.ndarray, error: float, engine: str, progress) -> tuple[Tuned, Run]:
    """The run: once again with half the step size where chains diverge, longer where errors are large.

    `T` holds the coefficients' directions, `unseen` the variance that directions without data add to each.
    """
    try:
        run = engines.run(tuned.plan, engine, thin=_thin(tuned.plan), progress=progress)
    except DivergenceError:
        tuned = _halved(tuned)
        run = engines.run(tuned.plan, engine, thin=_thin(tuned.plan), progress=progress)
    return tuned, _long_enough(T, unseen, error, run)


def _thin(plan: Plan) -> int:
    return math.ceil(APART / plan.eta)


def _halved(tuned: Tuned) -> Tuned:
    """Half the step size and the same time, with the reason added."""
    plan, eta = tuned.plan, tuned.plan.eta / 2
    slower = plan.replace(step_size=eta, num_steps=2 * plan.num_steps, burn_in=2 * plan.burn_in)
    reason = f"{tuned.reason} Chains diverged; the step size was halved to {eta:.3g}."
    return dataclasses.replace(tuned, plan=slower, gradients=2 * tuned.gradients, reason=reason)


def _long_enough(T: np.ndarray, unseen: np.ndarray, wanted: float, run: Run) -> Run:
    """The run, continued where its errors are much larger than asked for."""
    if run.draws.shape[1] == 0:
        raise KeyboardInterrupt("interrupted before the first draw")
    sd = np.sqrt((run.draws @ T.T).var(axis=(0, 1)) + unseen)
    error = np.array(list(run.std_error.values()))
    worst = float(np.max(error / np.where(sd > 0, sd, np.inf)))
    if worst <= 1.5 * wanted or run.partial:
        return run
    factor = min(MOST_LENGTHENING, (worst / wanted) ** 2)
    return run.continue_(math.ceil((factor - 1) * run.steps_done))
