"""Jobs: results that are in the cache or are computed somewhere, each stored once it is finished.

Input: jobs and a place. Output: their results by key. No job is computed twice at once: jobs with the same key are one, and what
another process on this machine is computing for the same cache is waited for; where that process ends, it is computed here.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gyromc.paper.cache import Cache, Claims
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress, say
from gyromc.workers import Place, WorkerTask

__all__ = ["Interrupted", "Job", "Obtained", "obtain"]

LOOK_AGAIN = 0.5  # seconds between two looks at what another process computes


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message names how many pieces are finished, and where they are stored."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A task whose result is stored under a key.

    `load` returns what the cache has, or None; `store` stores what the task returned and returns what `load` will.
    """

    key: str
    task: WorkerTask
    load: Callable[[], Any]
    store: Callable[[Any], Any]
    fresh: bool = False  # whether it is computed even where the cache has it


@dataclasses.dataclass(frozen=True, eq=False)
class Obtained:
    """The results by key, and the keys of those that were computed now."""

    values: Mapping[str, Any]
    computed: frozenset[str]

    def and_also(self, other: "Obtained") -> "Obtained":
        """The results of both."""
        return Obtained({**self.values, **other.values}, self.computed | other.computed)


def obtain(jobs: Iterable[Job], cache: Cache, place: Place, shown: Progress) -> Obtained:
    """Load what the cache has, compute the rest at a place, and store each result as soon as it is there.

    Ctrl-C raises `Interrupted`.
    """
    left = list({job.key: job for job in jobs}.values())
    total, values, computed = len(left), {}, set()
    with Claims(cache.directory) as claims, interruptible("stopping") as stop:
        waited = False
        try:
            while left:
                left = _loaded(left, values, shown)
                mine = [job for job in left if claims.take(job.key)]
                mine = _loaded(mine, values, shown)  # finished between the look and the claim
                with contextlib.closing(place.results([job.task for job in mine], shown)) as results:
                    for number, value in results:
                        job = mine[number]
                        values[job.key] = job.store(value)
                        claims.release(job.key)
                        computed.add(job.key)
                        stop.check()
                left = [job for job in left if job.key not in values]
                if left:
                    if not waited:
                        say(f"waiting for {len(left)} pieces that another process computes in {cache.directory}")
                    waited = True
                    stop.check()
                    time.sleep(LOOK_AGAIN)
        except KeyboardInterrupt:
            raise Interrupted(f"{len(values)} of {total} pieces are kept in {cache.directory}") from None
    return Obtained(values, frozenset(computed))


def _loaded(jobs: Sequence[Job], values: dict[str, Any], shown: Progress) -> list[Job]:
    """Add what the cache has; return the other jobs."""
    left = []
    for job in jobs:
        value = None if job.fresh else job.load()
        if value is None:
            left.append(job)
        else:
            values[job.key] = value
            shown.advance(job.task.seconds)
    return left
