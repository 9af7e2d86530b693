"""Build the documentation site: gather the pages, write those that are made from the code, and run Zensical on them.

    python tools/make_site.py [--serve] [--out site]

Input: mkdocs.yml, docs/, CHANGELOG.md, CONTRIBUTING.md, the commands and the explorer of the package. Output: a folder of static
files that requests nothing from elsewhere; addresses of pages that were merged lead to their new ones. A warning is an error.
Pages are gathered in build/docs; docs/ stays as it is.
"""

import argparse
import functools
import html
import http.server
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.explore.server import ADDRESS, copy_in_one_file
from gyromc.show.files import write_atomically
from site_pages import MOVED, commands_page, equation_cards, measured_page

__all__ = ["build", "gather", "main"]

ROOT = Path(__file__).parents[1]
DOCS, WORK = ROOT / "docs", ROOT / "build" / "docs"
ELSEWHERE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
COPIED = (".md", ".png", ".svg", ".json", ".css", ".js", ".woff2")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`([^`\n]+)`")
EXPLORER = "<!-- the explorer: the site puts a link here -->"
SOURCES = "paths: [src]"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PORT = 8643


def gather(pages: Path) -> Path:
    """Write all pages of the site into a folder, which is emptied first; returns it."""
    shutil.rmtree(pages, ignore_errors=True)
    for path in sorted(DOCS.rglob("*")):
        if path.suffix in COPIED:
            there = pages / path.relative_to(DOCS)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)
    for name, page in ELSEWHERE.items():
        if page != "index.md":
            shutil.copyfile(ROOT / name, pages / page)
    write_atomically(pages / "reference" / "commands.md", commands_page())
    write_atomically(pages / "measured" / "index.md", measured_page(DOCS))
    write_atomically(pages / "explore" / "index.html", copy_in_one_file())
    write_atomically(pages / "equations.md", equation_cards((DOCS / "equations.md").read_text(encoding="utf-8")))
    for page in sorted(pages.rglob("*.md")):
        write_atomically(page, adapted(page.relative_to(pages), page.read_text(encoding="utf-8")))
    return pages


def adapted(page: Path, text: str) -> str:
    """The text of a page with links that work on the site; a link to a file that the site does not have becomes code."""
    outside = page.name in ELSEWHERE.values() and len(page.parts) == 1 and page.name != "index.md"
    home = ROOT if outside else DOCS / page.parent

    def changed(match: re.Match[str]) -> str:
        label, address, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", address):
            return match[0]
        goal = (home / address).resolve()
        if goal.is_relative_to(DOCS) and not outside:
            return match[0]
        known = goal.relative_to(DOCS).as_posix() if goal.is_relative_to(DOCS) else ELSEWHERE.get(_inside(goal))
        if known is None:
            return label if f"`{_inside(goal)}`" == label else f"{label} (`{_inside(goal)}`)"
        return f"[{label}]({'../' * (len(page.parts) - 1)}{known}{anchor})"

    text = "".join(part if part.startswith("```") else _bars(LINK.sub(changed, part)) for part in _parts(text))
    return text.replace(EXPLORER, "[Open the explorer](explore/index.html){ .md-button .md-button--primary }")


def _bars(text: str) -> str:
    """The text with code in tables that has an escaped bar as HTML: GitHub shows the bar alone, Zensical the backslash too."""

    def written(match: re.Match[str]) -> str:
        if "\\|" not in match[1]:
            return match[0]
        plain = html.escape(match[1].replace("\\|", "|"), quote=False)
        return f"<code>{plain.replace('|', '&#124;').replace('*', '&#42;').replace('_', '&#95;')}</code>"

    return "".join(CODE.sub(written, line) if line.startswith("|") else line for line in text.splitlines(keepends=True))


def _parts(text: str) -> list[str]:
    """The text cut into blocks of code, which begin with three backticks, and what is between them."""
    return re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)


def _inside(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def build(out: Path, work: Path = WORK) -> Path:
    """Gather the pages in the folder `work` and make the site `out` of them; `InvalidInput` where Zensical warns."""
    gather(work / "pages")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    require(settings.count(SOURCES) == 1, f"mkdocs.yml must have `{SOURCES}` once: it says where docstrings are.")
    write_atomically(work / "mkdocs.yml", settings.replace(SOURCES, f"paths: [{ROOT / 'src'}]"))
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = COLOUR.sub("", done.stdout)
    require(done.returncode == 0, f"Zensical did not build the site:\n{said}\nCorrect the pages it names.")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(work / "site", out)
    for old, new in MOVED.items():
        write_atomically(out / old, moved_page(old, new))
    return out


def moved_page(old: str, new: str) -> str:
    """A page at an old address that leads to the new one."""
    there = html.escape("../" * old.count("/") + new)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Moved: gyromc</title>\n'
        f'<meta http-equiv="refresh" content="0; url={there}">\n<link rel="canonical" href="{there}">\n'
        f'<main><h1>This page has moved</h1><p>It is now at <a href="{there}">{html.escape(new)}</a>.</p></main>\n</html>\n'
    )


def serve(folder: Path) -> None:
    """Send the files of the site to browsers on this machine until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((ADDRESS, PORT), handler) as server:
        print(f"http://{ADDRESS}:{PORT}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=f"then serve it on {ADDRESS}:{PORT}")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    asked = parser.parse_args()
    try:
        print(build(asked.out) / "index.html")
    except InvalidInput as error:
        sys.exit(f"error: {error}")
    if asked.serve:
        serve(asked.out)


if __name__ == "__main__":
    main()
