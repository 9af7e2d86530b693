"""Results by site of a NumPyro model: observables, draws, posterior predictive data, and a table of means with their errors.

Input: the posterior of a model, or what `gyromc.expect` or `gyromc.run` returned for it. Output: values by site name, in
constrained space. The error of a standard deviation from a run is that of h² - 2μ̂h, to first order.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive

from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning
from gyromc.estimation.bias import predicted_or_not
from gyromc.estimation.estimate import Estimate, Estimates, estimate
from gyromc.interop.models import Sites, element_name
from gyromc.interop.numpyro.posterior import NumPyroPosterior
from gyromc.interop.numpyro.reading import DrivePlates, on_device
from gyromc.observables import Observable
from gyromc.posterior import Posterior as Found
from gyromc.precision import private
from gyromc.results import Average, Run
from gyromc.show.records import Column, Records
from gyromc.show.tables import Shown, Table
from gyromc.statistics import ChainAverages

POWERS = {1: "", 2: "^2"}
"""What follows the name of an element in that of its power."""


class SiteElement(Observable):
    """One element of a site's constrained value, or its square.

    It comes from the `transform` of this site alone, or, where one is not enough, from `everything`, the function from parameters
    to all sites. `shape`: of the unconstrained site; None for a deterministic one.
    """

    site: str = eqx.field(static=True)
    index: tuple[int, ...] = eqx.field(static=True)
    power: int = eqx.field(static=True)
    transform: Any
    everything: Callable | None
    unravel: Callable
    shape: tuple[int, ...] | None = eqx.field(static=True)

    def __call__(self, params):
        """The element at unconstrained parameters."""
        params = params if isinstance(params, dict) else self.unravel(params)
        found = np.shape(params[self.site]) if self.site in params else "nothing"
        require(
            self.shape in (None, found),
            f"Site {self.site!r} has unconstrained shape {self.shape}: the parameters give {found} for it. "
            "Begin with `target.start`.",
        )
        value = self.everything(params)[self.site] if self.everything else self.transform(params[self.site])
        return jnp.asarray(value)[self.index] ** self.power


def observables(
    target: NumPyroPosterior, sites: Sequence[str] | None = None, *, squares: bool = False
) -> dict[str, Observable]:
    """The elements of the model's sites, in constrained space, as observables by name: `"tau"`, `"beta[0]"`, `"W[1, 2]"`.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`: which sites; default: all latent sites, and the deterministic ones outside a subsampled plate.
    - `squares`: add the square of each, `"tau^2"`, for posterior standard deviations.

    **Returns:** observables by name, for `gm.Plan`.

    ```python
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.deterministic("variance", scale**2)
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    assert list(gnp.observables(gnp.target(model, 0.3), squares=True)) == ["scale", "variance", "scale^2", "variance^2"]
    ```
    """
    require(
        isinstance(target, NumPyroPosterior), f"`target` must be a posterior of a model: got {type(target).__name__}."
    )
    values = Sites(target, sites)
    # For elements that need the whole model.
    everything = jax.jit(lambda params: values(params))
    found = {}
    for power in POWERS if squares else (1,):
        for site in values.names:
            transform, shape = target.structure.transforms.get(site), target.parameters.get(site)
            how = (transform, None if transform else everything, target.unravel, shape)
            for index in np.ndindex(target.structure.shapes[site]):
                found[element_name(site, index) + POWERS[power]] = SiteElement(site, index, power, *how)
    return found


def draws(result: Run | Found, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The kept states in constrained space: {site: chains × draws × the site's shape}.

    **Arguments:**

    - `result`: of `gyromc.expect`, whose draws have `weights`; or a run of a plan, made with `thin`.
    - `sites`: which sites; left out: all latent sites, and the deterministic ones outside a subsampled plate.

    **Returns:** arrays by site name.
    """
    target = _posterior(result)
    require(
        result.draws is not None, "This run kept no draws: run it with `gm.run(plan, thin=10)` to keep every tenth."
    )
    return target.reported(result.draws, sites)


