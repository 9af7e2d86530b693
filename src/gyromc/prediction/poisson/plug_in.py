"""The plug-in estimate of V(h) for any target from a sample of it (T3): Galerkin with the sample's averages.

Input: a weighted sample of θ, values of h, D and Q. Output: V, V_0, their errors and φ as a polynomial. ∇U is not needed, and one
sample serves every (D, Q). The momentum r is independent of θ and standard normal, so its averages are exact. The sampling error
and the bias of a quadratic form in noisy averages come from the jackknife over blocks of consecutive draws. The truncation error
is the change from two degrees less; it is added to the sampling error.
"""

import dataclasses
import math

import numpy as np

from gyromc.checks import require
from gyromc.prediction.poisson.hermite import Polynomial, count, hermite, ladders, multi_indices
from gyromc.shape.importance import Sample

MOST_FUNCTIONS = 450
BLOCKS = 20
RICH = 15  # draws needed per basis function


@dataclasses.dataclass(frozen=True, eq=False)
class PlugIn:
    """V and V_0 from a sample."""

    variance: float
    reversible_variance: float
    std_error: float  # sampling and truncation together
    sampling_error: float
    reversible_std_error: float
    degree: int
    functions: int
    too_rich: bool
    poisson: Polynomial  # φ
    reversible_poisson: Polynomial  # φ₀

    @property
    def method(self) -> str:
        """The method and its error, for tables."""
        share = 100 * self.std_error / self.variance if self.variance > 0 else math.inf
        return f"plug-in (se {share:.2g} %)" + (", basis too rich for the sample" if self.too_rich else "")


def best_degree(dimension: int, effective_size: float) -> int:
    """The highest degree, at most 7, for which the sample has `RICH` draws per function; at least 1."""
    allowed = [p for p in range(1, 8) if count(dimension, p) <= min(MOST_FUNCTIONS, effective_size / RICH)]
    return max(allowed, default=1)


def plug_in(sample: Sample, h: np.ndarray, D: np.ndarray, Q: np.ndarray, degree: int | None = None) -> PlugIn:
    """V̂ = 2bᵀS⁻¹b with S_ij = mean ∇ψᵢᵀ(D-Q)∇ψⱼ and bᵢ = cov(ψᵢ, h), h given at the sample's points.

    `D` and `Q` act on θ, or on (θ, r) when twice as large; `degree` of the polynomials ψ defaults to the highest that the
    sample allows.

    ```python
    import numpy as np
    from gyromc.shape.importance import Sample
    from gyromc.prediction.poisson.plug_in import plug_in
    theta = np.random.default_rng(0).standard_normal((20_000, 1))
    sample = Sample(theta, np.full(20_000, 1 / 20_000), 20_000.0, "an example")
    found = plug_in(sample, theta[:, 0], np.eye(1), np.zeros((1, 1)))
    assert abs(found.variance - 2) < 5 * found.std_error
    ```
    """
    n, d = D.shape[0], sample.theta.shape[1]
    require(n in (d, 2 * d), f"`D` must be {d} × {d} or {2 * d} × {2 * d}: got {D.shape}.")
    degree = best_degree(n, sample.effective_size) if degree is None else degree
    require(count(n, degree) <= 2000, f"Degree {degree} in {n} dimensions has {count(n, degree)} functions.")
    powers = multi_indices(n, degree)
    center = sample.weights @ sample.theta
    scatter = (sample.theta - center).T @ ((sample.theta - center) * sample.weights[:, None])
    W = np.linalg.inv(np.linalg.cholesky(scatter))
    lift = np.eye(n)
    lift[:d, :d] = W
    moments = _moments(sample, h, powers, (sample.theta - center) @ W.T, lift @ D @ lift.T, lift @ Q @ lift.T)
    values, solutions = _solve(*(part.sum(axis=0) for part in moments))
    errors, bias = _jackknife(moments, values)
    V, V0 = values - bias
    missing = (
        np.abs(values - _lower_degree(moments, powers[1:].sum(axis=1) <= degree - 2)) if degree > 2 else np.zeros(2)
    )
    sampling, errors = float(errors[0]), np.hypot(errors, missing)
    return PlugIn(
        variance=float(V),
        reversible_variance=float(V0),
        std_error=float(errors[0]),
        sampling_error=sampling,
        reversible_std_error=float(errors[1]),
        degree=degree,
        functions=count(n, degree),
        too_rich=count(n, degree) > sample.effective_size / RICH,
        poisson=Polynomial(powers, center, W, np.append(0.0, -solutions[0])),
        reversible_poisson=Polynomial(powers, center, W, np.append(0.0, -solutions[1])),
    )


