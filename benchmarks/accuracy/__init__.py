"""Accuracy: effective draws per gradient, and processor seconds to an error, of gyromc and of other packages.

`problems` has the problems with their exact answers, `peers` and `ours` the competitors, `measure` the cells, `report` tables,
figure and pages. `gyromc bench accuracy` calls `measured`, `table` and `plot`. `posteriors` has the posteriors of the race in
seconds, `make_references` their exact answers, `race` measures it. Names are imported when they are used, because a competitor
in the race pays for what it imports.
"""

import importlib
from typing import Any

_HOMES = {"measure": ("FULL", "QUICK", "header", "measured", "total"), "report": ("plot", "table")}

__all__ = ["FULL", "QUICK", "header", "measured", "plot", "table", "total"]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"accuracy.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
