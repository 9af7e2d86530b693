"""Leave-one-out cross-validation without fitting again: elpd = Σ_i log p(y_i | all other rows), and WAIC.

Input: log p(y_i | θ_s) of every draw and row. Output: elpd with its standard error, the effective number of parameters, and
Pareto's k of every row, which is large where one row decides about the posterior (Vehtari, Gelman and Gabry 2017).
"""

import dataclasses
import math

import numpy as np
from scipy import special

from gyromc.shape.pareto import HEAVY, smoothed

__all__ = ["Loo", "Waic", "loo", "loo_difference", "waic"]

AT_ONCE = 2**18  # draws × rows that are weighted together: 2 MB for each array


@dataclasses.dataclass(frozen=True, eq=False)
class Loo:
    """Pareto-smoothed leave-one-out cross-validation.

    **Attributes:**

    - `elpd_rows`: log p(y_i | all other rows) of each row; `pareto_k`: of each row.
    - `log_weights`: draws × rows, which turn the posterior into the one without the row; they sum to one over the draws.
    - `p_rows`: what leaving the row out costs: log p(y_i | all rows) - log p(y_i | all others).
    - `scale`: how many rows each of these stands for, more than 1 where a part of the rows was taken.
    - `elpd`, `std_error`, `p_loo`, `looic`: Σ elpd_i, its standard error over rows, Σ p_i, and -2 elpd.
    - `influential`: the rows whose k is above 0.7: without them the posterior would be another, and their elpd is not reliable.
    """

    elpd_rows: np.ndarray
    p_rows: np.ndarray
    pareto_k: np.ndarray
    log_weights: np.ndarray
    scale: float = 1.0

    @property
    def elpd(self) -> float:
        """Σ_i log p(y_i | all other rows)."""
        return self.scale * float(self.elpd_rows.sum())

    @property
    def std_error(self) -> float:
        """The standard error of `elpd` over rows: √n sd for all n rows; larger where a part stands for all."""
        return self.scale * math.sqrt(self.elpd_rows.size * float(np.var(self.elpd_rows)))

    @property
    def p_loo(self) -> float:
        """The effective number of parameters."""
        return self.scale * float(self.p_rows.sum())

    @property
    def looic(self) -> float:
        """-2 elpd, on the scale of a deviance."""
        return -2 * self.elpd

    @property
    def influential(self) -> np.ndarray:
        """The rows with k > 0.7, the largest first."""
        rows = np.flatnonzero(self.pareto_k > HEAVY)
        return rows[np.argsort(-self.pareto_k[rows], kind="stable")]


def loo(log_density: np.ndarray, scale: float = 1.0) -> Loo:
    """Leave each row out in turn, by importance weights with a smoothed tail.

    **Arguments:**

    - `log_density`: log p(y_i | θ_s), draws × rows.
    - `scale`: how many rows of the data each row stands for.

    **Returns:** a `Loo`.

    ```python
    import numpy as np
    from gyromc.regression.adequacy.loo import loo
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    theta = rng.normal(y.mean(), 50**-0.5, size=(1000, 1))
    found = loo(-0.5 * (y - theta) ** 2 - 0.5 * np.log(2 * np.pi))
    exact = -0.5 * (y - (y.sum() - y) / 49) ** 2 / (1 + 1 / 49) - 0.5 * np.log(2 * np.pi * (1 + 1 / 49))
    assert abs(found.elpd - exact.sum()) < 0.1 and found.influential.size == 0
    ```
    """
    weights = np.empty_like(log_density)
    k, elpd, full = (np.empty(log_density.shape[1]) for _ in range(3))
    at_once = max(1, AT_ONCE // len(log_density))
    for first in range(0, log_density.shape[1], at_once):  # in parts: it takes many arrays of the size of its input
        rows = slice(first, first + at_once)
        weights[:, rows], k[rows] = smoothed(-log_density[:, rows])
        elpd[rows] = np.asarray(special.logsumexp(weights[:, rows] + log_density[:, rows], axis=0))
        full[rows] = np.asarray(special.logsumexp(log_density[:, rows], axis=0)) - math.log(len(log_density))
    return Loo(elpd, full - elpd, k, weights, scale)


def loo_difference(a: Loo, b: Loo) -> tuple[float, float]:
    """elpd of `a` less that of `b`, for the same rows, and its standard error from the paired differences."""
    rows = a.elpd_rows - b.elpd_rows
    return a.scale * float(rows.sum()), a.scale * math.sqrt(rows.size * float(np.var(rows)))


@dataclasses.dataclass(frozen=True)
class Waic:
    """The widely applicable information criterion: `elpd`, its standard error, the effective number of parameters `p_waic`."""

    elpd: float
    std_error: float
    p_waic: float

    @property
    def waic(self) -> float:
        """-2 elpd, on the scale of a deviance."""
        return -2 * self.elpd


def waic(log_density: np.ndarray, scale: float = 1.0) -> Waic:
    """WAIC from log p(y_i | θ_s), draws × rows; arguments as for `loo`."""
    p = log_density.var(axis=0, ddof=1)
    rows = np.asarray(special.logsumexp(log_density, axis=0)) - math.log(len(log_density)) - p
    return Waic(scale * float(rows.sum()), scale * math.sqrt(rows.size * float(np.var(rows))), scale * float(p.sum()))
