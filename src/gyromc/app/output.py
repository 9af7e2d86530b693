"""The app that every command joins, and what it prints to standard output; remarks go to standard error (`progress.say`)."""

import codecs
import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gyromc.errors import InvalidInput
from gyromc.show.numbers import printable
from gyromc.show.tables import console

ASCII = {"−": "-", "–": "-", "\N{NO-BREAK SPACE}": " ", "…": "...", "×": "x", "±": "+-"}
HELP = "Posterior means with error bars you can check. First try: gyromc fit example:heart --target disease"
app = typer.Typer(name="gyromc", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def answer(json: bool, content: Any, *tables: Any, path: Path | None = None) -> None:
    """Print the content as JSON where that is asked for; else tables and lines of text, and the path of the report below."""
    from rich.text import Text

    if json:
        print_json(content)
        return
    for table in tables:
        console().print(Text(printable(table)) if isinstance(table, str) else table)
    if path is not None:
        print(path.resolve())


def print_json(value: Any) -> None:
    """Print plain values as JSON: on one line into a pipe or a file, indented on a terminal."""
    from gyromc.show.files import json_text

    indent = 2 if sys.stdout.isatty() else None
    text = json_text(value, indent=indent)
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    print(text if unicode else json.dumps(json.loads(text), indent=indent))


def prepare_streams() -> None:
    """Make standard output and error take any text; raise `InvalidInput` before any work where output is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the whole process
    if sys.stdout is None:
        raise InvalidInput("Standard output is closed: there is nowhere to print to. Redirect it, as to /dev/null.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_spelled.__name__)


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written for a letter that an encoding lacks: a sign of numbers in ASCII, a byte of a file's name, or a code."""
    assert isinstance(error, UnicodeEncodeError)
    letter = error.object[error.start]
    if "\udc80" <= letter <= "\udcff":
        return os.fsencode(letter), error.start + 1
    return ASCII.get(letter, letter.encode("ascii", "backslashreplace").decode()), error.start + 1


codecs.register_error(_spelled.__name__, _spelled)
