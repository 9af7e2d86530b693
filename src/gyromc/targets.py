"""Targets: the potential U of the law μ ∝ exp(-H), H(θ, r) = U(θ) + ½|r|² (E1).

Receives a model and its data; hands on U, ∇U and, for sums over data, the pieces a mini-batch needs. What is known of
the structure stays visible (`gaussian()`, `separable()`, `design`), since closed forms and fused engines live on it. Data are
kept in float64 NumPy; an engine casts them to its own precision.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gyromc.checks import numbers, positive, require, require_finite, whole
from gyromc.errors import InvalidInput

__all__ = [
    "CosinePerturbed",
    "FiniteSum",
    "GeneralizedLinear",
    "LinearRegression",
    "LogDensity",
    "LogisticRegression",
    "Quadratic",
    "SumOverData",
    "Target",
]

Params = Any
Theta = Float[Array | np.ndarray, " d"]
Scalar = Float[Array | np.ndarray, ""]


class Target(eqx.Module):
    """A potential U(θ); the parameters may be a vector or any pytree of arrays."""

    @abc.abstractmethod
    def potential(self, params: Params) -> Scalar:
        """U(θ), up to a constant."""

    def gradient(self, params: Params) -> Params:
        """∇U(θ)."""
        return jax.grad(self.potential)(params)

    @property
    def dim(self) -> int | None:
        """The number of parameters, or None when only the start tells it."""
        return None

    def gaussian(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(precision matrix, mean) when the target is Gaussian, else None."""
        return None

    def separable(self) -> tuple[Callable, ...] | None:
        """The one-dimensional potentials v_i with U(θ) = Σ v_i(θ_i), or None."""
        return None


class SumOverData(Target):
    """U(θ) = Σ_i ℓ_i(θ) + prior(θ): what a mini-batch oracle asks for."""

    @property
    @abc.abstractmethod
    def num_data(self) -> int:
        """N, the number of terms."""

    @abc.abstractmethod
    def batch_gradient(self, params: Params, index: Int[Array, " b"]) -> Params:
        """Σ_{i ∈ index} ∇ℓ_i(θ), counted with multiplicity."""

    @abc.abstractmethod
    def prior_gradient(self, params: Params) -> Params:
        """The gradient of the prior's part of U."""

    def weighted_gradient(self, params: Params, index: Int[Array, " b"], weight: float) -> Params:
        """weight · Σ_{i ∈ index} ∇ℓ_i(θ) plus the prior's gradient."""
        parts = self.batch_gradient(params, index), self.prior_gradient(params)
        return jax.tree.map(lambda likelihood, prior: weight * likelihood + prior, *parts)


class Quadratic(Target):
    """A Gaussian target: U(θ) = ½ (θ - m)ᵀ P (θ - m).

    **Arguments:**

    - `precision`: P, symmetric positive definite; a vector is a diagonal.
    - `mean`: m; zeros when left out.

    ```python
    import gyromc as gm
    target = gm.targets.Quadratic([[2.0, 0.5], [0.5, 1.0]])
    assert target.dim == 2
    ```
    """

    precision: np.ndarray
    mean: np.ndarray

    def __init__(self, precision, mean=None):
        P = numbers(precision, "precision")
        require(
            P.size > 0 and (P.ndim == 1 or (P.ndim == 2 and P.shape[0] == P.shape[1])),
            f"`precision` must be a square matrix or a vector (a diagonal): got shape {P.shape}.",
        )
        if P.ndim == 2:
            gap = np.abs(P - P.T)
            require(
                gap.max() <= 1e-6 * np.abs(P).max(),
                f"`precision` must be symmetric: max |P - Pᵀ| = {gap.max():.3g} at "
                f"{tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))}. Pass `(P + P.T) / 2`.",
            )
            P = (P + P.T) / 2
        smallest = float(P.min() if P.ndim == 1 else np.linalg.eigvalsh(P)[0])
        require(
            smallest > 0,
            f"`precision` must be positive definite, or exp(-U) has no finite integral: its smallest eigenvalue is "
            f"{smallest:.6g}. Add a prior (a multiple of the identity) or drop the directions the data leave open.",
        )
        m = np.zeros(P.shape[0]) if mean is None else numbers(mean, "mean")
        require(m.shape == P.shape[:1], f"`mean` must have {P.shape[0]} entries: got shape {m.shape}.")
        self.precision, self.mean = P, m

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    def _stretch(self, x: Theta) -> Theta:
        return self.precision * x if self.precision.ndim == 1 else self.precision @ x

    def potential(self, params):
        x = params - self.mean
        return 0.5 * jnp.vdot(x, self._stretch(x))

    def gradient(self, params):
        return self._stretch(params - self.mean)

    def gaussian(self):
        P = np.asarray(self.precision, float)
        return (np.diag(P) if P.ndim == 1 else P), np.asarray(self.mean, float)

    def separable(self):
        P = np.asarray(self.precision, float)
        if P.ndim == 2:
            if np.any(P - np.diag(np.diag(P))):
                return None
            P = np.diag(P)
        return tuple(lambda t, p=p, m=m: 0.5 * p * (t - m) ** 2 for p, m in zip(P, self.mean, strict=True))


