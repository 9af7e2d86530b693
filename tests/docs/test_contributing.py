"""The examples of docs/howto/extend.md: applied to the files they name, and to no others, they do what they say.

Once to a copy of the files, letter by letter, which then passes the linter and is known to plan files. And once to the modules
of this process, for the tests that the page names: "at the end" is executed in the module's namespace, "in `TABLE`" adds rows to
that table, "a new file" makes a module. Everything is put back afterwards.
"""

import ast
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from support.values import ROOT

PAGE = (ROOT / "docs" / "howto" / "extend.md").read_text()
EXAMPLE = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(
    r"^`([\w./]+\.py)`, (at the end|a new file|in (?:the import from )?`([\w.]+)`):\n\n```python\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A change of one file."""

    path: str
    how: str
    table: str
    code: str


EXAMPLES = {title: [Block(*found) for found in BLOCK.findall(text)] for title, text in EXAMPLE.findall(PAGE)}


class Overlay:
    """The changes of one example on top of the modules as they are."""

    def __init__(self):
        self.undo: list[Callable] = []
        self.tests: dict[str, types.ModuleType] = {}

    def module(self, block: Block) -> types.ModuleType:
        """The module of a file; a test module is loaded afresh, a new one is made."""
        if block.path.startswith("tests/"):
            if block.path not in self.tests:
                spec = importlib.util.spec_from_file_location(f"example_{len(self.tests)}", ROOT / block.path)
                module = self.tests[block.path] = importlib.util.module_from_spec(spec)
                if (ROOT / block.path).exists():
                    spec.loader.exec_module(module)
            return self.tests[block.path]
        name = block.path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if block.how == "a new file":
            assert not (ROOT / block.path).exists()
            module = sys.modules[name] = types.ModuleType(name)
            package, _, short = name.rpartition(".")
            setattr(sys.modules[package], short, module)
            self.undo.append(lambda: (sys.modules.pop(name), delattr(sys.modules[package], short)))
            return module
        return importlib.import_module(name)

    def apply(self, block: Block):
        module = self.module(block)
        self.keep(module)
        if block.how.startswith("in the import"):
            exec(f"from {block.table} import {block.code}", vars(module))
        elif block.table:
            table = getattr(module, block.table)
            if not isinstance(table, dict):
                table.extend(eval(f"[{block.code}]", vars(module)))
            elif re.match(r'"[^"]*":', block.code):
                table.update(eval(f"{{{block.code}}}", vars(module)))
            else:  # written as a sequence of values that know their names
                table.update({value.name: value for value in eval(f"[{block.code}]", vars(module))})
        else:
            exec(compile(block.code, block.path, "exec"), vars(module))

    def keep(self, module):
        """Put the module's names and tables back at the end."""
        names = dict(vars(module))
        public = list(names.get("__all__", []))
        tables = {name: dict(value) for name, value in names.items() if name.isupper() and isinstance(value, dict)}

        def put_back():
            vars(module).clear()
            vars(module).update(names)
            for name, rows in tables.items():
                names[name].clear()
                names[name].update(rows)
            if "__all__" in names:
                names["__all__"][:] = public

        self.undo.append(put_back)


def written(block: Block, folder: Path) -> None:
    """Change a file of a copy as the page says."""
    path = folder / block.path
    if block.how == "a new file":
        assert not path.exists()
        path.write_text(block.code)
        return
    text = path.read_text()
    if block.how == "at the end":
        path.write_text(f"{text.rstrip()}\n\n\n{block.code}")
        return
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    if block.how.startswith("in the import"):
        [node] = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == block.table]
        end, added = node.names[-1], f", {block.code.strip()}"
        column = end.end_col_offset
    else:
        end, added = _literal(tree, block.table), f"{block.code.strip().rstrip(',')},"
        column = end.end_col_offset - 1
        before = "".join(lines[: end.end_lineno])[: -len(lines[end.end_lineno - 1])]
        before += lines[end.end_lineno - 1].encode()[:column].decode()
        added = added if before.rstrip().endswith((",", "[", "{", "(")) else f", {added}"
    line = lines[end.end_lineno - 1].encode()
    lines[end.end_lineno - 1] = (line[:column] + added.encode() + line[column:]).decode()
    path.write_text("".join(lines))


