"""Coordinates: bijections invert, densities transform, and the correction term of the state-dependent recipe cancels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.coordinates.maps import check_coordinates, pulled

C = gm.coordinates
L = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.3], [-0.4, 0.2, 0.7]])


def _bent(z):
    """A banana's map with a stretched margin: T′ depends on z and is not symmetric."""
    return jnp.array([jnp.sinh(z[0]), z[1] + 0.5 * z[0] ** 2, z[2] * jnp.exp(0.3 * z[0])])


def _straightened(theta):
    z0 = jnp.arcsinh(theta[0])
    return jnp.array([z0, theta[1] - 0.5 * z0**2, theta[2] * jnp.exp(-0.3 * z0)])


BENT = C.Bijection(_bent, _straightened)
STRETCHED = C.Bijection(jnp.sinh, jnp.arcsinh, lambda z: jnp.sum(jnp.log(jnp.cosh(z))))
EVERY = {
    "linear": C.Linear(L, [1.0, -2.0, 0.5]),
    "diagonal": C.Linear([2.0, 0.1, -3.0]),
    "bijection": BENT,
    "composed": C.Compose(BENT, C.Linear(L), STRETCHED),
}


@pytest.mark.parametrize("name", EVERY)
def test_inverse_and_determinant(name):
    T, z = EVERY[name], np.random.default_rng(0).standard_normal((20, 3))
    np.testing.assert_allclose(T.zs(T.thetas(z)), z, atol=1e-10)
    with jax.enable_x64(True):
        for row in jnp.asarray(z):
            size = jnp.linalg.slogdet(jax.jacfwd(T.forward)(row))[1]
            np.testing.assert_allclose(T.log_det(row), size, atol=1e-10)
    check_coordinates(T, T.thetas(z[0]))


@pytest.mark.parametrize("name", EVERY)
def test_the_law_is_the_same(name):
    """exp(-U(T(z))) |det T′| integrates the same functions: compared by importance weights that must be constant."""
    T = EVERY[name]
    target = gm.targets.LogDensity(lambda x: -0.5 * x @ x - 0.1 * jnp.sum(jnp.cos(x)))
    z = np.random.default_rng(1).standard_normal((10, 3))
    with jax.enable_x64(True):
        there = pulled(target, T)
        for row in jnp.asarray(z):
            size = jnp.linalg.slogdet(jax.jacfwd(T.forward)(row))[1]
            np.testing.assert_allclose(there.potential(row), target.potential(T.forward(row)) - size, atol=1e-10)
            np.testing.assert_allclose(there.gradient(row), jax.grad(there.potential)(row), atol=1e-9)


def test_sums_over_data_keep_their_parts():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((12, 3)), rng.integers(0, 2, 12)
    target = pulled(gm.targets.LogisticRegression(X, y, prior_scale=2.0), BENT)
    with jax.enable_x64(True):
        z, every = jnp.asarray(rng.standard_normal(3)), jnp.arange(12)
        parts = target.batch_gradient(z, every) + target.prior_gradient(z)
        np.testing.assert_allclose(parts, jax.grad(target.potential)(z), atol=1e-10)
        np.testing.assert_allclose(target.weighted_gradient(z, every, 1.0), parts, atol=1e-10)


def test_the_correction_term_cancels():
    """E1 in z with constant D, Q is, in θ, the recipe with D(θ) = T′DT′ᵀ, Q(θ) = T′QT′ᵀ and Γ_i = Σ_j ∂_j(D_ij + Q_ij).

    The drift of θ is Itô's from z, T′b(z) + Σ_ab D_ab ∂²T/∂z_a∂z_b; the recipe's is -(D(θ)+Q(θ))∇U(θ) + Γ(θ).
    """
    rng = np.random.default_rng(3)
    root, skew = rng.standard_normal((2, 3, 3))
    D, Q = root @ root.T + np.eye(3), skew - skew.T
    U = lambda x: 0.5 * x @ x + 0.2 * jnp.sum(x**4) + x[0] * x[1]
    with jax.enable_x64(True):
        for T in EVERY.values():
            V = lambda z, T=T: U(T.forward(z)) - T.log_det(z)

            def field(theta, T=T):
                J = jax.jacfwd(T.forward)(T.inverse(theta))
                return J @ (D + Q) @ J.T

            for z in jnp.asarray(0.5 * rng.standard_normal((5, 3))):
                theta, J = T.forward(z), jax.jacfwd(T.forward)(z)
                ito = jnp.einsum("iab,ab->i", jax.hessian(T.forward)(z), D)
                from_z = -J @ (D + Q) @ jax.grad(V)(z) + ito
                gamma = jnp.einsum("ijj->i", jax.jacfwd(field)(theta))
                recipe = -field(theta) @ jax.grad(U)(theta) + gamma
                np.testing.assert_allclose(from_z, recipe, rtol=1e-8, atol=1e-8)


def test_a_wrong_map_is_refused():
    with pytest.raises(gm.InvalidInput, match="nonsingular"):
        C.Linear([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(gm.InvalidInput, match="not a bijection at the start"):
        check_coordinates(C.Bijection(jnp.exp, jnp.exp), np.ones(2))
    with pytest.raises(gm.InvalidInput, match="log_det"):
        check_coordinates(C.Bijection(jnp.exp, jnp.log, lambda z: 2 * jnp.sum(z)), np.full(2, 2.0))
    with pytest.raises(gm.InvalidInput, match="must be a value of"):
        check_coordinates(jnp.exp, np.ones(2))
