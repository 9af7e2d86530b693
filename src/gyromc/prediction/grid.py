"""The Euler-Maruyama chain on a grid: its stationary law, bias and variance at the plan's own step size, nothing first order.

Input: a plan and an observable whose coordinates couple with at most one other (`why_not_grid`). Output: a `GridChain`. One step
from z is Gaussian with mean z - ηG∇H and covariance 2ηD + η²GΣ(θ)Gᵀ. Sums over a grid whose cells are one standard deviation of a
step wide are exact to about 1e-8, so the stationary law and the Poisson equation of the chain are linear systems. The noise of
mini-batches, with its own Σ(θ), is taken as Gaussian.
"""

import dataclasses
import math

import numpy as np
from scipy import linalg

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.arrival import WITHOUT_NOISE, arrive, some_starts
from gyromc.prediction.corrections import oracle_covariances

MOST_NODES = 1600
DEPTH = 24.0  # H above its minimum at which the grid ends, at first
EDGE = 1e-7, 1e-4  # stationary mass near the border below which the grid is large enough; at most, where it cannot grow
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
    reason = why_not_grid(plan, chosen)
    if reason is not None:
        raise InvalidInput(reason)
    chain = _Reduced(plan, chosen, plan.eta if step_size is None else step_size)
    mode = np.array([plan.model.laplace.mode[i] if i < plan.dim else 0.0 for i in chosen])
    root = linalg.cholesky(chain.covariances(mode[None])[0], lower=True)
    depth, best = DEPTH, None
    for _ in range(6):
        try:
            z = _nodes(chain, mode, root, depth)
        except InvalidInput:
            if best is None:
                raise
            break
        P = _kernel(chain, z, z)
        law = _stationary(P)
        outer = chain.energies(z) - chain.energies(mode[None]) > 0.75 * depth
        best = z, P, law, float(law[outer].sum())
        if best[-1] < EDGE[0]:
            break
        depth *= 1.5
    assert best is not None
    if best[-1] > EDGE[1]:
        raise InvalidInput("the chain's stationary law is too wide for a grid")
    return _answer(chain, h, root, *best)


def _nodes(chain: _Reduced, mode: np.ndarray, root: np.ndarray, depth: float) -> np.ndarray:
    """Points mode + root·k, k whole numbers, where the energy is less than `depth` above the mode's; grown from the mode."""
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
    return mode + np.array(sorted(kept)) @ root.T


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


def _answer(chain: _Reduced, h: Observable, root, z, P, law, beyond: float) -> GridChain:
    values = lambda rows: chain.plan.model.values(h, chain.theta(rows))  # noqa: E731
    ahead, ahead_square = _one_step_means(chain, values, z, root)
    mean = float(law @ ahead)
    second = float(law @ ahead_square) - mean**2
    at_nodes = values(z) - mean
    psi = np.linalg.solve(np.eye(len(P)) - P + law, ahead - mean)  # Σ_{k≥1} P^k h̃
    variance = second + 2 * float(law @ (at_nodes * psi))
    error = SHARP * math.sqrt(max(second, 0.0)) + beyond * float(np.max(np.abs(at_nodes)))
    return GridChain(mean, error, max(variance, 0.0), *_transient(chain, values, z, at_nodes + psi, mean), len(z))


def _one_step_means(chain: _Reduced, values, z: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[h(z⁺) | z] and E[h(z⁺)² | z] at every node, on a finer grid: h need not be smooth."""
    n = root.shape[0]
    finer = FINER[n]
    offsets = (np.array(list(np.ndindex(*(finer,) * n))) - (finer - 1) / 2) / finer
    fine = (z[:, None] + offsets @ root.T).reshape(-1, n)
    found = values(fine)
    both = np.stack([found, found**2], axis=1)
    parts = [_kernel(chain, part, fine) @ both for part in np.array_split(z, max(1, len(z) * len(fine) // 4_000_000))]
    ahead = np.concatenate(parts)
    return ahead[:, 0], ahead[:, 1]


def _transient(chain: _Reduced, values, z: np.ndarray, phi: np.ndarray, mean: float) -> tuple[float | None, float]:
    """Σ_k (E h(z_k) - π(h)), averaged over the starts, and its error."""
    bottom, top = z.min(axis=0), z.max(axis=0)
    starts = some_starts(chain.plan)[:, list(chain.chosen)]
    inside = lambda rows: np.all((rows >= bottom) & (rows <= top), axis=1)  # noqa: E731
    found = arrive(starts, inside, chain.means, lambda rows: values(rows) - mean, chain.plan.num_steps)
    if found is None:
        return None, 0.0
    total, here = found
    rest = values(here) - mean + _kernel(chain, here, z) @ phi
    return float(np.mean(total + rest)), WITHOUT_NOISE * abs(float(np.mean(total)))
