"""T2 and T3: the Poisson equation against the published table, closed forms, a rotated copy of itself, and the plug-in."""

import dataclasses

import numpy as np
import pytest

import gyromc as gm
from gyromc.approx.sample import Sample
from gyromc.prediction.exact import closed_forms
from gyromc.prediction.exact.chain import linear_chain
from gyromc.prediction.exact.closed_forms import ridge_constants
from gyromc.prediction.exact.moments import exact_moments
from gyromc.prediction.poisson import galerkin
from gyromc.prediction.poisson.plug_in import Fitted
from support.values import J1, U, skew, wishart
from support.zscores import largest, score


def cosine(dynamics, h, dim=3, beta=1.2, **settings):
    settings = {"step_size": 0.1, "oracle": gm.oracles.Gaussian(1.0)} | settings
    return gm.Plan(target=gm.targets.CosinePerturbed(dim, beta), dynamics=dynamics, observables={"h": h}, **settings)


@pytest.mark.parametrize(
    ("dynamics", "V", "V_0"),
    [
        (gm.dynamics.nonreversible(J1), 0.74456, 2.37373),
        (gm.dynamics.hfhr(3, 1.0, 2.0), 1.61995, 2.37373),
        (gm.dynamics.gaul([0.5, 1.5, 2.0], a=1.0, gamma=2.0), 2.14112, 3.32028),
    ],
)
def test_table_of_the_theory(dynamics, V, V_0):
    pred = gm.predict(cosine(dynamics, gm.observables.tanh(U)))
    assert (round(pred.variance["h"], 5), round(pred.reversible_variance["h"], 5)) == (V, V_0)
    assert pred.method["h"].startswith("galerkin (degree ")
    assert abs(pred.expectation["h"]) < 1e-12
    assert abs(pred.bias["h"]) < 1e-12
    assert pred.strict_reduction["h"]


@pytest.mark.parametrize("profile", ["tanh", "square"])
@pytest.mark.parametrize("augmented", [False, True])
def test_agrees_with_closed_forms_without_perturbation(profile, augmented):
    """β = 0: V, V_0, E7, μ(h) and the bias slope against the Gaussian formulas."""
    rng = np.random.default_rng(1)
    n = 4 if augmented else 2
    dynamics = gm.dynamics.general(wishart(n, rng, low=1.0), skew(n, rng, size=1.4))
    h = getattr(gm.observables, profile)([0.8, -0.3])
    plan = cosine(dynamics, h, dim=2, beta=0.0, oracle=gm.oracles.Gaussian(0.5))
    found = galerkin.solve(plan, h, digits=5)
    D, Q, P, w = dynamics.D, dynamics.Q, np.eye(n), np.concatenate([h.direction, np.zeros(n - 2)])
    rho = {"tanh": np.tanh, "square": np.square}[profile]
    expected = [number.value for number in ridge_constants(D, Q, P, w, rho, 0.0)]
    np.testing.assert_allclose([found.variance.value, found.reversible_variance.value], expected, rtol=1e-5)
    if profile == "square":
        integral = closed_forms.strictness_integral(D, Q, P, np.outer(w, w))
        np.testing.assert_allclose(found.strictness, integral, rtol=1e-9)
        np.testing.assert_allclose(found.expectation.value, w @ w, rtol=1e-12)
        # the stationary bias over η, at η = 1e-5, from the exact chain started at the mode and burnt in
        small = plan.replace(step_size=1e-5, num_steps=1, burn_in=2**24, observables={"h": h})
        slope = (exact_moments(small)["h"].mean - w @ w) / 1e-5
        np.testing.assert_allclose(found.bias_slope.value, slope, rtol=1e-3)


def test_little_friction_takes_more_functions_of_the_momentum_or_has_a_large_error(monkeypatch):
    """φ is rough in r there: degrees 7 and 9 in r differ by 3.6, and are 5.4 away from what more degrees give."""
    h = gm.observables.linear([1.0])
    plan = cosine(gm.dynamics.hfhr(1, 0.0248, 0.106), h, dim=1, beta=2.0)
    found = galerkin.solve(plan, h, digits=4).variance
    assert found.error < 1e-4 * found.value
    monkeypatch.setattr(galerkin, "SETTINGS", dataclasses.replace(galerkin.SETTINGS, most_coefficients=22 * 14))
    few = galerkin.solve(plan, h, digits=4).variance
    assert abs(few.value - found.value) > 0.02 * found.value
    assert abs(few.value - found.value) < few.error


