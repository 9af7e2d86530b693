"""Values the tests share: random matrices with a given spectrum, small targets, paths, runs in chunks of a given length."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np

import gyromc as gm
from gyromc.engines import loop

ROOT = Path(__file__).parents[2]
J1 = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])  # the paper's J and u in three dimensions
U = np.array([1.0, -1.0, 0.0]) / np.sqrt(2)

# Random matrices: `seed` may be a generator, which then goes on.


def spd(d, seed, low=0.5, high=3.0):
    """A symmetric positive definite matrix with eigenvalues spread from low to high."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    return (basis * np.linspace(low, high, d)) @ basis.T


def wishart(d, seed, low=0.5):
    """A symmetric positive definite matrix with random eigenvalues above low."""
    B = np.random.default_rng(seed).standard_normal((d, d))
    return B @ B.T / d + low * np.eye(d)


def skew(d, seed, size=1.0):
    """A skew-symmetric matrix; its entries have the standard deviation size/√2."""
    A = np.random.default_rng(seed).standard_normal((d, d))
    return size * (A - A.T) / 2


def quadratic(d, seed=1):
    rng = np.random.default_rng(seed)
    return gm.targets.Quadratic(spd(d, seed), rng.standard_normal(d))


def on_normal(**fields):
    """A plan on the standard normal law of one coordinate: D = 1, η = 0.1, θ as observable "x"; `fields` replace or add."""
    usual = {
        "target": gm.targets.Quadratic([1.0]),
        "observables": {"x": gm.observables.linear([1.0])},
        "step_size": 0.1,
    }
    return gm.Plan(dynamics=gm.dynamics.overdamped(1), **{**usual, **fields})


def on_cosine(**fields):
    """The same on U(t) = t²/2 + ½cos t, which no closed form serves."""
    return on_normal(target=gm.targets.CosinePerturbed(1, 0.5), **fields)


def rotating(target, oracle, **fields):
    """A plan of three parameters with a rotation, in float64, θ_0 - θ_1 + θ_2/2 as observable "u"; `fields` replace or add."""
    usual = {
        "dynamics": gm.dynamics.nonreversible(gm.dynamics.rotations(3, 0.4)),
        "observables": {"u": gm.observables.linear([1.0, -1.0, 0.5])},
        "step_size": 0.02,
        "num_steps": 30,
        "num_chains": 50,
        "dtype": "float64",
    }
    return gm.Plan(target=target, oracle=oracle, **{**usual, **fields})


def regression(d, rows=4, seed=2):
    """A tiny anisotropic linear regression, small enough to enumerate every mini-batch."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d)) * np.linspace(0.5, 1.0, d)
    return gm.targets.LinearRegression(X, rng.standard_normal(rows), prior_scale=0.8)


def logistic(rows=5, d=3, seed=4):
    rng = np.random.default_rng(seed)
    return gm.targets.LogisticRegression(rng.standard_normal((rows, d)), rng.integers(0, 2, rows), prior_scale=0.7)


def as_finite_sum(target):
    """The same regression, written by a user."""
    return gm.targets.FiniteSum(
        lambda theta, row: -target.loss(row["x"] @ theta, row["y"]),
        lambda theta: -0.5 * target.prior_precision * theta @ theta,
        {"x": target.X, "y": target.y},
    )


SUMS = {"linear": regression(3), "logistic": logistic(), "finite sum": as_finite_sum(logistic())}
THETA = np.array([0.3, -1.0, 0.8])


@contextlib.contextmanager
def chunks_of(steps):
    """Runs make so many steps between two looks at the clock."""
    usual = loop.SETTINGS
    loop.SETTINGS = dataclasses.replace(usual, first=steps, longest=steps)
    try:
        yield
    finally:
        loop.SETTINGS = usual


def in_chunks(steps, plan, *arguments, **options):
    """`gm.run` in chunks of so many steps."""
    with chunks_of(steps):
        return gm.run(plan, *arguments, **options)
