"""`gyromc bench speed` and `gyromc bench accuracy`: the benchmarks on the command line; they need a checkout.

`speed` measures the engines beside other packages in chain-steps per second. `accuracy` compares effective draws per gradient,
or, with `--race`, processor seconds from a cold start to an error.
"""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from gyromc.app.output import Json, answer, print_json
from gyromc.checks import positive, require, whole
from gyromc.show.files import json_text, require_writable, write_atomically
from gyromc.show.progress import progress, say

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Speed and accuracy compared with other packages.")
Out = Annotated[Path | None, typer.Option(help="Directory for the JSON file and the figures.")]
WORKERS = "Processes that share the cells; 1 when left out, because every cell also measures its own time."
RACE = "Processor seconds from a cold start to an error, on other posteriors, instead of draws per gradient."


@app.command(epilog="Example: gyromc bench speed nonquadratic --repeats 3 --out results/bench")
def speed(
    work: Annotated[list[str] | None, typer.Argument(help="Which work; all of it when left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Timings of each competitor.")] = 5,
    seconds: Annotated[float, typer.Option(help="About how long one timing takes.")] = 0.5,
    growth: Annotated[bool, typer.Option("--growth", help="Also vary chains, dimension and steps.")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure the engines and other packages, in chain-steps per second."""
    package = _package("speed", out)
    repeats, seconds = whole(repeats, "--repeats", least=1), positive(seconds, "--seconds")
    results = package.measure(work or [], repeats, seconds, growth, say)
    content = package.report(results)
    if out is not None:
        write_atomically(out / "bench.json", json_text(content, indent=2) + "\n")
        package.plot(results, out / "bench.png")
        package.plot_growth(results, out / "growth.png")
    answer(json, content, package.table(results))


@app.command(epilog="Example: gyromc bench accuracy heart --quick")
def accuracy(
    problems: Annotated[list[str] | None, typer.Argument(help="Which problems; all of them when left out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of an hour.")] = False,
    race: Annotated[bool, typer.Option("--race", help=RACE)] = False,
    workers: Annotated[int, typer.Option(help=WORKERS)] = 1,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare effective draws per gradient, or seconds, with other samplers; what is done stays in the file after Ctrl-C."""
    count = whole(workers, "--workers", least=1, most=10_000)
    package = _package("accuracy.race" if race else "accuracy", out)
    if race:
        rows = _race(package, problems or [], quick, count, out)
        print_json({"rows": rows}) if json else print(package.text(rows))
        return
    profile = package.QUICK if quick else package.FULL
    path = None if out is None else out / "accuracy.json"
    try:
        with progress(package.total(problems or [], profile), description="accuracy") as shown:
            cells = package.measured(problems or [], profile, path, say, shown.advance, workers=count)
    except KeyboardInterrupt:
        kept = "nothing was stored (`--out` was left out)" if path is None else f"{path} has what is done"
        say(f"interrupted: {kept}.{'' if path is None else ' The same command goes on from there.'}")
        raise typer.Exit(130) from None
    if out is not None:
        package.plot(cells, out / "accuracy.png")
    answer(json, {**package.header(), "cells": cells}, package.table(cells))


def _race(package: Any, names: list[str], quick: bool, workers: int, out: Path | None) -> list[Any]:
    """The rows of the race; those that the file has are not measured again."""
    wrong = [name for name in names if name not in package.POSTERIORS]
    require(not wrong, f"No posterior is named {', '.join(wrong)}. There is: {', '.join(package.POSTERIORS)}.")
    return package.race_of(names, quick, None if out is None else out / "race.json", workers, say)


def _package(name: str, out: Path | None) -> Any:
    """Import a package of this folder, after a look at whether results can be written."""
    if out is not None:
        require_writable(out)
    return importlib.import_module(name)
