"""Exact mean and variance of one chain's average on a Gaussian target, for the plan's own η, N, start and burn-in (T1, T9).

Input: a plan. Output: `Moments` for each linear observable, and for each square where the oracle's noise is additive;
`ridge_mean`, the mean alone, for other ρ(aᵀθ). Two runs of steps compose to a longer one, in O(log N). What composes is for uᵀy
the chain of (y, s), s the sum, or under noise that depends on the state the map Φ of its second moments; and for (uᵀθ)² mean and
variance of the sum as quadratics in the state that the steps begin at. The increments ψ of a martingale change one step only.
"""

import contextlib
import math
from typing import Any, NamedTuple

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import LinearChain, lift, linear_chain, power, why_not_linear
from gyromc.prediction.exact.closed_forms import ridge_expectation
from gyromc.prediction.martingale import Martingale, martingale, symmetric_root


class Symmetric:
    """The short form of symmetric matrices of one size: the numbers on and above the diagonal."""

    def __init__(self, size: int):
        self.pairs = i, j = np.triu_indices(size)
        self.size, self.rows, count = size, i * size + j, np.arange(len(i))
        self.full = np.zeros((size * size, len(i)))
        self.full[i * size + j, count] = self.full[j * size + i, count] = 1.0

    def vector(self, matrix: np.ndarray) -> np.ndarray:
        """The short form of a symmetric matrix."""
        return matrix[self.pairs]

    def matrix(self, vector: np.ndarray) -> np.ndarray:
        """The symmetric matrix of a short form."""
        return (self.full @ vector).reshape(self.size, self.size)

    def map(self, linear: np.ndarray) -> np.ndarray:
        """A map size² × size² as a map from short forms to short forms."""
        return linear[self.rows] @ self.full


MOST_LIFTED = 24


def linear_averages(chain: LinearChain, U: np.ndarray, c: np.ndarray, num_steps: int, burn_in: int) -> tuple:
    """Means from each start (starts × rows of U) and variances of the averages of uᵀy - cᵀξ, whose sums extend the chain."""
    (count, m), more = U.shape, (0, len(U))
    M = np.block([[chain.M, np.zeros((m, count))], [U, np.eye(count)]])
    spread, starts = np.pad(chain.spread, (more, (0, 0))), np.pad(chain.starts, ((0, 0), more))
    longer = LinearChain(M, spread, np.concatenate([chain.C, -c]), chain.mean, chain.noise, starts)
    ahead = np.linalg.matrix_power(longer.M, num_steps)[m:, :m] @ np.linalg.matrix_power(chain.M, burn_in)
    means = chain.starts @ ahead.T / num_steps  # T1: S_N
    # Additive noise does not depend on where the chain is: around the mean start no digits cancel.
    center = np.mean(chain.starts, axis=0) if chain.noise.additive else np.zeros(m)
    start, places = np.zeros((m + len(U) + 1,) * 2), np.append(np.arange(m), m + len(U))
    start[np.ix_(places, places)] = second_moments(chain, burn_in, _squares(chain.starts - center))
    squares = np.diag(second_moments(longer, num_steps, start))[m:-1]
    return means, squares / num_steps**2 - (0.0 if chain.noise.additive else means.mean(axis=0) ** 2)


def _squares(rows: np.ndarray) -> np.ndarray:
    """E[ŷŷᵀ] over rows of y, ŷ = (y, 1)."""
    longer = np.column_stack([rows, np.ones(len(rows))])
    return longer.T @ longer / len(rows)


def second_moments(chain: LinearChain, num_steps: int, start: np.ndarray | None = None) -> np.ndarray:
    """E[ŷŷᵀ] after `num_steps` steps, ŷ = (y, 1), from `start` or from the chain's own starts."""
    start = _squares(chain.starts) if start is None else start
    if chain.noise.additive:
        F, W = np.eye(chain.size + 1), np.zeros_like(start)
        if num_steps:
            ahead = lambda p, q: (q[0] @ p[0], q[0] @ p[1] @ q[0].T + q[1])
            F[:-1, :-1], W[:-1, :-1] = power(ahead, (chain.M, chain.W), num_steps)
        return F @ start @ F.T + W * start[-1, -1]
    short = Symmetric(chain.size + 1)
    return short.matrix(np.linalg.matrix_power(_phi(chain), num_steps) @ short.vector(start))


