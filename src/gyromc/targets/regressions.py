"""Regressions: models that use the data only through linear predictors, U(θ) = Σ_i loss(x_iᵀθ, y_i) + |θ|²/(2σ₀²).

The formulas for y given its linear predictors are in `likelihoods`. Data are float64 NumPy arrays; engines cast them.
"""

import abc
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from gyromc.checks import positive, require, whole
from gyromc.errors import InvalidInput
from gyromc.runtime.machine import require_memory
from gyromc.targets.base import Scalar, SumOverData, read_rows
from gyromc.targets.families import Bernoulli, Categorical, Normal, Poisson
from gyromc.targets.likelihoods import Canonical

IN_CACHE = 2**16  # linear predictors of a block of rows at some points, so that arrays between them stay in the cache


class Regression(SumOverData):
    """The base of all regressions: rows x_i with responses y_i, and the prior θ ~ N(0, σ₀² I).

    `X` is the N × d design matrix, with a column of ones for an intercept; `y` are N responses, `prior_scale` is σ₀ > 0.
    """

    X: Float[np.ndarray, "rows d"]
    y: Float[np.ndarray, " rows"]
    prior_precision: Float[np.ndarray, ""]

    def __init__(self, X, y, prior_scale: float = 1.0):
        self.X, self.y = read_rows(X, y, least=(1, 1))
        self.prior_precision = np.asarray(positive(prior_scale, "prior_scale") ** -2)

    @abc.abstractmethod
    def loss(self, t: Scalar, y: Scalar) -> Scalar:
        """ℓ as a function of the linear predictor t = xᵀθ."""

    @abc.abstractmethod
    def slope(self, t: Scalar, y: Scalar) -> Scalar:
        """∂ loss / ∂t."""

    def by_column(self, params):
        """What the rows are multiplied by: θ, or a column for each linear predictor of a row."""
        return params

    def slopes(self, params, X, y):
        return (self.slope(X @ self.by_column(params), y).T @ X).reshape(-1)

    @property
    def num_data(self) -> int:
        return self.X.shape[0]

    @property
    def design(self) -> tuple[np.ndarray, np.ndarray]:
        return self.X, self.y

    def potential(self, params):
        losses = self.loss(self.X @ self.by_column(params), self.y)
        return jnp.sum(losses) + 0.5 * self.prior_precision * jnp.vdot(params, params)

    def gradient(self, params):
        return self.slopes(params, self.X, self.y) + self.prior_gradient(params)

    def batch_gradient(self, params, index):
        return self.slopes(params, jnp.asarray(self.X)[index], jnp.asarray(self.y)[index])

    def prior_gradient(self, params):
        return self.prior_precision * params


