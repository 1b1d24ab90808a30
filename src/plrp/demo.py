"""`plrp demo`: trains a small network on shapes it draws, explains it with LRP and PLRP, and shows both.

Everything is made on the spot from one seed, so nothing is downloaded and the true answer is known: the
pixels of the shape are the ones that ought to matter.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    import plrp

SHAPES = ("circle", "square", "triangle")
SIDE = 64  # pixels

# What the picture compares, left to right.
PRUNINGS: dict[str, dict[str, Any] | None] = {
    "LRP": None,
    "PLRP-λ, p = 0.05": {"p": 0.05},
    "PLRP-λ, p = 0.15": {"p": 0.15},
    "PLRP-λ, p = 0.3": {"p": 0.3},
    "PLRP-M, p = 0.15": {"p": 0.15, "redistribution": "M"},
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="train a small network, explain it, write a page with pictures",
        description=__doc__,
        epilog="example:\n  plrp demo --out demo && xdg-open demo/index.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: ./demo")
    parser.add_argument("--seed", type=int, default=0, help="of drawing and training (default: 0)")
    parser.add_argument("--steps", type=int, default=200, help="of training (default: 200)")
    parser.set_defaults(run=lambda arguments: run(arguments.out, arguments.seed, arguments.steps))


def run(out: Path, seed: int = 0, steps: int = 200) -> int:
    """Makes the demo in folder `out`: `shapes.png`, `layers.png` and `index.html`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("the demo draws with matplotlib: install it with pip install 'plrp[demo]'") from None
    import torch

    if steps < 1:
        raise ValueError(f"--steps must be at least 1, not {steps}")
    out.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, accuracy = train(steps)
    print(
        f"a network of {sum(w.numel() for w in model.parameters()):,} weights names {accuracy:.1%} "
        "of unseen shapes rightly"
    )
    results = explain(model, seed)
    for name, result in results.items():
        print(
            f"{name:<18} {result.nonzero:6.1%} of the pixels carry relevance; "
            f"{result.on_shape:.0%} of its mass lies on the shape"
        )
    pictures = {"shapes.png": draw_heatmaps(results), "layers.png": draw_layers(results)}
    for file, picture in pictures.items():
        (out / file).write_bytes(picture)
    page = out / "index.html"
    page.write_text(write_page(results, pictures, accuracy, steps, seed), encoding="utf-8")
    print(f"written: {page.resolve()}")
    return 0


# Drawing and training