def _literal(tree: ast.Module, name: str) -> ast.expr:
    """The literal of a table; of one that is made from a sequence, this sequence."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            return node.value.generators[0].iter if isinstance(node.value, ast.DictComp) else node.value
    raise AssertionError(name)


PLAN = """
step_size = 0.1
num_chains = 4
num_steps = 20
scheme = "tamed"
target = {kind = "student_t", size = 2, dof = 5.0}
dynamics = {kind = "damped_rotation", dim = 2, rate = 1.0, friction = 0.5}
observables.h = {kind = "cosine", u = [1.0, 0.5]}
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy that was changed as the page says, and the files that it changes."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    blocks = [block for blocks in EXAMPLES.values() for block in blocks]
    for block in blocks:
        written(block, folder)
    return folder, sorted({block.path for block in blocks})


def test_the_page_followed_to_the_letter_passes_the_linter_and_is_known_to_plan_files(followed):
    tmp_path, files = followed
    ruff = lambda *arguments: subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, *files], cwd=tmp_path, capture_output=True, text=True
    )
    ruff("check", "--fix")
    ruff("format")
    assert ruff("check").returncode == 0, ruff("check").stdout
    assert ruff("format", "--check").returncode == 0
    (tmp_path / "plan.toml").write_text(PLAN)
    code = "import sys; sys.path.insert(0, 'src'); sys.argv[0] = 'gyromc'; from gyromc.app.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "plan.toml", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == "scan"


@pytest.mark.slow
def test_the_page_followed_to_the_letter_passes_the_type_checker(followed):
    folder, files = followed
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *(f for f in files if f.startswith("src"))],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def applied(request):
    """The test modules of an example, after its changes."""
    overlay = Overlay()
    try:
        for block in EXAMPLES[request.param]:
            overlay.apply(block)
        yield overlay.tests
    finally:
        for undo in reversed(overlay.undo):
            undo()


def of(title):
    return pytest.mark.parametrize("applied", [title], indirect=True)


@of("A sampler")
def test_a_sampler(applied):
    [test] = applied.values()
    for oracle in ("exact", "mini-batch"):
        test.test_mean_and_variance_are_the_exact_ones("damped rotation", oracle)


@of("A target")
def test_a_target(applied, monkeypatch):
    [test] = applied.values()
    test.test_contract("hfhr", "exact", "student", monkeypatch)


@of("A scheme")
def test_a_scheme(applied):
    [test] = applied.values()
    test.test_tamed_comes_back_from_where_euler_explodes()


@of("An observable")
def test_an_observable(applied):
    [test] = applied.values()
    test.test_the_cosine_of_a_gaussian()


@of("An engine")
def test_an_engine(applied):
    [test] = applied.values()
    test.test_exact_moments_and_no_dependence_on_chunks()


@of("An experiment")
def test_an_experiment(applied):
    import gyromc as gm

    [test] = applied.values()
    test.test_plans_follow_the_paper("hfhr-mild")
    plan = test.CATALOGUE["hfhr-mild"].plan(0.1, num_chains=10)
    assert gm.predict(plan).strict_reduction["h"]
    assert list(test.CATALOGUE) == test.NAMES


def test_nothing_is_left_behind_and_every_example_is_tested():
    import gyromc as gm
    from gyromc.engines import ENGINES
    from gyromc.paper import CATALOGUE

    assert not hasattr(gm.dynamics, "damped_rotation")
    assert not hasattr(gm.targets, "StudentT")
    assert "tamed" not in gm.schemes.SCHEMES
    assert "cosine" not in gm.observables.PROFILES
    assert "plain" not in ENGINES
    assert "hfhr-mild" not in CATALOGUE
    with_code = {title for title, blocks in EXAMPLES.items() if blocks}
    assert with_code == {"A sampler", "A target", "A scheme", "An observable", "An engine", "An experiment"}
    in_page = re.findall(r"^```python$", PAGE, re.MULTILINE)
    assert len(in_page) == sum(map(len, EXAMPLES.values())), "a block without a file above it"
