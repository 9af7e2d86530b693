"""compare: which family of models describes the responses best, by leave-one-out cross-validation.

The family to take is the simplest that is not clearly worse than the best. The fits are cheap (a few hundred draws, at most
`MOST_ROWS` rows), because differences between families that matter are large.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from gyromc.checks import one_of, require, shown, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.regression.adequacy.assess import chosen_rows
from gyromc.regression.draws import Predictive
from gyromc.regression.fit import fit
from gyromc.regression.problem import by_row, cut, of_family, read_groups
from gyromc.regression.scores import Loo, loo, total
from gyromc.show.numbers import counted, number, plus_minus
from gyromc.targets.base import read_rows
from gyromc.targets.families import FAMILIES

CLEAR = 2.0  # standard errors
LEAST = 4.0  # a smaller difference of elpd is no reason for the more complicated family
MOST_ROWS = 1000
NUM_DRAWS = 512
EFFORT = 0.1  # error of means, in posterior standard deviations
TINY = 1e-8  # probability below which a density stands for that of a whole number


@dataclasses.dataclass(frozen=True)
class ComparedFamily:
    """One family in a comparison; None stands for what is not known of one that could not be fitted, `refused`."""

    family: str
    elpd: float | None = None
    std_error: float | None = None
    p_loo: float | None = None
    difference: float | None = None  # elpd less that of the best family
    difference_std_error: float | None = None  # from paired rows
    without_one: tuple[float, float] | None = None  # both without the row that favours the best family most
    heavy: int = 0  # rows that decide about the posterior (Pareto's k above 0.7), whose part of elpd is not reliable
    refused: str | None = None

    @staticmethod
    def against(rows: np.ndarray, best: np.ndarray, scale: float) -> dict[str, Any]:
        """Differences to the best, from the elpd of both in the same rows, each of which stands for `scale` rows."""
        # One extreme row makes the standard error as large as the difference, and so hides what all other rows say.
        kept = np.arange(rows.size) != np.argmin(rows - best)
        difference, error = total(rows - best, scale)
        without_one = total((rows - best)[kept], scale)
        return {"difference": difference, "difference_std_error": error, "without_one": without_one}

    @property
    def cells(self) -> list[str]:
        if self.elpd is None:
            return ["–", "–", "–", f"not fitted: {self.refused}"]
        gap = "–" if self.difference == 0 else plus_minus(self.difference, self.difference_std_error)
        doubts = f"; {counted(self.heavy, 'row')} with k > 0.7" if self.heavy else ""
        return [plus_minus(self.elpd, self.std_error), gap, number(self.p_loo), f"{self.verdict}{doubts}"]

    @property
    def verdict(self) -> str:
        if self.difference == 0:
            return "best"
        return "clearly worse" if self.clearly_worse else "not clearly worse"

    @property
    def clearly_worse(self) -> bool:
        """Whether elpd is lower than the best by more than 4 and two standard errors, with all rows or without one."""
        if self.difference is None or self.difference_std_error is None:
            return True
        pairs = [(self.difference, self.difference_std_error), *([self.without_one] if self.without_one else [])]
        return any(-difference > max(LEAST, CLEAR * error) for difference, error in pairs)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Families compared, in the order in which they were given, the simplest first; `rows` of `of_rows` were fitted."""

    candidates: tuple[ComparedFamily, ...]
    rows: int
    of_rows: int

    @property
    def chosen(self) -> str:
        """The simplest family that is not clearly worse than the best."""
        return next(one.family for one in self.candidates if not one.clearly_worse)

    @property
    def best(self) -> ComparedFamily:
        return next(one for one in self.candidates if one.difference == 0)

    @property
    def reason(self) -> str:
        fitted = [one for one in self.candidates if one.elpd is not None]
        if len(fitted) == 1:
            return f"{self.chosen} is the only family of {len(self.candidates)} that could be fitted"
        if self.chosen != self.best.family:
            chosen = next(one for one in fitted if one.family == self.chosen)
            return f"{self.chosen} is simpler than {self.best.family} and not clearly worse: by {_gap(chosen)} in elpd"
        other = max((one for one in fitted if one is not self.best), key=lambda one: one.difference or 0.0)
        if other.clearly_worse:
            better = f"clearly better than {other.family}: by {_gap(other)} in elpd"
            return f"{self.chosen} predicts rows that are left out {better}"
        return f"{self.chosen} is simpler than {other.family} and predicts no worse: {_gap(other)} better in elpd"


