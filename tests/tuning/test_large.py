"""Plans for many parameters from gradients alone: what is measured of Gaussians, the plans it gives, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gyromc.tuning.large import large_plan
from gyromc.tuning.matrix_free import Diagonals, Gradients
from gyromc.tuning.preconditioning import Shape, numbers_for
from gyromc.tuning.step_check import check_step, with_squares

import gyromc as gm
from gyromc.operators import Diagonal
from gyromc.oracles import Gaussian
from gyromc.tuning import matrix_free, step_check


def rotated(d, condition, seed=0):
    """A precision matrix whose eigenvectors are random, the eigenvectors, and the eigenvalues."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    spectrum = np.geomspace(1 / condition, 1.0, d)
    K = (basis * spectrum) @ basis.T
    return (K + K.T) / 2, basis, spectrum


def gradients_of(target, oracle=None):
    return Gradients(target, oracle or gm.oracles.Exact(), target.dim)


KEY = jax.random.key(0)


class Skewed(Gaussian):
    """Gradient noise with a covariance that is not diagonal: (aᵀζ)a + τζ."""

    direction: np.ndarray

    def __init__(self, direction, tau):
        super().__init__(tau)
        self.direction = np.asarray(direction, float)

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.normal(key, (num_chains, dim + 1), dtype)

    def gradient(self, target, theta, zeta):
        return target.gradient(theta) + self.tau * zeta[1:] + zeta[0] * self.direction


def test_the_diagonals_of_curvature_and_noise():
    """A diagonal Hessian is exact with any signs; a full one, and the noise, within 5 of their own standard errors."""
    precision = np.geomspace(0.01, 10.0, 40)
    found = matrix_free.diagonals(
        gradients_of(gm.targets.Quadratic(precision), Gaussian(0.5)), jnp.zeros((1, 40)), KEY, 200
    )
    np.testing.assert_allclose(found.curvature, precision, rtol=1e-5)
    assert np.max(found.error) < 1e-5 * precision.max()
    assert np.max(np.abs(found.noise / 0.25 - 1)) < 5 * np.sqrt(2 / 200)
    K, _, _ = rotated(40, 20.0)
    full = matrix_free.diagonals(gradients_of(gm.targets.Quadratic(K)), jnp.zeros((1, 40)), KEY, 200)
    assert np.all(full.noise == 0)
    assert np.max(np.abs(full.curvature - np.diag(K)) / full.error) < 5
    assert np.max(np.abs(full.curvature - 1.2 * np.diag(K)) / full.error) > 5  # another diagonal is told from it


def test_the_prior_is_found_apart_from_the_data():
    X = np.random.default_rng(0).standard_normal((30, 5))
    target = gm.targets.LinearRegression(X, X @ np.ones(5), prior_scale=0.5)
    found = matrix_free.diagonals(gradients_of(target), jnp.zeros((1, 5)), KEY, 64)
    assert found.prior is not None
    np.testing.assert_allclose(found.prior, 4.0, rtol=1e-5)


def test_estimates_without_error_stay_and_others_move_to_their_group():
    exact = Diagonals(np.array([1.0, 5.0, 0.01, 2.0]), np.zeros(4), np.zeros(4), None, 8)
    np.testing.assert_allclose(matrix_free.shrunk(exact, (2, 2)), exact.curvature)
    rng = np.random.default_rng(0)
    noisy = Diagonals(3.0 + rng.standard_normal(5000), np.ones(5000), np.zeros(5000), None, 8)
    assert np.std(matrix_free.shrunk(noisy, (5000,))) < 0.4  # from 1
    assert np.all(matrix_free.shrunk(noisy, (5000,)) > 0)


def test_noise_moves_to_its_group_as_far_as_its_error_says():
    rng = np.random.default_rng(0)
    chances = rng.chisquare(40, 4000) / 40
    for truth, left in ((np.full(4000, 2.0), 0.1), (np.geomspace(0.01, 100.0, 4000), 1.1)):
        found = Diagonals(np.ones(4000), np.zeros(4000), truth * chances, None, 40)
        result = matrix_free.shrunk_noise(found, (4000,))
        assert np.std(np.log(result / truth)) < left * np.std(np.log(chances))
        assert result.mean() == pytest.approx(found.noise.mean())
    assert np.all(matrix_free.shrunk_noise(Diagonals(np.ones(3), np.zeros(3), np.zeros(3), None, 4), (1, 2)) == 0)


