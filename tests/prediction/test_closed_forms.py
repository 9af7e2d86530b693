"""E8-E11 to 12 digits, as properties over random matrices, and at condition numbers of 10⁸."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

import gyromc as gm
from gyromc.errors import InvalidInput
from gyromc.prediction.exact import closed_forms as cf
from gyromc.prediction.exact.closed_forms import fluctuation_constant, ridge_constants
from support.values import J1, U, skew, wishart

seeds = st.integers(0, 2**32 - 1)
positive = st.floats(0.05, 20)


@pytest.mark.parametrize(
    ("dynamics", "V", "V_0"),
    [
        (gm.dynamics.nonreversible(J1), 1 / 2, 2),
        (gm.dynamics.hfhr(3, 1.0, 2.0), 4 / 3, 2),
        (gm.dynamics.gaul([0.5, 1.5, 2.0], a=1.0, gamma=2.0), 16 / 9, 1 / 0.46875 + 1 / 1.46875),
    ],
)
def test_values_of_the_specification(dynamics, V, V_0):
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.ones(3)),
        dynamics=dynamics,
        oracle=gm.oracles.Gaussian(1.0),
        observables={"h": gm.observables.linear(U)},
        step_size=0.1,
    )
    pred = gm.predict(plan)
    np.testing.assert_allclose([pred.variance["h"], pred.reversible_variance["h"]], [V, V_0], rtol=1e-12)
    assert pred.method["h"] == "closed form"
    assert pred.rmse_method["h"] == "exact finite-step"
    assert pred.strict_reduction["h"]


@given(seeds, positive, positive)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_special_forms_are_the_general_one(seed, alpha, gamma):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    K, u, J = wishart(d, rng, low=0.1), rng.standard_normal(d), skew(d, rng, size=2.0)
    P, w, zero = linalg.block_diag(K, np.eye(d)), np.concatenate([u, np.zeros(d)]), np.zeros((d, d))
    general = [fluctuation_constant(np.eye(d), q, K, u) for q in (J, zero)]
    np.testing.assert_allclose(cf.nonreversible_constants(J, K, u), general, rtol=1e-9)  # E9
    hfhr = gm.dynamics.hfhr(d, alpha, gamma)
    general = [fluctuation_constant(hfhr.D, q, P, w) for q in (hfhr.Q, 0 * hfhr.Q)]
    np.testing.assert_allclose(cf.hfhr_constants(K, alpha, gamma, u), general, rtol=1e-9)  # E10
    np.testing.assert_allclose(general[0] / general[1], alpha * gamma / (1 + alpha * gamma), rtol=1e-9)
    np.testing.assert_allclose(cf.gaul_constants(K, np.eye(d), alpha, gamma, u), general, rtol=1e-9)  # C = I
    C = wishart(d, rng, low=0.1)
    a = 1.1 * float(np.max((1 - np.linalg.eigvalsh(C)) ** 2 / (4 * gamma * np.linalg.eigvalsh(C)))) + 0.1
    gaul = gm.dynamics.gaul(C, a, gamma)
    general = [fluctuation_constant(gaul.D, q, P, w) for q in (gaul.Q, 0 * gaul.Q)]
    np.testing.assert_allclose(cf.gaul_constants(K, C, a, gamma, u), general, rtol=1e-7)  # E11


@given(seeds)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_rotation_never_hurts(seed):
    """V ≤ V_0 for random D, Q, P, strictly exactly when the integral of E7 is positive; for squares too."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    D, Q, P, u = wishart(n, rng, low=0.1), skew(n, rng, size=6.0), wishart(n, rng, low=0.1), rng.standard_normal(n)
    V, V_0 = (fluctuation_constant(D, q, P, u) for q in (Q, 0 * Q))
    assert V <= V_0 * (1 + 1e-10)
    assert (cf.strictness_integral(D, Q, P, None, u) > 1e-12) == (V < V_0 * (1 - 1e-12))
    S = np.outer(u, u)
    V, V_0 = (cf.quadratic_fluctuation_constant(D, q, P, S) for q in (Q, 0 * Q))
    assert 0 < V <= V_0 * (1 + 1e-10)


