"""Routes from a plan and an observable to V(h), the surest first.

Input: a plan and one of its observables. Output: an `Answer`: V, V_0, μ(h), the moments of one chain's average, and the method
behind each. A route that cannot answer raises `InvalidInput` with the reason or returns None, and the next one is tried.
"""

import contextlib
import dataclasses
import functools
import math

import numpy as np

from gyromc.approx.sample import MOST_PARAMETERS, Sample
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.martingale import HELPS
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.answers import Answer, Kind, Method, Number, Reduction, reduction
from gyromc.prediction.averages import OF_GAUSSIAN, ChainAverage, First, of_root
from gyromc.prediction.exact import closed_forms
from gyromc.prediction.exact.chain import START_DRAWS, lift, linear_chain, why_not_linear
from gyromc.prediction.exact.moments import MOST_FOLLOWED, Moments, exact_moments, ridge_mean, why_not_exact
from gyromc.prediction.poisson import galerkin
from gyromc.prediction.poisson import plug_in as plugin
from gyromc.prediction.residuals import Residuals
from gyromc.prediction.stability import Stability
from gyromc.prediction.step_effects import StepEffects

ALONE = 0.1  # share of one draw in the error of a mean
COMPARABLE = 0.5  # an error of this share of a number: the number is not known
EXPLAINED = 0.5  # share of the variance of h that its linearisation at the mode must explain
NOT_RESOLVED = Method(Kind.UNKNOWN, "unknown: the error of V is comparable with V")


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """What several observables of one plan share, computed when first asked for."""

    plan: Plan
    sample: Sample | None  # the user's
    digits: int
    steady: Stability | None = None
    _fitted: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def effects(self) -> StepEffects:
        """First effects of the step size, from the pilot sample."""
        return StepEffects(self.plan, self.pilot)

    def fitted(self, degree: int | None = None) -> plugin.Fitted:
        """The plug-in's averages over the pilot sample; degree: the highest that the sample allows."""
        if degree not in self._fitted:
            self._fitted[degree] = plugin.Fitted(self.pilot, self.plan.dynamics.D, self.plan.dynamics.Q, degree)
        return self._fitted[degree]

    @functools.cached_property
    def pilot(self) -> Sample:
        """The user's sample, or one drawn around the mode; `InvalidInput` where neither can be trusted."""
        if self.sample is not None:
            return self.sample
        drawn = self.plan.model.trusted_sample_of()
        if drawn is None:
            raise InvalidInput(
                f"no draws around the mode can be trusted: {self.plan.model.why_not_trusted()}; pass `sample`"
            )
        return drawn

    @functools.cached_property
    def residuals(self) -> Residuals:
        """What martingales leave, over the pilot sample."""
        return Residuals(self.plan, self.pilot)

    @functools.cached_property
    def exact(self) -> dict[str, Moments]:
        """Exact finite-step moments, where there are any."""
        return exact_moments(self.plan)


def answer(shared: Shared, name: str) -> Answer:
    """The answer of the first route that has one, with the reasons of those before it as notes."""
    h, notes = shared.plan.observables[name], []
    for route in (_on_gaussian, _poisson, _sampled, _laplace):
        try:
            found = route(shared, name, h)
        except InvalidInput as error:
            notes.append(f"{name}: {error}")
            continue
        if found is not None:
            found = dataclasses.replace(found, num_chains=shared.plan.num_chains).noting(*notes)
            return _less_martingale(shared, name, found) if shared.plan.martingale else found
    return Answer(method=Method(Kind.UNKNOWN, "unknown: no route serves")).noting(*notes)


def _less_martingale(shared: Shared, name: str, found: Answer) -> Answer:
    """The answer for the average that a run uses: less its martingale where that makes the variance smaller by enough."""
    plan, how = shared.plan, found.rmse_method
    if name in shared.exact:
        variance, error = shared.exact[name].corrected, 0.0
    else:
        try:
            values = plan.model.values(plan.observables[name], shared.pilot.theta)
            left = shared.residuals.left(name, values, shared.fitted())
            variance, error = left.value / plan.num_steps, left.error / plan.num_steps  # T9
        except InvalidInput as error:
            return found.noting(f"{name}: what the martingale takes off is not known: {error}")
        how = Method(Kind.MARTINGALE, f"{Kind.MARTINGALE.value}, from a sample")
    if variance is None or not variance < HELPS * found.std**2:
        return found
    std = math.sqrt(variance)
    return dataclasses.replace(
        found, std=std, std_uncertainty=of_root(variance, error), plain_std=found.std, rmse_method=how
    )


