"""Run: what came out of a plan, chain by chain, with its errors (E4, E6).

Receives sums from an engine; hands on averages, standard errors, intervals and the estimated V. A chain that failed
has NaN for its average, is named in `failures`, and takes no part in means and errors.
"""

import dataclasses
import enum
import functools
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gyromc.checks import require, whole
from gyromc.estimation import statistics
from gyromc.plan import Plan

if TYPE_CHECKING:
    from xarray import DataTree

__all__ = ["Cause", "EngineState", "Failure", "Run", "RunOptions"]


class Cause(enum.Enum):
    """Why a chain failed; the values are what messages say."""

    OUT_OF_RANGE = "the state left the sane range"
    STATE_NOT_FINITE = "the state became NaN or infinite"
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

    def to_dict(self) -> dict[str, Any]:
        """Chain, step and reason as plain values, for JSON."""
        return {"chain": self.chain, "step": self.step, "reason": self.reason}

    def __str__(self) -> str:
        return f"chain {self.chain} at step {self.step}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a plan was run, as in `gyromc.run`; a continued run uses the same."""

    engine: str
    reason: str  # for this engine
    chunk_size: int | None
    progress: bool | Callable[[int], object] | None
    on_divergence: Literal["raise", "report"]
    thin: int | None
    sane_range: float
    keep_blocks: int

    def __getstate__(self) -> dict[str, Any]:
        """All but a progress function, which belongs to the process that passed it: a run can be pickled."""
        return {**vars(self), "progress": None if callable(self.progress) else self.progress}


