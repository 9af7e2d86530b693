"""Rotations compared at equal bias: the covariance is off by what was asked, and gains are those known from the theory."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.rotations import compare_rotations


def _plan(K, dynamics, step_size=0.01):
    every = {"first": gm.observables.linear(np.eye(len(K))[0]), "square": gm.observables.square(np.eye(len(K))[0])}
    return gm.Plan(target=gm.targets.Quadratic(K), dynamics=dynamics, observables=every, step_size=step_size)


def test_each_step_has_the_bias_asked_for():
    K = np.array([1.0, 1.5, 4.0, 9.0, 20.0])
    table = compare_rotations(K, excess=0.05)
    for row in table.rows.values():
        sizes = []
        for i in range(5):
            square = {"square": gm.observables.square(np.eye(5)[i])}
            plan = _plan(K, row.dynamics, row.step_size).replace(observables=square, num_steps=10**7, num_chains=1)
            sizes.append(gm.predict(plan).bias["square"] * K[i])
        assert max(sizes) <= 0.05 * (1 + 1e-6)  # the worst direction may lie between the axes
    # without a rotation the worst direction is an axis: η/2·λ/(1 - ηλ/2) = 0.05
    np.testing.assert_allclose(table["no rotation"].step_size, 2 * 0.05 / 1.05 / 20.0, rtol=1e-8)


def test_rows_agree_with_predictions_of_plans():
    K = np.exp(np.linspace(0, np.log(50), 6))
    table = compare_rotations(K)
    for row in table.rows.values():
        exact = [gm.predict(_plan(K, row.dynamics).replace(
            observables={"x": gm.observables.linear(np.eye(6)[i])})).variance["x"] * K[i] for i in range(6)]  # fmt: skip
        np.testing.assert_allclose(np.mean(exact), row.linear, rtol=1e-9)


def test_gains_of_the_theory():
    """d = 14, condition 50, variances off by 10 %: pairing gains 11.7, the inverse precision 13.5 for means and squares."""
    table = compare_rotations(np.exp(np.linspace(0, np.log(50), 14)))
    assert abs(table.gain("pairing") - 11.7) < 0.05
    assert abs(table.gain("D = K⁻¹, no rotation") - 13.5) < 0.06
    assert table.gain("equal bias") > table.gain("pairing") > 5 * table.gain("pairing", "squares")


@pytest.mark.parametrize("dynamics", [gm.dynamics.hfhr(3, 1.0, 2.0), gm.dynamics.gaul([0.8, 1.0, 1.3], 1.0, 2.0)])
def test_a_plan_is_among_its_rivals(dynamics):
    table = gm.predict(_plan(np.array([1.0, 3.0, 9.0]), dynamics)).rotations()
    assert dynamics.name in table.rows
    assert table.gain("equal bias") >= 1
    assert "equal bias" in str(table)
    assert "from the target" in str(table)
