"""From a standardised regression to draws of its posterior.

Input: a `Standardised` regression and the names of its coefficients. Output: a `Sampled` posterior: draws, averages with errors,
and where they came from. Three ways, in this order: a linear model is integrated in closed form; a linear model with groups is
integrated over coefficients and deviations, and the few numbers left are drawn by importance sampling (`marginal`); everything
else is a question to the solver (`gyromc.expect`). Directions in which no row has an entry are not sampled: there the posterior
is the prior, so a regression with more columns than rows costs as much as one with as many.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gyromc.checks import whole
from gyromc.errors import GyromcWarning
from gyromc.memory import require_memory
from gyromc.observables import linear
from gyromc.posterior import Account, Posterior
from gyromc.regression.conjugate import Integrated, integrate
from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.marginal import MOST_SIZE, ROUNDS, Marginal
from gyromc.regression.problem import GroupTerm
from gyromc.regression.standardised import Standardised
from gyromc.show.interruption import interruptible
from gyromc.solve.expect import expect
from gyromc.targets.families import Normal, NormalNoise
from gyromc.targets.likelihoods import library
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import regression

MOST_HYPER = 12  # standard deviations and correlations that importance sampling takes
SECONDS = 120.0  # that a fit may take; the error that was reached is stated


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from.

    **Attributes:**

    - `posterior`: draws of equal weight; `reason`: how they were computed; `account`: of the solver, None where no chain was run.
    - `mean`, `std_error`, `bias`: of each coefficient; `sd`: where it is known better than from draws.
    - `exact`: standard deviations and quantiles of the coefficients and of σ where they are known without draws.
    - `further`: draws of the further parameters by name; `averages`: their means with standard errors where these are known
      better than from the draws.
    - `effective`: how many independent draws the weighted ones stand for that these were picked from; None where none were.
    - `warnings`: what could not be known; `interrupted`: whether Ctrl-C ended it early.
    """

    posterior: Draws
    reason: str
    mean: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray
    sd: np.ndarray | None = None
    exact: Integrated | None = None
    further: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    averages: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    effective: float | None = None
    account: Account | None = None
    warnings: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return None if self.exact is None else self.posterior.units.y_scale * self.exact.sigma((0.025, 0.975))[0]

    @property
    def scarcity(self) -> float:
        """By how much errors of the draws are larger than those of as many independent ones: they were picked from fewer."""
        return 1.0 if self.effective is None else max(1.0, self.posterior.count / self.effective) ** 0.5


def sample(
    standard: Standardised,
    names: Sequence[str],
    relative_error: float,
    progress: bool | None = False,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
    groups: Sequence[GroupTerm] = (),
) -> Sampled:
    """Sample the posterior of a regression, with errors of about `relative_error` posterior standard deviations or less."""
    shape = num_chains, math.ceil(whole(num_draws, "num_draws", least=1) / num_chains)
    target = standard.target
    require_memory(
        8 * math.prod(shape) * target.dim, f"{math.prod(shape):,} draws of {target.dim:,} parameters", "Take fewer."
    )
    if isinstance(target.likelihood, Normal) and not isinstance(target, MixedRegression):
        return _linear(standard, shape, seed)
    if isinstance(target, MixedRegression) and isinstance(target.likelihood, NormalNoise):
        marginal = Marginal(target)
        if marginal.dim <= MOST_HYPER and marginal.size <= MOST_SIZE:
            found = _linear_groups(marginal, standard, groups, shape, seed)
            if found is not None:
                return found
    if isinstance(target, MixedRegression):
        return _solved_mixed(standard, names, relative_error, progress, shape, seed, groups)
    return _solved(standard, names, relative_error, progress, shape, seed)


def _linear(standard: Standardised, shape: tuple[int, int], seed: int) -> Sampled:
    """Independent draws of a linear regression: nothing is warmed up, and no chain is run."""
    target, units = standard.target, standard.units
    T, offset = units.coefficients(np.eye(1))
    scale = float(target.prior_precision) ** -0.5
    found = integrate(units.noise * target.X, units.noise * target.y, scale, T, standard.count)
    theta, sigma = found.draws(np.random.default_rng(seed), shape)
    nothing = np.zeros(len(T))
    return Sampled(
        posterior=Draws(target.likelihood, units, theta, (units.y_scale * sigma,)),
        reason="Independent draws: given σ the posterior is Gaussian, and p(σ | y) is known in closed form. Means, standard "
        "deviations and intervals of the coefficients are integrals over σ, by quadrature; no chain was run.",
        mean=found.moments()[0] + offset,
        std_error=nothing,
        bias=nothing,
        exact=found,
    )


