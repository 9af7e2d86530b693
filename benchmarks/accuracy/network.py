"""A network with one hidden layer on noisy images of digits, as a problem of the accuracy benchmark.

200 images of the digits 0 to 7 from scikit-learn, 24 hidden units, all weights standard normal a priori. Its posterior has many
modes, which differ by permutations of the units and otherwise, so the observables are functions that permutations leave alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import gyromc as gm
from gyromc.approx.modes import descend
from gyromc.observables import Observable

__all__ = ["DIM", "network_kinds", "network_starts", "network_target"]

PIXELS, HIDDEN, CLASSES = 64, 24, 8
LABELLED, SHOWN, NOISE = 200, 10, 0.5
SCALE_OUT = 10.0  # prior standard deviation of a logit, roughly
SHAPES = ((HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
DIM = sum(int(np.prod(shape)) for shape in SHAPES)
DESCENT = 60  # iterations before a chain starts


@functools.cache
def images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labelled images and digits, and some others to predict."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16 + NOISE * rng.standard_normal(pixels.shape)
    order = rng.permutation(np.flatnonzero(digits < CLASSES))
    known, rest = order[:LABELLED], order[LABELLED : LABELLED + SHOWN]
    pixels = (pixels - pixels[known].mean(axis=0)) / pixels[known].std()
    return pixels[known], digits[known], pixels[rest], digits[rest]


def _layers(theta) -> list:
    """θ as the arrays of the two layers."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [theta[end - int(np.prod(shape)) : end].reshape(shape) for shape, end in zip(SHAPES, ends, strict=True)]


def logits(theta, x):
    """The network at one image; layers are scaled so that their outputs have the prior's size."""
    W, b, V, c = _layers(theta)
    hidden = jax.nn.relu(W @ x / PIXELS**0.5 + b / 2)
    return SCALE_OUT * (V @ hidden / HIDDEN**0.5 + c / 2)


def network_target() -> gm.targets.Target:
    """The posterior of all weights as one vector."""
    x, y, _, _ = images()
    log_likelihood = lambda theta, datum: jax.nn.log_softmax(logits(theta, datum[0]))[datum[1]]
    return gm.targets.FiniteSum(log_likelihood, lambda theta: -0.5 * jnp.sum(theta**2), (x, y))


def network_kinds() -> dict[str, dict[str, Observable]]:
    """Log probabilities of other images' digits, the mean square of each layer, and the probabilities themselves."""
    _, _, x, y = images()
    log = lambda i: lambda theta: jax.nn.log_softmax(logits(theta, jnp.asarray(x[i])))[int(y[i])]
    mean_square = lambda k: lambda theta: jnp.mean(_layers(theta)[k] ** 2)
    function = gm.observables.function
    return {
        "means": {f"m{i}": function(log(i)) for i in range(SHOWN)},
        "squares": {f"s{k}": function(mean_square(k)) for k in range(len(SHAPES))},
        "predictive": {f"p{i}": function(lambda theta, i=i: jnp.exp(log(i)(theta))) for i in range(SHOWN)},
    }


def network_starts(count: int, seed: int) -> np.ndarray:
    """Where chains start: prior draws after a short descent, count × DIM, plus unit noise, which the prior gives most weights."""
    rng, target = np.random.default_rng([seed, 78]), network_target()
    found = [descend(target, x, DESCENT)[0].x for x in rng.standard_normal((count, DIM))]
    return np.array(found) + rng.standard_normal((count, DIM))
