"""Families of counts: Poisson, with zeros of its own, Conway–Maxwell–Poisson, negative binomial, binomial, beta-binomial."""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import numpy as np
import scipy

from gyromc.targets.functions import library, log_gamma, log_sigmoid, rising, sigmoid, softplus, uniform
from gyromc.targets.likelihoods import Canonical, Effect, Likelihood, LinkFunction, LogLink, Wording
from gyromc.targets.priors import Domain, Further, dispersion

LEAST_ZEROS = 1e-9  # probability of a zero, and of another count
LEAST_LOG_RATE = -20.0  # below, a count that is not zero is one
LOG_NU = (-3.0, 5.0)  # ends of log ν: beyond, sums lose their digits
MOST_LOG_MODE = 40.0  # beyond, all counts are the largest
NEWTON_STEPS, NEWTON_ERROR = 20, 1e-6  # the error of the variance is of its order
SMALLEST_TERM = 1e-15  # of a sum whose largest term is 1

RATE = Effect("the logarithm of {name}'s expectation", "change of the log rate", "rate ratio")
SUCCESS = Effect("the log-odds of a success", "change of the log-odds", "odds ratio")
ZEROS = Further(
    "zeros",
    lambda u: library(u).clip(uniform(u), LEAST_ZEROS, 1 - LEAST_ZEROS),
    lambda share: 0.0 * share,
    "The share of zeros: uniform.",
    Domain.SHARE,
)
EVENNESS = Further(
    "nu",
    lambda u: library(u).exp(library(u).clip(u, *LOG_NU)),
    lambda nu: -0.5 * library(nu).log(nu) ** 2 - library(nu).log(nu),
    "The logarithm of nu: N(0, 1).",
)


class _Counts(LogLink):
    """Counts with the mean eᵗ."""

    needs = "counts (0, 1, 2, …)"

    def constant(self, y, *given):
        return scipy.special.gammaln(y + 1)


class _OfTrials(Likelihood):
    """Successes among n trials, whose number is given for every row, with the mean n/(1 + e⁻ᵗ)."""

    link, needs, known = LinkFunction.LOGIT, _Counts.needs, ("trials",)

    def mean(self, t, *given):
        return given[0] * sigmoid(t)

    def constant(self, y, *given):
        n = given[0]
        return scipy.special.gammaln(y + 1) + scipy.special.gammaln(n - y + 1) - scipy.special.gammaln(n + 1)


class Poisson(_Counts, Canonical):
    """y ~ Poisson(eᵗ)."""

    name = "poisson"
    rank, wider = 0, "negative-binomial"
    words = Wording("Poisson regression", "{name} is a Poisson count", RATE, "a Poisson law")

    def loss(self, t, y, *given):
        return library(t).exp(t) - y * t

    def variance(self, mean, *given):
        return mean

    def sample(self, rng, t, *given):
        return rng.poisson(np.exp(t)).astype(float)

    def cdf(self, y, t, *given):
        return np.where(y < 0, 0.0, scipy.special.pdtr(np.maximum(y, 0), np.exp(t)))


class NegativeBinomial(_Counts):
    """Counts with mean μ = eᵗ and variance μ + μ²/shape."""

    name = "negative-binomial"
    convex = True
    aliases = ("negbinomial", "negbin", "nb", "nbinom2")
    rank = 3
    further = (dispersion("shape"),)
    words = Wording(
        "negative binomial regression", "{name} varies more than a Poisson count", RATE, "a negative binomial law"
    )

    def loss(self, t, y, s):
        numpy = library(t)
        return (y + s) * numpy.log1p(numpy.exp(t) / s) - y * t - rising(s, y)

    def variance(self, mean, s):
        return mean + mean**2 / s

    def sample(self, rng, t, s):
        return rng.poisson(rng.gamma(np.broadcast_to(s, np.shape(t)), np.exp(t) / s)).astype(float)

    def cdf(self, y, t, s):
        return np.where(y < 0, 0.0, scipy.special.betainc(s, np.maximum(np.floor(y), 0) + 1, s / (s + np.exp(t))))


class Binomial(_OfTrials):
    """y successes of n trials, each with the chance p = 1/(1 + e⁻ᵗ): logistic regression of rows that sum up trials."""

    name = "binomial"
    convex = True
    rank, wider = 1, "beta-binomial"
    words = Wording("binomial regression", "{name} counts successes among trials", SUCCESS, "a binomial law")

    def loss(self, t, y, n):
        return n * softplus(t) - y * t

    def variance(self, mean, n):
        return mean * (1 - mean / n)

    def sample(self, rng, t, n):
        n = np.broadcast_to(n, np.shape(t))
        return rng.binomial(n.astype(int), sigmoid(t)).astype(float)

    def cdf(self, y, t, n):
        y = np.floor(np.minimum(y, n))
        return np.where(y < 0, 0.0, scipy.special.bdtr(np.maximum(y, 0), np.asarray(n).astype(int), sigmoid(t)))


