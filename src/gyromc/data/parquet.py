"""A Parquet file, read group after group: numeric columns as x and one of them as y."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import read_path, require
from gyromc.data.source import FilePrint, RowSource, file_print
from gyromc.errors import InvalidInput
from gyromc.extras import needs

BUFFER = 2**20
"""Bytes of a column that are read at once; else a whole group of rows would be."""


class Parquet(RowSource):
    """The rows of a Parquet file, read with pyarrow (the extra `data`); never as a whole.

    **Arguments:**

    - `path`: of the file.
    - `response`: the name of the column that is y.
    - `columns`: those that are x, in this order; left out: all others.

    ```python
    import tempfile
    from pathlib import Path
    import pyarrow
    import pyarrow.parquet
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0], "b": [0, 3], "y": [0, 1]}), path)
        source = gm.data.Parquet(path, response="y")
        (X, y), = source.blocks(10)
        assert source.columns == ("a", "b") and X.tolist() == [[1.0, 0.0], [2.0, 3.0]] and y.tolist() == [0, 1]
    ```
    """

    def __init__(self, path: str | Path, response: str, columns: Sequence[str] | None = None):
        arrow = pyarrow()
        self.name, self.path = str(path), read_path(path)
        require(self.path.is_file(), f"There is no file {path}.")
        try:
            file = arrow.parquet.ParquetFile(self.path)
        except (arrow.ArrowInvalid, OSError) as error:
            raise InvalidInput(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        with file:
            schema, self.num_rows = file.schema_arrow, file.metadata.num_rows
        require(self.num_rows > 0, f"{path} has no rows.")
        self.response = response
        self.columns = tuple(name for name in schema.names if name != response) if columns is None else tuple(columns)
        self.num_columns = len(self.columns)
        missing = [name for name in (response, *self.columns) if name not in schema.names]
        require(not missing, f"{path} has no column {', '.join(missing)}: it has {', '.join(schema.names[:30])}.")
        require(self.columns, f"{path} has no column besides {response!r}: x needs one at least.")
        kinds = arrow.types
        for name in (response, *self.columns):
            kind = schema.field(name).type
            numeric = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
            require(
                numeric,
                f"The column {name!r} of {path} holds {kind}: x and y must be numbers or truth values. Leave it out, or write it "
                "as numbers.",
            )

    def to_archive(self):
        return {"file": self._fingerprint(self.path), "response": self.response, "columns": self.columns}

    @classmethod
    def from_archive(cls, file: FilePrint, response: str, columns: tuple[str, ...]) -> "Parquet":
        """The source of a stored plan; `InvalidInput` where the file is missing or another one."""
        file.require_there()
        file.require_same(cls._fingerprint(Path(file.path)))
        return cls(file.path, response, columns)

    @staticmethod
    def _fingerprint(path: Path) -> FilePrint:
        with path.open("rb") as file:
            return file_print(file, path, (), "parquet")

    def blocks(self, size):
        arrow, names, first = pyarrow(), [*self.columns, self.response], 0
        with arrow.parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=BUFFER) as file:
            for batch in file.iter_batches(batch_size=size, columns=names):
                columns = {name: self._numbers(batch.column(name), name, first) for name in names}
                X = np.empty(
                    (batch.num_rows, self.num_columns), np.result_type(*(c.dtype for c in columns.values()), np.float32)
                )
                for j, name in enumerate(self.columns):
                    X[:, j] = columns[name]
                yield X, columns[self.response]
                first += batch.num_rows
                del batch, columns, X
        # It keeps as much as a group of rows takes.
        arrow.default_memory_pool().release_unused()

    def _numbers(self, column: Any, name: str, first: int) -> np.ndarray:
        if column.null_count:
            at = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise InvalidInput(
                f"The column {name!r} of {self.name} has missing values, the first in row {at}. Drop or fill those rows."
            )
        return column.to_numpy(zero_copy_only=False)


def pyarrow() -> Any:
    """The package, or `InvalidInput` that says how to install it."""
    with needs("data", "Reading Parquet files"):
        import pyarrow
        import pyarrow.parquet
        import pyarrow.types
    return pyarrow
