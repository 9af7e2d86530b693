"""Monte Carlo errors of spreads and of interval ends that are read off draws.

Input: draws of several chains. Output: the standard error of the standard deviation, and of quantiles, from the differences
between chains, so that draws of one chain may depend on each other.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["quantile_errors", "spread_errors"]

REACH = 3.0  # errors of the share, up and down: over fewer draws the slope would be mostly noise
MOST_REACH = 0.6  # of the share itself


def _between(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean of values, chains × draws × …, from the means of the chains."""
    by_chain = values.mean(axis=1)
    return by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))


def spread_errors(draws: np.ndarray) -> np.ndarray:
    """The standard error of the standard deviation of draws, chains × draws × …

    ```python
    import numpy as np
    from gyromc.regression.draw_errors import spread_errors
    draws = np.random.default_rng(0).normal(size=(64, 32))
    assert 0.5 < spread_errors(draws) * np.sqrt(2 * 64 * 32) < 2  # σ/√(2n) for independent draws of a normal law
    ```
    """
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    sd = np.sqrt(squares.mean(axis=(0, 1)))
    return _between(squares) / (2 * np.maximum(sd, 1e-300))  # d√v = dv/(2√v)


def quantile_errors(draws: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """The standard errors of quantiles of draws, chains × draws × numbers: levels × numbers.

    The share of draws below a quantile has an error that the chains show; quantiles a few such errors up and down give its slope.

    ```python
    import numpy as np
    from gyromc.regression.draw_errors import quantile_errors
    draws = np.random.default_rng(0).normal(size=(64, 32, 1))
    assert 0.02 < quantile_errors(draws, [0.5])[0, 0] < 0.04  # 1.25 σ/√n for the median
    ```
    """
    flat, found = draws.reshape(-1, draws.shape[-1]), []
    for level in levels:
        quantile = np.quantile(flat, level, axis=0, method="hazen")
        error = _between(draws <= quantile)
        reach = np.minimum(REACH * error, MOST_REACH * min(level, 1 - level)) + 1 / len(flat)
        columns = zip(flat.T, np.stack([level - reach, level + reach], axis=1), strict=True)
        apart = [np.diff(np.quantile(column, np.clip(both, 0, 1), method="hazen"))[0] for column, both in columns]
        found.append(error * apart / (2 * reach))
    return np.array(found).reshape(len(levels), draws.shape[-1])
