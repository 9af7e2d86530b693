"""Cases where a number used to be given that was wrong: the answer is right, or unknown with the reason."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.assumptions import verdicts


def plan_of(target, d, h, **settings):
    settings = {"step_size": 0.01, "num_steps": 1000, "start": np.full(d, 0.1), **settings}
    return gm.Plan(target=target, dynamics=gm.dynamics.overdamped(d), observables={"h": h}, **settings)


def mixture(apart):
    return lambda x: jnp.logaddexp(-0.5 * jnp.sum((x - apart) ** 2), -0.5 * jnp.sum((x + apart) ** 2))


def student(x):
    return -2 * jnp.sum(jnp.log1p(x**2 / 3))


def banana(x):
    return -(x[0] ** 2 / 2 + 4 * (x[1] - x[0] ** 2) ** 2 + x[2] ** 2 / 2)


@pytest.mark.parametrize(
    ("density", "d", "power", "reason"),
    [
        (lambda x: -jnp.sum(x**4), 3, 1, "the effective sample size of"),
        (student, 1, 2, "beyond all draws"),
        (student, 3, 2, "beyond all draws"),
        (mixture(2.0), 3, 1, "the effective sample size of"),
        (mixture(4.0), 3, 1, "2 modes"),
        (banana, 3, 1, "the effective sample size of"),
    ],
)
def test_a_refuted_approximation_is_no_answer(density, d, power, reason):
    h = gm.observables.linear(np.eye(d)[0]) if power == 1 else gm.observables.square(np.eye(d)[0])
    pred = gm.predict(plan_of(gm.targets.LogDensity(density), d, h))
    assert math.isnan(pred.variance["h"])
    assert math.isnan(pred.rmse["h"])
    assert pred.method["h"].startswith("unknown: ")
    assert any(reason in note for note in pred.notes)


def test_a_target_far_narrower_than_its_curvature_says():
    """Σθ⁴ has no curvature at its mode; on the line the width is found anyway: V = 2∫ (∫ₓ^∞ t e^{-t⁴} dt)² e^{x⁴} dx / Z."""
    target = gm.targets.LogDensity(lambda x: -jnp.sum(x**4))
    pred = gm.predict(plan_of(target, 1, gm.observables.linear([1.0])))
    x = np.linspace(-2.5, 2.5, 20001)
    density = np.exp(-(x**4)) / np.sum(np.exp(-(x**4)))
    tail = np.cumsum((x * density)[::-1])[::-1]
    np.testing.assert_allclose(pred.variance["h"], 2 * np.sum(tail**2 / density) * (x[1] - x[0]) ** 2, rtol=1e-3)
    assert math.isnan(gm.predict(plan_of(target, 2, gm.observables.linear([1.0, 0.0]))).variance["h"])


def test_an_even_observable_has_no_linearisation():
    target, e = gm.targets.LogDensity(lambda x: -jnp.sum(x**2 / 2 + x**4 / 10)), np.eye(70)[0]
    pred = gm.predict(plan_of(target, 70, gm.observables.square(e)))
    assert math.isnan(pred.variance["h"])
    assert any("far from linear" in note for note in pred.notes)
    np.testing.assert_allclose(gm.predict(plan_of(target, 70, gm.observables.linear(e))).variance["h"], 2.0, rtol=1e-6)


@pytest.mark.slow
def test_an_observable_that_is_flat_in_part_of_space():
    """h = θ₁² 1{θ₂ > -½} on a product: μ(h) is a product of two integrals."""
    t = np.linspace(-12, 12, 240_001)
    target = gm.targets.CosinePerturbed(2, 0.5)
    density = np.exp(-target.potentials(np.stack([t, 0 * t], axis=1)))
    density /= density.sum()
    truth = float(density @ t**2) * float(density[t > -0.5].sum())
    h = gm.observables.function(lambda t: t[0] ** 2 * jnp.where(t[1] > -0.5, 1.0, 0.0))
    settings = {"target": target, "dynamics": gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]), "step_size": 0.05}
    pred = gm.predict(gm.Plan(observables={"h": h}, **settings))
    assert abs(pred.expectation["h"] - truth) <= pred.expectation_error["h"] < 0.02
    assert 0.85 < truth < 1.0
    step = gm.observables.function(lambda t: t[0] * (t[1] > 0.5))
    assert gm.predict(gm.Plan(observables={"h": step}, **settings)).variance["h"] > 0


class Cubic(gm.targets.GeneralizedLinear):
    def loss(self, t, y):
        return (t - y) ** 4 / 4

    def slope(self, t, y):
        return (t - y) ** 3


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (gm.targets.PoissonRegression, "not certified"),
        (Cubic, "not certified"),
        (gm.targets.LogisticRegression, "holds"),
        (gm.targets.LinearRegression, "holds"),
    ],
)
def test_the_error_of_a_minibatch_where_the_slope_grows(kind, status):
    X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.arange(20) % 2
    plan = plan_of(kind(X, y, 1.0), 2, gm.observables.tanh([1.0, 0.0]), oracle=gm.oracles.Minibatch(4))
    judged = {v.name: v for v in verdicts(plan, None)}["oracle"]
    assert judged.status == status
    assert ("slope" in judged.sentence) == (status == "not certified")
