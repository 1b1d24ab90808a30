"""Take the README's screenshot of a sequence's page: `python tools/screenshots.py` (a minute or two).

Simulates sequences with planted motifs, trains a small CNN, saves the page of one sequence and opens it in Chromium
(Debian's `chromium`, or playwright's own).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

import plrp
from plrp import genomics
from plrp.experiments.demo_page import planted_sites

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"


def sequence_page(path: Path, seed: int = 0) -> None:
    """The page of one sequence that the network labels correctly."""
    data = genomics.simulate(
        4000, motifs=["TAL1::TCF3", "CTCF", "SPI1", "NRF1"], task="classes", number=(1, 2), seed=seed
    )
    x, y = data.onehot(), data.labels
    network = genomics.SequenceCNN(filters=32, classes=4)
    network.fit(x[:3000], y[:3000], validation=(x[3000:3500], y[3000:3500]), epochs=6, seed=seed)
    network.eval()
    with torch.no_grad():
        right = network(torch.from_numpy(x[3500:])).argmax(1).numpy() == y[3500:]
    print(f"{right.mean():.1%} of 500 new sequences labelled correctly")
    k = 3500 + next(i for i in range(500) if right[i] and data.class_names[int(y[3500 + i])] == "CTCF")
    explanation = plrp.explain(network, torch.from_numpy(x[k : k + 1]), pruning=plrp.Pruning(p=0.05))
    explanation.save(
        path,
        sites=planted_sites(data, k),
        mask=data.mask[k],
        categories=data.class_names,
        title="a sequence with planted CTCF sites",
        model="CNN with 32 filters",
        targets=2,
    )


def main() -> None:
    """Make the page and photograph it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ASSETS / "page-sequence.png")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "sequence.html"
        sequence_page(path)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 760})
        page.goto(path.as_uri())
        page.wait_for_timeout(1500)
        page.screenshot(path=str(arguments.out))
        browser.close()
    print(arguments.out)


if __name__ == "__main__":
    main()
