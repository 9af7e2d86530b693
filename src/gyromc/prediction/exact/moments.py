"""Exact mean and variance of one chain's average on a Gaussian target, for the plan's own η, N, start and burn-in (T1, T9).

Input: a plan. Output: `Moments` for each linear observable, and for each square where the oracle's noise is additive;
`ridge_mean`, the mean alone, for other ρ(aᵀθ). Nothing is asymptotic or sampled. Two runs of steps compose to a longer one,
so N steps cost O(log N) by repeated squaring, which stays exact for unstable step sizes until numbers overflow. What composes is
- for uᵀy and additive noise, the map of the mean and the covariances of end and sum (`_Steps`);
- for noise that depends on the state, the map Φ of the second moments of ŷ = (y, 1), vec Y ← Φ vec Y: O(n⁶ log N), once for all
  observables, milliseconds for n = 6 and about a second for n = 24 (`_LiftedSteps`);
- for (uᵀθ)², mean and variance of the sum as quadratics ŷᵀaŷ in the state that the steps begin at (`_QuadraticSteps`).
The increments ψ of a martingale are quadratic in state and noise, so they only change what one step begins with.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.martingale import martingale, symmetric_root
from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import LinearChain, lift, linear_chain, power, why_not_linear
from gyromc.prediction.exact.closed_forms import ridge_expectation


@dataclasses.dataclass(frozen=True)
class Symmetric:
    """The short form of symmetric matrices of one size."""

    size: int

    @functools.cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        return np.triu_indices(self.size)

    @functools.cached_property
    def _places(self) -> np.ndarray:
        i, j = self._pairs
        places = np.empty((self.size, self.size), int)
        places[i, j] = places[j, i] = np.arange(len(i))
        return places

    def vector(self, matrix: np.ndarray) -> np.ndarray:
        """The short form of a symmetric matrix."""
        return matrix[self._pairs]

    def matrix(self, vector: np.ndarray) -> np.ndarray:
        """The symmetric matrix of a short form."""
        return vector[self._places]

    def inputs(self, linear: np.ndarray) -> np.ndarray:
        """A map … × size² of all matrices, as a map of short forms."""
        i, j = self._pairs
        short = linear[..., i * self.size + j].copy()
        off = i != j
        short[..., off] += linear[..., j[off] * self.size + i[off]]
        return short

    def map(self, linear: np.ndarray) -> np.ndarray:
        """A map size² × size² as a map from short forms to short forms."""
        i, j = self._pairs
        return self.inputs(linear[i * self.size + j])


@dataclasses.dataclass(frozen=True, eq=False)
class Increment:
    """ψ of one observable."""

    linear: np.ndarray  # c: n numbers
    weight: np.ndarray  # λ
    direction: np.ndarray  # p: terms × m
    offset: np.ndarray  # o, for the centred state
    noise: np.ndarray  # q: terms × n

    def forms(self, M: np.ndarray, entering: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L and R with ψ = (Lŷ)ᵀw + wᵀRw - tr R given y, ŷ = (y, 1), for y⁺ = My + Ew, w = (ξ, …) standard normal."""
        drawn = np.zeros((len(self.weight), entering.shape[1]))
        drawn[:, : self.noise.shape[1]] = self.noise
        ahead = np.column_stack([self.direction @ M, -self.offset])
        L = 2 * (drawn.T * self.weight) @ ahead
        L[: len(self.linear), -1] += self.linear
        R = (drawn.T * self.weight) @ (2 * self.direction @ entering - drawn)  # T9
        return L, (R + R.T) / 2


def increments(plan: Plan, chain: LinearChain) -> dict[str, Increment]:
    """ψ of every observable of a plan with a martingale, by name."""
    found, center = martingale(plan), lift(chain.mean, chain.size)
    parts = {}
    for j, name in enumerate(plan.observables):
        own = found.owner == j
        p = found.direction[own]
        parts[name] = Increment(found.linear[j], found.weight[own], p, found.offset[own] - p @ center, found.noise[own])
    return parts


