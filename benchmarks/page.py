"""A saved page in a browser, beside a page with nothing but a blank canvas of the same size.

    python benchmarks/page.py page.html [more.html …]

For each file: its size; the time to the first picture and the time from one frame to the next while p slides, both
as quotients by the blank canvas, measured in turn within one run. A quotient of 1 for the frames says that none is
lost. Needs chromium and Playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

ROUNDS = 7
BLANK = """<!DOCTYPE html><title>blank</title><canvas id="picture" width="{width}" height="{height}"></canvas>
<script>const context = document.getElementById("picture").getContext("2d");
function draw() {{ context.fillStyle = "#888"; context.fillRect(0, 0, {width}, {height}); }} draw();</script>"""
FIRST = """() => new Promise((done) => new PerformanceObserver((seen) => done(seen.getEntries()[0].startTime))
    .observe({ type: "paint", buffered: true }))"""
FRAMES = """async (sliding) => {
    const slider = document.getElementById("p"), times = [];
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    for (let i = 0; i < 60; i++) {
        if (sliding) { slider.value = i % (Number(slider.max) + 1); slider.dispatchEvent(new Event("input")); }
        else draw();
        times.push(await frame());
    }
    return times.slice(1).map((time, i) => time - times[i]).sort((a, b) => a - b)[29];
}"""


def visit(browser: Any, path: Path, sliding: bool) -> tuple[float, float, tuple[int, int]]:
    """Milliseconds to the first picture, from frame to frame, and the size of the canvas."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("#page:not([hidden])" if sliding else "#picture")
    first, between = tab.evaluate(FIRST), tab.evaluate(FRAMES, sliding)
    width, height = tab.evaluate("() => ['width', 'height'].map((s) => document.getElementById('picture')[s])")
    context.close()
    return first, between, (width, height)


def measure(browser: Any, path: Path) -> tuple[float, float]:
    """Medians over the rounds: first picture and frames, as quotients by a blank canvas."""
    *_, (width, height) = visit(browser, path, True)
    quotients: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        blank = Path(folder) / "blank.html"
        blank.write_text(BLANK.format(width=width, height=height), encoding="utf-8")
        for _ in range(ROUNDS):
            page, empty = visit(browser, path, True), visit(browser, blank, False)
            quotients.append((page[0] / empty[0], page[1] / empty[1]))
    first, frames = (statistics.median(column) for column in zip(*quotients, strict=True))
    return first, frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    pages = [path.resolve() for path in parser.parse_args().pages]
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        for path in pages:
            first, frames = measure(browser, path)
            size = path.stat().st_size / 1e6
            print(f"{path.name}: {size:.1f} MB; first picture {first:.1f}, frames {frames:.2f} times a blank canvas")


if __name__ == "__main__":
    main()
