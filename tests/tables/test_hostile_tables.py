"""Tables and options that once hung, ended in a traceback, lost the fit in a figure or wrote to the terminal."""

import os
import xml.dom.minidom

import numpy as np
import pytest

import gyromc as gm
from gyromc.data.csvfile import CsvFile
from gyromc.regression.fit import relative_error
from gyromc.show.numbers import printable
from gyromc.show.pages import image
from gyromc.show.tables import Table, text_of
from gyromc.tables import figures
from gyromc.tables.datatable import read_table, require_scale
from gyromc.tables.formula import read_formula
from gyromc.tables.preparation import prepare
from gyromc.tables.request import Request

ESCAPE = "a\x1b[31mred\x1b]0;title\x07"


@pytest.mark.parametrize(
    "formula",
    ["y ~ (a + b + c)**30", "y ~ (.)**20", "y ~ ((a + b)**9 + c)**9 + d", "y ~ " + "*".join(["(a+b+c)"] * 12)],
)
def test_a_formula_of_too_many_products_is_refused_at_once(formula):
    with pytest.raises(gm.InvalidInput, match="more than 100,000 products of terms"):
        read_formula(formula, ["y", "a", "b", "c", "d", "e"])


@pytest.mark.parametrize(
    ("formula", "terms"),
    [
        ("y ~ (a + b + c)**3", 7),
        ("y ~ a*b*c*d - a", 14),
        ("y ~ bs(a, 4) + I(b**20) + b/c", 4),
        ("y ~ .", 5),
        ("y ~ (.)^2", 15),
    ],
)
def test_formulas_that_people_write_are_read(formula, terms):
    assert len(read_formula(formula, ["y", "a", "b", "c", "d", "e"]).terms[0].terms) == terms


DEEP = (
    "((" * 1500 + "a" + "))" * 1500,
    "(a+" * 800 + "a" + ")" * 800,
    "log(" * 51 + "a" + ")" * 51,
    "(" * 51 + "1|a" + ")" * 51,
)


@pytest.mark.parametrize("terms", DEEP)
def test_a_formula_of_too_many_brackets_is_refused_at_once(terms):
    """Its parsers call themselves for each of them: they took a minute, or ended in a RecursionError."""
    with pytest.raises(gm.InvalidInput, match="more than 50 brackets inside one another"):
        read_formula(f"y ~ {terms}", ["y", "a"])


@pytest.mark.parametrize(
    ("name", "terms"),
    [("1", "`1` + a"), ("1", "."), ("1", "(a + .)**2"), ("1", "a + (1 + `1` | b)"), ("~", "`~` + a"), ("~", "a:`~`"),
     ("Intercept", "`Intercept` + a"), ("Intercept", "a*Intercept"), ("Intercept", "."), ("", "a + ``"), ("b", "`1`"),
     (".", "`.`"), ("c", "a + `.`")],
)  # fmt: skip
def test_a_column_is_never_dropped_for_its_name(name, terms):
    """The parser takes these for signs, in backticks too: a column or the constant was missing, or all columns came in."""
    with pytest.raises(gm.InvalidInput, match=r"another meaning|empty name"):
        read_formula(f"y ~ {terms}", ["y", name, "a", "b"])
    assert read_formula("y ~ a + 1", ["y", name, "a", "b"]).predictors == ("a",)


@pytest.mark.parametrize("name", ["+", "0", "**", "1.5", "a~b", "|", "+1", "None", "intercepts", "in"])
def test_names_that_look_like_signs_are_names_in_backticks(name):
    found = read_formula(f"y ~ `{name}`", ["y", name, "a"])
    assert (found.predictors, found.terms[0].intercept) == ((name,), True)


@pytest.mark.parametrize(
    "terms", ["I(" + "-" * 9000 + "a)", "I(" + "a**" * 3000 + "2)", "I(" + "a+" * 4900 + "a)", "b" * 9000]
)
def test_a_formula_that_cannot_be_read_is_quoted_in_part(terms):
    with pytest.raises(gm.InvalidInput) as caught:
        read_formula(f"y ~ {terms}", ["y", "a"])
    assert len(str(caught.value)) < 500


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(gm.InvalidInput, match="is a device or a pipe"):
        read_table(tmp_path / "rows.csv")


