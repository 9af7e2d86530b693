"""Draws of regressions with further parameters or groups.

A `Posed` regression with a `MixedRegression` in, a `Sampled` posterior out. Linear models with groups are integrated over
coefficients and deviations (`marginal`); the others are drawn by nested importance sampling (`nested`). Where its weights are too
uneven, and for several linear predictors per row, `gyromc.tune` chooses a sampler, and chains are run.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gyromc.checks import require
from gyromc.memory import require_memory
from gyromc.regression.chains import run_plan, tuned_plan
from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.marginal import MOST_SIZE, ROUNDS, Marginal
from gyromc.regression.nested import Nested
from gyromc.regression.posing import Posed
from gyromc.regression.sampled import Sampled
from gyromc.regression.terms import GroupTerm
from gyromc.targets.families import NormalNoise, Ordinal
from gyromc.targets.mixed import MixedRegression

__all__ = ["sample_mixed"]

MOST_STEPS = 2e7  # of all chains: minutes
MOST_HYPER = 12  # standard deviations and correlations that importance sampling takes


def sample_mixed(
    posed: Posed,
    names: Sequence[str],
    relative_error: float,
    engine: str,
    progress: bool | Callable[[int], object] | None,
    num_chains: int,
    num_draws: int,
    seed: int,
    groups: Sequence[GroupTerm],
) -> Sampled:
    """Sample the posterior, with errors of about `relative_error` posterior standard deviations or less."""
    target = posed.target
    assert isinstance(target, MixedRegression)
    require_memory(
        8 * max(num_draws, num_chains) * target.dim, f"{num_draws:,} draws of {target.dim:,} parameters", "Take fewer."
    )
    if isinstance(target.likelihood, NormalNoise):
        marginal = Marginal(target)
        if marginal.dim <= MOST_HYPER and marginal.size <= MOST_SIZE:
            found = _integrated(marginal, posed, groups, (num_chains, math.ceil(num_draws / num_chains)), seed)
            if found is not None:
                return found
    nested = Nested(target)
    if nested.possible:
        found = _nested(nested, posed, groups, relative_error, (num_chains, math.ceil(num_draws / num_chains)), seed)
        if found is not None:
            return found
    return _chains(posed, names, relative_error, engine, progress, num_chains, num_draws, seed, groups)


def _integrated(
    marginal: Marginal, posed: Posed, groups: Sequence[GroupTerm], shape: tuple[int, int], seed: int
) -> Sampled | None:
    """A linear model with groups; None where the weights of the draws are too uneven."""
    target, units = marginal.target, posed.units
    T, offset = units.coefficients(np.eye(1))
    found = marginal.sample(T, shape[0] * shape[1], seed)
    if not found.trusted:
        return None
    p, first, pieces = target.num_coefficients, target.num_coefficients, []
    at = 1
    for group in target.groups:
        k, correlations, size = group.sizes
        u, c = found.phi[:, at : at + k], found.phi[:, at + k : at + k + correlations]
        root = group.spreads(u)[..., None] * group.correlation_root(c)
        b = found.v[:, first : first + size].reshape(-1, group.num_levels, k)
        pieces.append((b.reshape(*shape, group.num_levels, k), root.reshape(*shape, k, k)))
        at, first = at + k + correlations, first + size
    given = tuple(g.reshape(shape) for g in target.likelihood.natural(found.phi[:, :1]))
    posterior = _posterior(posed, groups, found.v[:, :p].reshape(*shape, p), given, pieces)
    reason = (
        "Independent draws: given σ and the groups' standard deviations and correlations, coefficients and deviations are "
        f"Gaussian and were integrated out. The {marginal.dim} numbers left were drawn by importance sampling, worth "
        f"{100 * found.worth:.0f} % of their number; no chain was run."
    )
    return Sampled(
        posterior=posterior,
        reason=reason,
        mean=found.mean + offset,
        std_error=found.std_error,
        bias=np.zeros(len(T)),
        beside=_beside(posterior, groups, np.zeros(marginal.dim)),
        worth=found.worth * ROUNDS[-1],
    )


def _nested(
    nested: Nested, posed: Posed, groups: Sequence[GroupTerm], relative_error: float, shape: tuple[int, int], seed: int
) -> Sampled | None:
    """A model whose coefficients and deviations are nearly Gaussian given the rest; None where the weights are too uneven."""
    found = nested.sample(relative_error, seed, least=shape[0] * shape[1])
    if not found.trusted:
        return None
    weighted = _of_theta(posed, groups, found.theta)
    theta = found.draws(np.random.default_rng(seed + 1), shape[0] * shape[1]).reshape(*shape, -1)
    posterior = _of_theta(posed, groups, theta)
    mean, error = found.average(weighted.coefficients())
    nothing = np.zeros(len(_hyper(nested.target)))
    averages = {name: found.average(draws) for name, (draws, _) in _beside(weighted, groups, nothing).items()}
    reason = (
        f"Independent draws by importance sampling, worth {100 * found.worth:.0f} % of their number: {nested.dim} from a "
        f"t-distribution, and {nested.size} coefficients and deviations given these from a Gaussian at their mode; no chain."
    )
    return Sampled(
        posterior=posterior,
        reason=reason,
        mean=mean,
        std_error=error,
        bias=np.zeros(len(mean)),
        beside=_beside(posterior, groups, nothing),
        averages={name: (float(m), float(e)) for name, (m, e) in averages.items()},
        worth=found.worth * found.weights.size,
    )


def _chains(posed, names, relative_error, engine, progress, num_chains, num_draws, seed, groups) -> Sampled:
    """Any other model, by chains."""
    target, units = posed.target, posed.units
    likelihood, p = target.likelihood, target.num_coefficients
    T, offset = units.coefficients(likelihood.basis)
    labels = [f"{i}: {name}" for i, name in enumerate(names)]
    directions = {label: np.concatenate([row, np.zeros(target.dim - p)]) for label, row in zip(labels, T, strict=True)}
    hyper = _hyper(target)
    directions |= {f"θ{i}": np.eye(target.dim)[i] for i in hyper}
    tuned = tuned_plan(target, directions, relative_error, num_chains, num_draws, seed)
    steps = tuned.plan.num_chains * tuned.plan.num_steps
    require(
        steps <= MOST_STEPS,
        f"No sampler was found that suits this model: {steps:.2g} steps would be needed, and draws around the mode are too "
        "uneven to be weighted. Take fewer levels or columns, narrower `priors`, or merge levels with few rows.",
    )
    T_all = np.array(list(directions.values()))
    tuned, run = run_plan(tuned, T_all, np.zeros(len(T_all)), relative_error, engine, progress)
    theta = np.asarray(run.draws, float)
    posterior = _of_theta(posed, groups, theta)
    relative = np.array([tuned.bias[f"θ{i}"] / max(theta[..., i].std(), 1e-300) for i in hyper])
    return Sampled(
        posterior=posterior,
        reason=tuned.reason,
        mean=np.array([run.mean[label] for label in labels]) + offset,
        std_error=np.array([run.std_error[label] for label in labels]),
        bias=np.array([tuned.bias[label] for label in labels]),
        tuned=tuned,
        run=run,
        beside=_beside(posterior, groups, relative),
    )


def _hyper(target: MixedRegression) -> list[int]:
    """The places in θ of further parameters, standard deviations and correlations."""
    p, count = target.num_coefficients, len(target.likelihood.auxiliary)
    found, first = list(range(p, p + count)), p + count
    for group in target.groups:
        found += range(first, first + sum(group.sizes[:2]))
        first += sum(group.sizes)
    return found


def _of_theta(posed: Posed, groups: Sequence[GroupTerm], theta: np.ndarray) -> Draws:
    """Draws of θ, … × … × dim, in the user's units."""
    target = posed.target
    assert isinstance(target, MixedRegression)
    parts, pieces = target.parts(theta), []
    for i, (group, b) in enumerate(zip(target.groups, target.deviations(theta), strict=True)):
        u, c = parts[2 + 3 * i], parts[3 + 3 * i]
        pieces.append((b, group.spreads(u)[..., None] * group.correlation_root(c)))
    return _posterior(posed, groups, parts[0], target.given(theta), pieces)


