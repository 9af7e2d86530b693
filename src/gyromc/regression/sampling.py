"""From a standardised regression to draws of its posterior.

Input: a `Standardised` regression and the names of its coefficients. Output: a `Sampled` posterior: draws, averages with errors,
and where they came from. `METHODS` are the ways to compute it, in the order in which they are tried; each says why it does not
apply, and the last one, the solver (`gyromc.expect`), always does. Directions in which no row has an entry are not sampled: there
the posterior is the prior, so a regression with more columns than rows costs as much as one with as many.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gyromc.approx.sample import systematic
from gyromc.checks import whole
from gyromc.errors import GyromcWarning
from gyromc.machine import require_memory
from gyromc.observables import linear
from gyromc.posterior import Account, Posterior
from gyromc.regression import marginal
from gyromc.regression.conjugate import Integrated, integrate
from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.problem import GroupTerm
from gyromc.regression.standardised import Standardised
from gyromc.show.interruption import interruptible
from gyromc.solve.expect import expect
from gyromc.targets.families import Normal, NormalNoise
from gyromc.targets.likelihoods import library
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import regression

__all__ = ["METHODS", "PosteriorMethod", "Sampled", "sample"]

SECONDS = 120.0  # that a fit may take; the error that was reached is stated


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from.

    **Attributes:**

    - `posterior`: draws of equal weight; `reason`: how they were computed; `account`: of the solver, None where no chain was run.
    - `mean`, `sd`, `std_error`, `bias`: of each coefficient.
    - `exact`: quantiles of the coefficients and the law of σ where they are known without draws.
    - `further`: draws of the further parameters by name; `averages`: their means with standard errors where these are known
      better than from the draws.
    - `effective`: how many independent draws the weighted ones stand for that these were picked from; None where none were.
    - `refused`: why the methods before did not apply, by name.
    - `warnings`: what could not be known; `interrupted`: whether Ctrl-C ended it early.
    """

    posterior: Draws
    reason: str
    mean: np.ndarray
    sd: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray
    exact: Integrated | None = None
    further: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    averages: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    effective: float | None = None
    account: Account | None = None
    warnings: tuple[str, ...] = ()
    interrupted: bool = False
    refused: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return None if self.exact is None else self.posterior.units.y_scale * self.exact.sigma((0.025, 0.975))[0]

    @property
    def scarcity(self) -> float:
        """By how much errors of the draws are larger than those of as many independent ones: they were picked from fewer."""
        return 1.0 if self.effective is None else max(1.0, self.posterior.count / self.effective) ** 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class _Question:
    """What `sample` was asked; `shape`: in how many groups how many draws are kept."""

    standard: Standardised
    names: Sequence[str]
    error: float
    progress: bool | None
    shape: tuple[int, int]
    seed: int
    groups: Sequence[GroupTerm]

    @property
    def target(self) -> Any:
        return self.standard.target


@dataclasses.dataclass(frozen=True)
class PosteriorMethod:
    """A way to compute a posterior: `why_not` is a reason or None, and `compute` may find a reason too."""

    name: str
    why_not: Callable[[_Question], str | None]
    compute: Callable[[_Question], Sampled | str]


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
    dim = standard.target.dim
    require_memory(8 * math.prod(shape) * dim, f"{math.prod(shape):,} draws of {dim:,} parameters", "Take fewer.")
    question = _Question(standard, names, relative_error, progress, shape, seed, groups)
    refused: dict[str, str] = {}
    for method in METHODS:
        found = method.why_not(question) or method.compute(question)
        if isinstance(found, Sampled):
            return dataclasses.replace(found, refused=refused)
        refused[method.name] = found
    raise AssertionError("the solver takes every regression")


def _why_not_closed(question: _Question) -> str | None:
    if not isinstance(question.target.likelihood, Normal):
        return f"the family {question.target.likelihood.name} has no closed form"
    return "groups have variances of their own" if isinstance(question.target, MixedRegression) else None


def _closed_form(question: _Question) -> Sampled:
    """Independent draws of a linear regression: nothing is warmed up, and no chain is run."""
    standard, target, units = question.standard, question.target, question.standard.units
    T, offset = units.coefficients(np.eye(1))
    scale = float(target.prior_precision) ** -0.5
    found = integrate(units.noise * target.X, units.noise * target.y, scale, T, standard.count)
    theta, sigma = found.draws(np.random.default_rng(question.seed), question.shape)
    mean, sd = found.moments()
    return Sampled(
        posterior=Draws(target.likelihood, units, theta, (units.y_scale * sigma,)),
        reason="Independent draws: given σ the posterior is Gaussian, and p(σ | y) is known in closed form. Means, standard "
        "deviations and intervals of the coefficients are integrals over σ, by quadrature; no chain was run.",
        mean=mean + offset,
        sd=sd,
        std_error=np.zeros(len(T)),
        bias=np.zeros(len(T)),
        exact=found,
    )


def _why_not_marginal(question: _Question) -> str | None:
    target, settings = question.target, marginal.SETTINGS
    if not (isinstance(target, MixedRegression) and isinstance(target.likelihood, NormalNoise)):
        return "coefficients cannot be integrated out unless the noise is normal"
    left = marginal.Marginal(target)
    if left.dim > settings.most_numbers:
        return f"{left.dim} standard deviations and correlations are more than {settings.most_numbers}"
    if left.size > settings.most_size:
        return f"{left.size} coefficients and deviations are more than {settings.most_size}"
    return None


