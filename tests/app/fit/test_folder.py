"""Results are written whole or not at all."""

import os

import pytest

from gyromc.app.fit.report import results_folder
from gyromc.errors import InvalidInput


def test_a_folder_appears_only_when_all_went_well(tmp_path):
    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt), results_folder(out) as folder:  # noqa: PT012
        (folder / "fit.json").write_text("half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path / "deep") == []
    with results_folder(out) as folder:
        (folder / "fit.json").write_text("first")
        assert not out.exists()
    assert (out / "fit.json").read_text() == "first"
    assert os.listdir(tmp_path / "deep") == ["out"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_an_earlier_fit_is_replaced_whole_and_survives_a_failure(tmp_path):
    out = tmp_path / "out"
    with results_folder(out) as folder:
        (folder / "fit.json").write_text("first")
        (folder / "predictions.csv").write_text("old")
    with pytest.raises(RuntimeError), results_folder(out) as folder:  # noqa: PT012
        (folder / "fit.json").write_text("broken")
        raise RuntimeError("no")
    assert (out / "fit.json").read_text() == "first"
    with results_folder(out) as folder:
        (folder / "fit.json").write_text("second")
    assert (out / "fit.json").read_text() == "second"
    assert os.listdir(out) == ["fit.json"]
    assert os.listdir(tmp_path) == ["out"]


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"holds other files \(thesis.tex\).*--out"), results_folder(tmp_path):
        pass
    with pytest.raises(InvalidInput, match="is a file"), results_folder(tmp_path / "thesis.tex"):
        pass
    with (
        pytest.raises(InvalidInput, match=r"Cannot write beside .*--out"),
        results_folder(tmp_path / "thesis.tex" / "out"),
    ):
        pass
    assert os.listdir(tmp_path) == ["thesis.tex"]
