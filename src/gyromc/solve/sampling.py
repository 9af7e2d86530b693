"""What is kept of the states that are averaged: the regression's sums, averages of every round, some draws; and what they show.

Input: rounds of states. Output: sharpened means, split R-hat, tests by zero-mean functions, thinned draws with weights.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from gyromc.fields.functions import Fields
from gyromc.fields.regression import FieldRegression, Sharpened, calibrated_weights
from gyromc.posterior import PosteriorMean
from gyromc.solve.chains import Round

__all__ = ["Sampling", "ZeroMeanTest", "posterior_means"]


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """What is kept.

    - `draws`: of each chain, at most; when there are more, every second one is dropped.
    - `per_round`: draws of each chain from a round.
    - `block`: states that are one row of the regression where there are many functions.
    - `many`: functions from which on blocks are used.
    - `chance`: that a test by zero-mean functions speaks by chance, over all coordinates.
    - `learned_share`: of a plain standard error that is left at least in learned coordinates. E v of a funnel was off by 8 stated
      errors without: what chains had not seen when the coordinates were learnt, the regression does not know.
    - `virial`: relative error of a variance below which a test says nothing: it would not change a conclusion.
    """

    draws: int = 250
    per_round: int = 5
    block: int = 5
    many: int = 150
    chance: float = 1e-4
    learned_share: float = 1.5
    virial: float = 0.1


SETTINGS = SamplingSettings()


@dataclasses.dataclass(frozen=True)
class ZeroMeanTest:
    """A coordinate whose zero-mean function has not mean zero: by how much its variance seems wrong, in which standard errors."""

    coordinate: int
    virial: float
    z: float


class Sampling:
    """Sums over rounds, and a thinned sample of states."""

    def __init__(
        self,
        fields: Fields,
        values: Callable[[np.ndarray], np.ndarray],
        center: np.ndarray,
        chains: int,
        short: bool = False,
        learned: bool = False,
    ):
        block = 1 if short or fields.count <= SETTINGS.many else SETTINGS.block
        self.fields, self.values, self.learned = fields, values, learned
        self.regression = FieldRegression(fields, chains, center, block)
        self.rounds: list[np.ndarray] = []
        self.virials: list[np.ndarray] = []
        self.acceptance: list[float] = []
        self._kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._every = 1

    @property
    def states(self) -> int:
        """How many states of each chain were averaged."""
        return self.regression.states

    def add(self, kept: Round) -> None:
        """Add a round of states."""
        steps, chains, d = kept.theta.shape
        values = self.values(kept.theta.reshape(-1, d)).reshape(steps, chains, -1)
        self.regression.add(kept.theta, kept.gradient, values)
        self.rounds.append(values.mean(axis=0))
        self.virials.append(self.fields.virial(kept.theta, kept.gradient).mean(axis=0))
        self.acceptance.append(float(kept.acceptance.mean()))
        if len(self.rounds) % self._every == 0:
            pick = slice(steps // SETTINGS.per_round - 1, None, max(1, steps // SETTINGS.per_round))
            self._kept.append((kept.theta[pick], kept.gradient[pick], values[pick]))
            if len(self._kept) * SETTINGS.per_round > SETTINGS.draws:
                self._kept, self._every = self._kept[1::2], 2 * self._every

    def sharpened(self) -> Sharpened:
        """Corrected averages of all chains."""
        sharp = self.regression.sharpened()
        return dataclasses.replace(sharp, least_share=SETTINGS.learned_share) if self.learned else sharp

    def r_hat(self) -> np.ndarray:
        """Split R-hat of every observable, from the plain averages."""
        rounds, sd = np.array(self.rounds), self.regression.sd()
        half = len(rounds) // 2
        if half == 0:
            return np.full(len(sd), np.nan)
        parts = np.concatenate([rounds[:half].mean(axis=0), rounds[half : 2 * half].mean(axis=0)])
        between = parts.var(axis=0, ddof=1)
        within = np.maximum(sd**2 - between, 1e-300 + 1e-12 * sd**2)
        return np.where(sd > 0, np.sqrt(1 + between / within), 1.0)

    def tests(self) -> list[ZeroMeanTest]:
        """Coordinates whose virial is not what the target says, beyond chance and by more than `SETTINGS.virial`."""
        averages = np.mean(self.virials, axis=0)
        chains, d = averages.shape
        mean, error = averages.mean(axis=0), averages.std(axis=0, ddof=1) / math.sqrt(chains)
        # Where U does not change at all, every chain has the same virial, 1, and its error is zero.
        z = mean / np.maximum(error, 1e-300)
        limit = -float(special.stdtrit(chains - 1, SETTINGS.chance / (2 * d)))
        off = np.flatnonzero(~np.isfinite(mean) | (np.abs(z) > limit) & (np.abs(mean) > SETTINGS.virial))
        return [ZeroMeanTest(int(i), float(mean[i]), float(z[i])) for i in off[np.argsort(-np.abs(mean[off]))]]

    def draws(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kept states (chains × draws × d), their weights, and the observables there."""
        theta, gradient, values = (np.concatenate(parts).swapaxes(0, 1) for parts in zip(*self._kept, strict=True))
        d = theta.shape[2]
        weights = calibrated_weights(self.fields, theta.reshape(-1, d), gradient.reshape(-1, d))
        return theta, weights.reshape(theta.shape[:2]), values


def posterior_means(
    names: Sequence[str], sharp: Sharpened, errors: np.ndarray, dof: int, r_hat: np.ndarray, level: float
) -> dict[str, PosteriorMean]:
    """What is reported of every observable."""
    columns = zip(names, sharp.mean, errors, sharp.sd, r_hat, sharp.gain, sharp.groups, strict=True)
    return {
        name: PosteriorMean(name, float(mean), float(error), dof, float(sd), float(r), float(gain), str(group), level)
        for name, mean, error, sd, r, gain, group in columns
    }
