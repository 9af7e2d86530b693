"""The functions that laws and likelihoods are made of: NumPy's for NumPy arrays, JAX's for everything else."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

LARGE = 16.0  # arguments of Γ from which on Stirling's series has all digits


def library(t) -> Any:
    """NumPy for NumPy arrays, JAX for everything else."""
    return np if isinstance(t, np.ndarray | np.generic) else jnp


def _either(of_numpy: Callable, of_jax: Callable) -> Callable:
    return lambda t: of_numpy(t) if library(t) is np else of_jax(t)


log_gamma = _either(scipy.special.gammaln, jax.scipy.special.gammaln)
log_ndtr = _either(scipy.special.log_ndtr, jax.scipy.special.log_ndtr)
# Of a standard normal variable they make a uniform one on (0, 1), and an exponential one with mean 1.
uniform = _either(scipy.special.ndtr, jax.scipy.special.ndtr)
exponential = lambda u: -log_ndtr(-u)
log_sigmoid = lambda t: -softplus(-t)  # log 1/(1 + e⁻ᵗ)
# log Γ(x) less (x - ½) log x - x + ½ log 2π, for large x.
stirling = lambda x: (1 / 12 - (1 / 360 - 1 / (1260 * x**2)) / x**2) / x


def sigmoid(t):
    """1/(1 + e⁻ᵗ); NumPy's exponential is several times quicker than SciPy's `expit`."""
    if library(t) is jnp:
        return jax.nn.sigmoid(t)
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-t))


def softplus(t):
    """log(1 + eᵗ), in a third of the time of `logaddexp` with its derivative; `where`, unlike `abs`, is smooth at 0."""
    numpy, up = library(t), t >= 0
    return numpy.where(up, t, 0.0) + numpy.log1p(numpy.exp(numpy.where(up, -t, t)))


def rising(s, y):
    """log Γ(s + y) - log Γ(s) - y log s, without loss of digits where s is large."""
    numpy = library(s)
    large = s > LARGE
    big, small = numpy.where(large, s, LARGE), numpy.where(large, 1.0, s)
    series = (big + y - 0.5) * numpy.log1p(y / big) - y + stirling(big + y) - stirling(big)
    return numpy.where(large, series, log_gamma(small + y) - log_gamma(small) - y * numpy.log(small))


def contrasts(count: int) -> np.ndarray:
    """B: an orthonormal basis, in columns, of the vectors of `count` numbers that sum to zero (Helmert's)."""
    B = np.zeros((count, count - 1))
    for k in range(1, count):
        B[:k, k - 1], B[k, k - 1] = -1 / np.sqrt(k * (k + 1)), k / np.sqrt(k * (k + 1))
    return B
