"""What a step of engine `scan` holds in memory, by XLA's own count, and that its noise is JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines.base import keys
from gyromc.engines.scan import threefry
from speed import peers, step_memory
from support.values import in_chunks


def test_a_network_of_a_million_weights_needs_state_gradient_and_noise():
    plan = next(work.plan for work in peers.WORK if work.name == "network").replace(dtype="float32")
    held, needed = step_memory(plan)
    assert needed == 3 * 4 * 995_600
    assert held <= 1.2 * needed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3, 1001), pytest.param((2, 5, 7), marks=pytest.mark.slow)])
def test_normals_are_those_of_jax(shape, dtype):
    with jax.enable_x64(dtype == "float64"):
        key = jax.random.fold_in(jax.random.key(3), 8)
        ours = jax.jit(threefry.normal, static_argnums=(1, 2))(key, shape, dtype)
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, jax.random.normal(key, shape, dtype))


def test_other_generators_are_left_to_jax():
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(threefry.normal(key, (9,), "float32"), jax.random.normal(key, (9,), "float32"))


def test_large_states_move_by_the_equation():
    """Three steps of a quadratic in 40,000 dimensions with the same keys, written out."""
    chains, d, eta = 1, 40_000, 0.1
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.linspace(0.5, 2, d)),
        dynamics=gm.dynamics.overdamped(d),
        observables={"h": gm.observables.function(lambda x: x[-1])},
        step_size=eta,
        num_steps=3,
        num_chains=chains,
        dtype="float32",
        start=np.ones(d),
    )
    run = in_chunks(2, plan, "scan")
    z, total = np.ones((chains, d)), np.zeros(chains)
    for k in range(3):
        total += z[:, -1]
        key = jax.random.split(jax.random.fold_in(keys(0).steps, k))[0]
        xi = np.asarray(jax.random.normal(key, (chains, d), jnp.float32))
        z = z - eta * z * np.linspace(0.5, 2, d) + np.sqrt(2 * eta) * xi
    assert np.allclose(run.state.z, z, atol=2e-6)
    assert np.allclose(run.averages["h"], total / 3, atol=2e-6)
