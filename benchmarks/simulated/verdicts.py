"""What `gyromc.fit` says of models that are right and of models that are known to be wrong.

`right`: data simulated from a fitted model, with columns that the model leaves out (numbers, groups of ten and of three); how
many of them are called wrong, and by which check. `wrong`: data with one known fault, fitted by a model without it; how many
are named with the right cause first.
"""

import dataclasses
import datetime
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gyromc.errors import GyromcWarning
from gyromc.regression.draws import Predictive
from gyromc.regression.fit import Fit, fit
from gyromc.tables.checks import adequacy
from gyromc.tables.preparation import Prepared, prepare
from gyromc.tables.request import Request

__all__ = ["RIGHT", "WRONG", "Design", "Fault", "right", "wrong"]

LEVELS = 10


@dataclasses.dataclass(frozen=True)
class Design:
    """A right model: family, formula, rows, and whether levels of g have deviations."""

    family: str
    formula: str
    rows: int
    deviations: float = 0.0

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.family}: {self.formula}, {self.rows}"


FAMILIES = (
    "linear", "student-t", "gamma", "lognormal", "beta", "poisson", "negative-binomial", "zero-inflated-poisson",
    "hurdle-poisson", "conway-maxwell-poisson", "weibull", "exponential", "binomial", "beta-binomial",
    "logistic", "probit", "cloglog", "ordinal", "softmax", "zero-inflated-negative-binomial",
)  # fmt: skip
GROUPED = ("linear", "student-t", "gamma", "poisson", "negative-binomial", "binomial", "logistic", "ordinal")
RIGHT = {
    design.name: design
    for design in [
        *(Design(family, "y ~ x + w + C(c)", 80) for family in FAMILIES),
        *(Design(family, "y ~ x * z", 160) for family in FAMILIES[: len(FAMILIES) - 2 : 2]),
        *(Design(family, "y ~ x + z + (1 | g)", 120, 0.7) for family in GROUPED),
        Design("linear", "y ~ bs(x, 4) + z", 60),
        Design("poisson", "y ~ bs(x, 4) + z", 60),
    ]
}


def columns(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Two normal columns, a skewed one, three categories, groups, trials, and what no model uses."""
    x, z, unused = rng.normal(size=(3, n))
    return {
        "x": x,
        "z": z,
        "w": rng.exponential(size=n),
        "c": rng.choice(["a", "b", "c"], n),
        "g": [f"g{k}" for k in rng.integers(0, LEVELS, n)],
        "h": [f"h{k}" for k in rng.integers(0, LEVELS, n)],
        "few": rng.choice(["low", "mid", "high"], n),
        "unused": unused,
        "m": rng.integers(5, 15, n),
    }


def responses(family: str, t: np.ndarray, m: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Responses of a family with the linear predictors t."""
    n, p, rate = len(t), 1 / (1 + np.exp(-t)), np.exp(0.7 + t)
    zero = rng.random(n) < 0.3
    positive = np.maximum(rng.poisson(rate), 1)
    return {
        "linear": lambda: 3 + t + rng.normal(size=n),
        "student-t": lambda: 3 + t + rng.standard_t(4, n),
        "gamma": lambda: rng.gamma(2.0, np.exp(t) / 2),
        "lognormal": lambda: np.exp(t + 0.7 * rng.normal(size=n)),
        "beta": lambda: np.clip(rng.beta(5 * p, 5 * (1 - p)), 1e-6, 1 - 1e-6),
        "poisson": lambda: rng.poisson(rate),
        "negative-binomial": lambda: rng.negative_binomial(2, 2 / (2 + rate)),
        "zero-inflated-poisson": lambda: np.where(zero, 0, rng.poisson(rate)),
        "zero-inflated-negative-binomial": lambda: np.where(zero, 0, rng.negative_binomial(2, 2 / (2 + 2 * rate))),
        "hurdle-poisson": lambda: np.where(zero, 0, positive),
        "conway-maxwell-poisson": lambda: rng.binomial(12, np.minimum(rate / 12, 0.9)),
        "weibull": lambda: np.exp(t) * rng.weibull(1.5, n),
        "exponential": lambda: np.exp(t) * rng.exponential(size=n),
        "binomial": lambda: rng.binomial(m, p),
        "beta-binomial": lambda: rng.binomial(m, rng.beta(4 * p, 4 * (1 - p))),
        "logistic": lambda: (rng.random(n) < p).astype(int),
        "probit": lambda: (rng.normal(size=n) < t).astype(int),
        "cloglog": lambda: (rng.random(n) < -np.expm1(-np.exp(t - 0.5))).astype(int),
        "ordinal": lambda: np.digitize(t + rng.logistic(size=n), [-1.0, 0.3, 1.5]),
        "softmax": lambda: np.digitize(t + rng.logistic(size=n), [-0.7, 0.7]),
    }[family]()


def options(family: str) -> dict[str, Any]:
    """What a family needs beside its rows."""
    return {"trials": "m"} if "binomial" in family and "negative" not in family else {}


def checked(formula: str, data: dict[str, Any], family: str, **more: Any) -> tuple[Prepared, Fit, dict[str, Any]]:
    """A quick fit, and the part of its findings on whether the model fits, by the checks of `gyromc.fit`."""
    request = Request(data="data", formula=formula, family=family, test_fraction=0.0, **options(family), **more)
    prepared = prepare(request, data)
    encoding, rows = prepared.encoding, prepared.rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)
        found = fit(
            rows.X,
            prepared.y,
            encoding.response.model,
            intercept=encoding.intercept,
            names=encoding.names,
            classes=encoding.response.classes or None,
            effort=0.1,
            num_draws=1024,
            **rows.beside(),
        )
    return prepared, found, adequacy(found, prepared, None, request)


