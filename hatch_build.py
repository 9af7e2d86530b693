"""The README for the package index: without pictures, and with the labels of links into this repository in place of them."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def for_index(text: str) -> str:
    """A Markdown text that shows nothing missing where only the text itself is stored."""
    text = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


class IndexReadme(MetadataHookInterface):
    """Sets `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text)}
