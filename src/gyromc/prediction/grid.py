"""The Euler-Maruyama chain on a grid: its stationary law, bias and variance at the plan's own step size, nothing first order.

Input: a plan and an observable whose coordinates couple with at most one other (`why_not_grid`). Output: a `GridChain`. One step
from z is Gaussian with mean z - ηG∇H and covariance 2ηD + η²GΣ(θ)Gᵀ. Sums over a grid whose cells are one standard deviation of a
step wide are exact to about 1e-8, so the stationary law and the Poisson equation of the chain are linear systems. The noise of
mini-batches, with its own Σ(θ), is taken as Gaussian; what its skewness changes is counted as an error.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import linalg

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.arrival import WITHOUT_NOISE, arrive, some_starts
from gyromc.prediction.corrections import oracle_covariances, oracle_third_moments
from gyromc.shape.laplace import inverse_root

MOST_NODES = 1600
DEPTH = 24.0  # H above its minimum at which the grid ends, at first
EDGE = 1e-7, 1e-4  # stationary mass near the border below which the grid is large enough; at most, where it cannot grow
DECAYED = 1e-4  # of the effect of the start
MOST_PRODUCTS = 2000
SHARP = 1e-8  # error of sums over the grid
FINER = {1: 16, 2: 3}  # nodes for h, per axis and node of the grid


@dataclasses.dataclass(frozen=True)
class GridChain:
    """Stationary mean of h, the variance of its averages, and what the start adds."""

    mean: float  # π_η(h)
    mean_error: float  # from what lies beyond the grid, and from its width
    variance: float  # lim N·Var of an average of N states
    transient: float | None  # Σ_k (E h(z_k) - π_η(h)) from the plan's starts; None where they do not arrive
    transient_error: float
    nodes: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Reduced:
    """The chain of the coordinates that h is coupled with."""

    plan: Plan
    chosen: tuple[int, ...]
    step_size: float

    @property
    def G(self) -> np.ndarray:
        return (self.plan.dynamics.D + self.plan.dynamics.Q)[np.ix_(self.chosen, self.chosen)]

    def theta(self, z: np.ndarray) -> np.ndarray:
        """Rows of θ with the chosen coordinates of z; the others at the mode."""
        rows = np.repeat(self.plan.model.laplace.mode[None], len(z), axis=0)
        inside = [k for k, i in enumerate(self.chosen) if i < self.plan.dim]
        rows[:, [self.chosen[k] for k in inside]] = z[:, inside]
        return rows

    def forces(self, z: np.ndarray) -> np.ndarray:
        """∇H at rows of z."""
        slopes = self.plan.flat_target.gradients(self.theta(z))
        return np.stack([slopes[:, i] if i < self.plan.dim else z[:, k] for k, i in enumerate(self.chosen)], axis=1)

    def energies(self, z: np.ndarray) -> np.ndarray:
        momenta = [k for k, i in enumerate(self.chosen) if i >= self.plan.dim]
        return self.plan.flat_target.potentials(self.theta(z)) + 0.5 * np.sum(z[:, momenta] ** 2, axis=1)

    def means(self, z: np.ndarray) -> np.ndarray:
        return z - self.step_size * self.forces(z) @ self.G.T  # E3

    def covariances(self, z: np.ndarray) -> np.ndarray:
        """2ηD + η²GΣ(θ)Gᵀ at rows of z."""
        eta, plan = self.step_size, self.plan
        base = 2 * eta * plan.dynamics.D[np.ix_(self.chosen, self.chosen)]
        if isinstance(plan.oracle, Exact):
            return np.broadcast_to(base, (len(z), *base.shape))
        inside = [k for k, i in enumerate(self.chosen) if i < plan.dim]
        kept, spread = [self.chosen[k] for k in inside], eta * self.G[:, inside]
        if isinstance(plan.oracle, Gaussian):
            added = np.broadcast_to(float(plan.oracle.tau) ** 2 * spread @ spread.T, (len(z), *base.shape))
        else:
            Sigma = oracle_covariances(plan, self.theta(z))[:, kept][:, :, kept]
            added = np.einsum("ij,sjk,lk->sil", spread, Sigma, spread, optimize=True)
        return base + added


def why_not_grid(plan: Plan, chosen: tuple[int, ...]) -> str | None:
    """Why the chain of these coordinates is not put on a grid, or None."""
    if len(chosen) > 2:
        return f"{len(chosen)} coordinates are coupled: at most 2 fit a grid"
    if plan.scheduled or not plan.scheme.is_euler:
        return "the scheme is not Euler-Maruyama with a constant step size"
    whole = len([i for i in chosen if i < plan.dim]) == plan.dim
    if not isinstance(plan.oracle, Exact | Gaussian) and not whole:
        return "the noise of mini-batches couples all parameters"
    return None


def grid_chain(plan: Plan, h: Observable, chosen: tuple[int, ...], step_size: float | None = None) -> GridChain:
    """The chain of the chosen coordinates on a grid; `InvalidInput` where the grid would be too large.

    ```python
    import gyromc as gm
    from gyromc.prediction.grid import grid_chain
    h = gm.observables.square([1.0])
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1), observables={"h": h}, step_size=0.5)
    assert abs(grid_chain(plan, h, (0,)).mean - 1 / (1 - 0.25)) < 1e-7
    ```
    """
    return Grids(plan).chain(h, chosen, step_size)


class Grids:
    """The grids of one plan: each is solved once, for all observables."""

    def __init__(self, plan: Plan):
        self.plan, self._solved = plan, {}

    def chain(self, h: Observable, chosen: tuple[int, ...], step_size: float | None = None) -> GridChain:
        """As `grid_chain`."""
        key = chosen, self.plan.eta if step_size is None else step_size
        if key not in self._solved:
            try:
                self._solved[key] = _solved(self.plan, *key)
            except InvalidInput as error:
                self._solved[key] = error
        found = self._solved[key]
        if isinstance(found, InvalidInput):
            raise found
        return found.answer(h)


def _solved(plan: Plan, chosen: tuple[int, ...], step_size: float) -> "_Grid":
    reason = why_not_grid(plan, chosen)
    if reason is not None:
        raise InvalidInput(reason)
    chain = _Reduced(plan, chosen, step_size)
    mode = np.array([plan.model.laplace.mode[i] if i < plan.dim else 0.0 for i in chosen])
    root = _cell(chain, mode)
    depth, best, beyond = DEPTH, None, 1.0
    for _ in range(8):
        try:
            z, outer = _nodes(chain, mode, root, depth)
        except InvalidInput:
            if best is None:
                raise
            break
        P = _kernel(chain, z, z)
        law = _stationary(P)
        beyond = float(law[outer].sum())
        best = _Grid(chain, root, z, P, law, beyond)
        if beyond < EDGE[0]:
            break
        depth *= 1.5
    if best is None or beyond > EDGE[1]:
        raise InvalidInput("the chain's stationary law is too wide for a grid")
    return best


def _cell(chain: _Reduced, mode: np.ndarray) -> np.ndarray:
    """The sides of a cell: one standard deviation of the smallest step within three standard deviations of the mode."""
    root = linalg.cholesky(chain.covariances(mode[None])[0], lower=True)
    if isinstance(chain.plan.oracle, Exact | Gaussian):
        return root
    inside = [k for k, i in enumerate(chain.chosen) if i < chain.plan.dim]
    wide = np.zeros_like(root)
    wide[np.ix_(inside, inside)] = inverse_root(chain.plan.model.laplace.precision)
    directions = np.array([k for k in np.ndindex(*(7,) * len(mode))]) - 3.0
    S = chain.covariances(mode + directions @ wide.T)
    inner = np.linalg.inv(root)
    return root * math.sqrt(min(1.0, float(np.min(np.linalg.eigvalsh(inner @ S @ inner.T)))))


def _nodes(chain: _Reduced, mode: np.ndarray, root: np.ndarray, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """Points mode + root·k, k whole numbers, with an energy less than `depth` above the mode's, and which are on the border."""
    bottom = chain.energies(mode[None])[0]
    steps = np.array([k for k in np.ndindex(*(3,) * len(mode))]) - 1
    kept, border = {tuple(0 for _ in mode)}, np.zeros((1, len(mode)), int)
    while len(border):
        around = np.unique((border[:, None] + steps).reshape(-1, len(mode)), axis=0)
        around = np.array([k for k in around if tuple(k) not in kept]).reshape(-1, len(mode))
        low = chain.energies(mode + around @ root.T) - bottom < depth if len(around) else np.zeros(0, bool)
        border = around[low]
        kept.update(map(tuple, border.tolist()))
        if len(kept) > MOST_NODES:
            raise InvalidInput(f"the step size is too small for a grid of {MOST_NODES} nodes")
    places = np.array(sorted(kept))
    around = (places[:, None] + steps).reshape(-1, len(mode)).tolist()
    inner = np.array([tuple(k) in kept for k in around]).reshape(len(places), -1)
    return mode + places @ root.T, np.array(~inner.all(axis=1))


