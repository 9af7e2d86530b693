"""A Plan says everything about a computation and does nothing: a frozen value, its pieces checked against each other."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import LARGEST, explained, flag, number, one_of, require, shown, whole
from gyromc.coordinates import Coordinates, check_coordinates
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.flat import Start, ravel, read_start, unraveler
from gyromc.model import Model
from gyromc.observables import Bent, Function, Observable, Ridge
from gyromc.oracles import Exact, Oracle
from gyromc.runtime.machine import require_memory
from gyromc.schemes import Scheme, StepMatrices, step_matrices
from gyromc.schemes import find as find_scheme
from gyromc.targets import Target

__all__ = ["Plan", "paper_steps", "read_step_size"]

WEIGHTINGS = ("uniform", "step_size")


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Plan:
    """Everything about a computation: what to sample, how, how long, from where.

    **Arguments:**

    - `target`: the law to sample (`gyromc.targets`).
    - `dynamics`: the pair (D, Q) (`gyromc.dynamics`).
    - `observables`: the functions to average, by name; one of `gyromc.observables` or a plain function of the parameters.
    - `step_size`: η > 0, or a function of the step number k = 0, 1, … giving η_k.
    - `oracle`: where gradients come from (`gyromc.oracles`); exact when left out.
    - `num_steps`: N, how many states are averaged, z_0 included; `None`: exactly ⌊η⁻²⌋, the paper's choice.
    - `num_chains`: R independent chains.
    - `seed`: a whole number; the same seed gives the same numbers.
    - `scheme`: the integrator, a value of `gyromc.schemes` or its name.
    - `martingale`: whether the averages are corrected by the noise that was drawn: the same mean with a smaller error.
    - `start`: θ₀. Parameters (vector or pytree) for all chains, an array with one row per chain, or a function of a JAX key that
      draws them for each chain; `None` means zeros. For dynamics on (θ, r), a vector of 2d numbers is (θ₀, r₀).
    - `coordinates`: T of `gyromc.coordinates`: chains move in z = T⁻¹(θ), with D and Q there; everything else is given and
      returned as θ. Left out: θ itself.
    - `burn_in`: steps made before averaging begins, not counted in `num_steps`.
    - `weighting`: `"uniform"` averages every state alike; `"step_size"` weights h(z_k) with η_k, for schedules.
    - `dtype`: `"float32"` or `"float64"`; `None` follows JAX's own setting.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 2.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"first": gm.observables.linear([1.0, 0.0])}, step_size=0.05)
    print(plan.num_steps)  # 400
    ```
    """

    target: Target
    dynamics: Dynamics
    observables: Mapping[str, Observable]
    step_size: float | Callable[[Any], Any]
    oracle: Oracle
    num_steps: int
    num_chains: int
    seed: int
    scheme: Scheme
    start: Any
    burn_in: int
    weighting: str
    dtype: str
    martingale: bool
    coordinates: Coordinates | None
    # Worked out from the above:
    dim: int
    """The number of parameters d."""
    scheduled: bool
    """Whether the step size is a function of the step."""
    state_size: int
    """How many numbers the state of a chain has: z, and the scheme's memory."""
    gradients: int
    """Gradient evaluations over all chains."""
    model: Model
    augmented: bool
    starts: Start
    steps_follow_eta: bool

    def __init__(
        self,
        *,
        target: Target,
        dynamics: Dynamics,
        observables: Mapping[str, Any],
        step_size: Any,
        oracle: Oracle | None = None,
        num_steps: int | None = None,
        num_chains: int = 2000,
        seed: int = 0,
        scheme: str | Scheme = "euler",
        start: Any = None,
        burn_in: int = 0,
        weighting: str = "uniform",
        dtype: str | None = None,
        martingale: bool = False,
        coordinates: Coordinates | None = None,
    ):
        # Frozen for everybody else.
        set_ = vars(self).update
        oracle = Exact() if oracle is None else oracle
        for kind, piece in ((Target, target), (Dynamics, dynamics), (Oracle, oracle)):
            name, came = kind.__name__.lower(), piece.__name__ if isinstance(piece, type) else type(piece).__name__
            where = name if kind is Dynamics else f"{name}s"
            require(isinstance(piece, kind), f"`{name}` must be a value of `gyromc.{where}`: got {came}.")
        oracle.check(target)
        eta = step_size if callable(step_size) else read_step_size(step_size)
        set_(target=target, dynamics=dynamics, oracle=oracle, start=start, scheme=find_scheme(scheme), step_size=eta)
        set_(weighting=one_of(weighting, WEIGHTINGS, "weighting"), martingale=flag(martingale, "martingale"))
        set_(num_steps=_num_steps(num_steps, eta), steps_follow_eta=num_steps is None, scheduled=callable(eta))
        set_(num_chains=whole(num_chains, "num_chains", least=1), burn_in=whole(burn_in, "burn_in", least=0))
        # `np.float64`, `jnp.float32` and their dtypes.
        with contextlib.suppress(Exception):
            dtype = jnp.result_type(float).name if dtype is None else np.dtype(dtype).name
        dtype = one_of(dtype, ("float32", "float64"), "dtype")
        set_(seed=whole(seed, "seed", least=0, most=LARGEST), dtype=dtype)
        total = whole(self.num_steps + self.burn_in, "num_steps + burn_in", least=1)
        set_(gradients=self.num_chains * oracle.gradients(total), state_size=self.scheme.state_size(dynamics.size))
        _check_step_size(eta, total, self.dtype)
        template, starts = _starts(start, target, dynamics, self.num_chains, coordinates)
        dim = unraveler(template)[1]
        set_(model=Model(target, template, starts.point(dim), coordinates), starts=starts, coordinates=coordinates)
        set_(augmented=dynamics.has_momentum(dim, f"the target ({type(target).__name__})"), dim=dim)
        alone = f"`start` gives a momentum r₀, but {dynamics.name} acts on θ alone: pass {dim} numbers."
        require(starts.r is None or self.augmented, alone)
        starts.check_precision(self.dtype)
        _check_scheme(self)
        set_(observables=_checked_functions(target, observables, template, coordinates is not None))

    @property
    def unravel(self) -> Callable:
        """The map from the vector θ, or z in other coordinates, to parameters."""
        return self.model.unravel

    @property
    def flat_target(self) -> Target:
        """The target as a function of the vector θ, or of z in other coordinates."""
        return self.model.flat_target

    @property
    def eta(self) -> float:
        """η of a constant step size; `InvalidInput` for a schedule."""
        require(not self.scheduled, "This needs a constant step size, and the plan's is a schedule.")
        return float(self.step_size)  # type: ignore[arg-type]  # a number: not scheduled

    @property
    def eta_text(self) -> str:
        """η for tables and messages."""
        return "schedule" if self.scheduled else f"{self.eta:g}"

    def replace(self, **changes: Any) -> "Plan":
        """A copy with some fields changed; `num_steps=None` is resolved anew for a new step size.

        ```python
        import gyromc as gm
        plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1),
                       observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
        print(plan.replace(step_size=0.05).num_steps)  # 400
        ```
        """
        unknown = ", ".join(sorted(set(changes) - set(FIELDS)))
        require(not unknown, f"A plan has no field {unknown}: its fields are {', '.join(FIELDS)}.")
        kept = {name: getattr(self, name) for name in FIELDS}
        kept["num_steps"] = None if self.steps_follow_eta else self.num_steps
        changed = Plan(**{**kept, **changes})
        if not {"target", "start", "coordinates"} & set(changes) and changed.dim == self.dim:
            # What is known of it stays known.
            object.__setattr__(changed, "model", self.model)
        return changed

    def knowing(self, model: Model) -> "Plan":
        """The same plan with what is already known of its model."""
        require(model.target is self.target, "`knowing` takes a model of the plan's own target.")
        object.__setattr__(same := self.replace(), "model", model)
        return same

    def reversible(self) -> "Plan":
        """The same plan with the reversible baseline's dynamics."""
        return self.replace(dynamics=self.dynamics.reversible())

    @functools.cached_property
    def prepared_oracle(self) -> Oracle:
        """The oracle with what it precomputes for this target, once for all plans of a model."""
        return self.model.computed.once("prepared oracle", (self.oracle,), lambda: self.oracle.prepared(self.model))

    @functools.cached_property
    def prepared_scheme(self) -> Scheme:
        """The scheme with what it computes once for this plan; that of a saved run is the one it ran with."""
        known = None if self.scheduled else self.model.computed.find("prepared scheme", self.step_pieces)
        return self.scheme.prepared(self) if known is None else known

    @property
    def step_pieces(self) -> tuple:
        """What one step of a chain with a constant step size depends on, besides the target."""
        return self.scheme, self.dynamics, self.oracle, self.eta

    @functools.cached_property
    def step_matrices(self) -> StepMatrices:
        """One step as matrices, for a linear scheme and a constant step size."""
        return step_matrices(self.prepared_scheme, self.dynamics, self.eta)

    def summary(self) -> dict[str, Any]:
        """Names and numbers, for tables and JSON; the step size of a schedule is None."""
        pieces = {name: getattr(self, name).name for name in ("dynamics", "oracle", "scheme")}
        if self.coordinates is not None:
            pieces["coordinates"] = type(self.coordinates).__name__
        step = {"martingale": self.martingale, "step_size": None if self.scheduled else self.eta}
        rest = {name: getattr(self, name) for name in ("num_steps", "burn_in", "num_chains", "seed", "dtype")}
        return {"target": type(self.target).__name__, **pieces, **step, **rest}

    def __repr__(self) -> str:
        pieces = f"{type(self.target).__name__}, {self.dynamics.name}, {self.oracle.name}"
        lengths = f"num_steps={self.num_steps}, num_chains={self.num_chains}, seed={self.seed}"
        return f"Plan({pieces}, step_size={self.eta_text}, {lengths})"


FIELDS = tuple(inspect.signature(Plan).parameters)
"""What a plan is built from, by name."""


def _starts(start: Any, target: Target, dynamics: Dynamics, chains: int, coordinates: Any) -> tuple[Any, Start]:
    """The template of the parameters, and where chains start, in their coordinates; refused where memory cannot hold them."""
    n = dynamics.size
    what = f"The state of {chains:,} chains with {n:,} numbers each"
    require_memory(4 * chains * n, what, "Take fewer chains or parameters.")
    # How many parameters there may be, by the target or else by the dynamics, the likelier first.
    dims = {True: (n // 2,), False: (n,), None: (n, n // 2)}[dynamics.augmented]
    template, starts = read_start(start, dims if target.dim is None else (target.dim,), n, chains, target.dim is None)
    if coordinates is None:
        return template, starts
    theta = starts.point(unraveler(template)[1]) if starts.draw is None else ravel(starts.draw(jax.random.key(0)))
    check_coordinates(coordinates, np.asarray(theta, float))
    return template, starts.moved(coordinates)


def _check_scheme(plan: Plan) -> None:
    scheme = plan.scheme
    reason = scheme.why_not(plan.dynamics, plan.augmented)
    require(reason is None, f"The scheme `{scheme}` does not fit this plan: {reason}.")
    fixed = scheme.needs_prepared or plan.martingale or (scheme.memory and not isinstance(plan.oracle, Exact))
    needing = "`martingale=True`" if plan.martingale else f"The scheme `{scheme}`"
    why = "needs a constant step size, and the plan's is a schedule"
    require(not (plan.scheduled and fixed), f'{needing} {why}. Pass a number, or `scheme="euler"`.')
    linear = f"`martingale=True` needs a scheme that is linear in its noise: `{scheme}` does not say that it is."
    require(not plan.martingale or scheme.linear, linear)


def _checked_functions(target: Target, observables: Any, template: Any, bent: bool) -> dict[str, Observable]:
    """The observables; they and the target are called on shapes only, so that a wrong one is found before anything runs."""
    mapping, got = isinstance(observables, Mapping), type(observables).__name__
    needed = 'At least one observable is needed, by name: `observables={"name": h}`.'
    require(mapping and observables, f"{needed} Got {got}{' without entries' if mapping else ''}.")
    found: dict[str, Observable] = {}
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype("float32")), template)
    for name, h in observables.items():
        require(isinstance(name, str), f"Observables are named by strings: got the name {shown(name)}.")
        this = f"Observable {name!r}"
        require(callable(h), f"{this} must be of `gyromc.observables` or a function: got {type(h).__name__}.")
        h = h.ridge if isinstance(h, Bent) else h
        h = h if isinstance(h, Observable) else Function(h)
        found[name] = Bent(h) if bent and isinstance(h, Ridge) else h
        if isinstance(h, Ridge):
            length, shape = h.direction.shape[0], getattr(params, "shape", None)
            are = "a pytree: use `function(f)`" if shape is None else f"of shape {shape}"
            require(shape == (length,), f"{this} has a direction of {length} numbers, but the parameters are {are}.")
            continue
        value = shape_of(this, h, params)
        single = getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.number)
        require(single, f"{this} must return a single number: it returns {value}.")
        remedy = "Make two observables, of its real and its imaginary part."
        real = not jnp.issubdtype(value.dtype, jnp.complexfloating)
        require(real, f"{this} must return a real number: it returns {value.dtype}. {remedy}")
    gradient = shape_of("The target's gradient", target.gradient, params)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(params), strict=True):
        require(a.shape == b.shape, f"The target's gradient has shape {a.shape} where the parameters have {b.shape}.")
    return found


def shape_of(what: str, function: Callable, params):
    """The shape of `function(params)`; errors inside the user's function name it and keep the original cause."""
    failed = f"{what} cannot be evaluated on parameters of shape {jax.tree.map(lambda x: x.shape, params)}"
    with explained(failed, "Check that its arguments match `start`."):
        return eqx.filter_eval_shape(function, params)


def paper_steps(step_size: float) -> int:
    """N_η = ⌊η⁻²⌋ of (E4), exactly: the mathematical value also where η itself is rounded: `0.1 * 0.2` gives 2500, not 2499."""
    eta = Fraction(float(step_size))
    inverse_square = 1 / (eta * eta)  # E4, in exact arithmetic
    nearest = round(inverse_square)
    # η is only known up to its own rounding.
    kind = getattr(step_size, "dtype", np.dtype(float))
    eps = Fraction(float(jnp.finfo(kind).eps)) if jnp.issubdtype(kind, jnp.floating) else Fraction(2) ** -52
    return nearest if abs(inverse_square - nearest) <= 4 * eps * inverse_square else int(inverse_square)


def read_step_size(value) -> float:
    """A constant step size as a float."""
    eta = number(value)
    if eta is None:
        raise InvalidInput(f"`step_size` must be a positive number or a function of the step: got {shown(value)}.")
    typical = "Typical values are 0.001 to 0.1 of the target's scale."
    require(np.isfinite(eta) and eta > 0, f"`step_size` must be positive and finite: got {eta:g}. {typical}")
    return eta


def _check_step_size(step_size: Any, total: int, dtype: str) -> None:
    """Raise for a number that is zero or infinite in the precision of the run, and for a wrong schedule, before anything runs."""
    if not callable(step_size):
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(dtype).type(step_size))
        remedy = "Express the target in other units, so that its scale is near 1."
        require(0 < rounded < np.inf, f"`step_size` = {step_size:g} is {rounded:g} in {dtype}. {remedy}")
        return
    schedule: Callable[[Any], Any] = step_size
    remedy = "Write it with `jax.numpy`, and `jnp.where` in place of `if`."
    with explained("The schedule cannot be evaluated on a step number inside JAX", remedy):
        value = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    shape = getattr(value, "shape", None)
    require(shape == (), f"A schedule must return one number for a step: it returns shape {shape}.")
    real = not jnp.issubdtype(value.dtype, jnp.complexfloating)
    require(real, f"A schedule must return a real number for a step: it returns {value.dtype}.")
    steps = np.unique(np.concatenate([np.arange(min(total, 64)), np.geomspace(1, total, 64).astype(np.int64) - 1]))
    with jax.enable_x64(True):
        found = np.array([float(schedule(jnp.asarray(k))) for k in steps])
    good = np.isfinite(found) & (found > 0)
    first = f"at step {steps[np.argmin(good)]} it returns {found[np.argmin(good)]:g}"
    require(good.all(), f"A schedule must return positive, finite step sizes: {first}.")


def _num_steps(num_steps: Any, step_size: Any) -> int:
    """The number of steps; None means that of the paper, which needs a constant step size."""
    if num_steps is not None:
        return whole(num_steps, "num_steps", least=1)
    why = "`num_steps=None` means ⌊η⁻²⌋ and needs a constant step size"
    require(not callable(step_size), f"{why}: `step_size` is a schedule, so pass `num_steps`.")
    steps, given = paper_steps(step_size), f"`step_size` = {step_size:g}"
    require(steps >= 1, f"{given} leaves no steps: ⌊η⁻²⌋ = {steps}. Pass `num_steps`, or a step size of at most 1.")
    many = f"⌊η⁻²⌋ = 10^{-2 * np.log10(step_size):.0f} steps, more than can be made"
    require(steps <= LARGEST, f"{given} means {many}. Pass `num_steps`, or a larger step size.")
    return steps
