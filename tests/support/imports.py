"""Which modules of gyromc a module imports, whatever way of importing it uses, read from its source without running it."""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import gyromc

SOURCE = Path(gyromc.__file__).parent
CALLS = {"import_module", "__import__", "getattr"}
READS_FILES = {
    "files",
    "PackageLoader",
    "environment",
}  # these take the name of a package to find its data, not to import it


class Import(NamedTuple):
    """One import: the line, and the module's dotted name below gyromc ("" for the package itself, None if it cannot be told)."""

    line: int
    module: str | None


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """The dotted name below gyromc of every module, and its file; the package itself is ""."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class _Reader(ast.NodeVisitor):
    def __init__(self, name: str, is_package: bool, known: frozenset[str], tree: ast.AST):
        self.known, self.found = known, []
        self.package = name if is_package else name.rpartition(".")[0]
        imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        named = [
            a.asname or "gyromc"
            for a in imports
            if a.name == "gyromc" or (a.name.startswith("gyromc.") and not a.asname)
        ]
        self.aliases = set(named)
        self.visit(tree)

    def add(self, node: ast.AST, dotted: str | None):
        """Note the longest part of a dotted name that is a module; a public name counts as the module it comes from."""
        if dotted is None:
            self.found.append(Import(node.lineno, None))
            return
        first, _, rest = dotted.partition(".")
        if first not in self.known and first in gyromc._NAMES:
            dotted = f"{gyromc._NAMES[first].removeprefix('gyromc.')}.{rest}"
        while dotted and dotted not in self.known:
            dotted = dotted.rpartition(".")[0]
        self.found.append(Import(node.lineno, dotted))

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.startswith("gyromc."):
                self.add(node, alias.name.removeprefix("gyromc."))

    def visit_ImportFrom(self, node):
        base = node.module or ""
        if node.level:
            up = self.package.split(".")[: len(self.package.split(".")) - node.level + 1] if self.package else []
            base = ".".join([*up, *([node.module] if node.module else [])])
        elif base == "gyromc" or base.startswith("gyromc."):
            base = base.removeprefix("gyromc").removeprefix(".")
        else:
            return
        for alias in node.names:
            if not (base == "" and alias.name == "__version__"):
                self.add(node, f"{base}.{alias.name}".removeprefix("."))

    def visit_Attribute(self, node):
        names, root = [], node
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.aliases:
            if names[-1] not in ("__version__", "__file__", "__path__", "__all__"):
                self.add(node, ".".join(reversed(names)))
        else:
            self.generic_visit(node)

    def visit_Call(self, node):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called in CALLS:
            self.read_call(node, called)
        if called not in READS_FILES:
            self.generic_visit(node)

    def read_call(self, node, called):
        """`getattr(gyromc, name)`, and names of modules that are put together or relative; whole names are seen as constants."""
        first = node.args[0] if node.args else None
        if called == "getattr":
            if isinstance(first, ast.Name) and first.id in self.aliases:
                name = node.args[1]
                self.add(node, name.value if isinstance(name, ast.Constant) else None)
        elif isinstance(first, ast.Constant) and str(first.value).startswith("."):
            self.add(node, None)
        elif not isinstance(first, ast.Constant):
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if any(str(text).startswith("gyromc") for text in texts):
                self.add(node, None)

    def visit_Constant(self, node):
        """A string that is the name of a module counts as an import: tables of names are read by `import_module` somewhere."""
        if isinstance(node.value, str) and node.value.startswith("gyromc.") and node.value[7:] in self.known:
            self.add(node, node.value[7:])


parsed = functools.cache(ast.parse)  # by the text: several rules are checked on every module


def imports(name: str, path: Path, known: set[str]) -> tuple[Import, ...]:
    """The imports of the module called `name` below gyromc; `known` are the names of all modules."""
    return _imports(name, path.name == "__init__.py", frozenset(known), path.read_text())


@functools.cache
def _imports(name: str, is_package: bool, known: frozenset[str], text: str) -> tuple[Import, ...]:
    return tuple(_Reader(name, is_package, known, parsed(text)).found)
