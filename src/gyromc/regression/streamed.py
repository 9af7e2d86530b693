"""Bayesian regression over rows that do not fit into memory: the model and the priors of `fit`, by passes over a source.

One pass learns second moments and keeps a sample; a linear regression needs no more. Else the standardised rows are written to
a temporary file; the mode is found by passes over it, and chains read single rows of it.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from gyromc.checks import one_of, positive, require
from gyromc.data import Batches, RowSource, prefetched, store
from gyromc.data.source import block_rows
from gyromc.dynamics import overdamped
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.observables import linear
from gyromc.plan import Plan
from gyromc.regression.fit import Coefficient, solve
from gyromc.regression.standardised import RowSums
from gyromc.show.numbers import capital
from gyromc.solve.expect import expect
from gyromc.targets import StreamedRegression
from gyromc.targets.regressions import BY_FAMILY

SAMPLE = 20_000  # rows
LEVEL = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class Learnt:
    """What one pass tells: moments and ranges of the columns, then of y; whether all y are counts; some of the rows."""

    sums: RowSums
    whole: bool
    sample: tuple[np.ndarray, np.ndarray]


def learn(source: RowSource, sample: int = SAMPLE, seed: int = 0) -> Learnt:
    """One pass over a source: moments and ranges of all columns, and a random sample of the rows."""
    N, columns = source.num_rows, source.num_columns
    index = np.sort(np.random.default_rng(seed).choice(N, min(sample, N), replace=False))
    sums, count, whole, parts = RowSums.empty(columns), 0, True, []
    for X, y in prefetched(source.blocks(block_rows(columns + 1))):
        X, y = np.asarray(X, float), np.asarray(y, float)
        bad = ~(np.isfinite(X).all(axis=1) & np.isfinite(y))
        place = f"Row {count + int(np.argmax(bad)) + 1} of {source.name}"
        require(not bad.any(), f"{place} has a value that is missing or infinite.")
        own = index[np.searchsorted(index, count) : np.searchsorted(index, count + len(y))] - count
        parts.append((X[own], y[own]))
        sums, count = sums.add(X, y), count + len(y)
        whole = whole and bool(np.all((y >= 0) & (y == np.round(y))))
    X, y = map(np.concatenate, zip(*parts, strict=True))
    return Learnt(sums, whole, (X, y))


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedFit:
    """The coefficients of a regression over a source, the intercept first, in the user's units."""

    family: str
    num_rows: int
    coefficients: tuple[Coefficient, ...]
    reason: str  # how they were computed
    warnings: tuple[str, ...]  # what was not reached
    sample: tuple[np.ndarray, np.ndarray]  # X and y of some rows, for checks of the model


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

    - `source`: a value of `gyromc.data`.
    - `family`: left out: logistic where y is 0 or 1, refused otherwise.
    - `prior_scale`: prior standard deviation of a coefficient per standard deviation of its column (and of a linear y).
    - `error`: of every mean, in posterior standard deviations.
    - `seed`: of the sample and of the chains; `say`: a function such as `print` that gets a line for each stage.
    """
    columns = tuple(names or (f"x{j}" for j in range(source.num_columns)))
    say(f"reading {source.num_rows:,} rows × {source.num_columns} columns: centre and scale of each column")
    learnt = learn(source, seed=seed)
    binary = learnt.sums.two_values[-1] and tuple(learnt.sums.ends[:, -1]) == (0, 1)
    if family is None and not binary:
        kind = "counts" if learnt.whole else "numbers"
        raise InvalidInput(f"y holds {kind} that are not only 0 and 1: say which family it has, linear or poisson.")
    law = "logistic" if family is None else one_of(family, BY_FAMILY, "family")
    require(law != "logistic" or binary, "A logistic regression needs a y of 0 and 1.")
    require(law != "poisson" or learnt.whole, "A Poisson regression needs counts: y has negative or broken numbers.")
    positive(prior_scale, "prior_scale")
    if law == "linear":
        standard = learnt.sums.standardised(prior_scale, intercept=True)
        found = solve(standard, columns, error, level=LEVEL, num_draws=1).coefficients
        warnings = ()
        reason = (
            "Given σ the posterior is Gaussian, and it depends on the data through their second moments, which one pass over all "
            "rows gave; σ was integrated out by quadrature. No chain was run."
        )
    else:
        units = learnt.sums.units(prior_scale, measured=False)
        found, reason, warnings = _sampled(source, units, law, prior_scale, error, ("intercept", *columns), seed, say)
    return StreamedFit(law, source.num_rows, found, reason, warnings, learnt.sample)


def _sampled(source, units, family, prior_scale, error, labels, seed, say):
    T, offset = units.coefficients(np.eye(1))
    blocks = lambda: source.blocks(block_rows(source.num_columns + 1))
    standardised = lambda: ((units.rows(np.asarray(X, float)), y) for X, y in blocks())
    with tempfile.TemporaryDirectory(prefix="gyromc-rows-") as folder:
        size = source.num_rows * (source.num_columns + 2) * 4
        say(f"writing the standardised rows to {folder}, {size / 1e9:.2g} GB in float32, deleted afterwards")
        rows = store(Batches(standardised, source.num_rows, source.name), folder)
        target = StreamedRegression(rows, family, prior_scale)
        say("finding the mode by passes over all rows")
        model = Model(target)
        sd = np.sqrt(np.einsum("ji,ji->j", T @ np.linalg.inv(model.precision), T))
        say("running chains that read single rows")
        chosen = {name: linear(row) for name, row in zip(labels, T, strict=True)}
        # A plan passes the model on, so that the mode is found once.
        any_run = {"dynamics": overdamped(model.dim), "step_size": 0.1, "num_steps": 1}
        plan = Plan(target=target, observables=chosen, **any_run).knowing(model)
        found = expect(plan, chosen, error, seed=seed, progress=False)
    rows = []
    for name, start, width in zip(labels, offset, map(float, sd), strict=True):
        mean, half = found[name].mean + float(start), float(special.ndtri((1 + LEVEL) / 2)) * width
        rows.append(Coefficient(name, None, mean, width, mean - half, mean + half, found[name].std_error))
    reason = (
        f"{capital(found.account.sentence())}. Means come from the chains; standard deviations and intervals are those of "
        "the Gaussian at the mode, whose curvature was computed from all rows."
    )
    return tuple(rows), reason, tuple(found.warnings)
