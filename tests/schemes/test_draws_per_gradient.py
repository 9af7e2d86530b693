"""How many effective draws a gradient makes, and how far off they are: the figures of docs/schemes.md, in a shorter run."""

import importlib.util

import numpy as np
import pytest

import gyromc as gm
from support.values import ROOT

KINDS = ("means", "squares", "predictive")


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("draws_per_gradient", ROOT / "benchmarks" / "draws_per_gradient.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_heart(study):
    rows = {row["case"].removeprefix("heart, "): row for row in study.heart(quick=True)[0]}
    full = rows["balanced"]
    assert all(full[kind]["plain"] > 0.5 for kind in KINDS)
    assert all(full[kind]["corrected"] > 15 for kind in KINDS)
    for name in ("balanced, order 1, b = 64", "balanced, order 2, b = 64"):
        assert all(rows[name][kind]["corrected"] > 2 for kind in KINDS), name
    for name in ("balanced", "balanced, rotating", "balanced, order 2, b = 64"):
        assert rows[name]["means"]["bias_in_sd"] < 0.02, name
        assert rows[name]["variance_error"] < 0.015, name


@pytest.mark.slow
def test_many_rows(study):
    for row in study.many_rows(quick=True)[1:]:
        assert row["means"]["plain"] > 0.5
        assert row["means"]["corrected"] > 100
        assert row["means"]["bias_in_sd"] < 0.005


@pytest.mark.slow
def test_where_nothing_is_whitened(study):
    overdamped, splitting, noisy = study.not_whitened(quick=True)
    assert overdamped["means"]["plain"] < 5e-4
    for row in (splitting, noisy):
        assert row["means"]["plain"] > 0.005
        assert row["squares"]["plain"] > 0.005
        assert row["variance_error"] < 0.02  # 1 % of the covariance and two standard errors of this run


@pytest.mark.slow
def test_a_small_regression_in_a_second():
    """Balanced noise with a martingale against Euler with the same gradients: a hundred times the effective draws."""
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(300), rng.standard_normal((300, 4))])
    y = (rng.random(300) < 1 / (1 + np.exp(-X @ [0.2, 0.8, -0.5, 0.3, 0.0]))).astype(float)
    target = gm.targets.LogisticRegression(X, y)
    fit = gm.Model(target).gaussian_fit
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(np.linalg.inv(fit.precision), 0),
        observables={"x": gm.observables.linear([0.0, 1.0, 0.0, 0.0, 0.0])},
        start=fit.mean,
        step_size=0.04,
        num_steps=400,
        num_chains=128,
        burn_in=100,
    )
    euler = gm.run(plan, "lanes")
    better = gm.run(plan.replace(scheme="balanced", step_size=0.8, martingale=True), "lanes")
    assert (euler.std_error["x"] / better.std_error["x"]) ** 2 > 100
    assert abs(euler.mean["x"] - better.mean["x"]) < 4 * euler.std_error["x"]
