"""`gyromc bench` outside and inside a checkout."""

import json

import pytest
from typer.testing import CliRunner

from gyromc.app import bench
from gyromc.app.cli import app
from gyromc.errors import InvalidInput


def test_without_a_checkout_a_message_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_benchmarks", lambda: tmp_path / "benchmarks")
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
    monkeypatch.setattr(bench, "_benchmarks", lambda: folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(bench.sys.modules, "speed", raising=False)
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["bench", "a", "--repeats", "2", "--out", str(out), "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout) == {"measurements": [["a"], 2, False]}
    assert "gyromc: measuring" in done.stderr
    assert json.loads((out / "bench.json").read_text()) == json.loads(done.stdout)
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.png", "growth.png"]
    assert "[/table] [['a'], 5, True]" in CliRunner().invoke(app, ["bench", "a", "--growth"]).stdout
    del bench.sys.modules["speed"]  # not by monkeypatch, which would put it back
