"""Richardson extrapolation with pairs of chains that share their noise."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.estimation.estimates import Bias

pytestmark = pytest.mark.filterwarnings("ignore:The discretisation bias of square exceeds:gyromc.GyromcWarning")


def cosine(scheme, eta, dynamics=None, **settings):
    return gm.Plan(
        target=gm.targets.CosinePerturbed(1, 0.8),
        dynamics=dynamics or gm.dynamics.overdamped(1),
        observables={"square": gm.observables.square([1.0])},
        scheme=scheme,
        step_size=eta,
        **{"num_steps": 600, "num_chains": 200, "burn_in": 50, **settings},
    )


@pytest.mark.parametrize(
    ("scheme", "eta"),
    [
        pytest.param("euler", 0.2, marks=pytest.mark.slow),
        pytest.param("balanced", 0.3, marks=pytest.mark.slow),
        ("leimkuhler_matthews", 0.6),
    ],
)
def test_the_extrapolated_bias_is_the_bias(scheme, eta):
    """Against E x² by quadrature: mean less bias within its own error, which is much smaller than the bias of Euler."""
    plan = cosine(scheme, eta)
    x = np.linspace(-10, 10, 20_001)
    law = np.exp(-(x**2 / 2 + 0.8 * np.cos(x)))
    truth = float(x**2 @ law / law.sum())
    row = gm.estimate(gm.run(plan, "scan"), bias="richardson")["square"]
    assert abs(row.corrected_mean - truth) < 4 * row.corrected_error
    assert row.bias_error < max(row.std_error, 0.3 * abs(row.bias))  # the noise that pairs share cancels
    assert "Richardson" in row.bias_method


def test_a_gaussian_has_a_known_bias():
    """Euler on N(0, 1): the variance is 1/(1 - η/2)."""
    plan = cosine("euler", 0.2).replace(target=gm.targets.Quadratic([1.0]))
    row = gm.estimate(gm.run(plan, "scan"), bias="richardson")["square"]
    assert abs(row.bias - (1 / 0.9 - 1)) < 4 * row.bias_error
    assert row.bias_error < 0.3 * row.bias


def test_every_chain_with_a_start_of_its_own():
    plan = cosine("euler", 0.2, num_chains=20, start=np.linspace(-1, 1, 20)[:, None])
    assert gm.estimate(gm.run(plan, "scan"), bias="richardson")["square"].bias is not None


def test_it_says_where_it_cannot():
    with pytest.raises(gm.InvalidInput, match="`bias` must be one of"):
        gm.estimate(gm.run(cosine("euler", 0.2), "scan"), bias="richardsson")


@pytest.mark.parametrize(
    ("scheme", "oracle", "less"),
    [
        ("euler", gm.oracles.Exact(), "halves the bias"),
        ("leimkuhler_matthews", gm.oracles.Exact(), "leaves a quarter of the bias"),
        ("leimkuhler_matthews", gm.oracles.Gaussian(0.5), "halves the bias"),
    ],
    ids=["first order", "second order", "second order, noisy gradients"],
)
def test_the_warning_says_what_half_the_step_size_brings(scheme, oracle, less):
    run = gm.run(cosine(scheme, 0.2, oracle=oracle, num_steps=64, num_chains=32), "scan")
    with pytest.warns(gm.GyromcWarning, match=rf"halve the step size \(now 0.2\), which {less};"):
        gm.estimate(run, bias={"square": Bias(3.0, "given")})