def linear_change(chain: LinearChain, U: np.ndarray, c: np.ndarray, num_steps: int) -> np.ndarray:
    """What ψ = cᵀξ changes in the variance of the average of uᵀy, for rows of U and c: N|c|² - 2uᵀΣ_j (N-1-j)M^j Cc, over N²."""
    eye = np.eye(chain.size)
    Z = power(_longer, (1, chain.M, eye, np.zeros_like(eye)), num_steps)[3]
    shared = np.einsum("ki,ij,kj->k", U, Z @ chain.C, c, optimize=True)
    return np.sum(c**2, axis=1) / num_steps - 2 * shared / num_steps**2  # T9


def _longer(p: tuple, q: tuple) -> tuple:
    """(m, M^m, T_m = Σ_{j<m} M^j, Σ_{j<m} (m-1-j)M^j) of two runs of steps."""
    return p[0] + q[0], p[1] @ q[1], p[2] + p[1] @ q[2], p[3] + q[0] * p[2] + p[1] @ q[3]


MOST_LIFTED = 24


class _LiftedSteps(NamedTuple):
    """m steps from second moments Y, in short form, with Φ their map over one step."""

    M: np.ndarray  # M^m
    B: np.ndarray  # Σ_{i=1..m} M^i
    Phi: np.ndarray  # Φ^m
    X: np.ndarray  # Σ_{k<m} Φ^k
    U: np.ndarray  # Σ_{k<m} M^{m-1-k} Φ^k, y-block: n × n × short
    Z: np.ndarray  # Σ_{k<m} (Σ_{i=1..m-1-k} M^i) Φ^k, y-block


def _compose_lifted(p: _LiftedSteps, q: _LiftedSteps) -> _LiftedSteps:
    """First p, then q."""
    return _LiftedSteps(
        M=q.M @ p.M,
        B=p.B + p.M @ q.B,
        Phi=q.Phi @ p.Phi,
        X=p.X + q.X @ p.Phi,
        U=_times(q.M, p.U) + q.U @ p.Phi,
        Z=p.Z + _times(q.B, p.U) + q.Z @ p.Phi,
    )


def _times(M: np.ndarray, block: np.ndarray) -> np.ndarray:
    return (M @ block.reshape(len(M), -1)).reshape(block.shape)


class StateAverage(NamedTuple):
    """Mean and covariance of the average of y, and the map from y₀ to its mean."""

    mean: np.ndarray
    covariance: np.ndarray
    of_start: np.ndarray


def average_moments(chain: LinearChain, num_steps: int, burn_in: int) -> StateAverage:
    """Mean and covariance of the average of y over `num_steps` states."""
    n, short = chain.size, Symmetric(chain.size + 1)
    Phi, start = _phi(chain), short.vector(_start_moments(chain))
    if burn_in:
        start = np.linalg.matrix_power(Phi, burn_in) @ start
    pick = np.eye((n + 1) ** 2).reshape(n + 1, n + 1, -1)[:n, :n]
    block = short.inputs(pick)
    total = power(_compose_lifted, _LiftedSteps(chain.M, chain.M, Phi, np.eye(len(Phi)), block, 0 * block), num_steps)
    same, ahead = short.matrix(total.X @ start), total.Z @ start
    mean = same[:-1, -1]  # of Σ y_k
    covariance = (same[:-1, :-1] + ahead + ahead.T - np.outer(mean, mean)) / num_steps**2
    of_start = (np.eye(n) + total.B - total.M) @ np.linalg.matrix_power(chain.M, burn_in) / num_steps
    return StateAverage(mean / num_steps, covariance, of_start)


def second_moments(chain: LinearChain, num_steps: int) -> np.ndarray:
    """E[ŷŷᵀ] after `num_steps` steps, ŷ = (y, 1)."""
    short = Symmetric(chain.size + 1)
    return short.matrix(np.linalg.matrix_power(_phi(chain), num_steps) @ short.vector(_start_moments(chain)))


def _start_moments(chain: LinearChain) -> np.ndarray:
    """E[ŷ₀ŷ₀ᵀ] over the starts."""
    rows = np.concatenate([chain.starts, np.ones((len(chain.starts), 1))], axis=1)
    return rows.T @ rows / len(rows)


