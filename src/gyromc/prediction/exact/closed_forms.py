"""The fluctuation constant V in closed form for H = ½zᵀPz and h linear or quadratic.

Input: D, Q, P and the coefficients of h. Output: V. All formulas use solves, never inverses, in float64: for a precision
matrix of condition number κ the relative error is about κ·10⁻¹⁶, which is the effect of rounding P itself.
"""

import numpy as np
from scipy import linalg

from gyromc.checks import numbers, require
from gyromc.errors import InvalidInput


def fluctuation_constant(D, Q, P, u) -> float:
    """V = 2 uᵀA⁻¹DA⁻ᵀu, A = (D+Q)P, for H = ½zᵀPz and h = uᵀz (E8); with Q = 0 it is V_0.

    `P` is the precision of the state z; `u` is padded with zeros on r for an augmented state.

    ```python
    import numpy as np
    from gyromc.prediction.exact.closed_forms import fluctuation_constant
    J = np.array([[0.0, -1.0], [1.0, 0.0]])
    assert abs(fluctuation_constant(np.eye(2), J, np.eye(2), [1.0, 0.0]) - 1.0) < 1e-15
    ```
    """
    D = numbers(D, "D")
    w = poisson_linear(D, Q, P, u)
    return float(2 * w @ D @ w)  # E8


def poisson_linear(D, Q, P, u) -> np.ndarray:
    """A⁻ᵀu: the Poisson equation 𝒜φ = uᵀz is solved by φ(z) = -(A⁻ᵀu)ᵀz."""
    D, Q, P, u = numbers(D, "D"), numbers(Q, "Q"), numbers(P, "P"), numbers(u, "u")
    require(
        D.ndim == 2 and D.shape == Q.shape == P.shape and u.shape == D.shape[:1],
        f"`D`, `Q`, `P` must be n × n and `u` of length n: got {D.shape}, {Q.shape}, {P.shape} and {u.shape}.",
    )
    return np.linalg.solve(D - Q, precision_solve(P, u))  # A⁻ᵀ = (D-Q)⁻¹P⁻¹


def precision_solve(P: np.ndarray, b: np.ndarray) -> np.ndarray:
    """P⁻¹b by Cholesky; `InvalidInput` with the smallest eigenvalue when P is not positive definite."""
    # Scaled to a unit diagonal: that costs no digits and lowers the condition number.
    scale = 1 / np.sqrt(np.clip(np.diag(P), np.finfo(float).tiny, None))
    try:
        factor = linalg.cho_factor(P * scale[:, None] * scale)
    except linalg.LinAlgError:
        raise InvalidInput(
            f"The precision must be positive definite: its smallest eigenvalue is {np.linalg.eigvalsh(P)[0]:.6g}. "
            "Without a finite integral of exp(-U) there is nothing to predict; add a prior."
        ) from None
    return scale.reshape((-1,) + (1,) * (b.ndim - 1)) * linalg.cho_solve(factor, (b.T * scale).T)


def nonreversible_constants(J, P, u) -> tuple[float, float]:
    """(V_J, V_0) of non-reversible Langevin dynamics: 2wᵀ(I+J)⁻¹(I+J)⁻ᵀw and 2|w|², w = P⁻¹u (E9)."""
    J, P, u = numbers(J, "J"), numbers(P, "P"), numbers(u, "u")
    w = precision_solve(P, u)
    turned = np.linalg.solve(np.eye(len(J)) - J, w)  # (I+J)⁻ᵀw, since Jᵀ = -J
    return float(2 * turned @ turned), float(2 * w @ w)  # E9


def hfhr_constants(K, alpha: float, gamma: float, u) -> tuple[float, float]:
    """(V, V_0) of Hessian-free high-resolution dynamics on U = ½θᵀKθ, h = uᵀθ (E10)."""
    w = precision_solve(numbers(K, "K"), numbers(u, "u"))
    return float(2 * gamma / (1 + alpha * gamma) * w @ w), float(2 / alpha * w @ w)  # E10


def gaul_constants(K, C, a: float, gamma: float, u) -> tuple[float, float]:
    """(V, V_0) of gradient-adjusted underdamped dynamics on U = ½θᵀKθ, h = uᵀθ (E11)."""
    C = numbers(C, "C")
    C = np.diag(C) if C.ndim == 1 else C
    w = precision_solve(numbers(K, "K"), numbers(u, "u"))
    rest = np.eye(len(C)) - C
    S = a * C - rest @ rest / (4 * gamma)
    V = 2 * gamma / (1 + a * gamma) * w @ np.linalg.solve(C, w)  # E11
    return float(V), float(2 * w @ np.linalg.solve(S, w))  # E11


def poisson_quadratic(D, Q, P, matrix) -> np.ndarray:
    """Ψ with 𝒜(zᵀΨz) = zᵀSz - μ: the Lyapunov equation AᵀΨ + ΨA = -S, S = `matrix` symmetric."""
    A = (numbers(D, "D") + numbers(Q, "Q")) @ numbers(P, "P")
    Psi = linalg.solve_continuous_lyapunov(A.T, -numbers(matrix, "matrix"))
    return (Psi + Psi.T) / 2


def quadratic_fluctuation_constant(D, Q, P, matrix, linear=None) -> float:
    """V of h(z) = zᵀSz + sᵀz on H = ½zᵀPz, S = `matrix` symmetric, s = `linear`: φ is quadratic too, so V needs two solves."""
    D = numbers(D, "D")
    Psi = poisson_quadratic(D, Q, P, matrix)
    spread = precision_solve(numbers(P, "P"), Psi)  # P⁻¹Ψ
    V = 2 * 4 * np.sum((Psi @ D) * spread)  # E6: ∇φ = 2Ψz, μ(zzᵀ) = P⁻¹
    return float(V) + (0.0 if linear is None else fluctuation_constant(D, Q, P, linear))


def strictness_integral(D, Q, P, matrix=None, linear=None) -> float:
    """∫ |⟨Q∇H, ∇φ₀⟩|² dμ for h(z) = zᵀSz + sᵀz: positive exactly when V < V_0."""
    D, Q, P = numbers(D, "D"), numbers(Q, "Q"), numbers(P, "P")
    total = 0.0
    if linear is not None:
        slope = Q @ poisson_linear(D, np.zeros_like(Q), P, linear)
        total += float(slope @ P @ slope)  # E7: ⟨QPz, ψ⟩ with μ(zzᵀ) = P⁻¹
    if matrix is not None:
        form = 2 * P @ Q.T @ poisson_quadratic(D, np.zeros_like(Q), P, matrix)
        B = precision_solve(P, (form + form.T) / 2)  # P⁻¹ of the form zᵀBz, which has mean zero
        total += float(2 * np.sum(B * B.T))  # E7
    return total
