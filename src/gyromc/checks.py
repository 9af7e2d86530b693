"""Checks of arguments: each returns a clean value or raises `InvalidInput`."""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.errors import InvalidInput

LARGEST = 2**63 - 1
EXTREME = 1e150
"""Positive numbers beyond it, or below its inverse, have squares that float64 does not hold."""


def require(condition: object, message: str) -> None:
    """Raise `InvalidInput(message)` unless `condition` holds."""
    if not condition:
        raise InvalidInput(message)


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, short, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    # Too deep, too many digits, or a class whose repr raises.
    except Exception:
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}… ({type(value).__name__})"


def cause(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    first = next(iter(str(error).splitlines()), "") or "it has no message"
    return f"{type(error).__name__}: {first}"


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Around what reads a file or calls a user's function: whatever it raises becomes an `InvalidInput` with its cause."""
    try:
        yield
    except (InvalidInput, Warning):
        raise
    except Exception as error:
        if type(error).__name__ == "TracerArrayConversionError":
            remedy = "Write it with `jax.numpy` in place of NumPy."
        raise InvalidInput(f"{what}: {cause(error)}. {remedy}") from error


def require_finite(array: np.ndarray, name: str) -> None:
    """Raise unless every entry is finite; the message says how many are not, and where the first is."""
    if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        at = f", the first at {tuple(map(int, bad[0]))}" if array.ndim else ""
        raise InvalidInput(f"`{name}` must be finite: {len(bad)} entries are NaN or infinite{at}. Drop or impute them.")


def require_real(value, name: str) -> None:
    """Raise for what a conversion to float64 would change silently: masked entries, complex numbers, dates and times."""
    masked = int(np.ma.count_masked(value)) if isinstance(value, np.ma.MaskedArray) else 0
    remedy = f"Drop those rows, or use `{name}.filled(value)`."
    require(masked == 0, f"`{name}` has {masked} masked entries, which would be read as values. {remedy}")
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    remedy = f"Pass `{name}.real` if the imaginary part is zero."
    require(kind != "c", f"`{name}` must be real: got complex numbers. {remedy}")
    remedy = f"convert them, as by `({name} - {name}.min()) / np.timedelta64(1, 'D')`."
    require(kind not in ("M", "m"), f"`{name}` holds dates or times, not numbers: {remedy}")


def numbers(value, name: str, finite: bool = True) -> np.ndarray:
    """A float64 copy of anything numeric; raises unless every entry is real, and finite where that is asked for."""
    require_real(value, name)
    try:
        given = np.asarray(value)
        require_real(given, name)
        if given.dtype.kind in "US":
            raise InvalidInput(f"`{name}` must be numeric: got text, {shown(value)}. Convert it first.")
        array = np.array(given, dtype=float)
    except InvalidInput:
        raise
    except MemoryError:
        raise InvalidInput(f"`{name}` does not fit into memory as an array of float64.") from None
    except OverflowError:
        raise InvalidInput(f"`{name}` must be finite: it holds a number beyond 1.8e308, the largest float64.") from None
    # Whatever the conversion of a foreign type raises.
    except Exception:
        what = f"got {type(value).__name__} that cannot be read as an array of numbers"
        raise InvalidInput(f"`{name}` must be numeric: {what}.") from None
    if finite:
        require_finite(array, name)
    return array


def number(value: Any) -> float | None:
    """One real number as a float, infinite where float64 cannot hold it; None for texts, truth values and anything else."""
    try:
        other = np.ndim(value) != 0 or np.asarray(value).dtype.kind in "bcmMUS"
        return None if other else float(value)
    except OverflowError:
        return math.inf
    # Whatever the conversion of a foreign type raises.
    except Exception:
        return None


def positive(value, name: str) -> float:
    """One positive, finite number whose square is one too."""
    found = number(value)
    if found is None:
        raise InvalidInput(f"`{name}` must be one positive number: got {shown(value)}.")
    require(0 < found < math.inf, f"`{name}` must be positive and finite: got {found:g}.")
    require(1 / EXTREME < found < EXTREME, f"`{name}` must lie between {1 / EXTREME:g} and {EXTREME:g}: got {found:g}.")
    return found


def read_path(value: Any) -> Path:
    """The path of a file or a folder."""
    require(isinstance(value, str | os.PathLike), f"The path of a file is needed: got {shown(value)}.")
    try:
        name = os.fsencode(value)
        long = len(name) > 4095 or max(map(len, name.split(b"/"))) > 255
        wrong = "its name has a zero byte" if b"\0" in name else "its name is too long" if long else ""
    except UnicodeError:
        wrong = "its name has letters that no file system stores"
    require(not wrong, f"{shown(os.fspath(value))} cannot be a path: {wrong}. Pass another one.")
    return Path(os.fsdecode(value))


def coverage(value) -> float:
    """The coverage of an interval."""
    found = number(value)
    if found is None or not 0 < found < 1:
        raise InvalidInput(f"`level` must lie between 0 and 1: got {shown(value)}. 95 % is 0.95.")
    return found


def flag(value, name: str) -> bool:
    """True or False."""
    require(isinstance(value, bool | np.bool_), f"`{name}` must be True or False: got {shown(value)}.")
    return bool(value)


def one_of(value, names: Iterable[str], name: str, hint: str = "") -> Any:
    """One of some names."""
    names = tuple(names)
    if not isinstance(value, str) or value not in names:
        raise InvalidInput(f"`{name}` must be one of {', '.join(names)}: got {shown(value)}.{hint}")
    return value


def leaves(tree, name: str) -> list[tuple[Any, Any]]:
    """The paths and leaves of a pytree; raises where it is nested too deeply to be read."""
    import jax

    # JAX raises SystemError, RecursionError or ValueError.
    with explained(f"`{name}` cannot be read as a pytree", "Nest it less deeply, with keys that have an order."):
        return jax.tree_util.tree_leaves_with_path(tree)


def whole(value, name: str, least: int, most: int | None = None) -> int:
    """A whole number in the given range."""
    try:
        wrong = isinstance(value, bool | np.bool_) or np.ndim(value) != 0 or int(value) != value
        found = None if wrong else int(value)
    # Whatever the conversion of a foreign type raises.
    except Exception:
        found = None
    if found is None or found < least or (most is not None and found > most):
        upto = f" to {most}" if most is not None else " up"
        raise InvalidInput(f"`{name}` must be a whole number from {least}{upto}: got {shown(value)}.")
    require(found <= LARGEST, f"`{name}` must be below 2⁶³: got {shown(value)}.")
    return found
