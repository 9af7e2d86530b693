"""A user's own model, written once in JAX, runs in `lanes` and agrees with `scan`."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import njit

import gyromc as gm
from gyromc.engines.lanes.program import user_function
from gyromc.engines.lanes.translate import Untranslatable, translated
from gyromc.engines.lanes.vectors import load, store


class Poisson(gm.targets.GeneralizedLinear):
    """Counts with a rate softened at large predictors."""

    def loss(self, t, y):
        return 3 * jnp.exp(t / 3) - y * t

    def slope(self, t, y):
        return jnp.exp(t / 3) - y


class Odd(gm.targets.GeneralizedLinear):
    def loss(self, t, y):
        return t * jax.lax.erf(t - y)

    def slope(self, t, y):
        return jax.grad(self.loss)(t, y) if jnp.ndim(t) == 0 else jax.vmap(jax.grad(self.loss))(t, y)


def on_sixteen(f):
    """A function of two vectors at sixteen pairs of numbers: the numbers, and what comes out."""

    @njit
    def apply(x, y, out):
        store(out, 0, f(load(x, 0), load(y, 0)))

    x, y = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    out = np.empty(16, np.float32)
    apply(x, y, out)
    return x, y, out


def test_formulas_survive_the_translation():
    def formula(t, y):
        return jnp.tanh(t) ** 3 - jnp.maximum(y, 0.5) / (1 + jnp.exp(-t)) + jnp.log1p(t**2) * jnp.sin(y) - 2.0

    f = translated(formula, 2)

    x, y, out = on_sixteen(f)
    assert np.allclose(out, formula(x, y), atol=2e-6)
    with pytest.raises(Untranslatable, match="erf"):
        translated(lambda t: jnp.asarray(__import__("jax").lax.erf(t)), 1)


SCALARS = {
    "softplus": jax.grad(jax.nn.softplus),
    "logaddexp": jax.grad(lambda t: jnp.logaddexp(t, 0.3)),
    "two conditions": lambda t: jnp.where((t > 0) & (t <= 1), t**2, -t),
    "either": lambda t: jnp.where((t < -1) | (t >= 2), 1.0, t),
    "huber": jax.grad(lambda t: jnp.where(jnp.abs(t) < 1, t * t / 2, jnp.abs(t) - 0.5)),
    "log cosh": jax.grad(lambda t: jnp.log(jnp.cosh(t))),
    "inverse power": lambda t: (1 + t**2) ** -2,
    "double well": jax.grad(lambda t: t**4 / 4 - t**2),
    "silu": jax.grad(jax.nn.silu),
    "constant": lambda t: jnp.where(jnp.asarray(2.0) > 1.0, 3.0, t),
}


ALIKE = ("logaddexp", "log cosh", "double well", "silu")  # their operations are in the formula above and in the others


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in ALIKE else []) for n in SCALARS])
def test_gradients_of_common_functions_survive_too(name):
    x, out = np.linspace(-3, 3, 16).astype(np.float32), np.empty(16, np.float32)
    f = translated(SCALARS[name], 1)

    @njit
    def apply(x, out):
        store(out, 0, f(load(x, 0)))

    apply(x, out)
    assert np.allclose(out, jax.vmap(SCALARS[name])(x), atol=2e-6)


@numba.njit
def poisson_slope(t, y):
    return np.exp(t / 3) - y


class InNumba(Poisson):
    """The same model with its slope for `lanes` given by hand."""

    numba_slope = poisson_slope


def test_a_slope_can_be_a_numba_function():
    target = InNumba(np.ones((4, 2)), np.zeros(4))
    f = user_function(target)

    x, y, out = on_sixteen(f)
    assert np.allclose(out, np.exp(x / 3) - y, atol=2e-6)
    assert user_function(target) is f  # compiled once


@pytest.mark.parametrize(
    "oracle",
    [gm.oracles.Minibatch(8), gm.oracles.Exact()],
    ids=["mini-batch", "exact"],
)
@pytest.mark.slow
def test_a_users_model_agrees_with_scan(oracle):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 3))
    plan = gm.Plan(
        target=Poisson(X, rng.poisson(1.0, 40).astype(float), prior_scale=1.0),
        dynamics=gm.dynamics.hfhr(3, 0.5, 4.0),
        oracle=oracle,
        observables={"x": gm.observables.linear([1.0, -1.0, 0.5])},
        step_size=0.02,
        num_steps=25,
        num_chains=30_000,
        dtype="float32",
    )
    ours, theirs = gm.run(plan), gm.run(plan.replace(seed=1, num_chains=20_000), "scan")
    assert ours.engine == "lanes"
    a, b = ours.averages["x"], theirs.averages["x"]
    assert abs(a.mean() - b.mean()) < 4.5 * np.hypot(ours.std_error["x"], theirs.std_error["x"])
    assert abs(a.var() / b.var() - 1) < 4.5 * np.sqrt(2 / 30_000 + 2 / 20_000)


def test_a_slope_that_cannot_be_translated_is_refused_by_name():
    plan = gm.Plan(
        target=Odd(np.ones((4, 1)), np.zeros(4)),
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0])},
        step_size=0.05,
        num_steps=4,
        num_chains=4,
    )
    with pytest.raises(gm.InvalidInput, match="the slope of Odd uses the operation"):
        gm.run(plan, "lanes")
    assert gm.run(plan).engine == "scan"
