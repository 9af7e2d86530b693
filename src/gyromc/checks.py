"""Checks of arguments: each returns a clean value or raises `InvalidInput`."""

import warnings

import numpy as np

from gyromc.errors import InvalidInput


def require(condition: object, message: str) -> None:
    """Raise `InvalidInput(message)` unless `condition` holds."""
    if not condition:
        raise InvalidInput(message)


def require_finite(array: np.ndarray, name: str) -> None:
    """Raise unless every entry is finite; the message says how many are not, and where the first is."""
    if not np.issubdtype(array.dtype, np.inexact):
        return
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        at = f", the first at {where}" if where else ""
        raise InvalidInput(
            f"`{name}` must be finite: {int(bad.sum())} entries are NaN or infinite{at}. Drop or impute them."
        )


def numbers(value, name: str) -> np.ndarray:
    """A float64 copy of anything numeric; raises unless every entry is finite."""
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"`{name}` must be numeric: got {type(value).__name__} that cannot be read as an array of numbers."
        ) from None
    require_finite(array, name)
    return array


def positive(value, name: str) -> float:
    """One positive, finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"`{name}` must be one positive number: got {value!r}.") from None
    require(np.isfinite(number) and number > 0, f"`{name}` must be positive and finite: got {number:g}.")
    return number


def whole(value, name: str, least: int, most: int | None = None) -> int:
    """A whole number in the given range."""
    try:
        ok = not isinstance(value, bool) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        ok = False
    upto = f" to {most}" if most is not None else ""
    require(
        ok and value >= least and (most is None or value <= most),
        f"`{name}` must be a whole number from {least}{upto or ' up'}: got {value!r}.",
    )
    return int(value)


def deprecated(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name still works for this release only, and which one replaces it."""
    warnings.warn(f"`{old}` is now `{new}`; the old name will be removed.", DeprecationWarning, stacklevel=stacklevel)
