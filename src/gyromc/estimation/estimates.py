"""Estimate and Estimates: means with their Monte Carlo error beside their discretisation bias, and the interval to report."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.posterior import PosteriorMean
from gyromc.results import Average, Run
from gyromc.show.records import Column, Forwarded, Records, plain_attributes
from gyromc.show.tables import Shown, Table
from gyromc.statistics import ErrorMethod, MonteCarloError, WithError, student_interval

NEGLIGIBLE = 0.25  # of a standard error: a 95 % interval that ignores such a bias covers 94.3 %
KEYS = (
    *("mean", "std_error", "dof", "bias", "bias_error", "corrected_mean", "corrected_error", "total_error"),
    *("relative_error", "variance", "r_hat", "ess", "ess_per_gradient", "interval", "corrected", "recommended"),
    *("method", "reason", "bias_method", "verdict", "bias_matters", "bias_dominates", "gain"),
)


class BiasSource(enum.StrEnum):
    """Where the bias comes from, besides earlier estimates."""

    AUTO = "auto"
    PREDICT = "predict"
    RICHARDSON = "richardson"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Bias:
    """The expected difference between a run's mean and μ(h), None where it is not known."""

    value: float | None
    method: str
    error: float = 0.0  # its standard error
    dof: float = math.inf  # of the error
    start: bool = False  # whether the effect of the start is part of it