def _posterior(posed: Posed, groups: Sequence[GroupTerm], theta, given, pieces) -> Draws:
    """The draws in the user's units."""
    units, likelihood = posed.units, posed.target.likelihood
    found = tuple(
        GroupDraws(term.name, term.columns, term.levels, units.y_scale * b, units.y_scale * root)
        for term, (b, root) in zip(groups, pieces, strict=True)
    )
    return Draws(likelihood, units, theta, likelihood.in_units(given, units.y_scale), found)


def _beside(posterior: Draws, groups: Sequence[GroupTerm], bias: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """Draws of the further parameters and of the groups' numbers by name, each with its bias in standard deviations."""
    likelihood, found, first = posterior.likelihood, {}, len(posterior.given)
    for i, (name, draws) in enumerate(zip(likelihood.auxiliary, posterior.given, strict=True)):
        shifted = draws + _shift(posterior) if isinstance(likelihood, Ordinal) else draws
        found[name] = shifted, float(bias[: i + 1].max() if isinstance(likelihood, Ordinal) else bias[i])
    for term, group in zip(groups, posterior.groups, strict=True):
        spreads = group.spreads()
        own = bias[first : first + len(term.names)]
        for i, name in enumerate(term.names):
            found[name] = spreads[..., i], float(own[i] if i < len(term.columns) else own.max())
        first += len(term.names)
    return found


def _shift(posterior: Draws) -> np.ndarray:
    """What cutpoints at the columns' means must be raised by to be those where all columns are zero."""
    return posterior.coefficients() @ posterior.units.center