def _linear_groups(
    marginal: Marginal, standard: Standardised, groups: Sequence[GroupTerm], shape: tuple[int, int], seed: int
) -> Sampled | None:
    """A linear model with groups; None where the weights of the draws are too uneven."""
    target, units = marginal.target, standard.units
    T, offset = units.coefficients(np.eye(1))
    found = marginal.sample(T, shape[0] * shape[1], seed)
    if not found.trusted:
        return None
    p, at, pieces, phi, roots = target.num_coefficients, 1, [], found.phi, []
    first = p
    for group in target.groups:
        k, correlations, size = group.sizes
        u, c = phi[:, at : at + k], phi[:, at + k : at + k + correlations]
        root = (group.sds(u)[..., None] * group.correlation_root(c)).reshape(*shape, k, k)
        pieces.append((found.v[:, first : first + size].reshape(*shape, group.num_levels, k), root))
        roots.append(root)
        at, first = at + k + correlations, first + size
    given = tuple(g.reshape(shape) for g in target.likelihood.natural(phi[:, :1]))
    theta = found.v[:, :p].reshape(*shape, p)
    reason = (
        "Independent draws: given σ and the groups' standard deviations and correlations, coefficients and deviations are "
        f"Gaussian and were integrated out. The {marginal.dim} remaining parameters were drawn by importance sampling; the "
        f"effective sample size is {100 * found.worth:.0f} % of the draws."
    )
    values = _further(standard, theta, given, roots)
    return Sampled(
        posterior=_posterior(standard, groups, theta, given, pieces),
        reason=reason,
        mean=found.mean + offset,
        std_error=found.std_error,
        bias=np.zeros(len(T)),
        further={name: values[..., i] for i, name in enumerate(_further_names(target, groups))},
        effective=found.worth * ROUNDS[-1],
    )


def _solved(standard: Standardised, names: Sequence[str], error: float, progress, shape, seed: int) -> Sampled:
    """A regression whose only parameters are coefficients, by the solver, in the directions that rows have entries in."""
    full, likelihood = standard.target, standard.target.likelihood
    prior_scale = float(full.prior_precision) ** -0.5
    V = _spanned(full.X)
    every, offset = standard.units.coefficients(likelihood.basis)
    reduced = V.shape[0] != V.shape[1]
    lift = np.kron(np.eye(likelihood.outputs), V)
    target = regression(likelihood, full.X @ V, full.y, prior_scale) if reduced else full
    T = every @ lift if reduced else every
    labels = _labels(names)
    found, interrupted = _asked(target, dict(zip(labels, map(linear, T), strict=True)), error, progress, seed)
    theta = _equal_draws(found, shape, seed)
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(every**2, axis=1) - np.sum(T**2, axis=1))
    if reduced:
        prior = np.random.default_rng(seed).normal(0.0, prior_scale, (*theta.shape[:2], full.dim))
        theta = (theta - prior @ lift) @ lift.T + prior
    posterior = Draws(likelihood, standard.units, theta)
    return Sampled(posterior, **_coefficients(found, labels, offset, unseen), interrupted=interrupted)


def _solved_mixed(standard, names, error: float, progress, shape, seed: int, groups: Sequence[GroupTerm]) -> Sampled:
    """A regression with further parameters or groups, by the solver."""
    target, units = standard.target.in_good_coordinates(), standard.units
    T, offset = units.coefficients(target.likelihood.basis)
    labels, further = _labels(names), _further_names(target, groups)
    T = np.concatenate([T, np.zeros((len(T), target.dim - T.shape[1]))], axis=1)
    asked: dict[str, Any] = dict(zip(labels, map(linear, T), strict=True))
    if further:
        asked["further"] = lambda theta: _further(standard, *_parts(target, theta))
    found, interrupted = _asked(target, asked, error, progress, seed)
    theta = _equal_draws(found, shape, seed)
    beta, given, roots = _parts(target, theta)
    values = _further(standard, beta, given, roots) if further else None
    rows = [found[f"further[{i}]"] for i in range(len(further))]
    return Sampled(
        _posterior(standard, groups, beta, given, list(zip(target.deviations(theta), roots, strict=True))),
        **_coefficients(found, labels, offset, np.zeros(len(T))),
        further={name: values[..., i] for i, name in enumerate(further)} if values is not None else {},
        averages={name: (row.mean, row.total_error) for name, row in zip(further, rows, strict=True)},
        interrupted=interrupted,
    )