def right(design: Design, count: int, seed: int = 0) -> dict[str, Any]:
    """Simulate from a fitted model and fit again: how many are called wrong, and the checks that say so."""
    rng = np.random.default_rng([seed, 11])
    data = columns(rng, design.rows)
    t = 0.5 * data["x"] - 0.3 * data["z"] + 0.2 * (data["w"] - 1)
    t = t + design.deviations * rng.normal(size=LEVELS)[[int(name[1:]) for name in data["g"]]]
    data["y"] = responses(design.family, t, data["m"], rng)
    prepared, found, _ = checked(design.formula, data, design.family)
    law = Predictive.of(found.posterior, prepared.rows.X, **prepared.rows.beside())
    drawn = law.replicate(rng)[rng.choice(law.num_draws, count, replace=False)]
    classes = prepared.encoding.response.classes
    causes = []
    for y in drawn:
        again = np.array(classes)[y.astype(int)] if classes else y
        if len(np.unique(again)) < (len(classes) or 2):
            continue
        checks = checked(design.formula, {**data, "y": again}, design.family)[2]["checks"]
        causes.append([check["name"] for check in checks if check["verdict"] == "misfit"])
    return {"simulations": len(causes), "wrong": sum(map(bool, causes)), "causes": [c for some in causes for c in some]}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A model with a known fault.

    - `make(rng, n)`: the data, with `y`; `formula`, `family`: the model without what they need.
    - `causes`: names of checks that name the fault; `remedy`: a part of the advised command or sentence; `not_this`: what must
      not be advised.
    """

    make: Callable[[np.random.Generator, int], dict[str, Any]]
    formula: str
    family: str
    causes: tuple[str, ...]
    remedy: str = ""
    not_this: str = ""
    rows: int = 200


def _of(t: Callable, law: Callable) -> Callable[[np.random.Generator, int], dict[str, Any]]:
    """Data with the response law(rng, t(columns), n)."""

    def make(rng: np.random.Generator, n: int) -> dict[str, Any]:
        data = columns(rng, n)
        data["level"] = np.array([int(name[1:]) for name in data["g"]])
        data["b"] = rng.normal(size=LEVELS)[data.pop("level")]
        y = law(rng, t(data), n)
        data.pop("b")
        return {**data, "y": y}

    return make


def _straight(data):
    return 0.8 * data["x"] - 0.4 * data["z"]


def _grouped(data):
    return 0.5 * data["x"] + data["b"]


def _curved(data):
    return 0.6 * data["x"] ** 2 - 0.4 * data["z"]


def _normal(rng, t, n):
    return t + 0.7 * rng.normal(size=n)


def _serial(rng, t, n):
    e = rng.normal(size=n)
    for i in range(1, n):
        e[i] += 0.6 * e[i - 1]
    return t + e


def _dated(rng, n):
    data = columns(rng, n)
    day = rng.permutation(n)
    days = [str(datetime.date(2024, 1, 1) + datetime.timedelta(int(d))) for d in day]
    return {**data, "day": days, "y": _serial(rng, np.zeros(n), n)[day] + 0.8 * data["x"]}


def _swapped(rng, n):
    weight = 65 + 8 * rng.normal(size=n)
    height = 170 + 0.6 * (weight - 65) + 5 * rng.normal(size=n)
    weight[11], height[11] = height[11], weight[11]
    return {"x": height, "z": rng.normal(size=n), "y": weight}


def _far_count(rng, n):
    data = columns(rng, n)
    y = rng.poisson(np.exp(1 + 0.4 * data["x"]))
    y[17] = 60
    return {**data, "y": y}


def _uneven_odds(rng, n):
    data = columns(rng, n)
    u = rng.logistic(size=n)
    first, second = 1.8 * data["x"] + 1.2, -0.3 * data["x"] - 1.2
    y = np.where(u > first, 0, np.where(u > np.minimum(first, second), 1, 2))
    return {**data, "y": y}


def _wiggly(rng, n):
    data = columns(rng, n)
    data["x"] = rng.uniform(0, 10, n)
    return {**data, "y": np.sin(2.2 * data["x"]) + 0.4 * rng.normal(size=n)}


ROWS, CURVE, LAW, TAILS = "independent rows", "linearity", "calibration", ("outliers", "calibration")
WRONG = {
    "neighbouring rows alike": Fault(_of(_straight, _serial), "y ~ x + z", "linear", (ROWS,)),
    "alike along a date": Fault(_dated, "y ~ x", "linear", (ROWS,)),
    "groups left out": Fault(_of(_grouped, _normal), "y ~ x", "linear", (ROWS,), "(1 | g)"),
    "groups left out, positive": Fault(
        _of(_grouped, lambda rng, t, n: 20 + 2 * _normal(rng, t, n)), "y ~ x", "linear", (ROWS,), "(1 | g)", "gamma"
    ),
    "groups left out, counts": Fault(
        _of(_grouped, lambda rng, t, n: rng.poisson(np.exp(1 + t))), "y ~ x", "poisson", (ROWS,), "(1 | g)"
    ),
    "groups left out, two classes": Fault(
        _of(_grouped, lambda rng, t, n: (rng.logistic(size=n) < 1.5 * t).astype(int)),
        "y ~ x", "logistic", (ROWS,), "(1 | g)", rows=300,
    ),
    "odds not proportional": Fault(
        _uneven_odds, "y ~ x + z", "ordinal", ("proportional odds",), "softmax", rows=300
    ),
    "cloglog, fitted by logit": Fault(
        _of(lambda d: 1.5 * d["x"] - d["z"], lambda rng, t, n: (rng.random(n) < -np.expm1(-np.exp(t))).astype(int)),
        "y ~ x + z", "logistic", ("link",), "cloglog", rows=1000,
    ),
    "a row swapped": Fault(_swapped, "y ~ x + z", "linear", ("outliers",)),
    "counts too even": Fault(
        _of(_straight, lambda rng, t, n: np.round(rng.gamma(12, np.exp(1.3 + 0.5 * t) / 12))),
        "y ~ x + z", "poisson", ("dispersion",), "conway-maxwell-poisson", "negative-binomial",
    ),
    "counts too uneven": Fault(
        _of(_straight, lambda rng, t, n: rng.negative_binomial(1, 1 / (1 + np.exp(1 + t)))),
        "y ~ x + z", "poisson", ("dispersion",), "negative-binomial",
    ),
    "binomial, too uneven": Fault(
        _of(_straight, lambda rng, t, n: rng.binomial(10, rng.beta(*(2 / (1 + np.exp(s * t)) for s in (-1, 1))))),
        "y ~ x + z", "binomial", ("dispersion",), "beta-binomial",
    ),
    "a curve": Fault(_of(_curved, _normal), "y ~ x + z", "linear", (CURVE,), "bs(x"),
    "a curve, counts": Fault(
        _of(_curved, lambda rng, t, n: rng.poisson(np.exp(0.5 + t))), "y ~ x + z", "poisson", (CURVE,), "bs(x"
    ),
    "a curve too stiff": Fault(_wiggly, "y ~ bs(x, 4)", "linear", (CURVE,), "bs(x, 8)", "bs(bs"),
    "skewed noise": Fault(
        _of(_straight, lambda rng, t, n: t + rng.exponential(size=n)), "y ~ x + z", "linear", TAILS, "", "student-t"
    ),
    "two humps": Fault(
        _of(_straight, lambda rng, t, n: t + rng.choice([-1.5, 1.5], n) + 0.4 * rng.normal(size=n)),
        "y ~ x + z", "linear", (LAW,), "", "student-t",
    ),
    "heavy tails": Fault(
        _of(_straight, lambda rng, t, n: t + rng.standard_t(2, n)), "y ~ x + z", "linear", TAILS, "student-t"
    ),
    "noise grows with the mean": Fault(
        _of(_straight, lambda rng, t, n: 8 + t + np.exp(t) * rng.normal(size=n)), "y ~ x + z", "linear",
        ("constant variance", "calibration", "outliers"),
    ),
    "a share of zeros": Fault(
        _of(_straight, lambda rng, t, n: np.where(rng.random(n) < 0.35, 0, rng.poisson(np.exp(1.5 + 0.5 * t)))),
        "y ~ x + z", "poisson", ("dispersion",), "zero-inflated-poisson",
    ),
    "one count far out": Fault(_far_count, "y ~ x + z", "poisson", ("outliers",)),
    "a share of zeros, others uneven": Fault(
        _of(_straight, lambda rng, t, n: np.where(
            rng.random(n) < 0.3, 0, rng.negative_binomial(1.5, 1.5 / (1.5 + np.exp(1.8 + 0.5 * t)))
        )),
        "y ~ x + z", "zero-inflated-poisson", ("dispersion", LAW), "zero-inflated-negative-binomial",
    ),
    "noise that multiplies": Fault(
        _of(_straight, lambda rng, t, n: np.exp(1 + 0.5 * t + 0.6 * rng.normal(size=n))), "y ~ x + z", "linear",
        ("constant variance", "outliers", LAW), "", "student-t",
    ),
    "times that age": Fault(
        _of(_straight, lambda rng, t, n: np.exp(t) * rng.weibull(2.5, n)), "y ~ x + z", "exponential", (LAW,), "weibull"
    ),
}  # fmt: skip


def wrong(fault: Fault, seeds: range) -> dict[str, Any]:
    """How many of the simulations of a fault are named with the right cause first, and what came first in all of them."""
    named, first = 0, []
    for seed in seeds:
        data = fault.make(np.random.default_rng([seed, 12]), fault.rows)
        if fault.family == "binomial":
            data["m"] = np.full(fault.rows, 10)
        more = {"dates": ["day"]} if "day" in data else {}
        formula = fault.formula + (" + day_days" if "day" in data else "")
        checks = checked(formula, data, fault.family, **more)[2]["checks"]
        lead = checks[0]
        advice = f"{lead['remedy']} {lead['command']}"
        commands = " ".join(check["command"] or "" for check in checks)
        good = lead["verdict"] == "misfit" and lead["name"] in fault.causes and fault.remedy in advice
        good = good and not (fault.not_this and fault.not_this in commands)
        named += good
        first.append(f"{lead['name']}, {lead['verdict']}: {lead['command']}")
    return {"simulations": len(seeds), "named": int(named), "first": first}
