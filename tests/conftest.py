"""Values the tests share."""

import numpy as np
import pytest

import gyromc as gm
from browsing import browser  # noqa: F401  # a fixture

J1 = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def spd(d, seed, low=0.5, high=3.0):
    """A symmetric positive definite matrix with eigenvalues spread from low to high."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (basis * np.linspace(low, high, d)) @ basis.T


def skew(d, seed, size=1.0):
    A = np.random.default_rng(seed).standard_normal((d, d))
    return size * (A - A.T) / 2


def quadratic(d, seed=1):
    rng = np.random.default_rng(seed)
    return gm.targets.Quadratic(spd(d, seed), rng.standard_normal(d))


def regression(d, rows=4, seed=2):
    """A tiny anisotropic linear regression, small enough to enumerate every mini-batch."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d)) * np.linspace(0.5, 1.0, d)
    return gm.targets.LinearRegression(X, rng.standard_normal(rows), prior_scale=0.8)


@pytest.fixture
def plan():
    """A small plan that runs in a blink."""
    return gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"x": gm.observables.linear([1.0, 0.0]), "y": gm.observables.tanh([0.0, 1.0])},
        step_size=0.1,
        num_chains=50,
    )
