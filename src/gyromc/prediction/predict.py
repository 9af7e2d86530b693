"""predict: what a plan will deliver, before it runs.

Input: a plan, and a sample of the posterior if there is one. Output: a `Prediction`: by observable V, V_0, the error and bias of
an average and the method behind each; stability; a verdict on every assumption of the theory. Nothing is run.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.plan import Plan
from gyromc.prediction.answers import UNKNOWN, Answer, Kind, Method, Number, Reduction
from gyromc.prediction.assumptions import Verdict, verdicts
from gyromc.prediction.rotations import RotationTable, compare_rotations
from gyromc.prediction.routes import Shared, answer
from gyromc.prediction.stability import Stability, stability
from gyromc.prediction.step_effects import followed
from gyromc.runtime.machine import require_memory
from gyromc.show.numbers import duration, plain
from gyromc.show.records import Column, Records, plain_attributes
from gyromc.show.tables import Shown, Table

__all__ = ["Prediction", "predict"]

KEYS = (
    *("variance", "variance_error", "reversible_variance", "reversible_variance_error", "method"),
    *("expectation", "expectation_error", "expectation_method"),
    *("rmse", "rmse_method", "std", "std_uncertainty", "plain_std", "gain", "bias", "bias_error", "bias_method"),
)
MATRICES = 6  # of the state's size, held at the same time
SECONDS = 5e-9  # times n³: two eigenvalue problems
LONG = 60  # seconds


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prediction(Records[Answer], Shown):
    """What a plan will deliver: a mapping of observables to rows, and what concerns the plan as a whole.

    `pred["x"].variance` and `pred.variance["x"]` are the same number, and so for every attribute below that is a `Column`.
    `rmse`, `std` and `bias` are those of ONE chain's average, about the true μ(h); `mean` and `std_error` are what `run.mean` is
    expected to be, and its standard deviation. What is not known is NaN, but None in `bias` and `expectation`.
    """

    plan: Plan
    rows: Mapping[str, Answer]
    stability: Stability | None
    verdicts: list[Verdict]  # on every assumption of the theory

    _result = "prediction"
    variance = Column[float]("The fluctuation constant V(h).")
    reversible_variance = Column[float]("V_0(h), with Q = 0.")
    variance_error = Column[float]("The error of V: 0 where it is exact to rounding, NaN where it is not known.")
    reversible_variance_error = Column[float]("The error of V_0.")
    method = Column[Method]("How V is known.")
    mean = Column[float]("The expected value of an average: μ(h) plus the bias.")
    std_error = Column[float]("The standard deviation of the mean over all chains.")
    rmse = Column[float]("The root mean squared error of one chain's average about μ(h).")
    rmse_method = Column[Method]("How the error is known.")
    std = Column[float]("The standard deviation of one chain's average, less its martingale where a run subtracts it.")
    std_uncertainty = Column[float]("The error of `std`: 0 where it is exact, NaN where it is not known.")
    plain_std = Column[float]("The same without the martingale; NaN where none is subtracted.")
    gain = Column[float]("How many times longer a run without the martingale would take for the same error.")
    bias = Column[float | None]("The expected value of one chain's average, minus μ(h).")
    bias_error = Column[float]("The error of the bias: 0 where it is exact.")
    bias_method = Column[Method]("How the bias is known.")
    expectation = Column[float | None]("μ(h).")
    expectation_error = Column[float]("The error of μ(h).")
    expectation_method = Column[Method]("How μ(h) is known.")
    strict_reduction = Column[Reduction | None]("Whether V < V_0 strictly, with the integral that decides it.")

    @property
    def stable(self) -> bool:
        """Whether second moments converge at this step size from the plan's start; False where that is not known."""
        left = any(row.rmse_method.kind is Kind.UNSTABLE for row in self.values())
        return self.stability is not None and self.stability.stable and not left

    @property
    def stability_radius(self) -> float:
        """The factor by which second moments change per step: stable below 1."""
        return math.nan if self.stability is None else self.stability.radius

    @property
    def largest_step_size(self) -> float:
        """The largest stable step size."""
        return math.nan if self.stability is None else self.stability.largest_step_size

    def rotations(self, excess: float = 0.1) -> RotationTable:
        """The plan's dynamics and the best rotations for its target, at equal bias: see `compare_rotations`."""
        return compare_rotations(self.plan, excess)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else should be known, in sentences."""
        return tuple(dict.fromkeys(note for row in self.values() for note in row.notes))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists, ready for JSON; NaN and infinities become None."""

        def numbers(row: Answer) -> dict[str, Any]:
            strict = row.strict_reduction
            plainly = None if strict is None else plain_attributes(strict, "strict", "integral", "ratio")
            return {**plain_attributes(row, *KEYS), "strict_reduction": plainly}

        return {
            **self.plan.summary(),
            "observables": {name: numbers(row) for name, row in self.items()},
            **plain_attributes(self, "stable", "stability_radius", "largest_step_size"),
            "verdicts": [{**vars(v), "numbers": {k: plain(x) for k, x in v.numbers.items()}} for v in self.verdicts],
            "notes": list(self.notes),
        }

    def shown(self) -> Sequence[Table | str]:
        """The numbers in one table, the verdicts in another, stability and notes between them."""
        plan, rows = self.plan, list(self.values())
        title = f"{plan.dynamics.name} on {type(plan.target).__name__}, {plan.oracle.name} gradients"
        title += f", η = {plan.eta_text}, N = {plan.num_steps}"
        title += "" if plan.scheme.is_euler else f", scheme {plan.scheme}"
        reduced = [row.strict_reduction for row in rows]
        columns = {
            "observable": list(self),
            "μ(h)": [_with_error(row.expectation, row.expectation_error, 5) for row in rows],
            "V": [_with_error(row.variance, row.variance_error, 7) for row in rows],
            "V_0": [_with_error(row.reversible_variance, row.reversible_variance_error, 7) for row in rows],
            "V/V_0": ["" if x is None else f"{x.ratio:.4g}{' (strict)' if x.strict else ''}" for x in reduced],
            "V known by": [row.method for row in rows],
            "RMSE": [f"{row.rmse:.5g}" for row in rows],
            "bias": [_with_error(row.bias, row.bias_error, 5) for row in rows],
            "std": [_with_error(row.std, row.std_uncertainty, 5) for row in rows],
            "error known by": [row.rmse_method for row in rows],
        }
        if plan.martingale:
            columns["plain std"] = ["" if math.isnan(row.plain_std) else f"{row.plain_std:.5g}" for row in rows]
            columns["gain"] = ["?" if math.isnan(row.gain) else f"{row.gain:.3g} ×" for row in rows]
        left = [name for name in columns if name == "observable" or name.endswith("by")]
        numbers = Table(list(columns), list(zip(*columns.values(), strict=True)), title, left=left)
        steady = "stability: not known" if self.stability is None else str(self.stability)
        colours = {"holds": "green", "not certified": "yellow", "fails": "red"}
        judged = [(v.name, (v.status, colours[v.status]), v.sentence) for v in self.verdicts]
        assumptions = Table(names := ("assumption", "verdict", "why"), judged, "Assumptions", left=names)
        return [numbers, steady, *(f"note: {note}" for note in self.notes), assumptions]


