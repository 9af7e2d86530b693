"""Draws in a file that grows: written once, shared by checkpoints, checked when they are read, cut where a process was killed."""

import os

import pytest

import gyromc as gm
from damages import digest
from gyromc.io import checkpoints
from support.survivors import names, small, start_and_kill

OPTIONS = {"engine": "lanes", "thin": 1, "every": 20}
ROW = 24 * 2 * 4  # bytes of one draw of all chains


def stopped(monkeypatch, directory, step=160, **options):
    start_and_kill(monkeypatch, small(), step, directory, **{**OPTIONS, **options})


def resumed(directory, **options):
    return gm.run(small(), progress=False, checkpoint=directory, **{**OPTIONS, **options})


def expected(**options):
    return gm.run(small(), "lanes", thin=1, progress=False, **options)


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_each_draw_is_written_once(tmp_path, monkeypatch):
    sizes, write = [0], checkpoints.write_archive

    def noted(path, *rest, **own):
        sizes.append((path.parent / "draws.bin").stat().st_size)
        return write(path, *rest, **own)

    monkeypatch.setattr(checkpoints, "write_archive", noted)
    run = resumed(tmp_path)
    steps = [*range(20, 201, 20), 207]
    assert sizes == [0, *((step - 7) * ROW for step in steps)]
    assert digest(run) == digest(expected()) == digest(resumed(tmp_path))


def test_what_a_killed_process_wrote_last_has_no_meaning(tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    with (tmp_path / "draws.bin").open("ab") as file:
        file.write(b"half of the draws of another life")
    (tmp_path / ".step-000000000000180.gyromc.abc").write_bytes(b"and one that never got its name")
    assert digest(resumed(tmp_path)) == digest(expected())
    assert not list(tmp_path.glob(".step*"))
    assert (tmp_path / "draws.bin").stat().st_size == 200 * ROW
    assert digest(resumed(tmp_path)) == digest(expected())


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 50),
    "a flipped bit": lambda path: flip(path, path.stat().st_size - 400),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_draws_of_the_newest_checkpoint(name, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    DAMAGES[name](tmp_path / "draws.bin")
    moved = r"draws\.bin is damaged.*step-0+160\.gyromc is now named .* from step-0+140"
    with pytest.warns(gm.GyromcWarning, match=moved):
        assert digest(resumed(tmp_path)) == digest(expected())
    assert digest(resumed(tmp_path)) == digest(expected())


@pytest.mark.parametrize("change", [lambda path: flip(path, 400), os.unlink], ids=["damaged", "missing"])
def test_nothing_is_changed_where_the_draws_of_all_checkpoints_are_gone(change, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    change(tmp_path / "draws.bin")
    before = content(tmp_path)
    with pytest.raises(gm.InvalidInput, match=r"None of the 3 checkpoints .* none was changed.*draws\.bin"):
        resumed(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("started", [False, True])
def test_a_full_disk(started, tmp_path, monkeypatch):
    if started:
        stopped(monkeypatch, tmp_path)
    before = content(tmp_path)

    def full(path, *_, **__):
        raise gm.InvalidInput(f"Cannot write {path}: no space left.")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_archive", full)
        with pytest.warns(gm.GyromcWarning, match="was not saved, and the run goes on"):
            assert digest(resumed(tmp_path)) == digest(expected())
    assert content(tmp_path) == before
    assert digest(resumed(tmp_path)) == digest(expected())
    assert names(tmp_path, "step")
