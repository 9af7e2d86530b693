"""One contract for everything: each dynamics × oracle × target jits, vmaps, compiles once, and repeats itself in float64."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import scan
from gyromc.engines.base import keys
from support.values import in_chunks, regression, skew, spd

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((6, 2)), rng.integers(0, 2, 6)


def log_likelihood(params, row):
    return -((row["y"] - params["w"] @ row["x"][:1] - params["b"]) ** 2)


TARGETS = {
    "quadratic": gm.targets.Quadratic(spd(2, 1)),
    "cosine": gm.targets.CosinePerturbed(2, 1.2),
    "linear": regression(2),
    "logistic": gm.targets.LogisticRegression(X, Y, prior_scale=1.0),
    "log density": gm.targets.LogDensity(lambda x: -jnp.sum(x**2) - x[0] ** 4),
    "finite sum": gm.targets.FiniteSum(log_likelihood, lambda p: -(p["b"] ** 2) - p["w"] @ p["w"], {"x": X, "y": Y}),
}
DYNAMICS = {
    "sgld": gm.dynamics.overdamped(2),
    "sgnlmc": gm.dynamics.nonreversible(skew(2, 1)),
    "hfhr": gm.dynamics.hfhr(2, 1.0, 2.0),
    "gaul": gm.dynamics.gaul(spd(2, 2, 0.7, 1.5), 1.0, 2.0),
    "general": gm.dynamics.general(spd(4, 3), skew(4, 4)),
}
ORACLES = {
    "exact": gm.oracles.Exact(),
    "gaussian": gm.oracles.Gaussian(0.5),
    "mini-batch": gm.oracles.Minibatch(3),
    "control variate": gm.oracles.ControlVariate(3),
    "control variate, order 2": gm.oracles.ControlVariate(3, order=2),
}
SUMS = ("linear", "logistic", "finite sum")


def make(dynamics, oracle, target, **changes):
    tree = target == "finite sum"
    first = (lambda p: p["b"]) if tree else gm.observables.linear([1.0, 0.0])
    return gm.Plan(
        target=TARGETS[target],
        dynamics=DYNAMICS[dynamics],
        oracle=ORACLES[oracle],
        observables={"first": first},
        start={"w": np.array([0.3]), "b": np.array(0.1)} if tree else [0.3, 0.1],
        **{"step_size": 0.05, "num_chains": 3, "num_steps": 4, "dtype": "float64", **changes},
    )


def by_hand(plan):
    """The first step of every chain, one chain at a time: the same keys, the plain formula."""
    with jax.enable_x64(True):
        state = scan.initial_state(plan)
        key_noise, key_oracle = jax.random.split(jax.random.fold_in(keys(plan.seed).steps, 0))
        oracle, target = plan.prepared_oracle, plan.flat_target
        zeta = oracle.draw(key_oracle, target, plan.num_chains, plan.dim, jnp.float64)
        xi = np.asarray(jax.random.normal(key_noise, state.z.shape, jnp.float64))
        D, Q, eta = plan.dynamics.D, plan.dynamics.Q, plan.step_size
        gradient = jax.jit(lambda theta, zeta: oracle.gradient(target, theta, zeta))
        moved = []
        for c, z in enumerate(state.z):
            g = np.asarray(gradient(z[: plan.dim], None if zeta is None else zeta[c]))
            g = np.concatenate([g, z[plan.dim :]])
            moved.append(z - eta * (D + Q) @ g + np.sqrt(2 * eta) * np.linalg.cholesky(D) @ xi[c])
    return np.array(moved)


def combinations():
    """Every dynamics with every oracle and every target. By default one of five, along diagonals: every pair of two kinds."""
    for i, dynamics in enumerate(DYNAMICS):
        for j, oracle in enumerate(ORACLES):
            for k, target in enumerate(TARGETS):
                marks = [pytest.mark.slow] if (i + j + k) % 5 else []
                yield pytest.param(dynamics, oracle, target, marks=marks, id=f"{dynamics}-{oracle}-{target}")


@pytest.mark.parametrize(("dynamics", "oracle", "target"), list(combinations()))
def test_contract(dynamics, oracle, target, monkeypatch):
    if isinstance(ORACLES[oracle], gm.oracles.Batch) and target not in SUMS:
        with pytest.raises(gm.InvalidInput, match="sum over data"):
            make(dynamics, oracle, target)
        return
    traces = []
    original = scan._step
    monkeypatch.setattr(scan, "_step", lambda *args: traces.append(1) or original(*args))
    plan = make(dynamics, oracle, target)
    first = in_chunks(1, plan, engine="scan")
    compiled = len(traces)
    again = gm.run(plan, engine="scan")
    other = gm.run(plan.replace(step_size=0.04, seed=5, num_steps=6, burn_in=1), engine="scan")
    assert compiled > 0
    assert len(traces) == compiled, "a new step size, seed, chunk or length must not compile again"
    assert np.array_equal(first.averages["first"], again.averages["first"])
    assert not np.array_equal(first.averages["first"], other.averages["first"])
    assert first.averages["first"].dtype == np.float64
    one = gm.run(plan.replace(num_steps=1), engine="scan")
    assert np.allclose(one.state.z, by_hand(plan), rtol=1e-12, atol=1e-13)
    assert len(traces) == compiled


def test_float32_and_float64_differ_only_by_rounding_of_their_own_noise():
    plan = make("sgld", "exact", "quadratic", num_steps=1)
    single, double = gm.run(plan.replace(dtype="float32"), engine="scan"), gm.run(plan, engine="scan")
    assert single.state.z.dtype == np.float32
    assert double.state.z.dtype == np.float64


def test_jax_x64_sets_the_default_precision(plan):
    assert plan.dtype == "float32"
    with jax.enable_x64(True):
        assert plan.replace(dtype=None).dtype == "float64"


def _classifier_plan(params, probabilities):
    images, labels = rng.standard_normal((20, 4)), rng.integers(0, 3, 20)
    target = gm.targets.FiniteSum(
        lambda p, row: jnp.log(probabilities(p, row["x"]))[row["y"]],
        lambda p: -0.5 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p)),
        {"x": images, "y": labels},
    )
    return gm.Plan(
        target=target,
        dynamics=gm.dynamics.hfhr(params, alpha=1.0, gamma=2.0),
        oracle=gm.oracles.Minibatch(5),
        observables={
            "p": gm.observables.predictive(images[0], model=probabilities, label=2),
            "brier": gm.observables.brier(images[0], 1, model=probabilities),
            "entropy": gm.observables.entropy(images[0], model=probabilities),
        },
        step_size=0.01,
        num_steps=20,
        num_chains=4,
        start=params,
    )


def test_a_flax_network():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.softmax(nn.Dense(3)(nn.tanh(nn.Dense(5)(x))))

    params = Net().init(jax.random.key(0), jnp.zeros(4))
    plan = _classifier_plan(params, Net().apply)
    run = gm.run(plan, thin=10)
    assert plan.dim == 4 * 5 + 5 + 5 * 3 + 3
    assert jax.tree.structure(run.draws) == jax.tree.structure(params)
    assert 0 < run.mean["p"] < 1
    assert 0 < run.mean["entropy"] < np.log(3)
    assert 0 < run.mean["brier"] < 2


@pytest.mark.slow
def test_an_equinox_network():
    net = eqx.nn.MLP(4, 3, 5, 1, key=jax.random.key(0))
    params, rest = eqx.partition(net, eqx.is_inexact_array)
    run = gm.run(_classifier_plan(params, lambda p, x: jax.nn.softmax(eqx.combine(p, rest)(x))))
    assert 0 < run.mean["p"] < 1
