"""Rows of data that stay where they are stored: sources for regressions whose data do not fit into memory.

A `targets.StreamedRegression` takes a `RowSource`, which is read block after block. `Mapped` (two .npy files) and `Sequenced`
(any sequence, such as a Grain source) also read single rows, which mini-batches need; `random_access` copies others to a file.
"""

from gyromc.data.files import Mapped, Parquet, random_access, store
from gyromc.data.source import Batches, RowSource, Sequenced, over_blocks, prefetched

__all__ = ["Batches", "Mapped", "Parquet", "RowSource", "Sequenced"]
__all__ += ["over_blocks", "prefetched", "random_access", "store"]
