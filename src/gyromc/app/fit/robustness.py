"""Robust spreads beside the model's: for `--robust` and `--cluster`, as plain values and as a table.

Input: a fit and its rows. Output: the part `robust` of fit.json, and its columns of coefficients.csv.
"""

from typing import Any

import numpy as np

from gyromc.app.fit.rows import DesignRows
from gyromc.regression.fit import Fit
from gyromc.show.numbers import bounds, number
from gyromc.show.tables import Table

__all__ = ["robust_findings", "robust_table", "with_robust"]

NAMES = ["robust_spread", "robust_low_95", "robust_high_95"]


def robust_findings(fit: Fit, rows: DesignRows, y: np.ndarray, cluster: str | None) -> dict[str, Any]:
    """Return the robust spread and interval of each coefficient, with a sentence on how to read them."""
    from gyromc.regression.effects import robust_spreads

    spreads = robust_spreads(fit, rows.X, y, rows.clusters, rows.weights, **rows.beside())
    found = [
        {
            "name": c.name,
            "spread": float(s),
            "interval_95": [c.mean - 1.96 * float(s), c.mean + 1.96 * float(s)],
            "ratio": float(s) / c.sd,
        }
        for c, s in zip(fit.coefficients, spreads, strict=True)
    ]
    of = f" with clusters {cluster!r} ({len(np.unique(rows.clusters))} of them)" if rows.clusters is not None else ""
    sentence = (
        f"Sandwich spreads{of}: they hold also where the variance of y is not what the model says. Much larger than the model's "
        "(a ratio far above 1), they say that its intervals are too narrow."
    )
    return {"coefficients": found, "cluster": cluster, "sentence": sentence}


def with_robust(table: tuple[list[str], list[list[Any]]], robust: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of coefficients.csv with three more columns; further parameters have empty cells there."""
    columns, rows = table
    cells = [[c["spread"], *c["interval_95"]] for c in robust["coefficients"]]
    cells += [[None, None, None]] * (len(rows) - len(cells))
    return [*columns, *NAMES], [[*row, *more] for row, more in zip(rows, cells, strict=True)]


def robust_table(results: dict[str, Any]) -> Table:
    """Return the table for the terminal, from the content of fit.json."""
    model = {c["name"]: c for c in results["coefficients"]}
    rows = [
        [
            c["name"],
            number(model[c["name"]]["std"]),
            number(c["spread"]),
            bounds(c["interval_95"]),
            number(c["ratio"], 2),
        ]
        for c in results["robust"]["coefficients"]
    ]
    columns = ["coefficient", "posterior spread", "robust spread", "robust 95\u00a0% interval", "ratio"]
    return Table(columns, rows, "Robust spreads", [results["robust"]["sentence"]], style="simple")
