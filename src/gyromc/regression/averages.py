"""Predictions of many rows at once: averages over draws of the mean and the variance of y, quickly.

Input: draws of a posterior and rows. Output: for each row the mean of E[y | x, θ], its Monte Carlo error, its posterior standard
deviation, and the standard deviation of y about it. Where E[y | x, θ] is the linear predictor, all four follow from the mean and
the covariance of the draws. Otherwise the rows go through in parts that fit the cache, in single precision, whose error
(about 10⁻⁶ of a value) is far below the Monte Carlo error. A part whose numbers are too large for that is computed again in
double precision.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gyromc.engines.lanes import num_threads
from gyromc.targets.likelihoods import Bernoulli, Likelihood, Poisson

__all__ = [
    "AT_ONCE",
    "Averages",
    "against_first",
    "averages",
    "class_averages",
    "finite",
    "in_parts",
    "linear_averages",
]

AT_ONCE = 2**19  # numbers of a part: 2 MiB in single precision
MOST_THREADS, LEAST_PARTS = 4, 16  # a thread has so many parts at least

Averages = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""mean, std_error, spread and noise, as in `Predictions`."""


def in_parts(part: Callable[[slice], Averages], num_rows: int, numbers: int) -> Averages:
    """Averages of all rows from those of parts: `part` computes some rows, which take so many `numbers` each.

    Several threads share the parts where these are many.
    """
    size = max(1, AT_ONCE // numbers)
    slices = [slice(first, first + size) for first in range(0, max(1, num_rows), size)]
    threads = min(num_threads(), MOST_THREADS, len(slices) // LEAST_PARTS + 1)
    if threads == 1:
        found = list(map(part, slices))
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(part, slices))
    mean, error, spread, noise = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return mean, error, spread, noise


def linear_averages(theta: np.ndarray, rows: np.ndarray, before: Any, scale: float, variance: float) -> Averages:
    """Averages where E[y | x, θ] = before + scale · θᵀx, from the moments of θ; `variance`: of y about it, averaged over draws.

    `theta`: chains × draws × dim; `rows`: rows × dim.
    """
    chains = theta.shape[0]
    by_chain = theta.mean(axis=1)
    center = by_chain.mean(axis=0)
    apart = (by_chain - center) / np.sqrt(chains * (chains - 1))
    draws = (theta - center).reshape(-1, theta.shape[-1])
    root = np.linalg.qr(draws / np.sqrt(len(draws)), mode="r")
    mean = before + scale * (rows @ center)
    error = scale * np.linalg.norm(rows @ apart.T, axis=1)
    spread = scale * np.linalg.norm(rows @ np.asarray(root).T, axis=1)
    return mean, error, spread, np.full(len(rows), np.sqrt(variance))


def averages(likelihood: Likelihood, t: np.ndarray, given: tuple[np.ndarray, ...]) -> Averages:
    """Averages over draws of one part of the rows; `t`: chains × draws × rows, single precision, is overwritten."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = _sigmoid(t) if isinstance(likelihood, Bernoulli) else likelihood.mean(t, *given)
        known = isinstance(likelihood, Bernoulli | Poisson)
        noise = None if known else likelihood.variance(means, *given).mean(axis=(0, 1), dtype=float)
        mean, error, variance = _moments(means)
    if noise is None:
        noise = mean if isinstance(likelihood, Poisson) else _of_indicator(mean, variance)
    return _summing_to_one(mean), error, np.sqrt(variance), np.sqrt(noise)


def _summing_to_one(mean: np.ndarray) -> np.ndarray:
    """Probabilities of classes, rows × classes, that sum to one in double precision; other means as they are."""
    return mean / mean.sum(axis=1, keepdims=True) if mean.ndim == 2 else mean


def finite(found: Averages) -> bool:
    """Whether all averages are finite: in single precision eᵗ is not from t = 88 on, and its square from 44 on."""
    return all(bool(np.isfinite(values).all()) for values in found)


def against_first(theta: np.ndarray, basis: np.ndarray) -> list[np.ndarray]:
    """The weights of the logarithms of odds of each class against the first: for each, chains · draws × dim."""
    blocks = theta.reshape(theta.shape[0] * theta.shape[1], basis.shape[1], -1)
    return [np.ascontiguousarray(np.tensordot(blocks, w, (1, 0)), np.float32) for w in basis[1:] - basis[0]]


def class_averages(odds: list[np.ndarray], chains: int, rows: np.ndarray) -> Averages:
    """Averages of the probabilities of classes: each rows × classes. `odds`: from `against_first`; `rows`: single precision."""
    powers = [weights @ rows.T for weights in odds]
    largest = np.maximum(functools.reduce(np.maximum, powers), 0)  # 0: the first class
    for t in powers:
        t -= largest
    powers.insert(0, np.negative(largest, out=largest))
    for t in powers:
        np.exp(t, out=t)
    total = functools.reduce(np.add, powers)  # between 1 and the number of classes
    for power in powers:
        power /= total
    found = [_moments(p.reshape(chains, -1, len(rows))) for p in powers]
    mean, error, variance = (np.stack(columns, axis=-1) for columns in zip(*found, strict=True))
    return _summing_to_one(mean), error, np.sqrt(variance), np.sqrt(_of_indicator(mean, variance))


def _of_indicator(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E[p(1 - p)] from the mean and the variance of p."""
    return np.maximum(mean * (1 - mean) - variance, 0.0)


def _sigmoid(t: np.ndarray) -> np.ndarray:
    """1/(1 + e⁻ᵗ), in place: NumPy's exponential of single precision is quicker than SciPy's `expit`."""
    np.negative(t, out=t)
    np.exp(t, out=t)
    t += 1
    return np.reciprocal(t, out=t)


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over draws, its standard error from the spread between chains, and the variance; `values` is overwritten."""
    chains = len(values)
    by_chain = values.mean(axis=1)
    mean = by_chain.mean(axis=0, dtype=float)
    error = np.sqrt(np.sum((by_chain - mean) ** 2, axis=0) / (chains - 1) / chains)
    values -= mean.astype(values.dtype)
    flat = values.reshape(-1, *values.shape[2:])
    variance = np.einsum("s...,s...->...", flat, flat, dtype=values.dtype).astype(float) / len(flat)
    return mean, error, variance
