"""Standard output that is closed, broken, full or not Unicode, and signals: nothing is lost, nothing half-written stays."""

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from gyromc.app import cli
from gyromc.app.output import prepare_streams
from gyromc.show import progress as interruption
from gyromc.show.files import DAY, results_folder
from gyromc.show.progress import interruptible
from support.commands import gyromc

PLAN = """
step_size = 0.1
target = {kind = "quadratic", precision = [1.0, 2.0]}
dynamics = {kind = "overdamped"}
observables."η² − [/x]" = {kind = "square", u = [1.0, 0.0]}
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs `gyromc predict` on a plan with the given standard output; returns the status."""
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")

    def run(stdout, *options):
        monkeypatch.setattr(sys, "argv", ["gyromc", "predict", str(tmp_path / "plan.toml"), *options])
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as stopped:
            cli.command_line()
        return stopped.value.code

    return run


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_any_encoding_takes_all_of_it(command, encoding):
    for options in ([], ["--json"]):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        assert not command(out, *options)
        text = out.buffer.getvalue().decode(encoding)
        if options:
            assert list(json.loads(text)["observables"]) == ["η² − [/x]"]
        else:
            assert {"ascii": r"\u03b7\xb2 - [/x]", "utf-8": "η² − [/x]"}.get(encoding, r"\u03b7² - [/x]") in text
            assert "number of steps" in text  # the last line


