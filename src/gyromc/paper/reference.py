"""An independent reference for π(h) of a logistic posterior: importance sampling around the mode, no Markov chain.

Input: a target and points. Output: posterior predictive probabilities with standard errors.
"""

import dataclasses

import numpy as np
from scipy import special

from gyromc.model import Model
from gyromc.shape.importance import Expectation, expectation
from gyromc.targets import LogisticRegression

__all__ = ["Reference", "predictive_reference"]


@dataclasses.dataclass(frozen=True, eq=False)
class Reference(Expectation):
    """π(h) at each point, its standard error, the efficiency of the proposal (effective over drawn), and the mode."""

    mode: np.ndarray


def predictive_reference(
    target: LogisticRegression, points: np.ndarray, num_draws: int = 2**17, seed: int = 0
) -> Reference:
    """Compute posterior predictive probabilities ∫ 1/(1 + e^{-xᵀθ}) π(dθ) by self-normalised importance sampling.

    **Arguments:**

    - `target`: a logistic posterior.
    - `points`: one row x per prediction.
    - `num_draws`, `seed`: the number of draws of θ, and their seed.

    **Returns:** a `Reference`.
    """
    center = Model(target).laplace
    found = expectation(target, center, lambda theta: special.expit(theta @ points.T), num_draws, seed)
    return Reference(found.mean, found.std_error, found.num_draws, found.efficiency, center.mode)
