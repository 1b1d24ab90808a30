"""Scenes put together from photographs that ship with scikit-image, and a small network that names their objects.

The photographs may be published: cat and coffee cup (CC0), astronaut and space shuttle (NASA, public domain), rocket
(SpaceX, public domain), Hubble deep field (NASA, public domain), brick, grass and gravel (CC0). Objects are cut out of
them and pasted into scenes on those backgrounds. So everything can be made again by anyone, offline, and the right
answer is known: the pixels of the object that is asked for. The demo trains the network in a process of its own while
the sequences are worked on, and shows one scene, explained for each object.
"""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from plrp.files import new_file
from plrp.models.loading import LoadedModel
from plrp.models.preprocessing import Preprocessing
from plrp.pruning import Pruning
from plrp.tape.verification import trace
from plrp.view import Page, photograph_bundle
from plrp.vision.photograph_explanation import explain_photograph
from plrp.vision.photograph_figures import grid_of, set_caption, show_map, show_picture
from plrp.vision.photographs import Photograph, network_input

from .pages import data_uri, picture, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

SIDE = 128  # pixels
PREPROCESSING = Preprocessing(resize=None, crop=None)
# Name, photograph, and the ellipse that the object fills in it: left, top, right, bottom.
OBJECTS = {
    "cat": ("chelsea", (38, 4, 366, 292)),
    "coffee cup": ("coffee", (74, 14, 486, 388)),
    "astronaut": ("astronaut", (112, 4, 332, 296)),
    "space shuttle": ("astronaut", (362, 0, 462, 288)),
}
BACKGROUNDS = ("brick", "grass", "gravel")
DISTRACTORS = ("rocket", "hubble_deep_field", "coffee", "chelsea", "astronaut")  # random snippets of these
NAMES = tuple(OBJECTS)
STEPS = 160
P = 0.15
_BOUND = (
    "import os, sys, threading; sys.path[:] = filter(None, sys.path); "  # nothing from the current folder
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start(); "
)
"""Standard input ends when the process that holds its other end does."""


class Scene(NamedTuple):
    """A picture and its objects: labels (4,), and the mask of each object shown."""

    picture: Image.Image
    labels: np.ndarray
    masks: dict[str, np.ndarray]


@cache
def photograph(name: str) -> Image.Image:
    """A photograph of scikit-image by name."""
    from PIL import Image
    from skimage import data

    return Image.fromarray(getattr(data, name)())


def cutouts() -> list[Image.Image]:
    """Every object as a picture with a soft elliptic edge."""
    from PIL import Image, ImageDraw

    images = []
    for name, box in OBJECTS.values():
        image = photograph(name).convert("RGB").crop(box)
        edge = Image.new("L", (4 * image.width, 4 * image.height))
        ImageDraw.Draw(edge).ellipse((8, 8, edge.width - 8, edge.height - 8), fill=255)
        image.putalpha(edge.resize(image.size, Image.Resampling.LANCZOS))
        images.append(image)
    return images


def scene(rng: np.random.Generator, objects: list[Image.Image], count: int | None = None) -> Scene:
    """Objects at random places and sizes, not overlapping, on a tinted background."""
    from PIL import Image

    texture = photograph(BACKGROUNDS[rng.integers(len(BACKGROUNDS))])
    left, top = rng.integers(0, texture.width - 256, 2).tolist()
    grey = np.asarray(texture.crop((left, top, left + 256, top + 256)).resize((SIDE, SIDE)), float)
    tint = rng.uniform(0.55, 1.15, 3)
    picture = Image.fromarray(np.clip(grey[..., None] * tint, 0, 255).astype(np.uint8))
    for _ in range(rng.integers(3, 8)):
        snippet = _snippet(rng)
        picture.paste(snippet, tuple(rng.integers(-10, SIDE - 10, 2).tolist()), snippet)
    labels, masks, taken = np.zeros(len(objects), np.float32), {}, np.zeros((SIDE, SIDE), bool)
    for kind in rng.permutation(len(objects))[: count or rng.integers(1, 4)]:
        object_ = objects[kind]
        for _ in range(20):  # places to try
            longest = int(rng.integers(44, 66))
            size = tuple(max(1, round(side * longest / max(object_.size))) for side in object_.size)
            x, y = (int(rng.integers(0, SIDE - side + 1)) for side in size)
            if not taken[y : y + size[1], x : x + size[0]].any():
                small = object_.resize((size[0], size[1]), Image.Resampling.LANCZOS)
                picture.paste(small, (x, y), small)
                mask = np.zeros((SIDE, SIDE), bool)
                mask[y : y + size[1], x : x + size[0]] = np.asarray(small)[..., 3] > 127
                taken[y : y + size[1], x : x + size[0]] = True
                labels[kind], masks[NAMES[kind]] = 1, mask
                break
    return Scene(picture, labels, masks)


