"""Draws in pieces: written once, shared by checkpoints, checked when they are read, removed when no checkpoint needs them."""

import itertools

import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.io import checkpoints as pieces
from support.survivors import names, small, start_and_kill

OPTIONS = {"engine": "lanes", "thin": 1, "every": 20}
ROW = 24 * 2 * 4  # bytes of one draw of all chains


@pytest.fixture
def ten(monkeypatch):
    """Files of ten draws or more are never written again."""
    monkeypatch.setattr(pieces, "PIECE", 10 * ROW)


def stopped(monkeypatch, directory, step=160, **options):
    start_and_kill(monkeypatch, small(), step, directory, **{**OPTIONS, **options})


def resumed(directory, **options):
    return gm.run(small(), progress=False, checkpoint=directory, **{**OPTIONS, **options})


def expected(**options):
    return gm.run(small(), "lanes", thin=1, progress=False, **options)


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def piece(first, last):
    return f"draws-{first:015d}-{last:015d}.gyromc"


def test_a_full_piece_is_written_once(ten, tmp_path, monkeypatch):
    written = []
    write = pieces.write_archive

    def noted(path, kind, *rest, **own):
        if kind == "draws":
            written.append(path.name)
        return write(path, kind, *rest, **own)

    monkeypatch.setattr(pieces, "write_archive", noted)
    run = resumed(tmp_path)
    edges = [7, *range(20, 201, 20), 207]
    assert written == [piece(*pair) for pair in itertools.pairwise(edges)]
    assert names(tmp_path, "draws") == written
    assert digest(run) == digest(expected()) == digest(resumed(tmp_path))


def test_small_pieces_are_joined_and_the_old_ones_removed(tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    assert names(tmp_path, "draws") == [piece(7, step) for step in (120, 140, 160)]  # one for each of three checkpoints
    assert digest(resumed(tmp_path, keep=1)) == digest(expected())
    assert names(tmp_path, "draws") == [piece(7, 207)]


def test_pieces_of_a_process_that_was_killed_between_two_files(ten, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    (tmp_path / piece(160, 180)).write_bytes(b"half of the draws of another life")
    (tmp_path / f".{piece(180, 200)}.abc").write_bytes(b"and one that never got its name")
    assert digest(resumed(tmp_path)) == digest(expected())
    assert not list(tmp_path.glob(".draws*"))
    assert digest(resumed(tmp_path)) == digest(expected())


DAMAGES = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-50]), "is damaged"),
    "a flipped bit": (lambda path: path.write_bytes(flipped(path.read_bytes(), 400)), "is damaged"),
    "missing": (lambda path: path.unlink(), "There is no file"),
    "another sound file": (
        lambda path: path.write_bytes((path.parent / piece(120, 140)).read_bytes()),
        "holds other draws",
    ),
}


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_newest_piece(name, ten, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    change, said = DAMAGES[name]
    change(tmp_path / piece(140, 160))
    moved = rf"{said}.*step-0+160\.gyromc is now named .* from step-0+140"
    with pytest.warns(gm.GyromcWarning, match=moved):
        assert digest(resumed(tmp_path)) == digest(expected())
    assert digest(resumed(tmp_path)) == digest(expected())


def test_nothing_is_changed_where_a_piece_of_all_checkpoints_is_damaged(ten, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    first = tmp_path / piece(7, 20)
    first.write_bytes(first.read_bytes()[:-50])
    before = content(tmp_path)
    with pytest.raises(gm.InvalidInput, match=r"None of the 3 checkpoints .* none was changed.*draws-0+7-"):
        resumed(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("failing", ["draws", "checkpoint"])
def test_a_full_disk_while_either_file_is_written(failing, ten, tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    before = content(tmp_path)
    write = pieces.write_archive

    def full(path, kind, *rest, **own):
        if kind == failing:
            raise gm.InvalidInput(f"Cannot write {path}: no space left.")
        return write(path, kind, *rest, **own)

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "write_archive", full)
        with pytest.warns(gm.GyromcWarning, match="was not saved, and the run goes on"):
            assert digest(resumed(tmp_path)) == digest(expected())
    assert content(tmp_path) == before
    assert digest(resumed(tmp_path)) == digest(expected())


def test_names_from_elsewhere_are_refused(tmp_path):
    store = pieces.DrawsFiles(tmp_path / "here", 0, 1)
    with pytest.raises(gm.InvalidInput, match="no name of a piece"):
        store.read([pieces.DrawsFile("../draws.gyromc", 1, 1, "")])


def test_the_tail_of_a_list_of_arrays():
    rng = np.random.default_rng(0)
    for _ in range(200):
        kept = [rng.random((n, 2)) for n in rng.integers(0, 4, size=rng.integers(1, 6))]
        everything = np.concatenate(kept)
        first = int(rng.integers(0, len(everything) + 1))
        assert np.array_equal(pieces._from(kept, first), everything[first:])
