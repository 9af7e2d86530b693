"""Posterior means and standard deviations of every site's elements, with the Monte Carlo error of both, and diagnostics.

Input: a run whose observables are sites and their squares, or its estimates. Output: a `Summary`. The error of a standard
deviation is that of h² - 2μ̂h, to first order.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence

from gyromc.checks import require
from gyromc.errors import GyromcWarning
from gyromc.estimation.bias import predicted_or_not
from gyromc.estimation.estimate import Estimate, Estimates, estimate
from gyromc.interop.numpyro.sites import SiteElement, element_name
from gyromc.records import Column, Records, Renamed
from gyromc.results import Average, Run
from gyromc.show.tables import Shown, Table
from gyromc.statistics.errors import ChainAverages

__all__ = ["Summary", "summary"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One element of a site: posterior mean and standard deviation with their errors, and diagnostics of the mean."""

    mean: float
    std_error: float
    sd: float
    sd_error: float
    bias: float | None
    r_hat: float

    mean_error = Renamed("std_error")

    @property
    def ess(self) -> float:
        """How many independent draws would give the mean the same error."""
        return (self.sd / self.std_error) ** 2 if self.std_error > 0 else math.nan


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Summary(Records[Row], Shown):
    """Rows by element name: `summary["beta[0]"].mean` or `summary.mean["beta[0]"]`; prints as a table.

    `warnings` say what may be wrong and what to do, as in `gyromc.estimate`.
    """

    rows: Mapping[str, Row]
    note: str
    warnings: Sequence[str] = ()

    _entry = "element"
    _result = "summary"
    mean = Column[float]("The posterior mean.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    sd = Column[float]("The posterior standard deviation.")
    sd_error = Column[float]("The Monte Carlo standard error of `sd`.")
    bias = Column[float | None]("The bias of `mean` from the step size; None where it is not known.")
    r_hat = Column[float]("Split R-hat of the mean: 1 when the halves of all chains agree.")
    ess = Column[float]("How many independent draws would give the mean the same error.")

    def shown(self) -> Sequence[Table | str]:
        """One table, with a note below it, and the warnings."""
        rows = [(name, *_cells(row)) for name, row in self.items()]
        columns = ("site", "mean", "± (Monte Carlo)", "sd", "± (Monte Carlo)", "bias", "R-hat", "ESS")
        table = Table(columns, rows, "Posterior", (self.note,))
        return [table, *(f"WARNING: {sentence}" for sentence in self.warnings)]


def _cells(row: Row) -> tuple[str, ...]:
    bias = "?" if row.bias is None else f"{row.bias:.2g}"
    r_hat, ess = (f"{x:.4g}" if math.isfinite(x) else "?" for x in (row.r_hat, row.ess))
    return f"{row.mean:.5g}", f"{row.std_error:.2g}", f"{row.sd:.4g}", f"{row.sd_error:.2g}", bias, r_hat, ess


def summary(run: Run | Estimates) -> Summary:
    """Posterior means and standard deviations by element of every site, with R-hat, effective draws and bias.

    What `gyromc.estimate` finds wrong with the chains is a warning here too.

    **Arguments:**

    - `run`: of a plan from `gyromc.interop.numpyro.plan`, with two chains at least. Its bias is known where it can be predicted
      in seconds. Or the estimates of such a run: `summary(gm.estimate(run, second_step_size=True))` has the measured bias.

    **Returns:** a `Summary`.
    """
    require(isinstance(run, Run | Estimates), f"`summary` takes a `Run` or its estimates: got {type(run).__name__}.")
    source = run.run if isinstance(run, Estimates) else run
    good = int((~source.diverged).sum())
    require(good > 1, f"Errors of standard deviations need two chains at least: this run has {good}.")
    pairs = {}
    for name, h in source.plan.observables.items():
        if not isinstance(h, SiteElement) or h.power != 1:
            continue
        square = element_name(h.site, h.index, 2)
        if square in source:
            pairs[name] = square
    require(
        pairs, "This run averaged no site together with its square: plan it with `observables(target, squares=True)`."
    )
    found = run if isinstance(run, Estimates) else _estimated(run)
    if isinstance(run, Run) and found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    rows = {name: _row(found[name], source[square]) for name, square in pairs.items()}
    return Summary(rows, _note(source, good, rows), tuple(found.warnings))


def _estimated(run: Run) -> Estimates:
    """The estimates of a run; an unknown bias is shown in the table and is no warning."""
    known = predicted_or_not(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)
        return estimate(run, bias="none" if any(bias.value is None for bias in known.values()) else known)


def _note(run: Run, good: int, rows: Mapping[str, Row]) -> str:
    plan = run.plan
    cost = f"{good} chains × {run.steps_done} steps, {type(plan.oracle).__name__}, η = {plan.eta_text}; "
    errors = f"errors from {run.error_method}, without the bias of the step size"
    if any(row.bias is None for row in rows.values()):
        errors += ", which `summary(gm.estimate(run, second_step_size=True))` measures"
    return cost + errors


def _row(found: Estimate, second: Average) -> Row:
    """Mean and sd from the averages of h and h²."""
    first, mean = found.average, found.mean
    variance = second.mean - mean**2
    sd = math.sqrt(variance) if variance > 0 else math.nan
    change = ChainAverages(  # δ(E[h²] - E[h]²) to first order
        second.averages - 2 * mean * first.averages,
        second.blocks - 2 * mean * first.blocks,
        first.covered,
        first.durations,
        first.weights,
    )
    return Row(mean, found.std_error, sd, change.std_error / (2 * sd), found.bias, found.r_hat)
