"""Files written whole or not at all: single files, folders of results, CSV text, and JSON with a versioned schema."""

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gyromc.checks import cause, explained, read_path, require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import is_number
from gyromc.show.progress import unhurried

UNFINISHED = ".unfinished-"
DAY = 86_400.0  # seconds
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all; `content` may be a function that writes to an open binary file.

    Missing folders are made, a symbolic link stays, and the permissions are those of the replaced file or of the umask.
    """
    place, temporary = Path(os.path.realpath(read_path(path))), None
    try:
        kind = f"Cannot write {path}: a device, a pipe or a directory is there."
        require(place.is_file() or not place.exists(), kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        with open(unfinished, "xb") as file:
            temporary = unfinished
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, temporary)
        temporary.replace(place)
    except BaseException as error:
        if temporary is not None:
            with unhurried():
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            remedy = "Free some space, or write to another directory."
            raise InvalidInput(f"Cannot write {path}: {error.strerror or error}. {remedy}") from error
        raise


def require_output(path: str | Path | None, option: str, *inputs: str | Path | None) -> None:
    """Raise `InvalidInput` where no file can be written to the path, or where that would overwrite one of the inputs."""
    if path is None:
        return
    path = Path(path)
    takes = f"`{option}` takes a file: {path} is a"
    require(not path.is_dir(), f"{takes} directory.")
    require(path.parent.is_dir(), f"`{option} {path}`: there is no directory {path.parent}. Make it first.")
    require(path.is_file() or not path.exists(), f"{takes} device or a pipe. Name another one.")
    for given in filter(None, inputs):
        there = path.exists() and os.path.exists(given)
        same = f"`{option} {path}` would overwrite {given}, which is read. Name another file."
        require(not there or not os.path.samefile(path, given), same)


def require_apart(outputs: Mapping[str, str | Path | None]) -> None:
    """Raise `InvalidInput` where two outputs, by the names of their options, are one file."""
    named: dict[str, str] = {}
    for option, path in outputs.items():
        if path is not None:
            other = named.setdefault(os.path.realpath(path), option)
            require(other == option, f"`{other}` and `{option}` both name {path}. Name two files.")


def _refuse_files(directory: Path) -> None:
    """Raise if a directory or one that it is in is a file, or cannot be."""
    read_path(directory)
    for path in (directory, *directory.parents):
        require(not path.exists() or path.is_dir(), f"{path} is a file: pass a directory.")


def require_writable(directory: Path) -> None:
    """Make the directory and write a byte into it; raise `InvalidInput` if that fails."""
    _refuse_files(directory)
    probe = directory / f".probe-{os.getpid()}"
    write_atomically(probe, b"x")
    probe.unlink()


@contextlib.contextmanager
def results_folder(path: str | Path, own: Collection[str], *inputs: str | None) -> Iterator[Path]:
    """Yield an empty folder whose files move to `path` when the block ends; it is removed when the block raises.

    An earlier folder may hold files of the names `own`, which are replaced. It is not renamed: it may be a mount point or a link.
    """
    path = Path(os.path.realpath(path))
    _refuse_files(path)
    for given in filter(None, inputs):
        place = Path(os.path.realpath(given))
        kept = place.parent != path or place.name not in own
        require(kept, f"The results would overwrite {given}: pass another directory with `--out`.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place, prefix = (path, UNFINISHED) if path.exists() else (path.parent, f".{path.name}{UNFINISHED}")
        others = [name for name in os.listdir(path) if name not in own] if place == path else []
        others = sorted(name for name in others if not name.startswith(UNFINISHED))
        require(not others, f"{path} holds other files ({', '.join(others[:3])}): pass another directory with `--out`.")
        for left in place.glob(f"{prefix}*"):
            # Of a process that was killed: no fit takes a day.
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
        folder = place / f"{prefix}{secrets.token_hex(4)}"
        folder.mkdir()
    except OSError as error:
        raise InvalidInput(f"Cannot write to {path}: {error.strerror or error}. Pass `--out` elsewhere.") from None
    try:
        yield folder
        # All files move, or none; those of an earlier run that are not made anew go.
        with unhurried():
            if not path.exists():
                folder.rename(path)
                return
            new = sorted(os.listdir(folder))
            for name in new:
                os.replace(folder / name, path / name)
            for name in set(own) - set(new):
                (path / name).unlink(missing_ok=True)
            folder.rmdir()
    except BaseException:
        # Nothing half-written stays, however slow the disk is.
        with unhurried():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool | None]:
    """Hold a lock on a folder, which ends with the process; False where another process holds it, None without locks."""
    handle, free = None, None
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except BlockingIOError:
        free = False
    except (ImportError, OSError):
        pass  # Windows, and some file systems of clusters
    try:
        yield free
    finally:
        if handle is not None:
            os.close(handle)


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV with one header line: nine digits of a float, nothing for None; a formula of a spreadsheet is made a text."""

    def cell(x: Any) -> Any:
        if isinstance(x, str):
            return f"'{x}" if x.startswith(FORMULA) and not is_number(x) else x
        return "" if x is None else f"{x:.9g}" if isinstance(x, float) else x

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([list(map(cell, row)) for row in (columns, *rows)])
    return buffer.getvalue()


