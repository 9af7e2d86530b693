"""Intervals of twelve rows: how many of them hold the truth."""

import numpy as np

from gyromc.regression.fit import fit

__all__ = ["coverage"]


def coverage(simulations: int, seed: int = 0) -> np.ndarray:
    """Whether the 95 % intervals of an intercept and 6 coefficients hold the truth, n = 12: simulations × 7."""
    rng, held = np.random.default_rng(seed), []
    for _ in range(simulations):
        X, b = rng.standard_normal((12, 6)), rng.standard_normal(6)
        found = fit(X, 1 + X @ b + rng.standard_normal(12), num_draws=2, num_chains=2)
        held.append([c.low < v < c.high for c, v in zip(found.coefficients, [1, *b], strict=True)])
    return np.array(held)
