"""Likelihoods with parameters of their own: noise scales, shapes, degrees of freedom, cutpoints.

Input: linear predictors t and responses y, as in `likelihoods`, and the further parameters, as numbers u that are standard normal
a priori. Output: the law of y. `natural` turns u into the parameters people know, by functions that give these their priors:

- `sigma` (normal, Student-t), in standard deviations of y: exponential with mean 1, the default of rstanarm.
- `shape` (negative binomial, gamma) and `concentration` (beta-binomial): 1/√k is exponential with mean 1. No dispersion is the
  simplest case and has the largest density (a penalised-complexity prior): Poisson, a constant, binomial.
- `nu` (Student-t): ν = 2 + e^x, x ~ N(2.73, 0.8²), the mean and spread that the gamma(2, 0.1) of brms gives log(ν - 2); ν > 2, so
  that y has a variance.
- cutpoints (ordinal): at the columns' means the probabilities of the classes are Dirichlet(1, …, 1), the default of rstanarm.

So U grows as a square in every direction, whatever the family.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
from scipy import special

from gyromc.targets.likelihoods import Likelihood, Normal, library, log_sigmoid, sigmoid

__all__ = ["BetaBinomial", "Binomial", "Gamma", "NegativeBinomial", "NormalNoise", "Ordinal", "StudentT", "exponential"]

LEAST_DISPERSION = 1e-3  # 1/√k: below, a family is as good as the one without dispersion
LEAST_SIGMA = 1e-4  # standard deviations of y
LARGE = 16.0  # arguments of Γ from which on Stirling's series has all digits
NU_CENTER, NU_SCALE = 2.73, 0.8  # of log(ν - 2)
LEAST_NU = 2.0


def exponential(u):
    """The function that makes an exponential variable with mean 1 of a standard normal one."""
    return -special.log_ndtr(-u) if library(u) is np else -jax.scipy.special.log_ndtr(-u)


def _noise(u):
    return library(u).maximum(exponential(u), LEAST_SIGMA)


def _dispersed(u):
    """k with 1/√k exponential."""
    return library(u).maximum(exponential(u), LEAST_DISPERSION) ** -2.0


def _log_gamma(x):
    return special.gammaln(x) if library(x) is np else jax.scipy.special.gammaln(x)


def _stirling(x):
    """log Γ(x) less (x - ½) log x - x + ½ log 2π, for large x."""
    return (1 / 12 - (1 / 360 - 1 / (1260 * x**2)) / x**2) / x


def rising(s, y):
    """log Γ(s + y) - log Γ(s) - y log s, without loss of digits where s is large."""
    numpy = library(s)
    large = s > LARGE
    big, small = numpy.where(large, s, LARGE), numpy.where(large, 1.0, s)
    series = (big + y - 0.5) * numpy.log1p(y / big) - y + _stirling(big + y) - _stirling(big)
    return numpy.where(large, series, _log_gamma(small + y) - _log_gamma(small) - y * numpy.log(small))


@dataclasses.dataclass(frozen=True)
class NormalNoise(Normal):
    """y = t + N(0, σ²), σ unknown."""

    @property
    def auxiliary(self):
        return ("sigma",)

    def natural(self, u):
        return (_noise(u[..., 0]),)

    def in_units(self, given, y_scale):
        return (y_scale * given[0],)


@dataclasses.dataclass(frozen=True)
class StudentT(Likelihood):
    """y = t + σ times a variable with Student's t-law of ν > 2 degrees of freedom."""

    @property
    def auxiliary(self):
        return "sigma", "nu"

    @property
    def discrete(self):
        return False

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
        return special.stdtr(given[1], (y - t) / given[0])

    def constant(self, y, *given):
        return np.full(np.shape(y), 0.5 * np.log(np.pi))


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """Counts with mean μ = eᵗ and variance μ + μ²/shape."""

    @property
    def auxiliary(self):
        return ("shape",)

    def natural(self, u):
        return (_dispersed(u[..., 0]),)

    def loss(self, t, y, *given):
        (s,) = given
        numpy = library(t)
        return (y + s) * numpy.log1p(numpy.exp(t) / s) - y * t - rising(s, y)

    def mean(self, t, *given):
        return library(t).exp(t)

    def variance(self, mean, *given):
        return mean + mean**2 / given[0]

    def sample(self, rng, t, *given):
        (s,) = given
        return rng.poisson(rng.gamma(np.broadcast_to(s, np.shape(t)), np.exp(t) / s)).astype(float)

    def cdf(self, y, t, *given):
        from scipy import stats  # when it is used: it takes long to import

        return stats.nbinom.cdf(y, given[0], 1 / (1 + np.exp(t) / given[0]))

    def constant(self, y, *given):
        return special.gammaln(y + 1)

    def start(self, y):
        return np.log(y.mean(keepdims=True) + 0.5 / len(y))


