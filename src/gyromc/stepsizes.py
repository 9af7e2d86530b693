"""Step sizes and numbers of steps as a user passes them, checked before anything runs."""

from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import LARGEST, cause, number, require, shown, whole
from gyromc.errors import InvalidInput

__all__ = ["check_precision", "check_schedule", "paper_steps", "read_num_steps", "read_step_size"]


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


def read_step_size(value) -> float:
    """A constant step size as a float."""
    eta = number(value)
    if eta is None:
        raise InvalidInput(f"`step_size` must be a positive number or a function of the step: got {shown(value)}.")
    require(
        np.isfinite(eta) and eta > 0,
        f"`step_size` must be positive and finite: got {eta:g}. Typical values are 0.001 to 0.1 of the target's scale.",
    )
    return eta


def check_schedule(schedule: Callable, total: int) -> None:
    """Evaluate a schedule on shapes and at some steps, so that a wrong one is found before anything runs."""
    try:
        value = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        raise InvalidInput(
            f"The schedule cannot be evaluated on a step number inside JAX: {cause(error)} Write it with `jax.numpy`, and "
            "`jnp.where` in place of `if`."
        ) from error
    require(
        getattr(value, "shape", None) == (),
        f"A schedule must return one number for a step: it returns shape {getattr(value, 'shape', None)}.",
    )
    require(
        not jnp.issubdtype(value.dtype, jnp.complexfloating),
        f"A schedule must return a real number for a step: it returns {value.dtype}.",
    )
    steps = np.unique(np.concatenate([np.arange(min(total, 64)), np.geomspace(1, total, 64).astype(np.int64) - 1]))
    with jax.enable_x64(True):
        found = np.array([float(schedule(jnp.asarray(k))) for k in steps])
    wrong = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if wrong.size:
        raise InvalidInput(
            f"A schedule must return positive, finite step sizes: at step {steps[wrong[0]]} it returns {found[wrong[0]]:g}."
        )


def check_precision(step_size: float, dtype: str) -> None:
    """Raise for a step size that is zero or infinite in the precision of the run."""
    with np.errstate(over="ignore"):
        rounded = float(np.dtype(dtype).type(step_size))
    require(
        0 < rounded < np.inf,
        f"`step_size` = {step_size:g} is {rounded:g} in {dtype}. Express the target in other units, so that its scale is near 1.",
    )


def read_num_steps(num_steps, step_size) -> int:
    """The number of steps; None means that of the paper, which needs a constant step size."""
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
    require(
        steps <= LARGEST,
        f"`step_size` = {step_size:g} means ⌊η⁻²⌋ = 10^{-2 * np.log10(step_size):.0f} steps, more than can be made. Pass "
        "`num_steps`, or a larger step size.",
    )
    return steps
