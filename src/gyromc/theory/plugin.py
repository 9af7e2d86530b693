"""T3: V(h) for any target from any sample of it, by Galerkin with the sample's own averages.

Receives a weighted sample of θ, values of h, D and Q; hands on V, V_0, their errors and φ as a polynomial. Needs no ∇U, and one
sample serves every (D, Q). The momentum r is independent of θ and standard normal, so its averages are exact, not sampled.
Sampling errors, and the bias of a quadratic form in noisy averages, come from the jackknife over blocks of consecutive draws; what
the basis misses is judged by the change from two degrees less, and added to the error.
"""

import dataclasses
import itertools
import math

import numpy as np

from gyromc.checks import require
from gyromc.theory.laplace import Sample

MOST_FUNCTIONS = 800
BLOCKS = 25
RICH = 20  # draws needed per basis function


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """Σ c_k Π_j He_{power_kj}(x_j)/√(power_kj!), x = (W(θ - center), r): a solution φ of the Poisson equation."""

    powers: np.ndarray  # functions × n
    center: np.ndarray
    whitening: np.ndarray  # W
    coefficients: np.ndarray

    def __call__(self, z):
        """φ(z), for JAX arrays too."""
        import jax.numpy as jnp

        d = len(self.center)
        x = jnp.concatenate([jnp.asarray(self.whitening) @ (z[:d] - self.center), z[d:]])
        table = [jnp.ones_like(x), x]
        for p in range(1, int(self.powers.max(initial=1))):
            table.append(x * table[p] - p * table[p - 1])
        scaled = jnp.stack([t / math.sqrt(math.factorial(p)) for p, t in enumerate(table)])
        return jnp.asarray(self.coefficients) @ jnp.prod(scaled[self.powers, np.arange(x.shape[0])], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class PlugIn:
    """V and V_0 from a sample."""

    variance: float
    reversible_variance: float
    std_error: float  # sampling and truncation together
    reversible_std_error: float
    degree: int
    functions: int
    too_rich: bool
    poisson: Polynomial  # φ
    reversible_poisson: Polynomial  # φ₀

    @property
    def method(self) -> str:
        """How V is known, in words."""
        share = 100 * self.std_error / self.variance if self.variance > 0 else math.inf
        return f"plug-in (se {share:.2g} %)" + (", basis too rich for the sample" if self.too_rich else "")


def count(dimension: int, degree: int) -> int:
    """The number of polynomials of a total degree from 1 up to `degree`."""
    return math.comb(dimension + degree, degree) - 1


def best_degree(dimension: int, effective_size: float) -> int:
    """The highest degree, at most 7, for which the sample has `RICH` draws per function; at least 1."""
    allowed = [p for p in range(1, 8) if count(dimension, p) <= min(MOST_FUNCTIONS, effective_size / RICH)]
    return max(allowed, default=1)


def plug_in(sample: Sample, h: np.ndarray, D: np.ndarray, Q: np.ndarray, degree: int | None = None) -> PlugIn:
    """V̂ = 2bᵀS⁻¹b with S_ij = mean ∇ψᵢᵀ(D-Q)∇ψⱼ and bᵢ = cov(ψᵢ, h) (T3).

    **Arguments:**

    - `sample`: of θ, with weights (`gyromc.theory.laplace.Sample`).
    - `h`: the observable at the sample's points.
    - `D`, `Q`: on θ, or on (θ, r) when twice as large.
    - `degree`: of the polynomials ψ; left out: the highest the sample allows.

    **Returns:** a `PlugIn`.

    ```python
    import numpy as np
    from gyromc.theory.laplace import Sample
    from gyromc.theory.plugin import plug_in
    theta = np.random.default_rng(0).standard_normal((20_000, 1))
    sample = Sample(theta, np.full(20_000, 1 / 20_000), 20_000.0, "an example")
    found = plug_in(sample, theta[:, 0], np.eye(1), np.zeros((1, 1)))
    assert abs(found.variance - 2) < 5 * found.std_error
    ```
    """
    n, d = D.shape[0], sample.theta.shape[1]
    require(n in (d, 2 * d), f"`D` must be {d} × {d} or {2 * d} × {2 * d}: got {D.shape}.")
    degree = best_degree(n, sample.effective_size) if degree is None else degree
    require(count(n, degree) <= 4 * MOST_FUNCTIONS, f"Degree {degree} in {n} dimensions has {count(n, degree)} functions.")
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
    missing = np.abs(values - _lower_degree(moments, powers.sum(axis=1) <= degree - 2)) if degree > 2 else np.zeros(2)
    errors = np.hypot(errors, missing)
    return PlugIn(
        variance=float(V),
        reversible_variance=float(V0),
        std_error=float(errors[0]),
        reversible_std_error=float(errors[1]),
        degree=degree,
        functions=len(powers),
        too_rich=len(powers) > sample.effective_size / (RICH / 2),
        poisson=Polynomial(powers, center, W, -solutions[0]),
        reversible_poisson=Polynomial(powers, center, W, -solutions[1]),
    )


def multi_indices(dimension: int, degree: int) -> np.ndarray:
    """The exponents of all monomials of total degree 1 … `degree`."""
    rows = []
    for p in range(1, degree + 1):
        for chosen in itertools.combinations_with_replacement(range(dimension), p):
            rows.append(np.bincount(chosen, minlength=dimension))
    return np.array(rows)


def _moments(sample: Sample, h: np.ndarray, powers: np.ndarray, x: np.ndarray, D: np.ndarray, Q: np.ndarray):
    """Block sums of weights, ψ, h, ψh, and the two parts of S; D and Q in whitened coordinates."""
    d = x.shape[1]
    of_theta, a = np.unique(powers[:, :d], axis=0, return_inverse=True)
    of_r, b = np.unique(powers[:, d:], axis=0, return_inverse=True)
    ladder = _ladder(of_r)
    same = np.eye(len(of_r))[np.ix_(b, b)]
    level = np.array([not row.any() for row in of_r])[b]  # ψ without r: the others have mean zero exactly
    parts: list[list[np.ndarray]] = [[] for _ in range(6)]
    for rows in np.array_split(np.arange(len(x)), BLOCKS):
        w = sample.weights[rows]
        q, dq = _hermite(x[rows], of_theta)
        mass = q.T @ (q * w[:, None])
        cross = np.einsum("s,isa,sb->iab", w, dq, q, optimize=True)  # ⟨∂ᵢq_a, q_b⟩
        parts[0].append(np.array(w.sum()))
        parts[1].append(np.where(level, (w @ q)[a], 0.0))
        parts[2].append(np.array(w @ h[rows]))
        parts[3].append(np.where(level, ((w * h[rows]) @ q)[a], 0.0))
        for place, C in ((4, D), (5, -Q)):
            along = np.einsum("ij,jsb->isb", C[:d, :d], dq, optimize=True)
            S = np.einsum("s,isa,isb->ab", w, dq, along, optimize=True)[np.ix_(a, a)] * same  # T3
            if len(C) > d:
                rr = np.einsum("kl,kmb,lmc->bc", C[d:, d:], ladder, ladder, optimize=True)
                S += mass[np.ix_(a, a)] * rr[np.ix_(b, b)]
                for l in range(d):
                    out = np.tensordot(C[:d, d + l], cross, axes=1)[np.ix_(a, a)]
                    back = np.tensordot(C[d + l, :d], cross, axes=1).T[np.ix_(a, a)]
                    S += out * ladder[l][np.ix_(b, b)] + back * ladder[l].T[np.ix_(b, b)]
            parts[place].append(S)
    return tuple(np.stack(part) for part in parts)


def _ladder(of_r: np.ndarray) -> np.ndarray:
    """⟨He_β, ∂_l He_β′⟩ for every l: √β′_l where β = β′ - e_l."""
    index = {tuple(row): k for k, row in enumerate(of_r)}
    ladder = np.zeros((of_r.shape[1], len(of_r), len(of_r)))
    for row, k in index.items():
        for l in range(of_r.shape[1]):
            if row[l]:
                below = (*row[:l], row[l] - 1, *row[l + 1 :])
                ladder[l, index[below], k] = math.sqrt(row[l])
    return ladder


def _hermite(x: np.ndarray, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Products of normalised Hermite polynomials at the points (points × functions), and their gradients (d × …)."""
    top = int(powers.max(initial=1))
    table = np.ones((top + 1, *x.shape))
    if top >= 1:
        table[1] = x
    for p in range(1, top):
        table[p + 1] = (x * table[p] - math.sqrt(p) * table[p - 1]) / math.sqrt(p + 1)
    dims = np.arange(x.shape[1])
    factors = table[powers[:, None, :], np.arange(len(x))[:, None], dims]  # functions × points × d
    q = factors.prod(axis=2).T
    dq = np.zeros((x.shape[1], *q.shape))
    for i in dims:
        has = np.flatnonzero(powers[:, i])
        others = np.delete(factors[has], i, axis=2).prod(axis=2)
        slope = np.sqrt(powers[has, i])[:, None] * table[powers[has, i] - 1, :, i]
        dq[i][:, has] = (others * slope).T
    return q, dq


def _solve(weight, psi, h, psi_h, S_D, S_Q):
    """(V, V_0) and the solutions S⁻¹b."""
    b = psi_h / weight - psi * h / weight**2
    x = np.linalg.solve((S_D + S_Q) / weight, b)
    x0 = np.linalg.solve(S_D / weight, b)
    return np.array([2 * b @ x, 2 * b @ x0]), (x, x0)  # T3


def _lower_degree(moments, kept: np.ndarray) -> np.ndarray:
    """(V, V_0) in a smaller basis: two degrees less, since odd functions see only every other degree."""
    weight, psi, h, psi_h, S_D, S_Q = (part.sum(axis=0) for part in moments)
    inner = np.ix_(kept, kept)
    return _solve(weight, psi[kept], h, psi_h[kept], S_D[inner], S_Q[inner])[0]


def _jackknife(moments, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and biases of (V, V_0), leaving out one block at a time."""
    totals = [part.sum(axis=0) for part in moments]
    left = np.array([_solve(*(t - p[k] for t, p in zip(totals, moments, strict=True)))[0] for k in range(BLOCKS)])
    scatter = (BLOCKS - 1) / BLOCKS * np.sum((left - left.mean(axis=0)) ** 2, axis=0)
    return np.sqrt(scatter), (BLOCKS - 1) * (left.mean(axis=0) - values)
