"""Targets with a user's own scalar nonlinearity φ: U(θ) = ½(θ-m)ᵀP(θ-m) + Σ_i c_i φ(θ_i).

Input: φ as a JAX function, φ′ as a Numba function, or both. Output: U and ∇U. Engine `lanes` supports targets of this form: a
matrix, and one scalar function applied to every coordinate.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.checks import cause, numbers, require
from gyromc.errors import InvalidInput
from gyromc.precision import owned, private
from gyromc.targets.base import Target
from gyromc.targets.densities import read_precision

TRIED_AT = np.array([-2.7, -1.1, -0.3, 0.4, 1.3, 2.9])
"""The points at which a given slope is compared with the derivative of the potential."""


class Separable(Target):
    """A Gaussian part and one scalar nonlinearity: U(θ) = ½ (θ - m)ᵀ P (θ - m) + Σ_i c_i φ(θ_i).

    With `potential`, every engine and every prediction works. Pass `slope` when engine `lanes` cannot translate φ from JAX (its
    message says so), or when you have it for Numba anyway; with `slope` alone, only `lanes` works.

    **Arguments:**

    - `potential`: φ, a function of one number, written with `jax.numpy`.
    - `precision`: P, symmetric; a vector is a diagonal. It need not be positive definite where φ grows fast enough.
    - `mean`: m; zeros when left out.
    - `weights`: c_i, one for each coordinate; ones when left out.
    - `slope`: φ′, a function of one number for Numba (`numba.njit`), written without branches: it is compiled for
      sixteen numbers at a time.

    ```python
    import jax.numpy as jnp
    import gyromc as gm
    double_well = gm.targets.Separable(lambda t: t**4 / 4 - t**2, precision=[1.0, 1.0, 2.0])
    assert double_well.dim == 3
    ```
    """

    phi: Callable | None
    slope: Callable | None
    precision: Float[np.ndarray, " d"] | Float[np.ndarray, "d d"]
    mean: Float[np.ndarray, " d"]
    weights: Float[np.ndarray, " d"]

    def __init__(self, potential: Callable | None = None, precision=None, mean=None, weights=None, slope=None):
        P = read_precision([] if precision is None else precision)
        d = P.shape[0]
        self.precision = P
        self.mean = np.zeros(d) if mean is None else numbers(mean, "mean")
        self.weights = np.ones(d) if weights is None else numbers(weights, "weights")
        for name, value in (("mean", self.mean), ("weights", self.weights)):
            require(value.shape == (d,), f"`{name}` must have {d} entries, like `precision`: got shape {value.shape}.")
        _check_functions(potential, slope)
        self.phi, self.slope = owned(potential) if potential else None, slope

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    def _stretch(self, x):
        return self.precision * x if self.precision.ndim == 1 else self.precision @ x

    def potential(self, params):
        if self.phi is None:
            raise InvalidInput(WITHOUT_POTENTIAL)
        x = params - self.mean
        return 0.5 * jnp.vdot(x, self._stretch(x)) + jnp.vdot(self.weights, jax.vmap(private(self.phi))(params))

    def gradient(self, params):
        if self.phi is not None:
            slopes = jax.vmap(jax.grad(private(self.phi)))(params)
        else:
            one = np.vectorize(self.slope)  # type: ignore[arg-type]  # not None where there is no phi
            call = lambda t: np.asarray(one(np.asarray(t)), t.dtype)
            shape = jax.ShapeDtypeStruct(params.shape, params.dtype)
            slopes = jax.pure_callback(call, shape, params, vmap_method="expand_dims")
        return self._stretch(params - self.mean) + self.weights * slopes

    def gaussian(self):
        if np.any(self.weights) or np.any(np.linalg.eigvalsh(self.matrix) <= 0):
            return None
        return self.matrix, np.asarray(self.mean, float)

    @property
    def matrix(self) -> np.ndarray:
        """P as a matrix."""
        P = np.asarray(self.precision, float)
        return np.diag(P) if P.ndim == 1 else P

    def separable(self):
        P = self.matrix
        if self.phi is None or np.any(P - np.diag(np.diag(P))):
            return None
        rows = zip(np.diag(P), np.asarray(self.mean, float), np.asarray(self.weights, float), strict=True)
        return tuple(lambda t, p=p, m=m, c=c: 0.5 * p * (t - m) ** 2 + c * self._values(t) for p, m, c in rows)

    def _values(self, t) -> np.ndarray:
        """φ at an array of numbers, in float64."""
        assert self.phi is not None
        with jax.enable_x64(True):
            flat = jax.vmap(private(self.phi))(jnp.asarray(np.ravel(t), float))
        return np.asarray(flat, float).reshape(np.shape(t))


WITHOUT_POTENTIAL = (
    "`Separable` was given only φ′ for Numba, usable by engine `lanes` alone: pass `potential=φ`, a JAX function"
)


def why_not_in_jax(target: Any) -> str | None:
    """Why JAX cannot compute with a target: it is a `Separable` with only a Numba function. None otherwise."""
    return WITHOUT_POTENTIAL if isinstance(target, Separable) and target.phi is None else None


def _check_functions(potential, slope) -> None:
    require(
        potential is not None or slope is not None,
        "`Separable` needs its nonlinearity: `potential=φ` as a JAX function, or `slope=φ′` as a Numba function.",
    )
    for name, function in (("potential", potential), ("slope", slope)):
        require(
            function is None or callable(function),
            f"`{name}` must be a function of one number: got {type(function).__name__}.",
        )
    require(
        slope is None or hasattr(slope, "py_func"),
        "`slope` must be compiled by Numba: decorate it with `numba.njit`. A JAX function is passed as `potential`.",
    )
    if potential is None:
        return
    try:
        value = eqx.filter_eval_shape(potential, jax.ShapeDtypeStruct((), jnp.float32))
    except Exception as error:
        raise InvalidInput(
            f"`potential` cannot be evaluated on one number inside JAX: {cause(error)} Write it with `jax.numpy`."
        ) from error
    require(
        getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating),
        f"`potential` must map one number to one number: it returns {value}.",
    )
    if slope is None:
        return
    with jax.enable_x64(True):
        derivative = np.asarray(jax.vmap(jax.grad(potential))(jnp.asarray(TRIED_AT)))
    given = np.array([float(slope(t)) for t in TRIED_AT])
    gap = np.abs(given - derivative)
    worst = int(gap.argmax())
    require(
        np.all(gap <= 1e-6 * (1 + np.abs(derivative))),
        f"`slope` must be the derivative of `potential`: at {TRIED_AT[worst]:g} it returns {given[worst]:.6g}, but "
        f"the derivative is {derivative[worst]:.6g}.",
    )