def _asked(target: Any, observables: dict[str, Any], error: float, progress, seed: int) -> tuple[Posterior, bool]:
    """The solver's answer with its warnings in it, and whether Ctrl-C ended it."""
    with warnings.catch_warnings(), interruptible() as stop:
        warnings.simplefilter("ignore", GyromcWarning)
        found = expect(target, observables, error, seconds=SECONDS, seed=seed, progress=progress)
    return found, bool(stop)


def _labels(names: Sequence[str]) -> list[str]:
    """Names of the coefficients that differ from each other and from that of the further parameters."""
    return [f"{i}: {name}" for i, name in enumerate(names)]


def _coefficients(found: Posterior, labels: Sequence[str], offset: np.ndarray, unseen: np.ndarray) -> dict[str, Any]:
    """What the solver says about the coefficients; `unseen`: variances that directions without data add."""
    rows = [found[label] for label in labels]
    column = lambda name: np.array([getattr(row, name) for row in rows])
    weights, values = found.weights / found.weights.sum(), found.values_at_draws[..., : len(labels)]
    # of weighted draws: the zero-mean functions that made the weights sharpen variances too
    variance = np.einsum("cd,cdk->k", weights, (values - np.einsum("cd,cdk->k", weights, values)) ** 2)
    return {
        "reason": f"{found.account.sentence()[0].upper()}{found.account.sentence()[1:]}.",
        "mean": column("mean") + offset,
        "std_error": column("std_error"),
        "bias": column("bias"),
        "sd": np.sqrt(variance + unseen),
        "account": found.account,
        "warnings": tuple(found.warnings),
    }


def _equal_draws(found: Posterior, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Draws of equal weight by systematic resampling, in the order of the chains: each group of draws comes from one chain."""
    flat, count = found.draws.reshape(-1, found.draws.shape[-1]), math.prod(shape)
    ends = np.cumsum(found.weights.ravel())
    ticks = (np.arange(count) + np.random.default_rng(seed).random()) / count * ends[-1]
    return flat[np.searchsorted(ends, ticks).clip(max=len(flat) - 1)].reshape(*shape, -1)


def _parts(target: MixedRegression, theta) -> tuple[Any, tuple[Any, ...], list[Any]]:
    """Coefficients, the likelihood's parameters, and the roots of the groups' covariances: of NumPy or JAX arrays."""
    parts = target.parts(theta)
    roots = [
        group.sds(parts[2 + 3 * i])[..., None] * group.correlation_root(parts[3 + 3 * i])
        for i, group in enumerate(target.groups)
    ]
    return parts[0], target.given(theta), roots


def _further_names(target: MixedRegression, groups: Sequence[GroupTerm]) -> list[str]:
    return [*target.likelihood.auxiliary, *(name for term in groups for name in term.names)]


def _further(standard: Standardised, beta, given, roots) -> Any:
    """The further parameters and the groups' standard deviations and correlations, in the user's units: … × names."""
    units, likelihood, xp = standard.units, standard.target.likelihood, library(beta)
    found = list(likelihood.in_units(given, units.y_scale))
    if likelihood.cutpoints:  # those at the columns' means, raised to where all columns are zero
        T, offset = units.coefficients(likelihood.basis)
        found = [cut + (beta @ T.T + offset) @ units.center for cut in found]
    for root in roots:
        covariance = root @ xp.swapaxes(root, -1, -2)
        k = root.shape[-1]
        sds = [xp.sqrt(covariance[..., i, i]) for i in range(k)]
        found += [units.y_scale * sd for sd in sds]
        found += [covariance[..., i, j] / (sds[i] * sds[j]) for i in range(k) for j in range(i + 1, k)]
    return xp.stack(found, axis=-1)


def _posterior(standard: Standardised, groups: Sequence[GroupTerm], theta, given, pieces) -> Draws:
    """The draws in the user's units; `pieces`: deviations and roots of their covariance, of each group."""
    units, likelihood = standard.units, standard.target.likelihood
    found = tuple(
        GroupDraws(term.name, term.columns, term.levels, units.y_scale * b, units.y_scale * root)
        for term, (b, root) in zip(groups, pieces, strict=True)
    )
    return Draws(likelihood, units, theta, likelihood.in_units(given, units.y_scale), found)


def _spanned(X: np.ndarray) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions in which rows have entries; the identity where these are all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    kept = values > 1e-13 * max(float(values[-1]), np.finfo(float).tiny)
    kept[-1] = True
    return np.eye(X.shape[1]) if kept.all() else vectors[:, kept]
