"""Zero-mean functions: their mean is zero by quadrature on a law that is no Gaussian; the chosen sets are nested and bounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gyromc.fields import BOUND, FieldGroup, Fields, choose_fields


def potential(t):
    """A skew law with a curved ridge."""
    x, y = t
    return 0.5 * x**2 + jnp.exp(0.5 * x) * (y - 0.3 * x**2) ** 2 + 0.1 * y**4 + 0.2 * y


def on_grid(half=9.0, points=701):
    """Points of a square, their probabilities and gradients: the trapezoidal rule is exact to many digits for such a law."""
    axis = np.linspace(-half, half, points)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    with jax.enable_x64(True):
        U = np.asarray(jax.vmap(potential)(jnp.asarray(grid)))
        g = np.asarray(jax.vmap(jax.grad(potential))(jnp.asarray(grid)))
    p = np.exp(-(U - U.min()))
    keep = p > 1e-30
    return grid[keep], p[keep] / p.sum(), g[keep]


def all_fields(center, scale):
    d = len(center)
    corner = np.stack(np.meshgrid(*[np.arange(d)] * 3, indexing="ij")).reshape(3, -1)
    return Fields(
        np.asarray(center), np.asarray(scale), np.stack(np.triu_indices(d)), corner[:, corner[0] <= corner[1]]
    )


def test_every_function_has_mean_zero_by_quadrature():
    theta, p, gradient = on_grid()
    functions = all_fields([0.3, 0.1], [0.9, 0.6])(theta, gradient)
    sizes = np.sqrt(p @ functions**2)
    assert functions.shape[1] == 2 + 3 + 1 + 6
    assert np.abs(p @ functions / sizes).max() < 1e-9
    # and a gradient that is 2 % too large is seen by every group
    wrong = np.abs(p @ all_fields([0.3, 0.1], [0.9, 0.6])(theta, 1.02 * gradient) / sizes)
    assert wrong[[2, 4]].min() > 1e-3


def test_columns_are_the_divergences_of_their_fields():
    """∇·v - v·∇U by automatic differentiation of v, at random points."""
    rng = np.random.default_rng(0)
    center, scale = rng.normal(size=3), rng.uniform(0.5, 2, size=3)
    theta, gradient = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    fields = Fields(center, scale, np.array([[0, 0], [1, 2]]).T[::1], np.array([[0], [2], [2]]))
    found = fields(theta, gradient)
    bounded = lambda z: z / jnp.sqrt(1 + (z / BOUND) ** 2)
    unit = jnp.eye(3)

    def fields_of(t):
        z = (t - center) / scale
        w = bounded(z)
        linear = [z[a] * unit[b] + z[b] * unit[a] for a, b in fields.pairs.T]
        turned = [z[a] * unit[b] - z[b] * unit[a] for a, b in fields.pairs.T if a != b]
        return jnp.stack([*unit, *linear, *turned, w[0] * w[2] * unit[2]]) * scale

    with jax.enable_x64(True):
        for row, (t, g) in enumerate(zip(theta, gradient, strict=True)):
            v, slopes = fields_of(t), jax.jacfwd(fields_of)(jnp.asarray(t))
            wanted = np.trace(slopes, axis1=1, axis2=2) - v @ g
            assert np.allclose(found[row], wanted, atol=1e-12)


def test_few_parameters_get_all_fields_and_many_the_pairs_that_depend_on_each_other():
    rng = np.random.default_rng(1)
    few = choose_fields(rng.normal(size=(500, 3)), rng.normal(size=(500, 3)))
    assert few.sizes == {
        FieldGroup.CONSTANT: 3,
        FieldGroup.POTENTIAL: 9,
        FieldGroup.ROTATION: 12,
        FieldGroup.QUADRATIC: 30,
    }
    d = 60
    chain = np.eye(d) + 0.4 * (np.eye(d, k=1) + np.eye(d, k=-1))
    theta = rng.normal(size=(4000, d)) @ np.linalg.cholesky(np.linalg.inv(chain)).T
    many = choose_fields(theta, theta @ chain, np.linalg.inv(chain), most=400)
    assert many.count <= 400
    taken = {tuple(pair) for pair in many.pairs.T}
    assert all((i, i) in taken and (i, i + 1) in taken for i in range(d - 1))


@pytest.mark.parametrize(("dim", "functions"), [(700, 700), (1500, 0)])
def test_very_many_parameters_get_few_fields_or_none(dim, functions):
    theta = np.random.default_rng(2).normal(size=(50, dim))
    assert choose_fields(theta, theta).count == functions


def test_without_rotations_all_fields_are_gradients():
    """Every column is Δφ - ∇φ·∇U with φ linear, quadratic or a product of three levelled coordinates."""
    rng = np.random.default_rng(3)
    theta, gradient = rng.normal(size=(400, 3)), rng.normal(size=(400, 3))
    fields = choose_fields(theta, gradient, rotations=False)
    assert fields.sizes == {FieldGroup.CONSTANT: 3, FieldGroup.POTENTIAL: 9, FieldGroup.QUADRATIC: 19}
    bounded = lambda z: z / jnp.sqrt(1 + (z / BOUND) ** 2)

    def potentials(z):
        w = bounded(z)
        quadratic = [z[a] * z[b] for a, b in fields.pairs.T]
        return jnp.stack([*z, *quadratic, *(w[a] * w[c] * w[b] for a, c, b in fields.triples.T)])

    with jax.enable_x64(True):
        for t, g in zip(theta[:5], gradient[:5], strict=True):
            z, s = jnp.asarray((t - fields.center) / fields.scale), -g * fields.scale
            wanted = jax.jacfwd(potentials)(z) @ s + jnp.trace(jax.hessian(potentials)(z), axis1=1, axis2=2)
            np.testing.assert_allclose(fields(t[None], g[None])[0], wanted, atol=1e-10)
