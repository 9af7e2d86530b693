"""A regression with many rows, near its mode: U ≈ ½δᵀKδ exactly, and what is left of U over some of the rows.

A target and its Laplace approximation in; something with the target's `potentials`, `gradients` and `mean_hessian` out, whose
cost does not grow with the data. Within some standard deviations of the mode all but the quadratic part is small, and a
sample of the rows says well enough how small.
"""

import dataclasses
import functools

import numpy as np

from gyromc.shape.laplace import Laplace
from gyromc.targets import Target
from gyromc.targets.regressions import KnownLikelihood, WithLikelihood

__all__ = ["NearMode", "near_mode", "some_rows"]

MANY = 1e7  # rows × columns, from which on some of the rows stand for all
ENOUGH = 40_000  # rows, or
PER_PARAMETER = 400  # for each parameter


@dataclasses.dataclass(frozen=True, eq=False)
class NearMode:
    """U - U(mode), ∇U and the mean of ∇²U around a mode; `part` has some rows of `target`, and N/n as much prior."""

    center: Laplace
    part: WithLikelihood
    share: float

    def potentials(self, rows: np.ndarray) -> np.ndarray:
        """U at each row of θ, less U at the mode."""
        away = rows - self.center.mode
        here, slope, curved = self._at_mode
        sampled = self.part.potentials(rows) - here - away @ slope - _squares(away, curved) / 2
        return _squares(away, self.center.precision) / 2 + self.share * sampled

    def gradients(self, rows: np.ndarray) -> np.ndarray:
        """∇U at each row of θ."""
        away = rows - self.center.mode
        _, slope, curved = self._at_mode
        return away @ self.center.precision + self.share * (self.part.gradients(rows) - slope - away @ curved)

    def mean_hessian(self, rows: np.ndarray) -> np.ndarray:
        """The mean of ∇²U over rows of θ."""
        return self.center.precision + self.share * (self.part.mean_hessian(rows) - self._at_mode[2])

    @functools.cached_property
    def _at_mode(self) -> tuple[float, np.ndarray, np.ndarray]:
        """U, ∇U and ∇²U of the part at the mode."""
        at = self.center.mode[None]
        return float(self.part.potentials(at)[0]), self.part.gradients(at)[0], self.part.mean_hessian(at)


def near_mode(target: Target, center: Laplace) -> "NearMode | Target":
    """The target itself, or `NearMode` where it is a regression with many rows.

    ```python
    import gyromc as gm
    from gyromc.shape.near_mode import near_mode
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 1], prior_scale=2.0))
    assert near_mode(model.target, model.laplace) is model.target
    ```
    """
    part = some_rows(target)
    if part is target or not isinstance(part, WithLikelihood) or not isinstance(target, KnownLikelihood):
        return target
    return NearMode(center, part, target.num_data / part.num_data)


def some_rows(target: Target) -> Target:
    """A regression with many rows, with a random sample of them and as much less prior; any other target as it is.

    Rows that are not in memory are always sampled: all of them where they are few.
    """
    if not isinstance(target, KnownLikelihood):
        return target
    count = max(ENOUGH, PER_PARAMETER * target.dim)
    if isinstance(target, WithLikelihood) and (target.num_data * target.dim <= MANY or 4 * count >= target.num_data):
        return target
    return target.sampled(count)


def _squares(away: np.ndarray, K: np.ndarray) -> np.ndarray:
    return np.einsum("si,si->s", away @ K, away)
