"""What a posterior predicts of the responses at some rows, draw by draw: moments, densities, distribution functions, replicates.

Draws of a posterior and rows of X in; a `Predictive` out, S draws × n rows, in the user's units. Everything that compares a model
with observed responses reads this and nothing else of the model, so a new likelihood needs no new comparison.
"""

import dataclasses
import enum
import functools
from typing import Any

import numpy as np

from gyromc.regression.draws import Draws
from gyromc.targets.likelihoods import Bernoulli, Likelihood

__all__ = ["MOST_DRAWS", "Predictive", "ResponseKind"]

MOST_DRAWS = 1000


class ResponseKind(enum.Enum):
    """What a response is."""

    NUMBERS = "numbers"
    COUNTS = "counts"
    CLASSES = "classes"


@dataclasses.dataclass(frozen=True, eq=False)
class Predictive:
    """The law of y at n rows under each of S draws.

    **Attributes:**

    - `likelihood`: the model of y; `t`, `given`: what it takes for each draw and row: S × n (× q), and arrays that broadcast with
      S × n.
    - `mean`: E[y | θ_s], S × n; for more than two classes their probabilities, S × n × C.
    - `variance`: of y given θ_s, of the same shape.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    from gyromc.regression.predictive import Predictive
    X, y = np.arange(12.0)[:, None], np.arange(12) % 2
    law = Predictive.of(fit(X, y, "logistic", effort="quick").posterior, X)
    assert law.mean.shape == law.replicate(np.random.default_rng(0)).shape == (law.num_draws, 12)
    np.testing.assert_allclose(np.exp(law.log_density(y)), np.where(y == 1, law.mean, 1 - law.mean))
    ```
    """

    likelihood: Likelihood
    t: np.ndarray
    given: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, posterior: Draws, X, most_draws: int = MOST_DRAWS, **beside: Any) -> "Predictive":
        """The law of y at the rows of X, under at most about `most_draws` draws, evenly spaced in every chain.

        `beside`: what `Draws.predictors` takes beside X.
        """
        t, given = posterior.thinned(most_draws).predictors(X, **beside)
        chains, draws = t.shape[:2]
        return cls(
            posterior.likelihood,
            t.reshape(chains * draws, *t.shape[2:]),
            tuple(_by_draw(g, chains, draws) for g in given),
        )

    @property
    def num_draws(self) -> int:
        """S."""
        return self.t.shape[0]

    @property
    def num_rows(self) -> int:
        """The number of rows n."""
        return self.t.shape[1]

    @property
    def kind(self) -> ResponseKind:
        """Whether y is a number, a count or a class."""
        if self.mean.ndim == 3 or isinstance(self.likelihood, Bernoulli):
            return ResponseKind.CLASSES
        return ResponseKind.COUNTS if self.likelihood.discrete else ResponseKind.NUMBERS

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """E[y | θ_s], or the probabilities of the classes."""
        return self.likelihood.mean(self.t, *self.given)

    @functools.cached_property
    def variance(self) -> np.ndarray:
        """The variance of y given θ_s, or of each class's indicator."""
        given = self.given if self.mean.ndim == 2 else tuple(g[..., None] for g in self.given)
        return np.broadcast_to(self.likelihood.variance(self.mean, *given), self.mean.shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """log p(y_i | θ_s), S × n."""
        return self.likelihood.log_density(self.t, y, *self.given)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """P(Y_i ≤ y_i | θ_s), S × n."""
        return self.likelihood.cdf(y, self.t, *self.given)

    def replicate(self, rng: np.random.Generator) -> np.ndarray:
        """One response for each draw and row, S × n: data as they would come if the model were right."""
        return self.likelihood.sample(rng, self.t, *self.given)


def _by_draw(given: np.ndarray, chains: int, draws: int) -> np.ndarray:
    """An array that broadcasts with chains × draws × rows, as one that broadcasts with S × rows."""
    if given.ndim < 2:
        return given
    return np.broadcast_to(given, (chains, draws, given.shape[-1])).reshape(chains * draws, -1)
