"""The documentation site: it builds without a warning, every link leads somewhere, nothing is loaded from elsewhere."""

import functools
import http.server
import importlib.util
import json
import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import make_site
import site_pages
from support import explorer as vectors
from support.browsing import needs_chromium, new_context
from support.values import ROOT

DOCS = ROOT / "docs"
needs_zensical = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="Zensical is not installed (pip install -e '.[docs]')"
)
NAMED = re.compile(r"^ *- (?:[^:\n]+: )?(\S+\.md)$", re.MULTILINE)


# --- without building


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return make_site.gather(tmp_path_factory.mktemp("site") / "pages")


def test_the_navigation_names_every_page_once(pages):
    named = NAMED.findall((ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    there = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    assert len(named) == len(set(named))
    assert there - set(named) == set(), "Add these pages to `nav` in mkdocs.yml."
    assert set(named) - there == set(), "mkdocs.yml names pages that do not exist."


def test_every_command_and_option_is_on_the_page_of_commands():
    import typer

    from gyromc.app.cli import app

    text, group = site_pages.commands_page(), typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]  # a group
        section = text.partition(f"## `gyromc {name}` ")[2].partition("\n## ")[0]
        if command.hidden:  # an older name of another
            assert section == ""
            continue
        assert command.help.split("\n")[0] in section
        for one in command.params:
            for spelling in one.opts if one.param_type_name == "option" else []:
                assert f"`{spelling}" in section, (name, spelling)


def test_the_page_of_measurements_has_every_file_and_its_machine(tmp_path):
    text = site_pages.measured_page(DOCS)
    for path in DOCS.glob("measured/*.json"):
        assert f"../measured/{path.name}" in text
    for page, _, command in (row for name, row in site_pages.MEASURED.items() if (DOCS / name).exists()):
        assert (DOCS / page).exists()
        script = re.search(r"(\S+\.py)", command)
        assert script is None or (ROOT / script[1]).exists()
    blocks = json.loads((DOCS / "measured" / "blocks.json").read_text())
    assert f"cores {blocks['environment']['cores']}" in text
    rows = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if "json](" in line]
    assert all(re.search("processor|device|machine not recorded", machine) for machine in rows)
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "new.json").write_text("{}")
    with pytest.raises(ValueError, match=r"new\.json"):
        site_pages.measured_page(tmp_path)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([{"rows": 1}], "machine not recorded"),
        ({"gyromc": "0.1", "cores": 2}, "machine not recorded, cores 2, gyromc 0.1"),
        ({"environment": {"processor": "Xeon(R)", "cores": 2, "jax": "1"}}, "processor Xeon, cores 2, jax 1"),
        ({"device": "NVIDIA H200", "rows": []}, "device NVIDIA H200"),
        ({"processor": "x86_64", "jax": "1"}, "machine not recorded, processor x86_64, jax 1"),
        (
            {"environment": {"processor": "A"}, "other_environments": [{"processor": "B"}, None]},
            "processor A; parts of it earlier: processor B; parts of it earlier: machine not recorded",
        ),
    ],
)
def test_a_machine_that_is_not_named_is_said_to_be_unknown(found, expected):
    assert site_pages.described(found) == expected


def test_every_script_that_measures_stores_its_machine():
    """By the one function that makes the record; a script that writes JSON by itself would leave it out."""
    commands = [command for _, _, command in site_pages.MEASURED.values()]
    scripts = {ROOT / match[1] for match in (re.search(r"(\S+\.py)", command) for command in commands) if match}
    scripts |= {ROOT / "benchmarks" / "accuracy" / "measure.py", ROOT / "benchmarks" / "speed" / "__init__.py"}
    for script in scripts:
        text = script.read_text()
        assert re.search(r"write_measured\(|machine\(\)|study_of_models\(|save_rows\(", text), script
        assert not re.search(r"out\.write_text\(", text), script


def test_links_out_of_docs_lead_to_a_page_or_become_code():
    adapted = functools.partial(make_site.adapted, Path("howto/one.md"))
    assert adapted("[how](../../CONTRIBUTING.md#rules)") == "[how](../contributing.md#rules)"
    assert adapted("[loop](../../src/gyromc/plan.py)") == "loop (`src/gyromc/plan.py`)"
    assert adapted("[a](../fit.md) [b](https://x.org) [c](#d)") == "[a](../fit.md) [b](https://x.org) [c](#d)"
    assert adapted("```md\n[a](../../LICENSE)\n```") == "```md\n[a](../../LICENSE)\n```"
    assert make_site.adapted(Path("contributing.md"), "[e](docs/equations.md)") == "[e](equations.md)"


def test_a_bar_in_the_code_of_a_table_has_no_backslash():
    adapted = functools.partial(make_site.adapted, Path("one.md"))
    assert adapted("| `y ~ (1 \\| g_h)` | `x` \\| `z` |") == "| <code>y ~ (1 &#124; g&#95;h)</code> | `x` \\| `z` |"
    assert adapted("Text with `a \\| b`.") == "Text with `a \\| b`."


# --- built


