"""Draw docs/assets/gallery/erased.png: `python tools/erased.py` (seconds).

What two classes share cancels in their difference (Jung et al. 2021). A scene shows a cat and a coffee cup, cut out of
scikit-image's photographs (CC0). The network is built by hand, so that it is known what it goes by: its filters are
made for patches of the cat and of the cup; 'cat' reads those of the cat, 'pet at the table' reads all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import plrp
from plrp.experiments.scenes import Scene, cutouts, scene
from plrp.targets import contrast
from plrp.vision import save_figure
from plrp.vision.photograph_figures import grid_of, set_caption, show_map, show_picture

SIDE = 12  # of a filter, in pixels
FILTERS = 24  # of each object
NAMES = ("cat", "coffee cup", "pet at the table")


def scene_of_two() -> Scene:
    """A cat and a coffee cup."""
    rng, objects = np.random.default_rng(2), cutouts()
    scenes = (scene(rng, objects, count=2) for _ in range(100))
    return next(one for one in scenes if set(one.masks) == set(NAMES[:2]))


def network(pixels: Tensor, masks: dict[str, np.ndarray]) -> nn.Sequential:
    """Filters that answer where their own patch is, the strongest answer of each, and classes that read them."""
    rng = np.random.default_rng(0)
    every = nn.functional.unfold(pixels[None], SIDE)[0].T.double()  # the scene's patches (places, 3 · SIDE²)
    mean, whitening = every.mean(0), torch.linalg.inv(every.T.cov() + 1e-3 * torch.eye(every.shape[1]))
    chosen = []
    for name in NAMES[:2]:
        inside = np.lib.stride_tricks.sliding_window_view(masks[name], (SIDE, SIDE)).all((2, 3))
        chosen += rng.choice(np.flatnonzero(inside), FILTERS, replace=False).tolist()
    own = every[chosen] - mean
    weight = own @ whitening  # a filter tells its patch from the others as well as a linear map can
    weight = weight / (weight * own).sum(1, keepdim=True)  # and answers it with 1
    filters, read = nn.Conv2d(3, 2 * FILTERS, SIDE), nn.Linear(2 * FILTERS, len(NAMES), bias=False)
    assert filters.bias is not None
    with torch.no_grad():
        filters.weight.copy_(weight.view_as(filters.weight))
        filters.bias.copy_(-weight @ mean - 0.5)
        shares = torch.from_numpy(rng.uniform(0.5, 1.0, (3, 2, FILTERS)))
        reads = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        read.weight.copy_((shares * reads[..., None]).flatten(1))
    return nn.Sequential(filters, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), read).eval()


def main() -> None:
    """Explain the cat by itself, against the cup, and against a class that goes by the cat too."""
    drawn = scene_of_two()
    pixels = torch.from_numpy(np.asarray(drawn.picture).copy()).permute(2, 0, 1).float() / 255
    trace = plrp.trace(network(pixels, drawn.masks), pixels[None])
    targets = {
        "why “cat”?": 0,
        "why “pet at the table”?": 2,
        "“cat” rather than “coffee cup”": contrast(0, 1),
        "“cat” rather than “pet at the table”": contrast(0, 2),
    }
    figure, axes = grid_of(1, 1 + len(targets), side=2.3, bar=False)
    show_picture(axes[0][0], drawn.picture, "a cat and a coffee cup")
    cat = torch.from_numpy(drawn.masks["cat"])
    whole = None
    for ax, (title, target) in zip(axes[0][1:], targets.items(), strict=True):
        relevance = trace.explain(target=target).relevance[0]
        on_it = float((relevance.sum(0).abs() * cat).sum())
        whole = on_it if whole is None else whole
        show_map(ax, relevance, title, colour_bar=False)
        for name in NAMES[:2]:
            ax.contour(drawn.masks[name], levels=[0.5], colors=["#999999"], linewidths=0.7)
        set_caption(ax, f"on the cat: {100 * on_it / whole:.0f}%")
        print(f"{title}: {100 * on_it / whole:.1f}% of the relevance on the cat is left")
    save_figure(figure, Path("docs/assets/gallery/erased.png"), dpi=100)


if __name__ == "__main__":
    main()
