"""Schemes at their own step sizes: bias beyond Gaussians, N·Var = V/η + s, what a martingale leaves, the largest step size."""

import math

import jax
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import gyromc as gm
from gyromc.prediction.answers import Kind
from gyromc.prediction.exact import moments
from gyromc.prediction.exact.chain import linear_chain
from gyromc.prediction.exact.moments import exact_moments
from gyromc.prediction.martingale import Residuals
from gyromc.prediction.poisson import galerkin
from gyromc.prediction.poisson.plug_in import Fitted
from gyromc.prediction.stability import advice, stability
from gyromc.prediction.step_effects import on_nearest_gaussian
from support.values import logistic, skew, wishart

BETA = 1.2
X = np.linspace(-12, 12, 40_001)
DENSITY = np.exp(-(X**2) / 2 - BETA * np.cos(X))
DENSITY = DENSITY / DENSITY.sum()
VARIANCE, COSINE = float(DENSITY @ X**2), float(DENSITY @ np.cos(X))
S = [1 - BETA * COSINE]  # E[∇²U]
SQUARE = gm.observables.square([1.0])


def cosine(theta):
    import jax.numpy as jnp

    return jnp.cos(theta[0])


def on_cosine(scheme, eta, h, **settings):
    return gm.Plan(
        target=gm.targets.CosinePerturbed(1, BETA),
        dynamics=gm.dynamics.overdamped(1),
        observables={"h": h},
        scheme=scheme,
        step_size=eta,
        **settings,
    )


def bias_on_line(balanced, eta, h):
    """The bias of the chain's stationary law, from the probabilities of one step between nodes much closer than a step."""
    x = np.linspace(-10, 10, 801)
    variance = 2 * eta - eta**2 * S[0] * balanced
    away = x - (x - eta * (x - BETA * np.sin(x)))[:, None]
    P = np.exp(-(away**2) / (2 * variance))
    P /= P.sum(axis=1, keepdims=True)
    law = np.linalg.solve((np.eye(len(x)) - P + 1 / len(x)).T, np.full(len(x), 1 / len(x)))
    return float(law @ h(x) / law.sum() - DENSITY @ h(X))


def test_the_bias_of_balanced_noise_on_the_cosine_target():
    """T7's own numbers at η·Var = 0.1, on posterior units: -2.3 % of the variance, 0.025 in E cos θ."""
    eta = 0.1 * VARIANCE
    for h, values, known in ((SQUARE, np.square, -0.023 * VARIANCE), (cosine, np.cos, 0.025)):
        truth = bias_on_line(True, eta, values)
        assert truth == pytest.approx(known, abs=0.002 * (VARIANCE if h is SQUARE else 0.5))
        row = gm.predict(on_cosine(gm.schemes.balanced(S), eta, h, num_steps=10**7))["h"]
        assert abs(row.bias - truth) < row.bias_error
        assert row.bias == pytest.approx(truth, rel=0.25)


@pytest.mark.parametrize("scheme", ["euler", gm.schemes.balanced(S)])
def test_first_order_on_the_cosine_target(scheme):
    """The order is 1, and the slope at η = 0 is the integral that `galerkin` computes."""
    etas = 0.08, 0.04, 0.02
    errors = [bias_on_line(scheme != "euler", eta, np.square) for eta in etas]
    assert abs(np.log2(errors[1] / errors[2]) - 1) < 0.15
    rates = np.array(errors) / etas
    limit = 8 / 3 * rates[2] - 2 * rates[1] + 1 / 3 * rates[0]  # of b₁ + b₂η + b₃η²
    slope = galerkin.solve(on_cosine(scheme, 0.02, SQUARE), SQUARE).bias_slope
    assert slope.value == pytest.approx(limit, rel=2e-3)


