"""The size of batches for many parameters: fewest rows for a relaxation, against the formula; the same budget in rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gyromc.tuning.batch_size import rows_by_batch, suited
from gyromc.tuning.large import large_plan
from gyromc.tuning.preconditioning import HEAT, Shape

import gyromc as gm
from gyromc.operators import Diagonal


def shape(excess, smallest=0.01):
    return Shape(Diagonal(np.ones(4)), np.full(4, 0.5), np.full(4, 0.01), 1.0, smallest, excess, 0)


def test_noise_that_rules_makes_rows_the_same_for_all_batches():
    """With x = γη, heat HEAT needs η² = 4·HEAT·tanh(x/2)/excess: a kick moves θ by (1 + e^{-x})/2 of what O's draw does.

    Relaxation takes x/(η²λ_min) steps. The search moves γ by a tenth and η² by a fifth and stops near x = 1.5.
    """
    rows, least = rows_by_batch(shape(400.0), gm.oracles.Minibatch(10), 10**6), 1.35 / (4 * HEAT * np.tanh(1.35 / 2))
    for b in (10, 160):
        assert least < rows[b] / (10 * 400 / 0.01) < least * 1.1 / 0.9**2 * 1.1
    assert rows[10**6] == pytest.approx(10**6 * 10 / 1.4, rel=0.05)  # without noise: 1/√λ_min of time at η = 0.7 · 2


def test_all_rows_are_taken_where_batches_are_not_worth_it():
    target = gm.targets.LinearRegression(np.ones((200, 1)), np.ones(200), prior_scale=1.0)
    assert isinstance(suited(shape(400.0), gm.oracles.Minibatch(32), target), gm.oracles.Exact)
    small = gm.oracles.Minibatch(32)
    assert suited(shape(0.0), small, target) is small
    assert suited(shape(400.0), small, target, most=100).evaluations(target) <= 100
    assert suited(shape(400.0), gm.oracles.Exact(), target).name == "Exact"


def test_a_plan_with_free_batches_reads_more_rows_at_a_time_and_no_more_in_all():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    y = np.sin(x.sum(axis=1))
    predict = lambda p, x: jnp.tanh(x @ p["in"] + p["bias"]) @ p["out"]
    target = gm.targets.FiniteSum(
        lambda p, row: -0.5 * (predict(p, row[0]) - row[1]) ** 2 / 0.3**2,
        lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)),
        (x, y),
    )
    template = {"in": np.zeros((3, 6)), "bias": np.zeros(6), "out": np.zeros(6)}
    h = {"f": gm.observables.function(lambda p: predict(p, jnp.ones(3)))}
    plan, account = large_plan(gm.Model(target, template), h, gm.oracles.Minibatch(4), 100_000, 4, free_batches=True)
    rows = plan.oracle.evaluations(target)
    assert rows > 4
    assert account.gradients <= 10_000
    assert plan.gradients * rows + 4 * account.gradients <= 4 * 100_000
