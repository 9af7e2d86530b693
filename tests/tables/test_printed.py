"""Every number in a table of the page, and so of the terminal, against the file that holds it."""

import csv
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.tables.report import RESULTS


class Tables(HTMLParser):
    """The cells of each table of a page, by its id or its label."""

    def __init__(self):
        super().__init__()
        self.found, self.name, self.label, self.cell = {}, "", "", None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.label = given.get("aria-label", self.label)
        if tag == "table":
            self.name = given.get("id") or self.label
            self.found[self.name] = []
        elif tag == "tr":
            self.found[self.name].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.found[self.name][-1].append((self.cell or "").strip())
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


def agrees(text, value):
    """Whether a text is a number rounded to the digits that it shows, three at least."""
    if value in (None, ""):
        return text in ("", "–")
    shown = text.replace("−", "-").replace(",", "")
    mantissa, _, exponent = shown.partition("e")
    value = float(value)
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    if float(shown) != 0 and not exponent and abs(value) >= 1000:  # the last digits of large numbers are zeros
        unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return abs(float(shown) - value) <= 0.5001 * unit


def ends(text):
    (found,) = re.findall(r"^\[(.+), (.+)\]$", text)
    return found


def pair(text):
    """A value and its error; a score without one has no ±."""
    return text.split(" ± ") if "±" in text else [text]


