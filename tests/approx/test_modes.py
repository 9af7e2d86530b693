"""Regressions with many rows: the search for the mode begins with some of them and ends at the mode of all."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.approx import modes
from gyromc.approx.modes import find_mode


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
def test_the_mode_is_that_of_all_rows(monkeypatch, kind):
    target = regression(kind)
    whole = find_mode(target, np.zeros(target.dim))
    monkeypatch.setattr(modes, "SETTINGS", modes.ModeSettings(many=1e3, enough=4000))
    np.testing.assert_allclose(find_mode(target, np.zeros(target.dim)), whole, atol=1e-8)


def test_few_rows_are_all_read():
    target = regression("logistic")
    assert modes.some_rows(target) is target
    assert modes.some_rows(gm.targets.Quadratic([1.0])).dim == 1
