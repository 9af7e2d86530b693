"""One column of a data file, a pandas Series: missing values, decimal signs, numbers or text, order, dates, scale."""

import functools

import numpy as np

from gyromc.checks import require
from gyromc.extras import needs

__all__ = [
    "adorned",
    "as_numbers",
    "as_text",
    "clean",
    "is_dates",
    "ordered",
    "pandas_module",
    "require_scale",
    "with_points",
]

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})
"""Texts that stand for a missing value, in any case; everything else is a value."""

DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
    r"|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2,4}"
)
ADORNED = r"[+-]?[$€£]?\s*\d[\d,.'_ ]*\s*[%$€£]?|[+-]?0[xX][\da-fA-F_]+|[+-]?0[bBoO][0-7_]+"
"""Numbers with extra signs: 1,234 or 1_000 or 3,14 or 12 % or $5, and numbers to other bases: 0x1F."""
CALENDAR = (
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
)
LEAST_SPREAD, MOST_SIZE, LEAST_CHANGE = 1e-30, 1e30, 1e-9


@functools.cache
def pandas_module():
    """Return pandas; raise `InvalidInput` with the install command where it is missing."""
    with needs("fit", "`gyromc fit`"):
        import pandas
        import pyarrow  # noqa: F401  # texts and Parquet
    return pandas


def clean(column):
    """Remove blanks around each text and convert missing values to NaN."""
    column = column.str.strip()
    return column.where(~column.str.lower().isin(MISSING), None)


def with_points(column):
    """Rewrite numbers such as 1.234,5 as 1234.5; leave other texts unchanged."""
    looks = column.str.fullmatch(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),?\d*([eE][+-]?\d+)?").fillna(False)
    points = column.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    return column.where(~looks.astype(bool), points)


def as_numbers(column) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as float64 (missing: NaN), and where a value is present but no finite number."""
    values = np.asarray(pandas_module().to_numeric(column, errors="coerce"), float)
    return values, (column.notna().to_numpy() & np.isnan(values)) | np.isinf(values)


def as_text(column):
    """Return a column as texts (missing: NaN), whole numbers without a decimal point: 3 and 3.0 are one category."""
    types = pandas_module().api.types
    if types.is_numeric_dtype(column):
        return column.map(lambda x: f"{x:.15g}", na_action="ignore").astype("str")
    if not types.is_string_dtype(column.dropna()):  # dates and times
        return column.map(str, na_action="ignore").astype("str")
    return column.str.replace(r"^([+-]?\d+)\.0*$", r"\1", regex=True)


def ordered(texts) -> list[str]:
    """Return the different values in order: numbers by size, months and weekdays by the calendar, other texts by the alphabet."""
    pandas = pandas_module()
    distinct = [str(t) for t in pandas.unique(texts)]
    for names in CALENDAR:
        if set(distinct) <= set(names):
            return [name for name in names if name in distinct]
    values, _ = as_numbers(pandas.Series(distinct, dtype="str"))
    if not np.isnan(values).any():
        return [distinct[i] for i in np.argsort(values, kind="stable")]
    return sorted(distinct, key=lambda t: (t.casefold(), t))


def adorned(texts) -> bool:
    """Whether more than half of some texts look like numbers that are not written plainly."""
    return bool(len(texts)) and float(texts.str.fullmatch(ADORNED).mean()) > 0.5


def is_dates(column) -> bool:
    """Whether most values look like dates or times."""
    types = pandas_module().api.types
    if types.is_numeric_dtype(column):
        return False
    if not types.is_string_dtype(column):
        return True  # typed columns are numbers, texts or dates
    known = column.dropna()
    return bool(len(known)) and bool(known.str.fullmatch(DATES).mean() > 0.5)


def require_scale(values: np.ndarray, what: str) -> None:
    """Raise if float64 cannot hold the standardised values: too small, too large, or nearly constant."""
    low, high = float(values.min()), float(values.max())
    size, spread = max(abs(low), abs(high)), high / 2 - low / 2
    require(
        spread > LEAST_CHANGE * size,
        f"{what} runs from {low:.15g} to {high:.15g}: it changes only after its first nine digits. Subtract {low:.15g} first.",
    )
    require(
        spread > LEAST_SPREAD and size < MOST_SIZE,
        f"{what} runs from {low:.3g} to {high:.3g}: too {'small' if size < 1 else 'large'} to compute with. Express it in other "
        "units.",
    )