def _phi(chain: LinearChain) -> np.ndarray:
    """Φ: second moments of ŷ in one step, in short form."""
    n, d, size = chain.size, len(chain.mean), chain.size + 1
    F = np.eye(size)
    F[:n, :n] = chain.M
    phi = np.kron(F, F).reshape(size, size, size, size)  # T1: F⊗F
    entries = np.append(np.arange(d), n)  # where (θ, 1) sits in ŷ
    noise = np.einsum("ip,jq,paqb->ijab", chain.spread, chain.spread, chain.noise.tensor, optimize=True)
    phi[np.ix_(np.arange(n), np.arange(n), entries, entries)] += noise  # T1: f Σᵢ Lᵢ⊗Lᵢ/(bN)
    phi[:n, :n, n, n] += chain.C @ chain.C.T
    return Symmetric(size).map(phi.reshape(size * size, size * size))


MOST_SQUARED = 20


class _QuadraticSteps(NamedTuple):
    """Several steps of the chain from a state z, and the sum S of h over them; quadratics in short form."""

    M: np.ndarray  # the last state has mean M ẑ …
    W: np.ndarray  # … and covariance W
    L: np.ndarray  # g ↦ E[g(last) | z]
    K: np.ndarray  # g ↦ Cov(S, g(last) | z)
    a: np.ndarray  # E[S | z]
    v: np.ndarray  # Var[S | z]


def square_moments(
    chain: LinearChain, u: np.ndarray, shift: float, steps: tuple[int, int], less: Martingale | None, number: int
) -> tuple[np.ndarray, float]:
    """The mean of the average of (uᵀz + shift)² from each start, and its variance; `less`: whose increments to subtract."""
    (num_steps, burn_in), direction = steps, np.append(lift(u, chain.size), shift)
    size, short = chain.size + 1, Symmetric(chain.size + 1)
    M, W, h = np.eye(size), np.zeros((size, size)), short.vector(np.outer(direction, direction))
    M[:-1, :-1], W[:-1, :-1] = chain.M, chain.W
    L = short.map(np.kron(M.T, M.T) + _constants(W))
    one = _QuadraticSteps(M, W, L, np.zeros_like(L), h, np.zeros_like(h))
    whole = power(_compose_quadratic, one if less is None else _less(chain, one, less, number), num_steps)
    a, v = short.matrix(whole.a), short.matrix(whole.v)
    before = power(_compose_quadratic, one, burn_in) if burn_in else None
    M, W = (np.eye(size), np.zeros((size, size))) if before is None else (before.M, before.W)
    rows = np.concatenate([chain.starts, np.ones((len(chain.starts), 1))], axis=1) @ M.T
    # Given the start, the first averaged state is Gaussian with mean `rows` and covariance W.
    expected = np.sum((rows @ a) * rows, axis=1) + np.sum(a * W)
    gradient = 2 * rows @ a
    inner = np.sum((rows @ v) * rows, axis=1) + np.sum(v * W)
    outer = np.sum((gradient @ W) * gradient, axis=1) + 2 * np.sum((a @ W) * (W @ a))
    variance = (np.mean(inner + outer) + np.var(expected)) / num_steps**2
    return expected / num_steps, float(variance)


