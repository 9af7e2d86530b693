"""How many standard errors a sample is away from its exact value or from another: the unit in which tests state their limits.

Input: samples (first axis: independent draws) and what they should be. Output: z-scores, about N(0, 1) when all is right.
"""

import numpy as np


def largest(*scores) -> float:
    """The largest |z| of all scores given; NaN if any is NaN, so that `largest(…) < limit` fails."""
    return float(np.max(np.abs(np.concatenate([np.ravel(score) for score in scores]))))


def score(found, expected, *errors):
    """found - expected in units of the standard errors given, which are independent of each other."""
    return (np.asarray(found) - expected) / np.sqrt(sum(np.square(error) for error in errors))


def mean_score(values, expected):
    """The sample's mean against its exact value; the standard error is the sample's own."""
    values = np.asarray(values, float)
    return score(values.mean(axis=0), expected, values.std(axis=0) / np.sqrt(len(values)))


def z_scores(averages, mean, variance) -> tuple[float, float]:
    """The sample's mean and variance against their exact values; the fourth moment is the sample's own."""
    averages = np.asarray(averages, float)
    return (
        float(score(averages.mean(), mean, np.sqrt(variance / averages.size))),
        float(score(averages.var(ddof=1), variance, variance_error(averages))),
    )


def variance_error(values):
    """The standard error of the sample's variance: √((m₄ - m₂²)/R)."""
    centred = np.asarray(values, float) - np.mean(values, axis=0)
    return np.sqrt((np.mean(centred**4, axis=0) - np.mean(centred**2, axis=0) ** 2) / len(centred))


def second_moment_scores(states, second) -> np.ndarray:
    """Every product z_i z_j (i ≤ j) of the states, draws × n, against E[z zᵀ]."""
    i, j = np.triu_indices(states.shape[1])
    states = np.asarray(states, float)
    return mean_score(states[:, i] * states[:, j], np.asarray(second)[i, j])


def two_sample_scores(a, b) -> tuple:
    """Means and variances of two independent samples (draws, or draws × columns) against each other."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    errors = [x.std(axis=0) / np.sqrt(len(x)) for x in (a, b)]
    return score(a.mean(axis=0), b.mean(axis=0), *errors), score(
        a.var(axis=0, ddof=1), b.var(axis=0, ddof=1), variance_error(a), variance_error(b)
    )


def proportion_score(hits, trials, probability):
    """Counts against a binomial law."""
    return score(hits, trials * probability, np.sqrt(trials * probability * (1 - probability)))
