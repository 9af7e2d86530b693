"""The machine: how much memory is free, how many threads share the work, and where compiled programs are kept.

`keep_compiled` is called once, where gyromc first imports JAX. It changes nothing where the user has set a cache
(`JAX_COMPILATION_CACHE_DIR`), switched it off (`GYROMC_NO_CACHE`, `JAX_ENABLE_COMPILATION_CACHE`), or has no folder that they
alone can write: compiled programs are code.
"""

import contextlib
import ctypes
import dataclasses
import gc
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.files import private_folder

GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of a control group of Linux, version 2 and version 1: limit, use, and what of it is cache of files."""


def free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system says, and no more than the job or container may have."""
    free = sys.maxsize
    with contextlib.suppress(ValueError, OSError, AttributeError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), free)
    return min(free, _free_in_group())


def _free_in_group(proc: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """What the control groups of this process (a SLURM job, a container, a service) and those above leave of their limits."""
    free = sys.maxsize
    try:
        groups = [line.split(":", 2)[1:] for line in proc.read_text().splitlines()]
    except (OSError, ValueError):  # not Linux
        return free
    for controllers, path in groups:
        limits, uses, cached = GROUP_FILES.get(controllers, ("", "", ""))
        inside = PurePosixPath(path.lstrip("/"))
        for folder in (mounted / controllers / above for above in (inside, *inside.parents)):
            # Not of memory, no such group here, or no limit ("max").
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in (limits, uses))
                # The cache of files is taken back where memory is short.
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                free = min(free, max(0, limit - used + int(stat.get(cached, 0))))
    return free


def release_memory() -> None:
    """Give memory that is free in this process back to the system; the C library of Linux keeps it otherwise."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's OpenBLAS, if it has that, use one thread inside: with some hundred rows its threads mostly wait, busily."""
    places = list(Path(np.__file__).parents)[:2]
    found = [path for place in places for path in place.glob("*libs/*scipy_openblas64_*")]
    library: Any = ctypes.CDLL(str(found[0])) if found else None
    if not hasattr(library, "scipy_openblas_set_num_threads64_"):
        yield
        return
    before = library.scipy_openblas_get_num_threads64_()
    library.scipy_openblas_set_num_threads64_(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads64_(before)


def require_memory(size: int, what: str, remedy: str) -> None:
    """Raise unless `size` bytes fit into four fifths of the free memory."""
    free = free_memory()
    sizes = f"{size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are free"
    require(size < 0.8 * free, f"{what} would take {sizes}. {remedy}")


_forked_after_jax: list[bool] = []
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""JAX's name of the event that comes last before it compiles, if only an array's conversion."""


def _in_child() -> None:
    """Note in a process that was forked that JAX had begun in the one it comes from: JAX's threads are not here."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if not _forked_after_jax and bridge is not None and bridge.backends_are_initialized():
        import jax.monitoring

        _forked_after_jax.append(True)
        jax.monitoring.register_event_duration_secs_listener(_refuse_to_compile)


def _refuse_to_compile(event: str, duration_secs: float, **kwargs: Any) -> None:
    """Raise where JAX is about to compile something for this package, which would wait for ever; others are left alone."""
    if event == LOWERED:
        callers, frame = set(), sys._getframe(1)
        while frame is not None:
            callers.add(str(frame.f_globals.get("__name__")).partition(".")[0])
            frame = frame.f_back
        require("gyromc" not in callers, f"This cannot be computed: {why_no_jax()}.")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def why_no_jax() -> str | None:
    """Why JAX would wait for ever in this process, or None."""
    if not _forked_after_jax:
        return None
    return (
        "JAX had begun before this process was forked and would wait for ever here: start processes with "
        '`multiprocessing.get_context("spawn")`, or fork before anything is computed'
    )


def num_threads() -> int:
    """How many threads share the work: `GYROMC_THREADS`, or the processors this process may use."""
    if asked := os.environ.get("GYROMC_THREADS"):
        try:
            return max(1, int(asked))
        except ValueError:
            remedy = "Set it to how many threads to use, or unset it for one per processor."
            wrong = f"The environment variable `GYROMC_THREADS` must be a whole number: got {asked!r}."
            raise InvalidInput(f"{wrong} {remedy}") from None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    """Which programs are kept, and how many."""

    # Programs that compile faster are not kept: one takes some 10 ms to read; most of JAX's own are that small.
    seconds: float = 0.1
    # Beyond, those not used for the longest time go, down to half of it; a session leaves 2 to 20 MB.
    most_bytes: int = 2**29


SETTINGS = CacheSettings()


def keep_compiled() -> Path | None:
    """Let JAX keep compiled programs in a folder of the user's; returns it, or None where nothing was changed."""
    import jax

    settings: Any = jax.config  # JAX adds its settings at run time
    off = os.environ.get("GYROMC_NO_CACHE") or not settings.jax_enable_compilation_cache
    if off or settings.jax_compilation_cache_dir is not None:
        return None
    if isinstance(found := private_folder("gyromc-programs"), str):
        return None
    _make_space(found)
    # JAX tells its own versions apart, and not what processors of one kind can do: a program may use instructions they lack.
    able = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        able += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    folder = found / hashlib.sha256(able.encode()).hexdigest()[:12]
    settings.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        settings.update("jax_persistent_cache_min_compile_time_secs", SETTINGS.seconds)
    return folder


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
