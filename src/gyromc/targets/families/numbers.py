"""Families of numbers: normal, Student-t, gamma, lognormal and beta. Each is one class, as `Likelihood` describes it."""

import dataclasses

import numpy as np
import scipy

from gyromc.targets.likelihoods import (
    LARGE,
    Canonical,
    Further,
    Likelihood,
    LinkFunction,
    LogLink,
    ResponseKind,
    Wording,
    dispersion,
    exponential,
    library,
    log_gamma,
    rising,
    sigmoid,
    stirling,
)

LEAST_SIGMA = 1e-4  # standard deviations of y
NU_CENTER, NU_SCALE = 2.73, 0.8  # of log(ν - 2)
LEAST_NU = 2.0
LEAST_SHARE = 1e-12  # of a beta law's mean, and of what is drawn from it


def _noise(words: str) -> Further:
    return Further("sigma", lambda u: library(u).maximum(exponential(u), LEAST_SIGMA), lambda sigma: -sigma, words)


SIGMA = _noise("sigma: exponential with mean one standard deviation of the target.")
NU = Further(
    "nu",
    lambda u: LEAST_NU + library(u).exp(NU_CENTER + NU_SCALE * u),
    lambda nu: -0.5 * ((library(nu).log(nu - LEAST_NU) - NU_CENTER) / NU_SCALE) ** 2 - library(nu).log(nu - LEAST_NU),
    "nu: 2 + eˣ with x ~ N(2.73, 0.8²).",
    least=LEAST_NU,
)


class _Measured(Likelihood):
    """Numbers with units whose mean is t; the first further parameter, if there is one, is the noise's scale."""

    response, link, measured = ResponseKind.NUMBERS, LinkFunction.IDENTITY, True

    def mean(self, t, *given):
        return t

    def in_units(self, given, y_scale):
        return (y_scale * given[0], *given[1:]) if given else ()


class Positive(Likelihood):
    """Positive numbers, whose logarithm t describes."""

    response, link = ResponseKind.NUMBERS, LinkFunction.LOG
    needs = "positive numbers"
    remedy = "Leave these rows out, or take the family linear."

    @classmethod
    def allowed(cls, y):
        return y > 0


@dataclasses.dataclass(frozen=True)
class Normal(_Measured, Canonical):
    """y = t + N(0, 1); with `given` a noise scale σ, y = t + N(0, σ²)."""

    name = "linear"
    aliases = ("gaussian", "normal")
    rank, wider = 5, "student-t"
    words = Wording(
        title="linear regression",
        sentence="{name} is a weighted sum of the columns plus normal noise.",
        of="{name}",
        effect="change of {name}",
        law="normal noise",
    )

    def loss(self, t, y, *given):
        if not given:
            return 0.5 * (t - y) ** 2
        return 0.5 * ((t - y) / given[0]) ** 2 + library(t).log(given[0])

    def slope(self, t, y):
        return t - y

    def curvature(self, t):
        return library(t).ones_like(t)

    def variance(self, mean, *given):
        one = library(mean).ones_like(mean)
        return one * given[0] ** 2 if given else one

    def sample(self, rng, t, *given):
        return rng.normal(t, *given)

    def cdf(self, y, t, *given):
        return scipy.special.ndtr((y - t) / given[0] if given else y - t)

    def constant(self, y, *given):
        return np.full(len(y), 0.5 * np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True)
class NormalNoise(Normal):
    """y = t + N(0, σ²), σ unknown."""

    further = (SIGMA,)


@dataclasses.dataclass(frozen=True)
class StudentT(_Measured):
    """y = t + σ times a variable with Student's t-law of ν > 2 degrees of freedom."""

    name = "student-t"
    aliases = ("t", "student")
    rank = 7
    further = (
        SIGMA,
        NU,
    )
    words = Wording(
        title="regression with Student-t noise",
        sentence="{name} is a weighted sum of the columns plus Student-t noise, which allows outliers.",
        of="{name}",
        effect="change of {name}",
        law="Student's t noise",
    )

    def loss(self, t, y, *given):
        sigma, nu = given
        log1p, log = library(t).log1p, library(t).log
        constant = rising(nu / 2, 0.5) + 0.5 * log(nu / 2) - 0.5 * log(nu)
        return 0.5 * (nu + 1) * log1p(((y - t) / sigma) ** 2 / nu) + log(sigma) - constant

    def variance(self, mean, *given):
        sigma, nu = given
        return library(mean).ones_like(mean) * sigma**2 * nu / (nu - 2)

    def sample(self, rng, t, *given):
        sigma, nu = given
        return t + sigma * rng.standard_t(np.broadcast_to(nu, np.shape(t)))

    def cdf(self, y, t, *given):
        return scipy.special.stdtr(given[1], (y - t) / given[0])

    def constant(self, y, *given):
        return np.full(np.shape(y), 0.5 * np.log(np.pi))


