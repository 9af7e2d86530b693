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
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning
from gyromc.flat import identity
from gyromc.model import Model
from gyromc.observables import Observable
from gyromc.oracles import Exact, Oracle
from gyromc.plan import Plan
from gyromc.shape.gaussian import GaussianApproximation
from gyromc.shape.laplace import symmetric_inverse_root
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.batches import choose_oracle
from gyromc.tuning.blocks import REVERSIBLE, ROTATING, Block, merits
from gyromc.tuning.outline import Outline, outline
from gyromc.tuning.step_size import burn_in_steps, for_varying_curvature, plan_step_size

__all__ = ["DYNAMICS", "Choice", "choose", "preconditioned_plan"]

DYNAMICS = {"reversible": REVERSIBLE, "rotating": ROTATING}
EXCESS = 0.05  # relative excess of the variance that the step size may cause, before it is corrected for
MOST_WEIGHT_VARIANCE = 0.1  # of the weights that take the excess off again
MOST_WORK = 1e8  # rows × columns × points: beyond, there are so many rows that the posterior is Gaussian
POINTS = 256
ILL_CONDITIONED = 1e5  # condition number of K from which on chains run in float64
ERROR = 0.0125  # of posterior means, in posterior standard deviations
STEPS = 4000  # where the step size is a schedule


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


def preconditioned_plan(
    model: Model,
    observables: Mapping[str, Any],
    *,
    oracle: Oracle | None = None,
    budget: float = 0.02,
    error: float = ERROR,
    num_steps: int | None = None,
    num_chains: int = 32,
    shape: Outline | None = None,
    **fields: Any,
) -> Plan:
    """A plan for any model: HFHR in coordinates where its Gaussian approximation is round, from the mode or from a pilot run.

    **Arguments:**

    - `model`: what to sample.
    - `observables`: what to average.
    - `oracle`: where gradients come from; exact when left out.
    - `budget`: the relative error of posterior variances that the step size may cause, on a Gaussian of the same curvature.
    - `error`: the Monte Carlo error of posterior means to aim at, in posterior standard deviations, on such a Gaussian.
    - `num_steps`, `num_chains`: how long, and how many independent chains; left out: as many steps as `error` needs.
    - `shape`: the outline of the model; left out: `gyromc.tuning.outline.outline(model)`.
    - `fields`: any other field of `gm.Plan`, in place of what would be chosen.

    **Returns:** a `Plan`.

    ```python
    import gyromc as gm
    from gyromc.tuning.recipe import preconditioned_plan
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 1], prior_scale=2.0))
    assert preconditioned_plan(model, {"slope": gm.observables.linear([1.0])}).dynamics.name == "SGHFHRMC, preconditioned"
    ```
    """
    shape = outline(model) if shape is None else shape
    plan = Plan(
        target=model.target,
        observables=observables,
        num_steps=1 if num_steps is None else num_steps,
        num_chains=num_chains,
        **_whitened(model, shape, oracle, num_chains, fields),
    )
    if fields.get("step_size") is None:
        plan = plan.replace(step_size=plan_step_size(plan, budget, shape.center, shape.steepest))
    if plan.scheduled:
        return plan.replace(num_steps=STEPS) if num_steps is None else plan
    return _with_lengths(plan, shape.center.precision, error if num_steps is None else None, "burn_in" not in fields)


def _whitened(
    model: Model, shape: Outline, oracle: Oracle | None, num_chains: int, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of a plan with HFHR in coordinates where the outline is round; a step size that is not given is a small one."""
    precision = shape.center.precision
    chosen: dict[str, Any] = {
        "dynamics": ROTATING.dynamics(symmetric_inverse_root(precision)),
        "oracle": oracle or Exact(),
        "dtype": "float64" if np.linalg.cond(precision) > ILL_CONDITIONED else None,
        **fields,
    }
    if "start" not in fields:
        chosen["start"] = _start(model, shape, num_chains, int(fields.get("seed", 0)))
    if chosen.get("step_size") is None:
        chosen["step_size"] = 1e-3
    return chosen


def _with_lengths(plan: Plan, precision: np.ndarray, error: float | None, burn_in: bool) -> Plan:
    """The plan with the steps that `error` needs and, where wanted, a burn-in of ten relaxation times, on a Gaussian."""
    A = (plan.dynamics.D + plan.dynamics.Q) @ augment(precision, plan.augmented)
    if error is not None:
        steps = _linear(A, plan, precision) / (plan.eta * plan.num_chains * error**2)  # E6
        plan = plan.replace(num_steps=math.ceil(steps))
    if burn_in:
        plan = plan.replace(burn_in=burn_in_steps(float(np.linalg.eigvals(A).real.min()), plan.eta, relaxations=10))
    return plan


def _linear(A: np.ndarray, plan: Plan, precision: np.ndarray) -> float:
    """V of the worst coordinate of θ on a Gaussian of the given precision, per unit of its variance."""
    inverse = np.linalg.inv(A)
    V = 2 * np.diag(inverse @ plan.dynamics.D @ inverse.T)[: plan.dim]  # E8
    return float(np.max(V / np.diag(np.linalg.inv(precision))))


def _start(model: Model, shape: Outline, num_chains: int, seed: int) -> Any:
    """The mode; points spread over several modes, with a warning; or draws of the pilot run."""
    if shape.starts is not None:
        return _rows(
            model, np.random.default_rng(seed).permutation(shape.starts)[np.arange(num_chains) % len(shape.starts)]
        )
    return _over_modes(model, num_chains, seed) if model.modes.several else model.unravel(shape.center.mode)


def _rows(model: Model, points: np.ndarray) -> Any:
    """One start per chain, for a target over vectors; a function that draws one of them for a target over a pytree."""
    if model.target.dim is not None or model.unravel is identity:
        return points
    rows = jnp.asarray(points)
    return lambda key: model.unravel(rows[jax.random.randint(key, (), 0, len(points))])


def _over_modes(model: Model, num_chains: int, seed: int) -> Any:
    """Starts spread over several modes by their mass, and a warning: no chain can be trusted to move between them."""
    shares = ", ".join(f"{100 * share:.2g} %" for share in model.modes.shares[:5])
    warnings.warn(
        f"The posterior has {len(model.modes.found)} modes or more (masses about {shares}, each taken as Gaussian). Chains start "
        "at all of them, in these proportions, and may never move between them: the weights of the modes then come from this "
        "approximation, not from the sampling. Compare chains by `run.r_hat`; remove the symmetry by an ordering or a sign "
        "constraint, or use a sampler made for several modes (parallel tempering).",
        GyromcWarning,
        stacklevel=6,  # the caller of `interop.numpyro.plan`
    )
    return _rows(model, model.modes.starts(num_chains, seed))


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
