"""Moments of one chain's average at the plan's own step size, for targets that are not Gaussian; what a martingale leaves.

Input: V, μ(h), the first effects of the step size, the stability. Output: an `Answer` with them. Up to two coupled coordinates
the chain's own stationary law is computed on a grid, or on grids at larger steps from which terms of second order follow.
Otherwise bias and variance are those of first order in η, and the error of the bias counts a second order twice as large as on a
Gaussian (for balanced noise, which has none there: times how far the target is from a Gaussian).

`Residuals` takes a plan with `martingale=True` and a weighted sample of the posterior, and returns N·Var of the corrected
average. With φ the control variate's function, y⁺ = Ay + B(∇H + δ) + Cξ and ȳ⁺ = Ay + B∇H,
    h(y_k) - ψ_k = const + φ(y_k) - φ(y_{k+1}) + ρ(y_k) + χ_k,
ρ = h - φ(y) + φ(ȳ⁺) the residual of the Poisson equation (0 on a Gaussian), χ the part of φ's increment that δ makes. The first
difference leaves a boundary, ρ has the variance of an average of its own, and χ has no correlation in time.
"""

import contextlib
import dataclasses
import functools
import math

import numpy as np

from gyromc.approx.sample import Sample
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.martingale import Martingale, doubled_sum, martingale
from gyromc.observables import Observable
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.answers import Answer, Kind, Method, Number
from gyromc.prediction.following import Transient
from gyromc.prediction.grid import GridChain, Grids, why_not_grid
from gyromc.prediction.poisson.plug_in import Fitted
from gyromc.prediction.stability import Stability
from gyromc.prediction.step_effects import no_first_order, not_gaussian
from gyromc.schemes.moments import oracle_covariances, why_no_moments

NONE = Number(0.0, 0.0)
UNKNOWN_NOISE = "what the noise of gradients adds is not known here"
LOST = "unknown: chains from the plan's start do not come to the bulk of the target in its steps"
ENDS = 1.5  # over rate × time: the part of both ends of a chain in the variance of its average
OF_GAUSSIAN = ", s of the nearest Gaussian"
SECOND_ORDER = 2.0  # the second order in η against that of a Gaussian, at most
EXTRAPOLATED = 0.1  # error of the effect of the start at another step size, as a share
LARGEST = 0.6  # of the stability limit: step sizes of grids from which smaller ones are extrapolated
NOT_RESOLVED = 0.5  # share of a bias, from which on an error that also exceeds the standard deviation of h refutes it
SAME = 0.1  # standard deviations between μ(h) on a grid and μ(h), from which the grid misses a part of the target


@dataclasses.dataclass(frozen=True)
class First:
    """First effects of the step size: bias η·slope + transient/(Nη), variance V/(Nη) + floor/N; None where not known.

    A transient that is NaN is that of chains that were followed and did not come to the bulk of the target.
    """

    slope: Number | None = None
    transient: Transient | None = None
    floor: Number | None = NONE


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """An observable of a plan, with what is known of it under the target."""

    plan: Plan
    h: Observable
    base: Answer  # with V and μ(h)
    spread: float  # the standard deviation of h
    chosen: tuple[int, ...]  # the coordinates of z that it is coupled with
    steady: Stability | None

    @property
    def V(self) -> Number:
        """V, and its error: infinite where that is not known."""
        error = self.base.variance_error
        return Number(self.base.variance, error if math.isfinite(error) else math.inf)

    @property
    def limit(self) -> float:
        """The largest stable step size; NaN where it is not known."""
        return math.nan if self.steady is None else self.steady.largest_step_size

    @property
    def rate(self) -> float:
        """How fast the start is forgotten: the slowest rate of the linear chain, or that of h where it is slower."""
        own = (
            2 * self.spread**2 / self.V.value if self.V.value > 0 else math.inf
        )  # V = 2 Var(h)/rate for one exponential
        return own if self.steady is None else min(own, max(self.steady.rate, 0.0))

    @property
    def share(self) -> float:
        """The step size as a share of the largest stable one; 1 where that is not known."""
        return self.plan.eta / self.limit if self.limit > self.plan.eta else 1.0

    def spread_of(self, variance: Number, start: Transient | None, how: Method) -> Answer:
        """The answer with `std` of an average, its error and method, from N·Var and the sum of η(h - μ) that the start adds.

        Both ends of a chain have a part of 3/(2·rate·time) in the variance of one exponential.
        """
        time, N = self.plan.num_steps * self.plan.eta, self.plan.num_steps
        if start is not None and math.isnan(start.value):
            return self.of_std(math.nan, math.nan, Method(Kind.UNKNOWN, LOST))
        ends = min(1.0, ENDS / (self.rate * time)) if self.rate > 0 else 1.0
        total, error = max(variance.value, 0.0) / N, (variance.error + ends * max(variance.value, 0.0)) / N
        if start is not None:
            total, error = total + start.variance / time**2, error + start.variance_error / time**2
        return self.of_std(math.sqrt(total), of_root(total, error), how)

    def of_std(self, std: float, error: float, how: Method) -> Answer:
        """The answer with the standard deviation of an average."""
        return dataclasses.replace(self.base, std=std, std_uncertainty=error, rmse_method=how)


