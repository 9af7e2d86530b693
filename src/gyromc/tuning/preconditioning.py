"""A preconditioner, diagonal or diagonal plus low rank, and the step size and friction that suit HFHR's splitting with it (T10).

Input: stochastic gradients, points of the law, and how many gradients may be spent. Output: a `Shape` (E, and what curvature and
noise are in the coordinates E⁻¹θ) and `Numbers` (η, γ, α) for it. There a step is stable below 2/√λ_max, and friction √λ_min
makes a condition number κ cost √κ steps. Noise of the gradients needs friction too, or smaller steps.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from gyromc.checks import require
from gyromc.engines.scan import cast
from gyromc.operators import Diagonal, Operator
from gyromc.schemes.integrators import kick_variances
from gyromc.stretches import DiagonalLowRank, Gram
from gyromc.targets import Quadratic
from gyromc.tuning.matrix_free import (
    MOST_ITERATIONS,
    PRODUCT,
    Diagonals,
    Gradients,
    diagonals,
    extreme_curvatures,
    largest_noise,
    shrunk,
    shrunk_noise,
)
from gyromc.tuning.stiff import stretched

__all__ = ["Numbers", "Shape", "measured", "numbers_for", "relaxation_steps", "shape_at"]

MOST = {"probes": 256, "pairs": 16}
POINTS = 3  # at which the largest curvature is looked for
BATCHES = 4  # whose mean Hessian it is
LEAST_ITERATIONS = 8  # of the Lanczos method
ROUNDS = 6  # of the search for the direction with the most noise
USEFUL = 0.1  # quantile of the prior's curvature over the coordinates that is taken for the smallest useful one
WORST_CONDITION = 1e6  # beyond, the smallest curvature is taken for rounding
SMALL = 1e-3  # α, in units of 1/√λ_max: diffusion of θ itself brings nothing
LEFT = 0.1  # of what the O-step draws without noise must be left to draw
HEAT = 0.05  # of it: noise that the diagonal does not show may add so much, unbalanced
REFRESH = 1.5  # the most friction per step that noise may ask for
LOOKED_AT = 1000  # coordinates with the most noise
USUAL = 0.7  # of the largest stable step
PAYS = 1.2  # times fewer steps for a relaxation, for low rank to be taken


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """E; in the coordinates E⁻¹θ the diagonals of curvature and noise, the extreme curvatures, and the noise beside its diagonal.

    `root` is E: `Diagonal` or `DiagonalLowRank`. `cost` is how many gradients it took. `diagonal_steps` and `stretched_steps` are
    the steps that a relaxation is predicted to take with a diagonal and with low rank added; NaN where that was not looked at.
    """

    root: Operator
    curvature: np.ndarray
    noise: np.ndarray
    largest: float
    smallest: float
    excess: float
    cost: int
    diagonal_steps: float = math.nan
    stretched_steps: float = math.nan
    plain: "Shape | None" = None  # the same with a diagonal, where this is stretched

    @property
    def step_limit(self) -> float:
        """The largest stable step."""
        return 2 / math.sqrt(self.largest)

    @property
    def most_noise(self) -> float:
        """The largest entry of the noise's diagonal."""
        return float(np.max(self.noise))

    @property
    def rank(self) -> int:
        """How many directions are treated apart from the diagonal."""
        return len(self.root.gains) if isinstance(self.root, DiagonalLowRank) else 0

    @property
    def preconditioner(self) -> Operator:
        """C = EEᵀ."""
        return Gram(self.root) if isinstance(self.root, DiagonalLowRank) else Diagonal(_scale(self.root) ** 2)

    def with_batches(self, factor: float) -> "Shape":
        """The same with so many times the noise."""
        return dataclasses.replace(self, noise=factor * self.noise, excess=factor * self.excess)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Step size, friction and α; `free` is the friction that would do without noise, `relaxation` the slowest time scale."""

    eta: float
    gamma: float
    alpha: float
    free: float
    relaxation: float


def measured(gradients: Gradients, points, allowed: int, key) -> tuple[Diagonals, int]:
    """The diagonals of P and Σ over the points, and how many gradients that took."""
    cost = PRODUCT + (not gradients.exact)
    probes = max(4, min(allowed // cost, MOST["probes"]))
    return diagonals(gradients, points, key, probes), cost * probes


def shape_at(gradients: Gradients, points, allowed: int, key, groups: tuple[int, ...], varied: bool = True) -> Shape:
    """Preconditioner and extreme curvatures over the points; `groups` are the sizes of the model's arrays.

    Low rank is tried with exact gradients, and taken where it makes relaxation shorter by a fifth at points from which it was not
    computed. (Noise is taken off the splitting's own coordinate by coordinate, which low rank would mix.) `varied`: whether the
    points differ.
    """
    key_diagonals, key_stiff, key_one, key_two = jax.random.split(key, 4)
    found, cost = measured(gradients, points, allowed // 6, key_diagonals)
    P, Sigma = shrunk(found, groups), shrunk_noise(found, groups)
    C = 1 / (P + Sigma.astype(float))  # T7: 1/diag S
    half = len(points) // 2 if varied else 0
    bent, more = None, 0
    if gradients.exact:
        bent, more = stretched(gradients, points, half or len(points), C, allowed // 3, key_stiff, groups)
    cost += more
    others = points[half:] if varied else points[:1]
    look = _Look(gradients, points, others, (allowed - cost) // (1 if bent is None else 2), groups)
    straight = look(Diagonal(np.sqrt(C, out=C).astype(points.dtype)), found.prior, P, key_one)
    cost += straight.cost
    if bent is None:
        return dataclasses.replace(straight, cost=cost, diagonal_steps=relaxation_steps(straight))
    low = look(bent, found.prior, None, key_two)
    steps = {
        "diagonal_steps": relaxation_steps(straight),
        "stretched_steps": relaxation_steps(low),
        "cost": cost + low.cost,
    }
    straight = dataclasses.replace(straight, **steps)
    pays = PAYS * steps["stretched_steps"] < steps["diagonal_steps"]
    return dataclasses.replace(low, **steps, plain=straight) if pays else straight


@dataclasses.dataclass(frozen=True, eq=False)
class _Look:
    """A look at curvature and noise in given coordinates, with so many gradients."""

    gradients: Gradients
    points: Any
    others: Any  # the points at which the extremes are looked for
    allowed: int
    groups: tuple[int, ...]

    def __call__(self, root: Operator, prior: np.ndarray | None, P: np.ndarray | None, key) -> Shape:
        """The shape in the coordinates of the root; `P` is the diagonal of the curvature in θ, None where it does not matter."""
        gradients, points, dim = self.gradients, self.points, self.gradients.dim
        key_again, key_noise, key_ends = jax.random.split(key, 3)
        inside = cast(root, points.dtype)
        cost, excess, noise = 0, 0.0, np.broadcast_to(0.0, (dim,))
        if not gradients.exact:  # measured anew: what is taken off must not depend on the errors of E
            again, cost = measured(gradients, points, self.allowed // 4, key_again)
            noise = _scale(root) ** 2 * shrunk_noise(again, self.groups)
            pairs = max(2, min(self.allowed // 3 // (2 * ROUNDS), MOST["pairs"]))
            top, alone = largest_noise(gradients, points, inside, key_noise, ROUNDS, pairs)
            excess, cost = max(0.0, top - alone), cost + 2 * ROUNDS * pairs
        P = np.broadcast_to(1.0, (dim,)) if P is None else _scale(root) ** 2 * P
        least = 0.0 if isinstance(root, DiagonalLowRank) else float(P.mean(dtype=float))
        looked = self.others[: 1 if isinstance(gradients.target, Quadratic) else POINTS]
        each = (self.allowed - cost) // (PRODUCT * len(looked))
        batches = 1 if gradients.same_hessian else max(1, min(BATCHES, each // LEAST_ITERATIONS))
        iterations = min(max(LEAST_ITERATIONS, min(each // batches, MOST_ITERATIONS)), dim)
        ends = [
            extreme_curvatures(gradients, x, inside, k, iterations, batches)
            for x, k in zip(looked, jax.random.split(key_ends, len(looked)), strict=True)
        ]
        cost += PRODUCT * batches * iterations * len(looked)
        prior = None if prior is None else _scale(root) ** 2 * prior
        return Shape(root, P, noise, *_ends(ends, least, prior), excess, cost)


def _scale(root: Operator) -> np.ndarray:
    return root.scale if isinstance(root, DiagonalLowRank) else root.values  # type: ignore[attr-defined]  # a Diagonal


def relaxation_steps(shape: Shape) -> float:
    """The steps that a relaxation is predicted to take."""
    found = numbers_for(shape, 10**9, USUAL, 0.0)
    return found.relaxation / found.eta  # T10: √κ without noise


def _ends(ends: list, least: float, prior: np.ndarray | None) -> tuple[float, float]:
    """λ_max and λ_min: medians over the points; λ_max at least as given, λ_min at least what the prior alone has in all but a
    tenth of the coordinates.
    """
    tops = [top for top, _ in ends if math.isfinite(top)]
    require(
        tops, "No plan can be chosen: derivatives of the gradients are not finite near the start. Pass another `start`."
    )
    largest = max(float(np.median(tops)), least)
    bottoms = [bottom for _, bottom in ends if bottom is not None]
    smallest = float(np.median(bottoms)) if len(bottoms) == len(ends) else 0.0
    if prior is not None:
        smallest = max(smallest, float(np.quantile(prior, USEFUL)))
    return largest, min(max(smallest, largest / WORST_CONDITION), largest)


def numbers_for(shape: Shape, steps: int, of_limit: float, relaxations: float) -> Numbers:
    """Step size and friction for a run of so many steps, which should hold so many relaxation times.

    The step size is `of_limit` of the largest stable one, or smaller where the noise asks for it.

    ```python
    import numpy as np
    from gyromc.operators import Diagonal
    from gyromc.tuning.preconditioning import Shape, numbers_for
    quiet = Shape(Diagonal(np.ones(2)), np.array([1.0, 0.01]), np.zeros(2), 1.0, 0.01, 0.0, 0)
    found = numbers_for(quiet, 10_000, 0.7, 20.0)
    assert np.isclose(found.eta, 1.4) and np.isclose(found.gamma, 0.1)
    ```
    """
    eta, alpha = of_limit * shape.step_limit, SMALL / math.sqrt(shape.largest)
    free = max(math.sqrt(shape.smallest), relaxations / (eta * steps))  # T10: friction √λ_min
    P, Sigma = shape.curvature, shape.noise
    first = max(0, len(P) - LOOKED_AT)
    worst = np.argpartition(Sigma, first)[first:]
    P, Sigma = np.append(P[worst], P.mean(dtype=float)), np.append(Sigma[worst], shape.excess)
    gamma = free
    while True:
        full = 1 - math.exp(-2 * gamma * eta)
        drawn = kick_variances(P, Sigma, alpha, gamma, eta)
        if drawn[:-1].min() >= LEFT * full and full - drawn[-1] <= HEAT * full:
            return Numbers(eta, gamma, alpha, free, max(1 / gamma, gamma / shape.smallest))
        gamma, eta = (1.1 * gamma, eta) if gamma * eta < REFRESH else (gamma, 0.9 * eta)
