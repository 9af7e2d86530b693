"""Targets given by a formula: Gaussian, cosine-perturbed, and a user's own nonlinearity, log density or sum over data."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.checks import cause, leaves, numbers, require, require_finite, require_real, shown, whole
from gyromc.errors import InvalidInput
from gyromc.runtime.precision import owned, private
from gyromc.targets.base import Scalar, SumOverData, Target


class _Squared(Target):
    """U(θ) = ½ (θ - m)ᵀ P (θ - m) and perhaps more; P is a matrix, or a vector for a diagonal."""

    precision: Float[np.ndarray, " d"] | Float[np.ndarray, "d d"]
    mean: Float[np.ndarray, " d"]

    def __init__(self, precision, mean):
        P = numbers(precision, "precision")
        square = P.size > 0 and (P.ndim == 1 or (P.ndim == 2 and P.shape[0] == P.shape[1]))
        require(square, f"`precision` must be a square matrix or a vector (a diagonal): got shape {P.shape}.")
        if P.ndim == 2:
            gap = np.abs(P - P.T)
            at = tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
            large = f"max |P - Pᵀ| = {gap.max():.3g} at {at}. Pass `(P + P.T) / 2`."
            require(gap.max() <= 1e-6 * np.abs(P).max(), f"`precision` must be symmetric: {large}")
            P = (P + P.T) / 2
        self.precision = P
        self.mean = self._entries(mean, "mean", 0.0)

    def _entries(self, value, name: str, usual: float) -> np.ndarray:
        d = len(self.precision)
        value = np.full(d, usual) if value is None else numbers(value, name)
        require(value.shape == (d,), f"`{name}` must have {d} entries, like `precision`: got shape {value.shape}.")
        return value

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    @property
    def matrix(self) -> np.ndarray:
        P = np.asarray(self.precision, float)
        return np.diag(P) if P.ndim == 1 else P

    def potential(self, params):
        return 0.5 * jnp.vdot(params - self.mean, _Squared.gradient(self, params))

    def gradient(self, params):
        x = params - self.mean
        return self.precision * x if self.precision.ndim == 1 else self.precision @ x

    def separable(self):
        P = self.matrix
        if np.any(P - np.diag(np.diag(P))):
            return None
        pairs = zip(np.diag(P), np.asarray(self.mean, float), strict=True)
        return tuple(lambda t, p=p, m=m: 0.5 * p * (t - m) ** 2 for p, m in pairs)


class Quadratic(_Squared):
    """A Gaussian target: U(θ) = ½ (θ - m)ᵀ P (θ - m).

    **Arguments:**

    - `precision`: P, symmetric positive definite; a vector is a diagonal.
    - `mean`: m; zeros when left out.

    ```python
    import gyromc as gm
    target = gm.targets.Quadratic([[2.0, 0.5], [0.5, 1.0]])
    print(target.dim)  # 2
    ```
    """

    def __init__(self, precision, mean=None):
        super().__init__(precision, mean)
        P = self.precision
        smallest = float(P.min() if P.ndim == 1 else np.linalg.eigvalsh(P)[0])
        why = f"or exp(-U) has no finite integral: its smallest eigenvalue is {smallest:.6g}"
        what = "Add a prior (a multiple of the identity) or drop the directions that the data do not determine."
        require(smallest > 0, f"`precision` must be positive definite, {why}. {what}")

    def gaussian(self):
        return self.matrix, np.asarray(self.mean, float)


class CosinePerturbed(Target):
    """U(θ) = ½|θ|² + β Σ cos θ_i: not convex for |β| > 1, and even in every coordinate.

    **Arguments:**

    - `dim`: the dimension d.
    - `beta`: β, any finite number; 0 is the standard Gaussian.

    ```python
    import gyromc as gm
    print(gm.targets.CosinePerturbed(3, 1.2).dim)  # 3
    ```
    """

    beta: Float[np.ndarray, ""]
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


class Separable(_Squared):
    """U(θ) = ½ (θ-m)ᵀP(θ-m) + Σ_i c_i φ(θ_i), with a scalar function φ of your own.

    **Arguments:**

    - `potential`: φ, a function of one number, written with `jax.numpy`.
    - `precision`: P, symmetric; a vector is a diagonal. It need not be positive definite where φ grows fast enough.
    - `mean`: m; zeros when left out.
    - `weights`: c_i, one for each coordinate; ones when left out.

    ```python
    import jax.numpy as jnp
    import gyromc as gm
    double_well = gm.targets.Separable(lambda t: t**4 / 4 - t**2, precision=[1.0, 1.0, 2.0])
    print(double_well.dim)  # 3
    ```
    """

    phi: Callable
    weights: Float[np.ndarray, " d"]

    def __init__(self, potential: Callable, precision, mean=None, weights=None):
        super().__init__(precision, mean)
        self.weights = self._entries(weights, "weights", 1.0)
        require(callable(potential), f"`potential` must be a function of one number: got {type(potential).__name__}.")
        try:
            value = eqx.filter_eval_shape(potential, jax.ShapeDtypeStruct((), jnp.float32))
        except Exception as error:
            why = f"`potential` cannot be evaluated on one number inside JAX: {cause(error)}"
            raise InvalidInput(f"{why} Write it with `jax.numpy`.") from error
        scalar = getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating)
        require(scalar, f"`potential` must map one number to one number: it returns {value}.")
        self.phi = owned(potential)

    def potential(self, params):
        return super().potential(params) + jnp.vdot(self.weights, jax.vmap(private(self.phi))(params))

    def gradient(self, params):
        return super().gradient(params) + self.weights * jax.vmap(jax.grad(private(self.phi)))(params)

    def gaussian(self):
        convex = not np.any(self.weights) and np.all(np.linalg.eigvalsh(self.matrix) > 0)
        return (self.matrix, np.asarray(self.mean, float)) if convex else None

    def separable(self):
        squares = super().separable()
        if squares is None:
            return None
        pairs = zip(squares, np.asarray(self.weights, float), strict=True)
        return tuple(lambda t, v=v, c=c: v(t) + c * self._values(t) for v, c in pairs)

    def _values(self, t) -> np.ndarray:
        with jax.enable_x64(True):
            flat = jax.vmap(private(self.phi))(jnp.asarray(np.ravel(t), float))
        return np.asarray(flat, float).reshape(np.shape(t))


class FiniteSum(SumOverData):
    """Your own model as a sum over data: U(θ) = -Σ_i log_likelihood(θ, datum_i) - log_prior(θ).

    **Arguments:**

    - `log_likelihood`: function of (params, datum) for one datum, returning a scalar.
    - `log_prior`: function of params, returning a scalar.
    - `data`: an array or a pytree of arrays; the first axis of each leaf runs over the data.

    The parameters have the structure of the plan's `start`.

    ```python
    import jax.numpy as jnp
    import gyromc as gm
    target = gm.targets.FiniteSum(lambda mu, x: -0.5 * (x - mu) ** 2, lambda mu: -0.5 * mu**2, jnp.arange(3.0))
    print(target.num_data)  # 3
    ```
    """

    log_likelihood: Callable
    log_prior: Callable
    data: Any

    def __init__(self, log_likelihood: Callable, log_prior: Callable, data: Any):
        for name, function in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            require(callable(function), f"`{name}` must be a function: got {type(function).__name__}.")
        found, lengths = leaves(data, "data"), {}
        require(found, "`data` must hold at least one array: got an empty pytree.")
        for path, leaf in found:
            where = f"data{jax.tree_util.keystr(path)}"
            dtype = getattr(leaf, "dtype", np.dtype(float if isinstance(leaf, int | float) else object))
            require(getattr(dtype, "kind", "") != "O", f"`data` must hold arrays: {where} is {shown(leaf)}.")
            first = "Every array in `data` needs a first axis over observations"
            require(np.ndim(leaf) >= 1, f"{first}: {where} is a single number.")
            require_real(leaf, where)
            require_finite(np.asarray(leaf), where)
            lengths[where] = len(np.asarray(leaf))
        same = len(set(lengths.values())) == 1 and min(lengths.values()) > 0
        require(same, f"All arrays in `data` must have the same, positive length along the first axis: got {lengths}.")
        self.log_likelihood, self.log_prior = owned(log_likelihood), owned(log_prior)
        self.data = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else np.asarray(x), data)

    @property
    def num_data(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def _batch_potential(self, params, data):
        terms = jax.vmap(private(self.log_likelihood), in_axes=(None, 0))(params, data)
        what = f"it returned shape {terms.shape[1:]}. Sum over the response's components."
        require(terms.ndim == 1, f"`log_likelihood` must return one number per datum: {what}")
        return -jnp.sum(terms)

    def potential(self, params):
        return self._batch_potential(params, self.data) - self._prior(params)

    def log_likelihoods(self, params):
        return {"data": jax.vmap(private(self.log_likelihood), in_axes=(None, 0))(params, self.data)}

    def _prior(self, params):
        return _scalar(private(self.log_prior)(params), "log_prior")

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
        self.fn = owned(fn)

    def potential(self, params):
        return -_scalar(private(self.fn)(params), "fn")


def _scalar(value, name: str) -> Scalar:
    value = jnp.asarray(value)
    shape = f"it returned shape {value.shape}. Sum over its components."
    require(value.ndim == 0, f"`{name}` must return a single number: {shape}")
    real = jnp.issubdtype(value.dtype, jnp.floating)
    require(real, f"`{name}` must return a real floating-point number: it returned {value.dtype}.")
    return value