def test_second_order_on_the_cosine_target():
    """Leimkuhler-Matthews: with X = z - ½w, X⁺ = X + w - η∇U(X + ½w); its stationary law by splines and quadrature."""
    x, (t, weights) = np.linspace(-10, 10, 201), np.polynomial.hermite_e.hermegauss(24)
    weights = weights / weights.sum()
    interpolate, errors = CubicSpline(x, np.eye(len(x))), []
    for eta in (0.2, 0.1):
        w = np.sqrt(2 * eta) * t
        z = x[:, None] + w / 2
        moved = np.clip(x[:, None] + w - eta * (z - BETA * np.sin(z)), -10, 10)
        P = sum(weight * interpolate(moved[:, j]) for j, weight in enumerate(weights))
        law = np.linalg.solve((np.eye(len(x)) - P + 1 / len(x)).T, np.full(len(x), 1 / len(x)))
        errors.append(law @ (z**2 @ weights) / law.sum() - VARIANCE)
    assert abs(np.log2(errors[0] / errors[1]) - 2) < 0.15
    row = gm.predict(on_cosine("leimkuhler_matthews", 0.1, SQUARE))["h"]
    assert row.bias is None
    assert row.bias_method.kind is Kind.SECOND_ORDER


def splitting_bias(eta, alpha=0.6, gamma=1.4, degrees=(30, 12), nodes=(50, 24, 10)):
    """The bias of E θ² under `hfhr_splitting`, by Galerkin's method for the law of (x, r), x = θ less its half noise.

    The law is Σ c_a φ_a times the standard normal density, φ the orthonormal Hermite polynomials, c_0 = 1; c is the left null
    vector of I - P, P_ab = E[φ_a(x, r) E φ_b(x⁺, r⁺)].
    """
    (x, of_x), (r, of_r), (t, of_t) = (normal_nodes(count) for count in nodes)
    dynamics = gm.dynamics.hfhr(1, alpha, gamma)
    step = jax.vmap(lambda *given: gm.schemes.hfhr_splitting(dynamics, *given, eta))
    with jax.enable_x64(True):
        halves = np.asarray(step(np.zeros((len(t), 3)), np.zeros((len(t), 2)), np.stack([t, 0 * t], 1)))[:, 2]
        x0, r0, half, zeta = (part.ravel() for part in np.meshgrid(x, r, halves, t, indexing="ij"))
        theta = x0 + half
        y, gradient = np.stack([theta, r0, half], 1), np.stack([theta - BETA * np.sin(theta), r0], 1)
        theta, r1, half = np.asarray(step(y, gradient, np.stack([np.zeros_like(zeta), zeta], 1))).T
    shape = len(x) * len(r), len(t) ** 2, -1
    ahead, momenta = hermite(theta - half, degrees[0]).reshape(shape), hermite(r1, degrees[1]).reshape(shape)
    mean = np.matmul((ahead * np.kron(of_t, of_t)[:, None]).transpose(0, 2, 1), momenta).reshape(len(ahead), -1)
    P = np.kron(hermite(x, degrees[0]).T * of_x, hermite(r, degrees[1]).T * of_r) @ mean
    c = np.linalg.solve((np.eye(len(P) - 1) - P[1:, 1:]).T, P[0, 1:])
    return 1 + np.sqrt(2) * c[2 * (degrees[1] + 1) - 1] + of_t @ halves**2 - VARIANCE


def normal_nodes(count):
    x, weights = np.polynomial.hermite_e.hermegauss(count)
    return x, weights / weights.sum()


def hermite(x, degree):
    return np.polynomial.hermite_e.hermevander(x, degree) / np.sqrt(
        [float(math.factorial(k)) for k in range(degree + 1)]
    )


def test_the_splitting_is_of_second_order_on_the_cosine_target():
    coarse, fine = splitting_bias(0.2), splitting_bias(0.1)
    assert abs(np.log2(coarse / fine) - 2) < 0.1
    assert abs(fine) > 1e-4  # beyond a Gaussian it is not exact


@pytest.mark.parametrize(
    ("scheme", "oracle"),
    [
        ("balanced", "noisy"),
        ("hfhr_splitting", "noisy"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("euler", "noisy"), ("lm_ab2", "noisy"), ("lm_ab2", "exact"))
        ),
    ],
)
def test_slopes_against_the_exact_bias_on_a_gaussian(scheme, oracle):
    """A cosine of no size is a Gaussian that only the Poisson equation knows."""
    eta, h = 1e-3, gm.observables.square([1.0])
    noise = gm.oracles.Exact() if oracle == "exact" else gm.oracles.Gaussian(0.9)
    settings = {"dynamics": gm.dynamics.hfhr(1, 0.6, 1.4), "oracle": noise, "observables": {"h": h}, "step_size": eta}
    near = gm.Plan(target=gm.targets.CosinePerturbed(1, 1e-12), scheme=scheme, **settings)
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), scheme=scheme, num_steps=10**9, **settings)
    slope, exact = galerkin.solve(near, h, 3).bias_slope, exact_moments(plan)["h"].mean - 1
    if slope is None:
        assert scheme in ("lm_ab2", "hfhr_splitting")
        assert oracle == "exact"
        assert abs(exact) < 2 * eta**2
    else:
        assert abs(slope.value - exact / eta) < 5e-3


