"""Everything that a reproduction computes: the cells of the experiments, predictions, and where.

Each (experiment, dynamics, η) is a cell: a plan, run once and stored. Input: experiments, a profile and what the user said about
workers. Output: the averages of every cell and of the variants, the same numbers wherever they were computed: now, earlier, in a
run that was killed half-way, in this process or in others. Pieces and predictions are jobs of one list, so that no processor
waits for the other kind. `Computation.forecast` returns the predictions for an experiment, V, finite-step errors, stability and
verdicts on the assumptions, as plain dictionaries for results.json: nothing is sampled there.
"""

import dataclasses
import hashlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

import gyromc
from gyromc import engines
from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.io.plans import SentPlan
from gyromc.machine import num_threads
from gyromc.paper.analysis import variants
from gyromc.paper.cache import Cache, Job, Obtained, Piece, fingerprint, obtain
from gyromc.paper.catalogue import Experiment, Profile, seconds
from gyromc.paper.workers import Advance, Here, Place, Processes, WorkerTask, fastest
from gyromc.plan import Plan, paper_steps
from gyromc.show.progress import Progress

FEW_CHAINS = 256
"""Too few to fill a GPU: so many are left to the processors beside it."""
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

    def __init__(self, todo: Sequence[Cell], engine: str = "auto", fresh: bool = False):
        self.todo, self.fresh = todo, fresh
        names: dict[object, str] = {}
        self.engines = [_engine(cell, engine, names) for cell in todo]
        self.keys = [fingerprint(cell.plan, name) for cell, name in zip(todo, self.engines, strict=True)]
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
        return Job(key, WorkerTask(str(cell), compute, (SentPlan(cell.plan), engine, key), expected), self.fresh)

    def failed(self, found: Obtained) -> list[Job]:
        """The jobs of pieces that cannot be taken from a larger one, because a chain failed there."""
        wanted = {key for key, larger in self.larger.items() if found.values[larger].failures}
        return [self._job(i) for i in {key: i for i, key in enumerate(self.keys) if key in wanted}.values()]

    def outcome(self, found: Obtained, more: Obtained) -> Outcome:
        """All pieces; `more` are those of `failed`."""
        values = {**found.values, **more.values}
        # `found` may hold other jobs as well.
        mine = {job.key for job in self.jobs} | more.values.keys()
        computed = mine & (found.computed | more.computed)
        pieces, owners = {}, {}
        for cell, key in zip(self.todo, self.keys, strict=True):
            if key not in values:
                values[key] = values[self.larger[key]].first(cell.plan.num_chains)
            pieces[cell.index] = values[key]
            owners.setdefault(key, cell)
        notes = [f"{owners[key]}: {note}" for key in owners if key in computed for note in values[key].warnings]
        return Outcome(pieces, len(computed), len(mine) - len(computed), tuple(notes))


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


def _engine(cell: Cell, asked: str, known: dict[object, str]) -> str:
    """The engine of a cell: the choice depends on sampler, problem and sizes, not on the step size or the numbers in the data."""
    plan, e = cell.plan, cell.experiment
    kinds = type(e.problem), type(plan.target), type(plan.oracle), plan.dtype
    sizes = plan.num_chains, plan.state_size, len(plan.observables), getattr(plan.target, "num_data", 0)
    like = (id(e.sampler), cell.role, kinds, sizes, getattr(plan.oracle, "size", 0))
    if like not in known:
        known[like] = engines.choose(plan, asked)[0]
        if asked == "auto" and known[like] == "pallas" and plan.num_chains <= FEW_CHAINS and num_threads() > 1:
            known[like] = "pallas" if engines.ENGINES["lanes"].why_not(plan) else "lanes"
    return known[like]


