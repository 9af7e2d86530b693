"""The posterior variance Var_μ(h) of every observable; effective sample sizes are computed from it.

Input: a plan and, optionally, draws of θ. Output: a variance by observable name: by quadrature for ρ(aᵀθ) on a Gaussian
target, from the draws otherwise, NaN where neither is available.
"""

import math

import numpy as np

from gyromc.observables import Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact import mehler
from gyromc.prediction.exact.closed_forms import precision_solve

MOST_ROWS = 20_000


def observable_variances(plan: Plan, rows: np.ndarray | None = None) -> dict[str, float]:
    """Var_μ(h) of every observable of a plan, from at most `MOST_ROWS` of the rows; NaN where it is not known."""
    known = plan.flat_target.gaussian()
    if rows is not None and len(rows) > MOST_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int)]
    found = dict.fromkeys(plan.observables, math.nan)
    for name, h in plan.observables.items():
        if known is not None and isinstance(h, Ridge) and np.any(h.direction):
            found[name] = _on_gaussian(h, *known)
        elif rows is not None:
            found[name] = float(np.var(plan.model.values(h, rows), ddof=1))
    return found


def _on_gaussian(h: Ridge, K: np.ndarray, mean: np.ndarray) -> float:
    u = np.asarray(h.direction, float)
    deviation = math.sqrt(float(u @ precision_solve(K, u)))
    center = mehler.expectation(h.rho, float(u @ mean), deviation)
    return mehler.expectation(lambda t: (h.rho(t) - center) ** 2, float(u @ mean), deviation)
