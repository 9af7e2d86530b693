"""The house rules that a machine can check: lazy imports, one-way imports, equation numbers, small rooms."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gyromc"
MODULES = sorted(SOURCE.rglob("*.py"))

# Lower rooms first; a module may import from its own room and from those before it.
ROOMS = [
    {"errors", "checks", "pages"},
    {"operators", "dynamics", "targets"},
    {"flat", "mode", "observables", "oracles", "schemes", "statistics"},
    {"plan"},
    {"results", "datatree", "theory"},
    {"engines", "datasets"},
    {"planfiles", "intervals"},
    {"fitting"},
    {"experiments", "benchmark", "interop", "sklearn", "commands"},
    {"cli", "__main__"},
]


def room(module):
    return next((i for i, names in enumerate(ROOMS) if module in names), None)


def test_import_needs_no_jax_and_little_time():
    script = (
        "import time; t = time.perf_counter(); import gyromc, sys; print(time.perf_counter() - t, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, jax_loaded = done.stdout.split()
    assert jax_loaded == "False"
    print(f"import gyromc: {float(seconds) * 1000:.0f} ms")


def test_every_public_name_is_there():
    script = "import gyromc; [getattr(gyromc, name) for name in gyromc.__all__]; print(len(dir(gyromc)))"
    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    import gyromc

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gyromc.nonsense  # noqa: B018


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert room(own) is not None, f"{own} has no room: add it to ROOMS"
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gyromc"):
            names = [f"{node.module}.{a.name}" if node.module == "gyromc" else node.module for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("gyromc.")]
        for name in names:
            other = name.split(".")[1]
            if other == "__version__":
                continue
            assert room(other) is not None, f"{other} has no room"
            assert room(other) <= room(own), f"{own} (room {room(own)}) imports {other} (room {room(other)})"
            if own == "theory":
                assert other != "engines", "theory never imports an engine"


def _numbers(text):
    return set(re.findall(r"\b([ET]\d{1,2})\b", text))


def test_equation_numbers_in_the_code_are_in_the_docs_and_the_other_way_round():
    listed = set(re.findall(r"^\| ([ET]\d+) \|", (ROOT / "docs" / "equations.md").read_text(), re.MULTILINE))
    used = set().union(*(_numbers(path.read_text()) for path in MODULES))
    assert used <= listed, f"numbers without an entry in docs/equations.md: {sorted(used - listed)}"
    assert listed <= used, f"equations that no module carries: {sorted(listed - used)}"
    for page in (ROOT / "docs").glob("*.md"):
        assert _numbers(page.read_text()) <= listed, page


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_are_small_and_functions_fit_a_screen(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 420, f"{path} has a second subject in it"
    assert ast.get_docstring(ast.parse(text)), f"{path} does not say what it is"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 80, f"{path}:{node.lineno} {node.name} does not fit a screen"
