"""Accuracy: effective draws per gradient, per data row and per second, of gyromc and of other packages, on the same problems.

`problems` has the problems with their exact answers, `peers` and `ours` the competitors, `measure` the cells, `report` tables,
figure and pages. `gyromc bench accuracy` calls `measured`, `table` and `plot`.
"""

from accuracy.measure import FULL, QUICK, header, measured, total
from accuracy.report import plot, table

__all__ = ["FULL", "QUICK", "header", "measured", "plot", "table", "total"]
