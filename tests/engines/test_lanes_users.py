"""A user's own model, written once in JAX, runs in `lanes` and agrees with `scan`."""

import gc
import os
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines.lanes.users import VectorFunction, written
from gyromc.engines.lanes.vectors import called, load, store
from gyromc.engines.unrolled import Unsupported
from gyromc.runtime import evaluation
from gyromc.runtime.machine import release_memory


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


@numba.njit
def apply(address, x, y, out):
    store(out, 0, called(address, load(x, 0), load(y, 0)))


def on_sixteen(function, num_arguments, x, y=None):
    """A function at sixteen numbers, or pairs of numbers, as vectors compute it."""
    compiled, out = VectorFunction(function, num_arguments, str(x.dtype)), np.empty_like(x)
    apply(compiled.address, x, x if y is None else y, out)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_formulas_survive_the_translation(dtype):
    def formula(t, y):
        return jnp.tanh(t) ** 3 - jnp.maximum(y, 0.5) / (1 + jnp.exp(-t)) + jnp.log1p(t**2) * jnp.sin(y) - 2.0

    x, y = np.random.default_rng(0).standard_normal((2, 16)).astype(dtype)
    with jax.enable_x64(True):
        assert np.allclose(on_sixteen(formula, 2, x, y), formula(x, y), atol=1e3 * np.finfo(dtype).eps, rtol=0)
    with pytest.raises(Unsupported, match="erf"):
        written(lambda t: jax.lax.erf(t), 1, dtype)
    with pytest.raises(Unsupported, match="`eq` of truth values"):
        written(lambda t: jnp.where((t > 0) == (t < 1), t, 0.0), 1, dtype)


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
    x = np.linspace(-3, 3, 16).astype(np.float32)
    assert np.allclose(on_sixteen(SCALARS[name], 1, x), jax.vmap(SCALARS[name])(x), atol=2e-6)


def _resident() -> float:
    """The memory of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _run_new_functions(numbers) -> None:
    for number in numbers:
        plan = gm.Plan(
            target=gm.targets.Separable(lambda t, c=4.0 + number: t**4 / c + jnp.cos(t), precision=[1.0, 2.0]),
            dynamics=gm.dynamics.overdamped(2), observables={"x": gm.observables.linear([1.0, 0.0])},
            step_size=0.01, num_steps=3, num_chains=4, dtype="float32",
        )  # fmt: skip
        gm.run(plan, "lanes", progress=False)


@pytest.mark.parametrize("count", [8, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_new_functions(count, monkeypatch):
    """Where every new function had a loop of its own, each took 4.5 MB for ever."""
    # JAX's programs, of which 64 are kept otherwise, are not what this test is about.
    monkeypatch.setattr(evaluation, "MOST_PROGRAMS", 1)
    _run_new_functions(range(4))
    release_memory()
    held = _resident()
    _run_new_functions(range(4, 4 + count))
    release_memory()
    assert _resident() - held < 3 + 0.02 * count


def test_a_function_s_code_goes_with_it():
    modules = []
    for number in range(3):
        function = VectorFunction(lambda t, c=number: t * c, 1, "float32")
        modules.append(weakref.ref(function.engine))
        del function
    gc.collect()
    assert [module() for module in modules] == [None, None, None]


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
