"""Stability of a step size: z ← (I - ηA) z must contract, A = (D+Q)P, and so must the second moments of z.

Input: a plan. Output: a `Stability` with the contraction factor and the largest stable step size; `advice` returns a sentence.
"""

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.errors import InvalidInput
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import augment, why_not_linear
from gyromc.prediction.exact.mean_square import EulerSteps, MeanSquare, largest_stable_step, limit_of_mean, radius_of_mean
from gyromc.prediction.exact.noise import Noise, batch_factor, oracle_noise
from gyromc.prediction.growth import growth
from gyromc.targets import GeneralizedLinear

MAX_DENSE = 1000
MOST_PRODUCTS = 1e8  # N d² for noise that grows with the state: seconds


class Linearisation(enum.StrEnum):
    """Where the linear dynamics z ← (I - ηA) z come from."""

    EXACT = "exactly"
    EXACT_WITH_NOISE = "exact, with oracle noise"
    WITHOUT_NOISE = "for exact gradients: the oracle's noise is not counted"
    AT_MODE = "linearised at the mode"
    AT_MODE_WITH_NOISE = "linearised at the mode, with oracle noise"
    FAR = "linearised far from the mode"
    AT_EDGE = "linearised where a long chain gets to, ∇U growing faster than linearly"
    AT_START = "linearised at the start"

    @property
    def exact(self) -> bool:
        """Whether the chain itself is linear."""
        return self in (Linearisation.EXACT, Linearisation.EXACT_WITH_NOISE)

    @property
    def caveat(self) -> str:
        """A sentence on what the limit leaves out; empty where it leaves out nothing."""
        return _CAVEATS.get(self, "")


