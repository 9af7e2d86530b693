"""A diagonal preconditioner, and the step size and friction that suit HFHR's splitting with it (T10).

Input: stochastic gradients, points of the law, and how many gradients may be spent. Output: a `Shape` (C = 1/diag(P + Σ) and what
curvature and noise are in the coordinates E⁻¹θ, EEᵀ = C) and `Numbers` (η, γ, α) for it. There a step is stable below 2/√λ_max,
and friction √λ_min makes a condition number κ cost √κ steps. Noise of the gradients needs friction too, or smaller steps.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require
from gyromc.oracles import Exact
from gyromc.schemes.integrators import kick_variances
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

__all__ = ["Numbers", "Shape", "measured", "numbers_for", "shape_at"]

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


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """C and the diagonals it was made from; in the coordinates E⁻¹θ, the extreme curvatures, and the noise beside its diagonal.

    `cost` is how many gradients it took.
    """

    C: np.ndarray
    curvature: np.ndarray
    noise: np.ndarray
    largest: float
    smallest: float
    excess: float
    cost: int

    @property
    def step_limit(self) -> float:
        """The largest stable step."""
        return 2 / math.sqrt(self.largest)

    @property
    def most_noise(self) -> float:
        """The largest entry of the noise's diagonal in the coordinates E⁻¹θ."""
        return float(np.max(self.C * self.noise))


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
    cost = PRODUCT + (not isinstance(gradients.oracle, Exact))
    probes = max(4, min(allowed // cost, MOST["probes"]))
    return diagonals(gradients, points, key, probes), cost * probes


def shape_at(gradients: Gradients, points, allowed: int, key, groups: tuple[int, ...], varied: bool = True) -> Shape:
    """Preconditioner and extreme curvatures over the points; `groups` are the sizes of the model's arrays.

    `varied`: whether the points differ.
    """
    key_diagonals, key_again, key_noise, key_ends = jax.random.split(key, 4)
    found, cost = measured(gradients, points, allowed // 6, key_diagonals)
    P, Sigma = shrunk(found, groups), shrunk_noise(found, groups)
    C = 1 / (P + Sigma)  # T7: 1/diag S
    if not isinstance(gradients.oracle, Exact):  # what is taken off must not depend on the errors of C
        again, more = measured(gradients, points, allowed // 6, key_again)
        Sigma, cost = shrunk_noise(again, groups), cost + more
    scale = jnp.asarray(np.sqrt(C), points.dtype)
    excess = 0.0
    if not isinstance(gradients.oracle, Exact):
        pairs = max(2, min(allowed // 3 // (2 * ROUNDS), MOST["pairs"]))
        top, alone = largest_noise(gradients, points, scale, key_noise, ROUNDS, pairs)
        excess, cost = max(0.0, top - alone), cost + 2 * ROUNDS * pairs
    looked = points[: POINTS if varied and not isinstance(gradients.target, Quadratic) else 1]
    each = (allowed - cost) // (PRODUCT * len(looked))
    batches = 1 if gradients.same_hessian else max(1, min(BATCHES, each // LEAST_ITERATIONS))
    iterations = min(max(LEAST_ITERATIONS, min(each // batches, MOST_ITERATIONS)), gradients.dim)
    ends = [
        extreme_curvatures(gradients, x, scale, k, iterations, batches)
        for x, k in zip(looked, jax.random.split(key_ends, len(looked)), strict=True)
    ]
    cost += PRODUCT * batches * iterations * len(looked)
    return Shape(C, P, Sigma, *_ends(ends, C, P, found.prior), excess, cost)


def _ends(ends: list, C: np.ndarray, P: np.ndarray, prior: np.ndarray | None) -> tuple[float, float]:
    """λ_max and λ_min: medians over the points; λ_min at least what the prior alone has in all but a tenth of the coordinates."""
    tops = [top for top, _ in ends if math.isfinite(top)]
    require(
        tops, "No plan can be chosen: derivatives of the gradients are not finite near the start. Pass another `start`."
    )
    largest = max(float(np.median(tops)), float(np.mean(C * P)))
    bottoms = [bottom for _, bottom in ends if bottom is not None]
    smallest = float(np.median(bottoms)) if len(bottoms) == len(ends) else 0.0
    if prior is not None:
        smallest = max(smallest, float(np.quantile(C * prior, USEFUL)))
    return largest, min(max(smallest, largest / WORST_CONDITION), largest)


def numbers_for(shape: Shape, steps: int, of_limit: float, relaxations: float) -> Numbers:
    """Step size and friction for a run of so many steps, which should hold so many relaxation times.

    The step size is `of_limit` of the largest stable one, or smaller where the noise asks for it.

    ```python
    import numpy as np
    from gyromc.tuning.preconditioning import Shape, numbers_for
    quiet = Shape(np.ones(2), np.array([1.0, 0.01]), np.zeros(2), 1.0, 0.01, 0.0, 0)
    found = numbers_for(quiet, 10_000, 0.7, 20.0)
    assert np.isclose(found.eta, 1.4) and np.isclose(found.gamma, 0.1)
    ```
    """
    eta, alpha = of_limit * shape.step_limit, SMALL / math.sqrt(shape.largest)
    free = max(math.sqrt(shape.smallest), relaxations / (eta * steps))  # T10: friction √λ_min
    P, Sigma = (shape.C * x for x in (shape.curvature, shape.noise))
    worst = np.argsort(Sigma)[-LOOKED_AT:]
    P, Sigma = np.append(P[worst], P.mean()), np.append(Sigma[worst], shape.excess)
    gamma = free
    while True:
        full = 1 - math.exp(-2 * gamma * eta)
        drawn = kick_variances(P, Sigma, alpha, gamma, eta)
        if drawn[:-1].min() >= LEFT * full and full - drawn[-1] <= HEAT * full:
            return Numbers(eta, gamma, alpha, free, max(1 / gamma, gamma / shape.smallest))
        gamma, eta = (1.1 * gamma, eta) if gamma * eta < REFRESH else (gamma, 0.9 * eta)
