"""expect: right answers with errors that hold, limits, interruption, and warnings where something is not known."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.fields import SETTINGS
from gyromc.posterior import by_site

GAUSSIAN = gm.targets.Quadratic([[2.0, 0.6], [0.6, 1.0]], [1.0, -2.0])
COVARIANCE = np.linalg.inv([[2.0, 0.6], [0.6, 1.0]])


def quietly(*args, **options):
    """expect without its warnings as Python warnings: they are in the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)
        return gm.expect(*args, progress=False, **options)


def skew(t):
    """x = log G with G ~ Gamma(3), y ~ N(x, 0.5²)."""
    return 3 * t[0] - jnp.exp(t[0]) - 2 * (t[1] - t[0]) ** 2


SKEW = {"G": lambda t: jnp.exp(t[0]), "xy": lambda t: t[0] * t[1], "positive": lambda t: jnp.where(t[1] > 1, 1.0, 0.0)}


def skew_truth():
    x = np.log(np.random.default_rng(0).gamma(3.0, size=4_000_000))
    y = x + 0.5 * np.random.default_rng(1).normal(size=len(x))
    return {"G": 3.0, "xy": np.mean(x * y), "positive": np.mean(y > 1)}


def test_a_gaussian_has_exact_means_and_quantiles():
    found = gm.expect(GAUSSIAN, progress=False)
    assert list(found) == ["theta[0]", "theta[1]"]
    assert not found.warnings
    for i, row in enumerate(found.values()):
        assert row.mean == pytest.approx([1.0, -2.0][i], abs=1e-4)
        assert row.sd == pytest.approx(np.sqrt(COVARIANCE[i, i]), rel=0.05)
        assert found.mean[row.name] == row.mean
        low, high = found.credible(row.name)
        assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(COVARIANCE[i, i]), rel=0.08)
    assert found.draws.shape[0] == 32
    assert found.weights.sum() == pytest.approx(1)
    assert found.resampled(100).shape == (100, 2)


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_errors_hold_over_seeds_on_a_skew_law(seeds):
    """Three observables: z² has mean 31/29; its mean over 15 or more dependent values stays below 2.5."""
    truth, target = skew_truth(), gm.targets.LogDensity(skew)
    noise = {"G": 0.0, "xy": 1e-3, "positive": 2.5e-4}
    squares = []
    for seed in range(seeds):
        found = gm.expect(target, SKEW, error=0.02, start=np.zeros(2), seed=seed, progress=False)
        squares += [
            (row.mean - truth[name]) ** 2 / (row.std_error**2 + noise[name] ** 2)
            for name, row in found.items()
            if row.std_error > 1e-6
        ]
        assert found["G"].mean == pytest.approx(3, abs=1e-4)
        assert max(found.relative_error.values()) <= 0.02
    assert 0.3 < np.mean(squares) < 2.5
    assert np.max(squares) < 16


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    target = gm.targets.LogDensity(skew)
    run = lambda seed: gm.expect(target, SKEW, start=np.zeros(2), seed=seed, gradients=30_000, progress=False).mean[
        "xy"
    ]
    assert run(1) == run(1) != run(2)


def test_chains_go_on_from_those_of_nearly_the_same_posterior():
    """The mean and the variances of a shifted, wider Gaussian are exact; its warm-up takes a third of the rounds."""
    first = gm.expect(gm.targets.Quadratic([1.0, 4.0, 25.0]), error=0.02)
    other = gm.targets.Quadratic([0.8, 4.0, 20.0], mean=[0.5, 0.1, 0.0])
    asked = {"x": gm.observables.linear([1.0, 0.0, 0.0]), "z²": gm.observables.square([0.0, 0.0, 1.0])}
    found, cold = (gm.expect(other, asked, error=0.02, start=start) for start in (first.ended, None))
    # 12 and 40 rounds of 32 chains and 25 steps; a descent takes a few gradients more
    assert found.account.warm_up_gradients < 13 * 800
    assert cold.account.warm_up_gradients >= 40 * 800
    for name, truth in (("x", 0.5), ("z²", 0.05)):
        assert abs(found[name].mean - truth) < 4 * found[name].std_error + 1e-12
    assert not np.allclose(found.draws[:, :50], cold.draws[:, :50])
    with pytest.raises(InvalidInput, match="of a posterior of another dimension"):
        gm.expect(gm.targets.Quadratic([1.0]), start=first.ended)


