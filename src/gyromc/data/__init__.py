"""Rows of data that stay where they are stored: sources for regressions whose data do not fit into memory.

Input: files, a sequence of records, or something that yields batches. Output: a `RowSource`, which a `targets.StreamedRegression`
takes. Every source can be read from beginning to end, block after block, while the next blocks are read in the background.
`Mapped` (two .npy files) and `Sequenced` (any sequence, such as a Grain source) also read single rows, which mini-batches need;
`Parquet` and `Batches` are first written to a mapped file, once, by `random_access`.
"""

from gyromc.data.files import Mapped, Parquet, random_access, store
from gyromc.data.source import Batches, RowSource, Sequenced, over_blocks, prefetched

__all__ = [
    "Batches",
    "Mapped",
    "Parquet",
    "RowSource",
    "Sequenced",
    "over_blocks",
    "prefetched",
    "random_access",
    "store",
]
