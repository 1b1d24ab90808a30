"""Draw one photograph under four references, for docs/how-to/references.md: `python tools/references.py`.

The network is ResNet-50, with the published weights or those of --weights; a minute of one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from skimage import data

import plrp
from plrp import references
from plrp.models import load
from plrp.vision import save_figure
from plrp.vision.photograph_explanation import explain_photograph
from plrp.vision.photograph_figures import show_map, show_picture
from plrp.vision.photographs import as_photograph, network_input

OTHERS = ("chelsea", "coffee", "astronaut", "rocket")
"""The photographs of the mean."""


def main() -> None:
    """Explain the cat and draw every map."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="file of ResNet-50's weights (default: the published ones)")
    parser.add_argument("--out", type=Path, default=Path("docs/assets/gallery/references.png"))
    arguments = parser.parse_args()
    model = load("resnet50", weights=arguments.weights)
    seen = [network_input(as_photograph(getattr(data, name)()), model.preprocessing)[None] for name in OTHERS]
    chosen = {
        "no reference: LRP": None,
        "blur:8": references.blur(8),
        "grey": references.grey(),
        "zeros": references.zeros(),
        f"mean of {len(OTHERS)} photographs": references.mean(seen),
    }
    figure, axes = plt.subplots(2, len(chosen), figsize=(2.2 * len(chosen), 4.6), layout="constrained")
    for (above, below), (name, reference) in zip(axes.T, chosen.items(), strict=True):
        explained = explain_photograph(data.chelsea(), model, prunings=[plrp.Pruning()], reference=reference)
        x = explained.trace.now.inputs[0].data
        pixels = model.preprocessing.denormalise(x if reference is None else reference(x))[0].clamp(0, 1)
        show_picture(above, Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy()), name)
        relevance = list(explained.relevance.values())[-1]
        f, against = float(explained.logits[explained.target]), explained.reference
        said = f"f(x) = {f:.1f}" if against is None else f"f(x) − f(x⁰) = {f - float(against.scores):.1f}"
        show_map(below, relevance, f"{said}\narrives: {float(relevance.sum()):.1f}", colour_bar=False)
        print(f"{name}: {explained.target_name}, {said}, arrives {float(relevance.sum()):.2f}", flush=True)
    for ax in np.ravel(axes):
        ax.set_xticks([])
        ax.set_yticks([])
    save_figure(figure, arguments.out, dpi=72)


if __name__ == "__main__":
    with torch.no_grad():
        main()