def test_a_file_name_is_written_as_its_bytes(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    prepare_streams()
    print("a\udcff/ü\ud800", end="", flush=True)
    assert out.buffer.getvalue() == b"a\xff/" + "ü".encode() + rb"\ud800"


def test_a_closed_output_is_refused_before_the_work(command, capsys, monkeypatch):
    monkeypatch.setattr("gyromc.prediction.predict.predict", lambda *a, **k: pytest.fail("computed"))
    assert command(None) == 2
    assert "error: Standard output is closed: there is nowhere to print to. Redirect it" in capsys.readouterr().err


def test_a_closed_error_stream_is_no_fault(command, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert not command(out)
    assert b"number of steps" in out.buffer.getvalue()


def test_a_reader_that_has_enough_is_no_fault(command, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as out:
        assert command(out) in (1, 141)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_device_is_a_sentence(command, capsys):
    out = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115  # closing it fails
    assert command(out) == 2
    assert "error: [Errno 28] No space left on device" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space left"):
        out.close()


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_process_that_is_asked_to_end_removes_what_is_unfinished(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    cli._end_on("SIGTERM")
    try:
        with pytest.raises(SystemExit) as stopped, results_folder(tmp_path / "out", ("fit.json",)) as folder:  # noqa: PT012  # writes first
            (folder / "fit.json").write_text("half")
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.code == 143
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("finished", [False, True])
def test_after_ctrl_c_a_slow_disk_leaves_nothing_half_written(tmp_path, monkeypatch, sigint, finished):
    """The time that Ctrl-C may take is over while files are removed, or while finished ones move into place."""
    sigint(signal.default_int_handler)
    out, remove, move = tmp_path / "out", shutil.rmtree, os.replace
    out.mkdir()
    (out / "a").write_text("earlier")

    def slow(function):
        def called(*arguments, **options):
            monkeypatch.setattr(interruption, "_by_patience", True)
            signal.raise_signal(signal.SIGINT)
            return function(*arguments, **options)

        return called

    monkeypatch.setattr(shutil, "rmtree", slow(remove))
    monkeypatch.setattr(os, "replace", slow(move))
    with contextlib.suppress(KeyboardInterrupt), interruptible() as stop, results_folder(out, ("a", "b")) as folder:
        for name in ("a", "b"):
            (folder / name).write_text("new")
        signal.raise_signal(signal.SIGINT)
        if not finished:
            stop.check()
    assert {path.name: path.read_text() for path in out.iterdir()} == (
        {"a": "new", "b": "new"} if finished else {"a": "earlier"}
    )


@pytest.mark.parametrize("there", [False, True])
def test_folders_of_killed_processes_are_removed_and_those_of_others_are_not(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    with results_folder(out, ("fit.json",)) as other:
        killed = other.with_name(other.name[:-8] + "killed00")
        killed.mkdir()
        os.utime(killed, (time.time() - 2 * DAY,) * 2)
        with results_folder(out, ("fit.json",)) as folder:
            assert not killed.exists()
            assert other.exists()
            (folder / "fit.json").write_text("mine")
        (other / "fit.json").write_text("last")
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("fit.json", "last")]


@pytest.mark.parametrize("place", ["the current folder", "a link", "a link to nowhere", "a mount point"])
def test_results_go_where_no_folder_can_be_renamed(tmp_path, place, monkeypatch):
    real, out = tmp_path / "real", tmp_path / "out"
    if place == "a link to nowhere":
        out.symlink_to(real)
    else:
        real.mkdir()
        (real / "old.csv").write_text("earlier")
        out.symlink_to(real)
    if place == "the current folder":
        monkeypatch.chdir(real)
        out = "."
    if place == "a mount point":  # which cannot be renamed

        def rename(self, target):
            if self == real:
                raise OSError(16, "Device or resource busy")
            return os.rename(self, target)

        monkeypatch.setattr("pathlib.Path.rename", rename)
        out = real
    with results_folder(out, ("fit.json", "old.csv")) as folder:
        assert not (real / "fit.json").exists()
        (folder / "fit.json").write_text("new")
    assert os.listdir(real) == ["fit.json"]
    assert (tmp_path / "out").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["out", "real"]
    if place == "the current folder":
        assert os.listdir(".") == ["fit.json"]


def _break():
    signal.raise_signal(signal.SIGINT)
    raise ImportError("half of a module")


def _wait():
    signal.raise_signal(signal.SIGINT)
    until = time.perf_counter() + 100  # reached only where nothing ends it
    while time.perf_counter() < until:
        sum(range(1000))


@pytest.mark.parametrize("work", [_break, _wait])
def test_ctrl_c_ends_a_command_wherever_it_is(work, monkeypatch, sigint):
    sigint(signal.default_int_handler)
    monkeypatch.setattr(cli, "PATIENCE", 0.05)
    monkeypatch.setattr(cli, "app", work)
    with pytest.raises(SystemExit) as stopped:
        cli.command_line()
    assert stopped.value.code == 130


@pytest.mark.parametrize(
    ("file", "raised"), [("xla_bridge.py", "assert False"), ("config.py", "raise ValueError('maybe')")]
)
def test_a_device_or_setting_that_jax_cannot_have_is_said(file, raised, monkeypatch):
    """What JAX itself raises where it reads its environment and looks for devices: an AssertionError without a word, too."""
    monkeypatch.setattr(cli, "app", lambda: exec(compile(raised, f"/site-packages/jax/_src/{file}", "exec")))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    done = gyromc("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("JAX has no device .* with .*JAX_PLATFORMS=cuda.*: (AssertionError|ValueError)", done.stderr)


def test_other_errors_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(cli, "app", lambda: exec(compile("assert False", "/site-packages/other.py", "exec")))
    with pytest.raises(AssertionError):
        gyromc("list")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["JAX_PLATFORMS=cuda", "JAX_ENABLE_X64=maybe"])
def test_a_process_without_its_device_says_so(setting, tmp_path):
    name, value = setting.split("=")
    command = [sys.executable, "-m", "gyromc", "run", "nld-quadratic", "--num-steps", "5", "--num-chains", "2"]
    done = subprocess.run(command, env={**os.environ, name: value}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 2)  # 0 where there is such a device
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(monkeypatch):
    """The first half second of a command; what it would have done has not begun."""

    class Pressed:
        def find_spec(self, name, path=None, target=None):
            if name == "gyromc.app.cli":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "gyromc.app.cli")
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module("gyromc.__main__").main()
    assert stopped.value.code == 130
