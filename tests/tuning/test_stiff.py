"""Low rank plus diagonal whitening from gradients: the directions of a Gaussian, the gain, and where it is left out."""

import jax
import jax.numpy as jnp
import numpy as np
from gyromc.tuning.large import large_plan
from gyromc.tuning.matrix_free import Gradients
from gyromc.tuning.stiff import stiff_directions, stretched

import gyromc as gm

D, STIFF = 300, 3


def gaussian(largest=1e4):
    """A precision with a diagonal that varies and three stiff directions that it does not show."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((D, STIFF)))
    K = np.diag(rng.uniform(0.5, 1.5, D)) + (basis * (largest * np.array([0.3, 0.6, 1.0]))) @ basis.T
    return (K + K.T) / 2, basis


def gradients_of(K):
    return Gradients(gm.targets.Quadratic(K), gm.oracles.Exact(), len(K))


def test_the_stiff_directions_are_the_eigenvectors():
    K, basis = gaussian()
    values, rows = stiff_directions(gradients_of(K), jnp.zeros((1, D)), jnp.ones(D), jax.random.key(0), 5)
    np.testing.assert_allclose(values[:STIFF], np.linalg.eigvalsh(K)[::-1][:STIFF], rtol=1e-3)
    np.testing.assert_allclose(np.linalg.svd(rows[:STIFF] @ basis)[1], 1.0, atol=1e-3)


def test_what_is_left_is_nearly_white():
    K, _ = gaussian()
    C = 1 / np.diag(K)
    before = np.linalg.eigvalsh(np.sqrt(C)[:, None] * K * np.sqrt(C))
    E, cost = stretched(gradients_of(K), jnp.zeros((1, D)), 1, C, 400, jax.random.key(0), (D,))
    after = np.linalg.eigvalsh(E.dense().T @ K @ E.dense())
    assert cost <= 400
    assert before[-1] / before[0] > 1e4
    assert after[-1] / after[0] < 3


def test_nothing_is_stretched_where_nothing_stands_out():
    E, cost = stretched(gradients_of(np.ones(D)), jnp.zeros((1, D)), 1, np.ones(D), 400, jax.random.key(0), (D,))
    assert E is None
    assert 0 < cost <= 400


def test_a_plan_with_it_has_a_hundred_times_the_draws():
    """√κ = 100 and more is left to a diagonal; means and squares of the widest and of the stiffest direction are exact."""
    K, _ = gaussian()
    values, vectors = np.linalg.eigh(K)
    wide, stiff = vectors[:, 0], vectors[:, -1]
    h = {"x": gm.observables.linear(wide), "x²": gm.observables.square(wide), "y²": gm.observables.square(stiff)}
    truth = {"x": 0.0, "x²": 1 / values[0], "y²": 1 / values[-1]}
    plan, account = large_plan(gm.Model(gm.targets.Quadratic(K)), h, None, 16_000, 8)
    assert account.gradients <= 1600
    assert account.rank >= STIFF
    assert account.condition < 4
    assert account.diagonal_steps > 50 * account.stretched_steps
    run = gm.run(plan, "scan", progress=False)
    assert max(abs(run.mean[name] - truth[name]) / run.std_error[name] for name in h) < 4
    draws = 2 * truth["x²"] ** 2 / run.std_error["x²"] ** 2 / run.gradient_evaluations
    assert draws > 0.2  # a diagonal leaves about 0.005 at best, 1/√κ
