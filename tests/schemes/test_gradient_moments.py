"""S = E[ĝĝᵀ] from samples and from pilot runs, against the exact one, and what is said where it is not known well."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.schemes import moments
from gyromc.schemes.moments import gradient_moments, pilot

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
    assert found.source == "a pilot run of 1000 steps"
    assert gradient_moments(plan.replace(step_size=0.2)) is found


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
