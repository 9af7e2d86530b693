"""Several modes are found with their masses, chains start at all of them, and the user is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm

Y = 4 + 0.1 * np.random.default_rng(0).standard_normal(10)


def squares():
    """y ~ N(μ², 1), ten observations near 4: the posterior is the same at μ and -μ."""
    target = gm.targets.FiniteSum(lambda t, y: -0.5 * (y - t[0] ** 2) ** 2, lambda t: -(t[0] ** 2) / 50, Y)
    return gm.Model(target, template=np.zeros(1))


def test_both_signs_are_found_with_equal_mass():
    modes = squares().modes
    assert sorted(float(center.mean[0]) for center in modes.found) == pytest.approx([-2.0, 2.0], abs=0.05)
    np.testing.assert_allclose(modes.shares, 0.5, rtol=1e-6)


def test_masses_are_those_of_a_mixture():
    """Two Gaussians of weights 0.9 and 0.1, ten standard deviations apart: the shares are the weights."""

    def density(t):
        left = jnp.log(0.9) - 0.5 * jnp.sum((t + 5) ** 2)
        right = jnp.log(0.1) - 0.5 * jnp.sum(((t - 5) / 0.5) ** 2) - 2 * jnp.log(0.5)
        return jnp.logaddexp(left, right)

    modes = gm.Model(gm.targets.LogDensity(density), template=np.zeros(2)).modes
    np.testing.assert_allclose(modes.shares, [0.9, 0.1], rtol=1e-3)


def test_random_mixtures_of_one_to_three_gaussians():
    """4 mixtures: every component of more than 1 % mass, six standard deviations from the others, is found."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(4):
        count, d = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        centres = rng.permutation(np.arange(-2, 3))[:count, None] * 8.0 * np.ones(d) + rng.normal(0, 0.5, (count, d))
        weights = rng.dirichlet(np.full(count, 3.0))

        def density(t, centres=centres, weights=weights):
            parts = [jnp.log(w) - 0.5 * jnp.sum((t - c) ** 2) for w, c in zip(weights, centres, strict=True)]
            return jax.nn.logsumexp(jnp.stack(parts))

        model = gm.Model(gm.targets.LogDensity(density), template=np.zeros(d))
        found = np.array([center.mean for center in model.modes.found])
        missed += sum(
            np.min(np.linalg.norm(found - c, axis=1)) > 1 for c, w in zip(centres, weights, strict=True) if w > 0.01
        )
    assert missed == 0  # seeds are fixed; a search is no proof, and the page on what is detected says so


def test_convex_targets_are_not_searched():
    assert not gm.Model(gm.targets.Quadratic(np.ones(3))).modes.several


def test_chains_start_at_every_mode():
    starts = squares().modes.starts(5, seed=0)
    assert starts.shape == (5, 1)
    assert {1, -1} == set(np.sign(starts[:, 0]).astype(int))


# `tuning/test_tune.py` asks by default where the chains of a tuned plan start, and what is said.
@pytest.mark.slow
def test_chains_of_a_tuned_plan_start_at_every_mode_and_the_user_is_told():
    model = squares()
    plan = gm.Plan(
        target=model.target,
        dynamics=gm.dynamics.overdamped(1),
        observables={"mu": lambda t: t[0]},
        step_size=0.01,
        start=np.zeros(1),
    )
    tuned = gm.tune(plan, gradients=8000, num_chains=16)
    assert any("several modes" in text for text in tuned.warnings)
    run = gm.run(tuned.plan, progress=False)
    signs = np.sign(run.averages["mu"])
    assert set(signs) == {-1, 1}
    assert abs(run.mean["mu"]) < 3 * run.std_error["mu"]  # the truth is 0, and the error knows what it does not know
    assert run.std_error["mu"] > 0.3