def of_root(square: float, error: float) -> float:
    """The error of a root from that of what is below it."""
    return error / (2 * math.sqrt(square)) if error < square else math.sqrt(square + error) - math.sqrt(square)


def averaged(asked: Asked, first: First, grids: Grids) -> Answer:
    """The answer with the moments of one chain's average; a bias that its error exceeds by far is not known."""
    found = None
    if why_not_grid(asked.plan, asked.chosen) is None:
        with contextlib.suppress(InvalidInput):  # no grid that can be solved and holds the target
            found = _on_grid(asked, first, grids)
    return _known(found or first_order(asked, first), asked.spread)


def _known(found: Answer, spread: float) -> Answer:
    """Without a bias whose error is larger than the standard deviation of h and comparable with the bias itself."""
    if found.bias is None or not found.bias_error > max(spread, NOT_RESOLVED * abs(found.bias)):
        return found
    why = f"unknown: its error ({found.bias_error:.1g}) exceeds the standard deviation of the observable"
    how = Method(found.rmse_method.kind, found.rmse_method.replace(" + bias²", ""))
    unknown = {"bias": None, "bias_error": 0.0, "start_counted": False, "bias_method": Method(Kind.UNKNOWN, why)}
    return dataclasses.replace(found, rmse_method=how, **unknown)


def leading(asked: Asked, first: First) -> Answer:
    """The variance V/(Nη) + s/N alone, where nothing is known of the bias; s = None: not known for this scheme or oracle."""
    eta, N, V, s = asked.plan.eta, asked.plan.num_steps, asked.V, first.floor
    euler = asked.plan.scheme.is_euler
    text = "asymptotic √(ηV)" if 0.99 <= N * eta * eta <= 1.01 else "asymptotic √(V/(Nη))"
    if s is None and not isinstance(asked.plan.oracle, Exact):
        return asked.of_std(math.nan, math.nan, Method(Kind.UNKNOWN, f"unknown: {UNKNOWN_NOISE}"))
    if s is None:
        text, s = f"{text}, without what the scheme adds", Number(0.0, asked.share * V.value / eta)
    elif s.value or not euler:
        text = f"asymptotic √(V/(Nη) + s/N){'' if euler else OF_GAUSSIAN}"
    # Of first order in η for Euler, and what a scheme of second order leaves.
    step = (asked.share if euler else asked.share**2) * max(V.value, 0.0)
    variance = Number(max(V.value, 0.0) / eta + s.value, (V.error + step) / eta + s.error)  # E6, and s of T1
    return asked.spread_of(variance, first.transient, Method(Kind.ASYMPTOTIC, text))


