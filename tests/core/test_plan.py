"""Plans: the number of steps to the last integer, and every wrong argument met with a useful sentence."""

import re
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gyromc as gm
from gyromc.plan import paper_steps
from support.values import skew, spd


@pytest.mark.parametrize("base", [0.1, 0.05, 0.025, 0.01])
def test_every_step_size_of_the_paper_gives_the_mathematical_number_of_steps(base):
    exact = Fraction(str(base))
    for k in range(12):
        assert paper_steps(base * 2.0**-k) == int(1 / (exact / 2**k) ** 2)


@given(st.integers(1, 10**5), st.integers(1, 100))
@settings(deadline=None, derandomize=True)
def test_one_over_an_integer_and_products_with_rounding(q, m):
    """(qm)² ≤ 10¹⁴: the three roundings in η move η⁻² by less than 0.04, so the integer is still recognisable."""
    assert paper_steps(1 / q) == q * q
    assert paper_steps((1 / q) * (1 / m)) == (q * m) ** 2


@pytest.mark.parametrize(("eta", "steps"), [(0.1 * 0.2, 2500), (0.3, 11), (0.7, 2), (0.03, 1111), (1.0, 1)])
def test_awkward_step_sizes(eta, steps):
    assert paper_steps(eta) == steps


def test_a_float32_step_size_means_its_decimal_value():
    assert paper_steps(np.float32(0.1)) == 100
    assert paper_steps(jnp.float32(0.0025)) == 160_000


def test_the_number_of_steps_follows_the_step_size_only_when_left_open(plan):
    assert plan.num_steps == 100
    assert plan.replace(step_size=0.05).num_steps == 400
    assert plan.replace(num_steps=7).replace(step_size=0.05).num_steps == 7


X, Y = np.eye(3), np.array([0.0, 1.0, 1.0])
OK = {"x": gm.observables.linear([1.0, 0.0])}


def build(**changes):
    pieces = {
        "target": gm.targets.Quadratic([1.0, 2.0]),
        "dynamics": gm.dynamics.overdamped(2),
        "observables": OK,
        "step_size": 0.1,
    }
    return gm.Plan(**{**pieces, **changes})


