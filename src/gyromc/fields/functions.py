"""Zero-mean functions: ∇·v - v·∇U has mean zero under exp(-U) for every vector field v, so its average is known in advance.

Input: points θ and the gradients of U there, which a chain has computed anyway. Output: one column for each field of a `Fields`
value. With z = (θ - m)/σ and the score s = -σ∇U, the field with the monomial q(z) in direction b gives q(z)·s_b + ∂q/∂z_b (T11).
Four nested groups of fields are used: constants, gradients of quadratics, rotations (linear fields (D + Q)∇φ with the paper's
skew Q), and quadratic fields. With few parameters a group is complete; with many, `choose_fields` takes the pairs of coordinates
that depend on each other.
"""

import dataclasses
import enum
import functools

import numpy as np
from jaxtyping import Float, Int

__all__ = ["FieldGroup", "Fields", "choose_fields"]


class FieldGroup(enum.StrEnum):
    """The groups of fields, each containing the ones before it; the text names what is added."""

    NONE = "plain average"
    CONSTANT = "constant fields"
    POTENTIAL = "gradients of quadratics"
    ROTATION = "rotations"
    QUADRATIC = "quadratic fields"


@dataclasses.dataclass(frozen=True)
class FieldSettings:
    """How many fields are used.

    - `most`: of them; the normal equations of 1000 take half a second, and 25,000 states fit their coefficients.
    - `pair_share`: of what constants and squares leave, for gradients of products and as much again for rotations. Measured on
      crossed groups, radon and item response: rotations halve the error, quadratic fields take off another tenth to a half.
    - `bound`: standard deviations at which the factors of quadratic fields level off. Without it, errors of eight schools were
      up to eight times too small: cubic functions of log τ far out decided.
    - `rotations`: whether fields with a rotation Q are among them; without, all are gradients, of quadratics and of cubics.
    - `at_once`: points whose functions are computed together: 1000 functions of them fit into a processor's cache.
    """

    most: int = 1000
    pair_share: float = 0.3
    bound: float = 3.0
    rotations: bool = True
    at_once: int = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """A set of vector fields over standardised coordinates.

    - `center`, `scale`: m and σ of z = (θ - m)/σ.
    - `pairs`: columns (a, b), a ≤ b: gradients of z_a z_b, and rotations z_a e_b - z_b e_a where a < b.
    - `triples`: columns (a, c, b): the field w_a w_c e_b, where w is z levelled off in the tails.
    - `constants`: whether the fields e_b are used.
    - `rotations`: whether Q is not 0. Without, no pair rotates, and a triple stands for the gradient of w_a w_c w_b.
    """

    center: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    pairs: Int[np.ndarray, "2 pairs"]
    triples: Int[np.ndarray, "3 triples"]
    constants: bool = True
    rotations: bool = True

    @functools.cached_property
    def _ends(self) -> list[int]:
        """Where each group but the last ends."""
        a, b = self.pairs
        sizes = [len(self.center) * self.constants, len(a), int(np.sum(a != b)) * self.rotations]
        return np.cumsum(sizes).tolist()

    @functools.cached_property
    def sizes(self) -> dict[FieldGroup, int]:
        """How many functions there are up to and including each group, those that add some alone."""
        found, before = {}, 0
        for group, end in zip(list(FieldGroup)[1:], [*self._ends, self._ends[-1] + self.triples.shape[1]], strict=True):
            if end > before:
                found[group] = before = end
        return found

    @property
    def count(self) -> int:
        """How many functions there are."""
        return max(self.sizes.values(), default=0)

    def __call__(self, theta: Float[np.ndarray, "n d"], gradient: Float[np.ndarray, "n d"]) -> np.ndarray:
        """The functions at every point: n × count."""
        found = np.empty((self.count, len(theta)))
        for first in range(0, len(theta), FieldSettings.at_once):
            points = slice(first, first + FieldSettings.at_once)
            self._fill(found[:, points], theta[points], gradient[points])
        return found.T

    def _fill(self, out: np.ndarray, theta: np.ndarray, gradient: np.ndarray) -> None:
        """Write the functions at a few points: a row each, so that products run along memory."""
        z = np.ascontiguousarray(((theta - self.center) / self.scale).T)
        s = np.ascontiguousarray((-gradient * self.scale).T)
        constants, potentials, rotations, quadratics = np.split(out, self._ends)
        # ∇·v - v·∇U for v = e_b; ∇(z_a z_b); z_a e_b - z_b e_a; w_a w_c e_b, w = z in the bulk
        constants[:] = s[: len(constants)]
        a, b = self.pairs
        forward, backward = z[a] * s[b], z[b] * s[a]  # T11
        np.add(forward, backward, out=potentials)
        potentials[a == b] += 2.0
        if len(rotations):
            apart = a != b
            np.subtract(forward[apart], backward[apart], out=rotations)
        a, c, b = self.triples
        w, slope, bend = _bounded(z)
        if self.rotations:
            np.multiply(w[a] * w[c], s[b], out=quadratics)
            for one, other in ((a, c), (c, a)):
                (same,) = np.nonzero(other == b)
                quadratics[same] += w[one[same]] * slope[other[same]]
        else:
            turn = slope * s + bend
            quadratics[:] = sum(_gradient_term(w, slope, turn, *of) for of in ((a, c, b), (c, b, a), (b, a, c)))

    def virial(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """1 - z_i σ_i ∂_iU of every coordinate: its average is the relative error of a variance (T13)."""
        return 1.0 - (theta - self.center) * gradient  # T13


def _gradient_term(w: np.ndarray, slope: np.ndarray, turn: np.ndarray, a, c, b) -> np.ndarray:
    """∇·v - v·∇U of v = w_a w_c w_b′ e_b, a third of the gradient of w_a w_c w_b."""
    inside = w[a] * slope[c] * (c == b)[:, None] + w[c] * slope[a] * (a == b)[:, None]
    return w[a] * w[c] * turn[b] + inside * slope[b]


def choose_fields(
    theta: Float[np.ndarray, "n d"],
    gradient: Float[np.ndarray, "n d"],
    covariance: Float[np.ndarray, "d d"] | None = None,
    settings: FieldSettings | None = None,
) -> Fields:
    """The fields for a target, chosen from points that are not used for the estimates.

    Chosen from the points that are averaged later, pairs with a large correlation by chance would be taken, and their functions
    would no longer have mean zero. `covariance`, if given, says which coordinates depend on each other.
    """
    settings = settings or FieldSettings()
    d = theta.shape[1]
    center, scale = theta.mean(axis=0), theta.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    every = np.stack(np.triu_indices(d))
    if d * (d + 1) ** 2 // 2 + 2 * d <= settings.most:
        corner = np.stack(np.meshgrid(*[np.arange(d)] * 3, indexing="ij")).reshape(3, -1)
        kept = corner[0] <= corner[1]
        if not settings.rotations:
            kept &= corner[1] <= corner[2]
        return Fields(center, scale, every, corner[:, kept], rotations=settings.rotations)
    if 2 * d > settings.most:
        return Fields(center, scale, np.zeros((2, 0), int), np.zeros((3, 0), int), constants=d <= settings.most)
    drives = _driving(theta, gradient, center, scale)
    near = np.maximum(drives, drives.T)
    if covariance is not None:
        near = np.maximum(near, _partial_correlations(covariance))
    budget = int(settings.pair_share * (settings.most - 2 * d))
    products = every[:, every[0] != every[1]]
    if products.shape[1] > budget:
        order = np.argsort(-near[products[0], products[1]], kind="stable")
        products = products[:, order[:budget]]
    pairs = np.concatenate([np.stack([np.arange(d)] * 2), products], axis=1)
    left = settings.most - 2 * d - 2 * products.shape[1]
    triples = _driven_triples(drives, left)
    if not settings.rotations:
        triples = np.unique(np.sort(triples, axis=0), axis=1)
    return Fields(center, scale, pairs, triples, rotations=settings.rotations)


def _bounded(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z/√(1 + z²/c²), which is z in the bulk and at most c in the tails, and its first and second derivative."""
    root = 1 / np.sqrt(1 + (z / FieldSettings.bound) ** 2)
    return z * root, root**3, -3 * z * root**5 / FieldSettings.bound**2


def _driving(theta: np.ndarray, gradient: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How far each coordinate (row) changes the curvature of another (column): |corr(z_j, z_i s_i)|."""
    z = (theta - center) / scale
    work = z * gradient * scale
    spread = work.std(axis=0)
    # a few points far out must not decide
    work = np.clip((work - work.mean(axis=0)) / np.where(spread > 0, spread, 1.0), -5, 5)
    found = np.abs(z.T @ work) / len(z)
    np.fill_diagonal(found, 0.0)
    return found


def _partial_correlations(covariance: np.ndarray) -> np.ndarray:
    precision = np.linalg.pinv(covariance, hermitian=True)
    size = np.sqrt(np.maximum(np.diag(precision), 1e-300))
    found = np.abs(precision) / np.outer(size, size)
    np.fill_diagonal(found, 0.0)
    return found


def _driven_triples(drives: np.ndarray, count: int) -> np.ndarray:
    """z_j z_i e_i, z_j² e_i and z_i² e_j for the pairs where z_j changes the curvature of z_i most; before them all z_i² e_i."""
    d = len(drives)
    alone = np.stack([np.arange(d)] * 3)
    j, i = np.unravel_index(np.argsort(-drives, axis=None, kind="stable")[: max(0, (count - d) // 3)], drives.shape)
    driven = np.concatenate([np.stack(part) for part in ((j, i, i), (j, j, i), (i, i, j))], axis=1)
    return np.concatenate([alone, driven], axis=1)[:, : max(0, count)]
