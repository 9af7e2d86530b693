"""A plan chosen by theory: dynamics, oracle, step size, burn-in and number of steps from a model's shape alone.

A `Model` and what is wanted of it in; a `Choice` out: the plan, the samplers that were weighed and the reasons in a sentence.
With N(m, K⁻¹) the Gaussian nearest to the posterior, coordinates x = K^{1/2}(θ - m) make it nearly standard normal, so that all
follows from one 1 × 1 or 2 × 2 block, whatever K is.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import one_of, require_memory, whole
from gyromc.errors import GyromcWarning
from gyromc.flat import identity
from gyromc.model import Model
from gyromc.observables import Observable
from gyromc.oracles import Exact, Oracle
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import augment
from gyromc.shape.gaussian import GaussianApproximation
from gyromc.shape.laplace import symmetric_inverse_root
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.batches import choose_oracle
from gyromc.tuning.blocks import REVERSIBLE, ROTATING, Block, merits
from gyromc.tuning.step_size import burn_in_steps, plan_step_size

__all__ = ["DYNAMICS", "Choice", "choose", "preconditioned_plan"]

DYNAMICS = {"reversible": REVERSIBLE, "rotating": ROTATING}
EXCESS = 0.05  # relative excess of the variance that the step size may cause, before it is corrected for
MOST_WEIGHT_VARIANCE = 0.1  # of the weights that take the excess off again
MILD, STEEPEST = (
    1.2,
    30.0,
)  # how much the curvature may vary before steps become smaller, and how much smaller they start
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
    eta = wanted / max(1.0, min(shape.steepest / MILD, STEEPEST))
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


def preconditioned_plan(
    model: Model,
    observables: Mapping[str, Any],
    *,
    oracle: Oracle | None = None,
    budget: float = 0.02,
    num_steps: int = 4000,
    num_chains: int = 32,
    **fields: Any,
) -> Plan:
    """A plan for any model with a mode: HFHR in coordinates where the Laplace approximation is round, started at the mode.

    **Arguments:**

    - `model`: what to sample.
    - `observables`: what to average.
    - `oracle`: where gradients come from; exact when left out.
    - `budget`: the relative error of posterior variances that the step size may cause, on a Gaussian of the same curvature.
    - `num_steps`, `num_chains`: how long, and how many independent chains.
    - `fields`: any other field of `gm.Plan`, in place of what would be chosen.

    **Returns:** a `Plan`.

    ```python
    import gyromc as gm
    from gyromc.tuning.recipe import preconditioned_plan
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 1], prior_scale=2.0))
    assert preconditioned_plan(model, {"slope": gm.observables.linear([1.0])}).dynamics.name == "SGHFHRMC, preconditioned"
    ```
    """
    if model.modes.several and "start" not in fields:
        fields["start"] = _over_modes(model, num_chains, int(fields.get("seed", 0)))
    chosen: dict[str, Any] = {
        "dynamics": ROTATING.dynamics(symmetric_inverse_root(model.precision)),
        "oracle": oracle or Exact(),
        "start": model.unravel(model.mode),
        **fields,
    }
    step_size = chosen.pop("step_size", None)
    plan = Plan(
        target=model.target,
        observables=observables,
        step_size=1e-3 if step_size is None else step_size,
        num_steps=num_steps,
        num_chains=num_chains,
        **chosen,
    )
    if step_size is None:
        plan = plan.replace(step_size=plan_step_size(plan, budget))
    if "burn_in" not in fields and not plan.scheduled:
        A = (plan.dynamics.D + plan.dynamics.Q) @ augment(model.precision, plan.augmented)
        plan = plan.replace(burn_in=burn_in_steps(float(np.linalg.eigvals(A).real.min()), plan.eta, relaxations=10))
    return plan


def _over_modes(model: Model, num_chains: int, seed: int) -> Any:
    """Starts spread over several modes by their mass, and a warning: no chain can be trusted to move between them."""
    shares = ", ".join(f"{100 * share:.2g} %" for share in model.modes.shares[:5])
    warnings.warn(
        f"The posterior has {len(model.modes.found)} modes or more (masses about {shares}, each taken as Gaussian). Chains start "
        "at all of them, in these proportions, and may never move between them: the weights of the modes then come from this "
        "approximation, not from the sampling. Compare chains by `run.r_hat`; remove the symmetry by an ordering or a sign "
        "constraint, or use a sampler made for several modes (parallel tempering).",
        GyromcWarning,
        stacklevel=4,
    )
    points = model.modes.starts(num_chains, seed)
    if model.target.dim is not None or model.unravel is identity:
        return points
    rows = jnp.asarray(points)
    return lambda key: model.unravel(rows[jax.random.randint(key, (), 0, len(points))])


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
