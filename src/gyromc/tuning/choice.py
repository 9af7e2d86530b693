"""A plan for a regression, chosen by theory: dynamics (T4), oracle, step size, burn-in, number of steps (E6).

Receives a `Problem` and the Monte Carlo error wanted, as a fraction of each posterior standard deviation; hands on a `Choice`:
the plan, the samplers that were weighed, and the reasons in a sentence. With N(m, K⁻¹) the Gaussian nearest to the posterior,
coordinates x = K^{1/2}(θ - m) make it nearly standard normal, so that all follows from one 1 × 1 or 2 × 2 block, whatever K is.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from gyromc.checks import require
from gyromc.dynamics import Dynamics
from gyromc.observables import Observable
from gyromc.operators import Blocks, Scaled, as_operator
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.regression.families import Softmax
from gyromc.regression.gaussian import Gaussian, nearest_gaussian
from gyromc.regression.problem import Problem
from gyromc.tuning.merit import REVERSIBLE, ROTATING, Block, merits

__all__ = ["DYNAMICS", "Choice", "choose"]

DYNAMICS = {"reversible": REVERSIBLE, "rotating": ROTATING}
EXCESS = 0.05  # relative excess of the variance that the step size may cause, before it is corrected for
MOST_WEIGHT_VARIANCE = 0.1  # of the weights that take the excess off again
LARGE_DATA = 4000  # rows from which on mini-batches pay
MILD, STEEPEST = (
    1.2,
    30.0,
)  # how much the curvature may vary before steps become smaller, and how much smaller they start
POINTS = 16


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
    shape: Gaussian
    block: Block
    inflation: float
    candidates: Mapping[str, float]
    thin: int
    relative_error: float
    reason: str


def choose(
    problem: Problem,
    observables: Mapping[str, Observable],
    relative_error: float,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
    dynamics: str = "reversible",
) -> Choice:
    """A plan whose Monte Carlo errors come out at `relative_error` posterior standard deviations.

    **Arguments:**

    - `problem`: model, data and prior.
    - `observables`: what the plan averages.
    - `relative_error`: the error wanted of each posterior mean, as a fraction of its posterior standard deviation.
    - `num_chains`, `seed`: of the plan.
    - `num_draws`: how many states to keep, over all chains, or a few more.
    - `dynamics`: `"reversible"`, D = K⁻¹, whose discretisation bias is known to first order for every posterior; or
      `"rotating"`, with momentum: fewer gradients for posterior means, bias known on Gaussians only.

    **Returns:** a `Choice`.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.tuning.choice import choose
    from gyromc.regression.families import Logistic
    from gyromc.regression.problem import Problem
    problem = Problem(Logistic(), np.array([[1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0, 1.0]), 2.0)
    choice = choose(problem, {"slope": gm.observables.linear([0.0, 1.0])}, relative_error=0.05)
    assert choice.plan.num_chains == 64 and 0 < choice.plan.step_size < 0.2
    ```
    """
    require(
        dynamics in DYNAMICS,
        f"`dynamics` must be one of {', '.join(DYNAMICS)}: got {dynamics!r}. The first is the safe one.",
    )
    block = DYNAMICS[dynamics]
    shape = nearest_gaussian(problem, seed)
    wanted = min(block.step_size(EXCESS), math.sqrt(8 * MOST_WEIGHT_VARIANCE / problem.dim))
    eta = wanted / max(1.0, min(shape.steepest / MILD, STEEPEST))
    oracle, noise = _oracle(problem, shape, eta, seed)
    num_steps = math.ceil(block.linear / (eta * num_chains * relative_error**2))  # E6: Var ≈ V / (Nη)
    burn_in = math.ceil(5 / (eta * block.rate))
    thin = max(1, num_steps * num_chains // num_draws)
    plan = Plan(
        target=problem.target,
        dynamics=_dynamics(shape, block),
        oracle=oracle,
        observables=observables,
        step_size=eta,
        num_steps=num_steps,
        burn_in=burn_in,
        num_chains=num_chains,
        seed=seed,
        start=shape.draws(num_chains, seed),
        dtype="float64" if np.linalg.cond(shape.precision) > 1e5 else "float32",
    )
    inflation = block.inflation(eta, noise)
    candidates = merits(np.linalg.eigvalsh(shape.precision))
    reason = _reason(plan, block, inflation, candidates, relative_error, eta < wanted)
    return Choice(plan, shape, block, inflation, candidates, thin, relative_error, reason)


def _oracle(problem: Problem, shape: Gaussian, eta: float, seed: int, most_rows: int = 2000) -> tuple[Oracle, float]:
    """All rows, or mini-batches anchored at the mode, large enough to add a tenth to the excess; and their noise variance."""
    N = len(problem.y)
    if N < LARGE_DATA or problem.target.gaussian() is not None:
        return Exact(), 0.0
    rows = np.random.default_rng(seed).choice(N, min(N, most_rows), replace=False)
    part = dataclasses.replace(problem, X=problem.X[rows], y=problem.y[rows])
    center = problem.family.slopes(part.predictors(problem.mode), part.y)
    total = np.zeros((problem.dim, problem.dim))
    points = shape.draws(POINTS, seed + 2)
    for theta in points:
        excess = problem.family.slopes(part.predictors(theta), part.y) - center
        terms = (excess[:, :, None] * part.X[:, None, :]).reshape(len(rows), -1) @ shape.root
        terms = terms - terms.mean(axis=0)
        total += terms.T @ terms / len(rows)
    one = N**2 * total / len(points)  # the variance of a batch of one, in whitened coordinates
    size = math.ceil(float(np.linalg.eigvalsh(one)[-1]) * eta / (0.2 * EXCESS) / 16) * 16  # Σ̃ - 1 ≈ η(1 + noise)/2
    if (40 if isinstance(problem.family, Softmax) else 4) * size > N:  # the fast engine has no batches of a softmax
        return Exact(), 0.0
    size = max(32, size)
    return ControlVariate(size, center=problem.mode), float(np.trace(one)) / problem.dim / size


def _dynamics(shape: Gaussian, block: Block) -> Dynamics:
    """The block in every direction of x = K^{1/2}(θ - m), written in θ."""
    R, d = shape.root, len(shape.mean)
    D = as_operator(block.G[0, 0] * R @ R.T, "D")
    if len(block.G) == 1:
        return Dynamics(D, Scaled(0.0, d), block.name, augmented=False)
    zero, turn = Scaled(0.0, d), float(block.G[1, 0])
    diffusion = Blocks(D, zero, zero, Scaled(float(block.G[1, 1]), d))
    return Dynamics(
        diffusion,
        Blocks(zero, as_operator(-turn * R, "Q"), as_operator(turn * R.T, "Q"), zero),
        block.name,
        augmented=True,
    )


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
