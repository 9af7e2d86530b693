"""Values in files: as plain data and back, and one file of JSON and arrays with a kind, a version and checksums; no pickle.

Stored are plain values, arrays, members of enumerations, and frozen dataclasses or Equinox modules of a table of known classes,
or what their method `to_archive` returns (`from_archive` makes them again). Reading runs no code of the data: it makes classes of
the table only, and checks every field against its annotation before it is set. The file is a zip archive of `header.json` (kind,
versions, SHA-256 of every other member), `content.json` and arrays as .npy. A damaged, foreign or newer file is refused.
"""

import contextlib
import dataclasses
import enum
import hashlib
import inspect
import io
import json
import math
import types
import typing
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Union

import equinox as eqx
import jax
import numpy as np
from jaxtyping import jaxtyped

from gyromc import __version__
from gyromc.checks import explained, read_path, require, shown
from gyromc.errors import InvalidInput
from gyromc.runtime.machine import require_memory
from gyromc.show.files import json_text, write_atomically

VERSION = 1
"""Files of later versions of the format are refused."""

NUMBERS = "fiub"
"""The kinds of arrays that are stored: floats, whole numbers with and without a sign, truth values."""


class Packed(NamedTuple):
    """A value as plain JSON, and the arrays that it refers to by name."""

    content: Any
    arrays: Mapping[str, np.ndarray]


def known_classes(*given: type, below: Iterable[type] = ()) -> dict[str, type]:
    """A table of classes by name: those given, and all classes of gyromc that derive from those of `below`."""
    found = list(given)
    for base in below:
        if base.__module__.partition(".")[0] == __name__.partition(".")[0]:
            found += [base, *known_classes(below=base.__subclasses__()).values()]
    return {known.__name__: known for known in found}