class CosinePerturbed(Target):
    """U(θ) = ½|θ|² + β Σ cos θ_i: not convex for |β| > 1, and even in every coordinate.

    **Arguments:**

    - `dim`: the dimension d.
    - `beta`: β, any finite number; 0 is the standard Gaussian.

    ```python
    import gyromc as gm
    assert gm.targets.CosinePerturbed(3, 1.2).dim == 3
    ```
    """

    beta: np.ndarray
    size: int = eqx.field(static=True)

    def __init__(self, dim: int, beta: float):
        self.size = whole(dim, "dim", least=1)
        self.beta = numbers(beta, "beta")
        require(self.beta.ndim == 0, f"`beta` must be one number: got shape {self.beta.shape}.")

    @property
    def dim(self) -> int:
        return self.size

    def potential(self, params):
        return 0.5 * jnp.vdot(params, params) + self.beta * jnp.sum(jnp.cos(params))

    def gradient(self, params):
        return params - self.beta * jnp.sin(params)

    def gaussian(self):
        return (np.eye(self.size), np.zeros(self.size)) if float(self.beta) == 0 else None

    def separable(self):
        beta = float(self.beta)
        return (lambda t: 0.5 * t**2 + beta * np.cos(t),) * self.size


class GeneralizedLinear(SumOverData):
    """U(θ) = Σ_i loss(x_iᵀθ, y_i) + |θ|²/(2σ₀²): a model that meets the data only through the scalars x_iᵀθ.

    A subclass gives `loss(t, y)` and its derivative `slope(t, y)` in t.

    **Arguments:**

    - `X`: N × d design matrix; add a column of ones for an intercept.
    - `y`: N responses.
    - `prior_scale`: σ₀ > 0 of the prior N(0, σ₀² I).
    """

    X: np.ndarray
    y: np.ndarray
    prior_precision: np.ndarray

    def __init__(self, X, y, prior_scale: float = 1.0):
        self.X, self.y = numbers(X, "X"), numbers(y, "y")
        require(
            self.X.ndim == 2 and self.X.size > 0,
            f"`X` must be a matrix with one row per observation: got shape {self.X.shape}.",
        )
        require(
            self.y.shape == self.X.shape[:1],
            f"`y` must have one entry per row of `X`: X has {self.X.shape[0]} rows, y has shape {self.y.shape}.",
        )
        self.prior_precision = np.asarray(positive(prior_scale, "prior_scale") ** -2)

    @abc.abstractmethod
    def loss(self, t: Scalar, y: Scalar) -> Scalar:
        """ℓ as a function of the linear predictor t = xᵀθ."""

    @abc.abstractmethod
    def slope(self, t: Scalar, y: Scalar) -> Scalar:
        """∂ loss / ∂t."""

    @property
    def dim(self) -> int:
        return self.X.shape[1]

    @property
    def num_data(self) -> int:
        return self.X.shape[0]

    @property
    def design(self) -> tuple[np.ndarray, np.ndarray]:
        """(X, y)."""
        return self.X, self.y

    def potential(self, params):
        prior = 0.5 * self.prior_precision * jnp.vdot(params, params)
        return jnp.sum(self.loss(self.X @ params, self.y)) + prior

    def gradient(self, params):
        return self.slope(self.X @ params, self.y) @ self.X + self.prior_gradient(params)

    def batch_gradient(self, params, index):
        rows = jnp.asarray(self.X)[index]
        return self.slope(rows @ params, jnp.asarray(self.y)[index]) @ rows

    def prior_gradient(self, params):
        return self.prior_precision * params


class LinearRegression(GeneralizedLinear):
    """Bayesian linear regression with unit noise: y = Xθ + N(0, I), θ ~ N(0, σ₀² I).

    The posterior is Gaussian with precision K = XᵀX + σ₀⁻²I and mean K⁻¹Xᵀy.

    ```python
    import gyromc as gm
    target = gm.targets.LinearRegression([[1.0], [2.0]], [1.0, 2.0], prior_scale=2.0)
    assert target.gaussian()[0] == [[5.25]]
    ```
    """

    def loss(self, t, y):
        return 0.5 * (t - y) ** 2

    def slope(self, t, y):
        return t - y

    def gaussian(self):
        X, y = np.asarray(self.X, float), np.asarray(self.y, float)
        K = X.T @ X + float(self.prior_precision) * np.eye(self.dim)
        return K, np.linalg.solve(K, X.T @ y)


