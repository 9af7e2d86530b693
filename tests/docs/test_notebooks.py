"""The notebooks of examples/: outputs are kept and hold nothing of the machine; the slow tests execute them at small size."""

import ast
import importlib.util
import json
import os
import re
import sys

import pytest

from support.values import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
ABSOLUTE = re.compile(r"(?<![\w.:/])/(home|root|Users|tmp|work|usr|opt|var)/")
MOST_BYTES = 200_000


def tool():
    spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_for_each_kind_of_user():
    assert [path.stem for path in NOTEBOOKS] == ["analyst", "modeller", "researcher"]


@each
def test_a_notebook_is_as_the_tool_writes_it(path):
    text = path.read_text()
    notebook = json.loads(text)
    assert len(text) < MOST_BYTES
    again = tool().clean(json.loads(text))
    assert json.dumps(again, indent=1, ensure_ascii=False) + "\n" == text, "run `make notebooks`"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@each
def test_outputs_are_kept_and_hold_nothing_of_the_machine(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) // 2
    for cell in code:
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "display_data", "execute_result")
            shown = "".join(output.get("text", [])) + "".join(output.get("data", {}).get("text/plain", []))
            assert not ABSOLUTE.search(shown)
            assert "Warning" not in shown
            assert "Traceback" not in shown


@each
def test_cells_are_python_and_links_exist(path):
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and not text.startswith("%%bash\n"):
            ast.parse(text)
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (path.parent / link).exists(), link


def test_the_tool_removes_noise():
    stream = {"name": "stdout", "output_type": "stream", "text": ["\x1b[1ma\x1b[0m  \n"]}
    path = {"name": "stdout", "output_type": "stream", "text": ["/tmp/tmp12_45a78/out\n"]}
    noise = {"name": "stderr", "output_type": "stream", "text": ["Warning"]}
    cell = {"cell_type": "code", "id": "x", "metadata": {"execution": {"iopub.status.busy": "now"}}, "source": "1\n"}
    notebook = {
        "cells": [cell | {"execution_count": 9, "outputs": [stream, noise, path]}],
        "metadata": {"a": 1},
    }
    (cleaned,) = tool().clean(notebook)["cells"]
    assert cleaned["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["a\n", "out"]}]
    assert (cleaned["metadata"], cleaned["execution_count"], cleaned["source"]) == ({}, 1, ["1"])


@pytest.mark.slow
@each
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("GYROMC_EXAMPLES", "small")
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    notebook = tool().execute(path, tmp_path)
    assert all(cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code")
