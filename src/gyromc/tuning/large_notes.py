"""What a user should know before running a plan for many parameters, as sentences.

Input: a `Check` of two step sizes, `Numbers`, and how long the check and the run last. Output: a list of sentences.
"""

import math

from gyromc.tuning.preconditioning import Numbers
from gyromc.tuning.step_check import Check

__all__ = ["LEAST_TIMES", "notes_on"]

LEAST_TIMES = 2.0  # relaxation times that the check should last
LEAST_HELD = 10.0  # and each chain of the run
COLD = 0.8  # (θ - c)ᵀ∇U / d below this: the chains are still near the mode
SLOWED = 1.5  # times the friction that would do without noise


def notes_on(check: Check, numbers: Numbers, times: float, held: float, temperature: float) -> list[str]:
    """The notes; `times` and `held` are the lengths of the check and of a chain of the run, in relaxation times."""
    notes = []
    if held < LEAST_HELD:
        notes.append(
            f"Each chain lasts {held:.2g} relaxation times: it will not converge from where it starts. Take a larger budget, "
            "fewer chains, or larger batches."
        )
    if times < LEAST_TIMES:
        notes.append(
            f"The check of the step size lasted {times:.2g} relaxation times: slow errors may have escaped it. Take a larger "
            "budget, or fewer chains."
        )
    if temperature < COLD:
        notes.append(
            f"The chains have not spread over the law yet: (θ - c)ᵀ∇U / d is {temperature:.3g} where the law has 1, so "
            "that curvature and noise were measured too near to the mode. Take a larger budget, or a longer `burn_in`."
        )
    if check.agrees is None:
        size = max(check.differences.values(), default=math.nan)
        notes.append(
            f"No two step sizes agreed before the gradients for tuning were used up: the last halving changed averages by "
            f"{size:.2g} standard deviations, and (θ - c)ᵀ∇U / d is {temperature:.3g} where the law has 1. Take a "
            "larger budget, larger batches or a control variate, and do not trust this plan unseen."
        )
    if numbers.gamma > SLOWED * numbers.free:
        notes.append(
            f"Gradient noise asks for friction {numbers.gamma:.3g} where {numbers.free:.3g} would be best without noise: "
            "larger batches or a control variate would make the chains faster."
        )
    return notes
