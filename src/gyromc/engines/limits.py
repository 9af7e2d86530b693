"""What a run takes, in memory and in time, before any of it is made.

Input: a plan. Output: bytes and seconds, and `InvalidInput` for a run that does not fit or would take years.
"""

import numpy as np

from gyromc.checks import require
from gyromc.machine import free_memory, require_memory
from gyromc.plan import Plan
from gyromc.show.progress import say

WORTH_SAYING = 100 * 2**20  # bytes: below it nobody needs to know what draws take
STEPS_A_SECOND = 10**9  # of all chains together, at best: a large GPU
MOST_CHAIN_STEPS = 10**17  # three years at that pace
FEW_CHAINS = 64  # with more chains than this, errors come from the variation between chains
BLOCKS = (128, 8)  # kept of each chain, for few chains and for many


def kept_blocks(plan: Plan) -> int:
    """How many block averages of each chain are kept, at most, from which the error of single chains is computed."""
    return BLOCKS[plan.num_chains > FEW_CHAINS]


def least_seconds(plan: Plan, done: int = 0) -> float:
    """The seconds that the steps after the first `done` take at least."""
    return plan.num_chains * (plan.num_steps + plan.burn_in - done) / STEPS_A_SECOND


def check_length(plan: Plan) -> None:
    """Raise `InvalidInput` for a run that would take years."""
    steps = plan.num_steps + plan.burn_in
    require(
        plan.num_chains * steps <= MOST_CHAIN_STEPS,
        f"{plan.num_chains} chains × {steps} steps would take {least_seconds(plan) / (365.25 * 86400):,.1f} years at "
        f"{STEPS_A_SECOND:.0e} steps a second. Pass a smaller `num_steps` or `num_chains`; `run.continue_(more_steps)` extends a "
        "run.",
    )


def check_memory(plan: Plan) -> None:
    """Raise `InvalidInput` for a run whose chains, sums and blocks cannot fit, before any of them is made."""
    require_memory(
        run_bytes(plan),
        f"{plan.num_chains:,} chains, each with {plan.state_size:,} numbers and {len(plan.observables):,} observables,",
        "Take fewer chains; several runs with different seeds can be averaged.",
    )


def run_bytes(plan: Plan) -> int:
    """The most bytes that a run and the reading of its averages take, without data, draws and compiled programs.

    For each chain: its state at the start, in the engine, at the end and in the making, and with a martingale as much again for
    the noise and the gradients that it is made of; anchors in six copies; sums in two parts in four copies; blocks, as they are
    copied when averages are read; random numbers and marks of failure.
    """
    numbers = (8 if plan.martingale else 4) * plan.state_size + 6 * plan.oracle.memory(plan.dim)
    sums = len(plan.observables) * (1 + plan.martingale) * (8 + 4 * min(kept_blocks(plan), plan.num_steps))
    return plan.num_chains * (np.dtype(plan.dtype).itemsize * numbers + 8 * sums + 160)


def draws_bytes(plan: Plan, thin: int) -> int:
    """The bytes that every `thin`-th state of every chain takes."""
    return num_draws(plan, thin) * row_bytes(plan)


def announce(plan: Plan, thin: int, quiet: bool) -> None:
    """Print to standard error what many draws take; raises `InvalidInput` when they and the run do not fit into memory."""
    size, free = draws_bytes(plan, thin), free_memory()
    text = (
        f"{num_draws(plan, thin)} draws × {plan.num_chains} chains × {plan.dim} parameters ({plan.dtype}): "
        f"{size / 2**20:.0f} MiB"
    )
    require(
        2 * size + run_bytes(plan) < 0.8 * free,  # twice at the end, when they are put together
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
