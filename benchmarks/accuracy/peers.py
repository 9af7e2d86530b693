"""The competitors from other packages, and two that use no chain: each estimates all observables several times independently.

Input: a `Problem`, a budget of gradients, a number of repetitions. Output: an `Outcome`: estimates, repetitions × observables,
and what they cost. Everything is in float64. Every chain starts at a draw of the Laplace approximation; a tenth of the budget
more is burn-in. What was spent before the first counted gradient (burn-in, warm-up, tuning) is in `preparation`.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import gyromc as gm
from accuracy.problems import Problem
from gyromc.approx.modes import descend, inverse_root
from gyromc.observables import Ridge
from gyromc.oracles import Exact, Minibatch
from gyromc.prediction.exact.closed_forms import ridge_moments
from gyromc.runtime.evaluation import doubled

__all__ = [
    "GRID",
    "Outcome",
    "blackjax_mclmc",
    "blackjax_sghmc",
    "blackjax_sgld",
    "importance",
    "laplace",
    "nuts",
    "step_sizes",
]

GRID = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # step sizes, over the largest that is sensible
BURN_IN = 0.1  # of the budget
POTENTIAL = 1 / 3  # of the work of a gradient
INTEGRATION_STEPS = 10  # BlackJAX's SGHMC draws momenta anew after so many gradients: its default
TUNED_OVER = 5000  # steps that MCLMC's tuning is told will follow; it makes a third of them itself
PER_STEP = 2  # gradients of a step of MCLMC's integrator
LEAVES, TOGETHER = 7, 20  # gradients of a usual trajectory of NUTS; draws in one call of the compiled function
WARM_UP, MOST_DENSE = 1000, 500  # draws of NUTS, the default of NumPyro; parameters for which its mass matrix is dense
MANY_ROWS, SHORT_WARM_UP = 100_000, 60  # with so many rows NUTS has this warm-up
GAUSSIAN_DRAWS = 2**15  # for the Laplace approximation's expectation of what is no ridge function


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """Independent estimates, and the cost of one of them."""

    estimates: np.ndarray  # repetitions × observables
    gradients: float  # counted, of one repetition
    rows_per_gradient: float
    preparation: float = 0.0  # gradients before that, of one repetition
    seconds: float = float("nan")  # of all repetitions, compiling not included
    step_size: float | None = None
    plain: np.ndarray | None = None  # the estimates without the martingale
    note: str = ""


def step_sizes(problem: Problem, batch: int | None) -> list[float]:
    """The grid for Langevin steps: from the inverse of the largest curvature down, from lower where mini-batches are noisy."""
    top = 1.0 if batch is None else min(1.0, 10 * batch / problem.rows)
    return [scale * top / problem.steepest for scale in GRID]


def _split(problem: Problem) -> tuple[Any, Callable]:
    """The target's arrays in float64, to be passed to a compiled function, and the function that puts them back."""
    target = doubled(problem.model.flat_target)
    is_array = lambda x: isinstance(x, np.ndarray | np.generic | jax.Array)
    arrays, rest = eqx.partition(target, is_array)
    return jax.tree.map(jnp.asarray, arrays), lambda given: eqx.combine(given, rest)


def _compiled(function: Callable, *arguments) -> Callable:
    """The function compiled for these arguments; what it returns are NumPy arrays."""
    ready = jax.jit(function).lower(*arguments).compile()
    return lambda *given: jax.tree.map(np.asarray, jax.block_until_ready(ready(*given)))


def _averages(one_step: Callable, position: Callable, evaluate: Callable, key, states, burn: int, steps: int):
    """Chains in step with each other: the averages of the observables over `steps` states after `burn`, chains × observables."""
    chains = len(jax.tree.leaves(states)[0])

    def move(states, key):
        return jax.vmap(one_step)(jax.random.split(key, chains), states)

    def count(carry, key):
        states, total = carry
        states = move(states, key)
        return (states, total + jax.vmap(lambda s: evaluate(position(s)))(states)), None

    first, second = jax.random.split(key)
    if burn:
        states, _ = jax.lax.scan(lambda s, k: (move(s, k), None), states, jax.random.split(first, burn))
    total = jnp.zeros_like(jax.vmap(lambda s: evaluate(position(s)))(states))
    (_, total), _ = jax.lax.scan(count, (states, total), jax.random.split(second, steps))
    return total / steps