def _moments(sample: Sample, h: np.ndarray, powers: np.ndarray, x: np.ndarray, D: np.ndarray, Q: np.ndarray):
    """Block sums of weights, ψ, h, ψh, and the two parts of S; D and Q in whitened coordinates.

    Derivatives of Hermite products are Hermite products, so one matrix of averages ⟨q_a q_b⟩ over θ holds everything.
    """
    d = x.shape[1]
    of_theta, a = np.unique(powers[:, :d], axis=0, return_inverse=True)
    of_r, b = np.unique(powers[:, d:], axis=0, return_inverse=True)
    a, b = a.ravel()[1:], b.ravel()[1:]
    down, r_down = ladders(of_theta), ladders(of_r)
    down = [step.toarray() for step in down] if len(of_theta) <= 200 else down  # small matrices are faster in full
    same, level = np.eye(len(of_r))[np.ix_(b, b)], np.all(of_r == 0, axis=1)[b]  # ψ with r in it has mean zero, exactly
    steps = [step.toarray()[np.ix_(b, b)] for step in r_down]
    known = {place: _momentum_averages(C, d, r_down, b) for place, C in ((4, D), (5, -Q)) if r_down}
    parts: list[list[np.ndarray]] = [[] for _ in range(6)]
    for rows in np.array_split(np.arange(len(x)), BLOCKS):
        w, q = sample.weights[rows], hermite(x[rows], of_theta)
        mass = q.T @ (q * w[:, None])
        parts[0].append(np.array(w.sum()))
        parts[1].append(np.where(level, (w @ q)[a], 0.0))
        parts[2].append(np.array(w @ h[rows]))
        parts[3].append(np.where(level, ((w * h[rows]) @ q)[a], 0.0))
        slopes = np.stack([mass @ step for step in down])  # ⟨q_a, ∂ⱼq_b⟩
        for place, C in ((4, D), (5, -Q)):
            along = np.tensordot(C[:d, :d], slopes, axes=1)
            within = np.sum([step.T @ part for step, part in zip(down, along, strict=True)], axis=0)
            S = within[np.ix_(a, a)] * same  # T3
            if len(C) > d:
                S += _momentum_part(C, d, mass, slopes, steps, known[place], a)
            parts[place].append(S)
    return tuple(np.stack(part) for part in parts)


def _momentum_part(C, d: int, mass, slopes, steps, rr, a) -> np.ndarray:
    """The terms of Σ C_ij ⟨∂ᵢψ, ∂ⱼψ′⟩ with a derivative in r, whose averages (`steps`, `rr`) are known exactly."""
    S = mass[np.ix_(a, a)] * rr
    for l, step in enumerate(steps):
        forth, back = C[:d, d + l], C[d + l, :d]
        if np.any(forth):
            S += np.tensordot(forth, slopes, axes=1).T[np.ix_(a, a)] * step
        if np.any(back):
            S += np.tensordot(back, slopes, axes=1)[np.ix_(a, a)] * step.T
    return S


def _momentum_averages(C, d: int, down, b) -> np.ndarray:
    """Σ C_kl ⟨∂ₖHe, ∂ₗHe′⟩ over the momenta, for every pair of basis functions."""
    total = np.zeros((down[0].shape[0],) * 2)
    for k, l in zip(*np.nonzero(C[d:, d:]), strict=True):
        total += C[d + k, d + l] * (down[k].T @ down[l]).toarray()
    return total[np.ix_(b, b)]


def _solve(weight, psi, h, psi_h, S_D, S_Q):
    """(V, V_0) and the solutions S⁻¹b."""
    b = psi_h / weight - psi * h / weight**2
    x = np.linalg.solve((S_D + S_Q) / weight, b)
    x0 = np.linalg.solve(S_D / weight, b)
    return np.array([2 * b @ x, 2 * b @ x0]), (x, x0)  # T3


def _lower_degree(moments, kept: np.ndarray) -> np.ndarray:
    """(V, V_0) in a smaller basis: two degrees less, because odd functions use only every other degree."""
    weight, psi, h, psi_h, S_D, S_Q = (part.sum(axis=0) for part in moments)
    inner = np.ix_(kept, kept)
    return _solve(weight, psi[kept], h, psi_h[kept], S_D[inner], S_Q[inner])[0]


def _jackknife(moments, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and biases of (V, V_0), leaving out one block at a time."""
    totals = [part.sum(axis=0) for part in moments]
    left = np.array([_solve(*(t - p[k] for t, p in zip(totals, moments, strict=True)))[0] for k in range(BLOCKS)])
    scatter = (BLOCKS - 1) / BLOCKS * np.sum((left - left.mean(axis=0)) ** 2, axis=0)
    return np.sqrt(scatter), (BLOCKS - 1) * (left.mean(axis=0) - values)


def residual_share(poisson: Polynomial, z: np.ndarray, forces: np.ndarray, h: np.ndarray, D, Q) -> float:
    """E[(h - μ - 𝒜φ)²] / Var h over draws z with ∇H and h at each: 0 when φ solves the Poisson equation, 1 when it explains nothing."""
    slope, curve = poisson.gradients(z), poisson.hessians(z)
    image = np.einsum("sij,ij->s", curve, D) - np.sum(slope * (forces @ (D + Q).T), axis=1)  # E2
    h = h - np.mean(h)
    return float(np.mean((h - image) ** 2) / np.mean(h**2))
