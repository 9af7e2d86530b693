"""Trials: what the solver knows of a posterior, the samplers that are tried, and one short run of each, measured against it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx.modes import GaussianApproximation
from gyromc.dynamics import Dynamics, hfhr, rotations
from gyromc.errors import InvalidInput
from gyromc.flat import identity
from gyromc.operators import as_operator
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.runtime.machine import require_memory
from gyromc.schemes import balanced
from gyromc.schemes.moments import GradientMoments, mean_covariance
from gyromc.show.progress import progress as show_progress
from gyromc.solve.chains import ChainSettings, DenseMetric
from gyromc.solve.expect import Solver, answer
from gyromc.solve.minibatch import MinibatchChains
from gyromc.solve.question import Question


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """The numbers of the reference, the trials and the choice; errors are in posterior standard deviations."""

    error: float = 0.01  # that is aimed at without a budget
    reference_error: float = 0.001
    reference_seconds: float = 120.0
    reference: tuple[float, float] = (100_000, 400_000)  # gradients of the solver, at least and at most
    points: int = 4096  # draws at which gradients give E[∇U∇Uᵀ]
    noise_points: int = 64  # at which the noise of an oracle is measured
    screening: tuple[float, float] = (6_400, 32_000)  # steps of all chains in a trial, at least and at most
    final: tuple[float, float] = (32_000, 512_000)  # and in the last one
    longer: float = 4.0  # than the plan the last trial is, so that a bias is known to half its standard error
    finals: int = 4  # samplers that get such a trial, where the first ones turn out worse than their short trials
    trial_chains: int = 64  # whose averages give a variance to 13 %
    halvings: int = 12  # of the first step size, at most
    sizes: int = 4  # step sizes of a sampler that are measured
    far: float = 2.0  # standard errors from which on a measured bias is taken as it is; below, it is shrunk
    looks: int = 100  # states of a chain that are looked at …
    thrown: float = 1.5  # … and how many times farther out than all draws they may be
    # Excess kurtosis of the averages of chains from which on few of them decide a variance, and the next run may have more: on
    # funnels, log-gamma laws, bananas and mixtures errors were up to 1.2 times those expected below it, up to 2 times above.
    uneven: float = 7.0
    better: float = 0.95  # what a later sampler's RMSE must be of an earlier one's: the choice must not follow noise
    chains: int = 32  # of a plan; more would waste steps on burn-in, fewer leave its own standard error unknown
    burnt: float = 0.2  # share of a chain that burn-in takes at most
    fewest: int = 20  # steps of a chain
    ill_conditioned: float = 1e5  # condition number from which on chains run in float64
    alpha: float = 0.01  # of HFHR, near 0, where momentum mixes best
    few_chains: int = 16  # of the warm-up with more parameters than matrices allow, for memory …
    few_rounds: int = 30  # … and its rounds
    means: int = 200  # parameters whose means are the observables where none are given …
    squares: int = 50  # … and whose squares


SETTINGS = TuneSettings()


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What the solver found of a posterior; observables in the order of the plan, draws with equal weights."""

    plan: Plan  # to vary: with the oracle, the Gaussian fit and the gradients' moments known to its model
    mean: np.ndarray
    error: np.ndarray
    sd: np.ndarray
    draws: np.ndarray
    covariance: np.ndarray  # C, a matrix, or a vector with more parameters than matrices allow
    second: np.ndarray  # S = E[ĝĝᵀ] likewise
    exact: bool  # whether the target is Gaussian and gradients are exact, so that no sampler here has a bias
    gradients: float
    warnings: list[str]

    @property
    def dense(self) -> bool:
        """Whether matrices are formed."""
        return self.covariance.ndim == 2

    def farthest(self, rows: np.ndarray) -> float:
        """The largest distance of a coordinate from its mean, in standard deviations of the draws."""
        sd = self.draws.std(axis=0)
        return float(np.max(np.abs(rows - self.draws.mean(axis=0)) / np.where(sd > 0, sd, 1.0)))

    def start(self, chains: int, seed: int) -> Any:
        """Draws, one for each chain; for a target over a pytree a function that draws one."""
        rng, unravel = np.random.default_rng(seed), self.plan.model.unravel
        if unravel is identity:
            return self.draws[rng.choice(len(self.draws), chains, replace=chains > len(self.draws))]
        rows = jnp.asarray(self.draws[rng.permutation(len(self.draws))[: max(chains, 64)]])
        return lambda key: unravel(rows[jax.random.randint(key, (), 0, len(rows))])


