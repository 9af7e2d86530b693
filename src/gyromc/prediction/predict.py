"""predict: what a plan will deliver, before it runs (E6-E11, T1-T3, the paper's §2).

Receives a plan, and a posterior sample where there is one; hands on a `Prediction`: V, V_0, error, bias, stability and verdicts,
each with the name of the method it comes from. Nothing is run.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gyromc.checks import require, whole
from gyromc.errors import InvalidInput
from gyromc.plan import Plan
from gyromc.prediction.assumptions import Verdict, verdicts
from gyromc.prediction.reduction import Reduction
from gyromc.prediction.routes import Answer, Material, answer
from gyromc.prediction.stability import Stability, stability

__all__ = ["Prediction", "predict"]


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """What a plan will deliver; every mapping is by the observable's name.

    **Attributes:**

    - `variance`, `reversible_variance`: the fluctuation constants V and V_0 (E6); `method` says how they are known.
    - `rmse`, `std`, `bias`: of ONE chain's average, about the true μ(h); `rmse_method`, `bias_method`.
    - `expectation`: μ(h); `expectation_method`.
    - `strict_reduction`: whether V < V_0, and the integral that decides it (E7).
    - `stable`, `stability_radius`, `largest_step_size`: of the second moments (T1).
    - `verdicts`: on every assumption; `notes`: what else should be known.

    What is not known is NaN in `variance`, `reversible_variance`, `rmse` and `std`, and None in `bias` and `expectation`.
    """

    plan: Plan
    answers: Mapping[str, Answer]
    stability: Stability | None
    verdicts: list[Verdict]

    def _numbers(self, field: str) -> dict[str, float]:
        found = {name: getattr(a, field) for name, a in self.answers.items()}
        return {name: math.nan if value is None else float(value) for name, value in found.items()}

    def _words(self, field: str) -> dict[str, Any]:
        return {name: getattr(a, field) for name, a in self.answers.items()}

    @property
    def variance(self) -> dict[str, float]:
        """V(h)."""
        return self._numbers("variance")

    @property
    def reversible_variance(self) -> dict[str, float]:
        """V_0(h), with Q = 0."""
        return self._numbers("reversible_variance")

    @property
    def rmse(self) -> dict[str, float]:
        """The root mean squared error of one chain's average about μ(h)."""
        return self._numbers("rmse")

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of one chain's average."""
        return self._numbers("std")

    @property
    def bias(self) -> dict[str, float | None]:
        """The expected value of one chain's average, minus μ(h)."""
        return self._words("bias")

    @property
    def expectation(self) -> dict[str, float | None]:
        """μ(h)."""
        return self._words("expectation")

    @property
    def method(self) -> dict[str, str]:
        """How V is known."""
        return self._words("method")

    @property
    def rmse_method(self) -> dict[str, str]:
        """How the error is known."""
        return self._words("rmse_method")

    @property
    def bias_method(self) -> dict[str, str]:
        """How the bias is known."""
        return self._words("bias_method")

    @property
    def bias_error(self) -> dict[str, float]:
        """The standard error of the bias where it is sampled; 0 where it is not."""
        return self._numbers("bias_error")

    @property
    def expectation_method(self) -> dict[str, str]:
        """How μ(h) is known."""
        return self._words("expectation_method")

    @property
    def strict_reduction(self) -> dict[str, Reduction | None]:
        """Whether V < V_0 strictly, with the integral that decides it (E7)."""
        return self._words("reduction")

    @property
    def stable(self) -> bool:
        """Whether second moments converge at this step size; False where that is not known."""
        return self.stability is not None and self.stability.stable

    @property
    def stability_radius(self) -> float:
        """The factor by which second moments move per step: stable below 1."""
        return math.nan if self.stability is None else self.stability.radius

    @property
    def largest_step_size(self) -> float:
        """The largest stable step size."""
        return math.nan if self.stability is None else self.stability.largest_step_size

    @property
    def notes(self) -> tuple[str, ...]:
        """What else should be known, in sentences."""
        return tuple(dict.fromkeys(note for a in self.answers.values() for note in a.notes))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists, ready for JSON; NaN and infinities become None."""
        from gyromc.prediction.tables import as_dict

        return as_dict(self)

    def __rich__(self):
        """Tables for the terminal."""
        from gyromc.prediction.tables import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from gyromc.prediction.tables import as_html

        return as_html(self)

    def __repr__(self) -> str:
        from gyromc.prediction.tables import as_text

        return as_text(self)


def predict(plan: Plan, sample=None, *, digits: int = 6) -> Prediction:
    """What the plan will deliver: V, the error of a chain's average, bias, stability and verdicts. Nothing is run.

    **Arguments:**

    - `plan`: what would be run.
    - `sample`: a posterior sample, rows of θ (or `run.draws`), from which V is estimated where no formula knows it.
    - `digits`: how many digits V must have where the Poisson equation is solved.

    **Returns:** a `Prediction`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 1.0]), dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
                   observables={"first": gm.observables.linear([1.0, 0.0])}, step_size=0.01)
    pred = gm.predict(plan)
    assert abs(pred.variance["first"] - 1.0) < 1e-12 and abs(pred.reversible_variance["first"] - 2.0) < 1e-12
    assert pred.stable and pred.strict_reduction["first"]
    ```
    """
    require(isinstance(plan, Plan), f"`predict` takes a `Plan`: got {type(plan).__name__}.")
    digits = whole(digits, "digits", least=1, most=12)
    material = Material(plan, None if sample is None else plan.model.sample_of(sample), digits)
    try:
        steady = stability(plan)
    except InvalidInput:
        steady = None
    answers = {name: answer(material, name) for name in plan.observables}
    if steady is not None and not steady.stable:
        answers = {name: _unstable(a) for name, a in answers.items()}
    return Prediction(plan, answers, steady, verdicts(plan, steady))


def _unstable(found: Answer) -> Answer:
    """V belongs to the diffusion and stays; an asymptotic error of a diverging chain is no error."""
    if found.rmse_method == "exact finite-step":
        return found
    return dataclasses.replace(
        found, std=math.inf, rmse=math.inf, bias=None, bias_method="unknown", rmse_method="unstable: the chain diverges"
    )