def test_extreme_curvatures_of_a_rotated_gaussian():
    K, _, _ = rotated(60, 40.0)
    gradients, scale = gradients_of(gm.targets.Quadratic(K)), jnp.full(60, 2.0)
    largest, smallest = matrix_free.extreme_curvatures(gradients, jnp.ones(60), scale, KEY, 60, 1)
    assert largest == pytest.approx(4.0, rel=1e-3)
    assert smallest == pytest.approx(4.0 / 40, rel=1e-2)
    round_ = matrix_free.extreme_curvatures(
        gradients_of(gm.targets.Quadratic(np.full(60, 3.0))), jnp.ones(60), jnp.ones(60), KEY, 20, 1
    )
    assert round_ == pytest.approx((3.0, 3.0), rel=1e-4)
    saddle = gm.targets.LogDensity(lambda x: -0.5 * jnp.sum(x[:30] ** 2) + 0.2 * jnp.sum(x[30:] ** 2))
    gradients = Gradients(saddle, gm.oracles.Exact(), 60)
    assert matrix_free.extreme_curvatures(gradients, jnp.ones(60), jnp.ones(60), KEY, 30, 1) == (
        pytest.approx(1.0, rel=1e-3),
        None,
    )


def test_the_direction_with_the_most_noise():
    """σ²I + aaᵀ has the largest eigenvalue σ² + |a|², of which the diagonal shows little."""
    d = 200
    a = np.full(d, 0.5)  # |a|² = 50
    gradients = gradients_of(gm.targets.Quadratic(np.ones(d)), Skewed(a, 0.3))
    top, alone = matrix_free.largest_noise(gradients, jnp.zeros((1, d)), jnp.ones(d), KEY, 8, 64)
    assert top == pytest.approx(50.09, rel=4 * np.sqrt(2 / 256))
    assert alone == pytest.approx(0.34, rel=0.4)


def test_the_temperature_is_that_of_the_states():
    precision = np.geomspace(0.1, 10.0, 400)
    gradients = gradients_of(gm.targets.Quadratic(precision), Gaussian(0.3))
    draws = np.random.default_rng(0).standard_normal((20, 400)) / np.sqrt(precision)
    for factor in (1.0, 1.5):
        rows = jnp.asarray(draws * np.sqrt(factor), jnp.float32)
        found, error = matrix_free.temperatures(gradients, rows, jnp.ones(400), KEY, 4, (100, 300))
        assert np.max(np.abs(found - factor) / error) < 4
        assert np.max(np.abs(found - 1.25) / error) > 4  # neither is taken for the other


def test_friction_and_step_follow_curvature_and_noise():
    quiet: dict[str, Any] = dict(
        curvature=np.ones(50), noise=np.zeros(50), largest=4.0, smallest=0.04, excess=0.0, cost=0
    )
    free = numbers_for(Shape(Diagonal(np.ones(50)), **quiet), 10**6, 0.7, 20.0)
    assert (free.eta, free.gamma) == (pytest.approx(0.7), pytest.approx(0.2))
    short = numbers_for(Shape(Diagonal(np.ones(50)), **quiet), 100, 0.7, 20.0)
    assert short.gamma == pytest.approx(20 / 70)
    noisy = numbers_for(Shape(Diagonal(np.ones(50)), **{**quiet, "noise": np.full(50, 2.0)}), 10**6, 0.7, 20.0)
    assert noisy.gamma > 0.7 * 2.0 / 2  # a kick brings η²Σ, and O draws less than 2ηγ
    assert noisy.free == free.free
    heated = numbers_for(Shape(Diagonal(np.ones(50)), **{**quiet, "excess": 50.0}), 10**6, 0.7, 20.0)
    assert heated.eta < 0.2


BOTH = with_squares({"x": gm.observables.linear([1.0]), "x²": gm.observables.square([1.0])}, lambda x: x, np.zeros(1))
LINEAR = {name: BOTH[name] for name in ("x", "x, squared")}


def pilot_plan(observables, eta, steps):
    """SGLD on a standard normal."""
    chains = 16
    return gm.Plan(
        target=gm.targets.Quadratic([1.0]),
        dynamics=gm.dynamics.overdamped(1),
        observables=observables,
        step_size=eta,
        num_steps=steps - steps // 2,
        burn_in=steps // 2,
        num_chains=chains,
        start=np.random.default_rng(0).standard_normal((chains, 1)),
    )


def test_the_step_size_is_halved_until_averages_agree():
    """Euler's variance on a standard normal is 1/(1 - η/2): 4 times too large at η = 1.5, 7 % at 0.13."""
    make = lambda eta, steps: pilot_plan(BOTH, eta, steps)
    check = check_step(make, 1.5, 400, 10**6)
    assert check is not None
    assert check.agrees
    assert 1 <= check.halvings <= 5
    assert check.step_size == 1.5 / 2**check.halvings
    diverging = check_step(make, 5.0, 400, 10**6)  # |1 - η| > 1 until η = 1.25
    assert diverging is not None
    assert diverging.halvings >= 2
    assert check_step(make, 1e3, 400, 10**5) is None


def test_a_step_that_makes_no_difference_stays_unless_it_is_hot():
    make = lambda eta, steps: pilot_plan(LINEAR, eta, steps)
    cold = check_step(make, 0.4, 400, 10**5)
    assert cold is not None
    assert (cold.agrees, cold.halvings) == (True, 0)
    hot = check_step(make, 0.4, 400, 10**5, hot=lambda theta: True)
    assert hot is not None
    assert hot.agrees is None


