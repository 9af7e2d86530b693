"""gyromc's own entries: untuned plans, tuned plans with and without rotation, and what the rotation alone gains.

Input: a `Problem`, a budget of gradients, a number of repetitions. Output: `Outcome`s as for the peers, one chain per repetition;
`rotation_gain` returns a ratio of variances at equal bias, with its error.
"""

import contextlib
import math
import warnings
from unittest import mock

import numpy as np

import gyromc as gm
from accuracy.peers import BURN_IN, Outcome, step_sizes
from accuracy.problems import Problem
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.tuning import tune as tuner
from gyromc.tuning.families import FAMILIES

__all__ = ["hfhr", "overdamped", "rotation_gain", "sgld", "tuned", "tuned_plan", "tuned_reversible"]

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
        plan.oracle.gradients(plan.num_steps),
        plan.oracle.evaluations(plan.target) if problem_has_rows(plan) else 1,
        found_by + plan.oracle.gradients(plan.burn_in),
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


def tuned_plan(problem: Problem, gradients: int, reversible: bool = False, seed: int = 0) -> gm.Tuned:
    """What `gyromc.tune` finds for a budget, from the target alone; `reversible`: among samplers without rotation."""
    base = _plan(
        problem, dynamics=gm.dynamics.overdamped(problem.dim), step_size=1.0, num_steps=1, start=np.zeros(problem.dim)
    )
    families = tuple(family for family in FAMILIES if not (reversible and family.turn))
    with mock.patch.object(tuner, "FAMILIES", families):
        return gm.tune(base, gradients=gradients, seed=seed)


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


def rotation_gain(problem: Problem, steps: int, chains: int, seed: int) -> dict:
    """How many times fewer gradients the rotation needs at equal bias, without and with the martingale; with standard errors.

    Both may choose their step (and rate) on one half of the chains: the reversible one the least mean squared error, the rotating
    one the least variance among those with no more bias. The ratio of variances comes from the other half: the geometric mean
    over observables, its error from a bootstrap over chains.
    """
    lengths = _lengths(problem, steps, chains, seed) | {"burn_in": steps}
    found: dict = {}
    for kind, rates, grid in (("reversible", (0.0,), REVERSIBLE), ("rotating", RATES, ROTATING)):
        for rate in rates:
            base = _whitened_plan(problem, rate, grid[0], **lengths)
            for k, eta in enumerate(grid):
                with contextlib.suppress(InvalidInput):  # so large a step that no noise is left
                    found[kind, rate, eta] = _outcome(base.replace(step_size=eta, seed=seed + 1 + k))
    return {
        name: _gain(problem, {key: values(one) for key, one in found.items()}, seed)
        for name, values in (("plain", lambda o: o.plain), ("martingale", lambda o: o.estimates))
    }


def _gain(problem: Problem, found: dict, seed: int) -> dict | None:
    """The gain from estimates by (kind, rate, step size)."""
    usable = {key: x for key, x in found.items() if np.all(np.isfinite(x))}
    half = {key: (x[: len(x) // 2], x[len(x) // 2 :]) for key, x in usable.items()}
    sd = np.sqrt(problem.spread)
    bias = lambda x: math.sqrt(
        max(0.0, np.mean(((x.mean(0) - problem.truth) ** 2 - x.var(0, ddof=1) / len(x)) / sd**2))
    )
    noise = lambda x: math.sqrt(np.mean(x.var(0, ddof=1) / len(x) / sd**2))
    error = lambda x: float(np.mean(np.log(np.mean(((x - problem.truth) / sd) ** 2, axis=0))))
    variance = lambda x: float(np.mean(np.log(x.var(0, ddof=1) / sd**2)))
    still = {key: pair for key, pair in half.items() if key[0] == "reversible"}
    if not still:
        return None
    chosen = min(still, key=lambda key: error(still[key][0]))
    allowed = max(bias(still[chosen][0]), noise(still[chosen][0]))
    turning = {key: pair for key, pair in half.items() if key[0] == "rotating" and bias(pair[0]) <= allowed}
    if not turning:
        return {"gain": None, "reversible_step": chosen[2], "allowed_bias_in_sd": allowed}
    best = min(turning, key=lambda key: variance(turning[key][0]))
    a, b = half[chosen][1], half[best][1]
    rng = np.random.default_rng(seed)
    again = lambda x: x[rng.integers(0, len(x), len(x))]
    logs = [variance(again(a)) - variance(again(b)) for _ in range(200)]
    gain = math.exp(variance(a) - variance(b))
    return {
        "gain": gain,
        "error": gain * float(np.std(logs, ddof=1)),
        "reversible_step": chosen[2],
        "rotating_step": best[2],
        "rate": best[1],
        "bias_in_sd": {"reversible": bias(a), "rotating": bias(b), "resolved_to": noise(a)},
    }
