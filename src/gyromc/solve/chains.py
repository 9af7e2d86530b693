"""The solver's chains: Metropolis-adjusted underdamped Langevin dynamics, warmed up together in the coordinates of a metric.

The dynamics is the paper's HFHR with α = 0, D = diag(0, γI) and Q the rotation between position and momentum: momentum refreshed
in part, one leapfrog step, accepted or refused by Metropolis (Horowitz 1991). So a state costs one gradient, every state is kept,
and no step size biases the averages. All rounds are one compiled program; U and ∇U of rows are another.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gyromc.coordinates import Coordinates, pulled
from gyromc.errors import InvalidInput
from gyromc.runtime.evaluation import compiled, doubled
from gyromc.targets import Target

Rows = Float[np.ndarray, "rows d"]
MOST_ITERATIONS, MEMORY = 200, 8  # of descents: iterations, and pairs of steps that L-BFGS keeps


@dataclasses.dataclass(frozen=True)
class ChainSettings:
    """The numbers of the chains, measured on thirty posteriors (docs/accuracy.md)."""

    chains: int = 32  # 31 degrees of freedom, which cost little more than a few
    steps: int = 25  # of a round
    friction: float = 1.0  # γ in the metric's units; between 0.5 and 1 the errors hardly change
    acceptance: float = 0.8  # that the step size is adapted to
    # Part of the steps that are shorter, log-uniformly down to this factor. Without them, chains on a banana never entered its
    # tails, and E y² was wrong by seven stated errors.
    short_share: float = 0.2
    shortest: float = 0.01
    start_width: float = 2.0  # starts are spread uniformly over start ± this, as Stan and NumPyro do
    first_rate: float = 0.3  # by which the logarithm of the step size changes at first …
    later_rate: float = 0.1  # … and later
    # Warm-up rounds. After 16, chains of a mixture were off by what sharpened errors do not hide.
    fewest: int = 40
    most: int = 100
    every_round: int = 8  # the metric is fitted in each of the first rounds …
    later_fit: int = 4  # … then in every so many, to save time
    fewest_more: int = 12  # the same for chains that go on from those of nearly the same target
    later_fit_more: int = 8
    # A chain that accepts less, or whose U lies so many of the law's standard deviations √(d/2) above the lower third of chains,
    # begins anew from another chain while warm-up lasts.
    stuck_acceptance: float = 0.3
    stuck_potential: float = 5.0
    farthest: float = (
        1e100  # a parameter beyond shows that nothing holds the chains; squares of larger ones would overflow
    )
    most_dense: int = 1000  # parameters up to which the metric is a matrix …
    rank: int = 64  # … and its own directions beyond


class DenseMetric(eqx.Module):
    """B as a matrix, from round coordinates to θ: B Bᵀ is near the covariance of the law."""

    root: Float[Array | np.ndarray, "d d"]

    def push(self, rows: Any) -> Any:
        """B times every row."""
        return rows @ self.root.T

    def pull(self, rows: Any) -> Any:
        """Bᵀ times every row."""
        return rows @ self.root

    def covariance(self) -> Float[np.ndarray, "d d"]:
        return np.asarray(self.root) @ np.asarray(self.root).T


class LowRankMetric(eqx.Module):
    """B = S(I + V R Vᵀ): a diagonal S, and R in the span of a few orthonormal directions V."""

    scale: Float[Array | np.ndarray, " d"]
    basis: Float[Array | np.ndarray, "d k"]
    extra: Float[Array | np.ndarray, "k k"]

    def push(self, rows: Any) -> Any:
        return (rows + rows @ self.basis @ self.extra @ self.basis.T) * self.scale

    def pull(self, rows: Any) -> Any:
        rows = rows * self.scale
        return rows + rows @ self.basis @ self.extra @ self.basis.T


def fitted_metric(
    theta: Rows, gradient: Rows, most_dense: int, rank: int = 0, scales_alone: bool = False
) -> DenseMetric | LowRankMetric:
    """The metric from points and gradients: dense up to `most_dense` parameters, beyond with `rank` directions of its own.

    The covariance is the C with C·cov(∇U)·C = cov(θ). On a Gaussian ∇U = P(θ - m), and C = P⁻¹ for any points, also before the
    chains have mixed; elsewhere it weighs the width of the bulk and its curvature. Both covariances are shrunk to their diagonals
    by the share d/n of noise in them.
    """
    n, d = theta.shape
    wide, steep = theta.std(axis=0), gradient.std(axis=0)
    known = (wide > 0) & (steep > 0) & np.isfinite(wide) & np.isfinite(steep)
    # √(sd(θ)/sd(∇U)) is exact on a Gaussian without correlations
    scale = np.sqrt(np.where(known, wide, 1.0) / np.where(known, steep, 1.0))
    if scales_alone:
        return _diagonal_metric(scale, most_dense, rank)
    wide, steep = (theta - theta.mean(axis=0)) / scale, (gradient - gradient.mean(axis=0)) * scale
    if d <= most_dense:
        covariance = _geometric_mean(_shrunk(wide, d / n), _shrunk(steep, d / n)) * np.outer(scale, scale)
        covariance[np.diag_indices(d)] *= 1 + 1e-12
        return DenseMetric(np.linalg.cholesky(covariance))
    kept = min(rank, n // 8)
    directions = [np.linalg.svd(x[:: max(1, n // (8 * kept))], full_matrices=False)[2][:kept] for x in (wide, steep)]
    basis = np.linalg.qr(np.concatenate(directions).T)[0]
    k = basis.shape[1]
    values, vectors = np.linalg.eigh(_geometric_mean(*(_shrunk(x @ basis, k / n) for x in (wide, steep))))
    # as large as the compiled program was made for
    found = _diagonal_metric(scale, most_dense, rank)
    found.basis[:, :k], found.extra[:k, :k] = basis, (vectors * (np.sqrt(values) - 1)) @ vectors.T
    return found


def _diagonal_metric(scale: np.ndarray, most_dense: int, rank: int) -> Any:
    if len(scale) <= most_dense:
        return DenseMetric(np.diag(scale))
    return LowRankMetric(scale, np.zeros((len(scale), 2 * rank)), np.zeros((2 * rank, 2 * rank)))


def _shrunk(rows: Rows, noise: float) -> np.ndarray:
    """A covariance with a part of it replaced by its diagonal."""
    found = rows.T @ rows / len(rows)
    diagonal = np.maximum(np.diag(found), 1e-12 * np.diag(found).max() + 1e-300)
    found *= 1 - min(0.5, noise)
    np.fill_diagonal(found, diagonal)
    return found


def _geometric_mean(wide: np.ndarray, steep: np.ndarray) -> np.ndarray:
    """The positive definite C with C·steep·C = wide."""
    values, vectors = np.linalg.eigh(wide)
    values = np.maximum(values, 1e-14 * values[-1])
    root = (vectors * np.sqrt(values)) @ vectors.T
    inner, turn = np.linalg.eigh(root @ steep @ root)
    inner = np.maximum(inner, 1e-14 * inner[-1])
    found = root @ ((turn / np.sqrt(inner)) @ turn.T) @ root
    return (found + found.T) / 2


class Round(NamedTuple):
    """States of one round, steps × chains × d, with gradients, U and the acceptance probability of every step."""

    theta: Any
    gradient: Any
    potential: Any
    acceptance: Any


def stacked(rounds: Sequence[Round], most: int = 1_500_000) -> tuple[np.ndarray, np.ndarray]:
    """States and gradients of rounds as rows; of so many numbers only every second step, every third, ….

    Steps next to each other say nearly the same, and sums of squares of all took a tenth of a fit with 350 parameters.
    """
    every = max(1, sum(one.theta.size for one in rounds) // most)
    rows = lambda parts: np.concatenate([x[::every].reshape(-1, x.shape[-1]) for x in parts])
    return rows(one.theta for one in rounds), rows(one.gradient for one in rounds)


@compiled
def _round(target: Target, state: tuple, metric: DenseMetric | LowRankMetric, numbers, random, steps):
    """Steps of all chains, as many or fewer than there are random numbers; after each the log step size moves by `rate` times
    acceptance less its goal.

    The state is θ, U, ∇U and momenta in the metric's coordinates. A program that makes its own random numbers takes twice as long
    to compile.
    """
    log_step, friction, rate, acceptance = numbers
    evaluate = jax.vmap(jax.value_and_grad(target.potential))
    # a target with a gradient of its own, such as one that reads files, is asked for it
    if type(target).gradient is not Target.gradient:
        evaluate = jax.vmap(lambda theta: (target.potential(theta), target.gradient(theta)))

    def step(i, carry):
        (theta, U, g, r, pull, log_eta), kept = carry
        noise, uniforms, lengths = (x[i] for x in random)
        eta = jnp.exp(log_eta) * lengths[:, None]
        keep = jnp.exp(-friction * eta)
        r = keep * r + jnp.sqrt(1 - keep**2) * noise
        half = r - 0.5 * eta * pull
        moved = theta + eta * metric.push(half)
        new_U, new_g = evaluate(moved)
        new_pull = metric.pull(new_g)
        new_r = half - 0.5 * eta * new_pull
        energy = new_U - U + 0.5 * jnp.sum(new_r**2 - r**2, axis=1)
        finite = jnp.isfinite(energy) & jnp.isfinite(new_g).all(axis=1)
        probability = jnp.where(finite, jnp.exp(-jnp.maximum(energy, 0.0)), 0.0)
        taken = uniforms < probability
        choose = lambda new, old: jnp.where(taken[:, None], new, old)
        theta, U, g, r = choose(moved, theta), jnp.where(taken, new_U, U), choose(new_g, g), choose(new_r, -r)
        log_eta = jnp.clip(log_eta + rate * (probability.mean() - acceptance), -20.0, 0.7)
        now = theta, g, U, probability, log_eta
        kept = [rows.at[i].set(row) for rows, row in zip(kept, now, strict=True)]
        return (theta, U, g, r, choose(new_pull, pull), log_eta), kept

    theta, U, g, _ = state
    kept = [jnp.zeros((len(random[1]), *x.shape)) for x in (theta, g, U, U, log_step)]
    start = (*state, metric.pull(g), log_step), kept
    last, (*kept, log_steps) = jax.lax.fori_loop(0, steps, step, start)
    return last[:4], Round(*kept), log_steps


class WarmStart(NamedTuple):
    """Where chains ended: their θ, chains × d, the metric, and the logarithm of the step size."""

    theta: Rows
    metric: DenseMetric | LowRankMetric
    log_step: float


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
        self.settings = self.usual = settings or ChainSettings()
        self.target, self.dim, self.stopped = doubled(target), dim, stopped
        self.parameter_target, self.coordinates = self.target, None
        self.rng = np.random.default_rng(seed)
        self.gradients, self.log_step = 0, math.log(0.3)
        self.warm: list[Round] = []
        self.state: Any = None  # set by `begin`
        self.metric: Any = _diagonal_metric(np.ones(dim), self.settings.most_dense, self.settings.rank)

    @property
    def step_size(self) -> float:
        return math.exp(self.log_step)

    def evaluate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """U and ∇U of a row for each chain, after a step of length zero: a program for rows alone would take long to compile."""
        shape, still = (self.settings.steps, len(rows)), np.zeros_like(rows)
        never = np.zeros((*shape, self.dim)), np.full(shape, -1.0), np.zeros(shape)
        (_, values, slopes, _), _ = self._steps((rows, still[:, 0], still, still), np.zeros(4), never, 1)[:2]
        return np.array(values, float), np.array(slopes, float)

    def _steps(self, state: tuple, numbers: np.ndarray, random: tuple, steps: int) -> tuple[tuple, Round, np.ndarray]:
        self.gradients += steps * self.settings.chains
        with jax.enable_x64(True):
            state, kept, log_steps = _round(self.target, state, self.metric, numbers, random, np.int64(steps))
            return state, Round(*(np.asarray(x) for x in kept)), np.asarray(log_steps)

    def begin(self, start: np.ndarray) -> None:
        """Descend from points around the start, and take the first scales from differences of gradients there."""
        R, width = self.settings.chains, self.settings.start_width
        theta = start + self.rng.uniform(-width, width, size=(R, self.dim))
        theta[0] = start
        found = descend_all(self.evaluate, theta, stopped=self.stopped)
        bad = ~np.isfinite(found[1])
        if bad.all():
            raise InvalidInput(
                f"The density is not positive and finite at any of {R} points around the start "
                f"{np.round(start[:4], 3).tolist()}{'…' if self.dim > 4 else ''}. Pass `start`, a point where it is."
            )
        theta, potential, gradient = self._replaced(bad, found)
        away = 1e-4 * self.rng.standard_normal(theta.shape) * np.maximum(1e-4, np.abs(theta))
        change = self.evaluate(theta + away)[1] - gradient
        curvature = np.abs(np.nansum(change * away, axis=0)) / np.sum(away**2, axis=0)
        curvature = np.maximum(curvature, 1e-8 * np.median(curvature) + 1e-300)
        self.metric = _diagonal_metric(1 / np.sqrt(curvature), self.settings.most_dense, self.settings.rank)
        self._place(theta, potential, gradient)

    def ended(self) -> WarmStart | None:
        """What chains on nearly the same target can go on from; None in coordinates of their own."""
        return None if self.coordinates is not None else WarmStart(np.array(self.state[0]), self.metric, self.log_step)

    def go_on(self, before: WarmStart) -> None:
        """Begin where chains on nearly the same target ended, with their metric and step; a shorter warm-up is enough then."""
        more = {"every_round": 0, "fewest": self.settings.fewest_more, "later_fit": self.settings.later_fit_more}
        self.settings = dataclasses.replace(self.settings, **more)
        self.metric, self.log_step = before.metric, before.log_step
        # not the random numbers of those chains again
        self.rng = self.rng.spawn(1)[0]
        self._place(before.theta, *self.evaluate(before.theta))

    def move_to(self, coordinates: Coordinates) -> None:
        """Go on in other coordinates; warm-up begins anew from the same states."""
        theta = self.thetas(np.asarray(self.state[0]))
        self.coordinates, self.warm, self.settings = coordinates, [], self.usual
        with jax.enable_x64(True):
            self.target = pulled(self.parameter_target, doubled(coordinates))
        z = coordinates.zs(theta)
        self.metric = DenseMetric(np.eye(self.dim))
        self._place(z, *self.evaluate(z))

    def thetas(self, states: np.ndarray) -> np.ndarray:
        return states if self.coordinates is None else self.coordinates.thetas(states)

    def _place(self, theta: np.ndarray, potential: np.ndarray, gradient: np.ndarray) -> None:
        parts = theta, potential, gradient, self.rng.standard_normal(theta.shape)
        with jax.enable_x64(True):
            self.state = tuple(jnp.asarray(x, float) for x in parts)

    def _advance(self, rate: float) -> tuple[Round, np.ndarray]:
        settings, rng = self.settings, self.rng
        shape = settings.steps, settings.chains
        shorter = settings.shortest ** rng.random(shape)
        lengths = np.where(rng.random(shape) < settings.short_share, shorter, 1.0)
        random = rng.standard_normal((*shape, self.dim)), rng.random(shape), lengths
        numbers = np.array([self.log_step, settings.friction, rate, settings.acceptance])
        self.state, kept, log_steps = self._steps(self.state, numbers, random, settings.steps)
        return kept, log_steps

    def warm_up(self) -> None:
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
        if count < settings.every_round or (count and count % settings.later_fit == 0):
            # from the later half of the warm-up; after its first round the scales alone
            window = self.warm[-1:] if count < 3 else self.warm[-max(2, (count + 1) // 2) :]
            self.metric = fitted_metric(*stacked(window), settings.most_dense, settings.rank, scales_alone=not count)
        if count:
            self._free_stuck(kept)

    def _free_stuck(self, kept: Round) -> None:
        """Chains that hardly move, or sit where U is far above the others', continue from another chain's state."""
        potential = kept.potential.mean(axis=0)
        # not the median: half of the chains may have found a mode without mass
        high = np.quantile(potential, 0.3) + 10 + self.settings.stuck_potential * math.sqrt(self.dim / 2)
        stuck = (kept.acceptance.mean(axis=0) < self.settings.stuck_acceptance) | (potential > high)
        if stuck.any() and not stuck.all():
            self._place(*self._replaced(stuck, self.state[:3]))

    def _replaced(self, bad: np.ndarray, rows: Sequence) -> list[np.ndarray]:
        """Rows with the bad ones replaced by others, by chance."""
        index = np.arange(len(bad))
        index[bad] = self.rng.choice(np.flatnonzero(~bad), bad.sum())
        return [np.asarray(x)[index] for x in rows]

    @property
    def settled(self) -> bool:
        """Whether warm-up can end: the last rounds agree with those before them, or there were many."""
        rounds = len(self.warm)
        if not self.settings.fewest <= rounds < self.settings.most:
            return rounds >= self.settings.most
        half = min(rounds // 3, 8)
        late, early = self.warm[-half:], self.warm[-2 * half : -half]
        means = lambda part, name: np.mean([getattr(one, name).mean(axis=0) for one in part], axis=0)
        drift = np.column_stack([means(late, name) - means(early, name) for name in ("theta", "potential")])
        size = drift.std(axis=0, ddof=1) / math.sqrt(len(drift))
        t = drift.mean(axis=0) / np.where(size > 0, size, 1.0)
        # under a settled law t² has mean 1; the largest of d + 1 rarely passes 4 + log d / 2
        return bool(np.mean(t**2) < 1.6 and np.max(np.abs(t)) < 4 + 0.5 * math.log(self.dim + 1))

    def warm_states(self) -> tuple[np.ndarray, np.ndarray]:
        return stacked(self.warm[len(self.warm) // 2 :])

    def sample(self) -> Round:
        """One round with everything fixed: its states follow the law."""
        return self._advance(0.0)[0]


def descend_all(
    evaluate: Callable[[Rows], tuple[np.ndarray, np.ndarray]], theta: Rows, stopped: Callable[[], bool] = lambda: False
) -> tuple[Rows, np.ndarray, Rows]:
    """Descend from every row by L-BFGS with one batched gradient: points, U and ∇U; rows where U is not finite stay.

    A descent ends where the fall of U that a Newton step promises is what a draw of the law has anyway, ½∇UᵀH⁻¹∇U ≤ d/2: the
    mode itself of a hierarchical model can be a spike that holds no mass, and chains that begin there stay there.
    """
    (rows, d), (value, slope) = theta.shape, evaluate(theta)
    value, slope = np.where(np.isfinite(value), value, np.inf), np.where(np.isfinite(slope), slope, 0.0)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    length, calm, slow = np.ones(rows), np.zeros(rows, int), np.zeros(rows, int)
    done = ~np.isfinite(value)
    direction = -slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
    for iteration in range(MOST_ITERATIONS):
        if done.all() or stopped():
            break
        moved = theta + length[:, None] * direction
        new_value, new_slope = evaluate(moved)
        # a step must bring a part of what it promised (Armijo)
        promised = 1e-4 * length * np.einsum("nd,nd->n", slope, direction)
        finite = np.isfinite(new_value) & np.isfinite(new_slope).all(axis=1)
        good = finite & (new_value <= value + promised) & ~done
        # zero where the step was refused or the curvature is not positive
        step, change = np.where(good[:, None], moved - theta, 0.0), np.where(good[:, None], new_slope - slope, 0.0)
        sizes = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
        curved = (np.einsum("nd,nd->n", step, change) > 1e-10 * sizes)[:, None]
        pairs = [*pairs, (step * curved, change * curved)][-MEMORY:]
        fall = np.where(good, value - new_value, np.inf)
        theta, slope = np.where(good[:, None], moved, theta), np.where(good[:, None], new_slope, slope)
        value = np.where(good, new_value, value)
        newton = _two_loops(slope, pairs)
        downhill = np.einsum("nd,nd->n", newton, slope)
        calm = np.where(good, np.where(downhill <= d, calm + 1, 0), calm)
        slow = np.where(good, np.where(fall < 1e-3 * d, slow + 1, 0), slow)
        length = np.where(good, 1.0, length * 0.3)
        # in the first iterations the curvature is not known
        done |= ((calm >= 2) & (iteration >= 5)) | (slow >= 3) | (length < 1e-12)
        plain = slope / np.maximum(1.0, np.linalg.norm(slope, axis=1, keepdims=True))
        direction = np.where(good[:, None], np.where(downhill[:, None] > 0, -newton, -plain), direction)
    return theta, value, slope


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