def refer(base: Plan, oracle: Oracle | None, gradients: float) -> Reference:
    """Run the solver for at most so many gradients, and choose the oracle where none is given."""
    base.replace(oracle=oracle)  # raises before the solver runs where it does not suit the target
    dense = base.dim <= ChainSettings.most_dense
    settings = ChainSettings() if dense else ChainSettings(chains=SETTINGS.few_chains, most=SETTINGS.few_rounds)
    size = 8 * base.dim * (2 * settings.most * settings.steps * settings.chains + SETTINGS.points)
    by_hand = "`gyromc.dynamics.hfhr` with a diagonal `preconditioner` and the scheme `hfhr_splitting`"
    remedy = f"`tune` measures errors against such chains. Write the plan by hand: {by_hand}."
    require_memory(size, f"The warm-up of {settings.chains} chains with {base.dim:,} parameters", remedy)
    limits: Any = {"most_seconds": SETTINGS.reference_seconds, "most_gradients": gradients}
    with show_progress(None, False) as shown:
        question, error = Question.read(base), SETTINGS.reference_error
        solver = Solver(question, error, shown, base.seed, settings=settings, may_learn=False, **limits)
        solver.solve()
    solver.error = math.inf  # a larger error of the reference counts in the bias of a trial and needs no warning
    found = answer(solver, 0.95)
    keys = ("mean", "std_error", "sd", "r_hat")
    mean, error, sd, r_hat = (np.array([getattr(row, key) for row in found.values()]) for key in keys)
    if found.warnings:
        # Chains that have not mixed all miss the same part of the posterior, and what is left after the regression does not
        # show it: the differences between their plain averages count.
        apart = np.sqrt(np.maximum(np.nan_to_num(r_hat, nan=1.0) ** 2 - 1, 0.0) / settings.chains)
        error = np.maximum(error, apart * sd)
    draws = found.resampled(SETTINGS.points, base.seed)
    slopes = base.flat_target.gradients(draws)
    metric: Any = solver.chains.metric
    C = metric.covariance() if dense and isinstance(metric, DenseMetric) else np.asarray(metric.scale) ** 2
    S = slopes.T @ slopes / len(slopes) if dense else np.mean(slopes**2, axis=0)
    if oracle is None and isinstance(solver.chains, MinibatchChains):
        used = solver.chains.oracle
        oracle = ControlVariate(used.size, center=np.asarray(used.center, float), order=2)
    plan, known = base.replace(oracle=oracle or Exact()), base.flat_target.gaussian() if dense else None
    if dense:
        center = draws.mean(axis=0) - C @ slopes.mean(axis=0)  # exact on a Gaussian
        if known is not None:
            S, center = known
            C = np.linalg.inv(S)
        noise = mean_covariance(plan.flat_target, plan.prepared_oracle, draws[: SETTINGS.noise_points])
        fit = GaussianApproximation(center, np.linalg.inv(C), "exact" if known is not None else "the solver's chains")
        plan.model.remember(fit, plan.oracle, GradientMoments(S, noise, "the solver's chains"))
        S = S + noise
        if np.linalg.cond(C) > SETTINGS.ill_conditioned:
            plan = plan.replace(dtype="float64")
    exact, spent = known is not None and isinstance(plan.oracle, Exact), solver.chains.gradients + len(draws)
    return Reference(plan, mean, error, sd, draws, C, S, exact, spent, list(found.warnings))


def cost_of_a_gradient(plan: Plan) -> float:
    """What one gradient of a plan costs in gradients over all the data."""
    return plan.oracle.evaluations(plan.target) / Exact().evaluations(plan.target)


