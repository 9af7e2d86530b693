"""Second moments of an oracle's noise δ = ĝ - ∇U at given points, for any target.

Input: a target over vectors, an oracle prepared for it, and rows of θ. Output: arrays with one entry per row, or the mean of the
covariance over the rows. For mini-batches they are averages over the data, at most `MOST_DATA` of them for each row. Where the
noise is quadratic in θ, `prediction.exact.chain` knows more.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require
from gyromc.evaluation import compiled, doubled, over_rows
from gyromc.machine import require_memory
from gyromc.oracles import Batch, Exact, Gaussian, Oracle
from gyromc.targets import SumOverData, Target

MOST_DATA = 2000
MOST_NUMBERS = 4_000_000  # in the gradients of single data that are held at once


def why_no_moments(oracle: Oracle) -> str | None:
    """Why the moments of an oracle's noise are not functions of θ, or None."""
    if oracle.memory(1):
        return f"the noise of {oracle.name} depends on where its anchor is, not on θ alone"
    return None


def oracle_covariances(target: Target, oracle: Oracle, rows: np.ndarray) -> np.ndarray:
    """Σ(θ) = E[δδᵀ | θ] at every row: rows × d × d."""
    d = rows.shape[1]
    if isinstance(oracle, Exact | Gaussian):
        return np.broadcast_to(_additive(oracle, d), (len(rows), d, d))
    return _over_data(target, oracle, rows)


def mean_covariance(target: Target, oracle: Oracle, rows: np.ndarray) -> np.ndarray:
    """E[Σ(θ)] over rows of θ: d × d; `target` over vectors, `oracle` prepared for it.

    Beyond `MOST_DATA` data each row has its own random subset of them, so that the error becomes smaller with the number of rows.
    """
    rows = np.asarray(rows, float)
    d = rows.shape[1]
    require_memory(3 * 8 * d**2, f"A covariance of {d:,} parameters", "Take fewer parameters.")
    if isinstance(oracle, Exact | Gaussian):
        return _additive(oracle, d)
    _check(oracle)
    assert isinstance(oracle, Batch)
    assert isinstance(target, SumOverData)
    N = target.num_data
    count, rng, total = min(N, MOST_DATA), np.random.default_rng(0), np.zeros((d, d))
    divisor = N if count == N else count - 1  # a random subset, with replacement, has its own mean
    at_once = max(1, min(len(rows), MOST_NUMBERS // (count * d)))
    with jax.enable_x64(True):
        pieces = doubled((target, oracle))
        for first in range(0, len(rows), at_once):
            part = rows[first : first + at_once]
            shares = np.where(np.arange(at_once) < len(part), 1 / len(rows), 0.0)
            # Filled up, so that it is compiled once.
            part = np.concatenate([part, np.broadcast_to(part[:1], (at_once - len(part), d))])
            index = np.arange(N)[None] if count == N else rng.integers(0, N, (at_once, count))
            index = np.broadcast_to(index, (at_once, count))
            total += np.asarray(_summed(*pieces, *map(jnp.asarray, (part, index, shares))))
    return oracle.noise_factor(N) * N**2 / (oracle.size * divisor) * total


@compiled
def _summed(target, oracle, rows, index, shares):
    """Σ over rows of their share times the sum over the data of the squares of the deviations."""
    terms = jax.vmap(lambda theta, own: _deviations(target, oracle, own, theta))(rows, index)
    flat = (jnp.sqrt(shares)[:, None, None] * terms).reshape(-1, terms.shape[2])
    return flat.T @ flat


def _check(oracle: Oracle) -> None:
    reason = why_no_moments(oracle)
    require(reason is None, f"The second moments of the gradients are not known: {reason}. Use it without `refresh`.")


def _additive(oracle: Exact | Gaussian, dim: int) -> np.ndarray:
    tau = float(oracle.tau) if isinstance(oracle, Gaussian) else 0.0
    return tau**2 * np.eye(dim)


def _over_data(target: Target, oracle: Oracle, rows: np.ndarray) -> np.ndarray:
    """The covariance of a mean of b draws from the data."""
    _check(oracle)
    assert isinstance(oracle, Batch)
    assert isinstance(target, SumOverData)
    N = target.num_data
    picked = np.arange(N) if N <= MOST_DATA else np.random.default_rng(0).choice(N, MOST_DATA, replace=False)
    scale = np.asarray(oracle.noise_factor(N) * N**2 / (oracle.size * len(picked)))
    return over_rows(_second, rows, target, oracle, picked, scale, chunk=256)


def _second(target, oracle, picked, scale, theta):
    terms = _deviations(target, oracle, picked, theta)
    return scale * terms.T @ terms


def _deviations(target, oracle, picked, theta):
    """What each datum adds to the estimate's varying part, minus the mean of that."""
    terms = jax.vmap(lambda i: oracle.terms(target, theta, i[None]))(jnp.asarray(picked))
    return terms - terms.mean(axis=0)
