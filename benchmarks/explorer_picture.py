"""The picture of docs/explorer.md: the page of `gyromc explore` in headless Chromium, after 400 steps.

`python benchmarks/explorer_picture.py` writes docs/figures/explorer.png. Needs Playwright and Chromium.
"""

import shutil
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from gyromc.explore.server import PageServer

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "explorer.png"
SETTINGS = "at=400"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def take(path: Path) -> None:
    with PageServer(0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1010})
        page.goto(f"{server.url}#{SETTINGS}")
        while not page.evaluate("window.explorer?.ready && window.explorer.t === 400 && window.explorer.paused"):
            page.wait_for_timeout(100)
        page.wait_for_timeout(500)
        page.screenshot(path=path)
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    take(PICTURE)