class LogisticRegression(GeneralizedLinear):
    """Bayesian logistic regression: P(y = 1 | x) = 1/(1 + e^{-xᵀθ}), θ ~ N(0, σ₀² I).

    ```python
    import gyromc as gm
    assert gm.targets.LogisticRegression([[1.0], [2.0]], [0, 1], prior_scale=1.0).num_data == 2
    ```
    """

    def __init__(self, X, y, prior_scale: float = 1.0):
        super().__init__(X, y, prior_scale)
        odd = np.flatnonzero((self.y != 0) & (self.y != 1))
        if odd.size:
            found = ", ".join(f"{v:g}" for v in np.unique(self.y[odd])[:5])
            raise InvalidInput(
                f"`y` must be 0 or 1: row {odd[0]} has {self.y[odd[0]]:g} ({odd.size} rows differ; values {found}). "
                f"Encode the positive class as 1, for example `(y == {self.y[odd[0]]:g}).astype(int)`."
            )

    def loss(self, t, y):
        return jnp.logaddexp(0.0, t) - y * t

    def slope(self, t, y):
        return jax.nn.sigmoid(t) - y


class FiniteSum(SumOverData):
    """Your own model as a sum over data: U(θ) = -Σ_i log_likelihood(θ, datum_i) - log_prior(θ).

    **Arguments:**

    - `log_likelihood`: function of (params, datum) for one datum, returning a scalar.
    - `log_prior`: function of params, returning a scalar.
    - `data`: an array or a pytree of arrays; the first axis of each leaf runs over the data.

    The parameters are whatever pytree the plan's `start` is.

    ```python
    import jax.numpy as jnp
    import gyromc as gm
    target = gm.targets.FiniteSum(lambda mu, x: -0.5 * (x - mu) ** 2, lambda mu: -0.5 * mu**2, jnp.arange(3.0))
    assert target.num_data == 3
    ```
    """

    log_likelihood: Callable
    log_prior: Callable
    data: Any

    def __init__(self, log_likelihood: Callable, log_prior: Callable, data: Any):
        for name, function in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            require(callable(function), f"`{name}` must be a function: got {type(function).__name__}.")
        leaves = jax.tree_util.tree_leaves_with_path(data)
        require(leaves, "`data` must hold at least one array: got an empty pytree.")
        lengths = {}
        for path, leaf in leaves:
            where = f"data{jax.tree_util.keystr(path)}"
            require(
                np.ndim(leaf) >= 1,
                f"Every array in `data` needs a first axis over observations: {where} is a single number.",
            )
            require_finite(np.asarray(leaf), where)
            lengths[where] = np.shape(leaf)[0]
        require(
            len(set(lengths.values())) == 1 and min(lengths.values()) > 0,
            f"All arrays in `data` must have the same, positive length along the first axis: got {lengths}.",
        )
        self.log_likelihood, self.log_prior = log_likelihood, log_prior
        self.data = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else np.asarray(x), data)

    @property
    def num_data(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def _batch_potential(self, params, data):
        terms = jax.vmap(self.log_likelihood, in_axes=(None, 0))(params, data)
        require(
            terms.ndim == 1,
            f"`log_likelihood` must return one number per datum: it returned shape {terms.shape[1:]}. "
            "Sum over the response's components.",
        )
        return -jnp.sum(terms)

    def potential(self, params):
        return self._batch_potential(params, self.data) - self._prior(params)

    def _prior(self, params):
        return _scalar(self.log_prior(params), "log_prior")

    def batch_gradient(self, params, index):
        batch = jax.tree.map(lambda x: jnp.asarray(x)[index], self.data)
        return jax.grad(self._batch_potential)(params, batch)

    def prior_gradient(self, params):
        return jax.grad(lambda p: -self._prior(p))(params)


class LogDensity(Target):
    """Any target given by its log density, up to a constant: U(θ) = -fn(θ).

    **Arguments:**

    - `fn`: function of the parameters (any pytree), returning a scalar.

    ```python
    import gyromc as gm
    target = gm.targets.LogDensity(lambda x: -0.5 * (x @ x))
    ```
    """

    fn: Callable

    def __init__(self, fn: Callable):
        require(callable(fn), f"`fn` must be a function of the parameters: got {type(fn).__name__}.")
        self.fn = fn

    def potential(self, params):
        return -_scalar(self.fn(params), "fn")


def _scalar(value, name: str) -> Scalar:
    value = jnp.asarray(value)
    require(
        value.ndim == 0,
        f"`{name}` must return a single number: it returned shape {value.shape}. Sum over its components.",
    )
    require(
        jnp.issubdtype(value.dtype, jnp.floating),
        f"`{name}` must return a real floating-point number: it returned {value.dtype}.",
    )
    return value
