"""Writing what was measured into a page: the text between two markers is replaced."""

from pathlib import Path

from gyromc.checks import require

__all__ = ["markdown", "replace_between"]


def replace_between(page: Path, name: str, content: str) -> None:
    """Put the content between `<!-- name: begin -->` and `<!-- name: end -->`; `InvalidInput` where a marker is missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = page.read_text(encoding="utf-8")
    require(
        text.count(begin) == 1 and text.count(end) == 1 and text.index(begin) < text.index(end),
        f"{page} must have the markers {begin} and {end}, once each and in this order. Add them where the text belongs.",
    )
    before, rest = text.split(begin)
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def markdown(columns: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are aligned to the left, the others to the right."""
    lines = [columns, ["---"] * left + ["---:"] * (len(columns) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
