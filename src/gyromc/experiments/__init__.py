"""The paper's twelve experiments (the paper's §6) as values, and the machinery that runs, judges and reports them.

Receives names; hands on results, figures and a report. Everything is imported when used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_NAMES = {
    "CATALOGUE": "gyromc.experiments.catalogue",
    "Experiment": "gyromc.experiments.experiment",
    "PROFILES": "gyromc.experiments.profiles",
    "reproduce": "gyromc.experiments.reproduction",
    "write_report": "gyromc.experiments.report",
}

__all__ = ["CATALOGUE", "PROFILES", "Experiment", "reproduce", "write_report"]

if TYPE_CHECKING:
    from gyromc.experiments.catalogue import CATALOGUE
    from gyromc.experiments.experiment import Experiment
    from gyromc.experiments.profiles import PROFILES
    from gyromc.experiments.report import write_report
    from gyromc.experiments.reproduction import reproduce


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'gyromc.experiments' has no attribute {name!r}")