def _phi(chain: LinearChain) -> np.ndarray:
    n, d, size = chain.size, chain.d, chain.size + 1
    F = np.eye(size)
    F[:n, :n] = chain.M
    phi = np.kron(F, F).reshape(size, size, size, size)  # T1: F⊗F
    entries = np.append(np.arange(d), n)  # where (θ, 1) sits in ŷ
    noise = np.einsum("ip,jq,paqb->ijab", chain.spread, chain.spread, chain.noise.tensor, optimize=True)
    phi[np.ix_(np.arange(n), np.arange(n), entries, entries)] += noise  # T1: f Σᵢ Lᵢ⊗Lᵢ/(bN)
    phi[:n, :n, n, n] += chain.drawn
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
    chain: LinearChain, u: np.ndarray, shift: float, num_steps: int, burn_in: int, less: Increment | None = None
) -> tuple[float, float, np.ndarray]:
    """Mean and variance of the average of (uᵀz + shift)², and its mean from each start; `less`: a martingale to subtract."""
    direction = np.append(lift(u, chain.size), shift)
    size, short = chain.size + 1, Symmetric(chain.size + 1)
    one = _one_step(chain, short.vector(np.outer(direction, direction)))
    whole = power(_compose_quadratic, one if less is None else _less(chain, one, less), num_steps)
    a, v = short.matrix(whole.a), short.matrix(whole.v)
    M, W = np.eye(size), np.zeros((size, size))
    if burn_in:
        before = power(_compose_quadratic, one, burn_in)
        M, W = before.M, before.W
    rows = np.concatenate([chain.starts, np.ones((len(chain.starts), 1))], axis=1) @ M.T
    # Given the start, the first averaged state is Gaussian with mean `rows` and covariance W.
    expected = np.sum((rows @ a) * rows, axis=1) + np.sum(a * W)
    gradient = 2 * rows @ a
    inner = np.sum((rows @ v) * rows, axis=1) + np.sum(v * W)
    outer = np.sum((gradient @ W) * gradient, axis=1) + 2 * np.sum((a @ W) * (W @ a))
    variance = (np.mean(inner + outer) + np.var(expected)) / num_steps**2
    return float(np.mean(expected)) / num_steps, float(variance), expected / num_steps


def _one_step(chain: LinearChain, h: np.ndarray) -> _QuadraticSteps:
    size = chain.size + 1
    M, W = np.eye(size), np.zeros((size, size))
    M[:-1, :-1], W[:-1, :-1] = chain.M, chain.W
    L = Symmetric(size).map(np.kron(M.T, M.T) + _constants(W))
    return _QuadraticSteps(M, W, L, np.zeros_like(L), h, np.zeros_like(h))


def _less(chain: LinearChain, one: _QuadraticSteps, increment: Increment) -> _QuadraticSteps:
    """One step whose sum is h less ψ = (Lẑ)ᵀw + wᵀRw - tr R: E[ψ | z] = 0, so that E[S | z] stays."""
    entering = np.concatenate([chain.C, chain.spread @ symmetric_root(chain.noise.constant)], axis=1)
    L, R = increment.forms(chain.M, entering)
    E = np.concatenate([entering, np.zeros((1, entering.shape[1]))])
    N, short = L.T @ E.T, Symmetric(len(one.M))
    K = -(np.kron(N, one.M.T) + np.kron(one.M.T, N)) - 2 * _constants(E @ R @ E.T)  # T9: Cov(-ψ, g(last) | z)
    v = L.T @ L
    v[-1, -1] += 2 * np.sum(R * R)
    return one._replace(K=short.map(K), v=short.vector(v))


def _compose_quadratic(p: _QuadraticSteps, q: _QuadraticSteps) -> _QuadraticSteps:
    """First p, then q."""
    B = _covariances(p, q.a)
    return _QuadraticSteps(
        M=q.M @ p.M,
        W=q.M @ p.W @ q.M.T + q.W,
        L=p.L @ q.L,
        K=p.L @ q.K + (p.K + B) @ q.L,
        a=p.a + p.L @ q.a,
        v=p.v + p.L @ q.v + B @ q.a + 2 * p.K @ q.a,
    )