def _snippet(rng: np.random.Generator) -> Image.Image:
    """A small round piece of some photograph: clutter that means nothing."""
    from PIL import Image, ImageDraw

    image = photograph(DISTRACTORS[rng.integers(len(DISTRACTORS))])
    side = int(rng.integers(30, 60))
    left, top = int(rng.integers(0, image.width - side)), int(rng.integers(0, image.height - side))
    piece = image.crop((left, top, left + side, top + side)).resize(tuple(rng.integers(14, 34, 2).tolist()))
    edge = Image.new("L", piece.size)
    ImageDraw.Draw(edge).ellipse((0, 0, piece.width - 1, piece.height - 1), fill=255)
    piece.putalpha(edge)
    return piece


def network() -> nn.Sequential:
    """A small convolutional network: five convolutions, average pooling, one linear layer."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    # A stride of 2 with a kernel of 4 reads every pixel equally often: no chequered relevance.
    shapes = ((3, 16, 4, 2), (16, 24, 3, 1), (24, 32, 4, 2), (32, 48, 3, 1), (48, 64, 4, 2))
    for number, (inputs, outputs, kernel, stride) in enumerate(shapes, start=1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, kernel, stride, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
    layers["pool"], layers["flat"], layers["fc"] = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(NAMES))
    return nn.Sequential(layers)


def photograph_of(drawn: Scene, name: str = "scene") -> Photograph:
    """A scene as the package sees photographs."""
    return Photograph(drawn.picture, drawn.picture.size, Path(f"{name}.png"))


def batches(rng: np.random.Generator, objects: list[Image.Image], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless scenes: inputs (size, 3, 128, 128), labels (size, 4)."""
    while True:
        scenes = [scene(rng, objects) for _ in range(size)]
        inputs = torch.stack([network_input(photograph_of(one), PREPROCESSING) for one in scenes])
        yield inputs, torch.from_numpy(np.stack([one.labels for one in scenes]))


def train(steps: int, seed: int = 0, report: Callable[[int, float], None] | None = None) -> tuple[nn.Sequential, float]:
    """The network after training, and how often its answers are right on scenes it has not seen.

    `report` is called with each step and its loss.
    """
    torch.manual_seed(seed)
    model, objects = network(), cutouts()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    model.train()
    for step, (inputs, labels) in zip(range(steps), batches(np.random.default_rng(seed), objects, 16), strict=False):
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if report is not None:
            report(step, loss.item())
    model.eval()
    inputs, labels = next(batches(np.random.default_rng(seed + 1), objects, 200))
    with torch.no_grad():
        right = ((model(inputs) > 0) == labels.bool()).float().mean()
    return model, float(right)


def as_loaded(module: nn.Module, source: str) -> LoadedModel:
    """The network as the package sees models; `source` says who trained it."""
    return LoadedModel(module, "small network", source, NAMES, PREPROCESSING)


def scene_of_three(seed: int = 7) -> Scene:
    """A scene with a cat, a coffee cup and a third object."""
    rng, objects = np.random.default_rng(seed), cutouts()
    scenes = (scene(rng, objects, count=3) for _ in range(100))
    return next(one for one in scenes if {"cat", "coffee cup"} <= set(one.masks) and len(one.masks) == 3)


