"""The chain on a grid: its stationary law, bias and variance at the plan's own step size, nothing first order.

Input: a plan of Euler-Maruyama or balanced noise, and an observable whose coordinates couple with at most one other
(`why_not_grid`). Output: a `GridChain`. One step from z is Gaussian with mean z - ηG∇H and covariance W + η²GΣ(θ)Gᵀ; W = 2ηD for
Euler, 2ηD - η²GSGᵀ for balanced noise. Sums over a grid whose cells are one standard deviation of a step wide are exact to about
1e-8, so the stationary law and the Poisson equation of the chain are linear systems. The noise of mini-batches is taken as
Gaussian. The error counts what its skewness changes, what lies beyond the grid, and by how much the probabilities of a step do
not add up to 1.
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
from gyromc.prediction.answers import Number
from gyromc.prediction.following import NOT_ARRIVED, Followed, Transient, followed
from gyromc.prediction.step_effects import brought
from gyromc.schemes import Balanced
from gyromc.schemes.moments import oracle_covariances, oracle_third_moments, why_no_moments


@dataclasses.dataclass(frozen=True)
class GridSettings:
    """Sizes and tolerances of a grid."""

    most_nodes: int = 1600
    """A dense linear system of this size takes about a second."""
    least_noise: float = 1e-6
    """Smallest variance of what a scheme draws, against its largest."""
    depth: float = 24.0
    """H above its minimum at which the grid ends, at first."""
    edge: tuple[float, float] = (1e-7, 1e-4)
    """Stationary mass near the border below which the grid is large enough; at most, where it cannot grow."""
    visited: float = 1e-6
    """Stationary mass of a node from which the width of its steps counts."""
    decayed: float = 1e-6
    """Of the effect of the start: less than this share of it is an error."""
    most_products: int = 2000
    """Of the chain's matrix with a vector, while the effect of the start decays."""
    sharp: float = 1e-8
    """Error of sums over the grid: cells are one standard deviation of a step wide."""


SETTINGS = GridSettings()
FINER = {1: 16, 2: 3}  # nodes for h, per axis and node of the grid


@dataclasses.dataclass(frozen=True)
class GridChain:
    """Stationary mean of h, the variance of its averages, and what the start adds."""

    mean: Number  # π_η(h)
    variance: Number  # lim N·Var of an average of N states
    target_mean: float  # μ(h), on the same grid
    spread: float  # the standard deviation of h under π_η
    transient: Transient  # Σ_k (h(z_k) - π_η(h)) from the plan's starts


@dataclasses.dataclass(frozen=True, eq=False)
class _Reduced:
    """The chain of the coordinates that h is coupled with."""

    plan: Plan
    chosen: tuple[int, ...]
    step_size: float

    @functools.cached_property
    def G(self) -> np.ndarray:
        return (self.plan.dynamics.D + self.plan.dynamics.Q)[np.ix_(self.chosen, self.chosen)]

    @functools.cached_property
    def inside(self) -> list[int]:
        """Which of the chosen coordinates are parameters: the others are momenta."""
        return [k for k, i in enumerate(self.chosen) if i < self.plan.dim]

    @functools.cached_property
    def kept(self) -> list[int]:
        """Which parameters are chosen."""
        return [self.chosen[k] for k in self.inside]

    @functools.cached_property
    def mode(self) -> np.ndarray:
        return np.array([self.plan.model.mode[i] if i < self.plan.dim else 0.0 for i in self.chosen])

    def theta(self, z: np.ndarray) -> np.ndarray:
        """Rows of θ with the chosen coordinates of z; the others at the mode."""
        rows = np.repeat(self.plan.model.mode[None], len(z), axis=0)
        rows[:, self.kept] = z[:, self.inside]
        return rows

    def means(self, z: np.ndarray) -> np.ndarray:
        """The mean of one step from rows of z."""
        forces = z.copy()  # ∇H = r for a momentum
        forces[:, self.inside] = self.plan.flat_target.gradients(self.theta(z))[:, self.kept]
        return z - self.step_size * forces @ self.G.T  # E3

    def energies(self, z: np.ndarray) -> np.ndarray:
        """H at rows of z, up to a constant."""
        r = np.delete(z, self.inside, axis=1)
        return self.plan.flat_target.potentials(self.theta(z)) + 0.5 * np.sum(r**2, axis=1)

    @functools.cached_property
    def drawn(self) -> np.ndarray:
        """W, the covariance of the scheme's own noise: that of the chosen coordinates does not depend on the others."""
        eta = self.step_size
        W = 2 * eta * self.plan.dynamics.D - eta**2 * brought(self.plan)
        return W[np.ix_(self.chosen, self.chosen)]

    def covariances(self, z: np.ndarray) -> np.ndarray:
        """W + η²GΣ(θ)Gᵀ at rows of z."""
        spread = self.step_size * self.G[:, self.inside]
        Sigma = oracle_covariances(self.plan.flat_target, self.plan.prepared_oracle, self.theta(z))
        Sigma = Sigma[:, self.kept][:, :, self.kept]
        return self.drawn + np.einsum("ij,sjk,lk->sil", spread, Sigma, spread, optimize=True)

    def third_moments(self, z: np.ndarray) -> np.ndarray:
        """E of the third power of a step's noise at rows of z."""
        spread, kept = -self.step_size * self.G[:, self.inside], self.kept
        third = oracle_third_moments(self.plan.flat_target, self.plan.prepared_oracle, self.theta(z))
        third = third[:, kept][:, :, kept][:, :, :, kept]
        return np.einsum("ip,jq,kr,spqr->sijk", spread, spread, spread, third, optimize=True)


