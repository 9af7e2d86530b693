"""Doing the cells of SPEC §6: each (experiment, dynamics, η) is a plan, run once and kept.

Receives experiments and a profile; hands on the averages (E4) of every cell, in the same order and with the same numbers whether
they were computed now, earlier, or in a run that was killed half-way.
"""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from gyromc import engines
from gyromc.errors import GyromcWarning
from gyromc.experiments.cache import Cache, Piece, fingerprint
from gyromc.experiments.experiment import Experiment
from gyromc.experiments.profiles import Profile, seconds
from gyromc.plan import Plan

__all__ = ["Cell", "Interrupted", "Outcome", "cells", "execute"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: what is finished is kept; the message says how much that is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One dynamics at one step size: a plan, with its place in the experiment."""

    experiment: Experiment
    role: str
    step_size: float
    plan: Plan

    @property
    def index(self) -> tuple[str, str, float]:
        """(experiment, dynamics, η)."""
        return self.experiment.name, self.role, self.step_size

    def __str__(self) -> str:
        return f"{self.experiment.name} {self.role} η = {self.step_size:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """All pieces by (experiment, dynamics, η), and what had to be computed for them."""

    pieces: Mapping[tuple[str, str, float], Piece]
    computed: int
    reused: int
    warnings: tuple[str, ...]


def cells(experiments: Sequence[Experiment], profile: Profile) -> list[Cell]:
    """Every cell of the experiments, in order."""
    return [
        Cell(e, role, eta, e.plan(eta, role, num_chains=profile.chains(e)))
        for e in experiments
        for role in e.roles
        for eta in profile.step_sizes(e)
    ]


def execute(
    todo: Sequence[Cell],
    cache: Cache,
    engine: str = "auto",
    fresh: bool = False,
    progress: bool | None = None,
) -> Outcome:
    """Compute what is not in the cache, and hand on everything.

    **Arguments:**

    - `todo`: the cells; those with equal plans are computed once.
    - `cache`: where finished pieces are kept.
    - `engine`: as in `gyromc.run`.
    - `fresh`: compute also what the cache has.
    - `progress`: show one display over everything; left out: when standard error is a terminal.

    **Returns:** an `Outcome`. Ctrl-C raises `Interrupted` after keeping every finished piece.
    """
    found: dict[str, Piece] = {}
    pieces: dict[tuple[str, str, float], Piece] = {}
    said: list[str] = []
    computed = reused = 0
    chosen = [engines._choose(cell.plan, engine) for cell in todo]
    weights = [_weight(cell, name) for cell, name in zip(todo, chosen, strict=True)]
    with _display(sum(weights), progress) as (describe, advance):
        for number, (cell, name, weight) in enumerate(zip(todo, chosen, weights, strict=True)):
            key = fingerprint(cell.plan, name)
            describe(f"{cell} ({number + 1} of {len(todo)})")
            if key not in found:
                piece = None if fresh else cache.load(key, cell.plan)
                if piece is None:
                    piece = _compute(cell, name, lambda share, weight=weight: advance(share * weight), said)
                    if piece is None:
                        raise Interrupted(f"{number} of {len(todo)} pieces are kept in {cache.directory}")
                    cache.store(key, piece)
                    computed += 1
                else:
                    reused += 1
                    advance(weight)
                found[key] = piece
            else:
                advance(weight)
            pieces[cell.index] = found[key]
    return Outcome(pieces, computed, reused, tuple(said))


def _compute(cell: Cell, engine: str, advance: Callable[[float], None], said: list[str]) -> Piece | None:
    """Run one cell; None when it was interrupted. What gyromc warns of is collected, not lost."""
    total = cell.plan.num_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        run = engines.run(
            cell.plan, engine, on_divergence="report", progress=lambda count: advance(count / total)
        )
    for warning in caught:
        if issubclass(warning.category, GyromcWarning):
            said.append(f"{cell}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return None if run.partial else Piece.of(run)


def _weight(cell: Cell, engine: str) -> float:
    """Seconds to expect, compiling included: what the time left is worked out from."""
    return 1.0 + seconds(cell.experiment, cell.plan.gradients, engine)


@contextlib.contextmanager
def _display(total: float, wanted: bool | None) -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """One progress bar on standard error: a function that names the present piece and one that moves the bar."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield (lambda text: None), (lambda share: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task("", total=total)
        yield (lambda text: bar.update(task, description=text)), (lambda share: bar.advance(task, share))
