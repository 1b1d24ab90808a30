"""What is explained in the benchmarks: torchvision models and photographs."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn


def shared_data() -> Path | None:
    """The folder of real weights and photographs, if it is there."""
    folder = Path(os.environ.get("PLRP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None


def load(name: str) -> nn.Module:
    """A torchvision model with the real weights that are there (VGG's fully connected layers are random).

    Where there are none, the weights are random and the BatchNorms hold the statistics of two photographs, so that
    activations keep their size however deep the network is.
    """
    torch.manual_seed(0)
    model: nn.Module = getattr(torchvision.models, name)(weights=None)
    data = shared_data()
    file = {"resnet50": "resnet50.pth", "vgg16": "vgg16_gap.pth"}.get(name)
    if data is not None and file is not None:
        state = torch.load(data / "weights" / file, weights_only=True)
        own = model.state_dict()
        fitting = {k: v.float() for k, v in state.items() if k in own and own[k].shape == v.shape}
        model.load_state_dict(fitting, strict=False)
    else:
        calibrate(model, photographs(2, 224))
    return model.eval()


def calibrate(model: nn.Module, x: Tensor) -> None:
    """Give the BatchNorms of a model with random weights the statistics of a batch."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    with torch.no_grad():
        model(x)
    model.eval()


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
