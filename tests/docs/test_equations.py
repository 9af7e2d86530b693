"""Every number of docs/equations.md points to the lines that are the equation, and to nothing else."""

import re

import pytest

from support.equations import NUMBER, PAGE, ROOT, ROW, SOURCE, all_mentions, decorations, mentions, places, with_places

FOUND = all_mentions()
LISTED = [match[1] for match in map(ROW.match, PAGE.read_text().splitlines()) if match]


def test_the_table_says_where():
    assert len(set(LISTED)) == len(LISTED)
    assert sorted(places(FOUND)) == sorted(LISTED)
    page = PAGE.read_text()
    assert page == with_places(page, places(FOUND)), "run `python tests/support/equations.py --write`"


def test_no_number_is_decoration():
    assert decorations(FOUND) == []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_numbers_stand_at_the_end_of_code_or_in_docstrings(path):
    assert mentions(path.read_text())[1] == []


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
