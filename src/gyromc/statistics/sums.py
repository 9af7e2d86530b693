"""Long sums without drift, and the lengths of the blocks that a run stores."""

import math

__all__ = ["batch_length", "two_sum"]


def two_sum(high, low, value):
    """Add `value` to the unevaluated sum high + low, which carries twice the digits of its parts.

    Knuth's error-free transformation gives high + value = total + error exactly; the parts are then renormalised, so that
    `low` stays below half a unit in the last place of `high` and does not collect rounding errors of its own.
    """
    total = high + value
    shadow = total - high
    error = (high - (total - shadow)) + (value - shadow)
    low = low + error
    renormalised = total + low
    return renormalised, low - (renormalised - total)


def batch_length(num_steps: int, at_most: int = 128) -> int:
    """The smallest power of two that cuts `num_steps` into at most `at_most` batches.

    Powers of two, so that the batches of a longer run are unions of those of a shorter one.
    """
    return 1 << max(0, math.ceil(math.log2(num_steps / at_most)))
