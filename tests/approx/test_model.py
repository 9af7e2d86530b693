"""What a Model knows of a target, against formulas and quadrature; and what it says when there is nothing to know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, special

import gyromc as gm
from gyromc.approx.modes import find_mode, inverse_root, mean_curvature_fit, newton
from gyromc.approx.sample import expectation

RNG = np.random.default_rng(8)
X = RNG.standard_normal((40, 3))
REGRESSIONS = {
    "linear": gm.targets.LinearRegression(X, RNG.standard_normal(40), prior_scale=1.5),
    "logistic": gm.targets.LogisticRegression(X, RNG.integers(0, 2, 40), prior_scale=1.5),
    "poisson": gm.targets.PoissonRegression(X, RNG.poisson(2.0, 40), prior_scale=1.5),
    "softmax": gm.targets.SoftmaxRegression(X, RNG.integers(0, 4, 40), prior_scale=1.5),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_numpy_formulas_are_the_derivatives_of_the_jax_ones(name):
    """U, ∇U and ∇²U at many points in NumPy, against automatic differentiation of the potential."""
    target = REGRESSIONS[name]
    rows = RNG.standard_normal((2, target.dim))
    with jax.enable_x64(True):
        at = [jnp.asarray(row) for row in rows]
        by_jax = jax.jit(lambda x: (target.potential(x), jax.grad(target.potential)(x), target.gradient(x),
                                    jax.hessian(target.potential)(x)))  # fmt: skip
        potentials, slopes, gradients, hessians = (np.array(values) for values in zip(*map(by_jax, at), strict=True))
    np.testing.assert_allclose(target.potentials(rows), potentials, rtol=1e-12)
    np.testing.assert_allclose(target.gradients(rows), slopes, rtol=1e-10)
    np.testing.assert_allclose(target.gradients(rows), gradients, rtol=1e-10)
    np.testing.assert_allclose(target.hessians(rows), hessians, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(target.mean_hessian(rows), hessians.mean(axis=0), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_mode_of_a_regression_is_the_one_a_descent_finds(name):
    """Newton's method in NumPy against L-BFGS on the same potential, written as a density."""
    target = REGRESSIONS[name]
    model = gm.Model(target)
    same = gm.targets.LogDensity(lambda theta: -target.potential(theta))
    other = gm.Model(same, template=np.zeros(target.dim))
    np.testing.assert_allclose(model.mode, other.mode, atol=1e-7)
    np.testing.assert_allclose(model.precision, other.precision, rtol=1e-6)
    assert np.max(np.abs(target.gradients(model.mode[None]))) < 1e-9


def test_newton_stops_where_the_hessian_is_not_positive():
    """-x² has no minimum: the point it began at comes back."""
    start = np.array([0.3])
    assert newton(lambda x: -float(x @ x), lambda x: -2 * x, lambda x: -2 * np.eye(1), start) is start


def test_a_target_without_a_mode_is_named():
    with pytest.raises(gm.InvalidInput, match=r"No mode was found: .* after 1\d iterations"):  # far away, U still falls
        find_mode(gm.targets.LogDensity(lambda x: x[0]), np.zeros(1))
    flat = gm.Model(gm.targets.LogDensity(lambda x: -0.5 * x[0] ** 2), template=np.zeros(2))
    with pytest.raises(gm.InvalidInput, match="not positive definite"):
        flat.laplace  # noqa: B018  # reading it raises


def test_what_is_learnt_is_learnt_once_and_survives_a_changed_plan():
    calls = []

    def density(theta):
        calls.append(1)
        return -0.5 * jnp.sum(theta**2) - 0.1 * jnp.sum(theta**4)

    plan = gm.Plan(
        target=gm.targets.LogDensity(density),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        step_size=0.1,
        start=[0.5, -0.5],
    )
    plan.model.importance_sample(draws=2000)
    before = len(calls)
    other = plan.replace(step_size=0.05, dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]))
    assert other.model is plan.model
    other.model.importance_sample(draws=2000)
    assert other.model.laplace is plan.model.laplace
    assert len(calls) <= before + 2  # shapes of the new plan are looked at; nothing is evaluated again
    assert plan.replace(start=[1.0, 1.0]).model is not plan.model


def test_the_fit_to_a_gaussian_posterior_is_the_posterior():
    x = np.column_stack([np.ones(8), np.arange(8.0) - 3.5])
    gaussian = gm.Model(gm.targets.LinearRegression(x, np.arange(8.0), prior_scale=1.0)).gaussian_fit
    assert np.allclose(gaussian.precision, x.T @ x + np.eye(2))
    assert np.allclose(gaussian.mean, linalg.solve(x.T @ x + np.eye(2), x.T @ np.arange(8.0)))


def test_the_mean_curvature_fit_of_a_skewed_posterior():
    """Under N(m, K⁻¹), E[∇U] ≈ 0 and E[∇²U] ≈ K, far from the mode."""
    x = np.column_stack([np.ones(8), np.arange(8.0) - 3.5])
    target = gm.targets.LogisticRegression(x, np.array([0.0, 0, 0, 1, 0, 1, 1, 1]), 3.0)
    fit = mean_curvature_fit(target, gm.Model(target).laplace, 256)
    root = inverse_root(fit.precision)
    points = fit.mean + np.random.default_rng(1).standard_normal((4000, 2)) @ root.T
    spectrum = np.linalg.eigvalsh(root.T @ target.mean_hessian(points) @ root)
    assert np.linalg.norm(target.gradients(points).mean(axis=0) @ root) < 0.4
    assert 0.6 < spectrum[0] <= spectrum[-1] < 1.6


def test_expectations_by_quasi_random_points():
    """A skewed one-parameter posterior against quadrature; two seeds agree within their errors."""
    target = gm.targets.LogisticRegression([[1.0], [2.0], [3.0]], [1, 1, 1], prior_scale=2.0)
    center = gm.Model(target).laplace
    t = np.linspace(-8, 16, 40_001)
    w = np.exp(-target.potentials(t[:, None]))
    exact = w @ special.expit(t) / w.sum()
    for seed in (0, 1):
        found = expectation(target, center, special.expit, num_draws=2**13, seed=seed)
        assert abs(found.mean[0] - exact) < 4 * found.std_error[0] + 1e-6
        assert found.std_error[0] < 2e-3


def test_wrong_models_are_refused():
    with pytest.raises(gm.InvalidInput, match="does not know its dimension"):
        gm.Model(gm.targets.LogDensity(lambda x: -x @ x))
    with pytest.raises(gm.InvalidInput, match="`start` must hold 2 numbers"):
        gm.Model(gm.targets.Quadratic([1.0, 2.0]), start=[1.0])
    model = gm.Model(gm.targets.Quadratic([1.0, 2.0]))
    with pytest.raises(gm.InvalidInput, match="rows of 2 finite numbers"):
        model.sample_of(np.zeros((50, 3)))
    with pytest.raises(gm.InvalidInput, match="too few for 2 parameters"):
        model.sample_of(np.zeros((5, 2)))