class BetaBinomial(_OfTrials):
    """y successes of n trials, whose chance has a beta law with mean p = 1/(1 + e⁻ᵗ) and `concentration` a + b."""

    name = "beta-binomial"
    aliases = ("betabinomial",)
    rank = 4
    further = (dispersion("concentration"),)
    words = Wording(
        "beta-binomial regression", "{name} varies more than a binomial count", SUCCESS, "a beta-binomial law"
    )

    def loss(self, t, y, n, k):
        maximum = library(t).maximum
        a, b = maximum(k * sigmoid(t), 1e-30), maximum(k * sigmoid(-t), 1e-30)
        ratio = rising(a, y) + rising(b, n - y) - rising(k, n)
        return -ratio - y * log_sigmoid(t) - (n - y) * log_sigmoid(-t)

    def variance(self, mean, n, k):
        """Of y: n p (1 - p) (n + a + b)/(1 + a + b)."""
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


class ZeroInflatedPoisson(_Counts):
    """A zero with the probability `zeros`, else a Poisson count with mean eᵗ, which may be zero too."""

    name = "zero-inflated-poisson"
    aliases = ("zip", "zeroinflatedpoisson")
    rank, wider = 14, "zero-inflated-negative-binomial"
    further: ClassVar[tuple[Further, ...]] = (ZEROS,)
    words = Wording(
        "zero-inflated Poisson regression",
        "{name} is zero for a share of the rows, else a Poisson count",
        Effect("the logarithm of that count's expectation", RATE.label, RATE.ratio),
        "a Poisson law with more zeros",
    )

    # Of the counts that have no zeros of their own; what it depends on besides t is `given` after `zeros`.
    _loss: ClassVar[Callable] = Poisson.loss
    _others: ClassVar[Callable] = Poisson.sample
    _others_upto: ClassVar[Callable] = Poisson.cdf

    def start(self, y):
        return np.log(y[y > 0].mean(keepdims=True)) if np.any(y > 0) else np.zeros(1)

    def loss(self, t, y, zeros, *given):
        numpy = library(t)
        none = -numpy.logaddexp(numpy.log(zeros), numpy.log1p(-zeros) - self._loss(t, 0.0, *given))
        return numpy.where(y == 0, none, self._loss(t, y, *given) - numpy.log1p(-zeros))

    def mean(self, t, zeros, *given):
        return (1 - zeros) * library(t).exp(t)

    def variance(self, mean, zeros, *given):
        return mean + mean**2 * zeros / (1 - zeros)

    def sample(self, rng, t, zeros, *given):
        return np.where(rng.random(np.shape(t)) < zeros, 0.0, self._others(rng, t, *given))

    def cdf(self, y, t, zeros, *given):
        return np.where(y < 0, 0.0, zeros + (1 - zeros) * self._others_upto(np.maximum(y, 0), t, *given))


class ZeroInflatedNegativeBinomial(ZeroInflatedPoisson):
    """A zero with the probability `zeros`, else a negative binomial count with mean eᵗ, which may be zero too."""

    name = "zero-inflated-negative-binomial"
    aliases = ("zinb", "zeroinflatednegbinomial", "zeroinflatednegativebinomial")
    rank, wider = 19, None
    further = (ZEROS, dispersion("shape"))
    words = Wording(
        "zero-inflated negative binomial regression",
        "{name} is zero for a share of the rows, else a negative binomial count",
        ZeroInflatedPoisson.words.effect,
        "a negative binomial law with more zeros",
    )
    _loss, _others, _others_upto = NegativeBinomial.loss, NegativeBinomial.sample, NegativeBinomial.cdf

    def variance(self, mean, zeros, *given):
        return super().variance(mean, zeros) + mean**2 / ((1 - zeros) * given[0])


