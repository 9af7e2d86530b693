"""`gyromc bench`: speed and accuracy compared with other packages, in a checkout; its commands are in `benchmarks`."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
"""All arguments, `--help` too, go to the commands in the checkout."""


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(context_settings=SETTINGS)(bench)


def bench(arguments: Annotated[list[str] | None, typer.Argument(metavar="[speed|accuracy] …")] = None) -> None:
    """Measure engines and accuracy, compared with other packages; in a checkout of the source only."""
    from gyromc.errors import InvalidInput

    folder = _benchmarks()
    if not (folder / "bench_commands.py").exists():
        raise InvalidInput(
            "`gyromc bench` measures a checkout of the source and is not in the installed package. "
            "Clone gyromc and run `make bench`."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    commands = typer.main.get_command(importlib.import_module("bench_commands").app)
    status = commands.main(arguments or [], prog_name="gyromc bench", standalone_mode=False)
    if status:
        raise typer.Exit(status)


def _benchmarks() -> Path:
    """The folder `benchmarks` of the checkout that this file belongs to."""
    return Path(__file__).parents[3] / "benchmarks"