def _covariances(p: _QuadraticSteps, a: np.ndarray) -> np.ndarray:
    """g ↦ Cov(a(last), g(last) | z) for symmetric g, the last state of p being Gaussian given z."""
    short = Symmetric(len(p.M))
    a = short.matrix(a)
    X = p.M.T @ a @ p.W
    cross = 2 * (np.kron(X, p.M.T) + np.kron(p.M.T, X))
    return short.map(cross + 2 * _constants(p.W @ a @ p.W))


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
    """E of one chain's average of ρ(aᵀθ) over `num_steps` states after `burn_in` steps, and its error.

    The error is what every second node changes; with starts that were drawn, their standard error too.
    """
    w, shift = lift(h.direction, chain.size), float(h.direction @ chain.mean)
    steps = _chosen_steps(num_steps)
    found = np.array([_mean_at(chain, w, shift, h.rho, burn_in + int(k)) for k in steps])
    mean, spread = (_interpolated_sum(steps, column) / num_steps for column in found.T)
    fewer = np.unique(np.append(np.arange(0, len(steps), 2), len(steps) - 1)) if num_steps > EVERY_STEP else ...
    error = abs(mean - _interpolated_sum(steps[fewer], found[fewer, 0]) / num_steps) / 3  # of second order in the gaps
    return mean, error + (spread / math.sqrt(len(chain.starts)) if drawn else 0.0)


def _interpolated_sum(steps: np.ndarray, values: np.ndarray) -> float:
    """Σ_k of what is linear between the nodes."""
    gaps = np.diff(steps)
    return float(np.sum(gaps * values[:-1] + (gaps - 1) / 2 * np.diff(values)) + values[-1])


def _chosen_steps(num_steps: int) -> np.ndarray:
    nodes = [*range(min(num_steps, EVERY_STEP))]
    while nodes[-1] < num_steps - 1:
        nodes.append(min(num_steps - 1, math.ceil(nodes[-1] * GROWTH)))
    return np.array(nodes)


def _mean_at(chain: LinearChain, w: np.ndarray, shift: float, rho: Callable, k: int) -> tuple[float, float]:
    """E ρ(aᵀθ_k), averaged over the starts, and its standard deviation over them."""
    if chain.additive:
        w, variance = chain.ahead(w, k)
        centers, deviation = np.sort(shift + chain.starts @ w), math.sqrt(max(variance, 0.0))
        parts = np.array_split(centers, min(len(centers), MOST_GROUPS))
        means, counts = (
            np.array([ridge_expectation(rho, part.mean(), deviation).value for part in parts]),
            list(map(len, parts)),
        )
        mean = float(np.average(means, weights=counts))
        return mean, math.sqrt(float(np.average((means - mean) ** 2, weights=counts)))
    Y = second_moments(chain, k)
    first, second = float(w @ Y[:-1, -1]), float(w @ Y[:-1, :-1] @ w)
    return ridge_expectation(rho, shift + first, math.sqrt(max(second - first**2, 0.0))).value, 0.0


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and variance of one chain's average."""

    mean: float
    variance: float
    start_error: float = 0.0  # of the mean, where the start is random: it was drawn a number of times
    corrected: float | None = None  # the variance less the martingale, where the plan has one


def exact_moments(plan: Plan) -> dict[str, Moments]:
    """E and Var of one chain's average of each observable, exactly for the plan's step size, steps, start and burn-in.

    Several starts are treated as one random start, uniform over them. An observable without an exact answer is omitted: see
    `why_not_exact`.

    ```python
    import gyromc as gm
    from gyromc.prediction.exact.moments import exact_moments
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1), start=[1.0],
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.5, num_steps=2)
    assert exact_moments(plan)["x"].mean == 0.75 and exact_moments(plan)["x"].variance == 0.25
    ```
    """
    if why_not_linear(plan) is not None:
        return {}
    chain = linear_chain(plan)
    ridges = {name: h for name, h in plan.observables.items() if isinstance(h, Ridge)}
    known = {name: h for name, h in ridges.items() if _why_not(chain, h) is None}
    steps, found = (plan.num_steps, plan.burn_in), {}
    with np.errstate(over="ignore", invalid="ignore"):
        averages = average_moments if not chain.additive else _average_moments
        average = averages(chain, *steps) if any(h.is_linear for h in known.values()) else None
        for name, h in known.items():
            u, shift = h.direction, float(h.direction @ chain.mean)
            if average is None or h.is_square:
                mean, variance, by_start = square_moments(chain, u, shift, *steps)
            else:
                w = lift(u, chain.size)
                mean, variance = shift + w @ average.mean, w @ average.covariance @ w
                by_start = chain.starts @ (average.of_start.T @ w)
            overflow = not (np.isfinite(mean) and np.isfinite(variance))
            error = 0.0 if plan.starts.draw is None else float(np.std(by_start)) / math.sqrt(len(by_start))
            found[name] = Moments(float(mean), np.inf if overflow else max(float(variance), 0.0), error)
    # A martingale can be computed for a stable chain only.
    stable = np.all(np.isfinite(chain.M)) and np.max(np.abs(np.linalg.eigvals(chain.M))) < 1
    return _corrected(plan, chain, known, found) if known and plan.martingale and stable else found