@dataclasses.dataclass(frozen=True)
class Gamma(Likelihood):
    """Positive numbers with mean μ = eᵗ and variance μ²/shape."""

    @property
    def auxiliary(self):
        return ("shape",)

    @property
    def discrete(self):
        return False

    def natural(self, u):
        return (_dispersed(u[..., 0]),)

    def loss(self, t, y, *given):
        (k,) = given
        numpy = library(t)
        away = numpy.log(y) - t
        large = k > LARGE
        big, small = numpy.where(large, k, LARGE), numpy.where(large, 1.0, k)
        series = 0.5 * numpy.log(big) - 0.5 * np.log(2 * np.pi) - _stirling(big)
        constant = numpy.where(large, series, small * numpy.log(small) - small - _log_gamma(small))
        return k * (numpy.expm1(away) - away) - constant

    def mean(self, t, *given):
        return library(t).exp(t)

    def variance(self, mean, *given):
        return mean**2 / given[0]

    def sample(self, rng, t, *given):
        return rng.gamma(np.broadcast_to(given[0], np.shape(t)), np.exp(t) / given[0])

    def cdf(self, y, t, *given):
        return special.gammainc(given[0], given[0] * np.maximum(y, 0) * np.exp(-t))

    def constant(self, y, *given):
        return np.log(y)

    def start(self, y):
        return np.log(y.mean(keepdims=True))


@dataclasses.dataclass(frozen=True)
class Binomial(Likelihood):
    """y successes of n trials, each with the chance p = 1/(1 + e⁻ᵗ): logistic regression of rows that sum up trials."""

    @property
    def known(self):
        return ("trials",)

    def loss(self, t, y, *given):
        return given[0] * library(t).logaddexp(0.0, t) - y * t

    def mean(self, t, *given):
        return given[0] * sigmoid(t)

    def variance(self, mean, *given):
        return mean * (1 - mean / given[0])

    def sample(self, rng, t, *given):
        n = np.broadcast_to(given[0], np.shape(t))
        return rng.binomial(n.astype(int), sigmoid(t)).astype(float)

    def cdf(self, y, t, *given):
        n = given[0]
        y = np.floor(np.minimum(y, n))
        return np.where(y < 0, 0.0, special.bdtr(np.maximum(y, 0), np.asarray(n).astype(int), sigmoid(t)))

    def constant(self, y, *given):
        n = given[0]
        return special.gammaln(y + 1) + special.gammaln(n - y + 1) - special.gammaln(n + 1)