def test_a_rotated_gaussian_gets_the_plan_that_theory_gives():
    d, condition, budget = 40, 100.0, 60_000
    K, basis, _ = rotated(d, condition)
    h = {"slow": gm.observables.linear(basis[:, 0]), "slow²": gm.observables.square(basis[:, 0])}
    plan, account = large_plan(gm.Model(gm.targets.Quadratic(K)), h, None, budget, 8)
    assert account.gradients <= budget / 10
    assert account.gradients + plan.gradients <= budget
    assert account.agrees
    assert account.notes == ()
    Et = plan.dynamics.Q[d:, :d]
    spectrum = np.linalg.eigvalsh(Et @ K @ Et.T)
    assert account.condition == pytest.approx(spectrum[-1] / spectrum[0], rel=0.05)
    assert account.step_size == pytest.approx(0.7 * 2 / np.sqrt(spectrum[-1]), rel=0.02)
    assert account.friction == pytest.approx(np.sqrt(spectrum[0]), rel=0.05)
    run = gm.run(plan, "scan", progress=False)
    z = {name: (run.mean[name] - value) / run.std_error[name] for name, value in (("slow", 0.0), ("slow²", condition))}
    assert max(map(abs, z.values())) < 4
    gain = condition / run.std_error["slow"] ** 2 / run.gradient_evaluations / (0.5 / condition)
    assert gain > 0.5 * np.sqrt(condition)  # against SGLD at η = 1/λ_max, with 8 chains


@pytest.mark.slow
def test_a_diagonal_gaussian_with_noise_keeps_its_variances():
    """The mean of precision · θ² over 600 coordinates is 1 within 4 standard errors over chains, and 1 % of what it should be."""
    d = 600
    precision = np.geomspace(0.01, 10.0, d)
    h = {"all": gm.observables.function(lambda x: jnp.mean(jnp.asarray(precision, x.dtype) * x**2))}
    plan, account = large_plan(gm.Model(gm.targets.Quadratic(precision)), h, Gaussian(0.5), 30_000, 8)
    assert account.gradients <= 3000
    assert 0.9 < account.noise < 1.2  # C is 1/(P + Σ), and P is small in the first coordinates
    assert any("friction" in note for note in account.notes)
    run = gm.run(plan, "scan", progress=False)
    assert abs(run.mean["all"] - 1) < 4 * run.std_error["all"] + 0.01


def network(num=60):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num, 3)).astype(np.float32)
    y = np.sin(x.sum(axis=1))
    predict = lambda p, x: jnp.tanh(x @ p["in"] + p["bias"]) @ p["out"]
    target = gm.targets.FiniteSum(
        lambda p, row: -0.5 * (predict(p, row[0]) - row[1]) ** 2 / 0.3**2,
        lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)),
        (x, y),
    )
    template = {"in": np.zeros((3, 6)), "bias": np.zeros(6), "out": np.zeros(6)}
    return target, template, {"f": gm.observables.function(lambda p: predict(p, jnp.ones(3)))}


@pytest.mark.slow
def test_a_network_with_batches_and_a_control_variate():
    """Parameters of any shape from a saddle as the start; the anchor is where the descent ends; both oracles agree."""
    target, template, h = network()
    means = {}
    for oracle in (None, gm.oracles.ControlVariate(30)):
        plan, account = large_plan(gm.Model(target, template), h, oracle, 40_000, 8, seed=1)
        assert account.gradients <= 4000
        assert plan.target is target
        run = gm.run(plan, "scan", progress=False)
        means[plan.oracle.name] = run.mean["f"], run.std_error["f"]
    (a, ea), (b, eb) = means.values()
    assert abs(a - b) < 4 * np.hypot(ea, eb)


def test_what_is_refused():
    model = gm.Model(gm.targets.Quadratic(np.ones(3)))
    h = {"x": gm.observables.linear(np.eye(3)[0])}
    with pytest.raises(gm.InvalidInput, match="at least 4000"):
        large_plan(model, h, None, 1000)
    target, template, f = network()
    with pytest.raises(gm.InvalidInput, match="leave `refresh` out"):
        large_plan(gm.Model(target, template), f, gm.oracles.ControlVariate(8, refresh=10), 10_000)
    broken = gm.targets.LogDensity(lambda x: jnp.sum(jnp.sqrt(x)))
    with pytest.raises(gm.InvalidInput, match="not finite"):
        large_plan(gm.Model(broken, np.zeros(3), -np.ones(3)), {"x": lambda x: x[0]}, None, 5000)


def test_the_error_of_a_comparison_counts(monkeypatch):
    """With no regard to errors every step size would be refused."""
    monkeypatch.setattr(step_check, "ERRORS", 0.0)
    monkeypatch.setattr(step_check, "DEVIATIONS", 0.0)
    make = lambda eta, steps: pilot_plan(LINEAR, eta, steps)
    check = check_step(make, 0.4, 400, 10**5)
    assert check is not None
    assert check.agrees is None
