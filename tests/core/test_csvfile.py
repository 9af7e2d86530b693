"""The CSV reader: cells with their lines, numbers, and what is refused with place and remedy."""

import numpy as np
import pytest

from gyromc.data.csvfile import CHUNK, CsvFile, read_numbers
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
        (b"x,y\n1,\xe9\n", "line 2: byte 0xe9 is not utf-8. Save the file as UTF-8"),
        (b"x,y\n1,\x00\n", "not text"),
    ],
)
def test_refused_with_place_and_remedy(content, message):
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        read_numbers(content, name="f.csv")


def test_an_unknown_encoding_is_refused():
    with pytest.raises(InvalidInput, match="Unknown encoding 'klingon'"):
        CsvFile(b"x\n1\n", "klingon", name="f.csv")


def test_an_option_for_the_encoding_is_named_where_there_is_one():
    with pytest.raises(InvalidInput, match="or name its encoding: `--encoding latin-1`"):
        list(CsvFile(b"x,y\n1,\xe9\n", name="f.csv", option="--encoding").rows())


SECRETS = {
    "passwords": b"root:x:0:0:hunter2:/root:/bin/bash\ndaemon:x:1:1:hunter2:/usr/sbin:/usr/sbin/nologin\n",
    "a key": b"-----BEGIN HUNTER2 PRIVATE KEY-----\nhunter2hunter2\n-----END HUNTER2 PRIVATE KEY-----\n",
    "settings": b"PASSWORD=hunter2\nUSER=hunter2\n",
    "a letter": b"Dear hunter2,\nplease find hunter2, and hunter2\n",
    "a program": b"import hunter2, sys\nhunter2(sys, 1)\nhunter2(sys, 2)\n",
    "one column": b"hunter2\n1\n2\n",
    "one column twice": b"hunter2\nhunter2\n",
    "a list": b"hunter2,hunter2\nhunter2,hunter2\n",
    "bytes": b"hunter2,\xff\n\xfe,hunter2\n",
    "an open quote": b'hunter2,"hunter2\nhunter2\n',
    "rows of different lengths": b"hunter2,b\nhunter2\n",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_nothing_is_quoted_from_a_file_that_is_no_table(kind):
    with pytest.raises(InvalidInput) as raised:
        read_numbers(SECRETS[kind], "f.csv")
    assert "f.csv" in str(raised.value)
    assert "hunter2" not in str(raised.value).lower()
