"""Checks of arguments: each returns a clean value or raises `InvalidInput`."""

import contextlib
import os
import sys

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


def require_real(value, name: str) -> None:
    """Raise for what a conversion to float64 would change silently: masked entries, complex numbers, dates and times."""
    masked = int(np.ma.count_masked(value)) if isinstance(value, np.ma.MaskedArray) else 0
    require(
        masked == 0,
        f"`{name}` has {masked} masked entries, which would be read as if they were not masked. Drop those rows, or fill them: "
        f"`{name}.filled(value)`.",
    )
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    require(
        kind != "c", f"`{name}` must be real: got complex numbers. Pass `{name}.real` if the imaginary part is zero."
    )
    require(
        kind not in ("M", "m"),
        f"`{name}` holds dates or times, not numbers. Convert them, for example to days since the first: "
        f"`({name} - {name}.min()) / np.timedelta64(1, 'D')`.",
    )


def numbers(value, name: str) -> np.ndarray:
    """A float64 copy of anything numeric; raises unless every entry is real and finite."""
    require_real(value, name)
    try:
        given = np.asarray(value)
        require_real(given, name)
        array = np.array(given, dtype=float)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
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


def free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system says."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def require_memory(size: int, what: str, remedy: str) -> None:
    """Raise unless `size` bytes fit into four fifths of the free memory."""
    free = free_memory()
    require(
        size < 0.8 * free,
        f"{what} would take {size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are free. {remedy}",
    )
