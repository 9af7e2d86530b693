"""Every example in the docstrings runs as written and prints what the comment after its `print` says.

tests/docs/test_pages.py runs those of the pages and the README.
"""

import ast
import importlib
import importlib.util
import inspect
import re

import pytest

from support.named import stale
from support.values import ROOT

LONG = (
    "comparing.compare",
    "planning.plan",
    "planning.tune",
)  # they compile much: `make test-slow` runs them, and by default their names and keywords are looked up
SAID = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def docstring_examples():
    for path in sorted((ROOT / "src" / "gyromc").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "```python" in text else ():
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                continue
            for number, match in enumerate(BLOCK.finditer(ast.get_docstring(node) or "")):
                name = getattr(node, "name", "module")
                yield pytest.param(match.group(2), id=f"{path.stem}.{name}{number or ''}")


def examples():
    for one in docstring_examples():
        marks = [pytest.mark.slow] if one.id in LONG else []
        if one.id.startswith("pymc."):  # the extra is not in `all`
            marks.append(pytest.mark.skipif(importlib.util.find_spec("pymc") is None, reason="PyMC is not installed"))
        yield pytest.param(*one.values, id=one.id, marks=marks)


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})
    said = SAID.findall(code)
    assert not said or capsys.readouterr().out.splitlines() == said


def test_readers_learn_no_asserts():
    code = {one.id: one.values[0] for one in examples()}
    assert sum(bool(SAID.search(text)) for text in code.values()) > 60
    assert [name for name, text in code.items() if re.search(r"^\s*assert ", text, re.MULTILINE)] == []


@pytest.mark.parametrize("code", [pytest.param(*one.values, id=one.id) for one in examples() if one.id in LONG])
def test_names_and_keywords_of_long_examples_exist(code):
    assert stale(code) == []


def test_stale_names_are_seen():
    code = """
import gyromc as gm
from gyromc.regression.fit import fit, refit
plan = gm.Plan(target=gm.targets.Quadratic([1.0]), stepsize=0.1)
gm.oracle.Exact()
run = gm.run(plan, thin=2)
"""
    assert stale(code) == ["gm.Plan(stepsize=…)", "gm.oracle", "gyromc.regression.fit.refit"]


def test_public_functions_have_an_example():
    lacking = []
    for module in ("targets", "oracles", "dynamics", "observables"):
        public = importlib.import_module(f"gyromc.{module}")
        abstract = {
            "Target",
            "SumOverData",
            "GeneralizedLinear",
            "Oracle",
            "Batch",
            "Observable",
            "Ridge",
            "Function",
            "Dynamics",
        }
        for name in set(public.__all__) - abstract:
            value = getattr(public, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and "```python" not in (
                inspect.getdoc(value) or ""
            ):
                lacking.append(f"{module}.{name}")
    assert not lacking
