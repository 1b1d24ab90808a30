"""Take the screenshots of the page in README and docs: `python tools/screenshots.py` (some ten minutes of one core).

Every view of the page, each of data that may be published: scenes of scikit-image's photographs and the network that
learns them (`plrp.experiments.scenes`), simulated sequences with a CNN, a sweep over such, the demo. Two parts need
weights of others:

    python tools/screenshots.py photograph --weights resnet50.pth    Chelsea (CC0), by ResNet-50 (default: published)
    python tools/screenshots.py text --language-model smollm2.gguf   a sentence, by a language model

Opens them in Chromium (Debian's `chromium`, or playwright's own), with the network off.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import sync_playwright

import plrp
from plrp import genomics
from plrp.cli import main as run_plrp
from plrp.concepts import Reading
from plrp.experiments import preset, report, sweep
from plrp.experiments.demo_study import run as run_demo
from plrp.experiments.sample_drawings import planted_sites
from plrp.experiments.scenes import (
    NAMES,
    PREPROCESSING,
    as_loaded,
    cutouts,
    photograph,
    photograph_of,
    scene,
    scene_of_three,
    train,
)
from plrp.experiments.scenes import network as scene_network
from plrp.view import Page, photograph_bundle, text_bundle
from plrp.view.layer_channels import ChannelPatches
from plrp.vision.photograph_explanation import explain_photograph
from plrp.vision.photographs import network_input

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
Camera = Callable[..., None]


def camera(browser: Any, out: Path) -> Camera:
    """What opens a page and stores a picture of it."""

    def take(
        name: str,
        path: Path,
        act: Callable[[Any], None] = lambda page: None,
        *,
        part: str | None = None,
        within: str | None = None,
        size: tuple[int, int] = (1180, 860),
    ) -> None:
        """part: an element instead of the window. within: the frame that holds the page, of another page."""
        context = browser.new_context(offline=True, viewport={"width": size[0], "height": size[1]})
        tab = context.new_page()
        tab.goto(path.resolve().as_uri())
        page = tab
        if within is not None:
            tab.locator(within).first.scroll_into_view_if_needed()
            page = tab.frame_locator(within).first
        page.locator("#page:not([hidden])").wait_for()
        act(page)
        tab.wait_for_timeout(1000)
        if within is not None:
            tab.locator(within).first.evaluate("(frame) => window.scrollBy(0, frame.getBoundingClientRect().top - 150)")
            tab.wait_for_timeout(300)
        content = page.locator(part).screenshot() if part else tab.screenshot()
        context.close()
        whole = Image.open(io.BytesIO(content)).convert("RGB")
        few = whole.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        few.save(out / f"{name}.png", optimize=True)
        print(f"{out / name}.png  {(out / f'{name}.png').stat().st_size / 1000:.0f} KB", flush=True)

    return take


def choose(page: Any, group: str, value: object) -> None:
    """Press a choice."""
    page.locator(f"#{group} label:has(input[value='{value}'])").click()


def compared(page: Any) -> None:
    """PLRP on the left of the swipe, LRP on the right."""
    page.locator("#compare").check()


def layer_open(number: int, channel: int | None = None) -> Callable[[Any], None]:
    """A layer's channels; the path of the strongest of them, or of none."""

    def act(page: Any) -> None:
        page.locator("#strip label").nth(number).click()
        if channel is not None:
            page.locator(".channels button").nth(channel).click()

    return act


def scenes(take: Camera, folder: Path, arguments: argparse.Namespace) -> None:
    """A scene of three objects: its layers with patches, flow and ledger; and several scenes as a gallery."""
    weights = arguments.scene_weights
    if weights is not None and weights.exists():
        module = scene_network().eval()
        module.load_state_dict(torch.load(weights, weights_only=True))
    else:
        module, right = train(450, 0)
        print(f"{right:.1%} of the answers right on 200 new scenes", flush=True)
        if weights is not None:
            torch.save(module.state_dict(), weights)
    model, drawn = as_loaded(module, "trained by tools/screenshots.py"), scene_of_three()
    rng, objects = np.random.default_rng(5), cutouts()
    others = [scene(rng, objects) for _ in range(60)]
    inputs = torch.stack([network_input(photograph_of(one), PREPROCESSING) for one in others])
    searched = ["conv1", "conv2", "conv3", "conv4", "conv5"]
    found = plrp.exemplars(module, inputs, searched, show_progress=False)
    explained = explain_photograph(photograph_of(drawn), model, target="cat", prunings=[plrp.Pruning(p=0.15)])
    bundle = photograph_bundle(explained, mask=drawn.masks["cat"])
    ChannelPatches(Reading(found, module, inputs)).show(bundle.facts["channels"], explained.trace)
    Page(bundle).save(folder / "scene.html")
    take("page-inside", folder / "scene.html", layer_open(1), part="#inside")
    take("page-flow", folder / "scene.html", part="#flow")
    take("page-ledger", folder / "scene.html", part="#where")
    shown = inputs[:6]
    batch = plrp.explain(module, shown, pruning=plrp.Pruning(p=0.15))
    options: dict[str, Any] = {"proportions": (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8), "inside": "graph"}
    options |= {
        "title": [f"scene {number + 1}" for number in range(6)],
        "model": "a small network",
        "categories": list(NAMES),
    }
    batch.save(folder / "gallery.html", sample=list(range(6)), **options)
    take("page-gallery", folder / "gallery.html", lambda page: choose(page, "gallery", 1))


