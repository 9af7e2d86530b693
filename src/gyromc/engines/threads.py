"""How many threads of the processor share the work. The input is the environment, the output a number."""

import os

from gyromc.errors import InvalidInput

__all__ = ["num_threads"]


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
