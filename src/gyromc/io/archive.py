"""One file of JSON and arrays, with a kind, a version and checksums; no pickle, so that reading it runs no code.

A zip archive of `header.json` (kind, versions, SHA-256 of every other member), `content.json` and arrays as .npy, not
compressed. A damaged, foreign or newer file is refused.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from gyromc import __version__
from gyromc.checks import cause, read_path, require
from gyromc.errors import InvalidInput
from gyromc.io.codec import NUMBERS, Codec
from gyromc.machine import require_memory
from gyromc.show.files import json_text, write_atomically

VERSION = 1
"""The version of the format; files of later versions are refused."""
FORMAT = "gyromc"


@dataclasses.dataclass(frozen=True, eq=False)
class Archive:
    """What a file holds: the `kind` of thing, the version of gyromc that wrote it, and packed content with its arrays."""

    path: Path
    kind: str
    written_by: str
    content: Any
    arrays: Mapping[str, np.ndarray]

    @contextlib.contextmanager
    def reading(self, remedy: str) -> Iterator[None]:
        """Around all that makes values of the content: whatever it raises becomes an `InvalidInput` that names the file."""
        try:
            yield
        except InvalidInput as error:
            raise InvalidInput(f"{self.path}: {error}") from None
        except Warning:
            raise
        except Exception as error:
            raise InvalidInput(
                f"{self.path} was written by gyromc {self.written_by} and holds what this gyromc ({__version__}) does not know "
                f"({cause(error)}). Use the gyromc that wrote it, or {remedy}."
            ) from None


def write_archive(path: str | Path, kind: str, value: Any, codec: Codec, own_folder: bool = False) -> None:
    """Write a value; the file appears whole or not at all. The same value gives the same bytes.

    It replaces an archive, and nothing else but in a folder of gyromc's own.
    """
    path = read_path(path)
    # Saving must not destroy data.
    if not own_folder and path.is_file():
        with path.open("rb") as file:
            own = file.read(2) in (b"PK", b"")
        require(own, f"{path} exists and is no file that gyromc saved. Name another file, or remove it first.")
    packed = codec.pack(value)
    members = {"content.json": (json_text(packed.content).encode(),)}
    members |= {f"{name}.npy": _npy(array) for name, array in packed.arrays.items()}
    sums = {name: _sum(parts) for name, parts in members.items()}
    header = {"format": FORMAT, "kind": kind, "version": VERSION, "written_by": __version__, "sha256": sums}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, parts in {"header.json": (json_text(header, indent=1).encode(),), **members}.items():
                # Without a date, so that the bytes depend on the value alone.
                entry = zipfile.ZipInfo(name)
                entry.file_size = sum(len(part) for part in parts)
                with archive.open(entry, "w") as member:
                    for part in parts:
                        member.write(part)

    write_atomically(path, write)


def read_archive(path: str | Path) -> Archive:
    """Read a file and check its format, version and checksums."""
    path = read_path(path)
    require(path.exists(), f"There is no file {path}.")
    require(not path.is_dir(), f"{path} is a directory: name a file that gyromc saved.")
    require(path.is_file(), f"{path} is a device or a pipe: name a file that gyromc saved.")
    size = path.stat().st_size
    require_memory(2 * size, f"Reading {path}", "Read it on a machine with more memory.")
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            header = _header(archive, path, size)
            members = {name: archive.read(name) for name in header["sha256"]}
        for name, data in members.items():
            if hashlib.sha256(data).hexdigest() != header["sha256"][name]:
                raise ValueError(f"the checksum of {name} does not match")
        arrays = {name.removesuffix(".npy"): _array(data) for name, data in members.items() if name.endswith(".npy")}
        content = json.loads(members["content.json"])
    except InvalidInput:
        raise
    # Damaged bytes make zipfile, zlib, NumPy and JSON raise errors of a dozen kinds.
    except Exception as error:
        why = str(error) or type(error).__name__
        raise InvalidInput(
            f"{path} is damaged or no file that gyromc saved ({why}). Copy it again, or save it anew."
        ) from None
    return Archive(path, header["kind"], header["written_by"], content, arrays)


def _header(archive: zipfile.ZipFile, path: Path, most: int) -> dict[str, Any]:
    names = [entry.filename for entry in archive.infolist()]
    foreign = f"{path} is a zip archive that gyromc did not write. Files of gyromc come from `--save` and from `save`."
    require("header.json" in names, foreign)
    size = sum(entry.file_size for entry in archive.infolist())
    require(size <= most, f"{path} would unpack to {size:,} bytes, more than it has: gyromc compresses nothing.")
    header = json.loads(archive.read("header.json"))
    require(isinstance(header, dict) and header.get("format") == FORMAT, foreign)
    version = header.get("version")
    require(
        type(version) is int and 1 <= version <= VERSION,
        f"{path} has version {version!r} of the format, written by gyromc {header.get('written_by')}; this gyromc reads up to "
        f"{VERSION}. Install a newer gyromc.",
    )
    sums = header.get("sha256")
    good = isinstance(sums, dict) and sorted([*sums, "header.json"]) == sorted(names) and "content.json" in sums
    if not good or not all(isinstance(header.get(name), str) for name in ("kind", "written_by")):
        raise ValueError("its list of parts does not match")
    return header


def _npy(array: np.ndarray) -> tuple[bytes | memoryview, ...]:
    """An array as .npy: its header, and its numbers where they are."""
    array = np.asarray(array, order="C")
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
    return buffer.getvalue(), memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer


def digest(array: np.ndarray) -> str:
    """The SHA-256 of an array's type, shape and numbers."""
    return _sum(_npy(array))


def _sum(parts: tuple[bytes | memoryview, ...]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _array(data: bytes) -> np.ndarray:
    """Return an array from .npy data, whose size is compared with what the header claims before memory is taken."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array has an unknown version")
    shape, order, dtype = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    if dtype.kind not in NUMBERS or order or len(data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array does not have the size that it claims")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)
