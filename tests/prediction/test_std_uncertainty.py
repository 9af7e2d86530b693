"""`std_uncertainty` against chains in one coordinate, whose averages have a variance known from their transition matrix."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.schemes.moments import gradient_moments, oracle_covariances

FUNCTIONS = {
    "x": lambda t: t,
    "square": lambda t: t**2,
    "abs": lambda t: jnp.abs(t),
    "tanh": lambda t: jnp.tanh(2 * t),
}
POTENTIALS = {
    "two modes": lambda t: -jnp.logaddexp(-((t - 1.8) ** 2) / 2, -((t + 1.8) ** 2) / 2),
    "unequal modes": lambda t: -jnp.logaddexp(-((t - 2) ** 2) / 0.5, -((t + 1) ** 2) / 2 - 0.3),
    "skewed": lambda t: jnp.exp(t) - 2 * t,
    "cosine": lambda t: t**2 / 2 + 1.5 * jnp.cos(t),
}
STEPS = 10**6
rng = np.random.default_rng(2)
X = 1.5 * rng.normal(size=(40, 1))
Y = (rng.random(40) < 1 / (1 + np.exp(-1.2 * X[:, 0]))).astype(int)


def plan_for(target, oracle, scheme: str, share: float) -> gm.Plan:
    """A plan whose step size is this share of the largest stable one."""
    observables = {name: gm.observables.function(lambda x, h=h: h(x[0])) for name, h in FUNCTIONS.items()}
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(1), oracle=oracle, observables=observables, step_size=1e-3,
        num_steps=STEPS, burn_in=10**5, start=[0.5], dtype="float64",
    )  # fmt: skip
    stability = gm.predict(plan).stability
    assert stability is not None
    return plan.replace(step_size=share * stability.largest_step_size, scheme=scheme)


def true_stds(plan: gm.Plan, reach: float, count: int = 500) -> dict[str, float]:
    """The standard deviation of long averages, from the chain on a grid: mean x - η∇U, variance 2η + η²Σ, balanced less η²S."""
    x = np.linspace(-reach, reach, count)
    with jax.enable_x64(True):
        values = np.stack([np.asarray(jax.vmap(h)(jnp.asarray(x)), float) for h in FUNCTIONS.values()], axis=1)
    center = np.clip(x - plan.eta * plan.flat_target.gradients(x[:, None])[:, 0], -0.85 * reach, 0.85 * reach)
    variance = (
        2 * plan.eta + plan.eta**2 * oracle_covariances(plan.flat_target, plan.prepared_oracle, x[:, None])[:, 0, 0]
    )
    if plan.scheme.name == "balanced":
        variance = variance - plan.eta**2 * gradient_moments(plan).second[0, 0]
    K = np.exp(-((x - center[:, None]) ** 2) / (2 * variance[:, None]))
    K /= K.sum(axis=1, keepdims=True)
    balance = (np.eye(count) - K).T
    balance[-1] = 1.0
    p = np.maximum(np.linalg.solve(balance, np.eye(count)[-1]), 0.0)
    away = values - p @ values
    summed = np.linalg.solve(np.eye(count) - K + p, away)
    found = np.sqrt((2 * p @ (away * summed) - p @ away**2) / STEPS)
    return dict(zip(FUNCTIONS, found.tolist(), strict=True))


def deviations(plan: gm.Plan, reach: float) -> list[float]:
    """By how many of their stated errors the predicted standard deviations are off."""
    predicted, true = gm.predict(plan), true_stds(plan, reach)
    return [abs(predicted[name].std - true[name]) / predicted[name].std_uncertainty for name in FUNCTIONS]


def target_of(name: str) -> gm.targets.LogDensity:
    U = POTENTIALS[name]
    return gm.targets.LogDensity(lambda x: -U(x[0]))


@pytest.mark.parametrize(("oracle", "scheme"), [(gm.oracles.Gaussian(3.0), "euler"), (gm.oracles.Exact(), "balanced")])
def test_two_modes_have_errors_that_hold(oracle, scheme):
    """Noise helps chains across the barrier, which no Gaussian has; balanced noise is of second order on Gaussians alone."""
    assert max(deviations(plan_for(target_of("two modes"), oracle, scheme, 0.1), 9.0)) < 1.2


def test_a_flat_mode_has_no_gaussian():
    """U = x⁴/4: the Gaussian at the mode is as wide as rounding, and what it adds is taken in proportion."""
    target = gm.targets.LogDensity(lambda x: -(x[0] ** 4) / 4)
    plan = plan_for(target, gm.oracles.Gaussian(1.0), "euler", 0.1)
    assert max(deviations(plan, 4.0)) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*POTENTIALS, "logistic"])
def test_errors_hold_for_noise_schemes_and_step_sizes(name):
    """Nine in ten within 1.5 errors and all within 3: an error is of the size of what it stands for."""
    found: list[float] = []
    oracles: list[gm.oracles.Oracle] = [gm.oracles.Exact(), gm.oracles.Gaussian(1.0), gm.oracles.Gaussian(3.0)]
    target = gm.targets.LogisticRegression(X, Y, prior_scale=2.0) if name == "logistic" else target_of(name)
    if name == "logistic":
        oracles += [gm.oracles.Minibatch(4), gm.oracles.Minibatch(12), gm.oracles.ControlVariate(4)]
    for oracle in oracles:
        for scheme in ("euler", "balanced"):
            for share in (0.03, 0.1, 0.3):
                plan = plan_for(target, oracle, scheme, share)
                if gm.predict(plan).stable:
                    found += deviations(plan, 14.0 if name == "skewed" else 9.0)
    assert np.quantile(found, 0.9) < 1.5
    assert max(found) < 3
    assert not any(map(math.isnan, found))
