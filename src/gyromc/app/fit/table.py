"""A file of data as checked columns: what the regressions of (E4) are fitted to, before anything is made of it.

Receives the path of a CSV or Parquet file and which columns are wanted; hands on a `Table` of texts (CSV) or typed values
(Parquet), every row with its place in the file. Nothing is guessed: what cannot be read as it stands is refused, with the
place and the remedy.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.fit.csvfile import clean, pandas_module, read_csv
from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["MAX_COLUMNS", "Table", "read_table"]

MAX_COLUMNS = 1000
"""More predictors than this are refused: the sampler's matrices are dense."""
MARKS = {
    b"PK\x03\x04": "an Excel workbook or another zip archive: save it as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save it as CSV (UTF-8)",
    b"\x1f\x8b": "compressed with gzip: decompress it first (`gunzip`)",
    b"%PDF": "a PDF document: export the table as CSV",
    b"SQLite format 3": "an SQLite database: export the table as CSV",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, and where each row stands in the file.

    **Attributes:**

    - `path`: the file; `unit`: what `lines` counts, lines of a CSV file or rows of a Parquet file.
    - `columns`: a pandas Series by name, texts stripped of blanks, missing values as NaN.
    - `lines`: the place of each row, from 1.
    - `notes`: what a reader should know about how it was read.
    """

    path: str
    unit: str
    columns: Mapping[str, Any]
    lines: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the order of the file."""
        return tuple(self.columns)

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.lines.size

    def place(self, row: int) -> str:
        """Where a row stands: "line 17"."""
        return f"{self.unit} {self.lines[row]}"

    def take(self, rows: np.ndarray) -> "Table":
        """The given rows only."""
        columns = {name: column.iloc[rows].reset_index(drop=True) for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, lines=self.lines[rows])

    def require_column(self, name: str, role: str) -> None:
        """Raise unless there is a column of that name; the message names the nearest."""
        _require_names([name], self.names, self.path, role)


def read_table(
    path: str | Path,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    *,
    role: str = "target",
    encoding: str = "utf-8",
    decimal: str = ".",
) -> Table:
    """Read a CSV or Parquet file.

    **Arguments:**

    - `path`: the file; Parquet is recognised by its first bytes, everything else is read as CSV with a header line. The separator
      (comma, semicolon, tab or bar) is the one the header has most of; quotes and a byte-order mark are understood.
    - `columns`: only these, and `keep`; all when left out. Several names may stand in one text, with commas between.
    - `drop`: not these.
    - `keep`: columns that are wanted in any case, such as the target; `role`: what they are, for messages.
    - `encoding`: of a CSV file.
    - `decimal`: `","` where numbers are written 3,14.

    **Returns:** a `Table`.

    ```python
    from pathlib import Path
    from gyromc.app.fit.table import read_table
    Path("small.csv").write_text("height;place\\n1.5;north\\n2.5;south\\n")
    assert read_table("small.csv").names == ("height", "place")
    ```
    """
    path = Path(path)
    require(decimal in (".", ","), f"The decimal sign must be '.' or ',': got {decimal!r}.")
    require(path.exists(), f"There is no file {path}.{_near_files(path)}")
    require(not path.is_dir(), f"{path} is a directory: name one CSV or Parquet file in it.")
    with path.open("rb") as file:
        first = file.read(16)
    require(first, f"{path} is empty: a table needs a header line and rows.")
    for mark, sentence in MARKS.items():
        require(not first.startswith(mark), f"{path} is {sentence}.")
    wanted = _Wanted(str(path), tuple(columns), tuple(drop), tuple(keep), role)
    if first.startswith(b"PAR1"):
        return _read_parquet(path, wanted)
    columns_by_name, lines, notes = read_csv(path, wanted.select, encoding, decimal)
    return Table(str(path), "line", columns_by_name, lines, notes)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Which columns of a file are wanted."""

    path: str
    columns: tuple[str, ...]
    drop: tuple[str, ...]
    keep: tuple[str, ...]
    role: str

    def select(self, names: Sequence[str], unnamed: frozenset[str] = frozenset()) -> list[int]:
        """The places of the wanted columns, after checking the names."""
        known = set(names)
        if len(known) < len(names):
            _refuse_duplicates(self.path, names)
        _require_names(self.keep, names, self.path, self.role)
        only = self._names(self.columns, known, "--columns")
        drop = self._names(self.drop, known, "--drop")
        for name in self.keep:
            require(name not in drop, f"{name!r} is the {self.role} and cannot be dropped too.")
        keep = set(self.keep)
        places = [
            i for i, name in enumerate(names) if name in keep or (name not in drop and (not only or name in only))
        ]
        require(
            len(places) <= MAX_COLUMNS + len(keep),
            f"{self.path} has {len(places) - len(keep)} columns to predict from; at most {MAX_COLUMNS} are possible. "
            "Select some with `--columns a,b,c`, or leave some out with `--drop a,b,c`.",
        )
        for i in places:
            require(
                names[i] not in unnamed,
                f"Column {i + 1} of {self.path} has no name (an index written by pandas?). Name it, or pass "
                f"`--drop '{names[i]}'`.",
            )
        return places

    def _names(self, given: tuple[str, ...], known: set[str], option: str) -> set[str]:
        names = [n for text in given for n in ([text] if text in known else [part.strip() for part in text.split(",")])]
        _require_names([n for n in names if n], tuple(known), self.path, option)
        return set(names)


def _require_names(names: Sequence[str], known: Sequence[str], path: str, role: str) -> None:
    for name in names:
        if name in known:
            continue
        lowered = {k.lower(): k for k in known}
        near = (
            [lowered[n] for n in difflib.get_close_matches(name.lower(), lowered, 3, 0.5)] if len(known) <= 5000 else []
        )
        shown = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else _listing(known)
        raise InvalidInput(f"{path} has no column {name!r} ({role}). {shown}{_headless(known)}")


def _listing(names: Sequence[str]) -> str:
    some = ", ".join(repr(n) for n in sorted(names)[:12])
    return f"Its columns: {some}{f' and {len(names) - 12} more' if len(names) > 12 else ''}."


def _headless(names: Sequence[str]) -> str:
    if not all(_is_number(name) for name in list(names)[:1000]):
        return ""
    return " The first line holds only numbers: does the file lack its header line?"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_duplicates(path: str, names: Sequence[str]) -> None:
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i + 1)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    some = "; ".join(f"{name!r} in columns {', '.join(map(str, w[:5]))}" for name, w in list(twice.items())[:5])
    more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
    raise InvalidInput(f"Column names in {path} must differ: {some}{more}. Rename them in the first line.")


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" There is no directory {folder} either."
    near = difflib.get_close_matches(path.name, [p.name for p in folder.iterdir() if p.is_file()], 2, 0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _read_parquet(path: Path, wanted: _Wanted) -> Table:
    pandas = pandas_module()
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path} begins like a Parquet file but cannot be read: {error}") from None
    names = list(file.schema_arrow.names)
    chosen = [names[i] for i in wanted.select(names)]
    require(file.metadata.num_rows, f"{path} has columns but no rows.")
    columns = {}
    for name in chosen:
        kind = file.schema_arrow.field(name).type
        require(
            not pyarrow.types.is_nested(kind),
            f"Column {name!r} of {path} holds {kind}: one value per row is needed. Unpack it, or pass `--drop {name}`.",
        )
        columns[name] = _plain(file.read(columns=[name]).column(0), pandas, pyarrow)
    return Table(str(path), "row", columns, np.arange(1, file.metadata.num_rows + 1))


def _plain(column, pandas, pyarrow):
    """An Arrow column as numbers, dates or texts."""
    kind = column.type
    if pyarrow.types.is_decimal(kind) or pyarrow.types.is_float16(kind):
        column = column.cast(pyarrow.float64())
    elif pyarrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.string())
    series = column.to_pandas()
    if pandas.api.types.is_numeric_dtype(series):
        return series.astype(float)
    if pyarrow.types.is_temporal(column.type):
        return series
    return clean(series.astype("str"))
