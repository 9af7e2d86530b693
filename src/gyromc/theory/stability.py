"""How large a step can be: z ← (I - ηA) z must contract, A = (D+Q)P (E8).

Receives a plan; hands on the largest stable step size of its linearisation and advice in words.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.errors import InvalidInput
from gyromc.mode import find_mode
from gyromc.plan import Plan

MAX_DENSE = 1000


def hamiltonian_precision(plan: Plan) -> tuple[np.ndarray, str] | None:
    """The Hessian of H: exact for Gaussian targets, at the mode (or the start) for others; None where it is too large to form."""
    if plan.dynamics.size > MAX_DENSE:
        return None
    known = plan.flat_target.gaussian()
    if known is not None:
        K, where = known[0], "exactly"
    elif callable(plan.theta0):
        return None
    else:
        theta, where = plan.theta0[0], "linearised at the start"
        with contextlib.suppress(InvalidInput):  # a target without a mode
            nudged = theta + 1e-3 * np.random.default_rng(0).standard_normal(plan.dim)  # off a saddle, if it is one
            theta, where = find_mode(plan.flat_target, nudged), "linearised at the mode"
        with jax.enable_x64(True):
            K = np.asarray(jax.hessian(plan.flat_target.potential)(jnp.asarray(theta)), float)
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


def advice(plan: Plan) -> str:
    """The step size against the stability limit, in a sentence."""
    general = "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    try:
        known = hamiltonian_precision(plan)
    except Exception:  # a user's target that has no Hessian: the advice stays general
        return general
    if known is None or callable(plan.step_size):
        return general
    P, where = known
    if not np.all(np.isfinite(P)):
        return general
    limit = largest_stable_step((plan.dynamics.D + plan.dynamics.Q) @ P)
    eta = plan.step_size
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