@dataclasses.dataclass(frozen=True)
class Family:
    """A scheme in the coordinates of C."""

    scheme: str
    first: float  # the largest step size worth a trial on a Gaussian
    turn: float = 0.0  # Q = R J Rᵀ, C = RRᵀ and J rotating pairs of whitened coordinates at this rate
    friction: float = 0.0  # γ of HFHR, 0 for dynamics without momenta

    @property
    def name(self) -> str:
        """For tables."""
        if self.friction:
            return f"{self.scheme}, friction {self.friction:g}"
        return f"{self.scheme}, rotating at {self.turn:g}" if self.turn else f"{self.scheme}, reversible"

    def first_step(self, known: Reference) -> float:
        """The step size to begin with: smaller where S, in units of C⁻¹, is more than a Gaussian's identity."""
        C, S = known.covariance, known.second
        R = np.linalg.cholesky(C) if known.dense else C
        top = max(1.0, float(np.linalg.eigvalsh(R.T @ S @ R)[-1] if known.dense else np.max(C * S)))
        return self.first / (math.sqrt(top) if self.friction else top) / (1 + self.turn**2)

    def burn_in(self, eta: float) -> int:
        """Steps in which a chain from a posterior draw comes to its own law: some relaxation times of a Gaussian."""
        return math.ceil(3 * max(1.0, 2 * self.friction, 1 / (self.friction or 1.0)) / eta)

    def plan(self, known: Reference, eta: float) -> Plan | None:
        """The plan at this step size; None where the scheme cannot make such a step."""
        C, size = known.covariance, float(f"{eta:.3g}")
        scheme: Any = balanced(known.second) if self.scheme == "balanced" else self.scheme
        if self.friction:
            dynamics = hfhr(len(C), SETTINGS.alpha, self.friction, preconditioner=C)
        else:
            R = np.linalg.cholesky(C) if self.turn else C
            Q = as_operator(R @ rotations(len(C), self.turn).dense() @ R.T if self.turn else 0.0, "Q", size=len(C))
            name = "preconditioned SGNLMC" if self.turn else "preconditioned SGLD"
            dynamics = Dynamics(as_operator(C, "D"), Q, name, augmented=False)
        try:
            plan = known.plan.replace(dynamics=dynamics, scheme=scheme, step_size=size, martingale=known.dense)
            _ = plan.step_matrices if known.dense else plan.prepared_scheme
        except InvalidInput:
            return None
        return plan


FAMILIES = (
    Family("leimkuhler_matthews", 1.2),
    Family("balanced", 1.2),
    Family("balanced", 1.2, turn=1.0),
    Family("hfhr_splitting", 1.4, friction=1.0),
)
MANY = tuple(Family("hfhr_splitting", 1.4, friction=friction) for friction in (1.0, 0.3, 0.1))
"""With more parameters than matrices allow: whitening is incomplete, and less friction pays."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A run of a plan from posterior draws, in posterior standard deviations; an observable that does not vary has no error."""

    plan: Plan
    bias: np.ndarray  # mean less the reference's
    bias_error: np.ndarray  # the standard error of both
    variance: np.ndarray  # of one chain's average, with its standard error added as far as tails make it large
    steps: int
    rate: float  # steps of all chains per second
    exact: bool  # the plan is known to have no bias
    excess: np.ndarray | float = 0.0  # kurtosis of the chains' averages, less the 3 of a normal law

    def squared_bias(self) -> tuple[np.ndarray, np.ndarray]:
        """Squares of the bias and of its error, whose sum is the mean square of what the bias may be.

        A bias beyond `far` standard errors is taken as measured, less what noise adds to its square. The others are shrunk by
        τ²/(τ² + s²), τ² being their mean square over observables, no less than what chance leaves of it.
        """
        if self.exact:
            return np.zeros_like(self.bias), np.zeros_like(self.bias)
        b, s = self.bias**2, self.bias_error**2
        far = b > SETTINGS.far**2 * s
        near = ~far & (s > 0)
        count = max(1, int(near.sum()))
        typical = max(0.0, float(np.sum(np.where(near, b - s, 0.0))) / count)
        tau = np.maximum(typical, s * math.sqrt(2 / count))
        share = np.where(s > 0, tau / np.where(s > 0, tau + s, 1.0), 0.0)
        return np.where(far, b - s, share**2 * b), np.where(far, s, share * s)