def why_not_grid(plan: Plan, chosen: tuple[int, ...]) -> str | None:
    """Why the chain of these coordinates is not put on a grid, or None."""
    if len(chosen) > 2:
        return f"{len(chosen)} coordinates are coupled: at most 2 fit a grid"
    if plan.scheduled or not (plan.scheme.is_euler or isinstance(plan.scheme, Balanced)):
        return "the scheme is neither Euler-Maruyama nor balanced, or its step size is not constant"
    whole = sum(i < plan.dim for i in chosen) == plan.dim
    if not isinstance(plan.oracle, Exact | Gaussian) and not whole:
        return "the noise of mini-batches couples all parameters"
    return why_no_moments(plan.oracle)


class Grids:
    """The grids of one plan: each is solved once, for all observables.

    ```python
    import gyromc as gm
    from gyromc.prediction.grid import Grids
    h = gm.observables.square([1.0])
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1), observables={"h": h}, step_size=0.5)
    assert abs(Grids(plan).chain(h, (0,)).mean.value - 1 / (1 - 0.25)) < 1e-7
    ```
    """

    def __init__(self, plan: Plan):
        self.plan, self._solved = plan, {}

    def chain(self, h: Observable, chosen: tuple[int, ...], step_size: float | None = None) -> GridChain:
        """The chain of the chosen coordinates on a grid; `InvalidInput` where the grid would be too large."""
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
    """A grid whose cells are as wide as one standard deviation of the smallest step where the chain goes."""
    reason = why_not_grid(plan, chosen)
    if reason is not None:
        raise InvalidInput(reason)
    chain = _Reduced(plan, chosen, step_size)
    if np.linalg.eigvalsh(chain.drawn)[0] < SETTINGS.least_noise * np.max(np.abs(chain.drawn)):
        raise InvalidInput("too little noise is drawn at this step size")
    root = linalg.cholesky(chain.covariances(chain.mode[None])[0], lower=True)
    for _ in range(4):
        found = _grown(chain, root)
        smallest = found.smallest_step
        if smallest > 0.9:
            break
        root = smallest * root
    return found


def _grown(chain: _Reduced, root: np.ndarray) -> "_Grid":
    """A grid with the given sides of a cell, enlarged until its border has no mass."""
    depth, found = SETTINGS.depth, None
    for _ in range(8):
        try:
            z, outer = _nodes(chain, root, depth)
        except InvalidInput:
            if found is None:
                raise
            break
        P, sums = _kernel(chain, z, z, root)
        found = _Grid(chain, root, z, outer, P, sums, _stationary(P))
        if found.beyond < SETTINGS.edge[0]:
            break
        depth *= 1.5
    if found is None or found.beyond > SETTINGS.edge[1]:
        raise InvalidInput("the chain's stationary law is too wide for a grid")
    return found