_CAVEATS = {
    Linearisation.WITHOUT_NOISE: " Noise that grows with the state lowers the limit: take a step size well below it.",
    Linearisation.AT_MODE_WITH_NOISE: " This is the limit of the linear chain; curvature elsewhere may lower it.",
    Linearisation.AT_EDGE: " From far enough away the chain diverges at every step size.",
    **dict.fromkeys(
        (Linearisation.AT_MODE, Linearisation.FAR, Linearisation.AT_START),
        " This is the limit of the linear chain; curvature elsewhere and the oracle's noise may lower it.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Stability:
    """Whether second moments stay bounded: they are multiplied by `radius` in each step, and the chain is stable below 1."""

    radius: float
    largest_step_size: float
    how: Linearisation
    rate: float = np.nan  # the slowest, per unit of time, of the linear dynamics

    @property
    def stable(self) -> bool:
        """Whether the chain's second moments converge."""
        return self.radius < 1

    def __str__(self) -> str:
        return (
            f"{'stable' if self.stable else 'UNSTABLE'}: second moments × {self.radius:.6g} per step, "
            f"largest step size {self.largest_step_size:.4g} ({self.how})"
        )


def stability(plan: Plan) -> Stability | None:
    """Second-moment stability of a plan; None where its Hessian cannot be formed.

    Exact for Gaussian targets, including the noise of mini-batches; for others linearised at the mode, or away from it where
    that allows smaller steps only. A schedule is judged by its largest step size.

    ```python
    import gyromc as gm
    from gyromc.prediction.stability import stability
    plan = gm.Plan(target=gm.targets.Quadratic([4.0]), dynamics=gm.dynamics.overdamped(1),
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
    assert abs(stability(plan).radius - 0.36) < 1e-12 and stability(plan).largest_step_size == 0.5
    ```
    """
    try:
        known = _linear(plan)
    except InvalidInput:  # a target whose mode or Hessian cannot be found
        return None
    if known is None:
        return None
    (A, how, noise), eta = known, _largest_step(plan)
    if noise is None or noise.additive:
        rates = np.linalg.eigvals(A)
        return Stability(radius_of_mean(rates, eta), limit_of_mean(rates), how, float(np.min(np.real(rates))))
    squares = MeanSquare(EulerSteps(A, plan.dynamics.D + plan.dynamics.Q), noise)
    return Stability(squares.radius(eta), squares.limit(), how, float(np.min(np.real(squares.steps.rates))))


def _largest_step(plan: Plan) -> float:
    if not callable(plan.step_size):
        return plan.eta
    with jax.enable_x64(True):
        steps = np.unique(np.linspace(0, plan.num_steps + plan.burn_in - 1, 1000).astype(int))
        return max(float(plan.step_size(k)) for k in steps)


def _linear(plan: Plan) -> tuple[np.ndarray, Linearisation, Noise | None] | None:
    """A, where it comes from, and the noise that grows with the state; None where nothing can be formed."""
    if plan.dynamics.size > MAX_DENSE:
        return None
    known = plan.flat_target.gaussian()
    if known is None:
        return _linearised(plan)
    A = _drift(plan, known[0])
    if isinstance(plan.oracle, Exact | Gaussian):
        return A, Linearisation.EXACT, None
    if why_not_linear(plan) is None and _affordable(plan):
        noise = oracle_noise(plan, known[1])
        return A, Linearisation.EXACT if noise.additive else Linearisation.EXACT_WITH_NOISE, noise
    return A, Linearisation.WITHOUT_NOISE, None


def _linearised(plan: Plan) -> tuple[np.ndarray, Linearisation, Noise | None] | None:
    """At the mode, or away from it where that allows smaller steps only."""
    if plan.starts.theta is None:
        return None
    try:
        center = plan.model.laplace
    except InvalidInput:  # a target without a mode
        K = plan.flat_target.hessians(plan.model.start[None])[0]
        return (_drift(plan, K), Linearisation.AT_START, None) if np.all(np.isfinite(K)) else None
    if not np.all(np.isfinite(center.precision)):
        return None
    away = growth(plan.flat_target, center)
    A = _drift(plan, center.precision)
    limits = [(largest_stable_step(B), B) for B in (_drift(plan, K) for K in away.hessians)]
    limit, B = min(((x, B) for x, B in limits if x > 0), key=lambda pair: pair[0], default=(np.inf, A))
    if limit < (1 - 1e-3) * largest_stable_step(A):
        return B, Linearisation.AT_EDGE if away.faster else Linearisation.FAR, None
    noise = _noise_at(plan, center.mode)
    return A, Linearisation.AT_MODE if noise is None else Linearisation.AT_MODE_WITH_NOISE, noise


def _drift(plan: Plan, K: np.ndarray) -> np.ndarray:
    return (plan.dynamics.D + plan.dynamics.Q) @ augment(K, plan.augmented)


def _affordable(plan: Plan) -> bool:
    target = plan.flat_target
    return target.num_data * target.dim**2 <= MOST_PRODUCTS  # type: ignore[attr-defined]


def _noise_at(plan: Plan, mode: np.ndarray) -> Noise | None:
    """The noise of mini-batches of a generalized linear model, linearised at the mode; None where that says nothing.

    A control variate of order 2 at the mode has no linear noise there, and its noise far away is not small: no limit counts it.
    That of anchors that move depends on the past.
    """
    oracle, target = plan.prepared_oracle, plan.flat_target
    if not isinstance(oracle, Batch) or not isinstance(target, GeneralizedLinear) or not _affordable(plan):
        return None
    if isinstance(oracle, ControlVariate) and (oracle.order == 2 or oracle.refresh):
        return None
    with jax.enable_x64(True):
        X, y = target.design
        w = np.asarray(jax.vmap(jax.grad(target.slope))(jnp.asarray(X @ mode), jnp.asarray(y)))
    if not np.all(w >= 0):
        return None
    return Noise(np.zeros((plan.dim, plan.dim)), np.sqrt(w)[:, None] * X, None, batch_factor(oracle, len(X)))


def advice(plan: Plan) -> str:
    """A sentence that compares the step size with the stability limit."""
    try:
        found = None if plan.scheduled else stability(plan)
    except Exception:  # a user's target that has no Hessian: the advice stays general
        found = None
    if found is None:
        return "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    limit, where, eta = found.largest_step_size, found.how, plan.eta
    if limit == 0:
        return f"Likely cause: the drift is not contracting there ({where}, A = (D+Q)P has an eigenvalue with real part ≤ 0)."
    if eta >= limit:
        return (
            f"Likely cause: step_size = {eta:g} exceeds the stability limit {limit:.4g} ({where}). "
            f"Take `step_size` at most {limit / 2:.3g}."
        )
    return (
        f"step_size = {eta:g} is below the stability limit {limit:.4g} ({where}): suspect oracle noise "
        "that grows with θ, curvature away from there, or a target without a finite integral; try a smaller `step_size`."
    )
