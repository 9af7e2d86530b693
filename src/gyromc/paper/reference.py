"""An independent reference for π(h) of a logistic posterior: importance sampling around the mode, no Markov chain."""

import numpy as np
from scipy import special

from gyromc.model import Model
from gyromc.shape.importance import Expectation, expectation
from gyromc.targets import LogisticRegression

__all__ = ["predictive_reference"]


def predictive_reference(
    target: LogisticRegression, points: np.ndarray, num_draws: int = 2**17, seed: int = 0
) -> Expectation:
    """Compute ∫ 1/(1 + e^{-xᵀθ}) π(dθ) for each row x of `points`, by self-normalised importance sampling."""
    return expectation(target, Model(target).laplace, lambda theta: special.expit(theta @ points.T), num_draws, seed)
