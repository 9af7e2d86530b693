"""Posterior means and standard deviations of every site's elements, with the Monte Carlo error of both.

Input: a run whose observables are sites and their squares. Output: a `Summary`. The error of a standard deviation is that of
h² - 2μ̂h, to first order.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from gyromc.checks import require
from gyromc.interop.numpyro.sites import SiteElement, element_name
from gyromc.records import Column, Records, Renamed
from gyromc.results import Average, Run
from gyromc.show.tables import Shown, Table
from gyromc.statistics.errors import ChainAverages

__all__ = ["Summary", "summary"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One element of a site: posterior mean and standard deviation, each with its Monte Carlo standard error."""

    mean: float
    std_error: float
    sd: float
    sd_error: float

    mean_error = Renamed("std_error")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Summary(Records[Row], Shown):
    """Rows by element name: `summary["beta[0]"].mean` or `summary.mean["beta[0]"]`; prints as a table."""

    rows: Mapping[str, Row]
    note: str

    _entry = "element"
    _result = "summary"
    mean = Column[float]("The posterior mean.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    sd = Column[float]("The posterior standard deviation.")
    sd_error = Column[float]("The Monte Carlo standard error of `sd`.")

    def shown(self) -> Sequence[Table | str]:
        """One table, with a note below it."""
        rows = [
            (name, f"{row.mean:.5g}", f"{row.std_error:.2g}", f"{row.sd:.4g}", f"{row.sd_error:.2g}")
            for name, row in self.items()
        ]
        columns = ("site", "mean", "± (Monte Carlo)", "sd", "± (Monte Carlo)")
        return [Table(columns, rows, "Posterior", (self.note,))]


def summary(run: Run) -> Summary:
    """Posterior means and standard deviations by element of every site.

    **Arguments:**

    - `run`: of a plan from `gyromc.interop.numpyro.plan`, with two chains at least.

    **Returns:** a `Summary`.
    """
    require(isinstance(run, Run), f"`summary` takes a `Run`: got {type(run).__name__}.")
    good = int((~run.diverged).sum())
    require(good > 1, f"Errors of standard deviations need two chains at least: this run has {good}.")
    rows = {}
    for name, h in run.plan.observables.items():
        if not isinstance(h, SiteElement) or h.power != 1:
            continue
        square = element_name(h.site, h.index, 2)
        if square in run:
            rows[name] = _row(run[name], run[square])
    require(
        rows, "This run averaged no site together with its square: plan it with `observables(target, squares=True)`."
    )
    plan = run.plan
    return Summary(
        rows,
        f"{good} chains × {run.steps_done} steps, {type(plan.oracle).__name__}, η = {plan.eta_text}; "
        f"errors from {run.error_method}, without the bias of the step size",
    )


def _row(first: Average, second: Average) -> Row:
    """Mean and sd from the averages of h and h²."""
    mean = first.mean
    variance = second.mean - mean**2
    sd = math.sqrt(variance) if variance > 0 else math.nan
    change = ChainAverages(  # δ(E[h²] - E[h]²) to first order
        second.averages - 2 * mean * first.averages,
        second.blocks - 2 * mean * first.blocks,
        first.covered,
        first.durations,
        first.weights,
    )
    return Row(mean, first.std_error, sd, change.std_error / (2 * sd))
