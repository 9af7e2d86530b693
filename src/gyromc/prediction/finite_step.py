"""Moments of one chain's average at the plan's own step size, for targets that are not Gaussian.

Input: V, μ(h), the first effects of the step size, the stability limit. Output: an `Averaged`. Up to two coupled coordinates the
chain's own stationary law is computed on a grid, or on grids at larger steps from which terms of second order follow. Otherwise
bias and variance are those of first order in η, and the error of the bias counts a second order twice as large as on a Gaussian.
"""

import dataclasses
import math

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.prediction.grid import GridChain, Grids, why_not_grid
from gyromc.prediction.methods import UNKNOWN, Kind, Method
from gyromc.prediction.stability import Stability

SECOND_ORDER = 2.0  # the second order in η against that of a Gaussian, at most
EXTRAPOLATED = 0.1  # error of the effect of the start at another step size, as a share
LARGEST = 0.6  # of the stability limit: step sizes of grids from which smaller ones are extrapolated


@dataclasses.dataclass(frozen=True)
class First:
    """First effects of the step size: bias η·slope + transient/(Nη), variance V/(Nη) + floor/N; None where not known."""

    slope: float | None = None
    slope_error: float = 0.0
    transient: float | None = None
    floor: float = 0.0


@dataclasses.dataclass(frozen=True)
class Averaged:
    """Bias and standard deviation of one chain's average."""

    std: float
    rmse_method: Method
    bias: float | None = None
    bias_method: Method = UNKNOWN
    bias_error: float = 0.0


def averaged(
    grids: Grids,
    h: Observable,
    V: float,
    mean: tuple[float, float],
    spread: float,
    first: First,
    chosen,
    steady: Stability | None,
) -> Averaged:
    """The moments of one chain's average; `mean` is μ(h) with its error, `spread` the standard deviation of h under μ."""
    plan = grids.plan
    if plan.scheme.is_euler and why_not_grid(plan, chosen) is None:
        try:
            return _on_grid(grids, h, V, mean, first, chosen, steady)
        except InvalidInput:  # no grid of a size that can be solved
            pass
    return first_order(plan, V, spread, first, steady)


def first_order(plan: Plan, V: float, spread: float, first: First, steady: Stability | None) -> Averaged:
    """Variance V/(Nη) + s/N and bias η·slope + transient/(Nη), where these are known."""
    eta, N = plan.eta, plan.num_steps
    std = math.sqrt(max(V, 0.0) / (N * eta) + first.floor / N)  # E6, and s of T1
    if first.slope is None or not plan.scheme.is_euler:
        text = "asymptotic √(ηV)" if 0.99 <= N * eta * eta <= 1.01 else "asymptotic √(V/(Nη))"
        return Averaged(std, Method(Kind.ASYMPTOTIC, text))
    bias = eta * first.slope
    share = 1.0 if steady is None or not steady.largest_step_size > eta else eta / steady.largest_step_size
    second = SECOND_ORDER * (share * abs(bias) + share**2 * spread)
    error = math.hypot(eta * first.slope_error, second)
    left_out = first.transient is None or bool(plan.burn_in)
    if not left_out:
        start = first.transient / (N * eta)  # type: ignore[operator]
        bias, still = bias + start, 1.0 if steady is None else math.exp(-max(steady.rate, 0.0) * N * eta)
        error = math.hypot(error, still * start)
    known = f"{Kind.FIRST_ORDER.value} (±{error:.1g}){', start left out' if left_out else ''}"
    how = Method(Kind.ASYMPTOTIC, "asymptotic √(V/(Nη) + s/N + bias²)")
    return Averaged(std, how, bias, Method(Kind.FIRST_ORDER, known), error)


def _on_grid(
    grids: Grids, h: Observable, V: float, mean: tuple[float, float], first: First, chosen, steady: Stability | None
) -> Averaged:
    plan = grids.plan
    eta, N, (mu, mu_error) = plan.eta, plan.num_steps, mean
    try:
        found, text = grids.chain(h, chosen), "the chain on a grid"
        bias, error, variance, share = found.mean - mu, mu_error + found.mean_error, found.variance, 1.0
    except InvalidInput:
        at, found = _smallest(grids, h, chosen, math.nan if steady is None else steady.largest_step_size)
        text, share = f"the chain on a grid, extrapolated from η = {at:.2g}", eta / at
        slope = first.slope
        if slope is None:
            twice = grids.chain(h, chosen, 2 * at)
            slope = (4 * (found.mean - mu) - (twice.mean - mu)) / (2 * at)  # b₁ of b₁η + b₂η² through both
        second = (found.mean - mu - slope * at) * share**2
        bias, error = slope * eta + second, mu_error + found.mean_error + share * abs(second) + eta * first.slope_error
        variance = V / eta + (found.variance - V / at)  # N·Var = V/η + s
    left_out = found.transient is None or bool(plan.burn_in)
    if not left_out:
        bias += found.transient / (share * N)  # type: ignore[operator]
        off = EXTRAPOLATED * abs(found.transient) if share < 1 else 0.0  # type: ignore[arg-type]
        error += (found.transient_error + off) / (share * N)
    law = Method(Kind.GRID, f"{text} (±{error:.1g}){', start left out' if left_out else ''}")
    std = math.sqrt(max(variance, 0.0) / N)
    return Averaged(std, Method(Kind.ASYMPTOTIC, "asymptotic, √(variance of the chain/N + bias²)"), bias, law, error)


def _smallest(grids: Grids, h: Observable, chosen, limit: float) -> tuple[float, GridChain]:
    """The smallest step size among η·2, η·4, … that has a grid, with its chain; `InvalidInput` where there is none."""
    at = 2 * grids.plan.eta
    while at < LARGEST * limit / 2:
        try:
            return at, grids.chain(h, chosen, at)
        except InvalidInput:
            at *= 2
    raise InvalidInput("no step size below the stability limit has a grid")
