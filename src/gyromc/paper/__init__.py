"""The paper's twelve experiments as values, and the code that runs, judges and reports them.

Names are imported when they are used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_NAMES = {
    "CATALOGUE": "gyromc.paper.catalogue",
    "Experiment": "gyromc.paper.catalogue",
    "PROFILES": "gyromc.paper.catalogue",
    "reproduce": "gyromc.paper.reproduction",
    "write_report": "gyromc.paper.report",
}

__all__ = ["CATALOGUE", "PROFILES", "Experiment", "reproduce", "write_report"]

if TYPE_CHECKING:
    from gyromc.paper.catalogue import CATALOGUE, PROFILES, Experiment
    from gyromc.paper.report import write_report
    from gyromc.paper.reproduction import reproduce


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'gyromc.paper' has no attribute {name!r}")
