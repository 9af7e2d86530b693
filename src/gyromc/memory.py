"""Memory and processors of the machine: how much is free, whether something fits, how many threads share the work.

Input: a number of bytes and what they are for. Output: `InvalidInput` before they are taken, where they do not fit.
"""

import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path, PurePosixPath

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["free_memory", "num_threads", "release_memory", "require_memory"]

GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of a control group of Linux, version 2 and version 1: limit, use, and what of it is cache of files."""


def free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system says, and no more than the job or container may have."""
    return min(_free_on_machine(), _free_in_group())


def _free_on_machine() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _free_in_group(proc: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """What the control groups of this process leave of their limits: those of a SLURM job, a container, a service.

    Limits of every group above it count too. The cache of files is taken back where memory is short, and counts as free.
    """
    free = sys.maxsize
    try:
        groups = [line.split(":", 2)[1:] for line in proc.read_text().splitlines()]
    except (OSError, ValueError):  # not Linux
        return free
    for controllers, path in groups:
        if controllers not in ("", "memory"):
            continue
        names = GROUP_FILES[controllers]
        root, inside = (mounted / controllers, PurePosixPath(path.lstrip("/")))
        for folder in (root / inside, *(root / above for above in inside.parents)):
            # No such group here, or no limit ("max").
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in names[:2])
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                free = min(free, max(0, limit - used + int(stat.get(names[2], 0))))
    return free


def release_memory() -> None:
    """Give memory that is free in this process back to the system; the C library of Linux keeps it otherwise."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def require_memory(size: int, what: str, remedy: str) -> None:
    """Raise unless `size` bytes fit into four fifths of the free memory."""
    free = free_memory()
    require(
        size < 0.8 * free,
        f"{what} would take {size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are free. {remedy}",
    )


def num_threads() -> int:
    """How many threads share the work: `GYROMC_THREADS`, or the processors this process may use."""
    asked = os.environ.get("GYROMC_THREADS")
    if asked:
        try:
            return max(1, int(asked))
        except ValueError:
            raise InvalidInput(
                f"The environment variable `GYROMC_THREADS` must be a whole number: got {asked!r}. Set it to how many threads to "
                "use, or unset it for one per processor."
            ) from None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
