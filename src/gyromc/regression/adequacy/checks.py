"""The record of one check of a model, and the rule that combines them.

Input: checks with their p-values. Output: the same with verdicts. A correct model has p-values above 0.05 after Holm's correction
over all checks in at least 95 % of data sets, whatever their dependence; only then it is called wrong.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class AdequacySettings:
    """The numbers of the checks. Sizes from which a deviation matters are conventions; the others bound time and memory.

    - `chance`: of calling a correct model wrong, over all checks.
    - `most_rows`, `least_rows`: that are looked at, the more classes the fewer; `most_numbers`: draws × rows, with at least
      `least_draws` and at most `most_draws`.
    - `orders`: in which residuals are shuffled.
    - `fitted`: the share of a direction's noise that the fit follows, from which the direction is taken as fitted; `least_left`:
      share of a candidate's square that must be left without these.
    - `curve_share`: of the residuals' variance, from which a curve or a product matters, and `link_share` another link; `uneven`:
      ratio of residual standard deviations; `product_columns`: whose products are tried, those with the largest effects; `pairs`:
      of them that are named.
    - `inflated`: how many times collinearity multiplies a variance, from which it is reported; `columns`: that are named.
    - `first_rows`, `added_rows`, `rounds`: of the linear program for separation; `close`: margins that count as zero.
    - `overdispersed`: ratio of variances, up or down; `uneven_law`: squared distance from a uniform law; `degree`: of the
      polynomials that see it; `mostly`: of the largest mean, from which a law is called too narrow or wide whatever else it is.
    - `level`: of the predictive intervals; `share_gap`: difference of shares; `groups`: of rows with like probabilities.
    - `many`: share of the rows, from which outliers are a matter of the law; `followed`: share of its noise that a row keeps in
      its residual, below which the fit goes through it.
    """

    chance: float = 0.05
    most_rows: int = 3000
    least_rows: int = 1000
    most_numbers: int = 1_500_000
    least_draws: int = 500
    most_draws: int = 2048
    orders: int = 400
    fitted: float = 0.05
    least_left: float = 1e-4
    curve_share: float = 0.01
    link_share: float = 0.005
    uneven: float = 1.3
    product_columns: int = 16
    pairs: int = 3
    inflated: float = 10.0
    columns: int = 4
    first_rows: int = 1000
    added_rows: int = 2000
    rounds: int = 8
    close: float = 1e-7
    overdispersed: float = 1.2
    uneven_law: float = 0.01
    degree: int = 4
    mostly: float = 0.6
    level: float = 0.95
    share_gap: float = 0.02
    groups: int = 10
    many: float = 0.05
    followed: float = 0.02


SETTINGS = AdequacySettings()


class Aspect(enum.Enum):
    """What is checked; in the order in which one would act on them."""

    WEIGHTS = "weights"
    SEPARATION = "separation"
    DISPERSION = "dispersion"
    DEPENDENCE = "independent rows"
    LINK = "link"
    PROPORTIONAL = "proportional odds"
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
    """p-values corrected for their number by Holm's method: an error in any of them has at most the stated chance."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    found = np.empty_like(values)
    found[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return found


def judged(checks: Sequence[ModelCheck]) -> tuple[ModelCheck, ...]:
    """The checks with their verdicts, in the order of `Aspect`.

    A check with a p-value is a misfit where that is below 0.05 after the correction for all checks and its deviation is large; it
    is worth a look where only the first holds. A check without one keeps its verdict. Suggestions cannot call a model wrong, and
    so do not count in the correction of those that can; they themselves are corrected for the number of all.
    """
    tested = [(check, check.p) for check in checks if check.p is not None]
    strict = [(check, p) for check, p in tested if check.aspect not in WORTH_A_LOOK]
    corrected = dict(zip((check.aspect for check, _ in strict), holm([p for _, p in strict]), strict=True))
    found = [check for check in checks if check.p is None]
    for check, p in tested:
        adjusted = float(corrected.get(check.aspect, min(1.0, len(tested) * p)))
        verdict = ModelVerdict.FINE
        if adjusted < SETTINGS.chance:
            verdict = ModelVerdict.MISFIT if check.large and check.aspect in corrected else ModelVerdict.LOOK
        found.append(dataclasses.replace(check, adjusted=adjusted, verdict=verdict))
    order = list(Aspect)
    return tuple(sorted(found, key=lambda check: order.index(check.aspect)))
