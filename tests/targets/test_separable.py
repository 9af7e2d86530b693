"""Targets with a scalar nonlinearity of the user's: the same law in every engine, and against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes, pallas, unrolled
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.vectors import WIDTH
from support.values import skew, spd
from support.zscores import score

K = 4.0  # standard errors


def wells(t):
    return t**4 / 4 - t**2


def cosine(t):
    return 1.2 * jnp.cos(t)


def make(target, **changes):
    pieces = {
        "target": target,
        "dynamics": gm.dynamics.nonreversible(gm.dynamics.rotations(3, 0.7)),
        "oracle": gm.oracles.Gaussian(1.0),
        "observables": {"h": gm.observables.tanh([1.0, -1.0, 0.5])},
        "step_size": 0.1,
        "num_steps": 25,
        "num_chains": 70,
        "dtype": "float32",
        "start": [1.0, 0.0, -0.5],
    }
    return gm.Plan(**{**pieces, **changes})


def test_gradient_is_the_derivative_of_the_potential():
    target = gm.targets.Separable(wells, spd(3, 1), [0.1, 0.2, -0.3], [1.0, 2.0, 0.5])
    theta = np.array([0.3, -1.0, 1.7])
    with jax.enable_x64(True):
        by_hand = target.precision @ (theta - target.mean) + target.weights * (theta**3 - 2 * theta)
        assert np.allclose(target.gradient(jnp.asarray(theta)), by_hand, rtol=1e-12)
        assert np.allclose(jax.grad(target.potential)(jnp.asarray(theta)), by_hand, rtol=1e-12)


def test_a_users_cosine_is_the_built_in_one():
    """The same random numbers give the same averages, to rounding."""
    built_in = gm.run(make(gm.targets.CosinePerturbed(3, 1.2)), "lanes").averages["h"]
    run = gm.run(make(gm.targets.Separable(cosine, np.eye(3))))
    assert run.engine == "lanes"
    assert np.allclose(run.averages["h"], built_in, atol=2e-6)


@pytest.mark.slow
def test_matrix_mean_and_weights_reach_the_loop():
    """Without noise, three steps against the plain formula."""
    target = gm.targets.Separable(wells, spd(3, 2), [0.5, -0.2, 0.1], [1.0, 0.0, 2.0])
    dynamics = gm.dynamics.general(spd(3, 3), skew(3, 4))
    start = np.random.default_rng(0).standard_normal((5, 3))
    plan = make(target, dynamics=dynamics, oracle=gm.oracles.Exact(), start=start, num_chains=5, step_size=0.05)
    session = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)
    assert session.program.part == gradients.Part.SCALAR
    step = session.program.step
    step.entry[step.column >= 6 * WIDTH] = 0.0
    session.advance(3)
    z, G = start, dynamics.D + dynamics.Q
    for _ in range(3):
        g = (z - target.mean) @ target.precision + target.weights * (z**3 - 2 * z)
        z = z - 0.05 * g @ G.T
    assert np.allclose(session.state().z, z, rtol=3e-6, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lanes", "scan"])
def test_averages_come_out_as_the_poisson_equation_says(engine):
    """Two wells tilted by a mean: V, μ(h) and the bias by Galerkin, the run's mean within K standard errors.

    What is left out is of second order in η: at η = 0.02 less than 4·10⁻⁴ (seen by halving it), a third of a standard error.
    """
    plan = tilted_wells()
    if engine == "scan":
        plan = plan.replace(num_chains=500, seed=3)
    prediction, run = gm.predict(plan), gm.run(plan, engine)
    expected = prediction.expectation["h"] + prediction.bias["h"]
    assert abs(score(run.mean["h"], expected, run.std_error["h"])) < K
    # V has corrections of order η, and of the start: 5 % here
    assert run.averages["h"].std() == pytest.approx(prediction.std["h"], rel=0.05 + K / np.sqrt(2 * plan.num_chains))


def test_the_expectation_of_a_prediction_is_that_by_quadrature():
    plan = tilted_wells()
    prediction = gm.predict(plan)
    assert prediction.method["h"].startswith("galerkin")
    potentials, t = plan.target.separable(), np.linspace(-6, 6, 2001)
    density = np.exp(-potentials[0](t)[:, None] - potentials[1](t)[None])
    by_quadrature = np.sum(density * np.tanh(t[:, None] + 0.5 * t[None])) / density.sum()
    assert prediction.expectation["h"] == pytest.approx(by_quadrature, abs=1e-7)


def tilted_wells():
    """Two wells, tilted by a mean."""
    return make(
        gm.targets.Separable(wells, [1.0, 1.0], [0.6, 0.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"h": gm.observables.tanh([1.0, 0.5])},
        step_size=0.02,
        num_steps=2500,
        num_chains=6000,
        oracle=gm.oracles.Exact(),
        start=[0.0, 0.0],
    )


def test_an_operation_without_a_translation_is_named_and_scan_serves_instead():
    erf = gm.targets.Separable(lambda t: t * jax.lax.erf(t), precision=np.ones(3))
    run = gm.run(make(erf))
    assert run.engine == "scan"
    assert "the slope of Separable uses the operation `erf" in run.engine_reason


def test_pallas_unrolls_it(monkeypatch):
    monkeypatch.setenv("GYROMC_PALLAS_INTERPRET", "1")
    plan = make(gm.targets.Separable(wells, spd(3, 2), [0.5, -0.2, 0.1]), oracle=gm.oracles.Exact(), num_steps=3)
    assert pallas.why_not(plan) is None
    of_tiles = unrolled.unroll(plan.target.gradient, jax.ShapeDtypeStruct((3,), jnp.float32))
    theta = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    tiles = jnp.stack(list(of_tiles(unrolled.entries(list(jnp.asarray(theta.T)), (3,)))), 1)
    assert np.allclose(tiles, jax.vmap(plan.target.gradient)(theta), atol=1e-5)


WRONG = {
    "square matrix or a vector": {"potential": wells, "precision": []},
    "symmetric": {"potential": wells, "precision": [[1.0, 0.5], [0.0, 1.0]]},
    "`weights` must have 2 entries": {"potential": wells, "precision": [1.0, 1.0], "weights": [1.0]},
    "one number to one number": {"potential": lambda t: jnp.stack([t, t]), "precision": [1.0]},
    "function of one number: got float": {"potential": 1.0, "precision": [1.0]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_pieces_are_named(message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.targets.Separable(**WRONG[message])
