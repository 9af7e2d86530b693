"""A plan chosen by theory: dynamics, oracle, step size, burn-in and number of steps from a model's shape alone.

A `Model` and what is wanted of it in; a `Choice` out: the plan, the samplers that were weighed and the reasons in a sentence.
With N(m, K⁻¹) the Gaussian nearest to the posterior, coordinates x = K^{1/2}(θ - m) make it nearly standard normal, so that all
follows from one 1 × 1 or 2 × 2 block, whatever K is.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from gyromc.checks import one_of, require_memory, whole
from gyromc.model import Model
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.shape.gaussian import GaussianApproximation
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.batches import choose_oracle
from gyromc.tuning.blocks import REVERSIBLE, ROTATING, Block, merits
from gyromc.tuning.step_size import burn_in_steps, for_varying_curvature

__all__ = ["DYNAMICS", "Choice", "choose"]

DYNAMICS = {"reversible": REVERSIBLE, "rotating": ROTATING}
EXCESS = 0.05  # relative excess of the variance that the step size may cause, before it is corrected for
MOST_WEIGHT_VARIANCE = 0.1  # of the weights that take the excess off again
MOST_WORK = 1e8  # rows × columns × points: beyond, there are so many rows that the posterior is Gaussian
POINTS = 256
ILL_CONDITIONED = 1e5  # condition number of K from which on chains run in float64


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """A plan and why it is that one.

    **Attributes:**

    - `plan`: what to run.
    - `shape`: the Gaussian nearest to the posterior; D is its covariance.
    - `block`: the dynamics in whitened coordinates.
    - `inflation`: the variance that the chain has where the posterior has 1, on a Gaussian; what the draws' weights take off.
    - `candidates`: gradients needed at equal error, relative to D = K⁻¹, by sampler.
    - `thin`: how many steps lie between two kept draws.
    - `relative_error`: the Monte Carlo error aimed at, in posterior standard deviations.
    - `reason`: all of it as a sentence.
    """

    plan: Plan
    shape: GaussianApproximation
    block: Block
    inflation: float
    candidates: Mapping[str, float]
    thin: int
    relative_error: float
    reason: str

    def halved(self, why: str) -> "Choice":
        """Half the step size and the same time, with the reason added."""
        plan, eta = self.plan, self.plan.eta / 2
        return dataclasses.replace(
            self,
            plan=plan.replace(step_size=eta, num_steps=2 * plan.num_steps, burn_in=2 * plan.burn_in),
            thin=2 * self.thin,
            inflation=self.block.inflation(eta),
            reason=f"{self.reason} {why}; the step size was halved to {eta:.3g}.",
        )


def choose(
    target: WithLikelihood,
    observables: Mapping[str, Observable],
    relative_error: float,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
    dynamics: str = "reversible",
) -> Choice:
    """A plan for a regression whose Monte Carlo errors come out at `relative_error` posterior standard deviations."""
    dynamics = one_of(dynamics, DYNAMICS, "dynamics", " The first is the safe one.")
    num_draws = whole(num_draws, "num_draws", least=1)
    block, model = DYNAMICS[dynamics], Model(target)
    require_memory(
        8 * num_chains * model.dim, f"{num_chains:,} chains with {model.dim:,} parameters each", "Take fewer chains."
    )
    shape = model.nearest_gaussian(seed, refine=POINTS * target.X.size * target.likelihood.outputs**2 <= MOST_WORK)
    wanted = min(block.step_size(EXCESS), math.sqrt(8 * MOST_WEIGHT_VARIANCE / model.dim) / block.G[0, 0])
    eta = for_varying_curvature(wanted, shape.steepest)
    oracle, noise = choose_oracle(target, model.mode, shape, eta, EXCESS, seed)
    num_steps = math.ceil(block.linear / (eta * num_chains * relative_error**2))  # E6: Var ≈ V / (Nη)
    plan = Plan(
        target=target,
        dynamics=block.dynamics(shape.root),
        oracle=oracle,
        observables=observables,
        step_size=eta,
        num_steps=num_steps,
        burn_in=burn_in_steps(block.rate, eta, relaxations=5),
        num_chains=num_chains,
        seed=seed,
        start=shape.draws(num_chains, seed),
        dtype="float64" if np.linalg.cond(shape.precision) > ILL_CONDITIONED else "float32",
    )
    inflation = block.inflation(eta, noise)
    candidates = merits(np.linalg.eigvalsh(shape.precision))
    thin = max(1, num_steps * num_chains // num_draws)
    reason = _reason(plan, block, inflation, candidates, relative_error, eta < wanted)
    return Choice(plan, shape, block, inflation, candidates, thin, relative_error, reason)


def _reason(plan: Plan, block: Block, inflation: float, candidates, relative_error: float, limited: bool) -> str:
    plain = candidates["SGLD (D = I)"]
    size = getattr(plan.oracle, "size", None)
    source = "all rows" if size is None else f"mini-batches of {size} rows anchored at the mode"
    bound = (
        "kept that small because the curvature varies over the posterior"
        if limited
        else f"which widens posterior variances by {100 * (inflation - 1):.2g} % before the correction"
    )
    return (
        f"{block.name}: SGLD with D = I would need {plain:.3g} times the gradients at equal error. Gradients from {source}; "
        f"step size {plan.step_size:.3g}, {bound}. {plan.num_chains} chains × {plan.num_steps} steps after a burn-in of "
        f"{plan.burn_in}, so that Monte Carlo errors come out near {100 * relative_error:.2g} % of the posterior "
        "standard deviations."
    )
