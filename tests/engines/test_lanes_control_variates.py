"""Control variates of second order (T8) in engine `lanes`: the gradient of every row, averages against exact ones and `scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes
from gyromc.engines.lanes import gradients
from gyromc.runtime.evaluation import doubled
from support import exact
from support.values import in_chunks, logistic, regression
from support.zscores import largest, two_sample_scores, z_scores

LIMIT = 4.0


class Cauchy(gm.targets.GeneralizedLinear):
    """Regression with heavy tails: a user's own slope."""

    def loss(self, t, y):
        return jnp.log1p((t - y) ** 2)

    def slope(self, t, y):
        return 2 * (t - y) / (1 + (t - y) ** 2)


def _target(kind, rows=4, d=3):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((rows, d))
    if kind == "logistic":
        return logistic(rows=rows, d=d)
    if kind == "poisson":
        return gm.targets.PoissonRegression(X / 2, rng.integers(0, 4, rows))
    return Cauchy(X, rng.standard_normal(rows))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("kind", "d"),
    [("logistic", 3), ("logistic", 20), ("poisson", 3), pytest.param("user's", 3, marks=pytest.mark.slow)],
)
def test_one_step_uses_the_oracle_s_own_gradient_of_a_row(kind, d, order):
    """With one row a batch and no noise, θ moves by -ηĝ of that row: the rows' moves are compared with JAX's to rounding."""
    rows, eta = 4, 1.0
    target = _target(kind, rows, d)
    start, center = np.linspace(-0.6, 0.8, d), np.linspace(0.3, -0.2, d)
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(d), oracle=gm.oracles.ControlVariate(1, center=center, order=order),
        observables={"h": gm.observables.linear(np.ones(d))}, step_size=eta, num_steps=1, num_chains=64, start=start,
        dtype="float32",
    )  # fmt: skip
    session = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)
    session.program.step.entry[session.program.step.column >= 2 * d * gradients.WIDTH] = 0.0  # no noise
    session.advance(1)
    with jax.enable_x64(True):
        wide, oracle = doubled((plan.flat_target, plan.prepared_oracle))
        expected = np.stack(
            [np.asarray(oracle.gradient(wide, jnp.asarray(start), jnp.array([i]))) for i in range(rows)]
        )
    moves = (start - session.state().z) / eta
    gaps = np.max(np.abs(moves[:, None] - expected), axis=2)
    assert np.max(np.min(gaps, axis=1)) < 3e-6 * np.max(np.abs(expected))
    assert set(np.argmin(gaps, axis=1)) == set(range(rows))


def test_linear_regression_has_no_noise_left():
    plan = gm.Plan(
        target=regression(3), dynamics=gm.dynamics.nonreversible(gm.dynamics.rotations(3, 0.5)),
        oracle=gm.oracles.ControlVariate(1, order=2), observables={"u": gm.observables.linear([1.0, -0.5, 0.7])},
        start=[1.0, 0.0, -1.0], step_size=0.12, num_steps=20, num_chains=40_000, dtype="float32",
    )  # fmt: skip
    averages = gm.run(plan, "lanes").averages["u"]
    mean, variance, *_ = exact.moments(plan.replace(oracle=gm.oracles.Exact()))
    assert largest(z_scores(averages, mean, variance)) < LIMIT
    noisy = exact.moments(plan.replace(oracle=gm.oracles.Minibatch(1)))
    assert largest(z_scores(averages, noisy.mean, noisy.variance)) > LIMIT


def test_logistic_regression_agrees_with_scan():
    target = logistic(rows=40, d=4)
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(4), oracle=gm.oracles.ControlVariate(3, center=np.ones(4), order=2),
        observables={"p": gm.observables.predictive(target.X[0]), "q": gm.observables.square([1.0, 0.0, 0.0, -1.0])},
        start=np.full(4, -0.5), step_size=0.03, num_steps=15, num_chains=40_000, dtype="float32",
    )  # fmt: skip
    ours, theirs = gm.run(plan, "lanes"), gm.run(plan.replace(seed=1, num_chains=10_000), "scan")
    for name in plan.observables:
        assert largest(*two_sample_scores(ours.averages[name], theirs.averages[name])) < LIMIT
    chunks = in_chunks(3, plan.replace(num_steps=4), "lanes").continue_(11)
    assert np.array_equal(ours.averages["p"], chunks.averages["p"])


def test_a_row_of_a_logistic_model_needs_no_more_room_at_order_two():
    plan = gm.Plan(
        target=_target("logistic", 30, 14), dynamics=gm.dynamics.overdamped(14), step_size=0.01, num_chains=2,
        oracle=gm.oracles.ControlVariate(4, order=2), observables={"h": gm.observables.linear(np.ones(14))}, dtype="float32",
    )  # fmt: skip
    program = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0).program
    assert program.row_width == 16
    assert program.part == gradients.Part.BATCH
