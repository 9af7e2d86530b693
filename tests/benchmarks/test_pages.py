"""What the studies share: rows that replace earlier ones, and the command line of a study with a record per model."""

import json
import sys

from pages import save_rows, study_of_models


def test_rows_replace_those_of_the_same_name_and_keep_the_others(tmp_path):
    path, fields = tmp_path / "rows.json", ("problem", "case")
    row = lambda problem, case, value: {"problem": problem, "case": case, "value": value}
    save_rows(path, [row("b", 1, 0), row("a", 1, 0)], fields)
    kept = save_rows(path, [row("b", 1, 5), row("a", 2, 5)], fields)
    assert kept == [row("b", 1, 5), row("a", 1, 0), row("a", 2, 5)]
    assert json.loads(path.read_text())["rows"] == kept
    ordered = save_rows(path, [], fields, place=lambda row: (row["problem"], -row["case"]))
    assert ordered == [row("a", 2, 5), row("a", 1, 0), row("b", 1, 5)]


def test_a_study_prints_a_line_for_each_model_and_writes_all_records(tmp_path, monkeypatch, capsys):
    models = lambda only: {name: size for name, size in (("one", 1), ("two", 2)) if only in (None, name)}
    measured = lambda name, size, options: {"model": name, "steps": size * options.steps}
    line = lambda record: f"{record['model']}: {record['steps']}"
    out = tmp_path / "new" / "records.json"
    for arguments, expected in (([], "one: 10\ntwo: 20\n"), (["--only", "two", "--steps", "3"], "two: 6\n")):
        monkeypatch.setattr(sys, "argv", ["study", "--out", str(out), *arguments])
        study_of_models("A study.", {"steps": 10}, models, measured, line)
        assert capsys.readouterr().out == expected
    assert json.loads(out.read_text()) == [{"model": "two", "steps": 6}]
