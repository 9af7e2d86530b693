"""Average effects of the columns of a table, however they enter the model: alone, in products, in curves, for classes.

Input: a fit, its encoding and table. Output: plain values for fit.json: for a number the average slope of E[y], for a category
the average difference to its reference, over the rows, all other columns as they are; and adjusted predictions, the average of
E[y] with a column set to each value of a grid. A changed table is encoded again, so that every term with the column changes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gyromc.regression.draws import Predictive
from gyromc.regression.fit import Fit
from gyromc.tables.datatable import DataTable, pandas_module
from gyromc.tables.encoding import CategoricalColumn, Encoding, NumericColumn

MOST_ROWS, MOST_DRAWS = 200, 400
STEP = 0.01  # of a slope's difference quotient, in standard deviations of the column
GRID, MOST_CURVES = 15, 4


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a fit, and E[y] of them with a column changed."""

    fit: Fit
    encoding: Encoding
    table: DataTable

    def mean(self, name: str, values: Any) -> np.ndarray:
        """E[y] averaged over the rows: draws × outputs."""
        column = pandas_module().Series(values, index=self.table.columns[name].index)
        changed = dataclasses.replace(self.table, columns={**self.table.columns, name: column})
        rows = dataclasses.replace(self.encoding, dates=()).rows_of(changed)
        mean = Predictive.of(self.fit.posterior, rows.X, MOST_DRAWS, **rows.beside()).mean.mean(axis=1)
        return mean if mean.ndim == 2 else mean[:, None]

    def numbers(self, feature: NumericColumn) -> np.ndarray:
        return feature.values(self.table)


def average_effects(fit: Fit, encoding: Encoding, table: DataTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the average slope or differences of each of these columns, one row for each class where there are several."""
    rows, found = _some(fit, encoding, table), []
    for feature in (one for one in encoding.features if one.name in names):
        if isinstance(feature, CategoricalColumn):
            start = rows.mean(feature.name, [feature.reference] * rows.table.num_rows)
            for level in feature.shown:
                change = rows.mean(feature.name, [level] * rows.table.num_rows) - start
                found += _written(encoding, f"{feature.name}: {level} against {feature.reference}", change)
            continue
        x = rows.numbers(feature)
        step = STEP * max(float(x.std()), 1e-300)
        slope = (rows.mean(feature.name, x + step) - rows.mean(feature.name, x - step)) / (2 * step)
        found += _written(encoding, f"slope of {feature.name}", slope)
    return found


def adjusted(fit: Fit, encoding: Encoding, table: DataTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return adjusted predictions over a grid of each of these columns of numbers, with 95 % bands: the numbers of a figure."""
    rows, found = _some(fit, encoding, table), []
    for feature in [one for one in encoding.features if one.name in names and isinstance(one, NumericColumn)][
        :MOST_CURVES
    ]:
        first, last = np.quantile(rows.numbers(feature), [0.01, 0.99])
        grid = np.linspace(first, last, GRID)
        means = np.stack([rows.mean(feature.name, np.full(rows.table.num_rows, x)) for x in grid])
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        classes = encoding.response.classes if means.shape[2] > 1 else (encoding.response.positive or "",)
        lines = [
            {
                "class": name,
                "mean": means[:, :, k].mean(axis=1).tolist(),
                "low": low[:, k].tolist(),
                "high": high[:, k].tolist(),
            }
            for k, name in enumerate(classes)
        ]
        found.append({"name": feature.name, "x": grid.tolist(), "lines": lines})
    return found


def _some(fit: Fit, encoding: Encoding, table: DataTable) -> _Rows:
    picked = np.unique(np.linspace(0, table.num_rows - 1, min(table.num_rows, MOST_ROWS)).astype(int))
    return _Rows(fit, encoding, encoding.dated(table).take(picked))


def _written(encoding: Encoding, name: str, change: np.ndarray) -> list[dict[str, Any]]:
    """A change of E[y], draws × outputs, as rows of the table of effects."""
    low, high = np.quantile(change, [0.025, 0.975], axis=0)
    several = change.shape[1] > 1
    return [
        {
            "name": f"{name}, P({encoding.response.name} = {encoding.response.classes[k]})" if several else name,
            "ratio": None,
            "ratio_interval_95": None,
            "change": float(change[:, k].mean()),
            "change_interval_95": [float(low[k]), float(high[k])],
        }
        for k in range(change.shape[1])
    ]
