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

from gyromc.machine import num_threads
from gyromc.targets.likelihoods import Likelihood

AT_ONCE = 2**18  # numbers of a part: 1 MiB in single precision
MOST_EXPONENT = 80.0  # eᵗ is finite in single precision up to t = 88
MOST_THREADS, LEAST_PARTS = 4, 16  # a thread has so many parts at least

Averages = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""mean, std_error, sd and noise, as in `Predictions`."""


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
    mean, error, sd, noise = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return mean, error, sd, noise


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
    sd = scale * np.linalg.norm(rows @ np.asarray(root).T, axis=1)
    return mean, error, sd, np.full(len(rows), np.sqrt(variance))


def averages(likelihood: Likelihood, t: np.ndarray, given: tuple[np.ndarray, ...]) -> Averages:
    """Averages over draws of one part of the rows; `t`: chains × draws × rows, single precision, is overwritten."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = t.ndim
        means = likelihood.quick_mean(t, *given)
        if means.ndim > rows:
            return _of_classes(means)
        # Before the moments, which overwrite the means.
        noise = likelihood.variance(means, *given).mean(axis=(0, 1), dtype=float)
        mean, error, variance = _moments(means)
    return mean, error, np.sqrt(variance), np.sqrt(noise)


def _of_classes(chances: np.ndarray) -> Averages:
    """Averages of probabilities, classes × chains × draws × rows, which are overwritten: each rows × classes."""
    mean, error, variance = (found.T for found in _moments(chances))
    noise = np.maximum(mean * (1 - mean) - variance, 0.0)  # E[p(1 - p)]
    return mean / mean.sum(axis=1, keepdims=True), error, np.sqrt(variance), np.sqrt(noise)


def against_first(theta: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """The weights of the logarithms of odds of the classes against the first: (classes - 1) × chains · draws × dim."""
    blocks = theta.reshape(theta.shape[0] * theta.shape[1], basis.shape[1], -1)
    return np.stack([np.tensordot(blocks, w, (1, 0)) for w in basis[1:] - basis[0]]).astype(np.float32)


def class_averages(odds: np.ndarray, chains: int, rows: np.ndarray) -> Averages:
    """Averages of the probabilities of classes: each rows × classes. `odds`: from `against_first`; `rows`: single precision."""
    p = np.empty((len(odds) + 1, odds.shape[1], len(rows)), np.float32)
    t, first = p[1:], p[0]
    for weights, out in zip(odds, t, strict=True):
        np.matmul(weights, rows.T, out=out)
    first[...] = 0  # the logarithm of the odds of the first class against itself
    if float(t.max()) > MOST_EXPONENT:
        p -= p.max(axis=0)
        np.exp(first, out=first)
    else:
        first[...] = 1
    np.exp(t, out=t)
    share = np.reciprocal(functools.reduce(np.add, p))
    p *= share
    return _of_classes(p.reshape(len(p), chains, -1, len(rows)))


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over draws, its standard error from the variance between chains, and the variance; `values` is overwritten.

    `values`: (… ×) chains × draws × rows; out come (… ×) rows. Sums over the draws of a chain are products with a row of ones:
    quicker than NumPy's sums along a middle axis.
    """
    chains, draws = values.shape[-3:-1]
    ones = np.ones((1, draws), values.dtype)
    by_chain = (ones @ values)[..., 0, :] / draws
    mean = by_chain.mean(axis=-2, dtype=float, keepdims=True)
    error = np.sqrt(np.sum((by_chain - mean) ** 2, axis=-2) / (chains - 1) / chains)
    values -= mean.astype(values.dtype)[..., None, :]
    np.multiply(values, values, out=values)
    variance = (ones @ values)[..., 0, :].sum(axis=-2, dtype=float) / (chains * draws)
    return mean[..., 0, :], error, variance
