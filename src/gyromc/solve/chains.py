"""The solver's chains: Metropolis-adjusted underdamped Langevin dynamics, warmed up together.

Input: a target over a vector and a start. Output: rounds of states of all chains with the gradients there. The dynamics is the
paper's HFHR with α = 0, D = diag(0, γI) and Q the rotation between position and momentum, in the coordinates of a metric:
momentum refreshed in part, one leapfrog step, accepted or refused by Metropolis (Horowitz 1991). So a state costs one gradient,
every state is kept, and no step size biases the averages. All rounds are one compiled program with the step size, the metric and
the adaptation as arguments; U and ∇U of rows are another.
Chains begin where descents from points around the start end (`descend_all`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.coordinates import Coordinates, pulled
from gyromc.errors import InvalidInput
from gyromc.evaluation import compiled, doubled
from gyromc.solve.metric import DenseMetric, LowRankMetric, Metric, fitted_metric
from gyromc.targets import Target

__all__ = ["ChainSettings", "LangevinChains", "Round", "descend_all", "stacked"]


@dataclasses.dataclass(frozen=True)
class ChainSettings:
    """The numbers of the chains, measured on thirty posteriors (docs/accuracy.md).

    - `chains`: a standard error from 32 has 31 degrees of freedom, and a batch of 32 costs little more than a few rows.
    - `steps`: in a round: some autocorrelation times of a law that the metric fits.
    - `friction`: γ in the metric's units; between 0.5 and 1 the errors hardly change.
    - `acceptance`: that the step size is adapted to; below, refused steps turn momenta around too often.
    - `short_share`, `shortest`: part of the steps that are shorter, log-uniformly down to this factor. Without them, chains on a
      banana never entered its tails, and E y² was wrong by seven stated errors.
    - `start_width`: starts are spread uniformly over start ± this, as Stan and NumPyro do.
    - `first_rate`, `later_rate`: change of the log step size by acceptance, in the first rounds and then.
    - `fewest`, `most`: warm-up rounds. After 8, what chains of eight schools still were off the law showed against sharpened
      errors of 0.0005 standard deviations (mean z² 2.1; 1.5 after 24), and after 16 those of a mixture (8.2; 0.2 after 60).
    - `every_round`, `later_fit`: the metric is fitted in each of the first rounds, then in every so many: with 1200 parameters
      fits took two thirds of the time.
    - `stuck_acceptance`, `stuck_potential`: a chain that accepts less, or whose U lies so many of the law's standard deviations
      √(d/2) above the lower third of chains, begins anew from another chain while warm-up lasts.
    - `farthest`: a parameter beyond shows that nothing holds the chains; squares of larger ones would soon overflow.
    - `most_dense`, `rank`: parameters up to which the metric is a matrix, and its own directions beyond.
    """

    chains: int = 32
    steps: int = 25
    friction: float = 1.0
    acceptance: float = 0.8
    short_share: float = 0.2
    shortest: float = 0.01
    start_width: float = 2.0
    first_rate: float = 0.3
    later_rate: float = 0.1
    fewest: int = 40
    most: int = 100
    every_round: int = 8
    later_fit: int = 4
    stuck_acceptance: float = 0.3
    stuck_potential: float = 5.0
    farthest: float = 1e100
    most_dense: int = 1000
    rank: int = 64


Rows = Float[np.ndarray, "rows d"]


class State(NamedTuple):
    """Positions, U and ∇U there, and momenta in the metric's coordinates."""

    theta: jax.Array
    potential: jax.Array
    gradient: jax.Array
    momentum: jax.Array


class Random(NamedTuple):
    """What a round draws: normal noise, numbers in [0, 1) for Metropolis, and factors of the step size."""

    noise: np.ndarray
    uniforms: np.ndarray
    lengths: np.ndarray


class Round(NamedTuple):
    """States of one round, steps × chains × d, with gradients, U and the acceptance probability of every step.

    Arrays of JAX inside the compiled round, of NumPy outside.
    """

    theta: Any
    gradient: Any
    potential: Any
    acceptance: Any


