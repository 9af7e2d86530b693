"""Tuned: the plan that a tuning chose, the errors to expect of it, and the account of what was tried."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.plan import Plan
from gyromc.show.numbers import duration, plain
from gyromc.show.records import Column, Records, plain_attributes
from gyromc.show.tables import Shown, Table

__all__ = ["Expected", "Tried", "Tuned"]

COLUMNS = ("observable", "expected RMSE", "in posterior sds", "bias", "std error")
TRIED = (
    *("sampler", "step sizes tried", "best step size", "RMSE in posterior sds", "of it bias"),
    *("draws per gradient", ""),
)


@dataclasses.dataclass(frozen=True)
class Expected:
    """What to expect of one observable's mean over all chains.

    - `expected`: its RMSE, √(bias² + bias_error² + std_error²); `sd`: the posterior standard deviation of the observable.
    - `bias`, `bias_error`: the bias as a trial measured it against the solver's mean, and the standard error of that.
    - `std_error`: the Monte Carlo part.
    """

    expected: float
    bias: float
    std_error: float
    sd: float
    bias_error: float = 0.0

    @property
    def relative(self) -> float:
        """The RMSE in posterior standard deviations; 0 for an observable that does not vary."""
        return self.expected / self.sd if self.sd > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Tried:
    """One line of the account: a sampler, the step sizes at which it was tried, and what it would give with the whole budget.

    `rmse` and `bias` are root mean squares over observables, in posterior standard deviations.
    """

    name: str
    step_sizes: tuple[float, ...]
    step_size: float
    rmse: float
    bias: float
    draws_per_gradient: float
    note: str = ""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tuned(Shown, Records[Expected]):
    """A tuned plan: `tuned.plan` for `gyromc.run`, `tuned.expected["name"]` the RMSE to expect of `run.mean["name"]`.

    **Attributes:**

    - `plan`: an ordinary `Plan`.
    - `expected`, `bias`, `bias_error`, `std_error`, `sd`: by observable; see `Expected`.
    - `tried`: a tuple of `Tried`, what was measured; `reason`: what was chosen, in a sentence.
    - `gains`: how many times more gradients the best `"reversible"` sampler, the best `"rotating"` one (pairs of parameters, or
      parameters with momenta) and, where a plan was given, the `"untuned plan"` would need for the same error, from their trials.
    - `gradients`: what the plan costs in gradients over all the data; `spent`: what tuning cost; `seconds`: how long a run takes
      on this machine, without compiling.
    - `warnings`: what could not be known, and what would help.
    """

    plan: Plan
    rows: Mapping[str, Expected]
    tried: tuple[Tried, ...]
    gains: Mapping[str, float]
    gradients: float
    spent: float
    seconds: float | None
    reason: str
    warnings: list[str]

    _result = "tuning"
    expected = Column[float]("The RMSE of the mean over all chains.")
    bias = Column[float]("The part of it that is bias.")
    bias_error = Column[float]("The standard error of what the trials measured as bias.")
    std_error = Column[float]("The part of it that is chance.")
    sd = Column[float]("The posterior standard deviation of the observable.")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists, ready for JSON."""
        return {
            "plan": self.plan.summary(),
            "observables": {
                name: plain_attributes(row, "expected", "bias", "bias_error", "std_error", "sd")
                for name, row in self.items()
            },
            "tried": [plain_attributes(one, *vars(one)) for one in self.tried],
            "gains": {name: plain(value) for name, value in self.gains.items()},
            **plain_attributes(self, "gradients", "spent"),
            "seconds": plain(self.seconds),
            "reason": self.reason,
            "warnings": self.warnings,
        }

    def shown(self) -> Sequence[Table | str]:
        """The reason, what was tried, what to expect, and what could not be known."""
        cells = [
            [
                *(one.name, ", ".join(f"{eta:.3g}" for eta in one.step_sizes)),
                *map(_number, (one.step_size, one.rmse, one.bias, one.draws_per_gradient)),
                one.note,
            ]
            for one in self.tried
        ]
        expected = [
            [
                *(name, f"{row.expected:.3g}", f"{row.relative:.3g}"),
                *(f"{row.bias:.2g} ± {row.bias_error:.1g}", f"{row.std_error:.2g}"),
            ]
            for name, row in self.items()
        ]
        tried = Table(TRIED, cells, "What was tried", left=(TRIED[0], TRIED[1], TRIED[-1]))
        rows = Table(COLUMNS, expected, "What to expect of the means over all chains")
        gains = [f"{name}: {_number(gain)} times the gradients for the same error" for name, gain in self.gains.items()]
        return [self.reason, tried, *gains, rows, self._cost(), *(f"warning: {text}" for text in self.warnings)]

    def _cost(self) -> str:
        time = "" if self.seconds is None else f", about {duration(self.seconds)} on this machine"
        share = f" ({100 * self.spent / self.gradients:.2g} % of that)" if self.gradients else ""
        return f"The plan costs {self.gradients:,.4g} gradients{time}; tuning cost {self.spent:,.4g}{share}."


def _number(value: float) -> str:
    return "–" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.3g}"
