"""Several modes: descents from dispersed starts, and the mass of the law around each mode found.

A target over vectors and its Laplace approximation in; a `Modes` value out: the modes, the heaviest first, with the share of the
law that a Gaussian at each of them holds. A mode that no descent reaches is not found: the search looks a few standard
deviations around the first mode, dozens of them away, and around the origin, with more descents the fewer the parameters.
"""

import dataclasses

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.shape.laplace import Laplace, inverse_root, laplace
from gyromc.shape.modes import descend, find_mode
from gyromc.targets import SumOverData, Target
from gyromc.targets.regressions import KnownLikelihood

__all__ = ["Modes", "find_modes"]

MOST_PARAMETERS = 200  # beyond, one descent costs too much to make a dozen
RADII = (2.0, 64.0)  # the nearest and the farthest start, in standard deviations of the approximation at the first mode
FEWEST, MOST = 6, 64  # starts with many and with few parameters, each with its mirror image
CHEAP = 10_000  # rows of data up to which a descent costs little
AROUND_ORIGIN = 2.0
LEAST_SHARE = 1e-6
SAME = 1.0  # modes closer than this many standard deviations are one


@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """The modes found and the share of the law around each; `searched` is False where only one descent was made."""

    found: tuple[Laplace, ...]
    shares: np.ndarray
    searched: bool

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.found) > 1

    def starts(self, count: int, seed: int) -> np.ndarray:
        """Points of θ spread over the modes by their shares, at least one at each where `count` allows: count × dim."""
        owed = self.shares * count
        numbers = np.maximum(np.floor(owed).astype(int), 1)
        while numbers.sum() > count:
            numbers[np.argmax(numbers)] -= 1
        for i in np.argsort(numbers - owed)[: count - numbers.sum()]:
            numbers[i] += 1
        rng = np.random.default_rng(seed)
        parts = [
            center.mode + rng.standard_normal((number, len(center.mode))) @ inverse_root(center.precision).T
            for center, number in zip(self.found, numbers, strict=True)
        ]
        return np.concatenate(parts)


def find_modes(target: Target, first: Laplace, seed: int = 0) -> Modes:
    """All modes that descents from dispersed starts reach.

    Gaussian targets and regressions with a known likelihood have one; above `MOST_PARAMETERS` parameters no search is made.
    """
    one = Modes((first,), np.ones(1), searched=True)
    if target.gaussian() is not None or isinstance(target, KnownLikelihood):
        return one
    if len(first.mode) > MOST_PARAMETERS:
        return dataclasses.replace(one, searched=False)
    found = [first]
    for start in _starts(target, first, seed):
        rough = descend(target, start, iterations=150, gradient=1e-4)[0].x
        if not np.all(np.isfinite(rough)) or any(_distance(rough, known) < SAME for known in found):
            continue
        try:
            center = laplace(target, find_mode(target, rough))
        except (InvalidInput, np.linalg.LinAlgError, FloatingPointError):
            continue  # a descent to infinity or onto a ridge: no mode there
        if all(_distance(center.mode, known) > SAME for known in found):
            found.append(center)
    mass = np.array(
        [-float(target.potentials(c.mode[None])[0]) - 0.5 * np.linalg.slogdet(c.precision)[1] for c in found]
    )
    shares = np.exp(mass - mass.max())
    shares /= shares.sum()
    order = [i for i in np.argsort(-shares) if shares[i] > LEAST_SHARE]
    return Modes(tuple(found[i] for i in order), shares[order] / shares[order].sum(), searched=True)


def _starts(target: Target, first: Laplace, seed: int) -> np.ndarray:
    """Points around the first mode, at distances spread evenly over their logarithms, and around the origin."""
    rng = np.random.default_rng(seed)
    d, root = len(first.mode), inverse_root(first.precision)
    cheap = not isinstance(target, SumOverData) or target.num_data <= CHEAP
    count = max(FEWEST, MOST // d) if cheap else FEWEST
    directions = rng.standard_normal((count, d))
    directions *= np.sqrt(d) / np.linalg.norm(directions, axis=1, keepdims=True)
    away = np.geomspace(*RADII, count)[:, None] * directions @ root.T
    half = AROUND_ORIGIN * rng.standard_normal((count // 3, d))
    return np.concatenate([first.mode + away, first.mode - away, half, -half, -first.mode[None]])


def _distance(theta: np.ndarray, center: Laplace) -> float:
    """How far a point is from a mode, in standard deviations there."""
    gap = theta - center.mode
    return float(np.sqrt(gap @ center.precision @ gap))
