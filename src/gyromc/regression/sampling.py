"""From a standardised regression to draws of its posterior.

Input: a `Standardised` regression and the names of its coefficients. Output: a `Sampled` posterior: draws, averages with errors,
and where they came from. Linear models are integrated; those with groups are integrated over coefficients and deviations
(`marginal`); other models with groups or further parameters are drawn by nested importance sampling (`nested`). Where its weights
are too uneven, and for all other models, `gyromc.tune` chooses a sampler, and chains are run. Directions in which no row has an
entry are not sampled: there the posterior is the prior, so a regression with more columns than rows costs as much as one with as
many.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from gyromc import engines
from gyromc.checks import require, whole
from gyromc.errors import DivergenceError
from gyromc.memory import require_memory
from gyromc.observables import linear, square
from gyromc.plan import Plan
from gyromc.regression.conjugate import Integrated, integrate
from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.marginal import MOST_SIZE, ROUNDS, Marginal
from gyromc.regression.nested import Nested
from gyromc.regression.problem import GroupTerm
from gyromc.regression.standardised import Standardised
from gyromc.results import Run
from gyromc.targets import Target
from gyromc.targets.families import Normal, NormalNoise
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import WithLikelihood, regression
from gyromc.tuning.tune import tune
from gyromc.tuning.tuned import Expected, Tuned


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from.

    **Attributes:**

    - `posterior`: draws; `reason`: how they were computed; `tuned`, `run`: of the chains, None where there are none.
    - `mean`, `std_error`, `bias` (estimated, not subtracted): of each coefficient.
    - `exact`: standard deviations and quantiles of the coefficients and of σ where they are known without draws.
    - `beside`: the further parameters, by name, as draws and the size of their bias in standard deviations.
    - `worth`: how many independent draws the weighted ones are worth that these draws were picked from; None where none were.
    - `averages`: their means with standard errors where these are known better than from the draws.
    """

    posterior: Draws
    reason: str
    mean: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray
    tuned: Tuned | None = None
    run: Run | None = None
    exact: Integrated | None = None
    beside: dict[str, tuple[np.ndarray, float]] = dataclasses.field(default_factory=dict)
    averages: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    worth: float | None = None

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return None if self.exact is None else self.posterior.units.y_scale * self.exact.sigma((0.025, 0.975))[0]

    @property
    def scarcity(self) -> float:
        """By how much errors of the draws are larger than those of as many independent ones: they were picked from fewer."""
        return 1.0 if self.worth is None else max(1.0, self.posterior.count / self.worth) ** 0.5

    @property
    def warnings(self) -> list[str]:
        """What could not be known."""
        return [] if self.tuned is None else list(self.tuned.warnings)


MOST_LENGTHENING = 16.0
MOST_SQUARES = 30  # coefficients whose squares are tuned for too: these see the bias of posterior standard deviations
APART = 2.0  # relaxation times between two kept states
BURN_IN = 5.0  # relaxation times


def tuned_plan(
    target: Target, coefficients: dict[str, np.ndarray], error: float, chains: int, draws: int, seed: int
) -> Tuned:
    """A tuned plan for the coefficients, with so many chains and steps enough for so many draws."""
    means = {name: linear(direction) for name, direction in coefficients.items()}
    squares = {f"{name}²": square(direction) for name, direction in coefficients.items() if np.any(direction)}
    few = len(coefficients) <= MOST_SQUARES and target.gaussian() is None
    found = tune(target, observables=means | squares if few else means, error=error, seed=seed)
    plan, eta = found.plan, found.plan.eta
    before = plan.num_chains * plan.num_steps
    steps = max(math.ceil(before / chains), math.ceil(draws / chains) * math.ceil(APART / eta))
    longer = plan.replace(
        observables=means,
        num_chains=chains,
        num_steps=steps,
        burn_in=max(plan.burn_in, math.ceil(BURN_IN / eta)),
        start=np.resize(plan.start, (chains, plan.dim)),  # some chains begin alike and part in the burn-in
    ).knowing(plan.model)
    shrunk = math.sqrt(before / (chains * steps))
    rows = {name: _with_error(found[name], shrunk) for name in means}
    reason = (
        f"{found.reason} Lengthened to {chains} chains × {steps} steps after {longer.burn_in} of burn-in, for {draws} "
        "nearly independent draws."
    )
    changes = {"gradients": found.gradients / plan.gradients * longer.gradients, "seconds": None, "reason": reason}
    return dataclasses.replace(found, plan=longer, rows=rows, **changes)


def _with_error(row: Expected, factor: float) -> Expected:
    """What to expect with the Monte Carlo error multiplied by a factor; of a constant, no error at all."""
    if not math.isfinite(row.sd):
        return Expected(0.0, 0.0, 0.0, 0.0)
    chance = factor * row.std_error
    return dataclasses.replace(row, std_error=chance, expected=math.hypot(row.bias, chance))


