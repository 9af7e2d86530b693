"""A posterior in a table: mean and standard deviation of every site's elements, with the Monte Carlo error of both (E4, E6).

Receives a run whose observables are sites and their squares; hands on a `Summary`. The error of a standard deviation is that of
h² - 2μ̂h to first order, chain by chain.
"""

import dataclasses
import io
import math
from collections.abc import Mapping

import numpy as np

from gyromc.checks import require
from gyromc.interop.numpyro.sites import SiteElement, element_name
from gyromc.results import Run

__all__ = ["Summary", "summary"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One element of a site."""

    mean: float
    mean_error: float
    sd: float
    sd_error: float


@dataclasses.dataclass(frozen=True, eq=False)
class Summary(Mapping):
    """Rows by element name: `summary["beta[0]"].mean`, `.mean_error`, `.sd`, `.sd_error`; prints as a table."""

    rows: Mapping[str, Row]
    note: str

    def __getitem__(self, name: str) -> Row:
        require(name in self.rows, f"No element {name!r} in this summary: it has {', '.join(self.rows)}.")
        return self.rows[name]

    def __iter__(self):
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __rich__(self):
        """A table for the terminal."""
        from rich.table import Table

        table = Table(title="Posterior", title_justify="left", caption=self.note, caption_justify="left")
        table.add_column("site")
        for column in ("mean", "± (Monte Carlo)", "sd", "± (Monte Carlo)"):
            table.add_column(column, justify="right")
        for name, row in self.rows.items():
            name = name.replace("[", r"\[")
            table.add_row(name, f"{row.mean:.5g}", f"{row.mean_error:.2g}", f"{row.sd:.4g}", f"{row.sd_error:.2g}")
        return table

    def __repr__(self) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        Console(file=buffer, width=110, color_system=None).print(self)
        return buffer.getvalue().rstrip()


def summary(run: Run) -> Summary:
    """Posterior means and standard deviations by element of every site.

    **Arguments:**

    - `run`: of a plan from `gyromc.interop.numpyro.plan`, with two chains at least.

    **Returns:** a `Summary`.
    """
    require(isinstance(run, Run), f"`summary` takes a `Run`: got {type(run).__name__}.")
    good = ~run.diverged
    require(good.sum() > 1, f"Errors of standard deviations need two chains at least: this run has {good.sum()}.")
    rows = {}
    for name, h in run.plan.observables.items():
        if not isinstance(h, SiteElement) or h.power != 1:
            continue
        square = element_name(h.site, h.index, 2)
        if square in run.averages:
            rows[name] = _row(run.averages[name][good], run.averages[square][good])
    require(
        rows, "This run averaged no site together with its square: plan it with `observables(target, squares=True)`."
    )
    plan = run.plan
    return Summary(
        rows,
        f"{int(good.sum())} chains × {run.steps_done} steps, {type(plan.oracle).__name__}, η = "
        f"{plan.eta_text}; errors between chains, without the bias "
        "of the step size",
    )


def _row(first: np.ndarray, second: np.ndarray) -> Row:
    """Mean and sd from the chains' averages of h and h²."""
    root = math.sqrt(len(first))
    mean = float(first.mean())
    variance = float(second.mean()) - mean**2
    sd = math.sqrt(variance) if variance > 0 else math.nan
    slope = second - 2 * mean * first  # δ(E[h²] - E[h]²) to first order
    return Row(mean, float(first.std(ddof=1)) / root, sd, float(slope.std(ddof=1)) / root / (2 * sd))
