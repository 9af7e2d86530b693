"""Doing the cells of the paper's §6: each (experiment, dynamics, η) is a plan, run once and kept.

Receives experiments and a profile; hands on the averages (E4) of every cell, in the same order and with the same numbers whether
they were computed now, earlier, or in a run that was killed half-way.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

from gyromc import engines
from gyromc.errors import GyromcWarning
from gyromc.paper.cache import Cache, Piece, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.paper.profiles import Profile, seconds
from gyromc.paper.progress import Display
from gyromc.plan import Plan

__all__ = ["Cell", "Interrupted", "Outcome", "cells", "execute", "expected_seconds"]


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
    display: Display | None = None,
) -> Outcome:
    """Compute what is not in the cache, and hand on everything.

    **Arguments:**

    - `todo`: the cells; those with equal plans are computed once.
    - `cache`: where finished pieces are kept.
    - `engine`: as in `gyromc.run`.
    - `fresh`: compute also what the cache has.
    - `display`: where progress is shown; left out: nowhere.

    **Returns:** an `Outcome`. Ctrl-C raises `Interrupted` after keeping every finished piece.
    """
    found: dict[str, Piece] = {}
    pieces: dict[tuple[str, str, float], Piece] = {}
    said: list[str] = []
    computed = reused = 0
    display = display or Display()
    for number, cell in enumerate(todo):
        name = engines.choose(cell.plan, engine)[0]
        key, weight = fingerprint(cell.plan, name), expected_seconds(cell, engine)
        display.describe(f"{cell} ({number + 1} of {len(todo)})")
        if key in found:
            display.advance(weight)
        else:
            piece = None if fresh else cache.load(key, cell.plan)
            if piece is not None:
                reused += 1
                display.advance(weight)
            else:
                piece = _compute(cell, name, lambda share, weight=weight: display.advance(share * weight), said)
                if piece is None:
                    raise Interrupted(f"{number} of {len(todo)} pieces are kept in {cache.directory}")
                cache.store(key, piece)
                computed += 1
            found[key] = piece
        pieces[cell.index] = found[key]
    return Outcome(pieces, computed, reused, tuple(said))


def _compute(cell: Cell, engine: str, advance: Callable[[float], object], said: list[str]) -> Piece | None:
    """Run one cell; None when it was interrupted. What gyromc warns of is collected, not lost."""
    total = cell.plan.num_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        run = engines.run(cell.plan, engine, on_divergence="report", progress=lambda count: advance(count / total))
    for warning in caught:
        if issubclass(warning.category, GyromcWarning):
            said.append(f"{cell}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return None if run.partial else Piece.of(run)


def expected_seconds(cell: Cell, engine: str) -> float:
    """Seconds to expect, compiling included: what the time left is worked out from."""
    return 1.0 + seconds(cell.experiment, cell.plan.gradients, engines.choose(cell.plan, engine)[0])
