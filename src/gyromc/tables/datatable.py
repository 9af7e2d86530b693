"""A CSV, Excel or Parquet file or a data frame as a `DataTable` that knows the place of each row in the file.

A file that cannot be read as it stands is refused, with place and remedy. Of formulas in an Excel file the stored values count.
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import require, shown
from gyromc.data.csvfile import CsvFile, require_distinct
from gyromc.data.files import pyarrow
from gyromc.datasets import located
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.show.numbers import counted, is_number, listed

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})  # in any case; every other text is a value
DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
    r"|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2,4}"
)
# Numbers with extra signs: 1,234 or 1_000 or 3,14 or 12 % or $5, and numbers to other bases: 0x1F.
ADORNED = r"[+-]?[$€£]?\s*\d[\d,.'_ ]*\s*[%$€£]?|[+-]?0[xX][\da-fA-F_]+|[+-]?0[bBoO][0-7_]+"
CALENDAR = ("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec", "Mon Tue Wed Thu Fri Sat Sun")
LEAST_SPREAD, MOST_SIZE, LEAST_CHANGE = 1e-30, 1e30, 1e-9
MAX_COLUMNS = 1000  # to predict from: the sampler's matrices are dense
Select = Callable[..., list[int]]  # `_select` without the names
MARKS = {
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save it as .xlsx or CSV (UTF-8)",
    b"%PDF": "a PDF document: export the table as CSV",
    b"SQLite format 3": "an SQLite database: export the table as CSV",
}


@functools.cache
def pandas_module():
    """Return pandas; raise `InvalidInput` with the install command where it is missing."""
    with needs("fit", "`gyromc fit`"):
        import pandas
        import pyarrow  # noqa: F401  # texts and Parquet
    return pandas


def text_dtype() -> Any:
    """Return the type of a column of texts whose missing values are NaN: `str` from pandas 3 on."""
    pandas = pandas_module()
    return "str" if int(pandas.__version__.split(".")[0]) >= 3 else pandas.StringDtype("pyarrow_numpy")


def clean(column):
    """Remove blanks around each text and convert missing values to NaN."""
    column = column.str.strip()
    return column.where(~column.str.lower().isin(MISSING), None)


def as_numbers(column) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as float64 (missing: NaN), and where a value is present but no finite number."""
    values = np.asarray(pandas_module().to_numeric(column, errors="coerce"), float)
    return values, (column.notna().to_numpy() & np.isnan(values)) | np.isinf(values)


def as_text(column):
    """Return a column as texts (missing: NaN), whole numbers without a decimal point: 3 and 3.0 are one category."""
    types = pandas_module().api.types
    if types.is_numeric_dtype(column):
        return column.map(lambda x: f"{x:.15g}", na_action="ignore").astype(text_dtype())
    if not types.is_string_dtype(column.dropna()):  # dates and times
        return column.map(str, na_action="ignore").astype(text_dtype())
    return column.str.replace(r"^([+-]?\d+)\.0*$", r"\1", regex=True)


def ordered(texts) -> list[str]:
    """Return the different values in order: numbers by size, months and weekdays by the calendar, other texts by the alphabet."""
    pandas = pandas_module()
    distinct = [str(t) for t in pandas.unique(texts)]
    for names in map(str.split, CALENDAR):
        if set(distinct) <= set(names):
            return sorted(distinct, key=names.index)
    values, _ = as_numbers(pandas.Series(distinct, dtype=text_dtype()))
    if not np.isnan(values).any():
        return [distinct[i] for i in np.argsort(values, kind="stable")]
    return sorted(distinct, key=lambda t: (t.casefold(), t))


def adorned(texts) -> bool:
    """Whether more than half of some texts look like numbers that are not written plainly."""
    return bool(len(texts)) and float(texts.str.fullmatch(ADORNED).mean()) > 0.5


def is_dates(column) -> bool:
    """Whether most values look like dates or times."""
    types = pandas_module().api.types
    if not types.is_string_dtype(column):
        return not types.is_numeric_dtype(column)  # typed columns are numbers, texts or dates
    known = column.dropna()
    return bool(len(known)) and bool(known.str.fullmatch(DATES).mean() > 0.5)


