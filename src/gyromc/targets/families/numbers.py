"""Families of numbers: normal, Student-t and gamma. Each is one class, as `likelihoods.Likelihood` describes it."""

import dataclasses

import numpy as np
import scipy

from gyromc.targets.likelihoods import (
    LARGE,
    Canonical,
    Dispersed,
    Likelihood,
    LinkFunction,
    LogLink,
    ResponseKind,
    Wording,
    exponential,
    library,
    log_gamma,
    rising,
    stirling,
)

__all__ = ["LIKELIHOODS", "Gamma", "Normal", "NormalNoise", "StudentT"]

LEAST_SIGMA = 1e-4  # standard deviations of y
NU_CENTER, NU_SCALE = 2.73, 0.8  # of log(ν - 2)
LEAST_NU = 2.0


def _noise(u):
    return library(u).maximum(exponential(u), LEAST_SIGMA)


@dataclasses.dataclass(frozen=True)
class Normal(Canonical):
    """y = t + N(0, 1); with `given` a noise scale σ, y = t + N(0, σ²)."""

    name = "linear"
    aliases = ("gaussian", "normal")
    response, link, rank = ResponseKind.NUMBERS, LinkFunction.IDENTITY, 5
    measured, wider = True, "student-t"
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

    def mean(self, t, *given):
        return t

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

    auxiliary = ("sigma",)

    def natural(self, u):
        return (_noise(u[..., 0]),)

    def in_units(self, given, y_scale):
        return (y_scale * given[0],)


@dataclasses.dataclass(frozen=True)
class StudentT(Likelihood):
    """y = t + σ times a variable with Student's t-law of ν > 2 degrees of freedom."""

    name = "student-t"
    aliases = ("t", "student")
    response, link, rank = ResponseKind.NUMBERS, LinkFunction.IDENTITY, 7
    measured, auxiliary = True, ("sigma", "nu")
    words = Wording(
        title="regression with Student-t noise",
        sentence="{name} is a weighted sum of the columns plus Student-t noise, which allows outliers.",
        of="{name}",
        effect="change of {name}",
        law="Student's t noise",
    )

    def natural(self, u):
        return _noise(u[..., 0]), LEAST_NU + library(u).exp(NU_CENTER + NU_SCALE * u[..., 1])

    def in_units(self, given, y_scale):
        return y_scale * given[0], given[1]

    def loss(self, t, y, *given):
        sigma, nu = given
        log1p, log = library(t).log1p, library(t).log
        constant = rising(nu / 2, 0.5) + 0.5 * log(nu / 2) - 0.5 * log(nu)
        return 0.5 * (nu + 1) * log1p(((y - t) / sigma) ** 2 / nu) + log(sigma) - constant

    def mean(self, t, *given):
        return t

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
class Gamma(LogLink, Dispersed):
    """Positive numbers with mean μ = eᵗ and variance μ²/shape."""

    name = "gamma"
    response, rank, auxiliary = ResponseKind.NUMBERS, 6, ("shape",)
    needs = "positive numbers"
    remedy = "Leave these rows out, or take the family linear."
    words = Wording(
        title="gamma regression",
        sentence="{name} has a gamma law; the logarithm of its expectation is a weighted sum of the columns.",
        of="the logarithm of {name}'s expectation",
        effect="change of the log mean",
        law="a gamma law",
        ratio="ratio of means",
    )

    @classmethod
    def allowed(cls, y):
        return y > 0

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


LIKELIHOODS: tuple[type[Likelihood], ...] = (Normal, NormalNoise, StudentT, Gamma)
