"""V for observables ρ(uᵀz) on Gaussian targets of any dimension: V = 2∫₀^∞ Cov(h(z_0), h(z_t)) dt by Mehler's formula.

Input: D, Q, P, a direction and a scalar function ρ. Output: V and μ(h). The pair (uᵀz_0, uᵀz_t) is Gaussian with correlation
r(t), and ρ = Σ c_n He_n gives Cov = Σ_{n≥1} c_n² r(t)ⁿ: one integral over time, whatever the dimension.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import linalg

from gyromc.observables import Ridge
from gyromc.prediction.exact.closed_forms import precision_solve
from gyromc.prediction.poisson.basis import line

MOST_TERMS = 120


@functools.cache
def _hermite_axis():
    return line(0, lambda t: t**2 / 2, lambda t: t, MOST_TERMS, (0.0, 1.0), spacing=0.05)


def expectation(profile: Callable[[np.ndarray], np.ndarray], mean: float, deviation: float) -> float:
    """E ρ(mean + deviation·N(0, 1))."""
    axis = _hermite_axis()
    return float(axis.weights @ profile(mean + deviation * axis.nodes[:, 0]))


def ridge_moments(h: Ridge, K: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """μ(h) and Var_μ(h) of ρ(aᵀθ) on N(mean, K⁻¹)."""
    shift = float(h.direction @ mean)
    deviation = math.sqrt(float(h.direction @ precision_solve(K, h.direction)))
    center = expectation(h.rho, shift, deviation)
    return center, expectation(lambda t: (h.rho(t) - center) ** 2, shift, deviation)


def ridge_constants(D, Q, P, u, profile: Callable[[np.ndarray], np.ndarray], mean: float) -> tuple[float, float]:
    """(V, V_0) of h(z) = ρ(mean + uᵀz) for H = ½zᵀPz; `profile` is ρ on arrays.

    ```python
    import numpy as np
    from gyromc.prediction.exact.mehler import ridge_constants
    assert np.allclose(ridge_constants(np.eye(1), np.zeros((1, 1)), np.eye(1), np.ones(1), lambda t: t**2, 0.0), 2.0)
    ```
    """
    w = precision_solve(P, u)
    deviation = math.sqrt(u @ w)
    axis = _hermite_axis()
    c = axis.expand(profile(mean + deviation * axis.nodes[:, 0]))
    squares = c[1:] ** 2
    V, V_0 = (2 * _time_integral((D + q) @ P, u / deviation, w / deviation, squares) for q in (Q, np.zeros_like(Q)))
    return V, V_0


def _time_integral(A: np.ndarray, u: np.ndarray, w: np.ndarray, squares: np.ndarray) -> float:
    """∫₀^∞ Σ squares_n r(t)ⁿ dt, r(t) = uᵀe^{-At}w: Gauss-Legendre on panels short against the modes still alive at time t."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    rates, powers = np.linalg.eigvals(A), np.arange(1, len(squares) + 1)
    total, began, here, length = 0.0, 0.0, np.asarray(w, float), 0.0  # here = e^{-At}w
    steps = np.empty(0)
    while True:
        alive = np.abs(rates[rates.real * began < 45])
        if not alive.size:
            return total
        if 3.0 / np.max(alive) > 1.001 * length:
            length = 3.0 / np.max(alive)
            steps = linalg.expm(-A * (length * np.append((1 + nodes) / 2, 1.0))[:, None, None])
        moved = steps @ here
        r = np.clip(moved[:-1] @ u, -1.0, 1.0)
        total += length / 2 * float(weights @ (r[:, None] ** powers @ squares))  # Mehler
        here = moved[-1]
        began += length
