"""check and sharpen: right draws pass, wrong ones are named; means of anybody's draws become sharper with errors that hold."""

import warnings

import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.fields import SETTINGS

P = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 4.0]])
TARGET = gm.targets.Quadratic(P)
ROOT = np.linalg.cholesky(np.linalg.inv(P))


def test_right_draws_pass_as_often_as_they_should():
    """200 sets of right draws, called wrong with probability 10⁻³ at most."""
    wrong = 0
    for seed in range(200):
        draws = np.random.default_rng(seed).normal(size=(4, 160, 3)) @ ROOT.T
        wrong += not gm.check(draws, TARGET).passed
    assert stats.binom.sf(wrong - 1, 200, 1e-3) > 1e-3


@pytest.mark.parametrize(("change", "coordinate"), [("mean", 0), ("variance", 2)])
def test_wrong_draws_that_agree_with_each_other_are_named(change, coordinate):
    draws = np.random.default_rng(1).normal(size=(4, 1000, 3)) @ ROOT.T
    if change == "mean":
        draws[..., 0] += 0.3 * draws[..., 0].std()
    else:
        draws[..., 2] *= 1.2
    found = gm.check(draws, TARGET)
    name = f"theta[{coordinate}]"
    assert found.wrong[name]
    assert name in found.warnings[0]
    assert not found.wrong["theta[2]" if change == "mean" else "theta[0]"]
    size = found[name].shift if change == "mean" else found[name].variance_error
    assert size == pytest.approx(0.3 if change == "mean" else 0.44, rel=0.25)
    assert "theta" in str(found)


def test_a_biased_chain_is_found_by_its_kept_draws():
    """Euler's steps with η = 0.5 on a standard normal: variance 1/(1 - η/4)… too large, in every chain alike."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 1.0]), dynamics=gm.dynamics.overdamped(2), step_size=0.5, num_steps=2000,
        num_chains=16, burn_in=50, observables={"x": gm.observables.linear([1.0, 0.0])},
    )  # fmt: skip
    run = gm.run(plan, thin=4)
    assert not gm.check(np.asarray(run.draws), plan.target).passed


def test_sharpened_means_have_errors_that_hold():
    """100 sets of 4 × 200 draws of log Gamma(3): z² has mean 31/29 over the square of the caution, and the means gain."""
    target = gm.targets.LogDensity(lambda t: 3 * t[0] - np.e ** t[0])
    squares, gains = [], []
    for seed in range(60):
        x = np.log(np.random.default_rng(seed).gamma(3.0, size=(4, 200, 1)))
        found = gm.sharpen(x, target, start=np.zeros(1))
        row = found["theta[0]"]
        squares.append(((row.mean - stats.loggamma(3.0).mean()) / row.std_error) ** 2)
        gains.append(row.gain)
    assert abs(np.mean(squares) - 31 / 29 / SETTINGS.caution**2) < 4 * np.std(squares) / np.sqrt(60)
    assert np.median(gains) > 20
    assert found.weights.sum() == pytest.approx(1)


def test_correlated_draws_of_one_chain_state_their_dependence():
    rng, x = np.random.default_rng(3), np.zeros((40, 1, 4000))
    for t in range(1, 4000):
        x[..., t] = 0.9 * x[..., t - 1] + np.sqrt(1 - 0.81) * rng.normal(size=(40, 1))
    square = []
    for chain in x:
        found = gm.sharpen(chain.T, gm.targets.Quadratic([1.0]), {"sign": lambda t: (t[0] > 0.3) * 1.0})
        square.append(((found["sign"].mean - stats.norm.sf(0.3)) / found["sign"].std_error) ** 2)
    assert np.mean(square) < 2


def test_wrong_input_is_said():
    with pytest.raises(InvalidInput, match="those of 3 parameters"):
        gm.check(np.zeros((4, 100, 2)), TARGET)
    with pytest.raises(InvalidInput, match="too few"):
        gm.check(np.zeros((1, 20, 3)), TARGET)
    with pytest.raises(InvalidInput, match="NaN"):
        gm.check(np.full((4, 100, 3), np.nan), TARGET)
    wrong = 1.5 * np.random.default_rng(0).normal(size=(4, 500, 3)) @ ROOT.T
    with pytest.warns(GyromcWarning, match="do not follow"), warnings.catch_warnings():
        gm.sharpen(wrong, TARGET)
