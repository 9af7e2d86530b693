"""Tables show names as they are: brackets are no markup, angle brackets no HTML."""

from gyromc.app.output import answer, print_json
from gyromc.show.tables import Shown, Table, text_of

TABLE = Table(
    ["h [cm]", "[/x] mean"],
    [["[red]a[/red]", ("1.5", "green")], ["<b>", "2"]],
    title="title [/]",
    notes=["note [bold]"],
)


class Result(Shown):
    def shown(self):
        return [TABLE, "line [/x]"]


def test_a_table_is_plain_text_everywhere(capsys):
    for style in ("grid", "simple"):
        text = text_of(Table(TABLE.columns, TABLE.rows, TABLE.title, TABLE.notes, style=style))
        for words in ("h [cm]", "[/x]", "mean", "[red]a[/red]", "1.5", "<b>", "title [/]", "note [bold]"):
            assert words in text
    html = TABLE.html()
    assert "&lt;b&gt;" in html
    assert "h [cm]" in html
    answer(False, None, TABLE, "line [/x]", Result())
    out = capsys.readouterr().out
    assert out.count("[red]a[/red]") == 2
    assert out.count("line [/x]") == 2
    assert repr(Result()).endswith("line [/x]")


def test_json_is_one_line_in_a_pipe(capsys):
    print_json({"name": "η", "values": [1, 2.5, None]})
    assert capsys.readouterr().out == '{"name": "η", "values": [1, 2.5, null]}\n'
