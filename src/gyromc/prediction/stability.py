"""Stability of a step size: z ← (I - ηA) z must contract, A = (D+Q)P, and so must the second moments of z.

Input: a plan. Output: a `Stability` with the contraction factor and the largest stable step size; `advice` returns a sentence.
"""

import dataclasses
import enum

import jax
import numpy as np

from gyromc.errors import InvalidInput
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact import lifted
from gyromc.prediction.exact.chain import augment, linear_chain, why_not_linear

MAX_DENSE = 1000


class Linearisation(enum.StrEnum):
    """Where the linear dynamics z ← (I - ηA) z come from."""

    EXACT = "exactly"
    EXACT_WITH_NOISE = "exact, with oracle noise"
    WITHOUT_NOISE = "for exact gradients: the oracle's noise is not counted"
    AT_MODE = "linearised at the mode"
    AT_START = "linearised at the start"

    @property
    def exact(self) -> bool:
        """Whether the chain itself is linear."""
        return self in (Linearisation.EXACT, Linearisation.EXACT_WITH_NOISE)

    @property
    def caveat(self) -> str:
        """A sentence on what the limit leaves out; empty where it leaves out nothing."""
        if self.exact:
            return ""
        if self is Linearisation.WITHOUT_NOISE:
            return " Noise that grows with the state lowers the limit: take a step size well below it."
        return " This is the limit of the linear chain; curvature elsewhere and the oracle's noise may lower it."


def hamiltonian_precision(plan: Plan) -> tuple[np.ndarray, Linearisation] | None:
    """The Hessian of H: exact for Gaussian targets, at the mode (or the start) for others; None where it is too large to form."""
    if plan.dynamics.size > MAX_DENSE:
        return None
    known = plan.flat_target.gaussian()
    if known is not None:
        K, where = known[0], Linearisation.EXACT
    elif plan.starts.theta is None:
        return None
    else:
        try:
            K, where = plan.model.laplace.precision, Linearisation.AT_MODE
        except InvalidInput:  # a target without a mode
            K, where = plan.flat_target.hessians(plan.model.start[None])[0], Linearisation.AT_START
    return augment(K, plan.augmented), where


def largest_stable_step(A: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1; 0 when A has an eigenvalue with real part ≤ 0."""
    eigenvalues = np.linalg.eigvals(A)
    if eigenvalues.real.min() <= 0:
        return 0.0
    return float(np.min(2 * eigenvalues.real / np.abs(eigenvalues) ** 2))  # |1 - ηλ| < 1


@dataclasses.dataclass(frozen=True)
class Stability:
    """Whether second moments stay bounded: they are multiplied by `radius` in each step, and the chain is stable below 1."""

    radius: float
    largest_step_size: float
    how: Linearisation

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

    Exact for Gaussian targets, including oracle noise that grows with the state where the state has at most `lifted.MAX_STATE`
    numbers; linearised at the mode for others. A schedule is judged by its largest step size.

    ```python
    import gyromc as gm
    from gyromc.prediction.stability import stability
    plan = gm.Plan(target=gm.targets.Quadratic([4.0]), dynamics=gm.dynamics.overdamped(1),
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
    assert abs(stability(plan).radius - 0.36) < 1e-12 and stability(plan).largest_step_size == 0.5
    ```
    """
    if callable(plan.step_size):
        with jax.enable_x64(True):
            steps = np.unique(np.linspace(0, plan.num_steps + plan.burn_in - 1, 1000).astype(int))
            eta = max(float(plan.step_size(k)) for k in steps)
    else:
        eta = plan.eta
    try:
        additive = isinstance(plan.oracle, Exact | Gaussian)
        if why_not_linear(plan) is None and plan.dynamics.size <= lifted.MAX_STATE:
            chain = linear_chain(plan)
            additive = chain.additive
            if not additive:
                radius = lifted.second_moment_radius(chain)
                return Stability(radius, _largest_in_mean_square(chain), Linearisation.EXACT_WITH_NOISE)
        known = hamiltonian_precision(plan)
    except InvalidInput:  # a target whose mode or Hessian cannot be found
        return None
    if known is None or not np.all(np.isfinite(known[0])):
        return None
    A = (plan.dynamics.D + plan.dynamics.Q) @ known[0]
    radius = float(np.max(np.abs(1 - eta * np.linalg.eigvals(A))) ** 2)
    how = known[1] if additive or known[1] is not Linearisation.EXACT else Linearisation.WITHOUT_NOISE
    return Stability(radius, largest_stable_step(A), how)


def _largest_in_mean_square(chain) -> float:
    """sup of the η for which second moments contract under multiplicative noise, by bisection below the noise-free limit."""
    low, high = 0.0, largest_stable_step(chain.A)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        shrinks = lifted.second_moment_radius(dataclasses.replace(chain, step_size=middle)) < 1
        low, high = (middle, high) if shrinks else (low, middle)
    return low


def advice(plan: Plan) -> str:
    """A sentence that compares the step size with the stability limit."""
    try:
        known = hamiltonian_precision(plan)
    except Exception:  # a user's target that has no Hessian: the advice stays general
        known = None
    if known is None or plan.scheduled or not np.all(np.isfinite(known[0])):
        return "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    (P, where), eta = known, plan.eta
    limit = largest_stable_step((plan.dynamics.D + plan.dynamics.Q) @ P)
    if limit == 0:
        return f"Likely cause: the drift is not contracting there ({where}, A = (D+Q)P has an eigenvalue with real part ≤ 0)."
    if eta >= limit:
        return (
            f"Likely cause: step_size = {eta:g} exceeds the stability limit {limit:.4g} ({where}). "
            f"Take `step_size` at most {limit / 2:.3g}."
        )
    return (
        f"step_size = {eta:g} is below the full-gradient stability limit {limit:.4g} ({where}): suspect oracle noise "
        "that grows with θ, curvature away from there, or a target without a finite integral; try a smaller `step_size`."
    )
