"""The Monte Carlo error of a mean from V(h) of the Poisson equation (T3), solved on the run's own draws.

Input: a run with kept draws, and the averages of one observable. Output: a `MonteCarloError`.
"""

import math

import numpy as np

from gyromc.checks import require
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.corrections import oracle_covariances
from gyromc.prediction.poisson.plug_in import PlugIn, best_degree, plug_in
from gyromc.results import Average, Run, flat_draws
from gyromc.shape.importance import Sample
from gyromc.statistics.errors import ChainAverages, ErrorMethod, MonteCarloError, of_mean
from gyromc.statistics.variances import Spread, lugsail_variance

MOST_DRAWS = 20_000
FLOOR_DRAWS = 200  # for the oracle's part of the error, which is small


def plug_in_error(run: Run, average: Average) -> MonteCarloError:
    """The standard error from V, estimated on the run's own draws: Var = V/(Nη) + s/N for one chain."""
    require(run.draws is not None, "The plug-in needs draws: `gyromc.run(plan, thin=10)` keeps every tenth.")
    require(not run.plan.scheduled, "The plug-in needs a constant step size, and this run's is a schedule.")
    plan, rows = run.plan, flat_draws(run.draws, ~run.diverged)
    if len(rows) > MOST_DRAWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_DRAWS).astype(int)]
    values = plan.model.values(plan.observables[average.name], rows)
    worth = min(len(rows), _worth(average, float(np.var(values))))
    sample = Sample(rows, np.full(len(rows), 1 / len(rows)), worth, f"{len(rows)} kept draws")
    D, Q = plan.dynamics.D, plan.dynamics.Q
    found = plug_in(sample, values, D, Q, max(2, best_degree(len(D), worth)))  # a linear φ sees nothing of an even h
    steps, eta = run.steps_done, plan.eta
    variance = max(found.variance, 0.0) / (steps * eta) + _floor(plan, rows, found) / steps  # T3, and s of T1
    share = found.sampling_error / found.variance if found.variance > 0 else math.inf
    dof = max(1.0, 2 / share**2) if share > 0 else math.inf  # of a variance known so well
    reason = f"asked for; degree {found.degree}, V ± {100 * share:.2g} %"
    return of_mean(Spread(variance, dof), len(average.good), ErrorMethod.PLUG_IN, reason)


def _floor(plan: Plan, rows: np.ndarray, found: PlugIn) -> float:
    """What the oracle's noise adds to N·Var, averaged over some of the draws."""
    if isinstance(plan.oracle, Exact):
        return 0.0
    theta = rows[np.linspace(0, len(rows) - 1, min(FLOOR_DRAWS, len(rows))).astype(int)]
    r = np.random.default_rng(0).standard_normal(theta.shape) if plan.augmented else np.zeros((len(theta), 0))
    slope = found.poisson.gradients(np.concatenate([theta, r], axis=1)) @ (plan.dynamics.D + plan.dynamics.Q)
    slope = slope[:, : plan.dim]
    return float(np.mean(np.einsum("si,sij,sj->s", slope, oracle_covariances(plan, theta), slope)))  # T1: s


def _worth(averages: ChainAverages, spread: float) -> float:
    """How many independent draws a run's draws are worth at most: by their relaxation time, and by the error of their mean."""
    if not averages.enough_blocks:
        return math.inf
    chains = len(averages.good)
    variance = lugsail_variance(averages.blocks).variance / chains
    return min(chains * averages.length / 2, spread / variance if variance > 0 else math.inf)
