"""Engine scan against exact finite-step moments for every sampler, and proof that a wrong sampler would be seen."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.schemes import Scheme
from support import exact
from support.values import J1, quadratic, regression, skew, spd
from support.zscores import largest, z_scores

CHAINS = 40_000  # the variance is then known to 0.7 %, so 4 standard errors see 1.4 % in the RMSE
LIMIT = 4.0  # standard errors; 2 × 36 comparisons exceed it by chance once in 200 suites


def unlike(n):
    """A start that no symmetry leaves alone; with r₀ = 0 the law of θ would not change under Q → -Q."""
    return np.linspace(-1.5, 2.0, n)


NONREVERSIBLE = {
    "sgnlmc": (3, lambda: gm.dynamics.nonreversible(J1)),
    "sgnlmc, blocks": (5, lambda: gm.dynamics.nonreversible(gm.dynamics.rotations(5, [0.7, -1.3]))),
    "sghfhrmc": (2, lambda: gm.dynamics.hfhr(2, alpha=0.5, gamma=0.8)),
    "sggaulmc": (3, lambda: gm.dynamics.gaul(spd(3, 5, 0.6, 1.7), a=0.8, gamma=1.5)),
    "sggaulmc, diagonal": (4, lambda: gm.dynamics.gaul(np.linspace(0.6, 1.9, 4), a=0.9, gamma=1.6)),
    "general on θ": (6, lambda: gm.dynamics.general(spd(6, 6, 0.4, 1.5), skew(6, 7))),
    "general on (θ, r)": (3, lambda: gm.dynamics.general(spd(6, 8, 0.4, 1.5), skew(6, 9))),
}
DYNAMICS = {
    "sgld": (2, lambda: gm.dynamics.overdamped(2)),
    **NONREVERSIBLE,
    **{
        f"{name}, reversible": (d, lambda build=build: build().reversible())
        for name, (d, build) in NONREVERSIBLE.items()
        if name not in ("sgnlmc", "sgnlmc, blocks")
    },
}
BY_DEFAULT = ("sgnlmc", "sghfhrmc", "sggaulmc", "general on (θ, r)")
ORACLES = {"exact": gm.oracles.Exact(), "gaussian": gm.oracles.Gaussian(1.3), "mini-batch": gm.oracles.Minibatch(2)}


def make_plan(dynamics, oracle, seed=11):
    d, build = DYNAMICS[dynamics]
    batch, values = oracle == "mini-batch", build()
    return gm.Plan(
        target=regression(d) if batch else quadratic(d),
        dynamics=values,
        oracle=ORACLES[oracle],
        observables={"h": gm.observables.linear(np.cos(np.arange(d)))},
        step_size=0.06 if batch else 0.11,
        num_steps=25,
        num_chains=CHAINS,
        burn_in=3 if oracle == "exact" else 0,
        start=unlike(values.size),
        seed=seed,
    )


def scores(plan, against=None):
    against = against or plan
    expected = exact.moments(against)
    return z_scores(gm.run(plan, engine="scan").averages["h"], expected.mean, expected.variance)


def combinations():
    """Every dynamics with every oracle; by default four kinds of dynamics with one oracle each.

    Single steps of all kinds are compared to rounding in `test_contract`, the maps of all dynamics in `core/test_dynamics`.
    """
    for i, dynamics in enumerate(DYNAMICS):
        for j, oracle in enumerate(ORACLES):
            default = dynamics in BY_DEFAULT and (i + j) % 3 == 0
            yield pytest.param(dynamics, oracle, marks=[] if default else [pytest.mark.slow])


@pytest.mark.parametrize(("dynamics", "oracle"), list(combinations()))
def test_mean_and_variance_are_the_exact_ones(dynamics, oracle):
    z = scores(make_plan(dynamics, oracle))
    assert largest(z) < LIMIT, f"z = {z}"


def test_a_start_without_momentum_and_one_per_chain():
    plan = make_plan("sghfhrmc", "gaussian").replace(start=[1.0, -2.0])
    assert largest(scores(plan)) < LIMIT
    one_each = gm.run(plan.replace(start=np.tile([1.0, -2.0], (CHAINS, 1))), engine="scan").averages["h"]
    assert np.array_equal(one_each, gm.run(plan, engine="scan").averages["h"])


def _mutant_scheme(name):
    def scheme(dynamics, z, gradient, xi, eta):
        drift, noise, root = dynamics.drift(gradient), dynamics.noise(xi), np.sqrt(2) * eta**0.5
        if name == "√η → η":
            root = np.sqrt(2) * eta
        if name == "√2 → 1":
            root = eta**0.5
        if name == "√D → D":
            noise = dynamics.diffusion(xi)
        if name == "G → Gᵀ":
            drift = dynamics.diffusion(gradient) - dynamics.rotation(gradient)
        return z - eta * drift + root * noise

    return Scheme(name, scheme)


AUGMENTED = ["sghfhrmc", "sggaulmc", "general on (θ, r)"]
MUTANTS = {
    "√η → η": ["sgnlmc", *AUGMENTED],
    "√2 → 1": ["sgnlmc", *AUGMENTED],
    "G → Gᵀ": ["sgnlmc", *AUGMENTED],
    "√D → D": AUGMENTED,
}


SEEN = [  # one by default; `test_a_two_per_cent_error_is_seen` shows that smaller errors than all of these are seen
    pytest.param(mutant, name, marks=[] if (mutant, name) == ("G → Gᵀ", "sgnlmc") else [pytest.mark.slow])
    for mutant, names in MUTANTS.items()
    for name in names
]


@pytest.mark.parametrize(("mutant", "dynamics"), SEEN)
def test_a_wrong_step_is_seen(mutant, dynamics):
    plan = make_plan(dynamics, "gaussian")
    z = scores(plan.replace(scheme=_mutant_scheme(mutant)), against=plan)
    assert largest(z) > LIMIT


class _Unscaled(gm.oracles.Minibatch):
    def gradient(self, target, theta, zeta):
        return target.batch_gradient(theta, zeta) + target.prior_gradient(theta)


class _PriorScaled(gm.oracles.Minibatch):
    def gradient(self, target, theta, zeta):
        return target.num_data / self.size * (target.batch_gradient(theta, zeta) + target.prior_gradient(theta))


class _OneBatchForAll(gm.oracles.Minibatch):
    def draw(self, key, target, num_chains, dim, dtype):
        return np.repeat(np.array([[0, 1]]), num_chains, axis=0)


WRONG = [pytest.param(_Unscaled(2), marks=pytest.mark.slow), _PriorScaled(2), _OneBatchForAll(2)]


@pytest.mark.parametrize("oracle", WRONG, ids=lambda oracle: type(oracle).__name__.strip("_"))
def test_a_wrong_mini_batch_is_seen(oracle):
    plan = make_plan("sgnlmc", "mini-batch")
    z = scores(plan.replace(oracle=oracle), against=plan)
    assert largest(z) > LIMIT


@pytest.mark.slow
def test_a_wrong_sign_of_J_is_seen():
    plan = make_plan("sgnlmc", "exact")
    z = scores(plan.replace(dynamics=gm.dynamics.nonreversible(-J1)), against=plan)
    assert largest(z) > LIMIT


def test_averaging_from_the_wrong_state_is_seen():
    plan = make_plan("sggaulmc", "gaussian")  # the program of the test below
    z = scores(plan.replace(burn_in=1), against=plan)
    assert largest(z) > LIMIT


def test_a_two_per_cent_error_is_seen():
    plan = make_plan("sggaulmc", "gaussian")
    mean, variance, *_ = exact.moments(plan)
    averages = gm.run(plan, engine="scan").averages["h"]
    assert abs(z_scores(averages, mean, variance)[1]) < LIMIT
    assert abs(z_scores(averages, mean, variance * 1.02**2)[1]) > LIMIT
