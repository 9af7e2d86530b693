"""The error of any linear sampler on a Gaussian: what plain SGLD and an untuned plan would make of the same gradients.

Matrices of a step, a Gaussian fit and observables in; relative squared errors out. Used for the gains that a tuning reports, not
for its choice, which trials on the law itself decide.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np

from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.martingale import doubled_sum, projection
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import lift
from gyromc.shape.gaussian import GaussianFit

__all__ = ["plain_error", "plan_error"]

MOST_DIRECTIONS = 40
GRID = 48


def plan_error(plan: Plan, fit: GaussianFit, spread: np.ndarray, gradients: float) -> float:
    """The root mean square over observables of a plan's error on the fit, in posterior standard deviations; infinite if unstable.

    h is replaced by its linear and quadratic parts under the fit.
    """
    if plan.scheduled or not plan.scheme.linear:
        return math.nan
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GyromcWarning)
            step = plan.step_matrices
            M, n = step.transition(augment(fit.precision, plan.augmented)), plan.state_size
            X = doubled_sum(M, step.C @ step.C.T)
    except (InvalidInput, np.linalg.LinAlgError):
        return math.inf
    d, C = plan.dim, np.linalg.inv(fit.precision)
    resolvent, errors = np.linalg.inv(np.eye(n) - M), []
    for h, scale in list(zip(plan.observables.values(), spread, strict=True))[:MOST_DIRECTIONS]:
        parts = projection(plan, h, fit)
        if parts is None:
            continue
        u, H = parts
        w = lift(u, n)
        variance, bias = float(w @ (resolvent @ X + X @ resolvent.T - X) @ w), 0.0  # T1, N → ∞
        if H is not None:
            full = np.zeros((n, n))
            full[:d, :d] = H
            Phi = doubled_sum(M.T, full)
            variance += float(2 * (2 * np.trace(Phi @ X @ full @ X) - np.trace(full @ X @ full @ X)))
            bias = float(np.trace(H @ (X[:d, :d] - C)))
        errors.append((bias**2 + variance / gradients) / scale**2)
    return math.sqrt(float(np.mean(errors))) if errors else math.nan


def plain_error(fit: GaussianFit, gradients: float, quadratic: bool) -> tuple[float, float]:
    """RMSE of SGLD with D = I at its best step size on the fit, for means (and squares) along its axes, and that step size."""
    spectrum = np.linalg.eigvalsh(fit.precision)
    best = (math.inf, math.nan)
    for eta in np.geomspace(1e-6, 1.9, GRID) / spectrum[-1]:
        found = _along(spectrum, eta, gradients, quadratic)
        best = min(best, (math.sqrt(float(np.mean(found))), float(eta)))
    return best


def _along(spectrum: Sequence[float] | np.ndarray, eta: float, gradients: float, quadratic: bool) -> np.ndarray:
    """Squared errors along each axis of a Gaussian: M = 1 - ηλ, and the variance is 1/(1 - ηλ/2) times too large."""
    a = eta * np.asarray(spectrum)
    wide, M = 1 / (1 - a / 2), 1 - a
    transient = (1 / a) ** 2 / gradients**2  # from the mode: no part of the variance, but no mean without it
    linear = wide * (1 + M) / (1 - M) / gradients
    if not quadratic:
        return np.maximum(linear, np.minimum(1.0, transient))
    square = (wide - 1) ** 2 / 2 + wide**2 * (1 + M**2) / (1 - M**2) / gradients
    return (linear + square) / 2