PREDICTING = 4
"""Processes at most, beside a GPU that computes all pieces."""


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
        self.experiments, self.profile, self.cache = experiments, profile, cache
        if workers is not None:
            whole(workers, "workers", least=1, most=10_000)
        todo = cells(experiments, profile)
        self.variants = {e.name: variants(e) for e in experiments} if profile.sensitivity is not None else {}
        if profile.sensitivity is not None:
            todo += cells([one for made in self.variants.values() for one in made], profile.sensitivity)
        self.work = Work(todo, engine, fresh)
        self.errors = dict(self._error_jobs())
        forecasts = [job for e in experiments for role in e.roles for job in self._forecast_jobs(e, role)]
        self.predictions = [*forecasts, *self.errors.values()]
        self.on_gpu = bool(self.work.on_gpu)
        self.own = [job for job in self.work.jobs if (job.key in self.work.on_gpu) == self.on_gpu]  # at the place
        self.aside = [job for job in self.work.jobs if (job.key in self.work.on_gpu) != self.on_gpu]  # beside the GPU
        self.place = self._place(workers)
        # The predictions by key, once they are computed.
        self.predicted: Mapping[str, Any] = {}
        # Seconds that they took beside the pieces.
        self.predicting: float | None = None

    @property
    def seconds(self) -> float:
        """About how long the jobs take that are shown in the progress."""
        shown = self.own if isinstance(self.place, Here) else [*self.work.jobs, *self.predictions]
        return sum(job.task.seconds for job in shown)

    @property
    def place_name(self) -> str:
        """Where pieces are computed, as text."""
        if isinstance(self.place, Processes):
            return f"{self.place.workers} processes, {self.place.threads} threads each"
        return "this process"

    def outcome(self, shown: Progress) -> Outcome:
        """Compute what the cache does not have; return all pieces."""
        if isinstance(self.place, Here):
            free = num_threads() - 1 if self.on_gpu else 0
            count = free if self.aside else min(free, PREDICTING)
            beside = _beside([*self.aside, *self.predictions], self.cache, count)
            pieces = obtain(self.own, self.cache, self.place, shown)
            others, self.predicting = beside.result()
            pieces = Obtained({**pieces.values, **others.values}, pieces.computed | others.computed)
        else:
            pieces = obtain([*self.work.jobs, *self.predictions], self.cache, self.place, shown)
        self.predicted = pieces.values
        more = obtain(self.work.failed(pieces), self.cache, self.place, shown)
        return self.work.outcome(pieces, more)

    def exact_errors(self, experiment: Experiment) -> dict[tuple[str, str, float], tuple[float, float]]:
        """μ(h) and the exact RMSE of one chain by (variant, role, η), where the target is Gaussian; empty elsewhere."""
        made = {}
        for one in self.variants[experiment.name]:
            if one.name in self.errors:
                rows = self.predicted[self.errors[one.name].key]["errors"]
                indices = [cell.index for cell in self.work.todo if cell.experiment is one]
                made |= {at: (float.fromhex(a), float.fromhex(b)) for at, (a, b) in zip(indices, rows, strict=True)}
        return made

    def forecast(self, e: Experiment) -> dict[str, Any]:
        """The predictions by role: the constants that do not depend on η, and `cells`, one entry by observable per step size.

        Where the errors are not exact, the prediction at the smallest η is converted to the others.
        """
        names, etas = _names(e), self.profile.step_sizes(e)
        found = {}
        for role in e.roles:
            predicted = [dict(self.predicted[job.key]) for job in self._forecast_jobs(e, role)]
            cells = [p.pop("observables") for p in predicted]
            if not e.problem.gaussian:
                cells = [{name: _scaled(cells[0][name], etas[-1], eta) for name in names} for eta in etas]
            found[role] = {**{key: cells[-1][names[0]][key] for key in CONSTANTS}, **predicted[-1], "cells": cells}
        return found

    def _forecast_jobs(self, e: Experiment, role: str) -> Iterator[Job]:
        """The predictions of one dynamics: at all step sizes, or, where errors are not exact, at the smallest."""
        etas, digits = self.profile.step_sizes(e), self.profile.digits
        for eta in etas if e.problem.gaussian else etas[-1:]:
            plan = e.plan(eta, role, num_chains=self.profile.chains(e))
            plan = plan.replace(observables={name: plan.observables[name] for name in _names(e)})
            name = f"{e.name} {role} η = {eta:g}: prediction"
            task = WorkerTask(name, predicted, (SentPlan(plan), digits), SECONDS[e.problem.family])
            yield Job(fingerprint(plan, f"prediction to {digits} digits"), task)

    def _error_jobs(self) -> Iterator[tuple[str, Job]]:
        """By variant on a Gaussian target: the exact errors of its cells."""
        cells_of: dict[str, list[int]] = {}
        for i, cell in enumerate(self.work.todo):
            cells_of.setdefault(cell.experiment.name, []).append(i)
        for made in self.variants.values():
            for one in made:
                if one.problem.gaussian:
                    places = cells_of[one.name]
                    observable, sent = one.problem.primary, tuple(SentPlan(self.work.todo[i].plan) for i in places)
                    named = " ".join(["errors of", observable, *(self.work.keys[i] for i in places)])
                    task = WorkerTask(f"{one.name}: exact errors", errors, (sent, observable), 0.03 * len(sent))
                    yield one.name, Job(hashlib.sha256(named.encode()).hexdigest()[:32], task)

    def _place(self, workers: int | None) -> Place:
        if self.on_gpu:
            require(
                workers in (None, 1),
                'One process computes on a GPU: leave `workers` out, or pass `engine="scan"` or `engine="lanes"`.',
            )
            return Here(prepares)
        if workers is None:
            missing = [job for job in self.work.jobs if job.fresh or not self.cache.path(job.key).exists()]
            workers = fastest([job.task.seconds for job in missing])
        return Here() if workers == 1 else Processes(workers)