class Links(HTMLParser):
    """What a page links to and loads, and its own anchors."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.loaded, self.ids = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found.get("id"), found.get("name")}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif found.get("src") or (tag == "link" and found.get("href")):
            self.loaded.append(found.get("src") or found["href"])


@functools.lru_cache(None)
def read(path: Path) -> Links:
    return Links(path)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return make_site.build(folder / "out", folder / "work")


def broken(site: Path) -> list[str]:
    """The links of all pages to files and anchors of the site that do not exist, and what pages load from elsewhere."""
    found = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html" or page.parent.name == "explore":  # addresses from the root; none
            continue
        for link in read(page).links + read(page).loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                found += [f"{page.name} loads {link}"] if link in read(page).loaded and parts.scheme != "data" else []
                continue
            goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            goal = goal / "index.html" if goal.is_dir() else goal
            anchor = unquote(parts.fragment)
            has_anchors = goal.suffix == ".html" and goal.parent.name != "explore"
            if not goal.exists() or (anchor and has_anchors and anchor not in read(goal).ids):
                found.append(f"{page.name}: {link}")
    return found


@needs_zensical
def test_it_builds_and_every_link_leads_somewhere(site):
    assert (site / "index.html").exists()
    assert len(list(site.rglob("*.html"))) > 30
    assert broken(site) == []
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert 'id="gyromc.Plan"' in reference
    assert "the law to sample" in reference
    # and it can fail
    (site / "wrong.html").write_text('<a href="none.html"></a><a href="fit.html#none"></a><img src="https://x.org/a">')
    assert broken(site) == ["wrong.html: none.html", "wrong.html: fit.html#none", "wrong.html loads https://x.org/a"]
    (site / "wrong.html").unlink()


@needs_zensical
def test_old_addresses_lead_to_the_new_ones(site):
    for old, new in site_pages.MOVED.items():
        assert new in (site / old).read_text(encoding="utf-8")
    assert (site / "assets" / "katex" / "katex.min.js").exists()


@needs_zensical
@needs_chromium
def test_formulas_are_typeset_and_equations_fit_a_phone(opened, site):
    page = opened("equations.html", 390, base=site.as_uri() + "/")
    assert (
        page.locator(".equation").count() == len(page.locator(".equation .katex-display").all()) + 2
    )  # two are in words
    assert page.locator(".katex-error").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".equation details[open]").count() == 0


@needs_zensical
def test_a_warning_is_an_error(tmp_path, monkeypatch):
    def one_page(pages):
        pages.mkdir(parents=True)
        (pages / "index.md").write_text("# A page\n\n[gone](none.md)\n")

    monkeypatch.setattr(make_site, "gather", one_page)
    with pytest.raises(ValueError, match=r"none\.md"):
        make_site.build(tmp_path / "out", tmp_path / "work")


# --- in a browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def opened(browser, address):
    """A function that opens a page; it is checked at the end that no page complained or asked another host."""
    contexts, complaints, foreign = [], [], []

    def open_(name, width=1280, scheme="light", base=address):
        context = new_context(browser, width, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        ours = (address, "data:", "file:", "blob:", "about:")
        page.on("request", lambda r: foreign.append(r.url) if not r.url.startswith(ours) else None)
        page.on("response", lambda r: complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.goto(base + name, wait_until="load")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert foreign == []


@needs_zensical
@needs_chromium
def test_the_front_page_opens_quietly_and_fits_a_phone(opened):
    for width, scheme in ((1280, "light"), (390, "dark")):
        page = opened("index.html", width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator('img[src*="report-heart"]').is_visible()


@pytest.mark.slow
@needs_zensical
@needs_chromium
def test_figures_drawn_on_white_lie_on_a_card_in_the_dark_scheme(opened):
    style = "one => (({padding, backgroundColor}) => [padding, backgroundColor])(getComputedStyle(one))"
    for scheme, on_a_card in (("light", False), ("dark", True)):
        padding, background = opened("schemes.html", scheme=scheme).locator('img[src$=".png"]').first.evaluate(style)
        assert (padding != "0px" and background == "rgb(255, 255, 255)") is on_a_card


@pytest.mark.slow
@needs_zensical
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark")])
def test_every_page_opens_quietly_fits_and_has_nothing_that_axe_finds(opened, site, address, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page, found = opened("index.html", width, scheme), {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name in site_pages.MOVED or path.name == "404.html":
            continue
        page.goto(address + name, wait_until="load")
        page.wait_for_timeout(300)
        wide = page.evaluate("document.documentElement.scrollWidth") > width
        violations = axe.Axe().run(page, options={"preload": False})
        if wide or violations.violations_count:
            found[name] = (wide, violations.generate_report())
    assert found == {}


@pytest.mark.slow
@needs_zensical
@needs_chromium
@pytest.mark.parametrize("as_file", [False, True], ids=["served", "opened as a file"])
def test_the_search_finds_a_page(opened, site, as_file):
    page = opened("fit.html", base=site.as_uri() + "/") if as_file else opened("fit.html")
    page.get_by_role("button", name="Search").click()
    page.keyboard.type("martingale", delay=30)
    found = page.locator('a[href*="schemes.html"]').filter(has_text="control variate").first
    found.wait_for(state="visible")
    found.click()
    page.wait_for_url("**/schemes.html*")


@pytest.mark.slow
@needs_zensical
@needs_chromium
def test_the_explorer_of_the_site_shows_the_numbers_of_predict(opened):
    page = opened("explorer.html")
    page.get_by_role("link", name="Open the explorer").click()
    page.wait_for_url("**/explore/index.html*")
    page = opened("explore/index.html#omega=1.5&eta=0.05&observable=sum&kappa=8&angle=30")
    page.wait_for_function("window.explorer && window.explorer.ready")
    shown = json.loads(page.evaluate("JSON.stringify(window.explorer)"))["sides"]["yours"]
    expected = vectors.on_gaussian(
        vectors.case(8.0, 30.0, "rotation", "euler", 0.05, 0.0, [1.0, 1.0], False, omega=1.5)
    )
    assert shown["constant"]["value"] == pytest.approx(expected["variance"], rel=1e-4)
    assert shown["now"]["bias"] == pytest.approx(expected["bias"], rel=1e-4, abs=1e-9)
