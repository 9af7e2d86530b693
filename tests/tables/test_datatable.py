"""Files of data as users have them: what is read, and what is refused with place and remedy."""

import datetime
import gzip
import os
import time

import numpy as np
import pytest

from gyromc.errors import InvalidInput
from gyromc.tables.datatable import MAX_COLUMNS, read_table

GOOD = "a,b,y\n" + "".join(f"{i}.5,{'uv'[i % 2]},{i * i / 3:.3f}\n" for i in range(20))


def written(tmp_path, content, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        GOOD.replace(",", ";"),
        GOOD.replace(",", "\t"),
        GOOD.replace("\n", "\r\n"),
        GOOD.rstrip("\n"),
        GOOD.replace("a,b,y", ' a, "b",y '),
        GOOD + "\n\n,,\n",
        GOOD.replace("u", '"u"'),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.encode("utf-16"),
    ],
    ids=["comma", "semicolon", "tab", "crlf", "no-end", "padded", "blank-rows", "quoted", "bom", "utf16"],
)
def test_the_same_table_in_many_spellings(tmp_path, content):
    table = read_table(written(tmp_path, content))
    assert tuple(table.columns) == ("a", "b", "y")
    assert table.num_rows == 20
    assert list(table.columns["b"][:2]) == ["u", "v"]
    assert list(table.columns["a"][:2]) == ["0.5", "1.5"]
    assert table.place(np.array([3])) == "line 5"


def test_lines_are_counted_through_quoted_line_ends(tmp_path):
    table = read_table(written(tmp_path, 'a,b\n"x\ny",1\nz,2\n'))
    assert [table.place(np.array([row])) for row in (0, 1)] == ["line 3", "line 4"]
    assert table.columns["a"][0] == "x\ny"


def test_missing_values_and_nothing_else_are_missing(tmp_path):
    table = read_table(written(tmp_path, "a,b\n,1\nNA,2\n?,3\nnan,4\nNone,5\nno,6\n0,7\n"))
    assert list(table.columns["a"].isna()) == [True] * 4 + [False] * 3


def test_decimal_commas(tmp_path):
    path = written(tmp_path, "a;b\n3,14;x,y\n-1.234,5;z\n2e3;w\n")
    assert list(read_table(path, decimal=",").columns["a"]) == ["3.14", "-1234.5", "2e3"]
    assert read_table(path, decimal=",").columns["b"][0] == "x,y"
    with pytest.raises(InvalidInput, match="decimal sign"):
        read_table(path, decimal="x")


def test_columns_are_selected_and_dropped(tmp_path):
    path = written(tmp_path, 'a,"b,c",d,y\n1,2,3,4\n')
    assert tuple(read_table(path, columns=["a,d"], keep=["y"]).columns) == ("a", "d", "y")
    assert tuple(read_table(path, columns=["b,c"], keep=["y"]).columns) == ("b,c", "y")
    assert tuple(read_table(path, drop=["a", "d"]).columns) == ("b,c", "y")


@pytest.mark.parametrize(
    "text",
    [",a,y\n0,1,2\n1,5,6\n", '"","a","y"\n"p",1,2\n"q",5,6\n', 'a,y\n"p",1,2\n"q",5,6\n'],
    ids=["pandas", "write.csv", "write.table"],
)
def test_a_first_column_without_a_name_is_an_index(tmp_path, text):
    table = read_table(written(tmp_path, text))
    assert tuple(table.columns) == ("a", "y")
    assert list(table.columns["a"]) == ["1", "5"]
    assert list(table.lines) == [2, 3]
    assert "read as an index" in table.notes[0]


def test_an_unnamed_column_that_is_no_index_is_refused(tmp_path):
    path = written(tmp_path, ",a,y\n0,1,2\n0,1,2\n")
    with pytest.raises(InvalidInput, match=r"Column 1 of .* has no name.*--drop 'column 1'"):
        read_table(path)
    assert tuple(read_table(path, drop=["column 1"]).columns) == ("a", "y")
    with pytest.raises(InvalidInput, match=r"Column 2 of .* has no name"):
        read_table(written(tmp_path, "a,,y\n0,1,2\n"))


def test_a_compressed_file_is_read_as_the_plain_one(tmp_path):
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    plain = read_table(written(tmp_path, GOOD))
    assert {name: list(column) for name, column in read_table(path).columns.items()} == {
        name: list(column) for name, column in plain.columns.items()
    }
    path.write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        read_table(path)


