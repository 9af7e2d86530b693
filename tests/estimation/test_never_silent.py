"""Randomised searches for estimates that are wrong in silence: the truth outside four claimed errors and no warning.

A claim is the recommended interval at the level of four standard errors of a normal law. Each search has a few cases by default
and hundreds among the slow tests; all seeds are fixed.
"""

import dataclasses
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import gyromc as gm

FOUR = 1 - 2 * stats.norm.sf(4)


def sizes(few, many):
    """The number of cases by default and among the slow tests."""
    return [few, pytest.param(many, marks=pytest.mark.slow)]


@dataclasses.dataclass
class Tally:
    """How many claims were made, how many warned, and those that were wrong without a warning."""

    tried: int = 0
    warned: int = 0
    silent: list = dataclasses.field(default_factory=list)

    def add(self, what, truth, row, warned):
        low, high = row.recommended
        self.tried += 1
        self.warned += warned
        if not warned and not low <= truth <= high:
            self.silent.append(f"{what}: {row.mean:.4g} ± {row.std_error:.2g}, truth {truth:.4g}")

    def report(self):
        print(f"{self.tried} claims, {self.warned} warned, {len(self.silent)} wrong in silence")
        return self.silent


def estimated(run, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        return gm.estimate(run, level=FOUR, **options)


def named(found, name):
    """Whether a warning is about this observable."""
    return any(sentence.startswith(f"{name}:") or f" {name} " in sentence for sentence in found.warnings)


# Heavy tails


class Tails(gm.targets.Target):
    """Independent coordinates along the rows of a rotation: Student's t for `dof` > 0, else U = (1 + s²)^(stretch/2)."""

    rotation: np.ndarray
    dof: np.ndarray
    stretch: np.ndarray

    @property
    def dim(self):
        return len(self.dof)

    def potential(self, params):
        s = self.rotation @ params
        nu = jnp.abs(self.dof)
        student = (nu + 1) / 2 * jnp.log1p(s**2 / nu)
        return jnp.sum(jnp.where(self.dof > 0, student, (1 + s**2) ** (self.stretch / 2)))


class Power(gm.observables.Observable):
    """|uᵀθ|^power."""

    direction: np.ndarray
    power: np.ndarray

    def __call__(self, params):
        return jnp.abs(self.direction @ params) ** self.power


def moment(dof, stretch, power):
    """E|s|^power of one coordinate; infinite where it does not exist."""
    if dof > 0:
        if power >= dof:
            return math.inf
        beta = special.beta((power + 1) / 2, (dof - power) / 2)
        return dof ** (power / 2) * beta / special.beta(0.5, dof / 2)
    upper = (1 + 80.0) ** (2 / stretch)
    weight = lambda s: math.exp(1 - (1 + s * s) ** (stretch / 2))
    parts = [
        integrate.quad(lambda s, p=p: s**p * weight(s), 0, upper, limit=2000, points=[1, 10, 100])[0]
        for p in (power, 0)
    ]
    return parts[0] / parts[1]


@pytest.mark.parametrize("cases", sizes(2, 240))
def test_powers_under_heavy_tails_are_right_or_warned(cases):
    """Student's t with 1.5 to 12 degrees of freedom and stretched exponentials, rotated; powers 0.5 to 4 of a coordinate."""
    rng, tally = np.random.default_rng(20), Tally()
    for case in range(cases):
        d, chains = 2, int(rng.choice([1, 4, 32]))
        rotation = stats.ortho_group.rvs(d, random_state=rng) if rng.random() < 0.7 else np.eye(d)
        dof = np.where(rng.random(d) < 0.7, rng.uniform(1.5, 12.0, d), -1.0)
        stretch, power = rng.uniform(0.8, 2.0, d), rng.uniform(0.5, 4.0)
        plan = gm.Plan(
            target=Tails(rotation, dof, stretch),
            dynamics=gm.dynamics.overdamped(d),
            observables={"h": Power(rotation[0], np.asarray(power))},
            step_size=0.02,
            num_steps=8192,
            num_chains=chains,
            seed=case,
        )
        found = estimated(gm.run(plan, progress=False), bias="none")
        what = f"case {case}: ν = {dof[0]:.3g}, stretch {stretch[0]:.2g}, power {power:.2g}, {chains} chains"
        tally.add(what, moment(dof[0], stretch[0], power), found["h"], named(found, "h"))
    assert tally.report() == []


# Short and slow chains


@pytest.mark.parametrize("cases", sizes(12, 400))
def test_short_and_slow_chains_are_right_or_warned(cases):
    """Gaussians of condition 1 to 1000, 1 to 300 relaxation times, 1 to 100 chains from the origin; linear and square."""
    rng, tally = np.random.default_rng(21), Tally()
    for case in range(cases):
        d, condition = int(rng.integers(2, 9)), 10 ** rng.uniform(0, 3)
        chains, length = int(rng.choice([1, 2, 4, 8, 20, 100])), 10 ** rng.uniform(0, 2.5)
        rotation = stats.ortho_group.rvs(d, random_state=rng)
        K = rotation @ np.diag(np.geomspace(1, condition, d)) @ rotation.T
        eta = 0.2 / condition
        steps = int(np.clip(length / eta, 64, 60_000))
        u = rng.standard_normal(d) if rng.random() < 0.5 else np.eye(d)[0]
        plan = gm.Plan(
            target=gm.targets.Quadratic(K),
            dynamics=gm.dynamics.overdamped(d)
            if rng.random() < 0.5
            else gm.dynamics.nonreversible(gm.dynamics.rotations(d, 1.0)),
            observables={"linear": gm.observables.linear(u), "square": gm.observables.square(u)},
            step_size=eta,
            num_steps=steps,
            num_chains=chains,
            seed=case,
        )
        found = estimated(gm.run(plan, progress=False))
        what = f"case {case}: d = {d}, condition {condition:.3g}, T = {steps * eta:.3g}, {chains} chains"
        for name, truth in (("linear", 0.0), ("square", float(u @ np.linalg.solve(K, u)))):
            tally.add(f"{what}, {name}", truth, found[name], named(found, name))
    assert tally.report() == []


# Several modes


class Mixture(gm.targets.Target):
    """Gaussians with weights, centres and standard deviations."""

    weights: np.ndarray
    centres: np.ndarray
    scales: np.ndarray

    @property
    def dim(self):
        return self.centres.shape[1]

    def potential(self, params):
        z = (params - self.centres) / self.scales[:, None]
        return -jax.nn.logsumexp(jnp.log(self.weights) - self.dim * jnp.log(self.scales) - 0.5 * jnp.sum(z**2, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("cases", [160])
def test_mixtures_by_the_tuned_plan_are_right_or_warned(cases):
    """One to three Gaussians in one or two dimensions, up to ten standard deviations apart, weights down to 1 %."""
    rng, tally = np.random.default_rng(22), Tally()
    for case in range(cases):
        d, count = int(rng.integers(1, 3)), int(rng.integers(1, 4))
        weights = np.full(3, 1e-200)
        weights[:count] = np.maximum(rng.dirichlet(np.ones(count)), 0.01)
        weights /= weights.sum()
        centres, scales = rng.uniform(-6, 6, (3, d)), rng.uniform(0.4, 1.5, 3)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", gm.GyromcWarning)
            target = Mixture(weights, centres, scales)
            tuned = gm.tune(target, observables={"x": gm.observables.linear(np.eye(d)[0])}, seed=case, gradients=40_000)
            found = gm.estimate(gm.run(tuned.plan, progress=False), level=FOUR, bias="none")
        what = f"case {case}: weights {np.round(weights[:count], 3)}, centres {centres[:count].round(2).tolist()}"
        tally.add(what, float(weights @ centres[:, 0]), found["x"], bool(said or tuned.warnings))
    assert tally.report() == []


def test_no_printout_shows_an_interval_that_ignores_the_bias_without_saying_so(plan):
    """The mean of SGLD at a large step size is many standard errors off: its table shows no interval and says what counts it."""
    run = gm.run(plan, "scan", progress=False)
    text = " ".join(str(run).split())
    assert "interval" not in text
    assert "without the step-size bias: `gyromc.estimate(run)` counts it" in text
    assert "bias ignored" in " ".join(str(gm.estimate(run)).split())
