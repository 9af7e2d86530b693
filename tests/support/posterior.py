"""Posterior expectations of a regression by importance sampling around its mode: no chain, no step size, an error of its own."""

import numpy as np
from scipy import optimize, stats


def standardised(X):
    """The design with an intercept, columns at mean 0 and standard deviation 1, and the map back to the user's units."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    Z = np.column_stack([np.ones(len(X)), (X - mean) / scale])
    back = np.zeros((Z.shape[1], Z.shape[1]))
    back[0, 0], back[0, 1:] = 1, -mean / scale
    back[1:, 1:] = np.diag(1 / scale)
    return Z, back


class Reference:
    """E[θ], sd(θ) and E[h(θ)] under p(θ) ∝ exp(Σ log p(y_i | z_iᵀθ)) N(θ; 0, prior²), by self-normalised importance sampling."""

    def __init__(self, Z, log_likelihood, prior, num_draws=60_000, dof=10, seed=0):
        precision = 1 / np.asarray(prior) ** 2

        def minus_log(theta):
            return -(log_likelihood(theta @ Z.T).sum(axis=-1)) + 0.5 * (theta**2 * precision).sum(axis=-1)

        d = Z.shape[1]
        mode = optimize.minimize(minus_log, np.zeros(d), method="BFGS", options={"gtol": 1e-6}).x
        step = 1e-3
        shifts = step * np.eye(d)
        curvature = np.array(
            [
                [
                    minus_log(mode + a + b)
                    - minus_log(mode + a - b)
                    - minus_log(mode - a + b)
                    + minus_log(mode - a - b)
                    for b in shifts
                ]
                for a in shifts
            ]
        ) / (4 * step**2)
        law = stats.multivariate_t(mode, np.linalg.inv(curvature), df=dof, seed=np.random.default_rng(seed))
        self.draws = law.rvs(num_draws)
        parts = [-minus_log(part) for part in np.array_split(self.draws, 40)]
        log_weights = np.concatenate(parts) - law.logpdf(self.draws)
        weights = np.exp(log_weights - log_weights.max())
        self.weights = weights / weights.sum()

    @property
    def efficiency(self):
        return 1 / np.sum(self.weights**2) / self.weights.size

    def mean(self, values):
        """The expectation of values, draws × …, and its standard error."""
        mean = np.tensordot(self.weights, values, 1)
        return mean, np.sqrt(np.tensordot(self.weights**2, (values - mean) ** 2, 1))
