"""Samplers in whitened coordinates against dense formulas, and the step sizes that keep a bias budget."""

import numpy as np
import pytest
from scipy import linalg

from gyromc.tuning.blocks import REVERSIBLE, ROTATING, merits
from gyromc.tuning.step_size import for_varying_curvature, largest_root, variance_excess
from support.values import skew, spd


def test_merit_of_a_block_is_that_of_theory():
    """Φ, V and the exact inflation, against dense formulas."""
    assert REVERSIBLE.merit == pytest.approx(1.0)
    assert REVERSIBLE.inflation(0.1) == pytest.approx(1 / (1 - 0.05))
    M = np.eye(2) - 0.1 * ROTATING.G
    W = 0.2 * ROTATING.D + 0.01 * 3.0 * np.outer(ROTATING.G[:, 0], ROTATING.G[:, 0])
    S = np.zeros((2, 2))
    for _ in range(3000):
        S = M @ S @ M.T + W
    assert ROTATING.inflation(0.1, noise=3.0) == pytest.approx(S[0, 0])
    assert ROTATING.inflation(ROTATING.step_size(0.05)) == pytest.approx(1.05)
    spectrum = np.array([1.0, 4.0])
    E, V1, V2 = spectrum[-1] / 2, 2 * np.mean(1 / spectrum), 2 * np.mean([1 / 2, 1 / 5, 1 / 8])
    assert merits(spectrum)["SGLD (D = I)"] == pytest.approx(E * (V1 + 2 * V2) / 2)
    assert merits(np.full(3, 7.0))["SGNLMC (D = I, J pairing neighbours)"] == pytest.approx(1.0)  # isotropic: no gain
    assert ROTATING.linear == pytest.approx(2 * 0.2 / (1 + 2 * 0.2))  # E10: 2γ/(1+αγ)


@pytest.mark.parametrize("augmented", [False, True])
def test_excess_is_that_of_the_stationary_covariance(augmented):
    """Against the covariance itself, iterated to its fixed point."""
    d = 3
    K, noise = spd(d, 1), spd(d, 2)
    n = 2 * d if augmented else d
    D, Q, eta = spd(n, 3), skew(n, 4, 0.3), 0.02
    P = linalg.block_diag(K, np.eye(d)) if augmented else K
    M = np.eye(n) - eta * (D + Q) @ P
    W = 2 * eta * D + eta**2 * (D + Q)[:, :d] @ noise @ (D + Q)[:, :d].T
    S = np.zeros((n, n))
    for _ in range(20_000):
        S = M @ S @ M.T + W
    root = np.linalg.cholesky(K)
    worst = np.linalg.eigvalsh(root.T @ S[:d, :d] @ root)[-1] - 1
    assert variance_excess(D, Q, K, noise, eta) == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("block", [REVERSIBLE, ROTATING], ids=["reversible", "rotating"])
def test_a_block_in_theta_is_the_block_in_every_whitened_direction(block):
    """R⁻¹(D+Q)K R = G in each direction, for the triangular root and the symmetric one."""
    K = spd(3, 7)
    values, basis = np.linalg.eigh(K)
    for root in (np.linalg.cholesky(np.linalg.inv(K)), (basis / np.sqrt(values)) @ basis.T):
        dynamics = block.dynamics(root)
        n = len(block.G)
        lift = linalg.block_diag(root, np.eye(3)) if n == 2 else root
        P = linalg.block_diag(K, np.eye(3)) if n == 2 else K
        whitened = np.linalg.solve(lift, (dynamics.D + dynamics.Q) @ P @ lift)
        np.testing.assert_allclose(whitened, np.kron(block.G, np.eye(3)), atol=1e-10)


def test_the_root_finder_finds_the_root():
    assert largest_root(lambda eta: eta**2, 0.25, 10.0) == pytest.approx(0.5, rel=1e-10)
    assert largest_root(lambda eta: eta**2, 1e9, 10.0) == pytest.approx(10.0)


@pytest.mark.parametrize(("steepest", "smaller"), [(0.5, 1.0), (1.2, 1.0), (6.0, 5.0), (1e6, 30.0)])
def test_steps_become_smaller_where_curvature_varies(steepest, smaller):
    assert for_varying_curvature(0.3, steepest) == pytest.approx(0.3 / smaller)
