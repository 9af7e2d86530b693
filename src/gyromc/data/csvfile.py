"""CSV files as cells of text with their line numbers: the only parser of CSV here. A file that cannot be read is refused."""

import codecs
import contextlib
import csv
import gzip
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gyromc.checks import cause, explained, require, shown
from gyromc.errors import InvalidInput
from gyromc.show.numbers import is_number

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

CHUNK = 20_000
"""Rows converted to numbers at a time."""


class CsvFile:
    """The header of a CSV file, given by its path or content, and its rows when they are asked for.

    A byte-order mark overrides `encoding`. `names` of columns are empty where the header has none; `separator` is a word.
    `option` is how the user can name another encoding, for messages. With `index`, a header that is one name shorter than the
    first row gets an empty name in front, as R writes tables with row names. A file that begins like gzip is decompressed.
    """

    def __init__(
        self, source: Path | bytes, encoding: str = "utf-8", name: str = "", option: str = "", index: bool = False
    ):
        self.name, self.option = name or str(source), option
        self._content = source if isinstance(source, bytes) else source.read_bytes()
        if self._content.startswith(b"\x1f\x8b"):
            with explained(f"{self.name} begins like a gzip file but cannot be decompressed", "Is it complete?"):
                self._content = gzip.decompress(self._content)
        marked = [known for mark, known in BYTE_ORDER_MARKS.items() if self._content.startswith(mark)]
        self.encoding = marked[0] if marked else encoding
        try:
            # Python's codecs also turn text into text (rot13) and bytes into bytes (zip).
            if not getattr(codecs.lookup(self.encoding), "_is_text_encoding", True):
                raise LookupError
        except (LookupError, TypeError, ValueError):
            raise InvalidInput(f"Unknown encoding {self.encoding!r}: try utf-8, latin-1 or cp1252.") from None
        header = next(self._lines(), "")
        require(header, f"{self.name} holds no lines.")
        require(header.strip(), f"The first line of {self.name} is empty: it must name the columns.")
        # The separator is the one that the header has most of.
        unquoted = "".join(header.split('"')[::2])
        self._sign = max(SEPARATORS, key=unquoted.count)
        self.separator = SEPARATORS[self._sign]
        self.names = self._begin()
        if index:
            width = len(next(self._cells(), []))
            self.names = ("", *self.names) if width == len(self.names) + 1 > 2 else self.names
            self._begin()

    def _begin(self) -> tuple[str, ...]:
        self._reader = csv.reader(self._lines(), delimiter=self._sign, strict=True, skipinitialspace=True)
        return tuple(name.strip() for name in next(self._cells()))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each row once: the line at which it ends, and a cell for each column. Blank rows are left out."""
        width = len(self.names)
        for row in self._cells():
            # Not a blank line, or nothing but separators.
            if any(map(str.strip, row)) or (width == 1 and row):
                if len(row) != width:
                    found = f"{self.name}, line {self._reader.line_num}: {len(row)} values"
                    wanted = f"the header names {width} columns (separated by {self.separator}s)"
                    remedy = "Correct the line; quote values that contain the separator."
                    raise InvalidInput(f"{found}, but {wanted}. {remedy}")
                yield self._reader.line_num, row

    def chunks(self, places: Sequence[int]) -> Iterator[list[tuple[int, list[str]]]]:
        """Yield the rows, cells at `places` only, in lists of at most `CHUNK`: as numbers they take less memory."""
        rows = ((line, [row[i] for i in places]) for line, row in self.rows())
        while chunk := list(itertools.islice(rows, CHUNK)):
            yield chunk

    def _cells(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error as error:
            why = 'A quote (") that is opened there or before is not closed, or stands inside a value: write it twice ("").'
            raise InvalidInput(f"{self.name} cannot be read at line {self._reader.line_num}: {error}. {why}") from None

    def _lines(self) -> Iterator[str]:
        try:
            for line in io.TextIOWrapper(io.BytesIO(self._content), encoding=self.encoding, newline=""):
                if "\0" in line:
                    raise InvalidInput(f"{self.name} is not text: it holds zero bytes. Save it as CSV (UTF-8).")
                yield line
        except UnicodeDecodeError as error:
            # The part that was read last, with the wrong byte in it.
            at = self._content.find(error.object) + error.start
            line, byte = self._content.count(b"\n", 0, at) + 1, self._content[at]
            other = f", or name its encoding: `{self.option} latin-1` (western European) or another"
            remedy = f"Save the file as UTF-8{other if self.option else ''}."
            raise InvalidInput(
                f"{self.name}, line {line}: byte 0x{byte:02x} is not {self.encoding}. {remedy}"
            ) from None
        except UnicodeError as error:
            raise InvalidInput(f"{self.name} is not {self.encoding}: {cause(error)}. Save the file as UTF-8.") from None


def read_numbers(source: Path | bytes, name: str = "") -> tuple[tuple[str, ...], np.ndarray]:
    """Read a CSV file of finite numbers; return the column names, all different, and the numbers (rows × columns)."""
    # Messages quote a file only if it is a table of numbers: two columns or more, and a number in the first row.
    file = CsvFile(source, name=name)
    wanted = "its first line must name two columns or more, and the lines below must hold a number for each"
    none = f"{file.name} is not a table of numbers: {wanted}. (Nothing of it is shown here, since it may be any file.)"
    require(len(file.names) > 1, none)
    chunks = file.chunks(range(len(file.names)))
    first = next(chunks, [])
    require(first, f"{file.name} has a header line but no rows.")
    require(any(map(is_number, first[0][1])), none)
    require_distinct(file.names, file.name)
    for place, column in enumerate(file.names, 1):
        require(column, f"Column {place} of {file.name} has no name. Name it in the first line.")
    return file.names, np.concatenate([_numbers(file, chunk) for chunk in itertools.chain([first], chunks)])


def _numbers(file: CsvFile, chunk: list[tuple[int, list[str]]]) -> np.ndarray:
    rows, found = [row for _, row in chunk], np.full(1, np.nan)
    with contextlib.suppress(ValueError):
        found = np.array(rows, dtype=float)
    # Python reads 1_0 as ten.
    if "_" in "".join(map("".join, rows)) or not np.isfinite(found).all():
        for line, row in chunk:
            for column, cell in zip(file.names, row, strict=True):
                what = f"{file.name}, line {line}: column {shown(column)} must hold finite numbers"
                require(is_number(cell), f"{what}: got {shown(cell)}.")
    return found


def require_distinct(names: Sequence[str], path: str) -> None:
    """Raise if two columns have the same name; the message lists their places."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names, 1):
        places.setdefault(name, []).append(place)
    twice = [f"{name!r} in columns {', '.join(map(str, w[:5]))}" for name, w in places.items() if len(w) > 1]
    listed = "; ".join(twice[:5]) + (f" and {len(twice) - 5} more" if len(twice) > 5 else "")
    require(not twice, f"Column names in {path} must differ: {listed}. Rename them in the first line.")
