"""JAX's compilation cache, on by default: a program that took long to compile is read from a file by the next process.

`keep_compiled` is called once, where gyromc first imports JAX. It changes nothing where the user has set a cache
(`JAX_COMPILATION_CACHE_DIR`), switched it off (`GYROMC_NO_CACHE`, `JAX_ENABLE_COMPILATION_CACHE`), or has no folder that they
alone can write: compiled programs are code.
"""

import contextlib
import dataclasses
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax

from gyromc.show.files import private_folder

__all__ = ["keep_compiled"]


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    """Which programs are kept, and how many."""

    seconds: float = 0.1
    """Programs that compile faster are not kept: to read one takes some 10 ms, and most of JAX's own are that small."""
    most_bytes: int = 2**29
    """Beyond this, the programs not used for the longest time go, down to half of it. A session leaves 2 to 20 MB."""


SETTINGS = CacheSettings()


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
