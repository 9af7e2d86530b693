"""A Plan says everything about a computation and does nothing (E3, E4).

Receives the pieces (target, oracle, dynamics, observables, scheme) and the numbers; checks that they fit together; hands on one
frozen value that `predict`, `run` and `tune` all take.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import numbers, require, require_finite, whole
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.flat import flatten, unraveler
from gyromc.observables import Function, Observable, Ridge
from gyromc.oracles import Exact, Oracle
from gyromc.schemes import SCHEMES
from gyromc.targets import Target

__all__ = ["Plan", "paper_steps"]

WEIGHTINGS = ("uniform", "step_size")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
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
    - `scheme`: the integrator, by name (`gyromc.schemes`).
    - `start`: θ₀. Parameters (vector or pytree) for all chains, an array with one row per chain, or a function of a JAX key that
      draws them for each chain; `None` means zeros. For dynamics on (θ, r), a vector of 2d numbers is (θ₀, r₀).
    - `burn_in`: steps made before averaging begins, not counted in `num_steps`.
    - `weighting`: `"uniform"` averages every state alike (E4); `"step_size"` weights h(z_k) with η_k, for schedules.
    - `dtype`: `"float32"` or `"float64"`; `None` follows JAX's own setting.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 2.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"first": gm.observables.linear([1.0, 0.0])}, step_size=0.05)
    assert plan.num_steps == 400
    ```
    """

    target: Target
    dynamics: Dynamics
    observables: Mapping[str, Observable]
    step_size: float | Callable[[Any], Any]
    oracle: Oracle = dataclasses.field(default_factory=Exact)
    num_steps: int = None  # type: ignore[assignment]  # an integer once built
    num_chains: int = 2000
    seed: int = 0
    scheme: str = "euler"
    start: Any = None
    burn_in: int = 0
    weighting: str = "uniform"
    dtype: str = None  # type: ignore[assignment]  # a name once built
    # Worked out from the above:
    dim: int = dataclasses.field(init=False)
    augmented: bool = dataclasses.field(init=False)
    theta0: Any = dataclasses.field(init=False, repr=False)
    r0: np.ndarray | None = dataclasses.field(init=False, repr=False)
    unravel: Callable = dataclasses.field(init=False, repr=False)
    flat_target: Target = dataclasses.field(init=False, repr=False)
    steps_follow_eta: bool = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        def set_(name: str, value: Any) -> None:  # frozen for everybody else
            object.__setattr__(self, name, value)

        set_("steps_follow_eta", self.num_steps is None)
        _check_pieces(self)
        if not callable(self.step_size):
            set_("step_size", _step_size(self.step_size))
        set_("num_steps", _num_steps(self.num_steps, self.step_size))
        set_("num_chains", whole(self.num_chains, "num_chains", least=1))
        set_("burn_in", whole(self.burn_in, "burn_in", least=0))
        set_("seed", whole(self.seed, "seed", least=0, most=2**63 - 1))
        set_("dtype", _dtype(self.dtype))
        template, theta, r = _start(self)
        unravel, dim = unraveler(template)
        set_("dim", dim)
        set_("unravel", unravel)
        set_("augmented", _augmented(self.dynamics, dim, self.target))
        require(
            r is None or self.augmented,
            f"`start` gives a momentum r₀, but {self.dynamics.name} acts on θ alone: pass {dim} numbers.",
        )
        set_("theta0", theta)
        set_("r0", r)
        set_("observables", _observables(self.observables))
        set_("flat_target", flatten(self.target, unravel, dim))
        _check_functions(self, template)

    def replace(self, **changes: Any) -> "Plan":
        """A copy with some fields changed; `num_steps=None` is resolved anew for a new step size.

        ```python
        import gyromc as gm
        plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1),
                       observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
        assert plan.replace(step_size=0.05).num_steps == 400
        ```
        """
        kept = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        if self.steps_follow_eta:
            kept["num_steps"] = None
        unknown = set(changes) - set(kept)
        require(
            not unknown,
            f"A plan has no field {', '.join(sorted(unknown))}: its fields are {', '.join(kept)}.",
        )
        return Plan(**{**kept, **changes})

    def reversible(self) -> "Plan":
        """The same plan with the reversible baseline's dynamics (E5)."""
        return self.replace(dynamics=self.dynamics.reversible())

    @functools.cached_property
    def prepared_oracle(self) -> Oracle:
        """The oracle with what it precomputes for this target."""
        return self.oracle.prepared(self.flat_target, self.dim)

    @property
    def gradients(self) -> int:
        """Gradient evaluations over all chains."""
        return self.num_chains * (self.num_steps + self.burn_in)

    def summary(self) -> dict[str, Any]:
        """Names and numbers, for tables and JSON; the step size of a schedule is None."""
        return {
            "target": type(self.target).__name__,
            "dynamics": self.dynamics.name,
            "oracle": self.oracle.name,
            "step_size": None if callable(self.step_size) else self.step_size,
            "num_steps": self.num_steps,
            "burn_in": self.burn_in,
            "num_chains": self.num_chains,
            "seed": self.seed,
            "dtype": self.dtype,
        }

    def __repr__(self) -> str:
        eta = "schedule" if callable(self.step_size) else f"{self.step_size:g}"
        return (
            f"Plan({type(self.target).__name__}, {self.dynamics.name}, {self.oracle.name}, step_size={eta}, "
            f"num_steps={self.num_steps}, num_chains={self.num_chains}, seed={self.seed})"
        )