def test_a_rotation_that_does_nothing():
    """Q that moves only coordinates h and D do not couple leaves V as it is, and E7's integral at zero."""
    Q = np.zeros((3, 3))
    Q[1, 2], Q[2, 1] = -5.0, 5.0
    P, u = np.diag([2.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0])
    assert fluctuation_constant(np.eye(3), Q, P, u) == fluctuation_constant(np.eye(3), 0 * Q, P, u)
    assert cf.strictness_integral(np.eye(3), Q, P, np.outer(u, u), u) == 0


@given(st.floats(0.01, 50), st.integers(1, 7), seeds)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_block_rotation_on_an_isotropic_target(rho, pairs, seed):
    """J = ρ·blockdiag gives V_J/V_0 = 1/(1+ρ²)."""
    J = gm.dynamics.rotations(2 * pairs, rho).dense()
    u = np.random.default_rng(seed).standard_normal(2 * pairs)
    V, V_0 = cf.nonreversible_constants(J, np.eye(2 * pairs), u)
    np.testing.assert_allclose(V / V_0, 1 / (1 + rho**2), rtol=1e-12)


def test_condition_number_1e8():
    """Against exact rational arithmetic: at κ = 10⁸ no more is lost than κ·ε allows, and nothing for a diagonal."""
    from fractions import Fraction

    P = np.array([[1.0, 0.9999], [0.9999, 1.0]]) * 1e4 + np.diag([0.0, 1e-4])
    u, D, Q = np.array([1.0, 2.0]), np.eye(2), np.array([[0.0, -3.0], [3.0, 0.0]])

    def exact(P, u, q):
        (a, b), (c, d) = [[Fraction(x) for x in row] for row in P]
        u0, u1 = map(Fraction, u)
        det = a * d - b * c
        w = ((d * u0 - b * u1) / det, (a * u1 - c * u0) / det)
        q = Fraction(q)
        # (I-Q)⁻¹w with Q = q[[0,-1],[1,0]]
        x = ((w[0] - q * w[1]) / (1 + q * q), (w[1] + q * w[0]) / (1 + q * q))
        return float(2 * (x[0] ** 2 + x[1] ** 2))

    for matrix in (P, np.diag([1e-4, 1e4])):
        tolerance = 4 * np.finfo(float).eps * (np.linalg.cond(matrix) if matrix is P else 10)
        np.testing.assert_allclose(fluctuation_constant(D, Q, matrix, u), exact(matrix, u, 3), rtol=tolerance)


def test_singular_precision_says_so():
    with pytest.raises(InvalidInput, match="smallest eigenvalue"):
        fluctuation_constant(np.eye(2), np.zeros((2, 2)), np.ones((2, 2)), [1.0, 0.0])


def test_squares_against_the_series_for_ridges():
    """Two routes: the Lyapunov equation, and Mehler's formula with ρ(t) = t²."""
    rng = np.random.default_rng(4)
    D, Q, P, u = wishart(4, rng, low=0.1), skew(4, rng, size=2.0), wishart(4, rng, low=0.1), rng.standard_normal(4)
    for shift in (0.0, 0.7):
        direct = [cf.quadratic_fluctuation_constant(D, q, P, np.outer(u, u), 2 * shift * u) for q in (Q, 0 * Q)]
        np.testing.assert_allclose([V.value for V in ridge_constants(D, Q, P, u, np.square, shift)], direct, rtol=1e-10)
    linear = [fluctuation_constant(D, q, P, u) for q in (Q, 0 * Q)]
    np.testing.assert_allclose([V.value for V in ridge_constants(D, Q, P, u, lambda t: t, 0.3)], linear, rtol=1e-10)
