"""Tables for a terminal, for a notebook and as plain text, from one description."""

import dataclasses
import html
import io
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal

from gyromc.show.numbers import printable

WIDTH = 150
"""Of text that goes into a pipe or a string."""
Cell = str | tuple[str, str]
"""A text, or a text with a Rich style such as "green"."""
CHIPS = {"green": ("yes", "✓"), "yellow": ("open", "!"), "bold red": ("no", "✗")}
"""What a page shows for a style of Rich: the class of a chip, and a sign."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a header, with a title above and notes below.

    `left`: the columns aligned to the left, the first when left out; `style`: "simple" has one line, and breaks headings.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()
    left: Sequence[str] | None = None
    style: Literal["grid", "simple"] = "grid"

    def __rich__(self):
        """Return the table as a Rich renderable."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(title=_text(self.title) if self.title else None, title_justify="left", caption_justify="left")
        table.title_style, simple = "bold", self.style == "simple"
        if simple:
            table.box, table.pad_edge, table.collapse_padding = box.SIMPLE_HEAD, False, True
        left = self.columns[:1] if self.left is None else self.left
        for name in self.columns:
            if name in left:
                table.add_column(_text(name), overflow="fold")
            else:
                table.add_column(_text(name.replace(" ", "\n") if simple else name), justify="right", no_wrap=simple)
        for row in self.rows:
            table.add_row(*(_text(cell) if isinstance(cell, str) else _text(*cell) for cell in row))
        table.caption = _text("\n".join(self.notes)) if self.notes else None
        return table

    def html(self, id: str = "", caption: str = "") -> str:
        """Return the table as HTML, for a notebook or a page; a row of one cell alone begins a group of rows."""
        left = self.columns[:1] if self.left is None else self.left
        kind = lambda i, name: "" if name not in left else "wrap" if i else "text"
        classes = [kind(i, name) for i, name in enumerate(self.columns)]
        heads = zip(self.columns, classes, strict=True)
        head = "".join(_element("th", name, kind, 'scope="col"') for name, kind in heads)
        body = "<tbody>"
        for row in self.rows:
            texts = [cell if isinstance(cell, str) else cell[0] for cell in row]
            if len(row) > 1 and not any(texts[1:]):
                group = _element("th", texts[0], "text", f'scope="rowgroup" colspan="{len(row)}"')
                body += f'{"</tbody><tbody>" if body != "<tbody>" else ""}<tr class="group">{group}</tr>\n'
                continue
            cells = "".join(_element("td", cell, kind) for cell, kind in zip(row[1:], classes[1:], strict=True))
            first = _element("th", texts[0].strip(), more='scope="row"')
            body += f"<tr>{first}{cells}</tr>\n"
        name = f' id="{id}"' if id else ""
        shown = f"<caption>{html.escape(caption)}</caption>" if caption else ""
        table = f'<table{name} class="names">{shown}<thead><tr>{head}</tr></thead>{body}</tbody></table>'
        title = html.escape(self.title or caption or id)
        return f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{table}</div>'


def _element(tag: str, cell: Cell, kind: str = "", more: str = "") -> str:
    """A cell of HTML; one with the style of a verdict has a chip."""
    content, style = (cell, "") if isinstance(cell, str) else cell
    text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(content))
    if style in CHIPS:
        chip, sign = CHIPS[style]
        text = f'<span class="chip {chip}"><span aria-hidden="true">{sign} </span>{text}</span>'
    attributes = " ".join(filter(None, [tag, more, f'class="{kind}"' if kind else ""]))
    return f"<{attributes}>{text}</{tag}>"


class Shown:
    """A result that prints as tables and lines: in a terminal, as text and in a notebook."""

    def shown(self) -> Sequence[Table | str]:
        """Return the tables and lines, in order."""
        raise NotImplementedError

    def __rich__(self):
        """Return everything as a Rich renderable."""
        from rich.console import Group

        return Group(*(part if isinstance(part, Table) else _text(part) for part in self.shown()))

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        paragraph = lambda text: f"<p>{html.escape(text)}</p>" if text else ""
        title = lambda text: f"<p><b>{html.escape(text)}</b></p>" if text else ""
        of_table = lambda table: title(table.title) + table.html() + "".join(map(paragraph, table.notes))
        return "".join(of_table(part) if isinstance(part, Table) else paragraph(part) for part in self.shown())


def _text(content: str, style: str = "") -> Any:
    """Plain text for Rich, without what would control a terminal."""
    from rich.text import Text

    return Text(printable(content), style=style)


def text_of(shown: Any, width: int = WIDTH) -> str:
    """Return what Rich prints, as plain text of the given width."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None).print(shown)
    return buffer.getvalue().rstrip()


def console(stderr: bool = False):
    """Return a Rich console as wide as the terminal, or `WIDTH` wide where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else WIDTH)
