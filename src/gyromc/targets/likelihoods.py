"""What a likelihood of a regression is: -log p(y | t) of linear predictors t, its derivatives, the law of y, and facts about it.

Arrays t, … × rows (… × rows × q where a row has a vector), y, and what else the law depends on (`given`), which broadcasts with
them, in; arrays of the same kind out. One formula serves NumPy (nothing to compile) and JAX; `sample` and `cdf` are NumPy's.
"""

import abc
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.targets.functions import library
from gyromc.targets.priors import Further

Values = Any  # a NumPy or a JAX array


class ResponseKind(enum.Enum):
    """What a response is."""

    NUMBERS = "numbers"
    COUNTS = "counts"
    CLASSES = "classes"


class LinkFunction(enum.Enum):
    """What the linear predictor is: the mean, its logarithm, log-odds, a normal quantile, or log(-log(1 - p))."""

    IDENTITY = "identity"
    LOG = "log"
    LOGIT = "logit"
    PROBIT = "probit"
    CLOGLOG = "cloglog"


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a coefficient changes (`of`), the label of such a change, and what people call its exponential, if they quote it."""

    of: str
    label: str
    ratio: str | None = None


@dataclasses.dataclass(frozen=True)
class Wording:
    """A family in words ("Poisson regression", "a Poisson law"); `{name}` is the target, `{positive}` its positive class."""

    title: str
    says: str  # what the target is, or a full sentence on the model
    effect: Effect
    law: str = "the model"

    @property
    def sentence(self) -> str:
        full = self.says.endswith(".")
        return self.says if full else f"{self.says}; a linear combination of the columns is {self.effect.of}."


@dataclasses.dataclass(frozen=True)
class Likelihood(abc.ABC):
    """A model of y given its linear predictors, and what the rest of gyromc has to know about it."""

    name: ClassVar[str] = ""
    words: ClassVar[Wording]
    response: ClassVar[ResponseKind] = ResponseKind.COUNTS
    link: ClassVar[LinkFunction] = LinkFunction.IDENTITY
    rank: ClassVar[int] = 0  # the simplest family has the lowest
    needs: ClassVar[str] = "finite numbers"  # what y must hold: `allowed` says which of it does
    remedy: ClassVar[str] = "Take the family linear for measurements."  # what to do where it does not
    aliases: ClassVar[tuple[str, ...]] = ()  # names that R's packages have for it
    wider: ClassVar[str | None] = None  # the family to take where y varies more than this one allows
    measured: ClassVar[bool] = False  # whether y has units, so that it is standardised
    convex: ClassVar[bool] = False  # whether the loss is a convex function of t: then an integral over it has one peak
    vector: ClassVar[bool] = False  # whether t is a vector, also one of length 1
    cutpoints: ClassVar[bool] = False  # whether the further parameters are cutpoints, which stand for the intercept
    known: ClassVar[tuple[str, ...]] = ()  # names of what is given for every row
    further: ClassVar[tuple[Further, ...]] = ()  # parameters that are `given` after these

    @classmethod
    def made(cls, num_classes: int) -> "Likelihood":
        return cls()

    @classmethod
    def allowed(cls, y: np.ndarray) -> np.ndarray:
        return np.isfinite(y) if cls.response is ResponseKind.NUMBERS else (y >= 0) & (y == np.round(y))

    @classmethod
    def require(cls, y: np.ndarray) -> None:
        """Raise where a response is none that the family has, naming the first row."""
        odd = np.flatnonzero(~cls.allowed(y))
        if odd.size:
            values = ", ".join(f"{value:g}" for value in np.unique(y[odd])[:5])
            first = f"row {odd[0]} has {y[odd[0]]:g} ({odd.size} rows differ; values {values})"
            raise InvalidInput(f"`y` must hold {cls.needs}: {first}. {cls.remedy.format(value=y[odd[0]])}")

    @property
    def outputs(self) -> int:
        """q, the number of linear predictors of a row."""
        return 1

    @property
    def basis(self) -> np.ndarray:
        """The matrix from the weights of the linear predictors to those of the classes; [[1]] for scalar models."""
        return np.eye(1)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.further)

    def natural(self, u: Values) -> tuple[Values, ...]:
        """The further parameters, each of shape …, from numbers that are standard normal a priori, … × parameters."""
        return tuple(one.natural(u[..., k]) for k, one in enumerate(self.further))

    def prior_change(self, given: tuple[Values, ...], priors: Mapping[str, Any]) -> Values:
        """What other priors of some further parameters add to U: the log density of the usual ones less that of these."""
        values = [(one, v) for one, v in zip(self.further, given, strict=True) if one.name in priors]
        return sum(one.log_density(v) - priors[one.name].log_density(v) for one, v in values)

    def drawn(self, rng: np.random.Generator, shape: tuple[int, ...], priors: Mapping[str, Any]) -> tuple[Values, ...]:
        values = zip(self.further, self.natural(rng.standard_normal((*shape, len(self.auxiliary)))), strict=True)
        return tuple(priors[x.name].draw(rng, shape, x.least) if x.name in priors else v for x, v in values)

    def in_units(self, given: tuple[Values, ...], y_scale: float) -> tuple[Values, ...]:
        """The further parameters for y in the user's units, from those for y/y_scale."""
        return given

    @property
    def discrete(self) -> bool:
        """Whether y is a whole number, so that its distribution function has jumps."""
        return self.response is not ResponseKind.NUMBERS

    @abc.abstractmethod
    def loss(self, t: Values, y: Values, *given: Values) -> Values:
        """-log p(y | t), up to a constant in t and what is given: … × rows."""

    @abc.abstractmethod
    def mean(self, t: Values, *given: Values) -> Values:
        """E[y | t]: … × rows, or … × rows × C probabilities of the classes."""

    @abc.abstractmethod
    def variance(self, mean: Values, *given: Values) -> Values:
        """The variance of y given its mean; of each class's indicator, for classes."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, t: np.ndarray, *given: Values) -> np.ndarray:
        """One y for each linear predictor: … × rows."""

    @abc.abstractmethod
    def cdf(self, y: Values, t: np.ndarray, *given: Values) -> np.ndarray:
        """P(Y ≤ y | t): … × rows; for classes the probability of the classes 0 … y."""

    def completed(self, rng: np.random.Generator, t: np.ndarray, y: np.ndarray, *given: Values) -> np.ndarray:
        """Responses with those that are censored drawn from their law beyond y."""
        return y

    def log_density(self, t: Values, y: Values, *given: Values) -> Values:
        return -self.loss(t, y, *given) - self.constant(y, *given)

    def constant(self, y: np.ndarray, *given: Values) -> np.ndarray:
        """-log p(y | t) less `loss`."""
        return np.zeros(len(y))

    def start(self, y: np.ndarray) -> np.ndarray:
        """The linear predictors that fit y best without x."""
        return np.zeros(self.outputs)


class Canonical(Likelihood):
    """A model without further parameters whose loss is convex in t, and whose t is that of an exponential family."""

    convex: ClassVar[bool] = True

    def slope(self, t: Values, y: Values) -> Values:
        """∂ loss/∂t, of t's shape."""
        return self.mean(t) - y

    def curvature(self, t: Values) -> Values:
        """∂² loss/∂t², independent of y in these models: of t's shape, or … × rows × q × q."""
        return self.variance(self.mean(t))


class LogLink(Likelihood):
    """A model of a positive mean μ = eᵗ."""

    link = LinkFunction.LOG

    def mean(self, t, *given):
        return library(t).exp(t)

    def start(self, y):
        # A mean of zero counts as half an event.
        least = 0.5 / len(y) if self.discrete else 0.0
        return np.log(y.mean(keepdims=True) + least)
