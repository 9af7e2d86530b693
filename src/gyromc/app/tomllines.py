"""The line of every key in a TOML document, which `tomllib` does not tell.

Input: the text of a valid document. Output: a dictionary from paths of keys, such as `("target", "precision")`, to line numbers
from 1. Tables in an array of tables have their number in the path: `("target", "groups", 0)`.
"""

import re

__all__ = ["key_lines"]

KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
PATH = re.compile(rf"\s*{KEY}(?:\s*\.\s*{KEY})*\s*")
TOKENS = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}=,\n]|[^\[\]{}=,\n"\'#]+',
    re.S,
)


def key_lines(text: str) -> dict[tuple, int]:
    """Return where each key stands; keys in inline tables too."""
    return _Scan(text).found


class _Scan:
    """One reading of a document from its first token to its last."""

    def __init__(self, text: str):
        self.found: dict[tuple, int] = {}
        self.tokens = [(match[0], match.start()) for match in TOKENS.finditer(text) if not match[0].startswith("#")]
        self.text, self.place, self.table, self.counts = text, 0, (), {}
        while self.place < len(self.tokens):
            self._statement()

    def _line(self, place: int) -> int:
        return self.text.count("\n", 0, self.tokens[place][1]) + 1

    def _statement(self) -> None:
        """A header of a table, a key with its value, or an empty line."""
        token = self.tokens[self.place][0]
        if token == "[":
            self._header()
        elif token != "\n" and token.strip():
            self._pair(self.table)
        else:
            self.place += 1

    def _header(self) -> None:
        first = self.place
        several = self.tokens[first + 1 : first + 2] and self.tokens[first + 1][0] == "["
        self.place += 2 if several else 1
        path = self._path()
        while path[:1] and (inside := next((k for k in range(1, len(path)) if path[:k] in self.counts), 0)):
            path = (*path[:inside], self.counts[path[:inside]], *path[inside:])
            break
        if several:
            self.counts[path] = self.counts.get(path, -1) + 1
            self.found.setdefault(path, self._line(first))
            path = (*path, self.counts[path])
        self.table = path
        self.found[path] = self._line(first)
        while self.place < len(self.tokens) and self.tokens[self.place][0] != "\n":
            self.place += 1

    def _path(self) -> tuple[str, ...]:
        """The parts of a key up to `=` or `]`."""
        text = ""
        while self.place < len(self.tokens) and self.tokens[self.place][0] not in "=]\n":
            text += self.tokens[self.place][0]
            self.place += 1
        return tuple(_bare(part) for part in re.findall(KEY, text))

    def _pair(self, table: tuple) -> None:
        first = self.place
        path = (*table, *self._path())
        self.place += 1  # the sign of equality
        for length in range(len(table) + 1, len(path) + 1):
            self.found.setdefault(path[:length], self._line(first))
        self._value(path)

    def _value(self, path: tuple) -> None:
        """Skip a value, noting the keys of the inline tables in it."""
        count = 0
        while self.place < len(self.tokens):
            token = self.tokens[self.place][0]
            if token == "[":
                self.place += 1
                self._items(path)
                return
            if token == "{":
                self.place += 1
                self._inline(path)
                return
            if token in ",]}\n" and count:
                return
            count += bool(token.strip())
            self.place += 1

    def _items(self, path: tuple) -> None:
        number = 0
        while self.place < len(self.tokens) and self.tokens[self.place][0] != "]":
            token = self.tokens[self.place][0]
            if token in "[{":
                self._value((*path, number))
            else:
                self.place += 1
            number += token == ","
        self.place += 1

    def _inline(self, path: tuple) -> None:
        while self.place < len(self.tokens) and self.tokens[self.place][0] != "}":
            token = self.tokens[self.place][0]
            if token == "," or not token.strip():
                self.place += 1
            else:
                self._pair(path)
        self.place += 1


def _bare(part: str) -> str:
    """A key without its quotes; escapes in it stay as they are."""
    return part[1:-1] if part[0] in "\"'" else part