class HurdlePoisson(ZeroInflatedPoisson):
    """A zero with the probability `zeros`, else a Poisson count of rate eᵗ that is not zero."""

    name = "hurdle-poisson"
    aliases = ("hurdle", "hurdlepoisson")
    rank = 15
    words = Wording(
        "hurdle Poisson regression",
        "{name} is zero for a share of the rows, else a positive Poisson count",
        Effect("the logarithm of the rate of positive {name}", RATE.label, "ratio of the rates of positive counts"),
        "a Poisson law with its own share of zeros",
    )

    def _rate(self, t):
        return library(t).exp(library(t).maximum(t, LEAST_LOG_RATE))

    def loss(self, t, y, zeros):
        numpy, rate = library(t), self._rate(t)
        some = rate - y * t + numpy.log(-numpy.expm1(-rate)) - numpy.log1p(-zeros)
        return numpy.where(y == 0, -numpy.log(zeros), some)

    def mean(self, t, zeros):
        rate = self._rate(t)
        return (1 - zeros) * rate / -library(t).expm1(-rate)

    def variance(self, mean, zeros):
        positive = np.maximum(mean / (1 - zeros), 1 + 1e-9)  # r/(1 - e⁻ʳ), solved for r by Lambert's function
        rate = positive + scipy.special.lambertw(-positive * np.exp(-positive)).real
        return mean * (1 + rate) - mean**2

    def _others(self, rng, t, *given):
        # The first event comes at a time below 1, the others follow as a Poisson process.
        rate = self._rate(t)
        first = -np.log1p(rng.random(np.shape(t)) * np.expm1(-rate)) / rate
        return 1.0 + rng.poisson(rate * (1 - first))

    def _others_upto(self, y, t, *given):
        rate = self._rate(t)
        return np.clip((scipy.special.pdtr(y, rate) - np.exp(-rate)) / -np.expm1(-rate), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class ConwayMaxwellPoisson(LogLink):
    """Counts with p(y) ∝ (eᵗʸ/y!)^ν on 0 … most: Poisson for ν = 1, more even for ν > 1, less for ν < 1."""

    # eᵗ is nearly the mode, eᵗ - (1 - 1/ν)/2 the mean, eᵗ/ν the variance; all are sums to far beyond what was observed.
    name = "conway-maxwell-poisson"
    needs = _Counts.needs
    aliases = ("compois", "cmp", "compoisson", "conwaymaxwellpoisson")
    rank = 16
    further = (EVENNESS,)
    words = Wording(
        "Conway–Maxwell–Poisson regression",
        "{name} may vary less than a Poisson count (nu above 1)",
        Effect("the logarithm of {name}'s mode", "change of the log mode", "ratio of modes"),
        "a Conway–Maxwell–Poisson law",
    )
    most: int = 100

    @classmethod
    def made(cls, num_classes):
        return cls(2 * num_classes + 30)

    def loss(self, t, y, nu):
        if library(t) is np:
            log_sum = self._moments(t, nu, 1)[0]
        else:
            j = np.arange(self.most + 1.0)
            terms = library(t).asarray(nu)[..., None] * (j * t[..., None] - scipy.special.gammaln(j + 1))
            log_sum = jax.nn.logsumexp(terms, axis=-1)
        return log_sum - nu * (y * t - log_gamma(library(t).asarray(y) + 1.0))

    def _moments(self, t, nu, count: int) -> list[np.ndarray]:
        """log Σ_j (eᵗʲ/j!)^ν, and the means of j, j² …, so many in all."""
        t, nu = np.broadcast_arrays(np.asarray(t, float), nu)
        mode = np.clip(np.floor(np.exp(np.minimum(t, MOST_LOG_MODE))), 0, self.most)
        shift = nu * (mode * t - scipy.special.gammaln(mode + 1))
        sums = [np.zeros(t.shape) for _ in range(count)]
        for j in range(self.most + 1):
            term = np.exp(nu * (j * t - math.lgamma(j + 1)) - shift)
            for k, total in enumerate(sums):
                total += term if k == 0 else term * float(j) ** k
            if j > mode.max() and term.max() < SMALLEST_TERM:
                break
        return [shift + np.log(sums[0]), *(total / sums[0] for total in sums[1:])]

    def mean(self, t, nu):
        return self._moments(t, nu, 2)[1]

    def variance(self, mean, nu):
        """Var(y) of the law with this mean: its t by Newton's method, dE[y]/dt = ν Var(y)."""
        mean, nu = np.broadcast_arrays(np.asarray(mean, float), nu)
        t = np.log(np.maximum(mean + (1 - 1 / nu) / 2, mean / 4 + 1e-12))
        for _ in range(NEWTON_STEPS):
            _, first, second = self._moments(t, nu, 3)
            spread = np.maximum(second - first**2, 1e-12)
            step = np.clip((first - mean) / (nu * spread), -2.0, 2.0)
            if np.max(np.abs(step), initial=0.0) < NEWTON_ERROR:
                break
            t = t - step
        return spread

    def sample(self, rng, t, nu):
        log_sum = self._moments(t, nu, 1)[0]
        left, found = rng.random(np.shape(t)), np.zeros(np.shape(t))
        for j in range(self.most):
            left = left - np.exp(nu * (j * t - math.lgamma(j + 1)) - log_sum)
            if not (left > 0).any():
                break
            found += left > 0
        return found

    def cdf(self, y, t, nu):
        log_sum = self._moments(t, nu, 1)[0]
        found = np.zeros(np.broadcast_shapes(np.shape(t), np.shape(y)))
        for j in range(min(self.most, int(np.max(y, initial=0))) + 1):
            found += np.where(j <= y, np.exp(nu * (j * t - math.lgamma(j + 1)) - log_sum), 0.0)
        return np.minimum(found, 1.0)
