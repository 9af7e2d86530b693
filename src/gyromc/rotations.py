"""Rotations Q that are best in a stated sense, for a target with the Hessian P and a given D (T4).

P is a matrix, or products P·x. With D = RRᵀ and Q = RJRᵀ the drift (D+Q)P is similar to (I+J)K, K = RᵀPR, so each problem is
solved for D = I: `pairing` by a closed form, `fastest` for the largest spectral gap (Lelièvre, Nier, Pavliotis 2013),
`least_variance` of given linear observables for a size of Q, `equal_bias` for all of them at equal step-size bias, among
rotations of pairs of eigenvectors, and `coupling_rates` among those of each eigenvector with its momentum.
`bias_matrix` and `all_squares_variance` measure them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from jaxtyping import Float

from gyromc.checks import explained, whole
from gyromc.operators import LowRank

Matrix = Float[np.ndarray, "n n"]
Products = scipy.sparse.linalg.LinearOperator
MOST_PRODUCTS = 100_000  # of conjugate gradients


def whitened(P: Matrix, D: Matrix, Q: Matrix) -> Matrix:
    """Ã = P^{1/2}(D+Q)P^{1/2}: the drift where the target is a standard normal law."""
    eigenvalues, basis = np.linalg.eigh(P)
    root = (basis * np.sqrt(eigenvalues)) @ basis.T
    return root @ (D + Q) @ root


def bias_matrix(A: Matrix) -> Matrix:
    """E with ÃE + EÃᵀ = ÃÃᵀ: Euler's covariance is I + ηE to first order, where the target is a standard normal law."""
    return scipy.linalg.solve_continuous_lyapunov(A, A @ A.T)  # T4


def all_squares_variance(A: Matrix) -> float:
    """The mean of V/Var over all quadratic observables: (2/(n(n+1)/2)) Σ_{a≤b} 1/(μ_a + μ_b), μ the spectrum of Ã."""
    mu = np.linalg.eigvals(A)
    upper = np.triu_indices(len(mu))
    return float(2 * np.mean((1 / (mu[upper[0]] + mu[upper[1]])).real))  # T4