def _corrected(
    plan: Plan, chain: LinearChain, known: dict[str, Ridge], found: dict[str, Moments]
) -> dict[str, Moments]:
    """The moments with the variances of the averages less their martingale, which change no mean."""
    try:
        less = increments(plan, chain)
    except InvalidInput:  # more parameters than a martingale takes
        return found
    linear = {name: h for name, h in known.items() if not h.is_square}
    changes = {}
    if linear:
        U = np.stack([lift(h.direction, chain.size) for h in linear.values()])
        change = linear_change(chain, U, np.stack([less[name].linear for name in linear]), plan.num_steps)
        changes = dict(zip(linear, change, strict=True))
    for name, h in known.items():
        if name in changes:
            variance = found[name].variance + float(changes[name])
        else:
            shift = float(h.direction @ chain.mean)
            steps = plan.num_steps, plan.burn_in
            variance = square_moments(chain, h.direction, shift, *steps, less[name])[1]
        found[name] = dataclasses.replace(found[name], corrected=max(float(variance), 0.0))
    return found


def why_not_exact(plan: Plan, name: str) -> str | None:
    """Why `exact_moments` omits an observable of the plan, or None."""
    return why_not_linear(plan) or _why_not(linear_chain(plan), plan.observables[name])


def _why_not(chain: LinearChain, h: Observable) -> str | None:
    if not isinstance(h, Ridge) or not (h.is_linear or h.is_square):
        return "the observable is neither linear nor a square"
    if chain.additive:
        too_large = h.is_square and chain.size > MOST_SQUARED
        return f"squares need a state of at most {MOST_SQUARED} numbers" if too_large else None
    if h.is_square:
        return "the variance of a square under noise that depends on the state needs fourth moments"
    too_large = chain.size > MOST_LIFTED
    return f"the lifted second moments need a state of at most {MOST_LIFTED} numbers" if too_large else None


class _Steps(NamedTuple):
    """m steps from z₀: z_m = Mz₀ + e and Σ_{k<m} z_k = Az₀ + s, with the covariances of e and s."""

    M: np.ndarray
    A: np.ndarray
    W: np.ndarray  # Cov(e)
    X: np.ndarray  # Cov(e, s)
    C: np.ndarray  # Cov(s)


def _compose_steps(p: _Steps, q: _Steps) -> _Steps:
    """First p, then q."""
    ahead = q.A @ p.X
    return _Steps(
        M=q.M @ p.M,
        A=p.A + q.A @ p.M,
        W=q.M @ p.W @ q.M.T + q.W,
        X=q.M @ (p.X + p.W @ q.A.T) + q.X,
        C=p.C + q.A @ p.W @ q.A.T + ahead + ahead.T + q.C,
    )


def _average_moments(chain: LinearChain, num_steps: int, burn_in: int) -> StateAverage:
    """Mean and covariance of the average of y under additive noise."""
    start = np.mean(chain.starts, axis=0)
    centred = chain.starts - start
    M_b, W_b = after_steps(chain.M, chain.W, burn_in)
    mean, covariance = M_b @ start, M_b @ (centred.T @ centred / len(centred)) @ M_b.T + W_b
    zero = np.zeros((chain.size, chain.size))
    total = power(_compose_steps, _Steps(chain.M, np.eye(chain.size), chain.W, zero, zero), num_steps)
    moments = (total.A @ covariance @ total.A.T + total.C) / num_steps**2  # T1: S_N
    return StateAverage(total.A @ mean / num_steps, moments, total.A @ M_b / num_steps)


def after_steps(F: np.ndarray, W: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(F^k, Σ_{j<k} F^j W F^jᵀ): the map of the mean over k steps, and the covariance they add."""
    if count == 0:
        return np.eye(len(F)), np.zeros_like(F)
    return power(lambda p, q: (q[0] @ p[0], q[0] @ p[1] @ q[0].T + q[1]), (F, W), count)
