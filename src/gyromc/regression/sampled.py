"""A sampled posterior of a regression: draws, the errors of the coefficients' means, and where they came from."""

import dataclasses

import numpy as np

from gyromc.regression.conjugate import Integrated
from gyromc.regression.draws import Draws
from gyromc.results import Run
from gyromc.tuning.tuned import Tuned

__all__ = ["Sampled"]


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from.

    **Attributes:**

    - `posterior`: draws; `reason`: how they were computed; `tuned`, `run`: of the chains, None where there are none.
    - `mean`, `std_error`, `bias` (estimated, not subtracted): of each coefficient.
    - `exact`: spreads and quantiles of the coefficients and of σ where they are known without draws.
    - `beside`: the further parameters, by name, as draws and the size of their bias in standard deviations.
    - `worth`: how many independent draws the weighted ones are worth that these draws were picked from; None where none were.
    - `averages`: their means with standard errors where these are known better than from the draws.
    """

    posterior: Draws
    reason: str
    mean: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray
    tuned: Tuned | None = None
    run: Run | None = None
    exact: Integrated | None = None
    beside: dict[str, tuple[np.ndarray, float]] = dataclasses.field(default_factory=dict)
    averages: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    worth: float | None = None

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return None if self.exact is None else self.posterior.units.y_scale * self.exact.sigma((0.025, 0.975))[0]

    @property
    def scarcity(self) -> float:
        """By how much errors of the draws are larger than those of as many independent ones: they were picked from fewer."""
        return 1.0 if self.worth is None else max(1.0, self.posterior.count / self.worth) ** 0.5

    @property
    def warnings(self) -> list[str]:
        """What could not be known."""
        return [] if self.tuned is None else list(self.tuned.warnings)
