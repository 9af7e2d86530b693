"""Pages of the documentation whose code runs and whose output is shown.

A ```python block runs as Python, one namespace for a page. A line `gyromc …` of a ```sh block runs as a command; other lines
there (`pip install`) do not. What a block prints stands in the ```text block right after it.

`python tests/support/pages.py --write PAGE …` runs the pages and writes these text blocks.
"""

import contextlib
import functools
import io
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-−+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-−+]?\d+)?")
ANYTHING = "…"  # a line of output that stands for any number of lines


class Block(NamedTuple):
    """One fenced block: its language, its text, and where the text stands in the page."""

    language: str
    text: str
    start: int
    end: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(found[1], found[2], found.start(2), found.end(2)) for found in FENCE.finditer(page)]


def commands(text: str) -> list[list[str]]:
    """The arguments of each `gyromc` command of a shell block; lines that end with a backslash are joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("gyromc ")]


def run_commands(text: str) -> str:
    """What the `gyromc` commands of a shell block print to standard output; a command that fails is an error."""
    return "".join(FIRST_COMMAND(*each) if list(each) == FIRST else _printed(*each) for each in commands(text))


def _printed(*arguments: str) -> str:
    from support.commands import gyromc

    done = gyromc(*arguments)
    if done.returncode:
        raise AssertionError(f"gyromc {shlex.join(arguments)}: {done.stderr}")
    return done.stdout


FIRST = ["fit", "example:heart", "--target", "disease"]
FIRST_COMMAND = functools.cache(_printed)
"""Three pages begin with the first command: it runs once for all of them."""


def outputs(page: str) -> Iterator[tuple[str, Block | None]]:
    """Run the blocks of a page in the current folder: what each one prints, and the text block after it, if there is one."""
    space = {"__name__": "__main__"}
    found = blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(block.text, "<page>", "exec"), space)
            printed = stream.getvalue()
        elif block.language == "sh":
            printed = run_commands(block.text)
        else:
            continue
        near = after and after.language == "text" and not page[block.end + 3 : after.start - len("```text\n")].strip()
        yield printed, after if near else None


def value(number: str) -> float:
    return float(number.replace("−", "-").replace(",", ""))


def unit(number: str) -> float:
    """One unit of the last digit of a number as it is written: 0.01 for 2.35, 10 for 1.2e2; 0 for a whole number."""
    digits, _, exponent = number.replace("−", "-").lower().partition("e")
    places = len(digits.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - places) if places or exponent else 0.0


def words(line: str) -> str:
    """A line without its numbers, the width of its gaps and the length of its rules."""
    return re.sub(r"[─━]+", "─", " ".join(NUMBER.sub("#", line).split()))


def same_line(expected: str, got: str) -> bool:
    """Whether two lines are equal but for the width of gaps and rules and one unit of the last digit of each number."""
    if words(expected) != words(got):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(got), strict=True)
    return all(abs(value(a) - value(b)) <= 1.001 * max(unit(a), unit(b)) for a, b in pairs)


def agrees(expected: str, got: str) -> bool:
    """Whether an output is the one that a page shows; a line `…` of the page stands for any lines."""
    want = [line for line in expected.splitlines() if line.strip()]
    have = [line for line in got.splitlines() if line.strip()]

    def match(i: int, j: int) -> bool:
        if i == len(want):
            return j == len(have)
        if want[i].strip() == ANYTHING:
            return any(match(i + 1, k) for k in range(j, len(have) + 1))
        return j < len(have) and same_line(want[i], have[j]) and match(i + 1, j + 1)

    return match(0, 0)


def rewritten(page: str) -> str:
    """The page with what its blocks print now; an output that was shortened by hand stays while it agrees."""
    for printed, after in reversed(list(outputs(page))):
        if after and not (ANYTHING in after.text.splitlines() and agrees(after.text, printed)):
            lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
            page = page[: after.start] + "\n".join(lines) + "\n" + page[after.end :]
    return page


def main(arguments: list[str]) -> None:
    for path in map(Path, arguments):
        path, start = path.resolve(), time.process_time()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            page = rewritten(path.read_text())
        path.write_text(page)
        print(f"{path.name}: {time.process_time() - start:.1f} s of processor time")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or not sys.argv[2:]:
        raise SystemExit("python tests/support/pages.py --write PAGE …")
    main(sys.argv[2:])
