"""Run: what a plan's run returned: averages per chain, failures, and the state to continue from.

A run is a mapping of observables to `Average` rows, whose means, errors and intervals `gyromc.statistics` computes when they are
read. A chain that failed has NaN for its average, is listed in `failures`, and takes no part in means and errors.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import Float, Int, UInt

from gyromc.checks import coverage, require, whole
from gyromc.errors import InvalidInput
from gyromc.extras import function_above
from gyromc.observables import Ridge
from gyromc.plan import Plan
from gyromc.prediction.exact.closed_forms import ridge_moments
from gyromc.prediction.martingale import HELPS
from gyromc.show.numbers import plain
from gyromc.show.records import Column, Records, plain_attributes
from gyromc.show.tables import Shown, Table
from gyromc.statistics import ChainAverages, ErrorMethod, student_interval

if TYPE_CHECKING:
    from xarray import DataTree

MOST_ROWS = 20_000  # draws at most, of which the variance of an observable over the posterior is computed
ENOUGH_CHAINS = 50  # so many chains' last states are a sample of the posterior


class Cause(enum.Enum):
    """Why a chain failed; the values are what messages say."""

    OUT_OF_RANGE = "the state left the sane range"
    STATE_NOT_FINITE = "the state became NaN or infinite"
    DENSITY_NOT_POSITIVE = "the density is zero or not finite there"
    OBSERVABLE_NOT_FINITE = "observable {} is NaN or infinite, though the state is finite"


@dataclasses.dataclass(frozen=True)
class Failure:
    """One chain that cannot be trusted: when it failed and why, with the observables that are to blame."""

    chain: int
    step: int
    cause: Cause
    observables: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The cause as text."""
        return self.cause.value.format(", ".join(self.observables))

    def __str__(self) -> str:
        return f"chain {self.chain} at step {self.step}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a plan was run, as in `gyromc.run`; a continued run uses the same."""

    engine: str
    reason: str  # for this engine
    progress: bool | Callable[[int], object] | None
    on_divergence: Literal["raise", "report"]
    thin: int | None
    sane_range: float
    mesh: Any = None  # with the axes of `gyromc.engines.meshes`; None: chains over all devices

    def __getstate__(self) -> dict[str, Any]:
        """All but a progress function and devices, which belong to the process that passed them: a run can be pickled."""
        return {**vars(self), "progress": None if callable(self.progress) else self.progress, "mesh": None}


