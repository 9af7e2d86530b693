"""How long to run for a given error: Stein's two stages, for averages of independent chains.

Input: the averages of R chains after a first stage of N₁ steps. Output: the number of steps that a standard error needs, and the
Monte Carlo error after so many. A chain's average over N steps has the variance v/N, and v is estimated once, from the spread
between the chains after the first stage. For Gaussian averages that spread is independent of the mean over chains at every
later time, so a length that is computed from it does not change the law of the mean, and Student's interval with R - 1 degrees of
freedom keeps its coverage (Stein 1945). An error that is estimated again at each look and compared with a bound would be too
small where the run ends.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from gyromc.statistics import variances
from gyromc.statistics.errors import ErrorMethod, MonteCarloError

__all__ = ["FirstStage"]

CHANCE = 1e-3  # of taking the first stage's variance for wrong where it is right


@dataclasses.dataclass(frozen=True, eq=False)
class FirstStage:
    """The averages of one observable over the first steps of each chain, and what follows from their spread.

    `corrected` says whether a martingale was subtracted from them.

    ```python
    import numpy as np
    from gyromc.statistics.stopping import FirstStage
    first = FirstStage(np.array([1.0, 3.0, 2.0, 2.0]), steps=100)      # the variance of a chain's average is 2/3
    assert first.steps_for(std_error=0.2) == 417                       # 100 · (2/3) / (4 · 0.2²)
    assert abs(first.error(417).std_error - 0.2) < 1e-4
    ```
    """

    averages: np.ndarray  # one per chain
    steps: int
    corrected: bool = False

    @functools.cached_property
    def variance(self) -> float:
        """The variance of a chain's average over the first stage."""
        return variances.replicate_variance(self.averages).variance

    def error(self, steps: int) -> MonteCarloError:
        """The error of the mean over chains after so many steps."""
        chains = len(self.averages)
        reason = f"{chains} independent chains" + (f", their spread after {self.steps}" if steps > self.steps else "")
        return MonteCarloError(self.variance * self.steps / steps, chains, chains - 1, ErrorMethod.REPLICATE, reason)

    def steps_for(self, std_error: float) -> float:
        """How many steps a standard error needs; infinite for 0, unless the averages do not vary."""
        if self.variance == 0:
            return self.steps
        if not std_error > 0:
            return math.inf
        return math.ceil(self.steps * self.variance / (len(self.averages) * std_error**2))

    def refuted(self, averages: np.ndarray, steps: int) -> bool:
        """Whether the steps since the first stage vary more, or less, than it says: `averages` are over all `steps`.

        The averages over the later steps alone are independent of the first stage, and the ratio of the two variances, each
        times its number of steps, has an F distribution. Slow chains make it large; a martingale that leaves only the ends of the
        chains makes it small.
        """
        later = steps - self.steps
        if later <= 0 or len(averages) != len(self.averages) or self.variance == 0:
            return False
        rest = (steps * averages - self.steps * self.averages) / later
        ratio = later * variances.replicate_variance(rest).variance / (self.steps * self.variance)
        dof = len(averages) - 1
        return bool(2 * min(special.fdtrc(dof, dof, ratio), special.fdtr(dof, dof, ratio)) < CHANCE)