def test_bias_slope_against_the_euler_chain_itself():
    """The stationary law of the Euler chain on a line, from its transition matrix, extrapolated to η → 0."""
    h = gm.observables.square([1.0])
    plan = cosine(gm.dynamics.overdamped(1), h, dim=1, oracle=gm.oracles.Gaussian(0.6))
    found = galerkin.solve(plan, h)
    x = np.linspace(-8, 8, 401)  # spacing 0.04 under kernels of width 0.2 and more: the sums are exact to exp(-490)

    def slope(eta):
        spread = 2 * eta + eta**2 * 0.6**2
        center = x - eta * (x - 1.2 * np.sin(x))
        kernel = np.exp(-((x[:, None] - center) ** 2) / (2 * spread))
        kernel /= kernel.sum(axis=0)
        law = np.exp(-(x**2 / 2 + 1.2 * np.cos(x)))
        for _ in range(14):
            kernel = kernel @ kernel
        law = kernel @ (law / law.sum())
        return (law @ x**2 / law.sum() - found.expectation.value) / eta

    extrapolated = (4 * slope(0.02) - slope(0.08)) / 3  # leaves O(η²)
    np.testing.assert_allclose(found.bias_slope.value, extrapolated, rtol=0.02)


def test_a_target_that_does_not_separate_against_its_separable_self():
    """U∘R with R a rotation is not separable, but R turns it into one that is: the plug-in against Galerkin, within 4 errors."""
    angle = 0.6
    R = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    J = np.array([[0.0, -0.8], [0.8, 0.0]])  # commutes with R
    a = np.array([0.9, 0.4])
    import jax.numpy as jnp

    turned = gm.targets.LogDensity(lambda x: -(0.5 * x @ x + 0.9 * jnp.sum(jnp.cos(R @ x))))
    for dynamics in (gm.dynamics.nonreversible(J), gm.dynamics.hfhr(2, 0.7, 1.5)):
        h, h_turned = gm.observables.tanh(a), gm.observables.tanh(R.T @ a)
        plan = gm.Plan(target=turned, dynamics=dynamics, observables={"h": h_turned}, step_size=0.1, start=[0.5, 0.5])
        one, other = gm.predict(plan)["h"], galerkin.solve(cosine(dynamics, h, dim=2, beta=0.9), h, digits=4)
        assert one.method.startswith("plug-in")
        assert abs(one.variance - other.variance.value) < 4 * one.variance_error < 0.4 * one.variance
        assert abs(one.reversible_variance - other.reversible_variance.value) < 4 * one.reversible_variance_error
        assert abs(one.expectation - other.expectation.value) < 4 * one.expectation_error
        np.testing.assert_allclose(one.strict_reduction.integral, other.strictness, rtol=0.1)


@pytest.mark.slow
def test_a_function_of_few_coordinates():
    """A user's function is looked at, not told: it depends on two of four coordinates."""
    import jax.numpy as jnp

    dynamics = gm.dynamics.overdamped(4)
    plan = cosine(dynamics, gm.observables.function(lambda t: jnp.tanh(0.6 * t[1] - 0.8 * t[3])), dim=4)
    pred = gm.predict(plan)
    same = gm.predict(cosine(dynamics, gm.observables.tanh([0.0, 0.6, 0.0, -0.8]), dim=4))
    np.testing.assert_allclose(pred.variance["h"], same.variance["h"], rtol=1e-12)
    assert pred.method == same.method


def draw(count, dim, beta, rng):
    """Independent draws of the cosine-perturbed law, by inverting its distribution function on a fine grid."""
    t = np.linspace(-9, 9, 40001)
    cdf = np.cumsum(np.exp(-(t**2 / 2 + beta * np.cos(t))))
    return np.interp(rng.random((count, dim)), cdf / cdf[-1], t)


