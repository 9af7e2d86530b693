"""The vectors' log, exp, sin, cos, tanh, logistic and softplus keep the error bounds that their module states."""

import numpy as np
import pytest
from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.vectors import load, store

ULP = {"float32": 2.0**-23, "float64": 2.0**-52}


def _apply(function, x: np.ndarray) -> np.ndarray:
    @njit
    def loop(x, out):
        for k in range(x.size // 16):
            store(out, 16 * k, function(load(x, 16 * k)))

    out = np.empty_like(x)
    loop(x, out)
    return out


def _points(low, high, dtype, count=160_000) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, count).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_and_exp_to_two_units_in_the_last_place(dtype):
    wide = 87.0 if dtype == "float32" else 707.0
    x = _points(-wide, wide, dtype)
    exact = np.exp(x.astype(np.longdouble))
    assert np.max(np.abs(_apply(functions.exp, x) / exact - 1)) < 2 * ULP[dtype]
    y = np.concatenate([np.exp(x.astype(float)).astype(dtype), _points(0.5, 2.0, dtype)])
    exact = np.log(y.astype(np.longdouble))
    assert np.max(np.abs(_apply(functions.log, y) - exact) / np.maximum(np.abs(exact), 1e-30)) < 2 * ULP[dtype]
    assert _apply(functions.log, np.ones(16, dtype))[0] == 0.0


BOUNDED = {
    "sin": (np.sin, 1e4, {"float32": 2e-7, "float64": 2e-15}),
    "cos": (np.cos, 10.0, {"float32": 5e-7, "float64": 2e-15}),
    "tanh": (np.tanh, 30.0, {"float32": 2.5e-7, "float64": 5e-16}),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), 60.0, {"float32": 2e-7, "float64": 4e-16}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_functions_to_an_absolute_error(name, dtype):
    exact, reach, bounds = BOUNDED[name]
    x = _points(-reach, reach, dtype)
    assert np.max(np.abs(_apply(getattr(functions, name), x) - exact(x.astype(np.longdouble)))) < bounds[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softplus(dtype):
    x = _points(-60, 60, dtype)
    exact = np.logaddexp(0, x.astype(np.longdouble))
    assert np.max(np.abs(_apply(functions.softplus, x) - exact) / (1 + exact)) < 3 * ULP[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_arguments_stay_harmless(dtype):
    x = np.array([0.0, -0.0, 1e30, -1e30, 3e7, -3e7, 500.0, -500.0] * 2, dtype)
    assert np.all(np.abs(_apply(functions.sin, x)) <= 1 + 1e-6)
    assert np.array_equal(_apply(functions.tanh, x)[2:4], [1, -1])
    assert np.all(np.isfinite(_apply(functions.logistic, x)))
