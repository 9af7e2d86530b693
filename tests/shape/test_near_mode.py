"""Regressions with many rows: some of the rows stand for all near the mode, and the mode is still that of all."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.shape import near_mode
from gyromc.shape.laplace import inverse_root
from gyromc.shape.modes import find_mode


@pytest.fixture
def small(monkeypatch):
    """A few thousand rows count as many."""
    monkeypatch.setattr(near_mode, "MANY", 1e3)
    monkeypatch.setattr(near_mode, "ENOUGH", 4000)


def regression(kind: str) -> gm.targets.Target:
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(20_000), rng.standard_normal((20_000, 3))])
    t = X @ [0.3, 0.5, -0.5, 0.2]
    if kind == "logistic":
        return gm.targets.LogisticRegression(X, rng.random(len(X)) < 1 / (1 + np.exp(-t)), prior_scale=1.0)
    if kind == "poisson":
        return gm.targets.PoissonRegression(X, rng.poisson(np.exp(t)), prior_scale=1.0)
    y = (t + rng.logistic(size=len(X)) > 0).astype(int)
    return gm.targets.SoftmaxRegression(X, y if kind == "two classes" else y + (rng.random(len(X)) < 0.3), 1.0)


@pytest.mark.parametrize("kind", ["logistic", "poisson", "softmax", "two classes"])
def test_some_rows_give_the_potential_of_all(small, kind):
    target = regression(kind)
    model = gm.Model(target)
    near = model.near_mode
    assert isinstance(near, near_mode.NearMode)
    assert near.part.num_data == 4000
    x = np.random.default_rng(0).standard_normal((50, model.dim))
    rows = model.mode + 3 * x @ inverse_root(model.precision).T
    rise = target.potentials(rows) - target.potentials(model.mode[None])
    quadratic = 4.5 * np.sum(x**2, axis=1)
    left = np.abs(rise - quadratic).max()
    assert left > 0.1  # there is something to sample
    assert np.abs(near.potentials(rows) - rise).max() < 0.3 * left
    R = inverse_root(model.precision)
    true, found = target.gradients(rows) @ R, near.gradients(rows) @ R
    assert np.abs(found - true).max() < 0.3 * np.abs(true - 3 * x).max()
    hessians = R.T @ (near.mean_hessian(rows) - target.mean_hessian(rows)) @ R
    assert np.abs(hessians).max() < 0.3 * np.abs(R.T @ target.mean_hessian(rows) @ R - np.eye(model.dim)).max()


@pytest.mark.parametrize("kind", ["logistic", "poisson", "softmax", "two classes"])
def test_the_mode_is_that_of_all_rows(monkeypatch, kind):
    target = regression(kind)
    whole = find_mode(target, np.zeros(target.dim))
    monkeypatch.setattr(near_mode, "MANY", 1e3)
    monkeypatch.setattr(near_mode, "ENOUGH", 4000)
    np.testing.assert_allclose(find_mode(target, np.zeros(target.dim)), whole, atol=1e-8)


def test_few_rows_are_all_read():
    target = regression("logistic")
    assert near_mode.some_rows(target) is target
    assert near_mode.some_rows(gm.targets.Quadratic([1.0])).dim == 1
