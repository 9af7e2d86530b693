"""Every scheme on Gaussian targets: its covariance, the exact moments of its averages with and without martingale, its orders."""

import dataclasses

import numpy as np
import pytest
from scipy import linalg

import gyromc as gm
from gyromc.observables import Ridge
from gyromc.prediction.exact.chain import lift, linear_chain
from gyromc.prediction.exact.moments import exact_moments, linear_averages, ridge_mean
from gyromc.prediction.martingale import martingale
from gyromc.schemes import integrators
from support import exact
from support.values import skew, wishart
from support.zscores import largest, z_scores

D2 = wishart(2, 3)
DYNAMICS = {
    "overdamped": gm.dynamics.overdamped(2),
    "D": gm.dynamics.general(D2, 0),
    "D and Q": gm.dynamics.general(D2, skew(2, 4, 1.5)),
    "hfhr": gm.dynamics.hfhr(2, alpha=0.7, gamma=1.5),
    "gaul": gm.dynamics.gaul([0.6, 1.4], a=1.2, gamma=1.8),
    "on (θ, r)": gm.dynamics.general(wishart(4, 5), skew(4, 6)),
}
FITTING = {
    "euler": tuple(DYNAMICS),
    "balanced": tuple(DYNAMICS),
    "leimkuhler_matthews": ("overdamped", "D"),
    "lm_ab2": tuple(DYNAMICS),
    "hfhr_splitting": ("hfhr",),
    "gaul_splitting": ("gaul", "hfhr"),
}
CASES = [(scheme, name) for scheme, names in FITTING.items() for name in names]
ORACLES = {"exact": gm.oracles.Exact(), "gaussian": gm.oracles.Gaussian(0.8)}
TARGET = gm.targets.Quadratic(wishart(2, 7), mean=[0.4, -0.7])
OBSERVABLES = {"linear": gm.observables.linear([1.0, 0.6]), "square": gm.observables.square([0.8, -0.5])}


def made(scheme, dynamics, oracle="exact", **numbers):
    settings = {"step_size": 0.15, "num_steps": 5, "start": [1.0, -0.5], "martingale": True} | numbers
    return gm.Plan(
        target=settings.pop("target", TARGET),
        dynamics=DYNAMICS[dynamics],
        oracle=ORACLES[oracle] if isinstance(oracle, str) else oracle,
        observables=OBSERVABLES,
        scheme=scheme,
        **settings,
    )


def covariance(plan):
    """Of θ under the stationary law of the chain."""
    chain = linear_chain(plan)
    return linalg.solve_discrete_lyapunov(chain.M, chain.W)[: plan.dim, : plan.dim]


EXACT_SCHEMES = [case for case in CASES if case[0] in ("balanced", "leimkuhler_matthews", "hfhr_splitting")]


@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize(("scheme", "dynamics"), EXACT_SCHEMES)
def test_the_covariance_is_exact(scheme, dynamics, oracle):
    plan = made(scheme, dynamics, oracle)
    np.testing.assert_allclose(covariance(plan), np.linalg.inv(TARGET.gaussian()[0]), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("oracle", "burn_in"), [("exact", 0), ("gaussian", 2)])
@pytest.mark.parametrize(("scheme", "dynamics"), CASES)
def test_averages_written_out(scheme, dynamics, oracle, burn_in):
    plan = made(scheme, dynamics, oracle, burn_in=burn_in)
    for name, found in exact_moments(plan).items():
        expected = exact.written_out(plan, name)
        np.testing.assert_allclose((found.mean, found.variance, found.corrected), expected, rtol=1e-9)


@pytest.mark.parametrize("oracle", [gm.oracles.Minibatch(1), gm.oracles.ControlVariate(1, center=[0.2, 0.1])])
@pytest.mark.parametrize(
    ("scheme", "dynamics"),
    [("euler", "D and Q"), ("balanced", "hfhr"), ("lm_ab2", "D and Q"), ("hfhr_splitting", "hfhr")],
)
def test_every_sequence_of_batches(scheme, dynamics, oracle):
    rng = np.random.default_rng(8)
    target = gm.targets.LinearRegression(0.4 * rng.standard_normal((3, 2)), rng.standard_normal(3), prior_scale=1.5)
    plan = made(scheme, dynamics, oracle, target=target, step_size=0.03, num_steps=3, burn_in=1)
    found, expected = exact_moments(plan)["linear"], exact.written_out(plan, "linear")
    np.testing.assert_allclose((found.mean, found.variance, found.corrected), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("scheme", "dynamics"), [("balanced", "gaul"), ("leimkuhler_matthews", "D"), ("lm_ab2", "D and Q")]
)
def test_the_law_of_the_states_gives_the_mean_of_any_ridge_function(scheme, dynamics):
    """For a square it is the exact mean; for tanh the quadrature over the Gaussian law after the burn-in."""
    plan = made(scheme, dynamics, "gaussian", num_steps=20, burn_in=3)
    chain = linear_chain(plan)
    mean, error = ridge_mean(chain, OBSERVABLES["square"], 20, 3)
    assert error == 0
    np.testing.assert_allclose(mean, exact_moments(plan)["square"].mean, rtol=1e-9)
    wave = Ridge(np.array([1.0, 0.6]), "tanh")
    y, X, u = chain.starts.mean(axis=0), np.zeros((chain.size, chain.size)), lift(wave.direction, chain.size)
    t = np.linspace(-10, 10, 4001)
    weights = np.exp(-(t**2) / 2)
    for _ in range(3):
        y, X = chain.M @ y, chain.M @ X @ chain.M.T + chain.W
    expected = weights @ np.tanh(u @ y + wave.direction @ chain.mean + np.sqrt(u @ X @ u) * t) / weights.sum()
    np.testing.assert_allclose(ridge_mean(chain, wave, 1, 3)[0], expected, rtol=1e-6)


