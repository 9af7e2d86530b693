"""Files and folders are written whole or not at all; JSON states its schema."""

import os
from pathlib import Path

import pytest

from gyromc.errors import InvalidInput
from gyromc.show.files import ResultsFile, csv_text, require_writable, results_folder, write_atomically

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
    assert out.stat().st_mode & 0o777 == 0o755


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
    with pytest.raises(InvalidInput, match=r"cannot be a directory: .*Pass another"):
        require_writable(tmp_path / name)


def test_a_file_is_replaced_only_when_its_content_is_complete(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, "Grüße")
    assert path.read_bytes() == "Grüße".encode()
    assert path.stat().st_mode & 0o777 == 0o644

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
    assert saved == {"schema": "gyromc.test", "schema_version": 2, "name": "η", "pair": [1, 2.5]}
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
