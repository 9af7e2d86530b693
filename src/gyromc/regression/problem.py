"""A model with its data in coordinates that suit a sampler: U(θ), ∇U(θ), ∇²U(θ), its mode and its curvature there (E1).

Receives a family, standardised rows and responses; hands on a `Problem` with the mode and K = ∇²U at it, found by Newton's
method. The models are log-concave and the prior makes K positive definite, so that there is one mode whatever the data: fewer
rows than columns, repeated columns and separable classes included.
"""

import dataclasses
import functools

import numpy as np
from scipy import linalg

from gyromc.errors import InvalidInput
from gyromc.regression.families import Family
from gyromc.targets import Target

__all__ = ["Problem"]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """U(θ) = Σ_i loss(x_iᵀΘᵀ, y_i) + |θ|²/(2σ₀²), θ being Θ (q × p) by rows.

    **Arguments:**

    - `family`: the model.
    - `X`: N × p, the intercept's column included.
    - `y`: N responses.
    - `prior_scale`: σ₀.
    """

    family: Family
    X: np.ndarray
    y: np.ndarray
    prior_scale: float

    @property
    def dim(self) -> int:
        """The number of entries of θ."""
        return self.family.outputs * self.X.shape[1]

    @functools.cached_property
    def target(self) -> Target:
        """The law of θ, for the sampler."""
        return self.family.target(self.X, self.y, self.prior_scale)

    def predictors(self, theta: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        """xᵀΘᵀ for every row x: … × rows × q."""
        blocks = theta.reshape(*theta.shape[:-1], self.family.outputs, -1)
        return np.swapaxes(blocks @ (self.X if X is None else X).T, -1, -2)

    def potential(self, theta: np.ndarray) -> float:
        """U(θ)."""
        prior = 0.5 * np.sum(theta**2) / self.prior_scale**2
        return float(np.sum(self.family.losses(self.predictors(theta), self.y)) + prior)

    def gradients(self, theta: np.ndarray) -> np.ndarray:
        """∇U at every row of θ: … × dim."""
        slopes = np.swapaxes(self.family.slopes(self.predictors(theta), self.y), -1, -2)
        return (slopes @ self.X).reshape(theta.shape) + theta / self.prior_scale**2

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """∇²U(θ); its mean where several θ are given, for the price of one."""
        w, (q, p) = self.family.curvatures(self.predictors(theta)), (self.family.outputs, self.X.shape[1])
        w = w.reshape(-1, len(self.y), q, q).mean(axis=0)
        K = np.empty((q, p, q, p))
        for a in range(q):
            for b in range(a, q):
                K[a, :, b] = (self.X * w[:, a, b, None]).T @ self.X
                K[b, :, a] = K[a, :, b]
        return K.reshape(self.dim, self.dim) + np.eye(self.dim) / self.prior_scale**2

    @functools.cached_property
    def mode(self) -> np.ndarray:
        """Where ∇U = 0."""
        return _newton(self, self._start())

    def _start(self) -> np.ndarray:
        """Linear predictors that suit y on average, as nearly as the columns allow."""
        wanted = np.broadcast_to(self.family.start(self.y), (len(self.y), self.family.outputs))
        if not np.any(wanted):
            return np.zeros(self.dim)
        return linalg.lstsq(self.X, wanted)[0].T.ravel()  # type: ignore[index]

    @functools.cached_property
    def precision(self) -> np.ndarray:
        """K = ∇²U at the mode."""
        return self.hessian(self.mode)


def _newton(problem: Problem, theta: np.ndarray, most: int = 200) -> np.ndarray:
    """Newton's method with steps halved until U falls enough; U is convex, so it cannot go astray."""
    value = problem.potential(theta)
    for _ in range(most):
        g = problem.gradients(theta)
        step = linalg.solve(problem.hessian(theta), g, assume_a="pos")
        decrement = float(g @ step)
        if decrement <= 1e-14 * max(1.0, abs(value)):
            return theta
        length = 1.0
        while length > 1e-12:
            with np.errstate(over="ignore"):
                moved = problem.potential(theta - length * step)
            if moved <= value - 0.25 * length * decrement:
                break
            length /= 2
        else:
            return theta  # U can fall no further in this arithmetic
        theta, value = theta - length * step, moved
    raise InvalidInput(
        f"No posterior mode was found in {most} Newton steps (U = {value:.6g}). Take a smaller `prior_scale`, "
        "and look for columns or responses of extreme size."
    )