def test_with_exact_gradients_only_the_boundary_is_left():
    """N²·Var of the corrected average of a linear observable is that of φ(y_0) - φ(y_N): it does not grow with N."""
    for scheme, dynamics in CASES:
        left = [
            N**2 * exact_moments(made(scheme, dynamics, num_steps=N, step_size=0.1))["linear"].corrected
            for N in (10**4, 10**6)
        ]
        np.testing.assert_allclose(left[0], left[1], rtol=1e-5)


def test_balanced_noise_takes_the_variance_of_h_off():
    """T7: N·Var → V/η - Var(h), and the noise of gradients costs nothing."""
    for dynamics in ("D and Q", "hfhr", "gaul"):
        for oracle in ORACLES:
            plan = made("balanced", dynamics, oracle, num_steps=2**32, start=TARGET.gaussian()[1])
            V, u = gm.predict(plan).variance["linear"], np.array([1.0, 0.6])
            limit = V / 0.15 - u @ np.linalg.solve(TARGET.gaussian()[0], u)
            np.testing.assert_allclose(2**32 * exact_moments(plan)["linear"].variance, limit, rtol=1e-7)


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("lm_ab2", 2)])
def test_order_of_the_covariance(scheme, order):
    """The slope of log |bias| against log η, from the Lyapunov equation."""
    for dynamics in ("D and Q", "hfhr", "gaul"):
        errors = []
        for eta in (0.01, 0.005):
            errors.append(
                np.linalg.norm(covariance(made(scheme, dynamics, step_size=eta)) - np.linalg.inv(TARGET.gaussian()[0]))
            )
        assert abs(np.log2(errors[0] / errors[1]) - order) < 0.15


def test_mutants_are_seen(monkeypatch):
    """A sign in W, S without Σ, and a martingale of other noise each change what the tests above look at."""
    exact_covariance = np.linalg.inv(TARGET.gaussian()[0])
    moments = integrators.gradient_moments

    def off(plan):
        return np.max(np.abs(covariance(plan) - exact_covariance))

    assert off(made("balanced", "D and Q", "gaussian")) < 1e-10
    less = lambda plan: dataclasses.replace(moments(plan), noise=0 * moments(plan).noise)
    monkeypatch.setattr(integrators, "gradient_moments", less)
    assert off(made("balanced", "D and Q", "gaussian")) > 1e-3
    flipped = lambda plan: dataclasses.replace(
        moments(plan), curvature=-moments(plan).second, noise=0 * moments(plan).noise
    )
    monkeypatch.setattr(integrators, "gradient_moments", flipped)
    assert off(made("balanced", "D and Q")) > 1e-3
    monkeypatch.undo()
    kick = integrators.kick
    monkeypatch.setattr(integrators, "kick", lambda dynamics, P, Sigma, eta: kick(dynamics, P, 0 * Sigma, eta))
    assert off(made("hfhr_splitting", "hfhr", "gaussian")) > 1e-3
    monkeypatch.undo()
    plan = made("balanced", "D and Q", num_steps=2000)
    found, other = (
        exact_moments(plan)["linear"],
        made("euler", "D and Q", num_steps=2000),
    )  # its ψ is made for more noise
    assert found.corrected < 0.01 * found.variance
    wrong = linear_averages(
        linear_chain(plan), np.array([[1.0, 0.6]]), martingale(other).linear[:1], 2000, plan.burn_in
    )[1]
    assert wrong[0] > 2 * found.corrected


SAMPLED = [
    ("balanced", "D and Q", "gaussian"),
    ("leimkuhler_matthews", "D", "exact"),
    ("hfhr_splitting", "hfhr", "gaussian"),
]


def scores(plan):
    """z-scores of the plain and the corrected averages of a run against their exact moments."""
    run, found, steps = gm.run(plan, "scan"), exact_moments(plan), plan.num_steps
    sums, count = run.state.sums / steps, len(plan.observables)
    for j, name in enumerate(plan.observables):
        if name in found:
            yield from z_scores(sums[:, j], found[name].mean, found[name].variance)
            yield from z_scores(sums[:, j] - sums[:, count + j], found[name].mean, found[name].corrected)


@pytest.mark.parametrize(("scheme", "dynamics", "oracle"), SAMPLED)
def test_runs_have_these_moments(scheme, dynamics, oracle):
    plan = made(scheme, dynamics, oracle, num_steps=12, num_chains=20_000, seed=5, dtype="float64")
    assert largest(list(scores(plan))) < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "oracle",
    ["exact", "gaussian", gm.oracles.Minibatch(2), gm.oracles.ControlVariate(2), gm.oracles.ControlVariate(2, order=2)],
)
@pytest.mark.parametrize(("scheme", "dynamics"), CASES)
def test_long_runs_have_these_moments(scheme, dynamics, oracle):
    rng = np.random.default_rng(8)
    X = 0.4 * rng.standard_normal(
        (6, 2)
    )  # with larger rows the noise has heavy tails, and z-scores of variances say little
    target = (
        TARGET if isinstance(oracle, str) else gm.targets.LinearRegression(X, rng.standard_normal(6), prior_scale=1.0)
    )
    plan = made(
        scheme, dynamics, oracle, target=target, step_size=0.02, num_steps=60, num_chains=40_000, dtype="float64"
    )
    assert largest(list(scores(plan))) < 4
