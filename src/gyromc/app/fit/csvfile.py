"""The words of a CSV file: lines into rows, rows into columns of text, before (E4) has anything to average.

Receives a path and a function that selects columns; hands on texts by column and the line of each row. One parser, so that
a row that does not fit is named by its line.
"""

import csv
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["MISSING", "SEPARATORS", "clean", "pandas_module", "read_csv"]

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})
"""What counts as a missing value, in any case; everything else is a value."""
CHUNK = 20_000  # rows turned into columns at a time


def read_csv(
    path: Path, select: Callable[[Sequence[str], frozenset[str]], list[int]], encoding: str, decimal: str
) -> tuple[dict[str, Any], np.ndarray, tuple[str, ...]]:
    """Read the wanted columns of a CSV file.

    **Arguments:**

    - `path`: of the file.
    - `select`: is given the names, and which of them were made up for columns without one; returns the wanted places.
    - `encoding`: of its text, unless it begins with a byte-order mark.
    - `decimal`: `","` where numbers are written 3,14.

    **Returns:** texts by column (missing: NaN), the line at which each row ends, and notes.
    """
    lines = _Lines(path, encoding)
    header = lines.header()
    separator = max(SEPARATORS, key=lambda s: _outside_quotes(header, s))
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    try:
        names = [name.strip() for name in next(reader)]
        unnamed = frozenset(f"column {i + 1}" for i, name in enumerate(names) if not name)
        names = [name or f"column {i + 1}" for i, name in enumerate(names)]
        places = select(names, unnamed)
        columns, numbers = _columns(reader, names, places, str(path), SEPARATORS[separator])
    except csv.Error as error:
        raise InvalidInput(
            f'{path} cannot be read at line {reader.line_num}: {error}. A quote (") that is opened there or before is '
            'not closed, or stands inside a value: write it twice ("").'
        ) from None
    require(numbers.size, f"{path} has a header line but no rows.")
    texts = {names[i]: clean(column) for i, column in zip(places, columns, strict=True)}
    if decimal == ",":
        texts = {name: _with_points(column) for name, column in texts.items()}
    notes = () if separator == "," else (f"{path.name} is separated by {SEPARATORS[separator]}s.",)
    return texts, numbers, notes


def _columns(reader, names: list[str], places: list[int], path: str, separator: str):
    """The wanted columns, and the line at which each row ends."""
    pandas = pandas_module()
    pick = operator.itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    parts, lines, rows = [], [], []

    def flush() -> None:
        if rows:
            parts.append([pandas.array(column, dtype="str") for column in zip(*map(pick, rows), strict=True)])
            rows.clear()

    for row in reader:
        if not any(map(str.strip, row)) and (len(names) > 1 or not row):
            continue  # a blank line, or nothing but separators
        if len(row) != len(names):
            raise InvalidInput(
                f"{path}, line {reader.line_num}: {len(row)} values, but the header names {len(names)} columns "
                f"(separated by {separator}s). Correct the line; quote values that contain the separator."
            )
        rows.append(row)
        lines.append(reader.line_num)
        if len(rows) == CHUNK:
            flush()
    flush()
    joined = [pandas.concat([pandas.Series(p) for p in c], ignore_index=True) for c in zip(*parts, strict=True)]
    return joined, np.array(lines, int)


def clean(column):
    """Blanks around a text removed, missing values as NaN."""
    column = column.str.strip()
    return column.where(~column.str.lower().isin(MISSING), None)


def _with_points(column):
    """Numbers written 1.234,5 as 1234.5; other texts as they are."""
    looks = column.str.fullmatch(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),?\d*([eE][+-]?\d+)?").fillna(False)
    points = column.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    return column.where(~looks.astype(bool), points)


class _Lines:
    """The lines of a text file, decoded one by one, so that an unreadable byte is named with its line."""

    def __init__(self, path: Path, encoding: str):
        self.path, self.encoding = path, encoding
        with path.open("rb") as file:
            start = file.read(4)
        for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
            if start.startswith(mark):
                self.encoding = name

    def header(self) -> str:
        """The first line."""
        for line in self:
            require(line.strip(), f"The first line of {self.path} is empty: it must name the columns.")
            return line
        raise InvalidInput(f"{self.path} holds no lines.")

    def __iter__(self) -> Iterator[str]:
        try:
            with self.path.open(encoding=self.encoding, newline="") as file:
                for line in file:
                    require(
                        "\0" not in line,
                        f"{self.path} is not text: it holds zero bytes. Save the table as CSV (UTF-8).",
                    )
                    yield line
        except LookupError:
            raise InvalidInput(f"Unknown encoding {self.encoding!r}: try utf-8, latin-1 or cp1252.") from None
        except UnicodeDecodeError:
            raise InvalidInput(self._explain()) from None

    def _explain(self) -> str:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode(self.encoding)
                except UnicodeDecodeError as error:
                    return (
                        f"{self.path}, line {number}: byte 0x{line[error.start]:02x} is not {self.encoding}. Save the file "
                        "as UTF-8, or say how it is written: `--encoding latin-1` (western European) or another."
                    )
        return f"{self.path} is not {self.encoding}: say how it is written with `--encoding`."


def _outside_quotes(line: str, separator: str) -> int:
    return sum(part.count(separator) for part in line.split('"')[::2])


@functools.cache
def pandas_module():
    """pandas, or a sentence that says how to get it."""
    try:
        import pandas
        import pyarrow  # noqa: F401  # texts and Parquet
    except ModuleNotFoundError as error:
        require(
            error.name not in ("pandas", "pyarrow"), "`gyromc fit` needs pandas and pyarrow: pip install 'gyromc[fit]'"
        )
        raise
    return pandas
