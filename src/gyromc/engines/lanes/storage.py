"""Compiled loops on disk: a folder that only this user can write, and functions whose machine code is stored there.

Input: a Python function. Output: it compiled by Numba, loaded from the folder where an earlier process stored it. `STAMP` changes
with every file of this package, so that no loop of an older version is loaded.
"""

import functools
import hashlib
import os
import stat
import warnings
from pathlib import Path
from typing import Any

import numba
from numba import njit

from gyromc.checks import cause
from gyromc.errors import GyromcWarning

SETTINGS: Any = numba.config  # type: ignore[attr-defined]  # Numba adds its settings at run time
OPTIONS: Any = {"error_model": "numpy", "nogil": True, "_nrt": False}  # of the compiled loops


def _stamp() -> int:
    """A number that changes when any file of this package does."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "little")


STAMP = _stamp()


@functools.cache
def private_folder() -> str | None:
    """Where compiled loops are stored, made if needed; None, with one warning, where there is no safe place that can be written.

    They are pickles, which run code when loaded: the folder must be the user's own, and nobody else may write or replace it.
    """
    base = SETTINGS.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.abspath(os.path.expanduser(base)), "gyromc-kernels")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f"probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        fault = None if _only_mine(folder) else "it belongs to someone else, or others can write to it"
    except OSError as error:
        fault = f"it cannot be written ({error.strerror})"
    if fault is None:
        return str(folder)
    _not_stored(str(folder), fault)
    return None


def _only_mine(folder: Path) -> bool:
    """Whether nobody but this user can write to a folder, or put another in its place."""
    if not hasattr(os, "getuid"):
        return True  # Windows: folders of a user are private
    own, above = folder.lstat(), [parent.stat().st_mode for parent in folder.parents]
    replaceable = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
    return stat.S_ISDIR(own.st_mode) and own.st_uid == os.getuid() and not own.st_mode & 0o022 and not replaceable


def stored(loop):
    """A compiled function that is stored on disk where that is possible."""
    folder, before = private_folder(), SETTINGS.CACHE_DIR
    if folder is None:
        return njit(**OPTIONS)(loop)
    try:
        SETTINGS.CACHE_DIR = folder  # read when the function is made
        return _forgiving(njit(cache=True, **OPTIONS)(loop), folder)
    finally:
        SETTINGS.CACHE_DIR = before


def _forgiving(compiled: Any, folder: str) -> Any:
    """A compiled function that is used whether or not it can be read from the folder, or written to it."""
    cache = compiled._cache
    load, save = cache.load_overload, cache.save_overload

    def loaded(*arguments):
        try:
            return load(*arguments)
        except Exception as error:  # a damaged file raises what its reader stumbles on
            return _not_stored(folder, f"a file there cannot be read ({cause(error)})")

    def saved(*arguments):
        try:
            save(*arguments)
        except Exception as error:
            _not_stored(folder, f"it cannot be written ({cause(error)})")

    cache.load_overload, cache.save_overload = loaded, saved
    return compiled


def _not_stored(folder: str, fault: str) -> None:
    """Warn that loops are compiled anew in every process."""
    warnings.warn(
        f"Compiled loops are not stored in {folder}: {fault}. Every process compiles them anew, a few seconds each. Set "
        "`NUMBA_CACHE_DIR` to a folder of your own that can be written.",
        GyromcWarning,
        stacklevel=3,
    )
