"""Control variates whose anchors follow the chains: unbiased at stale anchors, the same in chunks, less noise far away."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import scan
from gyromc.engines.base import keys
from gyromc.prediction.stability import Linearisation, stability
from gyromc.schemes.moments import mean_covariance, oracle_covariances
from support.values import SUMS, THETA, in_chunks, logistic, regression, rotating

STALE = np.array([2.0, -1.0, 1.5])


def plan_for(oracle, target=None, **changes):
    target = logistic(30) if target is None else target
    return rotating(target, oracle, **{"num_steps": 23, "num_chains": 6, **changes})


@eqx.filter_jit
def at_a_stale_anchor(oracle, target, batches):
    """The estimates of all batches with an anchor elsewhere, and the gradient."""
    anchored = oracle.anchored(oracle.anchor_at(target, jnp.asarray(STALE)))
    values = jax.vmap(lambda b: anchored.gradient(target, jnp.asarray(THETA), b))(batches)
    return values, target.gradient(jnp.asarray(THETA))


@pytest.mark.parametrize(
    ("name", "replace"),
    [("logistic", True), ("finite sum", False)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in (("logistic", False), ("finite sum", True))],
)
def test_over_all_batches_a_stale_anchor_is_unbiased(name, replace):
    target = SUMS[name]
    oracle = gm.oracles.ControlVariate(2, replace=replace, refresh=5)
    rows = range(target.num_data)
    batches = list(itertools.product(rows, repeat=2) if replace else itertools.combinations(rows, 2))
    with jax.enable_x64(True):
        found = at_a_stale_anchor(oracle, target, jnp.asarray(batches))
        values, exact = map(np.asarray, found)
    assert np.allclose(values.mean(axis=0), exact, rtol=1e-11)
    fixed = gm.oracles.ControlVariate(2, STALE, replace).prepared(gm.Model(target, np.zeros(3)))
    covariance = oracle_covariances(target, fixed, THETA[None])[0]
    assert np.allclose(np.cov(values.T, bias=True), covariance, rtol=1e-8)


@eqx.filter_jit
def renewed(oracle, target, theta):
    return jax.vmap(lambda t: oracle.anchor_at(target, t))(theta)


@eqx.filter_jit
def estimates(oracle, target, theta, zeta, anchors):
    return jax.vmap(lambda t, s, a: oracle.anchored(a).gradient(target, t, s))(theta, zeta, anchors)


def by_hand(plan, steps, refreshed):
    """The states after some Euler steps by the plain formula; `refreshed(k)` says when anchors are renewed."""
    with jax.enable_x64(True):
        pieces, z = (plan.oracle, plan.flat_target), np.array(scan.initial_state(plan).z)
        D, Q, eta, d = plan.dynamics.D, plan.dynamics.Q, plan.step_size, plan.dim
        for k in range(steps):
            key_noise, key_oracle = jax.random.split(jax.random.fold_in(keys(plan.seed).steps, k))
            zeta = plan.oracle.draw(key_oracle, plan.flat_target, len(z), d, jnp.float64)
            xi = np.asarray(jax.random.normal(key_noise, z.shape, jnp.float64))
            theta = jnp.asarray(z[:, :d])
            anchors = renewed(*pieces, theta) if refreshed(k) else anchors
            g = np.concatenate([np.asarray(estimates(*pieces, theta, zeta, anchors)), z[:, d:]], axis=1)
            z = z - eta * g @ (D + Q).T + np.sqrt(2 * eta) * xi @ np.linalg.cholesky(D).T
    return z


def test_scan_renews_the_anchor_of_every_chain_in_every_mth_step():
    dynamics = gm.dynamics.hfhr(3, 1.0, 2.0)
    plan = plan_for(gm.oracles.ControlVariate(2, refresh=3), dynamics=dynamics, num_steps=8, start=STALE)
    found = gm.run(plan).state
    assert np.allclose(found.z, by_hand(plan, 8, lambda k: k % 3 == 0), rtol=1e-10, atol=1e-12)
    assert not np.allclose(found.z, by_hand(plan, 8, lambda k: k == 0), rtol=1e-4)
    assert not np.allclose(found.z, by_hand(plan, 8, lambda k: k % 3 == 2 or k == 0), rtol=1e-4)
    assert found.anchors is not None
    assert found.anchors.shape == (6, 6)


@pytest.mark.parametrize("num_chains", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_runs_do_not_depend_on_chunks_and_can_be_continued(num_chains):
    plan = plan_for(gm.oracles.ControlVariate(2, refresh=7), start=STALE, burn_in=3, num_chains=num_chains)
    whole = gm.run(plan)
    assert np.array_equal(in_chunks(4, plan).averages["u"], whole.averages["u"])
    part = gm.run(plan.replace(num_steps=9))
    assert np.array_equal(part.continue_(14).averages["u"], whole.averages["u"])
    forgotten = dataclasses.replace(part.state, anchors=np.zeros_like(part.state.anchors))
    other = dataclasses.replace(part, state=forgotten).continue_(14)
    assert not np.allclose(other.averages["u"], whole.averages["u"], rtol=1e-6)


@pytest.mark.slow
def test_the_noise_is_smaller_than_with_an_anchor_left_behind():
    """All chains have the same random numbers; the distance from the chain with exact gradients is the oracle's noise."""
    target = logistic(rows=500)
    start = gm.Model(target).mode + STALE
    oracles = gm.oracles.Exact(), gm.oracles.ControlVariate(4, start), gm.oracles.ControlVariate(4, refresh=20)
    plan = plan_for(oracles[0], target, step_size=1e-3, num_steps=300, num_chains=40, start=start, dtype="float32")
    exact, fixed, moving = (gm.run(plan.replace(oracle=oracle), "scan").state.z for oracle in oracles)
    assert np.std(moving - exact) < 0.25 * np.std(fixed - exact)