@pytest.mark.parametrize("encoding", ["rot13", "zip", "hex", "no\0thing", "klingon"])
def test_an_encoding_that_is_none_of_text_is_refused(encoding):
    with pytest.raises(gm.InvalidInput, match="Unknown encoding"):
        CsvFile(b"a,b\n1,2\n", encoding)


def test_an_error_that_no_run_reaches_is_refused():
    with pytest.raises(gm.InvalidInput, match="`effort` must be at least 1e-06"):
        relative_error(1e-9)


def test_the_column_that_is_missing_is_named_by_its_role(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "\n".join(f"{i},{i % 3}" for i in range(20)))
    for options, role in (({"target": "y", "weights": "zz"}, "--weights"), ({"target": "zz"}, "target")):
        with pytest.raises(gm.InvalidInput, match=rf"no column 'zz' \({role}\)"):
            prepare(Request(data=str(path), **options))
    with pytest.raises(gm.InvalidInput, match=r"no column 'zz' \(--offset\)"):
        prepare(Request(data=str(path), formula="y ~ a", offset="zz"))


def test_a_column_that_never_changes_is_called_that():
    with pytest.raises(gm.InvalidInput, match=r"Column .a. is 0\.1 in every row"):
        require_scale(np.full(5, 0.1), "Column 'a'")


def test_nothing_that_controls_a_terminal_is_printed(capsys):
    assert printable("é…\n\tx") == "é…\n\tx"
    table = Table([ESCAPE, "b"], [[ESCAPE, (ESCAPE, "green")]], ESCAPE, [ESCAPE])
    assert not {"\x1b", "\x07"} & set(text_of(table))
    assert r"a\x1b[31mred" in text_of(table)


def test_a_fit_of_such_names_prints_them_spelled_out(tmp_path, capsys):
    from gyromc.show.progress import say

    say(f"column {ESCAPE}")
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-16", "punycode", "undefined"])
def test_bytes_that_an_encoding_cannot_begin_with_are_refused(encoding):
    with pytest.raises(gm.InvalidInput, match=f"rows.csv is not {encoding}: UnicodeError: .*Save the file as UTF-8"):
        CsvFile(b"a,b\n1.5,2\n", encoding, option="--encoding", name="rows.csv")


@pytest.mark.filterwarnings("error")
def test_pictures_of_such_names_are_valid():
    """An SVG holds its texts as comments too: with a control character no browser shows it. No letter is warned about."""
    name = f"{ESCAPE}\uffff日本"
    results = {**RESULTS, "adequacy": {"figures": {}}}
    results["trace"] = {"parameters": [{"label": name, "chains": [[0.0, 1.0]]}], "steps": [0, 1]}
    [picture] = figures.pictures(results)
    assert r"a\x1b[31mred" in xml.dom.minidom.parseString(picture.svg).toxml()
    image(figures.drawn("trace", results), "png")
    found = gm.expect(gm.targets.Quadratic([1.0]), {name: gm.observables.linear([1.0])}, progress=False)
    for kind in ("density", "forest"):
        xml.dom.minidom.parseString(image(found.plot(kind=kind), "svg"))


RESULTS = {
    "adequacy": {"figures": {"predictive": None}},
    "held_out": None,
    "coefficients": [],
    "model": {"effect": "log odds", "classes": [f"class {i}" for i in range(40)], "target": "y"},
    "trace": {"parameters": [{"label": "a", "chains": [[0.0, 1.0]]}], "steps": [0, 1]},
    "sampler": {"num_chains": 1},
}


def test_a_figure_that_fails_never_costs_the_report():
    with pytest.warns(gm.GyromcWarning, match="figure `predictive` is left out of the report"):
        found = figures.pictures(RESULTS)
    kinds = {picture.kind for picture in found}
    assert "trace" in kinds
    assert "predictive" not in kinds


def test_forty_classes_have_a_bar_each():
    edges, bars = np.arange(41) - 0.5, np.arange(40.0)
    found = {"kind": "classes", "edges": edges.tolist(), "observed": bars, "expected": bars, "low": bars, "high": bars}
    results = {**RESULTS, "adequacy": {"figures": {"predictive": found}}}
    figure = figures.drawn("predictive", results)
    assert len(figure.axes[0].get_xticklabels()) == 40
