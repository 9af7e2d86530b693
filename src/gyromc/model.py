"""A model: a target over one vector θ, and what can be learnt of it before any dynamics is chosen.

A target and a start in. Out: the target as a function of a vector, the dimension, values at many points, the mode with the
curvature there, the nearest Gaussian and an importance sample. Each is computed when first asked for and kept.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg, special

from gyromc.checks import numbers, require
from gyromc.dependence import indices_read
from gyromc.errors import InvalidInput
from gyromc.evaluation import over_rows
from gyromc.flat import flatten, unraveler
from gyromc.observables import Observable, Ridge
from gyromc.shape.gaussian import GaussianApproximation, GaussianFit, mean_curvature_fit, nearest_gaussian
from gyromc.shape.importance import DRAWS, Sample, importance_sample
from gyromc.shape.laplace import Laplace, inverse_root, laplace
from gyromc.shape.modes import find_mode
from gyromc.shape.search import Modes, find_modes
from gyromc.targets import SumOverData, Target

__all__ = ["Model"]

MOST_FOLLOWED = 2000  # parameters
MOST_SAMPLED = 60  # parameters, for importance sampling
MOST_WORK = 4e9  # multiplications for an importance sample
HEALTHY = 0.05  # share of its draws that an importance sample must be worth
ENOUGH = 5000  # independent draws, whose covariance says more than a mean Hessian
CHECKED, EVEN = (
    200,
    0.3,
)  # draws of the Gaussian fit that get importance weights, and what they must be worth, as a share
CURVATURES = 256  # points at which Hessians are averaged
NUDGE = 1e-3  # standard deviation of the step off a saddle, in case the start is one


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A target with its parameters as one vector.

    **Arguments:**

    - `target`: the law (`gyromc.targets`).
    - `template`: parameters shaped like the target's (arrays or shapes), left out for targets over vectors that know their
      dimension.
    - `start`: a point of θ as one vector, where mode finding begins; zeros when left out.

    ```python
    import gyromc as gm
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 1], prior_scale=2.0))
    assert model.dim == 1 and abs(model.target.gradients(model.mode[None])[0, 0]) < 1e-9
    ```
    """

    target: Target
    template: Any = None
    start: Any = None
    unravel: Callable = dataclasses.field(init=False, repr=False)
    dim: int = dataclasses.field(init=False)
    _kept: dict = dataclasses.field(init=False, repr=False, default_factory=dict)

    def __post_init__(self):
        require(
            isinstance(self.target, Target),
            f"`target` must be a value of `gyromc.targets`: got {type(self.target).__name__}.",
        )
        template = self.template
        if template is None:
            require(
                self.target.dim is not None,
                f"{type(self.target).__name__} does not know its dimension: pass `template`, parameters of the right shapes.",
            )
            template = jax.ShapeDtypeStruct((self.target.dim,), np.dtype(float))
        unravel, dim = unraveler(template)
        start = np.zeros(dim) if self.start is None else numbers(self.start, "start")
        require(
            start.shape == (dim,), f"`start` must hold {dim} numbers, like the parameters: got shape {start.shape}."
        )
        for name, value in (("template", template), ("unravel", unravel), ("dim", dim), ("start", start)):
            object.__setattr__(self, name, value)

    @functools.cached_property
    def flat_target(self) -> Target:
        """The target as a function of the vector θ."""
        return flatten(self.target, self.unravel, self.dim)

    def values(self, h: Observable, rows: np.ndarray) -> np.ndarray:
        """h at every row of θ."""
        return over_rows(_value, np.asarray(rows, float), h, self.unravel)

    def value_gradients(self, h: Observable, rows: np.ndarray) -> np.ndarray:
        """∇h at every row of θ."""
        return over_rows(_value_gradient, np.asarray(rows, float), h, self.unravel)

    def coordinates_of(self, h: Observable) -> tuple[int, ...]:
        """The coordinates of θ that h can depend on; all of them where there are too many to follow."""
        if isinstance(h, Ridge):
            return tuple(int(i) for i in np.flatnonzero(h.direction))
        if self.dim > MOST_FOLLOWED:
            return tuple(range(self.dim))
        return indices_read(lambda theta: h(self.unravel(theta)), self.dim)

    @functools.cached_property
    def mode(self) -> np.ndarray:
        """The mode that a descent from the start reaches; `InvalidInput` where there is none."""
        nudge = NUDGE * np.random.default_rng(0).standard_normal(self.dim)
        return find_mode(self.flat_target, self.start + nudge)

    @functools.cached_property
    def laplace(self) -> Laplace:
        """Mode and Hessian there; `InvalidInput` where there is no mode with a positive definite Hessian."""
        return laplace(self.flat_target, self.mode)

    @functools.cached_property
    def modes(self) -> Modes:
        """All modes that descents from dispersed starts reach, the heaviest first."""
        return find_modes(self.flat_target, self.laplace)

    @property
    def precision(self) -> np.ndarray:
        """K = ∇²U at the mode."""
        return self.laplace.precision

    def nearest_gaussian(self, seed: int = 0, refine: bool = True) -> GaussianApproximation:
        """The Gaussian with the law's mean gradient and mean curvature."""
        return self._once(nearest_gaussian, seed, refine)

    def importance_sample(self, draws: int = DRAWS, seed: int = 0) -> Sample:
        """A weighted sample around the mode; look at its `effective_size` before believing it."""
        return self._once(importance_sample, draws, seed)

    @property
    def _affordable_draws(self) -> int:
        """How many points U may be computed at within seconds."""
        target = self.flat_target
        rows = target.num_data if isinstance(target, SumOverData) else 1
        return int(MOST_WORK / (rows * self.dim))

    @functools.cached_property
    def trusted_sample(self) -> Sample | None:
        """Draws that represent the law, made without a chain; None where there are none to be trusted.

        An importance sample; with so many data that this would take long, draws of the Gaussian fit, if some of them have even
        importance weights.
        """
        if self._affordable_draws >= ENOUGH:
            sample = self.importance_sample(2 * (min(DRAWS, self._affordable_draws) // 2))
            return sample if sample.effective_size >= max(HEALTHY * len(sample.weights), 20 * self.dim) else None
        fit = self.gaussian_fit
        away = np.random.default_rng(0).standard_normal((ENOUGH, self.dim)) @ inverse_root(fit.precision).T
        checked = away[: max(50, min(CHECKED, self._affordable_draws // 4))]
        exponents = 0.5 * np.sum((checked @ fit.precision) * checked, axis=1)
        weights = special.softmax(exponents - self.flat_target.potentials(fit.mean + checked))
        if not 1 / np.sum(weights**2) >= EVEN * len(checked):
            return None
        return Sample(fit.mean + away, np.full(ENOUGH, 1 / ENOUGH), float(ENOUGH), "the Gaussian fit")

    @functools.cached_property
    def gaussian_fit(self) -> GaussianFit:
        """Mean and inverse covariance of the law, as well as they can be had without a chain."""
        known = self.flat_target.gaussian()
        if known is not None:
            return GaussianFit(known[1], known[0], "exact")
        sample = self.trusted_sample if self.dim <= MOST_SAMPLED and self._affordable_draws >= ENOUGH else None
        if sample is not None and sample.effective_size >= ENOUGH:
            mean, root = sample.moments()
            return GaussianFit(mean, linalg.cho_solve((root, True), np.eye(self.dim)), "an importance sample")
        points = 2 * max(8, min(CURVATURES, self._affordable_draws // 10) // 2)
        return self._once(mean_curvature_fit, points)

    def remember(self, fit: GaussianFit, *moments: Any) -> None:
        """Use this Gaussian fit, and these moments of an oracle's gradients, in place of what would be computed.

        `moments` is empty, or the oracle, E[∇U∇Uᵀ] and the covariance of the oracle's noise.
        """
        self.__dict__["gaussian_fit"] = fit
        if moments:
            self._kept["gradient moments", id(moments[0])] = moments

    def _once(self, learn: Callable, *settings):
        """What `learn` finds from the target and its Laplace approximation, computed once for the same settings."""
        key = learn, settings
        if key not in self._kept:
            self._kept[key] = learn(self.flat_target, self.laplace, *settings)
        return self._kept[key]

    @functools.cached_property
    def gradient_second_moment(self) -> np.ndarray:
        """E_μ[∇U∇Uᵀ] over the importance sample; equal to E_μ[∇²U] on every smooth law."""
        sample = self.importance_sample()
        slopes = self.flat_target.gradients(sample.theta)
        return (slopes.T * sample.weights) @ slopes

    def sample_of(self, rows: Any) -> Sample:
        """A user's posterior sample, rows of θ or an array chains × draws × d such as `run.draws`, equally weighted."""
        rows = numbers(rows, "sample")
        if rows.ndim == 1 and self.dim == 1:
            rows = rows[:, None]
        if rows.ndim < 2 or rows.shape[-1] != self.dim:
            raise InvalidInput(
                f"`sample` must hold rows of {self.dim} finite numbers, one row per draw of θ: got shape {rows.shape}."
            )
        rows = rows.reshape(-1, self.dim)
        count, least = len(rows), 10 * (self.dim + 1)
        require(count >= least, f"`sample` has {count} rows: too few for {self.dim} parameters. Pass at least {least}.")
        return Sample(rows, np.full(count, 1 / count), float(count), f"a sample of {count} draws")


def _value(h, unravel, theta):
    return jnp.asarray(h(unravel(theta)), float)


def _value_gradient(h, unravel, theta):
    return jax.grad(lambda t: _value(h, unravel, t))(theta)
