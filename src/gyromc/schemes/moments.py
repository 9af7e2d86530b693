"""Moments of stochastic gradients: of an oracle's noise δ = ĝ - ∇U at given points, and averaged over the posterior (T7).

At points: E[δδᵀ | θ], for mini-batches from the data, at most `MOST_DATA` of them for each point. Over the posterior: P = E[∇²U]
and Σ = E[Cov(ĝ | θ)], so that E[ĝĝᵀ] = P + Σ, as `GradientMoments` of a plan: exact on a Gaussian target with noise that is
quadratic in θ; elsewhere over an importance sample where that can be trusted, and from a pilot run where it cannot. Computed once
for each oracle of a model, with an estimate of its error, and frozen: nothing adapts while a chain is averaged.
"""

import contextlib
import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx import secondmoments
from gyromc.approx.sample import MOST_PARAMETERS
from gyromc.checks import require
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.oracles import Batch, Exact, Gaussian, Oracle
from gyromc.runtime.evaluation import doubled, over_rows
from gyromc.runtime.machine import require_memory
from gyromc.schemes.base import euler
from gyromc.targets import Quadratic, SumOverData, Target
from gyromc.targets.regressions import KnownLikelihood

MOST_DATA = 2000
MOST_NUMBERS = 4_000_000  # in the gradients of single data that are held at once
MOST_CURVED = 4e8  # multiplications for a mean curvature
POINTS = 512  # at which curvature and noise are averaged
BLOCKS = 8  # of these points, whose differences give the error
MOST_DENSE = 512  # parameters: above, diagonals are kept
ENOUGH = 0.05  # relative error of S, above which it is told
CHAINS, STEPS = 8, 1000  # of a pilot run
DIAGONAL_STEPS, DIAGONAL_PARTS = 500, 10  # of its one chain with many parameters
YOUNG = 0.3  # relative error of Cov(θ, ∇U), above which chains have not spread over the law
FAR = 3.0  # standard deviations of a gradient that its mean may be from 0
SMALLER = 8  # the pilot's step size, against the plan's
REMEDY = "Pass `S` to `balanced`, a smaller `step_size`, or a `start` near the mode."


