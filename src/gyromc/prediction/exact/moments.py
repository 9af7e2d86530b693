"""The exact mean and variance of one chain's average on a Gaussian target, for the plan's own η, N, start and burn-in (T1).

Input: a plan. Output: `Moments` for each linear observable, and for each square where the oracle's noise is additive. Nothing is
asymptotic or sampled. N steps cost O(log N): two runs of steps compose to a longer one, so powers are computed by repeated
squaring, which stays exact for unstable step sizes until numbers overflow.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact import lifted, quadratic
from gyromc.prediction.exact.chain import LinearChain, lift, linear_chain, power, why_not_linear
from gyromc.prediction.exact.increments import increments, linear_change


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and variance of one chain's average."""

    mean: float
    variance: float
    start_error: float = 0.0  # of the mean, where the start is random: it was drawn a number of times
    corrected: float | None = None  # the variance less the martingale, where the plan has one


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
    ridges = {name: h for name, h in plan.observables.items() if isinstance(h, Ridge)}
    known = {name: h for name, h in ridges.items() if _why_not(chain, h) is None}
    steps, found = (plan.num_steps, plan.burn_in), {}
    with np.errstate(over="ignore", invalid="ignore"):
        averages = lifted.average_moments if not chain.additive else _average_moments
        average = averages(chain, *steps) if any(h.is_linear for h in known.values()) else None
        for name, h in known.items():
            u, shift = h.direction, float(h.direction @ chain.mean)
            if average is None or h.is_square:
                mean, variance, by_start = quadratic.square_moments(chain, u, shift, *steps)
            else:
                w = lift(u, chain.size)
                mean, variance = shift + w @ average.mean, w @ average.covariance @ w
                by_start = chain.starts @ (average.of_start.T @ w)
            overflow = not (np.isfinite(mean) and np.isfinite(variance))
            error = 0.0 if plan.starts.draw is None else float(np.std(by_start)) / math.sqrt(len(by_start))
            found[name] = Moments(float(mean), np.inf if overflow else max(float(variance), 0.0), error)
    return _corrected(plan, chain, known, found) if known and plan.martingale and _settles(chain) else found


def _settles(chain: LinearChain) -> bool:
    """Whether the chain is stable: a martingale can be computed for no other."""
    return bool(np.all(np.isfinite(chain.M)) and np.max(np.abs(np.linalg.eigvals(chain.M))) < 1)


def _corrected(
    plan: Plan, chain: LinearChain, known: dict[str, Ridge], found: dict[str, Moments]
) -> dict[str, Moments]:
    """The moments with the variances of the averages less their martingale, which change no mean."""
    try:
        less = increments(plan, chain)
    except InvalidInput:  # more parameters than a martingale takes
        return found
    linear = {name: h for name, h in known.items() if not h.is_square}
    changes = {}
    if linear:
        U = np.stack([lift(h.direction, chain.size) for h in linear.values()])
        change = linear_change(chain, U, np.stack([less[name].linear for name in linear]), plan.num_steps)
        changes = dict(zip(linear, change, strict=True))
    for name, h in known.items():
        if name in changes:
            variance = found[name].variance + float(changes[name])
        else:
            shift = float(h.direction @ chain.mean)
            steps = plan.num_steps, plan.burn_in
            variance = quadratic.square_moments(chain, h.direction, shift, *steps, less[name])[1]
        found[name] = dataclasses.replace(found[name], corrected=max(float(variance), 0.0))
    return found


def why_not_exact(plan: Plan, name: str) -> str | None:
    """Why `exact_moments` omits an observable of the plan, or None."""
    return why_not_linear(plan) or _why_not(linear_chain(plan), plan.observables[name])


def _why_not(chain: LinearChain, h: Observable) -> str | None:
    if not isinstance(h, Ridge) or not (h.is_linear or h.is_square):
        return "the observable is neither linear nor a square"
    if chain.additive:
        too_large = h.is_square and chain.size > quadratic.MAX_STATE
        return f"squares need a state of at most {quadratic.MAX_STATE} numbers" if too_large else None
    if h.is_square:
        return "the variance of a square under noise that depends on the state needs fourth moments"
    too_large = chain.size > lifted.MAX_STATE
    return f"the lifted second moments need a state of at most {lifted.MAX_STATE} numbers" if too_large else None


class _Steps(NamedTuple):
    """m steps from z₀: z_m = Mz₀ + e and Σ_{k<m} z_k = Az₀ + s, with the covariances of e and s."""

    M: np.ndarray
    A: np.ndarray
    W: np.ndarray  # Cov(e)
    X: np.ndarray  # Cov(e, s)
    C: np.ndarray  # Cov(s)


def _compose(p: _Steps, q: _Steps) -> _Steps:
    """First p, then q."""
    ahead = q.A @ p.X
    return _Steps(
        M=q.M @ p.M,
        A=p.A + q.A @ p.M,
        W=q.M @ p.W @ q.M.T + q.W,
        X=q.M @ (p.X + p.W @ q.A.T) + q.X,
        C=p.C + q.A @ p.W @ q.A.T + ahead + ahead.T + q.C,
    )


def _average_moments(chain: LinearChain, num_steps: int, burn_in: int) -> lifted.StateAverage:
    """Mean and covariance of the average of y under additive noise."""
    start = np.mean(chain.starts, axis=0)
    centred = chain.starts - start
    M_b, W_b = stretch(chain.M, chain.W, burn_in)
    mean, covariance = M_b @ start, M_b @ (centred.T @ centred / len(centred)) @ M_b.T + W_b
    zero = np.zeros((chain.size, chain.size))
    total = power(_compose, _Steps(chain.M, np.eye(chain.size), chain.W, zero, zero), num_steps)
    moments = (total.A @ covariance @ total.A.T + total.C) / num_steps**2  # T1: S_N
    return lifted.StateAverage(total.A @ mean / num_steps, moments, total.A @ M_b / num_steps)


def stretch(F: np.ndarray, W: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(F^k, Σ_{j<k} F^j W F^jᵀ): the map of the mean over k steps, and the covariance they add."""
    if count == 0:
        return np.eye(len(F)), np.zeros_like(F)
    return power(lambda p, q: (q[0] @ p[0], q[0] @ p[1] @ q[0].T + q[1]), (F, W), count)
