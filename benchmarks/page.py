"""A saved page in a browser, beside a page with nothing but a blank canvas of the same size.

    python benchmarks/page.py [--quick]

Of a photograph's page with 20 p × (λ, M±) × 5 classes, and of a sequence's: its size; the time to the first picture
and the time from one frame to the next while p slides, both as quotients by the blank canvas, measured in turn within
one run. A quotient of 1 for the frames says that none is lost. Needs chromium and Playwright.
--quick: fewer p, one class.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import plrp
from plrp.view import Page, explanation_bundle
from report import page_table
from subjects import load, photographs
from timing import options, progress, write

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


def measure(browser: Any, path: Path, rounds: int) -> tuple[float, float]:
    """Medians over the rounds: first picture and frames, as quotients by a blank canvas."""
    *_, (width, height) = visit(browser, path, True)
    quotients: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        blank = Path(folder) / "blank.html"
        blank.write_text(BLANK.format(width=width, height=height), encoding="utf-8")
        for _ in range(rounds):
            page, empty = visit(browser, path, True), visit(browser, blank, False)
            quotients.append((page[0] / empty[0], page[1] / empty[1]))
    first, frames = (statistics.median(column) for column in zip(*quotients, strict=True))
    return first, frames


def pages(folder: Path, quick: bool) -> dict[str, Path]:
    """The pages to open: of a photograph with ResNet-50 (quick: ResNet-18), and of a sequence of 2,000 bases."""
    name = "resnet18" if quick else "resnet50"
    few: dict[str, Any] = {"proportions": (0.05, 0.15, 0.4), "targets": 1} if quick else {}
    photograph = plrp.explain(load(name), photographs(1, 224), pruning=plrp.Pruning(p=0.15))
    photograph.save(folder / "photograph.html", **few)
    torch.manual_seed(0)
    layers = [torch.nn.Conv1d(4, 32, 15), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(8), torch.nn.Flatten()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(256, 5)).eval()
    onehot = torch.nn.functional.one_hot(torch.randint(0, 4, (1, 2000)), 4).mT.float()
    sequence = explanation_bundle(plrp.explain(network, onehot, pruning=plrp.Pruning(p=0.15)), **few)
    Page(sequence).save(folder / "sequence.html")
    return {f"photograph, {name}": folder / "photograph.html", "2,000 bases": folder / "sequence.html"}


def main() -> None:
    args = options(__doc__).parse_args()
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no chromium: apt-get install chromium")
    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        progress("page: explaining")
        found = pages(Path(folder), args.quick)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        for name, path in found.items():
            progress(f"page: {name}")
            first, frames = measure(browser, path, args.rounds or (2 if args.quick else ROUNDS))
            rows.append({"page": name, "megabytes": path.stat().st_size / 1e6, "first": first, "frames": frames})
        browser.close()
    progress.clear()
    write(args, "page", {"rows": rows})
    print("\n" + page_table({"page": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
