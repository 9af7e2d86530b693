"""Mini-batches: many rows are answered by few passes, with errors that hold; where they do not serve, all rows are read."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.model import Model
from gyromc.solve.expect import Solver
from gyromc.solve.minibatch import MinibatchChains, NoServiceError, serves_minibatches
from gyromc.solve.question import Question


def logistic(rows=40_000, columns=12, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1))])
    y = rng.random(rows) < 1 / (1 + np.exp(-X @ rng.normal(size=columns) * 0.4))
    return X, y.astype(float)


def by_importance(target, draws=4000):
    """Means by importance sampling around the mode: the law is near Gaussian, so that weights are nearly equal."""
    model = Model(target)
    rng, root = np.random.default_rng(1), np.linalg.cholesky(np.linalg.inv(model.precision))
    z = rng.normal(size=(draws // 2, model.dim))
    z = np.concatenate([z, -z])
    theta = model.mode + z @ root.T
    log = -target.potentials(theta) + 0.5 * np.sum(z**2, axis=1)
    w = np.exp(log - log.max())
    w /= w.sum()
    mean = w @ theta
    # pairs of opposite draws are independent of each other
    half = draws // 2
    pairs = w[:half, None] * (theta[:half] - mean) + w[half:, None] * (theta[half:] - mean)
    return mean, np.sqrt(np.sum(pairs**2, axis=0)), np.sqrt(np.diag(root @ root.T))


def test_many_rows_take_few_passes_and_errors_hold():
    target = gm.targets.LogisticRegression(*logistic())
    assert serves_minibatches(target, 12)
    mean, error, sd = by_importance(target)
    found = gm.expect(target, error=0.003, progress=False)
    assert found.gradient_evaluations < 200
    assert max(found.relative_error.values()) <= 0.003
    own = np.array(list(found.std_error.values()))
    z = (np.array(list(found.mean.values())) - mean) / np.hypot(own, error)
    assert np.mean(z**2) < 2.2
    assert np.abs(z).max() < 4
    assert error.max() / sd.max() < 0.02
    assert np.array(list(found.sd.values())) == pytest.approx(sd, rel=0.05)


@pytest.mark.slow
def test_a_model_written_as_a_finite_sum_is_served_too():
    X, y = logistic(25_000, 17)
    target = gm.targets.FiniteSum(
        lambda b, row: row[1] * (row[0] @ b) - jnp.logaddexp(0.0, row[0] @ b), lambda b: -0.5 * b @ b, (X, y)
    )
    known = gm.expect(gm.targets.LogisticRegression(X, y), error=0.005, progress=False)
    found = gm.expect(target, start=np.zeros(17), error=0.005, progress=False)
    assert found.gradient_evaluations < 300
    for a, b in zip(found.values(), known.values(), strict=True):
        assert abs(a.mean - b.mean) < 4 * np.hypot(a.std_error, b.std_error)


def test_where_mini_batches_are_too_noisy_all_rows_are_read():
    """A funnel over the data's scale: the curvature at the mode says nothing about the tails."""
    rng = np.random.default_rng(2)
    data = rng.standard_cauchy(30_000)
    target = gm.targets.FiniteSum(lambda t, x: 20 * jnp.cos(t @ t * x), lambda t: -0.5 * t @ t, data)
    with pytest.raises(NoServiceError):
        MinibatchChains(Model(target, np.zeros(14))).begin(np.full(14, 0.3))
    assert not serves_minibatches(gm.targets.Quadratic([1.0]), 1)
    question = Question.read(target, None, np.full(14, 0.3))
    solver = Solver(question, 0.1, None, 0)
    assert isinstance(solver.chains, MinibatchChains)