def run_plan(tuned: Tuned, T: np.ndarray, unseen: np.ndarray, error: float, engine: str, progress) -> tuple[Tuned, Run]:
    """The run: once again with half the step size where chains diverge, longer where errors are large.

    `T` holds the coefficients' directions, `unseen` the variance that directions without data add to each.
    """
    try:
        run = engines.run(tuned.plan, engine, thin=_thin(tuned.plan), progress=progress)
    except DivergenceError:
        tuned = _halved(tuned)
        run = engines.run(tuned.plan, engine, thin=_thin(tuned.plan), progress=progress)
    return tuned, _long_enough(T, unseen, error, run)


def _thin(plan: Plan) -> int:
    return math.ceil(APART / plan.eta)


def _halved(tuned: Tuned) -> Tuned:
    """Half the step size and the same time, with the reason added."""
    plan, eta = tuned.plan, tuned.plan.eta / 2
    slower = plan.replace(step_size=eta, num_steps=2 * plan.num_steps, burn_in=2 * plan.burn_in)
    reason = f"{tuned.reason} Chains diverged; the step size was halved to {eta:.3g}."
    return dataclasses.replace(tuned, plan=slower, gradients=2 * tuned.gradients, reason=reason)


def _long_enough(T: np.ndarray, unseen: np.ndarray, wanted: float, run: Run) -> Run:
    """The run, continued where its errors are much larger than asked for."""
    if run.draws.shape[1] == 0:
        raise KeyboardInterrupt("interrupted before the first draw")
    sd = np.sqrt((run.draws @ T.T).var(axis=(0, 1)) + unseen)
    error = np.array(list(run.std_error.values()))
    worst = float(np.max(error / np.where(sd > 0, sd, np.inf)))
    if worst <= 1.5 * wanted or run.partial:
        return run
    factor = min(MOST_LENGTHENING, (worst / wanted) ** 2)
    return run.continue_(math.ceil((factor - 1) * run.steps_done))


MOST_STEPS = 2e7  # of all chains: minutes
MOST_HYPER = 12  # standard deviations and correlations that importance sampling takes


def sample_mixed(
    standard: Standardised,
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
    target = standard.target
    assert isinstance(target, MixedRegression)
    require_memory(
        8 * max(num_draws, num_chains) * target.dim, f"{num_draws:,} draws of {target.dim:,} parameters", "Take fewer."
    )
    if isinstance(target.likelihood, NormalNoise):
        marginal = Marginal(target)
        if marginal.dim <= MOST_HYPER and marginal.size <= MOST_SIZE:
            found = _linear_groups(marginal, standard, groups, (num_chains, math.ceil(num_draws / num_chains)), seed)
            if found is not None:
                return found
    nested = Nested(target)
    if nested.possible:
        found = _nested(nested, standard, groups, relative_error, (num_chains, math.ceil(num_draws / num_chains)), seed)
        if found is not None:
            return found
    return _chains(standard, names, relative_error, engine, progress, num_chains, num_draws, seed, groups)


def _linear_groups(
    marginal: Marginal, standard: Standardised, groups: Sequence[GroupTerm], shape: tuple[int, int], seed: int
) -> Sampled | None:
    """A linear model with groups; None where the weights of the draws are too uneven."""
    target, units = marginal.target, standard.units
    T, offset = units.coefficients(np.eye(1))
    found = marginal.sample(T, shape[0] * shape[1], seed)
    if not found.trusted:
        return None
    p, first, pieces = target.num_coefficients, target.num_coefficients, []
    at = 1
    for group in target.groups:
        k, correlations, size = group.sizes
        u, c = found.phi[:, at : at + k], found.phi[:, at + k : at + k + correlations]
        root = group.sds(u)[..., None] * group.correlation_root(c)
        b = found.v[:, first : first + size].reshape(-1, group.num_levels, k)
        pieces.append((b.reshape(*shape, group.num_levels, k), root.reshape(*shape, k, k)))
        at, first = at + k + correlations, first + size
    given = tuple(g.reshape(shape) for g in target.likelihood.natural(found.phi[:, :1]))
    posterior = _posterior(standard, groups, found.v[:, :p].reshape(*shape, p), given, pieces)
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
    nested: Nested,
    standard: Standardised,
    groups: Sequence[GroupTerm],
    relative_error: float,
    shape: tuple[int, int],
    seed: int,
) -> Sampled | None:
    """A model whose coefficients and deviations are nearly Gaussian given the rest; None where the weights are too uneven."""
    found = nested.sample(relative_error, seed, least=shape[0] * shape[1])
    if not found.trusted:
        return None
    weighted = _of_theta(standard, groups, found.theta)
    theta = found.draws(np.random.default_rng(seed + 1), shape[0] * shape[1]).reshape(*shape, -1)
    posterior = _of_theta(standard, groups, theta)
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


