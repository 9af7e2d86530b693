"""Every number of docs/equations.md points to the lines that are the equation, and to nothing else."""

import re

import pytest

from support.equations import NUMBER, PAGE, ROOT, ROW, SOURCE, all_mentions, decorations, mentions, places, with_places

LISTED = [match[1] for match in map(ROW.match, PAGE.read_text().splitlines()) if match]


@pytest.fixture(scope="module")
def found():
    return all_mentions()


def test_the_table_says_where(found):
    assert len(set(LISTED)) == len(LISTED)
    assert sorted(places(found)) == sorted(LISTED)
    page = PAGE.read_text()
    assert page == with_places(page, places(found)), "run `python tests/support/equations.py --write`"


def test_no_number_is_decoration(found):
    assert decorations(found) == []


def test_numbers_stand_at_the_end_of_code_or_in_docstrings():
    stray = {str(path.relative_to(SOURCE)): mentions(path.read_text())[1] for path in sorted(SOURCE.rglob("*.py"))}
    assert {path: lines for path, lines in stray.items() if lines} == {}


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_pages_use_listed_numbers_only(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    assert set(NUMBER.findall(text)) <= set(LISTED)


MODULE = '''"""A step (E3)."""


class A:
    def f(self):
        """By E3."""
        return 1  # E3
'''


def test_each_kind_of_stray_number_is_seen():
    own = mentions(MODULE)[0]
    assert places({"a.py": own}) == {"E3": ["`a.py`: `A.f`"]}
    assert decorations({"a.py": own}) == []
    only_named = mentions('"""Uses (E3)."""\n')[0]
    assert decorations({"a.py": own, "b.py": only_named})
    assert decorations({"b.py": only_named}) == []
    assert decorations({"b.py": only_named, "c.py": only_named})
    assert places({"b.py": only_named}) == {"E3": ["`b.py`"]}
    assert mentions("# E3 is used here\nx = 1\n")[1] == [1]
    assert mentions("x = 'E3'\n")[1] == [1]
    moved = {"a.py": mentions(MODULE.replace("return 1  # E3", "return 1"))[0], "b.py": mentions("x = 1  # E3\n")[0]}
    assert places(moved)["E3"] == ["`b.py`"]
    assert decorations(moved)
