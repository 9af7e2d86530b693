"""Everything that a reproduction computes: pieces, predictions, and where.

Input: experiments, a profile and what the user said about workers. Output: the pieces of all cells and of the variants; the
predictions are in the cache then. Pieces and predictions are jobs of one list, so that no processor waits for the other kind.
"""

import threading
import time
from collections.abc import Iterator, Sequence

from gyromc.checks import require, whole
from gyromc.paper.cache import Cache
from gyromc.paper.execution import Outcome, Work, cells, prepares
from gyromc.paper.experiment import Experiment
from gyromc.paper.forecast import error_job, forecast_jobs
from gyromc.paper.jobs import Job, Obtained, obtain
from gyromc.paper.profiles import Profile
from gyromc.paper.sensitivity import variants
from gyromc.show.progress import Progress
from gyromc.workers import Cluster, Here, Place, Processes, fastest
from gyromc.workers.processes import processors

__all__ = ["Computation"]

PREDICTING = 4  # processes at most, beside a GPU that computes all pieces


class Computation:
    """The jobs of a reproduction.

    **Arguments:** as those of `reproduce`. With `workers=None` and no cluster, the number that is fastest.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        profile: Profile,
        cache: Cache,
        engine: str = "auto",
        fresh: bool = False,
        workers: int | None = None,
        cluster: str | None = None,
    ):
        self.experiments, self.profile, self.cache = experiments, profile, cache
        if workers is not None:
            whole(workers, "workers", least=1, most=10_000)
        todo = cells(experiments, profile)
        self.variants = {e.name: variants(e) for e in experiments} if profile.sensitivity is not None else {}
        if profile.sensitivity is not None:
            todo += cells([one for made in self.variants.values() for one in made], profile.sensitivity)
        self.work = Work(todo, cache, engine, fresh)
        self.errors = dict(self._error_jobs())
        self.predictions = [*self._forecast_jobs(), *self.errors.values()]
        self.on_gpu = bool(self.work.on_gpu)
        on_gpu = lambda job: job.key in self.work.on_gpu
        self.own = [job for job in self.work.jobs if not self.on_gpu or on_gpu(job)]  # at the place
        self.aside = [job for job in self.work.jobs if self.on_gpu and not on_gpu(job)]  # beside the GPU
        self.place = self._place(workers, cluster)
        self.found: Obtained | None = None
        self.predicting: float | None = None  # seconds that predictions took beside the pieces

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
        return f"cluster {self.place.address}" if isinstance(self.place, Cluster) else "this process"

    def outcome(self, shown: Progress) -> Outcome:
        """Compute what the cache does not have; return all pieces."""
        if isinstance(self.place, Here):
            free = processors() - 1 if self.on_gpu else 0
            count = free if self.aside else min(free, PREDICTING)
            with _Beside([*self.aside, *self.predictions], self.cache, count) as beside:
                pieces = obtain(self.own, self.cache, self.place, shown)
            assert beside.found is not None
            self.found, self.predicting = beside.found, beside.seconds
            pieces = pieces.and_also(beside.found)
        else:
            pieces = self.found = obtain([*self.work.jobs, *self.predictions], self.cache, self.place, shown)
        more = obtain(self.work.failed(pieces), self.cache, self.place, shown)
        return self.work.outcome(pieces, more)

    def exact_errors(self, experiment: Experiment) -> dict[tuple[str, str, float], tuple[float, float]]:
        """μ(h) and the exact RMSE of one chain by (variant, role, η), where the target is Gaussian; empty elsewhere."""
        made = {}
        for one in self.variants[experiment.name]:
            if one.name in self.errors:
                assert self.found is not None
                rows = self.found.values[self.errors[one.name].key]["errors"]
                indices = [cell.index for cell in self.work.todo if cell.experiment is one]
                made |= {at: (float.fromhex(a), float.fromhex(b)) for at, (a, b) in zip(indices, rows, strict=True)}
        return made

    def _forecast_jobs(self) -> Iterator[Job]:
        for e in self.experiments:
            p = self.profile
            yield from forecast_jobs(e, p.step_sizes(e), p.chains(e), p.digits, self.cache)

    def _error_jobs(self) -> Iterator[tuple[str, Job]]:
        """By variant on a Gaussian target: the exact errors of its cells."""
        cells_of: dict[str, list[int]] = {}
        for i, cell in enumerate(self.work.todo):
            cells_of.setdefault(cell.experiment.name, []).append(i)
        for made in self.variants.values():
            for one in made:
                if one.problem.gaussian:
                    places = cells_of[one.name]
                    plans, keys = [self.work.todo[i].plan for i in places], [self.work.keys[i] for i in places]
                    yield one.name, error_job(one.name, plans, keys, one.problem.primary, self.cache)

    def _place(self, workers: int | None, cluster: str | None) -> Place:
        if cluster is not None:
            return Cluster(cluster, workers)
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


class _Beside:
    """Computes jobs while a block runs: in a thread, or, beside a GPU, in processes that do not use it.

    The end of the block waits for them, unless it ends by an error; `found` is what they gave.
    """

    def __init__(self, jobs: Sequence[Job], cache: Cache, count: int):
        self.jobs, self.cache, self.count = jobs, cache, count
        self.thread = threading.Thread(target=self._compute, daemon=True)
        self.found: Obtained | None = None
        self.seconds = 0.0
        self.error: BaseException | None = None

    def _compute(self) -> None:
        aside = Processes(self.count, environment={"JAX_PLATFORMS": "cpu"}) if self.count > 0 else Here()
        began = time.perf_counter()
        try:
            self.found = obtain(self.jobs, self.cache, aside, Progress())
            self.seconds = time.perf_counter() - began
        except BaseException as error:  # raised by the thread that waits
            self.error = error

    def __enter__(self) -> "_Beside":
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        if kind is not None:
            return
        while self.thread.is_alive():
            self.thread.join(0.1)  # Ctrl-C is heard in between
        if self.error is not None:
            raise self.error