def first_order(asked: Asked, first: First) -> Answer:
    """Variance V/(Nη) + s/N and bias η·slope + transient/(Nη), where these are known."""
    plan, found = asked.plan, leading(asked, first)
    if first.slope is None:
        second = no_first_order(plan)
        return dataclasses.replace(found, bias_method=Method(Kind.SECOND_ORDER)) if second else found
    eta, time, share = plan.eta, plan.num_steps * plan.eta, asked.share
    bias, start = eta * first.slope.value, first.transient
    second = share * abs(bias) + share**2 * asked.spread * not_gaussian(plan)
    error = math.hypot(eta * first.slope.error, SECOND_ORDER * second)
    counted = start is not None and not math.isnan(start.value)
    if start is not None and counted:
        added, still = start.value / time, math.exp(-asked.rate * time)
        gone = math.exp(-asked.rate * plan.burn_in * eta)
        bias += added if not plan.burn_in else 0.0
        error = math.hypot(error, start.error / time, added * (gone if plan.burn_in else still))
    law = Method(Kind.FIRST_ORDER, _described(Kind.FIRST_ORDER.value, error, counted))
    how = found.rmse_method
    if how.kind is Kind.ASYMPTOTIC:
        how = Method(how.kind, f"asymptotic √(V/(Nη) + s/N + bias²){'' if plan.scheme.is_euler else OF_GAUSSIAN}")
    return _with_bias(found, bias, error, law, counted, how)


def _with_bias(found: Answer, bias: float, error: float, law: Method, counted: bool, how: Method) -> Answer:
    known = {"bias": bias, "bias_error": error, "bias_method": law, "start_counted": counted}
    return dataclasses.replace(found, rmse_method=how, **known)


def _described(text: str, error: float, start: bool) -> str:
    return f"{text} (±{error:.1g}){'' if start else ', start left out'}"


def _on_grid(asked: Asked, first: First, grids: Grids) -> Answer:
    plan, mu, mu_error = asked.plan, asked.base.expectation, asked.base.expectation_error
    assert mu is not None
    eta, N = plan.eta, plan.num_steps
    try:
        found, share, text = grids.chain(asked.h, asked.chosen), 1.0, "the chain on a grid"
        bias, error, variance = found.mean.value - mu, found.mean.error, found.variance
    except InvalidInput:
        at, found = _smallest(asked, grids)
        share, text = eta / at, f"the chain on a grid, extrapolated from η = {at:.2g}"
        slope = first.slope
        if slope is None:
            twice = grids.chain(asked.h, asked.chosen, 2 * at).mean
            slope = Number((4 * (found.mean.value - mu) - (twice.value - mu)) / (2 * at), twice.error / at)
        second = (found.mean.value - mu - slope.value * at) * share**2  # of b₁η + b₂η²
        bias, error = slope.value * eta + second, found.mean.error + share * abs(second) + eta * slope.error
        beyond = found.variance.value - asked.V.value / at  # N·Var = V/η + s
        variance = Number(
            asked.V.value / eta + beyond, asked.V.error / eta + share * abs(beyond) + found.variance.error
        )
    missing = abs(found.target_mean - mu)
    if missing > SAME * found.spread + mu_error:
        raise InvalidInput("the grid misses a part of the target")
    error += mu_error + missing
    start, counted = found.transient, not math.isnan(found.transient.value)
    if counted:
        bias += start.value / (share * N)
        error += (start.error + (EXTRAPOLATED * abs(start.value) if share < 1 else 0.0)) / (share * N)
    law = Method(Kind.GRID, _described(text, error, counted))
    how = Method(Kind.ASYMPTOTIC, "asymptotic, √(variance of the chain/N + bias²)")
    # The grid sums h, the others ηh.
    in_time = Transient(*(x * (eta / share) ** k for x, k in zip(start, (1, 1, 2, 2), strict=True)))
    known = asked.spread_of(variance, in_time, how)
    return _with_bias(known, bias, error, law, counted, known.rmse_method)


def _smallest(asked: Asked, grids: Grids) -> tuple[float, GridChain]:
    """The smallest step size among η·2, η·4, … that has a grid, with its chain; `InvalidInput` where there is none."""
    at = 2 * asked.plan.eta
    while at < LARGEST * asked.limit / 2:
        try:
            return at, grids.chain(asked.h, asked.chosen, at)
        except InvalidInput:
            at *= 2
    raise InvalidInput("no step size below the stability limit has a grid")


