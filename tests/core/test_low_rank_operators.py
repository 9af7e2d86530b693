"""A preconditioner that is diagonal but for a few directions: the maps of its matrices without them, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import gyromc as gm
from gyromc.operators import DiagonalLowRank, Gram
from gyromc.prediction.exact.chain import augment
from gyromc.schemes.integrators import HfhrSplitting


def stretch(d, k, seed=0):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, k)))
    return DiagonalLowRank(rng.uniform(0.5, 2.0, d), basis, rng.uniform(-0.9, 1.0, k))


def test_structure_and_matrices_are_the_same_maps():
    E = stretch(7, 2)
    v = np.random.default_rng(1).standard_normal(7)
    with jax.enable_x64(True):
        for map_ in (E, E.transposed(), E.times(-2.0), Gram(E, 0.3), Gram(E, 0.3).times(2.0)):
            np.testing.assert_allclose(map_(jnp.asarray(v)), map_.dense() @ v, rtol=1e-13)
    np.testing.assert_allclose(E.transposed().dense(), E.dense().T)
    L = Gram(E, 0.3).cholesky().dense()
    np.testing.assert_allclose(L @ L.T, Gram(E, 0.3).dense(), rtol=1e-13, atol=1e-14)


def test_hfhr_with_it_is_hfhr_with_its_matrix():
    C = Gram(stretch(6, 2))
    thin, full = (gm.dynamics.hfhr(6, 0.1, 1.5, preconditioner=x) for x in (C, C.dense()))
    np.testing.assert_allclose(thin.D, full.D, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        thin.Q[6:, :6].T @ thin.Q[6:, :6], full.Q[6:, :6].T @ full.Q[6:, :6], rtol=1e-12, atol=1e-14
    )
    assert HfhrSplitting().why_not(thin, True) is None


def covariance(E, scheme, tau, K):
    """Of θ in stationarity, from the Lyapunov equation of the chain."""
    plan = gm.Plan(
        target=gm.targets.Quadratic(K),
        dynamics=gm.dynamics.hfhr(len(K), 0.1, 1.5, preconditioner=Gram(E)),
        scheme=scheme,
        oracle=gm.oracles.Gaussian(tau) if tau else None,
        observables={"x": gm.observables.linear(np.eye(1, len(K))[0])},
        step_size=0.3,
        num_steps=10,
    )
    step, d = plan.step_matrices, plan.dim
    M, B = step.transition(augment(K, True)), step.B[:, :d]
    return linalg.solve_discrete_lyapunov(M, step.C @ step.C.T + tau**2 * B @ B.T)[:d, :d]


def test_the_splitting_keeps_the_covariance_with_and_without_noise():
    """With matrices for any E; with the diagonals of EᵀPE and EᵀΣE where these are diagonal, and not with another noise."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))
    E = DiagonalLowRank(np.full(6, 0.8), basis, np.array([-0.7, -0.5]))
    inverse = np.linalg.inv(E.dense())
    K = inverse.T @ np.diag([0.3, 0.7, 1.0, 1.1, 2.0, 3.0]) @ inverse
    K = (K + K.T) / 2
    for tau in (0.0, 0.3):
        np.testing.assert_allclose(covariance(E, "hfhr_splitting", tau, K) @ K, np.eye(6), atol=1e-9)
    E = DiagonalLowRank(np.linspace(0.5, 1.5, 6), np.eye(6)[:, [1, 4]], np.array([-0.7, 0.5]))
    square, K = np.diag(Gram(E).dense()), np.diag([0.3, 3.0, 1.0, 1.1, 2.0, 0.7])
    told = HfhrSplitting(moments=(square * np.diag(K), square * 0.3**2), whitened=True)
    np.testing.assert_allclose(covariance(E, told, 0.3, K) @ K, np.eye(6), atol=1e-9)
    silent = HfhrSplitting(moments=(square * np.diag(K), 0 * square), whitened=True)
    assert np.abs(covariance(E, silent, 0.3, K) @ K - np.eye(6)).max() > 1e-3


def test_a_hundred_thousand_parameters_need_no_matrix():
    d = 100_000
    basis = np.zeros((d, 2), np.float32)
    basis[0, 0] = basis[1, 1] = 1.0
    E = DiagonalLowRank(np.ones(d), basis, np.array([-0.9, -0.5]))
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.r_[100.0, 4.0, np.ones(d - 2)]),
        dynamics=gm.dynamics.hfhr(d, 0.001, 1.0, preconditioner=Gram(E)),
        scheme="hfhr_splitting",
        observables={"all": lambda x: jnp.mean(x[2:] ** 2)},
        step_size=1.0,
        burn_in=20,
        num_steps=10,
        num_chains=1,
    )
    assert gm.run(plan, "scan", progress=False).mean["all"] == pytest.approx(1.0, abs=0.03)  # √(2/d) = 0.0045


def test_what_is_refused():
    E = stretch(4, 2)
    with pytest.raises(gm.InvalidInput, match="orthonormal"):
        Gram(DiagonalLowRank(E.scale, 2 * E.basis, E.gains))
    with pytest.raises(gm.InvalidInput, match="a column for each of the 1 gains"):
        Gram(DiagonalLowRank(E.scale, E.basis, E.gains[:1]))
    with pytest.raises(gm.InvalidInput, match="positive definite"):
        Gram(DiagonalLowRank(E.scale, E.basis, np.array([-1.5, 0.0])))
