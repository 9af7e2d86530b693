"""The exact mean and variance of one chain's average on a Gaussian target, for the plan's own η, N, start and burn-in (T1).

Input: a plan. Output: `Moments` for each linear observable, and for each square where the oracle's noise is additive. Nothing is
asymptotic or sampled. N steps cost O(log N): two runs of steps compose to a longer one, so powers are computed by repeated
squaring, which stays exact for unstable step sizes until numbers overflow.
"""

import dataclasses

import numpy as np

from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact import lifted, quadratic
from gyromc.prediction.exact.chain import LinearChain, lift, linear_chain, power, why_not_linear


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and variance of one chain's average."""

    mean: float
    variance: float


def exact_moments(plan: Plan) -> dict[str, Moments]:
    """E and Var of one chain's average of each observable, exactly for the plan's step size, steps, start and burn-in.

    Several starts are treated as one random start, uniform over them. An observable without an exact answer is omitted: see
    `why_not_exact`.

    ```python
    import gyromc as gm
    from gyromc.prediction.exact.moments import exact_moments
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1), start=[1.0],
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.5, num_steps=2)
    assert exact_moments(plan)["x"].mean == 0.75 and exact_moments(plan)["x"].variance == 0.25
    ```
    """
    if why_not_linear(plan) is not None:
        return {}
    chain = linear_chain(plan)
    found = {}
    for name, h in plan.observables.items():
        if _why_not(chain, h) is None:
            with np.errstate(over="ignore", invalid="ignore"):
                mean, variance = _moments(chain, h, plan.num_steps, plan.burn_in)
            overflow = not (np.isfinite(mean) and np.isfinite(variance))
            found[name] = Moments(float(mean), np.inf if overflow else max(float(variance), 0.0))
    return found


def why_not_exact(plan: Plan, name: str) -> str | None:
    """Why `exact_moments` omits an observable of the plan, or None."""
    return why_not_linear(plan) or _why_not(linear_chain(plan), plan.observables[name])


def _why_not(chain: LinearChain, h: Observable) -> str | None:
    if not isinstance(h, Ridge) or not (h.is_linear or h.is_square):
        return "the observable is neither linear nor a square"
    if chain.additive:
        too_large = h.is_square and chain.n > quadratic.MAX_STATE
        return f"squares need a state of at most {quadratic.MAX_STATE} numbers" if too_large else None
    if h.is_square:
        return "the variance of a square under noise that depends on the state needs fourth moments"
    too_large = chain.n > lifted.MAX_STATE
    return f"the lifted second moments need a state of at most {lifted.MAX_STATE} numbers" if too_large else None


def _moments(chain: LinearChain, h: Observable, num_steps: int, burn_in: int) -> tuple[float, float]:
    assert isinstance(h, Ridge)
    u, shift = np.asarray(h.direction, float), float(h.direction @ chain.mean)
    if h.is_square:
        return quadratic.square_moments(chain, u, shift, num_steps, burn_in)
    linear = _linear_moments if chain.additive else lifted.linear_moments
    mean, variance = linear(chain, u, num_steps, burn_in)
    return shift + mean, variance


def _linear_moments(chain: LinearChain, u: np.ndarray, num_steps: int, burn_in: int) -> tuple[float, float]:
    """Mean (about uᵀ of the target's mean) and variance of the average of uᵀθ under additive noise."""
    n, w = chain.n, lift(u, chain.n)
    start = np.mean(chain.starts, axis=0)
    centred = chain.starts - start
    M_b, W_b = stretch(chain.M, chain.W, burn_in)
    mean0, cov0 = M_b @ start, M_b @ (centred.T @ centred / len(centred)) @ M_b.T + W_b
    # The state (z, s) with s = Σ uᵀz_j over the steps made so far.
    F = np.block([[chain.M, np.zeros((n, 1))], [w[None], np.ones((1, 1))]])
    noise = np.zeros((n + 1, n + 1))
    noise[:n, :n] = chain.W
    F_N, C_N = stretch(F, noise, num_steps)
    a = F_N[n, :n]  # T1: uᵀS_N
    return a @ mean0 / num_steps, (a @ cov0 @ a + C_N[n, n]) / num_steps**2


def stretch(F: np.ndarray, W: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(F^k, Σ_{j<k} F^j W F^jᵀ): the map of the mean over k steps, and the covariance they add."""
    if count == 0:
        return np.eye(len(F)), np.zeros_like(F)
    return power(lambda p, q: (q[0] @ p[0], q[0] @ p[1] @ q[0].T + q[1]), (F, W), count)
