"""Functions in files: stored by the name `module:function` alone, found again by importing the module or among those passed.

A module is imported only where that was allowed, because importing runs its code. Digests of the arrays that a function reads and
of what it computes are stored beside its name, so that a function that would compute something else is noticed.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc.checks import explained, require, shown
from gyromc.errors import GyromcWarning
from gyromc.io.archive import NUMBERS, digest
from gyromc.runtime.precision import Owned, codes, owned

REMEDY = "Define it at the top of a module with `def`, and pass that; what it needs can be variables of the module."
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BUILT_IN = ("gyromc.schemes.base:euler_step",)
"""Functions of gyromc itself that values refer to."""


def reference(function: Any) -> str:
    """The name `module:qualname` under which a function or class can be imported; `InvalidInput` where there is none."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    refused = f"The function `{name or shown(function)}` cannot be saved"
    nameless = "a lambda or a function inside another one has no name to find it by"
    require(module and name and "<" not in name, f"{refused}: {nameless}. {REMEDY}")
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    other = "nothing" if found is None else "another object"
    require(found is function, f"{refused}: `{module}:{name}` refers to {other}. {REMEDY}")
    return f"{module}:{name}"


def find_function(name: str, allow_import: bool, given: Mapping[str, Any], remedy: str) -> Any:
    """The function of a name `module:qualname`: one of those given, or imported where that is allowed; `remedy` says how."""
    if name in given:
        return given[name]
    module, colon, path = name.partition(":")
    require(colon and module and path, f"A function is named `module:function`: got {shown(name)}.")
    why = f"The function `{name}` would have to be imported, which runs code."
    require(allow_import or name in BUILT_IN, f"{why} {remedy}")
    with explained(f"The module of `{name}` cannot be imported", "Is it installed, or in the current folder?"):
        found: Any = importlib.import_module(module)
    for part in path.split("."):
        require(hasattr(found, part), f"`{module}` has no `{path}`: it was renamed or removed since.")
        found = getattr(found, part)
    require(callable(found), f"`{name}` is no function: it is {shown(found)}.")
    return found


@dataclasses.dataclass(frozen=True)
class References:
    """Functions by reference, for a codec: imported where that is allowed, or `given` by the names that a file has for them."""

    allow_import: bool = False
    given: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
    # What is packed is compared only: a function without a name is known by its code.
    compared: bool = False

    def pack(self, value: Any) -> Any:
        """The name of a function or class, with digests of the arrays that it reads and of its code."""
        require(callable(value), f"A {type(value).__name__} cannot be saved.")
        function = value.function if isinstance(value, Owned) else value
        name, module = getattr(function, "__qualname__", type(function).__name__), getattr(function, "__module__", "")
        # The code of gyromc's own functions belongs to its version.
        own = _root(module) == _root(__name__) and hasattr(function, "__qualname__") and "<" not in name
        name = f"{module}:{name}" if own else name if self.compared else reference(function)
        stored = {"type" if isinstance(function, type) else "function": name}
        if not own:
            stored["code"] = f"{PYTHON} {code_digest(function)}"
        if isinstance(value, Owned):
            stored["reads"] = _digests(value.arrays)
        return stored

    def unpack(self, entry: Any) -> Any:
        """The function or class, found by its name."""
        name = entry.get("type") or entry["function"]
        remedy = "Pass `allow_import=True` (on the command line `--allow-import`) if you trust the file"
        itself = f'or the function itself: `gyromc.load(path, functions={{"{name}": f}})`'
        function = find_function(name, self.allow_import, self.given, f"{remedy}, {itself}.")
        require(isinstance(function, type) or "type" not in entry, f"`{name}` is no class.")
        found = function if "type" in entry else owned(function)
        reads = _digests(found.arrays) if isinstance(found, Owned) else None
        other = f"The function `{name}` reads other arrays than when it was saved"
        require(reads == entry.get("reads"), f"{other}: it would compute something else. Restore them.")
        # Other versions of Python compile the same text to other code.
        python, _, code = entry.get("code", "").partition(" ")
        if python == PYTHON and code != code_digest(function):
            other = f"The function `{name}`, or what it calls and reads, is not what it was when the file was saved"
            remedy = "Restore it, or run the plan anew."
            warnings.warn(f"{other}: a continuation would mix both. {remedy}", GyromcWarning, stacklevel=2)
        return found


_digests = lambda arrays: hashlib.sha256("".join(map(digest, arrays)).encode()).hexdigest()
_root = lambda module: (module or "builtins").partition(".")[0]


def code_digest(function: Any) -> str:
    """A digest that changes with the code of a function or class, the values it holds and what it uses of a user's modules."""
    # It does not change with a comment, another place in the file, or another version of an installed package.
    found, seen = hashlib.sha256(), {}

    def visit(value: Any) -> None:
        if isinstance(value, bool | int | float | complex | str | bytes | types.NoneType):
            found.update(f"{value!r}\n".encode())
            return
        # Python may share equal tuples or not.
        if not isinstance(value, tuple):
            known = id(value) in seen
            number, _ = seen.setdefault(id(value), (len(seen), value))
            found.update(f"{number} {getattr(value, '__qualname__', type(value).__qualname__)}\n".encode())
            if known:
                return
        for inner in _parts(value, value is function):
            visit(inner)

    visit(function)
    return found.hexdigest()


def _parts(value: Any, outermost: bool) -> Iterator[Any]:
    """What a value consists of; installed packages are not entered."""
    if isinstance(value, types.FunctionType):
        if outermost or _users(value.__module__):
            # No lines of the file, so that a comment above changes nothing.
            for code in codes(value.__code__):
                yield repr((code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars))
                constants = (c for c in code.co_consts if not isinstance(c, types.CodeType))
                yield repr([sorted(c, key=repr) if isinstance(c, frozenset) else c for c in constants])
            yield from _referred(value)
    elif isinstance(value, np.ndarray | jax.Array):
        yield digest(np.asarray(value)) if getattr(value.dtype, "kind", "") in NUMBERS else str(value.dtype)
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, type):
        if outermost or _users(value.__module__):
            # What was written there: not its documentation, and not what `dataclass` makes.
            members = sorted(vars(value).items())
            yield from (one for one in members if not one[0].startswith(("__", "_abc_")) or one[0] == "__call__")
            yield from (base for base in value.__bases__ if _users(base.__module__))
    elif _users(type(value).__module__):
        yield from (type(value), getattr(value, "__dict__", None))
    else:
        # Where compiled functions, properties and methods of Equinox modules hold the function in Python.
        inside = ("__wrapped__", "py_func", "__func__", "fget", "func", "method")
        yield from (getattr(value, name) for name in inside if hasattr(value, name))


def _users(module: str | None) -> bool:
    """Whether a module is the user's own: of no installed package, of Python or of gyromc."""
    root = _root(module)
    if root in sys.stdlib_module_names or root == _root(__name__):
        return root == "__main__"
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _referred(function: types.FunctionType) -> Iterator[Any]:
    """Default values, what a function closes over, and the names that it uses of its module and of modules named there."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        # A cell that is not assigned yet raises.
        with contextlib.suppress(ValueError):
            yield cell.cell_contents
    names = sorted(set().union(*(code.co_names for code in codes(function.__code__))))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and _users(value.__name__):
            yield from (vars(value)[inner] for inner in names if inner in vars(value))
        elif value is not None:
            yield value
