"""Laws that parameters may have a priori, one record each: `LAWS`; a `Prior`, a law with its numbers; `Further` parameters.

A text such as "student_t(3, 0, 2.5)" in; the log density that targets add up, draws, and the text again out. A positive parameter
takes `normal`, `student_t` and `cauchy` cut off at its lowest value.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import numbers, positive, require, shown
from gyromc.errors import InvalidInput
from gyromc.show.numbers import is_number
from gyromc.targets.functions import exponential, library, log_sigmoid

LEAST_DISPERSION = 1e-3  # 1/√k: below, a family is as good as the one without dispersion


class Domain(enum.Enum):
    """What a parameter is, which decides about the priors that it can have."""

    REAL = "any number"
    POSITIVE = "a positive number"
    SHARE = "a number between 0 and 1"
    CUTPOINTS = "an ascending row of numbers"
    CORRELATIONS = "a matrix of correlations"


@dataclasses.dataclass(frozen=True)
class Law:
    """A family of laws."""

    arguments: tuple[str, ...]  # all but locations are positive; those in `IN_UNITS` and `log_location` have units
    log_density: Callable[..., Any]  # of a value and the arguments, up to a constant in the value; NumPy's or JAX's
    domains: tuple[Domain, ...]
    frozen: Any = None  # the distribution of `scipy.stats`, where there is one


def _dirichlet(cuts, concentration):
    """Of cutpoints, … × C-1, where the probabilities of the classes have this law."""
    numpy = library(cuts)
    slopes = log_sigmoid(cuts) + log_sigmoid(-cuts)
    upto = numpy.exp(log_sigmoid(cuts))
    shares = numpy.diff(numpy.concatenate([0 * upto[..., :1], upto, 1 + 0 * upto[..., :1]], axis=-1), axis=-1)
    least = numpy.maximum(shares, 1e-30)
    return numpy.sum(slopes, axis=-1) + (concentration - 1) * numpy.sum(numpy.log(least), axis=-1)


ANYWHERE, POSITIVE = (Domain.REAL, Domain.POSITIVE, Domain.CUTPOINTS), (Domain.POSITIVE,)
_student_t = lambda x, nu, m, s: -(nu + 1) / 2 * library(x).log1p(((x - m) / s) ** 2 / nu)
_normal = lambda x, m, s: -0.5 * ((x - m) / s) ** 2
_cauchy = lambda x, m, s: _student_t(x, 1.0, m, s)
_log = lambda x: library(x).log(x)
_gamma = lambda x, a, r: (a - 1) * _log(x) - r * x
_lognormal = lambda x, m, s: _normal(_log(x), m, s) - _log(x)
_beta = lambda x, a, b: (a - 1) * _log(x) + (b - 1) * library(x).log1p(-x)
LAWS = {
    "normal": Law(("location", "scale"), _normal, ANYWHERE, lambda stats, m, s: stats.norm(m, s)),
    "student_t": Law(("nu", "location", "scale"), _student_t, ANYWHERE, lambda stats, n, m, s: stats.t(n, m, s)),
    "cauchy": Law(("location", "scale"), _cauchy, ANYWHERE, lambda stats, m, s: stats.cauchy(m, s)),
    "half_normal": Law(("scale",), lambda x, s: _normal(x, 0, s), POSITIVE, lambda stats, s: stats.halfnorm(0, s)),
    "exponential": Law(("rate",), lambda x, r: -r * x, POSITIVE, lambda stats, r: stats.expon(0, 1 / r)),
    "gamma": Law(("shape", "rate"), _gamma, POSITIVE, lambda stats, a, r: stats.gamma(a, 0, 1 / r)),
    "lognormal": Law(
        ("log_location", "log_scale"), _lognormal, POSITIVE, lambda stats, m, s: stats.lognorm(s, 0, math.exp(m))
    ),
    "beta": Law(("a", "b"), _beta, (Domain.SHARE,), lambda stats, a, b: stats.beta(a, b)),
    "dirichlet": Law(("concentration",), _dirichlet, (Domain.CUTPOINTS,)),
    # Of the partial correlations: `Group` has its density.
    "lkj": Law(("concentration",), lambda x, eta: 0 * x, (Domain.CORRELATIONS,)),
}
EXAMPLES = {
    Domain.REAL: "normal(0, 1) or student_t(3, 0, 2.5)",
    Domain.POSITIVE: "exponential(1), student_t(3, 0, 2.5) or gamma(2, 0.1)",
    Domain.SHARE: "beta(1, 9)",
    Domain.CUTPOINTS: "dirichlet(2) or normal(0, 5)",
    Domain.CORRELATIONS: "lkj(4)",
}
IN_UNITS = {"location": 1, "scale": 1, "rate": -1}  # the power of the unit that an argument has


@dataclasses.dataclass(frozen=True)
class Prior:
    """A law with its numbers.

    ```python
    from gyromc.targets import Prior
    prior = Prior.read("student_t(3, 0, 2.5)")
    print(prior.law, prior.scaled(2.0))  # student_t student_t(3, 0, 5)
    ```
    """

    law: str
    numbers: tuple[float, ...]

    @classmethod
    def read(cls, text: Any, of: str = "a prior") -> "Prior":
        """The prior that a text stands for; `of`: what it is called in messages."""
        if isinstance(text, Prior):
            return text
        match = re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", text) if isinstance(text, str) else None
        given = [part.strip() for part in match[2].split(",")] if match else []
        name = match[1].lower() if match else ""
        forms = ", ".join(f"{law}({', '.join(known.arguments)})" for law, known in LAWS.items())
        if name not in LAWS or len(given) != len(LAWS[name].arguments) or not all(map(is_number, given)):
            raise InvalidInput(f"{of} must be one of {forms}, with numbers: got {shown(text)}.")
        for argument, value in zip(LAWS[name].arguments, given, strict=True):
            if not argument.endswith("location"):
                positive(float(value), f"{argument} of {text}")
        return cls(name, tuple(float(value) for value in given))

    def require(self, domain: Domain, of: str) -> "Prior":
        """Itself, where the law suits a parameter of this domain."""
        laws = ", ".join(name for name, law in LAWS.items() if domain in law.domains)
        what = f"{of} is {domain.value}, whose prior is {laws}"
        require(domain in LAWS[self.law].domains, f"{what}: got {self}. Write it as {EXAMPLES[domain]}.")
        return self

    def __str__(self) -> str:
        return f"{self.law}({', '.join(f'{value:.6g}' for value in self.numbers)})"

    def __getitem__(self, argument: str) -> float:
        """The number of an argument; 0 for one that the law does not have."""
        return dict(zip(LAWS[self.law].arguments, self.numbers, strict=True)).get(argument, 0.0)

    @property
    def size(self) -> float:
        """How large a positive parameter is, roughly."""
        if self.law == "lognormal":
            return math.exp(self["log_location"])
        return abs(self["location"]) + self["scale"] if not self["rate"] else (self["shape"] or 1.0) / self["rate"]

    def scaled(self, unit: float) -> "Prior":
        """The law of a parameter times `unit`."""
        of = lambda name, x: x + math.log(unit) if name == "log_location" else x * unit ** IN_UNITS.get(name, 0)
        return Prior(self.law, tuple(map(of, LAWS[self.law].arguments, self.numbers)))

    def log_density(self, x: Any) -> Any:
        return LAWS[self.law].log_density(x, *self.numbers)

    def draw(self, rng: np.random.Generator, size: Any, least: float = -math.inf) -> np.ndarray:
        """Draws above `least`, by the inverse of the distribution function."""
        from scipy import stats

        law = LAWS[self.law].frozen(stats, *self.numbers)
        return law.isf(law.sf(least) * rng.random(size))


def read_priors(priors: Any, known: Mapping[str, Domain]) -> dict[str, Prior]:
    """Priors by name of a parameter, of which `known` are the domains: a text, a `Prior`, (location, scale), or a scale alone."""
    # That is the standard deviation of a normal law of a coefficient, the mean of an exponential law of a positive parameter.
    if priors is None:
        return {}
    require(isinstance(priors, Mapping), f"`priors` must be a table from names to priors: got {shown(priors)}.")
    found = {}
    for name, prior in priors.items():
        name = str(name)
        require(name in known, f"`priors` has no parameter {shown(name)}: there are {', '.join(known)}.")
        if not isinstance(prior, str | Prior):
            pair: Any = prior if isinstance(prior, Sequence) and len(prior) == 2 else (0.0, prior)
            location, scale = float(numbers(pair[0], f"priors[{name!r}]")), positive(pair[1], f"priors[{name!r}]")
            alone = known[name] is Domain.POSITIVE and not isinstance(prior, Sequence)
            prior = Prior("exponential", (1 / scale,)) if alone else Prior("normal", (location, scale))
        found[name] = Prior.read(prior, f"priors[{name!r}]").require(known[name], f"`priors`: {name}")
    return found


@dataclasses.dataclass(frozen=True)
class Further:
    """A further parameter of a likelihood, and the prior that it has unless the user asks for another."""

    name: str
    natural: Callable[[Any], Any]  # makes it of a number that is standard normal a priori, and so gives it that prior
    log_density: Callable[[Any], Any]  # of that prior, up to a constant
    words: str  # the prior in a sentence
    domain: Domain = Domain.POSITIVE
    least: float = 0.0  # its lowest value where it is positive


def dispersion(name: str) -> Further:
    """k with 1/√k exponential: the largest density is where the family has no dispersion (a penalised-complexity prior)."""
    return Further(
        name,
        lambda u: library(u).maximum(exponential(u), LEAST_DISPERSION) ** -2.0,
        lambda k: -(k**-0.5) - 1.5 * library(k).log(k),
        f"1/√{name}: exponential with mean 1.",
    )
