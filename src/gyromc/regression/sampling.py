"""From a posed regression to draws of its posterior: a tuned plan, made long enough for draws, run and repaired where it must be.

A `Posed` regression and the names of its coefficients in; the run, the averages and draws out. `gyromc.tune` chooses the sampler
for the means and squares of the coefficients; the run then averages the coefficients. Directions in which no row has an entry are
not sampled: there the posterior is the prior, whose mean is known and whose draws are made at once. So a regression with more
columns than rows costs as much as one with as many.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from gyromc import engines
from gyromc.checks import require_memory, whole
from gyromc.errors import DivergenceError
from gyromc.observables import linear, square
from gyromc.plan import Plan
from gyromc.regression.conjugate import Integrated, integrate
from gyromc.regression.draws import Draws
from gyromc.regression.posing import Posed, posterior
from gyromc.results import Run
from gyromc.targets.likelihoods import Normal
from gyromc.targets.regressions import WithLikelihood
from gyromc.tuning.tune import tune
from gyromc.tuning.tuned import Expected, Tuned

__all__ = ["Sampled", "sample"]

MOST_LENGTHENING = 16.0
MOST_SQUARES = 30  # coefficients whose squares are tuned for too: these see the bias of posterior spreads
APART = 2.0  # relaxation times between two kept states
BURN_IN = 5.0  # relaxation times


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior and where it came from.

    **Attributes:**

    - `posterior`: draws; `reason`: how they were computed; `tuned`, `run`: of the chains, None where there are none.
    - `mean`, `std_error`, `bias` (estimated, not subtracted): of each coefficient.
    - `exact`: spreads and quantiles of the coefficients and of σ where they are known without draws.
    """

    posterior: Draws
    reason: str
    mean: np.ndarray
    std_error: np.ndarray
    bias: np.ndarray
    tuned: Tuned | None = None
    run: Run | None = None
    exact: Integrated | None = None

    @property
    def noise_scale(self) -> float | None:
        """The posterior mean of σ of a linear model, in the units of y."""
        return None if self.exact is None else self.posterior.units.y_scale * self.exact.sigma((0.025, 0.975))[0]

    @property
    def warnings(self) -> list[str]:
        """What could not be known."""
        return [] if self.tuned is None else list(self.tuned.warnings)


def sample(
    posed: Posed,
    names: Sequence[str],
    relative_error: float,
    engine: str = "auto",
    progress: bool | Callable[[int], object] | None = False,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
) -> Sampled:
    """Sample the posterior of a regression, with errors of about `relative_error` posterior standard deviations or less."""
    num_draws = whole(num_draws, "num_draws", least=1)
    full, likelihood = posed.target, posed.target.likelihood
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
    tuned = _tuned(seen, dict(zip(labels, T, strict=True)), relative_error, num_chains, num_draws, seed)
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(every**2, axis=1) - np.sum(T**2, axis=1))
    tuned, run = _run(tuned, T, unseen, relative_error, engine, progress)
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
        bias=np.array([tuned.bias[label] for label in labels]),
    )


def _integrated(posed: Posed, num_chains: int, num_draws: int, seed: int) -> Sampled:
    """Independent draws of a linear regression: nothing is tuned, and no chain is run."""
    target, units = posed.target, posed.units
    T, offset = units.coefficients(np.eye(1))
    scale = float(target.prior_precision) ** -0.5
    found = integrate(units.noise * target.X, units.noise * target.y, scale, T, posed.count)
    shape = num_chains, math.ceil(num_draws / num_chains)
    require_memory(8 * math.prod(shape) * target.dim, f"{math.prod(shape):,} draws", "Take fewer.")
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


def _tuned(
    target: WithLikelihood, coefficients: dict[str, np.ndarray], error: float, chains: int, draws: int, seed: int
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
    reached = all(row.expected <= 1.2 * error * row.sd for row in rows.values())
    kept = [text for text in found.warnings if not (reached and text.startswith("The error"))]  # of the shorter plan
    return dataclasses.replace(found, plan=longer, rows=rows, warnings=kept, **changes)


def _with_error(row: Expected, factor: float) -> Expected:
    """What to expect with the Monte Carlo error multiplied by a factor; of a constant, no error at all."""
    if not math.isfinite(row.sd):
        return Expected(0.0, 0.0, 0.0, 0.0)
    chance = factor * row.std_error
    return dataclasses.replace(row, std_error=chance, expected=math.hypot(row.bias, chance))


def _run(tuned: Tuned, T: np.ndarray, unseen: np.ndarray, error: float, engine: str, progress) -> tuple[Tuned, Run]:
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
