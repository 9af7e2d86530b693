"""The Gaussian nearest to a posterior: mean m and precision K with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹) (T4's K).

Receives a `Problem`; hands on a `Gaussian` for starting points, for D = K⁻¹ and for the step size. Mode and curvature there would
do for many rows; where the posterior is skewed (separable classes, counts of zero) the curvature at the mode says little about
where the posterior lies, and its mean over the posterior much.
"""

import dataclasses

import numpy as np
from scipy import linalg

from gyromc.regression.problem import Problem

__all__ = ["Gaussian", "nearest_gaussian"]

MANY, SOME = 256, 2  # points to average over; every so many-th is looked at by itself
MOST_WORK = 1e8  # rows × columns × points: beyond, there are so many rows that the posterior is Gaussian
ROUNDS = 30


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian:
    """N(m, K⁻¹), and how far the posterior is from it.

    **Attributes:**

    - `mean`, `precision`: m and K; `root`: upper triangular R with RRᵀ = K⁻¹.
    - `steepest`: the posterior's largest curvature, its root mean square over the Gaussian, in units of K's; 1 on a Gaussian.
    """

    mean: np.ndarray
    precision: np.ndarray
    root: np.ndarray
    steepest: float

    def draws(self, count: int, seed: int) -> np.ndarray:
        """Points of it: count × dim."""
        return self.mean + np.random.default_rng(seed).standard_normal((count, len(self.mean))) @ self.root.T


def nearest_gaussian(problem: Problem, seed: int = 0) -> Gaussian:
    """The Gaussian with the posterior's mean gradient and mean curvature, from the mode on by damped fixed-point steps.

    **Arguments:**

    - `problem`: model, data and prior.
    - `seed`: of the points, in opposite pairs, over which gradient and curvature are averaged.

    **Returns:** a `Gaussian`.

    ```python
    import numpy as np
    from gyromc.regression.families import Logistic
    from gyromc.regression.gaussian import nearest_gaussian
    from gyromc.regression.problem import Problem
    separable = Problem(Logistic(), np.array([[-1.0], [1.0]]), np.array([0.0, 1.0]), 10.0)
    assert nearest_gaussian(separable).mean > separable.mode  # the posterior leans away from zero
    ```
    """
    m, K = problem.mode, problem.precision
    work = problem.X.size * problem.family.outputs**2
    if problem.target.gaussian() is not None or MANY * work > MOST_WORK:
        return Gaussian(m, K, _root(K), 1.0)
    half = np.random.default_rng(seed).standard_normal((MANY // 2, problem.dim))
    x = np.concatenate([half, -half])
    for _ in range(ROUNDS):
        R = _root(K)
        points = m + x @ R.T
        curved, push = problem.hessian(points), problem.gradients(points).mean(axis=0)
        spectrum = np.linalg.eigvalsh(R.T @ curved @ R)
        if spectrum[0] > 0.8 and spectrum[-1] < 1.25 and np.linalg.norm(R.T @ push) < 0.2:
            break
        K = (K + curved) / 2
        m = m - 0.5 * linalg.solve(K, push, assume_a="pos")
    R = _root(K)
    tops = [np.linalg.eigvalsh(R.T @ problem.hessian(theta) @ R)[-1] for theta in m + x[::SOME] @ R.T]
    return Gaussian(m, K, R, max(1.0, float(np.sqrt(np.mean(np.square(tops))))))


def _root(K: np.ndarray) -> np.ndarray:
    """Upper triangular R with R Rᵀ = K⁻¹."""
    return linalg.solve_triangular(linalg.cholesky(K, lower=True), np.eye(len(K)), lower=True).T
