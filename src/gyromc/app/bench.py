"""`gyromc bench`: the speed of the engines beside the peers. The benchmark itself is a developer's tool outside the package."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gyromc.app.output import Json, answer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(epilog="Example: gyromc bench nonquadratic --repeats 3 --out results/bench")(bench)


def bench(
    work: Annotated[list[str] | None, typer.Argument(help="Which work; all of it when left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Timings of each competitor.")] = 5,
    seconds: Annotated[float, typer.Option(help="About how long one timing takes.")] = 0.5,
    growth: Annotated[bool, typer.Option("--growth", help="Also vary chains, dimension and steps.")] = False,
    out: Annotated[str | None, typer.Option(help="Directory for bench.json, bench.png and growth.png.")] = None,
    json: Json = False,
) -> None:
    """Measure the engines beside the peers and the limit, in chain-steps per second."""
    from gyromc.checks import positive, whole
    from gyromc.show.files import json_text, require_writable, write_atomically
    from gyromc.show.progress import say

    repeats, seconds = whole(repeats, "--repeats", least=1), positive(seconds, "--seconds")
    speed = _speed()
    if out is not None:
        require_writable(Path(out))
    results = speed.measure(work or (), repeats, seconds, growth, say)
    content = speed.report(results)
    if out is not None:
        directory = Path(out)
        write_atomically(directory / "bench.json", json_text(content, indent=2) + "\n")
        speed.plot(results, directory / "bench.png")
        speed.plot_growth(results, directory / "growth.png")
    answer(json, content, speed.table(results))


def _benchmarks() -> Path:
    """The folder `benchmarks` of the checkout that this file belongs to."""
    return Path(__file__).parents[3] / "benchmarks"


def _speed() -> Any:
    """Import `benchmarks/speed`; raise `InvalidInput` where there is no checkout."""
    from gyromc.errors import InvalidInput

    folder = _benchmarks()
    if not (folder / "speed").is_dir():
        raise InvalidInput(
            "`gyromc bench` measures a checkout of the source and is not in the installed package. "
            "Clone gyromc and run `make bench`."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module("speed")
