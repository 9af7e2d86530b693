"""gyromc's own entries: untuned plans, tuned plans with and without rotation, and what the rotation alone gains.

Input: a `Problem`, a budget of gradients, a number of repetitions. Output: `Outcome`s as for the peers, one chain per repetition;
`rotation_gain` returns a ratio of variances at equal bias, with its error.
"""

import contextlib
import dataclasses
import math
import warnings
from unittest import mock

import numpy as np

import gyromc as gm
from accuracy.peers import BURN_IN, Outcome, step_sizes
from accuracy.problems import Problem
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.tuning import tune as tuner
from gyromc.tuning.trials import FAMILIES, cost_of_a_gradient

__all__ = [
    "gain_at_equal_bias",
    "hfhr",
    "overdamped",
    "rotation_gain",
    "sgld",
    "tuned",
    "tuned_plan",
    "tuned_reversible",
]

FULL = 5000  # rows: above, gradients come from a few rows and a control variate
FEW_ROWS = 8
PAPER_HFHR = {"heart": (0.1, 40.0)}  # α and γ of the paper's experiments; (1, 2) for what is not data


def _plan(problem: Problem, **rest) -> gm.Plan:
    """A plan for one repetition per chain; everything not given is the same for all entries."""
    return gm.Plan(target=problem.target, observables=problem.observables, dtype="float64", **rest)


def _outcome(plan: gm.Plan, found_by: float = 0.0, note: str = "") -> Outcome:
    """Run a plan; a chain that fails has infinite estimates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)  # failed chains are in the estimates
        try:
            run = gm.run(plan, progress=False, on_divergence="report")
        except gm.DivergenceError:
            lost = np.full((plan.num_chains, len(plan.observables)), np.inf)
            return Outcome(lost, plan.num_steps, 1, step_size=plan.eta, note="every chain failed")
        if run.partial:  # Ctrl-C ends a run early, and quietly
            raise KeyboardInterrupt
        found = np.stack([run.averages[name] for name in plan.observables], axis=1)
        plain = np.stack([run[name].plain.averages for name in plan.observables], axis=1)
    if run.failures:
        note = f"{note + '; ' if note else ''}{len(run.failures)} of {plan.num_chains} chains failed"
    return Outcome(
        np.where(np.isfinite(found), found, np.inf),
        plan.num_steps,
        plan.oracle.evaluations(plan.target) if problem_has_rows(plan) else 1,
        found_by + plan.burn_in,
        run.wall_time - run.compile_time,
        plan.eta,
        np.where(np.isfinite(plain), plain, np.inf) if plan.martingale else None,
        note,
    )


def problem_has_rows(plan: gm.Plan) -> bool:
    """Whether the target is a sum over data."""
    return isinstance(plan.target, gm.targets.SumOverData)


def _lengths(problem: Problem, budget: int, repetitions: int, seed: int) -> dict:
    return {
        "num_steps": budget,
        "burn_in": max(1, int(BURN_IN * budget)),
        "num_chains": repetitions,
        "start": problem.starts(repetitions, seed),
        "seed": seed,
    }


def _noisy(problem: Problem) -> gm.oracles.Oracle:
    return gm.oracles.Exact() if problem.batch is None else gm.oracles.Minibatch(problem.batch)


def sgld(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """SGLD, that is D = I and Euler's step, at every step size of the grid."""
    base = _plan(
        problem,
        dynamics=gm.dynamics.overdamped(problem.dim),
        oracle=_noisy(problem),
        step_size=1.0,
        **_lengths(problem, budget, repetitions, seed),
    )
    return [_outcome(base.replace(step_size=eta)) for eta in step_sizes(problem, problem.batch)]


