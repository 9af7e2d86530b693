"""Bias and standard deviation of one chain's average at the plan's own step size, for targets that are not Gaussian.

Input: V, μ(h), the first effects of the step size, the stability. Output: an `Answer` with the bias η·slope + transient/(Nη) and
the variance V/(Nη) + s/N. What the step size adds beyond its first order is that of the nearest Gaussian. The error of the bias
counts the second order twice as large as there; for balanced noise, which has none there, times how far the target is from one.
"""

import dataclasses
import functools
import math

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.answers import Answer, Kind, Method, Number
from gyromc.prediction.following import Transient
from gyromc.prediction.stability import Stability
from gyromc.prediction.step_effects import OnGaussian, no_first_order, not_gaussian, on_nearest_gaussian

NONE = Number(0.0, 0.0)
LOST = "unknown: chains from the plan's start do not come to the bulk of the target in its steps"
ENDS = 1.5  # over rate × time: the part of both ends of a chain in the variance of its average
OF_GAUSSIAN = ", s of the nearest Gaussian"
SECOND_ORDER = 2.0  # the second order in η against that of a Gaussian, at most
# Share of the error: what the estimated mean of the nearest Gaussian makes of an odd function on a symmetric target.
TRACE = 1e-3
NOT_RESOLVED = 0.5  # share of a bias, from which on an error that also exceeds the standard deviation of h refutes it
NOTHING = 1e-9  # s against V/η: rounding
SHORT = 5.0  # relaxation times V/(2 Var h)


@dataclasses.dataclass(frozen=True)
class First:
    """First effects of the step size: bias η·slope + transient/(Nη), variance V/(Nη) + floor/N; None where not known.

    A transient that is NaN is that of chains that were followed and did not come to the bulk of the target.
    """

    slope: Number | None = None
    transient: Transient | None = None
    floor: Number | None = NONE


