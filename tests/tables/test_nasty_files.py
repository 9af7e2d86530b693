"""Files that are not what they seem: each is read right or refused in a sentence, before anything is computed.

`TEXTS` and `COLUMNS` are the table of what is tried: the content of a CSV file, or a column of a Parquet file, and a piece of
what becomes of its columns or of the message. Any other exception than `InvalidInput` is a fault.
"""

import datetime
import decimal
import re
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gyromc.errors import InvalidInput
from gyromc.tables.datatable import read_table
from gyromc.tables.preparation import giveaway_check
from gyromc.tables.recognition import Wishes, complete_rows, recognise

ROWS = 12
LETTERS = [chr(97 + i) for i in range(ROWS)]
FORMULAS = ['=cmd|"/c calc"!A0', "+1+1", "-2+3", "@SUM(1)"]


def csv(*columns, header="x,y", separator=","):
    """A CSV file of the given columns; y is the last."""
    y = [f"{1.5 * i + (i % 3)}" for i in range(ROWS)]
    rows = [separator.join([*(str(column[i % len(column)]) for column in columns), y[i]]) for i in range(ROWS)]
    return "\n".join([header, *rows]) + "\n"


def lines(line, count, header="x,y"):
    """A CSV file of the lines that a function gives for 0 … count - 1."""
    return "\n".join([header, *map(line, range(count))]) + "\n"


def read(path, **options):
    """What becomes of the columns of a file, as a text; with what warns of a copy of the target."""
    target = options.pop("target", "y")
    wishes = Wishes(**options)
    table, _ = complete_rows(read_table(path, keep=(target,)), target, wishes.impute)
    encoding = recognise(table, target, wishes)
    assert np.all(np.isfinite(encoding.rows_of(table, fitted=False).X))
    found = giveaway_check(table, encoding, encoding.response.encode(table), encoding.rows_of(table, fitted=False).X)
    return f"{encoding.response.model}: {encoding.rows()} {found['sentence']}"


