"""What the studies share: rows that replace earlier ones, and the command line of a study with a record per model."""

import json
import sys

from gyromc.show.pages import machine
from pages import measured_rows, save_rows, study_of_models, write_measured


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
    assert json.loads(out.read_text()) == {"environment": machine(), "rows": [{"model": "two", "steps": 6}]}


def test_results_are_stored_with_their_machine_and_keep_those_of_earlier_parts(tmp_path):
    path = tmp_path / "found.json"
    stored = lambda: json.loads(path.read_text())
    path.write_text(json.dumps([{"x": 1}]))
    assert measured_rows(path) == [{"x": 1}]
    assert measured_rows(tmp_path / "none.json") == measured_rows(None) == []
    write_measured(path, [*measured_rows(path), {"x": 2}], extended=True)
    assert stored() == {"environment": machine(), "other_environments": [None], "rows": [{"x": 1}, {"x": 2}]}
    there = {**machine(), "processor": "another"}
    path.write_text(json.dumps({"environment": there, "other_environments": [None], "rows": []}))
    for _ in range(2):  # a second time changes nothing
        write_measured(path, {**stored(), "more": 1}, extended=True)
        assert stored() == {"environment": machine(), "other_environments": [there, None], "rows": [], "more": 1}
    write_measured(path, {"rows": [3]})
    assert stored() == {"environment": machine(), "rows": [3]}
