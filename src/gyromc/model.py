"""A model: a target over one vector θ, and what can be learnt of it before any dynamics is chosen.

Mode, curvature, Gaussian fit and importance sample are computed when first asked for, and kept.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.approx.modes import GaussianApproximation, Modes, find_mode, find_modes, laplace, mean_curvature_fit
from gyromc.approx.sample import DRAWS, MOST_PARAMETERS, Sample, importance_sample, why_not_fitting, why_not_trusted
from gyromc.checks import numbers, require
from gyromc.coordinates import Coordinates
from gyromc.errors import InvalidInput
from gyromc.flat import Moved, flatten, unraveler
from gyromc.observables import Observable, Ridge
from gyromc.runtime.evaluation import compiled, indices_read, over_rows
from gyromc.runtime.precision import fresh
from gyromc.targets import CosinePerturbed, Quadratic, SumOverData, Target
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import KnownLikelihood


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """What is computed of a model before any dynamics, by experience: seconds on one processor."""

    most_followed: int = 2000  # parameters up to which it is worked out on which of them an observable depends
    most_work: float = 4e9  # multiplications for an importance sample
    least_draws: int = 40  # of it
    enough: int = 5000  # independent draws whose covariance says more than a mean Hessian
    checked: int = 200  # draws of the Gaussian fit that get importance weights
    curvatures: int = 256  # points at which Hessians are averaged
    nudge: float = 1e-3  # standard deviation of the step off the start, in case that is a saddle
    compared: int = 3  # rows at which gradients are compared with those of single rows
    apart: float = 0.1  # how far these are from the start
    # Of the row's largest entry, far above what another order of sums changes.
    agrees: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"float32": 1e-2, "float64": 1e-6})


SETTINGS = ModelSettings()
FORMULAS = (Quadratic, CosinePerturbed, KnownLikelihood)
"""Targets whose gradients are formulas of ours, which the tests compile for processors."""


class Computed:
    """What was computed for pieces of plans, by name: found again with the same objects, or with equal numbers."""

    def __init__(self):
        self.entries: dict[str, list[tuple[tuple, Any]]] = {}

    def keep(self, name: str, pieces: tuple, value: Any) -> None:
        """Store what was computed for some pieces."""
        self.entries.setdefault(name, []).append((pieces, value))

    def find(self, name: str, pieces: tuple) -> Any:
        """What was stored last for these pieces, or None."""
        same = lambda a, b: a is b or (isinstance(a, int | float) and a == b)
        fits = lambda at: len(at) == len(pieces) and all(map(same, at, pieces))
        return next((value for at, value in reversed(self.entries.get(name, [])) if fits(at)), None)

    def once(self, name: str, pieces: tuple, make: Callable[[], Any]) -> Any:
        """What was stored for these pieces, else what `make` returns, which is stored."""
        if (found := self.find(name, pieces)) is None:
            found = make()
            self.keep(name, pieces, found)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A target with its parameters as one vector.

    **Arguments:**

    - `target`: the law (`gyromc.targets`).
    - `template`: parameters shaped like the target's (arrays or shapes), left out for targets over vectors that know their
      dimension.
    - `start`: a point of θ as one vector, where mode finding begins; zeros when left out.
    - `coordinates`: T of `gyromc.coordinates`: the vector is z with θ = T(z), also in `start`.

    ```python
    import gyromc as gm
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 0], prior_scale=2.0))
    print(model.dim, model.mode.round(2))  # 1 [0.62]
    ```
    """

    target: Target
    template: Any = None
    start: Any = None
    coordinates: Coordinates | None = None
    unravel: Callable = dataclasses.field(init=False, repr=False)
    dim: int = dataclasses.field(init=False)
    computed: Computed = dataclasses.field(init=False, repr=False, default_factory=Computed)

    def __post_init__(self):
        kind, template = type(self.target).__name__, self.template
        require(isinstance(self.target, Target), f"`target` must be a value of `gyromc.targets`: got {kind}.")
        if template is None:
            unknown = f"{kind} does not know its dimension: pass `template`, parameters of the right shapes."
            require(self.target.dim is not None, unknown)
            template = jax.ShapeDtypeStruct((self.target.dim,), np.dtype(float))
        unravel, dim = unraveler(template)
        unravel = unravel if self.coordinates is None else Moved(unravel, self.coordinates)
        start = np.zeros(dim) if self.start is None else numbers(self.start, "start")
        needed = f"`start` must hold {dim} numbers, like the parameters"
        require(start.shape == (dim,), f"{needed}: got shape {start.shape}.")
        for name, value in (("template", template), ("unravel", unravel), ("dim", dim), ("start", start)):
            object.__setattr__(self, name, value)

    @functools.cached_property
    def flat_target(self) -> Target:
        """The target as a function of the vector θ."""
        return flatten(self.target, self.unravel, self.dim)

    def vectors(self, thetas: np.ndarray) -> np.ndarray:
        """The model's vectors that belong to θ along the last axis: θ itself, or z = T⁻¹(θ)."""
        return thetas if self.coordinates is None else self.coordinates.zs(thetas)

    def values(self, h: Observable, rows: np.ndarray) -> np.ndarray:
        """h at every row of θ."""
        return over_rows(_value, np.asarray(rows, float), h, self.unravel)

    def value_gradients(self, h: Observable, rows: np.ndarray) -> np.ndarray:
        """∇h at every row of θ."""
        return over_rows(_value_gradient, np.asarray(rows, float), h, self.unravel)

    def coordinates_of(self, h: Observable) -> tuple[int, ...]:
        """The coordinates of θ on which h depends; all of them where there are too many to try."""
        if isinstance(h, Ridge):
            return tuple(int(i) for i in np.flatnonzero(h.direction))
        if self.dim > SETTINGS.most_followed:
            return tuple(range(self.dim))
        return indices_read(lambda theta: h(self.unravel(theta)), self.dim)

    @functools.cached_property
    def mode(self) -> np.ndarray:
        """The mode that a descent from the start reaches; `InvalidInput` where there is none."""
        nudge = SETTINGS.nudge * np.random.default_rng(0).standard_normal(self.dim)
        return find_mode(self.flat_target, self.start + nudge)

    @functools.cached_property
    def laplace(self) -> GaussianApproximation:
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

    def importance_sample(self, draws: int = DRAWS, seed: int = 0) -> Sample:
        """A weighted sample around the mode, not checked: `trusted_sample_of` returns it only where it represents the law."""
        make = lambda: importance_sample(self.flat_target, self.laplace, draws, seed)
        return self.computed.once("importance sample", (draws, seed), make)

    def trusted_sample_of(self, draws: int = DRAWS) -> Sample | None:
        """An importance sample of this many draws, or None where it does not represent the law.

        For a small budget of gradients ask for few draws: `Sample.mean_curvature` says what error they leave. It takes 1¼
        potentials a draw, some eighty for each parameter to look at the tails, and, for targets that may have several modes,
        descents from dispersed starts, once for a model (`Model.modes`).

        **Arguments:**

        - `draws`: how many, an even number of at least 40; with d parameters their effective sample size must be 20·d.

        **Returns:** a `Sample` or None.

        ```python
        import gyromc as gm
        model = gm.Model(gm.targets.CosinePerturbed(2, 0.5))
        sample = model.trusted_sample_of(1000)
        print(sample.mean_curvature().relative_error < 0.2)  # True
        ```
        """
        return self._judged(draws)[0]

    def why_not_trusted(self, draws: int = DRAWS) -> str | None:
        """Why `trusted_sample_of` has no sample, as a sentence without its full stop; None where it has one."""
        return self._judged(draws)[1]

    def _judged(self, draws: int) -> tuple[Sample | None, str | None]:
        even = isinstance(draws, int) and draws >= SETTINGS.least_draws and draws % 2 == 0
        require(even, f"`draws` must be an even number of at least {SETTINGS.least_draws}: got {draws!r}.")
        judge = lambda: self._unless(lambda: self.importance_sample(draws), why_not_trusted)
        return self.computed.once("judged sample", (draws,), judge)

    def _unless(self, make: Callable[[], Sample], why_not: Callable) -> tuple[Sample | None, str | None]:
        """A sample, or why it cannot be made or trusted."""
        if self.dim > MOST_PARAMETERS:
            return None, f"{self.dim} parameters are too many for importance sampling"
        try:
            sample = make()
            reason = why_not(self.flat_target, sample, lambda: self.modes)
        # No mode, or draws without a covariance.
        except (InvalidInput, np.linalg.LinAlgError) as error:
            return None, str(error).rstrip(".")
        return (sample, None) if reason is None else (None, reason)

    @property
    def _affordable_draws(self) -> int:
        """How many points U may be computed at within seconds."""
        rows = self.flat_target.num_data if isinstance(self.flat_target, SumOverData) else 1
        return int(SETTINGS.most_work / (rows * self.dim))

    @functools.cached_property
    def trusted_sample(self) -> Sample | None:
        """Draws that represent the law, made without a chain; None where there are none to be trusted.

        An importance sample; with so many data that this would take long, draws of the Gaussian fit, if some of them have even
        importance weights.
        """
        if self._affordable_draws >= SETTINGS.enough:
            return self.trusted_sample_of(2 * (min(DRAWS, self._affordable_draws) // 2))
        checked = max(50, min(SETTINGS.checked, self._affordable_draws // 4))
        why_not = lambda *given: why_not_fitting(self.gaussian_fit, checked, *given)
        standard = lambda: np.random.default_rng(0).standard_normal((SETTINGS.enough, self.dim))
        make = lambda: Sample.even(self.gaussian_fit.points(standard()), "the Gaussian fit", self.flat_target)
        return self._unless(make, why_not)[0]

    @functools.cached_property
    def gaussian_fit(self) -> GaussianApproximation:
        """Mean and inverse covariance of the law, as well as they can be had without a chain."""
        if self.flat_target.gaussian() is not None:
            return self.laplace
        sample = self.trusted_sample if self._affordable_draws >= SETTINGS.enough else None
        if sample is not None and sample.effective_size >= SETTINGS.enough:
            mean, root = sample.moments()
            precision = scipy.linalg.cho_solve((root, True), np.eye(self.dim))
            return GaussianApproximation(mean, precision, "an importance sample")
        points = 2 * max(8, min(SETTINGS.curvatures, self._affordable_draws // 10) // 2)
        return mean_curvature_fit(self.flat_target, self.laplace, points)

    def remember(self, fit: GaussianApproximation, oracle: Any = None, moments: Any = None) -> None:
        """Use this Gaussian fit, and these `GradientMoments` of an oracle, in place of what would be computed."""
        self.__dict__["gaussian_fit"] = fit
        if oracle is not None:
            self.computed.keep("gradient moments", (oracle,), moments)

    def sample_of(self, rows: Any) -> Sample:
        """A user's posterior sample, rows of θ or an array chains × draws × d such as `run.draws`, equally weighted."""
        rows = numbers(rows, "sample")
        if rows.ndim == 1 and self.dim == 1:
            rows = rows[:, None]
        needed = f"`sample` must hold rows of {self.dim} finite numbers, one row per draw of θ"
        require(rows.ndim >= 2 and rows.shape[-1] == self.dim, f"{needed}: got shape {rows.shape}.")
        rows = self.vectors(rows.reshape(-1, self.dim))
        count, least = len(rows), 10 * (self.dim + 1)
        require(count >= least, f"`sample` has {count} rows: too few for {self.dim} parameters. Pass at least {least}.")
        return Sample.even(rows, f"a sample of {count} draws", self.flat_target)


def check_gradient(model: Model, dtype: str = "float64") -> None:
    """Raise `InvalidInput` where ∇U compiled for many rows differs from ∇U of single rows: the compiler is wrong there.

    JAX 0.11.2 compiled `grad(cumsum)` wrongly on CUDA, of single rows too: theirs come from the processor where there is one.
    On processors users' functions alone are checked: the tests compile ours.
    """
    target, start = model.flat_target, model.start
    known = isinstance(target, (*FORMULAS, MixedRegression)) and jax.default_backend() == "cpu"
    if known or model.computed.find(f"gradient in {dtype}", ()):
        return
    model.computed.keep(f"gradient in {dtype}", (), True)
    away = np.random.default_rng(0).standard_normal((SETTINGS.compared, model.dim))
    rows = start + SETTINGS.apart * (1 + np.abs(start)) * away
    with jax.enable_x64(dtype == "float64"):
        pieces = jax.tree.map(lambda x: np.asarray(x, dtype) if eqx.is_inexact_array(x) else x, fresh(target))
        many, single = map(np.asarray, _both_ways(pieces, rows.astype(dtype)))
        # Without a processor in JAX's list, the device's own.
        with contextlib.suppress(RuntimeError), jax.default_device(jax.local_devices(backend="cpu")[0]):
            if jax.default_backend() != "cpu":
                single = np.asarray(_both_ways(pieces, rows.astype(dtype))[1])
    scale = np.max(np.where(np.isfinite(single), np.abs(single), 0.0), axis=1, keepdims=True)
    bad = np.isfinite(single) & ~(np.abs(many - single) <= SETTINGS.agrees[dtype] * scale)
    if bad.any():
        row, entry = (int(i) for i in np.argwhere(bad)[0])
        raise InvalidInput(
            f"The gradient is compiled wrongly for many chains on this device: at θ = {np.round(rows[row][:4], 4).tolist()} "
            f"its entry {entry} is {many[row, entry]:.6g}, and {single[row, entry]:.6g} where that row is computed alone. "
            "Write the density with other functions, or run it on a processor (JAX_PLATFORMS=cpu)."
        )


@compiled
def _both_ways(target, rows):
    """∇U of all rows together, as chains compute it, and one row after the other."""
    return jax.vmap(target.gradient)(rows), jax.lax.map(target.gradient, rows)


def _value(h, unravel, theta):
    return jnp.asarray(h(unravel(theta)), float)


_value_gradient = jax.grad(_value, argnums=2)