@dataclasses.dataclass(frozen=True)
class Codec:
    """The way between values and plain data: the classes it knows by name, and how it names functions (`References`)."""

    classes: Mapping[str, type]
    functions: Any = None

    def pack(self, value: Any) -> Packed:
        """A value as plain JSON and arrays; `InvalidInput` for what cannot be stored."""
        arrays: dict[str, np.ndarray] = {}
        return Packed(self._plain(value, arrays), arrays)

    def unpack(self, packed: Any) -> Any:
        """The value of a `content` with its `arrays`; data that `pack` did not make raise errors of many kinds."""
        return self._value(packed.content, packed.arrays)

    def _plain(self, value: Any, arrays: dict[str, np.ndarray]) -> Any:
        inside = lambda v: self._plain(v, arrays)
        name, known = type(value).__name__, self.classes.get(type(value).__name__) is type(value)
        if isinstance(value, enum.Enum) and known:
            return {"member": value.name, "of": name}
        if value is None or isinstance(value, bool | int | str):
            return value
        # Before float, which np.float64 is.
        if isinstance(value, np.generic):
            return {"scalar": value.dtype.str, "value": inside(value.item())}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": repr(value)}
        if isinstance(value, np.ndarray | jax.Array):
            storable = getattr(value.dtype, "kind", "") in tuple("OU" + NUMBERS)
            require(storable, f"An array of {value.dtype} cannot be saved.")
            if (array := np.asarray(value)).dtype.kind in "OU":
                return {"texts": [str(text) for text in array.ravel()], "shape": list(array.shape)}
            arrays[f"{len(arrays)}"] = array
            return {"array": f"{len(arrays) - 1}"}
        if name in ("tuple", "list") and isinstance(value, tuple | list):
            return {name: [inside(v) for v in value]}
        if self.functions is not None and (names := getattr(value, "_fields", None)):
            return {"class": inside(type(value)), "fields": {key: inside(getattr(value, key)) for key in names}}
        if isinstance(value, Mapping):
            return {"pairs": [[inside(k), inside(v)] for k, v in value.items()]}
        if (own := getattr(type(value), "to_archive", None)) is not None:
            fields = own(value)
            require(known, f"A {name} cannot be saved: `{type(value).__module__}` is no module of gyromc.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            require(known or self.functions is not None, f"A {name} cannot be saved.")
            own = [f.name for f in dataclasses.fields(value) if f.init or isinstance(value, eqx.Module)]
            fields = {key: getattr(value, key) for key in own if hasattr(value, key)}
        else:
            require(self.functions is not None, f"A {name} cannot be saved.")
            return self.functions.pack(value)  # type: ignore[union-attr]  # required above
        stored = {key: inside(entry) for key, entry in fields.items()}
        return {"class": name if known else inside(type(value)), "fields": stored}

    def _value(self, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
        inside = lambda v: self._value(v, arrays)
        if not isinstance(value, dict):
            return value
        if "class" in value:
            name, fields = value["class"], {key: inside(entry) for key, entry in value["fields"].items()}
            listed = isinstance(name, str)
            return _made(self.classes[name] if listed else inside(name), fields, listed)
        if "member" in value:
            return self.classes[value["of"]][value["member"]]  # type: ignore[index]  # an enumeration
        if "array" in value:
            return arrays[value["array"]]
        if "scalar" in value:
            kind = np.dtype(value["scalar"])
            if kind.kind not in NUMBERS:
                raise ValueError(f"a number of type {kind}")
            return kind.type(inside(value["value"]))
        if "texts" in value:
            return np.array(value["texts"], dtype=str).reshape(value["shape"])
        if "pairs" in value:
            return {inside(k): inside(v) for k, v in value["pairs"]}
        if "number" in value:
            return float(value["number"])
        if self.functions is not None and not {"tuple", "list"} & set(value):
            return self.functions.unpack(value)
        ((kind, entries),) = value.items()
        return {"tuple": tuple, "list": list}[kind](inside(v) for v in entries)


def _made(known: Any, fields: dict[str, Any], listed: bool) -> Any:
    """An instance, of a class of the table by its constructor, with all its checks; prepared modules are set as they were."""
    if listed and (make := getattr(known, "from_archive", None)) is not None:
        return make(**fields)
    if listed:
        check_fields(known, fields)
    module = isinstance(known, type) and issubclass(known, eqx.Module)
    if not module or (listed and set(fields) <= set(inspect.signature(known).parameters)):
        return known(**fields)
    if unknown := set(fields) - {field.name for field in dataclasses.fields(known)}:
        raise ValueError(f"{known.__name__} has no field {', '.join(sorted(unknown))}")
    made = object.__new__(known)
    for key, entry in fields.items():
        object.__setattr__(made, key, entry)
    for base in known.__mro__:
        if "__check_init__" in vars(base):
            base.__check_init__(made)
    return made


def check_fields(known: type, fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a field of a dataclass is missing or does not fit its annotation; named dimensions must agree."""
    hints = typing.get_type_hints(known)
    with jaxtyped("context"):
        for field in dataclasses.fields(known):
            if field.name not in fields:
                if field.default is field.default_factory is dataclasses.MISSING:
                    raise ValueError(f"{known.__name__} lacks its field {field.name}")
                continue
            value, hint = fields[field.name], hints[field.name]
            if not _fits(value, hint):
                array = isinstance(value, np.ndarray)
                got = f"an array of {value.dtype}, {value.shape}" if array else shown(value)
                wanted = getattr(hint, "__name__", None) or str(hint)
                raise ValueError(f"{known.__name__}.{field.name} must be {wanted}: got {got}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; the shapes of arrays are those of the surrounding context."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if Callable in (hint, origin):
        return callable(value)
    if hint in (int, float):
        good = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        # A whole number that no float holds is none.
        held = hint is int or not isinstance(value, int) or abs(value) < 2**1023
        return isinstance(value, good) and not isinstance(value, bool) and held
    return isinstance(value, (bool, np.bool_) if hint is bool else hint)


# --- files


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
        unknown = f"it was written by gyromc {self.written_by} and holds what this gyromc ({__version__}) does not know"
        try:
            with explained(unknown, f"Use the gyromc that wrote it, or {remedy}."):
                yield
        except InvalidInput as error:
            raise InvalidInput(f"{self.path}: {error}") from None


def write_archive(path: str | Path, kind: str, value: Any, codec: Codec, own_folder: bool = False) -> None:
    """Write a value; the file appears whole or not at all. The same value gives the same bytes."""
    path = read_path(path)
    # Saving must not destroy data: it replaces an archive, and nothing else but in a folder of gyromc's own.
    if not own_folder and path.is_file():
        with path.open("rb") as file:
            own = file.read(2) in (b"PK", b"")
        require(own, f"{path} exists and is no file that gyromc saved. Name another file, or remove it first.")
    packed = codec.pack(value)
    members = {"content.json": (json_text(packed.content).encode(),)}
    members |= {f"{name}.npy": _npy(array) for name, array in packed.arrays.items()}
    sums = {name: _sum(parts) for name, parts in members.items()}
    header = {"format": "gyromc", "kind": kind, "version": VERSION, "written_by": __version__, "sha256": sums}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, parts in {"header.json": (json_text(header, indent=1).encode(),), **members}.items():
                # Without a date, so that the bytes depend on the value alone.
                entry = zipfile.ZipInfo(name)
                entry.file_size = sum(len(part) for part in parts)
                with archive.open(entry, "w") as member:
                    member.writelines(parts)

    write_atomically(path, write)


def read_archive(path: str | Path) -> Archive:
    """Read a file and check its format, version and checksums."""
    path = read_path(path)
    require(path.exists(), f"There is no file {path}.")
    require(not path.is_dir(), f"{path} is a directory: name a file that gyromc saved.")
    require(path.is_file(), f"{path} is a device or a pipe: name a file that gyromc saved.")
    size = path.stat().st_size
    require_memory(2 * size, f"Reading {path}", "Read it on a machine with more memory.")
    # Damaged bytes make zipfile, zlib, NumPy and JSON raise errors of a dozen kinds.
    with explained(f"{path} is damaged or no file that gyromc saved", "Copy it again, or save it anew."):
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            names = [entry.filename for entry in archive.infolist()]
            foreign = f"{path} is a zip archive that gyromc did not write. Files of gyromc come from `--save` and from `save`."
            require("header.json" in names, foreign)
            unpacked = sum(entry.file_size for entry in archive.infolist())
            large = f"{path} would unpack to {unpacked:,} bytes, more than it has: gyromc compresses nothing."
            require(unpacked <= size, large)
            header = json.loads(archive.read("header.json"))
            require(isinstance(header, dict) and header.get("format") == "gyromc", foreign)
            version, sums = header.get("version"), header.get("sha256", {})
            found = f"{path} has version {version!r} of the format, written by gyromc {header.get('written_by')}"
            known = type(version) is int and 1 <= version <= VERSION
            require(known, f"{found}; this gyromc reads up to {VERSION}. Install a newer gyromc.")
            good = isinstance(sums, dict) and sorted([*sums, "header.json"]) == sorted(names) and "content.json" in sums
            if not good or not all(isinstance(header.get(name), str) for name in ("kind", "written_by")):
                raise ValueError("its list of parts does not match")
            members = {name: archive.read(name) for name in sums}
        for name, data in members.items():
            if hashlib.sha256(data).hexdigest() != sums[name]:
                raise ValueError(f"the checksum of {name} does not match")
        arrays = {name.removesuffix(".npy"): _array(data) for name, data in members.items() if name.endswith(".npy")}
        content = json.loads(members["content.json"])
    return Archive(path, header["kind"], header["written_by"], content, arrays)


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
