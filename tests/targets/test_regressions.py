"""Poisson and softmax targets: gradients against automatic differentiation, mini-batches against their exact expectation."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.targets import regressions
from support.zscores import largest, score


def poisson(rows=30, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d))
    return gm.targets.PoissonRegression(X, rng.poisson(np.exp(0.5 * X[:, 0])), prior_scale=1.5)


def softmax(rows=30, d=3, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return gm.targets.SoftmaxRegression(rng.standard_normal((rows, d)), rng.integers(0, classes, rows), prior_scale=1.5)


@pytest.mark.parametrize("make", [poisson, softmax])
def test_gradients_and_batches(make):
    target = make()
    theta = np.random.default_rng(1).standard_normal(target.dim)
    index = jnp.arange(target.num_data)

    @jax.jit
    def all_three(x):
        rows = jax.vmap(lambda i: target.batch_gradient(x, i[None]))(index)
        return jax.grad(target.potential)(x), target.gradient(x), rows.sum(axis=0) + target.prior_gradient(x)

    with jax.enable_x64(True):
        exact, own, expected = all_three(jnp.asarray(theta))
    np.testing.assert_allclose(own, exact, rtol=1e-10)
    np.testing.assert_allclose(expected, exact, rtol=1e-10)  # N times a batch of one row, averaged over the rows


def test_softmax_of_two_classes_is_logistic():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((20, 3)), rng.integers(0, 2, 20)
    theta = rng.standard_normal(3)
    two = gm.targets.SoftmaxRegression(X, y, prior_scale=1.0)
    one = gm.targets.LogisticRegression(X, y, prior_scale=np.sqrt(2))
    with jax.enable_x64(True):
        np.testing.assert_allclose(two.potential(theta), one.potential(np.sqrt(2) * theta), rtol=1e-12)


def test_softmax_singles_out_no_class():
    """Renaming the classes rotates Θ and leaves U alone."""
    target = softmax()
    order = np.array([2, 0, 3, 1])  # class c is now called order[c]
    renamed = gm.targets.SoftmaxRegression(target.X, order[target.y.astype(int)], prior_scale=1.5)
    theta = np.random.default_rng(3).standard_normal(target.dim)
    W = np.empty((4, 3))
    W[order] = target.weights(theta)
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            renamed.potential((renamed.basis.T @ W).ravel()), target.potential(theta), rtol=1e-12
        )


def drift(target, theta, oracle, eta=1.0):
    """∇U by one step of many chains: (z₀ - E z₁)/η exactly, and its standard error."""
    plan = gm.Plan(
        target=target,
        oracle=oracle,
        dynamics=gm.dynamics.overdamped(target.dim),
        observables={f"{i}": gm.observables.linear(e) for i, e in enumerate(np.eye(target.dim))},
        step_size=eta,
        num_steps=2,
        num_chains=4096,
        start=theta,
    )
    run = gm.run(plan, "lanes")
    means, errors = np.array(list(run.mean.values())), np.array(list(run.std_error.values()))
    return (np.float32(theta) - means) * 2 / eta, errors * 2 / eta  # the average is (z₀ + z₁)/2


CASES = {
    "poisson": (poisson, gm.oracles.Exact()),
    "poisson, batches": (poisson, gm.oracles.ControlVariate(8, center=np.zeros(3))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fused_engine_has_the_same_gradient(name):
    """A large step, so that the drift stands out of the noise: 2 % of it would be seen."""
    make, oracle = CASES[name]
    target = make()
    theta = np.round(np.random.default_rng(4).standard_normal(target.dim), 2)
    found, error = drift(target, theta, oracle)
    with jax.enable_x64(True):
        exact = np.asarray(target.gradient(jnp.asarray(theta)))
    assert largest(score(found, exact, error)) < 4.5
    assert np.min(error / np.abs(exact)) < 0.005 or "batches" in name


@pytest.mark.parametrize(
    ("make", "y", "says"),
    [
        (gm.targets.PoissonRegression, [0, 1.5, 2], r"counts \(0, 1, 2, …\): row 1 has 1.5"),
        (gm.targets.PoissonRegression, [0, -1, 2], "row 1 has -1"),
        (gm.targets.SoftmaxRegression, [0, 1, 0.5], "classes 0, 1, 2, …: row 2 has 0.5"),
        (gm.targets.SoftmaxRegression, [0, 1], "X has 3 rows"),
    ],
)
def test_bad_responses(make, y, says):
    with pytest.raises(gm.InvalidInput, match=says):
        make(np.ones((3, 1)), y)


def test_num_classes_below_the_data():
    with pytest.raises(gm.InvalidInput, match="holds class 2, but `num_classes` is 2"):
        gm.targets.SoftmaxRegression(np.ones((3, 1)), [0, 1, 2], num_classes=2)


@pytest.mark.parametrize("classes", [2, 3])
def test_many_points_are_evaluated_in_parts_with_the_same_result(monkeypatch, classes):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 3)), rng.integers(0, classes, 50)
    make = gm.targets.LogisticRegression if classes == 2 else gm.targets.SoftmaxRegression
    points = rng.standard_normal((20, make(X, y).dim))
    whole = [f(points) for f in (make(X, y).potentials, make(X, y).gradients, make(X, y).mean_hessian)]
    monkeypatch.setattr(regressions, "IN_CACHE", 0)  # eight points in a part
    parts = [f(points) for f in (make(X, y).potentials, make(X, y).gradients, make(X, y).mean_hessian)]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(
        whole[2], np.mean([make(X, y).mean_hessian(p[None]) for p in points], axis=0), rtol=1e-12
    )


def test_memory_does_not_grow_with_the_number_of_points():
    """All linear predictors at once, 20,000 rows × 200 points in float64, would take 32 MB and more."""
    rng = np.random.default_rng(0)
    target = gm.targets.LogisticRegression(rng.standard_normal((20_000, 2)), rng.integers(0, 2, 20_000))
    points = rng.standard_normal((200, 2))
    for function in (target.potentials, target.gradients, target.mean_hessian):
        tracemalloc.start()
        function(points)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6
