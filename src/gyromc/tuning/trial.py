"""Short runs of a plan from points of the posterior: what its averages would be, how much they vary, and what they tell of it.

A `Plan` with a linear scheme, a Gaussian fit and rows of θ in; a `Trial` out. At every state h is replaced by
ρ = h - φ(y) + E[φ(y⁺) | y], φ the martingale control variate's function (T9). Its mean under the chain's own law is that of h,
and its variance is what an average less its martingale has left, so that few steps show a small bias.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.dynamics import augment
from gyromc.evaluation import doubled, spend
from gyromc.martingale import Martingale, doubled_sum, martingale, projection
from gyromc.model import Model
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.shape.gaussian import GaussianFit
from gyromc.targets import SumOverData

__all__ = ["Trial", "observed", "reference_values", "trial"]

FAR = 1e3  # standard deviations of the fit, beyond which a chain has diverged


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """ρ at every state, steps × chains × observables, with the states and gradients behind it; `ended` holds the last states.

    `ends` is the variance of φ of each observable: what is left at both ends of a chain.
    """

    values: np.ndarray
    ends: np.ndarray
    theta: np.ndarray
    gradients: np.ndarray
    ended: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean of each observable."""
        return self.values.mean(axis=(0, 1))

    @property
    def per_gradient(self) -> np.ndarray:
        """N·Var of an average over N gradients, of each observable: from the chains' own averages."""
        return len(self.values) * self.values.mean(axis=0).var(axis=0, ddof=1)

    @property
    def std_error(self) -> np.ndarray:
        """The standard error of `mean`."""
        return np.sqrt(self.per_gradient / math.prod(self.values.shape[:2]))


def trial(plan: Plan, fit: GaussianFit, start: np.ndarray, steps: int, skip: int, seed: int) -> Trial | None:
    """So many steps of chains from the rows of `start`, after `skip` more; None where a chain diverged."""
    step, d, n = plan.step_matrices, plan.dim, plan.dynamics.size
    rng, read, gradient = np.random.default_rng(seed), observed(plan.model, plan.observables), _gradients(plan, seed)
    phi = _Phi.of(plan)
    y = _with_memory(plan, fit, start, rng)
    root, center = np.linalg.cholesky(fit.precision), fit.mean
    values, solved, states, slopes = [], [], [], []
    for k in range(skip + steps):
        theta, force = y[:, :d], np.zeros((len(y), n))
        force[:, :d], force[:, d:] = gradient(theta), y[:, d:n]
        after = y @ step.A.T + force @ step.B.T
        if k >= skip:
            here = phi(y)
            values.append(read(theta) - here + phi(after) + phi.added)  # T9
            solved.append(here)
            states.append(theta)
            slopes.append(force[:, :d])
        y = after + rng.standard_normal((len(y), n)) @ step.C.T
        with np.errstate(all="ignore"):
            away = np.max(np.abs((y[:, :d] - center) @ root))
        if not away < FAR:
            return None
    found = np.array(values)
    if not np.all(np.isfinite(found)):
        return None
    ends = np.concatenate(solved).var(axis=0)
    return Trial(found, ends, np.concatenate(states), np.concatenate(slopes), y[:, :d])


@dataclasses.dataclass(frozen=True, eq=False)
class _Phi:
    """φ(y) = v_jᵀy + Σ_t λ_t (p_tᵀy - o_t)² of every observable, and what the noise of one step adds to it."""

    parts: Martingale
    members: np.ndarray

    @classmethod
    def of(cls, plan: Plan) -> "_Phi":
        found = martingale(plan)
        return cls(found, (found.owner[:, None] == np.arange(len(plan.observables))).astype(float))

    def __call__(self, y: np.ndarray) -> np.ndarray:
        squares = self.parts.weight * (y @ self.parts.direction.T - self.parts.offset) ** 2
        return y @ self.parts.slope.T + squares @ self.members

    @property
    def added(self) -> np.ndarray:
        return (self.parts.weight * self.parts.spread) @ self.members


