"""Observables h(θ): the scalar functions whose posterior expectation μ(h) a run estimates.

Those of the form ρ(aᵀθ) are `Ridge` values with a named ρ, which closed forms and fused engines need. Momenta r are ignored.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.checks import numbers, one_of, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.runtime.evaluation import over_rows
from gyromc.runtime.precision import fresh, owned, private

__all__ = ["Function", "Observable", "Ridge", "brier", "entropy", "function", "linear", "predictive", "square", "tanh"]


class Observable(eqx.Module):
    """A scalar function of the position."""

    @abc.abstractmethod
    def __call__(self, params: Any) -> Any:
        """h(θ)."""


PROFILES: dict[str, Callable] = {
    "linear": lambda t: t,
    "square": lambda t: t**2,
    "tanh": jnp.tanh,
    "predictive": jax.nn.sigmoid,
    "brier, y = 1": lambda t: 2 * jax.nn.sigmoid(-t) ** 2,
    "brier, y = 0": lambda t: 2 * jax.nn.sigmoid(t) ** 2,
    "entropy": lambda t: jnp.logaddexp(0.0, t) - t * jax.nn.sigmoid(t),
}
"""The scalar functions ρ of ridge observables, by name."""


class Ridge(Observable):
    """h(θ) = ρ(aᵀθ) with ρ = `PROFILES[profile]`."""

    direction: Float[np.ndarray, " d"]
    profile: str = eqx.field(static=True)

    def __init__(self, direction, profile: str):
        a = numbers(direction, "direction")
        require(a.ndim == 1 and a.size > 0, f"The direction of an observable must be a vector: got shape {a.shape}.")
        self.direction, self.profile = a, one_of(profile, PROFILES, "profile")

    @property
    def is_linear(self) -> bool:
        """Whether h(θ) = aᵀθ."""
        return self.profile == "linear"

    @property
    def is_square(self) -> bool:
        """Whether h(θ) = (aᵀθ)²."""
        return self.profile == "square"

    @property
    def bounded(self) -> bool:
        """Whether ρ is bounded with bounded derivatives, as the central limit theorem requires."""
        return not (self.is_linear or self.is_square)

    def rho(self, t: np.ndarray) -> np.ndarray:
        """ρ at an array of numbers, in float64; linear and square functions are not compiled."""
        return over_rows(PROFILES[self.profile], t) if self.bounded else np.asarray(t, float) ** (1 + self.is_square)

    def __call__(self, params):
        return PROFILES[self.profile](jnp.vdot(jnp.asarray(self.direction), params))


class Bent(Observable):
    """A ridge function of θ where chains move in other coordinates, in which it is none; a plan makes it."""

    ridge: Ridge

    def __call__(self, params):
        return self.ridge(params)


def ridge_of(h: Observable) -> Ridge | None:
    """The ridge function of θ that an observable is, in whatever coordinates chains move; None where it is none."""
    return h.ridge if isinstance(h, Bent) else h if isinstance(h, Ridge) else None


class Function(Observable):
    """Any scalar function of the parameters."""

    fn: Callable

    def __init__(self, fn: Callable):
        self.fn = owned(fn)

    def __call__(self, params):
        value = jnp.asarray(private(self.fn)(params))
        said = f"An observable must return a single number: it returned shape {value.shape}."
        require(value.ndim == 0, f"{said} Make one observable per component, or sum.")
        return value


SCORES: dict[str, Callable] = {
    "predictive": lambda probabilities, label: probabilities[label],
    "brier": lambda probabilities, y: jnp.sum((probabilities - jax.nn.one_hot(y, probabilities.shape[-1])) ** 2),
    "entropy": lambda probabilities, label: jnp.sum(jax.scipy.special.entr(probabilities)),
}
"""What is made of class probabilities, by name."""


class OnRows(Observable):
    """A function of arrays … × d, NumPy's or JAX's, that returns … × k: at many points nothing is compiled for it."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, params):
        return self.fn(params)