def _stochastic(
    problem: Problem, make: Callable, per_update: int, grid: list[float], budget, chains, seed
) -> list[Outcome]:
    """One outcome for each step size of a BlackJAX sampler with stochastic gradients; compiled once."""
    oracle = Exact() if problem.batch is None else Minibatch(problem.batch)
    updates = max(1, budget // per_update)
    burn = max(1, int(BURN_IN * updates))
    with jax.enable_x64(True):
        arrays, whole = _split(problem)

        def run(arrays, key, starts, step_size):
            target = whole(arrays)
            sampler = make(lambda theta, zeta: -oracle.gradient(target, theta, zeta))

            def one_step(key, theta):
                key_rows, key_step = jax.random.split(key)
                zeta = jax.tree.map(lambda x: x[0], oracle.draw(key_rows, target, 1, problem.dim, theta.dtype))
                return sampler.step(key_step, theta, zeta, step_size)

            return _averages(one_step, lambda theta: theta, problem.evaluate, key, starts, burn, updates)

        starts = jnp.asarray(problem.starts(chains, seed))
        ready = _compiled(run, arrays, jax.random.key(seed), starts, jnp.asarray(grid[0]))
        found = []
        for k, step_size in enumerate(grid):
            began = time.perf_counter()
            estimates = ready(arrays, jax.random.key(1000 * seed + k), starts, jnp.asarray(step_size))
            spent = time.perf_counter() - began
            rows = problem.batch or problem.rows
            found.append(Outcome(estimates, updates * per_update, rows, burn * per_update, spent, step_size))
    return found


def blackjax_sgld(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """BlackJAX's SGLD at every step size of the grid."""
    import blackjax

    return _stochastic(problem, blackjax.sgld, 1, step_sizes(problem, problem.batch), budget, repetitions, seed)


def blackjax_sghmc(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """BlackJAX's SGHMC, ten integration steps to an update, at every step size of the grid; its steps scale like a root."""
    import blackjax

    grid = [float(np.sqrt(eta)) for eta in step_sizes(problem, problem.batch)]
    make = lambda gradient: blackjax.sghmc(gradient, num_integration_steps=INTEGRATION_STEPS)
    return _stochastic(problem, make, INTEGRATION_STEPS, grid, budget, repetitions, seed)


def blackjax_mclmc(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """BlackJAX's MCLMC with its own tuning in every repetition; a step has two gradients."""
    import blackjax

    steps = max(1, budget // PER_STEP)
    with jax.enable_x64(True):
        arrays, whole = _split(problem)
        kernel = blackjax.mclmc.build_kernel()

        def tune(arrays, key, starts):
            log_density = lambda theta: -whole(arrays).potential(theta)

            def one(key, theta):
                key_start, key_tune = jax.random.split(key)
                state = blackjax.mcmc.mclmc.init(theta, log_density, key_start)
                state, settings, count = blackjax.mclmc_find_L_and_step_size(
                    mclmc_kernel=kernel, num_steps=TUNED_OVER, state=state, rng_key=key_tune, logdensity_fn=log_density
                )
                return state, settings, jnp.asarray(count)

            return jax.vmap(one)(jax.random.split(key, repetitions), starts)

        def run(arrays, key, states, settings):
            log_density = lambda theta: -whole(arrays).potential(theta)

            def one_step(key, both):
                state, tuned = both
                moved, _ = kernel(key, state, log_density, tuned.inverse_mass_matrix, tuned.L, tuned.step_size)
                return moved, tuned

            first = lambda both: both[0].position
            return _averages(one_step, first, problem.evaluate, key, (states, settings), 0, steps)

        keys = jax.random.key(seed), jax.random.key(seed + 1)
        states, settings, count = jax.jit(tune)(arrays, keys[0], jnp.asarray(problem.starts(repetitions, seed)))
        ready = _compiled(run, arrays, keys[1], states, settings)
        began = time.perf_counter()
        estimates = ready(arrays, keys[1], states, settings)
        spent = time.perf_counter() - began
    before = PER_STEP * float(count[0])
    chosen = float(np.median(settings.step_size))
    return [Outcome(estimates, PER_STEP * steps, problem.rows, before, spent, chosen)]


def mclmc_preparation(problem: Problem) -> float:
    """Gradients of MCLMC's tuning."""
    return PER_STEP * TUNED_OVER / 3


def nuts_preparation(problem: Problem) -> float:
    """About how many gradients the warm-up of NUTS takes: the mass matrix is the identity at first."""
    condition = 1e3 if problem.near is not None else problem.condition
    return _warm_up(problem) * min(max(2 * LEAVES, math.sqrt(condition)), 1000)


def _warm_up(problem: Problem) -> int:
    return WARM_UP if problem.rows < MANY_ROWS else SHORT_WARM_UP


def nuts(problem: Problem, budget: int, repetitions: int, seed: int, warmup: int | None = None) -> list[Outcome]:
    """NumPyro's NUTS, its mass matrix dense up to 500 parameters, then diagonal; gradients are the leapfrog steps it made."""
    from numpyro.infer import NUTS

    parts, before = max(2, budget // (LEAVES * TOGETHER)), -(-(warmup or _warm_up(problem)) // TOGETHER)
    with jax.enable_x64(True):
        arrays, whole = _split(problem)

        kernel = NUTS(potential_fn=whole(arrays).potential, dense_mass=problem.dim <= MOST_DENSE)
        starts = jnp.asarray(problem.starts(repetitions, seed))
        keys = jax.random.split(jax.random.key(seed), repetitions)
        state = jax.jit(lambda keys, starts: kernel.init(keys, before * TOGETHER, starts, (), {}))(keys, starts)

        def some(state):
            def one(carry, _):
                state, total, steps = carry
                state = kernel.sample(state, (), {})  # all chains: `init` had one key for each
                return (state, total + jax.vmap(problem.evaluate)(state.z), steps + state.num_steps), None

            zero = jnp.zeros((repetitions, len(problem.truth)))
            first = state, zero, jnp.zeros_like(state.num_steps)
            return jax.lax.scan(one, first, None, length=TOGETHER)[0]

        ready = jax.jit(some).lower(state).compile()
        spent_before, total, gradients, began = 0.0, 0.0, 0.0, 0.0
        for part in range(before + parts):
            if part == before:
                began = time.perf_counter()
            state, values, steps = ready(state)
            mean_steps = float(np.mean(np.asarray(steps)))
            if part < before:
                spent_before += mean_steps
            else:
                total, gradients = total + np.asarray(values), gradients + mean_steps
        spent = time.perf_counter() - began
    return [Outcome(np.asarray(total) / (parts * TOGETHER), gradients, problem.rows, spent_before, spent)]


@functools.lru_cache(1)
def _fit_cost(problem: Problem) -> float:
    """Gradients that mode and curvature cost: those of the descent, and a Hessian."""
    found, _ = descend(problem.model.flat_target, np.zeros(problem.dim))
    return found.nfev * (1 + POTENTIAL) + problem.dim


@functools.lru_cache(1)
def _gaussian_means(problem: Problem) -> np.ndarray:
    """The expectations of the observables under the Laplace approximation."""
    center = problem.model.laplace
    away = np.random.default_rng(0).standard_normal((GAUSSIAN_DRAWS // 2, problem.dim))
    theta = center.mean + np.concatenate([away, -away]) @ inverse_root(center.precision).T
    found = []
    for h in problem.observables.values():
        if isinstance(h, Ridge):
            found.append(ridge_moments(h, center.precision, center.mean)[0])
        else:
            found.append(float(np.mean(problem.model.values(h, theta))))
    return np.array(found)


def laplace(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """The Laplace approximation: one answer without draws, whose error is all bias."""
    note = "no draws: its error is its bias"
    return [Outcome(_gaussian_means(problem)[None], 0.0, problem.rows, _fit_cost(problem), note=note)]


def importance(problem: Problem, budget: int, repetitions: int, seed: int) -> list[Outcome]:
    """Draws of the Laplace approximation with importance weights; a potential counts as a third of a gradient."""
    center, draws = problem.model.laplace, int(budget / POTENTIAL)
    root, found, spent = inverse_root(center.precision), [], 0.0
    known = isinstance(problem.target, gm.targets.Quadratic)
    for k in range(repetitions):
        xi = np.random.default_rng([seed, k]).standard_normal((draws, problem.dim))
        theta = center.mean + xi @ root.T
        began = time.perf_counter()
        potentials = 0.5 * np.sum(xi**2, axis=1) if known else problem.model.flat_target.potentials(theta)
        weights = special.softmax(0.5 * np.sum(xi**2, axis=1) - potentials)
        found.append(weights @ problem.values(theta))
        spent += time.perf_counter() - began
    note = "a potential counts as a third of a gradient"
    return [Outcome(np.array(found), draws * POTENTIAL, problem.rows, _fit_cost(problem), spent, note=note)]