def private_folder(name: str, base: str | None = None) -> Path | str:
    """A folder for files that are code, made if needed; or why there is none that only this user can write, as a sentence."""
    base = base or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.abspath(os.path.expanduser(base)), name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f"probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        own, above = folder.lstat(), [parent.stat().st_mode for parent in folder.parents]
    except OSError as error:
        return f"{folder}: it cannot be written ({error.strerror})"
    # Windows: folders of a user are private.
    if hasattr(os, "getuid"):
        replaceable = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
        mine = stat.S_ISDIR(own.st_mode) and own.st_uid == os.getuid() and not own.st_mode & 0o022
        if replaceable or not mine:
            return f"{folder}: it belongs to someone else, or others can write to it"
    return folder


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
        plain = json.loads(json_text({"schema": self.schema, "schema_version": self.version, **content}))
        plain["sha256"] = _digest(plain)
        write_atomically(Path(directory) / self.name, json_text(plain, indent=1) + "\n")
        return plain

    def load(self, directory: Path) -> dict[str, Any]:
        """Read the file; `InvalidInput` when it is missing, damaged or follows another schema."""
        path = Path(directory) / self.name
        command = self.command.format(directory=directory)
        require(path.is_file(), f"There is no {path}. Run `{command}` first.")
        with explained(f"{path} cannot be read", f"Run `{command}` again."):
            content = json.loads(path.read_text(encoding="utf-8"))
        found = (content.get("schema"), content.get("schema_version")) if isinstance(content, dict) else (None, None)
        wanted = f"this gyromc reads {self.schema!r} version {self.version}. Use the gyromc that wrote it"
        has = f"{path} has schema {found[0]!r} version {found[1]!r}"
        require(found == (self.schema, self.version), f"{has}; {wanted}, or run `{command}` again.")
        same = content.get("sha256") == _digest(content)
        require(same, f"{path} was changed after it was written: its checksum differs. Run `{command}` again.")
        return content

    @contextlib.contextmanager
    def using(self, directory: Path) -> Iterator[None]:
        """Around all that is made of the content: what it raises where the content is not ours becomes an `InvalidInput`."""
        try:
            yield
        except (InvalidInput, OSError, ImportError, Warning):
            raise
        except Exception as error:
            content = f"does not hold what this gyromc writes there ({cause(error)})"
            again = f"Run `{self.command.format(directory=directory)}` again."
            raise InvalidInput(f"{Path(directory) / self.name} {content}. {again}") from error


def _digest(content: Mapping[str, Any]) -> str:
    """The checksum of a content's values, whatever the spaces and the order of its keys are."""
    plain = json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()