def _nodes(chain: _Reduced, root: np.ndarray, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """Points mode + root·k, k whole numbers, with an energy less than `depth` above the mode's, and which are on the border."""
    mode, n = chain.mode, len(root)
    bottom = chain.energies(mode[None])[0]
    steps = np.array(list(np.ndindex(*(3,) * n))) - 1
    kept, border = {(0,) * n}, np.zeros((1, n), int)
    while len(border):
        around = np.unique((border[:, None] + steps).reshape(-1, n), axis=0)
        around = np.array([k for k in around.tolist() if tuple(k) not in kept], int).reshape(-1, n)
        border = around[chain.energies(mode + around @ root.T) - bottom < depth] if len(around) else around
        kept.update(map(tuple, border.tolist()))
        if len(kept) > SETTINGS.most_nodes:
            raise InvalidInput(f"the step size is too small for a grid of {SETTINGS.most_nodes} nodes")
    places = np.array(sorted(kept))
    neighbours = (places[:, None] + steps).reshape(-1, n).tolist()
    inner = np.array([tuple(k) in kept for k in neighbours]).reshape(len(places), -1).all(axis=1)
    return mode + places @ root.T, np.logical_not(inner)


def _kernel(chain: _Reduced, z: np.ndarray, to: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of one step from rows of z to the nodes of a grid with such cells, and their sums before they are made 1."""
    factors = np.linalg.cholesky(chain.covariances(z))
    scaled = np.einsum("sij,stj->sti", np.linalg.inv(factors), to[None] - chain.means(z)[:, None], optimize=True)
    log_p = -0.5 * np.sum(scaled**2, axis=2)
    top = log_p.max(axis=1)
    P = np.exp(log_p - top[:, None])
    total = P.sum(axis=1)
    volume = abs(np.linalg.det(cell)) / (np.sqrt(2 * np.pi) ** len(cell) * np.linalg.det(factors))
    return P / total[:, None], total * np.exp(top) * volume


def _stationary(P: np.ndarray) -> np.ndarray:
    n = len(P)
    law = np.clip(np.linalg.solve((np.eye(n) - P + 1 / n).T, np.full(n, 1 / n)), 0.0, None)
    return law / law.sum()


@dataclasses.dataclass(frozen=True, eq=False)
class _Grid:
    """Nodes, the probabilities of one step between them, and their stationary law."""

    chain: _Reduced
    root: np.ndarray  # the sides of a cell
    z: np.ndarray
    outer: np.ndarray  # which nodes are on the border
    P: np.ndarray
    sums: np.ndarray  # of each row of P, before it was divided by it
    law: np.ndarray

    @property
    def beyond(self) -> float:
        """The stationary mass on the border."""
        return float(self.law[self.outer].sum())

    @property
    def smallest_step(self) -> float:
        """The smallest standard deviation of a step from a node that the chain visits, in units of the cell."""
        inner = np.linalg.inv(self.root)
        S = inner @ self.chain.covariances(self.z[self.law > SETTINGS.visited]) @ inner.T
        return float(np.sqrt(np.min(np.linalg.eigvalsh(S))))

    @functools.cached_property
    def _fine(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes of a finer grid, π_η and μ there: an observable need not be smooth."""
        n = len(self.root)
        cell = self.root / FINER[n]
        offsets = np.array(list(np.ndindex(*(FINER[n],) * n))) - (FINER[n] - 1) / 2
        fine = (self.z[:, None] + offsets @ cell.T).reshape(-1, n)
        pieces = np.array_split(np.arange(len(self.z)), max(1, len(self.z) * len(fine) // 4_000_000))
        law = np.sum([self.law[k] @ _kernel(self.chain, self.z[k], fine, cell)[0] for k in pieces], axis=0)
        energy = self.chain.energies(fine)
        target = np.exp(np.min(energy) - energy)
        return fine, law, target / target.sum()

    @functools.cached_property
    def _factors(self):
        return linalg.lu_factor(np.eye(len(self.P)) - self.P + self.law)

    @functools.cached_property
    def _skewed(self) -> np.ndarray:
        """π_η times what the third moments κ of a step's noise change in P, to first order: P κ·He₃/6."""
        inverse, third = np.linalg.inv(self.chain.covariances(self.z)), self.chain.third_moments(self.z)
        w = np.einsum("sij,stj->sti", inverse, self.z[None] - self.chain.means(self.z)[:, None], optimize=True)
        cubes = np.einsum("sijk,sti,stj,stk->st", third, w, w, w, optimize=True)
        hermite = cubes - 3 * np.einsum("sijk,sij,stk->st", third, inverse, w, optimize=True)
        return self.law @ (self.P * hermite) / 6

    def answer(self, h: Observable) -> GridChain:
        """Mean, variance and the effect of the start of one observable."""

        def values(rows):
            return self.chain.plan.model.values(h, self.chain.theta(rows))

        fine, law, target = self._fine
        found = values(fine)
        mean = float(law @ found)
        second = float(law @ (found - mean) ** 2)
        at_nodes = values(self.z) - mean
        psi = linalg.lu_solve(self._factors, self.P @ at_nodes)  # Σ_{k≥1} P^k h̃
        phi = at_nodes + psi
        variance = max(second + 2 * float(self.law @ (at_nodes * psi)), 0.0)
        # What is off in the chain's second moment of h is off in its variance, and as much in its correlations.
        squares = at_nodes**2 - float(self.law @ at_nodes**2)
        off = self._error(squares, linalg.lu_solve(self._factors, squares)) / max(second, 1e-300)
        return GridChain(
            mean=Number(mean, self._error(at_nodes, phi)),
            variance=Number(variance, 2 * off * variance),
            target_mean=float(target @ found),
            spread=math.sqrt(second),
            transient=self._transient(values, phi, mean),
        )

    def _error(self, at_nodes: np.ndarray, phi: np.ndarray) -> float:
        """Of the stationary mean, where P is changed by δP: |π(δP φ)|."""
        deviation = math.sqrt(float(self.law @ phi**2))
        unresolved = float(self.law @ np.where(self.outer, 0.0, np.abs(self.sums - 1)))
        skewness = 0.0 if isinstance(self.chain.plan.oracle, Exact | Gaussian) else abs(float(self._skewed @ phi))
        return (SETTINGS.sharp + unresolved) * deviation + self.beyond * float(np.max(np.abs(at_nodes))) + skewness

    @functools.cached_property
    def _followed(self) -> Followed:
        """Chains with this step size, for the same time as the plan's."""
        plan, eta = self.chain.plan, self.chain.step_size
        if eta == plan.eta:
            return followed(plan)
        ratio = plan.eta / eta
        steps, burn_in = max(1, round(plan.num_steps * ratio)), round(plan.burn_in * ratio)
        return Followed(plan.replace(step_size=eta, num_steps=steps, burn_in=burn_in))

    def _transient(self, values, phi: np.ndarray, mean: float) -> Transient:
        """Σ_k (h(z_k) - π(h)) over the steps that count, of the chains from the starts."""
        chain, highest, plan = self.chain, np.max(self.chain.energies(self.z)), self._followed.plan
        mine = list(chain.chosen)
        found = self._followed.arrive(
            lambda z: chain.energies(z[:, mine]) <= highest, lambda z: values(z[:, mine]) - mean
        )
        if found is None:
            return NOT_ARRIVED
        here = found.z[:, mine]
        first = max(0, plan.burn_in - round(float(np.mean(found.steps))))  # that counts, from where the chains are now
        ahead = _kernel(chain, here, self.z, self.root)[0]
        now = values(here) - mean if first == 0 else 0.0
        (begin, a), (end, b) = (_after(self.P, phi, k) for k in (max(first, 1) - 1, first + plan.num_steps - 1))
        start = found.transient(1.0, now + ahead @ (begin - end))  # Σ_{a≤k<b} P^k h̃ = P^a φ - P^b φ
        left = abs(float(np.mean(ahead @ a))) + abs(float(np.mean(ahead @ b)))
        return start._replace(error=start.error + left)


def _after(P: np.ndarray, phi: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """P^N φ, and what was left where it is small, or where that takes too many products."""
    left, zero = phi, np.zeros_like(phi)
    for _ in range(min(num_steps, SETTINGS.most_products)):
        if np.max(np.abs(left)) < SETTINGS.decayed * np.max(np.abs(phi)):
            return zero, left
        left = P @ left
    return (left, zero) if num_steps <= SETTINGS.most_products else (zero, left)
