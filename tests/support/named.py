"""Whether the names in a piece of code exist: a quick look at examples that take long to run."""

import ast
import importlib
import inspect
from collections.abc import Iterator


def stale(code: str) -> list[str]:
    """What the code imports, or takes from an import, that does not exist, and keywords that a function does not have.

    Names are followed from imports through attributes alone: what a variable holds is not known without running the code.
    """
    tree, found = ast.parse(code), []
    known = {}
    for name, value, problem in _imported(tree):
        known[name] = value
        found += [problem] if problem else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _path(node)) and path[0] in known:
            if _followed(known, path[:-1]) is not None and _followed(known, path) is None:
                found.append(".".join(path))
        elif isinstance(node, ast.Call) and (path := _path(node.func)) and path[0] in known:
            given = [keyword.arg for keyword in node.keywords if keyword.arg]
            found += [f"{'.'.join(path)}({name}=…)" for name in _not_taken(_followed(known, path), given)]
    return sorted(set(found))


def _imported(tree: ast.Module) -> Iterator[tuple[str, object, str | None]]:
    """(Name, value, problem) for each import of a module of ours; values of other packages are not looked at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "gyromc":
                    module = importlib.import_module(one.name)
                    yield (
                        (one.asname, module, None)
                        if one.asname
                        else ("gyromc", importlib.import_module("gyromc"), None)
                    )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gyromc":
            module = importlib.import_module(node.module or "")
            for one in node.names:
                value = getattr(module, one.name, None) or _submodule(f"{node.module}.{one.name}")
                yield one.asname or one.name, value, None if value is not None else f"{node.module}.{one.name}"


def _submodule(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _path(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; empty where the expression is another one."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _followed(known: dict, path: list[str]):
    """The value of `a.b.c`, or None where it does not exist or is a property of instances."""
    value = known[path[0]]
    for name in path[1:]:
        value = getattr(value, name, None)
    return value


def _not_taken(function, given: list[str]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return []
    return [name for name in given if name not in parameters]