TARGET = gm.targets.Quadratic(wishart(2, 7), mean=[0.4, -0.7])
BOTH = {"linear": gm.observables.linear([1.0, 0.6]), "square": gm.observables.square([0.8, -0.5])}
SCHEMES = [
    ("balanced", gm.dynamics.general(wishart(2, 3), skew(2, 4))),
    ("leimkuhler_matthews", gm.dynamics.general(wishart(2, 3), 0)),
    ("lm_ab2", gm.dynamics.general(wishart(2, 3), skew(2, 4))),
    ("hfhr_splitting", gm.dynamics.hfhr(2, 0.7, 1.5)),
]


def on_gaussian(scheme, dynamics, **settings):
    settings = {"oracle": gm.oracles.Gaussian(0.8), "step_size": 0.1, "num_steps": 100} | settings
    return gm.Plan(target=TARGET, dynamics=dynamics, observables=BOTH, scheme=scheme, start=[0.4, -0.7], **settings)


@pytest.mark.parametrize(("scheme", "dynamics"), SCHEMES)
def test_the_leading_variance_is_exact_on_a_gaussian(scheme, dynamics):
    plan = on_gaussian(scheme, dynamics, num_steps=2**34)
    V, exact = gm.predict(plan.replace(scheme="euler")).variance, exact_moments(plan)
    for name, h in BOTH.items():
        found = on_nearest_gaussian(plan, h)
        # The square's direction is projected with its linear part: (uᵀθ)² = (uᵀm)² + 2uᵀm uᵀz + (uᵀz)².
        np.testing.assert_allclose(found.V, V[name], rtol=1e-9)
        np.testing.assert_allclose(found.variance, 2**34 * exact[name].variance, rtol=1e-6)
        np.testing.assert_allclose(V[name] / 0.1 + found.floor(V[name], 0.1), found.variance, rtol=1e-12)


@pytest.mark.parametrize(("scheme", "dynamics"), SCHEMES)
def test_what_a_martingale_leaves_is_exact_on_a_gaussian(scheme, dynamics):
    """Only the noise of gradients: 500 points of it, so 15 % for squares, whose noise depends on the point."""
    plan = on_gaussian(scheme, dynamics, num_steps=10**7, martingale=True)
    sample = plan.model.importance_sample()
    residuals = Residuals(plan, sample, Fitted(sample, dynamics.D, dynamics.Q, 2))
    for name, tolerance in (("linear", 1e-3), ("square", 0.15)):
        left = residuals.left(name, plan.model.values(BOTH[name], sample.theta))
        assert left.error < 4e-3 * left.value
        assert left.value == pytest.approx(10**7 * exact_moments(plan)[name].corrected, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 3])
def test_predicted_gain_against_a_run(d):
    """A logistic regression: deviations of 400 chains are known to 3.5 %, what a martingale leaves to about a third."""
    target, u = logistic(rows=60, d=d), np.eye(d)[0]
    covariance = np.linalg.inv(gm.Model(target).gaussian_fit.precision)
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(covariance, 0),
        observables={"mean": gm.observables.linear(u), "p": gm.observables.predictive(0.7 * u)},
        scheme="balanced",
        oracle=gm.oracles.ControlVariate(20),
        step_size=0.4,
        num_steps=300,
        burn_in=50,
        num_chains=400,
        martingale=True,
    )
    row, run = gm.predict(plan), gm.run(plan, "scan")
    for name in plan.observables:
        assert run.gain[name] > 5
        assert row.plain_std[name] == pytest.approx(np.std(run.plain[name].averages), rel=0.14)
        assert row.std[name] == pytest.approx(np.std(run.averages[name]), rel=0.35)
        assert row.gain[name] == (row.plain_std[name] / row.std[name]) ** 2
        assert row.rmse_method[name].kind is Kind.MARTINGALE
    table, plain = str(row), row.to_dict()["observables"]["p"]
    assert "gain" in table
    assert (plain["gain"], plain["plain_std"]) == (row.gain["p"], row.plain_std["p"])


