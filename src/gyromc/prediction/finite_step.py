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
from gyromc.prediction.grid import GridChain, grid_chain, why_not_grid
from gyromc.prediction.methods import UNKNOWN, Kind, Method

SECOND_ORDER = 2.0  # the second order in η against that of a Gaussian, at most
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
    plan: Plan, h: Observable, V: float, mean: tuple[float, float], spread: float, first: First, chosen, limit: float
) -> Averaged:
    """The moments of one chain's average; `mean` is μ(h) with its error, `spread` the standard deviation of h under μ."""
    if plan.scheme.is_euler and why_not_grid(plan, chosen) is None:
        try:
            return _on_grid(plan, h, V, mean, first, chosen, limit)
        except InvalidInput:  # no grid of a size that can be solved
            pass
    return first_order(plan, V, spread, first, limit)


def first_order(plan: Plan, V: float, spread: float, first: First, limit: float) -> Averaged:
    """Variance V/(Nη) + s/N and bias η·slope + transient/(Nη), where these are known."""
    eta, N = plan.eta, plan.num_steps
    std = math.sqrt(max(V, 0.0) / (N * eta) + first.floor / N)  # E6, and s of T1
    if first.slope is None or not plan.scheme.is_euler:
        text = "asymptotic √(ηV)" if 0.99 <= N * eta * eta <= 1.01 else "asymptotic √(V/(Nη))"
        return Averaged(std, Method(Kind.ASYMPTOTIC, text))
    bias, share = eta * first.slope, min(1.0, eta / limit) if limit > 0 else 1.0
    second = SECOND_ORDER * (share * abs(bias) + share**2 * spread)
    error = math.hypot(eta * first.slope_error, second)
    left_out = first.transient is None or bool(plan.burn_in)
    if not left_out:
        bias += first.transient / (N * eta)  # type: ignore[operator]
    known = f"{Kind.FIRST_ORDER.value} (±{error:.1g}){', start left out' if left_out else ''}"
    how = Method(Kind.ASYMPTOTIC, "asymptotic √(V/(Nη) + s/N + bias²)")
    return Averaged(std, how, bias, Method(Kind.FIRST_ORDER, known), error)


def _on_grid(
    plan: Plan, h: Observable, V: float, mean: tuple[float, float], first: First, chosen, limit: float
) -> Averaged:
    eta, N, (mu, mu_error) = plan.eta, plan.num_steps, mean
    try:
        found, text = grid_chain(plan, h, chosen), "the chain on a grid"
        bias, error, variance, share = found.mean - mu, mu_error + found.mean_error, found.variance, 1.0
    except InvalidInput:
        at, found = _smallest(plan, h, chosen, limit)
        text, share = f"the chain on a grid, extrapolated from η = {at:.2g}", eta / at
        slope = first.slope
        if slope is None:
            twice = grid_chain(plan, h, chosen, 2 * at)
            slope = (4 * (found.mean - mu) - (twice.mean - mu)) / (2 * at)  # b₁ of b₁η + b₂η² through both
        second = (found.mean - mu - slope * at) * share**2
        bias, error = slope * eta + second, mu_error + found.mean_error + share * abs(second) + eta * first.slope_error
        variance = V / eta + (found.variance - V / at)  # N·Var = V/η + s
    left_out = found.transient is None or bool(plan.burn_in)
    if not left_out:
        bias += found.transient / (share * N)  # type: ignore[operator]
        error += found.transient_error / (share * N)
    law = Method(Kind.GRID, f"{text} (±{error:.1g}){', start left out' if left_out else ''}")
    std = math.sqrt(max(variance, 0.0) / N)
    return Averaged(std, Method(Kind.ASYMPTOTIC, "asymptotic, √(variance of the chain/N + bias²)"), bias, law, error)


def _smallest(plan: Plan, h: Observable, chosen, limit: float) -> tuple[float, GridChain]:
    """The smallest step size among η·2, η·4, … that has a grid, with its chain; `InvalidInput` where there is none."""
    at = 2 * plan.eta
    while at < LARGEST * limit / 2:
        try:
            return at, grid_chain(plan, h, chosen, at)
        except InvalidInput:
            at *= 2
    raise InvalidInput("no step size below the stability limit has a grid")
