"""The fluctuation constant V in closed form for H = ½zᵀPz and h linear, quadratic or ρ(uᵀz).

All formulas use solves, never inverses: for a precision matrix of condition number κ the relative error is about κ·10⁻¹⁶.
For ρ(uᵀz), V = 2∫₀^∞ Cov(h(z_0), h(z_t)) dt by Mehler's formula: with r(t) the correlation of uᵀz_0 and uᵀz_t, ρ = Σ c_n He_n
gives Cov = Σ_{n≥1} c_n² r(t)ⁿ. The squares of the terms left out sum to what the others leave of Var ρ, which bounds their part.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import legendre
from scipy import linalg

from gyromc.errors import InvalidInput
from gyromc.observables import Ridge
from gyromc.prediction.answers import RESOLVED, Number


def fluctuation_constant(D, Q, P, u) -> float:
    """V = 2 uᵀA⁻¹DA⁻ᵀu, A = (D+Q)P, for H = ½zᵀPz and h = uᵀz (E8); with Q = 0 it is V_0."""
    w = poisson_linear(D, Q, P, u)
    return float(2 * w @ D @ w)  # E8


def poisson_linear(D, Q, P, u) -> np.ndarray:
    """A⁻ᵀu: the Poisson equation 𝒜φ = uᵀz is solved by φ(z) = -(A⁻ᵀu)ᵀz."""
    return np.linalg.solve(D - Q, precision_solve(P, np.asarray(u, float)))  # A⁻ᵀ = (D-Q)⁻¹P⁻¹


def precision_solve(P: np.ndarray, b: np.ndarray) -> np.ndarray:
    """P⁻¹b by Cholesky; `InvalidInput` with the smallest eigenvalue when P is not positive definite."""
    # Scaled to a unit diagonal: that costs no digits and lowers the condition number.
    scale = 1 / np.sqrt(np.clip(np.diag(P), np.finfo(float).tiny, None))
    try:
        factor = linalg.cho_factor(P * scale[:, None] * scale)
    except linalg.LinAlgError:
        smallest = f"its smallest eigenvalue is {np.linalg.eigvalsh(P)[0]:.6g}"
        remedy = "Without a finite integral of exp(-U) there is nothing to predict; add a prior."
        raise InvalidInput(f"The precision must be positive definite: {smallest}. {remedy}") from None
    return scale.reshape((-1,) + (1,) * (b.ndim - 1)) * linalg.cho_solve(factor, (b.T * scale).T)


def nonreversible_constants(J, P, u) -> tuple[float, float]:
    """(V_J, V_0) of non-reversible Langevin dynamics: 2wᵀ(I+J)⁻¹(I+J)⁻ᵀw and 2|w|², w = P⁻¹u (E9)."""
    w = precision_solve(P, u)
    turned = np.linalg.solve(np.eye(len(J)) - J, w)  # (I+J)⁻ᵀw, since Jᵀ = -J
    return float(2 * turned @ turned), float(2 * w @ w)  # E9


def hfhr_constants(K, alpha: float, gamma: float, u) -> tuple[float, float]:
    """(V, V_0) of Hessian-free high-resolution dynamics on U = ½θᵀKθ, h = uᵀθ (E10)."""
    w = precision_solve(K, u)
    return float(2 * gamma / (1 + alpha * gamma) * w @ w), float(2 / alpha * w @ w)  # E10


def gaul_constants(K, C, a: float, gamma: float, u) -> tuple[float, float]:
    """(V, V_0) of gradient-adjusted underdamped dynamics on U = ½θᵀKθ, h = uᵀθ (E11)."""
    w, rest = precision_solve(K, u), np.eye(len(C)) - C
    S = a * C - rest @ rest / (4 * gamma)
    V = 2 * gamma / (1 + a * gamma) * w @ np.linalg.solve(C, w)  # E11
    return float(V), float(2 * w @ np.linalg.solve(S, w))  # E11


def poisson_quadratic(D, Q, P, matrix) -> np.ndarray:
    """Ψ with 𝒜(zᵀΨz) = zᵀSz - μ: the Lyapunov equation AᵀΨ + ΨA = -S, S = `matrix` symmetric."""
    Psi = linalg.solve_continuous_lyapunov(((D + Q) @ P).T, -matrix)
    return (Psi + Psi.T) / 2


def quadratic_fluctuation_constant(D, Q, P, matrix=None, linear=None) -> float:
    """V of h(z) = zᵀSz + sᵀz on H = ½zᵀPz, S = `matrix` symmetric, s = `linear`: φ is quadratic too, so V needs two solves."""
    V = 0.0 if linear is None else fluctuation_constant(D, Q, P, linear)
    if matrix is None:
        return V
    Psi = poisson_quadratic(D, Q, P, matrix)
    spread = precision_solve(P, Psi)  # P⁻¹Ψ
    return V + float(2 * 4 * np.sum((Psi @ D) * spread))  # E6: ∇φ = 2Ψz, μ(zzᵀ) = P⁻¹


def strictness_integral(D, Q, P, matrix=None, linear=None) -> float:
    """∫ |⟨Q∇H, ∇φ₀⟩|² dμ for h(z) = zᵀSz + sᵀz: positive exactly when V < V_0."""
    total = 0.0
    if linear is not None:
        slope = Q @ poisson_linear(D, np.zeros_like(Q), P, linear)
        total += float(slope @ P @ slope)  # E7: ⟨QPz, ψ⟩ with μ(zzᵀ) = P⁻¹
    if matrix is not None:
        form = 2 * P @ Q.T @ poisson_quadratic(D, np.zeros_like(Q), P, matrix)
        B = precision_solve(P, (form + form.T) / 2)  # P⁻¹ of the form zᵀBz, which has mean zero
        total += float(2 * np.sum(B * B.T))  # E7
    return total


MOST_TERMS = 1000
REACH = 14.0  # standard deviations
NODES = 2**13 + 1  # of the trapezoidal rule, which converges very fast for smooth profiles
IN_TIME = 32  # Gauss-Legendre nodes on an interval of time
Profile = Callable[[np.ndarray], np.ndarray]


def ridge_expectation(profile: Profile, mean: float, deviation: float) -> Number:
    """E ρ(mean + deviation·N(0, 1)) with its error."""
    return _profile(profile, mean, deviation)[-1]


def ridge_moments(h: Ridge, K: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """μ(h) and Var_μ(h) of ρ(aᵀθ) on N(mean, K⁻¹)."""
    deviation = math.sqrt(float(h.direction @ precision_solve(K, h.direction)))
    _, weights, rho, center = _profile(h.rho, float(h.direction @ mean), deviation)
    return center.value, float(weights @ (rho - center.value) ** 2)


def _profile(profile: Profile, mean: float, deviation: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, Number]:
    """Nodes, weights of the standard normal law, ρ, and E ρ with what every second node changes as its error."""
    x = np.linspace(-REACH, REACH, NODES)
    weights, rho = np.exp(-(x**2) / 2), np.asarray(profile(mean + deviation * x), float)
    weights /= weights.sum()
    center, coarse = float(weights @ rho), float(weights[::2] @ rho[::2] / weights[::2].sum())
    return x, weights, rho, Number(center, abs(center - coarse) + RESOLVED * math.sqrt(weights @ rho**2))


def ridge_constants(D, Q, P, u, profile: Profile, mean: float) -> tuple[Number, Number]:
    """V and V_0 of h(z) = ρ(mean + uᵀz) for H = ½zᵀPz, with bounds on their errors; `profile` is ρ on arrays."""
    w = precision_solve(P, u)
    deviation = math.sqrt(u @ w)
    x, weights, rho, center = _profile(profile, mean, deviation)
    rho = rho - center.value
    variance = float(weights @ rho**2)
    below, here = np.zeros_like(x), np.exp(-(x**2) / 4)  # He_n/√n! times e^{-x²/4}, which stays bounded
    weights, squares = weights * rho * np.exp(x**2 / 4), []  # c_n²
    for n in range(MOST_TERMS):
        below, here = here, (x * here - math.sqrt(n) * below) / math.sqrt(n + 1)
        squares.append(float(weights @ here) ** 2)
        if n % 20 == 19 and variance - sum(squares) < RESOLVED * variance:
            break
    left = max(variance - sum(squares), RESOLVED * variance) + center.error * math.sqrt(variance)
    constant = lambda A: _time_integral(A @ P, u / deviation, w / deviation, np.array(squares), left)
    moving = constant(D + Q)
    return moving, constant(D) if np.any(Q) else moving


def _time_integral(A: np.ndarray, u: np.ndarray, w: np.ndarray, squares: np.ndarray, left: float) -> Number:
    """2∫₀^∞ Σ squares_n r(t)ⁿ dt, r(t) = uᵀe^{-At}w, and 2·left·∫|r|^{N+1}dt: what the terms beyond N add at most."""
    (nodes, weights), rates = legendre.leggauss(IN_TIME), np.linalg.eigvals(A)
    # Intervals of time, short against the modes still alive in them, and coefficients of r in Legendre polynomials on each.
    lengths, values, began, length, here, steps = [], [], 0.0, 0.0, np.asarray(w, float), np.empty(0)  # here = e^{-At}w
    while (alive := np.abs(rates[rates.real * began < 45])).size:
        if 3.0 / np.max(alive) > 1.001 * length:
            length = 3.0 / np.max(alive)
            steps = linalg.expm(-A * (length * np.append((1 + nodes) / 2, 1.0))[:, None, None])
        moved = steps @ here
        lengths.append(length)
        values.append(moved[:-1] @ u)
        here, began = moved[-1], began + length
    expand = weights[:, None] * legendre.legvander(nodes, IN_TIME - 1) * (np.arange(IN_TIME) + 0.5)
    lengths, coefficients, found = np.array(lengths), np.array(values) @ expand, []
    for parts in (12, 16):  # of each interval; the first is graded towards 0, where r = 1
        graded, totals = np.append(-1.0, -1 + 2.0 ** (np.arange(parts) - parts + 2)), np.zeros(2)
        for edges, used in ((graded, slice(1)), (np.linspace(-1, 1, parts + 1), slice(1, None))):
            half = np.diff(edges)[:, None] / 2
            points = (edges[:-1, None] + half + half * nodes).ravel()
            r = np.clip(coefficients[used] @ legendre.legvander(points, IN_TIME - 1).T, -1.0, 1.0)
            covariance = np.zeros_like(r)
            for square in squares[::-1]:
                covariance = (covariance + square) * r  # Mehler
            both = covariance, np.abs(r) ** (len(squares) + 1)
            totals += [lengths[used] / 2 @ f @ (half * weights).ravel() for f in both]
        found.append(totals)
    (coarse, _), (value, beyond) = found
    return Number(float(2 * value), float(2 * (abs(value - coarse) + left * beyond + RESOLVED * abs(value))))