def test_exact_gains_and_no_gain():
    plan = on_gaussian(*SCHEMES[0], num_steps=4000, martingale=True, oracle=gm.oracles.Exact())
    row, exact = gm.predict(plan), exact_moments(plan)["linear"]
    assert row.std["linear"] ** 2 == pytest.approx(exact.corrected)
    assert row.plain_std["linear"] ** 2 == pytest.approx(exact.variance)
    assert row.rmse_method["linear"].kind is Kind.EXACT
    assert row.gain["linear"] > 100
    short = gm.predict(plan.replace(num_steps=5))  # the boundary is all there is
    assert short.gain["linear"] == 1
    assert np.isnan(short.plain_std["linear"])
    without = gm.predict(plan.replace(martingale=False))
    assert without.std["linear"] == row.plain_std["linear"]
    assert "gain" not in str(without)


@pytest.mark.parametrize(("scheme", "dynamics"), SCHEMES)
def test_the_largest_step_size_is_that_of_the_scheme(scheme, dynamics):
    plan = on_gaussian(scheme, dynamics, oracle=gm.oracles.Exact())
    limit = stability(plan).largest_step_size
    if scheme == "balanced":
        D, G, P = dynamics.D, dynamics.D + dynamics.Q, TARGET.gaussian()[0]
        below, above = (2 * e * D - e**2 * G @ P @ G.T for e in (0.999 * limit, 1.001 * limit))
        assert np.linalg.eigvalsh(below)[0] > 0 > np.linalg.eigvalsh(above)[0]
        return
    radii = [
        np.max(np.abs(np.linalg.eigvals(linear_chain(plan.replace(step_size=s * limit)).M))) for s in (0.999, 1.001)
    ]
    assert radii[0] < 1 < radii[1]
    assert stability(plan).radius == pytest.approx(np.max(np.abs(np.linalg.eigvals(linear_chain(plan).M))) ** 2)


def test_the_splitting_takes_steps_of_two_periods_over_pi():
    """T10: its limit on eigenvalues up to 1 is 2, where Euler's is about γ."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 0.01]),
        dynamics=gm.dynamics.hfhr(2, 1e-3, 0.1),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        scheme="hfhr_splitting",
        step_size=1.0,
    )
    assert stability(plan).largest_step_size == pytest.approx(2, rel=2e-3)
    assert stability(plan.replace(scheme="euler")).largest_step_size < 0.11


def test_mini_batches_lower_the_limit_of_every_scheme():
    rng = np.random.default_rng(3)
    plan = gm.Plan(
        target=gm.targets.LinearRegression(rng.standard_normal((20, 2)), rng.standard_normal(20)),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        oracle=gm.oracles.Minibatch(3),
        scheme="lm_ab2",
        step_size=0.01,
    )
    found = stability(plan)
    assert found.largest_step_size < stability(plan.replace(oracle=gm.oracles.Exact())).largest_step_size
    for share, stable in ((0.99, True), (1.01, False)):
        chain = linear_chain(plan.replace(step_size=share * found.largest_step_size))
        squares = moments._phi(chain)  # of (y, 1): the entry of 1 has the eigenvalue 1
        radius = np.sort(np.abs(np.linalg.eigvals(squares)))[::-1]
        assert (radius[0] < 1 + 1e-9) == stable


def test_a_step_size_without_noise_to_draw():
    plan = on_gaussian(*SCHEMES[0], oracle=gm.oracles.Exact())
    limit = stability(plan).noise_limit
    beyond = plan.replace(step_size=1.01 * limit, martingale=True)
    row = gm.predict(beyond)
    assert not row.stable
    assert row.rmse_method["linear"].kind is Kind.NO_NOISE
    assert np.isnan(row.rmse["linear"])
    assert row.variance["linear"] == gm.predict(plan).variance["linear"]
    assert any("positive semidefinite" in note for note in row.notes)
    assert "negative variance" in advice(beyond)
    assert "negative variance" in str(stability(beyond))
    assert any(v.name == "step size" and v.status == "fails" for v in row.verdicts)
    assert gm.predict(plan.replace(step_size=0.99 * limit)).stable
