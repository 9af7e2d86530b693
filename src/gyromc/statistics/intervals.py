"""Student intervals around a mean, and the degrees of freedom of a sum of variances."""

import math

from scipy import stats

from gyromc.checks import require


def check_level(level: float) -> None:
    """Raise `InvalidInput` unless `level` is a coverage between 0 and 1."""
    require(0 < level < 1, f"`level` must lie between 0 and 1: got {level!r}. 95 % is 0.95.")


def interval(mean: float, std_error: float, level: float, dof: float) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean; NaN with no degrees of freedom."""
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half


def combined_dof(*parts: tuple[float, float]) -> float:
    """The degrees of freedom of a sum of independent variances, each (variance, dof), by Welch and Satterthwaite."""
    total = sum(v for v, _ in parts)
    spent = sum(v**2 / dof for v, dof in parts if v > 0)
    return total**2 / spent if spent > 0 else math.inf
