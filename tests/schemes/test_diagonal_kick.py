"""The splitting of HFHR with noisy gradients and diagonals only: the covariance on a diagonal Gaussian, O(d) memory, refusals."""

import numpy as np
import pytest
from scipy import linalg

import gyromc as gm
from gyromc.prediction.exact.chain import augment
from gyromc.schemes import integrators
from gyromc.schemes.integrators import HfhrSplitting, kick
from gyromc.schemes.moments import GradientMoments

PRECISION = np.array([0.2, 1.0, 3.0, 11.0])
C = np.array([4.0, 0.5, 1.0, 0.1])


def plan_of(scheme, tau, precision=PRECISION, preconditioner=C, step_size=0.3, **settings):
    d = len(precision)
    return gm.Plan(
        target=gm.targets.Quadratic(precision),
        dynamics=gm.dynamics.hfhr(d, 0.1, 1.5, preconditioner=preconditioner),
        scheme=scheme,
        oracle=gm.oracles.Gaussian(tau),
        observables={"x": gm.observables.linear(np.eye(1, d)[0])},
        step_size=step_size,
        **{"num_steps": 10, "num_chains": 2, **settings},
    )


@pytest.fixture
def told(monkeypatch):
    """A function that makes plans of any size use diagonals of P and Σ, those passed to it."""

    def use(P, Sigma):
        monkeypatch.setattr(integrators, "MOST_DENSE", 0)
        monkeypatch.setattr(integrators, "gradient_moments", lambda plan: GradientMoments(P, Sigma, "given"))
        return "hfhr_splitting"

    return use


def covariance(plan, tau):
    """Of θ in stationarity, from the Lyapunov equation of the chain."""
    step, K = plan.step_matrices, np.diag(plan.target.precision)
    M, B = step.transition(augment(K, True)), step.B[:, : plan.dim]
    return linalg.solve_discrete_lyapunov(M, step.C @ step.C.T + tau**2 * B @ B.T)[: plan.dim, : plan.dim]


def test_the_covariance_is_exact_on_a_diagonal_gaussian(monkeypatch):
    tau, scheme = 0.5, "hfhr_splitting"
    monkeypatch.setattr(integrators, "MOST_DENSE", 0)
    np.testing.assert_allclose(covariance(plan_of(scheme, tau), tau), np.diag(1 / PRECISION), atol=1e-10)


@pytest.mark.parametrize("mutant", ["no noise", "half the noise", "another curvature"])
def test_wrong_moments_are_seen(mutant, told):
    tau = 0.5
    P, Sigma = PRECISION, np.full(4, tau**2)
    given = {"no noise": (P, 0 * Sigma), "half the noise": (P, Sigma / 2), "another curvature": (P / 3, Sigma)}[mutant]
    found = covariance(plan_of(told(*given), tau), tau)
    assert np.max(np.abs(found * PRECISION - np.eye(4))) > 1e-3


def test_numbers_per_coordinate_agree_with_matrices():
    rng = np.random.default_rng(0)
    P, Sigma = rng.uniform(0.01, 3.0, 6), rng.uniform(0.0, 0.5, 6)
    for alpha, gamma, eta in ((0.001, 0.1, 1.0), (0.5, 2.0, 0.2), (0.2, 0.01, 0.05)):
        dynamics = gm.dynamics.hfhr(6, alpha, gamma)
        matrices = np.diag(kick(dynamics, np.diag(P), np.diag(Sigma), eta))
        np.testing.assert_allclose(kick(dynamics, P, Sigma, eta), matrices, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_above_512_parameters_it_runs_and_keeps_the_variances(told):
    """600 coordinates with 100 chains of their own: the mean of precision · θ² over all is 1 within 4 standard errors."""
    d, tau = 600, 0.5
    precision = np.geomspace(0.5, 4.0, d)
    plan = plan_of("hfhr_splitting", tau, precision, 1 / precision, 0.7, num_chains=100, num_steps=1, burn_in=150)
    run = gm.run(plan, "scan")
    squares = np.mean(precision * run.state.z[:, :d] ** 2, axis=1)
    assert abs(squares.mean() - 1) < 4 * squares.std(ddof=1) / 10
    unaware = told(precision, np.zeros(d))
    heated = gm.run(
        plan_of(unaware, tau, precision, 1 / precision, 0.7, num_chains=100, num_steps=1, burn_in=150), "scan"
    )
    squares = np.mean(precision * heated.state.z[:, :d] ** 2, axis=1)
    assert squares.mean() - 1 > 8 * squares.std(ddof=1) / 10


def test_a_million_parameters_need_no_matrix():
    d = 10**6
    plan = plan_of("hfhr_splitting", 0.3, np.geomspace(0.5, 4.0, d), np.ones(d), num_chains=1)
    prepared = plan.prepared_scheme
    assert isinstance(prepared, HfhrSplitting)
    assert prepared.root is not None
    assert prepared.root.size == d


def test_too_much_noise_is_refused(told):
    with pytest.raises(gm.InvalidInput, match=r"more noise than it draws \(its noise would have the variance -"):
        _ = plan_of(told(PRECISION, np.full(4, 2.0)), 2.0**0.5).prepared_scheme
    dense = np.eye(600) + 0.5 * np.eye(600, k=1) + 0.5 * np.eye(600, k=-1)
    with pytest.raises(gm.InvalidInput, match="Use a diagonal preconditioner"):
        _ = plan_of("hfhr_splitting", 0.1, np.ones(600), dense + np.eye(600)).prepared_scheme
