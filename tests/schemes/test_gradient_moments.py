"""S = E[ĝĝᵀ] from samples and from pilot runs, against the exact one, and what is said where it is not known well."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.schemes import moments
from gyromc.schemes.moments import GradientMoments, gradient_moments, pilot, variance_effect


def steps_of(found: GradientMoments) -> int:
    """The length of a pilot run, as its source states it."""
    return int(found.source.removeprefix("a pilot run of ").removesuffix(" steps"))


K = np.array([[4.0, 1.0], [1.0, 1.0]])


def gaussian(theta):
    return -0.5 * theta @ K @ theta


def log_cosh(theta):
    return -2 * jnp.sum(jnp.logaddexp(theta, -theta))


def plan_of(density=gaussian, d=2, tau=0.5, **settings):
    oracle = gm.oracles.Gaussian(tau) if tau else gm.oracles.Exact()
    settings = {"step_size": 0.3, "start": np.zeros(d), "seed": 0} | settings
    return gm.Plan(
        target=gm.targets.LogDensity(density),
        dynamics=gm.dynamics.overdamped(d),
        oracle=oracle,
        observables={"x": gm.observables.linear(np.eye(d)[0])},
        **settings,
    )


@pytest.fixture
def no_search(monkeypatch):
    """Chains start where the plan says."""
    monkeypatch.setattr(moments, "MOST_PARAMETERS", 0)


@pytest.fixture
def untrusted(monkeypatch, no_search):
    """No sample is trusted: S comes from a pilot run."""
    monkeypatch.setattr(gm.Model, "trusted_sample", None)


def test_a_pilot_finds_S_within_its_stated_error(no_search):
    """6 seeds: along the eigenvectors of S the errors are those stated, and all are below 5 %."""
    S = K + 0.25 * np.eye(2)
    sizes, basis = np.linalg.eigh(S)
    ratios = []
    for seed in range(6):
        found = pilot(plan_of(seed=seed))
        off = np.einsum("iv,ij,jv->v", basis, found.curvature + found.noise - S, basis) / sizes
        assert found.relative_error < 0.05
        assert np.max(np.abs(off)) < 4 * found.relative_error
        ratios.append(np.max(np.abs(off)) / found.relative_error)
    assert 0.2 < np.sqrt(np.mean(np.square(ratios))) < 1.5
    np.testing.assert_allclose(np.diag(found.noise), 0.25, rtol=4 * np.sqrt(2 / 1000))


def test_with_exact_gradients_a_gaussian_is_exact_from_few_steps(no_search):
    found = pilot(plan_of(tau=0.0, start=[3.0, 3.0]))
    np.testing.assert_allclose(found.curvature, K, rtol=1e-8)
    assert found.relative_error < 1e-6
    assert np.all(found.noise == 0)
    assert steps_of(found) == 2 * moments.PART


def test_a_pilot_ends_at_5_percent_or_at_its_limit(no_search, monkeypatch):
    """It doubles until the error is small enough, never beyond 20,000 gradients, two a state."""
    easy, hard = pilot(plan_of()), pilot(plan_of(log_cosh, 1, step_size=0.005))
    assert steps_of(easy) < steps_of(hard)
    assert 2 * moments.CHAINS * steps_of(hard) <= moments.MOST_GRADIENTS < 4 * moments.CHAINS * steps_of(hard)
    monkeypatch.setattr(moments, "ENOUGH", 0.0)
    longer = pilot(plan_of())
    assert steps_of(longer) == steps_of(hard)
    assert longer.relative_error < easy.relative_error


def test_noise_that_hides_the_curvature_takes_more_steps(no_search):
    """S is nearly all noise and soon known; the run goes on until the curvature is positive definite."""
    found = pilot(plan_of(tau=4.0, step_size=0.02))
    assert np.linalg.eigvalsh(found.curvature)[0] > 0
    assert steps_of(found) > 2 * moments.PART


def test_a_law_that_is_not_gaussian(no_search):
    """P = E[U''] of log cosh by quadrature, within the stated errors of 4 seeds."""
    x = np.linspace(-30, 30, 60_001)
    w = np.exp(-2 * np.logaddexp(x, -x))
    exact = w @ (2 / np.cosh(x) ** 2) / w.sum()
    found = [pilot(plan_of(log_cosh, 1, 0.0, step_size=1.0, seed=seed)) for seed in range(4)]
    z = [(f.curvature[0, 0] / exact - 1) / f.relative_error for f in found]
    assert np.max(np.abs(z)) < 4
    assert max(f.relative_error for f in found) < 0.1


@pytest.mark.parametrize("tau", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_chains_that_have_not_arrived_are_told(tau, untrusted):
    """Far out ∇U is constant: the chains agree with each other, and are wrong."""
    with pytest.warns(gm.GyromcWarning, match="error of about 100 % or more; variances under `balanced` may be off"):
        gradient_moments(plan_of(log_cosh, 1, tau, start=[300.0]))


def test_chains_that_have_not_spread_are_told(untrusted):
    """From the mode, in a short time, the gradient looks linear: S comes out too large, by no more than the error stated."""
    with pytest.warns(gm.GyromcWarning, match="has a relative error"):
        found = gradient_moments(plan_of(log_cosh, 1, step_size=0.005))
    exact = 4 / 3 + 0.25  # E[2 sech²] under sech²
    assert 0.1 < found.second[0, 0] / exact - 1 < 2 * found.relative_error


def test_an_uncertain_S_is_told_once_for_each_step_size(untrusted):
    plan = plan_of(log_cosh, 1, step_size=0.005)
    with pytest.warns(
        gm.GyromcWarning, match=r"a pilot run of 1000 steps and has a relative error of about \d"
    ) as told:
        found = gradient_moments(plan)
    assert f"{100 * found.relative_error:.2g} %" in str(told[0].message)
    assert f"{100 * variance_effect(plan, found):.2g} %" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradient_moments(plan) is found
    with pytest.warns(gm.GyromcWarning):
        assert gradient_moments(plan.replace(step_size=0.01)) is found


def test_a_well_known_S_is_not_told_about(untrusted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = plan_of()
        found = gradient_moments(plan)
    assert found.source == "a pilot run of 250 steps"
    assert gradient_moments(plan.replace(step_size=0.2)) is found


def test_the_effect_on_variances_is_that_of_a_wrong_S():
    """With D = K⁻¹ it is ηδS/(2-η) (exact in one dimension); in two, the exact covariance under (1+δ)S in its worst direction."""
    delta, eta = 0.1, 0.3
    one = plan_of(lambda t: -2 * t @ t, 1).replace(dynamics=gm.dynamics.general([[0.25]], 0), step_size=eta)
    moments = GradientMoments(np.array([[4.0]]), np.array([[1.0]]), "given", delta)
    assert variance_effect(one, moments) == pytest.approx(eta * delta * 1.25 / (2 - eta))
    diagonal = GradientMoments(np.array([4.0]), np.array([1.0]), "given", delta)
    assert variance_effect(one, diagonal) == pytest.approx(eta * delta * 1.25 / (2 - eta))
    J = np.array([[0.0, -1.0], [1.0, 0.0]])
    two = plan_of().replace(dynamics=gm.dynamics.nonreversible(J), step_size=0.1)
    G, Sigma = np.eye(2) + J, 0.25 * np.eye(2)
    M, W = np.eye(2) - 0.1 * G @ K, 0.2 * np.eye(2) - 0.01 * (1 + delta) * G @ (K + Sigma) @ G.T
    X = np.zeros((2, 2))
    for _ in range(2000):
        X = M @ X @ M.T + W + 0.01 * G @ Sigma @ G.T
    lower = np.linalg.cholesky(K)
    worst = np.max(1 - np.linalg.eigvalsh(lower.T @ X @ lower))
    assert variance_effect(two, GradientMoments(K, Sigma, "given", delta)) == pytest.approx(worst, rel=1e-6)


def test_a_trusted_sample_gives_S_with_its_error():
    """Regressions by their own Hessian, over 512 points; the error is what more points change it by."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    plan = gm.Plan(
        target=gm.targets.LogisticRegression(X, (X[:, 0] + rng.standard_normal(80) > 0).astype(int), prior_scale=1.0),
        dynamics=gm.dynamics.overdamped(3),
        oracle=gm.oracles.Minibatch(10),
        observables={"x": gm.observables.linear([1.0, 0.0, 0.0])},
        step_size=0.01,
    )
    found, sample = gradient_moments(plan), plan.model.trusted_sample
    assert 0 < found.relative_error < 0.05
    P = sample.mean_curvature().matrix
    assert np.max(np.abs(np.linalg.eigvalsh(np.linalg.solve(P, found.curvature)) - 1)) < 0.05


def test_many_parameters_keep_diagonals_with_their_error(no_search):
    """600 coordinates of variance 1: the stated error is the root mean square of the true ones, within a half."""
    found = pilot(plan_of(lambda t: -0.5 * t @ t, 600, 0.5, step_size=1.0))
    assert found.curvature.shape == (600,)
    true = np.sqrt(np.mean(((found.curvature + found.noise) / 1.25 - 1) ** 2))
    assert found.relative_error == pytest.approx(true, rel=0.5)
    assert found.relative_error > 0.05


def test_a_run_that_diverges_is_named(no_search):
    with pytest.raises(gm.InvalidInput, match="a pilot run from the start diverged"):
        pilot(plan_of(lambda t: -jnp.sum(t**4), start=[50.0, 50.0]))