def neighbours(eigenvalues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours among sorted eigenvalues as pairs (λ_a, λ_b); with an odd number the largest is left alone."""
    paired = eigenvalues[: len(eigenvalues) // 2 * 2]
    return paired[::2], paired[1::2]


def planes(basis: np.ndarray, rates: np.ndarray) -> LowRank:
    """The skew map that turns orthonormal columns 2i and 2i+1 of `basis` with the rate_i, and nothing else."""
    first, second = basis[:, : 2 * len(rates) : 2], basis[:, 1 : 2 * len(rates) : 2]
    turned, both = np.concatenate([second, first], axis=1), np.concatenate([first, second], axis=1)
    return LowRank(turned, np.concatenate([rates, -rates]), both)


def products(apply: Callable, dim: int) -> Products:
    """The map x ↦ Kx for SciPy, which would call it at once to find its type."""
    matvec = lambda x: np.asarray(apply(x.ravel()), float)
    return Products((dim, dim), matvec=matvec, dtype=float)  # type: ignore[call-issue]  # incomplete stubs


def spectrum(K: Matrix | Products, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Rising eigenvalues, their eigenvectors, and the largest eigenvalue: all of a matrix, the `count` smallest of products."""
    if isinstance(K, np.ndarray):
        eigenvalues, basis = np.linalg.eigh(K)
        return eigenvalues, basis, float(eigenvalues[-1])
    dim = K.shape[0]
    count, start = min(whole(count, "count", least=2), dim - 2) // 2 * 2, np.random.default_rng(0).standard_normal(dim)
    with _finding(dim):
        largest = scipy.sparse.linalg.eigsh(K, 1, which="LA", v0=start, return_eigenvectors=False)[0]
        # the smallest eigenvalues of K are the largest of λ_max - K
        shifted = products(lambda x: largest * x - K.matvec(x), dim)
        found, basis = scipy.sparse.linalg.eigsh(shifted, count, which="LA", v0=start, ncv=min(dim, 4 * count + 40))
    order = np.argsort(-found)
    return largest - found[order], basis[:, order], float(largest)


def solved(K: Matrix | Products, U: np.ndarray) -> np.ndarray:
    """K⁻¹U, from products by conjugate gradients."""
    if isinstance(K, np.ndarray):
        return np.linalg.solve(K, U)
    with _finding(len(U)):
        found = [scipy.sparse.linalg.cg(K, u, rtol=1e-13, maxiter=MOST_PRODUCTS) for u in U.T]
        if any(left or not np.all(np.isfinite(w)) for w, left in found):
            raise ArithmeticError(f"K⁻¹u was not reached in {MOST_PRODUCTS} products")
    return np.stack([w for w, _ in found], axis=1)


def _finding(dim: int):
    """Around a user's function, or an iteration with it."""
    wanted = f"It maps {dim} numbers to {dim}, symmetric, positive definite, with eigenvalues that differ."
    return explained("The eigenvectors of `K` were not found", wanted)


def pairing(K: Matrix | Products, count: int) -> LowRank:
    """J that turns neighbouring eigenvectors: no pair adds more bias than the largest eigenvalue has anyway."""
    eigenvalues, basis, largest = spectrum(K, count)
    a, b = neighbours(eigenvalues)
    return planes(basis, np.sqrt(np.maximum(0.0, 2 * largest / (a + b) - 1)))  # T4


def equal_bias(K: Matrix | Products, bias: float, count: int) -> LowRank:
    """J that turns neighbouring eigenvectors as fast as a step-size bias allows, given in multiples of that of J = 0."""
    eigenvalues, basis, largest = spectrum(K, count)
    return planes(basis, rates_at_bias(*neighbours(eigenvalues), bias * largest / 2))


def rates_at_bias(a: np.ndarray, b: np.ndarray, slope: float) -> np.ndarray:
    """The rates at which pairs with the eigenvalues a, b have λ_max(E) = slope, which is at least max(a, b)/2."""
    # With s = a+b, δ = |a-b|/s and τ² = 1 + 4abω²/s² the block has λ_max(E) = (s/4)(τ² + δτ).
    s, delta = a + b, np.abs(a - b) / (a + b)
    tau = (np.sqrt(delta**2 + 16 * slope / s) - delta) / 2
    return np.sqrt(np.maximum(0.0, tau**2 - 1) / (4 * a * b)) * s


def coupling_rates(eigenvalues: np.ndarray, blocks: Sequence[np.ndarray], largest: float, bias: float) -> np.ndarray:
    """How fast each eigenvector of K turns with its momentum, λ_max(E_θθ) being `bias` times that of Q = 0."""
    # `blocks`: D_θθ, D_θr and D_rr at each eigenvector; `largest`: the largest eigenvalue of D_θθK. In whitened coordinates a
    # block of the drift is [[p, q-n], [q+n, r]] with E_θθ = (n² - nq)/(p+r) + p/2 and V/Var = 2r/(pr-q²+n²) for θ; n is the
    # larger root of E_θθ = e.
    root = np.sqrt(eigenvalues)
    p, q, r = blocks[0] * eigenvalues, blocks[1] * root, blocks[2]
    spare = np.maximum(bias * largest / 2 - p / 2, 0.0)
    return (q + np.where(q < 0, -1, 1) * np.sqrt(q**2 + 4 * (p + r) * spare)) / 2 / root


def fastest(K: Matrix) -> Matrix:
    """J with all eigenvalues of (I+J)K on the line Re = tr(K)/n, the most that any J reaches."""
    # In an orthonormal basis where K has a constant diagonal, N = K^{1/2}JK^{1/2} with N_jk = K_jk(c_j+c_k)/(c_j-c_k) makes
    # K + N - tr(K)/n skew in the scalar product diag(1/c), for any distinct positive c; here c = 1 … n.
    n = len(K)
    eigenvalues, basis = np.linalg.eigh(K)
    turn = _constant_diagonal(eigenvalues)
    S = turn.T @ (eigenvalues[:, None] * turn)
    c = np.arange(1.0, n + 1)
    gap = c[:, None] - c + np.eye(n)
    N = np.where(np.eye(n) > 0, 0.0, S * (c[:, None] + c) / gap)
    half = basis / np.sqrt(eigenvalues)
    return half @ (turn @ N @ turn.T) @ half.T


def _constant_diagonal(eigenvalues: np.ndarray) -> Matrix:
    """An orthogonal matrix whose columns v all have vᵀ diag(eigenvalues) v equal to the mean: n-1 plane rotations."""
    n, mean = len(eigenvalues), float(np.mean(eigenvalues))
    S, turn = np.diag(eigenvalues), np.eye(n)
    for _ in range(n - 1):
        diagonal = np.diag(S)
        i, j = int(np.argmax(diagonal)), int(np.argmin(diagonal))
        if diagonal[i] - diagonal[j] <= 1e-14 * mean:
            break
        # the tangent that moves entry i to the mean: (S_ii - m) + 2t S_ij + t²(S_jj - m) = 0
        over, cross, under = S[i, i] - mean, S[i, j], mean - S[j, j]
        root = np.sqrt(cross**2 + over * under)
        t = (cross + root) / under if cross >= 0 else over / (root - cross)
        plane = np.array([[1.0, -t], [t, 1.0]]) / np.hypot(1.0, t)
        turn[:, [i, j]] = turn[:, [i, j]] @ plane
        S = turn.T @ (eigenvalues[:, None] * turn)
    return turn


def least_variance(W: np.ndarray, rate: float) -> LowRank:
    """J of spectral norm `rate` with the least Σ V(uᵀθ) over the columns w = K⁻¹u of W."""
    # V = 2wᵀ(I + JᵀJ)⁻¹w is at least 2|w|²/(1 + rate²), and is that where J turns every w at the full rate. With as
    # many observables as parameters and both odd, one direction cannot turn: the one that matters least.
    basis, sizes, _ = np.linalg.svd(W, full_matrices=False)
    basis = basis[:, sizes > 1e-12 * sizes[0]]
    if basis.shape[1] % 2 and basis.shape[1] < len(W):  # a partner, orthogonal to all of them
        other = np.zeros(len(W))
        other[np.argmin(np.sum(basis**2, axis=1))] = 1.0
        for _ in range(2):
            other = other - basis @ (basis.T @ other)
            other /= np.linalg.norm(other)
        basis = np.column_stack([basis, other])
    return planes(basis, np.full(basis.shape[1] // 2, rate))