def require_scale(values: np.ndarray, what: str) -> None:
    """Raise if float64 cannot hold the standardised values: too small, too large, or nearly constant."""
    low, high = float(values.min()), float(values.max())
    size, spread = max(abs(low), abs(high)), high / 2 - low / 2
    # whole numbers beyond 2⁵³ may differ in digits that float64 does not hold
    constant = f"{what} is {low:.15g} in every row: nothing can be learnt from it. Leave it out."
    require(low < high or size >= 2**53, constant)
    digits = f"it changes only after its first nine digits. Subtract {low:.15g} first."
    require(spread > LEAST_CHANGE * size, f"{what} runs from {low:.15g} to {high:.15g}: {digits}")
    far = f"too {'small' if size < 1 else 'large'} to compute with. Express it in other units."
    require(spread > LEAST_SPREAD and size < MOST_SIZE, f"{what} runs from {low:.3g} to {high:.3g}: {far}")


@dataclasses.dataclass(frozen=True, eq=False)
class DataTable:
    """Columns as pandas Series, texts stripped of blanks, missing values as NaN; and the place of each row in its file.

    `lines` counts lines of a CSV file or rows of another from 1, as `unit` says; `notes` says how the file was read.
    """

    path: str
    unit: str
    columns: Mapping[str, Any]
    lines: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        return self.lines.size

    def place(self, rows: np.ndarray) -> str:
        """Return the place in the file of the first of some rows (numbers or a mask): "line 17"."""
        return f"{self.unit} {self.lines[rows][0]}"

    def take(self, rows: np.ndarray) -> "DataTable":
        columns = {name: column.iloc[rows].reset_index(drop=True) for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, lines=self.lines[rows])

    def refuse(self, wrong: np.ndarray, text: str, remedy: str, values: Any = None) -> None:
        """Raise where some rows are wrong, with the place and the value of the first, and their number."""
        if np.any(wrong):
            first = None if values is None else np.asarray(values)[wrong][0]
            value = "" if values is None else f" {first:g}" if isinstance(first, float) else f" {first!r}"
            rows = counted(int(np.sum(wrong)), "row")
            raise InvalidInput(f"{self.path}, {self.place(wrong)}: {text}{value} there ({rows} like that). {remedy}")

    def require_column(self, name: str, role: str) -> None:
        """Raise unless there is a column of that name; the message names the nearest."""
        _require_names([name], self.columns, self.path, role)


def read_table(
    path: Any,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    *,
    role: str | Mapping[str, str] = "target",
    choose: Callable[[Sequence[str]], Collection[str]] | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
    sheet: str | None = None,
) -> DataTable:
    """Read a CSV file (also compressed by gzip), an Excel or a Parquet file, as its first bytes say; or take a data frame.

    `columns`, and `keep` in any case, are read; or those that `choose` picks. `role` is what messages call the columns of `keep`.
    """
    roles = role if isinstance(role, Mapping) else dict.fromkeys(keep, role)
    select = functools.partial(_select, columns=columns, drop=drop, keep=keep, roles=roles, choose=choose)
    if not isinstance(path, str | Path):
        return _read_frame(path, functools.partial(select, path="the data"))
    path = located(path)
    select = functools.partial(select, path=str(path))
    require(decimal in (".", ","), f"The decimal sign must be '.' or ',': got {decimal!r}.")
    if not path.exists():
        near = f" There is no directory {path.parent} either."
        if path.parent.is_dir():
            files = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir() if p.is_file()], 2, 0.6)
            near = f" Did you mean {' or '.join(files)}?" if files else ""
        raise InvalidInput(f"There is no file {path}.{near}")
    require(not path.is_dir(), f"{path} is a directory: name one CSV or Parquet file in it.")
    require(path.is_file(), f"{path} is a device or a pipe: name a file, which is read more than once.")
    with path.open("rb") as file:
        first = file.read(16)
    require(first, f"{path} is empty: a table needs a header line and rows.")
    for mark, sentence in MARKS.items():
        require(not first.startswith(mark), f"{path} is {sentence}.")
    if first.startswith(b"PK\x03\x04"):
        return _read_excel(path, select, sheet)
    require(sheet is None, f"`--sheet` is for Excel files: {path} is none.")
    if first.startswith(b"PAR1"):
        return _read_parquet(path, select)
    return _read_csv(path, select, {*keep, *columns, *drop}, encoding, decimal)