class KnownLikelihood(SumOverData):
    """A regression with a convex `Likelihood` and a Gaussian prior, wherever its rows are: U has one mode, grows as a square."""

    # U, ∇U and ∇²U at many points θ are computed by NumPy, nothing is compiled; a subclass sums over its rows.
    prior_precision: Float[np.ndarray, ""]

    @property
    @abc.abstractmethod
    def likelihood(self) -> Canonical:
        """The model of y given its linear predictors."""

    @abc.abstractmethod
    def over_data(self, function: Callable[[np.ndarray, np.ndarray], Any], points: int) -> Any:
        """The sum over blocks of rows of a function of (X, y), which is evaluated at so many points θ."""

    @abc.abstractmethod
    def start_point(self) -> np.ndarray:
        """Where Newton's method begins."""

    @abc.abstractmethod
    def sampled(self, count: int) -> "WithLikelihood":
        """The same model in memory, of so many random rows or all where there are fewer, with as much less prior."""

    def predictors(self, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Linear predictors of every row of X: … × rows, or … × rows × q where a row has several."""
        if not self.likelihood.vector:
            return theta @ X.T
        return np.swapaxes(theta.reshape(*theta.shape[:-1], self.likelihood.outputs, -1) @ X.T, -1, -2)

    def _parts(self, points: np.ndarray, rows: int) -> list[np.ndarray]:
        # Their linear predictors stay in the cache; fewer than eight points would read X again and again.
        count = max(8, IN_CACHE // (rows * self.likelihood.outputs))
        return [points[i : i + count] for i in range(0, len(points), count)]

    def _sums(self, function: Callable, points: np.ndarray) -> np.ndarray:
        block = lambda X, y: np.concatenate([function(part, X, y) for part in self._parts(points, len(X))])
        return self.over_data(block, len(points))

    def loss_sums(self, points: np.ndarray) -> np.ndarray:
        return self._sums(lambda part, X, y: self.likelihood.loss(self.predictors(part, X), y).sum(axis=-1), points)

    def slope_sums(self, points: np.ndarray) -> np.ndarray:
        def slopes(part: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
            found = self.likelihood.slope(self.predictors(part, X), y)
            return ((np.swapaxes(found, -1, -2) if self.likelihood.vector else found) @ X).reshape(part.shape)

        return self._sums(slopes, points)

    def mean_data_hessian(self, points: np.ndarray) -> np.ndarray:
        """The mean over points of Σ_i ∇²ℓ_i."""

        def block(X: np.ndarray, y: np.ndarray) -> np.ndarray:
            of = lambda part: self.likelihood.curvature(self.predictors(part, X)).sum(axis=0) / len(points)
            return self.curved(X, np.sum([of(part) for part in self._parts(points, len(X))], axis=0))

        return self.over_data(block, len(points))

    def curved(self, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Σ_i x_i x_iᵀ times the curvature of each row in its linear predictors, rows or rows × q × q."""
        if not self.likelihood.vector:
            roots = X * np.sqrt(w)[:, None]
            return roots.T @ roots  # symmetric: half the work
        q, p = self.likelihood.outputs, X.shape[1]
        K = np.empty((q, p, q, p))
        for a in range(q):
            for b in range(a, q):
                K[a, :, b] = (X * w[:, a, b, None]).T @ X
                K[b, :, a] = K[a, :, b]
        return K.reshape(q * p, q * p)

    def potentials(self, points):
        points = np.asarray(points, float)
        return self.loss_sums(points) + 0.5 * float(self.prior_precision) * np.sum(points**2, axis=-1)

    def gradients(self, points):
        points = np.asarray(points, float)
        return self.slope_sums(points) + float(self.prior_precision) * points

    def mean_hessian(self, points):
        return self.mean_data_hessian(np.asarray(points, float)) + float(self.prior_precision) * np.eye(len(points[0]))

    def hessians(self, points):
        return np.stack([self.mean_hessian(point[None]) for point in np.asarray(points, float)])

    def data_hessian(self, theta):
        return self.mean_data_hessian(np.asarray(theta, float)[None])

    def prior_gradient(self, params):
        return self.prior_precision * params


class WithLikelihood(Regression, KnownLikelihood):
    """A regression in memory with a `Likelihood`."""

    def __init__(self, X, y, prior_scale: float = 1.0):
        Regression.__init__(self, X, y, prior_scale)
        self.likelihood.require(self.y)

    @property
    def dim(self) -> int:
        return self.likelihood.outputs * self.X.shape[1]

    def loss(self, t, y):
        return self.likelihood.loss(t, y)

    def slope(self, t, y):
        return self.likelihood.slope(t, y)

    def by_column(self, params):
        return params.reshape(self.likelihood.outputs, -1).T if self.likelihood.vector else params

    def over_data(self, function, points):
        return function(np.asarray(self.X, float), np.asarray(self.y, float))

    def log_likelihoods(self, params):
        losses = self.likelihood.loss(jnp.asarray(self.X) @ self.by_column(params), self.y)
        return {"y": -losses - self.likelihood.constant(self.y)}

    def start_point(self) -> np.ndarray:
        """The least-squares θ for the linear predictors that fit y best without x."""
        wanted = np.broadcast_to(self.likelihood.start(self.y), (self.num_data, self.likelihood.outputs))
        if not np.any(wanted):
            return np.zeros(self.dim)
        return np.linalg.lstsq(self.X, wanted, rcond=None)[0].T.ravel()

    def sampled(self, count):
        if count >= self.num_data:
            return self
        rows = np.sort(np.random.default_rng(0).choice(self.num_data, count, replace=False))
        fields, prior = (lambda t: (t.X, t.y, t.prior_precision)), self.prior_precision * count / self.num_data
        return eqx.tree_at(fields, self, (self.X[rows], self.y[rows], prior))


def taylor_remainder(slope: Callable, X, y, theta, center, order: int):
    """Σ_i of slopes times rows at θ, less their Taylor polynomial around a center."""
    of, t = (lambda t: slope(t, y)), X @ center
    if order == 1:
        return (of(X @ theta) - of(t)) @ X
    there, along = jax.jvp(of, (t,), (X @ (theta - center),))
    return (of(X @ theta) - there - along) @ X  # T8


class GeneralizedLinear(Regression):
    """U(θ) = Σ_i loss(x_iᵀθ, y_i) + |θ|²/(2σ₀²): a model that uses the data only through the scalars x_iᵀθ.

    A subclass defines `loss(t, y)` and its derivative `slope(t, y)` in t; arguments as for `Regression`.
    """

    @property
    def dim(self) -> int:
        return self.X.shape[1]

    def remainder(self, theta, center, index, order):
        X, y = jnp.asarray(self.X)[index], jnp.asarray(self.y)[index]
        return taylor_remainder(self.slope, X, y, theta, center, order)

    def diagonal_product(self, center, direction, index):
        """Σ_{i ∈ index} diag(∇²ℓ_i(c)) times a direction."""
        X, y = jnp.asarray(self.X)[index], jnp.asarray(self.y)[index]
        t = X @ center
        return jax.jvp(lambda t: self.slope(t, y), (t,), (jnp.ones_like(t),))[1] @ X**2 * direction


class LinearRegression(WithLikelihood, GeneralizedLinear):
    """Bayesian linear regression with unit noise: y = Xθ + N(0, I), θ ~ N(0, σ₀² I).

    The posterior is Gaussian with precision K = XᵀX + σ₀⁻²I and mean K⁻¹Xᵀy.

    ```python
    import gyromc as gm
    target = gm.targets.LinearRegression([[1.0], [2.0]], [1.0, 2.0], prior_scale=2.0)
    print(target.gaussian()[0])  # [[5.25]]
    ```
    """

    likelihood: ClassVar[Canonical] = Normal()

    def gaussian(self):
        X, y = np.asarray(self.X, float), np.asarray(self.y, float)
        K = X.T @ X + float(self.prior_precision) * np.eye(self.dim)
        try:
            with warnings.catch_warnings(action="error", category=scipy.linalg.LinAlgWarning):
                return K, scipy.linalg.solve(K, X.T @ y, assume_a="pos")
        except (scipy.linalg.LinAlgError, scipy.linalg.LinAlgWarning) as error:
            what = f"determine their coefficients in double precision ({error})"
            why = f"The columns of X depend on each other, and the prior is too wide to {what}."
            raise InvalidInput(f"{why} Leave out a column, or take a smaller `prior_scale`.") from error


class LogisticRegression(WithLikelihood, GeneralizedLinear):
    """Bayesian logistic regression: P(y = 1 | x) = 1/(1 + e^{-xᵀθ}), θ ~ N(0, σ₀² I).

    ```python
    import gyromc as gm
    print(gm.targets.LogisticRegression([[1.0], [2.0]], [0, 1], prior_scale=1.0).num_data)  # 2
    ```
    """

    likelihood: ClassVar[Canonical] = Bernoulli()


class PoissonRegression(WithLikelihood, GeneralizedLinear):
    """Bayesian Poisson regression with a logarithmic link: y ~ Poisson(e^{xᵀθ}), θ ~ N(0, σ₀² I).

    The curvature grows like e^{xᵀθ}. Centre and scale X; else a step size that is right at the mode is too large elsewhere.

    ```python
    import gyromc as gm
    print(gm.targets.PoissonRegression([[1.0], [2.0]], [0, 3], prior_scale=1.0).num_data)  # 2
    ```
    """

    likelihood: ClassVar[Canonical] = Poisson()


class SoftmaxRegression(WithLikelihood):
    """Bayesian regression on C classes: P(y = c | x) ∝ e^{w_cᵀx}, the prior of w_c N(0, σ₀² I), their common part removed.

    Adding one vector to all w_c changes no probability. So with B an orthonormal basis of the vectors in R^C that sum to zero,
    the weights are W = BΘ (C × d), and Θ, (C-1) × d, has the prior N(0, σ₀² I); θ is Θ by rows. No class is singled out, and
    for C = 2 the model is logistic regression with prior scale √2 σ₀.

    **Arguments:**

    - `X`: N × d design matrix; add a column of ones for an intercept.
    - `y`: N classes, whole numbers from 0 to C-1.
    - `prior_scale`: σ₀ > 0.
    - `num_classes`: C; default: one more than the largest y.

    ```python
    import gyromc as gm
    target = gm.targets.SoftmaxRegression([[1.0], [2.0], [3.0]], [0, 1, 2], prior_scale=1.0)
    print(target.dim, target.weights(gm.observables.linear([0.5, -0.5]).direction).shape)  # 2 (3, 1)
    ```
    """

    num_classes: int = eqx.field(static=True)

    def __init__(self, X, y, prior_scale: float = 1.0, num_classes: int | None = None):
        Regression.__init__(self, X, y, prior_scale)
        Categorical.require(self.y)
        seen = int(self.y.max()) + 1
        count = max(2, seen) if num_classes is None else whole(num_classes, "num_classes", least=2)
        require(seen <= count, f"`y` holds class {seen - 1}, but `num_classes` is {count}: classes are counted from 0.")
        require_memory(8 * count**2, f"The weights of {count:,} classes", "Group classes that are rare.")
        self.num_classes = count

    @property
    def likelihood(self) -> Categorical:
        return _categorical(self.num_classes)

    @property
    def basis(self) -> np.ndarray:
        return self.likelihood.basis

    def weights(self, params):
        """W = BΘ, one row per class; the rows sum to zero."""
        return self.basis @ params.reshape(self.num_classes - 1, -1)


_categorical = functools.cache(Categorical)  # keeps the basis once computed
BY_FAMILY = {kind.likelihood.name: kind for kind in (LinearRegression, LogisticRegression, PoissonRegression)}
"""The target of each family that has coefficients only."""
