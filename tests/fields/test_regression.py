"""The regression on zero-mean functions: no variance on Gaussians, errors that hold elsewhere, and weights for quantiles."""

import numpy as np
import pytest
from scipy import stats

from gyromc.fields import SETTINGS, FieldRegression, between, calibrated_weights, choose_fields
from gyromc.posterior import weighted_quantiles

CAUTION = SETTINGS.caution**2
"""By how much z² is smaller than that of Student's law: errors are stated larger on purpose."""


def sharpened(theta, gradient, values, block=1, pieces=1):
    """Chains × … arrays are steps × chains × k here; added in pieces."""
    d = theta.shape[-1]
    fields = choose_fields(theta.reshape(-1, d), gradient.reshape(-1, d))
    sums = FieldRegression(fields, theta.shape[1], values.mean(axis=(0, 1)), block)
    for part in np.array_split(np.arange(len(theta)), pieces):
        sums.add(theta[part], gradient[part], values[part])
    return sums.sharpened()


def test_polynomials_on_a_gaussian_have_no_variance_left():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 3))
    P = A @ A.T + np.eye(3)
    C = np.linalg.inv(P)
    theta = 1.0 + rng.normal(size=(40, 8, 3)) @ np.linalg.cholesky(C).T
    products = np.einsum("tci,tcj->tcij", theta, theta).reshape(40, 8, 9)
    found = sharpened(theta, (theta - 1) @ P, np.concatenate([theta, products], axis=2))
    truth = np.concatenate([np.ones(3), (C + 1).ravel()])
    # the ridge leaves its own size, 1e-7, of what plain averages are off by
    assert np.abs(found.mean - truth).max() < 1e-4
    assert found.std_error.max() < 1e-4
    assert found.gain.min() > 1e8


def gumbel(rng, steps, chains):
    """Independent draws of x = log G with G ~ Gamma(2): U = e^x - 2x; and y ~ N(0, 1)."""
    x = np.log(rng.gamma(2.0, size=(steps, chains, 1)))
    y = rng.normal(size=(steps, chains, 1))
    theta = np.concatenate([x, y], axis=2)
    return theta, np.concatenate([np.exp(x) - 2, y], axis=2)


TRUTH = np.array([stats.loggamma(2.0).mean(), 2.0, stats.loggamma(2.0).cdf(0.5)])


def observed(theta):
    x = theta[..., :1]
    return np.concatenate([x, np.exp(x), x < 0.5], axis=-1)


def test_stated_errors_hold_on_a_skew_law_and_are_smaller():
    """400 repetitions: z² has mean 15/13 with 15 degrees of freedom, less the caution; its mean has a standard error of 0.1."""
    rng, runs, chains = np.random.default_rng(1), 400, 16
    squares, gains = [], []
    for _ in range(runs):
        theta, gradient = gumbel(rng, 60, chains)
        found = sharpened(theta, gradient, observed(theta))
        squares.append(((found.mean - TRUTH) / np.maximum(found.std_error, 1e-9)) ** 2)
        gains.append(found.gain)
    noise = np.std(squares, axis=0) / np.sqrt(runs)
    # e^x is 2 plus a zero-mean function: nothing is left of it but the ridge's share
    assert np.all(np.abs(np.mean(squares, axis=0) - 15 / 13 / CAUTION)[[0, 2]] < 4 * noise[[0, 2]])
    assert np.median(gains, axis=0)[0] > 20
    assert np.median(gains, axis=0)[2] > 1.3


def test_coefficients_of_a_chain_do_not_come_from_itself():
    """Pure noise as an observable: with its own chains' coefficients the error would be stated too small, here it is not."""
    rng, runs, ratio = np.random.default_rng(2), 200, []
    for _ in range(runs):
        theta = rng.normal(size=(10, 8, 3))
        noise = rng.normal(size=(10, 8, 1))
        found = sharpened(theta, theta, noise)
        ratio.append(found.mean[0] ** 2 / found.std_error[0] ** 2)
    assert abs(np.mean(ratio) - 7 / 5 / CAUTION) < 4 * np.std(ratio) / np.sqrt(runs)


def test_segments_of_chains_give_an_error_with_less_noise():
    """Independent states in 20 pieces become 10 segments of 8 chains: their error scatters like one from 79 degrees, not 7."""
    rng, errors = np.random.default_rng(8), []
    for _ in range(200):
        theta, gradient = gumbel(rng, 60, 8)
        found = sharpened(theta, gradient, np.sin(3 * theta[..., :1]), pieces=20)
        errors.append((found.segment_error[0], between(found.corrected)[0]))
    scatter = np.std(errors, axis=0) / np.mean(errors, axis=0)
    assert scatter[0] < 0.12 < 0.2 < scatter[1]
    assert np.mean(errors, axis=0)[0] == pytest.approx(np.mean(errors, axis=0)[1], rel=0.06)


def test_pieces_and_blocks_change_little():
    rng = np.random.default_rng(3)
    theta, gradient = gumbel(rng, 60, 16)
    whole, cut = (sharpened(theta, gradient, observed(theta), pieces=n) for n in (1, 4))
    assert np.allclose(whole.corrected, cut.corrected, atol=1e-10)
    blocks = sharpened(theta, gradient, observed(theta), block=3)
    assert np.all(np.abs(blocks.mean - whole.mean) < 2 * whole.std_error + 1e-6)


def test_a_constant_and_few_rows_are_no_trouble():
    theta = np.random.default_rng(4).normal(size=(3, 8, 6))
    found = sharpened(theta, theta, np.ones((3, 8, 1)))
    assert found.mean == pytest.approx(1)
    assert found.sd[0] == 0
    assert found.std_error[0] < 1e-12


def test_weights_sum_to_one_balance_the_functions_and_sharpen_quantiles():
    """Quartiles and medians of a Gamma law from 600 draws: the weighted ones are nearer the truth in 100 repetitions."""
    rng, levels = np.random.default_rng(5), [0.25, 0.5, 0.75, 0.95]
    truth = stats.loggamma(2.0).ppf(levels)
    plain, weighted = [], []
    for _ in range(100):
        theta, gradient = gumbel(rng, 600, 1)
        theta, gradient = theta[:, 0], gradient[:, 0]
        fields = choose_fields(theta, gradient)
        functions, w = fields(theta, gradient), calibrated_weights(fields, theta, gradient)
        assert w.sum() == pytest.approx(1)
        assert w.min() >= 0
        assert (
            np.abs(w @ functions / functions.std(axis=0)).max()
            < 0.2 * np.abs(functions.mean(axis=0) / functions.std(axis=0)).max() + 1e-3
        )
        plain.append(np.quantile(theta[:, 0], levels) - truth)
        weighted.append(weighted_quantiles(theta[:, 0], w, levels) - truth)
    ratio = np.mean(np.square(weighted), axis=0) / np.mean(np.square(plain), axis=0)
    assert np.all(ratio[:3] < 0.6)
    assert ratio[3] < 0.95
