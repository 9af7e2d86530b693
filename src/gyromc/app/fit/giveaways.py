"""Columns that give the target away: copies of it, shifted or rescaled copies, recodings of its values.

The table, its encoding, the target's numbers and X in; the names of such columns out, each with what it was found by. A model
with such a column scores well and says nothing about rows whose target is not known.
"""

import shlex

import numpy as np

from gyromc.app.fit.columns import as_numbers, pandas_module
from gyromc.app.fit.datatable import DataTable
from gyromc.app.fit.encoding import Encoding, NumericColumn
from gyromc.show.numbers import listed

__all__ = ["check", "giveaways"]

FEW = 5  # rows in which anything agrees by chance
ENOUGH = 20  # rows that are in one order by chance once in 20!/2
ROUNDING = 1e-6  # of a standard deviation, in a copy written with fewer digits


def giveaways(table: DataTable, encoding: Encoding, y: np.ndarray, X: np.ndarray) -> dict[str, str]:
    """Return the columns that determine the target in all rows, each with how; the empty name stands for several together."""
    found = {}
    for feature in encoding.features:
        column = table.columns[feature.name]
        known = column.notna().to_numpy()
        if known.sum() < FEW:
            continue
        how = _recoded(column[known], y[known])
        if isinstance(feature, NumericColumn) and not encoding.response.classes:
            how = _copied(as_numbers(column)[0][known], y[known]) or how
        if how:
            found[feature.name] = how
    if not found and not encoding.response.classes and _determined(X, y):
        found[""] = "a weighted sum of the columns equals the target in every row"
    return found


def check(found: dict[str, str], target: str) -> dict[str, object]:
    """Return the row of the table of checks."""
    name = "columns that give the target away"
    if not found:
        return {"name": name, "good": True, "sentence": f"none is a copy or a recoding of {target!r}."}
    some = listed([f"{column!r} {how}" if column else how for column, how in found.items()], 5)
    names = list(filter(None, found))[:5] or ["COLUMN"]
    sentence = (
        f"{some}. If that comes from {target!r} itself, scores and coefficients mean nothing: pass "
        f"{' '.join(f'`--drop {shlex.quote(name)}`' for name in names)}."
    )
    return {"name": name, "good": False, "sentence": sentence}


def _copied(x: np.ndarray, y: np.ndarray) -> str | None:
    """How numbers repeat a target of numbers."""
    if np.array_equal(x, y):
        return "equals the target in every row"
    if x.std() > 0 and y.std() > 0:
        a, b = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
        if np.max(np.abs(a - np.sign(a @ b) * b)) < ROUNDING:
            return "is the target, shifted or rescaled, in every row"
    steps = np.diff(y[np.argsort(x, kind="stable")])
    distinct = len(x) >= ENOUGH and np.all(np.diff(np.sort(x)) > 0)
    if distinct and (np.all(steps > 0) or np.all(steps < 0)):
        return "is in the order of the target in every row"
    return None


def _determined(X: np.ndarray, y: np.ndarray) -> bool:
    """Whether a weighted sum of the columns equals y, in more rows than that takes."""
    if len(y) < X.shape[1] + FEW or y.std() == 0:
        return False
    if not X.shape[1]:
        return False
    Z, scale = X - X.mean(axis=0), X.std(axis=0)
    Z, v = Z / np.where(scale > 0, scale, 1.0), (y - y.mean()) / y.std()
    return bool(np.max(np.abs(v - Z @ np.linalg.lstsq(Z, v, rcond=None)[0])) < ROUNDING)


def _recoded(column, y: np.ndarray) -> str | None:
    """Whether each value of a column has one value of the target only, in enough rows."""
    factorize = pandas_module().factorize
    codes, targets = factorize(column)[0], factorize(y)[0]
    levels, values = int(codes.max()) + 1, int(targets.max()) + 1
    repeated = len(y) >= FEW * levels or (levels == values and 2 * levels <= len(y))
    if levels > 1 and repeated and len(np.unique(codes.astype(np.int64) * values + targets)) == levels:
        return "has only one value of the target with each of its own"
    return None
