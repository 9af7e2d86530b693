"""Pieces are kept: nothing finished is lost or computed twice, whatever happens in between."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import gyromc
from gyromc.app.cli import main
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.paper import reproduce, reproduction
from gyromc.paper.catalogue import PROFILES, select
from gyromc.paper.computation import CODEC, Cache, Piece, cells, fingerprint
from gyromc.paper.report import RESULTS
from support.profiles import TINY, execute


def test_every_cell_is_kept_and_found_again(tmp_path):
    todo = cells(select(["hfhr-quadratic", "gaul-quadratic"]), TINY)
    assert len(todo) == 12
    first = execute(todo, Cache(tmp_path), engine="scan")
    # Plain SGLD is the same plan in both experiments: computed once.
    assert (first.computed, first.reused) == (10, 0)
    again = execute(todo, Cache(tmp_path), engine="scan")
    assert (again.computed, again.reused) == (0, 10)
    for at, piece in first.pieces.items():
        np.testing.assert_array_equal(piece.averages, again.pieces[at].averages)
    fresh = execute(todo[:2], Cache(tmp_path), engine="scan", fresh=True)
    assert fresh.computed == 2
    np.testing.assert_array_equal(fresh.pieces[todo[0].place].averages, first.pieces[todo[0].place].averages)


def test_a_damaged_entry_is_computed_again_with_a_warning(tmp_path):
    cache, todo = Cache(tmp_path), cells(select(["nld-quadratic"]), TINY)[:1]
    good = execute(todo, cache, engine="scan").pieces[todo[0].place]
    path = cache.path(fingerprint(todo[0].plan, "scan"))
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"not a zip file", whole[:200] + b"\xff" * 40 + whole[240:]):
        path.write_bytes(damage)
        with pytest.warns(GyromcWarning, match="damaged"):
            outcome = execute(todo, cache, engine="scan")
        assert outcome.computed == 1
        np.testing.assert_array_equal(outcome.pieces[todo[0].place].averages, good.averages)


def _damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    """A random damage: a flipped bit or byte, a cut, a foreign content, or a piece written twice."""
    at = int(rng.integers(len(whole)))
    flipped = whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
    others = (b"", b"{}", b"[]", b"null", b'{"observables": {}}', b"\x00" * len(whole), whole.partition(b"\n")[2])
    foreign = others[int(rng.integers(len(others)))]
    return (flipped, flipped, whole[:at], foreign, whole + whole[at:])[int(rng.integers(5))]


@pytest.mark.parametrize("kind", ["piece", "values"])
def test_no_damaged_entry_is_used_or_raises(tmp_path, kind):
    """150 damages of each kind of entry: one warning, or the value where the bytes hit hold nothing."""
    plan = cells(select(["nld-quadratic"]), TINY)[0].plan
    cache, rng = Cache(tmp_path), np.random.default_rng(0)
    key = fingerprint(plan, "scan")
    piece = Piece(rng.standard_normal((plan.num_chains, 1)), "scan", 1.0)
    cache.store(key, piece if kind == "piece" else {"observables": {"h": {"variance": 0.5}}, "verdicts": []})
    path = cache.path(key)
    whole = path.read_bytes()
    stored, refused = CODEC.pack(cache.load(key)), 0
    for _ in range(150):
        path.write_bytes(_damaged(whole, rng))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = cache.load(key)
        if found is None:
            assert [("damaged" in str(w.message), w.category) for w in caught] == [(True, GyromcWarning)]
            refused += 1
        else:
            again = CODEC.pack(found)
            assert again.content == stored.content
            assert all(np.array_equal(again.arrays[name], array) for name, array in stored.arrays.items())
    assert refused > 120
    path.write_bytes(whole)
    other = path.rename(cache.path("0" * 32))
    with pytest.warns(GyromcWarning, match="another name"):
        assert cache.load(other.stem) is None


@pytest.mark.slow
def test_reproduce_goes_on_over_damaged_entries(tmp_path):
    first = reproduce(["nld-quadratic"], TINY, engine="scan", out=tmp_path)
    for path in (tmp_path / "cache").iterdir():
        path.write_text("{}")
    with pytest.warns(GyromcWarning, match="damaged"):
        again = reproduce(["nld-quadratic"], TINY, engine="scan", out=tmp_path)
    assert again.reused == 0
    assert again.results["experiments"] == first.results["experiments"]


@pytest.fixture
def gyromc_says(monkeypatch, capsys):
    """What the command line writes to standard error when it ends with status 2."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gyromc", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        return capsys.readouterr().err

    return call


def test_a_full_disk_and_a_read_only_directory_are_said(tmp_path, gyromc_says):
    (tmp_path / "file").write_text("")
    assert "is a file: pass a directory" in gyromc_says("reproduce", "nld-quadratic", "--out", tmp_path / "file")
    code = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "os.environ.pop('JAX_COMPILATION_CACHE_DIR', None)\n"  # JAX would write there, and complain
        "sys.argv[1:1] = ['reproduce', 'nld-quadratic', '--engine', 'scan', '--out']\n"  # Numba would write its own cache
        "from gyromc.app.cli import main; main()"
    )
    full = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "full")], capture_output=True, text=True, timeout=200
    )
    assert full.returncode == 2
    assert "File too large" in full.stderr
    assert "write to another directory" in full.stderr
    assert not list((tmp_path / "full" / "cache").glob("[!p]*.gyromc"))


