"""What a function computes, as a digest: its code, the values it holds, and what it calls and reads in a user's modules.

Input: a function or class. Output: a text that changes when one of these does, and does not with a comment, another place in the
file, or another version of an installed package.
"""

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc.archive import digest

__all__ = ["code_digest"]


def code_digest(function: Any) -> str:
    """A digest of what a function or class computes with: its code, plain values, and what it refers to in a user's modules."""
    found = hashlib.sha256()
    for line in _lines(function, {}, outermost=True):
        found.update(f"{line}\n".encode())
    return found.hexdigest()


def _lines(value: Any, seen: dict[int, Any], outermost: bool = False) -> Iterator[str]:
    """Texts that change when the value does. `seen` holds what was visited, by identity; installed packages are not entered."""
    if isinstance(value, bool | int | float | complex | str | bytes | types.NoneType):
        yield repr(value)
        return
    if id(value) in seen:
        yield f"number {list(seen).index(id(value))}"
        return
    seen[id(value)] = value
    name = getattr(value, "__qualname__", type(value).__qualname__)
    yield name
    if isinstance(value, types.FunctionType):
        if outermost or _users(value):
            yield _text(value.__code__)
            for inner in _referred(value):
                yield from _lines(inner, seen)
    elif isinstance(value, np.ndarray | jax.Array):
        numeric = getattr(value.dtype, "kind", "") in "fiub"
        yield digest(np.asarray(value)) if numeric else str(value.dtype)
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    else:
        for inner in _parts(value, outermost):
            yield from _lines(inner, seen)


def _parts(value: Any, outermost: bool) -> Iterator[Any]:
    """What a value that is no function, array or module consists of."""
    if isinstance(value, Mapping):
        yield from (entry for pair in value.items() for entry in pair)
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, type):
        if outermost or _users(value):
            yield from (
                part for name, member in sorted(vars(value).items()) if _written(name) for part in (name, member)
            )
            yield from (base for base in value.__bases__ if _users(base))
    elif _users(type(value)):
        yield from (type(value), getattr(value, "__dict__", None))
    else:
        yield from (getattr(value, name) for name in INSIDE if hasattr(value, name))


INSIDE = ("__wrapped__", "py_func", "__func__", "fget", "func", "method")
"""Where compiled functions, properties and methods of Equinox modules hold the function in Python."""


def _written(name: str) -> bool:
    """Whether an entry of a class was written there: not its documentation, and not what `dataclass` makes."""
    return not name.startswith(("__", "_abc_")) or name == "__call__"


def _users(value: Any) -> bool:
    """Whether a function or class is the user's own: of no installed package, of Python or of gyromc."""
    root = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    if root in sys.stdlib_module_names or root == __name__.partition(".")[0]:
        return root == "__main__"
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _referred(function: types.FunctionType) -> Iterator[Any]:
    """Default values, what a function closes over, and the names that it uses of its module and of modules named there."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and _users(types.SimpleNamespace(__module__=value.__name__)):
            yield from (vars(value)[inner] for inner in names if inner in vars(value))
        elif value is not None:
            yield value


def _names(code: types.CodeType) -> set[str]:
    """The names that code uses and does not define, and the code inside it."""
    inside = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inside)


def _text(code: types.CodeType) -> str:
    """Instructions, names and constants; no lines of the file, so that a comment above changes nothing."""
    constants = [
        _text(c) if isinstance(c, types.CodeType) else repr(sorted(c, key=repr) if isinstance(c, frozenset) else c)
        for c in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants))
