"""Pages in a real browser, and read without one: what the tests of every report share."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LIMIT = 120_000  # milliseconds for anything that a browser is asked to do; only reached where it never does it
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), timeout=LIMIT)
        yield launched
        launched.close()


def new_context(browser, width: int = 1280, **options):
    """A window of a browser, with nothing stored in it, that waits long enough for a slow machine."""
    context = browser.new_context(viewport={"width": width, "height": 844}, **options)
    context.set_default_timeout(LIMIT)
    return context


def open_page(browser, path: Path, width: int = 1280, scheme: str = "light"):
    """A page with everything it asked for and complained about."""
    context = new_context(browser, width, color_scheme=scheme)
    page, requests, complaints = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri(), wait_until="load")
    return page, [url for url in requests if not url.startswith(("data:", path.as_uri()))], complaints


class Markup(HTMLParser):
    """Headings, images and addresses of a page, without a browser."""

    def __init__(self):
        super().__init__()
        self.levels, self.alts, self.addresses, self.anchors, self.ids = [], [], [], [], set()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.add(attributes.get("id"))
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "img":
            self.alts.append(attributes.get("alt"))
        for key in ("src", "href"):
            value = attributes.get(key)
            if value and value.startswith("#"):
                self.anchors.append(value[1:])
            elif value:
                self.addresses.append(value)


def assert_well_formed(text: str) -> None:
    """One first heading, no level skipped, a text for every picture, nothing fetched, no link into the void."""
    check = Markup()
    check.feed(text)
    assert check.levels[0] == 1
    assert check.levels.count(1) == 1
    assert max(np.diff(check.levels)) <= 1
    assert all(check.alts)
    assert all(address.startswith("data:") for address in check.addresses)
    assert set(check.anchors) <= check.ids