def _chains(standard, names, relative_error, engine, progress, num_chains, num_draws, seed, groups) -> Sampled:
    """Any other model, by chains."""
    target, units = standard.target, standard.units
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
    posterior = _of_theta(standard, groups, theta)
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


def _of_theta(standard: Standardised, groups: Sequence[GroupTerm], theta: np.ndarray) -> Draws:
    """Draws of θ, … × … × dim, in the user's units."""
    target = standard.target
    assert isinstance(target, MixedRegression)
    parts, pieces = target.parts(theta), []
    for i, (group, b) in enumerate(zip(target.groups, target.deviations(theta), strict=True)):
        u, c = parts[2 + 3 * i], parts[3 + 3 * i]
        pieces.append((b, group.sds(u)[..., None] * group.correlation_root(c)))
    return _posterior(standard, groups, parts[0], target.given(theta), pieces)


def _posterior(standard: Standardised, groups: Sequence[GroupTerm], theta, given, pieces) -> Draws:
    """The draws in the user's units."""
    units, likelihood = standard.units, standard.target.likelihood
    found = tuple(
        GroupDraws(term.name, term.columns, term.levels, units.y_scale * b, units.y_scale * root)
        for term, (b, root) in zip(groups, pieces, strict=True)
    )
    return Draws(likelihood, units, theta, likelihood.in_units(given, units.y_scale), found)


def _beside(posterior: Draws, groups: Sequence[GroupTerm], bias: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """Draws of the further parameters and of the groups' numbers by name, each with its bias in standard deviations."""
    likelihood, found, first = posterior.likelihood, {}, len(posterior.given)
    for i, (name, draws) in enumerate(zip(likelihood.auxiliary, posterior.given, strict=True)):
        shifted = draws + _shift(posterior) if likelihood.cutpoints else draws
        found[name] = shifted, float(bias[: i + 1].max() if likelihood.cutpoints else bias[i])
    for term, group in zip(groups, posterior.groups, strict=True):
        values = group.parameters()
        own = bias[first : first + len(term.names)]
        for i, name in enumerate(term.names):
            found[name] = values[..., i], float(own[i] if i < len(term.columns) else own.max())
        first += len(term.names)
    return found


def _shift(posterior: Draws) -> np.ndarray:
    """What cutpoints at the columns' means must be raised by to be those where all columns are zero."""
    return posterior.coefficients() @ posterior.units.center


def sample(
    standard: Standardised,
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
    full, likelihood = standard.target, standard.target.likelihood
    if isinstance(full, MixedRegression):
        return sample_mixed(standard, names, relative_error, engine, progress, num_chains, num_draws, seed, groups)
    if isinstance(likelihood, Normal):
        return _linear(standard, num_chains, num_draws, seed)
    require_memory(
        8 * num_chains * full.dim, f"{num_chains:,} chains with {full.dim:,} parameters each", "Take fewer chains."
    )
    prior_scale = float(full.prior_precision) ** -0.5
    V = _spanned(full.X)
    lift = np.kron(np.eye(likelihood.outputs), V)
    reduced = V.shape[0] != V.shape[1]
    seen = regression(likelihood, full.X @ V, full.y, prior_scale) if reduced else full
    every, offset = standard.units.coefficients(likelihood.basis)
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
        posterior=Draws(likelihood, standard.units, theta),
        mean=np.array([run.mean[label] for label in labels]) + offset,
        std_error=np.array([run.std_error[label] for label in labels]),
        bias=np.array([tuned[label].largest_bias for label in labels]),
    )


def _linear(standard: Standardised, num_chains: int, num_draws: int, seed: int) -> Sampled:
    """Independent draws of a linear regression: nothing is tuned, and no chain is run."""
    target, units = standard.target, standard.units
    assert isinstance(target, WithLikelihood)
    T, offset = units.coefficients(np.eye(1))
    scale = float(target.prior_precision) ** -0.5
    found = integrate(units.noise * target.X, units.noise * target.y, scale, T, standard.count)
    shape = num_chains, math.ceil(num_draws / num_chains)
    require_memory(
        8 * math.prod(shape) * target.dim, f"{num_chains:,} chains with {shape[1]:,} draws each", "Take fewer."
    )
    theta, sigma = found.draws(np.random.default_rng(seed), shape)
    nothing = np.zeros(len(T))
    return Sampled(
        posterior=Draws(target.likelihood, units, theta, (units.y_scale * sigma,)),
        reason="Independent draws: given σ the posterior is Gaussian, and p(σ | y) is known in closed form. Means, sds and "
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