def _on_gaussian(shared: Shared, name: str, h: Observable) -> Answer | None:
    """Closed forms for uᵀθ and (uᵀθ)², Mehler's formula for other ρ(uᵀθ); exact finite-step moments where there are some."""
    plan = shared.plan
    gaussian = plan.flat_target.gaussian()
    if gaussian is None or not isinstance(h, Ridge):
        return None
    D, Q, P = plan.dynamics.D, plan.dynamics.Q, augment(gaussian[0], plan.augmented)
    zero, u, shift = np.zeros_like(Q), lift(h.direction, len(D)), float(h.direction @ gaussian[1])
    closed = how = Method(Kind.CLOSED_FORM)
    errors = dict.fromkeys(("variance_error", "reversible_variance_error", "expectation_error"), 0.0)
    if h.is_linear:
        mu = shift
        V, V0 = (closed_forms.fluctuation_constant(D, q, P, u) for q in (Q, zero))
        strict = reduction(closed_forms.strictness_integral(D, Q, P, None, u), Q, V, V0)
    elif h.is_square:
        form, slope = np.outer(u, u), 2 * shift * u
        mu = shift**2 + float(u @ closed_forms.precision_solve(P, u))
        V, V0 = (closed_forms.quadratic_fluctuation_constant(D, q, P, form, slope) for q in (Q, zero))
        strict = reduction(closed_forms.strictness_integral(D, Q, P, form, slope), Q, V, V0)
    elif np.any(u):
        how = Method(Kind.MEHLER)
        sd = math.sqrt(float(u @ closed_forms.precision_solve(P, u)))
        mu, mu_error = closed_forms.ridge_expectation(h.rho, shift, sd)
        (V, V_error), (V0, V0_error) = map(_known, closed_forms.ridge_constants(D, Q, P, u, h.rho, shift))
        errors = {"variance_error": V_error, "reversible_variance_error": V0_error, "expectation_error": mu_error}
        strict = Reduction(V + V_error < V0 - V0_error, math.nan, V / V0)  # V and V_0 decide: no integral
    else:
        return None
    known = NOT_RESOLVED if math.isnan(V) else how
    base = Answer(V, V0, known, expectation=mu, expectation_method=closed, strict_reduction=strict)
    base = dataclasses.replace(base, **errors)
    if name in shared.exact:
        moments, exact = shared.exact[name], Method(Kind.EXACT)
        if moments.start_error:
            exact = Method(Kind.EXACT, f"{exact}, start drawn {START_DRAWS} times (±{moments.start_error:.1g})")
        return dataclasses.replace(
            base,
            bias=moments.mean - mu,
            bias_method=exact,
            bias_error=moments.start_error,
            start_counted=True,
            std=math.sqrt(moments.variance),
            std_uncertainty=moments.start_error,
            rmse_method=exact,
        )
    deviation = math.sqrt(closed_forms.ridge_moments(h, *gaussian)[1])
    found = _with_law(plan, ChainAverage(plan, h, base, deviation, None, shared.steady).answer(), h)
    if how.kind is Kind.MEHLER:
        return found
    return found.noting(f"{name}: no exact finite-step error: {why_not_exact(plan, name)}")


