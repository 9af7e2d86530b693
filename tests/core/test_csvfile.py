"""The CSV reader: cells with their lines, numbers, and what is refused with place and remedy."""

import numpy as np
import pytest

from gyromc.csvfile import CHUNK, CsvFile, read_numbers
from gyromc.errors import InvalidInput


def test_rows_come_with_the_line_they_end_at():
    file = CsvFile(b'a, "b, c"\n"x\ny",1\n\n,\nz,2\n', name="f.csv")
    assert file.names == ("a", "b, c")
    assert file.separator == "comma"
    assert list(file.rows()) == [(3, ["x\ny", "1"]), (6, ["z", "2"])]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_numbers_in_many_spellings(tmp_path, separator, encoding):
    path = tmp_path / "f.csv"
    path.write_text("é,y\n1, 2.5\n-3e2,+4\n".replace(",", separator), encoding=encoding)
    names, table = read_numbers(path)
    assert names == ("é", "y")
    np.testing.assert_array_equal(table, [[1, 2.5], [-300, 4]])


def test_long_files_are_read_in_parts():
    rows = CHUNK + 7
    _, table = read_numbers(b"x,y\n" + b"".join(b"%d,%d\n" % (i, -i) for i in range(rows)), name="f.csv")
    np.testing.assert_array_equal(table, np.column_stack([np.arange(rows), -np.arange(rows)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no lines"),
        (b"\nx\n1\n", "first line of f.csv is empty"),
        (b"x,y\n", "header line but no rows"),
        (b"x,y\n1,2,3\n", "line 2: 3 values, but the header names 2 columns"),
        (b"x,y\n1,2\n3\n", "line 3: 1 values"),
        (b"x,x\n1,2\n", "must differ: 'x' in columns 1, 2"),
        (b"x,\n1,2\n", "Column 2 of f.csv has no name"),
        (b"x,y\n1,2\n3,four\n", "line 3: column 'y' must hold finite numbers: got 'four'"),
        (b"x,y\n1,nan\n", "line 2: column 'y' .* got 'nan'"),
        (b"x,y\n1,\n", "line 2: column 'y' .* got ''"),
        (b"x,y\n1_0,2\n", "line 2: column 'x' .* got '1_0'"),
        (b'x,y\n1,"2\n', "cannot be read at line 2.*quote"),
        (b"x,y\n1,\xe9\n", "line 2: byte 0xe9 is not utf-8.*--encoding latin-1"),
        (b"x,y\n1,\x00\n", "not text"),
    ],
)
def test_refused_with_place_and_remedy(content, message):
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        read_numbers(content, name="f.csv")


def test_an_unknown_encoding_is_refused():
    with pytest.raises(InvalidInput, match="Unknown encoding 'klingon'"):
        CsvFile(b"x\n1\n", "klingon", name="f.csv")