def targets_figure(drawn: Scene, model: LoadedModel, prunings: dict[str, Pruning | None]) -> Figure:
    """One scene, explained for each object in it: a row per object, a column per variant."""
    figure, axes = grid_of(len(drawn.masks), 1 + len(prunings), side=1.75, bar=False)
    traced = trace(model.module, network_input(photograph_of(drawn), PREPROCESSING)[None])
    for line, (name, mask) in zip(axes, drawn.masks.items(), strict=True):
        show_picture(line[0], drawn.picture, f"why “{name}”?")
        line[0].contour(mask, levels=[0.5], colors=["white"], linewidths=1.2)
        for ax, (label, pruning) in zip(line[1:], prunings.items(), strict=True):
            relevance = traced.explain(target=NAMES.index(name), pruning=pruning).relevance[0]
            positive = relevance.sum(0).clamp(min=0)
            on_it = float((positive * torch.from_numpy(mask)).sum() / positive.sum())
            show_map(ax, relevance, label, colour_bar=False)
            ax.contour(mask, levels=[0.5], colors=["#999999"], linewidths=0.7)
            set_caption(ax, f"{100 * on_it:.0f}% on the object")
    return figure


# -- in the demo


def in_background(code: str) -> subprocess.Popen[bytes]:
    """Run some code in another process of this Python; its output is discarded, its errors can be read afterwards.

    Wait for it with `wait()`: `communicate()` would end it.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _BOUND + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def train_in_background(path: Path, steps: int, seed: int) -> subprocess.Popen[bytes]:
    """Have another process train the network of the scenes and write its weights to `path`."""
    return in_background(f"from plrp.experiments.scenes import train_to; train_to({str(path)!r}, {steps}, {seed})")


def train_to(path: str | Path, steps: int, seed: int) -> None:
    """Train with one thread, so that the same seed gives the same network, and store its weights."""
    torch.set_num_threads(1)
    trained, right = train(steps, seed)
    with new_file(path) as part:
        torch.save({"weights": trained.state_dict(), "right": right}, part)


def surest(drawn: Scene, model: LoadedModel) -> str:
    """The object of a scene that the network is surest of."""
    with torch.no_grad():
        (scores,) = model.module(network_input(photograph_of(drawn), PREPROCESSING)[None])
    return max(drawn.masks, key=lambda name: float(scores[NAMES.index(name)]))


def render(path: Path) -> str:
    """The section of the demo's page about photographs, by the network stored at `path`."""
    checkpoint = torch.load(path, weights_only=True)
    trained = network().eval()
    trained.load_state_dict(checkpoint["weights"])
    model, drawn = as_loaded(trained, "trained in the demo"), scene_of_three()
    variants = {"LRP": None, "PLRP-λ, p = 0.05": Pruning(p=0.05), f"PLRP-λ, p = {P}": Pruning(p=P)}
    figure = targets_figure(drawn, model, variants)
    name = surest(drawn, model)
    explanation = explain_photograph(photograph_of(drawn), model, target=name, prunings=[Pruning(p=P)])
    bundle = photograph_bundle(explanation, mask=drawn.masks[name], targets=len(NAMES))
    return section(
        f"Photographs: why “{name}”?",
        "<p>Cat, cup, astronaut and shuttle, cut out of photographs and pasted among clutter. A small network learned "
        f"which objects a scene shows; on 200 new scenes {checkpoint['right']:.0%} of its answers are right. "
        "One scene, explained for each object in it: good relevance lies on the object that is asked for "
        "(outlined).</p>",
        picture(data_uri(figure, "png", 130), "a scene explained for each object in it", plate=True),
        "<p>The same scene for every p. Move the slider, choose another class, compare two settings with a swipe, "
        "click a layer to look inside.</p>",
        Page(bundle).frame(height=880),
    )