def test_an_excel_file_is_read_by_sheet(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    page = book.active
    for row in [
        ["a", "when", "b"],
        [1, datetime.date(2024, 1, 2), "u"],
        [None] * 3,
        [2.5, datetime.date(2024, 2, 3), "#N/A"],
    ]:
        page.append(row)
    book.create_sheet("other").append(["x"])
    path = tmp_path / "data.xlsx"
    book.save(path)
    table = read_table(path)
    assert list(table.columns["a"]) == [1.0, 2.5]
    assert table.columns["b"].isna().tolist() == [False, True]
    assert table.columns["when"].dt.month.tolist() == [1, 2]
    assert list(table.lines) == [2, 4]
    assert "read the sheet 'Sheet' of" in table.notes[0]
    with pytest.raises(InvalidInput, match=r"no sheet 'third'\. Its sheets: 'Sheet', 'other'"):
        read_table(path, sheet="third")
    with pytest.raises(InvalidInput, match="header row but no rows"):
        read_table(path, sheet="other")


@pytest.mark.parametrize("text", [GOOD + "1,2\n", GOOD + '1,"u,3\n', "a,,y\n1,2,3\n", "a,b\n1,2\n"])
def test_no_file_stays_open_after_an_error(tmp_path, text):
    path = written(tmp_path, text)
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(InvalidInput) as caught:
        read_table(path, keep=["y", "z"] if text.startswith("a,b\n") else [])
    assert caught.value.__traceback__ is not None  # its frames are alive, and the file is closed all the same
    if before is not None:
        assert set(os.listdir("/proc/self/fd")) == before


REFUSED = {
    "empty": (b"", "is empty"),
    "header-only": ("a,b,y\n", "header line but no rows"),
    "blank-first-line": ("\na,b\n1,2\n", "first line .* is empty"),
    "short-row": (GOOD + "1,2\n", "line 22: 2 values, but the header names 3 columns"),
    "long-row": (GOOD + "1,2,3,4\n", "line 22: 4 values"),
    "open-quote": (GOOD + '1,"u,3\n', "cannot be read at line 22.*quote"),
    "duplicate": (GOOD.replace("a,b", "a,a"), "must differ: 'a' in columns 1, 2"),
    "latin-1": (b"a,b,y\n1,2,3\n\xe9,2,3\n", "line 3: byte 0xe9 is not utf-8.*--encoding latin-1"),
    "zip": (b"PK\x03\x04rest", "Excel workbook or another zip archive.*Save it as CSV"),
    "old-excel": (b"\xd0\xcf\x11\xe0rest", "old Excel workbook: save it as"),
    "gzip": (b"\x1f\x8brest", "cannot be decompressed"),
    "binary": (b"a,\x00b\n1,2\n", "not text"),
    "target": (GOOD.replace("y\n", "price\n"), "no column 'y'.*Its columns: 'a', 'b', 'price'"),
    "headless": ("1,2,3\n4,5,6\n", "lack its header line"),
    "broken-parquet": (b"PAR1 but not really", "begins like a Parquet file but cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_place_and_remedy(tmp_path, case):
    content, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        read_table(written(tmp_path, content), keep=["y"])


def test_paths_and_names_that_nearly_fit(tmp_path):
    path = written(tmp_path, GOOD.replace("a,b,y", "Age,Bmi,Disease"))
    with pytest.raises(InvalidInput, match=r"no column 'desease' .target.*Did you mean 'Disease'"):
        read_table(path, keep=["desease"])
    with pytest.raises(InvalidInput, match=r"no column 'age' .--drop.*'Age'"):
        read_table(path, drop=["age"])
    with pytest.raises(InvalidInput, match=r"no file .*Did you mean data\.csv"):
        read_table(tmp_path / "dta.csv")
    with pytest.raises(InvalidInput, match="no directory"):
        read_table(tmp_path / "nowhere" / "data.csv")
    with pytest.raises(InvalidInput, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(InvalidInput, match="Unknown encoding 'klingon'"):
        read_table(path, encoding="klingon")
    with pytest.raises(InvalidInput, match="target and cannot be dropped"):
        read_table(path, keep=["Age"], drop=["Age"])


def test_many_columns_are_refused_and_one_of_them_can_be_had(tmp_path):
    names = ",".join(f"c{i}" for i in range(10**5))
    path = written(tmp_path, f"{names},y\n" + "1," * 10**5 + "0\n")
    began = time.perf_counter()
    with pytest.raises(InvalidInput, match=f"100000 columns to predict from; at most {MAX_COLUMNS}.*--columns"):
        read_table(path, keep=["y"])
    print(f"refused in {time.perf_counter() - began:.1f} s")
    assert tuple(read_table(path, columns=["c17"], keep=["y"]).columns) == ("c17", "y")


def test_parquet_keeps_its_types(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(
        {
            "x": [1.5, None, 3.0],
            "n": [1, 2, 3],
            "flag": [True, False, True],
            "kind": pd.Categorical(["u", "v", "u"]),
            "day": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
            "list": [[1], [2], [3]],
        }
    )
    path = tmp_path / "data.parquet"
    frame.to_parquet(path)
    with pytest.raises(InvalidInput, match=r"Column 'list' .*--drop list"):
        read_table(path)
    table = read_table(path, drop=["list"])
    assert table.columns["x"].dtype == float
    assert np.isnan(table.columns["x"][1])
    assert list(table.columns["flag"]) == ["true", "false", "true"]
    assert list(table.columns["kind"]) == ["u", "v", "u"]
    assert table.place(np.array([0])) == "row 1"
    with pytest.raises(InvalidInput, match=r"no column 'flg' .*'flag'"):
        read_table(path, keep=["flg"], drop=["list"])


def test_rows_can_be_taken(tmp_path):
    table = read_table(written(tmp_path, GOOD)).take(np.array([3, 1]))
    assert list(table.columns["a"]) == ["3.5", "1.5"]
    assert table.place(np.array([0])) == "line 5"
