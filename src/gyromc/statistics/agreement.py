"""Whether chains agree: split R-hat, and the probability that converged chains differ as much as these do.

Both take averages over equal consecutive stretches of each chain ("blocks"), an array of chains × blocks.
"""

import math

import numpy as np
from scipy import stats

from gyromc.statistics.variances import lugsail_variance


def split_r_hat(blocks: np.ndarray) -> float:
    """Split R-hat: do the halves of all chains agree as well as the blocks within them? 1 when they do.

    Blocks take the place of draws; being averages, they make it stricter than R-hat over single draws. NaN when there are fewer
    than four blocks.
    """
    halves = _halves(blocks)
    n = halves.shape[1]
    if n < 2:
        return math.nan
    within = float(np.mean(np.var(halves, axis=1, ddof=1)))
    between = float(np.var(halves.mean(axis=1), ddof=1))
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((n - 1) / n + between / within)


def disagreement(blocks: np.ndarray) -> float:
    """The probability that half-chains of converged chains differ as much as these do: small means not converged.

    An F test compares their variance with the variance that lugsail batch means find within the chains. NaN when there are too
    few blocks.
    """
    within = lugsail_variance(blocks)
    if not within.dof or not within.variance > 0:
        return math.nan
    means = _halves(blocks).mean(axis=1)
    between = float(np.var(means, ddof=1)) / (2 * within.variance)
    return float(stats.f.sf(between, len(means) - 1, within.dof))


def _halves(blocks: np.ndarray) -> np.ndarray:
    half = blocks.shape[1] // 2
    return np.concatenate([blocks[:, :half], blocks[:, blocks.shape[1] - half :]])