@dataclasses.dataclass(frozen=True, eq=False)
class ChainAverage:
    """The average of an observable of a plan, with what is known of it under the target."""

    plan: Plan
    h: Observable
    base: Answer  # with V and μ(h)
    spread: float = math.nan  # the standard deviation of h
    first: First | None = None  # None: only the leading variance is known
    steady: Stability | None = None

    @property
    def share(self) -> float:
        """The step size as a share of the largest stable one; 1 where that is not known."""
        eta, limit = self.plan.eta, math.nan if self.steady is None else self.steady.largest_step_size
        return eta / limit if limit > eta else 1.0

    @property
    def rate(self) -> float:
        """How fast the start is forgotten: the slowest rate of the linear chain, or that of h where it is slower."""
        V = self.base.variance
        own = 2 * self.spread**2 / V if V > 0 else math.inf  # V = 2 Var(h)/rate for one exponential
        return own if self.steady is None else min(own, max(self.steady.rate, 0.0))

    @functools.cached_property
    def near(self) -> OnGaussian | None:
        """The same average on the nearest Gaussian, where there is one."""
        try:
            return on_nearest_gaussian(self.plan, self.h) if self.plan.scheme.linear else None
        except InvalidInput:  # no Gaussian, or a step size beyond its limit
            return None

    @property
    def floor(self) -> Number | None:
        """s in N·Var = V/η + s: as on the nearest Gaussian, where all orders in η and in the noise are known.

        None where it is not known. Where there is no Gaussian, s is that of first order in the noise, over the target itself. By
        how much the two differ is an error, and so is the share of s by which V differs from that of the Gaussian.
        """
        plan, V, near = self.plan, self.base.variance, self.near
        euler, first = plan.scheme.is_euler, NONE if self.first is None else self.first.floor
        if first is None or not plan.scheme.linear:
            return None
        if near is None:
            return first if euler else None
        s, other = near.floor(V, plan.eta), abs(V / near.V - 1) if near.V > 0 else 1.0
        return Number(s, abs(s) * min(1.0, other) + (abs(s - first.value) if euler and first.value else 0.0))

    def answer(self) -> Answer:
        """The answer with the moments of the average, as far as they are known."""
        plan, base = self.plan, self.base
        if plan.scheduled:
            return base.noting("the step size is a schedule: V is known, the error of the average is not computed")
        found, slope = self._with_std(), None if self.first is None else self.first.slope
        if self.first is not None and base.expectation is not None:
            if slope is not None:
                found = self._with_bias(found, slope)
            elif no_first_order(plan):
                found = dataclasses.replace(found, bias_method=Method(Kind.SECOND_ORDER))
        time = plan.num_steps * plan.eta
        length = time * 2 * self.spread**2 / base.variance if base.variance > 0 else math.inf
        short = f"a chain lasts {length:.2g} relaxation times of an observable: too few for V/(Nη)"
        return found.noting(*([short] if length < SHORT else []))

    def _with_std(self) -> Answer:
        """With the standard deviation √(V/(Nη) + s/N), and what the start adds.

        Both ends of a chain have a part of 3/(2·rate·time) in the variance of one exponential.
        """
        plan, base = self.plan, self.base
        eta, N, euler, exact = plan.eta, plan.num_steps, plan.scheme.is_euler, isinstance(plan.oracle, Exact)
        V, V_error = max(base.variance, 0.0), base.variance_error if math.isfinite(base.variance_error) else math.inf
        s = NONE if self.first is None and euler and exact else self.floor
        text = "asymptotic √(ηV)" if 0.99 <= N * eta * eta <= 1.01 else "asymptotic √(V/(Nη))"
        if s is None and not exact:
            why = "unknown: what the noise of gradients adds is not known here"
            return dataclasses.replace(base, rmse_method=Method(Kind.UNKNOWN, why))
        if s is None:
            text, s = f"{text}, without what the scheme adds", Number(0.0, self.share * base.variance / eta)
        elif abs(s.value) > NOTHING * V / eta or not euler:
            text = f"asymptotic √(V/(Nη) + s/N){'' if euler else OF_GAUSSIAN}"
        # Of first order in η for Euler, and what a scheme of second order leaves; for exact gradients s is of the step size too.
        step = (self.share if euler else self.share**2) * (V / eta + (abs(s.value) if exact else 0.0))
        variance = max(V / eta + s.value, 0.0)  # E6, and s of T1
        ends = min(1.0, ENDS / (self.rate * N * eta)) if self.rate > 0 else 1.0
        total, error = variance / N, (V_error / eta + step + s.error + ends * variance) / N
        if self.first is not None and (start := self.first.transient) is not None:
            if math.isnan(start.value):
                return dataclasses.replace(base, rmse_method=Method(Kind.UNKNOWN, LOST))
            total, error = total + start.variance / (N * eta) ** 2, error + start.variance_error / (N * eta) ** 2
        return dataclasses.replace(
            base,
            std=math.sqrt(total),
            std_uncertainty=of_root(total, error),
            rmse_method=Method(Kind.ASYMPTOTIC, text),
        )

    def _with_bias(self, found: Answer, slope: Number) -> Answer:
        """With the bias η·slope + transient/(Nη) and the higher orders on the nearest Gaussian, unless its error refutes it."""
        assert self.first is not None
        plan, start, share = self.plan, self.first.transient, self.share
        eta, time = plan.eta, plan.num_steps * plan.eta
        bias = eta * slope.value
        higher = 0.0 if self.near is None else self.near.higher_bias
        second = share * abs(bias) + share**2 * self.spread * not_gaussian(plan)
        error = math.hypot(eta * slope.error, max(SECOND_ORDER * second, abs(higher)))
        bias, counted = bias + (higher if abs(higher) > TRACE * error else 0.0), False
        if start is not None and not math.isnan(start.value):
            counted, added = True, start.value / time
            # Where h is flat far out, its decay begins later: by one relaxation time.
            gone = min(1.0, math.exp(1 - self.rate * plan.burn_in * eta))
            left = gone if plan.burn_in else max(SECOND_ORDER * share, math.exp(-self.rate * time))
            bias += added if not plan.burn_in else 0.0
            error = math.hypot(error, start.error / time, added * left)
        how = found.rmse_method
        if error > max(self.spread, NOT_RESOLVED * abs(bias)):
            why = f"unknown: its error ({error:.1g}) exceeds the standard deviation of the observable"
            return dataclasses.replace(found, bias_method=Method(Kind.UNKNOWN, why))
        if how.kind is Kind.ASYMPTOTIC:
            scheme = "" if plan.scheme.is_euler else OF_GAUSSIAN
            how = Method(how.kind, f"asymptotic √(V/(Nη) + s/N + bias²){scheme}")
        law = Method(
            Kind.FIRST_ORDER, f"{Kind.FIRST_ORDER.value} (±{error:.1g}){'' if counted else ', start left out'}"
        )
        return dataclasses.replace(
            found, bias=bias, bias_error=error, bias_method=law, start_counted=counted, rmse_method=how
        )


def of_root(square: float, error: float) -> float:
    """The error of a root from that of what is below it."""
    return error / (2 * math.sqrt(square)) if error < square else math.sqrt(square + error) - math.sqrt(square)