def predictive(
    result: Run | Found, *args: Any, draws_used: int | None = None, seed: int = 0, **kwargs: Any
) -> dict[str, np.ndarray]:
    """New data from the posterior, by `numpyro.infer.Predictive`: {site: draws × the site's shape}, on all rows of every plate.

    **Arguments:**

    - `result`: as for `draws`.
    - `args`, `kwargs`: the model's arguments for the new data, without observations; default: the posterior's own,
      with the observed sites drawn anew.
    - `draws_used`: how many posterior draws, spread evenly over chains and time; default: all.
    - `seed`: of the new data.

    **Returns:** arrays by site name, the deterministic sites included.
    """
    target = _posterior(result)
    kept = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws(result, target.sites).items()}
    count = len(next(iter(kept.values())))
    wanted = count if draws_used is None else whole(draws_used, "draws_used", least=1, most=count)
    if isinstance(result, Found):  # equal weights
        kept = target.reported(result.resampled(wanted, seed)[None], target.sites)
        kept = {name: value[0] for name, value in kept.items()}
    else:
        rows = np.linspace(0, count - 1, wanted).round().astype(int)
        kept = {name: value[rows] for name, value in kept.items()}
    model = DrivePlates(private(target.model), drawing=True)
    if not args and not kwargs:
        args, kwargs, model = target.args, target.kwargs, handlers.uncondition(model)
    args, kwargs = on_device((args, kwargs))
    generate = Predictive(model, posterior_samples=kept)
    return {name: np.asarray(value) for name, value in generate(jax.random.key(seed), *args, **kwargs).items()}


def _posterior(result: Run | Found) -> NumPyroPosterior:
    require(
        isinstance(result, Run | Found),
        f"What `gm.expect` or `gm.run` returned is needed: got {type(result).__name__}.",
    )
    target = result.plan.target if isinstance(result, Run) else getattr(result.model, "target", None)
    require(
        isinstance(target, NumPyroPosterior),
        f"This result's target is not a NumPyro model ({type(target).__name__}): use `gyromc.interop.numpyro.target`.",
    )
    return target  # type: ignore[return-value]  # checked above


