"""The figures of docs/concepts: drawn by one command, legible on light and dark pages, each shown with a description."""

import json
import re
import sys

import numpy as np
import pytest

from support.values import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import concept_figures

STORED = {path.name: path.read_text() for path in (ROOT / "docs" / "figures").glob("concept-*.svg")}
COLOUR = re.compile(r"(?:fill|stroke): (#[0-9a-f]{6})")
PALETTE = {concept_figures.INK, concept_figures.REVERSIBLE, concept_figures.ROTATING, concept_figures.THIRD}


def luminance(colour: str) -> float:
    """Relative luminance of a colour #rrggbb, as WCAG defines it."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_every_figure_is_stored_and_nothing_else():
    assert set(STORED) == {f"concept-{name}.svg" for name in concept_figures.DRAWN}


@pytest.mark.parametrize("name", sorted(STORED))
def test_colours_are_legible_on_light_and_dark(name):
    text = STORED[name]
    used = set(COLOUR.findall(text)) - {"#000000"}  # the default of what is not drawn
    assert used <= PALETTE
    assert len(text) < 100_000
    for colour in used:
        assert contrast(colour, "#ffffff") > 3
        assert contrast(colour, "#0d1117") > 3


def test_contrast_is_measured():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#dddddd", "#ffffff") < 3


@pytest.mark.parametrize("name", sorted(STORED))
def test_a_page_shows_it_with_a_description(name):
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]{{60,}}\]\((?:\.\./)?figures/{re.escape(name)}\)", pages)


def test_a_figure_is_drawn_from_the_stored_table(tmp_path):
    text = concept_figures.write("rotation-gain", tmp_path).read_text()
    cells = json.loads((ROOT / "docs" / "measured" / "accuracy.json").read_text())["cells"]
    problems = {cell["problem"] for cell in cells.values() if "gains" in cell}
    assert problems
    assert all(f">{name}<" in text for name in problems)
    assert set(COLOUR.findall(text)) - {"#000000"} <= PALETTE
