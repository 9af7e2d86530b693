"""Routes from a plan and an observable to V(h), the surest first; then bias and deviation of one chain's average.

A route that cannot answer raises `InvalidInput` with the reason or returns None, and the next one is tried. Averages of targets
that are not Gaussian have the bias η·slope + transient/(Nη) and the variance V/(Nη) + s/N; s and all higher orders in η are those
of the nearest Gaussian.
"""

import dataclasses
import functools
import math

import numpy as np

from gyromc.approx.sample import MOST_PARAMETERS, Sample
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction import step_effects
from gyromc.prediction.answers import Answer, Kind, Method, Number
from gyromc.prediction.exact import closed_forms
from gyromc.prediction.exact.chain import START_DRAWS, lift, linear_chain, why_not_linear
from gyromc.prediction.exact.moments import MOST_FOLLOWED, Moments, exact_moments, ridge_mean, why_not_exact
from gyromc.prediction.martingale import HELPS, Residuals
from gyromc.prediction.poisson import galerkin, plug_in
from gyromc.prediction.stability import Stability
from gyromc.schemes import Balanced

ALONE = 0.1  # share of one draw in the error of a mean
COMPARABLE = 0.5  # an error of this share of a number: the number is not known
EXPLAINED = 0.5  # share of the variance of h that its linearisation at the mode must explain
LOST = "unknown: chains from the plan's start do not come to the bulk of the target in its steps"
SECOND_ORDER = 2.0  # the second order in η against that of a Gaussian, at most
# Share of the error: what the estimated mean of the nearest Gaussian makes of an odd function on a symmetric target.
TRACE = 1e-3
REFUTED = 0.5  # share of a bias, from which on an error that also exceeds the standard deviation of h refutes it
NOTHING = 1e-9  # s against V/η: rounding
ROUNDING = 1e-20  # of |Q|²V_0: a smaller integral is zero
ENDS = 1.5  # over rate × time: the part of both ends of a chain in the variance of its average
SHORT = 5.0  # relaxation times V/(2 Var h)


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """What several observables of one plan share, computed when first asked for."""

    plan: Plan
    sample: Sample | None  # the user's
    digits: int
    steady: Stability | None = None

    @functools.cached_property
    def effects(self) -> step_effects.StepEffects:
        """First effects of the step size, from the pilot sample."""
        return step_effects.StepEffects(self.plan, self.pilot)

    @functools.cached_property
    def fitted(self) -> list[plug_in.Fitted]:
        """The plug-in's averages over the pilot sample, of the highest degree that it allows and of two degrees less."""
        D, Q = self.plan.dynamics.D, self.plan.dynamics.Q
        highest = plug_in.Fitted(self.pilot, D, Q)
        return [highest, plug_in.Fitted(self.pilot, D, Q, max(2, highest.degree - 2))]

    @functools.cached_property
    def pilot(self) -> Sample:
        """The user's sample, or one drawn around the mode; `InvalidInput` where neither can be trusted."""
        drawn = self.plan.model.trusted_sample_of() if self.sample is None else self.sample
        if drawn is None:
            reason = self.plan.model.why_not_trusted()
            raise InvalidInput(f"no draws around the mode can be trusted: {reason}; pass `sample`")
        return drawn

    @functools.cached_property
    def residuals(self) -> Residuals:
        """What martingales leave, over the pilot sample."""
        return Residuals(self.plan, self.pilot, self.fitted[0])

    @functools.cached_property
    def exact(self) -> dict[str, Moments]:
        """Exact finite-step moments, where there are any."""
        return exact_moments(self.plan)

    @property
    def share(self) -> float:
        """The step size as a share of the largest stable one; 1 where that is not known."""
        limit, eta = math.nan if self.steady is None else self.steady.largest_step_size, self.plan.eta
        return eta / limit if limit > eta else 1.0


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
            left = shared.residuals.left(name, plan.model.values(plan.observables[name], shared.pilot.theta))
        except InvalidInput as reason:
            how = Method(Kind.UNKNOWN, f"unknown: what the martingale leaves: {reason}; `plain_std` is without it")
            return dataclasses.replace(found, plain_std=found.std).varying(math.nan, math.nan, how)
        variance, error = left.value / plan.num_steps, left.error / plan.num_steps  # T9
        how = Method(Kind.MARTINGALE, f"{Kind.MARTINGALE.value}, from a sample")
    if variance is None or not variance < HELPS * found.std**2:
        return found
    return dataclasses.replace(found, plain_std=found.std).varying(variance, error, how)


