"""The rules of the code base that a machine can check: order of imports, sizes, names, plain words, lazy imports."""

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter

import pytest

import gyromc
from support.imports import SOURCE, imports, modules, parsed
from support.layers import LAYERS, PAGE, ROOT, with_table

MODULES = modules()
ORDER = {part.name: i for i, part in enumerate(LAYERS)}

# Imports that go upwards on purpose, as (module, imported module): each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("extras", "interop.arviz"): "`run.to_datatree()` is a method of the result; its code needs the optional ArviZ",
    ("extras", "io.runs"): "`run.save()` is a method of the result; its code is the format of files",
    ("extras", "io.posteriors"): "`Posterior.save()` likewise",
    ("extras", "engines.loop"): "a loaded run can be continued; files are read below the engines",
    ("extras", "tables.saved"): "`gyromc.load` returns whatever a file holds; models are made above files",
    ("extras", "sklearn"): "the same for estimators",
}


def every_module(test):
    return pytest.mark.parametrize("name", [name for name in MODULES if name], ids=str)(test)


# --- order of imports


def part_of(name):
    return name.partition(".")[0]


def upward_imports(name, path, known):
    """The imports of a module that break the order, as sentences."""
    found = []
    for line, other in imports(name, path, known):
        where = f"{path.name}:{line}"
        if other is None:
            found.append(f"{where}: a module of gyromc whose name is put together; write the name out")
        elif other == "":
            found.append(f"{where}: the package itself; import the module that is meant")
        elif ORDER[part_of(other)] > ORDER[part_of(name)] and (name, other) not in EXCEPTIONS:
            found.append(f"{where}: {name} imports {other}, a higher part in tests/support/layers.py")
    return found


@every_module
def test_imports_go_downwards(name):
    assert not upward_imports(name, MODULES[name], set(MODULES))


def test_every_module_belongs_to_a_part_and_every_part_exists():
    assert {part_of(name) for name in MODULES if name} == set(ORDER)


def test_every_exception_is_still_needed():
    for name, other in EXCEPTIONS:
        assert other in [found.module for found in imports(name, MODULES[name], set(MODULES))]


