"""The plug-in estimate of V(h) for any target from a sample of it (T3): Galerkin with the sample's averages.

Input: a weighted sample of θ, values of h, D and Q. Output: V, V_0, their errors and φ as a polynomial. ∇U is not needed, and one
sample serves every (D, Q). Averages over the momentum r are exact. The sampling error comes from the jackknife over blocks of
consecutive draws, the truncation error is the change from two degrees less. The polynomials are products of normalised Hermite
polynomials, whose derivatives are exact matrices on coefficients.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
from scipy import linalg, sparse

from gyromc.approx.sample import Sample
from gyromc.prediction.answers import Number


def hermite(x: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Π_j He_{power_j}(x_j)/√(power_j!) at points (points × functions)."""
    top = int(powers.max(initial=1))
    table = np.ones((top + 1, *x.T.shape))
    table[1] = x.T
    for p in range(1, top):
        table[p + 1] = (table[1] * table[p] - math.sqrt(p) * table[p - 1]) / math.sqrt(p + 1)
    values = np.ones((len(powers), len(x)))
    for j in range(x.shape[1]):
        involved = np.flatnonzero(powers[:, j])
        values[involved] *= table[powers[involved, j], j]
    return values.T


@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """The functions Π_j He_{power_kj}(x_j)/√(power_kj!) of z = (θ, r), with x = (W(θ - center), r)."""

    powers: np.ndarray  # functions × n, the constant's first
    center: np.ndarray  # of θ
    whitening: np.ndarray  # W
    _seen: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def down(self) -> list[sparse.csr_array]:
        """For every variable j the matrix of ∂ⱼ in x: ∂ⱼ product b = Σ_a [a, b] product a."""
        index = {tuple(row): k for k, row in enumerate(self.powers.tolist())}
        size, down = len(self.powers), []
        for j in range(self.powers.shape[1]):
            here = np.flatnonzero(self.powers[:, j])
            below = [index[(*row[:j], row[j] - 1, *row[j + 1 :])] for row in self.powers[here].tolist()]
            down.append(sparse.csr_array((np.sqrt(self.powers[here, j]), (np.array(below, int), here)), (size, size)))
        return down

    @functools.cached_property
    def lift(self) -> np.ndarray:
        """∂x/∂z."""
        momenta = np.eye(self.powers.shape[1] - len(self.center))
        return np.asarray(linalg.block_diag(self.whitening, momenta))

    def at(self, z: np.ndarray) -> np.ndarray:
        """All functions at every row; those at the last two sets of rows are kept."""
        if id(z) not in self._seen:
            x = np.array(z, float)
            x[:, : len(self.center)] = (x[:, : len(self.center)] - self.center) @ self.whitening.T
            while len(self._seen) > 1:
                self._seen.pop(next(iter(self._seen)))
            self._seen[id(z)] = z, hermite(x, self.powers)
        return self._seen[id(z)][1]


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """Σ c_k ψ_k: a solution φ of the Poisson equation."""

    products: Products
    coefficients: np.ndarray

    @functools.cached_property
    def _slope_coefficients(self) -> np.ndarray:
        """n × functions: the coefficients of ∂ⱼ in whitened coordinates."""
        return np.stack([step @ self.coefficients for step in self.products.down])

    def values(self, z: np.ndarray) -> np.ndarray:
        """φ at every row."""
        return self.products.at(z) @ self.coefficients

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """∇φ at every row."""
        return self.products.at(z) @ self._slope_coefficients.T @ self.products.lift

    def hessians(self, z: np.ndarray) -> np.ndarray:
        """∇²φ at every row."""
        lift, down = self.products.lift, self.products.down
        twice = np.stack([step @ self._slope_coefficients.T for step in down])  # n × functions × n
        twice = np.einsum("pi,pfq,qj->fij", lift, twice, lift, optimize=True)
        return np.tensordot(self.products.at(z), twice, axes=1)

    def second_derivatives(self, z: np.ndarray, D: np.ndarray) -> np.ndarray:
        """tr(D∇²φ) at every row."""
        inner = self.products.lift @ D @ self.products.lift.T
        mixed = inner @ self._slope_coefficients
        total = np.sum([step @ row for step, row in zip(self.products.down, mixed, strict=True)], axis=0)
        return self.products.at(z) @ total


MOST_FUNCTIONS = 450
BLOCKS = 20
RICH = 15  # draws needed per basis function


@dataclasses.dataclass(frozen=True, eq=False)
class PlugIn:
    """V and V_0 from a sample, with the errors of sampling and truncation together."""

    variance: Number
    reversible_variance: Number
    poisson: Polynomial  # φ
    reversible_poisson: Polynomial  # φ₀
    degree: int
    functions: int
    too_rich: bool  # for the sample

    def method(self, error: float) -> str:
        """The method with an error of V, for tables."""
        share = 100 * error / self.variance.value if self.variance.value > 0 else math.inf
        return f"plug-in (se {share:.2g} %)" + (", basis too rich for the sample" if self.too_rich else "")


