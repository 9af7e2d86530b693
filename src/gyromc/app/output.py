"""What every command prints to standard output. Remarks go to standard error (`gyromc.show.progress.say`)."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["Json", "answer", "print_json", "print_tables"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
"""The option that every command has."""


def answer(json: bool, content: Any, *tables: Any, path: Path | None = None) -> None:
    """Print the content as JSON where that is asked for; else the tables, and the path of the report below them."""
    if json:
        print_json(content)
        return
    print_tables(*tables)
    if path is not None:
        print(path.resolve())


def print_json(value: Any) -> None:
    """Print plain values as JSON: on one line into a pipe or a file, indented on a terminal."""
    from gyromc.show.files import json_text

    print(json_text(value, indent=2 if sys.stdout.isatty() else None))


def print_tables(*tables: Any) -> None:
    """Print tables, results that show themselves as tables, and lines of text."""
    from rich.text import Text

    from gyromc.show.tables import console

    out = console()
    for table in tables:
        out.print(Text(table) if isinstance(table, str) else table)
