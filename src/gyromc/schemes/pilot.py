"""Second moments of stochastic gradients from a pilot run, for targets of which no sample can be drawn.

Input: a plan. Output: P = E[∇²U] and Σ = E[Cov(ĝ | θ)] with their errors. Chains of small Euler steps record at every state two
independent gradients ĝ₁ and ĝ₂: E[ĝ₁ĝ₂ᵀ] is E[∇U∇Uᵀ] = P, and ½E[(ĝ₁-ĝ₂)(ĝ₁-ĝ₂)ᵀ] is Σ. The run is doubled, and its first half
left out, until S = P + Σ is known to 5 % and P is positive definite, or until doubling it again would take more than 20,000
gradients. Errors are what the chains differ by, and, unless the gradient is linear in θ wherever the law is, by what
E[(θ-m)∇Uᵀ] = I (Stein's identity) and E[∇U] = 0 are missed: chains that have not arrived or have not spread miss them.
Above `MOST_DENSE` parameters one chain of fixed length keeps diagonals.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx import secondmoments
from gyromc.approx.sample import MOST_PARAMETERS
from gyromc.approx.secondmoments import BlockSums, MatrixEstimate
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled
from gyromc.oracles import Exact

__all__ = ["ENOUGH", "MOST_DENSE", "Found", "pilot"]

MOST_DENSE = 512  # parameters: above, diagonals are kept
ENOUGH = 0.05  # relative error of S
MOST_GRADIENTS = 20_000
CHAINS = 8
PART = 125  # steps that are computed at once
DIAGONAL_STEPS, DIAGONAL_PARTS = 500, 10  # of the one chain with many parameters
YOUNG = 0.2  # relative error of Cov(θ, ∇U), above which chains have not spread over the law
FAR = 3.0  # standard deviations of a gradient that its mean may be from 0
SMALLER = 8  # the pilot's step size, against the plan's


class Found(NamedTuple):
    """P, Σ, the relative error of their sum, and the number of steps."""

    curvature: np.ndarray
    noise: np.ndarray
    relative_error: float
    num_steps: int


def pilot(plan: Any) -> Found:
    """P and Σ: d × d each, or their diagonals; `InvalidInput` where the run diverges."""
    return _diagonal(plan) if plan.dim > MOST_DENSE else _dense(plan)


def _dense(plan: Any) -> Found:
    """Chains that run until S is known well enough."""
    per_step = CHAINS * (1 if isinstance(plan.oracle, Exact) else 2)
    advance, z, key = _chains(plan, CHAINS, PART)
    parts, steps = [], 0
    while True:
        key, own = jax.random.split(key)
        z, recorded = advance(z, own)
        parts.append(_sums(plan, *(np.asarray(x, float) for x in recorded)))
        steps += PART
        if len(parts) < 2 or len(parts) & (len(parts) - 1):
            continue  # only after 2, 4, 8 … parts
        counted = parts[len(parts) // 2 :]
        total, differences = counted[0]
        for more, other in counted[1:]:
            total, differences = total + more, differences + other
        found = _moments(total, differences)
        known = found[2] <= ENOUGH and np.linalg.eigvalsh(found[0])[0] > 0  # noise may hide the curvature
        if known or 2 * steps * per_step > MOST_GRADIENTS:
            return Found(*found, steps)


def _sums(plan: Any, theta: np.ndarray, g: np.ndarray, other: np.ndarray) -> tuple[BlockSums, np.ndarray]:
    """The sums of states and gradients for each chain, and those of ½(ĝ₁-ĝ₂)(ĝ₁-ĝ₂)ᵀ; arrays are steps × chains × d."""
    theta, g, other = (np.swapaxes(x, 0, 1) for x in (theta - plan.model.start, g, other))
    if not np.all(np.isfinite(g)) or not np.all(np.isfinite(other)):
        _diverged()
    gap = g - other
    return secondmoments.sums(theta, g, other), np.swapaxes(gap, 1, 2) @ gap / 2


def _moments(total: BlockSums, differences: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """P, Σ and the relative error of P + Σ: of two estimates of P, the one with the smaller error."""
    noise = secondmoments.over_blocks(differences / total.weight[:, None, None])
    candidates = []
    for linear_is_exact, P in ((False, secondmoments.gradient_square(total)), (True, secondmoments.curvature(total))):
        S, error = P.plus(noise), np.inf
        if np.all(np.isfinite(S.relative_errors)):
            error = float(np.max(np.hypot(S.relative_errors, _missed(total, S, linear_is_exact))))
        candidates.append((error, P))
    error, P = min(candidates, key=lambda candidate: candidate[0])
    return P.matrix, noise.matrix, error


def _missed(total: BlockSums, S: MatrixEstimate, linear_is_exact: bool) -> np.ndarray:
    """By how much the chains miss E[(θ-m)∇Uᵀ] = I and E[∇U] = 0 along the eigenvectors of S, in units of S.

    An estimate that is exact for a linear gradient rests on them only with the part of ∇U that is not linear in θ, as long
    as the chains have spread and ∇U = 0 is not far from where they were.
    """
    sizes, basis = S.directions
    along = lambda A: np.einsum("iv,ij,jv->v", basis, A, basis)
    square, cross, g_square = total.central()
    varied, mean = along(g_square), (total.g.sum(axis=0) / total.weight.sum()) @ basis
    defect, off, curved = np.abs(along(cross) - 1), mean**2 / sizes, np.ones(len(sizes))
    if linear_is_exact:
        explained = along(cross.T @ np.linalg.pinv(square, hermitian=True) @ cross)
        curved = np.sqrt(np.clip(1 - explained / np.where(varied > 0, varied, np.inf), 0, 1))
        curved = np.where(defect > YOUNG, 1.0, curved)  # linear where the chains were: not where the law is
    far = np.where(mean**2 > FAR**2 * varied, 1.0, curved)
    return defect * curved * np.clip(varied / sizes, 0, 1) + off * far


def _diagonal(plan: Any) -> Found:
    """One chain of a fixed length; the second half of its parts is averaged and their spread is the error."""
    length = DIAGONAL_STEPS // DIAGONAL_PARTS
    advance, z, key = _chains(plan, 1, length, keep=False)
    means = []
    for own in jax.random.split(key, DIAGONAL_PARTS):
        z, recorded = advance(z, own)
        means.append([np.asarray(x, float) / length for x in recorded])
    P, Sigma = (np.array(part) for part in zip(*means[DIAGONAL_PARTS // 2 :], strict=True))
    S = P + Sigma
    if not np.all(np.isfinite(S)):
        _diverged()
    mean = S.mean(axis=0)
    spread = S.std(axis=0, ddof=1) / np.sqrt(len(S))
    ratio = spread[mean > 0] / mean[mean > 0]
    return Found(P.mean(axis=0), Sigma.mean(axis=0), float(np.sqrt(np.mean(ratio**2))), DIAGONAL_STEPS)


def _chains(plan: Any, chains: int, length: int, keep: bool = True):
    """A function (z, key) → (z, record) that makes `length` small Euler steps, the first z, and a key.

    The record is θ, ĝ₁ and ĝ₂ at every state, steps × chains × d; or, with `keep=False`, the sums over all states of ĝ₁ĝ₂ and
    ½(ĝ₁-ĝ₂)², d numbers each.
    """
    eta, d, exact = plan.eta / SMALLER, plan.dim, isinstance(plan.oracle, Exact)
    with jax.enable_x64(True):
        target, oracle, dynamics = doubled((plan.flat_target, plan.prepared_oracle, plan.dynamics))
        z = jnp.concatenate([jnp.asarray(_starts(plan, chains)), jnp.zeros((chains, dynamics.size - d))], axis=1)
        key = jax.random.key(plan.seed)

    def gradients(key, theta):
        zeta = oracle.draw(key, target, chains, d, theta.dtype)
        return jax.vmap(lambda t, s: oracle.gradient(target, t, s))(theta, zeta)

    def step(carry, key):
        z, sums = carry
        one, two, noise = jax.random.split(key, 3)
        g = gradients(one, z[:, :d])
        other = g if exact else gradients(two, z[:, :d])
        full = jnp.concatenate([g, z[:, d:]], axis=1)
        drawn = jax.vmap(dynamics.noise)(jax.random.normal(noise, z.shape, z.dtype))
        moved = z - eta * jax.vmap(dynamics.drift)(full) + jnp.sqrt(2 * eta) * drawn
        if keep:
            return (moved, sums), (z[:, :d], g, other)
        terms = (g * other).mean(axis=0), ((g - other) ** 2).mean(axis=0) / 2
        return (moved, tuple(a + b for a, b in zip(sums, terms, strict=True))), None

    def advance(z, key):
        sums = () if keep else (jnp.zeros(d), jnp.zeros(d))
        (z, sums), recorded = jax.lax.scan(step, (z, sums), jax.random.split(key, length))
        return z, recorded if keep else sums

    compiled = jax.jit(advance)

    def in_double(z, key):
        with jax.enable_x64(True):
            return compiled(z, key)

    return in_double, z, key


def _starts(plan: Any, chains: int) -> np.ndarray:
    """Where chains begin: at all modes where several are known, so that none is left out; at the model's start otherwise."""
    alone = np.broadcast_to(plan.model.start, (chains, plan.dim))
    if plan.dim > MOST_PARAMETERS:
        return alone
    try:
        modes = plan.model.modes
    except InvalidInput:  # no mode
        return alone
    return modes.starts(chains, seed=0) if modes.several else alone


def _diverged() -> None:
    raise InvalidInput(
        "The second moment S of the gradients cannot be estimated: a pilot run from the start diverged. Pass `S` to "
        "`balanced`, a smaller `step_size`, or a `start` near the mode."
    )
