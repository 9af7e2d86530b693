"""Every old name warns with `DeprecationWarning` and works, and the changelog lists it with its new name."""

import re

import pytest

import gyromc as gm
from gyromc import records
from support.values import ROOT

TABLE = (ROOT / "CHANGELOG.md").read_text().split("**Deprecated.**")[1].split("\n## ")[0]
RENAMED = re.compile(r"^\s+(\w+) = Renamed\(\"(\w+)\"\)", re.MULTILINE)


def renamed_attributes():
    for path in sorted((ROOT / "src" / "gyromc").rglob("*.py")):
        for old, new in RENAMED.findall(path.read_text()):
            yield pytest.param(old, new, id=f"{path.stem}.{old}")


def row_of(old):
    """The row of the changelog's table that has the old name on its left."""
    rows = [line.split("|")[1:3] for line in TABLE.splitlines() if line.startswith("|")]
    return [right for left, right in rows if re.search(rf"`[^`]*\b{re.escape(old)}\b[^`]*`", left)]


@pytest.mark.parametrize(("old", "new"), list(renamed_attributes()))
def test_an_old_attribute_is_in_the_changelog_with_its_new_name(old, new):
    assert [new in right for right in row_of(old)] == [True]


def test_an_old_attribute_warns():
    class Result:
        std_error = 0.5
        mean_error = records.Renamed("std_error")

    with pytest.warns(DeprecationWarning, match="`mean_error` is now called `std_error`"):
        assert Result().mean_error == 0.5


def test_the_old_name_of_the_predictions_warns():
    with pytest.warns(DeprecationWarning, match=r"`gyromc.theory` is now `gyromc.prediction`"):
        assert gm.theory is gm.prediction


@pytest.mark.parametrize("old", ["theory", "step sizes", "bias"])
def test_the_changelog_lists_old_arguments(old):
    assert row_of(old)
