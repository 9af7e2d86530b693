"""Input that would give a wrong number in silence, a raw error or a hang: each is refused with what came and what to do."""

import datetime
import re

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm

X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
MASKED = np.ma.masked_array(X, mask=[[0, 1], [0, 0], [0, 0]])
DATES = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], dtype="datetime64[D]")


def plan(**changes):
    pieces = {
        "target": gm.targets.Quadratic([1.0, 2.0]),
        "dynamics": gm.dynamics.overdamped(2),
        "observables": {"x": gm.observables.linear([1.0, 0.0])},
        "step_size": 0.1,
        "num_steps": 10,
        "num_chains": 4,
    }
    return gm.Plan(**{**pieces, **changes})


SILENT = {
    "masked X": (lambda: gm.targets.LogisticRegression(MASKED, Y), "`X` has 1 masked entries"),
    "masked y": (lambda: gm.targets.LinearRegression(X, np.ma.masked_equal([1.0, 2, 3], 2)), "`y` has 1 masked"),
    "masked precision": (lambda: gm.targets.Quadratic(np.ma.masked_equal([1.0, 9.0], 9)), "`precision` has 1 masked"),
    "masked start": (lambda: plan(start=np.ma.masked_equal([1.0, 9.0], 9)), "`start` has 1 masked"),
    "masked data": (
        lambda: gm.targets.FiniteSum(lambda m, x: -(x[0] ** 2), lambda m: -(m**2), {"x": MASKED}),
        r"`data\['x'\]` has 1 masked",
    ),
    "complex X": (lambda: gm.targets.LogisticRegression(X + 1j, Y), "`X` must be real"),
    "complex list": (lambda: gm.targets.Quadratic([1.0 + 2j, 1.0]), "`precision` must be real"),
    "complex data": (lambda: gm.targets.FiniteSum(lambda m, x: -(m**2), lambda m: -(m**2), X + 0j), "must be real"),
    "dates as X": (lambda: gm.targets.LogisticRegression(DATES[:, None], Y), "`X` holds dates or times"),
    "time spans": (lambda: gm.targets.LinearRegression((DATES - DATES[0])[:, None], Y), "`X` holds dates or times"),
    "Python dates": (lambda: gm.targets.LinearRegression([[datetime.date(2024, 1, 1)]], [1]), "`X` must be numeric"),
    "a float dimension": (lambda: gm.dynamics.overdamped(np.float64(2.5)), "`dim` must be a whole number"),
}
RAW = {
    "text as tau": (lambda: gm.oracles.Gaussian("abc"), "`tau` must be numeric"),
    "text as rate": (lambda: gm.dynamics.rotations(2, "a"), "`rate` must be numeric"),
    "text as center": (
        lambda: (
            plan(
                target=gm.targets.LinearRegression(X, Y), oracle=gm.oracles.ControlVariate(1, center="abc")
            ).prepared_oracle
        ),
        "`center` must be numeric",
    ),
    "chains beyond memory": (lambda: plan(num_chains=10**13), r"10,000,000,000,000 chains .* GiB"),
    "parameters beyond memory": (
        lambda: plan(
            target=gm.targets.CosinePerturbed(10**12, 1.0),
            dynamics=gm.dynamics.overdamped(10**12),
            observables={"x": lambda t: t[0]},
        ),
        "GiB of memory are free",
    ),
}
SCHEDULES = {
    "negative": (lambda k: -0.1, "at step 0 it returns -0.1"),
    "zero later": (lambda k: jnp.where(k < 5, 0.1, 0.0), "at step 5 it returns 0"),
    "NaN": (lambda k: jnp.nan * k, "it returns nan"),
    "a vector": (lambda k: jnp.full(3, 0.1), r"it returns shape \(3,\)"),
    "a Python branch": (lambda k: 0.1 if k < 5 else 0.05, "`jnp.where` in place of `if`"),
    "a function that raises": (lambda k: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", [*SILENT, *RAW])
def test_what_cannot_be_used_is_refused_with_a_reason(case):
    wrong, message = {**SILENT, **RAW}[case]
    with pytest.raises(gm.InvalidInput) as raised:
        wrong()
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)


@pytest.mark.parametrize("case", SCHEDULES)
def test_wrong_schedules_are_found_before_they_run(case):
    schedule, message = SCHEDULES[case]
    with pytest.raises(gm.InvalidInput, match=message):
        plan(step_size=schedule)


def test_what_looks_odd_but_is_right_is_taken():
    assert gm.dynamics.overdamped(np.float64(2.0)).size == 2
    assert gm.dynamics.overdamped(np.int64(3)).size == 3
    assert gm.targets.Quadratic(np.ma.masked_array([1.0, 2.0])).dim == 2  # nothing is masked
    assert plan(step_size=lambda k: 0.1 / (1 + 0.01 * k)).scheduled
    assert gm.targets.LinearRegression(X, [True, False, True]).num_data == 3