def _less(chain: LinearChain, one: _QuadraticSteps, found: Martingale, number: int) -> _QuadraticSteps:
    """One step whose sum is h less ψ = (Lŷ)ᵀw + wᵀRw - tr R, of mean zero, for y⁺ = My + Ew and w = (ξ, …) standard normal."""
    entering = np.concatenate([chain.C, chain.spread @ symmetric_root(chain.noise.constant)], axis=1)
    own, linear = found.owner == number, found.linear[number]
    p, weight = found.direction[own], found.weight[own]
    drawn = np.pad(found.noise[own], ((0, 0), (0, entering.shape[1] - len(linear))))
    offset = found.offset[own] - p @ lift(chain.mean, chain.size)
    L = 2 * (drawn.T * weight) @ np.column_stack([p @ chain.M, -offset])
    L[: len(linear), -1] += linear
    R = (drawn.T * weight) @ (2 * p @ entering - drawn)  # T9
    R = (R + R.T) / 2
    E = np.concatenate([entering, np.zeros((1, entering.shape[1]))])
    N, short = L.T @ E.T, Symmetric(len(one.M))
    K = -(np.kron(N, one.M.T) + np.kron(one.M.T, N)) - 2 * _constants(E @ R @ E.T)  # T9: Cov(-ψ, g(last) | z)
    v = L.T @ L
    v[-1, -1] += 2 * np.sum(R * R)
    return one._replace(K=short.map(K), v=short.vector(v))


def _compose_quadratic(p: _QuadraticSteps, q: _QuadraticSteps) -> _QuadraticSteps:
    """First p, then q."""
    # g ↦ Cov(a(last), g(last) | z) for symmetric g, the last state of p being Gaussian given z.
    short = Symmetric(len(p.M))
    a = short.matrix(q.a)
    X = p.M.T @ a @ p.W
    B = short.map(2 * (np.kron(X, p.M.T) + np.kron(p.M.T, X)) + 2 * _constants(p.W @ a @ p.W))
    return _QuadraticSteps(
        M=q.M @ p.M,
        W=q.M @ p.W @ q.M.T + q.W,
        L=p.L @ q.L,
        K=p.L @ q.K + (p.K + B) @ q.L,
        a=p.a + p.L @ q.a,
        v=p.v + p.L @ q.v + B @ q.a + 2 * p.K @ q.a,
    )


def _constants(W: np.ndarray) -> np.ndarray:
    """g ↦ the constant quadratic tr(Wg)."""
    full = np.zeros((W.size, W.size))
    full[-1] = W.ravel()
    return full


MOST_GROUPS = 256  # of starts: where there are more, those with neighbouring means go together
MOST_FOLLOWED = 10  # numbers in the state, for noise that depends on it
EVERY_STEP = 32
GROWTH = 1.1


def ridge_mean(
    chain: LinearChain, h: Ridge, num_steps: int, burn_in: int = 0, drawn: bool = False
) -> tuple[float, float]:
    """E of an average of ρ(aᵀθ); its error: what every second node changes, and the standard error of starts that were drawn."""
    u, shift = lift(h.direction, chain.size), float(h.direction @ chain.mean)

    def mean_at(k: int) -> tuple[float, float]:
        """E ρ(aᵀθ_k), averaged over the starts, and its standard deviation over them."""
        if not chain.noise.additive:
            Y = second_moments(chain, k)
            first, second = float(u @ Y[:-1, -1]), float(u @ Y[:-1, :-1] @ u)
            return ridge_expectation(h.rho, shift + first, math.sqrt(max(second - first**2, 0.0))).value, 0.0
        w, variance = chain.ahead(u, k)
        centers = np.sort(shift + chain.starts @ w)
        parts = np.array_split(centers, min(len(centers), MOST_GROUPS))
        counts, deviation = [len(part) for part in parts], math.sqrt(max(variance, 0.0))
        means = np.array([ridge_expectation(h.rho, part.mean(), deviation).value for part in parts])
        mean = float(np.average(means, weights=counts))
        return mean, math.sqrt(float(np.average((means - mean) ** 2, weights=counts)))

    def interpolated(steps: np.ndarray, values: np.ndarray) -> float:
        """The mean over all steps of what is linear between the nodes."""
        gaps = np.diff(steps)
        return float(np.sum(gaps * values[:-1] + (gaps - 1) / 2 * np.diff(values)) + values[-1]) / num_steps

    nodes = [*range(min(num_steps, EVERY_STEP))]
    while nodes[-1] < num_steps - 1:
        nodes.append(min(num_steps - 1, math.ceil(nodes[-1] * GROWTH)))
    steps = np.array(nodes)
    found = np.array([mean_at(burn_in + int(k)) for k in steps])
    mean, spread = (interpolated(steps, column) for column in found.T)
    fewer = np.unique(np.append(np.arange(0, len(steps), 2), len(steps) - 1)) if num_steps > EVERY_STEP else ...
    error = abs(mean - interpolated(steps[fewer], found[fewer, 0])) / 3  # of second order in the gaps
    return mean, error + (spread / math.sqrt(len(chain.starts)) if drawn else 0.0)