def draw_shapes(count: int, generator: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Bright shapes of random class, place, size, tilt and colour on dark coloured noise.

    Returns images (count, 3, side, side) around zero, classes (count,) and masks (count, side, side) of the
    pixels that belong to the shape.
    """
    import torch
    import torch.nn.functional as F

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    classes = torch.randint(len(SHAPES), (count,), generator=generator)
    radius = uniform(10, 16, 1, 1)
    angle = uniform(-0.35, 0.35, 1, 1)
    row, column = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
    y = (row - uniform(18, SIDE - 18, 1, 1)) / radius
    x = (column - uniform(18, SIDE - 18, 1, 1)) / radius
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    # Each shape is where a gauge is below one; the sizes give all three about the same area.
    corner = 3**0.5 / 2
    triangle = torch.stack([-v, v / 2 + corner * u, v / 2 - corner * u]).amax(0) / 0.78
    gauges = torch.stack([(u**2 + v**2).sqrt(), torch.maximum(u.abs(), v.abs()) / 0.88, triangle])
    masks = gauges[classes, torch.arange(count)] < 1

    coarse = F.interpolate(uniform(-1, 1, 3, 8, 8), size=(SIDE, SIDE), mode="bilinear")
    background = 0.5 * coarse + 0.25 * torch.randn(count, 3, SIDE, SIDE, generator=generator)
    bright = 0.4 * background + uniform(0.2, 1.4, 3, 1, 1)
    return torch.where(masks[:, None], bright, background), classes, masks


def train(steps: int) -> tuple[nn.Module, float]:
    """A small CNN that tells the shapes apart, in evaluation mode, and its accuracy on unseen ones."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    layers: dict[str, nn.Module] = {}
    for number, (inputs, outputs, kernel) in enumerate([(3, 12, 5), (12, 24, 3), (24, 48, 3), (48, 48, 3)], 1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers |= {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(48, len(SHAPES))}
    model = nn.Sequential(OrderedDict(layers))
    generator = torch.Generator().manual_seed(torch.initial_seed())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for _ in progress(range(steps), "training"):
        images, classes, _ = draw_shapes(32, generator)
        loss = F.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    images, classes, _ = draw_shapes(512, generator)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == classes).float().mean().item()
    return model, accuracy


def progress(steps: range, label: str) -> Iterable[int]:
    """The steps, with a bar on the terminal, or a line per quarter where the output is not one."""
    terminal = sys.stderr.isatty()

    def watched() -> Iterator[int]:
        for step in steps:
            yield step
            done = (step + 1) / len(steps)
            if terminal:
                bar = ("━" * round(40 * done)).ljust(40, "╌")
                print(f"\r{label} {bar} {done:4.0%}", end="", file=sys.stderr, flush=True)
            elif int(4 * done) > int(4 * step / len(steps)):
                print(f"{label}: {done:.0%}", file=sys.stderr, flush=True)
        if terminal:
            print(file=sys.stderr)

    return watched()


# Explaining


@dataclass(frozen=True)
class Result:
    """One method's explanation of the examples, and what it says in two figures."""

    images: Tensor
    masks: Tensor
    explanation: plrp.Explanation
    heatmaps: Tensor  # (sample, side, side): relevance summed over the colours
    nonzero: float  # share of pixels that carry relevance
    on_shape: float  # share of |relevance| that lies on the shape, or as near to it as a first kernel reaches


def explain(model: nn.Module, seed: int, count: int = 64) -> dict[str, Result]:
    """Explains `count` new images with every method of PRUNINGS, from one forward pass."""
    import torch

    import plrp

    images, _, masks = draw_shapes(count, torch.Generator().manual_seed(seed + 1))
    near = torch.nn.functional.max_pool2d(masks.float(), kernel_size=5, stride=1, padding=2)
    trace = plrp.trace(model, images)
    results = {}
    for name, settings in PRUNINGS.items():
        pruning = None if settings is None else plrp.Pruning(**settings)
        explanation = trace.explain(pruning=pruning)
        heatmaps = explanation.relevance.sum(1)
        mass = heatmaps.abs()
        on_shape = (mass * near).sum((1, 2)) / mass.sum((1, 2))
        results[name] = Result(
            images,
            masks,
            explanation,
            heatmaps,
            (heatmaps != 0).float().mean().item(),
            on_shape.mean().item(),
        )
    return results


# Showing


def draw_heatmaps(results: dict[str, Result]) -> bytes:
    """A PNG: one image of each class, then its heatmaps; red speaks for the answer, blue against it."""
    from matplotlib.figure import Figure

    first = next(iter(results.values()))
    winners = first.explanation.target.tolist()
    samples = [winners.index(shape) for shape in range(len(SHAPES)) if shape in winners]
    figure = Figure(figsize=(2.05 * (1 + len(results)), 2.15 * len(samples) + 0.2), layout="constrained")
    axes = figure.subplots(len(samples), 1 + len(results), squeeze=False)
    for row, sample in zip(axes, samples, strict=True):
        row[0].imshow((0.45 + 0.35 * first.images[sample]).clamp(0, 1).permute(1, 2, 0))
        row[0].set_ylabel(SHAPES[winners[sample]], fontsize=11)
        for axis, (name, result) in zip(row[1:], results.items(), strict=True):
            heatmap = result.heatmaps[sample]
            # The 99.5th percentile of the non-zero values: one bright pixel must not hide the rest.
            limit = heatmap[heatmap != 0].abs().quantile(0.995).item()
            axis.imshow(heatmap, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            axis.contour(result.masks[sample], levels=[0.5], colors="0.55", linewidths=0.7)
            if sample == samples[0]:
                axis.set_title(name, fontsize=11)
    axes[0][0].set_title("input", fontsize=11)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_color("0.8")
    return as_png(figure)


def draw_layers(results: dict[str, Result]) -> bytes:
    """A PNG: the share of each layer's input neurons that pruning keeps, from the output to the input."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axis = figure.subplots()
    layers: list[str] = []
    for name, result in results.items():
        shares = survivors(result.explanation.ledger)
        if shares:
            layers = list(shares)
            axis.plot(range(len(layers)), [100 * share for share in shares.values()], "o-", label=name, lw=1.8)
    axis.set_ylim(0, 100)
    axis.set_xticks(range(len(layers)), [f"input of {layer}" for layer in layers])
    axis.set_ylabel("neurons kept (%)")
    axis.grid(axis="y", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return as_png(figure)


def survivors(ledger: list[dict[str, Any]]) -> dict[str, float]:
    """Per pruned layer, output to input: neurons that survived over neurons that carried relevance."""
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for record in ledger:
        if record["op"] == "prune":
            layer = record["layer"]
            before[layer] = before.get(layer, 0) + record["neurons_before"]
            after[layer] = after.get(layer, 0) + record["neurons_after"]
    return {layer: after[layer] / before[layer] for layer in before}


def as_png(figure: Any) -> bytes:
    """A matplotlib figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=160)
    return buffer.getvalue()


PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>plrp demo</title>
<style>
  body {{ font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto }}
  body {{ padding: 0 1rem }}
  h1 {{ font-weight: 600; letter-spacing: -.02em }}
  img {{ max-width: 100%; display: block; margin: 1.2rem auto }}
  table {{ border-collapse: collapse; margin: 1rem 0 }}
  th, td {{ padding: .3rem 1.1rem .3rem 0; text-align: right; border-bottom: 1px solid #e4e4e4 }}
  th:first-child, td:first-child {{ text-align: left }}
  pre {{ background: #f6f6f4; padding: .9rem; overflow-x: auto }}
</style>
<h1>What did the network look at?</h1>
<p>A small CNN learned in {steps} steps to tell {shapes} apart; it names {accuracy:.1%} of 512 unseen images
rightly. Below, one image per class and which pixels its answer came from: red speaks for the answer, blue
against it, the thin line is the shape's true outline.</p>
<img src="data:image/png;base64,{shapes_png}" alt="inputs and heatmaps by LRP and PLRP">
<p>LRP spreads the winning score over nearly every pixel. PLRP cuts, at each layer, the weakest neurons that
together hold a share p of the relevance, and gives their share to those that stay: by scaling them (λ), or by
propagating anew without the pruned ones (M). Over {count} images:</p>
<table><tr><th>method</th><th>pixels with relevance</th><th>relevance on the shape</th></tr>
{rows}
</table>
<h2>How the relevance thins on its way down</h2>
<img src="data:image/png;base64,{layers_png}" alt="share of neurons kept per layer" style="max-width: 44rem">
<h2>The same for your model</h2>
<pre>import plrp

explanation = plrp.explain(model, images, pruning=plrp.Pruning(p=0.15))
explanation.relevance   # same shape as images
print(explanation)      # where the relevance went, layer by layer</pre>
<p>Made by <code>plrp demo --seed {seed} --steps {steps}</code>, plrp {version}, torch {torch}.</p>
</html>
"""


def write_page(results: dict[str, Result], pictures: dict[str, bytes], accuracy: float, steps: int, seed: int) -> str:
    """The self-contained page: text, both pictures and the table."""
    import torch

    import plrp

    rows = "\n".join(
        f"<tr><td>{html.escape(name)}</td><td>{result.nonzero:.1%}</td><td>{result.on_shape:.0%}</td></tr>"
        for name, result in results.items()
    )
    encoded = {name.replace(".", "_"): base64.b64encode(data).decode() for name, data in pictures.items()}
    return PAGE.format(
        steps=steps,
        seed=seed,
        accuracy=accuracy,
        shapes=", ".join(f"{shape}s" for shape in SHAPES),
        count=len(next(iter(results.values())).images),
        rows=rows,
        version=plrp.__version__,
        torch=torch.__version__,
        **encoded,
    )
