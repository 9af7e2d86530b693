"""`gyromc bench` outside and inside a checkout."""

import json
import sys

import pytest
from typer.testing import CliRunner

from gyromc.app import cli
from gyromc.app.cli import app
from gyromc.errors import InvalidInput


def test_without_a_checkout_a_message_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "BENCHMARKS", tmp_path / "benchmarks")
    with pytest.raises(InvalidInput, match=r"not in the installed package. Clone gyromc and run `make bench`"):
        CliRunner().invoke(app, ["bench"], catch_exceptions=False)


def test_in_a_checkout_it_measures(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    (folder / "speed").mkdir(parents=True)
    (folder / "speed" / "__init__.py").write_text(
        "def measure(work, repeats, seconds, growth, say):\n    say('measuring')\n    return [list(work), repeats, growth]\n"
        "def report(results):\n    return {'measurements': results}\n"
        "def table(results):\n    return f'[/table] {results}'\n"
        "def plot(results, path):\n    path.write_text('plot')\n"
        "plot_growth = plot\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "speed", raising=False)
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["bench", "speed", "a", "--repeats", "2", "--out", str(out), "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout) == {"measurements": [["a"], 2, False]}
    assert "gyromc: measuring" in done.stderr
    assert json.loads((out / "bench.json").read_text()) == json.loads(done.stdout)
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.png", "growth.png"]
    assert "[/table] [['a'], 5, True]" in CliRunner().invoke(app, ["bench", "speed", "a", "--growth"]).stdout
    del sys.modules["speed"]  # not by monkeypatch, which would put it back


FAKE = """
QUICK, FULL = "quick", "full"
def total(problems, profile):
    return 1
def measured(problems, profile, path, say, advance, workers):
    say(f"one cell, {{workers}} at once")
    advance(1)
    {then}
    return {{"cell": [list(problems), profile, path is not None]}}
def header():
    return {{"jax": "0"}}
def table(cells):
    return f"table {{cells}}"
def plot(cells, path):
    path.write_text("plot")
"""


@pytest.fixture
def fake_accuracy(tmp_path, monkeypatch):
    """A function that puts a package `accuracy` of one cell into an empty checkout; `then` is what it does after that cell."""
    folder = tmp_path / "benchmarks"
    (folder / "accuracy").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    real = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "accuracy"}
    for name in real:
        del sys.modules[name]

    def make(then="pass"):
        (folder / "accuracy" / "__init__.py").write_text(FAKE.format(then=then))

    yield make
    sys.modules.pop("accuracy", None)
    sys.modules.pop("accuracy.race", None)
    sys.modules.update(real)


def test_accuracy_is_a_benchmark_of_its_own(fake_accuracy, tmp_path):
    fake_accuracy()
    out = tmp_path / "out"
    asked = ["bench", "accuracy", "heart", "--quick", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert json.loads(done.stdout) == {"jax": "0", "cells": {"cell": [["heart"], "quick", True]}}
    assert "gyromc: one cell, 1 at once" in done.stderr
    assert "2 at once" in CliRunner().invoke(app, ["bench", "accuracy", "--workers", "2"]).stderr
    assert (out / "accuracy.png").read_text() == "plot"
    assert "table {'cell': [[], 'full', False]}" in CliRunner().invoke(app, ["bench", "accuracy"]).stdout


def test_the_race_is_asked_for_by_its_option(fake_accuracy, tmp_path):
    fake_accuracy()
    (tmp_path / "benchmarks" / "accuracy" / "race.py").write_text(
        "POSTERIORS = {'heart': None}\n"
        "def race_of(names, quick, path, processes, say): return [[names, quick, path.name, processes]]\n"
        "def text(rows): return f'rows {rows}'\n"
    )
    asked = ["bench", "accuracy", "heart", "--race", "--quick", "--out", str(tmp_path / "out")]
    assert "rows [[['heart'], True, 'race.json', 1]]" in CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    found = CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False)
    assert json.loads(found.stdout) == {"rows": [[["heart"], True, "race.json", 1]]}
    with pytest.raises(InvalidInput, match="No posterior is named hart"):
        CliRunner().invoke(app, ["bench", "accuracy", "hart", "--race"], catch_exceptions=False)


def test_accuracy_and_ctrl_c(fake_accuracy, tmp_path):
    fake_accuracy("raise KeyboardInterrupt")
    done = CliRunner().invoke(app, ["bench", "accuracy", "--out", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert "accuracy.json has what is done. The same command goes on from there." in done.stderr
    done = CliRunner().invoke(app, ["bench", "accuracy"])
    assert done.exit_code == 130
    assert "nothing was stored (`--out` was left out)." in done.stderr


def test_options_of_the_other_benchmark_are_refused():
    assert CliRunner().invoke(app, ["bench", "accuracy", "--repeats", "2"]).exit_code == 2
    assert CliRunner().invoke(app, ["bench", "speed", "--race"]).exit_code == 2


def test_the_help_is_that_of_the_commands():
    assert "accuracy" in CliRunner().invoke(app, ["bench", "--help"]).stdout
    assert "--race" in CliRunner().invoke(app, ["bench", "accuracy", "--help"]).stdout