@pytest.fixture(
    scope="module", params=["logistic", "poisson", "linear", pytest.param("softmax", marks=pytest.mark.slow)]
)
def written(request, tmp_path_factory):
    """fit.json, the tables of the page and the folder of a fit with classes, groups, a curve or large numbers."""
    rng, n = np.random.default_rng(3), 120
    x, z, kind, g = rng.normal(size=n), rng.normal(size=n), rng.choice(list("uvw"), n), rng.integers(0, 5, n)
    t = 0.8 * x - 0.4 * z + 0.5 * (kind == "v")
    y, formula, more = {
        "logistic": ((rng.logistic(size=n) < t).astype(int), "y ~ x + z + kind", ["--robust"]),
        "poisson": (rng.poisson(np.exp(1 + 0.5 * t + 0.5 * rng.normal(size=5)[g])), "y ~ x * z + (1 | g)", []),
        "linear": (78_000 + 9_000 * (t + rng.normal(size=n)), "y ~ bs(x, 4) + z + kind", []),
        "softmax": (
            np.array(["Car", "Bus", "Train"])[np.digitize(t + rng.logistic(size=n), [-1, 1])],
            "y ~ x + kind",
            [],
        ),
    }[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    rows = zip(x, z, kind, [f"s{k}" for k in g], y, strict=True)
    (folder / "d.csv").write_text("\n".join(["x,z,kind,g,y", *(",".join(map(str, row)) for row in rows)]) + "\n")
    arguments = ["fit", folder / "d.csv", "--formula", formula, "--family", request.param, "--out", folder / "out"]
    done = CliRunner().invoke(app, [*map(str, arguments), "--effort", "quick", *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    parser = Tables()
    parser.feed((folder / "out" / "report.html").read_text())
    return RESULTS.load(folder / "out"), parser.found, folder / "out"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def body(table):
    """The rows below the header, without those that only name a class."""
    return [row for row in table[1:] if len(row) > 1]


def test_estimates_are_those_of_coefficients_csv(written):
    results, tables, folder = written
    shown = body(tables["coefficient-table"]) + body(tables.get("parameter-table", [[]]))
    file = read(folder / "coefficients.csv")
    assert [row[0] for row in shown] == [row["name"] for row in file]
    for row, known in zip(shown, file, strict=True):
        assert agrees(row[1], known["mean"])
        assert all(map(agrees, ends(row[2]), (known["low_95"], known["high_95"])))
        assert agrees(row[3], known["sd"])
    for row, c in zip(body(tables["coefficient-table"]), results["coefficients"], strict=True):
        assert agrees(row[4], c["standardised"] and c["standardised"]["mean"])
    if results["robust"] is not None:
        for row, known in zip(body(tables["robust-table"]), file, strict=True):
            assert agrees(row[2], known["robust_sd"])
            assert all(map(agrees, ends(row[3]), (known["robust_low_95"], known["robust_high_95"])))


def test_levels_are_those_of_groups_csv(written):
    results, tables, folder = written
    for group in results["groups"]:
        file = {(row["level"], row["effect"]): row for row in read(folder / "groups.csv")}
        for level, rows, *cells in body(tables[f"Deviations of the levels of {group['name']}"]):
            for effect, mean, interval in zip(group["effects"], cells[::2], cells[1::2], strict=True):
                known = file[level, effect]
                assert rows == known["rows"]
                assert agrees(mean, known["mean"])
                assert all(map(agrees, ends(interval), (known["low_95"], known["high_95"])))


def test_predictions_are_those_of_held_out_csv(written):
    results, tables, folder = written
    (part,) = results["predictions"]
    file = read(folder / "held_out.csv")
    shown = body(tables[part["title"]])
    assert len(shown) == 10
    for row, known in zip(shown, file, strict=False):
        for name, text in zip(part["columns"], row, strict=True):
            of_class = f"{name}[{known.get('predicted')}]"
            value = known[of_class] if of_class in known else known[name]
            assert text == value or agrees(text, value), (name, text, value)


def test_effects_scores_and_what_people_quote_are_those_of_fit_json(written):
    results, tables, _ = written
    kinds = [kind for kind in ("ratio", "change") if any(row[kind] is not None for row in results["effects"]["rows"])]
    for row, known in zip(body(tables["effects-table"]), results["effects"]["rows"], strict=True):
        assert row[0] == known["name"]
        for kind, value, interval in zip(kinds, row[1::2], row[2::2], strict=True):
            assert agrees(value, known[kind])
            if known[kind] is not None:
                assert all(map(agrees, ends(interval), known[f"{kind}_interval_95"]))
    for row, s in zip(body(tables["score-table"]), results["held_out"]["scores"], strict=True):
        assert all(map(agrees, pair(row[1]), (s["value"], s["std_error"])))
        assert agrees(row[2], s["baseline"])
        assert all(map(agrees, pair(row[3]), (s["difference"], s["difference_std_error"])))
        assert row[4].endswith(s["verdict"])
    found, quoted = results["adequacy"], {row[0]: row for row in body(tables["quoted-table"])}
    mean, interval = quoted["Bayesian R²"][1].split(" ", 1)
    assert agrees(mean, found["r_squared"]["mean"])
    assert all(map(agrees, ends(interval), found["r_squared"]["interval_95"]))
    assert all(map(agrees, pair(quoted["LOO elpd"][1]), (found["loo"]["elpd"], found["loo"]["std_error"])))
    ((looic, effective),) = re.findall(r"LOOIC (\S+), (\S+) effective", quoted["LOO elpd"][2])
    assert agrees(looic, found["loo"]["looic"])
    assert agrees(effective, found["loo"]["p_loo"])
    assert agrees(quoted["WAIC"][1], found["waic"]["waic"])
    assert all(map(agrees, pair(quoted["deviance"][1]), (found["deviance"]["mean"], found["deviance"]["sd"])))
    assert ("LOO R²" in quoted) == (found["loo_r_squared"] is not None)
    assert "LOO R²" not in quoted or agrees(quoted["LOO R²"][1], found["loo_r_squared"])


def test_a_wrong_digit_is_noticed():
    assert agrees("78,880", 78_881.2)
    assert agrees("−0.0123", -0.01234)
    assert agrees("1.8e−07", 1.84e-7)
    assert not agrees("78,880", 78_000)
    assert not agrees("0.0123", 0.0124)
    assert not agrees("1.8e−07", 1.9e-7)
    assert not agrees("0.0123", -0.0123)
