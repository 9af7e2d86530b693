"""Any source as two .npy files, written in one pass; mini-batches then read single rows of them."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import one_of, read_path, require
from gyromc.data.mapped import RESIDENT, Mapped
from gyromc.data.passes import block_rows, prefetched
from gyromc.data.source import RowSource
from gyromc.show.files import require_writable
from gyromc.show.progress import say

__all__ = ["random_access", "store"]


def store(source: RowSource, folder: str | Path, dtype: str = "float32", resident: int | None = RESIDENT) -> Mapped:
    """Write all rows to `folder`/X.npy and y.npy, and return them as a source; one pass, nothing is held in memory.

    **Arguments:**

    - `source`: the rows.
    - `folder`: where to; it is made if it does not exist, and files of these names in it are replaced when all is written.
    - `dtype`: `"float32"` or `"float64"`, of X and y.
    - `resident`: as for `Mapped`.

    ```python
    import tempfile
    import numpy as np
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        kept = gm.data.store(gm.data.Batches([(np.eye(2), [1, 0])], num_rows=2), folder)
        assert kept.num_rows == 2 and kept.read(np.array([0]))[1].tolist() == [1.0]
    ```
    """
    folder, kind = read_path(folder), np.dtype(one_of(dtype, ("float32", "float64"), "dtype"))
    require(isinstance(source, RowSource), f"`source` must be one of `gyromc.data`: got {type(source).__name__}.")
    require_writable(folder)
    N, d = source.num_rows, source.num_columns
    needed, free = N * (d + 1) * kind.itemsize, shutil.disk_usage(folder).free
    require(
        needed < free,
        f"{source.name} needs {needed:,} bytes on disk, and {folder} has {free:,} left. Name another folder.",
    )
    unfinished = folder / "X.npy.part", folder / "y.npy.part"
    with unfinished[0].open("wb") as x_file, unfinished[1].open("wb") as y_file:
        _header(x_file, (N, d), kind)
        _header(y_file, (N,), kind)
        for X, y in prefetched(source.blocks(block_rows(d))):
            x_file.write(np.ascontiguousarray(X, kind).data)
            y_file.write(np.ascontiguousarray(y, kind).data)
    for part in unfinished:
        part.replace(part.with_suffix(""))
    return Mapped(folder / "X.npy", folder / "y.npy", resident)


def random_access(source: RowSource) -> RowSource:
    """The source itself where it reads single rows; otherwise a copy in a temporary folder, deleted when it is no longer used.

    The folder is made where `tempfile` makes them: the environment variable `TMPDIR` says where.
    """
    if source.reads_rows:
        return source
    folder = tempfile.mkdtemp(prefix="gyromc-rows-")
    size = source.num_rows * (source.num_columns + 1) * 4
    say(f"writing {source.name} to {folder}, {size / 1e9:.2g} GB, since mini-batches read single rows")
    try:
        kept = store(source, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(kept, shutil.rmtree, folder, ignore_errors=True)
    return kept


def _header(file: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