class Predicted(Observable):
    """A score of the class probabilities that a user's model predicts at a point x."""

    model: Callable
    x: Any
    score: str = eqx.field(static=True)
    label: int | None = eqx.field(static=True)

    def __init__(self, model: Callable, x: Any, score: str, label: int | None = None):
        require(callable(model), f"`model` must be a function of (params, x): got {shown(model)}.")
        self.model, self.x, self.score = owned(model), x, score
        self.label = None if label is None else whole(label, "y" if score == "brier" else "label", least=0)

    def __call__(self, params):
        value = jnp.asarray(SCORES[self.score](private(self.model)(params, fresh(self.x)), self.label))
        said = f"the {self.score} score has shape {value.shape}"
        require(value.ndim == 0, f"`model` must return a vector of class probabilities: {said}.")
        return value


def linear(u) -> Observable:
    """h(θ) = uᵀθ.

    ```python
    import gyromc as gm
    print(gm.observables.linear([1.0, -1.0])(gm.observables.linear([3.0, 1.0]).direction))  # 2.0
    ```
    """
    return Ridge(u, "linear")


def square(u) -> Observable:
    """h(θ) = (uᵀθ)²: even, so it shows the step-size bias that symmetry hides from odd observables.

    ```python
    import gyromc as gm
    print(gm.observables.square([1.0, -1.0])(gm.observables.linear([3.0, 1.0]).direction))  # 4.0
    ```
    """
    return Ridge(u, "square")


def tanh(u) -> Observable:
    """h(θ) = tanh(uᵀθ).

    ```python
    import gyromc as gm
    h = gm.observables.tanh([1.0, 0.0, 0.0])
    ```
    """
    return Ridge(u, "tanh")


def predictive(x, model: Callable | None = None, label: int = 1) -> Observable:
    """The predictive probability of `label` at the point x: 1/(1 + e^{-xᵀθ}) for a logistic model.

    **Arguments:**

    - `x`: the test point, intercept included, for a logistic model; otherwise the second argument of `model`.
    - `model`: function of (params, x) returning the vector of class probabilities; default: the logistic model.
    - `label`: the class.

    ```python
    import gyromc as gm
    h = gm.observables.predictive([1.0, 0.3])
    ```
    """
    if model is not None:
        return Predicted(model, x, "predictive", label)
    return Ridge(numbers(x, "x") * (2 * _binary(label, "label") - 1), "predictive")


def brier(x, y: int, model: Callable | None = None) -> Observable:
    """The Brier score Σ_c (p_c(θ; x) - 1{y = c})² of the prediction at x when y is the truth.

    **Arguments:** as for `predictive`; `y` is the true class.

    ```python
    import gyromc as gm
    h = gm.observables.brier([1.0, 0.3], 1)
    ```
    """
    return Ridge(x, f"brier, y = {_binary(y, 'y')}") if model is None else Predicted(model, x, "brier", y)


def entropy(x, model: Callable | None = None) -> Observable:
    """The predictive entropy -Σ_c p_c log p_c at x.

    **Arguments:** as for `predictive`.

    ```python
    import gyromc as gm
    h = gm.observables.entropy([1.0, 0.3])
    ```
    """
    return Ridge(x, "entropy") if model is None else Predicted(model, x, "entropy")


def function(f: Callable) -> Observable:
    """Any scalar function of the parameters.

    ```python
    import gyromc as gm
    h = gm.observables.function(lambda theta: theta[0] ** 2)
    ```
    """
    require(callable(f), f"`f` must be a function of the parameters: got {type(f).__name__}.")
    return Function(f)


def _binary(value, name: str) -> int:
    try:
        return whole(int(value) if isinstance(value, bool | np.bool_) else value, name, least=0, most=1)
    except InvalidInput as error:
        raise InvalidInput(f"{error} A logistic model has two classes: pass `model` for more.") from None
