"""Draws of a regression's posterior in milliseconds: the mode's Gaussian, resampled by importance weights; exact if linear."""

import numpy as np

from gyromc.regression.draws import Draws
from gyromc.regression.fit import fit
from gyromc.regression.problem import Problem
from gyromc.regression.standardised import standardise
from gyromc.targets import SoftmaxRegression
from gyromc.targets.families import Normal, Ordinal
from gyromc.targets.regressions import BY_FAMILY


def quick_draws(X, y, likelihood, rng, num_draws=1024, trials=None):
    """A `Draws` of the posterior that `fit` samples, with 64 chains."""
    if isinstance(likelihood, Normal):
        return fit(X, y, "linear", seed=int(rng.integers(2**31)), num_draws=num_draws).posterior
    names, intercept = tuple(f"x{j}" for j in range(X.shape[1])), not isinstance(likelihood, Ordinal)
    known = () if trials is None else (trials,)
    standard = standardise(Problem("", likelihood, X, y, names, None, intercept, 2.5, {}, known=known))
    target = _by_numpy(standard.target)
    theta, curvature = _mode(target)
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    away = rng.standard_normal((4 * num_draws, theta.size))
    candidates = theta + away @ root.T
    logs = -target.potentials(candidates) + 0.5 * np.sum(away**2, axis=1)
    weights = np.exp(logs - logs.max())
    chosen = candidates[rng.choice(len(weights), num_draws, p=weights / weights.sum())].reshape(64, -1, theta.size)
    given = likelihood.in_units(standard.target.given(chosen), standard.units.y_scale)
    return Draws(likelihood, standard.units, chosen[..., : standard.target.num_coefficients], given)


def _by_numpy(target):
    """The same model as a target of which nothing is compiled, where there is one."""
    known = SoftmaxRegression if target.likelihood.vector else BY_FAMILY.get(target.likelihood.name)
    return target if known is None else known(target.X, target.y, float(target.prior_precision) ** -0.5)


def _mode(target):
    """The mode and the curvature there, by damped Newton steps."""
    theta = np.zeros(target.dim)
    for _ in range(100):
        H = np.asarray(target.hessians(theta[None]))[0]
        lowest = np.linalg.eigvalsh(H)[0]
        H = H + max(0.0, 0.1 - lowest) * np.eye(len(H))
        step, now, size = np.linalg.solve(H, target.gradients(theta[None])[0]), target.potentials(theta[None])[0], 1.0
        while not target.potentials((theta - size * step)[None])[0] <= now + 1e-9 and size > 1e-6:
            size /= 2
        theta = theta - size * step
        if np.abs(step).max() < 1e-7:
            break
    return theta, H
