"""Functions in files: stored by the name `module:function` alone, found again by importing the module or among those passed.

Input: functions and classes of a user's modules. Output: plain JSON for `gyromc.archive`, and the functions again. A module is
imported only where that was allowed, because importing runs its code. Digests of the arrays that a function reads and of its
code are stored beside its name, so that a function that would compute something else is noticed.
"""

import dataclasses
import hashlib
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc.archive import digest
from gyromc.checks import require, shown
from gyromc.codes import code_digest
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.precision import Owned, owned

__all__ = ["Descriptions", "References", "find_function", "reference"]

REMEDY = (
    "Define it at the top of a module with `def`, and pass that; what it needs besides can be variables of the module."
)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BUILT_IN = ("gyromc.schemes.base:euler_step",)
"""Functions of gyromc itself that values refer to."""


def reference(function: Any) -> str:
    """The name `module:qualname` under which a function or class can be imported; `InvalidInput` where there is none."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    what = getattr(function, "__qualname__", None) or shown(function)
    require(
        module and name and "<" not in name,
        f"The function `{what}` cannot be saved: a lambda or a function inside another one has no name to find it by. {REMEDY}",
    )
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    require(
        found is function,
        f"The function `{what}` cannot be saved: `{module}:{name}` refers to {'nothing' if found is None else 'another object'}. "
        f"{REMEDY}",
    )
    return f"{module}:{name}"


def find_function(name: str, allow_import: bool, given: Mapping[str, Any], remedy: str) -> Any:
    """The function of a name `module:qualname`: one of those given, or imported where that is allowed.

    `remedy` says how to allow it. `InvalidInput` where it is not allowed, or there is no such function.
    """
    if name in given:
        return given[name]
    module, colon, path = name.partition(":")
    require(colon and module and path, f"A function is named `module:function`: got {shown(name)}.")
    require(
        allow_import or name in BUILT_IN, f"The function `{name}` would have to be imported, which runs code. {remedy}"
    )
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises
        raise InvalidInput(f"The module of `{name}` cannot be imported: {type(error).__name__}: {error}.") from error
    for part in path.split("."):
        require(hasattr(found, part), f"`{module}` has no `{path}`: it was renamed or removed since.")
        found = getattr(found, part)
    require(callable(found), f"`{name}` is no function: it is {shown(found)}.")
    return found


@dataclasses.dataclass(frozen=True)
class References:
    """Functions by reference, for `archive.pack` and `archive.unpack`.

    `allow_import`: whether modules may be imported; `given`: functions by the names that a file has for them.
    """

    allow_import: bool = False
    given: Mapping[str, Callable] = dataclasses.field(default_factory=dict)

    def pack(self, value: Any) -> Any:
        """The name of a function or class, with digests of the arrays that it reads and of its code."""
        if isinstance(value, type):
            return {"type": reference(value)}
        require(callable(value), f"A {type(value).__name__} cannot be saved.")
        function = value.function if isinstance(value, Owned) else value
        stored = {"function": reference(function)}
        if stored["function"] not in BUILT_IN:
            stored["code"] = f"{PYTHON} {code_digest(function)}"
        return {**stored, "reads": _digest(value.arrays)} if isinstance(value, Owned) else stored

    def unpack(self, entry: Any) -> Any:
        """The function or class, found by its name."""
        remedy = (
            "Pass `allow_import=True` (on the command line `--allow-import`) if you trust the file, or the function itself: "
            '`gyromc.load(path, functions={"…": f})`.'
        )
        name = entry.get("type") or entry["function"]
        found = find_function(name, self.allow_import, self.given, remedy.replace("…", name))
        if "type" in entry:
            require(isinstance(found, type), f"`{name}` is no class.")
            return found
        function = found
        found = owned(found)
        reads = _digest(found.arrays) if isinstance(found, Owned) else None
        require(
            reads == entry.get("reads"),
            f"The function `{name}` reads other arrays than when it was saved: it would compute something else. Restore them.",
        )
        python, _, code = entry.get("code", "").partition(" ")
        if python == PYTHON and code != code_digest(
            function
        ):  # other versions of Python compile the same text to other code
            warnings.warn(
                f"The function `{name}`, or what it calls and reads, is not what it was when the file was saved: a continuation "
                "would mix both. Restore it, or run the plan anew.",
                GyromcWarning,
                stacklevel=2,
            )
        return found


class Descriptions:
    """What functions compute, as text that changes when their code or the arrays they read change; for comparing plans."""

    def pack(self, value: Any) -> Any:
        """The name of a function or class and a digest of its code, and of what it reads and calls in a user's modules."""
        name = getattr(value, "__qualname__", type(value).__name__)
        if isinstance(value, type):
            return {"type": f"{value.__module__}:{name}, code {code_digest(value)}"}
        require(callable(value), f"A {type(value).__name__} cannot be described.")
        if own := _own_name(value):
            return {"function": own}  # its code belongs to the version of gyromc
        if isinstance(value, Owned):
            return {
                "function": value.function.__qualname__,
                "code": code_digest(value.function),
                "reads": _digest(value.arrays),
            }
        return {"function": name, "code": code_digest(value)}

    def unpack(self, entry: Any) -> Any:
        """Not possible: descriptions are compared only."""
        raise InvalidInput("A description cannot be made a function again.")


def _own_name(value: Any) -> str | None:
    """The name of a function of gyromc itself at the top of a module; None for any other."""
    name = f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', '<')}"
    return name if name.split(".")[0] == "gyromc" and "<" not in name else None


def _digest(arrays: tuple[np.ndarray, ...]) -> str:
    return hashlib.sha256("".join(map(digest, arrays)).encode()).hexdigest()