POINTS = 500  # at which the oracle's covariance is evaluated


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """The parts that all observables of one plan share."""

    plan: Plan
    sample: Sample

    @functools.cached_property
    def _martingale(self) -> Martingale:
        return martingale(self.plan)

    @functools.cached_property
    def _states(self) -> tuple[np.ndarray, np.ndarray]:
        """y and ȳ⁺ at the sample's points, centred; a memory is drawn from its law given z on the nearest Gaussian."""
        plan, step = self.plan, self.plan.step_matrices
        fit, rng, d, n = plan.model.gaussian_fit, np.random.default_rng(0), plan.dim, plan.dynamics.size
        theta = self.sample.theta
        r = rng.standard_normal((len(theta), n - d))
        z = np.concatenate([theta - fit.mean, r], axis=1)
        y = z
        if plan.state_size > n:
            M = step.transition(augment(fit.precision, plan.augmented))
            X = doubled_sum(M, step.C @ step.C.T)
            onto = np.linalg.solve(X[:n, :n], X[:n, n:])
            rest = X[n:, n:] - X[n:, :n] @ onto
            values, basis = np.linalg.eigh((rest + rest.T) / 2)
            drawn = rng.standard_normal((len(z), len(rest))) * np.sqrt(np.maximum(values, 0.0))
            y = np.concatenate([z, z @ onto + drawn @ basis.T], axis=1)
        forces = np.concatenate([plan.flat_target.gradients(theta), r], axis=1)
        return y, y @ step.A.T + forces @ step.B.T

    @functools.cached_property
    def _oracle(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the sample, drawn by weight, and the oracle's covariance at each."""
        rows = np.random.default_rng(0).choice(len(self.sample.theta), POINTS, p=self.sample.weights)
        reason = why_no_moments(self.plan.prepared_oracle)
        if reason is not None:
            raise InvalidInput(reason)
        return rows, oracle_covariances(self.plan.flat_target, self.plan.prepared_oracle, self.sample.theta[rows])

    def left(self, name: str, values: np.ndarray, fitted: Fitted) -> Number:
        """What is left of N·Var for one observable, given at the sample's points; `fitted` is the plug-in on the same sample.

        Three parts: the residual, what is not Gaussian; the noise of gradients; both ends of a chain.
        """
        j = list(self.plan.observables).index(name)
        found, w = self._martingale, self.sample.weights
        v, own = found.slope[j], found.owner == j
        p, weight = found.direction[own], found.weight[own]
        y, after = self._states
        phi = y @ v + (y @ p.T) ** 2 @ weight
        rho = values - phi + after @ v + (after @ p.T) ** 2 @ weight  # T9: 0 on a Gaussian, up to a constant
        boundary = (2 if self.plan.burn_in else 1) * _variance(w, phi) / self.plan.num_steps
        left, error = self._residual(rho, fitted)
        return Number(left + self._noise(v, p, weight) + boundary, error + boundary)

    def _residual(self, rho: np.ndarray, fitted: Fitted) -> tuple[float, float]:
        """N·Var of the average of ρ, as for one exponential: Var ρ·coth(η Var ρ/V(ρ)), V/η for small η and Var ρ for large.

        Its error is that of V(ρ).
        """
        variance, eta, found = _variance(self.sample.weights, rho), self.plan.eta, fitted.solve(rho)
        V = max(found.variance, 0.0)
        if variance == 0 or V == 0:
            return variance, found.std_error / eta
        left = variance / math.tanh(eta * variance / V)
        return left, left * found.std_error / V

    def _noise(self, v: np.ndarray, p: np.ndarray, weight: np.ndarray) -> float:
        """E[χ²]: δ with its own covariance at every point, its fourth moments as of a Gaussian."""
        rows, Sigma = self._oracle
        if not np.any(Sigma):
            return 0.0
        B, after = self.plan.step_matrices.B[:, : self.plan.dim], self._states[1][rows]
        slope = (v + 2 * ((after @ p.T) * weight) @ p) @ B
        bend = Sigma.mean(axis=0) @ ((B.T @ p.T) * weight) @ (p @ B)
        return float(np.mean(np.einsum("si,sij,sj->s", slope, Sigma, slope, optimize=True)) + 2 * np.sum(bend * bend.T))


def _variance(weights: np.ndarray, values: np.ndarray) -> float:
    mean = float(weights @ values)
    return float(weights @ (values - mean) ** 2)
