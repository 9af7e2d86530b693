"""Dynamics as values: the matrices of the paper, structure without matrices, noise with exact covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gyromc as gm
from gyromc.dynamics import augment
from support.values import J1, skew, spd

I3 = np.eye(3)
C = np.diag([0.5, 1.5, 2.0])
ALL = {
    "sgld": gm.dynamics.overdamped(3),
    "sgnlmc": gm.dynamics.nonreversible(J1),
    "rotations": gm.dynamics.nonreversible(gm.dynamics.rotations(5, [2.0, -0.5])),
    "hfhr": gm.dynamics.hfhr(3, alpha=0.7, gamma=2.0),
    "gaul": gm.dynamics.gaul(C, a=1.0, gamma=2.0),
    "gaul, dense": gm.dynamics.gaul(spd(3, 3, 0.6, 1.8), a=1.0, gamma=2.0),
    "general": gm.dynamics.general(spd(4, 1), skew(4, 2)),
    "general, diagonal": gm.dynamics.general([1.0, 2.0, 3.0, 4.0], gm.dynamics.rotations(4)),
}


def test_the_matrices_are_the_papers():
    Z = np.zeros((3, 3))
    assert np.array_equal(ALL["sgld"].D, I3)
    assert np.array_equal(ALL["sgnlmc"].Q, J1)
    assert np.array_equal(ALL["hfhr"].D, np.block([[0.7 * I3, Z], [Z, 2 * I3]]))
    assert np.array_equal(ALL["hfhr"].Q, np.block([[Z, -I3], [I3, Z]]))
    assert np.array_equal(ALL["gaul"].D, np.block([[C, (I3 - C) / 2], [(I3 - C) / 2, 2 * I3]]))
    assert np.array_equal(ALL["gaul"].Q, np.block([[Z, -(I3 + C) / 2], [(I3 + C) / 2, Z]]))


def test_gaul_with_the_identity_is_hfhr():
    gaul, hfhr = gm.dynamics.gaul(I3, a=0.7, gamma=2.0), ALL["hfhr"]
    assert np.array_equal(gaul.D, hfhr.D)
    assert np.array_equal(gaul.Q, hfhr.Q)


@pytest.mark.parametrize("name", ALL)
def test_structure_and_matrix_are_the_same_map(name):
    for dynamics in (ALL[name], ALL[name].reversible()):
        _same_map(dynamics)


def _same_map(dynamics):
    with jax.enable_x64(True):
        v = jnp.asarray(np.random.default_rng(0).standard_normal(dynamics.size))
        assert np.allclose(dynamics.drift(v), (dynamics.D + dynamics.Q) @ v, rtol=1e-13, atol=1e-13)
        assert np.array_equal(dynamics.D, dynamics.D.T)
        assert np.array_equal(dynamics.Q, -dynamics.Q.T)
        root = np.stack([dynamics.noise(e) for e in jnp.eye(dynamics.size)], axis=1)
    assert np.allclose(root @ root.T, dynamics.D, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ALL)
def test_the_baseline_keeps_D_and_drops_Q(name):
    baseline = ALL[name].reversible()
    assert np.array_equal(baseline.D, ALL[name].D)
    assert not baseline.Q.any()
    assert baseline.reversible() is baseline


@given(
    c=st.lists(st.floats(0.05, 5.0), min_size=1, max_size=4),
    a=st.floats(0.05, 3.0),
    gamma=st.floats(0.05, 5.0),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_gaul_is_accepted_exactly_when_D_is_positive_definite(c, a, gamma):
    """S ≻ 0 and D ≻ 0 are the same condition (Schur complement); points within rounding of the border are left out."""
    c = np.array(c)
    S = a * c - (1 - c) ** 2 / (4 * gamma)
    if np.abs(S).min() < 1e-9:
        return
    full = np.block([[np.diag(a * c), np.diag((1 - c) / 2)], [np.diag((1 - c) / 2), gamma * np.eye(c.size)]])
    assert (np.linalg.eigvalsh(full)[0] > 0) == (S.min() > 0)
    if S.min() > 0:
        assert np.array_equal(gm.dynamics.gaul(c, a, gamma).D, full)
    else:
        with pytest.raises(gm.InvalidInput, match="smallest eigenvalue"):
            gm.dynamics.gaul(c, a, gamma)


def test_the_remedy_for_gaul_works():
    with pytest.raises(gm.InvalidInput, match=r"Take a > 0\.4") as raised:
        gm.dynamics.gaul([5.0, 1.0], a=0.1, gamma=2.0)
    assert "gamma > 8" in str(raised.value)
    gm.dynamics.gaul([5.0, 1.0], a=0.41, gamma=2.0)
    gm.dynamics.gaul([5.0, 1.0], a=0.1, gamma=8.1)


def test_asymmetry_by_rounding_is_averaged_away():
    D = spd(4, 1).astype(np.float32).astype(float)
    D[0, 1] += 1e-8
    dynamics = gm.dynamics.general(D, np.zeros((4, 4)))
    assert np.array_equal(dynamics.D, dynamics.D.T)


def test_a_pytree_tells_its_dimension():
    params = {"w": np.zeros((3, 4)), "b": np.zeros(4)}
    assert gm.dynamics.overdamped(params).size == 16
    assert gm.dynamics.hfhr(params, 1.0, 2.0).size == 32


@pytest.mark.parametrize(
    ("build", "d"),
    [
        pytest.param(gm.dynamics.overdamped, 10**7, marks=pytest.mark.slow),
        (lambda d: gm.dynamics.hfhr(d, 1.0, 2.0), 10**6),
        (lambda d: gm.dynamics.gaul(np.linspace(0.5, 2.0, d), 1.0, 2.0), 10**6),
        (lambda d: gm.dynamics.nonreversible(gm.dynamics.rotations(d)), 10**6),
    ],
    ids=["overdamped", "hfhr", "gaul", "rotations"],
)
def test_millions_of_parameters_need_no_matrix(build, d):
    """A matrix of 10⁶ × 10⁶ numbers takes 4 TB: none is made anywhere."""
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda p: -0.5 * (p["w"] ** 2).sum()),
        dynamics=build(d),
        observables={"first": lambda p: p["w"][0, 0]},
        step_size=0.1,
        num_steps=2,
        num_chains=1,
        start={"w": np.zeros((d // 10, 10), np.float32)},
    )
    assert np.isfinite(gm.run(plan).averages["first"]).all()


def test_a_matrix_over_the_parameters_as_one_over_the_state():
    K = np.array([[2.0, 0.5], [0.5, 1.0]])
    assert augment(K, augmented=False) is K
    for of_momenta in (1.0, 0.0):
        found = augment(K, augmented=True, of_momenta=of_momenta)
        np.testing.assert_array_equal(found[:2, :2], K)
        np.testing.assert_array_equal(found[2:, 2:], of_momenta * np.eye(2))
        assert not found[:2, 2:].any()
        assert not found[2:, :2].any()