def _marginal(question: _Question) -> Sampled | str:
    """A linear model with groups, coefficients and deviations integrated out."""
    standard, target, shape = question.standard, question.target, question.shape
    T, offset = standard.units.coefficients(np.eye(1))
    left = marginal.Marginal(target)
    found = left.sample(T, math.prod(shape), question.seed)
    if found.why_not_trusted is not None:
        return found.why_not_trusted
    p, at, pieces, phi = target.num_coefficients, 1, [], found.phi
    first = p
    for group in target.groups:
        k, correlations, size = group.sizes
        u, c = phi[:, at : at + k], phi[:, at + k : at + k + correlations]
        root = (group.sds(u)[..., None] * group.correlation_root(c)).reshape(*shape, k, k)
        pieces.append((found.v[:, first : first + size].reshape(*shape, group.num_levels, k), root))
        at, first = at + k + correlations, first + size
    given = tuple(g.reshape(shape) for g in target.likelihood.natural(phi[:, :1]))
    theta = found.v[:, :p].reshape(*shape, p)
    values = _further(standard, theta, given, [root for _, root in pieces])
    return Sampled(
        posterior=_posterior(standard, question.groups, theta, given, pieces),
        reason="Independent draws: given σ and the groups' standard deviations and correlations, coefficients and deviations are "
        f"Gaussian and were integrated out. The {left.dim} remaining parameters were drawn by importance sampling; the "
        f"effective sample size is {100 * found.share:.0f} % of the draws.",
        mean=found.mean + offset,
        sd=found.sd,
        std_error=found.std_error,
        bias=np.zeros(len(T)),
        further={name: values[..., i] for i, name in enumerate(_further_names(target, question.groups))},
        effective=found.effective,
    )


def _solved(question: _Question) -> Sampled:
    """Any regression, by the solver."""
    standard, full, groups = question.standard, question.target, question.groups
    mixed, likelihood = isinstance(full, MixedRegression), full.likelihood
    every, offset = standard.units.coefficients(likelihood.basis)
    lift = None if mixed else _spanned(full.X, likelihood.outputs)
    if mixed:
        target = full.in_good_coordinates()
        T = np.pad(every, ((0, 0), (0, target.dim - every.shape[1])))
    else:
        target, T = (full, every) if lift is None else (_along(full, lift), every @ lift)
    labels, further = _labels(question.names), _further_names(target, groups) if mixed else []
    asked: dict[str, Any] = dict(zip(labels, map(linear, T), strict=True))
    if further:
        asked["further"] = lambda theta: _further(standard, *_parts(target, theta))
    found, interrupted = _asked(target, asked, question)
    theta = _equal_draws(found, question.shape, question.seed)
    prior_scale = float(full.prior_precision) ** -0.5
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(every**2, axis=1) - np.sum(T**2, axis=1))
    about = _coefficients(found, labels, offset, unseen)
    if not mixed:
        if lift is not None:
            prior = np.random.default_rng(question.seed).normal(0.0, prior_scale, (*theta.shape[:2], full.dim))
            theta = (theta - prior @ lift) @ lift.T + prior
        return Sampled(Draws(likelihood, standard.units, theta), **about, interrupted=interrupted)
    beta, given, roots = _parts(target, theta)
    values = _further(standard, beta, given, roots) if further else None
    rows = [found[f"further[{i}]"] for i in range(len(further))]
    return Sampled(
        _posterior(standard, groups, beta, given, list(zip(target.deviations(theta), roots, strict=True))),
        **about,
        further={name: values[..., i] for i, name in enumerate(further)} if values is not None else {},
        averages={name: (row.mean, row.total_error) for name, row in zip(further, rows, strict=True)},
        interrupted=interrupted,
    )


METHODS = (
    PosteriorMethod("closed form", _why_not_closed, _closed_form),
    PosteriorMethod("importance sample of the variances", _why_not_marginal, _marginal),
    PosteriorMethod("solver", lambda question: None, _solved),
)


def _asked(target: Any, observables: dict[str, Any], question: _Question) -> tuple[Posterior, bool]:
    """The solver's answer with its warnings in it, and whether Ctrl-C ended it."""
    with warnings.catch_warnings(), interruptible() as stop:
        warnings.simplefilter("ignore", GyromcWarning)
        found = expect(
            target, observables, question.error, seconds=SECONDS, seed=question.seed, progress=question.progress
        )
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
    """Draws of equal weight, in the order of the chains: each group of draws comes from one chain."""
    flat = found.draws.reshape(-1, found.draws.shape[-1])
    return flat[systematic(found.weights.ravel(), math.prod(shape), np.random.default_rng(seed))].reshape(*shape, -1)


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


def _spanned(X: np.ndarray, outputs: int) -> np.ndarray | None:
    """An orthonormal basis, in columns, of the directions of θ in which rows have entries; None where these are all."""
    values, vectors = np.linalg.eigh(X.T @ X)
    kept = values > 1e-13 * max(float(values[-1]), np.finfo(float).tiny)
    kept[-1] = True
    return None if kept.all() else np.kron(np.eye(outputs), vectors[:, kept])


def _along(target: Any, lift: np.ndarray) -> Any:
    """A regression in the directions of `lift` only."""
    q, p = target.likelihood.outputs, target.X.shape[1]
    V = lift[:p, : lift.shape[1] // q]
    return regression(target.likelihood, target.X @ V, target.y, float(target.prior_precision) ** -0.5)
