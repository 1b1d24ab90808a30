"""Take the screenshot of a sequence's page for the README: `plrp demo --out demo && python tools/screenshots.py demo`.

Needs playwright and a Chromium that it finds (Debian's `chromium`, or its own).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"


def main() -> None:
    """Open the demo's page from disk and photograph the slider over its logos."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder of `plrp demo`")
    parser.add_argument("--out", type=Path, default=ASSETS / "page-sequence.png")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 900}, device_scale_factor=1)
        page.goto((arguments.demo / "index.html").resolve().as_uri())
        slides = page.locator("section", has_text="Slide p over the logos").locator("iframe")
        slides.scroll_into_view_if_needed()
        page.wait_for_timeout(3000)  # the frame loads when it is seen
        slides.screenshot(path=str(arguments.out))
        browser.close()
    print(arguments.out)


if __name__ == "__main__":
    main()