def _gap(one: ComparedFamily) -> str:
    gap, error = -(one.difference or 0.0), one.difference_std_error or 0.0
    text = plus_minus(gap, error)
    if one.clearly_worse and one.without_one and gap <= CLEAR * error:
        text += f" (without one extreme row {plus_minus(-one.without_one[0], one.without_one[1])})"
    return text


def compare(
    X, y, families, *, weights=None, offset=None, trials=None, censored=None, groups=(), seed: int = 0, **options: Any
) -> Comparison:
    """Compare families for the same rows by leave-one-out cross-validation (PSIS-LOO).

    Families of numbers are compared with families of counts where all responses are whole: a law of numbers then counts with the
    probability that it gives to the numbers within ½. A family that cannot be fitted to these rows is kept with the reason.

    - `X`, `y`, `weights`, `offset`, `trials`, `censored`, `groups`: as for `fit`. Of more than 1000 rows, 1000 are taken.
    - `families`: names, the simplest first: that order decides where the difference is not clear.
    - `options`: what else `fit` takes: `priors`, `prior_scale`, `intercept`, `names`, `classes`, …
    """
    require(isinstance(families, list | tuple), f"`families` must be a list of names: got {shown(families)}.")
    names = [one_of(family, FAMILIES, "families") for family in families]
    require(0 < len(set(names)) == len(names), f"`families` must name each family once: got {shown(families)}.")
    X, y = read_rows(X, y)
    given = by_row(len(y), weights=weights, offset=offset, trials=trials, censored=censored)
    w = given.pop("weights")
    counted_rows = np.arange(len(y)) if w is None else np.flatnonzero(w > 0)
    require(counted_rows.size, "`X` and `weights` must leave a row of positive weight.")
    rng = np.random.default_rng([whole(seed, "seed", least=0), 9])
    rows = counted_rows[chosen_rows(len(counted_rows), rng, MOST_ROWS)]
    beside = cut({**given, "groups": read_groups(groups, len(y)) or None}, rows)
    part, num_rows, y = X[rows], len(y), y[rows]
    found: dict[str, Loo | str] = {}
    for family in families:
        given = {"weights": None if w is None else w[rows], "seed": seed, **options}
        given["priors"] = of_family(options.get("priors"), family)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GyromcWarning)  # the errors of a comparison are those of LOO
                posterior = fit(part, y, family, num_draws=NUM_DRAWS, effort=EFFORT, **beside, **given).posterior
            law = Predictive.of(posterior, part, **beside)
            density = law.log_density(y)
            if np.all(y == np.round(y)) and not law.likelihood.discrete and not law.likelihood.known:
                near = law.cdf(y + 0.5) - law.cdf(y - 0.5)
                density = np.where(near > TINY, np.log(np.maximum(near, TINY)), density)
            found[family] = loo(density if w is None else w[rows] * density, len(counted_rows) / len(rows))
        except InvalidInput as refusal:
            found[family] = str(refusal)
    fitted = {family: one for family, one in found.items() if isinstance(one, Loo)}
    if not fitted:
        raise InvalidInput(f"No family could be fitted. {'; '.join(f'{name}: {why}' for name, why in found.items())}")
    best = max(fitted.values(), key=lambda one: one.elpd).elpd_rows
    candidates = []
    for name, one in found.items():
        if isinstance(one, str):
            candidates.append(ComparedFamily(name, refused=one))
            continue
        known = one.elpd, one.std_error, one.p_loo
        against = ComparedFamily.against(one.elpd_rows, best, one.scale)
        candidates.append(ComparedFamily(name, *known, heavy=int(one.influential.size), **against))
    return Comparison(tuple(candidates), len(rows), num_rows)
