"""From a problem to its posterior: the plan that theory chooses, run, repaired where it must be, and weighted (E3, T4).

Receives a `Problem` and what is to be averaged; hands on the run, the averages and a `Posterior`. Directions in which no row
has an entry are not sampled: there the posterior is the prior, whose mean is known and whose draws are made at once. So a
problem with more columns than rows costs as much as one with as many.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gyromc import engines
from gyromc.errors import DivergenceError
from gyromc.observables import linear
from gyromc.regression.posterior import Posterior, bias_weights
from gyromc.regression.problem import Problem
from gyromc.regression.units import Units
from gyromc.results import Run
from gyromc.tuning.choice import Choice, choose

__all__ = ["Sampled", "sample"]

MOST_LENGTHENING = 16.0
MOST_HALVINGS = 6
LEAST_WEIGHT = 0.5  # of the draws must be left by uneven weights
MOST_BIAS = 0.1  # posterior standard deviations that the first-order correction is trusted with


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from; `mean`, `mc_error` and `bias` (taken off the mean) of each coefficient."""

    choice: Choice
    run: Run
    posterior: Posterior
    mean: np.ndarray
    mc_error: np.ndarray
    bias: np.ndarray


def sample(
    problem: Problem, units: Units, names: Sequence[str], relative_error: float, engine: str, progress, **options
) -> Sampled:
    """Sample the posterior of a problem.

    **Arguments:**

    - `problem`, `units`: what to sample, and how its coordinates belong to the user's.
    - `names`: of the coefficients, whose posterior means are averaged over every step.
    - `relative_error`: the Monte Carlo error wanted, in posterior standard deviations.
    - `engine`, `progress`: as for `gyromc.run`; further options as for `choice.choose`.

    **Returns:** a `Sampled` value.
    """
    V = _spanned(problem.X)
    whole = np.kron(np.eye(problem.family.outputs), V)
    seen = problem if V.shape[0] == V.shape[1] else dataclasses.replace(problem, X=problem.X @ V)
    full, offset = units.coefficients(problem.family.basis)
    T = full if seen is problem else full @ whole
    observables = {f"{i}: {name}": linear(direction) for i, (name, direction) in enumerate(zip(names, T, strict=True))}
    choice = choose(seen, observables, relative_error, **options)
    unseen = problem.prior_scale**2 * np.maximum(0.0, np.sum(full**2, axis=1) - np.sum(T**2, axis=1))
    choice, run, weights = _run(seen, choice, T, unseen, engine, progress)
    phi = np.asarray(run.draws, float)
    theta = phi
    if seen is not problem:
        prior = np.random.default_rng(choice.plan.seed).normal(0.0, problem.prior_scale, (*phi.shape[:2], problem.dim))
        theta = (phi - prior @ whole) @ whole.T + prior
    bias = T @ (phi.mean(axis=(0, 1)) - np.mean(weights[..., None] * phi, axis=(0, 1)))
    return Sampled(
        choice=choice,
        run=run,
        posterior=Posterior(problem.family, units, theta, weights),
        mean=np.array(list(run.mean.values())) + offset - bias,
        mc_error=np.array(list(run.std_error.values())),
        bias=bias,
    )


def _spanned(X: np.ndarray) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions in which rows have entries; the identity where these are all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    kept = values > 1e-13 * max(float(values[-1]), np.finfo(float).tiny)
    kept[-1] = True
    return np.eye(X.shape[1]) if kept.all() else vectors[:, kept]


def _run(
    problem: Problem, choice: Choice, T: np.ndarray, unseen: np.ndarray, engine: str, progress
) -> tuple[Choice, Run, np.ndarray]:
    """The run and its draws' weights: smaller steps where chains diverge or weights are uneven, more where errors are large.

    `T` holds the coefficients' directions, `unseen` the variance that directions without data add to each.
    """
    for attempt in range(MOST_HALVINGS + 1):
        last = attempt == MOST_HALVINGS
        try:
            run = _long_enough(choice, T, unseen, engines.run(choice.plan, engine, thin=choice.thin, progress=progress))
        except DivergenceError:
            if last:
                raise
            choice = _halved(choice, "Chains diverged")
            continue
        weights = bias_weights(problem, choice.shape, np.asarray(run.draws, float), choice.inflation)
        if last or run.partial or _mild(run.draws @ T.T, weights):
            return choice, run, weights
        choice = _halved(choice, "The step size's bias was large")
    raise AssertionError("the last attempt returns or raises")


def _mild(draws: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the correction is one: weights that leave most draws, and shifts of means that are small against the spreads."""
    bias, sd = np.mean((weights[..., None] - 1) * draws, axis=(0, 1)), draws.std(axis=(0, 1))
    return bool(1 / np.mean(weights**2) > LEAST_WEIGHT and np.all(np.abs(bias) <= MOST_BIAS * sd))


def _long_enough(choice: Choice, T: np.ndarray, unseen: np.ndarray, run: Run) -> Run:
    """The run, gone on with where its errors are much larger than asked for."""
    if run.draws.shape[1] == 0:
        raise KeyboardInterrupt("interrupted before the first draw")
    sd = np.sqrt((run.draws @ T.T).var(axis=(0, 1)) + unseen)
    error = np.array(list(run.std_error.values()))
    worst = float(np.max(error / np.where(sd > 0, sd, np.inf)))
    if worst <= 1.5 * choice.relative_error or run.partial:
        return run
    factor = min(MOST_LENGTHENING, (worst / choice.relative_error) ** 2)
    return run.continue_(math.ceil((factor - 1) * run.steps_done))


def _halved(choice: Choice, why: str) -> Choice:
    """Half the step size, and the same time."""
    plan = choice.plan
    eta = plan.eta / 2
    return dataclasses.replace(
        choice,
        plan=plan.replace(step_size=eta, num_steps=2 * plan.num_steps, burn_in=2 * plan.burn_in),
        thin=2 * choice.thin,
        inflation=choice.block.inflation(eta),
        reason=f"{choice.reason} {why}; the step size was halved to {eta:.3g}.",
    )
