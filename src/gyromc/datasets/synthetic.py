"""The paper's synthetic regression: x_ij ~ Unif[-½, ½], y = xᵀβ* + N(0, 1), β* = (1, -1, ½), N = 128.

Input: a seed. Output: (X, y), the same for the same seed.
"""

import numpy as np

from gyromc.checks import numbers, require, whole
from gyromc.machine import require_memory

__all__ = ["linear_regression"]


def linear_regression(
    seed: int = 0, num_data: int = 128, coefficients=(1.0, -1.0, 0.5)
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a data set for Bayesian linear regression.

    **Arguments:**

    - `seed`: selects the data set.
    - `num_data`: N.
    - `coefficients`: β*.

    **Returns:** X (N × d) and y (N).

    ```python
    from gyromc.datasets import linear_regression
    X, y = linear_regression(seed=0)
    assert X.shape == (128, 3) and abs(X).max() <= 0.5
    ```
    """
    beta = numbers(coefficients, "coefficients")
    require(beta.ndim == 1 and beta.size > 0, f"`coefficients` must be a vector: got shape {beta.shape}.")
    rng, rows = np.random.default_rng(whole(seed, "seed", least=0)), whole(num_data, "num_data", least=1)
    require_memory(8 * rows * beta.size, f"`num_data` = {rows:,} rows", "Take fewer.")
    X = rng.uniform(-0.5, 0.5, (rows, beta.size))
    return X, X @ beta + rng.standard_normal(len(X))
