"""Everything that a reproduction computes: cells, their predictions, the processes that compute them, and the cache.

Each (experiment, dynamics, η) is a cell: a plan, run once and stored as a `Piece`. Output: an `Outcome`, the same numbers
wherever they were computed: now, in a run that was killed half-way, in this process or in others. Results are archives with names
computed from the content of their plans, the engine and the package version; a damaged one is computed again. An error in a task
has the task's name, Ctrl-C raises `KeyboardInterrupt`; either ends the other tasks.
"""

import contextlib
import dataclasses
import hashlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gyromc
from gyromc import engines
from gyromc.checks import cause, require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.io.archive import Codec, digest, read_archive, write_archive
from gyromc.io.functions import References
from gyromc.io.runs import CLASSES, SentPlan
from gyromc.paper.catalogue import Experiment, Profile, seconds, variants
from gyromc.plan import FIELDS, Plan
from gyromc.runtime.machine import num_threads
from gyromc.show.files import json_text, locked, require_writable
from gyromc.show.progress import Interruption, Progress, interruptible

PREDICTION_SECONDS = {"quadratic": 0.1, "nonquadratic": 6.0, "linear": 0.2, "logistic": 8.0}
"""About how long one prediction takes, by family."""
ERRORS = ("expectation", "rmse", "rmse_method", "bias", "bias_method", "std")
"""What is stored of a prediction and depends on η."""
Index = tuple[str, str, float]
"""(experiment, dynamics, η)."""
SHORT = 30.0
"""Seconds of work for which no processes are started: that alone takes some."""
SHARED = ("GYROMC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC is XLA's
Results = Generator[tuple[int, Any], None, None]
"""The number and the result of each task, once it is finished."""


@dataclasses.dataclass(frozen=True, eq=False)
class WorkerTask:
    """`function(*arguments)`, to be computed in about so many `seconds`; the function is one of a module, and all is pickled."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float = 1.0


def fastest(seconds: Sequence[float]) -> int:
    """How many processes compute tasks of these lengths the fastest; one for work of less than half a minute.

    One for each processor; fewer, with several threads each, where the longest task would run on when all others are done.
    """
    available, total = num_threads(), sum(seconds)
    if total < SHORT:
        return 1
    threads = max(1, math.ceil(max(seconds) * available / total - 1e-9))
    return max(1, available // threads)


def computed(tasks: Sequence[WorkerTask], workers: int = 1, shown: Progress | None = None) -> Results:
    """Compute all tasks; yield each one's number and result once it is finished.

    With one worker all are computed in this process, in the order given. Several are new processes, which take the longest task
    first; they are not forks, which JAX does not survive, and end with this process, however that one ends.
    """
    shown = shown or Progress()
    with interruptible("stopping") as stop:
        results = _by_processes(tasks, workers, stop) if workers > 1 and tasks else _here(tasks, stop, shown)
        with contextlib.closing(results):
            for finished, (number, value) in enumerate(results, 1):
                shown.describe(f"{tasks[number].name} ({finished} of {len(tasks)})")
                shown.advance(tasks[number].seconds)
                yield number, value


def _here(tasks: Sequence[WorkerTask], stop: Interruption, shown: Progress) -> Results:
    """Compute the tasks in this process."""
    for number, task in enumerate(tasks):
        stop.check()
        shown.describe(task.name)
        yield number, _result(task)


def _by_processes(tasks: Sequence[WorkerTask], workers: int, stop: Interruption) -> Results:
    """Compute the tasks in a pool of new processes, which are gone when the generator ends."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=_begin)
    before, main, processes = dict(os.environ), sys.modules["__main__"], ()
    try:
        try:
            os.environ.update(dict.fromkeys(SHARED, str(max(1, num_threads() // workers))))
            # Else each process would run the user's script again.
            sys.modules["__main__"] = types.ModuleType("__main__")
            # The longest first, so that no long one is left for the end.
            order = sorted(range(len(tasks)), key=lambda number: -tasks[number].seconds)
            numbers = {pool.submit(_result, tasks[number], in_worker=True): number for number in order}
        finally:
            processes = tuple(pool._processes.values())
            sys.modules["__main__"] = main
            os.environ.clear()
            os.environ.update(before)
        left = set(numbers)
        while left:
            stop.check()
            # Ctrl-C is looked at ten times a second.
            done, left = wait(left, 0.1, FIRST_COMPLETED)
            # Errors last: what is finished is not lost.
            for future in sorted(done, key=lambda one: one.exception() is not None):
                if isinstance(future.exception(), BrokenProcessPool):
                    ended = f"{tasks[numbers[future]].name}: a worker process ended before it was finished."
                    remedy = "Where memory is short, the system ends processes: pass fewer `workers`."
                    raise InvalidInput(f"{ended} {remedy} What was finished need not be computed again.")
                yield numbers[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _result(task: WorkerTask, in_worker: bool = False) -> Any:
    """The result of a task; the errors of a worker are made of text, so that all of them can be sent back."""
    try:
        return task.function(*task.arguments)
    except InvalidInput as error:
        raise InvalidInput(f"{task.name}: {error}") from None
    except BaseException as error:
        if in_worker:
            raise RuntimeError(f"{task.name}: {cause(error)}\n\nIn the worker:\n{traceback.format_exc()}") from None
        error.add_note(f"(while computing {task.name})")
        raise


def _begin() -> None:
    """At the start of a worker: Ctrl-C is the business of the process that started it, and standard output is its answer's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The results of one plan: the averages of each chain (chains × observables; NaN for one that failed), engine, seconds."""

    averages: np.ndarray
    engine: str
    wall_time: float


CODEC = Codec({"Piece": Piece})
Job = tuple[str, WorkerTask]
"""A task, and before it the key under which its result is stored."""


class Cell(NamedTuple):
    """One dynamics of an experiment at one step size, as a plan."""

    experiment: Experiment
    role: str
    step_size: float
    plan: Plan

    @property
    def place(self) -> Index:
        return self.experiment.name, self.role, self.step_size

    def __str__(self) -> str:
        return f"{self.experiment.name} {self.role} η = {self.step_size:g}"


def cells(experiments: Sequence[Experiment], profile: Profile, most: int | None = None) -> list[Cell]:
    """Every cell of the experiments, in order; of at most so many dynamics each."""
    return [
        Cell(e, role, eta, e.plan(eta, role, num_chains=profile.num_chains[e.problem.family]))
        for e in experiments
        for role in e.roles[:most]
        for eta in profile.step_sizes(e)
    ]


def fingerprint(plan: Plan, engine: str) -> str:
    """32 hexadecimal digits that name the content of a plan and the engine; a plan with a lambda is refused."""
    content, arrays = Codec(CLASSES, References()).pack({name: getattr(plan, name) for name in FIELDS})
    parts = gyromc.__version__, engine, json_text(content), *map(digest, arrays.values())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def piece_job(cell: Cell, engine: str) -> Job:
    """The run of a cell; those with equal plans have the same key."""
    name, _ = engines.choose(cell.plan, engine)
    expected = 0.2 + seconds(cell.experiment, cell.plan.gradients, name)
    return fingerprint(cell.plan, name), WorkerTask(str(cell), compute, (SentPlan(cell.plan), name), expected)


def compute(sent: SentPlan, engine: str) -> Piece:
    """Run one plan; return its piece. Ctrl-C raises `KeyboardInterrupt`."""
    # Chains that failed are NaN.
    with warnings.catch_warnings(action="ignore", category=GyromcWarning):
        run = engines.run(sent.plan, engine, on_divergence="report", progress=False)
    if run.partial:
        raise KeyboardInterrupt
    return Piece(np.column_stack([*run.averages.values()]), run.engine, run.wall_time)


def prediction_job(cell: Cell, digits: int) -> Job:
    """The prediction of a cell, of one chain."""
    problem = cell.experiment.problem
    predicted = {h: cell.plan.observables[h] for h in (problem.primary, problem.even) if h is not None}
    plan = cell.plan.replace(observables=predicted, num_chains=1)
    task = WorkerTask(f"{cell}: prediction", predict, (SentPlan(plan), digits), PREDICTION_SECONDS[problem.family])
    return f"prediction-{fingerprint(plan, f'to {digits} digits')}", task


def predict(sent: SentPlan, digits: int) -> dict[str, Any]:
    """Predict for one plan; return what the report uses as plain values, and of the even observable its bias."""
    made = gyromc.predict(sent.plan, digits=digits).to_dict()
    row, *even = made["observables"].values()
    found = {**{key: row[key] for key in ("variance", "method", *ERRORS)}, "verdicts": made["verdicts"]}
    if even:
        found["even"] = {key: even[0][key] for key in ("expectation", "bias")}
    return found


class Cache:
    """Results in a directory, one file each."""

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        require_writable(self.directory)

    @contextlib.contextmanager
    def alone(self) -> Iterator["Cache"]:
        """Keep other processes on this machine from computing for this cache."""
        with locked(self.directory) as free:
            other = f"Another process computes in {self.directory}. Wait for it, or pass another directory."
            require(free is not False, other)
            yield self

    def path(self, key: str) -> Path:
        return self.directory / f"{key}.gyromc"

    def load(self, key: str) -> Any:
        """The entry, or None where there is none; a damaged one is reported and counts as none."""
        if not self.path(key).exists():
            return None
        try:
            archive = read_archive(self.path(key))
            require(archive.kind == key, "it was stored under another name")
            return CODEC.unpack(archive)
        # Whatever a reader makes of damaged content: the entry can always be computed again.
        except Exception as error:
            message = f"The cache entry {self.path(key)} is damaged ({error}): it is computed again."
            warnings.warn(message, GyromcWarning, stacklevel=2)

    def store(self, key: str, value: Any) -> None:
        """Store a piece or plain values; when this returns, they are on disk."""
        write_archive(self.path(key), key, value, CODEC, own_folder=True)


def obtain(
    jobs: Iterable[Job], cache: Cache, workers: int = 1, shown: Progress | None = None, fresh: bool = False
) -> tuple[dict[str, Any], set[str]]:
    """The results by key, from the cache or computed and stored as soon as they are there; and the keys of those computed now."""
    tasks, shown = dict(jobs), shown or Progress()
    values = {} if fresh else {key: value for key in tasks if (value := cache.load(key)) is not None}
    shown.advance(sum(tasks[key].seconds for key in values))
    missing = [key for key in tasks if key not in values]
    try:
        with contextlib.closing(computed([tasks[key] for key in missing], workers, shown)) as results:
            for number, value in results:
                cache.store(missing[number], value)
                values[missing[number]] = value
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(values)} of {len(tasks)} pieces are kept in {cache.directory}") from None
    return values, set(missing)


class Outcome(NamedTuple):
    """Pieces and predictions, and how many pieces were computed and reused."""

    pieces: Mapping[Index, Piece]
    predicted: Mapping[Index, dict[str, Any]]
    computed: int
    reused: int


class Computation:
    """The jobs of a reproduction: the pieces and the predictions of its cells and of their variants."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        profile: Profile,
        cache: Cache,
        engine: str = "auto",
        fresh: bool = False,
        workers: int | None = None,
    ):
        self.cache, self.fresh = cache, fresh
        todo, others = cells(experiments, profile), []
        if profile.sensitivity is not None:
            # The non-reversible sampler and its baseline.
            others = cells([one for e in experiments for one in variants(e)], profile.sensitivity, most=2)
        exact = lambda c: c.experiment.problem.gaussian
        # Where errors are not exact, the prediction at the smallest η is converted to the others.
        wanted = [c for c in todo if exact(c) or c.step_size == profile.step_sizes(c.experiment)[-1]]
        wanted += filter(exact, others)
        self.pieces = {c.place: piece_job(c, engine) for c in (*todo, *(c for c in others if not exact(c)))}
        self.predictions = {c.place: prediction_job(c, profile.digits) for c in wanted}
        self.jobs: dict[str, WorkerTask] = {}
        for key, task in (*self.pieces.values(), *self.predictions.values()):
            # A variant that has the plan of a cell is that cell.
            self.jobs.setdefault(key, task)
        on_gpu = any(task.arguments[1] == "pallas" for task in self.jobs.values())
        if workers is None:
            missing = [key for key in self.jobs if fresh or not cache.path(key).exists()]
            workers = 1 if on_gpu else fastest([self.jobs[key].seconds for key in missing])
        self.workers = whole(workers, "workers", least=1, most=10_000)
        alone = "On a GPU one process computes: leave `workers` out, or choose an engine of the CPU, such as `lanes`."
        require(self.workers == 1 or not on_gpu, alone)

    def outcome(self, shown: Progress) -> Outcome:
        """Compute what the cache does not have; return all pieces and predictions."""
        values, made = obtain(self.jobs.items(), self.cache, self.workers, shown, self.fresh)
        found = lambda jobs: {at: values[key] for at, (key, _) in jobs.items()}
        mine = {key for key, _ in self.pieces.values()}
        return Outcome(found(self.pieces), found(self.predictions), computed=len(mine & made), reused=len(mine - made))