def _on_gaussian(shared: Shared, name: str, h: Observable) -> Answer | None:
    """Closed forms for uᵀθ and (uᵀθ)², Mehler's formula for other ρ(uᵀθ); exact finite-step moments where there are some."""
    plan = shared.plan
    gaussian = plan.flat_target.gaussian()
    if gaussian is None or not isinstance(h, Ridge) or not (np.any(h.direction) or h.is_linear or h.is_square):
        return None
    D, Q, P = plan.dynamics.D, plan.dynamics.Q, augment(gaussian[0], plan.augmented)
    u, shift = lift(h.direction, len(D)), float(h.direction @ gaussian[1])
    square = float(u @ closed_forms.precision_solve(P, u))  # Var(uᵀθ)
    if h.is_linear or h.is_square:
        form, slope = (np.outer(u, u), 2 * shift * u) if h.is_square else (None, u)
        constant = closed_forms.quadratic_fluctuation_constant
        V, V0 = (Number(constant(D, q, P, form, slope), 0.0) for q in (Q, 0 * Q))
        integral = closed_forms.strictness_integral(D, Q, P, form, slope)
        kind, expected = Kind.CLOSED_FORM, Number(shift**2 + square if h.is_square else shift, 0.0)
    else:
        expected = closed_forms.ridge_expectation(h.rho, shift, math.sqrt(square))
        V, V0 = closed_forms.ridge_constants(D, Q, P, u, h.rho, shift)
        kind, integral = Kind.MEHLER, math.nan
    base = _base(plan, V, V0, Method(kind), expected, Method(Kind.CLOSED_FORM), Number(integral, 0.0))
    mu, mu_error = expected
    if name in shared.exact:
        moments, exact, error = shared.exact[name], Method(Kind.EXACT), shared.exact[name].start_error
        if error:
            exact = Method(Kind.EXACT, f"{exact}, start drawn {START_DRAWS} times (±{error:.1g})")
        known = base.biased(moments.mean - mu, error, exact).varying(moments.variance, 0.0, exact)
        return dataclasses.replace(known, std_uncertainty=error)
    if why_not_linear(plan) is None:
        chain = linear_chain(plan)
        if chain.noise.additive or chain.size <= MOST_FOLLOWED:
            mean, error = ridge_mean(chain, h, plan.num_steps, plan.burn_in, drawn=plan.starts.draw is not None)
            law = Method(Kind.LAW if chain.noise.additive or h.is_square else Kind.GAUSSIAN_LAW)
            base = base.biased(mean - mu, error + mu_error, law)
    found = _average(shared, h, base, math.sqrt(closed_forms.ridge_moments(h, *gaussian)[1]))
    if kind is Kind.MEHLER:
        return found
    return found.noting(f"{name}: no exact finite-step error: {why_not_exact(plan, name)}")


def _base(plan: Plan, V: Number, V0: Number, how: Method, mu: Number, mu_how: Method, strict: Number) -> Answer:
    """The answer for V and μ(h) alone: V is NaN where its error is comparable with it, and the integral 0 for rounding."""
    known, of_still = (n.value if 0 <= n.error <= COMPARABLE * n.value else math.nan for n in (V, V0))
    rounding = ROUNDING * np.linalg.norm(plan.dynamics.Q, 2) ** 2 * of_still
    integral = 0.0 if strict.value <= max(rounding, 3 * strict.error) else strict.value
    how = Method(Kind.UNKNOWN, "unknown: the error of V is comparable with V") if math.isnan(known) else how
    return Answer(known, of_still, how, abs(V.error), abs(V0.error), integral, mu.value, mu_how, mu.error)


def _poisson(shared: Shared, name: str, h: Observable) -> Answer | None:
    """The Poisson equation, solved; not used when the user passed a sample."""
    plan = shared.plan
    if shared.sample is not None or not galerkin.solvable(plan, h):
        return None
    found = galerkin.solve(plan, h, shared.digits)
    mu, mu_how = found.expectation, Method(Kind.QUADRATURE, f"quadrature (±{found.expectation.error:.1g})")
    how = Method(Kind.GALERKIN, found.method)
    strict = Number(found.strictness, 0.0)
    base = _base(plan, found.variance, found.reversible_variance, how, mu, mu_how, strict)
    if math.isnan(base.variance):
        return base
    slope, start = found.bias_slope, found.transient
    if not isinstance(plan.oracle, Exact | Gaussian):
        slope = None
        if plan.model.trusted_sample_of() is not None:
            values = plan.model.values(h, shared.pilot.theta)
            slope, start = _first_effects(shared, h, values, mu.value, shared.fitted[0].solve(values))
    return _average(shared, h, base, found.spread, slope, start)


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
    found, (z, forces) = shared.fitted[0].solve(values), shared.effects.draws
    D, Q = plan.dynamics.D, plan.dynamics.Q
    at_draws = plan.model.values(h, z[:, : plan.dim])
    away = at_draws - np.mean(at_draws)
    # E[(h - μ - 𝒜φ)²] / Var h: 0 when φ solves the equation, 1 when it explains nothing.
    drifted = np.sum(found.poisson.gradients(z) * (forces @ (D + Q).T), axis=1)
    image = found.poisson.second_derivatives(z, D) - drifted  # E2
    share = float(np.mean((away - image) ** 2) / np.mean(away**2))
    left_out = share / (1 - share) if share < 1 else math.inf  # what φ leaves unexplained decays no slower than h
    V, V0 = (Number(n.value, n.error + left_out * n.value) for n in (found.variance, found.reversible_variance))
    how, mu_how = Method(Kind.PLUG_IN, found.method(V.error)), Method(Kind.SAMPLE, f"sample (se {error:.2g})")
    terms = np.sum(found.reversible_poisson.gradients(z) * (forces @ Q.T), axis=1) ** 2  # E7
    strict = Number(float(np.mean(terms)), float(np.std(terms) / np.sqrt(len(terms))))
    base = _base(plan, V, V0, how, Number(mu, error), mu_how, strict)
    if math.isnan(base.variance):
        return base
    base = base.noting(f"{name}: plug-in of degree {found.degree} ({found.functions} functions) on {sample.source}")
    spread = math.sqrt(sample.mean((values - mu) ** 2)[0])
    return _average(shared, h, base, spread, *_first_effects(shared, h, values, mu, found))


