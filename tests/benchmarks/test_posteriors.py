"""The posteriors of the race: densities against the models whose exact answers are used, moments against sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accuracy import hierarchies
from accuracy.models import shapes
from accuracy.posteriors import KINDS, POSTERIORS, posterior

QUICK = ("poisson", "ordered", "eight-schools", "glmm", "garch", "mixture", "banana", "funnel")
"""Of every kind; `make test-slow` looks at all."""


def test_there_are_as_many_posteriors_as_the_pages_say():
    assert len(POSTERIORS) >= 27
    assert {posterior(name).kind for name in QUICK} == set(KINDS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in POSTERIORS]
)
def test_a_posterior_is_finite_with_its_gradient_near_its_start(name):
    one = posterior(name)
    assert one.name == name
    assert one.kind in KINDS
    assert len(set(one.names)) == len(one.names)
    theta = one.first + 0.3 * np.random.default_rng(0).standard_normal(one.dim)
    with jax.enable_x64(True):
        value, gradient = jax.jit(jax.value_and_grad(one.log_density))(jnp.asarray(theta))
        observed = one.observables(jnp.asarray(theta))
    assert observed.shape == (len(one.names),)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.isfinite(observed).all()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("eight-schools", hierarchies.eight_schools()),
        ("radon", hierarchies.radon(85, 919)),
        ("ar5", hierarchies.autoregression()),
    ],
)
def test_models_with_quadrature_are_the_ones_integrated(name, model):
    one, target = posterior(name), model.target()
    with jax.enable_x64(True):
        points = 0.5 * np.random.default_rng(1).standard_normal((3, one.dim))
        ours = np.array([one.log_density(jnp.asarray(x)) for x in points])
        theirs = np.array([-target.potential(jnp.asarray(x)) for x in points])
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-9)


@pytest.mark.parametrize("make", [shapes.banana, shapes.product, shapes.mild_funnel])
def test_exact_moments_of_small_densities(make):
    # self-normalised importance sampling with a wide Student t: |error| ≤ 5 standard errors
    one, rng = make(), np.random.default_rng(2)
    found = one.exact()
    theta = 2.0 * rng.standard_t(3, (400_000, one.dim))
    with jax.enable_x64(True):
        logs = np.asarray(jax.jit(jax.vmap(one.log_density))(jnp.asarray(theta)))
        values = np.asarray(jax.jit(jax.vmap(one.observables))(jnp.asarray(theta)))
    proposal = -2.0 * np.log1p((theta / 2.0) ** 2 / 3).sum(axis=1)
    weights = np.exp(logs - proposal - (logs - proposal).max())
    weights /= weights.sum()
    estimate = weights @ values
    error = np.sqrt(weights**2 @ (values - estimate) ** 2)
    assert np.all(np.abs(estimate - found.mean) <= 5 * error)


def test_moments_of_the_hierarchy_agree_with_those_of_the_draws_per_gradient_table():
    one, model = posterior("ar5"), hierarchies.autoregression()
    found, known = one.exact(), model.expectations()
    at = dict(zip(one.names, zip(found.mean, found.sd**2, strict=True), strict=True))
    assert at["sigma"] == pytest.approx(known["E sigma"][:2], rel=1e-10)
    assert at["beta[2]"] == pytest.approx(known["E beta 2"][:2], rel=1e-10)
    assert at["p_high[3]"] == pytest.approx(known["P 3"][:2], rel=1e-10)