@pytest.mark.parametrize("augmented", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_plug_in_against_galerkin(augmented):
    """One sample, ten random (D, Q) (three on (θ, r)): within 3 of the stated errors, which are small enough to matter."""
    rng = np.random.default_rng(8)
    h = gm.observables.tanh([0.7, -0.7])
    theta = draw(20_000, 2, 1.2, rng)
    sample = Sample(theta, np.full(len(theta), 1 / len(theta)), float(len(theta)), "independent draws")
    n, scores = (4 if augmented else 2), []
    for _ in range(3 if augmented else 10):
        dynamics = gm.dynamics.general(wishart(n, rng), skew(n, rng, size=2.0))
        plan = cosine(dynamics, h, dim=2)
        exact = galerkin.solve(plan, h, digits=3)
        found = Fitted(sample, dynamics.D, dynamics.Q).solve(plan.model.values(h, theta))
        scores.append(score(found.variance.value, exact.variance.value, found.variance.error))
        of_still = found.reversible_variance
        scores.append(score(of_still.value, exact.reversible_variance.value, of_still.error))
        assert found.variance.error < 0.1 * found.variance.value
        assert not found.too_rich
    assert largest(scores) < 3


def test_plug_in_warns_where_the_basis_is_too_rich():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((2000, 6))
    sample = Sample(theta, np.full(2000, 1 / 2000), 2000.0, "independent draws")
    found = Fitted(sample, np.eye(6), np.zeros((6, 6)), degree=4).solve(np.tanh(theta[:, 0]))
    assert found.too_rich
    assert "too rich" in found.method(found.variance.error)
    assert not Fitted(sample, np.eye(6), np.zeros((6, 6))).solve(np.tanh(theta[:, 0])).too_rich


def test_importance_sample_knows_the_target():
    """μ(θ²) on a skewed one-parameter target against quadrature, within 4 standard errors."""
    import jax.numpy as jnp

    target = gm.targets.LogDensity(lambda x: -jnp.sum(jnp.exp(x) - 2 * x) - 0.1 * jnp.sum(x**2))
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.overdamped(1),
        observables={"h": gm.observables.square([1.0])},
        step_size=0.1,
        start=[0.0],
    )
    sample = plan.model.importance_sample()
    t = np.linspace(-12, 6, 20001)
    w = np.exp(-(np.exp(t) - 2 * t) - 0.1 * t**2)
    mean, error = sample.mean(sample.theta[:, 0] ** 2)
    assert abs(score(mean, w @ t**2 / w.sum(), error)) < 4
    assert sample.effective_size > 5000


@pytest.mark.slow
def test_prediction_of_a_nonlinear_chain_against_simulation():
    """Bias, spread and error of an even observable on the non-quadratic target, within what is stated of them at η = 0.025."""
    h = gm.observables.square([1.0, 0.0])
    J = [[0.0, -1.0], [1.0, 0.0]]
    plan = cosine(gm.dynamics.nonreversible(J), h, dim=2, step_size=0.025, num_chains=3000, start=[0.5, 0.0])
    pred, run = gm.predict(plan), gm.run(plan, progress=False)
    a, chance = run.averages["h"] - pred.expectation["h"], 3 / np.sqrt(2 * 3000)
    uncertain = pred.std_uncertainty["h"] / pred.std["h"]
    assert uncertain < 0.2
    assert abs(np.std(a) / pred.std["h"] - 1) < uncertain + chance
    assert abs(np.mean(a) - pred.bias["h"]) < pred.bias_error["h"] + 4 * pred.std["h"] / np.sqrt(3000)
    assert abs(np.sqrt(np.mean(a**2)) / pred.rmse["h"] - 1) < uncertain + chance


def test_stationary_covariance_slope_of_the_chain_matrix():
    """The matrices behind the exact route are those of the diffusion: A from D, Q and P."""
    plan = cosine(gm.dynamics.hfhr(2, 0.5, 3.0), gm.observables.tanh([1.0, 0.0]), dim=2, beta=0.0)
    chain = linear_chain(plan)
    A = (np.eye(4) - chain.M) / plan.eta
    np.testing.assert_allclose(A, np.block([[0.5 * np.eye(2), -np.eye(2)], [np.eye(2), 3 * np.eye(2)]]))
