"""Old home of `two_sum` and `batch_length`; they are in `gyromc.statistics.sums`."""

from gyromc.statistics.sums import batch_length, two_sum

__all__ = ["batch_length", "two_sum"]