FORBIDDEN = {
    "import gyromc.engines": "import gyromc.engines",
    "import … as": "import gyromc.engines.scan as s",
    "from gyromc import": "from gyromc import engines",
    "a public name": "from gyromc import run",
    "from gyromc.engines import": "from gyromc.engines import run",
    "relative": "from ..engines import run",
    "relative to the package": "from .. import engines",
    "import_module": "import importlib\nimportlib.import_module('gyromc.engines')",
    "import_module by name": "from importlib import import_module\nimport_module('gyromc.engines.scan')",
    "__import__": "__import__('gyromc.engines')",
    "a name put together": "from importlib import import_module\nimport_module(f'gyromc.{1}')",
    "a relative name": "from importlib import import_module\nimport_module('..engines', 'gyromc.targets')",
    "a table of names": "from importlib import import_module\nT = {'a': 'gyromc.engines'}\nimport_module(T['a'])",
    "attribute of the package": "import gyromc\ngyromc.run(1)",
    "attribute of an alias": "import gyromc as gm\ngm.engines.scan.Session",
    "attribute after another import": "import gyromc.errors\ngyromc.estimate(1)",
    "attribute by getattr": "import gyromc as gm\ngetattr(gm, 'run')",
    "attribute by a variable": "import gyromc as gm\nx = 'run'\ngetattr(gm, x)",
    "star": "from gyromc import *",
    "inside a function": "def f():\n    from gyromc.engines import run",
    "inside a method": "class A:\n    def f(self):\n        import gyromc\n        return gyromc.predict",
    "for type checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gyromc.results import Run",
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_every_way_of_importing_upwards_is_seen(kind, tmp_path):
    path = tmp_path / "intruder.py"
    path.write_text(FORBIDDEN[kind])
    assert upward_imports("targets.intruder", path, {*MODULES, "targets.intruder"})


def test_importing_downwards_is_allowed_in_every_way(tmp_path):
    path = tmp_path / "guest.py"
    path.write_text(
        "import numpy\nimport gyromc\nimport gyromc.errors\nfrom gyromc import checks, InvalidInput, __version__\n"
        "from . import base\nfrom importlib.resources import files\nfiles('gyromc.paper')\n"
        "from importlib import import_module\nimport_module('gyromc.dynamics'), import_module(name)\ngyromc.dynamics.general\n"
    )
    known = {*MODULES, "targets.guest"}
    assert upward_imports("targets.guest", path, known) == []
    assert {found.module for found in imports("targets.guest", path, known)} == {
        "errors",
        "checks",
        "dynamics",
        "targets.base",
    }


def cycle(graph):
    """The modules of one cycle, or None."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]


@pytest.mark.parametrize("part", [part.name for part in LAYERS if part.path.endswith("/")])
def test_no_cycle_inside_a_package(part):
    own = {name: path for name, path in MODULES.items() if part_of(name) == part}
    graph = {
        name: {found.module for found in imports(name, path, set(MODULES)) if found.module in own} - {name}
        for name, path in own.items()
    }
    assert cycle(graph) is None


def test_a_cycle_is_seen():
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert cycle({"a": {"b"}, "b": {"c"}, "d": {"a", "c"}}) is None


def test_the_table_of_parts_is_the_one_in_contributing():
    page = PAGE.read_text()
    assert page == with_table(page), "run `python tests/support/layers.py --write`"
    rows = page.partition("| you want to change |")[2].partition("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row.split("|")[2])]
    assert sorted(named) == sorted(part.path for part in LAYERS), (
        "the map on top of CONTRIBUTING.md names each part once"
    )


# --- sizes: lines from `def` or `class` to the end, without the docstring


def num_lines(node):
    body = node.body[0]
    documented = isinstance(body, ast.Expr) and isinstance(getattr(body.value, "value", None), str)
    return node.end_lineno - node.lineno + 1 - (body.end_lineno - body.lineno + 1 if documented else 0)


def too_long(text):
    """The definitions above the limits: 60 lines for a function, 200 for a class."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            limit = 200 if isinstance(node, ast.ClassDef) else 60
            if num_lines(node) > limit:
                yield f"{node.name}: {num_lines(node)} lines, at most {limit}"


@pytest.mark.parametrize("path", MODULES.values(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_classes_and_functions_are_small_and_modules_documented(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 520
    assert not list(too_long(text))
    assert ast.get_docstring(parsed(text)), "the module has no docstring"


def test_sizes_are_counted_without_the_docstring():
    def lines(kind, count):
        return f'{kind}:\n    """One.\n\n    Two."""\n' + "    x = 1\n" * (count - 1)

    assert not list(too_long(lines("def f()", 60)))
    assert list(too_long(lines("def f()", 61)))
    assert not list(too_long(lines("class A", 200)))
    assert list(too_long(lines("class A", 201)))


# --- names and words


def test_each_public_class_is_defined_once():
    found = Counter(
        node.name
        for path in MODULES.values()
        for node in parsed(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []


METAPHORS = re.compile(r"\b(hands? on|rooms?|doors?|gone on with)\b", re.IGNORECASE)
TEXTS = [*MODULES.values(), ROOT / "README.md", PAGE, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_plain_words(path):
    lines = path.read_text().splitlines()
    assert [f"{i}: {line.strip()}" for i, line in enumerate(lines, 1) if METAPHORS.search(line)] == []


# --- what `import gyromc` does


def test_import_needs_no_jax_and_every_public_name_is_there():
    script = """
import sys, time
start = time.perf_counter()
import gyromc
seconds = time.perf_counter() - start
heavy = {"jax", "numba", "scipy", "matplotlib"} & set(sys.modules)
for name in gyromc.__all__:
    getattr(gyromc, name)
assert set(gyromc.__all__) <= set(dir(gyromc))
heavy |= {"scipy.stats"} & set(sys.modules)  # it takes longer to import than all other parts of SciPy together
print(seconds, *heavy)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, *heavy = done.stdout.split()
    assert heavy == []
    print(f"import gyromc: {float(seconds) * 1000:.0f} ms")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gyromc.nonsense  # noqa: B018  # reading it raises