def predict(plan: Plan, sample=None, *, digits: int = 6) -> Prediction:
    """What the plan will deliver: V, the error of a chain's average, bias, stability and verdicts, without running the plan.

    **Arguments:**

    - `plan`: what would be run.
    - `sample`: a posterior sample, rows of θ (or `run.draws`), from which V is estimated where no formula knows it.
    - `digits`: how many digits V must have where the Poisson equation is solved.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 1.0]), dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
                   observables={"first": gm.observables.linear([1.0, 0.0])}, step_size=0.01)
    pred = gm.predict(plan)
    print(round(pred.variance["first"], 6), round(pred.reversible_variance["first"], 6), pred.stable)  # 1.0 2.0 True
    ```
    """
    require(isinstance(plan, Plan), f"`predict` takes a `Plan`: got {type(plan).__name__}.")
    digits = whole(digits, "digits", least=1, most=12)
    _check_size(plan.dynamics.size)
    steady, impossible = stability(plan), None
    if not plan.scheduled:
        try:
            _ = plan.prepared_scheme
        except InvalidInput as error:  # the scheme cannot draw its noise for this plan
            impossible = str(error)
    asked = plan if impossible is None else plan.replace(scheme="euler", martingale=False)  # V and μ(h) stay
    shared = Shared(asked, None if sample is None else plan.model.sample_of(sample), digits, steady)
    rows = {name: answer(shared, name) for name in plan.observables}
    how, std, notes = None, math.inf, []
    if impossible is not None:
        how, std, notes = Method(Kind.NO_NOISE), math.nan, [impossible]
    elif steady is not None and not steady.stable:
        how = Method(Kind.UNSTABLE)
    elif steady is not None and steady.superlinear and (lost := followed(plan).lost):
        how = Method(Kind.UNSTABLE, "unstable: chains go to infinity from the plan's start")
        of = f"{lost} of {len(followed(plan).starts)} chains that were followed from the plan's start"
        remedy = "Start closer to the mode, or take a smaller step size"
        notes = [f"∇U grows faster than linearly: {of} went to infinity at η = {plan.eta_text}. {remedy}"]
    if how is not None:
        # V and μ(h) stay, which belong to the diffusion, and what is exact at the plan's step size.
        bias = {"bias": None, "bias_method": UNKNOWN, "bias_error": 0.0, "start_counted": False}
        nothing = {**bias, "std": std, "std_uncertainty": math.nan, "plain_std": math.nan, "rmse_method": how}
        for name, row in rows.items():
            exact = row.rmse_method.exact and how.kind is Kind.UNSTABLE
            rows[name] = (row if exact else dataclasses.replace(row, **nothing)).noting(*notes)
    return Prediction(plan, rows, steady, verdicts(plan, steady))


def _check_size(n: int) -> None:
    """Raise where the matrices of a prediction cannot fit, and warn where they take minutes, before anything is computed."""
    size, seconds, what = MATRICES * 8 * n**2, SECONDS * n**3, f"A prediction for a state of {n:,} numbers"
    remedy = "Predict a smaller plan of the same kind. `run` needs no such matrix."
    require_memory(size, f"{what} needs {MATRICES} matrices of that size, which", remedy)
    if seconds > LONG:
        long = f"{what} takes about {duration(seconds)} and {size / 2**30:.1f} GiB."
        warnings.warn(long, GyromcWarning, stacklevel=3)


def _with_error(value: float | None, error: float, digits: int) -> str:
    """A number, with its error where the digits shown would hide it; 0 where the error is a hundred times larger."""
    if value is None or math.isnan(value):
        return "?"
    text = "0" if abs(value) < 0.01 * error else f"{value:.{digits}g}"
    return text if error <= 0.5 * 10.0**-digits * abs(value) else f"{text} {Number(value, error).shown}"