class Moments(NamedTuple):
    """Mean and variance of one chain's average."""

    mean: float
    variance: float
    start_error: float = 0.0  # of the mean, where the start is random: it was drawn a number of times
    corrected: float | None = None  # the variance less the martingale, where the plan has one


def exact_moments(plan: Plan) -> dict[str, Moments]:
    """E and Var of one chain's average of every observable that has them exactly; several starts are one random start."""
    if why_not_linear(plan) is not None:
        return {}
    chain, steps = linear_chain(plan), (plan.num_steps, plan.burn_in)
    number = {name: j for j, name in enumerate(plan.observables)}
    known: dict[str, Any] = {name: h for name, h in plan.observables.items() if _why_not(chain, h) is None}
    shifts = {name: float(h.direction @ chain.mean) for name, h in known.items()}
    linear = [name for name, h in known.items() if not h.is_square]

    def averages(less: Martingale | None) -> dict[str, tuple[np.ndarray, float]]:
        """By observable the mean of an average from each start, and its variance; `less`: martingales to subtract."""
        found = {}
        # Noise that depends on the state: one sum at a time, or the second moments would be many.
        for names in [linear] if chain.noise.additive and linear else [[name] for name in linear]:
            U = np.stack([lift(known[name].direction, chain.size) for name in names])
            c = np.zeros((len(U), chain.C.shape[1])) if less is None else less.linear[[number[name] for name in names]]
            means, variances = linear_averages(chain, U, c, *steps)
            found |= {name: (shifts[name] + means[:, j], float(variances[j])) for j, name in enumerate(names)}
        for name in set(known) - set(linear):
            found[name] = square_moments(chain, known[name].direction, shifts[name], steps, less, number[name])
        return found

    with np.errstate(over="ignore", invalid="ignore"):
        found = averages(None)
    # A martingale can be computed for a stable chain only.
    stable = np.all(np.isfinite(chain.M)) and np.max(np.abs(np.linalg.eigvals(chain.M))) < 1
    corrected, moments = {}, {}
    if known and plan.martingale and stable:
        with contextlib.suppress(InvalidInput):  # more parameters than a martingale takes
            corrected = averages(martingale(plan))
    for name in known:
        (by_start, variance), less = found[name], corrected.get(name)
        mean, left = float(np.mean(by_start)), None if less is None else max(less[1], 0.0)
        overflow = not (np.isfinite(mean) and np.isfinite(variance))
        error = 0.0 if plan.starts.draw is None else float(np.std(by_start)) / math.sqrt(len(by_start))
        moments[name] = Moments(mean, np.inf if overflow else max(variance, 0.0), error, left)
    return moments


def why_not_exact(plan: Plan, name: str) -> str | None:
    """Why `exact_moments` omits an observable of the plan, or None."""
    return why_not_linear(plan) or _why_not(linear_chain(plan), plan.observables[name])


def _why_not(chain: LinearChain, h: Observable) -> str | None:
    if not isinstance(h, Ridge) or not (h.is_linear or h.is_square):
        return "the observable is neither linear nor a square"
    if chain.noise.additive:
        too_large = h.is_square and chain.size > MOST_SQUARED
        return f"squares need a state of at most {MOST_SQUARED} numbers" if too_large else None
    if h.is_square:
        return "the variance of a square under noise that depends on the state needs fourth moments"
    too_large = chain.size > MOST_LIFTED
    return f"the lifted second moments need a state of at most {MOST_LIFTED} numbers" if too_large else None
