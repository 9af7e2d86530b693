"""V for observables ρ(uᵀz) on Gaussian targets of any dimension: V = 2∫₀^∞ Cov(h(z_0), h(z_t)) dt by Mehler's formula.

Input: D, Q, P, a direction and a scalar function ρ. Output: V and μ(h), with bounds on their errors. The pair (uᵀz_0, uᵀz_t) is
Gaussian with correlation r(t), and ρ = Σ c_n He_n gives Cov = Σ_{n≥1} c_n² r(t)ⁿ: one integral over time, whatever the dimension.
What the terms left out may add is bounded: their squares sum to what the others leave of Var ρ, and ∫|r|ⁿdt falls with n.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import linalg

from gyromc.observables import Ridge
from gyromc.prediction.exact.closed_forms import precision_solve
from gyromc.prediction.methods import Number
from gyromc.prediction.poisson.panels import RESOLVED, Panels, refined, uneven

MOST_TERMS = 1000
REACH = 14.0  # standard deviations
FIRST_PANELS = 96
FINEST_TIME = 32  # Gauss-Legendre nodes on a stretch of time
Profile = Callable[[np.ndarray], np.ndarray]


def expectation(profile: Profile, mean: float, deviation: float) -> float:
    """E ρ(mean + deviation·N(0, 1))."""
    return _profile(profile, mean, deviation)[1].value


def ridge_expectation(profile: Profile, mean: float, deviation: float) -> Number:
    """E ρ(mean + deviation·N(0, 1)) with its error."""
    return _profile(profile, mean, deviation)[1]


def ridge_moments(h: Ridge, K: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """μ(h) and Var_μ(h) of ρ(aᵀθ) on N(mean, K⁻¹)."""
    shift = float(h.direction @ mean)
    deviation = math.sqrt(float(h.direction @ precision_solve(K, h.direction)))
    panels, center = _profile(h.rho, shift, deviation)
    return center.value, float(np.sum(panels.weights * _normal(panels) * (panels.values[0] - center.value) ** 2))


def _profile(profile: Profile, mean: float, deviation: float) -> tuple[Panels, Number]:
    """Panels that resolve ρ under the standard normal law, and E ρ."""
    panels, (first, second), (gap, _) = refined(
        lambda x: (profile(mean + deviation * x),), _normal_integrals, uneven(-REACH, REACH, FIRST_PANELS), local=2
    )
    return panels, Number(float(first), float(gap + RESOLVED * math.sqrt(second)))


def _normal(panels: Panels) -> np.ndarray:
    return np.exp(-(panels.nodes**2) / 2) / math.sqrt(2 * math.pi)


def _normal_integrals(panels: Panels) -> np.ndarray:
    weights, rho = panels.weights * _normal(panels), panels.values[0]
    return np.stack([np.sum(weights * rho**power, axis=1) for power in (1, 2)], axis=1)


def ridge_constants(D, Q, P, u, profile: Profile, mean: float) -> tuple[Number, Number]:
    """V and V_0 of h(z) = ρ(mean + uᵀz) for H = ½zᵀPz, with bounds on their errors; `profile` is ρ on arrays.

    ```python
    import numpy as np
    from gyromc.prediction.exact.mehler import ridge_constants
    V, V_0 = ridge_constants(np.eye(1), np.zeros((1, 1)), np.eye(1), np.ones(1), lambda t: t**2, 0.0)
    assert abs(V.value - 2) < 1e-9 and V.error < 1e-9 and V == V_0
    ```
    """
    w = precision_solve(P, u)
    deviation = math.sqrt(u @ w)
    squares, left = _hermite_squares(*_profile(profile, mean, deviation))
    moving = _time_integral((D + Q) @ P, u / deviation, w / deviation, squares, left)
    return moving, _time_integral(D @ P, u / deviation, w / deviation, squares, left) if np.any(Q) else moving


def _hermite_squares(panels: Panels, center: Number) -> tuple[np.ndarray, float]:
    """c_n² for n = 1 … of ρ, and what they leave of its variance."""
    x, rho = panels.nodes.ravel(), (panels.values[0] - center.value).ravel()
    weights = (panels.weights * _normal(panels)).ravel()
    variance = float(weights @ rho**2)
    below, here = np.zeros_like(x), np.exp(-(x**2) / 4)  # He_n/√n! times e^{-x²/4}, which stays bounded
    weights, squares = weights * rho * np.exp(x**2 / 4), []
    for n in range(MOST_TERMS):
        below, here = here, (x * here - math.sqrt(n) * below) / math.sqrt(n + 1)
        squares.append(float(weights @ here) ** 2)
        if n % 20 == 19 and variance - sum(squares) < RESOLVED * variance:
            break
    return np.array(squares), max(variance - sum(squares), RESOLVED * variance)


def _time_integral(A: np.ndarray, u: np.ndarray, w: np.ndarray, squares: np.ndarray, left: float) -> Number:
    """2∫₀^∞ Σ squares_n r(t)ⁿ dt, r(t) = uᵀe^{-At}w, and 2·left·∫|r|^{N+1}dt: what the terms beyond N add at most."""
    lengths, correlations = _correlations(A, u, w)
    locations, interpolation = _interpolation()

    def integrands(s: np.ndarray) -> tuple[np.ndarray, ...]:
        stretch = np.minimum(s.astype(int), len(lengths) - 1)
        apart = (2 * (s - stretch) - 1)[:, None] - locations
        apart[apart == 0] = 1e-300
        shares = interpolation / apart
        r = np.sum(shares * correlations[stretch], axis=1) / np.sum(shares, axis=1)
        r = np.clip(r, -1.0, 1.0)
        total = np.zeros_like(r)
        for square in squares[::-1]:
            total = (total + square) * r  # Mehler
        return lengths[stretch] * total, lengths[stretch] * np.abs(r) ** (len(squares) + 1)

    def integrals(panels: Panels) -> np.ndarray:
        return np.stack([np.sum(panels.weights * f, axis=1) for f in panels.values], axis=1)

    _, (value, beyond), (gap, _) = refined(integrands, integrals, np.arange(len(lengths) + 1.0), local=2)
    return Number(float(2 * value), float(2 * (gap + left * beyond + RESOLVED * abs(value))))


@functools.cache
def _interpolation() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and their barycentric weights."""
    nodes, weights = np.polynomial.legendre.leggauss(FINEST_TIME)
    return nodes, (-1.0) ** np.arange(FINEST_TIME) * np.sqrt((1 - nodes**2) * weights)


def _correlations(A: np.ndarray, u: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of time, short against the modes still alive in them, and r at Gauss-Legendre nodes of each."""
    nodes, rates = _interpolation()[0], np.linalg.eigvals(A)
    lengths, values, began, here = [], [], 0.0, np.asarray(w, float)  # here = e^{-At}w
    steps = np.empty(0)
    while (alive := np.abs(rates[rates.real * began < 45])).size:
        if not lengths or 3.0 / np.max(alive) > 1.001 * lengths[-1]:
            steps = linalg.expm(-A * (3.0 / np.max(alive) * np.append((1 + nodes) / 2, 1.0))[:, None, None])
            lengths.append(3.0 / np.max(alive))
        else:
            lengths.append(lengths[-1])
        moved = steps @ here
        values.append(moved[:-1] @ u)
        here = moved[-1]
        began += lengths[-1]
    return np.array(lengths), np.array(values)