def _read_frame(data: Any, select: Select) -> DataTable:
    """A pandas data frame, a mapping of columns, or a frame of another library with `to_pandas`."""
    pandas = pandas_module()
    try:
        frame = data.to_pandas() if hasattr(data, "to_pandas") else data
        frame = frame if isinstance(frame, pandas.DataFrame) else pandas.DataFrame(dict(frame))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"Rows must be a file, a data frame or a mapping of columns: {error}") from None
    names = list(map(str, frame.columns))
    found = {names[i]: _column(frame.iloc[:, i].reset_index(drop=True), names[i], "the data") for i in select(names)}
    require(len(frame), "The data has no rows.")
    return DataTable("the data", "row", found, np.arange(1, len(frame) + 1))


def _column(values, column: str, path: str):
    """A pandas Series of any type as float64, dates or texts."""
    pandas = pandas_module()
    types = pandas.api.types
    if isinstance(values.dtype, pandas.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    texts = types.is_bool_dtype(values) or types.is_object_dtype(values)
    nested = lambda value: isinstance(value, list | tuple | dict | set | np.ndarray)
    one = f"Column {column!r} of {path} holds complex numbers, lists or arrays: one number or text per row is needed."
    require(not types.is_complex_dtype(values) and not (texts and values.map(nested).any()), one)
    if texts:
        values = values.map(str, na_action="ignore")
    if types.is_numeric_dtype(values):
        return values.astype(float)
    return values if types.is_datetime64_any_dtype(values) else clean(values.astype(text_dtype()))


def split_names(given: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the names in some texts: a text that is no known name may hold several, separated by commas."""
    return [n for text in given for n in ([text] if text in known else [part.strip() for part in text.split(",")])]


def _select(
    names: Sequence[str], unnamed: Collection[str] = (), *, path: str, columns, drop, keep, roles, choose
) -> list[int]:
    """The places of the columns to read among these names; `unnamed` are those that the file does not name."""
    require_distinct(names, path)
    known = set(names if choose is None else choose([name for name in names if name not in unnamed]))
    only, out = (set(split_names(given, known)) - {""} for given in (columns, drop))
    for name in keep:
        _require_names([name], names, path, roles[name])
        require(name not in out, f"{name!r} is the {roles[name].removeprefix('--')} and cannot be dropped too.")
    _require_names(only, names, path, "--columns")
    _require_names(out, names, path, "--drop")
    chosen = {*keep, *((only or known) - out)}
    places = [i for i, name in enumerate(names) if name in chosen]
    several = len(places) - len(set(keep))
    many = f"{path} has {several} columns to predict from; at most {MAX_COLUMNS} are possible."
    require(several <= MAX_COLUMNS, f"{many} Select some with `--columns a,b,c`, or `--drop a,b,c`.")
    for i in places:
        text = f"Column {i + 1} of {path} has no name (an index written by pandas?). Name it, or pass `--drop '{names[i]}'`."
        require(names[i] not in unnamed, text)
    return places


def _filled(names: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Names of columns, with a number for those that have none; and those."""
    filled = [name or f"column {i + 1}" for i, name in enumerate(names)]
    return filled, frozenset(new for name, new in zip(names, filled, strict=True) if not name)


def _require_names(names: Collection[str], columns: Collection[str], path: str, role: str) -> None:
    for name in [name for name in names if name not in columns]:
        known = list(columns)
        lowered = {k.lower(): k for k in known[:5000]}  # comparing with a million names takes minutes
        near = [lowered[n] for n in difflib.get_close_matches(name.lower(), lowered, 3, 0.5)]
        every = listed(list(map(repr, sorted(known))), 12)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its columns: {every}."
        if all(map(is_number, known[:1000])):
            hint += " The first line holds only numbers: does the file lack its header line?"
        raise InvalidInput(f"{path} has no column {shown(name)} ({role}). {hint}")


def _read_csv(path: Path, select: Select, named: Collection[str], encoding: str, decimal: str) -> DataTable:
    pandas, file = pandas_module(), CsvFile(path, encoding, option="--encoding", index=True)
    names, unnamed = _filled(file.names)
    index = names[0] if names[0] in unnamed and names[0] not in named else None
    places = [i for i in select(names, unnamed - {index}) if names[i] != index]
    parts, ends = [], []
    for chunk in file.chunks(places if index is None else [0, *places]):
        lines, rows = zip(*chunk, strict=True)
        ends += lines
        parts.append([pandas.Series(column, dtype=text_dtype()) for column in zip(*rows, strict=True)])
    require(ends, f"{path} has a header line but no rows.")
    columns = [pandas.concat(column, ignore_index=True) for column in zip(*parts, strict=True)]
    notes = [] if file.separator == "comma" else [f"{path.name} is separated by {file.separator}s."]
    if index is not None:
        numbers = columns.pop(0)
        if not numbers.is_unique:
            twice = numbers[numbers.duplicated()].iloc[0]
            remedy = "Name it in the first line, or pass `--drop 'column 1'`."
            raise InvalidInput(f"Column 1 of {path} has no name, and is no index: {twice!r} is there twice. {remedy}")
        what = "read as an index of the rows (as R and pandas write it) and left out."
        notes.append(f"the first column of {path.name} has no name: {what}")
    texts = {names[i]: clean(column) for i, column in zip(places, columns, strict=True)}
    if decimal == ",":  # numbers such as 1.234,5 are 1234.5
        for name, column in texts.items():
            looks = column.str.fullmatch(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),?\d*([eE][+-]?\d+)?").fillna(False)
            points = column.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            texts[name] = column.where(~looks.astype(bool), points)
    return DataTable(str(path), "line", texts, np.array(ends, int), tuple(notes))


def _read_parquet(path: Path, select: Select) -> DataTable:
    arrow = pyarrow()
    try:
        file = arrow.parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{path} begins like a Parquet file but cannot be read: {error}") from None
    names = list(file.schema_arrow.names)
    require(file.metadata.num_rows, f"{path} has columns but no rows.")
    columns = {}
    for name in [names[i] for i in select(names)]:
        kind = file.schema_arrow.field(name).type
        remedy = f"one value per row is needed. Unpack it, or pass `--drop {name}`."
        single = not arrow.types.is_nested(kind) and "binary" not in str(kind)
        require(single, f"Column {name!r} of {path} holds {kind}: {remedy}")
        column = file.read(columns=[name]).column(0)
        if arrow.types.is_decimal(kind) or arrow.types.is_float16(kind):
            column = column.cast(arrow.float64())
        elif arrow.types.is_boolean(kind):
            column = column.cast(arrow.string())
        # dates without a time and times of the day come as objects
        series = column.to_pandas()
        columns[name] = series if arrow.types.is_temporal(kind) else _column(series, name, str(path))
    return DataTable(str(path), "row", columns, np.arange(1, file.metadata.num_rows + 1))


def _read_excel(path: Path, select: Select, sheet: str | None) -> DataTable:
    """Read a sheet with names in its first row; blank rows, and columns without a name and a value, are left out."""
    pandas = pandas_module()
    with needs("excel", f"{path} is an Excel file. Save it as CSV (UTF-8); to read it as it is, gyromc"):
        import openpyxl  # noqa: F401  # for pandas
    with path.open("rb") as file:  # given as an open file, its name does not matter
        try:
            book = pandas.ExcelFile(file, engine="openpyxl")
        except Exception as error:  # zip, XML and key errors, whatever is wrong with the file
            what = f"{path} is an Excel workbook or another zip archive, and cannot be read"
            raise InvalidInput(f"{what}: {error!s:.200}. Save it as CSV (UTF-8).") from None
        sheets = list(map(str, book.sheet_names))
        require(sheets, f"{path} has no sheet with cells.")
        name, titles = sheet or sheets[0], list(map(repr, sheets))
        require(name in sheets, f"{path} has no sheet {sheet!r}. Its sheets: {listed(titles, 12)}.")
        missing = ["", "#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"]
        cells = pandas.read_excel(book, name, header=None, dtype=object, keep_default_na=False, na_values=missing)
    require(len(cells), f"The sheet {name!r} of {path} is empty.")
    cells = cells.replace(r"^\s*$", None, regex=True)
    header = ["" if pandas.isna(value) else str(value).strip() for value in cells.iloc[0]]
    rows = cells.iloc[1:].dropna(how="all")
    require(len(rows), f"The sheet {name!r} of {path} has a header row but no rows below.")
    notes = () if len(titles) == 1 else (f"read the sheet {name!r} of {listed(titles)}.",)
    kept = [i for i, text in enumerate(header) if text or rows[i].notna().any()]
    names, unnamed = _filled([header[i] for i in kept])
    values = rows.reset_index(drop=True).infer_objects()
    columns = {names[i]: _column(values[kept[i]], names[i], str(path)) for i in select(names, unnamed)}
    return DataTable(str(path), "row", columns, rows.index.to_numpy() + 1, notes)