def test_bad_names_engines_and_profiles_are_said(tmp_path, gyromc_says):
    for arguments, words in (
        (["nld-quadratc"], "Did you mean 'nld-quadratic'"),
        (["nld-quadratic", "--engine", "warp"], "`engine` must be one of"),
        (["nld-quadratic", "--profile", "slow"], "quick, paper"),
        (["nld-quadratic", "--seed", "-1"], "seed"),
    ):
        assert words in gyromc_says("reproduce", *arguments, "--out", tmp_path)


def test_results_of_another_schema_are_refused(tmp_path, gyromc_says):
    with pytest.raises(InvalidInput, match="gyromc reproduce"):
        RESULTS.load(tmp_path)
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"schema": "gyromc.reproduction", "schema_version": 99}))
    assert "version 99" in gyromc_says("report", tmp_path)
    path.write_text("{ not json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        RESULTS.load(tmp_path)


SCRIPT = """
import json, sys
from gyromc.paper.catalogue import Profile
from gyromc.paper import reproduce
families = ("quadratic", "nonquadratic", "linear", "logistic")
profile = Profile(name="kill", num_chains=dict.fromkeys(families, 20), num_step_sizes=dict.fromkeys(families, step_sizes),
                  reference_draws=64, digits=3)
done = reproduce(["linear-nld"], profile, engine="scan", out=out or sys.argv[1])
"""


def _here(out: Path, step_sizes: int):
    """The same script in this process, which has JAX already."""
    names = {"out": out, "step_sizes": step_sizes}
    exec(SCRIPT, names)
    return names["done"]


def _timeless(directory: Path) -> dict:
    results = json.loads((directory / "results.json").read_text())
    assert results.pop("times")
    assert results.pop("sha256")
    return results


def _until_pieces(running: subprocess.Popen, cache: Path, number: int) -> None:
    """Wait until so many pieces are finished."""
    deadline = time.monotonic() + 500
    while len(list(cache.glob("[!p]*.gyromc"))) < number and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gyromc.__file__).parent.parent)}


def test_a_run_goes_on_from_the_pieces_that_are_there(tmp_path, monkeypatch):
    """What a kill leaves behind, made by removing files: the same results.json, and no finished piece computed twice."""
    monkeypatch.setattr(reproduction, "write_report", lambda results, directory, *_, **__: directory / "report.html")
    out, straight = tmp_path / "stopped", tmp_path / "straight"
    _here(straight, step_sizes=2)
    shutil.copytree(straight / "cache", out / "cache")
    first, *removed = sorted((out / "cache").glob("[!p]*.gyromc"))
    for path in (*removed, *(out / "cache").glob("prediction*")):
        path.unlink()
    finished = first.stat().st_mtime_ns
    again = _here(out, step_sizes=2)
    assert (again.computed, again.reused) == (3, 1)
    assert first.stat().st_mtime_ns == finished
    assert _timeless(out) == _timeless(straight)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    """Kill -9 in the middle, start again: the same results.json, and no finished piece computed twice."""
    out, straight = tmp_path / "killed", tmp_path / "straight"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen(
        [sys.executable, "-c", f"out, step_sizes = None, 4\n{SCRIPT}", str(out)], env=ENVIRONMENT, **quiet
    )
    _until_pieces(running, out / "cache", 2)
    running.send_signal(signal.SIGKILL)
    assert running.wait(timeout=60) == -signal.SIGKILL
    finished = {path.name: path.stat().st_mtime_ns for path in (out / "cache").glob("[!p]*.gyromc")}
    assert 2 <= len(finished) < 8
    assert not (out / "results.json").exists()
    again = _here(out, step_sizes=4)
    assert (again.computed, again.reused) == (8 - len(finished), len(finished))
    assert all((out / "cache" / name).stat().st_mtime_ns == at for name, at in finished.items())
    _here(straight, step_sizes=4)
    assert _timeless(out) == _timeless(straight)


def test_ctrl_c_keeps_what_is_finished(tmp_path, sigint):
    sigint(signal.default_int_handler)
    command = [sys.executable, "-m", "gyromc", "reproduce", "nld-quadratic", "--profile", "paper", "--engine", "scan"]
    command += ["--workers", "1"]  # several would begin with the longest
    running = subprocess.Popen([*command, "--out", str(tmp_path)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    _until_pieces(running, tmp_path / "cache", 2)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=300)[1]
    assert running.returncode == 130
    assert "The same command goes on from there" in said
    todo = cells(select(["nld-quadratic"]), PROFILES["paper"])
    kept = [Cache(tmp_path / "cache").load(fingerprint(cell.plan, "scan")) for cell in todo]
    assert sum(piece is not None for piece in kept) >= 2