def overdamped(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """The same, untuned: a tenth of the largest step of the grid."""
    eta = 0.1 * step_sizes(problem, problem.batch)[0]
    lengths = _lengths(problem, budget, repetitions, seed)
    dynamics = gm.dynamics.overdamped(problem.dim)
    return [_outcome(_plan(problem, dynamics=dynamics, oracle=_noisy(problem), step_size=eta, **lengths))]


def hfhr(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """The paper's HFHR with the paper's α and γ, untuned: a tenth of the inverse of its fastest rate."""
    alpha, gamma = PAPER_HFHR.get(problem.name, (1.0, 2.0))
    dynamics = gm.dynamics.hfhr(problem.dim, alpha, gamma)
    share = step_sizes(problem, problem.batch)[0] * problem.steepest
    eta = 0.1 * share / (alpha * problem.steepest + gamma + math.sqrt(problem.steepest))
    lengths = _lengths(problem, budget, repetitions, seed)
    return [_outcome(_plan(problem, dynamics=dynamics, oracle=_noisy(problem), step_size=eta, **lengths))]


def _whitened(problem: Problem, rate: float) -> gm.dynamics.Dynamics:
    """D = the covariance of the Gaussian fit; Q = rotations of pairs of whitened coordinates."""
    covariance = np.linalg.inv(problem.model.gaussian_fit.precision)
    covariance = (covariance + covariance.T) / 2
    if rate == 0:
        return gm.dynamics.general(covariance, 0)
    root = np.linalg.cholesky(covariance)
    turned = root @ gm.dynamics.rotations(problem.dim, rate).dense() @ root.T
    return gm.dynamics.general(covariance, (turned - turned.T) / 2)


def _whitened_plan(problem: Problem, rate: float, step_size: float, **lengths) -> gm.Plan:
    full = problem.rows <= FULL
    return _plan(
        problem,
        dynamics=_whitened(problem, rate),
        oracle=gm.oracles.Exact() if full else gm.oracles.ControlVariate(FEW_ROWS, order=2),
        scheme="balanced",
        martingale=True,
        step_size=step_size,
        **lengths,
    )


LEAST_OF_NETWORKS = 4000  # gradients that `tune` asks for


def tuned_plan(problem: Problem, gradients: int, reversible: bool = False, seed: int = 0) -> gm.Tuned:
    """What `gyromc.tune` finds for a budget, from the target alone; `reversible`: among samplers without rotation."""
    base = _plan(
        problem, dynamics=gm.dynamics.overdamped(problem.dim), step_size=1.0, num_steps=1, start=np.zeros(problem.dim)
    )
    families = tuple(family for family in FAMILIES if not (reversible and (family.turn or family.friction)))
    many = problem.near is not None  # parameters of a network
    with mock.patch.object(tuner, "FAMILIES", families):
        found = gm.tune(base, gradients=max(gradients, LEAST_OF_NETWORKS) if many else gradients, seed=seed)
        share = cost_of_a_gradient(found.plan)
        if share < 1 and not many:  # the budget counts mini-batches, as for every other sampler
            found = gm.tune(base, gradients=gradients * share, oracle=found.plan.oracle, seed=seed)
        return found


def _tuned(problem: Problem, budget: int, repetitions: int, seed: int, reversible: bool) -> list[Outcome]:
    found = tuned_plan(problem, budget, reversible, seed)
    own, lengths = found.plan.start, _lengths(problem, budget, repetitions, seed)
    lengths["start"] = own if callable(own) else np.resize(own, (repetitions, problem.dim))  # its starts in turn
    lengths["burn_in"] = max(lengths["burn_in"], found.plan.burn_in)
    plan = found.plan.replace(**lengths, dtype="float64").knowing(found.plan.model)
    return [_outcome(plan, found.spent, found.reason.partition(";")[0])]


def tuned_reversible(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """The tuned plan among samplers without rotation."""
    return _tuned(problem, budget, repetitions, seed, True)


def tuned(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """The tuned plan, rotating where that is expected to be better."""
    return _tuned(problem, budget, repetitions, seed, False)


# --- what the rotation alone gains

REVERSIBLE = (0.05, 0.1, 0.2, 0.4, 0.8, 1.2)
ROTATING = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
RATES = (0.5, 1.0)
RESAMPLED = 200
RESOLVED = 2.0  # standard errors


def rotation_gain(problem: Problem, steps: int, chains: int, seed: int) -> dict:
    """How many times fewer gradients the rotation needs at equal bias, without and with the martingale; with standard errors.

    The reversible sampler takes the step with the least mean squared error. The bias of balanced noise is of first order in the
    step, so its slope is fitted over all steps, for each rate of rotation: the rotating sampler may take every step up to that of
    the same bias, and takes the rate and step with the least variance. All this is chosen on one half of the chains. The ratio of
    variances comes from the other half: the geometric mean over observables, its error from a bootstrap over chains.
    """
    lengths = _lengths(problem, steps, chains, seed) | {"burn_in": steps}
    found: dict[float, dict[float, Outcome]] = {}
    for rate, grid in ((0.0, REVERSIBLE), *((rate, ROTATING) for rate in RATES)):
        base, found[rate] = _whitened_plan(problem, rate, grid[0], **lengths), {}
        for k, eta in enumerate(grid):
            with contextlib.suppress(InvalidInput):  # so large a step that no noise is left
                found[rate][eta] = _outcome(base.replace(step_size=eta, seed=seed + 1 + k))
    kinds = {"plain": lambda one: one.plain, "martingale": lambda one: one.estimates}
    return {
        name: gain_at_equal_bias(problem, {r: {eta: of(o) for eta, o in row.items()} for r, row in found.items()}, seed)
        for name, of in kinds.items()
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Curve:
    """The errors of one rate of rotation in posterior sds, steps × chains × observables, by increasing step size."""

    steps: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, problem: Problem, estimates: dict[float, np.ndarray], half: int) -> "_Curve | None":
        """From one half of the chains, at the step sizes where no chain failed; None where there is none."""
        good = sorted(eta for eta, x in estimates.items() if np.all(np.isfinite(x)))
        if not good:
            return None
        sd, middle = np.sqrt(problem.spread), len(estimates[good[0]]) // 2
        part = slice(0, middle) if half == 0 else slice(middle, None)
        return cls(np.array(good), np.array([(estimates[eta][part] - problem.truth) / sd for eta in good]))

    def resampled(self, rng: np.random.Generator) -> "_Curve":
        """With chains drawn again, the same for every step size."""
        count = self.errors.shape[1]
        return _Curve(self.steps, self.errors[:, rng.integers(0, count, count)])

    @property
    def log_error(self) -> np.ndarray:
        """Mean log squared error over observables, at every step size."""
        return np.mean(np.log(np.mean(self.errors**2, axis=1)), axis=1)

    def log_variance(self, eta: float) -> float:
        """Mean log variance over observables, interpolated between step sizes."""
        values = np.mean(np.log(self.errors.var(axis=1, ddof=1)), axis=1)
        return float(np.interp(math.log(eta), np.log(self.steps), values))

    @property
    def squared_slope(self) -> float:
        """c² of a bias cη, mean square over observables, by least squares; what chance adds to a squared mean is taken off."""
        chance = self.errors.var(axis=1, ddof=1) / self.errors.shape[1]
        squares = np.mean(self.errors.mean(axis=1) ** 2 - chance, axis=1)
        return float(np.sum(self.steps**2 * squares) / np.sum(self.steps**4))


def gain_at_equal_bias(problem: Problem, found: dict[float, dict[float, np.ndarray]], seed: int) -> dict:
    """The gain from estimates by rate (0: reversible) and step size; as `rotation_gain`."""
    rng, first = np.random.default_rng(seed), {rate: _Curve.of(problem, row, 0) for rate, row in found.items()}
    still = first.pop(0.0)
    if still is None:
        return {"gain": None, "why": "the reversible sampler fails at every step size"}
    eta = float(still.steps[np.argmin(still.log_error)])
    slopes = [still.resampled(rng).squared_slope for _ in range(RESAMPLED)]
    resolution = RESOLVED * float(np.std(slopes, ddof=1))
    allowed = eta * math.sqrt(max(still.squared_slope, resolution))
    choices = []
    for rate, curve in first.items():
        if curve is None:
            continue
        largest = min(float(curve.steps[-1]), allowed / math.sqrt(max(curve.squared_slope, 1e-30)))
        steps = [float(x) for x in curve.steps if x < largest] + [max(largest, float(curve.steps[0]))]
        choices += [(curve.log_variance(x), rate, x) for x in steps]
    if not choices:
        return {"gain": None, "why": "the rotating sampler fails at every step size"}
    _, rate, turned = min(choices)
    a, b = _Curve.of(problem, found[0.0], 1), _Curve.of(problem, found[rate], 1)
    assert a is not None
    assert b is not None
    logs = [a.resampled(rng).log_variance(eta) - b.resampled(rng).log_variance(turned) for _ in range(RESAMPLED)]
    gain = math.exp(a.log_variance(eta) - b.log_variance(turned))
    bias = lambda curve, at: at * math.sqrt(max(0.0, curve.squared_slope))
    return {
        "gain": gain,
        "error": gain * float(np.std(logs, ddof=1)),
        "reversible_step": eta,
        "rotating_step": turned,
        "rate": rate,
        "bias_in_sd": {
            "reversible": bias(a, eta),
            "rotating": bias(b, turned),
            "resolved_to": eta * math.sqrt(resolution),
        },
    }