def test_parameters_of_any_shape_and_functions_that_return_arrays():
    target = gm.targets.LogDensity(lambda p: -0.5 * p["a"] ** 2 - 0.5 * jnp.sum((p["b"] - 1) ** 2))
    start = {"a": np.zeros(()), "b": np.zeros((2, 2))}
    every = gm.expect(target, start=start, progress=False)
    assert list(every) == ["a", "b[0, 0]", "b[0, 1]", "b[1, 0]", "b[1, 1]"]
    assert every["b[1, 0]"].mean == pytest.approx(1, abs=1e-3)
    assert every.parameters["b"].shape[-2:] == (2, 2)
    observables = {"sums": lambda p: p["b"].sum(axis=0), "a²": lambda p: p["a"] ** 2, "one": lambda p: 1.0 + 0 * p["a"]}
    found = gm.expect(target, observables, start=start, progress=False)
    assert list(found) == ["sums[0]", "sums[1]", "a²", "one"]
    assert found["a²"].mean == pytest.approx(1, abs=1e-3)
    assert found["one"].mean == 1
    assert found["one"].relative_error == 0


def test_a_plan_brings_its_target_its_start_and_its_observables():
    plan = gm.Plan(
        target=GAUSSIAN, dynamics=gm.dynamics.overdamped(2), observables={"sum": gm.observables.linear([1.0, 1.0])},
        step_size=0.1,
    )  # fmt: skip
    assert gm.expect(plan, progress=False)["sum"].mean == pytest.approx(-1, abs=1e-3)


def test_at_most_six_programs_contain_the_model(caplog):
    def density(t):
        return skew(t) - 0.5 * t[2] ** 2

    with caplog.at_level(logging.WARNING), jax.log_compiles():
        quietly(gm.targets.LogDensity(density), {"x": lambda t: t[0] * t[2]}, start=np.zeros(3), gradients=40_000)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert sum(any(name in text for name in ("_evaluate", "_round", "_values")) for text in compiled) <= 3
    assert len(compiled) <= 12


def test_limits_hold_from_the_first_call():
    target = gm.targets.LogDensity(skew)
    found = quietly(target, SKEW, error=1e-6, start=np.zeros(2), gradients=20_000)
    assert found.gradient_evaluations <= 20_000
    assert found.account.warm_up_gradients < 0.6 * 20_000
    assert "the gradients allowed are spent" in " ".join(found.warnings)
    began = time.perf_counter()
    found = quietly(target, SKEW, error=1e-6, start=np.zeros(2), seconds=1.5)
    assert time.perf_counter() - began < 5.5  # two programs may be compiling when the time ends
    assert "the time allowed is spent" in " ".join(found.warnings)


def test_ctrl_c_returns_what_there_is(sigint):
    sigint(signal.default_int_handler)
    target, pressed = gm.targets.LogDensity(skew), threading.Timer(2.5, os.kill, (os.getpid(), signal.SIGINT))
    gm.expect(
        target, SKEW, start=np.zeros(2), gradients=40_000, error=0.5, progress=False
    )  # compiled before the clock runs
    pressed.start()
    found = quietly(target, SKEW, error=1e-7, start=np.zeros(2), seconds=60)
    pressed.join()
    assert found.account.seconds < 20
    assert "it was interrupted" in " ".join(found.warnings)
    assert found["G"].mean == pytest.approx(3, abs=0.01)


PRESSED = """
import os, signal, sys
import jax.numpy as jnp
import gyromc as gm

signal.signal(signal.SIGINT, signal.default_int_handler)
presses, traced = [int(number) for number in sys.argv[1:]], 0


def density(x):
    global traced
    traced += 1
    if traced in presses:
        os.kill(os.getpid(), signal.SIGINT)
    return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.cos(x))


found = gm.expect(gm.targets.LogDensity(density), {"h": lambda x: x[0]}, start=jnp.zeros(3))
print(len(found.warnings), abs(found["h"].mean) < 0.1)
"""
"""Ctrl-C comes while JAX traces the density for the so-many-th time: before anything is compiled, or while it is."""


