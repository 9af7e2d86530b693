"""`gyromc bench`: speed and accuracy beside the peers. The benchmarks themselves are developers' tools outside the package."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gyromc.app.output import Json, answer, print_json

__all__ = ["register"]

ACCURACY = "accuracy"  # the first word that asks for the other benchmark; no work has this name
REPEATS, SECONDS = 5, 0.5
WORKERS = "accuracy: processes that share the cells; 1 when left out, because every cell also measures its own time."
RACE = "accuracy: processor seconds from a cold start to an error, on other posteriors, instead of draws per gradient."


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    example = "Examples: gyromc bench nonquadratic --repeats 3 --out results/bench; gyromc bench accuracy heart --quick"
    app.command(epilog=example)(bench)


def bench(
    work: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which work, all of it when left out; or `accuracy` and which problems.", metavar="[WORK]..."
        ),
    ] = None,
    repeats: Annotated[int | None, typer.Option(help=f"Timings of each competitor; {REPEATS} when left out.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help=f"About how long one timing takes; {SECONDS} when left out.")
    ] = None,
    growth: Annotated[bool, typer.Option("--growth", help="Also vary chains, dimension and steps.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="accuracy: minutes instead of an hour.")] = False,
    race: Annotated[bool, typer.Option("--race", help=RACE)] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    out: Annotated[str | None, typer.Option(help="Directory for the JSON file and the figures.")] = None,
    json: Json = False,
) -> None:
    """Measure the engines beside the peers, in chain-steps per second; or, with `accuracy`, effective draws per gradient."""
    from gyromc.checks import require
    from gyromc.show.files import require_writable

    directory = None if out is None else Path(out)
    asked_accuracy = bool(work) and work[0] == ACCURACY
    if asked_accuracy:
        others = {"--repeats": repeats is not None, "--seconds": seconds is not None, "--growth": growth}
        wrong = [name for name, given in others.items() if given]
        require(not wrong, f"{', '.join(wrong)} belongs to the speed benchmark: leave it out of `bench {ACCURACY}`.")
    require(
        asked_accuracy or not race, f"--race belongs to `bench {ACCURACY}`: write `gyromc bench {ACCURACY} --race`."
    )
    require(
        asked_accuracy or not quick, f"--quick belongs to `bench {ACCURACY}`: pass `--repeats` and `--seconds` here."
    )
    require(
        asked_accuracy or workers is None,
        f"--workers belongs to `bench {ACCURACY}`: speed is measured with nothing beside it. Leave it out.",
    )
    package = _package(ACCURACY if asked_accuracy else "speed")
    if directory is not None:
        require_writable(directory)
    if race:
        _race((work or [])[1:], quick, workers, directory, json)
    elif asked_accuracy:
        _accuracy(package, (work or [])[1:], quick, workers, directory, json)
    else:
        _speed(package, work or [], repeats, seconds, growth, directory, json)


def _speed(
    speed: Any,
    work: list[str],
    repeats: int | None,
    seconds: float | None,
    growth: bool,
    directory: Path | None,
    json: bool,
) -> None:
    """Chain-steps per second."""
    from gyromc.checks import positive, whole
    from gyromc.show.files import json_text, write_atomically
    from gyromc.show.progress import say

    repeats = REPEATS if repeats is None else whole(repeats, "--repeats", least=1)
    seconds = SECONDS if seconds is None else positive(seconds, "--seconds")
    results = speed.measure(work, repeats, seconds, growth, say)
    content = speed.report(results)
    if directory is not None:
        write_atomically(directory / "bench.json", json_text(content, indent=2) + "\n")
        speed.plot(results, directory / "bench.png")
        speed.plot_growth(results, directory / "growth.png")
    answer(json, content, speed.table(results))


def _accuracy(
    accuracy: Any, problems: list[str], quick: bool, workers: int | None, directory: Path | None, json: bool
) -> None:
    """Effective draws per gradient; what is done when Ctrl-C is pressed stays in the file and is not measured again."""
    from gyromc.checks import whole
    from gyromc.show.progress import progress, say

    count = 1 if workers is None else whole(workers, "--workers", least=1, most=10_000)
    profile = accuracy.QUICK if quick else accuracy.FULL
    path = None if directory is None else directory / "accuracy.json"
    try:
        with progress(accuracy.total(problems, profile), description="accuracy") as shown:
            cells = accuracy.measured(problems, profile, path, say, shown.advance, workers=count)
    except KeyboardInterrupt:
        kept = "nothing was stored (`--out` was left out)" if path is None else f"{path} has what is done"
        say(f"interrupted: {kept}.{'' if path is None else ' The same command goes on from there.'}")
        raise typer.Exit(130) from None
    if directory is not None:
        accuracy.plot(cells, directory / "accuracy.png")
    answer(json, {**accuracy.header(), "cells": cells}, accuracy.table(cells))


def _race(names: list[str], quick: bool, workers: int | None, directory: Path | None, json: bool) -> None:
    """Processor seconds to an error; rows that the file has are not measured again."""
    from gyromc.checks import require, whole
    from gyromc.show.progress import say

    race = importlib.import_module("accuracy.race")
    wrong = [name for name in names if name not in race.POSTERIORS]
    require(not wrong, f"No posterior is named {', '.join(wrong)}. There is: {', '.join(race.POSTERIORS)}.")
    count = 1 if workers is None else whole(workers, "--workers", least=1, most=10_000)
    path = None if directory is None else directory / "race.json"
    rows = race.race_of(names, quick, path, count, say)
    if json:
        print_json({"rows": rows})
    else:
        print(race.text(rows))


def _benchmarks() -> Path:
    """The folder `benchmarks` of the checkout that this file belongs to."""
    return Path(__file__).parents[3] / "benchmarks"


def _package(name: str) -> Any:
    """Import a package of the folder `benchmarks`; raise `InvalidInput` where there is no checkout."""
    from gyromc.errors import InvalidInput

    folder = _benchmarks()
    if not (folder / name).is_dir():
        raise InvalidInput(
            "`gyromc bench` measures a checkout of the source and is not in the installed package. "
            "Clone gyromc and run `make bench`."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)