WRONG = {
    "D not square": (
        lambda: gm.dynamics.general(np.ones((2, 3)), 0.0),
        r"`D` must be a square matrix: got shape \(2, 3\)",
    ),
    "D not symmetric": (
        lambda: gm.dynamics.general([[1.0, 0.5], [0.0, 1.0]], 0.0),
        r"max \|D - Dᵀ\| = 0.5 at \(0, 1\).*Pass",
    ),
    "D not positive": (lambda: gm.dynamics.general([[1.0, 2.0], [2.0, 1.0]], 0.0), "smallest eigenvalue is -1"),
    "D singular": (lambda: gm.dynamics.general([1.0, 0.0], 0.0), "smallest eigenvalue is 0"),
    "Q not skew": (
        lambda: gm.dynamics.general([1.0, 1.0], [[0.0, 1.0], [1.0, 0.0]]),
        r"`Q` must be skew.*\(Q - Q.T\) / 2",
    ),
    "Q of another size": (lambda: gm.dynamics.general([1.0, 1.0], np.zeros((3, 3))), "D is 2 × 2, Q is 3 × 3"),
    "J not skew": (lambda: gm.dynamics.nonreversible(np.eye(3)), "`J` must be skew-symmetric"),
    "NaN in J": (lambda: gm.dynamics.nonreversible([[0.0, np.nan], [1.0, 0.0]]), r"1 entries are NaN.*\(0, 1\)"),
    "alpha negative": (lambda: gm.dynamics.hfhr(2, -1.0, 1.0), "`alpha` must be positive and finite: got -1"),
    "C not positive": (lambda: gm.dynamics.gaul([1.0, -1.0], 1.0, 1.0), "`C` must be positive definite.*-1"),
    "dim zero": (lambda: gm.dynamics.overdamped(0), "`dim` must be a whole number from 1 up: got 0"),
    "dim a word": (lambda: gm.dynamics.overdamped("three"), "`dim` must be a positive integer"),
    "precision singular": (lambda: gm.targets.Quadratic([[1.0, 1.0], [1.0, 1.0]]), "smallest eigenvalue"),
    "precision not symmetric": (lambda: gm.targets.Quadratic([[1.0, 1.0], [0.0, 1.0]]), r"max \|P - Pᵀ\| = 1"),
    "mean of another size": (lambda: gm.targets.Quadratic(np.eye(2), [1.0]), r"`mean` must have 2 entries"),
    "NaN in X": (lambda: gm.targets.LinearRegression([[1.0], [np.nan]], [0, 1]), r"`X` must be finite.*\(1, 0\)"),
    "NaN in y": (lambda: gm.targets.LinearRegression([[1.0], [2.0]], [0, np.inf]), r"`y` must be finite.*\(1,\)"),
    "y of another length": (lambda: gm.targets.LogisticRegression(X, [0, 1]), "X has 3 rows, y has shape"),
    "y not 0/1": (lambda: gm.targets.LogisticRegression(X, [1, 2, 2]), r"row 1 has 2 \(2 rows differ; values 2\)"),
    "text in X": (lambda: gm.targets.LogisticRegression([["a"]], [1]), "`X` must be numeric"),
    "prior scale zero": (lambda: gm.targets.LinearRegression(X, Y, prior_scale=0), "`prior_scale` must be positive"),
    "data of two lengths": (
        lambda: gm.targets.FiniteSum(lambda p, d: 0.0, lambda p: 0.0, {"x": X, "y": Y[:2]}),
        r"same, positive length.*'x'.*3.*'y'.*2",
    ),
    "NaN in data": (
        lambda: gm.targets.FiniteSum(lambda p, d: 0.0, lambda p: 0.0, [np.nan]),
        "must be finite|first axis",
    ),
    "likelihood no function": (
        lambda: gm.targets.FiniteSum(3, lambda p: 0.0, X),
        "`log_likelihood` must be a function: got int",
    ),
    "batch size zero": (lambda: gm.oracles.Minibatch(0), "`size` must be a whole number from 1 to 1000000000: got 0"),
    "batch size huge": (lambda: gm.oracles.Minibatch(10**9 + 1), "got 1000000001"),
    "batch size half": (lambda: gm.oracles.Minibatch(2.5), "got 2.5"),
    "tau negative": (lambda: gm.oracles.Gaussian(-1.0), "`tau` must be a number ≥ 0: got -1"),
    "mini-batch of no sum": (
        lambda: build(oracle=gm.oracles.Minibatch(2)),
        "needs a target that is a sum over data.*Quadratic",
    ),
    "step size zero": (lambda: build(step_size=0.0), "`step_size` must be positive and finite: got 0"),
    "step size negative": (lambda: build(step_size=-0.1), "got -0.1"),
    "step size NaN": (lambda: build(step_size=float("nan")), "got nan"),
    "step size a word": (lambda: build(step_size="small"), "`step_size` must be a positive number or a function"),
    "step size too large": (lambda: build(step_size=2.0), "leaves no steps.*Pass `num_steps`"),
    "schedule without steps": (lambda: build(step_size=lambda k: 0.1), "schedule, so pass `num_steps`"),
    "no chains": (lambda: build(num_chains=0), "`num_chains` must be a whole number from 1 up: got 0"),
    "no steps": (lambda: build(num_steps=0), "`num_steps` must be a whole number from 1 up: got 0"),
    "burn-in negative": (lambda: build(burn_in=-1), "`burn_in`"),
    "seed negative": (lambda: build(seed=-1), "`seed`"),
    "unknown scheme": (lambda: build(scheme="verlet"), "`scheme` must be one of euler"),
    "unknown weighting": (lambda: build(weighting="none"), "`weighting` must be one of uniform, step_size"),
    "unknown dtype": (lambda: build(dtype="float16"), "`dtype` must be one of float32, float64: got 'float16'"),
    "no observable": (lambda: build(observables={}), "At least one observable"),
    "observables no mapping": (lambda: build(observables=OK["x"]), "by name"),
    "observable a number": (lambda: build(observables={"x": 3.0}), "Observable 'x' must be"),
    "observable of another size": (
        lambda: build(observables={"x": gm.observables.linear([1.0])}),
        "direction of 1 numbers.*\\(2,\\)",
    ),
    "observable a vector": (lambda: build(observables={"x": lambda t: t}), r"single number: it returned shape \(2,\)"),
    "observable broken": (lambda: build(observables={"x": lambda t: t["w"]}), "Observable 'x' cannot be evaluated"),
    "brier of no class": (lambda: gm.observables.brier([1.0], 2), "`y` must be a whole number from 0 to 1"),
    "target a class": (lambda: build(target=gm.targets.Quadratic), "`target` must be a value.*got Quadratic"),
    "oracle a class": (lambda: build(oracle=gm.oracles.Exact), "`oracle` must be a value"),
    "target a vector": (
        lambda: build(target=gm.targets.LogDensity(lambda t: -(t**2))),
        r"`fn` must return a single number.*\(2,\)",
    ),
    "dynamics too small": (lambda: build(dynamics=gm.dynamics.overdamped(3)), "made for 3 parameters.*has 2"),
    "hfhr of another size": (lambda: build(dynamics=gm.dynamics.hfhr(1, 1.0, 1.0)), "made for 1 parameters.*has 2"),
    "general of another size": (
        lambda: build(dynamics=gm.dynamics.general(spd(3, 1), skew(3, 1))),
        "2 × 2.*4 × 4.*got 3 × 3",
    ),
    "start too long": (lambda: build(start=[1.0, 2.0, 3.0]), r"`start` must have 2 numbers.*\(3,\)"),
    "start NaN": (lambda: build(start=[np.nan, 0.0]), "`start` must be finite"),
    "start with momentum": (lambda: build(start=[0.0, 0.0, 1.0, 1.0]), r"`start` must have 2 numbers"),
    "start a function": (
        lambda: gm.Plan(
            target=gm.targets.LogDensity(lambda p: 0.0),
            dynamics=gm.dynamics.overdamped(1),
            observables={"x": lambda p: p["w"]},
            step_size=0.1,
            start={"w": np.zeros(1), "act": np.tanh},
        ),
        r"start\['act'\] is ufunc.*eqx.partition",
    ),
    "start of integers": (
        lambda: gm.Plan(
            target=gm.targets.LogDensity(lambda p: 0.0),
            dynamics=gm.dynamics.overdamped(1),
            observables={"x": lambda p: p["w"]},
            step_size=0.1,
            start={"w": np.zeros(1, int)},
        ),
        "real floating-point",
    ),
    "likelihood a vector": (
        lambda: build(target=gm.targets.FiniteSum(lambda p, x: x * p, lambda p: -p @ p, X[:, :2])),
        "`log_likelihood` must return one number per datum",
    ),
    "likelihood of another pytree": (
        lambda: build(target=gm.targets.FiniteSum(lambda p, x: p["w"] @ x, lambda p: 0.0, X)),
        "The target's gradient cannot be evaluated",
    ),
    "a field that does not exist": (lambda: build().replace(stepsize=0.1), "no field stepsize"),
    "a plan that is none": (lambda: gm.run("plan"), "`run` takes a `Plan`: got str"),
    "unknown engine": (lambda: gm.run(build(), engine="warp"), "`engine` must be one of .*scan: got 'warp'"),
    "unknown divergence rule": (
        lambda: gm.run(build(), on_divergence="ignore"),
        "must be one of raise, report: got 'ignore'",
    ),
    "keep every zeroth": (lambda: gm.run(build(), thin=0), "`thin`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_answered_with_what_came_and_what_to_do(case):
    wrong, message = WRONG[case]
    with pytest.raises(gm.InvalidInput) as raised:
        wrong()
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)
