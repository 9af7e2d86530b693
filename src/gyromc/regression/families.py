"""The models a fit knows, as functions of the linear predictors t = xᵀθ in U(θ) = Σ_i loss(t_i, y_i) + |θ|²/(2σ₀²) (E1).

Receives linear predictors, draws × rows × q of them (q = 1, or C-1 for C classes), and responses; hands on losses, their
derivatives in t, and what the model expects of y. Plain NumPy: these run once or a few times on whole arrays, where compiling
would cost more than it saves; the sampler's gradients are those of `gyromc.targets`.
"""

import abc
import dataclasses
import functools

import numpy as np
from scipy import special

from gyromc.targets import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression, Target
from gyromc.targets.regressions import contrasts

__all__ = ["Family", "Linear", "Logistic", "Poisson", "Softmax"]


@dataclasses.dataclass(frozen=True)
class Family(abc.ABC):
    """A model of y given its linear predictors."""

    @property
    def outputs(self) -> int:
        """q, the number of linear predictors of a row."""
        return 1

    @property
    def basis(self) -> np.ndarray:
        """How the weights of what is predicted come from those of the linear predictors: outputs × q."""
        return np.eye(1)

    @abc.abstractmethod
    def target(self, X: np.ndarray, y: np.ndarray, prior_scale: float) -> Target:
        """The law of θ, for the sampler."""

    @abc.abstractmethod
    def losses(self, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        """-log p(y | t) up to a constant: … × rows."""

    @abc.abstractmethod
    def slopes(self, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        """∂ loss/∂t: … × rows × q."""

    @abc.abstractmethod
    def curvatures(self, t: np.ndarray) -> np.ndarray:
        """∂² loss/∂t², which no model here lets depend on y: … × rows × q × q."""

    @abc.abstractmethod
    def means(self, t: np.ndarray) -> np.ndarray:
        """E[y | t]: … × rows, or … × rows × C probabilities of the classes."""

    @abc.abstractmethod
    def noise(self, means: np.ndarray) -> np.ndarray:
        """The variance of y given its mean."""

    def constants(self, y: np.ndarray) -> np.ndarray:
        """-log p(y | t) less `losses`: what does not depend on t."""
        return np.zeros(len(y))

    def start(self, y: np.ndarray) -> np.ndarray:
        """The linear predictors that suit y best when nothing is known of x."""
        return np.zeros(self.outputs)


@dataclasses.dataclass(frozen=True)
class Linear(Family):
    """y = t + N(0, 1): the rows are divided by the noise's standard deviation before they come here."""

    def target(self, X, y, prior_scale):
        return LinearRegression(X, y, prior_scale=prior_scale)  # type: ignore[call-arg]

    def losses(self, t, y):
        return 0.5 * (t[..., 0] - y) ** 2

    def slopes(self, t, y):
        return t - y[:, None]

    def curvatures(self, t):
        return np.ones((*t.shape, 1))

    def means(self, t):
        return t[..., 0]

    def noise(self, means):
        return np.ones_like(means)

    def constants(self, y):
        return np.full(len(y), 0.5 * np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True)
class Logistic(Family):
    """P(y = 1) = 1/(1 + e⁻ᵗ)."""

    def target(self, X, y, prior_scale):
        return LogisticRegression(X, y, prior_scale)

    def losses(self, t, y):
        return np.logaddexp(0.0, t[..., 0]) - y * t[..., 0]

    def slopes(self, t, y):
        return special.expit(t) - y[:, None]

    def curvatures(self, t):
        p = special.expit(t)
        return (p * (1 - p))[..., None]

    def means(self, t):
        return special.expit(t[..., 0])

    def noise(self, means):
        return means * (1 - means)


@dataclasses.dataclass(frozen=True)
class Poisson(Family):
    """y ~ Poisson(eᵗ)."""

    def target(self, X, y, prior_scale):
        return PoissonRegression(X, y, prior_scale)

    def losses(self, t, y):
        return np.exp(t[..., 0]) - y * t[..., 0]

    def slopes(self, t, y):
        return np.exp(t) - y[:, None]

    def curvatures(self, t):
        return np.exp(t)[..., None]

    def means(self, t):
        return np.exp(t[..., 0])

    def noise(self, means):
        return means

    def constants(self, y):
        return special.gammaln(y + 1)

    def start(self, y):
        return np.log(y.mean(keepdims=True) + 0.5 / len(y))


@dataclasses.dataclass(frozen=True)
class Softmax(Family):
    """P(y = c) ∝ e^{(Bt)_c}, B the contrasts of `SoftmaxRegression`, whose prior keeps the difference of two classes at σ₀."""

    num_classes: int

    @property
    def outputs(self) -> int:
        return self.num_classes - 1

    @property
    def basis(self) -> np.ndarray:
        return contrasts(self.num_classes)

    def target(self, X, y, prior_scale):
        return SoftmaxRegression(X, y, prior_scale, self.num_classes)

    def losses(self, t, y):
        w = t @ self.basis.T
        own = np.take_along_axis(w, np.broadcast_to(y.astype(int)[:, None], (*w.shape[:-1], 1)), axis=-1)
        return special.logsumexp(w, axis=-1) - own[..., 0]

    def slopes(self, t, y):
        return (self.means(t) - (y[:, None] == np.arange(self.num_classes))) @ self.basis

    def curvatures(self, t):
        p, B = self.means(t), self.basis
        middle, squares = p @ B, (B[:, :, None] * B[:, None, :]).reshape(len(B), -1)
        return (p @ squares).reshape(*t.shape, -1) - middle[..., :, None] * middle[..., None, :]

    def means(self, t):
        weights = np.moveaxis(t @ self.basis.T, -1, 0)  # a few long arrays are quicker than many short ones
        p = np.exp(weights - functools.reduce(np.maximum, weights))
        return np.moveaxis(p / functools.reduce(np.add, p), 0, -1)

    def noise(self, means):
        return means * (1 - means)
