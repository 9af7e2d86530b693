"""A sheet of an Excel file as rows of cells. Formulas are not computed: the values that Excel stored are read."""

from pathlib import Path
from typing import Any

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.show.numbers import listed

__all__ = ["read_sheet"]

ERRORS = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")


def read_sheet(path: Path, sheet: str | None) -> tuple[list[str], list[list[Any]], list[int], tuple[str, ...]]:
    """Return the names in the first row (empty where there is none), the other rows, their numbers, and notes.

    Blank rows and columns without a name and a value are left out. Texts such as `#N/A` count as missing.
    """
    with needs("excel", f"{path} is an Excel file. Save it as CSV (UTF-8); to read it as it is, gyromc"):
        from openpyxl import load_workbook
    with path.open("rb") as file:  # given as an open file, its name does not matter
        try:
            book = load_workbook(file, read_only=True, data_only=True)
            pages = {page.title: page for page in book.worksheets}
        except Exception as error:  # zip, XML and key errors, whatever is wrong with the file
            raise InvalidInput(
                f"{path} is an Excel workbook or another zip archive, and cannot be read: {error!s:.200}. Save it as CSV (UTF-8)."
            ) from None
        require(pages, f"{path} has no sheet with cells.")
        titles = list(pages)
        name = titles[0] if sheet is None else sheet
        require(name in pages, f"{path} has no sheet {sheet!r}. Its sheets: {listed([repr(t) for t in titles], 12)}.")
        rows = [[_cell(value) for value in row] for row in pages[name].iter_rows(values_only=True)]
        book.close()
    require(rows, f"The sheet {name!r} of {path} is empty.")
    header = ["" if value is None else str(value).strip() for value in rows[0]]
    kept = [i for i, text in enumerate(header) if text or any(i < len(row) and row[i] is not None for row in rows[1:])]
    table = [([row[i] if i < len(row) else None for i in kept], number) for number, row in enumerate(rows[1:], 2)]
    table = [(row, number) for row, number in table if any(value is not None for value in row)]
    require(table, f"The sheet {name!r} of {path} has a header row but no rows below.")
    notes = () if len(titles) == 1 else (f"read the sheet {name!r} of {listed([repr(t) for t in titles])}.",)
    return [header[i] for i in kept], [row for row, _ in table], [number for _, number in table], notes


def _cell(value: Any) -> Any:
    """Return a cell's value; None where it is blank or an error."""
    if isinstance(value, str):
        return None if not value.strip() or value in ERRORS else value
    return value
