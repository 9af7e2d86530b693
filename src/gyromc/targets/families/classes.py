"""Families of classes: two (logistic, probit, complementary log-log), any number (softmax), or in their order (ordinal)."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.targets.functions import contrasts, exponential, library, log_ndtr, log_sigmoid, sigmoid, softplus, uniform
from gyromc.targets.likelihoods import Canonical, Effect, Likelihood, LinkFunction, ResponseKind, Wording
from gyromc.targets.priors import Domain, Further

MOST_LOG_RATE = 60.0  # beyond, an event is certain in every precision
LEAST_LOG_RATE = -12.0  # below, log(1 - e⁻ʳ) is log r - r/2 to all digits


class _TwoClasses(Likelihood):
    """y is 1 with the probability mean(t), else 0."""

    response = ResponseKind.CLASSES
    needs = "0 or 1"
    remedy = "Encode the positive class as 1, for example `(y == {value:g}).astype(int)`."

    @classmethod
    def allowed(cls, y):
        return (y == 0) | (y == 1)

    def variance(self, mean, *given):
        return mean * (1 - mean)

    def sample(self, rng, t, *given):
        return (rng.random(np.shape(t)) < self.mean(t)).astype(float)

    def cdf(self, y, t, *given):
        return np.where(y < 0, 0.0, np.where(y < 1, np.exp(-self.loss(t, 0.0)), 1.0))


class Bernoulli(_TwoClasses, Canonical):
    """P(y = 1) = 1/(1 + e⁻ᵗ)."""

    name = "logistic"
    aliases = ("bernoulli",)
    link, rank = LinkFunction.LOGIT, 2
    words = Wording(
        "logistic regression",
        "The log-odds of {name} = {positive} are a linear combination of the columns.",
        Effect("the log-odds of {name} = {positive}", "change of the log-odds", "odds ratio"),
    )

    def loss(self, t, y, *given):
        return softplus(t) - y * t

    def mean(self, t, *given):
        return sigmoid(t)


class Probit(_TwoClasses):
    """P(y = 1) = Φ(t): y is 1 where t plus standard normal noise is positive."""

    name = "probit"
    link, rank = LinkFunction.PROBIT, 10
    words = Wording(
        "probit regression",
        "The probability of {name} = {positive} is the normal distribution function of a linear combination of the columns.",
        Effect("the normal quantile of P({name} = {positive})", "change of the normal quantile"),
    )

    def loss(self, t, y, *given):
        return -log_ndtr((2 * y - 1) * t)

    def mean(self, t, *given):
        return uniform(t)


class Cloglog(_TwoClasses):
    """P(y = 1) = 1 - exp(-eᵗ): whether an event of rate eᵗ comes at least once."""

    name = "cloglog"
    link, rank = LinkFunction.CLOGLOG, 11
    words = Wording(
        "complementary log-log regression",
        "The logarithm of the rate at which {name} = {positive} comes about is a linear combination of the columns.",
        Effect("the logarithm of the rate of {name} = {positive}", "change of the log rate", "ratio of rates"),
    )

    def loss(self, t, y, *given):
        numpy = library(t)
        rate = numpy.exp(numpy.minimum(t, MOST_LOG_RATE))
        # log(1 - e⁻ʳ) = log r - r/2 for small r, where 1 - e⁻ʳ has lost its digits
        inner = numpy.where(t > LEAST_LOG_RATE, rate, 1.0)
        found = numpy.where(t > LEAST_LOG_RATE, numpy.log(-numpy.expm1(-inner)), t - rate / 2)
        return numpy.where(y == 1, -found, rate)

    def mean(self, t, *given):
        return -library(t).expm1(-library(t).exp(library(t).minimum(t, MOST_LOG_RATE)))


@dataclasses.dataclass(frozen=True)
class _Classes(Likelihood):
    """Any number of classes, `num_classes` C, with the probabilities mean(t)."""

    response, link = ResponseKind.CLASSES, LinkFunction.LOGIT
    needs = "classes 0, 1, 2, …"
    remedy = "Encode them: `np.unique(y, return_inverse=True)[1]`."
    num_classes: int

    @classmethod
    def made(cls, num_classes):
        return cls(num_classes)

    def variance(self, mean, *given):
        return mean * (1 - mean)

    def cdf(self, y, t, *given):
        upto = np.arange(self.num_classes) <= np.asarray(y)[..., None]
        return np.minimum(np.sum(self.mean(t, *given) * upto, axis=-1), 1.0)


class Categorical(_Classes, Canonical):
    """P(y = c) ∝ e^{(Bt)_c}, B the orthonormal `contrasts` of the classes.

    - `num_classes`: C; a row has C-1 linear predictors.
    """

    name = "softmax"
    aliases = ("multinomial", "categorical")
    rank, vector = 9, True
    words = Wording(
        "softmax regression",
        "Every class has a linear combination of the columns; its probability goes with the exponential of that.",
        Effect("a class's log-probability against the average of all classes", "change of the log-probability"),
    )

    @property
    def outputs(self) -> int:
        return self.num_classes - 1

    @functools.cached_property
    def basis(self) -> np.ndarray:
        return contrasts(self.num_classes)

    def _weights(self, t):
        return t @ self.basis.astype(t.dtype).T

    def loss(self, t, y, *given):
        weights, numpy = self._weights(t), library(t)
        label = numpy.broadcast_to(numpy.asarray(y, dtype=int)[:, None], (*weights.shape[:-1], 1))
        own = numpy.take_along_axis(weights, label, axis=-1)[..., 0]
        total = scipy.special.logsumexp(weights, axis=-1) if numpy is np else jax.nn.logsumexp(weights, axis=-1)
        return total - own

    def slope(self, t, y):
        return (self.mean(t) - (y[:, None] == library(t).arange(self.num_classes))) @ self.basis.astype(t.dtype)

    def curvature(self, t):
        p, B = self.mean(t), self.basis.astype(t.dtype)
        middle, squares = p @ B, (B[:, :, None] * B[:, None, :]).reshape(self.num_classes, -1)
        return (p @ squares).reshape(*t.shape, self.outputs) - middle[..., :, None] * middle[..., None, :]

    def mean(self, t, *given):
        weights = self._weights(t)
        if library(t) is jnp:
            return jax.nn.softmax(weights, axis=-1)
        columns = np.moveaxis(weights, -1, 0)  # a few long arrays are quicker than many short ones
        p = np.exp(columns - functools.reduce(np.maximum, columns))
        return np.moveaxis(p / functools.reduce(np.add, p), 0, -1)

    def sample(self, rng, t, *given):
        below = np.cumsum(self.mean(t), axis=-1)[..., :-1]
        return np.sum(rng.random((*below.shape[:-1], 1)) > below, axis=-1).astype(float)


def _cutpoints(u):
    """Cutpoints, … × C-1: the probabilities of the classes are uniform, by stick-breaking."""
    numpy = library(u)
    rate = np.arange(u.shape[-1], 0, -1).astype(u.dtype)
    a = numpy.maximum(numpy.cumsum(exponential(u) / rate, axis=-1), 1e-30)  # -log P(y > k)
    return a + numpy.log(-numpy.expm1(-a))


CUTPOINTS = Further(
    "cutpoints",
    _cutpoints,
    lambda cuts: library(cuts).sum(log_sigmoid(cuts) + log_sigmoid(-cuts), axis=-1),
    "The classes' probabilities at the columns' means: Dirichlet(1, …, 1).",
    Domain.CUTPOINTS,
)


class Ordinal(_Classes):
    """Ordered classes: P(y ≤ k) = 1/(1 + e^{t - c_k}) with cutpoints c_0 < c_1 < …

    - `num_classes`: C; there are C-1 cutpoints.
    """

    name = "ordinal"
    aliases = ("cumulative",)
    rank, cutpoints = 8, True
    further = (CUTPOINTS,)
    words = Wording(
        "ordinal regression",
        "The log-odds of a higher class of {name} are a linear combination of the columns, less a cutpoint for each class.",
        Effect("the log-odds of a higher class", "change of the log-odds", "odds ratio of a higher class"),
    )

    @functools.cached_property
    def auxiliary(self):  # type: ignore[override]  # as many as the classes ask for
        return tuple(f"cut {k}|{k + 1}" for k in range(self.num_classes - 1))

    def natural(self, u):
        return tuple(library(u).moveaxis(CUTPOINTS.natural(u), -1, 0))

    def prior_change(self, given, priors):
        if not priors:
            return 0.0
        cuts = library(given[0]).stack(given, axis=-1)
        asked = priors["cutpoints"].log_density(cuts)
        # A law of one number is that of each cutpoint, in ascending order.
        return CUTPOINTS.log_density(cuts) - (asked.sum(axis=-1) if asked.ndim == cuts.ndim else asked)

    def drawn(self, rng, shape, priors):
        if not priors:
            return self.natural(rng.standard_normal((*shape, self.num_classes - 1)))
        prior, count = priors["cutpoints"], self.num_classes
        if prior.law == "dirichlet":
            shares = rng.dirichlet(np.full(count, prior["concentration"]), shape)
            cuts = scipy.special.logit(np.clip(np.cumsum(shares, axis=-1)[..., :-1], 1e-12, 1 - 1e-12))
        else:
            # Independent numbers with an ascending order are numbers in their order.
            cuts = np.sort(prior.draw(rng, (*shape, count - 1)), axis=-1)
        return tuple(np.moveaxis(cuts, -1, 0))

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
        between = numpy.where(inside, numpy.log(-numpy.expm1(-gap)), 0.0)
        below = numpy.where(y < top, log_sigmoid(upper - t), 0.0)
        return -(between + below + numpy.where(y > 0, log_sigmoid(t - lower), 0.0))

    def mean(self, t, *given):
        numpy = library(t)
        upto = [sigmoid(c - t) for c in given]
        ends = [*upto, numpy.ones_like(upto[0])]
        return numpy.stack([ends[0], *(b - a for a, b in itertools.pairwise(ends))], axis=-1)

    def sample(self, rng, t, *given):
        noise = rng.logistic(size=np.shape(t))
        return sum((t + noise > c).astype(float) for c in given)