@dataclasses.dataclass(frozen=True, eq=False)
class EngineState:
    """Where a run stands: all that is needed to go on as if it had never stopped."""

    step: int
    z: np.ndarray
    high: np.ndarray
    low: np.ndarray
    clock: tuple[float, float]
    failed_at: np.ndarray
    generator: np.ndarray | None = None  # for engines whose random numbers have a state
    snapshots: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)  # sums after so many steps
    clocks: Mapping[int, float] = dataclasses.field(default_factory=dict)  # the time then

    @property
    def sums(self) -> np.ndarray:
        """The weighted sums of the observables, chains × observables, in float64."""
        return self.high.astype(float) + self.low.astype(float)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What a plan gave.

    **Attributes:**

    - `plan`: what was asked for; `engine`: who did it; `engine_reason`: why that one.
    - `averages[name]`: μ̂(h) of each chain; NaN for a chain that failed.
    - `mean`, `std_error`, `variance`: by name, over chains; `interval(name, level)`; `error_method`.
    - `r_hat`, `ess`: by name, whether the chains agree and how many independent draws they are worth.
    - `blocks[name]`: chains × blocks, averages over equal stretches of each chain.
    - `failures`: the chains that failed, with step and reason; `partial`: whether it was interrupted.
    - `steps_done`: how many states were averaged; `gradient_evaluations`; `wall_time` and `compile_time` in seconds.
    - `draws`: kept states, chains × draws, shaped like the parameters; `None` unless asked for.
    - `state`: where the chains stand; `continue_(more_steps)` goes on from there.
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
    options: RunOptions | None = dataclasses.field(default=None, repr=False)
    resume: Callable[[Plan, "Run"], "Run"] | None = dataclasses.field(
        default=None, repr=False
    )  # of a module: runs pickle

    @property
    def steps_done(self) -> int:
        """How many states of each chain were averaged."""
        return max(0, self.state.step - self.plan.burn_in)

    @property
    def gradient_evaluations(self) -> int:
        """Gradients computed over all chains, burn-in included."""
        return self.plan.num_chains * self.state.step

    @functools.cached_property
    def diverged(self) -> np.ndarray:
        """Which chains failed."""
        mask = np.zeros(self.plan.num_chains, bool)
        mask[[failure.chain for failure in self.failures]] = True
        return mask

    @functools.cached_property
    def _table(self) -> np.ndarray:
        weight = sum(self.state.clock) if self.plan.weighting == "step_size" else self.steps_done
        if self.steps_done == 0:
            return np.full_like(self.state.sums, math.nan)
        with np.errstate(invalid="ignore"):
            return np.where(self.diverged[:, None], math.nan, self.state.sums / weight)  # E4

    @functools.cached_property
    def averages(self) -> Mapping[str, np.ndarray]:
        """μ̂(h), one number per chain, by the observable's name."""
        return {name: self._table[:, j] for j, name in enumerate(self.plan.observables)}

    @functools.cached_property
    def mean(self) -> Mapping[str, float]:
        """The mean over the chains that did not fail."""
        return {name: float(np.mean(a)) if a.size else math.nan for name, a in self._good.items()}

    @functools.cached_property
    def _good(self) -> Mapping[str, np.ndarray]:
        return {name: a[~self.diverged] for name, a in self.averages.items()}

    @functools.cached_property
    def _spread(self) -> Mapping[str, statistics.Spread]:
        """The variance of one chain's average, and its degrees of freedom."""
        if self.error_method == "replicate chains":
            return {name: statistics.replicate_variance(a) for name, a in self._good.items()}
        return {name: self.batch_variance(name) for name in self.plan.observables}

    @property
    def error_method(self) -> str:
        """Where the errors come from: `replicate chains`; `lugsail batch means` or `batch means` when there is only one chain."""
        if np.sum(~self.diverged) > 1:
            return "replicate chains"
        return "lugsail batch means" if self._can_lugsail else "batch means"

    @property
    def _can_lugsail(self) -> bool:
        return not self.plan.scheduled and len(self.state.snapshots) >= statistics.FEWEST_BLOCKS

    @functools.cached_property
    def blocks(self) -> Mapping[str, np.ndarray]:
        """Averages over equal, consecutive stretches of each chain that did not fail: chains × blocks."""
        _, weights = self._block_lengths
        if not len(weights):
            return {name: np.zeros((int(np.sum(~self.diverged)), 0)) for name in self.plan.observables}
        sums = np.stack([self.state.snapshots[k] for k in sorted(self.state.snapshots)], axis=1)
        averages = (np.diff(sums, axis=1, prepend=0.0) / weights[None, :, None])[~self.diverged]
        return {name: averages[..., j] for j, name in enumerate(self.plan.observables)}

    @functools.cached_property
    def _block_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The time each block lasts, and what it counts in the average."""
        marks = sorted(self.state.snapshots)
        steps = np.diff(marks, prepend=0).astype(float)
        times = np.diff([self.state.clocks[k] for k in marks], prepend=0.0)
        return times, times if self.plan.weighting == "step_size" else steps

    def batch_variance(self, name: str) -> statistics.Spread:
        """The variance of one chain's average from its own blocks, by lugsail batch means where there are enough (T3)."""
        durations, weights = self._block_lengths
        if self._can_lugsail:
            found = statistics.lugsail_variance(self.blocks[name])
        else:
            found = statistics.scheduled_variance(self.blocks[name], durations, weights)
        return dataclasses.replace(found, variance=found.variance * self.covered)

    @property
    def covered(self) -> float:
        """The share of the averaged time that the blocks cover; the last stretch may be shorter than a block."""
        durations, _ = self._block_lengths
        return float(durations.sum()) / sum(self.state.clock) if len(durations) else 1.0

    @functools.cached_property
    def r_hat(self) -> Mapping[str, float]:
        """Split R-hat over the blocks of all chains: 1 when their halves agree; NaN when there are too few blocks."""
        return {name: statistics.split_r_hat(blocks) for name, blocks in self.blocks.items()}

    @functools.cached_property
    def ess(self) -> Mapping[str, float]:
        """How many independent draws have the same error, Var_μ(h) over the error squared; NaN where Var_μ(h) is not known.

        The error of a few long chains is taken from within them: the spread between them is known too badly.
        """
        found = {}
        chains = int(np.sum(~self.diverged))
        for name, spread in self.posterior_variance.items():
            within = self._can_lugsail and chains < 20
            variance = self.batch_variance(name).variance if within else self._spread[name].variance
            found[name] = chains * spread / variance if variance > 0 else math.nan
        return found

    @functools.cached_property
    def posterior_variance(self) -> Mapping[str, float]:
        """Var_μ(h): by a formula, from kept draws, or from the last states of at least 50 chains; NaN where there is neither."""
        from gyromc.prediction.spread import observable_variances

        found = observable_variances(self.plan, self._rows())
        return {name: math.nan if value is None else value for name, value in found.items()}

    def _rows(self) -> np.ndarray | None:
        """Draws of θ as rows: kept ones, else the last states of many chains, else None."""
        if self.draws is not None:
            return flat_draws(self)
        last = self.state.z[~self.diverged][:, : self.plan.dim]
        return last if len(last) >= 50 and self.steps_done > 1 else None

    @functools.cached_property
    def std_error(self) -> Mapping[str, float]:
        """The Monte Carlo standard error of `mean` (the discretisation bias is no part of it)."""
        chains = int(np.sum(~self.diverged))
        return {name: math.sqrt(s.variance / chains) if chains else math.nan for name, s in self._spread.items()}

    @functools.cached_property
    def variance(self) -> Mapping[str, float]:
        """The estimated fluctuation constant V(h): the variance of a chain's average times the time it ran for."""
        time = sum(self.state.clock)
        return {name: time * s.variance for name, s in self._spread.items()}  # E6: Var ≈ V / (Nη)

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval of `mean[name]`, from Student's distribution.

        **Arguments:**

        - `name`: which observable.
        - `level`: the coverage, between 0 and 1.
        """
        require(name in self.averages, f"No observable {name!r} in this run: it has {', '.join(self.averages)}.")
        require(0 < level < 1, f"`level` must lie between 0 and 1: got {level!r}. 95 % is 0.95.")
        return statistics.interval(self.mean[name], self.std_error[name], level, self._spread[name].dof)

    def continue_(self, more_steps: int | None = None) -> "Run":
        """Go on from where the chains stand; the result equals one longer run exactly.

        **Arguments:**

        - `more_steps`: how many more states to average; left out: what an interrupted run still lacks.
        """
        require(self.resume is not None, "This run holds no engine state to continue from.")
        if more_steps is None:
            require(self.partial, "This run is complete: say how many `more_steps` to make.")
            return self.resume(self.plan, self)  # type: ignore[misc]
        more = whole(more_steps, "more_steps", least=1)
        return self.resume(self.plan.replace(num_steps=self.steps_done + more), self)  # type: ignore[misc]

    def to_datatree(self, names: Sequence[str] | None = None, predictive: Callable | None = None) -> "DataTree":
        """The kept draws, averages and data as an ArviZ DataTree; needs `pip install 'gyromc[arviz]'`.

        **Arguments:**

        - `names`: of the parameters; left out: `theta`, or the paths of a pytree.
        - `predictive`: function of (parameters, JAX key) that draws from the predictive distribution.
        """
        from gyromc.interop.arviz import to_datatree

        return to_datatree(self, names, predictive)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the chains themselves as plain values, for JSON; NaN becomes None."""
        plan = self.plan
        return {
            **plan.summary(),
            "steps_done": self.steps_done,
            "observables": {
                name: {
                    "mean": _plain(self.mean[name]),
                    "std_error": _plain(self.std_error[name]),
                    "interval_95": [_plain(end) for end in self.interval(name)],
                    "variance": _plain(self.variance[name]),
                    "r_hat": _plain(self.r_hat[name]),
                }
                for name in plan.observables
            },
            "error_method": self.error_method,
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "gradient_evaluations": self.gradient_evaluations,
            "wall_time": self.wall_time,
            "compile_time": self.compile_time,
            "partial": self.partial,
            "failures": [failure.to_dict() for failure in self.failures],
        }

    def __rich__(self):
        """A table for the terminal."""
        from rich.table import Table

        plan = self.plan
        eta = plan.eta_text
        table = Table(title=f"{plan.dynamics.name} on {type(plan.target).__name__}", title_justify="left")
        table.add_column("observable")
        for column in ("mean", "std. error", "95 % interval", "V (estimated)"):
            table.add_column(column, justify="right")
        for name in plan.observables:
            low, high = self.interval(name)
            table.add_row(
                name,
                f"{self.mean[name]:.6g}",
                f"{self.std_error[name]:.2g}",
                f"[{low:.6g}, {high:.6g}]".replace("[", r"\["),
                f"{self.variance[name]:.4g}",
            )
        notes = [
            f"{plan.num_chains} chains × {self.steps_done} steps, η = {eta}, {plan.dtype}, seed {plan.seed}; "
            f"errors from {self.error_method}",
            f"engine {self.engine}: {self.gradient_evaluations:.3g} gradients in {self.wall_time:.2f} s"
            f" (compiling {self.compile_time:.2f} s); {self.engine_reason}",
        ]
        if self.partial:
            notes.append(f"PARTIAL: interrupted after {self.steps_done} of {plan.num_steps} steps")
        if self.failures:
            notes.append(
                f"{len(self.failures)} of {plan.num_chains} chains FAILED and are left out; first: {self.failures[0]}"
            )
        table.caption = "\n".join(notes)
        table.caption_justify = "left"
        return table

    def __repr__(self) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        Console(file=buffer, width=110, color_system=None).print(self)
        return buffer.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def flat_draws(run: Run) -> np.ndarray:
    """The kept draws of all chains that did not fail, as rows of θ, in float64."""
    import jax

    leaves = [np.asarray(x, float)[~run.diverged] for x in jax.tree.leaves(run.draws)]
    return np.concatenate([x.reshape(x.shape[0] * x.shape[1], -1) for x in leaves], axis=1)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
