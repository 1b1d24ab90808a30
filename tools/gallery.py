"""Make the pictures of README and docs/how-to/photographs.md: `python tools/gallery.py` (two minutes of one core).

Scenes and network are those of `plrp.experiments.scenes`, which the demo shows too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import plrp
from plrp.experiments.scenes import as_loaded, network, photograph_of, scene_of_three, targets_figure, train
from plrp.vision import save_figure
from plrp.vision.photograph_explanation import explain_photograph
from plrp.vision.photograph_figures import explanation_figure


def report(step: int, loss: float) -> None:
    """Print every fiftieth step."""
    if step % 50 == 0:
        print(f"step {step:4d}  loss {loss:.3f}", flush=True)


def main() -> None:
    """Train the network and draw every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/assets/gallery"))
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help="weights of an earlier run, to draw without training")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.weights and arguments.weights.exists():
        module = network().eval()
        module.load_state_dict(torch.load(arguments.weights, weights_only=True))
    else:
        module, right = train(arguments.steps, arguments.seed, report)
        print(f"{100 * right:.1f}% of the answers right on 200 new scenes")
        if arguments.weights:
            torch.save(module.state_dict(), arguments.weights)
    model, drawn = as_loaded(module, "trained by tools/gallery.py"), scene_of_three()

    def out(name: str) -> Path:
        return arguments.out / f"{name}.png"

    taken = photograph_of(drawn)
    explained = explain_photograph(taken, model, target="cat", prunings=[plrp.Pruning(p=0.15)])
    # Each object is there or not: its probability is a sigmoid of its own.
    classes = [(name, float(torch.tensor(logit).sigmoid())) for name, logit, _ in explained.top()]
    shown = explanation_figure(
        drawn.picture, explained.relevance, classes=classes, target="cat", title="why “cat”? (a small network)"
    )
    save_figure(shown, out("explain"), dpi=100)
    grid = [plrp.Pruning(p=p, redistribution=how) for how in ("lambda", "M") for p in (0.05, 0.15, 0.3)]
    compared = explain_photograph(taken, model, target="cat", prunings=grid)
    save_figure(compared.comparison(), out("compare"), dpi=100)
    variants = {
        "LRP": None,
        "PLRP-M, p = 0.2": plrp.Pruning(p=0.2, redistribution="M"),
        "PLRP-λ, p = 0.2": plrp.Pruning(p=0.2),
    }
    save_figure(targets_figure(drawn, model, variants), out("targets"), dpi=100)
    for name, figure in explained.layer_figures().items():
        save_figure(figure, out(name), dpi=80)
    for path in sorted(arguments.out.glob("*.png")):
        print(f"{path}  {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
