"""The mean of one chain's average of ρ(aᵀθ) on a Gaussian target, for the plan's own η, N, start and burn-in.

Input: a `LinearChain` and a ridge observable. Output: a number and its error. With additive noise z_k is Gaussian with mean
M^k z₀ and a known covariance. With noise that depends on the state the first two moments are exact and the law is taken as
Gaussian, which is exact for squares. The sum over k uses every early step and ever fewer later ones, with linear interpolation
in between.
"""

import math
from collections.abc import Callable

import numpy as np

from gyromc.observables import Ridge
from gyromc.prediction.exact import lifted
from gyromc.prediction.exact.chain import LinearChain, lift
from gyromc.prediction.exact.mehler import expectation

MOST_GROUPS = 256  # of starts: where there are more, those with neighbouring means go together
MOST_STATE = 10  # numbers in the state, for noise that depends on it
EVERY_STEP = 32
GROWTH = 1.1


def ridge_mean(
    chain: LinearChain, h: Ridge, num_steps: int, burn_in: int = 0, drawn: bool = False
) -> tuple[float, float]:
    """E of one chain's average of ρ(aᵀθ) over `num_steps` states after `burn_in` steps, and its error.

    The error is what every second node changes; with starts that were drawn, their standard error too.
    """
    w, shift = lift(h.direction, chain.size), float(h.direction @ chain.mean)
    steps = _nodes(num_steps)
    found = np.array([_at(chain, w, shift, h.rho, burn_in + int(k)) for k in steps])
    mean, spread = (_sum(steps, column) / num_steps for column in found.T)
    fewer = np.unique(np.append(np.arange(0, len(steps), 2), len(steps) - 1)) if num_steps > EVERY_STEP else ...
    error = abs(mean - _sum(steps[fewer], found[fewer, 0]) / num_steps) / 3  # of second order in the gaps
    return mean, error + (spread / math.sqrt(len(chain.starts)) if drawn else 0.0)


def _sum(steps: np.ndarray, values: np.ndarray) -> float:
    """Σ_k of what is linear between the nodes."""
    gaps = np.diff(steps)
    return float(np.sum(gaps * values[:-1] + (gaps - 1) / 2 * np.diff(values)) + values[-1])


def _nodes(num_steps: int) -> np.ndarray:
    nodes = [*range(min(num_steps, EVERY_STEP))]
    while nodes[-1] < num_steps - 1:
        nodes.append(min(num_steps - 1, math.ceil(nodes[-1] * GROWTH)))
    return np.array(nodes)


def _at(chain: LinearChain, w: np.ndarray, shift: float, rho: Callable, k: int) -> tuple[float, float]:
    """E ρ(aᵀθ_k), averaged over the starts, and its standard deviation over them."""
    if chain.additive:
        w, variance = chain.ahead(w, k)
        centers, deviation = np.sort(shift + chain.starts @ w), math.sqrt(max(variance, 0.0))
        parts = np.array_split(centers, min(len(centers), MOST_GROUPS))
        means, counts = np.array([expectation(rho, part.mean(), deviation) for part in parts]), list(map(len, parts))
        mean = float(np.average(means, weights=counts))
        return mean, math.sqrt(float(np.average((means - mean) ** 2, weights=counts)))
    Y = lifted.second_moments(chain, k)
    first, second = float(w @ Y[:-1, -1]), float(w @ Y[:-1, :-1] @ w)
    return expectation(rho, shift + first, math.sqrt(max(second - first**2, 0.0))), 0.0
