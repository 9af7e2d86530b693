"""A plan chosen by theory: dynamics, oracle, step size, burn-in and number of steps from a model's shape alone.

A `Model` and what is wanted of it in; a `Plan` out. With N(m, K⁻¹) the Gaussian nearest to the posterior, coordinates
x = K^{1/2}(θ - m) make it nearly standard normal, so that all follows from one 2 × 2 block, whatever K is.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning
from gyromc.flat import identity
from gyromc.model import Model
from gyromc.oracles import Exact, Oracle
from gyromc.plan import Plan
from gyromc.shape.laplace import symmetric_inverse_root
from gyromc.tuning.blocks import ROTATING
from gyromc.tuning.outline import Outline, outline
from gyromc.tuning.step_size import burn_in_steps, plan_step_size

__all__ = ["preconditioned_plan"]

ILL_CONDITIONED = 1e5  # condition number of K from which on chains run in float64
ERROR = 0.0125  # of posterior means, in posterior standard deviations
STEPS = 4000  # where the step size is a schedule


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
