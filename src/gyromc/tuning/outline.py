"""Where a posterior lies, how wide it is and how much its curvature varies: what a plan for any model is chosen from.

A `Model` in, an `Outline` out: the Laplace approximation at the mode where it serves, else mean and covariance of a pilot run.
`InvalidInput` where neither is to be had.
"""

import dataclasses

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.shape.laplace import Laplace, inverse_root
from gyromc.tuning.pilot import Pilot, pilot

__all__ = ["Outline", "Unsettled", "outline"]

POINTS = 64
MOST_STEEP = (
    1000.0  # curvature somewhere in the bulk over that of the approximation: beyond, the approximation says little
)
QUANTILE = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class Outline:
    """A Gaussian for the law, its largest curvature in units of the Gaussian's, and how it was found.

    `why` is None for the Laplace approximation at the mode; elsewhere it says why that does not serve, and `starts` holds states
    of the pilot run.
    """

    center: Laplace
    steepest: float
    starts: np.ndarray | None = None
    why: str | None = None


class Unsettled(InvalidInput):
    """Neither a mode nor a pilot run that settles; `coordinates` still grew when it ended."""

    def __init__(self, message: str, coordinates: np.ndarray):
        super().__init__(message)
        self.coordinates = coordinates


def outline(model: Model, seed: int = 0) -> Outline:
    """The outline of a model's law."""
    try:
        center = model.laplace
    except InvalidInput as error:
        why = f"there is no mode to start from ({str(error).split('. ')[0].rstrip('.')})"
    else:
        noise = np.random.default_rng(seed).standard_normal((POINTS, model.dim))
        steepest = _steepest(model, center, center.mode + noise @ inverse_root(center.precision).T)
        if steepest <= MOST_STEEP:
            return Outline(center, steepest)
        why = f"the curvature around the mode varies by a factor of {steepest:.1g}"
    return _from_pilot(model, pilot(model.flat_target, model.start, seed), why)


def _from_pilot(model: Model, found: Pilot | None, why: str) -> Outline:
    if found is None or len(found.unsettled):
        lacking = "does not move" if found is None else "does not settle: its chains spread further and further"
        raise Unsettled(
            f"The default plan cannot be chosen: {why}, and a pilot run {lacking}.",
            np.arange(model.dim) if found is None else found.unsettled,
        )
    return Outline(found.center, _steepest(model, found.center, found.states), found.states, why)


def _steepest(model: Model, center: Laplace, points: np.ndarray) -> float:
    """A high quantile over the points of the largest curvature, in units of the approximation's; at least 1."""
    if model.flat_target.gaussian() is not None:
        return 1.0
    R = inverse_root(center.precision)
    with np.errstate(all="ignore"):
        curved = np.einsum("ij,sjk,kl->sil", R.T, model.flat_target.hessians(points), R, optimize=True)
    if not np.all(np.isfinite(curved)):
        return np.inf
    return max(1.0, float(np.quantile(np.linalg.eigvalsh(curved)[:, -1], QUANTILE)))
