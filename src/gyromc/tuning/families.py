"""The samplers that a tuner tries: dynamics and scheme in coordinates where the posterior is round, at any step size.

A `Family` and a `Survey` in, a `Plan` out: with C the posterior's covariance and R its Cholesky root, D = C and
Q = R J Rᵀ, J rotating pairs of whitened coordinates into each other at one rate.
"""

import dataclasses
import functools

import numpy as np

from gyromc.dynamics import Dynamics, rotations
from gyromc.errors import InvalidInput
from gyromc.operators import Scaled, as_operator
from gyromc.plan import Plan
from gyromc.schemes import balanced
from gyromc.schemes import find as find_scheme
from gyromc.shape.near_mode import NearMode
from gyromc.targets import SumOverData, Target
from gyromc.targets.regressions import KnownLikelihood
from gyromc.tuning.survey import Survey

__all__ = ["EULER", "FAMILIES", "Family", "largest_safe_step"]

LARGEST = {
    "leimkuhler_matthews": 1.2,
    "balanced": 1.1,
    "lm_ab2": 0.6,
    "euler": 0.5,
}  # step sizes to begin with, on a Gaussian
RADII = (3.0, 5.0)  # standard deviations from the mean where a step must not lead outwards
DIRECTIONS, LEAST_DIRECTIONS = 48, 8
MOST_WORK = 2e6  # rows × directions: beyond, there are fewer directions
MOST_SMALLER = 30.0  # times: few points in a narrow neck decide E[∇U∇Uᵀ]; trials say whether they matter
PLAUSIBLE = 1.5  # rise of U to such a point, against a Gaussian's: beyond, no chain comes there


@dataclasses.dataclass(frozen=True)
class Family:
    """A scheme and a rate of rotation, 0 for a reversible sampler."""

    scheme: str
    turn: float = 0.0

    @property
    def name(self) -> str:
        """For tables."""
        turned = f", rotating at {self.turn:g}" if self.turn else ", reversible"
        return f"{self.scheme}{turned}"

    @property
    def order(self) -> int:
        """Of the bias in the step size."""
        return 1 if self.scheme == "balanced" else find_scheme(self.scheme).order

    def dynamics(self, survey: Survey) -> Dynamics:
        """D = C and Q = R J Rᵀ."""
        C, d = survey.covariance, survey.model.dim
        if not self.turn:
            return Dynamics(as_operator(C, "D"), Scaled(0.0, d), "preconditioned SGLD", augmented=False)
        R = np.linalg.cholesky(C)
        Q = as_operator(R @ rotations(d, self.turn).dense() @ R.T, "Q")
        return Dynamics(as_operator(C, "D"), Q, "preconditioned SGNLMC", augmented=False)

    def plan(self, base: Plan, survey: Survey, noise: np.ndarray, eta: float) -> Plan | None:
        """The plan at this step size; None where the scheme cannot make such a step."""
        scheme = balanced(survey.second + noise) if self.scheme == "balanced" else self.scheme
        plan = base.replace(dynamics=self.dynamics(survey), scheme=scheme, step_size=eta)
        try:
            _ = plan.step_matrices
        except InvalidInput:
            return None
        return plan

    def first_step(self, survey: Survey, noise: np.ndarray) -> float:
        """The largest step size worth a trial: what a Gaussian allows, smaller where curvature or noise is larger."""
        R = np.linalg.cholesky(survey.covariance)
        top = float(np.linalg.eigvalsh(R.T @ (survey.second + noise) @ R)[-1])
        if not survey.trusted:
            top = min(top, MOST_SMALLER)
        limit = LARGEST[self.scheme] / max(1.0, top) / (1 + 0.5 * self.turn**2)
        return min(limit, largest_safe_step(survey, self.dynamics(survey)))


FAMILIES = (Family("leimkuhler_matthews"), Family("balanced"), Family("balanced", 1.0))
EULER = Family("euler")


def largest_safe_step(survey: Survey, dynamics: Dynamics) -> float:
    """The largest η with which one step without noise leads from no plausible point outwards; infinite where none would.

    Tails can be steeper than the bulk: there a step that suits the bulk overshoots, farther each time.
    """
    K, G, found = survey.fit.precision, (dynamics.D + dynamics.Q).T, np.inf
    for away, gradients in _outskirts(survey):
        # |x - ηv|² ≤ |x|² in the norm of K for η ≤ 2⟨x, v⟩/|v|²
        drift = gradients @ G
        inward = np.einsum("si,si->s", away @ K, drift)
        length = np.einsum("si,si->s", drift @ K, drift)
        bounds = 2 * inward / np.maximum(length, 1e-300)
        found = min(found, float(np.min(bounds[inward > 0], initial=np.inf)))
    return found


def _around(survey: Survey) -> Target | NearMode:
    """The target, or what is cheaper near its mode."""
    return survey.model.near_mode if isinstance(survey.model.target, KnownLikelihood) else survey.model.flat_target


@functools.lru_cache(maxsize=1)  # the same for all families of one tuning
def _outskirts(survey: Survey) -> list[tuple[np.ndarray, np.ndarray]]:
    """Plausible points at each of the radii, as distances from the mean, and ∇U there."""
    d, target, rng = survey.model.dim, _around(survey), np.random.default_rng(0)
    counted = target.part if isinstance(target, NearMode) else target
    rows = counted.num_data if isinstance(counted, SumOverData) else 1
    most = int(np.clip(MOST_WORK // rows, LEAST_DIRECTIONS, DIRECTIONS))
    ways = rng.standard_normal((most, d))
    axes = np.eye(d)[: 2 * most] if most == DIRECTIONS else np.zeros((0, d))
    ways = np.concatenate([ways / np.linalg.norm(ways, axis=1, keepdims=True), axes])
    ways = np.concatenate([ways, -ways])
    R, lowest = np.linalg.cholesky(survey.covariance), float(target.potentials(survey.fit.mean[None])[0])
    found = []
    for radius in RADII:
        away = radius * ways @ R.T
        with np.errstate(all="ignore"):
            rise = target.potentials(survey.fit.mean + away) - lowest
            gradients = target.gradients(survey.fit.mean + away)
        likely = np.isfinite(rise) & (rise < PLAUSIBLE * radius**2 / 2 + 2) & np.all(np.isfinite(gradients), axis=1)
        if np.any(likely):
            found.append((away[likely], gradients[likely]))
    return found