def _first_effects(
    shared: Shared, h: Observable, values: np.ndarray, mu: float, found: plug_in.PlugIn
) -> tuple[Number | None, step_effects.Transient | None]:
    """The bias per unit of step size, with what two degrees less change as an error, and the start's effect, by the plug-in."""
    plan, effects, slope = shared.plan, shared.effects, None
    if found.degree < 2:
        return None, None
    if step_effects.has_slope(plan):
        slope = effects.slope(found.poisson)
        if found.degree > 2:
            lower = effects.slope(shared.fitted[1].solve(values).poisson)
            slope = Number(slope.value, math.hypot(slope.error, slope.value - lower.value))
    return slope, effects.transient(found.poisson, lambda theta: plan.model.values(h, theta) - mu)


def _laplace(shared: Shared, name: str, h: Observable) -> Answer | None:
    """The closed form with the Hessian at the mode and h linearised there; only where nothing could be drawn for its size."""
    plan = shared.plan
    if plan.dim <= MOST_PARAMETERS or shared.sample is not None:
        return None
    # h must be nearly linear there: an even h has no slope at the mode
    center = plan.model.laplace
    rows = center.points(np.random.default_rng(0).standard_normal((400, plan.dim)))
    values, slope = plan.model.values(h, rows), plan.model.value_gradients(h, center.mean[None])[0]
    if not np.var(values - rows @ slope) <= (1 - EXPLAINED) * np.var(values):
        raise InvalidInput("the observable is far from linear around the mode: pass `sample`")
    V, V0, integral = laplace_constants(plan, h)
    return _average(shared, h, Answer(V, V0, Method(Kind.LAPLACE), strictness=integral), math.nan)


def laplace_constants(plan: Plan, h: Observable) -> tuple[float, float, float]:
    """V, V_0 and the strictness integral for the Laplace approximation of the target, h linearised at the mode."""
    center = plan.model.laplace
    D, Q, P = plan.dynamics.D, plan.dynamics.Q, augment(center.precision, plan.augmented)
    u = lift(plan.model.value_gradients(h, center.mean[None])[0], len(D))
    V, V0 = (closed_forms.fluctuation_constant(D, q, P, u) for q in (Q, 0 * Q))
    return V, V0, closed_forms.strictness_integral(D, Q, P, None, u)


