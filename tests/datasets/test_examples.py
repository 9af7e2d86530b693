"""`example:NAME` is a table of the package: intact, listed with a command, and read by `gyromc fit`."""

import dataclasses
import shlex

import numpy as np
import pytest

from gyromc.datasets import EXAMPLES, located
from gyromc.errors import InvalidInput
from gyromc.tables.datatable import read_table
from support.commands import gyromc


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_its_rows_and_a_command_that_is_accepted(name, tmp_path):
    table = read_table(f"example:{name}")
    assert len(table.lines) == EXAMPLES[name].rows
    done = gyromc("fit", f"example:{name}", *shlex.split(EXAMPLES[name].options), "--explain", cwd=tmp_path)
    assert "Design matrix" in done.stdout, done.stderr


def test_published_totals():
    """196 deaths by horse kick in 280 corps-years, and 333 penguins of three species without a missing value."""
    kicks = np.loadtxt(located("example:kicks"), delimiter=",", skiprows=1, usecols=2)
    assert (kicks.size, kicks.sum()) == (280, 196)
    species = np.loadtxt(located("example:penguins"), delimiter=",", skiprows=1, usecols=0, dtype=str)
    assert dict(zip(*np.unique(species, return_counts=True), strict=True)) == {
        "Adelie": 146,
        "Chinstrap": 68,
        "Gentoo": 119,
    }


def test_the_list_names_every_example_with_its_command_and_licence():
    done = gyromc("examples")
    for name, one in EXAMPLES.items():
        assert f"gyromc fit example:{name} {one.options}" in done.stdout
        assert one.licence in done.stdout
        assert one.source in done.stdout


def test_an_unknown_example_and_a_damaged_file_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="Did you mean 'heart'"):
        located("example:hart")
    with pytest.raises(InvalidInput, match="is damaged"):
        _ = dataclasses.replace(EXAMPLES["kicks"], sha256="0" * 64).path
    assert "There is no example 'nothing'" in gyromc("fit", "example:nothing", "--target", "y", cwd=tmp_path).stderr
