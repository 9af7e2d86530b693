"""How much memory a run takes, before any of it is made.

Input: a plan. Output: bytes, and `InvalidInput` where they are not free.
"""

import numpy as np

from gyromc.checks import require
from gyromc.memory import free_memory, require_memory
from gyromc.plan import Plan
from gyromc.show.progress import say

__all__ = ["WORTH_SAYING", "announce", "check_memory", "draws_bytes", "num_draws", "row_bytes", "run_bytes"]

WORTH_SAYING = 100 * 2**20  # bytes: below it nobody needs to know what draws take


def check_memory(plan: Plan, keep_blocks: int) -> None:
    """Raise `InvalidInput` for a run whose chains, sums and blocks cannot fit, before any of them is made."""
    require_memory(
        run_bytes(plan, keep_blocks),
        f"{plan.num_chains:,} chains, each with {plan.state_size:,} numbers and {len(plan.observables):,} observables,",
        f"Take fewer chains; several runs with different seeds can be averaged. {keep_blocks} blocks of each are kept "
        "(`keep_blocks`).",
    )


def run_bytes(plan: Plan, keep_blocks: int) -> int:
    """The most bytes that a run and the reading of its averages take, without data, draws and compiled programs.

    For each chain: its state at the start, in the engine, at the end and in the making, and with a martingale as much again for
    the noise and the gradients that it is made of; anchors in six copies; sums in two parts in four copies; blocks, as they are
    copied when averages are read; random numbers and marks of failure.
    """
    numbers = (8 if plan.martingale else 4) * plan.state_size + 6 * plan.oracle.memory(plan.dim)
    sums = len(plan.observables) * (1 + plan.martingale) * (8 + 4 * min(keep_blocks, plan.num_steps))
    return plan.num_chains * (np.dtype(plan.dtype).itemsize * numbers + 8 * sums + 160)


def draws_bytes(plan: Plan, thin: int) -> int:
    """The bytes that every `thin`-th state of every chain takes."""
    return num_draws(plan, thin) * row_bytes(plan)


def announce(plan: Plan, thin: int, keep_blocks: int, quiet: bool) -> None:
    """Print to standard error what many draws take; raises `InvalidInput` when they and the run do not fit into memory."""
    size, free = draws_bytes(plan, thin), free_memory()
    text = (
        f"{num_draws(plan, thin)} draws × {plan.num_chains} chains × {plan.dim} parameters ({plan.dtype}): "
        f"{size / 2**20:.0f} MiB"
    )
    require(
        2 * size + run_bytes(plan, keep_blocks) < 0.8 * free,  # twice at the end, when they are put together
        f"Keeping {text}, twice at the end, does not fit into the {free / 2**20:.0f} MiB of free memory. "
        f"Pass `thin={thin * max(2, -(-size // int(0.4 * free)))}` or more, or fewer chains.",
    )
    if size >= WORTH_SAYING and not quiet:
        say(f"keeping {text}")


def num_draws(plan: Plan, thin: int) -> int:
    """How many states of each chain are kept."""
    return -(-plan.num_steps // thin)


def row_bytes(plan: Plan) -> int:
    """One state of every chain."""
    return plan.num_chains * plan.dim * np.dtype(plan.dtype).itemsize
