"""How large a step can be: z ← (I - ηA) z must contract, A = (D+Q)P (E8), and so must second moments (T1).

Receives a plan; hands on its stability radius, the largest stable step size and advice in words.
"""

import dataclasses

import jax
import numpy as np

from gyromc.errors import InvalidInput
from gyromc.plan import Plan
from gyromc.prediction.exact import lifted
from gyromc.prediction.exact.chain import linear_chain, why_not_linear

MAX_DENSE = 1000


def hamiltonian_precision(plan: Plan) -> tuple[np.ndarray, str] | None:
    """The Hessian of H: exact for Gaussian targets, at the mode (or the start) for others; None where it is too large to form."""
    if plan.dynamics.size > MAX_DENSE:
        return None
    known = plan.flat_target.gaussian()
    if known is not None:
        K, where = known[0], "exactly"
    elif plan.starts.theta is None:
        return None
    else:
        theta, where = plan.model.start, "linearised at the start"
        try:
            K, where = plan.model.laplace.precision, "linearised at the mode"
        except InvalidInput:  # a target without a mode
            K = plan.flat_target.hessians(theta[None])[0]
    if plan.augmented:
        zero = np.zeros_like(K)
        K = np.block([[K, zero], [zero, np.eye(plan.dim)]])
    return K, where


def largest_stable_step(A: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1; 0 when A has an eigenvalue with real part ≤ 0."""
    eigenvalues = np.linalg.eigvals(A)
    if eigenvalues.real.min() <= 0:
        return 0.0
    return float(np.min(2 * eigenvalues.real / np.abs(eigenvalues) ** 2))  # |1 - ηλ| < 1


@dataclasses.dataclass(frozen=True)
class Stability:
    """Whether second moments stay bounded: `radius` < 1, the factor by which they move per step."""

    radius: float
    largest_step_size: float
    how: str

    @property
    def stable(self) -> bool:
        """Whether the chain's second moments converge."""
        return self.radius < 1


def stability(plan: Plan) -> Stability | None:
    """Second-moment stability of a plan (T1); None where its curvature cannot be formed.

    Exact for Gaussian targets, with the oracle's noise that grows with the state counted in; linearised at the mode for others.
    For a schedule the largest of its step sizes decides.

    ```python
    import gyromc as gm
    from gyromc.prediction.stability import stability
    plan = gm.Plan(target=gm.targets.Quadratic([4.0]), dynamics=gm.dynamics.overdamped(1),
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
    assert abs(stability(plan).radius - 0.36) < 1e-12 and stability(plan).largest_step_size == 0.5
    ```
    """
    if plan.scheduled:
        with jax.enable_x64(True):
            steps = np.unique(np.linspace(0, plan.num_steps + plan.burn_in - 1, 1000).astype(int))
            eta = max(float(plan.step_size(k)) for k in steps)
    else:
        eta = plan.eta
    if why_not_linear(plan) is None:
        chain = linear_chain(plan)
        if not chain.additive and chain.n <= lifted.MAX_STATE:
            return Stability(
                lifted.second_moment_radius(chain), _largest_in_mean_square(chain), "exact, with oracle noise"
            )
    known = hamiltonian_precision(plan)
    if known is None or not np.all(np.isfinite(known[0])):
        return None
    A = (plan.dynamics.D + plan.dynamics.Q) @ known[0]
    radius = float(np.max(np.abs(1 - eta * np.linalg.eigvals(A))) ** 2)
    return Stability(radius, largest_stable_step(A), known[1])


def _largest_in_mean_square(chain) -> float:
    """sup of the η for which second moments contract under multiplicative noise, by bisection below the noise-free limit."""
    high = largest_stable_step(chain.A)
    low = 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        shrinks = lifted.second_moment_radius(dataclasses.replace(chain, step_size=middle)) < 1
        low, high = (middle, high) if shrinks else (low, middle)
    return low


def advice(plan: Plan) -> str:
    """The step size against the stability limit, in a sentence."""
    general = "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    try:
        known = hamiltonian_precision(plan)
    except Exception:  # a user's target that has no Hessian: the advice stays general
        return general
    if known is None or plan.scheduled:
        return general
    P, where = known
    if not np.all(np.isfinite(P)):
        return general
    limit = largest_stable_step((plan.dynamics.D + plan.dynamics.Q) @ P)
    eta = plan.eta
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