def mean_covariance(target: Target, oracle: Oracle, rows: np.ndarray) -> np.ndarray:
    """E[Σ(θ)] over rows of θ: d × d; beyond `MOST_DATA` data each row has its own subset, so that more rows have less error."""
    d = np.shape(rows)[1]
    require_memory(3 * 8 * d**2, f"A covariance of {d:,} parameters", "Take fewer parameters.")
    used = rows[:1] if isinstance(oracle, Exact | Gaussian) else rows  # the same at every point
    shifts = np.random.default_rng(0).integers(0, 2**31, len(used))
    at_once = max(1, MOST_NUMBERS // d**2)
    parts = [slice(i, i + at_once) for i in range(0, len(used), at_once)]
    sums = [oracle_covariances(target, oracle, used[part], shifts[part]).sum(axis=0) for part in parts]
    return np.sum(sums, axis=0) / len(used)


def oracle_covariances(target: Target, oracle: Oracle, rows: np.ndarray, shifts: Any = None) -> np.ndarray:
    """Σ(θ) = E[δδᵀ | θ] at every row, for a prepared oracle: rows × d × d; of many data a random subset for each shift."""
    d, shifts = np.shape(rows)[1], np.zeros(len(rows)) if shifts is None else shifts
    if isinstance(oracle, Exact | Gaussian):
        tau = float(oracle.tau) if isinstance(oracle, Gaussian) else 0.0
        return np.broadcast_to(tau**2 * np.eye(d), (len(rows), d, d))
    if oracle.moving:
        depends = "depends on where its anchor is, not on θ alone. Use it without `refresh`."
        raise InvalidInput(f"The second moments of the gradients are not known: the noise of {oracle.name} {depends}")
    assert isinstance(oracle, Batch)
    assert isinstance(target, SumOverData)
    N = target.num_data
    picked = np.arange(N) if N <= MOST_DATA else np.random.default_rng(0).choice(N, MOST_DATA, replace=False)
    scale = oracle.noise_factor(N) * N**2 / (oracle.size * len(picked))
    chunk = max(1, min(256, MOST_NUMBERS // (len(picked) * d)))
    return scale * over_rows(_scatter, np.column_stack([rows, shifts]), target, oracle, picked, chunk=chunk)


def _scatter(target, oracle, picked, row):
    """Σ xxᵀ of what each datum adds to the estimate's varying part at θ, less the mean of that; `row` is θ and a shift."""
    index = (jnp.asarray(picked) + row[-1].astype(int)) % target.num_data
    terms = jax.vmap(lambda i: oracle.terms(target, row[:-1], i[None]))(index)
    away = terms - terms.mean(axis=0)
    return away.T @ away


@dataclasses.dataclass(frozen=True, eq=False)
class GradientMoments:
    """P and Σ of ∇U and ĝ: d × d, or d numbers where only diagonals are kept."""

    curvature: np.ndarray
    noise: np.ndarray
    source: str
    relative_error: float = 0.0  # of P + Σ in the worst direction, of diagonals its root mean square

    @property
    def second(self) -> np.ndarray:
        """S = E[ĝĝᵀ]."""
        return self.curvature + self.noise  # T7

    def of_state(self, augmented: bool) -> tuple[np.ndarray, np.ndarray]:
        """P and Σ of the gradient of H = U + ½|r|²."""
        return augment(self.curvature, augmented), augment(self.noise, augmented, of_momenta=0.0)


def gradient_moments(plan: Any) -> GradientMoments:
    """P and Σ of a plan's model and oracle, computed once; warns, once for each step size, where S is not known to 5 %."""
    found = plan.model.computed.once("gradient moments", (plan.oracle,), lambda: _gradient_moments(plan))
    told = "error of gradient moments", (plan.oracle, plan.eta)
    if found.relative_error > ENOUGH and not plan.model.computed.find(*told):
        plan.model.computed.keep(*told, True)
        error = f"{100 * found.relative_error:.2g} %" if found.relative_error < 1 else "100 % or more"
        comes = f"comes from {found.source} and has a relative error of about {error}"
        off = f"variances under `balanced` may be off by as much. {REMEDY}"
        said = f"The second moment S of the gradients {comes}; {off}"
        warnings.warn(said, GyromcWarning, stacklevel=2)
    return found


def _gradient_moments(plan: Any) -> GradientMoments:
    model, target, oracle = plan.model, plan.flat_target, plan.oracle
    if plan.dim > MOST_DENSE and isinstance(target, Quadratic) and isinstance(oracle, Exact | Gaussian):
        K, tau = np.asarray(target.precision, float), float(getattr(oracle, "tau", 0.0))
        return GradientMoments(K if K.ndim == 1 else np.diag(K), np.full(plan.dim, tau**2), "exact")
    known = target.gaussian()
    if known is not None:
        K, mean = known
        root = np.linalg.cholesky(np.linalg.inv(K))
        d = len(mean)
        points = mean + math.sqrt(d) * np.concatenate([root.T, -root.T])  # the mean of a quadratic function is exact
        return GradientMoments(K, mean_covariance(target, plan.prepared_oracle, points), "exact")
    sample = model.trusted_sample if model.dim <= MOST_PARAMETERS else None
    if sample is not None:
        rows = sample.theta[np.random.default_rng(0).choice(len(sample.weights), POINTS, p=sample.weights)]
        blocks = lambda function, rows: secondmoments.over_blocks(
            np.array([function(x) for x in np.array_split(rows, BLOCKS)])
        )
        if isinstance(target, KnownLikelihood):
            affordable = max(2 * BLOCKS, int(MOST_CURVED / (target.num_data * rows.shape[1])))
            P = blocks(target.mean_hessian, rows[:affordable])
        else:  # from the gradients at the sample, without Hessians
            P = sample.mean_curvature()
        noise = blocks(lambda part: mean_covariance(target, plan.prepared_oracle, part), rows)
        return GradientMoments(P.matrix, noise.matrix, sample.source, P.plus(noise).relative_error)
    return pilot(plan)


def pilot(plan: Any) -> GradientMoments:
    """P and Σ from chains of small Euler steps, d × d or their diagonals; `InvalidInput` where the run diverges.

    At every state of the second half they record two independent gradients ĝ₁ and ĝ₂: E[ĝ₁ĝ₂ᵀ] is E[∇U∇Uᵀ] = P, and
    ½E[(ĝ₁-ĝ₂)(ĝ₁-ĝ₂)ᵀ] is Σ. Errors are what the chains differ by, and how far they miss E[(θ-m)∇Uᵀ] = I (Stein's identity) and
    E[∇U] = 0, as chains do that have not arrived or spread. Above `MOST_DENSE` parameters one chain keeps diagonals.
    """
    if plan.dim <= MOST_DENSE:
        theta, g, other = (np.swapaxes(x, 0, 1) for x in _recorded(plan, CHAINS, STEPS, STEPS))  # chains × steps × d
        total, candidates = secondmoments.sums(theta - plan.model.start, g, other), []
        noise = secondmoments.over_blocks(np.swapaxes(g - other, 1, 2) @ (g - other) / 2 / total.weight[:, None, None])
        estimates = secondmoments.gradient_square(total), secondmoments.curvature(total)
        for linear_is_exact, P in zip((False, True), estimates, strict=True):
            S, error = P.plus(noise), np.inf
            if np.all(np.isfinite(S.relative_errors)):
                error = float(np.max(np.hypot(S.relative_errors, _missed(total, S, linear_is_exact))))
            candidates.append((error, P.matrix))
        error, P = min(candidates, key=lambda candidate: candidate[0])
        return GradientMoments(P, noise.matrix, f"a pilot run of {STEPS} steps", error)
    recorded = _recorded(plan, 1, DIAGONAL_STEPS, DIAGONAL_PARTS)
    P, Sigma = (x / (DIAGONAL_STEPS // DIAGONAL_PARTS) for x in recorded)
    S = P + Sigma
    mean, spread = S.mean(axis=0), S.std(axis=0, ddof=1) / np.sqrt(len(S))
    error = float(np.sqrt(np.mean((spread[mean > 0] / mean[mean > 0]) ** 2)))
    return GradientMoments(P.mean(axis=0), Sigma.mean(axis=0), f"a pilot run of {DIAGONAL_STEPS} steps", error)


def _missed(total: secondmoments.BlockSums, S: secondmoments.MatrixEstimate, linear_is_exact: bool) -> np.ndarray:
    """By how much the chains miss E[(θ-m)∇Uᵀ] = I and E[∇U] = 0 along the eigenvectors of S, in units of S.

    What is exact for a linear gradient rests on them only with the part that is not linear, where the chains have spread.
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


def gradients(oracle: Oracle, target: Target, key, y, d: int, n: int):
    """∇H with fresh noise of the oracle at rows of states that begin with z = (θ, r), θ with d numbers and z with n."""
    zeta = oracle.draw(key, target, len(y), d, y.dtype)
    g = jax.vmap(lambda theta, s: oracle.gradient(target, theta, s))(y[:, :d], zeta)
    return jnp.concatenate([g, y[:, d:n]], axis=1)


def _recorded(plan: Any, chains: int, steps: int, parts: int) -> list[np.ndarray]:
    """What chains of small Euler steps record in the second half of so many parts, summed over the steps of each part.

    With one step to a part it is θ, ĝ₁ and ĝ₂, parts × chains × d; else ĝ₁ĝ₂ and ½(ĝ₁-ĝ₂)² of one chain, parts × d.
    """
    eta, d, exact = plan.eta / SMALLER, plan.dim, isinstance(plan.oracle, Exact)
    start = np.broadcast_to(plan.model.start, (chains, d))
    if d <= MOST_PARAMETERS:
        with contextlib.suppress(InvalidInput):  # no mode
            modes = plan.model.modes
            # at all of them where several are known, so that none is left out
            start = modes.starts(chains, seed=0) if modes.several else start
    with jax.enable_x64(True):
        target, oracle, dynamics = doubled((plan.flat_target, plan.prepared_oracle, plan.dynamics))
        z, n = jnp.concatenate([jnp.asarray(start), jnp.zeros((chains, dynamics.size - d))], axis=1), dynamics.size

        def step(z, key):
            one, two, noise = jax.random.split(key, 3)
            full, xi = gradients(oracle, target, one, z, d, n), jax.random.normal(noise, z.shape, z.dtype)
            g, other = full[:, :d], (full if exact else gradients(oracle, target, two, z, d, n))[:, :d]
            moved = jax.vmap(lambda z, g, xi: euler(dynamics, z, g, xi, eta))(z, full, xi)
            return moved, (z[:, :d], g, other) if parts == steps else ((g * other)[0], (g - other)[0] ** 2 / 2)

        def added(carry, key):
            moved, more = step(carry[0], key)
            return (moved, jax.tree.map(jnp.add, carry[1], more)), None

        def part(z, keys):
            zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(step, z, keys[0])[1])
            return jax.lax.scan(added, (z, zero), keys)[0]

        keys = jax.random.split(jax.random.key(plan.seed), (parts, steps // parts))
        recorded = jax.jit(lambda z, keys: jax.lax.scan(part, z, keys)[1])(z, keys)
    found = [np.asarray(x[parts // 2 :], float) for x in recorded]
    diverged = "The second moment S of the gradients cannot be estimated: a pilot run from the start diverged"
    require(all(np.all(np.isfinite(x)) for x in found), f"{diverged}. {REMEDY}")
    return found
