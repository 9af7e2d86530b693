"""What is kept of compiled programs: some in memory, and those that took long to compile in files for the next process.

`compiled` and `Programs` are JAX's `jit` for functions of pytrees with users' functions in them; they keep few programs.
`keep_compiled` is called once, where gyromc first imports JAX. It changes nothing where the user has set a cache
(`JAX_COMPILATION_CACHE_DIR`), switched it off (`GYROMC_NO_CACHE`, `JAX_ENABLE_COMPILATION_CACHE`), or has no folder that they
alone can write: compiled programs are code.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc.show.files import private_folder

__all__ = ["Programs", "compiled", "keep_compiled"]


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    """Which programs are kept, and how many."""

    seconds: float = 0.1
    """Programs that compile faster are not kept: to read one takes some 10 ms, and most of JAX's own are that small."""
    most_bytes: int = 2**29
    """Beyond this, the programs not used for the longest time go, down to half of it. A session leaves 2 to 20 MB."""
    programs: int = 64
    """Of one function, that stay in memory: each takes up to 5 MB, and no call here needs more than some twenty at once."""


SETTINGS = CacheSettings()
ARRAYS = (jax.Array, np.ndarray, np.generic)


class Programs:
    """`function(tree, *arguments)` compiled by JAX: arrays in the pytree are traced, and all else is part of the program.

    JAX keeps what is part of a program for the life of the process, users' functions with all that they refer to. Here each
    program is a function of arrays alone, and the one that was not used for the longest time goes when there are too many.
    `donate`: the place of an argument after the tree, from 1, whose memory the program may use.
    """

    def __init__(self, function: Callable, donate: int | None = None):
        self.function, self.donate = function, () if donate is None else (donate,)
        self.made: collections.OrderedDict[_Static, Any] = collections.OrderedDict()

    def of(self, tree: Any) -> tuple[Any, list]:
        """The program for a tree, and the arrays of it that are the program's first argument."""
        leaves, structure = jax.tree.flatten(tree)
        arrays = [x if isinstance(x, ARRAYS) else None for x in leaves]
        static = _Static((structure, *(None if isinstance(x, ARRAYS) else x for x in leaves)))
        program = self.made.pop(static, None)
        if program is None:
            program = jax.jit(functools.partial(_traced, self.function, static), donate_argnums=self.donate)
        self.made[static] = program
        while len(self.made) > SETTINGS.programs:
            self.made.popitem(last=False)
        return program, arrays


def compiled(function: Callable) -> Callable:
    """`function` of pytrees compiled by JAX; of its programs, those that were used last are kept."""
    programs = Programs(lambda args: function(*args))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        program, arrays = programs.of(args)
        return program(arrays)

    return call


class _Static:
    """What is not an array in a pytree, with a hash that is computed once."""

    def __init__(self, values: tuple):
        self.values, self.hash = values, hash(values)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Static) and self.values == other.values)


def _traced(function: Callable, static: _Static, arrays: list, *arguments: Any) -> Any:
    structure, *others = static.values
    leaves = [other if x is None else x for other, x in zip(others, arrays, strict=True)]
    return function(jax.tree.unflatten(structure, leaves), *arguments)


def keep_compiled() -> Path | None:
    """Let JAX keep compiled programs in a folder of the user's; returns it, or None where nothing was changed."""
    settings: Any = jax.config  # JAX adds its settings at run time
    if os.environ.get("GYROMC_NO_CACHE") or settings.jax_compilation_cache_dir is not None:
        return None
    if not settings.jax_enable_compilation_cache:
        return None
    found = private_folder("gyromc-programs")
    if isinstance(found, str):
        return None
    _make_space(found)
    # JAX tells its own versions apart, and not what processors of one kind can do.
    folder = found / _processor()
    settings.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        settings.update("jax_persistent_cache_min_compile_time_secs", SETTINGS.seconds)
    return folder


def _processor() -> str:
    """A name for what this processor can do: a program compiled for another one may use instructions that it lacks."""
    found = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(found.encode()).hexdigest()[:12]


def _make_space(folder: Path) -> None:
    """Remove the programs that were not used for the longest time where all of them take too much space."""
    # Another process may remove the same files.
    with contextlib.suppress(OSError):
        files = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
        size = sum(stat.st_size for _, stat in files)
        if size <= SETTINGS.most_bytes:
            return
        for path, stat in sorted(files, key=lambda file: max(file[1].st_atime, file[1].st_mtime)):
            path.unlink(missing_ok=True)
            size -= stat.st_size
            if size <= SETTINGS.most_bytes // 2:
                return
