"""The report of a fit in a real browser: light and dark, on a screen and on a phone."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.tables.figures import pictures
from gyromc.tables.report import RESULTS
from support.browsing import assert_well_formed, needs_chromium, open_page


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three classes with names that need care, more columns than a phone is wide, categories, an imputed value."""
    folder, rng = tmp_path_factory.mktemp("page"), np.random.default_rng(3)
    names = ["a column with a long name & <odd> signs", "$^{", "cost $", *(f"x{j}" for j in range(4)), "kind"]
    rows = []
    for i in range(60):
        label = ("alpha", "beta <b>", 'gamma "γ"')[i % 3].replace('"', '""')
        x = rng.normal(size=7) + (i % 3)
        rows.append(",".join([*(f"{v:.3f}" for v in x), "uvw"[rng.integers(3)] if i else "", f'"{label}"']))
    (folder / "d.csv").write_text("\n".join([",".join(names) + ",class", *rows]) + "\n")
    arguments = ["fit", folder / "d.csv", "-t", "class", "--out", folder / "out", "--effort", "quick", "--impute"]
    CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    return folder / "out" / "report.html"


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")])
def test_the_page_is_readable_everywhere(browser, report, width, scheme):
    page, requests, complaints = open_page(browser, report, width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert requests == []
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.matches('.skip')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    images = page.locator("img").evaluate_all("all => all.map(i => [i.alt, i.complete, i.naturalWidth])")
    assert len(images) == 6
    assert all(len(alt) > 40 and complete and pixels > 100 for alt, complete, pixels in images)
    assert page.locator("#coefficient-table tbody").count() == 3
    assert page.locator("#coefficient-table tbody tr:not(.group)").count() == 3 * (1 + 7 + 2)
    assert page.locator("#score-table tbody tr").count() == 3
    second = page.locator("#coefficient-table tbody").nth(1).inner_text()
    assert second.startswith("class = beta <b>")
    assert "a column with a long name & <odd> signs" in second
    assert page.evaluate("[...document.querySelectorAll('[role=region]')].filter(e => !e.ariaLabel).length") == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    lightness = np.mean(
        [int(x) for x in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]]
    )
    assert (lightness < 60) if scheme == "dark" else (lightness > 200)
    page.context.close()


@needs_chromium
def test_intervals_are_visible_on_a_phone_and_internals_are_folded(browser, report):
    page, _, _ = open_page(browser, report, 390)
    hidden = page.evaluate(
        "['#coefficient-table', '#quoted-table'].filter(name => {"
        " const box = document.querySelector(name).closest('.scroll'); return box.scrollWidth > box.clientWidth })"
    )
    assert hidden == []
    assert page.locator("#internals").evaluate("fold => fold.open") is False
    assert not page.get_by_text("gradients in").is_visible()
    page.context.close()


def test_the_page_is_self_contained_and_well_formed(report):
    text = report.read_text()
    assert_well_formed(text)
    assert "http" not in re.sub(r"data:[^\"]*", "", text)
    assert "built-in method" not in text
    assert "1 missing value replaced by" in text


def test_dollar_signs_in_names_are_no_formulas(report):
    """The fixture's columns `$^{` and `cost $` make a broken formula when both are in one text, as in a title of a trace."""
    results = RESULTS.load(report.parent)
    results["trace"]["parameters"][0]["label"] = "cost $^{$"
    results["model"]["effect"] = "change of $^{$"
    assert {picture.kind for picture in pictures(results)} == {
        "coefficients",
        "calibration",
        "trace",
        "predictive",
        "residuals",
        "effects",
    }