def paper_steps(step_size: float) -> int:
    """N_η = ⌊η⁻²⌋ of (E4), exactly: the mathematical value also where η itself is rounded.

    η is only known up to its own rounding, so η⁻² that equals a whole number within a few units in the last place *is*
    that number: `0.1 * 0.2` gives 2500, not 2499.

    ```python
    from gyromc.plan import paper_steps
    assert paper_steps(0.0015625) == 409600
    ```
    """
    eta = Fraction(float(step_size))
    inverse_square = 1 / (eta * eta)  # E4, in exact arithmetic
    nearest = round(inverse_square)
    kind = getattr(step_size, "dtype", np.dtype(float))
    eps = Fraction(float(jnp.finfo(kind).eps)) if jnp.issubdtype(kind, jnp.floating) else Fraction(2) ** -52
    if abs(inverse_square - nearest) <= 4 * eps * inverse_square:
        return int(nearest)
    return int(inverse_square)


def _check_pieces(plan: Plan) -> None:
    for name, kind, where in (
        ("target", Target, "gyromc.targets"),
        ("dynamics", Dynamics, "gyromc.dynamics"),
        ("oracle", Oracle, "gyromc.oracles"),
    ):
        value = getattr(plan, name)
        require(
            isinstance(value, kind),
            f"`{name}` must be a value of `{where}`: got {value.__name__ if isinstance(value, type) else type(value).__name__}.",
        )
    for name, known in (("scheme", tuple(SCHEMES)), ("weighting", WEIGHTINGS)):
        value = getattr(plan, name)
        require(value in known, f"`{name}` must be one of {', '.join(known)}: got {value!r}.")
    plan.oracle.check(plan.target)


def _step_size(value) -> float:
    try:
        eta = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"`step_size` must be a positive number or a function of the step: got {value!r}.") from None
    require(
        np.isfinite(eta) and eta > 0,
        f"`step_size` must be positive and finite: got {eta:g}. Typical values are 0.001 to 0.1 of the target's scale.",
    )
    return eta


def _num_steps(num_steps, step_size) -> int:
    if num_steps is not None:
        return whole(num_steps, "num_steps", least=1)
    require(
        not callable(step_size),
        "`num_steps=None` means ⌊η⁻²⌋ and needs a constant step size: `step_size` is a schedule, so pass `num_steps`.",
    )
    steps = paper_steps(step_size)
    require(
        steps >= 1,
        f"`step_size` = {step_size:g} leaves no steps: ⌊η⁻²⌋ = {steps}. Pass `num_steps`, or a step size of at most 1.",
    )
    return steps


def _dtype(dtype: str | None) -> str:
    if dtype is None:
        return "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    name = np.dtype(dtype).name if not isinstance(dtype, str) else dtype
    require(name in ("float32", "float64"), f'`dtype` must be "float32" or "float64": got {dtype!r}.')
    return name


def _start(plan: Plan) -> tuple[Any, Any, np.ndarray | None]:
    """The parameters' template, θ₀ (array of one or R rows, or a function of a key) and r₀ or None."""
    dynamics, start = plan.dynamics, plan.start
    n, halved = dynamics.size, dynamics.size // 2
    by_dynamics = (halved,) if dynamics.augmented else (n,) if dynamics.augmented is False else (n, halved)
    dims = by_dynamics if plan.target.dim is None else (plan.target.dim,)
    if start is None:
        return jax.ShapeDtypeStruct(dims[:1], np.dtype(float)), np.zeros((1, dims[0])), None
    if callable(start) and jax.tree.leaves(start) == [start]:  # a function, not a module that holds parameters
        return jax.eval_shape(start, jax.random.key(0)), start, None
    if _is_array(start):
        return _array_start(plan, numbers(start, "start"), dims)
    template = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) else x, start)
    unraveler(template)  # says what is wrong with a leaf before it is read
    for path, leaf in jax.tree_util.tree_leaves_with_path(template):
        require_finite(np.asarray(leaf), f"start{jax.tree_util.keystr(path)}")
    return (
        template,
        np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(template)])[None],
        None,
    )


