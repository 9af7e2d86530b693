"""The answer to one observable, and what the observables of one plan share.

Input: a plan, and a sample of the posterior if the user has one. Output: `Answer`, a row of a prediction; `Shared`, with the
pilot sample, the plug-in, the grids and the exact moments, each computed when first asked for.
"""

import dataclasses
import functools
import math

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.plan import Plan
from gyromc.prediction.exact.moments import Moments, exact_moments
from gyromc.prediction.grid import Grids
from gyromc.prediction.methods import UNKNOWN, Method
from gyromc.prediction.poisson import plug_in as plugin
from gyromc.prediction.reduction import Reduction
from gyromc.prediction.residuals import Residuals
from gyromc.prediction.stability import Stability
from gyromc.prediction.step_effects import StepEffects
from gyromc.shape.importance import Sample

MOST_PARAMETERS = 60  # for an importance sample
HEALTHY = 0.1  # effective size, as a share of the draws
HEAVY = 0.7  # tail index of the weights, from which means are not reliable
BEYOND = 0.05  # share of fourth moments that may lie where nothing was drawn


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
        if self.plan.dim > MOST_PARAMETERS:
            raise InvalidInput(f"{self.plan.dim} parameters are too many for importance sampling: pass `sample`")
        drawn = self.plan.model.importance_sample()
        reason = _why_not_trusted(self.plan.model, drawn)
        if reason is not None:
            raise InvalidInput(f"the Laplace approximation is too far off: {reason}; pass `sample`")
        return drawn

    @functools.cached_property
    def residuals(self) -> Residuals:
        """What martingales leave, over the pilot sample."""
        return Residuals(self.plan, self.pilot)

    @functools.cached_property
    def exact(self) -> dict[str, Moments]:
        """Exact finite-step moments, where there are any."""
        return exact_moments(self.plan)


def _why_not_trusted(model: Model, drawn: Sample) -> str | None:
    """Why an importance sample does not represent the target, or None."""
    count = len(drawn.weights)
    if not drawn.effective_size >= HEALTHY * count:
        return f"{count} draws are worth {drawn.effective_size:.0f}"
    if (index := drawn.tail_index) > HEAVY:
        return f"a few draws decide, the tail index of the weights is {index:.2g}"
    if (share := _beyond(model, drawn)) > BEYOND:
        return f"its tails are too light, {100 * share:.2g} % of a fourth moment lie beyond all draws"
    (mean, root), d, modes = drawn.moments(), model.dim, [center.mode for center in model.modes.found]
    away = [float(np.sum(np.linalg.solve(root, mode - mean) ** 2)) for mode in modes]
    if max(away) > d + 4 * math.sqrt(2 * d):
        return f"the target has {len(modes)} modes, and the draws miss one of them"
    return None


def _beyond(model: Model, drawn: Sample) -> float:
    """The share of ∫ r⁴ e^{-U} that lies beyond the farthest draw: the largest over lines through the mean."""
    mean, root = drawn.moments()
    reach = float(np.max(np.linalg.norm(np.linalg.solve(root, (drawn.theta - mean).T), axis=0)))
    r = reach * np.linspace(-8, 8, 321)
    energy = model.flat_target.potentials((mean + r[:, None, None] * root.T).reshape(-1, model.dim)).reshape(len(r), -1)
    energy = np.where(np.isfinite(energy), energy, np.inf)
    mass = np.exp(np.min(energy, axis=0) - energy) * r[:, None] ** 4
    return float(np.max(mass[np.abs(r) > reach].sum(axis=0) / mass.sum(axis=0)))
