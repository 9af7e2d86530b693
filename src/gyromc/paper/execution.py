"""Runs the cells of the paper's experiments: each (experiment, dynamics, η) is a plan, run once and stored.

Input: experiments and a profile. Output: the averages of every cell, the same numbers whether they were computed now, earlier, or
in a run that was killed half-way.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

from gyromc import engines
from gyromc.errors import GyromcWarning
from gyromc.paper.cache import Cache, Piece, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.paper.profiles import Profile, seconds
from gyromc.plan import Plan
from gyromc.show.progress import Progress

__all__ = ["Cell", "Interrupted", "Outcome", "cells", "execute", "expected_seconds"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message names how many pieces are finished, and where they are stored."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One dynamics of an experiment at one step size, as a plan."""

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
    """All pieces by (experiment, dynamics, η), and how many were computed and reused."""

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
    todo: Sequence[Cell], cache: Cache, engine: str = "auto", fresh: bool = False, shown: Progress | None = None
) -> Outcome:
    """Compute what is not in the cache, or everything if `fresh`; return everything. Cells with equal plans are computed once.

    Ctrl-C raises `Interrupted`; every finished piece is stored.
    """
    found: dict[str, Piece] = {}
    pieces: dict[tuple[str, str, float], Piece] = {}
    notes: list[str] = []
    computed, shown = 0, shown or Progress()
    for number, cell in enumerate(todo):
        name = engines.choose(cell.plan, engine)[0]
        key, weight = fingerprint(cell.plan, name), expected_seconds(cell, engine)
        shown.describe(f"{cell} ({number + 1} of {len(todo)})")
        piece = found.get(key) or (None if fresh else cache.load(key, cell.plan))
        if piece is not None:
            shown.advance(weight)
        else:
            piece = _compute(cell, name, lambda share, weight=weight: shown.advance(share * weight), notes)
            if piece is None:
                raise Interrupted(f"{number} of {len(todo)} pieces are kept in {cache.directory}")
            cache.store(key, piece)
            computed += 1
        pieces[cell.index] = found[key] = piece
    return Outcome(pieces, computed, len(found) - computed, tuple(notes))


def _compute(cell: Cell, engine: str, advance: Callable[[float], object], notes: list[str]) -> Piece | None:
    """Run one cell; return None when it was interrupted. Warnings of gyromc are collected in `notes`."""
    total = cell.plan.num_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        run = engines.run(cell.plan, engine, on_divergence="report", progress=lambda count: advance(count / total))
    for warning in caught:
        if issubclass(warning.category, GyromcWarning):
            notes.append(f"{cell}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return None if run.partial else Piece.of(run)


def expected_seconds(cell: Cell, engine: str) -> float:
    """Estimate the seconds of a cell, compilation included: the weight of its progress."""
    return 0.2 + seconds(cell.experiment, cell.plan.gradients, engines.choose(cell.plan, engine)[0])
