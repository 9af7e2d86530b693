"""Where the equations of docs/equations.md are in the code, read from the source without running it.

A number (E3, T1) tags the line of code that is the equation, in a comment at its end; a docstring may name it once in a module
that has such a line. A number without any such line belongs to the one module whose docstring names it. The column "where" of the
table is written from that: `python tests/support/equations.py --write`.
"""

import ast
import functools
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gyromc"
PAGE = ROOT / "docs" / "equations.md"
NUMBER = re.compile(r"(?<![\w.])([ET]\d{1,2})(?![\w])")
ROW = re.compile(r"^\| ([ET]\d+) \| (.*)\|$")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


class Mention(NamedTuple):
    """A number in the source: its line, the function or class around it ("" for the module), and whether it tags code."""

    number: str
    line: int
    symbol: str
    tags_code: bool


@functools.cache
def mentions(text: str) -> tuple[list[Mention], list[int]]:
    """The tags and docstring mentions of one module, and the lines where a number stands in any other place."""
    tree = ast.parse(text)
    lines, found, elsewhere = text.splitlines(), [], []
    documented = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)]
    strings = {id(node.body[0].value): node for node in documented}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in NUMBER.finditer(node.value):
                line = node.lineno + node.value[: match.start()].count("\n")
                if id(node) in strings:
                    found.append(Mention(match[1], line, _symbol(tree, node.lineno), False))
                else:
                    elsewhere.append(line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            line, column = token.start
            for match in NUMBER.finditer(token.string):
                if lines[line - 1][:column].strip():
                    found.append(Mention(match[1], line, _symbol(tree, line), True))
                else:
                    elsewhere.append(line)
    return found, elsewhere


def _symbol(tree: ast.Module, line: int) -> str:
    """The dotted name of the innermost public-level function or class around a line; nested functions count as their parent."""
    names, node = [], tree
    while True:
        inner = [
            c for c in node.body if isinstance(c, ast.ClassDef | ast.FunctionDef) and c.lineno <= line <= c.end_lineno
        ]
        if not inner or isinstance(node, ast.FunctionDef):
            return ".".join(names)
        node = inner[0]
        names.append(node.name)


def all_mentions(source: Path = SOURCE) -> dict[str, list[Mention]]:
    """The mentions of every module, by its path below the package."""
    return {str(path.relative_to(source)): mentions(path.read_text())[0] for path in sorted(source.rglob("*.py"))}


def places(found: dict[str, list[Mention]]) -> dict[str, list[str]]:
    """Every number with the places that implement it, as `module.py: symbol`."""
    result: dict[str, list[str]] = {}
    for only_tags in (True, False):
        done = set(result)
        for module, inside in found.items():
            for mention in inside:
                if mention.tags_code == only_tags and mention.number not in done:
                    place = f"`{module}`: `{mention.symbol}`" if mention.symbol else f"`{module}`"
                    if place not in result.setdefault(mention.number, []):
                        result[mention.number].append(place)
    return result


def decorations(found: dict[str, list[Mention]]) -> list[str]:
    """Mentions in docstrings of modules that have no line of that equation, though another module has; second mentions too."""
    tagged = {m.number for inside in found.values() for m in inside if m.tags_code}
    wrong = []
    for module, inside in found.items():
        own = {m.number for m in inside if m.tags_code}
        named = [m for m in inside if not m.tags_code]
        for m in named:
            if m.number in tagged and m.number not in own:
                wrong.append(f"{module}:{m.line}: {m.number} is named, but no line here is this equation")
            if m.number not in tagged and sum(n.number == m.number for others in found.values() for n in others) > 1:
                wrong.append(f"{module}:{m.line}: {m.number} is named in several places")
    return wrong


def with_places(page: str, where: dict[str, list[str]]) -> str:
    """The page with the last column of its table written anew."""
    lines = []
    for line in page.splitlines():
        match = ROW.match(line)
        if match:
            cells = re.split(r"(?<!\\)\| ", match[2].rstrip())
            line = f"| {match[1]} | {cells[0].strip()} | {cells[1].strip()} | {', '.join(where.get(match[1], []))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/support/equations.py --write")
    PAGE.write_text(with_places(PAGE.read_text(), places(all_mentions())))
