"""The memory that kept draws take: how much in all, whether it is free, and how much is held on the device at a time."""

import contextlib
import os
import sys

import numpy as np

from gyromc.checks import require
from gyromc.plan import Plan
from gyromc.show.progress import say

__all__ = ["announce", "draws_bytes", "slots"]

MOST_ON_DEVICE = 2**26  # bytes


def draws_bytes(plan: Plan, thin: int) -> int:
    """The bytes that every `thin`-th state of every chain takes."""
    return _count(plan, thin) * _row_bytes(plan)


def slots(plan: Plan, thin: int) -> int:
    """How many draws are stored on the device before they are copied to the host."""
    return max(1, min(_count(plan, thin), MOST_ON_DEVICE // _row_bytes(plan)))


def announce(plan: Plan, thin: int, quiet: bool) -> None:
    """Print to standard error what the draws take; raises `InvalidInput` when they do not fit into memory."""
    size, free = draws_bytes(plan, thin), _free_memory()
    text = (
        f"{_count(plan, thin)} draws × {plan.num_chains} chains × {plan.dim} parameters ({plan.dtype}): "
        f"{size / 2**20:.1f} MiB"
    )
    require(
        size < 0.8 * free,
        f"Keeping {text} does not fit into the {free / 2**20:.0f} MiB of free memory. "
        f"Pass `thin={thin * -(-size // int(0.4 * free))}` or more, or fewer chains.",
    )
    if not quiet:
        say(f"keeping {text}")


def _count(plan: Plan, thin: int) -> int:
    return -(-plan.num_steps // thin)


def _row_bytes(plan: Plan) -> int:
    """One state of every chain."""
    return plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize


def _free_memory() -> int:
    """Bytes that can be taken without swapping, as far as the system tells."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