# content of a CSV file: what is said of it
TEXTS = {
    "empty": ("", "is empty"),
    "a newline": ("\n", "first line .* is empty"),
    "blanks": ("   \n  \n", "first line .* is empty"),
    "header only": ("x,y\n", "header line but no rows"),
    "header without an end of line": ("x,y", "header line but no rows"),
    "header and blank lines": ("x,y\n\n\n,\n", "header line but no rows"),
    "no header": ("1,2\n3,4\n", "no column 'y' .* lack its header line"),
    "a duplicate name": (csv([1, 2], [3, 4], header="x,x,y"), "must differ: 'x' in columns 1, 2"),
    "no name": (csv([1, 2], [3, 4], header="x,,y"), "Column 2 .* has no name"),
    "a name of blanks": (csv([1, 2], [3, 4], header="x,  ,y"), "Column 2 .* has no name"),
    "a short row": ("x,y\n1,2\n3\n", "line 3: 1 values, but the header names 2"),
    "a long row": ("x,y\n1,2\n3,4,5\n", "line 3: 3 values"),
    "an open quote": ('x,y\n1,"2\n3,4\n', "quote"),
    "a quote inside": ('x,y\n1,2"3\n2,3\n3,4\n', "line 2: the target 'y' must be a finite number .* '2\"3'"),
    "zero bytes": ("x,y\n1,\0\n", "zero bytes"),
    "UTF-16 with a mark": (csv(LETTERS[:3]).encode("utf-16"), "'x', 'categorical', \"3 levels"),
    "UTF-16 without a mark": (csv([1, 2]).encode("utf-16-le"), "zero bytes"),
    "UTF-8 with a mark": (csv([1, 2]).encode("utf-8-sig"), "'x', 'numeric'"),
    "latin-1": (csv(["é", "à", "u"]).encode("latin-1"), "byte 0xe9 is not utf-8.*--encoding latin-1"),
    "old Mac lines": (csv([1, 2]).replace("\n", "\r"), "'x', 'numeric'"),
    "Windows lines": (csv([1, 2]).replace("\n", "\r\n"), "'x', 'numeric'"),
    "semicolons": (csv([1, 2], header="x;y", separator=";"), "'x', 'numeric'"),
    "tabs": (csv([1, 2], header="x\ty", separator="\t"), "'x', 'numeric'"),
    "decimal commas": (csv(["1,5", "2,5", "3,5"], header="x;y", separator=";"), "looks like a number .* `--decimal ,`"),
    "thousands": (csv(['"1,000"', '"2,000"', '"3,000"']), "looks like a number"),
    "underscores": (csv(["1_000", "2_000", "3_000"]), "looks like a number but is not written as one"),
    "two underscored values": (csv(["1_000", "2_000"]), "categories, though they look like numbers"),
    "hexadecimal": (csv(["0x1F", "0x2A", "0xFF"]), "looks like a number but is not written as one"),
    "two hexadecimal values": (csv(["0x1F", "0x2A"]), "categories, though they look like numbers"),
    "octal": (csv(["0o17", "0o7", "0o1"]), "looks like a number"),
    "money": (csv(["$5", "$6", "$7"]), "looks like a number"),
    "per cent": (csv(["5 %", "6 %", "7 %"]), "looks like a number"),
    "an underscored target": (lines(lambda i: f"{i},{i}_000", 9), "target 'y' .* look like numbers"),
    "a hexadecimal target": (lines(lambda i: f"{i},0x{i}F", 9), "target 'y' .* look like numbers"),
    "one odd cell": (csv([1, 2, 3, 4, "five", 6]), "line 6: column 'x' is numeric in 10 rows, but holds 'five'"),
    "infinity": (csv([1, 2, "inf", 4]), "holds 'inf'"),
    "minus infinity": (csv([1, 2, "-Infinity", 4]), "holds '-Infinity'"),
    "1e999": (csv([1, 2, "1e999", 4]), "holds '1e999'"),
    "missing": (csv([1, "", 3]), "lacks values in 1 column"),
    "missing by name": (csv([1, "N/A", "null", "?"]), "lacks values in 1 column"),
    "all missing": (csv(["NA"]), "No column is left .* x is empty"),
    "constant": (csv([7]), "x is constant"),
    "1e300": (csv([1e300, 2e300]), "too large to compute with"),
    "1e-300": (csv([1e-300, 2e-300]), "too small to compute with"),
    "far from zero": (csv([1e12 + 0.001, 1e12 + 0.002]), "only after its first nine digits"),
    "dates": (csv(["2024-01-01", "2024-02-01", "2024-03-01"]), "holds dates or times"),
    "times": (csv(["10:00", "11:30", "12:45"]), "holds dates or times"),
    "a target of dates": (lines(lambda i: f"{i + 1},2024-01-0{i + 1}", 8), "holds dates"),
    "identifiers": (csv([f"id{i}x" for i in range(ROWS)]), "identifies rows"),
    "an index": (csv(range(ROWS)), "counts the rows|order of the target"),
    "codes": (csv([1, 2, 3]), "if these are codes"),
    "truth values": (csv(["true", "false", "true", "true", "false"]), "'x', 'categorical', \"2 levels"),
    "emoji": (csv(["🙂", "🙃", "🙂", "🙂", "🙃"]), "'x', 'categorical'"),
    "right to left": (csv(["שלום", "עולם", "שלום", "שלום", "עולם"]), "'x', 'categorical'"),
    "formulas": (csv([*FORMULAS, "=1"]), "'x', 'categorical'"),
    "markup": (csv(["[/x]", "[red]", "<b>", "$x$", "$"]), "'x', 'categorical'"),
    "a name of markup": (csv([1, 2, 3], header="h [/x] $ <b>,y"), "'h \\[/x\\] \\$ <b>', 'numeric'"),
    "a name of 100 000 letters": (csv([1, 2, 3], header="x" * 100_000 + ",y"), "numeric"),
    "the constant's name": (csv([1, 2, 3], header="intercept,y"), "called 'intercept'"),
    "two coefficients of one name": (
        csv([1, 2, 4], ["b", "c", "b", "b", "c"], header="a[c],a,y"),
        "Two coefficients would be called 'a\\[c\\]'",
    ),
    "a copy of the target": (
        lines(lambda i: f"{i}.5,{i}.5", 9),
        "'x' is the target, shifted or .* as it is, .*--drop x",
    ),
    "a rescaled copy": (
        lines(lambda i: f"{3 - 2.5 * i * i},{i * i}", 12),
        "'x' is the target, shifted or",
    ),
    "a rounded copy": (
        lines(lambda i: f"{np.pi**i:.9g},{np.pi**i:.15g}", 12),
        "'x' is the target, shifted",
    ),
    "a logarithm of the target": (
        lines(lambda i: f"{np.log(1 + i * 7 % 23):.12g},{i * 7 % 23}", 23),
        "'x' is in the order of the target",
    ),
    "a recoded class": (
        lines(lambda i: f"{'ab'[i % 2]},{('yes', 'no')[i % 2]}", 10),
        "'x' has only one value of the target .*--drop x",
    ),
    "a class as a number": (
        lines(lambda i: f"{i % 3},{'uvw'[i % 3]}", 15),
        "'x' has only one value of",
    ),
    "groups within classes": (
        lines(lambda i: f"{'abcd'[i % 4]},{'uv'[i % 2]}", 40),
        "'x' has only one",
    ),
    "parts of the target": (
        lines(lambda i: f"{i * 7 % 11}.5,{i * i % 13},{i * 7 % 11 + i * i % 13}.5", 15, header="x,z,y"),
        "a linear combination of the columns equals the target .*--drop COLUMN",
    ),
    "no copy of the target": (csv([1, 5, 2, 8, 3]), "none is a copy or a recoding of 'y'"),
    "only the target": ("y\n1.5\n2.5\n3.5\n", "no column besides the target"),
    "one value of the target": ("x,y\n1,7\n2,7\n", "only one value"),
    "no target": (csv([1, 2], header="x,z"), "no column 'y'"),
    "a target with a gap": ("x,y\n1,2\n2,\n3,4\n", "target 'y' lacks 1 value"),
}
TIMES = [datetime.datetime(2024, 1, 1) + datetime.timedelta(days=i, hours=i) for i in range(ROWS)]
# a column of a Parquet file: what is said of it
COLUMNS = {
    "timestamps": (pa.array(TIMES, pa.timestamp("us")), "holds dates or times"),
    "timestamps in a zone": (pa.array(TIMES, pa.timestamp("ns", "UTC")), "holds dates or times"),
    "timestamps of the year 9999": (
        pa.array([datetime.datetime(9999, 1, 1 + i) for i in range(ROWS)], pa.timestamp("s")),
        "holds dates or times",
    ),
    "timestamps with gaps": (pa.array([None, *TIMES[1:]], pa.timestamp("us")), "dates or times.*lacks values"),
    "the same timestamp": (pa.array(TIMES[:1] * ROWS, pa.timestamp("us")), "x is constant"),
    "no timestamp": (pa.array([None] * ROWS, pa.timestamp("us")), "x is empty"),
    "days": (pa.array([t.date() for t in TIMES], pa.date32()), "holds dates or times"),
    "days as milliseconds": (pa.array([t.date() for t in TIMES], pa.date64()), "holds dates or times"),
    "times of day": (pa.array([t.time() for t in TIMES], pa.time64("us")), "holds dates or times"),
    "durations": (pa.array([t - TIMES[0] for t in TIMES], pa.duration("us")), "holds dates or times"),
    "timestamps by number": (pa.array(TIMES, pa.timestamp("us")).dictionary_encode(), "holds dates or times"),
    "nothing": (pa.nulls(ROWS), "x is empty"),
    "truth values": (pa.array([True, False] * 6), "'x', 'categorical', \"2 levels"),
    "bytes": (pa.array([b"a", b"\xff"] * 6), "holds binary"),
    "fixed bytes": (pa.array([b"a", b"\xff"] * 6, pa.binary(1)), "holds fixed_size_binary"),
    "decimals": (pa.array([decimal.Decimal(i * i) for i in range(ROWS)]), "'x', 'numeric'"),
    "decimals of 70 digits": (
        pa.array([decimal.Decimal(10) ** 60 * i for i in range(ROWS)], pa.decimal256(70, 0)),
        "too large to compute with",
    ),
    "half precision": (pa.array(np.arange(ROWS) ** 2, pa.float16()), "'x', 'numeric'"),
    "unsigned numbers": (pa.array([2**63 + i * i * 2**40 for i in range(ROWS)], pa.uint64()), "'x', 'numeric'"),
    "texts by number": (pa.array(["a", "b", "a"] * 4).dictionary_encode(), "'x', 'categorical'"),
    "long texts": (pa.array(["a", "b", "a"] * 4, pa.large_string()), "'x', 'categorical'"),
    "lists": (pa.array([[1]] * ROWS), "one value per row is needed"),
    "structures": (pa.array([{"a": 1}] * ROWS), "one value per row is needed"),
    "maps": (pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())), "one value per row is needed"),
    "NaN": (pa.array([np.nan] * ROWS), "x is empty"),
    "infinity": (pa.array([np.inf, *range(1, ROWS)], pa.float64()), "row 1: column 'x' .* 'inf'"),
}