def stacked(rounds: Sequence[Round]) -> tuple[np.ndarray, np.ndarray]:
    """States and gradients of rounds as rows."""
    rows = lambda parts: np.concatenate([x.reshape(-1, x.shape[-1]) for x in parts])
    return rows([one.theta for one in rounds]), rows([one.gradient for one in rounds])


def _value_and_gradient(target: Target) -> Callable:
    """The function from θ to (U, ∇U); a target with a gradient of its own, such as one that reads files, is asked for it."""
    if type(target).gradient is Target.gradient:
        return jax.value_and_grad(target.potential)
    return lambda theta: (target.potential(theta), target.gradient(theta))


@compiled
def _evaluate(target: Target, rows):
    return jax.vmap(_value_and_gradient(target))(rows)


@compiled
def _round(target: Target, state: State, metric: Metric, numbers, random: Random):
    """As many steps of all chains as there are random numbers; the log step size moves by `rate` times acceptance less its goal.

    `numbers` are the log step size, the friction, the rate and the acceptance to reach. The random numbers come from outside: a
    program that makes its own takes twice as long to compile.
    """
    log_step, friction, rate, acceptance = numbers
    evaluate = jax.vmap(_value_and_gradient(target))

    def step(carry, random):
        (theta, U, g, r), log_eta = carry
        eta = jnp.exp(log_eta) * random.lengths[:, None]
        keep = jnp.exp(-friction * eta)
        r = keep * r + jnp.sqrt(1 - keep**2) * random.noise
        half = r - 0.5 * eta * metric.pull(g)
        moved = theta + eta * metric.push(half)
        new_U, new_g = evaluate(moved)
        new_r = half - 0.5 * eta * metric.pull(new_g)
        energy = new_U - U + 0.5 * jnp.sum(new_r**2 - r**2, axis=1)
        probability = jnp.where(
            jnp.isfinite(energy) & jnp.isfinite(new_g).all(axis=1), jnp.exp(-jnp.maximum(energy, 0.0)), 0.0
        )
        taken = random.uniforms < probability
        choose = lambda new, old: jnp.where(taken[:, None], new, old)
        state = State(choose(moved, theta), jnp.where(taken, new_U, U), choose(new_g, g), choose(new_r, -r))
        log_eta = jnp.clip(log_eta + rate * (probability.mean() - acceptance), -20.0, 0.7)
        return (state, log_eta), (Round(state.theta, state.gradient, state.potential, probability), log_eta)

    (state, _), (kept, log_steps) = jax.lax.scan(step, (state, log_step), random)
    return state, kept, log_steps


def _drawn(rng: np.random.Generator, dim: int, settings: ChainSettings) -> Random:
    """The random numbers of a round; some steps are shorter, which lets chains move where the law is narrow."""
    shape = settings.steps, settings.chains
    shorter = settings.shortest ** rng.random(shape)
    lengths = np.where(rng.random(shape) < settings.short_share, shorter, 1.0)
    return Random(rng.standard_normal((*shape, dim)), rng.random(shape), lengths)