def _array_start(plan: Plan, array: np.ndarray, dims: tuple[int, ...]):
    """As `_start`, for an array: θ₀ or (θ₀, r₀), for all chains or one row each; or a scalar or matrix of parameters."""
    n, R, free = plan.dynamics.size, plan.num_chains, plan.target.dim is None
    widths = {d: None for d in dims} | {2 * d: d for d in dims if 2 * d == n and 2 * d not in dims}
    per_chain = array.ndim == 2 and array.shape[0] == R and array.shape[1] in widths
    if per_chain or (array.ndim == 1 and array.size in widths) or (array.ndim == 0 and 1 in dims and not free):
        rows = np.atleast_2d(array)
        dim = widths[rows.shape[1]] or rows.shape[1]
        template = jax.ShapeDtypeStruct((dim,), np.dtype(float))
        return template, rows[:, :dim], (rows[:, dim:] if rows.shape[1] > dim else None)
    require(
        free and array.ndim != 1 and array.size in dims,
        f"`start` must have {' or '.join(map(str, widths))} numbers (or {R} such rows, one per chain) to fit the target and "
        f"the dynamics: got shape {array.shape}.",
    )
    return jax.ShapeDtypeStruct(array.shape, np.dtype(float)), array.reshape(1, -1), None


def _is_array(value) -> bool:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return True
    if isinstance(value, list):
        return all(isinstance(x, int | float | list | np.number) for x in value)
    return isinstance(value, int | float)


def _augmented(dynamics: Dynamics, dim: int, target: Target) -> bool:
    n, name = dynamics.size, type(target).__name__
    if dynamics.augmented is None:
        require(
            n in (dim, 2 * dim),
            f"`dynamics` must act on θ ({dim} × {dim}) or on (θ, r) ({2 * dim} × {2 * dim}), the target ({name}) having "
            f"{dim} parameters: got {n} × {n}.",
        )
        return n == 2 * dim
    expected = 2 * dim if dynamics.augmented else dim
    require(
        n == expected,
        f"`dynamics` ({dynamics.name}) is made for {n // 2 if dynamics.augmented else n} parameters, but the target ({name}) "
        f"has {dim}. Build it for {dim}.",
    )
    return dynamics.augmented


def _observables(observables) -> dict[str, Observable]:
    require(
        isinstance(observables, Mapping) and len(observables) > 0,
        'At least one observable is needed, by name: `observables={"name": h}`. '
        f"Got {type(observables).__name__}{' without entries' if isinstance(observables, Mapping) else ''}.",
    )
    checked = {}
    for name, h in observables.items():
        require(isinstance(name, str), f"Observables are named by strings: got the name {name!r}.")
        require(
            callable(h),
            f"Observable {name!r} must be of `gyromc.observables` or a function: got {type(h).__name__}.",
        )
        checked[name] = h if isinstance(h, Observable) else Function(h)
    return checked


def _check_functions(plan: Plan, template) -> None:
    """Call target and observables on shapes only, so that a wrong function is found before anything runs."""
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype("float32")), template)
    for name, h in plan.observables.items():
        if isinstance(h, Ridge):
            length = h.direction.shape[0]
            shape = params.shape if hasattr(params, "shape") else None
            require(
                shape == (length,),
                f"Observable {name!r} has a direction of {length} numbers, but the parameters are "
                f"{f'of shape {shape}' if shape is not None else 'a pytree'}"
                f"{'' if shape is not None else ': use `function(f)`'}.",
            )
            continue
        value = _shape_of(f"Observable {name!r}", h, params)
        require(
            getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.number),
            f"Observable {name!r} must return a single number: it returns {value}.",
        )
    gradient = _shape_of("The target's gradient", plan.target.gradient, params)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(params), strict=True):
        require(
            a.shape == b.shape,
            f"The target's gradient has shape {a.shape} where the parameters have {b.shape}.",
        )


def _shape_of(what: str, function: Callable, params):
    """The shape of `function(params)`; errors inside the user's function name it and keep the original cause."""
    try:
        return eqx.filter_eval_shape(function, params)
    except InvalidInput:
        raise
    except Exception as error:
        shapes = jax.tree.map(lambda x: x.shape, params)
        raise InvalidInput(
            f"{what} cannot be evaluated on parameters of shape {shapes}: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. Check that its arguments match `start`."
        ) from error
