"""The Monte Carlo error of a mean over chains: three ways to know it, chosen by what the run holds (E6, T3).

Receives averages per chain, averages over stretches of each chain, or kept draws; hands on a standard error with its degrees of
freedom, the name of the method and why it was taken.
"""

import dataclasses
import math

import numpy as np

from gyromc.estimation import statistics
from gyromc.estimation.statistics import Spread
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.corrections import oracle_covariances
from gyromc.prediction.poisson.plug_in import PlugIn, best_degree, plug_in
from gyromc.results import Run, flat_draws
from gyromc.shape.importance import Sample

METHODS = ("replicate chains", "lugsail batch means", "plug-in")
MANY_CHAINS = 20  # from here on the spread between chains is known well enough by itself
SHORT = 80  # relaxation times: shorter chains have no batches that are both long and many
CHANCE = 1e-3  # chains that disagree more than this probability allows are not mixed
MOST_DRAWS = 20_000
FLOOR_DRAWS = 200  # for the oracle's part of the error, which is small


@dataclasses.dataclass(frozen=True)
class MonteCarloError:
    """The standard error of the mean over chains, and where it comes from."""

    std_error: float
    dof: float
    method: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Material:
    """What one observable left behind, and what it says about mixing."""

    averages: np.ndarray  # per chain
    blocks: np.ndarray  # chains × blocks
    covered: float = 1.0  # the share of the run that whole blocks cover

    @property
    def enough_blocks(self) -> bool:
        """Whether batch means within chains can be formed."""
        return self.blocks.shape[1] >= statistics.FEWEST_BLOCKS

    @property
    def length(self) -> float:
        """How many relaxation times one chain lasts; infinite when the blocks show no correlation."""
        if not self.enough_blocks:
            return math.nan
        relaxation = statistics.relaxation_blocks(self.blocks)
        return self.blocks.shape[1] / relaxation if relaxation > 0 else math.inf


def choose(material: Material, has_draws: bool = False) -> tuple[str, str]:
    """The method to take and the reason, from the number of chains, their length and whether they agree.

    **Arguments:**

    - `material`: averages and blocks of one observable.
    - `has_draws`: whether the plug-in could be used.

    **Returns:** one of `METHODS`, and why.

    ```python
    import numpy as np
    from gyromc.estimation.errors import Material, choose
    blocks = np.random.default_rng(0).standard_normal((4, 96))
    assert choose(Material(blocks.mean(axis=1), blocks))[0] == "lugsail batch means"
    ```
    """
    chains = len(material.averages)
    if chains >= MANY_CHAINS:
        return "replicate chains", f"{chains} independent chains"
    if not material.enough_blocks:
        if chains > 1:
            return "replicate chains", "too few steps for batch means within chains"
        return ("plug-in", "too few steps for batch means") if has_draws else ("lugsail batch means", "one chain")
    length = material.length
    if length < SHORT and (has_draws or chains > 1):
        why = f"a chain lasts only {length:.0f} relaxation times, too short for batch means"
        return "plug-in" if has_draws else "replicate chains", why
    if chains == 1:
        return "lugsail batch means", "one chain"
    if statistics.disagreement(material.blocks) < CHANCE:
        return "replicate chains", "the chains disagree by more than the fluctuations within them explain"
    return "lugsail batch means", f"{chains} chains are few, each is long, and they agree"


def monte_carlo_error(material: Material, method: str, reason: str = "asked for") -> MonteCarloError:
    """The standard error of the mean over chains by batch means within them or by the spread between them.

    **Arguments:**

    - `material`: averages and blocks of one observable.
    - `method`: `"replicate chains"` or `"lugsail batch means"`; `reason`: why that one.

    **Returns:** a `MonteCarloError`; NaN with 0 degrees of freedom where the method has nothing to go on.
    """
    if method == "replicate chains":
        found = statistics.replicate_variance(material.averages)
    else:
        found = statistics.lugsail_variance(material.blocks)
        found = dataclasses.replace(found, variance=found.variance * material.covered)
    return of_mean(found, len(material.averages), method, reason)


def plug_in_error(run: Run, name: str, material: Material, reason: str = "asked for") -> MonteCarloError:
    """The standard error from V of T3, estimated on the run's own draws: Var = V/(Nη) + s/N for one chain.

    **Arguments:**

    - `run`: with kept draws and a constant step size.
    - `name`: which observable.
    - `material`: the same observable's averages and blocks, which say what the draws are worth.
    - `reason`: why this method.
    """
    plan, rows = run.plan, flat_draws(run)
    chains = int(np.sum(~run.diverged))
    if len(rows) > MOST_DRAWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_DRAWS).astype(int)]
    values = plan.model.values(plan.observables[name], rows)
    worth = min(len(rows), _worth(material, float(np.var(values))))
    sample = Sample(rows, np.full(len(rows), 1 / len(rows)), worth, f"{len(rows)} kept draws")
    D, Q = plan.dynamics.D, plan.dynamics.Q
    found = plug_in(sample, values, D, Q, max(2, best_degree(len(D), worth)))  # a linear φ sees nothing of an even h
    floor = _floor(plan, rows, found)
    steps, eta = run.steps_done, plan.eta
    variance = max(found.variance, 0.0) / (steps * eta) + floor / steps  # T3, and s of T1
    share = found.sampling_error / found.variance if found.variance > 0 else math.inf
    dof = max(1.0, 2 / share**2) if share > 0 else math.inf  # of a variance known so well
    return of_mean(
        Spread(variance, dof), chains, "plug-in", f"{reason}; degree {found.degree}, V ± {100 * share:.2g} %"
    )


def _floor(plan: Plan, rows: np.ndarray, found: PlugIn) -> float:
    """s of T1: what the oracle's noise adds to N·Var, averaged over some of the draws."""
    if isinstance(plan.oracle, Exact):
        return 0.0
    theta = rows[np.linspace(0, len(rows) - 1, min(FLOOR_DRAWS, len(rows))).astype(int)]
    r = np.random.default_rng(0).standard_normal(theta.shape) if plan.augmented else np.zeros((len(theta), 0))
    slope = found.poisson.gradients(np.concatenate([theta, r], axis=1)) @ (plan.dynamics.D + plan.dynamics.Q)
    slope = slope[:, : plan.dim]
    return float(np.mean(np.einsum("si,sij,sj->s", slope, oracle_covariances(plan, theta), slope)))  # T1: s


def _worth(material: Material, spread: float) -> float:
    """How many independent draws a run's draws are worth at most: by their relaxation time, and by the error of their mean."""
    bounds = [math.inf]
    if material.enough_blocks:
        bounds.append(len(material.averages) * material.length / 2)
        variance = statistics.lugsail_variance(material.blocks).variance / len(material.averages)
        bounds.append(spread / variance if variance > 0 else math.inf)
    return min(bounds)


def of_mean(found: Spread, chains: int, method: str, reason: str) -> MonteCarloError:
    """The error of the mean over chains from the variance of one chain's average."""
    if not chains or not found.variance >= 0:
        return MonteCarloError(math.nan, 0, method, reason)
    return MonteCarloError(math.sqrt(found.variance / chains), found.dof, method, reason)
