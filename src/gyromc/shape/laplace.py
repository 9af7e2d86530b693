"""The Laplace approximation: U near its mode is ½(θ-m)ᵀK(θ-m), so that E8 gives a first answer for any smooth target.

Receives a plan; hands on mode and Hessian, V and V_0 with h linearised at the mode, and a weighted sample of the target drawn
around the mode: importance sampling, which corrects the approximation and reports how far it was off.
"""

import dataclasses
import weakref

import numpy as np
from scipy import linalg

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import augment, augment_vector
from gyromc.prediction.exact.closed_forms import fluctuation_constant
from gyromc.shape.modes import find_mode
from gyromc.shape.values import hessians, observable_gradients, potentials

INFLATION = 1.05  # the proposal's standard deviation, against the approximation's
DRAWS = 20_000
_FOUND: "weakref.WeakKeyDictionary[Plan, Laplace]" = weakref.WeakKeyDictionary()  # modes are asked for by several


@dataclasses.dataclass(frozen=True, eq=False)
class Laplace:
    """Mode and Hessian of U there; for a Gaussian target they are exact."""

    mode: np.ndarray
    precision: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Points of θ with weights that sum to one, and the size of an unweighted sample worth as much."""

    theta: np.ndarray
    weights: np.ndarray
    effective_size: float
    source: str

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """The expectation of something given at the points, and its standard error."""
        center = float(self.weights @ values)
        return center, float(np.sqrt(np.sum(self.weights**2 * (values - center) ** 2)))


def laplace(plan: Plan) -> Laplace:
    """Mode and Hessian; `InvalidInput` where the target has no mode with a positive definite Hessian.

    ```python
    import gyromc as gm
    from gyromc.shape.laplace import laplace
    plan = gm.Plan(target=gm.targets.CosinePerturbed(1, 0.5), dynamics=gm.dynamics.overdamped(1),
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
    assert abs(laplace(plan).precision[0, 0] - 0.5) < 1e-9
    ```
    """
    if plan not in _FOUND:
        _FOUND[plan] = _laplace(plan)
    return _FOUND[plan]


def _laplace(plan: Plan) -> Laplace:
    known = plan.flat_target.gaussian()
    if known is not None:
        return Laplace(known[1], known[0])
    start = np.zeros(plan.dim) if callable(plan.theta0) else np.asarray(plan.theta0[0], float)
    nudge = 1e-3 * np.random.default_rng(0).standard_normal(plan.dim)  # off a saddle, if the start is one
    mode = find_mode(plan.flat_target, start + nudge)
    K = hessians(plan, mode[None])[0]
    smallest = float(np.linalg.eigvalsh(K)[0])
    if not smallest > 0:
        raise InvalidInput(
            f"The Hessian at the mode is not positive definite (smallest eigenvalue {smallest:.3g}): no Laplace approximation."
        )
    return Laplace(mode, K)


def laplace_constants(plan: Plan, h: Observable, center: Laplace) -> tuple[float, float]:
    """(V, V_0) of E8 with the Hessian at the mode and h linearised there."""
    u = augment_vector(observable_gradients(plan, h, center.mode[None])[0], plan.augmented)
    P, D, Q = augment(center.precision, plan.augmented), plan.dynamics.D, plan.dynamics.Q
    return fluctuation_constant(D, Q, P, u), fluctuation_constant(D, np.zeros_like(Q), P, u)


def importance_sample(plan: Plan, center: Laplace, draws: int = DRAWS, seed: int = 0) -> Sample:
    """A weighted sample of the target, proposed by the Laplace approximation, a little inflated.

    **Arguments:**

    - `plan`: its target is sampled; its seed is not used.
    - `center`: mode and Hessian.
    - `draws`, `seed`: how many proposals, and from which seed.

    **Returns:** a `Sample`; look at `effective_size` before believing it.
    """
    rng = np.random.default_rng(seed)
    pilot = _weighted(
        plan, center.mode, linalg.solve_triangular(linalg.cholesky(center.precision), np.eye(plan.dim)), draws // 4, rng
    )
    if pilot.effective_size > 20 * plan.dim:  # the mode is not the mean: propose from the pilot's own moments
        mean = pilot.weights @ pilot.theta
        away = pilot.theta - mean
        root = linalg.cholesky((away.T * pilot.weights) @ away, lower=True)
    else:
        mean, root = center.mode, linalg.solve_triangular(linalg.cholesky(center.precision), np.eye(plan.dim))
    return _weighted(plan, mean, root, draws, rng)


def _weighted(plan: Plan, mean: np.ndarray, root: np.ndarray, draws: int, rng: np.random.Generator) -> Sample:
    """Draws of N(mean, INFLATION² root rootᵀ), weighted to the target."""
    half = rng.standard_normal((draws // 2, plan.dim))
    x = np.stack([half, -half], axis=1).reshape(-1, plan.dim)  # antithetic: odd moments of the proposal are exact
    theta = mean + INFLATION * x @ root.T
    log_weight = -potentials(plan, theta) + 0.5 * np.sum(x**2, axis=1)
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weights = np.exp(log_weight - np.max(log_weight))
    weights /= weights.sum()
    size = 1 / float(np.sum(weights**2))
    return Sample(theta, weights, size, f"{len(theta)} draws around the mode, effective size {size:.0f}")


def user_sample(plan: Plan, sample) -> Sample:
    """A user's posterior sample: rows of θ, or an array chains × draws × d such as `run.draws`."""
    rows = np.asarray(sample, float)
    if rows.ndim == 1 and plan.dim == 1:
        rows = rows[:, None]
    if rows.ndim < 2 or rows.shape[-1] != plan.dim or not np.all(np.isfinite(rows)):
        raise InvalidInput(
            f"`sample` must hold rows of {plan.dim} finite numbers, one row per draw of θ: got shape {rows.shape}."
        )
    rows = rows.reshape(-1, plan.dim)
    count = len(rows)
    if count < 10 * (plan.dim + 1):
        raise InvalidInput(
            f"`sample` has {count} rows: too few for {plan.dim} parameters. Pass at least {10 * (plan.dim + 1)}."
        )
    return Sample(rows, np.full(count, 1 / count), float(count), f"a sample of {count} draws")
