"""Files written whole or not at all: single files, folders of results, CSV text, and JSON with a versioned schema.

All text is UTF-8. A reader never sees half a file, and a run that is stopped leaves what was there before.
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["ResultsFile", "csv_text", "json_text", "require_writable", "results_folder", "write_atomically"]


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all; missing folders are made.

    `content` may be a function that writes to an open binary file.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InvalidInput(
                f"Cannot write {path}: {error.strerror or error}. Free some space, or pass another directory with `--out`."
            ) from error
        raise


def require_writable(directory: Path) -> None:
    """Make the directory and write a byte into it; raise `InvalidInput` if that fails."""
    require(not directory.exists() or directory.is_dir(), f"{directory} is a file: pass a directory with `--out`.")
    probe = directory / f".probe-{os.getpid()}"
    write_atomically(probe, b"x")
    probe.unlink()


@contextlib.contextmanager
def results_folder(path: str | Path, own: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends, and is removed when the block raises.

    An earlier folder is replaced if it holds files of the names `own` and nothing else.
    """
    path = Path(path)
    require(not path.is_file(), f"{path} is a file: pass a directory with `--out`.")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in own) if path.exists() else []
    require(not others, f"{path} holds other files ({', '.join(others[:3])}): pass another directory with `--out`.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InvalidInput(f"Cannot write beside {path}: {error.strerror or error}. Pass `--out` elsewhere.") from None
    try:
        yield folder
        folder.chmod(0o755)
        _move_into_place(folder, path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _move_into_place(folder: Path, path: Path) -> None:
    """Rename a finished folder to `path`; an older one there is removed afterwards, or restored on failure."""
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    if path.exists():
        path.rename(old)
    try:
        folder.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV with one header line: nine significant digits of a float, an empty cell for None."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if x is None else f"{x:.9g}" if isinstance(x, float) else x for x in row] for row in rows])
    return buffer.getvalue()


def json_text(content: Any, indent: int | None = None) -> str:
    """Return JSON with letters as they are; NaN and infinity raise `ValueError`."""
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)


@dataclasses.dataclass(frozen=True)
class ResultsFile:
    """A JSON file that states its schema; `command` makes it again, with `{directory}` for its directory."""

    name: str
    schema: str
    version: int
    command: str

    def save(self, content: Mapping[str, Any], directory: Path) -> dict[str, Any]:
        """Write the content under a header with the schema; return what a reader of the file gets."""
        text = json_text({"schema": self.schema, "schema_version": self.version, **content}, indent=1)
        write_atomically(Path(directory) / self.name, text + "\n")
        return json.loads(text)

    def load(self, directory: Path) -> dict[str, Any]:
        """Read the file; `InvalidInput` when it is missing, damaged or follows another schema."""
        path = Path(directory) / self.name
        command = self.command.format(directory=directory)
        require(path.exists(), f"There is no {path}. Run `{command}` first.")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} cannot be read ({error}). Run `{command}` again.") from error
        found = (content.get("schema"), content.get("schema_version")) if isinstance(content, dict) else (None, None)
        if found != (self.schema, self.version):
            raise InvalidInput(
                f"{path} has schema {found[0]!r} version {found[1]!r}; this gyromc reads {self.schema!r} version "
                f"{self.version}. Use the gyromc that wrote it, or run `{command}` again."
            )
        return content