@dataclasses.dataclass(frozen=True, eq=False)
class EngineState:
    """Where a run stands: all that is needed to continue as if it had never stopped."""

    step: int
    z: Float[np.ndarray, "chains size"]
    high: Float[np.ndarray, "chains sums"]
    low: Float[np.ndarray, "chains sums"]
    clock: tuple[float, float]
    failed_at: Int[np.ndarray, " chains"]
    generator: UInt[np.ndarray, "chains words"] | None = None  # for engines whose random numbers have a state
    # The sums after so many steps, and the time then.
    snapshots: Mapping[int, Float[np.ndarray, "chains sums"]] = dataclasses.field(default_factory=dict)
    clocks: Mapping[int, float] = dataclasses.field(default_factory=dict)
    anchors: Float[np.ndarray, "chains kept"] | None = None  # of an oracle that has one for each chain: 2d numbers
    checked: int | None = None  # the step at which U was last computed

    @property
    def sums(self) -> np.ndarray:
        """The weighted sums of the observables, chains × observables, in float64."""
        return self.high.astype(float) + self.low.astype(float)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Average(ChainAverages):
    """One observable's average over the chains of a run: `mean`, `std_error`, `interval` (95 %), `variance`, `r_hat`, `ess`."""

    name: str = ""
    time: float = math.nan  # over which each chain was averaged
    run: "Run | None" = None
    uncorrected: ChainAverages | None = None  # where the averages are less their martingale

    @property
    def plain(self) -> ChainAverages:
        """The averages without their martingale: the row itself where none was subtracted."""
        return self if self.uncorrected is None else self.uncorrected

    @property
    def gain(self) -> float:
        """How many times longer a run without the martingale would take for the same error; 1 where none was subtracted."""
        if self.uncorrected is None:
            return 1.0
        return self.uncorrected.error.variance / self.error.variance if self.error.variance > 0 else math.inf

    @property
    def variance(self) -> float:
        """The estimated fluctuation constant V(h): the variance of a chain's plain average times the time it ran for."""
        return self.time * self.plain.error.variance  # E6: Var ≈ V / (Nη)

    @functools.cached_property
    def posterior_variance(self) -> float:
        """Var_μ(h): by a formula, from kept draws, or from the last states of many chains; NaN where there is none of them."""
        if self.run is None:
            return math.nan
        h, known = self.run.plan.observables[self.name], self.run.plan.flat_target.gaussian()
        if known is not None and isinstance(h, Ridge) and np.any(h.direction):
            return ridge_moments(h, *known)[1]
        rows = self.run.posterior_rows
        return math.nan if rows is None else float(np.var(self.run.plan.model.values(h, rows), ddof=1))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(Records[Average], Shown):
    """What a run of a plan returned: a mapping of observables to rows, and data about the run as a whole.

    `run["x"].mean` and `run.mean["x"]` are the same number, and so for every `Column`.

    **Attributes**, besides the columns:

    - `plan`: what was asked for; `engine`: which engine ran it; `engine_reason`: why that one.
    - `failures`: the chains that failed, with step and reason; `partial`: whether it was interrupted.
    - `wall_time`, `compile_time`: in seconds; `state`: where the chains stand, for `continue_(more_steps)`.
    - `draws`: kept states, chains × draws, shaped like the parameters; `None` unless asked for.
    """

    plan: Plan
    engine: str
    state: EngineState
    wall_time: float
    compile_time: float
    partial: bool = False
    failures: tuple[Failure, ...] = ()
    draws: Any = None
    engine_reason: str = ""
    options: RunOptions | None = None
    # A function of a module, so that runs can be pickled.
    resume: Callable[[Plan, "Run", Any], "Run"] | None = None

    _result = "run"
    averages = Column[np.ndarray]("μ̂(h), one number per chain; NaN for a chain that failed.")
    blocks = Column[np.ndarray]("Averages over equal stretches of each chain that did not fail: chains × blocks.")
    mean = Column[float]("The mean over the chains that did not fail.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`; the discretisation bias is not part of it.")
    variance = Column[float]("The estimated fluctuation constant V(h).")
    r_hat = Column[float]("Split R-hat: 1 when the halves of all chains agree; NaN when there are too few blocks.")
    ess = Column[float]("How many independent draws have the same error; NaN where Var_μ(h) is not known.")
    posterior_variance = Column[float]("Var_μ(h): by a formula, from draws, or from the last states of many chains.")
    method = Column[ErrorMethod]("Where `std_error` comes from.")
    plain = Column[ChainAverages]("The averages without their martingale, with `mean`, `std_error` and `interval`.")
    gain = Column[float]("How many times longer a run without the martingale would take for the same error.")

    @property
    def steps_done(self) -> int:
        """How many states of each chain were averaged."""
        return max(0, self.state.step - self.plan.burn_in)

    @property
    def gradient_evaluations(self) -> int:
        """Gradients computed over all chains, burn-in included."""
        return self.plan.num_chains * self.plan.oracle.gradients(self.state.step)

    @functools.cached_property
    def diverged(self) -> np.ndarray:
        """Which chains failed."""
        mask = np.zeros(self.plan.num_chains, bool)
        mask[[failure.chain for failure in self.failures]] = True
        return mask

    @functools.cached_property
    def rows(self) -> Mapping[str, Average]:
        """One `Average` per observable: averages per chain from the engine's sums, per block from its snapshots."""
        state, plan, good = self.state, self.plan, ~self.diverged
        time, by_time = sum(state.clock), plan.weighting == "step_size"
        # With no step done, 0/0: there is no average.
        with np.errstate(invalid="ignore", divide="ignore"):
            averages = np.where(good[:, None], state.sums / (time if by_time else self.steps_done), math.nan)  # E4
        marks = sorted(state.snapshots)
        durations = np.diff([state.clocks[k] for k in marks], prepend=0.0)
        weights = durations if by_time else np.diff(marks, prepend=0).astype(float)
        blocks, covered = np.zeros((int(good.sum()), 0, averages.shape[1])), 1.0
        if marks:
            sums = np.stack([state.snapshots[k] for k in marks], axis=1)
            blocks = (np.diff(sums, axis=1, prepend=0.0) / weights[None, :, None])[good]
            covered = float(durations.sum()) / time
        shared = covered, *((durations, weights) if plan.scheduled else (None, None))
        found, count = {}, len(plan.observables)
        for j, name in enumerate(plan.observables):
            own, uncorrected = (averages[:, j], blocks[..., j]), None
            if plan.martingale:
                plain, less = ChainAverages(*own, *shared), (averages[:, count + j], blocks[..., count + j])
                less = own[0] - less[0], own[1] - less[1]  # T9
                # By the errors alone: the means are not looked at.
                if ChainAverages(*less, *shared).error.variance < HELPS * plain.error.variance:
                    own, uncorrected = less, plain
            found[name] = Average(*own, *shared, name=name, time=time, run=self, uncorrected=uncorrected)
        return found

    @functools.cached_property
    def posterior_rows(self) -> np.ndarray | None:
        """States that are a sample of the posterior, as vectors of the model; None where there are too few."""
        good = ~self.diverged
        rows = self.state.z[good][:, : self.plan.dim]
        if self.draws is not None:
            rows = self.plan.model.vectors(flat_draws(self.draws, good))
        elif self.steps_done <= 1 or len(rows) < ENOUGH_CHAINS:
            return None
        evenly = np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int)
        return rows if len(rows) <= MOST_ROWS else rows[evenly]

    @property
    def error_method(self) -> str:
        """Where the errors come from: the method of all observables, or `mixed`."""
        methods = set(self.method.values())
        return str(methods.pop()) if len(methods) == 1 else "mixed"

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval of `mean[name]`, from Student's distribution; `level` is its coverage."""
        row = self[name]
        coverage(level)
        return student_interval(row.mean, row.std_error, level, row.dof)

    def continue_(self, more_steps: int | None = None, mesh: Any = None) -> "Run":
        """Average `more_steps` more states of each chain; left out: what an interrupted run still lacks.

        The result equals one longer run exactly. `mesh`, as in `gyromc.run`: other devices than before; left out: the same, or
        for a run that was loaded from a file, chains over all devices.
        """
        if self.resume is None:
            raise InvalidInput("This run holds no engine state to continue from.")
        if more_steps is None:
            require(self.partial, "This run is complete: say how many `more_steps` to make.")
            return self.resume(self.plan, self, mesh)
        more = whole(more_steps, "more_steps", least=1)
        return self.resume(self.plan.replace(num_steps=self.steps_done + more), self, mesh)

    def save(self, path: str | Path) -> None:
        """Write the run to a file, whole or not at all; `gyromc.load(path)` returns it, in any process.

        `continue_` of the loaded run equals that of this one, bit for bit. Functions of yours are stored by name (see
        docs/scale.md).
        """
        function_above("save_run")(self, path)

    def to_datatree(
        self,
        names: Sequence[str] | None = None,
        predictive: Callable | None = None,
        log_likelihood: bool | Callable = False,
    ) -> "DataTree":
        """The kept draws, averages and data as an ArviZ DataTree: see `gyromc.interop.arviz.to_datatree`."""
        return function_above("to_datatree")(self, names, predictive, log_likelihood)

    def to_dict(self) -> dict[str, Any]:
        """All but the chains themselves as plain values, for JSON; NaN becomes None."""
        keys = ("mean", "std_error", "variance", "r_hat", *(("gain",) if self.plan.martingale else ()))
        ends = lambda row: {"interval_95": [plain(end) for end in row.interval]}
        return {
            **self.plan.summary(),
            "steps_done": self.steps_done,
            "observables": {name: plain_attributes(row, *keys) | ends(row) for name, row in self.items()},
            **plain_attributes(self, "error_method", "engine", "engine_reason", "gradient_evaluations"),
            **plain_attributes(self, "wall_time", "compile_time", "partial"),
            "failures": [plain_attributes(failure, "chain", "step", "reason") for failure in self.failures],
        }

    def shown(self) -> Sequence[Table | str]:
        """The observables in a table, the facts about the run below it."""
        plan = self.plan
        gain = lambda row: [f"{row.gain:.3g} ×"] if plan.martingale else []
        numbers = lambda row: (f"{row.mean:.6g}", f"{row.std_error:.2g}", f"{row.variance:.4g}", *gain(row))
        rows = [(name, *numbers(row)) for name, row in self.items()]
        notes = [
            f"{plan.num_chains} chains × {self.steps_done} steps, η = {plan.eta_text}, {plan.dtype}, seed {plan.seed}; "
            f"errors from {self.error_method}, without the step-size bias: `gyromc.estimate(run)` counts it",
            f"engine {self.engine}: {self.gradient_evaluations:.3g} gradients in {self.wall_time:.2f} s"
            f" (compiling {self.compile_time:.2f} s); {self.engine_reason}",
        ]
        if self.partial:
            notes.append(f"PARTIAL: interrupted after {self.steps_done} of {plan.num_steps} steps")
        if failed := len(self.failures):
            notes.append(f"{failed} of {plan.num_chains} chains FAILED and are left out; first: {self.failures[0]}")
        columns = ("observable", "mean", "std. error", "V (estimated)")
        if plan.martingale:
            columns = (*columns, "gain")
            notes.append("gain: how many times longer a run without the martingale control variate takes; 1: not used")
        return [Table(columns, rows, f"{plan.dynamics.name} on {type(plan.target).__name__}", notes)]


def flat_draws(draws: Any, good: np.ndarray) -> np.ndarray:
    """The kept draws of the chains that did not fail, as rows of θ, in float64."""
    leaves = [np.asarray(x, float)[good] for x in jax.tree.leaves(draws)]
    return np.concatenate([x.reshape(x.shape[0] * x.shape[1], -1) for x in leaves], axis=1)
