"""Everything that a reproduction computes: the cells of the experiments and of their variants, predictions, and where.

Each (experiment, dynamics, η) is a cell: a plan, run once and stored as a piece. Input: experiments, a profile and what the user
said about workers. Output: an `Outcome`, the averages of every cell and the predictions, the same numbers wherever they were
computed: now, earlier, in a run that was killed half-way, in this process or in others. Pieces and predictions are jobs of one
list, so that no processor waits for the other kind.
"""

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

import gyromc
from gyromc import engines
from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.io.runs import SentPlan
from gyromc.machine import num_threads
from gyromc.paper.analysis import CONSTANTS, ERRORS, variants
from gyromc.paper.cache import Cache, Job, Obtained, Piece, fingerprint, obtain
from gyromc.paper.catalogue import Experiment, Profile, seconds
from gyromc.paper.workers import Advance, Here, Place, Processes, WorkerTask, fastest
from gyromc.plan import Plan
from gyromc.show.progress import Progress

FEW_CHAINS = 256
"""Too few to fill a GPU: so many are left to the CPU."""
PREDICTING = 4
"""CPU processes at most, while a GPU computes all pieces."""
SECONDS = {"quadratic": 0.1, "nonquadratic": 6.0, "linear": 0.2, "logistic": 8.0}
"""About how long one prediction takes, by family."""

