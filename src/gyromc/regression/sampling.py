"""From a posed regression to its posterior: the plan that theory chooses, run, repaired where it must be, and weighted.

A `Posed` regression and the names of its coefficients in; the run, the averages and weighted draws out. Directions in which no
row has an entry are not sampled: there the posterior is the prior, whose mean is known and whose draws are made at once. So a
regression with more columns than rows costs as much as one with as many.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gyromc import engines
from gyromc.errors import DivergenceError
from gyromc.observables import linear
from gyromc.regression.draws import WeightedDraws
from gyromc.regression.posing import Posed, posterior
from gyromc.regression.weights import bias_weights
from gyromc.results import Run
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.recipe import Choice, choose

__all__ = ["Sampled", "sample"]

MOST_LENGTHENING = 16.0
MOST_HALVINGS = 6
LEAST_WEIGHT = 0.5  # of the draws must be left by uneven weights
MOST_BIAS = 0.1  # posterior standard deviations that the first-order correction is trusted with


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from; `mean`, `std_error` and `bias` (subtracted from the mean) of each coefficient."""

    choice: Choice
    run: Run
    posterior: WeightedDraws
    mean: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray


def sample(posed: Posed, names: Sequence[str], relative_error: float, engine: str, progress, **options: Any) -> Sampled:
    """Sample the posterior of a regression."""
    whole, likelihood = posed.target, posed.target.likelihood
    prior_scale = float(whole.prior_precision) ** -0.5
    V = _spanned(whole.X)
    lift = np.kron(np.eye(likelihood.outputs), V)
    reduced = V.shape[0] != V.shape[1]
    seen = posterior(likelihood, whole.X @ V, whole.y, prior_scale) if reduced else whole
    full, offset = posed.units.coefficients(likelihood.basis)
    T = full @ lift if reduced else full
    observables = {f"{i}: {name}": linear(direction) for i, (name, direction) in enumerate(zip(names, T, strict=True))}
    choice = choose(seen, observables, relative_error, **options)
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(full**2, axis=1) - np.sum(T**2, axis=1))
    choice, run, weights = _run(seen, choice, T, unseen, engine, progress)
    phi = theta = np.asarray(run.draws, float)
    if reduced:
        prior = np.random.default_rng(choice.plan.seed).normal(0.0, prior_scale, (*phi.shape[:2], whole.dim))
        theta = (phi - prior @ lift) @ lift.T + prior
    bias = T @ (phi.mean(axis=(0, 1)) - np.mean(weights[..., None] * phi, axis=(0, 1)))
    return Sampled(
        choice=choice,
        run=run,
        posterior=WeightedDraws(likelihood, posed.units, theta, weights),
        mean=np.array(list(run.mean.values())) + offset - bias,
        std_error=np.array(list(run.std_error.values())),
        bias=bias,
    )


def _spanned(X: np.ndarray) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions in which rows have entries; the identity where these are all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    kept = values > 1e-13 * max(float(values[-1]), np.finfo(float).tiny)
    kept[-1] = True
    return np.eye(X.shape[1]) if kept.all() else vectors[:, kept]


def _run(
    target: WithLikelihood, choice: Choice, T: np.ndarray, unseen: np.ndarray, engine: str, progress
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
            choice = choice.halved("Chains diverged")
            continue
        weights = bias_weights(target, choice.shape, np.asarray(run.draws, float), choice.inflation)
        if last or run.partial or _mild(run.draws @ T.T, weights):
            return choice, run, weights
        choice = choice.halved("The step size's bias was large")
    raise AssertionError("the last attempt returns or raises")


def _mild(draws: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the weights are a small correction: most draws count, and means move little against the spreads."""
    bias, sd = np.mean((weights[..., None] - 1) * draws, axis=(0, 1)), draws.std(axis=(0, 1))
    return bool(1 / np.mean(weights**2) > LEAST_WEIGHT and np.all(np.abs(bias) <= MOST_BIAS * sd))


def _long_enough(choice: Choice, T: np.ndarray, unseen: np.ndarray, run: Run) -> Run:
    """The run, continued where its errors are much larger than asked for."""
    if run.draws.shape[1] == 0:
        raise KeyboardInterrupt("interrupted before the first draw")
    sd = np.sqrt((run.draws @ T.T).var(axis=(0, 1)) + unseen)
    error = np.array(list(run.std_error.values()))
    worst = float(np.max(error / np.where(sd > 0, sd, np.inf)))
    if worst <= 1.5 * choice.relative_error or run.partial:
        return run
    factor = min(MOST_LENGTHENING, (worst / choice.relative_error) ** 2)
    return run.continue_(math.ceil((factor - 1) * run.steps_done))
