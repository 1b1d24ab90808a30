"""The demo's photographs: scenes whose objects are known, explained for each object that a small network saw in them.

The network is trained in a process of its own while the sequences are worked on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from plrp.files import new_file
from plrp.models.loading import LoadedModel
from plrp.pruning import Pruning
from plrp.view import Page, photograph_bundle
from plrp.vision.photograph_explanation import explain_photograph
from plrp.vision.photographs import network_input

from . import scenes
from .pages import data_uri, picture, section

STEPS = 160
P = 0.15
_BOUND = (
    "import os, sys, threading; sys.path[:] = filter(None, sys.path); "  # nothing from the current folder
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start(); "
)
"""Standard input ends when the process that holds its other end does."""


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
    return in_background(
        "from pathlib import Path; from plrp.experiments.photo_demo import train_to; "
        f"train_to(Path({str(path)!r}), {steps}, {seed})"
    )


def train_to(path: Path, steps: int, seed: int) -> None:
    """Train with one thread, so that the same seed gives the same network, and store its weights."""
    torch.set_num_threads(1)
    network, right = scenes.train(steps, seed)
    with new_file(path) as part:
        torch.save({"weights": network.state_dict(), "right": right}, part)


def surest(drawn: scenes.Scene, model: LoadedModel) -> str:
    """The object of a scene that the network is surest of."""
    with torch.no_grad():
        (scores,) = model.module(network_input(scenes.photograph_of(drawn), scenes.PREPROCESSING)[None])
    return max(drawn.masks, key=lambda name: float(scores[scenes.NAMES.index(name)]))


def render(path: Path) -> str:
    """The section of the demo's page about photographs, by the network stored at `path`."""
    checkpoint = torch.load(path, weights_only=True)
    network = scenes.network().eval()
    network.load_state_dict(checkpoint["weights"])
    model, drawn = scenes.as_loaded(network, "trained in the demo"), scenes.scene_of_three()
    variants = {"LRP": None, "PLRP-λ, p = 0.05": Pruning(p=0.05), f"PLRP-λ, p = {P}": Pruning(p=P)}
    figure = scenes.targets_figure(drawn, model, variants)
    name = surest(drawn, model)
    explanation = explain_photograph(scenes.photograph_of(drawn), model, target=name, prunings=[Pruning(p=P)])
    bundle = photograph_bundle(explanation, mask=drawn.masks[name], targets=len(scenes.NAMES))
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
