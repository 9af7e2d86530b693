"""The answer to one observable, and what the observables of one plan share.

Input: a plan, and a sample of the posterior if the user has one. Output: `Answer`, a row of a prediction; `Shared`, with the
pilot sample, the plug-in, the grids and the exact moments, each computed when first asked for.
"""

import dataclasses
import functools
import math

from gyromc.approx.sample import Sample
from gyromc.errors import InvalidInput
from gyromc.plan import Plan
from gyromc.prediction.exact.moments import Moments, exact_moments
from gyromc.prediction.grid import Grids
from gyromc.prediction.methods import UNKNOWN, Method
from gyromc.prediction.poisson import plug_in as plugin
from gyromc.prediction.reduction import Reduction
from gyromc.prediction.residuals import Residuals
from gyromc.prediction.stability import Stability
from gyromc.prediction.step_effects import StepEffects


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is predicted for one observable; what is not known is NaN or None."""

    variance: float = math.nan  # V
    reversible_variance: float = math.nan  # V_0
    method: Method = UNKNOWN
    variance_error: float = math.nan  # of V: 0 where it is exact to rounding
    reversible_variance_error: float = math.nan  # of V_0
    expectation: float | None = None  # μ(h)
    expectation_method: Method = UNKNOWN
    expectation_error: float = math.nan
    bias: float | None = None  # of one chain's average
    bias_method: Method = UNKNOWN
    bias_error: float = 0.0  # of the bias: 0 where it is exact
    start_counted: bool = False  # whether bias and error contain the effect of the start
    std: float = math.nan  # of one chain's average
    plain_std: float = math.nan  # the same without its martingale, where one is subtracted
    rmse_method: Method = UNKNOWN
    strict_reduction: Reduction | None = None
    notes: tuple[str, ...] = ()
    num_chains: int = 1  # of the plan

    @property
    def mean(self) -> float:
        """The expected value of an average: μ(h) plus the bias; NaN where either is unknown."""
        return math.nan if self.expectation is None or self.bias is None else self.expectation + self.bias

    @property
    def rmse(self) -> float:
        """The root mean squared error of one chain's average about μ(h); an unknown bias counts as none."""
        return math.hypot(self.bias or 0.0, self.std)

    @property
    def gain(self) -> float:
        """How many times longer a run without the martingale would take for the same error; 1 where none is subtracted.

        Infinite where the martingale leaves no fluctuation at all.
        """
        if math.isnan(self.plain_std):
            return 1.0
        return (self.plain_std / self.std) ** 2 if self.std > 0 else math.inf

    @property
    def std_error(self) -> float:
        """The standard deviation of the mean over all chains of the plan."""
        return self.std / math.sqrt(self.num_chains)

    def noting(self, *notes: str) -> "Answer":
        """The answer with more notes."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))


@dataclasses.dataclass(frozen=True, eq=False)
class Shared:
    """What several observables of one plan share, computed when first asked for."""

    plan: Plan
    sample: Sample | None  # the user's
    digits: int
    steady: Stability | None = None
    _fitted: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def effects(self) -> StepEffects:
        """First effects of the step size, from the pilot sample."""
        return StepEffects(self.plan, self.pilot)

    @functools.cached_property
    def grids(self) -> Grids:
        """The chain on grids."""
        return Grids(self.plan)

    def fitted(self, degree: int | None = None) -> plugin.Fitted:
        """The plug-in's averages over the pilot sample; degree: the highest that the sample allows."""
        if degree not in self._fitted:
            self._fitted[degree] = plugin.Fitted(self.pilot, self.plan.dynamics.D, self.plan.dynamics.Q, degree)
        return self._fitted[degree]

    @functools.cached_property
    def pilot(self) -> Sample:
        """The user's sample, or one drawn around the mode; `InvalidInput` where neither can be trusted."""
        if self.sample is not None:
            return self.sample
        drawn = self.plan.model.trusted_sample_of()
        if drawn is None:
            raise InvalidInput(
                f"no draws around the mode can be trusted: {self.plan.model.why_not_trusted()}; pass `sample`"
            )
        return drawn

    @functools.cached_property
    def residuals(self) -> Residuals:
        """What martingales leave, over the pilot sample."""
        return Residuals(self.plan, self.pilot)

    @functools.cached_property
    def exact(self) -> dict[str, Moments]:
        """Exact finite-step moments, where there are any."""
        return exact_moments(self.plan)