def _with_law(plan: Plan, found: Answer, h: Ridge) -> Answer:
    """The answer with the bias that the law of the chain's states gives, where that can be followed."""
    if why_not_linear(plan) is not None:
        return found
    chain = linear_chain(plan)
    if not chain.additive and chain.size > MOST_FOLLOWED:
        return found
    assert found.expectation is not None
    mean, error = ridge_mean(chain, h, plan.num_steps, plan.burn_in, drawn=plan.starts.draw is not None)
    law = Kind.LAW if chain.additive or h.is_square else Kind.GAUSSIAN_LAW
    how = found.rmse_method
    if how.kind is Kind.ASYMPTOTIC:
        floor = "" if plan.scheme.is_euler and isinstance(plan.oracle, Exact) else " + s/N"
        how = Method(how.kind, f"asymptotic √(V/(Nη){floor} + bias²){'' if plan.scheme.is_euler else OF_GAUSSIAN}")
    known = {"bias": mean - found.expectation, "bias_error": error + found.expectation_error, "start_counted": True}
    return dataclasses.replace(found, **known, bias_method=Method(law), rmse_method=how)


def _known(found: Number) -> Number:
    """V with its error; NaN where the error is comparable with V."""
    return found if 0 <= found.error <= COMPARABLE * found.value else Number(math.nan, abs(found.error))


def _poisson(shared: Shared, name: str, h: Observable) -> Answer | None:
    """The Poisson equation, solved; not used when the user passed a sample."""
    plan = shared.plan
    if shared.sample is not None or galerkin.why_not_galerkin(plan, h) is not None:
        return None
    found = galerkin.solve(plan, h, shared.digits)
    V, V0 = _known(found.variance), _known(found.reversible_variance)
    base = Answer(
        variance=V.value,
        variance_error=V.error,
        reversible_variance=V0.value,
        reversible_variance_error=V0.error,
        method=Method(Kind.GALERKIN, found.method),
        expectation=found.expectation.value,
        expectation_error=found.expectation.error,
        expectation_method=Method(Kind.QUADRATURE, f"quadrature (±{found.expectation.error:.1g})"),
        strict_reduction=reduction(found.strictness, plan.dynamics.Q, V.value, V0.value),
    )
    if math.isnan(V.value):
        return dataclasses.replace(base, method=NOT_RESOLVED, strict_reduction=None)
    additive = isinstance(plan.oracle, Exact | Gaussian)
    floor = Number(found.floor, found.floor**2 * plan.eta / V.value if V.value > 0 else 0.0)
    first = (
        First(found.bias_slope, found.transient, floor) if additive else First(transient=found.transient, floor=None)
    )
    if not additive:
        with contextlib.suppress(InvalidInput):  # no sample that can be trusted
            values = plan.model.values(h, shared.pilot.theta)
            first = _first(shared, h, values, found.expectation.value, shared.fitted().solve(values))
    answer = ChainAverage(plan, h, base, found.spread, first, shared.steady).answer()
    return answer if additive or answer.bias is not None else answer.noting(_unknown_noise(plan, name))


def _sampled(shared: Shared, name: str, h: Observable) -> Answer | None:
    """The plug-in on the user's sample or on an importance sample."""
    plan, sample = shared.plan, shared.pilot
    values = plan.model.values(h, sample.theta)
    if not np.all(np.isfinite(values[sample.weights > 0])):
        raise InvalidInput("the observable is NaN or infinite on the sample")
    values = np.where(np.isfinite(values), values, 0.0)
    mu, error = sample.mean(values)
    if (share := sample.largest_share(values)) > ALONE:
        raise InvalidInput(f"one draw of the sample makes {100 * share:.2g} % of the error: the sample is too small")
    base = Answer(
        expectation=mu, expectation_error=error, expectation_method=Method(Kind.SAMPLE, f"sample (se {error:.2g})")
    )
    D, Q = plan.dynamics.D, plan.dynamics.Q
    found, (z, forces) = shared.fitted().solve(values), shared.effects.draws
    share = plugin.residual_share(found.poisson, z, forces, plan.model.values(h, z[:, : plan.dim]), D, Q)
    left_out = share / (1 - share) if share < 1 else math.inf  # what φ leaves unexplained decays no slower than h
    V = _known(Number(found.variance, found.std_error + left_out * found.variance))
    V0 = _known(Number(found.reversible_variance, found.reversible_std_error + left_out * found.reversible_variance))
    if math.isnan(V.value):
        return dataclasses.replace(base, variance_error=V.error, method=NOT_RESOLVED)
    terms = np.sum(found.reversible_poisson.gradients(z) * (forces @ Q.T), axis=1) ** 2  # E7
    integral, integral_error = float(np.mean(terms)), float(np.std(terms) / np.sqrt(len(terms)))
    base = dataclasses.replace(
        base,
        variance=V.value,
        variance_error=V.error,
        reversible_variance=V0.value,
        reversible_variance_error=V0.error,
        method=Method(Kind.PLUG_IN, dataclasses.replace(found, std_error=V.error).method),
        strict_reduction=reduction(integral, Q, V.value, V0.value, integral_error),
        notes=(f"{name}: plug-in of degree {found.degree} ({found.functions} functions) on {sample.source}",),
    )
    spread_h = math.sqrt(sample.mean((values - mu) ** 2)[0])
    return ChainAverage(plan, h, base, spread_h, _first(shared, h, values, mu, found), shared.steady).answer()


