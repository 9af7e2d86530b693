"""Bayesian regression over rows that do not fit into memory: the model and the priors of `fit`, by passes over a source.

Input: a source of rows and a family. Output: a `StreamedFit`, the coefficients with their errors. A first pass learns centre and
scale of the columns and keeps a random sample of the rows. A linear regression then needs one more pass: its posterior depends
on the data through their second moments only, and σ is integrated out as in memory. Logistic and Poisson regressions are written,
standardised, to a file in a temporary folder; the mode is found by passes over it, and `gyromc.expect` runs chains that read
single rows of it.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import special

from gyromc.checks import one_of, positive, require
from gyromc.data import RowSource, over_blocks, prefetched, store
from gyromc.data.source import block_rows
from gyromc.dynamics import overdamped
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.observables import linear
from gyromc.plan import Plan
from gyromc.regression.fit import Coefficient, solve
from gyromc.regression.standardised import INTERCEPT_SCALE, Standardised, Units
from gyromc.solve.expect import expect
from gyromc.targets import MixedRegression, StreamedRegression
from gyromc.targets.families import Normal
from gyromc.targets.regressions import BY_FAMILY

__all__ = ["Learnt", "StreamedFit", "fit_streamed", "learn"]

SAMPLE = 20_000  # rows
LEVEL = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class Learnt:
    """What one pass over all rows tells.

    **Attributes:**

    - `mean`, `sd`, `low`, `high`: of the columns, then of y; `two_values`: which of them take two values.
    - `whole`: whether every y is a whole number that is not negative.
    - `sample`: some rows, drawn without replacement, in their order.
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    two_values: np.ndarray
    whole: bool
    sample: tuple[np.ndarray, np.ndarray]

    def units(self, prior_scale: float, measured: bool) -> Units:
        """The units of `regression.fit`: columns of two values are scaled by half their distance."""
        scale = np.where(self.sd > 1e-10 * np.maximum(np.abs(self.high), np.abs(self.low)), self.sd, 1.0)
        y_center, y_scale = (self.mean[-1], scale[-1]) if measured else (0.0, 1.0)
        scale = np.where(self.two_values, (self.high - self.low) / 2, scale)[:-1]
        return Units(self.mean[:-1], scale, float(y_center), float(y_scale), INTERCEPT_SCALE / prior_scale)

    @property
    def family(self) -> str | None:
        """Logistic for a y of 0 and 1; None where y does not say."""
        return "logistic" if self.two_values[-1] and (self.low[-1], self.high[-1]) == (0, 1) else None


def learn(source: RowSource, sample: int = SAMPLE, seed: int = 0) -> Learnt:
    """One pass over a source: moments and ranges of all columns, and a random sample of the rows."""
    N, d = source.num_rows, source.num_columns + 1
    index = np.sort(np.random.default_rng(seed).choice(N, min(sample, N), replace=False))
    count, mean, squares = 0, np.zeros(d), np.zeros(d)
    low, high, two, whole = np.full(d, np.inf), np.full(d, -np.inf), np.ones(d, bool), True
    values, parts = np.full((2, d), np.nan), []
    for X, y in prefetched(source.blocks(block_rows(d))):
        rows = np.concatenate([np.asarray(X, float), np.asarray(y, float)[:, None]], axis=1)
        bad = ~np.isfinite(rows).all(axis=1)
        require(
            not bad.any(),
            f"Row {count + int(np.argmax(bad)) + 1} of {source.name} has a value that is missing or infinite.",
        )
        own = index[np.searchsorted(index, count) : np.searchsorted(index, count + len(rows))] - count
        parts.append(rows[own])
        center = rows.mean(axis=0)
        away, share = center - mean, len(rows) / (count + len(rows))
        squares += np.sum((rows - center) ** 2, axis=0) + away**2 * count * share
        mean, count = mean + away * share, count + len(rows)
        low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        whole = whole and bool(np.all((y >= 0) & (y == np.round(y))))
        for j in np.flatnonzero(two):
            two[j] = _two(rows[:, j], values[:, j])
    kept = np.concatenate(parts)
    found = kept[:, :-1], kept[:, -1]
    return Learnt(mean, np.sqrt(squares / count), low, high, two & (low < high), whole, found)


def _two(column: np.ndarray, values: np.ndarray) -> bool:
    """Whether a column has no more than the two values seen so far, which are noted."""
    if np.isnan(values[0]):
        values[0] = column[0]
    others = column[column != values[0]]
    if len(others) and np.isnan(values[1]):
        values[1] = others[0]
    return bool(np.all(others == values[1])) if len(others) else True


class _Standardised(RowSource):
    """The rows of a source in other units, with an intercept."""

    def __init__(self, source: RowSource, units: Units):
        self.source, self.units, self.name = source, units, source.name
        self.num_rows, self.num_columns = source.num_rows, source.num_columns + 1

    def blocks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for X, y in self.source.blocks(size):
            yield self.units.rows(np.asarray(X, float)), np.asarray(y, float)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedFit:
    """The coefficients of a regression over a source.

    **Attributes:**

    - `family`, `num_rows`; `coefficients`: the intercept first, in the user's units.
    - `reason`: how they were computed; `warnings`: what was not reached.
    - `sample`: X and y of some rows, for checks of the model.
    """

    family: str
    num_rows: int
    coefficients: tuple[Coefficient, ...]
    reason: str
    warnings: tuple[str, ...]
    sample: tuple[np.ndarray, np.ndarray]


