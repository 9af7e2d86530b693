"""The answer of a regression: coefficients in the user's units, each with its errors, and the draws that predict.

`Coefficient` is one row of the table, `Fit` the table with where it came from.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from gyromc.records import Column, Records, Renamed
from gyromc.regression.draws import Draws, GroupDraws, Predictions
from gyromc.results import Run
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.tuned import Tuned

__all__ = ["Coefficient", "Fit"]


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """One row of the table of coefficients, in the user's units.

    **Attributes:**

    - `name`: of the column, or `intercept`; `output`: the class it is for, in a model of more than two.
    - `mean`, `sd`: of the posterior; `interval`, its ends `low` and `high`: the central credible interval.
    - `std_error`: the Monte Carlo standard error of `mean`; `ess`: how many independent draws would have the same.
    - `bias`: how large the bias is that the step size gives `mean`, as the tuner estimates it; it is not subtracted.
    - `error`: the root mean square of what `mean` is off, from both.
    - `sd_error`, `low_error`, `high_error`: Monte Carlo standard errors of `sd`, `low` and `high`; 0 where these are integrals.
    """

    name: str
    output: str | None
    mean: float
    sd: float
    low: float
    high: float
    std_error: float
    bias: float
    sd_error: float = 0.0
    low_error: float = 0.0
    high_error: float = 0.0

    mc_error = Renamed("std_error")
    effective_size = Renamed("ess")

    @property
    def ess(self) -> float:
        """(sd / std_error)²."""
        return (self.sd / self.std_error) ** 2 if self.std_error > 0 else math.inf

    @property
    def error(self) -> float:
        """√(std_error² + bias²)."""
        return math.hypot(self.std_error, self.bias)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the credible interval."""
        return self.low, self.high

    @property
    def label(self) -> str:
        """The name, with the class it is for where there is one."""
        return self.name if self.output is None else f"{self.name} ({self.output})"


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Records[Coefficient]):
    """A fitted regression: `fit["time"].mean` and `fit.mean["time"]` are the posterior mean of a coefficient.

    **Attributes:**

    - `model`: the family, one of `FAMILIES`; `names`: of the columns; `classes`: of the response, or None.
    - `coefficients`: a tuple of `Coefficient`; by output, the intercept first.
    - `mean`, `sd`, `std_error`, `bias`, `error`, `interval`, `ess`: by coefficient.
    - `auxiliary`: further parameters, as rows like those of coefficients: `sigma`, `shape`, `sd(time | subject)`, …
    - `groups`: by name, the deviations of each group's levels (`GroupDraws`).
    - `noise_scale`: the posterior mean of σ of a linear model, in the units of y, else None.
    - `posterior`: draws in standardised coordinates, which predict; `draws`: the same as coefficients in the user's units,
      chains × draws × coefficients; `weights`: ones.
    - `reason`: how it was computed; `tuned`: a `Tuned`, the plan, and `run`: what it gave. Both are None where no chain was run.
    - `partial`: whether Ctrl-C ended the run early.
    - `level`: of the credible intervals.
    - `predict(X)`: a `Predictions`.
    """

    model: str
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    coefficients: tuple[Coefficient, ...]
    posterior: Draws
    target: WithLikelihood | MixedRegression
    reason: str
    level: float
    tuned: Tuned | None = None
    run: Run | None = None
    auxiliary: tuple[Coefficient, ...] = ()

    _entry, _result = "coefficient", "fit"
    mean = Column[float]("The posterior mean.")
    sd = Column[float]("The posterior standard deviation.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    interval = Column[tuple[float, float]]("The central credible interval.")
    bias = Column[float]("How large the discretisation bias of `mean` is, as estimated; it is not subtracted.")
    error = Column[float]("The root mean square error of `mean`, from `std_error` and `bias`.")
    choice = Renamed("tuned")
    ess = Column[float]("How many independent draws would have the same Monte Carlo error.")

    @property
    def rows(self) -> Mapping[str, Coefficient]:
        """The coefficients by name, then the further parameters."""
        found = {c.label: c for c in self.coefficients}
        for row in self.auxiliary:
            found[row.label if row.label not in found else f"{row.label} (of the {self.model} model)"] = row
        return found

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return (
            next((row.mean for row in self.auxiliary if row.name == "sigma"), None) if self.model == "linear" else None
        )

    @property
    def partial(self) -> bool:
        """Whether the run was ended early by Ctrl-C."""
        return self.run is not None and self.run.partial

    @property
    def draws(self) -> np.ndarray:
        """Kept draws as coefficients in the user's units: chains × draws × coefficients, in the table's order."""
        return self.posterior.coefficients()

    @property
    def weights(self) -> np.ndarray:
        """Ones, chains × draws: all draws count alike. Kept for programs written when they did not."""
        return self.posterior.weights

    @property
    def groups(self) -> dict[str, GroupDraws]:
        """The deviations of the levels, by the name of their group."""
        return {group.name: group for group in self.posterior.groups}

    @property
    def family(self) -> str:
        """The family, also called `model`."""
        return self.model

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X: mean, Monte Carlo error, posterior spread and noise apart.

        `offset`, `trials` and `groups` of the rows are passed by name, as for `Draws.predictors`.
        """
        return self.posterior.predict(X, **beside)
