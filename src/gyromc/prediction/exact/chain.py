"""The chain of a linear scheme on a Gaussian target is linear: y⁺ = My + B_θδ + Cξ, for Euler M = I - ηA, A = GP, G = D+Q (T1).

Input: a plan. Output: a `LinearChain`, centred at the target's mean; the state y is z and the scheme's memory.

`Noise` holds E[δδᵀ | θ] = C + Γ(zzᵀ) + terms linear in z. For a mini-batch on rows x_i with curvatures w_i, δ is a mean of b
draws of Δ_iz + e_i with Δ_i = N w_i x_ix_iᵀ - Σ_j w_j x_jx_jᵀ. It is exact for linear regression, where w_i = 1.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.dynamics import augment
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian, Minibatch
from gyromc.plan import Plan
from gyromc.targets import GeneralizedLinear, LinearRegression, SumOverData

ROWS_AT_ONCE = 4096
MOST_PRODUCTS = 1e8


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """C, and for mini-batches what the other terms are made of."""

    constant: np.ndarray  # C: d × d, E[δδᵀ] at z = 0
    rows: np.ndarray | None = None  # √w_i x_i; None where the noise does not depend on the state
    errors: np.ndarray | None = None  # e_i, where they are known
    factor: float = 0.0  # f/(bN), f = (N-b)/(N-1) for distinct rows: exact because rows are drawn independently of z

    @property
    def additive(self) -> bool:
        """Whether the noise does not depend on the state."""
        return self.rows is None

    def growth(self, Y: np.ndarray) -> np.ndarray:
        """Γ(Y): what second moments Y = E[zzᵀ] of θ add to E[δδᵀ]; memory O(d²)."""
        assert self.rows is not None
        x, N = self.rows, len(self.rows)
        weights, gram = np.sum((x @ Y) * x, axis=1), x.T @ x
        return self.factor * N * (N * (x.T * weights) @ x - gram @ Y @ gram)  # T1: f Σᵢ ΔᵢYΔᵢ/(bN)

    @functools.cached_property
    def tensor(self) -> np.ndarray:
        """T with E[δδᵀ | z]_ij = Σ_ab T[i, a, j, b] ẑ_aẑ_b, ẑ = (z, 1): d × (d+1) × d × (d+1), for few parameters only."""
        d = len(self.constant)
        if self.rows is None:
            T = np.zeros((d, d + 1, d, d + 1))
            T[:, -1, :, -1] = self.constant
            return T
        e = np.zeros_like(self.rows) if self.errors is None else self.errors
        total, gram = np.zeros((d * (d + 1), d * (d + 1))), self.rows.T @ self.rows
        for first in range(0, len(self.rows), ROWS_AT_ONCE):
            x = self.rows[first : first + ROWS_AT_ONCE]
            delta = len(self.rows) * x[:, :, None] * x[:, None, :] - gram  # T1: Δᵢ
            flat = np.concatenate([delta, e[first : first + ROWS_AT_ONCE, :, None]], axis=2).reshape(len(x), -1)
            total += flat.T @ flat
        return self.factor * total.reshape(d, d + 1, d, d + 1)  # T1


def oracle_noise(plan: Plan, mean: np.ndarray) -> Noise:
    """The noise of a plan's oracle around the target's mean, on a Gaussian target."""
    d, oracle, target = plan.dim, plan.prepared_oracle, plan.flat_target
    if isinstance(oracle, Batch) and isinstance(target, LinearRegression):
        X, y = target.design
        if isinstance(oracle, ControlVariate) and oracle.order == 2:
            return Noise(np.zeros((d, d)))  # rows' gradients are linear: nothing is left of them
        if isinstance(oracle, ControlVariate):
            away = mean - np.asarray(oracle.center, float)
            e = len(X) * (X @ away)[:, None] * X - X.T @ (X @ away)  # T1: Δᵢ(mean - center), no noise at the center
        else:
            e = len(X) * (X @ mean - y)[:, None] * X + float(target.prior_precision) * mean  # T1: eᵢ
        factor = oracle.noise_factor(len(X)) / (oracle.size * len(X))  # T1: f/(bN)
        return Noise(factor * e.T @ e, X, e, factor)
    tau = float(oracle.tau) if isinstance(oracle, Gaussian) else 0.0
    return Noise(tau**2 * np.eye(d))


def affordable(plan: Plan) -> bool:
    """Whether noise that grows with the state is counted: N d² products take seconds at most."""
    target = plan.flat_target
    return not isinstance(target, SumOverData) or target.num_data * plan.dim**2 <= MOST_PRODUCTS


def batch_noise(plan: Plan, mode: np.ndarray) -> Noise | None:
    """The noise of mini-batches of a generalized linear model, linearised at the mode; None where that says nothing.

    A control variate of order 2 at the mode has no linear noise there, and its noise far away is not small: no limit counts it.
    That of anchors that move depends on the past.
    """
    oracle, target = plan.prepared_oracle, plan.flat_target
    if not isinstance(oracle, Batch) or not isinstance(target, GeneralizedLinear) or not affordable(plan):
        return None
    if isinstance(oracle, ControlVariate) and (oracle.order == 2 or oracle.moving):
        return None
    with jax.enable_x64(True):
        X, y = target.design
        w = np.asarray(jax.vmap(jax.grad(target.slope))(jnp.asarray(X @ mode), jnp.asarray(y)))
    if not np.all(w >= 0):
        return None
    factor = oracle.noise_factor(len(X)) / (oracle.size * len(X))  # T1: f/(bN)
    return Noise(np.zeros((plan.dim, plan.dim)), np.sqrt(w)[:, None] * X, None, factor)


START_DRAWS = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class LinearChain:
    """The matrices of a plan on a Gaussian target; m is the size of the state y, n that of ξ, d that of θ."""

    M: np.ndarray  # m × m, the map of the mean in one step
    spread: np.ndarray  # m × d, B_θ: what the oracle's noise is multiplied by
    C: np.ndarray  # m × n, what ξ is multiplied by
    mean: np.ndarray  # of θ
    noise: Noise
    starts: np.ndarray  # rows of y₀, centred
    _doubled: list = dataclasses.field(default_factory=list)  # M^k and the covariance of k steps, k = 1, 2, 4, …

    @property
    def size(self) -> int:
        """The size of the state y."""
        return self.M.shape[0]

    @functools.cached_property
    def W(self) -> np.ndarray:
        """The covariance of one step's noise when it is additive; at the target's mean otherwise."""
        return self.C @ self.C.T + self.spread @ self.noise.constant @ self.spread.T  # T1

    def ahead(self, w: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
        """(M^k)ᵀw, and the variance of wᵀz after k steps from a fixed state, under additive noise."""
        variance = 0.0
        for j in range(steps.bit_length()):
            if j == len(self._doubled):
                M, W = self._doubled[-1] if j else (self.M, self.W)
                self._doubled.append((M @ M, M @ W @ M.T + W) if j else (M, W))
            if steps >> j & 1:
                M, W = self._doubled[j]
                variance += float(w @ W @ w)
                w = M.T @ w
        return w, variance


def lift(u: np.ndarray, size: int) -> np.ndarray:
    """A vector over θ as one over a state of the given size: zeros on r and on a memory."""
    return np.concatenate([u, np.zeros(size - len(u))])


def why_not_linear(plan: Plan) -> str | None:
    """Why the chain of a plan is not linear with known noise, or None."""
    if plan.flat_target.gaussian() is None:
        return f"{type(plan.target).__name__} is not Gaussian"
    if not plan.scheme.linear:
        return f"the scheme '{plan.scheme}' is not linear in state, gradient and noise"
    if plan.scheduled:
        return "the step size is a schedule"
    on_batches = isinstance(plan.oracle, Minibatch | ControlVariate) and isinstance(plan.flat_target, LinearRegression)
    if isinstance(plan.oracle, ControlVariate) and (plan.oracle.curvature == "diagonal" or plan.oracle.moving):
        return f"the second moments of {plan.oracle.name} are not known in closed form"
    if not on_batches and not isinstance(plan.oracle, Exact | Gaussian):
        return f"the second moments of the oracle {type(plan.oracle).__name__} are not known for {type(plan.target).__name__}"
    return None


def linear_chain(plan: Plan) -> LinearChain:
    """The matrices of a plan for which `why_not_linear` returns None; `InvalidInput` where its scheme does not fit the plan."""
    K, mean = plan.flat_target.gaussian()  # type: ignore[misc]  # a Gaussian: the chain is linear
    rows = start_rows(plan)
    starts = np.pad(rows, ((0, 0), (0, plan.state_size - rows.shape[1])))  # the memory begins empty
    return chain_around(plan, K, mean, oracle_noise(plan, mean), starts - lift(mean, plan.state_size))


def chain_around(plan: Plan, K: np.ndarray, mean: np.ndarray, noise: Noise, starts: np.ndarray) -> LinearChain:
    """The chain of a plan's linear scheme on N(mean, K⁻¹), with the oracle's noise and centred starts as given."""
    step = plan.step_matrices
    M = step.transition(augment(K, plan.augmented))  # T1: for Euler I - ηA
    return LinearChain(M, step.B[:, : len(mean)], step.C, mean, noise, starts)


def start_rows(plan: Plan) -> np.ndarray:
    """z₀, one row for each different start; a random start is drawn `START_DRAWS` times."""
    if plan.starts.draw is not None:
        keys = jax.random.split(jax.random.key(plan.seed), START_DRAWS)
        with jax.enable_x64(True):
            drawn = jax.vmap(plan.starts.draw)(keys)
        theta = np.concatenate([np.reshape(x, (START_DRAWS, -1)) for x in jax.tree.leaves(drawn)], axis=1)
    else:
        theta = np.asarray(plan.starts.theta, float)
    if not plan.augmented:
        return theta
    r = np.zeros((1, plan.dim)) if plan.starts.r is None else np.asarray(plan.starts.r, float)
    return np.concatenate(np.broadcast_arrays(theta, r), axis=1)


def power(compose: Callable, base: Any, count: int) -> Any:
    """`base` composed with itself, `count` ≥ 1 copies in all, by repeated squaring."""
    result = base
    for bit in f"{count:b}"[1:]:
        result = compose(result, result)
        result = compose(result, base) if bit == "1" else result
    return result
