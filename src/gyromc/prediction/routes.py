"""How V(h) becomes known: the routes from a plan and an observable to an `Answer`, the surest first (E6-E11, T1-T3).

Receives a plan and one of its observables; hands on V, V_0, μ(h), the moments of one chain's average and the name of the method
behind each. A route that cannot serve says why, and the next is tried.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.evaluation import over_rows
from gyromc.observables import PROFILES, Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.corrections import corrections
from gyromc.prediction.exact import closed_forms, mehler
from gyromc.prediction.exact.chain import augment, augment_vector, linear_chain, why_not_linear
from gyromc.prediction.exact.law import ridge_mean, why_not_law
from gyromc.prediction.exact.moments import exact_moments, why_not_exact
from gyromc.prediction.poisson import galerkin
from gyromc.prediction.poisson import plug_in as plugin
from gyromc.prediction.reduction import Reduction, reduction, sampled_integral
from gyromc.shape.importance import Sample
from gyromc.shape.laplace import Laplace

MOST_PARAMETERS = 60  # for an importance sample
HEALTHY = 0.05  # effective size, as a share of the draws


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is predicted for one observable; None where it is not known."""

    variance: float | None = None  # V
    reversible_variance: float | None = None  # V_0
    method: str = "unknown"
    expectation: float | None = None  # μ(h)
    expectation_method: str = "unknown"
    bias: float | None = None  # of one chain's average
    bias_method: str = "unknown"
    bias_error: float = 0.0  # standard error of the bias, where it is sampled
    std: float | None = None  # of one chain's average
    rmse: float | None = None
    rmse_method: str = "unknown"
    reduction: Reduction | None = None
    notes: tuple[str, ...] = ()

    def noting(self, *notes: str) -> "Answer":
        """The answer with something more to be said."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))


class Material:
    """What several observables of one plan share, made when first asked for."""

    def __init__(self, plan: Plan, sample: Sample | None, digits: int):
        self.plan, self.sample, self.digits = plan, sample, digits

    @functools.cached_property
    def center(self) -> Laplace:
        """The Laplace approximation."""
        return self.plan.model.laplace

    @functools.cached_property
    def pilot(self) -> Sample:
        """The user's sample, or one drawn around the mode; `InvalidInput` where neither can be trusted."""
        if self.sample is not None:
            return self.sample
        if self.plan.dim > MOST_PARAMETERS:
            raise InvalidInput(f"{self.plan.dim} parameters are too many for importance sampling: pass `sample`")
        drawn = self.plan.model.importance_sample()
        if drawn.effective_size < HEALTHY * len(drawn.weights):
            raise InvalidInput(
                f"the Laplace approximation is too far off: {len(drawn.weights)} draws are worth {drawn.effective_size:.0f}; "
                "pass `sample`"
            )
        return drawn

    @functools.cached_property
    def exact(self):
        """T1's moments, where there are any."""
        return exact_moments(self.plan)


def answer(material: Material, name: str) -> Answer:
    """The first route that serves, with what the others said on the way."""
    h, notes = material.plan.observables[name], []
    for route in (_gaussian, _ridge_on_gaussian, _poisson, _sampled, _laplace):
        try:
            found = route(material, name, h)
        except InvalidInput as error:
            notes.append(f"{name}: {error}")
            continue
        if found is not None:
            return found.noting(*notes)
    return Answer(method="unknown: no route serves").noting(*notes)


