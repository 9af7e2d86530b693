"""Functions and arrays that JAX reads in single and in double precision, in turn.

JAX stores for every NumPy array object the precision in which it was read first; read in the other precision, the same object
then fails or has the wrong type. So JAX gets new views of a user's arrays (`fresh`), also of those that a function closes over
(`private`). JAX does not see either when a name in a function comes to refer to another array: `owned` does.
"""

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gyromc.runtime.machine import keep_compiled

JITTED = type(jax.jit(lambda: None))
# Every part that compiles imports this one: here is the first moment at which JAX is there, and nothing is compiled yet.
keep_compiled()


def fresh(tree):
    """A pytree with a new view in place of every NumPy array."""
    return jax.tree.map(lambda leaf: leaf.view() if type(leaf) is np.ndarray else leaf, tree)


def private(function: Callable) -> Callable:
    """The function on new views of the NumPy arrays that it closes over; for use while JAX traces."""
    # Followed are its default values, its closure, the names it uses of its module, and the functions and pytrees found there.
    return _Renewal(_globals(function)).of(function)


class Owned:
    """A function on the arrays that it referred to when this was made; equal to another one on the same arrays, and no other."""

    def __init__(self, function: Callable, arrays: tuple[np.ndarray, ...]):
        self.function, self.arrays, self.fn = function, arrays, private(function)

    def __call__(self, *args):
        """The function's value."""
        return private(self.fn)(*args)

    def __eq__(self, other):
        same = isinstance(other, Owned) and self.function == other.function
        return same and list(map(id, self.arrays)) == list(map(id, other.arrays))

    def __hash__(self):
        return hash((self.function, *map(id, self.arrays)))

    def __reduce__(self):
        return owned, (self.function,)


def owned(function: Callable) -> Callable:
    """The function with the NumPy arrays that it refers to now; the function itself where there are none."""
    if not isinstance(function, types.FunctionType | types.MethodType | functools.partial | JITTED):
        return function
    # A pytree: its arrays are known to JAX.
    if jax.tree.leaves(function) != [function]:
        return function
    arrays = tuple(_arrays(function, _globals(function), set()))
    return Owned(function, arrays) if arrays else function


def _globals(function) -> dict:
    """The names of the module of a Python function, also inside `jax.jit`, a partial application or a bound method."""
    while not isinstance(function, types.FunctionType):
        inner = getattr(function, "__wrapped__" if isinstance(function, JITTED) else "func", None)
        inner = inner or getattr(function, "__func__", None) or getattr(function, "fn", None)
        if inner is None:
            return {}
        function = inner
    return function.__globals__


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def _globals_of(function: types.FunctionType, names: dict) -> dict[str, Any]:
    """What a function uses of its module; nothing of other modules than that of `names`."""
    if function.__globals__ is not names:
        return {}
    return {name: names[name] for code in codes(function.__code__) for name in code.co_names if name in names}


def _content(cell: types.CellType):
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _inside(value, names: dict) -> Iterator[Any]:
    """What a function or an object refers to."""
    if isinstance(value, types.FunctionType):
        yield from map(_content, value.__closure__ or ())
        yield from _globals_of(value, names).values()
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, JITTED):
        yield value.__wrapped__  # type: ignore[attr-defined]  # every function compiled by JAX has it
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield value.__func__
        yield from vars(value.__self__).values() if hasattr(value.__self__, "__dict__") else ()
    elif isinstance(value, Owned):
        yield value.fn
    elif _plain_object(value):
        yield from vars(value).values()


def _plain_object(value) -> bool:
    """Whether a value is an object whose attributes are followed: a namespace, a dataclass, or callable like a handler."""
    if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
        return False
    return isinstance(value, types.SimpleNamespace) or dataclasses.is_dataclass(value) or callable(value)


def _arrays(value, names: dict, seen: set[int]) -> Iterator[np.ndarray]:
    """The NumPy arrays that can be reached."""
    if id(value) in seen:
        return
    seen.add(id(value))
    for leaf in jax.tree.leaves(value):
        if type(leaf) is np.ndarray:
            yield leaf
        for inner in _inside(leaf, names):
            yield from _arrays(inner, names, seen)


class _Renewal:
    """One copying of a function, with what was copied already by its identity."""

    def __init__(self, names: dict):
        self.names, self.done = names, {}

    def of(self, value):
        """The value with new views of all arrays in it; the value itself where there are none."""
        return jax.tree.map(self._leaf, value) if self._changes(value) else value

    def _leaf(self, leaf):
        if id(leaf) in self.done:
            return self.done[id(leaf)]
        if type(leaf) is np.ndarray:
            made = leaf.view()
        elif isinstance(leaf, types.FunctionType):
            return self._function(leaf)
        elif isinstance(leaf, JITTED):
            made = self.of(leaf.__wrapped__)  # type: ignore[attr-defined]  # compiled by whoever calls it
        elif isinstance(leaf, functools.partial):
            made = functools.partial(self.of(leaf.func), *map(self.of, leaf.args), **self._each(leaf.keywords))
        elif isinstance(leaf, Owned):
            made = self.of(leaf.fn)
        elif isinstance(leaf, types.MethodType):
            made = types.MethodType(self.of(leaf.__func__), self._object(leaf.__self__))
        else:
            return self._object(leaf) if _plain_object(leaf) else leaf
        self.done[id(leaf)] = made
        return made

    def _each(self, values: dict) -> dict:
        return {key: self.of(value) for key, value in values.items()}

    def _object(self, old):
        """A shallow copy with new attributes."""
        if not hasattr(old, "__dict__"):
            return old
        new = self.done[id(old)] = copy.copy(old)
        vars(new).update(self._each(vars(old)))
        return new

    def _function(self, old: types.FunctionType) -> types.FunctionType:
        """The same code on other cells and names; cells without arrays stay shared, so that it can still assign to them."""
        theirs = old.__closure__ or ()
        cells = tuple(types.CellType() if self._changes(_content(cell)) else cell for cell in theirs)
        changed = {key: value for key, value in _globals_of(old, self.names).items() if self._changes(value)}
        names = dict(old.__globals__) if changed else old.__globals__
        new = types.FunctionType(old.__code__, names, old.__name__, None, cells or None)
        self.done[id(old)] = new
        names.update(self._each(changed))
        for cell, before in zip(cells, theirs, strict=True):
            if cell is not before:
                cell.cell_contents = self.of(before.cell_contents)
        new.__defaults__, new.__kwdefaults__ = self.of(old.__defaults__), self.of(old.__kwdefaults__)
        vars(new).update(vars(old))
        return new

    def _changes(self, value) -> bool:
        return next(_arrays(value, self.names, set()), None) is not None