class LangevinChains:
    """Chains on a target: `begin`, then `warm_up` until `settled`, then `sample`.

    `gradients` counts what they computed; `stopped` is asked between compiled calls. After `move_to`, states are z of these
    coordinates, and `thetas` are the parameters.
    """

    def __init__(
        self,
        target: Target,
        dim: int,
        seed: int = 0,
        stopped: Callable[[], bool] = lambda: False,
        settings: ChainSettings | None = None,
    ):
        self.settings = settings or ChainSettings()
        self.target, self.dim, self.stopped = doubled(target), dim, stopped
        self.parameter_target, self.coordinates = self.target, None
        self.rng = np.random.default_rng(seed)
        self.gradients = 0
        # both are set by `begin`
        self.state: Any = None
        self.metric: Any = None
        self.log_step = math.log(0.3)
        self.warm: list[Round] = []

    @property
    def step_size(self) -> float:
        """The step size in the metric's units."""
        return math.exp(self.log_step)

    def evaluate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """U and ∇U at a point for each chain."""
        self.gradients += len(rows)
        with jax.enable_x64(True):
            values, slopes = _evaluate(self.target, jnp.asarray(rows, float))
        return np.array(values, float), np.array(slopes, float)

    def begin(self, start: np.ndarray) -> None:
        """Descend from points around the start, and take the first scales from differences of gradients there."""
        R, width = self.settings.chains, self.settings.start_width
        theta = start + self.rng.uniform(-width, width, size=(R, self.dim))
        theta[0] = start
        found = descend_all(self.evaluate, theta, stopped=self.stopped)
        good = np.isfinite(found.potential)
        if not good.any():
            raise InvalidInput(
                f"The density is not positive and finite at any of {R} points around the start "
                f"{np.round(start[:4], 3).tolist()}{'…' if self.dim > 4 else ''}. Pass `start`, a point where it is."
            )
        index = np.arange(R)
        index[~good] = self.rng.choice(np.flatnonzero(good), np.sum(~good))
        theta, potential, gradient = found.theta[index], found.potential[index], found.gradient[index]
        away = 1e-4 * self.rng.standard_normal(theta.shape) * np.maximum(1e-4, np.abs(theta))
        change = self.evaluate(theta + away)[1] - gradient
        curvature = np.abs(np.nansum(change * away, axis=0)) / np.sum(away**2, axis=0)
        curvature = np.maximum(curvature, 1e-8 * np.median(curvature) + 1e-300)
        self.metric = self._sized(LowRankMetric(1 / np.sqrt(curvature), np.zeros((self.dim, 1)), np.zeros((1, 1))))
        self._place(theta, potential, gradient)

    def move_to(self, coordinates: Coordinates) -> None:
        """Go on in other coordinates; warm-up begins anew from the same states."""
        theta = self.thetas(np.asarray(self.state.theta))
        self.coordinates, self.warm = coordinates, []
        with jax.enable_x64(True):
            self.target = pulled(self.parameter_target, doubled(coordinates))
        z = coordinates.zs(theta)
        self.metric = DenseMetric(np.eye(self.dim))
        self._place(z, *self.evaluate(z))

    def thetas(self, states: np.ndarray) -> np.ndarray:
        """The parameters of states."""
        return states if self.coordinates is None else self.coordinates.thetas(states)

    def _place(self, theta: np.ndarray, potential: np.ndarray, gradient: np.ndarray) -> None:
        """Set the chains, with new momenta."""
        parts = theta, potential, gradient, self.rng.standard_normal(theta.shape)
        with jax.enable_x64(True):
            self.state = State(*(jnp.asarray(x, float) for x in parts))

    def _advance(self, rate: float) -> tuple[Round, np.ndarray]:
        random = _drawn(self.rng, self.dim, self.settings)
        numbers = np.array([self.log_step, self.settings.friction, rate, self.settings.acceptance])
        with jax.enable_x64(True):
            self.state, kept, log_steps = _round(self.target, self.state, self.metric, numbers, random)
            kept = Round(*(np.asarray(x) for x in kept))
        self.gradients += self.settings.steps * self.settings.chains
        return kept, np.asarray(log_steps)

    def warm_up(self) -> Round:
        """One round in which the step size adapts; then a new metric, and chains that are stuck begin anew."""
        count, settings = len(self.warm), self.settings
        kept, log_steps = self._advance(settings.first_rate if count < 4 else settings.later_rate)
        if np.abs(kept.theta).max() > settings.farthest:
            raise InvalidInput(
                f"Chains went beyond {settings.farthest:g}: the density does not fall far out, so the posterior is improper and "
                "its means do not exist. Give every parameter a proper prior."
            )
        # the first rounds still fall towards the bulk of the law
        self.warm.append(Round(*(x[settings.steps // 2 :] for x in kept)) if count < 2 else kept)
        self.log_step = float(np.mean(log_steps[len(log_steps) // 2 :]))
        if count < settings.every_round or count % settings.later_fit == 0:
            # from the later half of the warm-up; after its first round the scales alone
            fitted = len(self.warm)
            window = self.warm[-1:] if fitted <= 3 else self.warm[-max(2, fitted // 2) :]
            dense, rank = (settings.most_dense, settings.rank) if fitted > 1 else (0, 0)
            self.metric = self._sized(fitted_metric(*stacked(window), dense, rank))
        if count:
            self._free_stuck(kept)
        return kept

    def _sized(self, metric: DenseMetric | LowRankMetric) -> Metric:
        """The same metric as large as the compiled program was made for."""
        if isinstance(metric, DenseMetric):
            return metric
        if self.dim <= self.settings.most_dense:
            return DenseMetric(np.diag(metric.scale))
        rank, k = 2 * self.settings.rank, metric.basis.shape[1]
        basis, extra = np.zeros((self.dim, rank)), np.zeros((rank, rank))
        basis[:, :k], extra[:k, :k] = metric.basis, metric.extra
        return LowRankMetric(metric.scale, basis, extra)

    def _free_stuck(self, kept: Round) -> None:
        """Chains that hardly move, or sit where U is far above the others', continue from another chain's state."""
        potential = kept.potential.mean(axis=0)
        # not the median: half of the chains may have found a mode without mass
        high = np.quantile(potential, 0.3) + 10 + self.settings.stuck_potential * math.sqrt(self.dim / 2)
        stuck = (kept.acceptance.mean(axis=0) < self.settings.stuck_acceptance) | (potential > high)
        if stuck.any() and not stuck.all():
            index = np.arange(len(stuck))
            index[stuck] = self.rng.choice(np.flatnonzero(~stuck), stuck.sum())
            theta, potential, gradient = (np.asarray(x)[index] for x in self.state[:3])
            self._place(theta, potential, gradient)

    @property
    def settled(self) -> bool:
        """Whether warm-up can end: the last rounds agree with those before them, and the step size has come to rest."""
        rounds = len(self.warm)
        if rounds < self.settings.fewest:
            return False
        if rounds >= self.settings.most:
            return True
        half = min(rounds // 3, 8)
        late, early = self.warm[-half:], self.warm[-2 * half : -half]
        means = lambda part, name: np.mean([getattr(one, name).mean(axis=0) for one in part], axis=0)
        drift = np.column_stack(
            [means(late, "theta") - means(early, "theta"), means(late, "potential") - means(early, "potential")]
        )
        size = drift.std(axis=0, ddof=1) / math.sqrt(len(drift))
        t = drift.mean(axis=0) / np.where(size > 0, size, 1.0)
        # under a settled law t² has mean 1; the largest of d + 1 rarely passes 4 + log d / 2
        return bool(np.mean(t**2) < 1.6 and np.max(np.abs(t)) < 4 + 0.5 * math.log(self.dim + 1))

    def warm_states(self) -> tuple[np.ndarray, np.ndarray]:
        """States and gradients of the later half of the warm-up, as rows."""
        return stacked(self.warm[len(self.warm) // 2 :])

    def sample(self) -> Round:
        """One round with everything fixed: its states follow the law."""
        return self._advance(0.0)[0]


@dataclasses.dataclass(frozen=True)
class DescentSettings:
    """The numbers of the descents.

    - `iterations`: at most; badly scaled models take a hundred.
    - `memory`: pairs of steps and gradient changes that are kept, as is usual.
    - `least`: iterations before a descent may end: before, its curvature is not known.
    - `armijo`: part of the promised fall that a step must bring.
    - `shrink`: factor for a step that does not.
    """

    iterations: int = 200
    memory: int = 8
    least: int = 5
    armijo: float = 1e-4
    shrink: float = 0.3


@dataclasses.dataclass(frozen=True, eq=False)
class Descent:
    """Where the descents ended: points, U and ∇U there, and how many batched gradients they took."""

    theta: Rows
    potential: np.ndarray
    gradient: Rows
    calls: int


def descend_all(
    evaluate: Callable[[Rows], tuple[np.ndarray, np.ndarray]],
    theta: Rows,
    stopped: Callable[[], bool] = lambda: False,
) -> Descent:
    """Descend from every row by L-BFGS with one batched gradient; rows where U is not finite stay where they are.

    A descent ends where the fall of U that a Newton step promises is what a draw of the law has anyway, ½∇UᵀH⁻¹∇U ≤ d/2: the
    mode itself of a hierarchical model can be a spike that holds no mass, and chains that begin there stay there.
    """
    settings = DescentSettings()
    rows, d = theta.shape
    theta = np.array(theta, float)
    value, slope = evaluate(theta)
    value, slope = np.where(np.isfinite(value), value, np.inf), np.where(np.isfinite(slope), slope, 0.0)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    length, calm, slow = np.ones(rows), np.zeros(rows, int), np.zeros(rows, int)
    done, calls = ~np.isfinite(value), 1
    direction = -slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
    for iteration in range(settings.iterations):
        if done.all() or stopped():
            break
        moved = theta + length[:, None] * direction
        new_value, new_slope = evaluate(moved)
        calls += 1
        promised = settings.armijo * length * np.einsum("nd,nd->n", slope, direction)
        finite = np.isfinite(new_value) & np.isfinite(new_slope).all(axis=1)
        good = finite & (new_value <= value + promised) & ~done
        pairs = [*pairs, _pair(theta, moved, slope, new_slope, good)][-settings.memory :]
        fall = np.where(good, value - new_value, np.inf)
        theta, slope = np.where(good[:, None], moved, theta), np.where(good[:, None], new_slope, slope)
        value = np.where(good, new_value, value)
        newton = _two_loops(slope, pairs)
        downhill = np.einsum("nd,nd->n", newton, slope)
        calm = np.where(good, np.where(downhill <= d, calm + 1, 0), calm)
        slow = np.where(good, np.where(fall < 1e-3 * d, slow + 1, 0), slow)
        length = np.where(good, 1.0, length * settings.shrink)
        done |= ((calm >= 2) & (iteration >= settings.least)) | (slow >= 3) | (length < 1e-12)
        plain = slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
        direction = np.where(good[:, None], np.where(downhill[:, None] > 0, -newton, -plain), direction)
    return Descent(theta, value, slope, calls)


def _pair(theta: Rows, moved: Rows, slope: Rows, new_slope: Rows, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The step and the change of the gradient of every row, zero where the step was refused or the curvature not positive."""
    step = np.where(good[:, None], moved - theta, 0.0)
    change = np.where(good[:, None], new_slope - slope, 0.0)
    curved = np.einsum("nd,nd->n", step, change)
    positive = curved > 1e-10 * np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    return step * positive[:, None], change * positive[:, None]


def _two_loops(slope: Rows, pairs: list[tuple[np.ndarray, np.ndarray]]) -> Rows:
    """H⁻¹∇U of every row, by the two loops of L-BFGS."""
    found, kept = slope.copy(), []
    scale = 1.0 / np.maximum(1.0, np.linalg.norm(slope, axis=1))
    for step, change in pairs:
        product, square = np.einsum("nd,nd->n", step, change), np.einsum("nd,nd->n", change, change)
        scale = np.where(product > 0, product / np.where(square > 0, square, 1.0), scale)
    for step, change in reversed(pairs):
        product = np.einsum("nd,nd->n", step, change)
        inverse = np.where(product > 0, 1.0 / np.where(product > 0, product, 1.0), 0.0)
        share = inverse * np.einsum("nd,nd->n", step, found)
        found -= share[:, None] * change
        kept.append((share, inverse))
    found *= scale[:, None]
    for (step, change), (share, inverse) in zip(pairs, reversed(kept), strict=True):
        found += (share - inverse * np.einsum("nd,nd->n", change, found))[:, None] * step
    return found