class Fitted:
    """V̂ = 2bᵀS⁻¹b with S_ij = mean ∇ψᵢᵀ(D-Q)∇ψⱼ and bᵢ = cov(ψᵢ, h): S over the sample and over all blocks but one, factorised.

    `D` and `Q` act on θ, or on (θ, r) when twice as large; `degree` defaults to the highest up to 7, for which the sample has
    `RICH` draws per function.
    """

    def __init__(self, sample: Sample, D: np.ndarray, Q: np.ndarray, degree: int | None = None):
        n, d = D.shape[0], sample.theta.shape[1]
        most = min(MOST_FUNCTIONS, sample.effective_size / RICH)
        highest = max((p for p in range(1, 8) if math.comb(n + p, p) - 1 <= most), default=1)
        self.sample, self.degree, self.D, self.Q = sample, highest if degree is None else degree, D, Q
        chosen = (itertools.combinations_with_replacement(range(n), p) for p in range(self.degree + 1))
        powers = np.array([np.bincount(np.array(c, int), minlength=n) for c in itertools.chain(*chosen)])
        center = sample.weights @ sample.theta
        scatter = (sample.theta - center).T @ ((sample.theta - center) * sample.weights[:, None])
        self.products = Products(powers, center, np.linalg.inv(np.linalg.cholesky(scatter)))
        of_theta, self._of_theta = np.unique(powers[:, :d], axis=0, return_inverse=True)
        self._level = np.all(powers[1:, d:] == 0, axis=1)  # ψ with r in it has mean zero, exactly
        self._rows = np.array_split(np.arange(len(sample.theta)), BLOCKS)
        x = (sample.theta - center) @ self.products.whitening.T
        self._q = [hermite(x[rows], of_theta) for rows in self._rows]

    def _averaged(self, sums: np.ndarray) -> np.ndarray:
        """Sums over functions of θ as sums over all ψ but the constant."""
        return np.where(self._level, sums[self._of_theta.ravel()[1:]], 0.0)

    @functools.cached_property
    def _systems(self) -> list[tuple]:
        """The functions, Σw, Σψ and factors of both S: of the whole sample, without one block each, and with two degrees less."""
        weights = [self.sample.weights[rows] for rows in self._rows]
        psi = np.stack([self._averaged(w @ q) for w, q in zip(weights, self._q, strict=True)])
        S_D, S_Q = self._gradient_sums([q.T @ (q * w[:, None]) for w, q in zip(weights, self._q, strict=True)])
        order, found = self.products.powers[1:].sum(axis=1), []
        for k in (None, *range(BLOCKS), "lower"):
            kept = order <= self.degree - 2 if k == "lower" and self.degree > 2 else order > 0
            used = [j for j in range(BLOCKS) if j != k]
            w, s, inner = sum(weights[j].sum() for j in used), S_D[used].sum(axis=0), np.ix_(kept, kept)
            still = linalg.lu_factor(s[inner] / w)
            moving = linalg.lu_factor((s + S_Q[used].sum(axis=0))[inner] / w) if np.any(self.Q) else still
            found.append((kept, used, w, psi[used].sum(axis=0)[kept], moving, still))
        return found

    def solve(self, h: np.ndarray) -> PlugIn:
        """V and V_0 of an observable given at the sample's points, with φ."""
        wh = self.sample.weights * h
        first = np.array([wh[rows].sum() for rows in self._rows])
        both = np.stack([self._averaged(wh[rows] @ q) for rows, q in zip(self._rows, self._q, strict=True)])
        values, solutions = [], []
        for kept, used, w, psi, moving, still in self._systems:
            b = both[used].sum(axis=0)[kept] / w - psi * first[used].sum() / w**2
            solutions.append([linalg.lu_solve(S, b) for S in (moving, still)])
            values.append([2 * b @ x for x in solutions[-1]])  # T3
        whole, *left, lower = np.array(values)
        center = np.mean(left, axis=0)
        errors = np.sqrt((BLOCKS - 1) / BLOCKS * np.sum((left - center) ** 2, axis=0))
        errors = np.hypot(errors, whole - lower)  # odd functions use only every other degree
        unbiased = whole - (BLOCKS - 1) * (center - whole)  # less the jackknife's bias
        V, V0 = (Number(float(value), float(error)) for value, error in zip(unbiased, errors, strict=True))
        _, _, w, psi, *_ = self._systems[0]
        phi = [Polynomial(self.products, np.append(psi @ x / w, -x)) for x in solutions[0]]  # of mean zero
        functions = len(self.products.powers) - 1
        return PlugIn(V, V0, phi[0], phi[1], self.degree, functions, functions > self.sample.effective_size / RICH)

    def _gradient_sums(self, masses: list[np.ndarray]) -> list[np.ndarray]:
        """Block sums of the parts of S from ⟨q_a q_b⟩ over θ: derivatives of products are products, averages over r are known."""
        powers, d, lift, down = self.products.powers, self.sample.theta.shape[1], self.products.lift, self.products.down
        a, b = (np.unique(part, axis=0, return_inverse=True)[1].ravel() for part in (powers[:, :d], powers[:, d:]))
        both = lift @ self.D @ lift.T, -lift @ self.Q @ lift.T
        slopes = [[sum(C[k, l] * down[l] for l in np.flatnonzero(row)) for k, row in enumerate(C)] for C in both]
        parts: list[list[np.ndarray]] = [[], []]
        for mass in masses:
            averages = np.where(b[:, None] == b, mass[np.ix_(a, a)], 0.0)  # ⟨ψψ′⟩
            for part, along in zip(parts, slopes, strict=True):
                S = np.zeros_like(averages)
                for step, slope in zip(down, along, strict=True):
                    S += step.T @ (averages @ slope) if sparse.issparse(slope) else 0.0  # T3: a row of C may be 0
                part.append(S[1:, 1:])
        return [np.stack(part) for part in parts]
