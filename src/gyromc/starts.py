"""Where chains start: what a user passes as `start`, read as rows of θ₀ and r₀.

Parameters for all chains, an array with one row per chain, a function of a JAX key, or nothing in; a `Start` and the template
of the parameters out.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gyromc.checks import cause, leaves, numbers, require, require_finite, require_real
from gyromc.errors import InvalidInput
from gyromc.flat import unraveler

__all__ = ["Start", "read_start"]


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Fixed rows of θ₀, one for all chains or one each; or a function of a key that draws one. r₀ is zero where it is None."""

    theta: np.ndarray | None = None
    draw: Callable | None = None
    r: np.ndarray | None = None

    def point(self, dim: int) -> np.ndarray:
        """One of the fixed points, zeros where they are drawn: where mode finding begins."""
        return np.zeros(dim) if self.theta is None else np.asarray(self.theta[0], float)

    def check_precision(self, dtype: str) -> None:
        """Raise `InvalidInput` for fixed numbers whose squares a run in this precision cannot hold."""
        most = math.sqrt(float(np.finfo(dtype).max))
        for part in (self.theta, self.r):
            largest = 0.0 if part is None or not part.size else float(np.max(np.abs(part)))
            require(
                largest < most,
                f"`start` holds {largest:.3g}: in {dtype} numbers must stay within ±{most:.2g}. Start nearer to zero, or express "
                "the parameters in other units.",
            )


def read_start(start: Any, dims: tuple[int, ...], state_size: int, num_chains: int, free: bool) -> tuple[Any, Start]:
    """The template of the parameters, and where the chains start."""
    if start is None:
        return _vector(dims[0]), Start(np.zeros((1, dims[0])))
    found = [leaf for _, leaf in leaves(start, "start")]
    if callable(start) and len(found) == 1 and found[0] is start:  # a function, not a module that holds parameters
        return _drawn(start), Start(draw=start)
    if is_array(start):
        return _from_array(numbers(start, "start"), dims, state_size, num_chains, free)
    template = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) else x, start)
    unraveler(template)  # says what is wrong with a leaf before it is read
    for path, leaf in leaves(template, "start"):
        require_real(leaf, f"start{jax.tree_util.keystr(path)}")
        require_finite(np.asarray(leaf), f"start{jax.tree_util.keystr(path)}")
    flat = np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(template)])
    return template, Start(flat[None])


def _drawn(start: Callable) -> Any:
    """The shape of what a function draws as the start."""
    try:
        return jax.eval_shape(start, jax.random.key(0))
    except Exception as error:
        raise InvalidInput(
            f"`start` is a function that cannot be evaluated on a JAX key: {cause(error)} It must return parameters."
        ) from error


def _from_array(array: np.ndarray, dims: tuple[int, ...], state_size: int, num_chains: int, free: bool):
    """An array is a row of θ₀ or of (θ₀, r₀), or one such row per chain; a target without a shape takes any other as its own."""
    lengths = {d: d for d in dims}  # how long a row may be, and how many of its numbers are θ₀
    lengths |= {2 * d: d for d in dims if 2 * d == state_size and 2 * d not in lengths}
    rows = array.reshape(1, -1) if array.ndim <= 1 else array
    one_row = array.ndim == 1 or (array.ndim == 0 and not free)
    per_chain = array.ndim == 2 and len(array) == num_chains
    if (one_row or per_chain) and rows.shape[1] in lengths:
        dim = lengths[rows.shape[1]]
        return _vector(dim), Start(rows[:, :dim], r=rows[:, dim:] if rows.shape[1] > dim else None)
    require(
        free and array.ndim != 1 and array.size in dims,
        f"`start` must have {' or '.join(map(str, lengths))} numbers (or {num_chains} such rows, one per chain) to fit the "
        f"target and the dynamics: got shape {array.shape}.",
    )
    return jax.ShapeDtypeStruct(array.shape, np.dtype(float)), Start(array.reshape(1, -1))


def _vector(dim: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((dim,), np.dtype(float))


def is_array(value) -> bool:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return True
    if isinstance(value, list):
        return all(isinstance(x, int | float | list | np.number) for x in value)
    return isinstance(value, int | float)