def _average(
    shared: Shared,
    h: Observable,
    base: Answer,
    spread: float,
    slope: Number | None = None,
    start: step_effects.Transient | None = None,
) -> Answer:
    """The answer with bias, unless it has one, from a slope and a `Transient`, and standard deviation; `spread`: that of h."""
    plan, V = shared.plan, max(base.variance, 0.0)
    if plan.scheduled:
        return base.noting("the step size is a schedule: V is known, the error of the average is not computed")
    eta, N, exact = plan.eta, plan.num_steps, isinstance(plan.oracle, Exact)
    near, time = step_effects.on_nearest_gaussian(plan, h), N * eta
    rate = 2 * spread**2 / V if V > 0 else math.inf  # V = 2 Var(h)/rate for one exponential
    if rate * time < SHORT:
        base = base.noting(f"a chain lasts {rate * time:.2g} relaxation times of an observable: too few for V/(Nη)")
    # How fast the start is forgotten: the slowest rate of the linear chain, or that of h where it is slower; times e, since where
    # h is flat far out its decay begins later.
    rate = rate if shared.steady is None else min(rate, max(shared.steady.rate, 0.0))
    decay = lambda steps: math.exp(-rate * steps * eta) if steps else 1.0
    remains = min(1.0, math.e * decay(plan.burn_in))
    lost, unknown_bias = start is not None and math.isnan(start.value), base.bias is None
    if slope is not None and unknown_bias:
        begun = None
        if start is not None and not lost:
            left = remains if plan.burn_in else max(SECOND_ORDER * shared.share, decay(N))
            error = math.hypot(start.error / time * remains, start.value / time * left)
            begun = Number(0.0 if plan.burn_in else start.value / time, error)
        base = _with_bias(shared, base, spread, slope, begun, 0.0 if near is None else near.higher_bias)
    elif unknown_bias and base.expectation is not None and plan.scheme.linear and plan.scheme.order > 1:
        why = Method(Kind.UNKNOWN, f"unknown: not computed for noisy gradients under {plan.scheme}")
        small = plan.dim <= step_effects.MOST_DENSE and not plan.oracle.moving
        none = exact or (small and not step_effects.has_slope(plan))
        base = dataclasses.replace(base, bias_method=Method(Kind.SECOND_ORDER) if none else why)
    if lost or (near is None and not exact):
        why = LOST if lost else f"unknown: what the noise of {plan.oracle.name} gradients adds is not known here"
        return dataclasses.replace(base, rmse_method=Method(Kind.UNKNOWN, why))
    s = 0.0 if near is None else near.floor(V, eta)
    variance = max(V / eta + s, 0.0) / N  # E6, and s of T1
    error = _variance_error(shared, base, near, s)
    error = error / N + min(1.0, ENDS / (rate * time) if rate > 0 else 1.0) * variance
    if start is not None:
        variance += start.variance * (remains / time) ** 2
        error += start.variance_error * (remains / time) ** 2
    parts = ["V/(Nη)", *(["s/N"] if abs(s) > NOTHING * V / eta else []), *(["bias²"] if base.bias is not None else [])]
    text = "ηV" if len(parts) == 1 and 0.99 <= N * eta * eta <= 1.01 else " + ".join(parts)
    text = f"asymptotic √({text})"
    if not plan.scheme.is_euler:
        text += ", without what the scheme adds" if near is None else ", s of the nearest Gaussian"
    return base.varying(variance, error, Method(Kind.ASYMPTOTIC, text))


def _variance_error(shared: Shared, base: Answer, near: step_effects.OnGaussian | None, s: float) -> float:
    """The error of V/η + s: of V, of the orders in η left out, and of s on another Gaussian."""
    plan, V, eta, share = shared.plan, max(base.variance, 0.0), shared.plan.eta, shared.share
    of_V = base.variance_error if math.isfinite(base.variance_error) else math.inf
    apart = step_effects.not_gaussian(plan)
    if plan.scheme.is_euler:
        orders = share * (1 + apart)
    else:  # of second order on a Gaussian; balanced noise has a first order on other targets, as gradient noise has
        orders = share**2 + (2 * share * apart if step_effects.has_slope(plan) else 0.0)
    error = of_V / eta + orders * (V / eta + abs(s))
    if near is None:
        return error + share * V / eta
    # What is not Gaussian weighs more the farther out the noise of gradients takes the chain.
    wider = max(1.0, near.widening)
    other = SECOND_ORDER * wider * min(1.0, apart * wider)
    error += abs(s) * (other + min(1.0, abs(V / near.V - 1) if near.V > 0 else 1.0))
    return error + near.of_projection * (min(1.0, V / near.V) if near.V > 0 else 1.0)


def _with_bias(shared: Shared, base: Answer, sd: float, slope: Number, start: Number | None, higher: float) -> Answer:
    """The answer with the bias η·slope + that of the start + `higher` orders, unless its error refutes it; `sd`: that of h."""
    eta, share = shared.plan.eta, shared.share
    bias = eta * float(slope.value)
    # Balanced noise has no second order on a Gaussian.
    apart = step_effects.not_gaussian(shared.plan) if isinstance(shared.plan.scheme, Balanced) else 1.0
    second = share * abs(bias) + share**2 * sd * apart
    error = math.hypot(eta * slope.error, max(SECOND_ORDER * second, abs(higher)))
    bias += higher if abs(higher) > TRACE * error else 0.0
    if start is not None:
        bias, error = bias + start.value, math.hypot(error, start.error)
    if error > max(sd, REFUTED * abs(bias)):
        why = f"unknown: its error ({error:.1g}) exceeds the standard deviation of the observable"
        return dataclasses.replace(base, bias_method=Method(Kind.UNKNOWN, why))
    law = f"{Kind.FIRST_ORDER.value} (±{error:.1g}){'' if start is not None else ', start left out'}"
    return base.biased(bias, error, Method(Kind.FIRST_ORDER, law), start is not None)
