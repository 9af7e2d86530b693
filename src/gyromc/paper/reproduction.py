"""Reproduces the paper's experiments: predict, run, compare, report.

Input: names and a profile. Output: results.json, figures and report.html in a directory. Finished pieces are not
computed twice.
"""

import dataclasses
import datetime
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyromc.approx.sample import Expectation
from gyromc.checks import one_of
from gyromc.paper.analysis import Measured, analyse, forecast, predictive_reference, sensitivity
from gyromc.paper.cache import Cache
from gyromc.paper.catalogue import PROFILES, Experiment, HeartDisease, Profile, select
from gyromc.paper.claims import Bootstrap
from gyromc.paper.computation import Computation, Outcome
from gyromc.paper.report import RESULTS, SECONDS_PER_FIGURES, drawing_place, write_report
from gyromc.show.pages import machine
from gyromc.show.progress import Progress
from gyromc.show.progress import progress as show_progress

SECONDS_PER_ANALYSIS = 2.0
SUMS = ("sampling", "sensitivity", "compiling", "predicting")
"""Seconds inside the stage `computing`: of pieces, of variants' pieces, of their compilation, of predictions at the same time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction:
    """The results, their directory and report, how many pieces were computed and reused, and the seconds of each stage."""

    results: dict[str, Any]
    directory: Path
    report: Path
    computed: int
    reused: int
    warnings: tuple[str, ...]
    times: Mapping[str, float]


def reproduce(
    names: Sequence[str] = (),
    profile: str | Profile = "quick",
    *,
    engine: str = "auto",
    out: str | Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    sensitivity: bool = True,
) -> Reproduction:
    """Run experiments of the paper and write results.json, figures and report.html.

    **Arguments:**

    - `names`: which experiments; all twelve when left out.
    - `profile`: `"quick"` (minutes), `"paper"` (R = 2000, every published step size), or a `Profile` of your own.
    - `engine`: as in `gyromc.run`.
    - `out`: the directory; `results/<profile>` when left out. Finished pieces are stored in its folder `cache`.
    - `seed`: all noise is derived from it.
    - `fresh`: compute again what the cache holds.
    - `progress`: show progress on standard error; when left out, only on a terminal.
    - `workers`: how many processes compute the pieces; the numbers are the same for any. Left out: the fastest on this machine,
      one for each processor, and this process alone for less than half a minute of work. With a GPU this process computes on it,
      and processes on the CPU compute the predictions and the pieces whose chains are too few for a GPU.
    - `sensitivity`: whether the profile `"paper"` judges claim (i) also over other data, rows and starts; a quarter of its time.

    **Returns:** a `Reproduction`.
    """
    experiments = select(names, seed)
    chosen = profile if isinstance(profile, Profile) else PROFILES[one_of(profile, PROFILES, "profile")]
    if not sensitivity:
        chosen = dataclasses.replace(chosen, sensitivity=None)
    directory = Path(out) if out is not None else Path("results") / chosen.name
    started = datetime.datetime.now(datetime.UTC)
    clock = Clock()
    with Cache(directory / "cache").alone() as cache:
        work = Computation(experiments, chosen, cache, engine, fresh, workers)
        clock.lap("preparing")
        total = work.seconds + len(experiments) * (SECONDS_PER_ANALYSIS + SECONDS_PER_FIGURES)
        with show_progress(total, progress) as shown:
            outcome = work.outcome(shown)
            clock.lap("computing")
            found = _findings(experiments, chosen, outcome, shown, seed)
            clock.lap("judging")
            content = {
                "profile": chosen.name,
                "seed": seed,
                "command": _command(names, chosen.name, engine, seed, sensitivity),
                "environment": machine(),
                "experiments": found,
                "times": _times(started, clock, work.place_name, outcome, found),
            }
            results = RESULTS.save(content, directory)
            report = write_report(results, directory, shown, place=drawing_place(len(found)))
            clock.lap("drawing")
    sums = {name: results["times"][name] for name in SUMS if name in results["times"]}
    times = {**clock.laps, **sums, "wall": clock.total}
    return Reproduction(results, directory, report, outcome.computed, outcome.reused, outcome.warnings, times)


class Clock:
    """Seconds of each stage since the start."""

    def __init__(self):
        self.began, self.laps = time.perf_counter(), {}

    @property
    def total(self) -> float:
        """Seconds until now."""
        return time.perf_counter() - self.began

    def lap(self, name: str) -> None:
        """End a stage."""
        self.laps[name] = self.total - sum(self.laps.values())


def _times(
    started: datetime.datetime, clock: Clock, workers: str, outcome: Outcome, found: Mapping[str, Any]
) -> dict[str, Any]:
    """The seconds of the stages so far, of the experiments' own pieces and of their variants'."""
    mine = {id(piece): piece.wall_time for at, piece in outcome.pieces.items() if at[0] in found}
    every = {id(piece): piece for piece in outcome.pieces.values()}
    return {
        "started": started.isoformat(timespec="seconds"),
        "wall": clock.total,
        "workers": workers,
        **clock.laps,
        **({} if outcome.predicting is None else {"predicting": outcome.predicting}),
        "pieces": {"computed": outcome.computed, "reused": outcome.reused},
        "sampling": sum(mine.values()),
        "sensitivity": sum(piece.wall_time for piece in every.values()) - sum(mine.values()),
        "compiling": sum(piece.compile_time for piece in every.values()),
    }


def _command(names: Sequence[str], profile: str, engine: str, seed: int, sensitivity: bool) -> str:
    parts = ["gyromc reproduce", *names, f"--profile {profile}"]
    parts += [f"--engine {engine}"] if engine != "auto" else []
    parts += [] if sensitivity else ["--no-sensitivity"]
    return " ".join([*parts, f"--seed {seed}"])


def _findings(
    experiments: Sequence[Experiment],
    profile: Profile,
    outcome: Outcome,
    shown: Progress,
    seed: int,
) -> dict[str, Any]:
    """Analyse each experiment; return the findings by name."""

    @functools.cache
    def bootstrap(chains: int) -> Bootstrap:
        return Bootstrap(chains, profile.bootstrap, seed)

    @functools.cache
    def reference(draws: int, problem: HeartDisease) -> Expectation:
        return predictive_reference(problem.target(), problem.split.X_test, draws, seed)

    found = {}
    for e in experiments:
        shown.describe(f"{e.name}: predictions and claims")
        pieces = {at[1:]: piece for at, piece in outcome.pieces.items() if at[0] == e.name}
        known = reference(profile.reference_draws, e.problem) if isinstance(e.problem, HeartDisease) else None
        etas, chains = profile.step_sizes(e), bootstrap(profile.chains(e))
        data = Measured(e, etas, pieces, forecast(e, etas, outcome.predicted), known, chains)
        found[e.name] = analyse(data)
        if (fewer := profile.sensitivity) is not None:
            known_at = functools.partial(reference, fewer.reference_draws)
            found[e.name]["sensitivity"] = sensitivity(
                e, fewer, outcome.pieces, outcome.predicted, data.truth, known_at, bootstrap(fewer.chains(e))
            )
        shown.advance(SECONDS_PER_ANALYSIS)
    return found
