"""Ratios, average changes and contrasts: against formulas that the draws give directly."""

import numpy as np
import pytest
from scipy import special

from gyromc.regression.effects import changeable, effects
from gyromc.regression.fit import fit

NAMES = ["age", "site[b]", "site[c]", "smokes"]
SOURCES = ["age", "site", "site", "smokes"]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    site = rng.integers(0, 3, 300)
    X = np.column_stack([rng.normal(50, 10, 300), site == 1, site == 2, rng.random(300) < 0.4]).astype(float)
    t = -3 + 0.05 * X[:, 0] + X[:, 1:] @ [0.5, -0.5, 0.8]
    return X, t, rng


@pytest.fixture(scope="module")
def logistic(rows):
    X, t, rng = rows
    return fit(X, (rng.random(300) < special.expit(t)).astype(int), "logistic", names=NAMES, effort="quick")


def test_odds_ratios_and_changes_are_those_of_the_draws(rows, logistic):
    X = rows[0]
    found = {effect.name: effect for effect in effects(logistic, X, SOURCES, {"site": "a"})}
    assert list(found) == [
        "age + 1",
        "site: b against a",
        "site: c against a",
        "site: c against b",
        "smokes: 1 against 0",
    ]
    b = logistic.posterior.coefficients().reshape(-1, 5)
    contrast = found["site: c against b"]
    np.testing.assert_allclose(contrast.ratio, np.exp(np.median(b[:, 3] - b[:, 2])), rtol=1e-6)
    low, high = np.quantile(b[:, 3] - b[:, 2], [0.025, 0.975], method="hazen")
    np.testing.assert_allclose(contrast.ratio_interval, np.exp([low, high]), rtol=1e-9)
    some = b[:: len(b) // 400]
    p = lambda X: special.expit(some[:, :1] + some[:, 1:] @ X.T)
    moved = lambda **to: np.column_stack([to.get(name, X[:, j]) * np.ones(300) for j, name in enumerate("abcd")])
    spread = 4 / np.sqrt(len(some))  # two sets of draws
    for name, exact in {
        "age + 1": p(moved(a=X[:, 0] + 1)) - p(X),
        "site: c against b": p(moved(b=0.0, c=1.0)) - p(moved(b=1.0, c=0.0)),
        "smokes: 1 against 0": p(moved(d=1.0)) - p(moved(d=0.0)),
    }.items():
        change = exact.mean(axis=1)
        assert abs(found[name].change - change.mean()) < 2 * spread * change.std()
        assert found[name].change_interval[0] < found[name].change < found[name].change_interval[1]


def test_linear_models_have_contrasts_only(rows):
    X, t, rng = rows
    found = effects(fit(X, t + rng.normal(0, 0.1, 300), "linear", names=NAMES), X, SOURCES)
    assert [effect.name for effect in found] == ["site: c against b"]
    assert found[0].ratio is None
    assert abs(found[0].change + 1.0) < 0.08


def test_products_and_curves_cannot_be_changed_alone(rows):
    X = rows[0]
    wide = np.column_stack([X, X[:, 0] * X[:, 3], X[:, 0] ** 2, X[:, 0] ** 3])
    names = [*NAMES, "age:smokes", "poly(w, 2)[0]", "poly(w, 2)[1]"]
    sources = [*SOURCES, "age:smokes", "poly(w, 2)", "poly(w, 2)"]
    assert list(changeable(names, sources, wide)) == ["site"]


def test_more_than_two_classes_without_order_have_no_ratio():
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=6), np.arange(6.0)])  # as small as the fits to poor data
    assert effects(fit(X, [0, 1, 2, 0, 1, 2], "softmax", effort=0.5), X, ["x0", "x1"]) == []
