"""Families of times until an event, exponential and Weibull, of which some are only known to be longer (right-censored).

What is `given` first for every row is whether its time is censored, 1 or 0. Such a row has the likelihood P(T > y), the others
their density. Means, samples and distribution functions are those of the whole time T.
"""

import dataclasses

import numpy as np

from gyromc.targets.families.numbers import Positive
from gyromc.targets.likelihoods import Further, Likelihood, LogLink, Wording, exponential, library, log_gamma

LEAST_NOISE = 1e-3  # of log T: shapes up to 1000
MOST_LOG_HAZARD = 60.0  # beyond, the cumulative hazard grows as a line, so that it is finite in single precision


SHAPE = Further(
    "shape",
    lambda u: 1 / library(u).maximum(exponential(u), LEAST_NOISE),
    lambda k: -1 / k - 2 * library(k).log(k),
    "1/shape, the noise of the logarithm: exponential with mean 1.",
)


class _Times(Positive, LogLink):
    """Times with mean eᵗ and the cumulative hazard H(y) = (y Γ(1 + 1/k)/eᵗ)ᵏ, P(T > y) = e^{-H(y)}."""

    known = ("censored",)
    remedy = "Leave these rows out, or count time from an earlier start."

    def _shape(self, t, given):
        return given[1] if len(given) > 1 else library(t).ones_like(t)

    def _log_hazard(self, t, y, k):
        return k * (library(t).log(y) - t + log_gamma(1 + 1 / k))

    def loss(self, t, y, *given):
        numpy, k = library(t), self._shape(t, given)
        log_hazard = self._log_hazard(t, y, k)
        top = numpy.minimum(log_hazard, MOST_LOG_HAZARD)
        return numpy.exp(top) * (1 + log_hazard - top) - (1 - given[0]) * (log_hazard + numpy.log(k))

    def constant(self, y, *given):
        return (1 - given[0]) * np.log(y)

    def variance(self, mean, *given):
        k = self._shape(mean, given)
        return mean**2 * library(mean).expm1(log_gamma(1 + 2 / k) - 2 * log_gamma(1 + 1 / k))

    def sample(self, rng, t, *given):
        return self._time(t, rng.exponential(size=np.shape(t)), self._shape(t, given))

    def cdf(self, y, t, *given):
        log_hazard = self._log_hazard(t, np.maximum(y, 1e-300), self._shape(t, given))
        return np.where(np.asarray(y) > 0, -np.expm1(-np.exp(np.minimum(log_hazard, MOST_LOG_HAZARD))), 0.0)

    def completed(self, rng, t, y, *given):
        k = self._shape(t, given)
        later = np.exp(self._log_hazard(t, y, k)) + rng.exponential(size=np.shape(t))
        return np.where(given[0] == 1, self._time(t, later, k), y)

    def _time(self, t, hazard, k):
        """The time with this cumulative hazard."""
        return np.exp(t - log_gamma(1 + 1 / k) + np.log(np.maximum(hazard, 1e-300)) / k)


@dataclasses.dataclass(frozen=True)
class Exponential(_Times):
    """Times with mean eᵗ whose hazard does not change."""

    name = "exponential"
    rank, wider = 17, "weibull"
    words = Wording(
        title="exponential regression",
        sentence="{name} is a time with a constant hazard; the logarithm of its expectation is a weighted sum of the columns.",
        of="the logarithm of {name}'s expectation",
        effect="change of the log mean",
        law="an exponential law",
        ratio="ratio of mean times",
    )


@dataclasses.dataclass(frozen=True)
class Weibull(_Times):
    """Times with mean eᵗ whose hazard grows as y^{shape - 1}."""

    name = "weibull"
    rank = 18
    further = (SHAPE,)
    words = dataclasses.replace(
        Exponential.words,
        title="Weibull regression",
        sentence="{name} is a time whose hazard is a power of the time; the logarithm of its expectation is a weighted sum of "
        "the columns.",
        law="a Weibull law",
    )


LIKELIHOODS: tuple[type[Likelihood], ...] = (Exponential, Weibull)
