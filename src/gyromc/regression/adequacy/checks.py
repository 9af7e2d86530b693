"""The record of one check of a model, and the rule that combines them.

Input: checks with their p-values. Output: the same with verdicts. A correct model has p-values above 0.05 after Holm's correction
over all checks in at least 95 % of data sets, whatever their dependence; only then it is called wrong.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CHANCE = 0.05  # of calling a correct model wrong, over all checks


class Aspect(enum.Enum):
    """What is checked; in the order in which one would act on them."""

    WEIGHTS = "weights"
    SEPARATION = "separation"
    DISPERSION = "dispersion"
    DEPENDENCE = "independent rows"
    CURVATURE = "straight lines"
    SPREAD = "even spread"
    CALIBRATION = "calibration"
    COVERAGE = "coverage"
    OUTLIERS = "outliers"
    INTERACTIONS = "interactions"
    INFLUENCE = "influential rows"
    COLLINEARITY = "collinearity"


class ModelVerdict(enum.Enum):
    """What a check says: nothing, something to look at, or that the model does not describe the data."""

    FINE = "fine"
    LOOK = "look"
    MISFIT = "misfit"


@dataclasses.dataclass(frozen=True)
class ModelCheck:
    """One check of a model.

    **Attributes:**

    - `aspect`: what was checked.
    - `statistic`: how large the deviation is; what it measures depends on the aspect.
    - `p`: the chance of a deviation at least as large if the model is right, corrected for the columns or rows searched; None
      where chance has no part in it.
    - `large`: whether a deviation of this size matters, if it is real.
    - `adjusted`: p corrected for all checks; `verdict`: what follows.
    - `details`: names, rows and numbers for a sentence.
    """

    aspect: Aspect
    statistic: float
    p: float | None = None
    large: bool = True
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adjusted: float | None = None
    verdict: ModelVerdict = ModelVerdict.FINE


WORTH_A_LOOK = frozenset({Aspect.INTERACTIONS})
"""Aspects in which a deviation is a suggestion and no misfit."""


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values corrected for their number by Holm's method: an error in any of them has at most the stated chance.

    ```python
    from gyromc.regression.adequacy.checks import holm
    assert list(holm([0.01, 0.04, 0.03])) == [0.03, 0.06, 0.06]
    ```
    """
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    found = np.empty_like(values)
    found[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return found


def judged(checks: Sequence[ModelCheck]) -> tuple[ModelCheck, ...]:
    """The checks with their verdicts, in the order of `Aspect`.

    A check with a p-value is a misfit where that is below 0.05 after the correction for all checks and its deviation is large; it
    is worth a look where only the first holds. A check without one keeps its verdict.
    """
    chances = [check for check in checks if check.p is not None]
    found = [check for check in checks if check.p is None]
    for check, adjusted in zip(chances, holm([check.p for check in chances if check.p is not None]), strict=True):
        verdict = ModelVerdict.FINE
        if adjusted < CHANCE:
            verdict = ModelVerdict.MISFIT if check.large and check.aspect not in WORTH_A_LOOK else ModelVerdict.LOOK
        found.append(dataclasses.replace(check, adjusted=float(adjusted), verdict=verdict))
    order = list(Aspect)
    return tuple(sorted(found, key=lambda check: order.index(check.aspect)))
