"""Families of numbers (normal, Student-t, gamma, lognormal, beta) and of times until an event (exponential, Weibull)."""

import numpy as np
import scipy

from gyromc.targets.functions import LARGE, exponential, library, log_gamma, rising, sigmoid, stirling
from gyromc.targets.likelihoods import Canonical, Effect, Likelihood, LinkFunction, LogLink, ResponseKind, Wording
from gyromc.targets.priors import Further, dispersion

MEAN = Effect("the logarithm of {name}'s expectation", "change of the log mean", "ratio of means")
TIME = Effect(MEAN.of, MEAN.label, "ratio of mean times")
LEAST_SIGMA = 1e-4  # standard deviations of y
NU_CENTER, NU_SCALE = 2.73, 0.8  # of log(ν - 2)
LEAST_NU = 2.0
LEAST_SHARE = 1e-12  # of a beta law's mean, and of what is drawn from it
LEAST_LOG_NOISE = 1e-3  # of the logarithm of a time: shapes up to 1000
MOST_LOG_HAZARD = 60.0  # beyond, the cumulative hazard grows as a line, so that it is finite in single precision


_sigma = lambda u: library(u).maximum(exponential(u), LEAST_SIGMA)
SIGMA = Further("sigma", _sigma, lambda s: -s, "sigma: exponential with mean one standard deviation of the target.")
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


class Normal(_Measured, Canonical):
    """y = t + N(0, 1); with `given` a noise scale σ, y = t + N(0, σ²)."""

    name = "linear"
    aliases = ("gaussian", "normal")
    rank, wider = 5, "student-t"
    words = Wording(
        "linear regression",
        "{name} is a linear combination of the columns plus normal noise.",
        Effect("{name}", "change of {name}"),
        "normal noise",
    )

    def loss(self, t, y, *given):
        if not given:
            return 0.5 * (t - y) ** 2
        return 0.5 * ((t - y) / given[0]) ** 2 + library(t).log(given[0])

    def variance(self, mean, *given):
        one = library(mean).ones_like(mean)
        return one * given[0] ** 2 if given else one

    def sample(self, rng, t, *given):
        return rng.normal(t, *given)

    def cdf(self, y, t, *given):
        return scipy.special.ndtr((y - t) / given[0] if given else y - t)

    def constant(self, y, *given):
        return np.full(len(y), 0.5 * np.log(2 * np.pi))


class NormalNoise(Normal):
    """y = t + N(0, σ²), σ unknown."""

    further = (SIGMA,)


class StudentT(_Measured):
    """y = t + σ times a variable with Student's t-law of ν > 2 degrees of freedom."""

    name = "student-t"
    aliases = ("t", "student")
    rank = 7
    further = (SIGMA, NU)
    words = Wording(
        "regression with Student-t noise",
        "{name} is a linear combination of the columns plus Student-t noise, which allows outliers.",
        Effect("{name}", "change of {name}"),
        "Student's t noise",
    )

    def loss(self, t, y, sigma, nu):
        log1p, log = library(t).log1p, library(t).log
        constant = rising(nu / 2, 0.5) + 0.5 * log(nu / 2) - 0.5 * log(nu)
        return 0.5 * (nu + 1) * log1p(((y - t) / sigma) ** 2 / nu) + log(sigma) - constant

    def variance(self, mean, sigma, nu):
        return library(mean).ones_like(mean) * sigma**2 * nu / (nu - 2)

    def sample(self, rng, t, sigma, nu):
        return t + sigma * rng.standard_t(np.broadcast_to(nu, np.shape(t)))

    def cdf(self, y, t, sigma, nu):
        return scipy.special.stdtr(nu, (y - t) / sigma)

    def constant(self, y, *given):
        return np.full(np.shape(y), 0.5 * np.log(np.pi))


class Gamma(Positive, LogLink):
    """Positive numbers with mean μ = eᵗ and variance μ²/shape."""

    name = "gamma"
    rank = 6
    further = (dispersion("shape"),)
    words = Wording("gamma regression", "{name} has a gamma law", MEAN, "a gamma law")

    def loss(self, t, y, k):
        numpy = library(t)
        away = numpy.log(y) - t
        large = k > LARGE
        big, small = numpy.where(large, k, LARGE), numpy.where(large, 1.0, k)
        series = 0.5 * numpy.log(big) - 0.5 * np.log(2 * np.pi) - stirling(big)
        constant = numpy.where(large, series, small * numpy.log(small) - small - log_gamma(small))
        return k * (numpy.expm1(away) - away) - constant

    def variance(self, mean, k):
        return mean**2 / k

    def sample(self, rng, t, k):
        return rng.gamma(np.broadcast_to(k, np.shape(t)), np.exp(t) / k)

    def cdf(self, y, t, k):
        return scipy.special.gammainc(k, k * np.maximum(y, 0) * np.exp(-t))

    def constant(self, y, *given):
        return np.log(y)


