"""Where a law lies, how wide it is and how much its curvature varies: what a plan for any model is chosen from.

A `Model` in, an `Outline` out: the Laplace approximation at the heaviest mode where it serves, else mean and covariance of a
pilot run. `InvalidInput` where neither is to be had.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.shape.laplace import Laplace, inverse_root

__all__ = ["Outline", "Pilot", "Unsettled", "outline"]

POINTS = 64
QUANTILE = 0.95
SERVES = 5.0  # curvature in the bulk over that of the approximation: up to here the approximation serves
STEEP = 50.0  # and beyond this no step size suits the whole law


@dataclasses.dataclass(frozen=True, eq=False)
class Pilot:
    """What a short run found: draws, the Gaussian with their mean and covariance, and the coordinates that did not settle."""

    draws: np.ndarray
    center: Laplace
    unsettled: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Outline:
    """A Gaussian for the law, and the law's largest curvature in units of the Gaussian's: its root mean square over the law.

    `starts` holds draws of a pilot run where there was one; `why` says why a plan made from it is doubtful, None where it is not.
    """

    center: Laplace
    steepest: float
    starts: np.ndarray | None = None
    why: str | None = None


class Unsettled(InvalidInput):
    """Neither a mode nor a pilot run that settles; `coordinates` did not."""

    def __init__(self, message: str, coordinates: np.ndarray):
        super().__init__(message)
        self.coordinates = coordinates


def outline(model: Model, pilot: Callable[[], Pilot | None] | None = None) -> Outline:
    """The outline of a model's law; `pilot` runs where the mode does not serve."""
    why = None
    try:
        center = model.modes.found[0]
    except (InvalidInput, np.linalg.LinAlgError) as error:
        if pilot is None:
            raise
        why = f"there is no mode to start from ({str(error).split('. ')[0].rstrip('.')})"
    else:
        noise = np.random.default_rng(0).standard_normal((POINTS, model.dim))
        usual, steepest = _curvature(model, center, center.mode + noise @ inverse_root(center.precision).T)
        if steepest <= SERVES or pilot is None:
            return Outline(center, usual, why=_varies(steepest))
    found = pilot()
    if found is None or len(found.unsettled):
        lacking = "cannot start" if found is None else "does not settle"
        where = np.arange(model.dim) if found is None else found.unsettled
        text = why or f"the curvature varies by a factor of {steepest:.1g} around the mode"
        raise Unsettled(f"A plan cannot be chosen: {text}, and a pilot run {lacking}.", where)
    picked = np.random.default_rng(0).choice(len(found.draws), min(POINTS, len(found.draws)), replace=False)
    usual, steepest = _curvature(model, found.center, found.draws[picked])
    return Outline(found.center, usual, found.draws, why or _varies(steepest))


def _varies(steepest: float) -> str | None:
    if steepest <= STEEP:
        return None
    return f"the curvature varies by a factor of {steepest:.1g} or more over the posterior"


def _curvature(model: Model, center: Laplace, points: np.ndarray) -> tuple[float, float]:
    """The largest curvature in units of the approximation's: its root mean square and a high quantile over the points."""
    if model.flat_target.gaussian() is not None:
        return 1.0, 1.0
    R = inverse_root(center.precision)
    with np.errstate(all="ignore"):
        curved = np.einsum("ij,sjk,kl->sil", R.T, model.flat_target.hessians(points), R, optimize=True)
    if not np.all(np.isfinite(curved)):
        return np.inf, np.inf
    tops = np.linalg.eigvalsh(curved)[:, -1]
    return max(1.0, float(np.sqrt(np.mean(tops**2)))), max(1.0, float(np.quantile(tops, QUANTILE)))
