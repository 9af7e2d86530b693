"""Reproduces the paper's experiments: predict, run, compare, report. Finished pieces are not computed twice."""

import dataclasses
import datetime
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gyromc.approx.sample import Expectation
from gyromc.checks import one_of
from gyromc.paper.analysis import Measured, analyse, forecast, predictive_reference, sensitivity
from gyromc.paper.catalogue import PROFILES, Experiment, HeartDisease, Profile, select
from gyromc.paper.computation import Cache, Computation, Outcome
from gyromc.paper.report import RESULTS, SECONDS_PER_FIGURES, write_report
from gyromc.show.pages import machine
from gyromc.show.progress import Progress
from gyromc.show.progress import progress as show_progress

SECONDS_PER_ANALYSIS = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction:
    """The results, their directory and report, and how many pieces were computed and reused."""

    results: dict[str, Any]
    directory: Path
    report: Path
    computed: int
    reused: int


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
      one for each processor, and this process alone for less than half a minute of work and with a GPU.
    - `sensitivity`: whether the profile `"paper"` judges claim (i) also over other data, rows and starts.

    **Returns:** a `Reproduction`.
    """
    experiments = select(names, seed)
    chosen = profile if isinstance(profile, Profile) else PROFILES[one_of(profile, PROFILES, "profile")]
    if not sensitivity:
        chosen = dataclasses.replace(chosen, sensitivity=None)
    directory = Path(out) if out is not None else Path("results") / chosen.name
    started, began = datetime.datetime.now(datetime.UTC), time.perf_counter()
    with Cache(directory / "cache").alone() as cache:
        work = Computation(experiments, chosen, cache, engine, fresh, workers)
        total = sum(task.seconds for task in work.jobs.values())
        with show_progress(total + len(experiments) * (SECONDS_PER_ANALYSIS + SECONDS_PER_FIGURES), progress) as shown:
            outcome = work.outcome(shown)
            found = _findings(experiments, chosen, outcome, shown, seed)
            options = [f"--engine {engine}"] * (engine != "auto") + ["--no-sensitivity"] * (not sensitivity)
            content = {
                "profile": chosen.name,
                "seed": seed,
                "command": " ".join(
                    ["gyromc reproduce", *names, f"--profile {chosen.name}", *options, f"--seed {seed}"]
                ),
                "environment": machine(),
                "experiments": found,
                "times": {
                    "started": started.isoformat(timespec="seconds"),
                    "wall": time.perf_counter() - began,
                    "sampling": sum({id(piece): piece.wall_time for piece in outcome.pieces.values()}.values()),
                    "workers": work.workers,
                    "pieces": {"computed": outcome.computed, "reused": outcome.reused},
                },
            }
            results = RESULTS.save(content, directory)
            report = write_report(results, directory, shown)
    return Reproduction(results, directory, report, outcome.computed, outcome.reused)


def _findings(
    experiments: Sequence[Experiment], profile: Profile, outcome: Outcome, shown: Progress, seed: int
) -> dict[str, Any]:
    @functools.cache
    def reference(draws: int, problem: HeartDisease) -> Expectation:
        return predictive_reference(problem.pieces["target"], problem.split.X_test, draws, seed)

    found = {}
    for e in experiments:
        shown.describe(f"{e.name}: predictions and claims")
        pieces = {at[1:]: piece for at, piece in outcome.pieces.items() if at[0] == e.name}
        known = reference(profile.reference_draws, e.problem) if isinstance(e.problem, HeartDisease) else None
        etas = profile.step_sizes(e)
        data = Measured(e, etas, pieces, forecast(e, etas, outcome.predicted), known)
        found[e.name] = analyse(data)
        if (fewer := profile.sensitivity) is not None:
            known_at = functools.partial(reference, fewer.reference_draws)
            found[e.name]["sensitivity"] = sensitivity(e, fewer, outcome, data.truth, known_at)
        shown.advance(SECONDS_PER_ANALYSIS)
    return found