@dataclasses.dataclass(frozen=True)
class Row:
    """One element of a site: posterior mean and standard deviation with their errors, and diagnostics of the mean."""

    mean: float
    std_error: float
    sd: float
    sd_error: float | None
    bias: float | None
    r_hat: float

    @property
    def ess(self) -> float:
        """How many independent draws would give the mean the same error."""
        return (self.sd / self.std_error) ** 2 if self.std_error > 0 else math.nan


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Summary(Records[Row], Shown):
    """Rows by element name: `summary["beta[0]"].mean` or `summary.mean["beta[0]"]`; prints as a table.

    `warnings` say what may be wrong and what to do, as in `gyromc.estimate`.
    """

    rows: Mapping[str, Row]
    note: str
    warnings: Sequence[str] = ()

    _entry = "element"
    _result = "summary"
    mean = Column[float]("The posterior mean.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    sd = Column[float]("The posterior standard deviation.")
    sd_error = Column[float | None]("The Monte Carlo standard error of `sd`; None where it was not computed.")
    bias = Column[float | None]("The bias of `mean` from the step size; None where it is not known.")
    r_hat = Column[float]("Split R-hat of the mean: 1 when the halves of all chains agree.")
    ess = Column[float]("How many independent draws would give the mean the same error.")

    def shown(self) -> Sequence[Table | str]:
        """One table without the columns of which nothing is known, with a note below it, and the warnings."""
        columns = ("site", "mean", "± (Monte Carlo)", "sd", "± (Monte Carlo)", "bias", "R-hat", "ESS")
        cells = [(name, *_cells(row)) for name, row in self.items()]
        kept = [i for i, _ in enumerate(columns) if any(row[i] for row in cells)]
        rows = [tuple(row[i] or "?" for i in kept) for row in cells]
        table = Table(tuple(columns[i] for i in kept), rows, "Posterior", (self.note,))
        return [table, *(f"WARNING: {sentence}" for sentence in self.warnings)]


def _cells(row: Row) -> tuple[str, ...]:
    """The numbers of a row as text, empty where they are not known."""
    shown = lambda value, digits: f"{value:.{digits}g}" if value is not None and math.isfinite(value) else ""
    pairs = shown(row.mean, 5), shown(row.std_error, 2), shown(row.sd, 4), shown(row.sd_error, 2)
    return *pairs, shown(row.bias, 2), shown(row.r_hat, 4), shown(row.ess, 4)


def summary(result: Found | Run | Estimates) -> Summary:
    """Posterior means and standard deviations by element of every site, with their errors, R-hat and effective draws.

    **Arguments:**

    - `result`: what `gyromc.expect` returned. Or a run of a plan from `gyromc.interop.numpyro.plan`, with two chains at least:
      its bias is known where it can be predicted in seconds. Or the estimates of such a run: `summary(gm.estimate(run,
      second_step_size=True))` has the measured bias. What is wrong with its chains is a warning here too.

    **Returns:** a `Summary`.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    import gyromc as gm
    from gyromc.interop import numpyro as gnp

    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 2.0)), 0.5), obs=y)

    table = gnp.summary(gm.expect(gnp.target(model, np.array([1.0]))))
    assert abs(table["m"].mean - 4 / 4.25) < 0.02
    ```
    """
    if isinstance(result, Found):
        rows = {name: Row(row.mean, row.std_error, row.sd, None, None, row.r_hat) for name, row in result.items()}
        spent = result.account
        note = f"{spent.method}: {spent.chains} chains, {spent.states:,} states, {spent.gradients:,} gradients"
        return Summary(rows, note, tuple(result.warnings))
    require(
        isinstance(result, Run | Estimates),
        f"`summary` takes what `gm.expect` or `gm.run` returned: got {type(result).__name__}.",
    )
    return _summary_of_run(result)


def _summary_of_run(result: Run | Estimates) -> Summary:
    """The summary from averages of sites and their squares."""
    run = result.run if isinstance(result, Estimates) else result
    good = int((~run.diverged).sum())
    require(good > 1, f"Errors of standard deviations need two chains at least: this run has {good}.")
    elements = {name: h for name, h in run.plan.observables.items() if isinstance(h, SiteElement) and h.power == 1}
    squares = {name: element_name(h.site, h.index) + POWERS[2] for name, h in elements.items()}
    pairs = {name: square for name, square in squares.items() if square in run}
    require(
        pairs, "This run averaged no site together with its square: plan it with `observables(target, squares=True)`."
    )
    found = result if isinstance(result, Estimates) else _estimated(result)
    if isinstance(result, Run) and found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=3)
    rows = {name: _row(found[name], run[square]) for name, square in pairs.items()}
    return Summary(rows, _note(run, good, rows), tuple(found.warnings))


def _estimated(run: Run) -> Estimates:
    """The estimates of a run; an unknown bias is shown in the table and is no warning."""
    known = predicted_or_not(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)
        return estimate(run, bias="none" if any(bias.value is None for bias in known.values()) else known)


def _note(run: Run, good: int, rows: Mapping[str, Row]) -> str:
    plan = run.plan
    cost = f"{good} chains × {run.steps_done} steps, {type(plan.oracle).__name__}, η = {plan.eta_text}; "
    errors = f"errors from {run.error_method}, without the bias of the step size"
    if any(row.bias is None for row in rows.values()):
        errors += ", which `summary(gm.estimate(run, second_step_size=True))` measures"
    return cost + errors


def _row(found: Estimate, second: Average) -> Row:
    """Mean and sd from the averages of h and h²."""
    first, mean = found.average, found.mean
    variance = second.mean - mean**2
    sd = math.sqrt(variance) if variance > 0 else math.nan
    # The change of E[h²] - E[h]² to first order.
    change = ChainAverages(
        second.averages - 2 * mean * first.averages,
        second.blocks - 2 * mean * first.blocks,
        first.covered,
        first.durations,
        first.weights,
    )
    return Row(mean, found.std_error, sd, change.std_error / (2 * sd), found.bias, found.r_hat)
