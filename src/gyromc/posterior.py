"""The posterior: means with their errors, standard deviations, weighted draws and checks. What `gm.expect` returns.

Draws carry weights from the zero-mean functions that sharpened the means, so quantiles and exported draws gain too.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gyromc.approx.sample import systematic
from gyromc.checks import coverage, numbers, require, shown, whole
from gyromc.extras import function_above, needs
from gyromc.flat import axes_of, shaped
from gyromc.runtime.machine import require_memory
from gyromc.show.numbers import duration
from gyromc.show.records import Column, Forwarded, Records, Row, plain_attributes
from gyromc.show.tables import Shown, Table
from gyromc.statistics import student_interval


class PosteriorRow:
    """One number of a posterior: its mean with the Monte Carlo error, and its posterior standard deviation."""

    mean: float
    sd: float
    std_error: float

    @property
    def relative_error(self) -> float:
        """`std_error` in posterior standard deviations; 0 for a number that does not vary."""
        return self.std_error / self.sd if self.sd > 0 else 0.0

    @property
    def ess(self) -> float:
        """How many independent draws have the same error."""
        return (self.sd / self.std_error) ** 2 if self.std_error > 0 else math.inf


class PosteriorTable(Records[Row]):
    """What is known of the numbers of a posterior, by name: what `expect` and regressions return."""

    mean = Column[float]("The posterior mean.")
    sd = Column[float]("The posterior standard deviation.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    relative_error = Column[float]("`std_error` in posterior standard deviations.")
    ess = Column[float]("How many independent draws have the same error.")


@dataclasses.dataclass(frozen=True)
class PosteriorMean(PosteriorRow):
    """One expectation: the estimate, its standard error with its degrees of freedom, the posterior standard deviation.

    - `r_hat`: split R-hat of the plain averages; 1 when the halves of all chains agree.
    - `gain`: how many times more states a plain average would need for the same error; `fields`: the functions that were used.
    """

    name: str
    mean: float
    std_error: float
    dof: int
    sd: float
    r_hat: float
    gain: float
    fields: str
    level: float = 0.95

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the mean at the posterior's `level`."""
        return student_interval(self.mean, self.std_error, self.level, self.dof)

    @property
    def total_error(self) -> float:
        """The root mean square error of `mean`: `std_error`, as no bias is known."""
        return self.std_error

    def to_dict(self) -> dict[str, Any]:
        names = ("mean", "sd", "std_error", "relative_error", "interval", "r_hat", "ess", "gain", "fields")
        return plain_attributes(self, *names)


