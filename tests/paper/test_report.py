"""The report in a real browser: complete, self-contained, readable on a phone, and rebuilt from results.json alone."""

import csv
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.app.commands import _verdicts as verdict_table
from gyromc.errors import InvalidInput
from gyromc.paper import catalogue, report, reproduce
from gyromc.paper.report import COLUMNS, judged, markdown, render, took, write_report
from gyromc.show.pages import lay_out
from support.browsing import assert_well_formed, needs_chromium, open_page
from support.folders import made_once
from support.profiles import VARIED
from support.values import ROOT

SAMPLE = ROOT / "docs" / "reproduction" / "results.json"


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    """The committed results of all twelve experiments, with the report made from them now."""

    def build(directory):
        shutil.copy(SAMPLE, directory)
        write_report(json.loads(SAMPLE.read_text()), directory)

    return made_once(tmp_path_factory, "sample", build)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Two experiments run now, one of each kind of report section, with their variants at one step size; once for all workers."""

    def build(directory):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(catalogue.DATA, "logistic", ("split_seed", range(2)))  # of five
            done = reproduce(["linear-gaul", "logistic-nld"], VARIED, out=directory, seed=5)
        (directory / "reproduction.pickle").write_bytes(pickle.dumps(done))

    return pickle.loads((made_once(tmp_path_factory, "live", build) / "reproduction.pickle").read_bytes())


@needs_chromium
def test_all_panels_are_visible_without_network_or_complaints(browser, sample):
    page, requests, complaints = open_page(browser, sample / "report.html")
    assert requests == []
    assert complaints == []
    panels = page.locator("#figures + .panels figure.panel img")
    assert panels.count() == 12
    for i in range(12):
        assert panels.nth(i).is_visible()
    assert page.locator("figure.panel img").count() == 24
    assert page.locator("#answer").inner_text() == (
        "Rotation lowers the error in 10 of 12 experiments, by 2 to 41 %; in 2 it does not (logistic-nld, logistic-gaul), "
        "because its larger bias outweighs its smaller variance."
    )
    assert page.evaluate("document.documentElement.scrollHeight") <= 38_700 / 3
    for part in page.locator("details.part > summary").all():
        part.click()
    images = page.locator("img").evaluate_all("all => all.map(i => [i.alt, i.complete, i.naturalWidth])")
    assert len(images) == 36
    assert all(len(alt) > 40 and complete and width > 100 for alt, complete, width in images)
    page.context.close()


@needs_chromium
def test_the_verdict_table_is_complete(browser, sample):
    page, _, _ = open_page(browser, sample / "report.html")
    rows = page.locator("#verdict-table tbody tr")
    assert rows.count() == 12
    results = json.loads(SAMPLE.read_text())
    for i, (name, found) in enumerate(results["experiments"].items()):
        cells = rows.nth(i).locator("td").all_inner_texts()
        assert rows.nth(i).locator("th a").inner_text() == name
        assert f"all {len(found['step_sizes'])} step sizes" in rows.nth(i).locator("th").inner_text()
        assert len(cells) == len(COLUMNS)
        assert all(cell.strip() for cell in cells)
        verdicts = {claim["key"]: claim["verdict"] for claim in found["claims"]}
        for key, cell in zip(COLUMNS, cells, strict=True):
            if key in verdicts:
                assert verdicts[key].split(" at ")[0] in cell
    page.context.close()


@needs_chromium
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_nothing_overflows_on_a_phone(browser, sample, scheme):
    page, _, complaints = open_page(browser, sample / "report.html", width=390, scheme=scheme)
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Only tables may be wider, and only inside their own scrolling region.
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.matches('.skip')"
        " && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = np.mean([int(x) for x in re.findall(r"\d+", background)[:3]])
    assert (lightness < 60) if scheme == "dark" else (lightness > 200)
    page.context.close()


@needs_chromium
def test_the_keyboard_reaches_links_and_tables(browser, live):
    page, requests, complaints = open_page(browser, live.report)
    assert requests == []
    assert complaints == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"
    assert page.locator("figure.panel").count() == 4
    assert page.locator("text=All 68 test rows").count() == 1
    unnamed = page.evaluate("[...document.querySelectorAll('[role=region]')].filter(e => !e.ariaLabel).length")
    assert unnamed == 0
    assert len(page.pdf(format="A4")) > 10_000
    page.context.close()


def test_the_page_is_self_contained_and_well_formed(live):
    text = live.report.read_text()
    assert_well_formed(text)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "CC BY 4.0" in text


def test_results_hold_every_choice_and_number(live):
    results = json.loads((live.directory / "results.json").read_text())
    logistic = results["experiments"]["logistic-nld"]
    assert results["schema_version"] == 2
    assert {"split_seed", "test_row", "ddof", "start", "seed", "batch_size"} <= set(logistic["choices"])
    assert results["experiments"]["linear-gaul"]["choices"]["data_seed"] == 0
    for found in results["experiments"].values():
        for role, series in found["cells"].items():
            for k, cell in enumerate(series):
                assert cell["rmse"] ** 2 == pytest.approx(
                    cell["bias"] ** 2 + cell["std"] ** 2 * (cell["num_chains"] - 1) / cell["num_chains"]
                )
                assert cell["rmse_interval"][0] < cell["rmse"] < cell["rmse_interval"][1]
                if found is logistic:
                    assert len(found["rows"][role]["rmse"][k]) == 68
                    chosen = found["rows"][role]["rmse"][k][found["reference"]["chosen"]]
                    assert cell["rmse"] == pytest.approx(chosen)
    z = [c["z"] for series in results["experiments"]["linear-gaul"]["cells"].values() for c in series]
    assert max(map(abs, z)) < 4
    assert {c["key"] for c in logistic["claims"]} >= {
        "smaller-error",
        "smaller-error-independent",
        "slope",
        "normality",
    }


def test_verdicts_name_their_step_sizes_and_some_of_them_confirm_nothing_about_all(live):
    """Two of five (linear) and of four (logistic) step sizes: only claims about single cells can be confirmed."""
    for found, text in zip(live.results["experiments"].values(), ("0.025, 0.0125", "0.01, 0.005"), strict=True):
        assert judged(found) == f"at η = {text}"
        for claim in found["claims"]:
            assert claim["verdict"] != "confirmed" or claim["key"] in ("exact", "even-bias")
        assert live.report.read_text().count(f"<small>at η = {text}</small>") == len(found["claims"]) + 1
    assert "| linear-gaul | at η = 0.025, 0.0125 | not resolved" in markdown(live.results)
    assert [row[:2] for row in verdict_table(live.results).rows] == [
        ["linear-gaul", "at η = 0.025, 0.0125"],
        ["logistic-nld", "at η = 0.01, 0.005"],
    ]


def test_results_of_all_step_sizes_say_so():
    results = json.loads(SAMPLE.read_text())
    assert {judged(found) for found in results["experiments"].values()} == {f"all {n} step sizes" for n in (4, 5, 6, 7)}
    assert "| logistic-hfhr | all 4 step sizes | confirmed, 0.914" in markdown(results)


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "", "x\n", "a\\b"])
def test_a_name_that_leaves_the_folder_is_refused_before_anything_is_written(tmp_path, name):
    results = json.loads(SAMPLE.read_text())
    results["experiments"] = {"nld-quadratic": results["experiments"]["nld-quadratic"]} | {
        name: results["experiments"]["linear-nld"]
    }
    inner = tmp_path / "a" / "b"
    with pytest.raises(InvalidInput, match="Nothing was written"):
        write_report(results, inner)
    assert not list(tmp_path.iterdir())


def test_figures_come_in_every_format_with_their_numbers(live):
    folder = live.directory / "figures"
    for stem in ("linear-gaul-rmse", "linear-gaul-qq", "linear-gaul-bias", "logistic-nld-rmse", "logistic-nld-rows"):
        assert (folder / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in (folder / f"{stem}.svg").read_text()
    with (folder / "linear-gaul-rmse.csv").open() as file:
        rows = list(csv.DictReader(file))
    cells = live.results["experiments"]["linear-gaul"]["cells"]
    assert len(rows) == 3 * 2
    for row in rows:
        cell = next(c for c in cells[row["dynamics"]] if c["step_size"] == float(row["step_size"]))
        assert float(row["rmse"]) == pytest.approx(cell["rmse"], rel=1e-8)


def test_the_report_is_rebuilt_without_sampling(live, tmp_path):
    shutil.copy(live.directory / "results.json", tmp_path)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert result.exit_code == 0
    rebuilt = Path(json.loads(result.stdout)["report"])
    assert rebuilt.read_text() == live.report.read_text()
    assert (tmp_path / "figures" / "logistic-nld-qq.csv").read_text() == (
        live.directory / "figures" / "logistic-nld-qq.csv"
    ).read_text()
    assert not (tmp_path / "cache").exists()
    table = CliRunner().invoke(app, ["report", str(tmp_path), "--markdown"]).stdout
    assert len(re.findall(r"^\| l[io]", table, re.MULTILINE)) == 2 + 3


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (
            {"wall": 60, "sampling": 120},
            "60 s by the clock; 2 min of device time, added over all pieces",
        ),
        (
            {"wall": 4, "sampling": 50, "pieces": {"computed": 0, "reused": 9}},
            "4 s by the clock; 50 s of device time, added over all pieces; 9 pieces computed by an earlier run",
        ),
    ],
)
def test_the_time_by_the_clock_is_told_from_that_of_all_devices(times, expected):
    assert took(times) == expected


@pytest.mark.slow
def test_figures_are_the_same_wherever_they_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FEW_EXPERIMENTS", 1)
    results = json.loads(SAMPLE.read_text())
    results["experiments"] = {name: results["experiments"][name] for name in ("nld-quadratic", "logistic-nld")}
    folders = [tmp_path / "here", tmp_path / "processes"]
    for folder, workers in zip(folders, ("1", "2"), strict=True):
        monkeypatch.setenv("GYROMC_THREADS", workers)
        write_report(results, folder)
    here, there = ({file.name: file.read_bytes() for file in folder.rglob("*.*")} for folder in folders)
    assert here == there
    assert len(here) == 4 * (3 + 3) + 1


def test_the_sensitivity_of_claim_i_is_stored_and_shown(live):
    """Own cells: 2 step sizes × (3 + 2) dynamics. Variants of the logistic one at one: 4 × 2, of which 2 are own cells."""
    assert live.computed == 10 + 8 - 2
    results = json.loads((live.directory / "results.json").read_text())
    assert results["times"]["pieces"] == {"computed": live.computed, "reused": live.reused}
    assert f"<dt>Took</dt><dd>{took(results['times'])}</dd>" in live.report.read_text()
    assert f", {took(results['times'])}.\n" in markdown(results)
    text, (paper, other) = live.report.read_text(), results["experiments"]["logistic-nld"]["sensitivity"]["groups"]
    assert text.count("<h3>Sensitivity of claim (i)</h3>") == 2
    assert f"in {paper['every']} of 272 variants at every η, in {paper['below']} at the smallest" in text
    for h in (paper, other):
        assert f"| logistic-nld | {h['about']} | 272 | {h['every']} | {h['below']} |" in markdown(results)


def test_counts_are_those_of_the_ratios(live):
    for name, cases, groups in (("linear-gaul", 20, 1), ("logistic-nld", 272, 2)):
        study = live.results["experiments"][name]["sensitivity"]
        assert len(study["groups"]) == groups
        for group in study["groups"]:
            (ratios,) = group["ratios"]
            assert len(ratios) == group["cases"] == cases
            assert group["below"] == group["every"] == sum(r < 1 for r in ratios)
            assert group["clearly_below"] <= group["below"] <= cases - group["clearly_above"]


def test_a_report_without_the_study_says_where_it_is(live):
    experiments = {
        name: {key: value for key, value in found.items() if key != "sensitivity"}
        for name, found in live.results["experiments"].items()
    }
    text = render({**live.results, "experiments": experiments}, {name: [] for name in experiments})
    assert "is part of the <strong>paper</strong> profile" in text
    assert "Sensitivity of claim (i)" not in text
    assert "is part of the <strong>paper</strong> profile" not in live.report.read_text()


def test_a_figure_that_is_laid_out_holds_its_text():
    figure = Figure(figsize=(4.0, 3.0))
    figure.add_subplot().set_yticks([0, 1], ["a name that needs much room", "b"])
    assert figure.get_tightbbox().x0 < 0  # inches from the left edge
    lay_out(figure)
    found = figure.get_tightbbox()
    assert found.x0 >= 0
    assert found.x1 <= 4.0
