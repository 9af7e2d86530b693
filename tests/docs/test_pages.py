"""The pages and the README: their code runs and prints what they show; their links are right."""

import re

import pytest

from support.equations import NUMBER, PAGE, ROW
from support.named import stale
from support.pages import ROOT, agrees, blocks, commands, outputs, rewritten, run_commands

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))} | {"README.md": ROOT / "README.md"}
LONG = (
    "blackjax.md",
    "concepts/rotation.md",
    "concepts/zero-mean-functions.md",
    "engines.md",
    "fit.md",
    "index.md",
    "intervals.md",
    "large_data.md",
    "networks.md",
    "numpyro.md",
    "pymc.md",
    "reproduction.md",
    "schemes.md",
    "sklearn.md",
    "tuning.md",
    "tutorials/csv-file.md",
    "tutorials/own-jax-model.md",
    "tutorials/start-here.md",
)  # they compile much: `make docs` and `make test-slow` run them, and by default their names and keywords are looked up
CHANGES_OF_FILES = ("howto/extend.md",)  # tests/docs/test_contributing.py makes these changes
WITH_CODE = [
    name
    for name, path in PAGES.items()
    if {"python", "sh"} & {block.language for block in blocks(path.read_text())} and name not in CHANGES_OF_FILES
]
WRITTEN = {"commands.md", "index.md", "changelog.md"}  # by tools/make_site.py
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def _skip_without_pymc(name):
    if name == "pymc.md":  # the extra is not in `all`
        pytest.importorskip("pymc")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in WITH_CODE]
)
@pytest.mark.filterwarnings("ignore::gyromc.errors.GyromcWarning")  # pages show warnings too
def test_the_code_runs_and_prints_what_the_page_shows(name, tmp_path, monkeypatch):
    _skip_without_pymc(name)
    monkeypatch.chdir(tmp_path)
    for printed, shown in outputs(PAGES[name].read_text()):
        assert shown is None or agrees(shown.text, printed), printed


def test_readers_learn_no_asserts():
    """What a page shows is in the output beside it, which the test above compares."""
    code = {name: [b.text for b in blocks(path.read_text()) if b.language == "python"] for name, path in PAGES.items()}
    code = {name: found for name, found in code.items() if name not in CHANGES_OF_FILES}
    assert [name for name, found in code.items() if any(re.search(r"^\s*assert ", text, re.M) for text in found)] == []


@pytest.mark.parametrize("name", LONG)
def test_names_and_keywords_of_long_pages_exist(name):
    _skip_without_pymc(name)
    assert stale("\n".join(block.text for block in blocks(PAGES[name].read_text()) if block.language == "python")) == []


def test_the_list_of_long_pages_names_pages():
    assert set(LONG) <= set(WITH_CODE)


# --- links


def anchor(title: str) -> str:
    """The address of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {anchor(title) for title in re.findall(r"^#+ (.*)$", plain, re.MULTILINE)}


def broken(path, text: str) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of one."""
    found = []
    for link in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        name, _, heading = link.partition("#")
        goal = (path.parent / name) if name else path
        if "://" in link or goal.name in WRITTEN or heading.startswith("gyromc."):  # anchors of docstrings
            continue
        if not goal.exists() or (heading and heading not in anchors(text if goal == path else goal.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_links_lead_to_files_and_headings(path):
    assert broken(path, path.read_text()) == []


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_equations_are_those_of_the_list(path):
    listed = {match[1] for match in map(ROW.match, PAGE.read_text().splitlines()) if match}
    assert set(NUMBER.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))) <= listed


def test_every_page_is_reached_from_another():
    texts = {path: path.read_text() for path in PAGES.values()}
    reached = {
        (page.parent / link.partition("#")[0]).resolve() for page, text in texts.items() for link in LINK.findall(text)
    }
    assert [name for name, path in PAGES.items() if path not in reached] == ["index.md", "README.md"]


# --- the tests can fail


def test_output_is_compared_up_to_the_last_digit():
    assert agrees("a 1.25\n…\nb  −3e-4\n", "a 1.26\nany\n\nthing\nb -3e-4".replace("-3e", "−3e"))
    assert not agrees("a 1.25", "a 1.27")
    assert not agrees("a 1.25", "b 1.25")
    assert not agrees("7 chains", "8 chains")
    assert not agrees("a 1.25", "a 1.25\nmore")
    assert not agrees("first\n…\nlast", "first\nmiddle")


def test_a_page_is_run_in_order_and_rewritten():
    page = "```python\nx = 2\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n4\n```\n\nend\n\n```text\nown\n```\n"
    assert rewritten(page) == page.replace("4", "3")
    assert [shown and shown.text for _, shown in outputs(page)] == [None, "4\n"]


def test_commands_of_a_shell_block():
    assert commands("pip install x\ngyromc fit a.csv \\\n  --target 'the y'\n") == [
        ["fit", "a.csv", "--target", "the y"]
    ]
    with pytest.raises(AssertionError, match=r"There is no file|no\.csv"):
        list(outputs("```sh\ngyromc fit no.csv --target y\n```\n"))


def test_broken_links_are_seen():
    text = "# A page\n[here](#a-page) [there](scale.md#plan-files) [gone](none.md) [no](#b) [web](https://x.org)"
    assert broken(DOCS / "fit.md", text) == ["none.md", "#b"]


# --- the table of R's equivalents


def equivalents() -> list[str]:
    """The commands of the table of formulas.md; options alone are completed to a command."""
    table = PAGES["formulas.md"].read_text().partition("\n| R | gyromc |\n")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    found = [text for row in rows for text in re.findall(r"`([^`]+)`", row.replace(r"\|", "¦").split("|")[2])]
    start = {"gyromc fit": "", "--formula": "gyromc fit d.csv "} | dict.fromkeys(
        ("--family", "--prior", "--weights", "--robust"), 'gyromc fit d.csv --formula "y ~ x" '
    )
    whole = [start[key] + text for text in found for key in start if text.startswith(key)]
    # the target of these is a share, a measurement, or has groups
    suited = {"--family beta": "u ~ x", "sigma=": "x ~ z", "g=": "x ~ z + (1 | g)", "cor=": "x ~ z + (1 + z | g)"}
    for part, formula in suited.items():
        whole = [
            re.sub('"y ~ x"', f'"{formula}"', text) if part in text and "beta-" not in text else text for text in whole
        ]
    return [command.replace("¦", "|") for command in whole if "--order" not in command]


@pytest.mark.slow
@pytest.mark.parametrize("command", equivalents())
def test_the_equivalents_of_r_are_accepted(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{i % 7 + i / 10},{i % 5},{i % 3 + 1},{i % 4 + 2},{i % 3},g{i % 4},{i % 2 + 1},{i % 2 + 1},{(i + 1) / 50},{i % 2}"
        for i in range(40)
    ]
    (tmp_path / "d.csv").write_text("\n".join(["x,z,t,n,s,g,w,y,u,event", *rows]) + "\n")
    assert "Design matrix" in run_commands(f"{command} --explain")


def test_the_table_of_r_has_commands():
    assert len(equivalents()) > 12