def photographs(take: Camera, folder: Path, arguments: argparse.Namespace) -> None:
    """Chelsea, as ResNet-50 sees her: the first picture of the README, and a channel followed to the pixels."""
    page = folder / "chelsea.html"
    if not page.exists():
        photograph("chelsea").save(folder / "chelsea.png")
        weights = ["--weights", str(arguments.weights)] if arguments.weights else []
        words = ["explain", str(folder / "chelsea.png"), "--model", "resnet50", *weights, "-p", "0.15", "-o", str(page)]
        if run_plrp(words):
            raise SystemExit("chelsea could not be explained.")
    take("page", page, compared)
    take("page-channel", page, layer_open(10, 0), size=(1000, 1320))


def sequences(take: Camera, folder: Path, arguments: argparse.Namespace, seed: int = 0) -> None:
    """One sequence that a CNN labels correctly, with its planted motifs."""
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
        folder / "sequence.html",
        sites=planted_sites(data, k),
        mask=data.mask[k],
        categories=data.class_names,
        title="a sequence with planted CTCF sites",
        model="CNN with 32 filters",
        targets=2,
    )

    def letters(page: Any) -> None:
        compared(page)
        page.locator("#zoom-in").click()
        page.locator("#pan").press("End")  # where the site is
        page.locator("#pan").blur()

    take("page-sequence", folder / "sequence.html", letters, size=(1180, 760))


def texts(take: Camera, folder: Path, arguments: argparse.Namespace) -> None:
    """A sentence and the tokens that a language model writes after it."""
    if arguments.language_model is None:
        print("page-text: left out, it needs --language-model")
        return
    model, tokenizer = plrp.text.load(arguments.language_model)
    prompt = "The Eiffel Tower stands in the city of"
    found = plrp.text.explain(model, tokenizer, prompt, span=4, pruning=plrp.Pruning(p=0.05))
    # The layers are below what is photographed, and their paths take minutes.
    Page(text_bundle(found, model=arguments.language_model.stem, inside="nothing")).save(folder / "text.html")
    take("page-text", folder / "text.html", size=(1180, 720))
    take("page-matrix", folder / "text.html", lambda page: choose(page, "views", "matrix"), part="#look")


def sweeps(take: Camera, folder: Path, arguments: argparse.Namespace) -> None:
    """The report of a small sweep over simulated sequences."""
    changes: dict[str, Any] = {"data.limit": 20, "data.sequences": 3000, "model.epochs": 8}
    config = preset("genomics-32").changed(**changes, **{"maps.p": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]})
    sweep(config, folder / "run", show_progress=False)
    page = report.write([folder / "run"], formats=("png",))
    take("page-report", Path(page), within="iframe", size=(1180, 900))


def demo(take: Camera, folder: Path, arguments: argparse.Namespace) -> None:
    """The demo's page, at its slider; a smaller demo than `plrp demo` makes, unless one is given."""
    made = arguments.demo or folder / "demo"
    if not (made / "index.html").exists():
        run_demo(made, count=2000, explained=24, epochs=8, photographs=0)
    take("page-demo", made / "index.html", within="iframe", size=(1180, 900))


PARTS = {
    "scenes": scenes,
    "photograph": photographs,
    "sequence": sequences,
    "text": texts,
    "report": sweeps,
    "demo": demo,
}


def kept(folder: Path | None) -> AbstractContextManager[str | Path]:
    """Where the pages lie: a folder that stays, or one that does not."""
    from contextlib import nullcontext

    if folder is None:
        return tempfile.TemporaryDirectory()
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext(folder)


def main() -> None:
    """Make the pages and photograph them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ASSETS, help="default: docs/assets")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="keep the pages there (default: they are deleted)")
    parser.add_argument("--weights", type=Path, help="of ResNet-50 (default: the published ones)")
    parser.add_argument("--scene-weights", type=Path, help="of the scenes' network: read, or written after training")
    parser.add_argument("--language-model", type=Path, help="folder or .gguf file, as in plrp text")
    parser.add_argument("--demo", type=Path, metavar="DIR", help="a demo that was made before")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}.")
    with kept(arguments.pages) as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take = camera(browser, arguments.out)
        for part in arguments.parts or PARTS:
            PARTS[part](take, Path(folder), arguments)
        browser.close()


if __name__ == "__main__":
    main()