@pytest.mark.parametrize(
    ("presses", "status", "printed"),
    [
        ((1,), 0, "1 True\n"),
        ((2, 3), 130, ""),
        pytest.param((3,), 0, "1 True\n", marks=pytest.mark.slow),
        pytest.param((1, 2), 130, "", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_before_the_first_block_ends_in_no_traceback(presses, status, printed):
    """One press: a first estimate that says what it is. Two: the program ends at once."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRESSED, *map(str, presses)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, printed), done.stderr
    assert done.stderr == "gyromc: stopping; what is done will be estimated\n"


def far_modes(t):
    """Two normal laws twenty standard deviations apart: no chain goes from one to the other."""
    return jnp.logaddexp(-0.5 * jnp.sum((t - 10) ** 2), -0.5 * jnp.sum((t + 10) ** 2))


def test_modes_between_which_chains_do_not_move_are_warned_of():
    found = quietly(gm.targets.LogDensity(far_modes), start=np.zeros(2), gradients=60_000)
    assert "have not mixed" in found.warnings[0]
    assert found["theta[0]"].std_error > 0.5


# By default `core/test_learned_coordinates.py` asks for means on a funnel.
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_mild_funnel_is_right_or_warned_of(seed):
    """E e^{v/2}… of v ~ N(0, 1): E x² = E e^v = e^½."""
    density = lambda t: -0.5 * t[0] ** 2 - 0.5 * (t[1] ** 2 + t[2] ** 2) * jnp.exp(-t[0]) - t[0]
    found = quietly(gm.targets.LogDensity(density), {"x²": lambda t: t[1] ** 2}, start=np.zeros(3), seed=seed)
    row = found["x²"]
    assert found.warnings or abs(row.mean - np.exp(0.5)) < 4 * row.std_error


@pytest.mark.parametrize(
    ("density", "off"),
    [
        (lambda t: -0.5 * t[0] ** 2 + 0.0 * t[1], "theta[1]"),
        (lambda t: -0.5 * t[0] ** 2 + jax.nn.log_sigmoid(t[0] + t[1]), "theta[1]"),
    ],
    ids=["flat along one parameter", "separated classes without a prior"],
)
def test_a_posterior_that_cannot_be_normalised_is_named(density, off):
    """Where U does not change its virial is 1 in every chain, without an error that it could be compared with."""
    found = quietly(gm.targets.LogDensity(density), start=np.zeros(2), gradients=60_000)
    said = [sentence for sentence in found.warnings if "improper" in sentence]
    assert len(said) == 1
    assert f"along {off}:" in said[0]
    assert not any("would be needed" in sentence for sentence in found.warnings)


def test_chains_that_nothing_holds_are_refused():
    with pytest.raises(InvalidInput, match="the posterior is improper"):
        gm.expect(gm.targets.LogDensity(lambda t: 0.0 * t[0] + 0.0 * t[1]), start=np.zeros(2), gradients=200_000)


def test_more_than_a_thousand_parameters_have_errors():
    found = quietly(gm.targets.Quadratic(np.geomspace(1, 100, 1020)), gradients=20_000)
    errors = np.array(list(found.std_error.values()))
    assert np.isfinite(errors).all()
    z = np.array(list(found.mean.values())) / errors
    assert abs(np.mean(z**2) - 31 / 29 / SETTINGS.caution**2) < 0.2
    assert len(found.warnings) <= 3


def test_wrong_input_is_said():
    with pytest.raises(InvalidInput, match="pass `start`"):
        gm.expect(gm.targets.LogDensity(skew))
    with pytest.raises(InvalidInput, match="LogDensity"):
        gm.expect(skew)
    with pytest.raises(InvalidInput, match="must be finite there"):
        gm.expect(GAUSSIAN, {"log": lambda t: jnp.log(t[0] - 1)}, progress=False)
    with pytest.raises(InvalidInput, match="real numbers"):
        gm.expect(GAUSSIAN, {"complex": lambda t: t[0] + 1j}, progress=False)
    with pytest.raises(InvalidInput, match="same name"):
        gm.expect(GAUSSIAN, {"a[0]": lambda t: t[0], "a": lambda t: t[:1]}, progress=False)
    with pytest.raises(InvalidInput, match="direction of 3 numbers"):
        gm.expect(GAUSSIAN, {"x": gm.observables.linear([1.0, 2.0, 3.0])}, progress=False)


def test_names_are_grouped_by_site():
    names = [f"theta[{i}]" for i in range(100)] + ["mu"]
    assert by_site(names, [*names[:93], "mu"]) == ["theta: 93 of 100 elements", "mu"]
    assert by_site(names, names[:2]) == ["theta[0]", "theta[1]"]


class Steep(gm.targets.Target):
    """A normal law whose gradient is half as large again as it should be."""

    @property
    def dim(self):
        return 5

    def potential(self, params):
        return 0.5 * jnp.sum(params**2)

    def gradient(self, params):
        return 1.5 * params


def test_coordinates_that_are_wrong_are_named_where_observables_have_other_names():
    found = quietly(Steep(), {"h": lambda t: t[0]}, gradients=40_000)
    assert any("theta: 5 of 5 elements" in text for text in found.warnings)