def fit_streamed(
    source: RowSource,
    family: str | None = None,
    *,
    prior_scale: float = 2.5,
    error: float = 0.02,
    names: Sequence[str] | None = None,
    seed: int = 0,
    say: Callable[[str], object] = lambda line: None,
) -> StreamedFit:
    """Fit a linear, logistic or Poisson regression with an intercept to rows that are not in memory.

    **Arguments:**

    - `source`: a value of `gyromc.data`.
    - `family`: `"linear"`, `"logistic"` or `"poisson"`; left out: logistic where y is 0 or 1, refused otherwise.
    - `prior_scale`: prior standard deviation of a coefficient per standard deviation of its column (and of a linear y).
    - `error`: of every mean, bias included, in posterior standard deviations.
    - `names`: of the columns.
    - `seed`: of the sample and of the chains.
    - `say`: a function such as `print` that gets a line for each stage.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.regression.streamed import fit_streamed
    X = np.random.default_rng(0).standard_normal((1000, 1))
    found = fit_streamed(gm.data.Batches([(X, 2 * X[:, 0] + 1)], num_rows=1000), "linear", names=["x"])
    assert [c.name for c in found.coefficients] == ["intercept", "x"] and abs(found.coefficients[1].mean - 2) < 1e-3
    ```
    """
    names = tuple(names or (f"x{j}" for j in range(source.num_columns)))
    say(f"reading {source.num_rows:,} rows × {source.num_columns} columns: centre and scale of each column")
    learnt = learn(source, seed=seed)
    family = learnt.family if family is None else one_of(family, BY_FAMILY, "family")
    if family is None:
        kind = "counts" if learnt.whole else "numbers"
        raise InvalidInput(f"y holds {kind} that are not only 0 and 1: say which family it has, linear or poisson.")
    require(family != "logistic" or learnt.family == "logistic", "A logistic regression needs a y of 0 and 1.")
    require(family != "poisson" or learnt.whole, "A Poisson regression needs counts: y has negative or broken numbers.")
    units = learnt.units(positive(prior_scale, "prior_scale"), family == "linear")
    if family == "linear":
        found, reason, warnings = _linear(source, units, prior_scale, names), INTEGRATED, ()
    else:
        found, reason, warnings = _sampled(source, units, family, prior_scale, error, ("intercept", *names), seed, say)
    return StreamedFit(family, source.num_rows, found, reason, warnings, learnt.sample)


INTEGRATED = (
    "Given σ the posterior is Gaussian, and it depends on the data through their second moments, which one pass over all rows "
    "gave; σ was integrated out by quadrature. No chain was run."
)


def _linear(source: RowSource, units: Units, prior_scale: float, names: Sequence[str]) -> tuple[Coefficient, ...]:
    def gram(X, y):
        rows = np.concatenate(
            [units.rows(np.asarray(X, float)), ((y - units.y_center) / units.y_scale)[:, None]], axis=1
        )
        return rows.T @ rows

    values, vectors = np.linalg.eigh(sum(over_blocks(source, gram)))
    rows = (vectors * np.sqrt(np.maximum(values, 0.0))).T  # few rows with the same second moments as all
    target = MixedRegression(rows[:, :-1], rows[:, -1], Normal(), prior_scale)
    return solve(Standardised(target, units, source.num_rows), names, 1.0, level=LEVEL, num_draws=1).coefficients


def _sampled(source, units, family, prior_scale, error, labels, seed, say):
    """Coefficients of a logistic or Poisson regression: chains over a standardised copy on disk."""
    T, offset = units.coefficients(np.eye(1))
    with tempfile.TemporaryDirectory(prefix="gyromc-rows-") as folder:
        size = source.num_rows * (source.num_columns + 2) * 4
        say(f"writing the standardised rows to {folder}, {size / 1e9:.2g} GB in float32, deleted afterwards")
        target = StreamedRegression(store(_Standardised(source, units), folder), family, prior_scale)
        say("finding the mode by passes over all rows")
        model = Model(target)
        sd = np.sqrt(np.einsum("ji,ji->j", T @ np.linalg.inv(model.precision), T))
        say("running chains that read single rows")
        chosen = {name: linear(row) for name, row in zip(labels, T, strict=True)}
        found = expect(_plan(model, chosen), chosen, error, seed=seed, progress=False)
    half = float(special.ndtri((1 + LEVEL) / 2))
    rows = []
    for name, start, width in zip(labels, offset, sd, strict=True):
        one = found[name]
        mean = one.mean + float(start)
        rows.append(
            Coefficient(
                name, None, mean, float(width), mean - half * width, mean + half * width, one.std_error, one.bias
            )
        )
    work = found.account.sentence()
    reason = (
        f"{work[:1].upper()}{work[1:]}. Means come from the chains; standard deviations and intervals are those of the Gaussian "
        "at the mode, whose curvature was computed from all rows."
    )
    return tuple(rows), reason, tuple(found.warnings)


def _plan(model: Model, observables):
    """A plan that passes the model on to the tuner, so that the mode is found once."""
    plan = Plan(
        target=model.target, dynamics=overdamped(model.dim), observables=observables, step_size=0.1, num_steps=1
    )
    return plan.knowing(model)