@dataclasses.dataclass(frozen=True)
class BetaBinomial(Likelihood):
    """y successes of n trials, whose chance has a beta law with mean p = 1/(1 + e⁻ᵗ): `concentration` a + b.

    The variance is n p (1 - p) (n + a + b)/(1 + a + b).
    """

    @property
    def known(self):
        return ("trials",)

    @property
    def auxiliary(self):
        return ("concentration",)

    def natural(self, u):
        return (_dispersed(u[..., 0]),)

    def loss(self, t, y, *given):
        n, k = given
        maximum = library(t).maximum
        a, b = maximum(k * sigmoid(t), 1e-30), maximum(k * sigmoid(-t), 1e-30)
        ratio = rising(a, y) + rising(b, n - y) - rising(k, n)
        return -ratio - y * log_sigmoid(t) - (n - y) * log_sigmoid(-t)

    def mean(self, t, *given):
        return given[0] * sigmoid(t)

    def variance(self, mean, *given):
        n, k = given
        return mean * (1 - mean / n) * (n + k) / (1 + k)

    def sample(self, rng, t, *given):
        n, k = np.broadcast_arrays(*given, t)[:2]
        a, b = rng.gamma(k * sigmoid(t)), rng.gamma(k * sigmoid(-t))
        p = np.where(a + b > 0, a / np.where(a + b > 0, a + b, 1.0), sigmoid(t) > 0.5)
        return rng.binomial(n.astype(int), p).astype(float)

    def cdf(self, y, t, *given):
        """Σ_{j ≤ y} p(j), each term from the next by their ratio; where y > n/2, 1 less the terms above."""
        n, k = given
        y, n = np.floor(np.minimum(y, n)), np.asarray(n, float)
        a, b, upper = k * sigmoid(t), k * sigmoid(-t), y > n / 2
        term = np.exp(self.log_density(t, np.clip(y, 0, n), *given))
        total = np.where(upper, 0.0, term)
        j = np.where(upper, y, n - y)  # of the failures where terms are summed downwards
        first, second = np.where(upper, a, b), np.where(upper, b, a)
        for _ in range(int(np.max(np.minimum(y, n - y), initial=0.0))):
            left = np.maximum(n - j, 0.0)
            term = term * left / (j + 1) * (first + j) / np.maximum(second + left - 1, 1e-300)
            total, j = total + term, j + 1
        return np.where(y < 0, 0.0, np.clip(np.where(upper, 1 - total, total), 0.0, 1.0))

    def constant(self, y, *given):
        n = given[0]
        return special.gammaln(y + 1) + special.gammaln(n - y + 1) - special.gammaln(n + 1)


@dataclasses.dataclass(frozen=True)
class Ordinal(Likelihood):
    """Ordered classes: P(y ≤ k) = 1/(1 + e^{t - c_k}) with cutpoints c_0 < c_1 < …

    **Arguments:**

    - `num_classes`: C; there are C-1 cutpoints.
    """

    num_classes: int

    @functools.cached_property
    def auxiliary(self):
        return tuple(f"cut {k}|{k + 1}" for k in range(self.num_classes - 1))

    def natural(self, u):
        numpy = library(u)
        rate = np.arange(self.num_classes - 1, 0, -1).astype(u.dtype)
        a = numpy.maximum(numpy.cumsum(exponential(u) / rate, axis=-1), 1e-30)  # -log P(y > k), of stick-breaking
        cuts = a + numpy.log(-numpy.expm1(-a))
        return tuple(cuts[..., k] for k in range(self.num_classes - 1))

    def loss(self, t, y, *given):
        numpy = library(t)
        y = numpy.asarray(y)
        cuts = numpy.stack(numpy.broadcast_arrays(*given, t)[:-1], axis=-1)
        code = numpy.broadcast_to(y.astype(int), t.shape)[..., None]
        top = self.num_classes - 1
        upper = numpy.take_along_axis(cuts, numpy.minimum(code, top - 1), axis=-1)[..., 0]
        lower = numpy.take_along_axis(cuts, numpy.maximum(code - 1, 0), axis=-1)[..., 0]
        inside = (y > 0) & (y < top)
        gap = numpy.where(inside, numpy.maximum(upper - lower, 1e-30), 1.0)
        found = numpy.where(inside, numpy.log(-numpy.expm1(-gap)), 0.0)
        return -(
            found + numpy.where(y < top, log_sigmoid(upper - t), 0.0) + numpy.where(y > 0, log_sigmoid(t - lower), 0.0)
        )

    def mean(self, t, *given):
        numpy = library(t)
        upto = [sigmoid(c - t) for c in given]
        ends = [*upto, numpy.ones_like(upto[0])]
        return numpy.stack([ends[0], *(b - a for a, b in itertools.pairwise(ends))], axis=-1)

    def variance(self, mean, *given):
        return mean * (1 - mean)

    def sample(self, rng, t, *given):
        noise = rng.logistic(size=np.shape(t))
        return sum((t + noise > c).astype(float) for c in given)

    def cdf(self, y, t, *given):
        upto = np.cumsum(self.mean(t, *given), axis=-1)
        code = np.broadcast_to(np.floor(y).astype(int), upto.shape[:-1])[..., None]
        found = np.take_along_axis(upto, np.clip(code, 0, self.num_classes - 1), axis=-1)[..., 0]
        return np.where(code[..., 0] < 0, 0.0, np.where(code[..., 0] >= self.num_classes - 1, 1.0, found))