def _first(shared: Shared, h: Observable, values: np.ndarray, mu: float, found: plugin.PlugIn) -> First:
    """First effects of the step size by the plug-in, for h given at the pilot sample.

    What two degrees less change in the bias per unit of step size is an error of it. A linear φ has no curvature, so no bias.
    """
    plan, effects = shared.plan, shared.effects
    s = effects.floor(found.poisson) if plan.scheme.is_euler else 0.0
    floor = Number(s, s**2 * plan.eta / found.variance if found.variance > 0 else 0.0)
    if found.degree < 2:
        return First(floor=floor)
    slope = effects.slope(found.poisson)
    if slope is not None and found.degree > 2:
        lower = effects.slope(shared.fitted(max(2, found.degree - 2)).solve(values).poisson)
        assert lower is not None
        slope = Number(slope.value, math.hypot(slope.error, slope.value - lower.value))
    return First(slope, effects.transient(found.poisson, lambda theta: plan.model.values(h, theta) - mu), floor)


def _unknown_noise(plan: Plan, name: str) -> str:
    return f"{name}: what the noise of {plan.oracle.name} gradients adds to the error is not known here"


def _laplace(shared: Shared, name: str, h: Observable) -> Answer | None:
    """The closed form with the Hessian at the mode and h linearised there; only where nothing could be drawn for its size."""
    if shared.plan.dim <= MOST_PARAMETERS or shared.sample is not None:
        return None
    _require_linear(shared.plan, h)
    V, V0, integral = laplace_constants(shared.plan, h)
    strict = reduction(integral, shared.plan.dynamics.Q, V, V0)
    base = Answer(V, V0, Method(Kind.LAPLACE), strict_reduction=strict)
    return ChainAverage(shared.plan, h, base, steady=shared.steady).answer()


def _require_linear(plan: Plan, h: Observable, draws: int = 400) -> None:
    """Raise `InvalidInput` where h is far from linear over the Laplace approximation: an even h has no slope at the mode."""
    center = plan.model.laplace
    x = np.random.default_rng(0).standard_normal((draws, plan.dim))
    away = np.linalg.solve(np.linalg.cholesky(center.precision).T, x.T).T
    values = plan.model.values(h, center.mean + away)
    missed = float(np.var(values - away @ plan.model.value_gradients(h, center.mean[None])[0]))
    if not missed <= (1 - EXPLAINED) * float(np.var(values)):
        raise InvalidInput("the observable is far from linear around the mode: pass `sample`")


def laplace_constants(plan: Plan, h: Observable) -> tuple[float, float, float]:
    """V, V_0 and the strictness integral for the Laplace approximation of the target, h linearised at the mode."""
    center = plan.model.laplace
    D, Q, P = plan.dynamics.D, plan.dynamics.Q, augment(center.precision, plan.augmented)
    u = lift(plan.model.value_gradients(h, center.mean[None])[0], len(D))
    V, V0 = (closed_forms.fluctuation_constant(D, q, P, u) for q in (Q, np.zeros_like(Q)))
    return V, V0, closed_forms.strictness_integral(D, Q, P, None, u)
