"""Draws of other packages as vectors of parameters: every container, constrained and not, and what does not fit."""

from typing import NamedTuple

import arviz_base
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer import MCMC, BarkerMH

import gyromc as gm
from gyromc.interop import numpyro as gnp
from gyromc.solve.draws import read_draws

RNG = np.random.default_rng(0)
Y = np.array([1.0, 2.0, 0.5, 3.0])


def model(y):
    """A hierarchy (not centred by the target), a support that depends on a site, and a simplex."""
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    high = numpyro.sample("high", dist.Uniform(tau, tau + 2.0))
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(high, tau))
    numpyro.deterministic("total", theta.sum() + weight[0])
    numpyro.sample("y", dist.Normal(theta, 3.0), obs=y)


@pytest.fixture(scope="module")
def target():
    return gnp.target(model, Y)


@pytest.fixture(scope="module")
def rows(target):
    """Vectors of parameters, chains × draws × d, and the values of the sites there."""
    z = RNG.normal(size=(2, 5, target.dim))
    return z, target.reported(z)


class State(NamedTuple):
    position: dict
    logdensity: np.ndarray


def test_arrays_and_pytrees_have_one_or_two_axes_over_draws():
    target = gm.targets.Quadratic([1.0, 4.0, 9.0])
    z = RNG.normal(size=(2, 5, 3))
    np.testing.assert_array_equal(read_draws(z, target), z)
    np.testing.assert_array_equal(read_draws(jnp.asarray(z)[0], target)[0], z[0].astype(np.float32))
    np.testing.assert_array_equal(read_draws({"b": z[..., 1:], "a": z[..., 0]}, target), z)  # leaves in JAX's order
    np.testing.assert_array_equal(read_draws((z[0, :, 0], z[0, :, 1:]), target), z[:1])
    one = gm.targets.Quadratic([1.0])
    assert read_draws(np.zeros(7), one).shape == (1, 7, 1)
    assert read_draws(np.zeros((4, 7)), one).shape == (4, 7, 1)
    assert read_draws(np.zeros((7, 1)), one).shape == (1, 7, 1)
    unknown = gm.targets.LogDensity(lambda x: -(x @ x))
    assert read_draws(z, unknown).shape == (2, 5, 3)
    assert read_draws(z[0], unknown).shape == (1, 5, 3)


def test_values_of_sites_go_back_to_the_parameters_they_came_from(target, rows):
    """Through a support that depends on a site, a simplex, and coordinates that are not centred."""
    z, values = rows
    assert "theta_decentered" in target.parameters
    np.testing.assert_allclose(read_draws(values, target), z, rtol=1e-10, atol=1e-10)
    first = {name: value[0] for name, value in values.items() if name != "total"}
    np.testing.assert_allclose(read_draws(first, target), z[:1], rtol=1e-10, atol=1e-10)
    tree = arviz_base.from_dict({"posterior": values, "sample_stats": {"lp": np.zeros((2, 5))}})
    np.testing.assert_allclose(read_draws(tree, target), z, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(read_draws(tree["posterior"].to_dataset(), target), z, rtol=1e-10, atol=1e-10)


def test_positions_and_parameters_by_name_are_not_constrained(target, rows):
    z, _ = rows
    position = {name: np.asarray(value) for name, value in jax.vmap(jax.vmap(target.unravel))(z).items()}
    np.testing.assert_allclose(read_draws(State(position, np.zeros((2, 5))), target), z, rtol=1e-6)
    np.testing.assert_allclose(read_draws(position, target), z, rtol=1e-6)  # theta_decentered says what they are


SETTINGS = {"num_warmup": 2, "num_samples": 4, "num_chains": 2, "chain_method": "sequential", "progress_bar": False}


@pytest.mark.slow
def test_numpyro_mcmc_on_a_model(target):
    on_model = MCMC(BarkerMH(model), **SETTINGS)  # compiled in a third of the time of NUTS
    on_model.run(jax.random.key(0), Y)
    found = read_draws(on_model, target)
    theta = on_model.get_samples(group_by_chain=True)["theta"]
    np.testing.assert_allclose(target.reported(found)["theta"], theta, rtol=1e-4, atol=1e-4)


def test_numpyro_mcmc_on_a_potential(target):
    with pytest.raises(gm.InvalidInput, match=r"has no samples .*call its `run` first"):
        read_draws(MCMC(BarkerMH(model), **SETTINGS), target)
    on_potential = MCMC(BarkerMH(potential_fn=lambda x: jnp.sum(x**2)), **SETTINGS)
    on_potential.run(jax.random.key(0), init_params=jnp.zeros((2, 3)))
    found = read_draws(on_potential, gm.targets.Quadratic([2.0, 2.0, 2.0]))
    np.testing.assert_array_equal(found, on_potential.get_samples(group_by_chain=True))


def test_states_of_blackjax_stacked_by_a_scan():
    target = gm.targets.Quadratic([1.0, 4.0])
    sampler = blackjax.hmc(lambda x: -target.potential(x), 0.3, jnp.ones(2), 3)

    def step(state, key):
        state, _ = sampler.step(key, state)
        return state, state

    _, states = jax.lax.scan(step, sampler.init(jnp.zeros(2)), jax.random.split(jax.random.key(0), 6))
    np.testing.assert_array_equal(read_draws(states, target)[0], states.position)


def test_a_run_of_ours_and_its_tree():
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), step_size=0.1, num_chains=3,
        observables={"x": gm.observables.linear([1.0, 0.0])}, num_steps=20,
    )  # fmt: skip
    run = gm.run(plan, thin=5)
    np.testing.assert_array_equal(read_draws(run, plan.target), run.draws)
    tree = run.to_datatree(names=["slope", "offset"])  # not in alphabetical order
    np.testing.assert_array_equal(read_draws(tree, plan.target), run.draws)
    with pytest.raises(gm.InvalidInput, match=r"kept no draws.*thin=10"):
        read_draws(gm.run(plan), plan.target)


def test_what_does_not_fit_is_named(target, rows):
    _, values = rows
    quadratic = gm.targets.Quadratic([1.0, 4.0])
    for draws, where, message in (
        (np.zeros((5, 3)), quadratic, r"those of 2 parameters.*got \(5, 3\)"),
        (np.full((5, 2), np.nan), quadratic, r"must be finite: 10 of their 10.*chain 0, draw 0"),
        (None, quadratic, r"`draws` must be an array.*got None"),
        ("draws.csv", quadratic, r"`draws` must be an array"),
        ({"tau": values["tau"]}, target, r"have no 'high', 'weight', 'theta': the model's latent sites"),
        (
            {**values, "theta": values["theta"][..., :3]},
            target,
            r"Site 'theta' has shape \(4,\) in the model.*\(2, 5, 3\)",
        ),
        ({**values, "tau": values["tau"][0]}, target, r"Site '.*' has shape"),
        (
            {**values, "tau": -values["tau"]},
            target,
            r"outside the support of 'high', 'tau'.*100% of the draws.*`position`",
        ),
    ):
        with pytest.raises(gm.InvalidInput, match=f"(?s){message}"):
            read_draws(draws, where)
    flat = arviz_base.from_dict({"posterior": values})["posterior"].to_dataset().isel(chain=0, drop=True)
    with pytest.raises(gm.InvalidInput, match="dimensions `chain` and `draw`"):
        read_draws(flat, target)
