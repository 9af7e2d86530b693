"""Standard deviations of coefficients that hold where the model's own variance of y is wrong.

Input: a fit and its rows. Output: the sandwich H⁻¹ (Σ g gᵀ) H⁻¹, H the curvature of the potential at the posterior mean, prior
included, g the slope of -log p(y | t) times the standardised row, summed over the rows of a cluster. Further parameters are held
at their posterior means.
"""

import dataclasses
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.regression.fit import Fit

STEP = 1e-4  # of the linear predictor, for differences


def robust_sd(
    fit: Fit,
    X: np.ndarray,
    y: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **beside: Any,
) -> np.ndarray:
    """Return the robust standard deviation of each coefficient of a fit.

    **Arguments:**

    - `fit`, `X`, `y`: a fit without groups, and the rows that it was fitted to; `beside`: offset and trials, as in the fit.
    - `clusters`: a number for each row; rows of one cluster may depend on each other. Every row by itself when left out.
    - `weights`: as in the fit.

    The finite-sample factors are those of R's and Stata's defaults: n/(n − k), and G/(G − 1) · (n − 1)/(n − k) for G clusters.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    from gyromc.regression.robust import robust_sd
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 400)
    y = 1 + x + x * rng.standard_normal(400)
    found = fit(x[:, None], y, effort="quick")
    assert robust_sd(found, x[:, None], y)[0] < found.sd["intercept"]
    ```
    """
    posterior, likelihood = fit.posterior, fit.posterior.likelihood
    require(
        not posterior.groups,
        "Robust standard deviations are for models without groups. Fit without them and pass `clusters`.",
    )
    require(
        likelihood.outputs == 1,
        "Robust standard deviations are for models with one linear predictor, not for several classes.",
    )
    # The posterior with one draw, its mean.
    center = {"theta": posterior.theta.mean(axis=(0, 1), keepdims=True)}
    center["given"] = tuple(np.mean(g, keepdims=True, axis=(0, 1)) for g in posterior.given)
    t, given = dataclasses.replace(posterior, **center).predictors(X, **beside)
    t, given = t[0, 0], tuple(g[0, 0] if np.ndim(g) == 3 else g for g in given)
    h = STEP * max(1.0, posterior.units.y_scale)
    low, mid, high = (-likelihood.log_density(t + d, y, *given) for d in (-h, 0.0, h))
    w = np.ones(len(y)) if weights is None else weights
    slope, curvature = w * (high - low) / (2 * h), np.maximum(w * (high - 2 * mid + low) / h**2, 0.0)
    rows = posterior.units.y_scale * posterior.units.rows(X)  # ∂t/∂θ
    H = (rows * curvature[:, None]).T @ rows + float(fit.target.prior_precision) * np.eye(rows.shape[1])
    scores = rows * slope[:, None]
    n, k = len(y), rows.shape[1]
    factor = n / max(n - k, 1)
    if clusters is not None:
        names, place = np.unique(clusters, return_inverse=True)
        require(len(names) > 1, "Cluster-robust standard deviations need two clusters or more: there is one.")
        summed = np.zeros((len(names), k))
        np.add.at(summed, place, scores)
        scores, factor = summed, len(names) / (len(names) - 1) * (n - 1) / max(n - k, 1)
    half = np.linalg.solve(H, scores.T)
    T, _ = posterior.units.coefficients(likelihood.basis)
    covariance = factor * T @ (half @ half.T) @ T.T
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))