def _kernel(chain: _Reduced, z: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Probabilities of one step from each row of z to each node, normalised."""
    means, S = chain.means(z), chain.covariances(z)
    inverse = np.linalg.inv(np.linalg.cholesky(S))
    scaled = np.einsum("sij,stj->sti", inverse, to[None] - means[:, None], optimize=True)
    log_p = -0.5 * np.sum(scaled**2, axis=2)
    P = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def _stationary(P: np.ndarray) -> np.ndarray:
    n = len(P)
    law = np.linalg.solve((np.eye(n) - P + 1 / n).T, np.full(n, 1 / n))
    law = np.clip(law, 0.0, None)
    return law / law.sum()


@dataclasses.dataclass(frozen=True, eq=False)
class _Grid:
    """Nodes, the probabilities of one step between them, and their stationary law."""

    chain: _Reduced
    root: np.ndarray
    z: np.ndarray
    P: np.ndarray
    law: np.ndarray
    beyond: float  # stationary mass on the border

    @functools.cached_property
    def _fine(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes of a finer grid and the law of the next state there: an observable need not be smooth."""
        n = len(self.root)
        finer = FINER[n]
        offsets = (np.array(list(np.ndindex(*(finer,) * n))) - (finer - 1) / 2) / finer
        fine = (self.z[:, None] + offsets @ self.root.T).reshape(-1, n)
        pieces = np.array_split(np.arange(len(self.z)), max(1, len(self.z) * len(fine) // 4_000_000))
        return fine, np.sum([self.law[k] @ _kernel(self.chain, self.z[k], fine) for k in pieces], axis=0)

    @functools.cached_property
    def _factors(self):
        return linalg.lu_factor(np.eye(len(self.P)) - self.P + self.law)

    @functools.cached_property
    def _skewness(self) -> np.ndarray:
        """What the third moments κ of a mini-batch's noise change in P, relatively: κ·He₃/6 of the step, to first order."""
        chain, plan = self.chain, self.chain.plan
        if isinstance(plan.oracle, Exact | Gaussian):
            return np.zeros((1, 1))
        inside = [k for k, i in enumerate(chain.chosen) if i < plan.dim]
        spread = -chain.step_size * chain.G[:, inside]
        kept = [chain.chosen[k] for k in inside]
        third = oracle_third_moments(plan, chain.theta(self.z))[:, kept][:, :, kept][:, :, :, kept]
        third = np.einsum("ip,jq,kr,spqr->sijk", spread, spread, spread, third, optimize=True)
        inverse = np.linalg.inv(chain.covariances(self.z))
        w = np.einsum("sij,stj->sti", inverse, self.z[None] - chain.means(self.z)[:, None], optimize=True)
        cubes = np.einsum("sijk,sti,stj,stk->st", third, w, w, w, optimize=True)
        return (cubes - 3 * np.einsum("sijk,sij,stk->st", third, inverse, w, optimize=True)) / 6

    def answer(self, h: Observable) -> GridChain:
        """Mean, variance and the effect of the start of one observable."""
        values = lambda rows: self.chain.plan.model.values(h, self.chain.theta(rows))  # noqa: E731
        fine, law = self._fine
        found = values(fine)
        mean = float(law @ found)
        second = float(law @ (found - mean) ** 2)
        at_nodes = values(self.z) - mean
        psi = linalg.lu_solve(self._factors, self.P @ at_nodes)  # Σ_{k≥1} P^k h̃
        variance = second + 2 * float(self.law @ (at_nodes * psi))
        error = SHARP * math.sqrt(second) + self.beyond * float(np.max(np.abs(at_nodes)))
        error += abs(float(self.law @ (self._skewness * self.P) @ (at_nodes + psi)))
        start = _transient(self.chain, values, self.z, self.P, at_nodes + psi, mean)
        return GridChain(mean, error, max(variance, 0.0), *start, len(self.z))


def _transient(chain: _Reduced, values, z, P, phi: np.ndarray, mean: float) -> tuple[float | None, float]:
    """Σ_k (E h(z_k) - π(h)), averaged over the starts, and its error."""
    highest = np.max(chain.energies(z))
    starts = some_starts(chain.plan)[:, list(chain.chosen)]
    inside = lambda rows: chain.energies(rows) <= highest  # noqa: E731
    num_steps = max(1, round(chain.plan.num_steps * chain.plan.eta / chain.step_size))  # of the same time
    found = arrive(starts, inside, chain.means, lambda rows: values(rows) - mean, num_steps)
    if found is None:
        return None, 0.0
    total, here = found
    later, unknown = _after(P, phi, num_steps)  # Σ_{k<N} P^k h̃ = φ - P^Nφ
    ahead = _kernel(chain, here, z).mean(axis=0)
    rest = float(np.mean(values(here) - mean) + ahead @ (phi - later))
    error = WITHOUT_NOISE * abs(float(np.mean(total))) + abs(float(ahead @ unknown))
    return float(np.mean(total)) + rest, error


def _after(P: np.ndarray, phi: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """P^N φ, and what was left where that takes too many products."""
    left, zero = phi, np.zeros_like(phi)
    for _ in range(min(num_steps, MOST_PRODUCTS)):
        if np.max(np.abs(left)) < DECAYED * np.max(np.abs(phi)):
            return zero, zero
        left = P @ left
    return (left, zero) if num_steps <= MOST_PRODUCTS else (zero, left)
