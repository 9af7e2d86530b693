"""Files and folders are written whole or not at all; JSON states its schema."""

import os
from pathlib import Path

import pytest

from gyromc.errors import InvalidInput
from gyromc.show.files import (
    ResultsFile,
    csv_text,
    require_apart,
    require_output,
    require_writable,
    results_folder,
    write_atomically,
)

OWN = ("fit.json", "predictions.csv")


def test_a_folder_appears_only_when_all_went_well(tmp_path):
    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt), results_folder(out, OWN) as folder:  # noqa: PT012  # fails after it wrote
        (folder / "fit.json").write_text("half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path / "deep") == []
    with results_folder(out, OWN) as folder:
        (folder / "fit.json").write_text("first")
        assert not out.exists()
    assert (out / "fit.json").read_text() == "first"
    assert os.listdir(tmp_path / "deep") == ["out"]
    (tmp_path / "ordinary").mkdir()
    assert out.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_an_earlier_fit_is_replaced_whole_and_survives_a_failure(tmp_path):
    out = tmp_path / "out"
    with results_folder(out, OWN) as folder:
        (folder / "fit.json").write_text("first")
        (folder / "predictions.csv").write_text("old")
    with pytest.raises(RuntimeError), results_folder(out, OWN) as folder:  # noqa: PT012  # fails after it wrote
        (folder / "fit.json").write_text("broken")
        raise RuntimeError("no")
    assert (out / "fit.json").read_text() == "first"
    with results_folder(out, OWN) as folder:
        (folder / "fit.json").write_text("second")
    assert (out / "fit.json").read_text() == "second"
    assert os.listdir(out) == ["fit.json"]
    assert os.listdir(tmp_path) == ["out"]


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"holds other files \(thesis.tex\).*--out"), results_folder(tmp_path, OWN):
        pass
    with pytest.raises(InvalidInput, match="is a file"), results_folder(tmp_path / "thesis.tex", OWN):
        pass
    with (
        pytest.raises(InvalidInput, match=r"thesis.tex is a file: pass a directory"),
        results_folder(tmp_path / "thesis.tex" / "out", OWN),
    ):
        pass
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("name", ["x" * 300, "x\0y"])
def test_a_name_that_no_directory_can_have(name, tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot be a path: .*Pass another"):
        require_writable(tmp_path / name)


def test_a_file_is_replaced_only_when_its_content_is_complete(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, "Grüße")
    assert path.read_bytes() == "Grüße".encode()
    (tmp_path / "ordinary").touch()
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode

    def interrupted(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    assert path.read_bytes() == "Grüße".encode()
    assert os.listdir(path.parent) == ["file.txt"]
    with pytest.raises(InvalidInput, match=r"Cannot write /dev/full/x.*another directory"):
        write_atomically(Path("/dev/full/x"), "text")
    with pytest.raises(InvalidInput, match=r"is a file: pass a directory"):
        require_writable(path)


@pytest.fixture
def umask():
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


def test_permissions_are_those_of_the_umask_or_of_the_file_that_is_replaced(tmp_path, umask):
    path = tmp_path / "file"
    umask(0o077)
    write_atomically(path, "mine")
    assert path.stat().st_mode & 0o777 == 0o600
    with results_folder(tmp_path / "out", OWN) as folder:
        (folder / "fit.json").write_text("mine")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    write_atomically(path, "ours")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    for content in ("first", "second"):
        write_atomically(link, content)
        assert link.is_symlink()
        assert (tmp_path / "real" / "file").read_text() == content


def test_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InvalidInput, match=r"Cannot write .* a device, a pipe or a directory"):
            write_atomically(path, "text")
        with pytest.raises(InvalidInput, match=r"`--save` takes a file: .* is a device or a pipe"):
            require_output(path, "--save")
    assert not Path("/dev/null").is_file()
    assert Path("/dev/null").exists()


def test_an_output_is_not_one_of_the_inputs(tmp_path):
    data, link = tmp_path / "data.csv", tmp_path / "link.csv"
    data.write_text("a\n1\n")
    link.symlink_to(data)
    os.link(data, tmp_path / "hard.csv")
    for path in (data, link, tmp_path / "hard.csv", tmp_path / "x" / ".." / "data.csv"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(InvalidInput, match=r"`--out .*` would overwrite .*data\.csv, which is read"):
            require_output(path, "--out", None, str(data))
    require_output(tmp_path / "new.csv", "--out", str(data), "nld-quadratic")
    out = tmp_path / "out"
    out.mkdir()
    (out / "predictions.csv").write_text("a\n1\n")
    with (
        pytest.raises(InvalidInput, match=r"results would overwrite .*predictions\.csv: pass another"),
        results_folder(out, OWN, str(out / "predictions.csv")),
    ):
        pass


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in ("a", "x/../a", "link"):
        with pytest.raises(InvalidInput, match="`--save` and `--draws` both name"):
            require_apart({"--save": tmp_path / "a", "--html": None, "--draws": str(tmp_path / other)})
    require_apart({"--save": tmp_path / "a", "--draws": tmp_path / "b", "--html": None, "--out": None})


def test_csv_text_quotes_rounds_and_leaves_gaps():
    assert csv_text(["a", 'b"c'], [[1 / 3, None], ["x,y", 2]]) == 'a,"b""c"\n0.333333333,\n"x,y",2\n'


def test_csv_text_holds_no_formulas():
    rows = [["=1+1"], ["+A1"], ["-A1"], ["@SUM(A1)"], ["\tx"], ["-1"], ["+1e-3"], [-2.0], ["a=b"]]
    assert csv_text(["=cmd|'/c calc'!A0"], rows) == (
        "'=cmd|'/c calc'!A0\n'=1+1\n'+A1\n'-A1\n'@SUM(A1)\n'\tx\n-1\n+1e-3\n-2\na=b\n"
    )


def test_letters_that_are_none_are_written_as_codes(tmp_path):
    write_atomically(tmp_path / "x", "a\udcff")
    assert (tmp_path / "x").read_bytes() == rb"a\udcff"


def test_json_states_its_schema_and_another_one_is_refused(tmp_path):
    file = ResultsFile("results.json", "gyromc.test", 2, "gyromc test --out {directory}")
    with pytest.raises(InvalidInput, match=f"There is no .*gyromc test --out {tmp_path}"):
        file.load(tmp_path)
    saved = file.save({"name": "η", "pair": (1, 2.5)}, tmp_path)
    content = {"schema": "gyromc.test", "schema_version": 2, "name": "η", "pair": [1, 2.5]}
    assert saved == {**content, "sha256": saved["sha256"]}
    assert file.load(tmp_path) == saved
    assert "η" in (tmp_path / "results.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.save({"x": float("nan")}, tmp_path)
    assert file.load(tmp_path) == saved
    with pytest.raises(
        InvalidInput, match=r"has schema 'gyromc.test' version 2; this gyromc reads 'gyromc.test' version 3"
    ):
        ResultsFile("results.json", "gyromc.test", 3, "").load(tmp_path)
    for content in ("{ not json", "[]"):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(InvalidInput, match=r"cannot be read|has schema None"):
            file.load(tmp_path)