@dataclasses.dataclass(frozen=True, repr=False)
class Estimate(WithError):
    """What a run says about one μ(h).

    `mean` with its `std_error` and `interval`, which are statistical alone; `bias`, None where it is not known; `corrected`, the
    interval after taking the bias off; and `recommended`, the one of the two to report: `verdict` says why. `sharpened` is the
    mean of the kept draws regressed on zero-mean functions (`gyromc.sharpen`), None where there is none: it removes a bias in
    part, and its error does not contain the rest.
    """

    average: Average
    error: MonteCarloError
    discretisation: Bias
    gradient_evaluations: int
    level: float = 0.95
    sharpened: PosteriorMean | None = None

    name = Forwarded[str]("average.name", "The observable's name.")
    mean = Forwarded[float]("average.mean", "The mean over the chains that did not fail.")  # type: ignore[assignment]
    r_hat = Forwarded[float]("average.r_hat", "Split R-hat: 1 when the halves of all chains agree.")
    posterior_variance = Forwarded[float]("average.posterior_variance", "Var_μ(h).")  # type: ignore[assignment]
    gain = Forwarded[float]("average.gain", "How many times longer a run without the martingale would take.")
    bias = Forwarded[float | None]("discretisation.value", "The expected mean minus μ(h).")
    bias_method = Forwarded[str]("discretisation.method", "How `bias` is known.")

    @property
    def variance(self) -> float:
        """The fluctuation constant V(h): the variance of a chain's plain average times the time it ran for."""
        plain = self.error if self.average.uncorrected is None else self.average.uncorrected.error
        return self.average.time * plain.variance

    @property
    def ess_per_gradient(self) -> float:
        """`ess` per gradient evaluation, those of failed chains and of the burn-in counted."""
        return self.ess / self.gradient_evaluations

    @property
    def bias_error(self) -> float:
        """The standard error of `bias`."""
        return math.nan if self.bias is None else self.discretisation.error

    @property
    def corrected_error(self) -> float:
        """The standard error of the mean with the bias taken off."""
        return math.hypot(self.std_error, self.discretisation.error)

    @property
    def total_error(self) -> float:
        """The root mean square error of `mean`: its standard error, the bias where it is known, and the error of that bias."""
        known = 0.0 if self.bias is None else math.hypot(self.bias, self.discretisation.error)
        return math.hypot(self.std_error, known)

    @property
    def relative_error(self) -> float:
        """`total_error` in posterior standard deviations of the observable; NaN where Var_μ(h) is not known or 0."""
        return self.total_error / math.sqrt(self.posterior_variance) if self.posterior_variance > 0 else math.nan

    @property
    def corrected_mean(self) -> float:
        """The mean with the bias taken off; NaN where the bias is not known."""
        return math.nan if self.bias is None else self.mean - self.bias

    @property
    def corrected(self) -> tuple[float, float]:
        """The interval after taking the bias off, with the error of that correction in it; NaN where it is not known."""
        dof, own, other = self.dof, self.std_error**2, self.discretisation.error**2
        if dof > 0:  # by Welch and Satterthwaite
            spent = own**2 / dof + other**2 / self.discretisation.dof
            dof = (own + other) ** 2 / spent if spent > 0 else math.inf
        return student_interval(self.corrected_mean, self.corrected_error, self.level, dof)

    @property
    def bias_matters(self) -> bool:
        """Whether an interval that ignores the bias would cover less than its level."""
        return self.bias is not None and abs(self.bias) + self.bias_error > NEGLIGIBLE * self.std_error

    @property
    def bias_dominates(self) -> bool:
        """Whether the bias is larger than the standard error, and than three of its own."""
        return self.bias is not None and abs(self.bias) > max(self.std_error, 3 * self.bias_error)

    @property
    def recommended(self) -> tuple[float, float]:
        """The interval to report: `corrected` where the bias is known and not negligible, else `interval`."""
        return self.corrected if self.bias_matters else self.interval

    @property
    def verdict(self) -> str:
        """What to do about the bias, in a sentence."""
        if self.bias is None:
            return f"bias {self.bias_method}; the interval is for the mean of the chain's stationary law"
        ratio = lambda x: x / self.std_error if self.std_error > 0 else math.inf
        size, known = f"{ratio(abs(self.bias)):.2g}", f"{ratio(self.bias_error):.1g}"
        if self.bias_dominates:
            return f"the bias is {size} standard errors: report the corrected interval, or use a smaller step size"
        if self.bias_matters:
            return f"the bias ({size} ± {known} standard errors) is not negligible: report the corrected interval"
        return f"the bias is negligible ({size} standard errors)"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; NaN and infinities become None."""
        sharp = None if self.sharpened is None else self.sharpened.to_dict()
        return {**plain_attributes(self, *KEYS), "sharpened": sharp}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Estimates(Records[Estimate], Shown):
    """One `Estimate` per observable, by name, and what concerns all of them.

    `found["x"].mean` and `found.mean["x"]` are the same number, and so for every attribute of a row. `run` is what they were
    estimated from, `level` that of the intervals; `warnings` say what may be wrong and what to do, none when all is well; `hints`
    say what is not known and was not looked at.
    """

    run: Run
    level: float
    rows: Mapping[str, Estimate]
    warnings: list[str]
    hints: list[str] = dataclasses.field(default_factory=list)

    _result = "estimate"
    mean = Column[float]("The mean over the chains that did not fail.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    interval = Column[tuple[float, float]]("The interval of the Monte Carlo error alone.")
    bias = Column[float | None]("The expected mean minus μ(h); None where it is not known.")
    bias_error = Column[float]("The standard error of `bias`.")
    total_error = Column[float]("The root mean square error of `mean`: standard error and known bias.")
    relative_error = Column[float]("`total_error` in posterior standard deviations of the observable.")
    corrected = Column[tuple[float, float]]("The interval after taking the bias off.")
    recommended = Column[tuple[float, float]]("The interval to report.")
    variance = Column[float]("The fluctuation constant V(h).")
    r_hat = Column[float]("Split R-hat: 1 when the halves of all chains agree.")
    ess = Column[float]("How many independent draws have the same error.")
    gain = Column[float]("How many times longer a run without the martingale would take for the same error.")
    method = Column[ErrorMethod]("How `std_error` is known.")
    bias_method = Column[str]("How `bias` is known.")
    verdict = Column[str]("What to do about the bias, in a sentence.")
    sharpened = Column[PosteriorMean | None]("The mean of the kept draws regressed on zero-mean functions.")
    gradient_evaluations = Forwarded[int]("run.gradient_evaluations", "Gradients computed, of failed chains too.")

    @property
    def biases(self) -> dict[str, Bias]:
        """The bias of each observable, to be given to `estimate` for another run of the same plan."""
        return {name: row.discretisation for name, row in self.items()}

    @property
    def divergences(self) -> int:
        """How many chains failed and were left out."""
        return len(self.run.failures)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; NaN becomes None."""
        return {
            **self.run.plan.summary(),
            "steps_done": self.run.steps_done,
            **plain_attributes(self, "level", "gradient_evaluations", "divergences"),
            "observables": {name: row.to_dict() for name, row in self.items()},
            "warnings": list(self.warnings),
            "hints": list(self.hints),
        }

    def shown(self) -> Sequence[Table | str]:
        """The numbers in a table; the methods, verdicts and warnings below it."""
        run, share, gain = self.run, f"{100 * self.level:g} %", self.run.plan.martingale
        columns = ["observable", "mean", "std. error", f"{share}, bias ignored", "bias", f"{share} corrected"]
        columns += ["R-hat", "ESS", *(["gain"] if gain else [])]
        cells, how = [], []
        for name, row in self.items():
            plain, corrected = ("", " ←") if row.bias_matters else (" ←", "")
            bias = "?" if row.bias is None else f"{row.bias:.2g} ± {row.bias_error:.1g}"
            first = [name, _short(row.mean, 6), _short(row.std_error, 2), _ends(row.interval) + plain, bias]
            rest = [_ends(row.corrected) + corrected, _short(row.r_hat, 4), _short(row.ess)]
            cells.append([*first, *rest, *([f"{row.gain:.3g} ×"] if gain else [])])
            error = f"error by {row.method} ({row.reason}), {_short(row.dof)} degrees of freedom"
            how.append(f"{name}: {error}; {row.verdict}")
        for name, sharp in self.sharpened.items():
            if sharp is not None:
                found = f"{sharp.mean:.6g} ± {sharp.std_error:.2g} by zero-mean functions from the kept draws"
                plain = f"whose plain mean has this error with {sharp.gain:.3g} × as many"
                rest = "a bias of the draws is removed in part, and this error does not contain the rest"
                how.append(f"{name}: {found}, {plain}; {rest}")
        cost = f"{run.plan.num_chains} chains × {run.steps_done} steps, {self.gradient_evaluations:.3g} gradients"
        table = Table(columns, cells, f"{run.plan.dynamics.name} on {type(run.plan.target).__name__}")
        said = [f"WARNING: {sentence}" for sentence in self.warnings] + [f"hint: {sentence}" for sentence in self.hints]
        return [table, f"{cost}; ← take this one", *how, *said]


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "?"


def _ends(pair: tuple[float, float]) -> str:
    return f"[{pair[0]:.5g}, {pair[1]:.5g}]" if math.isfinite(pair[0]) else "?"