def test_parameters_of_any_shape_have_anchors():
    target = gm.targets.FiniteSum(
        lambda p, x: -((x - p["a"][0] - jnp.tanh(p["b"])) ** 2), lambda p: -(p["b"] ** 2), np.arange(6.0)
    )
    plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(2), oracle=gm.oracles.ControlVariate(2, refresh=3),
                   observables={"b": lambda p: p["b"]}, step_size=0.01, num_steps=10, num_chains=3,
                   start={"a": np.zeros(1), "b": np.zeros(())})  # fmt: skip
    run = gm.run(plan)
    assert run.engine == "scan"
    assert run.state.anchors.shape == (3, 4)
    assert run.state.anchors.dtype == np.float32


# --- what is said about it


@pytest.mark.parametrize("engine", ["lanes", "pallas"])
def test_other_engines_refuse(engine):
    with pytest.raises(gm.InvalidInput, match=rf"`{engine}` cannot do this plan.*`scan` can"):
        gm.run(plan_for(gm.oracles.ControlVariate(2, refresh=5), dtype="float32"), engine)
    with pytest.raises(
        gm.InvalidInput, match=r"keeps no anchors between steps, which ControlVariate\(2, refresh=5\) needs"
    ):
        gm.run(plan_for(gm.oracles.ControlVariate(2, refresh=5)), "lanes")


def test_costs_are_counted():
    oracle, target = gm.oracles.ControlVariate(4, refresh=10), logistic(rows=50)
    assert oracle.name == "ControlVariate(4, refresh=10)"
    assert oracle.evaluations(target) == 2 * 4 + 50 // 10
    plan = plan_for(oracle, target, num_steps=21, burn_in=4)
    assert plan.gradients == 6 * (25 + 3)
    assert gm.run(plan).gradient_evaluations == plan.gradients


@pytest.mark.parametrize("kind", ["linear", pytest.param("logistic", marks=pytest.mark.slow)])
def test_predictions_do_not_claim_to_know_the_noise(kind):
    target = regression(3, rows=20) if kind == "linear" else logistic(30, seed=7)
    plan = plan_for(gm.oracles.ControlVariate(2, refresh=5), target)
    found = gm.predict(plan)
    assert found.variance["u"] == pytest.approx(gm.predict(plan.replace(oracle=gm.oracles.Exact())).variance["u"])
    assert not found["u"].rmse_method.exact
    said = [*found.notes, str(found["u"].rmse_method)]
    assert any("refresh=5" in text and "not known" in text for text in said)
    verdict = next(v for v in found.verdicts if v.name == "oracle")
    assert verdict.status == "not certified"
    assert "where the chain's anchor is" in verdict.sentence
    assert stability(plan).how in (Linearisation.WITHOUT_NOISE, Linearisation.AT_MODE)


def test_one_parameter_on_a_grid_is_not_claimed_either():
    target = gm.targets.LogisticRegression(np.ones((6, 1)), [0, 1, 1, 0, 1, 1])
    plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(1), oracle=gm.oracles.ControlVariate(2, refresh=5),
                   observables={"x²": gm.observables.square([1.0])}, step_size=0.05)  # fmt: skip
    found = gm.predict(plan)
    assert "ControlVariate(2, refresh=5) gradients adds is not known" in str(found["x²"].rmse_method)
    assert "unknown" in str(gm.predict(plan.replace(scheme="lm_ab2"))["x²"].bias_method)


def test_what_needs_the_noise_says_that_it_is_not_known():
    plan = plan_for(gm.oracles.ControlVariate(2, refresh=5))
    with pytest.raises(gm.InvalidInput, match=r"depends on where its anchor is.*without `refresh`"):
        oracle_covariances(plan.flat_target, plan.prepared_oracle, THETA[None])
    with pytest.raises(gm.InvalidInput, match="depends on where its anchor is"):
        mean_covariance(plan.flat_target, plan.prepared_oracle, THETA[None])
    with pytest.raises(gm.InvalidInput, match="has no anchor here: it belongs to a chain"):
        plan.prepared_oracle.gradient(plan.flat_target, jnp.asarray(THETA), jnp.arange(2))
    with pytest.raises(gm.InvalidInput, match="`refresh`"):
        gm.run(plan.replace(scheme="balanced"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refresh": 0}, "`refresh` must be a whole number from 1"),
        (
            {"refresh": 5, "order": 2},
            "`refresh` works with order 1: at order 2 every new anchor would need a new matrix",
        ),
        ({"refresh": 5, "center": [1.0, 2.0, 3.0]}, "leave `center` out, or `refresh`"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.oracles.ControlVariate(2, **arguments)