Index = tuple[str, str, float]
"""(experiment, dynamics, η)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One dynamics of an experiment at one step size, as a plan."""

    experiment: Experiment
    role: str
    step_size: float
    plan: Plan

    @property
    def index(self) -> Index:
        """(experiment, dynamics, η)."""
        return self.experiment.name, self.role, self.step_size

    def __str__(self) -> str:
        return f"{self.experiment.name} {self.role} η = {self.step_size:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """Pieces and predictions by (experiment, dynamics, η), and how many pieces were computed and reused.

    `predicting`: the seconds of predictions that were computed at the same time as the pieces.
    """

    pieces: Mapping[Index, Piece]
    predicted: Mapping[Index, dict[str, Any]]
    computed: int
    reused: int
    warnings: tuple[str, ...]
    predicting: float | None = None


def cells(experiments: Sequence[Experiment], profile: Profile) -> list[Cell]:
    """Every cell of the experiments, in order."""
    return [
        Cell(e, role, eta, e.plan(eta, role, num_chains=profile.chains(e)))
        for e in experiments
        for role in e.roles
        for eta in profile.step_sizes(e)
    ]


def piece_jobs(todo: Sequence[Cell], engine: str = "auto", fresh: bool = False) -> dict[Index, Job]:
    """The cells as jobs; those with equal plans have the same key."""
    names: dict[object, str] = {}
    found = {}
    for cell in todo:
        name = _engine(cell, engine, names)
        key = fingerprint(cell.plan, name)
        expected = 0.2 + seconds(cell.experiment, cell.plan.gradients, name)
        found[cell.index] = Job(key, WorkerTask(str(cell), compute, (SentPlan(cell.plan), name, key), expected), fresh)
    return found


def _engine(cell: Cell, asked: str, known: dict[object, str]) -> str:
    """The engine of a cell: the choice depends on sampler, problem and sizes, not on the step size or the numbers in the data.

    Where the engine is not given, cells with few chains are computed by `lanes`, on the CPU of a machine with a GPU.
    """
    plan, e = cell.plan, cell.experiment
    kinds = type(e.problem), type(plan.target), type(plan.oracle), plan.dtype
    sizes = plan.num_chains, plan.state_size, len(plan.observables), getattr(plan.target, "num_data", 0)
    like = (id(e.sampler), cell.role, kinds, sizes, getattr(plan.oracle, "size", 0))
    if like not in known:
        known[like] = engines.choose(plan, asked)[0]
        if asked == "auto" and known[like] == "pallas" and plan.num_chains <= FEW_CHAINS and num_threads() > 1:
            known[like] = "pallas" if engines.ENGINES["lanes"].why_not(plan) else "lanes"
    return known[like]


def compute(sent: SentPlan, engine: str, key: str, advance: Advance) -> Piece:
    """Run one plan; return its piece, with the warnings of gyromc. Ctrl-C raises `KeyboardInterrupt`."""
    plan = sent.plan
    if fingerprint(plan, engine) != key:
        raise InvalidInput(
            "the plan that arrived in a worker is another one. Install the same version of gyromc there."
        )
    total = plan.num_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        run = engines.run(plan, engine, on_divergence="report", progress=lambda count: advance(count / total))
    if run.partial:
        raise KeyboardInterrupt
    for warning in caught:
        if not issubclass(warning.category, GyromcWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return Piece.of(run, [str(w.message) for w in caught if issubclass(w.category, GyromcWarning)])


def prepares(task: WorkerTask) -> tuple[Hashable, Callable[[], object]]:
    """For a task of `compute`: a name of the program that it compiles, and a function that compiles it without a step."""
    sent, engine, _ = task.arguments
    plan, module = sent.plan, engines.ENGINES[engine]
    pieces = plan.target, plan.oracle, dict(plan.observables)
    shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(pieces))
    name = engine, plan.dynamics.name, plan.dynamics.size, plan.num_chains, jax.tree.structure(pieces), shapes
    return name, lambda: module.open_session(plan, module.initial_state(plan), 1e8, None, 0)


def prediction_jobs(todo: Sequence[Cell], digits: int) -> dict[Index, Job]:
    """The predictions of cells, of one chain each."""
    found = {}
    for cell in todo:
        observables = {name: cell.plan.observables[name] for name in cell.experiment.problem.predicted}
        plan = cell.plan.replace(observables=observables, num_chains=1)
        seconds = SECONDS[cell.experiment.problem.family]
        task = WorkerTask(f"{cell}: prediction", predicted, (SentPlan(plan), digits), seconds)
        found[cell.index] = Job(f"prediction-{fingerprint(plan, f'to {digits} digits')}", task)
    return found


def predicted(sent: SentPlan, digits: int, advance: Advance | None = None) -> dict[str, Any]:
    """Predict for one plan; return what the report uses as plain values."""
    made = gyromc.predict(sent.plan, digits=digits).to_dict()
    for row in made["observables"].values():
        row["strict"] = row["strict_reduction"] and row["strict_reduction"]["strict"]
    return {
        "observables": {
            name: {key: row[key] for key in (*CONSTANTS, *ERRORS)} for name, row in made["observables"].items()
        },
        "largest_step_size": made["largest_step_size"],
        "verdicts": made["verdicts"],
    }


class Computation:
    """The jobs of a reproduction.

    **Arguments:** as those of `reproduce`. With `workers=None`, the number that is fastest.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        profile: Profile,
        cache: Cache,
        engine: str = "auto",
        fresh: bool = False,
        workers: int | None = None,
    ):
        self.cache = cache
        if workers is not None:
            whole(workers, "workers", least=1, most=10_000)
        todo, others = cells(experiments, profile), []
        if profile.sensitivity is not None:
            others = cells([one for e in experiments for one in variants(e)], profile.sensitivity)
        self.pieces = piece_jobs([*todo, *others], engine, fresh)
        # Where errors are not exact, the prediction at the smallest η is converted to the others.
        smallest = {(e.name, profile.step_sizes(e)[-1]) for e in experiments}
        wanted = [c for c in todo if c.experiment.problem.gaussian or (c.experiment.name, c.step_size) in smallest]
        wanted += [c for c in others if c.experiment.problem.gaussian]
        self.predictions = prediction_jobs(wanted, profile.digits)
        self.on_gpu = any(map(_for_gpu, self.pieces.values()))
        self.place = self._place(workers)

    def _place(self, workers: int | None) -> Place:
        if self.on_gpu:
            require(
                workers in (None, 1),
                'One process computes on a GPU: leave `workers` out, or pass `engine="scan"` or `engine="lanes"`.',
            )
            return Here(prepares)
        if workers is None:
            missing = [job for job in self.pieces.values() if job.fresh or not self.cache.path(job.key).exists()]
            workers = fastest([job.task.seconds for job in missing])
        return Here() if workers == 1 else Processes(workers)

    @property
    def seconds(self) -> float:
        """About how long the jobs take that are shown in the progress."""
        return sum(job.task.seconds for job in {job.key: job for job in self._own}.values())

    @property
    def _own(self) -> list[Job]:
        """What is computed at the place: all jobs by several processes, else the pieces, on a GPU those for it."""
        if isinstance(self.place, Processes):
            return [*self.pieces.values(), *self.predictions.values()]
        return [job for job in self.pieces.values() if _for_gpu(job) == self.on_gpu]

    @property
    def place_name(self) -> str:
        """Where pieces are computed, as text."""
        if isinstance(self.place, Processes):
            return f"{self.place.workers} processes, {self.place.threads} threads each"
        return "this process"

    def outcome(self, shown: Progress) -> Outcome:
        """Compute what the cache does not have; return all pieces and predictions."""
        own = self._own
        keys = {job.key for job in own}
        aside = [job for job in (*self.pieces.values(), *self.predictions.values()) if job.key not in keys]
        meanwhile = self._meanwhile(aside) if aside else None
        found, predicting = obtain(own, self.cache, self.place, shown), None
        if meanwhile is not None:
            others, predicting = meanwhile.result()
            found = Obtained({**found.values, **others.values}, found.computed | others.computed)
        mine = {job.key: job for job in reversed(self.pieces.values())}
        computed = found.computed & mine.keys()
        notes = [
            f"{job.task.name}: {note}"
            for key, job in reversed(mine.items())
            if key in computed
            for note in found.values[key].warnings
        ]
        return Outcome(
            pieces={at: found.values[job.key] for at, job in self.pieces.items()},
            predicted={at: found.values[job.key] for at, job in self.predictions.items()},
            computed=len(computed),
            reused=len(mine) - len(computed),
            warnings=tuple(notes),
            predicting=predicting,
        )

    def _meanwhile(self, jobs: Sequence[Job]) -> "Future[tuple[Obtained, float]]":
        """Compute jobs in a thread or, while a GPU is used, in CPU processes; and the seconds it took."""
        free = num_threads() - 1 if self.on_gpu else 0
        count = free if any(job.task.function is compute for job in jobs) else min(free, PREDICTING)
        future: Future[tuple[Obtained, float]] = Future()

        def compute_jobs() -> None:
            aside = Processes(count, environment={"JAX_PLATFORMS": "cpu"}) if count > 0 else Here()
            began = time.perf_counter()
            try:
                found = obtain(jobs, self.cache, aside, Progress())
                future.set_result((found, time.perf_counter() - began))
            # Raised by the thread that waits.
            except BaseException as error:
                future.set_exception(error)

        # A thread that an interrupted program does not wait for.
        threading.Thread(target=compute_jobs, daemon=True).start()
        return future


def _for_gpu(job: Job) -> bool:
    return job.task.arguments[1] == "pallas"