def faults(call, message):
    """What is wrong with the answer, or None."""
    try:
        text = call()
    except InvalidInput as error:
        text = str(error)
        if len(text) > 1000:
            return f"a message of {len(text)} letters"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if re.search(message, text, re.DOTALL) else text


@pytest.mark.parametrize("kind", TEXTS)
def test_a_csv_file_is_read_right_or_refused(kind, tmp_path):
    content, message = TEXTS[kind]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert faults(lambda: read(path), message) is None


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_parquet_column_is_read_right_or_refused(kind, tmp_path):
    column, message = COLUMNS[kind]
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"x": column, "y": np.arange(ROWS) * 1.5 + np.arange(ROWS) % 3}), path)
    assert faults(lambda: read(path), message) is None


def test_files_that_are_no_tables_are_named(tmp_path):
    path = tmp_path / "data.csv"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    assert faults(lambda: read(path), "Excel workbook or another zip archive") is None
    for content, message in {
        b"PAR1 and nothing else": "begins like a Parquet file but cannot be read",
        b"\x1f\x8bxx": "gzip",
        b"%PDF-1.7": "PDF",
        b"SQLite format 3\0": "SQLite",
        b"\xd0\xcf\x11\xe0xx": "old Excel",
        b"\x89PNG\r\n\x1a\n\0\0": "is not utf-8|zero bytes|first line",
        b"\x7fELF\x02\x01\0": "zero bytes|header",
    }.items():
        path.write_bytes(content)
        assert faults(lambda: read(path), message) is None, content
    assert faults(lambda: read(tmp_path), "is a directory") is None
    assert faults(lambda: read(tmp_path / "data.csw"), "Did you mean data.csv") is None
