"""Files of JSON and arrays: what goes in comes out, and whatever is wrong with a file is said, never run."""

import dataclasses
import io
import json
import pickle
import zipfile

import numpy as np
import pytest

import gyromc as gm
from gyromc.errors import InvalidInput
from gyromc.io import archive as module
from gyromc.io.archive import VERSION, Codec, Packed, read_archive, write_archive


@dataclasses.dataclass(frozen=True)
class Point:
    place: np.ndarray
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Stranger:
    x: int = 1


CODEC = Codec({"Point": Point})
VALUE = {
    "numbers": (1, 2.5, float("inf"), True, None, "é\n"),
    3: [np.arange(6.0).reshape(2, 3), np.array(["a", "b"]), np.float32(0.1), np.int64(7)],
    "point": Point(np.array([[True], [False]]), "p"),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "value.gyromc"
    write_archive(path, "thing", VALUE, CODEC)
    return path


def read(path):
    archive = read_archive(path)
    assert archive.kind == "thing"
    return CODEC.unpack(archive)


def test_what_goes_in_comes_out(path, tmp_path):
    found = read(path)
    assert found["numbers"] == VALUE["numbers"]
    assert list(found) == list(VALUE)
    np.testing.assert_array_equal(found[3][0], VALUE[3][0])
    assert found[3][1].tolist() == ["a", "b"]
    assert found[3][2] == float(np.float32(0.1))
    assert found["point"].name == "p"
    assert found["point"].place.dtype == bool
    write_archive(tmp_path / "again.gyromc", "thing", found, CODEC)
    assert (tmp_path / "again.gyromc").read_bytes() == path.read_bytes()


def test_every_cut_and_every_changed_byte_is_noticed(path):
    """A change may fall on bytes that mean nothing, such as a date in the zip directory; then the value is the same."""
    whole, before = path.read_bytes(), json.dumps(CODEC.pack(read(path)).content)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match=r"damaged|did not write|no file that gyromc"):
            read(path)
    noticed = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            assert json.dumps(CODEC.pack(read(path)).content) == before
        except InvalidInput:
            noticed += 1
    assert noticed > 0.6 * len(whole) / 3


def rewritten(path, change):
    """The archive with its members changed; the checksums stay right if `change` keeps them so."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def in_header(members, **changes):
    members["header.json"] = json.dumps({**json.loads(members["header.json"]), **changes}).encode()


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def replaced(members, name, data):
    import hashlib

    members[name] = data
    sums = json.loads(members["header.json"])["sha256"]
    in_header(members, sha256={**sums, name: hashlib.sha256(data).hexdigest()})


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("code of the file was run",))


def huge(members):
    data = bytearray(npy(np.zeros(4)))
    replaced(members, "0.npy", bytes(data).replace(b"(4,)", b"(9999999999999,)")[: len(data)])


WRONG = {
    "another zip": (lambda m: m.pop("header.json"), "gyromc did not write"),
    "another format": (lambda m: in_header(m, format="other"), "gyromc did not write"),
    "newer": (lambda m: in_header(m, version=VERSION + 1), "reads up to 1. Install a newer gyromc"),
    "no version": (lambda m: in_header(m, version=None), "has version None"),
    "one more part": (lambda m: m.update(extra=b"x"), "list of parts"),
    "one part less": (lambda m: m.pop("0.npy"), "list of parts"),
    "another sum": (lambda m: m.update({"content.json": b"{}"}), "checksum of content.json"),
    "no JSON": (lambda m: replaced(m, "content.json", b"{"), "damaged"),
    "pickled": (lambda m: replaced(m, "0.npy", npy(np.array([Evil()], object), allow_pickle=True)), "damaged"),
    "pickle alone": (lambda m: replaced(m, "0.npy", pickle.dumps(Evil())), "damaged"),
    "huge": (huge, "damaged"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_file_is_said(path, kind):
    change, message = WRONG[kind]
    rewritten(path, change)
    with pytest.raises(InvalidInput, match=message):
        read(path)


def test_other_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.gyromc"
    for content in (b"", b"a,b\n1,2\n", pickle.dumps(Evil()), b"PK\x03\x04rest"):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="damaged or no file that gyromc saved"):
            gm.load(path)
    with pytest.raises(InvalidInput, match="There is no file"):
        gm.load(tmp_path / "y.gyromc")
    with pytest.raises(InvalidInput, match="is a directory"):
        gm.load(tmp_path)
    monkeypatch.setattr(module, "__version__", "9.9")
    path.unlink()
    write_archive(path, "dream", 1, CODEC)
    with pytest.raises(
        InvalidInput, match=r"holds 'dream', which this gyromc does not know; it was written by gyromc 9\.9"
    ):
        gm.load(path)


def test_classes_that_are_not_listed_are_not_written_nor_made(tmp_path):
    with pytest.raises(InvalidInput, match="A Stranger cannot be saved"):
        write_archive(tmp_path / "x", "thing", Stranger(), CODEC)
    with pytest.raises(KeyError):
        CODEC.unpack(Packed({"class": "Stranger", "fields": {"x": 1}}, {}))


def test_other_files_are_not_replaced_nor_read_for_ever(path, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("years of work")
    with pytest.raises(InvalidInput, match=r"notes\.txt exists and is no file that gyromc saved"):
        write_archive(notes, "thing", VALUE, CODEC)
    assert notes.read_text() == "years of work"
    path.write_bytes(path.read_bytes()[:100])
    write_archive(path, "thing", VALUE, CODEC)
    assert read(path)["point"].name == "p"
    for wrong in ("/dev/zero", "/dev/null"):
        with pytest.raises(InvalidInput, match="is a device or a pipe"):
            gm.load(wrong)
    for wrong in (None, 3, "a\0b"):
        with pytest.raises(InvalidInput, match=r"path of a file is needed|zero byte"):
            gm.load(wrong)