def _matrices(plan: Plan, K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return plan.dynamics.D, plan.dynamics.Q, augment(K, plan.augmented)


def _gaussian(material: Material, name: str, h: Observable) -> Answer | None:
    """Closed forms E8-E11 for uᵀθ and (uᵀθ)² on a Gaussian target, with the exact finite-step moments of T1."""
    plan = material.plan
    known = plan.flat_target.gaussian()
    if known is None or not isinstance(h, Ridge) or h.profile not in ("linear", "square"):
        return None
    K, mean = known
    D, Q, P = _matrices(plan, K)
    zero, u, shift = np.zeros_like(Q), augment_vector(h.direction, plan.augmented), float(h.direction @ mean)
    if h.profile == "linear":
        form, slope, mu = None, u, shift
        V, V0 = (closed_forms.fluctuation_constant(D, q, P, u) for q in (Q, zero))
    else:
        form, slope = np.outer(u, u), 2 * shift * u
        mu = shift**2 + float(u @ closed_forms.precision_solve(P, u))
        V, V0 = (closed_forms.quadratic_fluctuation_constant(D, q, P, form, slope) for q in (Q, zero))
    integral = closed_forms.strictness_integral(D, Q, P, form, slope)
    base = Answer(V, V0, "closed form", mu, "closed form", reduction=reduction(integral, Q, V, V0))
    if name in material.exact:
        moments = material.exact[name]
        std, bias = math.sqrt(moments.variance), moments.mean - mu
        return dataclasses.replace(
            base,
            bias=bias,
            bias_method="exact finite-step",
            std=std,
            rmse=math.hypot(bias, std),
            rmse_method="exact finite-step",
        )
    found = _with_law(plan, _asymptotic(plan, base), h)
    return found.noting(f"{name}: no exact finite-step error: {why_not_exact(plan, name)}")


def _ridge_on_gaussian(material: Material, name: str, h: Observable) -> Answer | None:
    """Mehler's formula for ρ(aᵀθ) on a Gaussian target of any dimension."""
    plan = material.plan
    known = plan.flat_target.gaussian()
    if known is None or not isinstance(h, Ridge) or not np.any(h.direction):
        return None
    D, Q, P = _matrices(plan, known[0])
    u, shift = augment_vector(h.direction, plan.augmented), float(h.direction @ known[1])
    profile = _profile(h)
    V, V0 = mehler.ridge_constants(D, Q, P, u, profile, shift)
    spread = math.sqrt(float(u @ closed_forms.precision_solve(P, u)))
    mu = mehler.expectation(profile, shift, spread)
    strict = Reduction(
        V < V0 * (1 - 1e-9), math.nan, V / V0
    )  # V and V_0 to 10 digits decide; E7's integral is not needed
    base = Answer(V, V0, "closed form (mehler)", mu, "closed form", reduction=strict)
    return _with_law(plan, _asymptotic(plan, base), h)


def _with_law(plan: Plan, found: Answer, h: Ridge) -> Answer:
    """The answer with the bias that the law of the chain's states gives, where that can be followed."""
    if why_not_linear(plan) is not None or why_not_law(linear_chain(plan)) is not None:
        return found
    chain = linear_chain(plan)
    assert found.expectation is not None
    assert found.std is not None
    bias = ridge_mean(chain, h, plan.num_steps, plan.burn_in) - found.expectation
    exact = chain.additive or h.profile == "square"
    return dataclasses.replace(
        found,
        bias=bias,
        bias_method="finite-step law" if exact else "finite-step law, Gaussian with exact second moments",
        rmse=math.hypot(bias, found.std),
        rmse_method="asymptotic √(V/(Nη) + bias²)",
    )


def _profile(h: Ridge) -> Callable[[np.ndarray], np.ndarray]:
    return lambda t: over_rows(PROFILES[h.profile], t)


def _poisson(material: Material, name: str, h: Observable) -> Answer | None:
    """The Poisson equation by Galerkin; left aside when the user brought a sample."""
    plan = material.plan
    if material.sample is not None or galerkin.why_not_galerkin(plan, h) is not None:
        return None
    found = galerkin.solve(plan, h, material.digits)
    base = Answer(
        variance=found.variance,
        reversible_variance=found.reversible_variance,
        method=found.method,
        expectation=found.expectation,
        expectation_method=f"quadrature (degree {found.degree})",
        reduction=reduction(found.strictness, plan.dynamics.Q, found.variance, found.reversible_variance),
    )
    return _asymptotic(plan, base, found.bias_slope, found.transient, found.floor)


def _sampled(material: Material, name: str, h: Observable) -> Answer | None:
    """The plug-in T3 on the user's sample or on an importance sample."""
    plan, sample = material.plan, material.pilot
    values = plan.model.values(h, sample.theta)
    if not np.all(np.isfinite(values[sample.weights > 0])):
        raise InvalidInput("the observable is NaN or infinite on the sample")
    values = np.where(np.isfinite(values), values, 0.0)
    D, Q = plan.dynamics.D, plan.dynamics.Q
    found = plugin.plug_in(sample, values, D, Q)
    mu, error = sample.mean(values)
    integral, spread = sampled_integral(plan, sample, found.reversible_poisson)
    base = Answer(
        variance=found.variance,
        reversible_variance=found.reversible_variance,
        method=found.method,
        expectation=mu,
        expectation_method=f"sample (se {error:.2g})",
        reduction=reduction(integral, Q, found.variance, found.reversible_variance, spread),
        notes=(f"{name}: plug-in of degree {found.degree} ({found.functions} functions) on {sample.source}",),
    )
    first = corrections(plan, sample, found.poisson)
    if found.degree < 2:  # a linear φ has no curvature
        return _asymptotic(plan, base, floor=first.floor)
    if found.degree > 2:  # what the basis misses, as far as two degrees less can tell
        lower = plugin.plug_in(sample, values, D, Q, max(2, found.degree - 2))
        missing = first.bias_slope - corrections(plan, sample, lower.poisson).bias_slope
        first = dataclasses.replace(first, bias_slope_error=math.hypot(first.bias_slope_error, missing))
    return _asymptotic(plan, base, first.bias_slope, first.transient, first.floor, first.bias_slope_error)


def _laplace(material: Material, name: str, h: Observable) -> Answer:
    """E8 with the Hessian at the mode and h linearised there."""
    plan = material.plan
    V, V0, integral = laplace_constants(plan, h)
    Q = plan.dynamics.Q
    return _asymptotic(plan, Answer(V, V0, "laplace", reduction=reduction(integral, Q, V, V0)))


def laplace_constants(plan: Plan, h: Observable) -> tuple[float, float, float]:
    """V, V_0 and the integral of E7 for the Laplace approximation of the target, h linearised at the mode."""
    center = plan.model.laplace
    D, Q, P = _matrices(plan, center.precision)
    u = augment_vector(plan.model.value_gradients(h, center.mode[None])[0], plan.augmented)
    V, V0 = (closed_forms.fluctuation_constant(D, q, P, u) for q in (Q, np.zeros_like(Q)))
    return V, V0, closed_forms.strictness_integral(D, Q, P, None, u)


def _asymptotic(
    plan: Plan,
    base: Answer,
    bias_slope: float | None = None,
    transient: float | None = None,
    floor: float = 0.0,
    slope_error: float = 0.0,
) -> Answer:
    """Moments of one chain's average from V: variance V/(Nη) + s/N, bias η·slope + transient/(Nη), where these are known."""
    assert base.variance is not None
    if plan.scheduled:
        return base.noting("the step size is a schedule: V is known, the error of the average is not worked out")
    eta, N = plan.eta, plan.num_steps
    std = math.sqrt(max(base.variance, 0.0) / (N * eta) + floor / N)  # E6, and s of T1
    if bias_slope is None or not plan.scheme.is_euler:
        method = "asymptotic √(V/(Nη))" if N * eta * eta < 0.99 or N * eta * eta > 1.01 else "asymptotic √(ηV)"
        return dataclasses.replace(base, std=std, rmse=std, rmse_method=method)
    start = 0.0 if transient is None or plan.burn_in else transient / (N * eta)
    bias = eta * bias_slope + start
    return dataclasses.replace(
        base,
        bias=bias,
        bias_error=eta * slope_error,
        bias_method="first order in η"
        + (f" (se {eta * slope_error:.1g})" if slope_error else "")
        + (", start left out" if transient is None or plan.burn_in else ""),
        std=std,
        rmse=math.hypot(bias, std),
        rmse_method="asymptotic √(V/(Nη) + s/N + bias²)",
    )
