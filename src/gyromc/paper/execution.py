"""Runs the cells of the paper's experiments: each (experiment, dynamics, η) is a plan, run once and stored.

Input: experiments and a profile. Output: the averages of every cell, the same numbers wherever they were computed: now, earlier,
in a run that was killed half-way, in this process or in others.
"""

import dataclasses
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import numpy as np

from gyromc import engines
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.io.plans import SentPlan
from gyromc.paper.cache import Cache, Piece, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.paper.jobs import Interrupted, Job, Obtained, obtain
from gyromc.paper.profiles import Profile, seconds
from gyromc.plan import Plan
from gyromc.show.progress import Progress
from gyromc.workers import Here, Place, WorkerTask
from gyromc.workers.processes import processors
from gyromc.workers.tasks import Advance

__all__ = ["Cell", "Interrupted", "Outcome", "Work", "cells", "compute", "execute", "prepares"]

FEW_CHAINS = 256  # too few to fill a GPU: so many are left to the processors beside it
OWN_NUMBERS = ("lanes", "pallas")
"""Engines that compute a chain the same, bit for bit, whatever other chains there are."""


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


class Work:
    """The cells as jobs. Cells with equal plans are one; a cell with fewer chains than another is the first of its chains.

    `jobs` are to be obtained, and `outcome` makes all pieces from what was found. `on_gpu`: the keys of those for a GPU. Where
    the engine is not given, cells with few chains are computed by `lanes`, on the processors beside the GPU.
    """

    def __init__(self, todo: Sequence[Cell], cache: Cache, engine: str = "auto", fresh: bool = False):
        self.todo, self.cache, self.fresh = todo, cache, fresh
        names: dict[object, str] = {}
        self.engines = [_engine(cell, engine, names) for cell in todo]
        self.keys = [fingerprint(cell.plan, name) for cell, name in zip(todo, self.engines, strict=True)]
        self.notes: list[str] = []
        self.larger = self._larger()
        places = {key: i for i, key in reversed(list(enumerate(self.keys))) if key not in self.larger}
        self.jobs = [self._job(i) for i in sorted(places.values())]
        self.on_gpu = {key for key, name in zip(self.keys, self.engines, strict=True) if name == "pallas"}

    def _larger(self) -> dict[str, str]:
        """By the key of a piece, that of the piece whose first chains it is."""
        largest: dict[str, tuple[int, str]] = {}
        families = []
        for cell, engine, key in zip(self.todo, self.engines, self.keys, strict=True):
            same = fingerprint(cell.plan, engine, count_chains=False) if engine in OWN_NUMBERS else key
            families.append(same)
            largest[same] = max(largest.get(same, (0, "")), (cell.plan.num_chains, key))
        return {key: largest[same][1] for key, same in zip(self.keys, families, strict=True) if largest[same][1] != key}

    def _job(self, i: int) -> Job:
        cell, engine, key = self.todo[i], self.engines[i], self.keys[i]
        expected = 0.2 + seconds(cell.experiment, cell.plan.gradients, engine)
        task = WorkerTask(str(cell), compute, (SentPlan(cell.plan), engine, key), expected)

        def store(found: tuple[Piece, list[str]]) -> Piece:
            piece, notes = found
            self.notes += [f"{cell}: {note}" for note in notes]
            self.cache.store(key, piece)
            return piece

        return Job(key, task, lambda: self.cache.load(key, cell.plan), store, self.fresh)

    def failed(self, found: Obtained) -> list[Job]:
        """The jobs of pieces that cannot be taken from a larger one, because a chain failed there."""
        wanted = {key for key, larger in self.larger.items() if found.values[larger].failures}
        return [self._job(i) for i in {key: i for i, key in enumerate(self.keys) if key in wanted}.values()]

    def outcome(self, found: Obtained, more: Obtained) -> Outcome:
        """All pieces; `more` are those of `failed`."""
        values = {**found.values, **more.values}
        pieces = {}
        for cell, key in zip(self.todo, self.keys, strict=True):
            if key not in values:
                values[key] = values[self.larger[key]].first(cell.plan.num_chains)
            pieces[cell.index] = values[key]
        mine = {job.key for job in self.jobs} | more.values.keys()  # `found` may hold other jobs as well
        computed = len(mine & (found.computed | more.computed))
        return Outcome(pieces, computed, len(mine) - computed, tuple(self.notes))


def execute(
    todo: Sequence[Cell],
    cache: Cache,
    engine: str = "auto",
    fresh: bool = False,
    shown: Progress | None = None,
    place: Place | None = None,
) -> Outcome:
    """Compute what is not in the cache, or everything if `fresh`; return everything. Cells with equal plans are computed once.

    `place` is where pieces are computed; left out: in this process. Ctrl-C raises `Interrupted`; every finished piece is stored.
    """
    work, place, shown = Work(todo, cache, engine, fresh), place or Here(), shown or Progress()
    found = obtain(work.jobs, cache, place, shown)
    return work.outcome(found, obtain(work.failed(found), cache, place, shown))


def compute(sent: SentPlan, engine: str, key: str, advance: Advance) -> tuple[Piece, list[str]]:
    """Run one plan; return its piece and the warnings of gyromc. Ctrl-C raises `KeyboardInterrupt`."""
    plan = sent.plan
    if fingerprint(plan, engine) != key:
        raise InvalidInput(
            "the plan that arrived in a worker is another one. Install the same version of gyromc there."
        )
    total = plan.num_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        run = engines.run(
            plan,
            engine,
            on_divergence="report",
            progress=lambda count: advance(count / total),
            keep_blocks=2,  # a piece stores none: fewer stops of the engine
        )
    if run.partial:
        raise KeyboardInterrupt
    for warning in caught:
        if not issubclass(warning.category, GyromcWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return Piece.of(run), [str(w.message) for w in caught if issubclass(w.category, GyromcWarning)]


def prepares(task: WorkerTask) -> tuple[Hashable, Callable[[], object]]:
    """For a task of `compute`: a name of the program that it compiles, and a function that compiles it without a step."""
    sent, engine, _ = task.arguments
    plan, module = sent.plan, engines.ENGINES[engine]
    pieces = plan.target, plan.oracle, dict(plan.observables)
    shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(pieces))
    name = engine, plan.dynamics.name, plan.dynamics.size, plan.num_chains, jax.tree.structure(pieces), shapes
    return name, lambda: module.Session(plan, module.initial_state(plan), 1e8, None, 0)


def _engine(cell: Cell, asked: str, known: dict[object, str]) -> str:
    """The engine of a cell: the choice depends on sampler, problem and sizes, not on the step size or the numbers in the data."""
    plan, e = cell.plan, cell.experiment
    kinds = type(e.problem), type(plan.target), type(plan.oracle), plan.dtype
    sizes = plan.num_chains, plan.state_size, len(plan.observables), getattr(plan.target, "num_data", 0)
    like = (id(e.sampler), cell.role, kinds, sizes, getattr(plan.oracle, "size", 0))
    if like not in known:
        known[like] = engines.choose(plan, asked)[0]
        if asked == "auto" and known[like] == "pallas" and plan.num_chains <= FEW_CHAINS and processors() > 1:
            known[like] = "pallas" if engines.ENGINES["lanes"].why_not(plan) else "lanes"
    return known[like]
