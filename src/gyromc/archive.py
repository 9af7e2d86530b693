"""One file of JSON and arrays, with a kind, a version and checksums; no pickle, so that reading it runs no code.

A zip archive of `header.json` (kind, versions, SHA-256 of every other member), `content.json` and arrays as .npy. Values in:
plain values, arrays, and frozen dataclasses of a list of known classes. The same values out; a damaged, foreign or newer file is
refused.
"""

import dataclasses
import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.files import json_text, write_atomically

__all__ = ["VERSION", "Archive", "pack", "read_archive", "unpack", "write_archive"]

VERSION = 1
"""The version of the format; files of later versions are refused."""
FORMAT = "gyromc"
LARGEST = 4 * 2**30  # bytes of all members
DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    UnicodeError,
)
"""What a damaged zip archive may raise."""
NUMBERS = "fiub"  # kinds of arrays that are written
Classes = Mapping[str, type]


@dataclasses.dataclass(frozen=True, eq=False)
class Archive:
    """What a file holds: the `kind` of thing, the version of gyromc that wrote it, and the packed content with its arrays."""

    kind: str
    written_by: str
    content: Any
    arrays: Mapping[str, np.ndarray]


def pack(value: Any, arrays: dict[str, np.ndarray], classes: Classes) -> Any:
    """Return a value as plain JSON; arrays are added to `arrays` and referred to by name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.generic):
        return pack(value.item(), arrays, classes)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OU":
            return {"texts": [str(text) for text in value.ravel()], "shape": list(value.shape)}
        require(value.dtype.kind in NUMBERS, f"An array of {value.dtype} cannot be saved.")
        arrays[f"{len(arrays)}"] = value
        return {"array": f"{len(arrays) - 1}"}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [pack(v, arrays, classes) for v in value]}
    if isinstance(value, Mapping):
        return {"pairs": [[pack(k, arrays, classes), pack(v, arrays, classes)] for k, v in value.items()]}
    name = type(value).__name__
    require(dataclasses.is_dataclass(value) and classes.get(name) is type(value), f"A {name} cannot be saved.")
    kept = [field.name for field in dataclasses.fields(value) if field.init]
    return {"class": name, "fields": {key: pack(getattr(value, key), arrays, classes) for key in kept}}


def unpack(value: Any, arrays: Mapping[str, np.ndarray], classes: Classes) -> Any:
    """Return the value that `pack` made plain."""
    if not isinstance(value, dict):
        return value
    if "class" in value:
        known = classes[value["class"]]
        return known(**{key: unpack(v, arrays, classes) for key, v in value["fields"].items()})
    if "array" in value:
        return arrays[value["array"]]
    if "texts" in value:
        return np.array(value["texts"], dtype=str).reshape(value["shape"])
    if "pairs" in value:
        return {unpack(k, arrays, classes): unpack(v, arrays, classes) for k, v in value["pairs"]}
    if "number" in value:
        return float(value["number"])
    ((kind, entries),) = value.items()
    return {"tuple": tuple, "list": list}[kind](unpack(v, arrays, classes) for v in entries)


def write_archive(path: str | Path, kind: str, value: Any, classes: Classes, written_by: str) -> None:
    """Write a value; the file appears whole or not at all. The same value gives the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    content = json_text(pack(value, arrays, classes)).encode()
    members = {"content.json": content, **{f"{name}.npy": _npy(array) for name, array in arrays.items()}}
    header = {
        "format": FORMAT,
        "kind": kind,
        "version": VERSION,
        "written_by": written_by,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {"header.json": json_text(header, indent=1).encode(), **members}.items():
                archive.writestr(zipfile.ZipInfo(name), data)  # without a date

    write_atomically(Path(path), write)


def read_archive(path: str | Path) -> Archive:
    """Read a file and check its format, version and checksums."""
    path = Path(path)
    require(path.exists(), f"There is no file {path}.")
    require(not path.is_dir(), f"{path} is a directory: name a file that gyromc saved.")
    require(
        path.stat().st_size <= LARGEST, f"{path} is larger than {LARGEST / 2**30:.0f} GiB: gyromc wrote no such file."
    )
    whole = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(whole) as archive:
            header = _header(archive, path)
            members = {name: archive.read(name) for name in header["sha256"]}
    except DAMAGES as error:
        raise InvalidInput(_damaged(path, str(error) or type(error).__name__)) from None
    for name, data in members.items():
        found = hashlib.sha256(data).hexdigest()
        require(found == header["sha256"][name], _damaged(path, f"the checksum of {name} does not match"))
    try:
        arrays = {name.removesuffix(".npy"): _array(data) for name, data in members.items() if name.endswith(".npy")}
        content = json.loads(members["content.json"])
    except (ValueError, KeyError, RecursionError) as error:
        raise InvalidInput(_damaged(path, str(error))) from None
    return Archive(header["kind"], header["written_by"], content, arrays)


def _header(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    names = [entry.filename for entry in archive.infolist()]
    foreign = f"{path} is a zip archive that gyromc did not write. Save a model with `gyromc fit … --save FILE`."
    require("header.json" in names, foreign)
    size = sum(entry.file_size for entry in archive.infolist())
    require(size <= LARGEST, f"{path} would take {size / 2**30:.1f} GiB; at most {LARGEST / 2**30:.0f} are read.")
    try:
        header = json.loads(archive.read("header.json"))
    except ValueError as error:
        raise InvalidInput(_damaged(path, str(error))) from None
    require(isinstance(header, dict) and header.get("format") == FORMAT, foreign)
    version = header.get("version")
    require(
        isinstance(version, int) and version <= VERSION,
        f"{path} has version {version!r} of the format, written by gyromc {header.get('written_by')}; this gyromc reads up to "
        f"{VERSION}. Install a newer gyromc.",
    )
    sums, kind, written_by = header.get("sha256"), header.get("kind"), header.get("written_by")
    good = isinstance(sums, dict) and sorted([*sums, "header.json"]) == sorted(names) and "content.json" in sums
    require(
        good and isinstance(kind, str) and isinstance(written_by, str),
        _damaged(path, "its list of parts does not match"),
    )
    return header


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged or no file that gyromc saved ({why}). Copy it again, or save the model anew."


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


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