def _beside(jobs: Sequence[Job], cache: Cache, count: int) -> "Future[tuple[Obtained, float]]":
    """Compute jobs meanwhile, in a thread or, beside a GPU, in `count` processes that do not use it; and the seconds it took."""
    future: Future[tuple[Obtained, float]] = Future()

    def compute_jobs() -> None:
        aside = Processes(count, environment={"JAX_PLATFORMS": "cpu"}) if count > 0 else Here()
        began = time.perf_counter()
        try:
            found = obtain(jobs, cache, aside, Progress())
            future.set_result((found, time.perf_counter() - began))
        # Raised by the thread that waits.
        except BaseException as error:
            future.set_exception(error)

    # A thread that an interrupted program does not wait for.
    threading.Thread(target=compute_jobs, daemon=True).start()
    return future


CONSTANTS = ("variance", "reversible_variance", "method", "strict")
ERRORS = ("expectation", "rmse", "rmse_method", "bias", "bias_method", "std")
SECONDS = {"quadratic": 0.1, "nonquadratic": 6.0, "linear": 0.2, "logistic": 8.0}
"""About how long one prediction takes, by family."""


def _names(experiment: Experiment) -> list[str]:
    """The observables that are predicted."""
    problem = experiment.problem
    return [name for name in (problem.primary, problem.even) if name is not None]


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


def errors(sent: Sequence[SentPlan], observable: str, advance: Advance | None = None) -> dict[str, Any]:
    """Predict μ(h) and the RMSE of one chain for each plan; return them as texts, which keep every bit."""
    found = []
    for one in sent:
        plan = one.plan.replace(observables={observable: one.plan.observables[observable]}, num_chains=1)
        row = gyromc.predict(plan)[observable]
        # Known in closed form on a Gaussian target.
        assert row.expectation is not None
        found.append([float(row.expectation).hex(), float(row.rmse).hex()])
    return {"errors": found}


def _scaled(found: Mapping[str, Any], at: float, eta: float) -> dict[str, Any]:
    """Convert an asymptotic prediction from one η to another: Var = V/(Nη) + s/N and bias ∝ η, with N = ⌊η⁻²⌋."""
    V, std, bias = found["variance"], found["std"], found["bias"]
    if V is None or std is None:
        return dict(found)
    s = paper_steps(at) * std**2 - V / at
    bias = None if bias is None else bias * eta / at
    N = paper_steps(eta)
    std = math.sqrt(max(V / (N * eta) + s / N, 0.0))
    numbers = {"bias": bias, "std": std, "rmse": math.hypot(std, bias or 0.0)}
    # XLA adds in another order with other numbers of threads: the last digits are not the same in every process.
    return {**found, **{name: None if x is None else float(f"{x:.12g}") for name, x in numbers.items()}}