class Lognormal(Positive):
    """Positive numbers with log y ~ N(t, σ²): median eᵗ, mean e^{t + σ²/2}."""

    name = "lognormal"
    rank = 12
    further = (Further("sigma", _sigma, lambda s: -s, "sigma: exponential with mean 1."),)
    words = Wording(
        "lognormal regression",
        "The logarithm of {name} is a linear combination of the columns plus normal noise of standard deviation sigma.",
        Effect("the logarithm of {name}", "change of the logarithm", "ratio of medians"),
        "a lognormal law",
    )

    def loss(self, t, y, sigma):
        numpy = library(t)
        return 0.5 * ((numpy.log(y) - t) / sigma) ** 2 + numpy.log(sigma)

    def mean(self, t, sigma):
        return library(t).exp(t + sigma**2 / 2)

    def variance(self, mean, sigma):
        return mean**2 * library(mean).expm1(sigma**2)

    def sample(self, rng, t, sigma):
        return np.exp(rng.normal(t, sigma))

    def cdf(self, y, t, sigma):
        return scipy.special.ndtr((np.log(np.maximum(y, 1e-300)) - t) / sigma)

    def constant(self, y, *given):
        return np.log(y) + 0.5 * np.log(2 * np.pi)

    def start(self, y):
        return np.log(y).mean(keepdims=True)


class Beta(Likelihood):
    """Shares between 0 and 1 with mean μ = 1/(1 + e⁻ᵗ) and variance μ(1 - μ)/(1 + precision)."""

    name = "beta"
    response, link, rank = ResponseKind.NUMBERS, LinkFunction.LOGIT, 13
    further = (dispersion("precision"),)
    needs = "numbers between 0 and 1, without the ends"
    remedy = "For successes of a number of trials take the family binomial."
    words = Wording(
        "beta regression",
        "{name} is a share with a beta law; the log-odds of its mean are a linear combination of the columns.",
        Effect("the log-odds of {name}'s mean", "change of the log-odds", "odds ratio of the mean"),
        "a beta law",
    )

    @classmethod
    def allowed(cls, y):
        return (y > 0) & (y < 1)

    def _shapes(self, t, precision):
        mean = library(t).clip(sigmoid(t), LEAST_SHARE, 1 - LEAST_SHARE)
        return mean * precision, (1 - mean) * precision

    def loss(self, t, y, precision):
        a, b = self._shapes(t, precision)
        log, log1p = library(t).log, library(t).log1p
        return log_gamma(a) + log_gamma(b) - log_gamma(a + b) - (a - 1) * log(y) - (b - 1) * log1p(-y)

    def mean(self, t, *given):
        return sigmoid(t)

    def variance(self, mean, precision):
        return mean * (1 - mean) / (1 + precision)

    def sample(self, rng, t, precision):
        return np.clip(rng.beta(*self._shapes(t, precision)), LEAST_SHARE, 1 - LEAST_SHARE)

    def cdf(self, y, t, precision):
        return scipy.special.betainc(*self._shapes(t, precision), np.clip(y, 0.0, 1.0))

    def start(self, y):
        return scipy.special.logit(y.mean(keepdims=True))


class _Times(Positive, LogLink):
    """Times with mean eᵗ and the cumulative hazard H(y) = (y Γ(1 + 1/k)/eᵗ)ᵏ, P(T > y) = e^{-H(y)}, until an event."""

    # `given` first for every row is whether its time is censored, 1 or 0: then its likelihood is P(T > y). All else is of T.
    known = ("censored",)
    remedy = "Leave these rows out, or count time from an earlier start."

    def _shape(self, t, given):
        return given[1] if len(given) > 1 else library(t).ones_like(t)

    def _log_hazard(self, t, y, k):
        return k * (library(t).log(y) - t + log_gamma(1 + 1 / k))

    def _time(self, t, hazard, k):
        return np.exp(t - log_gamma(1 + 1 / k) + np.log(np.maximum(hazard, 1e-300)) / k)

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


class Exponential(_Times):
    """Times with mean eᵗ whose hazard does not change."""

    name = "exponential"
    rank, wider = 17, "weibull"
    words = Wording("exponential regression", "{name} is a time with a constant hazard", TIME, "an exponential law")


class Weibull(_Times):
    """Times with mean eᵗ whose hazard grows as y^{shape - 1}."""

    name = "weibull"
    rank = 18
    further = (
        Further(
            "shape",
            lambda u: 1 / library(u).maximum(exponential(u), LEAST_LOG_NOISE),
            lambda k: -1 / k - 2 * library(k).log(k),
            "1/shape, the noise of the logarithm: exponential with mean 1.",
        ),
    )
    words = Wording("Weibull regression", "{name} is a time whose hazard is a power of it", TIME, "a Weibull law")
