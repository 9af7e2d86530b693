"""One file of JSON and arrays, with a kind, a version and checksums; no pickle, so that reading it runs no code.

A zip archive of `header.json` (kind, versions, SHA-256 of every other member), `content.json` and arrays as .npy, not compressed.
Values in: plain values, arrays, members of enumerations and frozen dataclasses of a list of known classes, or what their method
`to_archive` says is to be stored (`from_archive` makes them again); functions where `Functions` says how they are named. The
same values out; a damaged, foreign or newer file is refused.
"""

import dataclasses
import enum
import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import equinox as eqx
import jax
import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.memory import require_memory
from gyromc.show.files import json_text, write_atomically

__all__ = ["VERSION", "Archive", "Functions", "digest", "pack", "read_archive", "unpack", "write_archive"]

VERSION = 1
"""The version of the format; files of later versions are refused."""
FORMAT = "gyromc"
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


class Functions(Protocol):
    """How functions, and classes that are not known, are named in a file."""

    def pack(self, value: Any) -> Any:
        """Return plain JSON for a function or a class; `InvalidInput` where it has no name."""
        ...

    def unpack(self, entry: Any) -> Any:
        """Return the function or class that `pack` named."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Archive:
    """What a file holds: the `kind` of thing, the version of gyromc that wrote it, and the packed content with its arrays."""

    kind: str
    written_by: str
    content: Any
    arrays: Mapping[str, np.ndarray]


def pack(value: Any, arrays: dict[str, np.ndarray], classes: Classes, functions: Functions | None = None) -> Any:
    """Return a value as plain JSON; arrays are added to `arrays` and referred to by name."""
    inside = lambda v: pack(v, arrays, classes, functions)
    name = type(value).__name__
    if isinstance(value, enum.Enum) and classes.get(name) is type(value):
        return {"member": value.name, "of": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic):  # before float, which np.float64 is
        return {"scalar": value.dtype.str, "value": inside(value.item())}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.ndarray | jax.Array):
        return _pack_array(value, arrays)
    if isinstance(value, tuple | list) and name in ("tuple", "list"):
        return {name: [inside(v) for v in value]}
    if functions is not None and (names := getattr(value, "_fields", None)):  # a tuple with names for its places
        return {"class": inside(type(value)), "fields": {key: inside(getattr(value, key)) for key in names}}
    if isinstance(value, Mapping):
        return {"pairs": [[inside(k), inside(v)] for k, v in value.items()]}
    if (own := getattr(type(value), "to_archive", None)) is not None:  # it says itself what is stored of it
        fields, known = own(value), classes.get(name) is type(value)
        require(known, f"A {name} cannot be saved: `{type(value).__module__}` is no module of gyromc.")
        return {"class": name, "fields": {key: inside(entry) for key, entry in fields.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        known = classes.get(name) is type(value)
        require(known or functions is not None, f"A {name} cannot be saved.")
        own = [f.name for f in dataclasses.fields(value) if f.init or isinstance(value, eqx.Module)]
        fields = {key: inside(getattr(value, key)) for key in own if hasattr(value, key)}
        return {"class": name if known else inside(type(value)), "fields": fields}
    if functions is None:
        raise InvalidInput(f"A {name} cannot be saved.")
    return functions.pack(value)


def _pack_array(value: np.ndarray | jax.Array, arrays: dict[str, np.ndarray]) -> Any:
    require(getattr(value.dtype, "kind", "") in tuple("OU" + NUMBERS), f"An array of {value.dtype} cannot be saved.")
    value = np.asarray(value)
    if value.dtype.kind in "OU":
        return {"texts": [str(text) for text in value.ravel()], "shape": list(value.shape)}
    arrays[f"{len(arrays)}"] = value
    return {"array": f"{len(arrays) - 1}"}


def unpack(value: Any, arrays: Mapping[str, np.ndarray], classes: Classes, functions: Functions | None = None) -> Any:
    """Return the value that `pack` made plain."""
    inside = lambda v: unpack(v, arrays, classes, functions)
    if not isinstance(value, dict):
        return value
    if "class" in value:
        name = value["class"]
        return _made(classes[name] if isinstance(name, str) else inside(name), value["fields"], inside)
    if "member" in value:
        return classes[value["of"]][value["member"]]  # type: ignore[index]  # an enumeration
    if "array" in value:
        return arrays[value["array"]]
    if "scalar" in value:
        return np.dtype(value["scalar"]).type(inside(value["value"]))
    if "texts" in value:
        return np.array(value["texts"], dtype=str).reshape(value["shape"])
    if "pairs" in value:
        return {inside(k): inside(v) for k, v in value["pairs"]}
    if "number" in value:
        return float(value["number"])
    if functions is not None and not {"tuple", "list"} & set(value):
        return functions.unpack(value)
    ((kind, entries),) = value.items()
    return {"tuple": tuple, "list": list}[kind](inside(v) for v in entries)


def _made(known: type, fields: Mapping[str, Any], inside: Callable[[Any], Any]) -> Any:
    """An instance with these fields. Those of an Equinox module are set as they were, prepared ones too, without `__init__`."""
    found = {key: inside(entry) for key, entry in fields.items()}
    if (make := getattr(known, "from_archive", None)) is not None:
        return make(**found)
    if not issubclass(known, eqx.Module):
        return known(**found)
    names = {field.name for field in dataclasses.fields(known)}
    if not set(found) <= names:
        raise ValueError(f"{known.__name__} has no field {', '.join(sorted(set(found) - names))}")
    made = object.__new__(known)
    for key, entry in found.items():
        object.__setattr__(made, key, entry)
    return made


def write_archive(
    path: str | Path, kind: str, value: Any, classes: Classes, written_by: str, functions: Functions | None = None
) -> dict[str, str]:
    """Write a value; the file appears whole or not at all. The same value gives the same bytes.

    Returns the SHA-256 of every member.
    """
    arrays: dict[str, np.ndarray] = {}
    content = json_text(pack(value, arrays, classes, functions)).encode()
    members = {"content.json": (content,), **{f"{name}.npy": _npy(array) for name, array in arrays.items()}}
    sums = {name: _sum(parts) for name, parts in members.items()}
    header = {
        "format": FORMAT,
        "kind": kind,
        "version": VERSION,
        "written_by": written_by,
        "sha256": sums,
    }

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, parts in {"header.json": (json_text(header, indent=1).encode(),), **members}.items():
                entry = zipfile.ZipInfo(name)  # without a date
                entry.file_size = sum(len(part) for part in parts)
                with archive.open(entry, "w") as member:
                    for part in parts:
                        member.write(part)

    write_atomically(Path(path), write)
    return sums


def read_archive(path: str | Path) -> Archive:
    """Read a file and check its format, version and checksums."""
    path = Path(path)
    require(path.exists(), f"There is no file {path}.")
    require(not path.is_dir(), f"{path} is a directory: name a file that gyromc saved.")
    size = path.stat().st_size
    require_memory(2 * size, f"Reading {path}", "Read it on a machine with more memory.")
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            header = _header(archive, path, size)
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


def _header(archive: zipfile.ZipFile, path: Path, most: int) -> dict[str, Any]:
    names = [entry.filename for entry in archive.infolist()]
    foreign = f"{path} is a zip archive that gyromc did not write. Files of gyromc come from `--save` and from `save`."
    require("header.json" in names, foreign)
    size = sum(entry.file_size for entry in archive.infolist())
    require(size <= most, f"{path} would unpack to {size:,} bytes, more than it has: gyromc compresses nothing.")
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
    return f"{path} is damaged or no file that gyromc saved ({why}). Copy it again, or save it anew."


def _npy(array: np.ndarray) -> tuple[bytes | memoryview, ...]:
    """An array as .npy: its header, and its numbers where they are."""
    array = np.asarray(array, order="C")
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
    return buffer.getvalue(), memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer


def digest(array: np.ndarray) -> str:
    """The SHA-256 of an array's type, shape and numbers; nothing is copied where they lie in order."""
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
