"""The tail of a sample as a generalised Pareto law: its shape k, and importance weights with a smoothed tail.

The estimate of Zhang and Stephens (2009) is an average over the profile likelihood, so that thousands of samples are fitted at
once. A mean with weights of shape k is reliable below `HEAVY`.
"""

import numpy as np
import scipy

HEAVY = 0.7  # shape of the tail of weights, from which means are not reliable
LEAST_TAIL = 5  # values that a tail must have to be fitted
PRIOR_COUNT, PRIOR_SHAPE = 10, 0.5  # Vehtari et al. (2024): a shape from few values is drawn towards 1/2
AT_ONCE = 2**19  # numbers held while fitting: 4 MB


def tail_count(num_draws: int) -> int:
    """How many of the largest weights belong to the tail: a fifth of the draws, at most 3√draws."""
    return int(min(0.2 * num_draws, 3 * np.sqrt(num_draws)))


def generalised_pareto(excesses: np.ndarray, prior_count: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """k and σ of the density (1 + kx/σ)^(-1/k - 1)/σ, x > 0, for each sorted row of excesses; the prior counts as so many."""
    count = excesses.shape[1]
    points = 30 + int(np.sqrt(count))
    at_once = max(1, AT_ONCE // (points * count))
    parts = [_profile_average(part, points) for part in np.array_split(excesses, max(1, -(-len(excesses) // at_once)))]
    b = np.concatenate(parts)
    k = np.mean(np.log1p(-b[:, None] * excesses), axis=1)
    sigma = -k / b
    return (count * k + prior_count * PRIOR_SHAPE) / (count + prior_count), sigma


def _profile_average(x: np.ndarray, points: int) -> np.ndarray:
    """b = -k/σ of each row, averaged over its profile likelihood on Zhang and Stephens' grid."""
    count = x.shape[1]
    quartile = x[:, int(count / 4 + 0.5) - 1]
    steps = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    b = 1 / x[:, -1:] + steps / (3 * quartile[:, None])
    k = np.mean(np.log1p(-b[:, :, None] * x[:, None, :]), axis=2)
    log_likelihood = count * (np.log(-b / k) - k - 1)
    return np.sum(scipy.special.softmax(log_likelihood, axis=1) * b, axis=1)


def smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Importance weights with the tail replaced by quantiles of its Pareto law (Vehtari et al. 2024), and the shapes k.

    Log weights are draws × samples, those returned sum to one over the draws. k of a sample is -inf where all its weights are
    equal, infinity where it has too few draws for a tail.
    """
    logs = np.ascontiguousarray((log_weights - log_weights.max(axis=0)).T)
    samples, draws = logs.shape
    tail = tail_count(draws)
    k = np.full(samples, np.inf if tail < LEAST_TAIL else -np.inf)
    if tail >= LEAST_TAIL:
        order = np.argpartition(logs, draws - tail - 1, axis=1)[:, draws - tail - 1 :]
        top = np.take_along_axis(logs, order, axis=1)
        within = np.argsort(top, axis=1)
        order, top = np.take_along_axis(order, within, axis=1), np.exp(np.take_along_axis(top, within, axis=1))
        cutoff, excesses = top[:, :1], top[:, 1:] - top[:, :1]
        fitted = excesses[:, int(tail / 4 + 0.5) - 1] > 0  # equal weights have no tail
        k[fitted], sigma = generalised_pareto(np.maximum(excesses[fitted], 1e-300), PRIOR_COUNT)
        shape = np.where(np.abs(k[fitted]) < 1e-12, 1e-12, k[fitted])[:, None]
        levels = (np.arange(tail) + 0.5) / tail
        quantiles = sigma[:, None] * np.expm1(-shape * np.log1p(-levels)) / shape  # of the law, -σ log(1 - p) at k = 0
        replaced = np.minimum(0.0, np.log(cutoff[fitted] + quantiles))
        part = logs[fitted]
        np.put_along_axis(part, order[fitted, 1:], replaced, axis=1)
        logs[fitted] = part
    return (logs - scipy.special.logsumexp(logs, axis=1, keepdims=True)).T, k
