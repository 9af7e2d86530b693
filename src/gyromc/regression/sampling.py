"""From a posed regression to draws of its posterior.

A `Posed` regression and the names of its coefficients in; draws and averages out. Linear models are integrated, those with
groups or further parameters sampled in `mixing`, all others by chains. Directions in which no row has an entry are not sampled:
there the posterior is the prior, whose mean is known and whose draws are made at once. So a regression with more columns than
rows costs as much as one with as many.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gyromc.checks import whole
from gyromc.memory import require_memory
from gyromc.regression.chains import run_plan, tuned_plan
from gyromc.regression.conjugate import integrate
from gyromc.regression.draws import Draws
from gyromc.regression.mixing import sample_mixed
from gyromc.regression.posing import Posed, posterior
from gyromc.regression.sampled import Sampled
from gyromc.regression.terms import GroupTerm
from gyromc.targets.likelihoods import Normal
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import WithLikelihood

__all__ = ["Sampled", "sample"]


def sample(
    posed: Posed,
    names: Sequence[str],
    relative_error: float,
    engine: str = "auto",
    progress: bool | Callable[[int], object] | None = False,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
    groups: Sequence[GroupTerm] = (),
) -> Sampled:
    """Sample the posterior of a regression, with errors of about `relative_error` posterior standard deviations or less."""
    num_draws = whole(num_draws, "num_draws", least=1)
    full, likelihood = posed.target, posed.target.likelihood
    if isinstance(full, MixedRegression):
        return sample_mixed(posed, names, relative_error, engine, progress, num_chains, num_draws, seed, groups)
    if isinstance(likelihood, Normal):
        return _integrated(posed, num_chains, num_draws, seed)
    require_memory(
        8 * num_chains * full.dim, f"{num_chains:,} chains with {full.dim:,} parameters each", "Take fewer chains."
    )
    prior_scale = float(full.prior_precision) ** -0.5
    V = _spanned(full.X)
    lift = np.kron(np.eye(likelihood.outputs), V)
    reduced = V.shape[0] != V.shape[1]
    seen = posterior(likelihood, full.X @ V, full.y, prior_scale) if reduced else full
    every, offset = posed.units.coefficients(likelihood.basis)
    T = every @ lift if reduced else every
    labels = [f"{i}: {name}" for i, name in enumerate(names)]
    tuned = tuned_plan(seen, dict(zip(labels, T, strict=True)), relative_error, num_chains, num_draws, seed)
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(every**2, axis=1) - np.sum(T**2, axis=1))
    tuned, run = run_plan(tuned, T, unseen, relative_error, engine, progress)
    theta = np.asarray(run.draws, float)
    if reduced:
        prior = np.random.default_rng(seed).normal(0.0, prior_scale, (*theta.shape[:2], full.dim))
        theta = (theta - prior @ lift) @ lift.T + prior
    return Sampled(
        tuned=tuned,
        run=run,
        reason=tuned.reason,
        posterior=Draws(likelihood, posed.units, theta),
        mean=np.array([run.mean[label] for label in labels]) + offset,
        std_error=np.array([run.std_error[label] for label in labels]),
        bias=np.array([tuned[label].largest_bias for label in labels]),
    )


def _integrated(posed: Posed, num_chains: int, num_draws: int, seed: int) -> Sampled:
    """Independent draws of a linear regression: nothing is tuned, and no chain is run."""
    target, units = posed.target, posed.units
    assert isinstance(target, WithLikelihood)
    T, offset = units.coefficients(np.eye(1))
    scale = float(target.prior_precision) ** -0.5
    found = integrate(units.noise * target.X, units.noise * target.y, scale, T, posed.count)
    shape = num_chains, math.ceil(num_draws / num_chains)
    require_memory(
        8 * math.prod(shape) * target.dim, f"{num_chains:,} chains with {shape[1]:,} draws each", "Take fewer."
    )
    theta, sigma = found.draws(np.random.default_rng(seed), shape)
    nothing = np.zeros(len(T))
    return Sampled(
        posterior=Draws(target.likelihood, units, theta, (units.y_scale * sigma,)),
        reason="Independent draws: given σ the posterior is Gaussian, and p(σ | y) is known in closed form. Means, spreads and "
        "intervals of the coefficients are integrals over σ, by quadrature; no chain was run.",
        mean=found.moments()[0] + offset,
        std_error=nothing,
        bias=nothing,
        exact=found,
    )


def _spanned(X: np.ndarray) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions in which rows have entries; the identity where these are all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    kept = values > 1e-13 * max(float(values[-1]), np.finfo(float).tiny)
    kept[-1] = True
    return np.eye(X.shape[1]) if kept.all() else vectors[:, kept]
