"""The paper's twelve experiments as values, and the code that runs, judges and reports them."""

from gyromc.paper.catalogue import CATALOGUE, PROFILES, Experiment
from gyromc.paper.report import write_report
from gyromc.paper.reproduction import reproduce

__all__ = ["CATALOGUE", "PROFILES", "Experiment", "reproduce", "write_report"]
