"""The values of one column: as numbers, as texts, in order, as dates, on a scale that can be computed with (E1's X and y).

Receives a pandas Series of texts or typed values; hands on arrays and plain answers.
"""

import numpy as np

from gyromc.checks import require

__all__ = ["as_numbers", "as_text", "counted", "is_dates", "ordered", "require_scale"]

DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
    r"|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2,4}"
)
LEAST_SPREAD, MOST_SIZE, LEAST_CHANGE = 1e-30, 1e30, 1e-9


def as_numbers(column) -> tuple[np.ndarray, np.ndarray]:
    """A column as float64 (missing: NaN), and which values are there but no finite numbers."""
    import pandas

    if pandas.api.types.is_numeric_dtype(column):
        values = column.to_numpy(float)
        return values, np.isinf(values)
    values = np.asarray(pandas.to_numeric(column, errors="coerce"), float)
    return values, (column.notna().to_numpy() & np.isnan(values)) | np.isinf(values)


def as_text(column):
    """A column as texts (missing: NaN); whole numbers without a decimal point, so that 3 and 3.0 are one category."""
    import pandas

    if pandas.api.types.is_numeric_dtype(column):
        return column.map(lambda x: f"{x:.15g}", na_action="ignore").astype("str")
    return column.str.replace(r"^([+-]?\d+)\.0*$", r"\1", regex=True)


def ordered(texts) -> list[str]:
    """The different values in order: numbers by size, texts by the alphabet, capitals beside small letters."""
    import pandas

    distinct = [str(t) for t in pandas.unique(texts)]
    values = np.asarray(pandas.to_numeric(pandas.Series(distinct, dtype="str"), errors="coerce"), float)
    if not np.isnan(values).any():
        return [distinct[i] for i in np.argsort(values, kind="stable")]
    return sorted(distinct, key=lambda t: (t.casefold(), t))


def is_dates(column) -> bool:
    """Whether most values look like dates or times."""
    import pandas

    if pandas.api.types.is_numeric_dtype(column):
        return False
    if not pandas.api.types.is_string_dtype(column):
        return True  # typed columns are numbers, texts or dates
    known = column.dropna()
    return bool(len(known)) and bool(known.str.fullmatch(DATES).mean() > 0.5)


def require_scale(values: np.ndarray, what: str) -> None:
    """Standardising copes with any unit, but not with the ends of what a computer's numbers can hold.

    **Arguments:**

    - `values`: all that are not missing.
    - `what`: they are, for the message.
    """
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


def counted(number: int, noun: str) -> str:
    """ "1 row", "2 rows", "3 categories"."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