def _with_memory(plan: Plan, fit: GaussianFit, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """States y for rows of θ: momentum and memory drawn from their law given θ on the fitted Gaussian."""
    d, m = plan.dim, plan.state_size
    if m == d:
        return theta
    step = plan.step_matrices
    M = step.transition(augment(fit.precision, plan.augmented))
    X = doubled_sum(M, step.C @ step.C.T)
    onto = np.linalg.solve(X[:d, :d], X[:d, d:])
    values, basis = np.linalg.eigh(X[d:, d:] - X[d:, :d] @ onto)
    drawn = rng.standard_normal((len(theta), m - d)) * np.sqrt(np.maximum(values, 0.0))
    return np.concatenate([theta, (theta - fit.mean) @ onto + drawn @ basis.T], axis=1)


def _gradients(plan: Plan, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """The plan's stochastic gradients at rows of θ, new randomness at every call."""
    target, oracle = plan.flat_target, plan.prepared_oracle
    if isinstance(plan.oracle, Exact):
        return target.gradients
    share = oracle.evaluations(target) / target.num_data if isinstance(target, SumOverData) else 1.0
    with jax.enable_x64(True):
        arrays, rest = eqx.partition(doubled((target, oracle)), eqx.is_array)
        pieces = eqx.combine(jax.tree.map(jnp.asarray, arrays), rest)
        keys = [jax.random.key(seed)]  # the data are handed over once, not at every call

    def at(rows: np.ndarray) -> np.ndarray:
        spend(share * len(rows))
        with jax.enable_x64(True):
            keys[0], own = jax.random.split(keys[0])
            return np.asarray(_drawn(pieces, own, rows), float)

    return at


@eqx.filter_jit
def _drawn(pieces, key, rows):
    target, oracle = pieces
    zeta = oracle.draw(key, target, rows.shape[0], rows.shape[1], rows.dtype)
    return jax.vmap(lambda theta, own: oracle.gradient(target, theta, own))(rows, zeta)


def observed(model: Model, observables: Mapping[str, Observable]) -> Callable[[np.ndarray], np.ndarray]:
    """The function from rows of θ to all observables there: rows × observables; those of one kind are computed together."""
    every = list(observables.values())
    ridges = {j: h for j, h in enumerate(every) if isinstance(h, Ridge)}
    groups: dict[str, list[int]] = {}
    for j, h in ridges.items():
        groups.setdefault(h.profile, []).append(j)
    others = [j for j in range(len(every)) if j not in ridges]
    directions = {
        profile: np.stack([np.asarray(ridges[j].direction, float) for j in own]).T for profile, own in groups.items()
    }

    def read(rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), len(every)))
        for profile, own in groups.items():
            along = rows @ directions[profile]
            found[:, own] = ridges[own[0]].rho(along.ravel()).reshape(along.shape)
        for j in others:
            found[:, j] = model.values(every[j], rows)
        return found

    return read


def reference_values(plan: Plan, fit: GaussianFit, theta: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Values at posterior points whose mean is that of each observable, with less variance: h plus a generator applied to φ.

    With h ≈ uᵀ(θ-m) + (θ-m)ᵀH(θ-m) they are h - uᵀC∇U - (C∇U)ᵀH(θ-m) + tr(HC), since E[∇U] = 0 and E[(θ-m)∇Uᵀ] = I.
    """
    C = np.linalg.inv(fit.precision)
    found, moved, away = observed(plan.model, plan.observables)(theta), gradients @ C, theta - fit.mean
    for j, h in enumerate(plan.observables.values()):
        parts = projection(plan, h, fit)
        if parts is None:  # no gradient: h as it is
            continue
        u, H = parts
        found[:, j] -= moved @ u
        if H is not None:
            found[:, j] -= np.einsum("si,si->s", moved @ H, away) - np.trace(H @ C)
    return found