@dataclasses.dataclass(frozen=True)
class Account:
    """What a posterior cost and how it was computed.

    - `states`: how many states of all chains were averaged; `warm_up_gradients`: before the first of these states.
    - `gradients`: over all the data, descents and warm-up counted.
    - `rotation_gain`: how many times more states gradients of quadratics would need without rotations; the median over the
      observables that use rotations.
    """

    method: str
    chains: int
    states: int
    gradients: int
    warm_up_gradients: int
    seconds: float
    acceptance: float
    step_size: float
    rotation_gain: float = 1.0

    def sentence(self) -> str:
        turned = f"; of the gain, rotations {self.rotation_gain:.2g} ×" if self.rotation_gain >= 1.05 else ""
        return (
            f"{self.method}: {self.chains} chains, {self.states:,} states, {self.gradients:,} gradients "
            f"({self.warm_up_gradients:,} to warm up), {duration(self.seconds)}{turned}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Reported:
    """Draws as their target reports them, chains × draws × … for each array: all that a file of a posterior keeps of its model.

    `dims`: the names of the axes of each array, `coords`: their labels, where the target knows them.
    """

    parameters: Any
    dims: Mapping[str, Any]
    coords: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Posterior(PosteriorTable[PosteriorMean], Shown):
    """Posterior means with errors, by name, and draws: `found["x"].mean` and `found.mean["x"]` are the same number.

    - `draws`: states kept of every chain, chains × draws × d, over the vector of parameters; `weights` belong to them.
    - `values_at_draws`: the observables there, chains × draws × names; `account`: what it cost.
    - `warnings`: what may be wrong and what to do, empty when all is well; `hints`: what was not looked at.
    - `model`: the `Model` it is of; of a posterior that was read from a file, `Reported`.
    - `ended`: where the chains ended; `expect` takes it as the `start` for nearly the same posterior.
    """

    rows: Mapping[str, PosteriorMean]
    level: float
    draws: Float[np.ndarray, "chains draws d"]
    weights: Float[np.ndarray, "chains draws"]
    values_at_draws: Float[np.ndarray, "chains draws k"]
    warnings: list[str]
    hints: list[str]
    account: Account
    model: Any
    ended: Any = None

    _result = "posterior"
    interval = Column[tuple[float, float]]("The interval of the mean.")
    total_error = Column[float]("The root mean square error of `mean`.")
    r_hat = Column[float]("Split R-hat of the plain averages.")
    gain = Column[float]("How many times more states a plain average would need.")

    gradient_evaluations = Forwarded[int]("account.gradients", "All gradients computed, also in descents and warm-up.")

    @functools.cached_property
    def reported(self) -> Reported:
        """The draws as the target reports them, with the names of their axes."""
        if isinstance(self.model, Reported):
            return self.model
        target = self.model.target
        return Reported(target.reported(shaped(self.model.unravel, self.draws)), *axes_of(target))

    @property
    def parameters(self) -> Any:
        """The draws shaped like the parameters, as their target reports them: chains × draws × … for each array."""
        return self.reported.parameters

    def quantile(self, name: str, probabilities: float | Sequence[float]) -> np.ndarray:
        """Posterior quantiles of an observable, from the weighted draws: `found.quantile("x", [0.1, 0.9])`."""
        column, p = list(self).index(self[name].name), numbers(probabilities, "probabilities")
        require(np.all((p >= 0) & (p <= 1)), f"`probabilities` must lie between 0 and 1: got {shown(probabilities)}.")
        return weighted_quantiles(self.values_at_draws[..., column], self.weights, p)

    def credible(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The central posterior interval of an observable at a level."""
        half = (1 - coverage(level)) / 2
        low, high = self.quantile(name, [half, 1 - half])
        return float(low), float(high)

    def resampled(self, count: int, seed: int = 0) -> Float[np.ndarray, "count d"]:
        """Draws with equal weights, for packages that know no weights."""
        rng, count = np.random.default_rng(whole(seed, "seed", least=0)), whole(count, "count", least=1)
        flat = self.draws.reshape(-1, self.draws.shape[-1])
        require_memory(8 * count * (flat.shape[1] + 2), f"`count` = {count:,} draws", "Take fewer.")
        return flat[rng.permutation(systematic(self.weights.ravel(), count, rng))]

    def plot(self, names: str | Sequence[str] | None = None, kind: str = "density") -> Any:
        """Draw a Matplotlib figure of some observables, the first nine when left out.

        `kind` is `density` (with the mean and the interval at `level`), `forest`, `trace`, or `rank`: how often each chain has
        each rank among all draws, level where the chains agree.
        """
        with needs("plots", "`plot`"):
            from gyromc.show.plots import KINDS, posterior_plot
        require(
            isinstance(kind, str) and kind in KINDS, f"There is no figure {shown(kind)}: there are {', '.join(KINDS)}."
        )
        given: Any = list(self)[:9] if names is None else names
        chosen: list[str] = list(given) if isinstance(given, list | tuple) else [given]
        require(chosen, f"`names` must be of observables, such as {next(iter(self))!r}: got none.")
        columns = [list(self).index(self[name].name) for name in chosen]
        ends = np.array([self.credible(name, self.level) for name in chosen])
        means = np.array([self[name].mean for name in chosen])
        return posterior_plot(kind, chosen, self.values_at_draws[..., columns], self.weights, ends, means)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the draws as plain values, for JSON."""
        rows = {name: row.to_dict() for name, row in self.items()}
        said = {"warnings": list(self.warnings), "hints": list(self.hints)}
        return {"level": self.level, "account": dataclasses.asdict(self.account), "observables": rows, **said}

    def to_dataframe(self) -> Any:
        """A pandas table with one row for each observable."""
        with needs("fit", "`to_dataframe`"):
            import pandas as pd
        columns = ("mean", "sd", "std_error", "relative_error", "r_hat", "ess")
        rows = {n: [*(getattr(row, key) for key in columns), *self.credible(n, self.level)] for n, row in self.items()}
        return pd.DataFrame.from_dict(rows, orient="index", columns=[*columns, "low", "high"])

    def save(self, path: str | Path) -> None:
        """Write everything but the model itself to a file that `gyromc.load` reads, whole or not at all."""
        function_above("save_posterior")(self, path)

    def to_datatree(self) -> Any:
        """The draws as an ArviZ DataTree, with the sharpened means and their errors in the group `averages`."""
        return function_above("posterior_datatree")(self)

    def shown(self) -> Sequence[Table | str]:
        columns = ["", "mean", "sd", "std. error", f"{100 * self.level:g} % of the posterior", "R-hat", "ESS"]
        cells, most = [], 40
        for name, row in list(self.items())[:most]:
            low, high = self.credible(name, self.level)
            figures = [f"{row.mean:.6g}", f"{row.sd:.3g}", f"{row.std_error:.2g}", f"[{low:.4g}, {high:.4g}]"]
            cells.append([name, *figures, f"{row.r_hat:.3f}", f"{row.ess:.3g}"])
        more = [f"… and {len(self) - most} more"] if len(self) > most else []
        said = [f"WARNING: {text}" for text in self.warnings] + [f"hint: {text}" for text in self.hints]
        return [Table(columns, cells), *more, self.account.sentence(), *said]


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, probabilities: Any) -> np.ndarray:
    """Quantiles of weighted values, interpolated between the middles of their steps."""
    order = np.argsort(values, axis=None, kind="stable")
    x, w = values.ravel()[order], weights.ravel()[order]
    return np.asarray(np.interp(probabilities, (np.cumsum(w) - w / 2) / w.sum(), x))


def by_site(names: Sequence[str], affected: Sequence[str]) -> list[str]:
    """Names grouped by the array they belong to: "theta: 93 of 100 elements", single names as they are."""
    site = lambda name: re.sub(r"\[[\d, ]+\]$", "", name)
    totals = collections.Counter(map(site, names))
    found: dict[str, list[str]] = {}
    for name in affected:
        found.setdefault(site(name), []).append(name)
    texts = []
    for where, those in found.items():
        texts += those if len(those) <= 3 else [f"{where}: {len(those)} of {totals[where]} elements"]
    return texts