@dataclasses.dataclass(frozen=True)
class Gamma(Positive, LogLink):
    """Positive numbers with mean μ = eᵗ and variance μ²/shape."""

    name = "gamma"
    rank = 6
    further = (dispersion("shape"),)
    words = Wording(
        title="gamma regression",
        sentence="{name} has a gamma law; the logarithm of its expectation is a weighted sum of the columns.",
        of="the logarithm of {name}'s expectation",
        effect="change of the log mean",
        law="a gamma law",
        ratio="ratio of means",
    )

    def loss(self, t, y, *given):
        (k,) = given
        numpy = library(t)
        away = numpy.log(y) - t
        large = k > LARGE
        big, small = numpy.where(large, k, LARGE), numpy.where(large, 1.0, k)
        series = 0.5 * numpy.log(big) - 0.5 * np.log(2 * np.pi) - stirling(big)
        constant = numpy.where(large, series, small * numpy.log(small) - small - log_gamma(small))
        return k * (numpy.expm1(away) - away) - constant

    def variance(self, mean, *given):
        return mean**2 / given[0]

    def sample(self, rng, t, *given):
        return rng.gamma(np.broadcast_to(given[0], np.shape(t)), np.exp(t) / given[0])

    def cdf(self, y, t, *given):
        return scipy.special.gammainc(given[0], given[0] * np.maximum(y, 0) * np.exp(-t))

    def constant(self, y, *given):
        return np.log(y)


@dataclasses.dataclass(frozen=True)
class Lognormal(Positive):
    """Positive numbers with log y ~ N(t, σ²): median eᵗ, mean e^{t + σ²/2}."""

    name = "lognormal"
    rank = 12
    further = (_noise("sigma: exponential with mean 1."),)
    words = Wording(
        title="lognormal regression",
        sentence="The logarithm of {name} is a weighted sum of the columns plus normal noise of standard deviation sigma.",
        of="the logarithm of {name}",
        effect="change of the logarithm",
        law="a lognormal law",
        ratio="ratio of medians",
    )

    def loss(self, t, y, *given):
        (sigma,) = given
        numpy = library(t)
        return 0.5 * ((numpy.log(y) - t) / sigma) ** 2 + numpy.log(sigma)

    def mean(self, t, *given):
        return library(t).exp(t + given[0] ** 2 / 2)

    def variance(self, mean, *given):
        return mean**2 * library(mean).expm1(given[0] ** 2)

    def sample(self, rng, t, *given):
        return np.exp(rng.normal(t, given[0]))

    def cdf(self, y, t, *given):
        return scipy.special.ndtr((np.log(np.maximum(y, 1e-300)) - t) / given[0])

    def constant(self, y, *given):
        return np.log(y) + 0.5 * np.log(2 * np.pi)

    def start(self, y):
        return np.log(y).mean(keepdims=True)


@dataclasses.dataclass(frozen=True)
class Beta(Likelihood):
    """Shares between 0 and 1 with mean μ = 1/(1 + e⁻ᵗ) and variance μ(1 - μ)/(1 + precision)."""

    name = "beta"
    response, link, rank = ResponseKind.NUMBERS, LinkFunction.LOGIT, 13
    further = (dispersion("precision"),)
    needs = "numbers between 0 and 1, without the ends"
    remedy = "For successes of a number of trials take the family binomial."
    words = Wording(
        title="beta regression",
        sentence="{name} is a share with a beta law; the log-odds of its mean are a weighted sum of the columns.",
        of="the log-odds of {name}'s mean",
        effect="change of the log-odds",
        law="a beta law",
        ratio="odds ratio of the mean",
    )

    @classmethod
    def allowed(cls, y):
        return (y > 0) & (y < 1)

    def _shapes(self, t, precision):
        mean = library(t).clip(sigmoid(t), LEAST_SHARE, 1 - LEAST_SHARE)
        return mean * precision, (1 - mean) * precision

    def loss(self, t, y, *given):
        a, b = self._shapes(t, given[0])
        log, log1p = library(t).log, library(t).log1p
        return log_gamma(a) + log_gamma(b) - log_gamma(a + b) - (a - 1) * log(y) - (b - 1) * log1p(-y)

    def mean(self, t, *given):
        return sigmoid(t)

    def variance(self, mean, *given):
        return mean * (1 - mean) / (1 + given[0])

    def sample(self, rng, t, *given):
        drawn = rng.beta(*self._shapes(t, given[0]))
        return np.clip(drawn, LEAST_SHARE, 1 - LEAST_SHARE)

    def cdf(self, y, t, *given):
        return scipy.special.betainc(*self._shapes(t, given[0]), np.clip(y, 0.0, 1.0))

    def start(self, y):
        return scipy.special.logit(y.mean(keepdims=True))


LIKELIHOODS: tuple[type[Likelihood], ...] = (Normal, NormalNoise, StudentT, Gamma, Lognormal, Beta)
