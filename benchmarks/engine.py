"""LRP and PLRP against Zennit, Captum, autoLRP and gradient × input, interleaved in one run.

Every method runs once per round, in a random order, on the same model and photographs; what is printed is the median
over the rounds of its time divided by the model's own forward pass in that round. Seconds mean nothing on a shared
machine, ratios of neighbours do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import plrp

Method = Callable[[nn.Module, Tensor], Any]


def shared_data() -> Path | None:
    """The folder of real weights and photographs, if it is there."""
    folder = Path(os.environ.get("PLRP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None


def load(name: str) -> nn.Module:
    """A torchvision model with the real weights that are there (VGG's fully connected layers are random)."""
    torch.manual_seed(0)
    model: nn.Module = getattr(torchvision.models, name)(weights=None)
    data = shared_data()
    file = {"resnet50": "resnet50.pth", "vgg16": "vgg16_gap.pth"}.get(name)
    if data is not None and file is not None:
        state = torch.load(data / "weights" / file, weights_only=True)
        own = model.state_dict()
        fitting = {k: v.float() for k, v in state.items() if k in own and own[k].shape == v.shape}
        model.load_state_dict(fitting, strict=False)
    return model.eval()


def photographs(count: int, size: int) -> Tensor:
    """A batch (count, 3, size, size) of normalised photographs; noise where there are none."""
    data = shared_data()
    if data is None:
        return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    from PIL import Image
    from torchvision.transforms import v2

    geometry = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(size, antialias=True),
            v2.CenterCrop(size),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    files = sorted((data / "ecssd" / "images").glob("*.jpg"))[:count]
    return torch.stack([geometry(Image.open(f).convert("RGB")) for f in files])


# --- the methods ------------------------------------------------------------------------------------------------------


def forward(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def ours(pruning: plrp.Pruning | None) -> Method:
    return lambda model, x: plrp.explain(model, x, pruning=pruning).relevance


def zennit(model: nn.Module, x: Tensor) -> Tensor:
    """Zennit's EpsilonPlusFlat with its canonizers; the target is found in the same pass, so none is wasted."""
    from zennit.attribution import Gradient
    from zennit.composites import EpsilonPlusFlat
    from zennit.torchvision import ResNetCanonizer, VGGCanonizer

    canonizer = ResNetCanonizer() if isinstance(model, torchvision.models.ResNet) else VGGCanonizer()
    with Gradient(model=model, composite=EpsilonPlusFlat(canonizers=[canonizer])) as attributor:
        return attributor(x, lambda logits: torch.eye(logits.shape[1])[logits.argmax(1)] * logits.detach())[1]


def captum(model: nn.Module, x: Tensor) -> Tensor:
    """Captum's LRP, with z⁺ (its Alpha1Beta0) for convolutions."""
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.rule = Alpha1_Beta0_Rule()
        elif isinstance(module, nn.Linear | nn.BatchNorm2d | nn.AdaptiveAvgPool2d | nn.AvgPool2d | nn.MaxPool2d):
            module.rule = EpsilonRule()
    try:
        with torch.no_grad():
            target = model(x).argmax(1)
        return LRP(model).attribute(x, target=target)
    finally:
        for module in model.modules():
            if hasattr(module, "rule"):
                del module.rule


def autolrp(model: nn.Module, x: Tensor) -> Tensor:
    """autoLRP, in its own defaults."""
    import autolrp as package

    wrapped = package.tensor(x)
    scores = model(wrapped)
    scores.max(1).values.sum().lrp()
    return wrapped.relevance


def gradient_times_input(model: nn.Module, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    model(leaf).max(1).values.sum().backward()
    assert leaf.grad is not None
    return leaf.grad * x


METHODS: dict[str, Method] = {
    "plrp LRP": ours(None),
    "plrp λ 0.2": ours(plrp.Pruning(0.2)),
    "plrp M 0.2": ours(plrp.Pruning(0.2, redistribution="M")),
    "Zennit": zennit,
    "Captum": captum,
    "autoLRP": autolrp,
    "grad × input": gradient_times_input,
}


def measure(model: nn.Module, x: Tensor, methods: dict[str, Method], rounds: int) -> dict[str, float | str]:
    """Median over the rounds of time / forward time; the reason where a method cannot run."""
    works: dict[str, Method] = {}
    result: dict[str, float | str] = {}
    for name, method in methods.items():  # warm up, and see who can
        try:
            method(model, x)
            works[name] = method
        except Exception as error:
            result[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    forward(model, x)
    ratios: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        order = ["forward", *works]
        random.shuffle(order)
        seconds = {}
        for name in order:
            start = time.perf_counter()
            (forward if name == "forward" else works[name])(model, x)
            seconds[name] = time.perf_counter() - start
        for name in works:
            ratios[name].append(seconds[name] / seconds["forward"])
    return {name: result[name] if name in result else statistics.median(ratios[name]) for name in methods}


def table(rows: list[dict[str, Any]], methods: list[str]) -> str:
    """One line per model and batch: multiples of the forward pass."""
    header = ["model", "batch", *methods]
    cells = [
        [r["model"], str(r["batch"]), *(f"{v:.2f}" if isinstance(v := r[m], float) else "–" for m in methods)]
        for r in rows
    ]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in [header, *cells]]
    reasons = {f"– {m} on {r['model']}: {r[m]}" for r in rows for m in methods if isinstance(r[m], str)}
    return "\n".join([*lines, *sorted(reasons)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, batch 1 only")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the JSON (default: bench)")
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    rounds = args.rounds or (3 if args.quick else 7)
    methods = {name: METHODS[name] for name in args.methods}
    rows = []
    for name in args.models:
        model = load(name)
        for batch in args.batches or ([1] if args.quick else [1, 8]):
            x = photographs(batch, 224)
            print(f"measuring {name}, batch {batch}, {rounds} rounds …", flush=True)
            rows.append({"model": name, "batch": batch, **measure(model, x, methods, rounds)})
    print("\nmultiples of the model's own forward pass (medians of interleaved rounds)\n")
    print(table(rows, list(methods)))
    for row in rows:
        own, peer = row.get("plrp LRP"), row.get("Zennit")
        if isinstance(own, float) and isinstance(peer, float):
            against = ", ".join(
                f"{m} {row[m] / own:.2f} × own LRP"
                for m in ("plrp λ 0.2", "plrp M 0.2")
                if isinstance(row.get(m), float)
            )
            print(f"{row['model']}, batch {row['batch']}: {peer / own:.2f} × faster than Zennit; {against}")
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"threads": torch.get_num_threads(), "torch": torch.__version__, "rounds": rounds, "rows": rows}
    (args.out / "engine.json").write_text(json.dumps(record, indent=1))
    print(f"\nwritten to {args.out / 'engine.json'}")


if __name__ == "__main__":
    main()
