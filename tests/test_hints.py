"""Every hint that a refusal gives as code is followed, as a user would, and must then work."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import plrp


class Part(nn.Module):
    """A convolutional network whose output comes in some container."""

    def __init__(self, axes: int, wrap: Any = lambda output: output) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
        self.convs, self.wrap = nn.Sequential(kind(3, 4, 3), nn.ReLU(), kind(4, 5, 1)), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.convs(x))


class Named(NamedTuple):
    first: Tensor
    second: Tensor


CONTAINERS = {
    "a tensor": lambda y: y,
    "a segmenter's dict": lambda y: OrderedDict(out=y, aux=y),
    "a tuple": lambda y: (y, y),
    "a named tuple": lambda y: Named(y, y),
}


def said(model: Any, x: Any, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError, plrp.TraceError, plrp.UnsupportedOperation)) as caught:
        plrp.explain(model, x, **options)
    return str(caught.value)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_target_that_is_offered_is_explained(axes: int, container: str) -> None:
    model, x = Part(axes, CONTAINERS[container]).eval(), torch.rand(2, 3, *(6,) * axes)
    offered = re.search(r"target=(lambda output: .*)\.$", said(model, x))
    assert offered, said(model, x)
    assert plrp.explain(model, x, target=eval(offered[1])).relevance.shape == x.shape


@pytest.mark.parametrize("axes", [1, 2])
def test_the_reduction_that_is_offered_is_explained(axes: int) -> None:
    model, x = Part(axes).eval(), torch.rand(2, 3, *(6,) * axes)
    offered = re.search(r"for example with (\.\S+)\.$", said(model, x, target=lambda output: output[:, 1]))
    assert offered
    target = eval(f"lambda output: output[:, 1]{offered[1]}")
    assert plrp.explain(model, x, target=target).relevance.shape == x.shape


def test_a_flat_container_is_asked_for_its_first_class() -> None:
    model, x = nn.Linear(4, 3).eval(), torch.rand(2, 4)
    offered = re.search(r"target=(lambda output: .*)\.$", said(lambda x: {"scores": model(x)}, x))
    assert offered
    assert plrp.explain(lambda x: {"scores": model(x)}, x, target=eval(offered[1])).score.shape == (2,)


def test_the_place_of_log_odds_that_is_offered_is_explained() -> None:
    model, x = Part(1).eval(), torch.rand(2, 3, 6)
    sentence = said(model, x, target=plrp.targets.log_odds((2, 1)))
    assert "targets.log_odds(place, axis=…)" in sentence
    assert plrp.explain(model, x, target=plrp.targets.log_odds((2, 1), axis=1)).score.shape == (2,)
    assert plrp.explain(model, x, target=plrp.targets.contrast((2, 1), (0, 1))).score.shape == (2,)


def test_a_detector_is_sent_to_plrp_vision_detect() -> None:
    detection = pytest.importorskip("torchvision").models.detection
    torch.manual_seed(0)
    model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    model.score_thresh = 0.0
    picture = torch.rand(3, 64, 64)
    commands = re.findall(r"`([^`]+)`", said(model, picture[None]))
    known: dict[str, Any] = {"plrp": plrp, "model": model, "picture": picture}
    exec(commands[0], known)
    assert eval(commands[1], known).relevance.shape == known["found"].inputs.shape


@pytest.mark.filterwarnings("ignore")
def test_exported_and_quantised_models_are_sent_to_the_plain_one() -> None:
    torch.manual_seed(0)
    plain, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).eval(),
        torch.rand(2, 3, 6, 6),
    )
    program = torch.export.export(plain, (x,))
    for given in (program, program.module(), program.run_decompositions().module()):
        assert "explain the Python model that was exported" in said(given, x, target=(0, 0, 0))
    assert plrp.explain(plain, x, target=(0, 0, 0)).relevance.shape == x.shape
    quantization = torch.ao.quantization
    engines = torch.backends.quantized.supported_engines
    if "fbgemm" not in engines and "qnnpack" not in engines:
        pytest.skip("torch has no engine for quantised layers here")
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in engines else "qnnpack"
    dense = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 3), quantization.DeQuantStub()).eval()
    dense.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    watched = quantization.prepare(dense)
    watched(torch.rand(8, 4))
    for quantised in (quantization.convert(watched), quantization.quantize_dynamic(dense, {nn.Linear})):
        sentence = said(quantised, torch.rand(2, 4))
        assert "explain the model as it was before its layers were quantised" in sentence
    assert plrp.explain(dense, torch.rand(2, 4)).relevance.shape == (2, 4)


def test_a_refused_step_of_a_library_says_whose_it_is() -> None:
    code = "def forward(self, x):\n    h = self.one(x)\n    h[:, 0].random_(3)\n    return self.two(h)\n"
    known: dict[str, Any] = {"__name__": "library.models"}
    exec(compile(code, "/anywhere/site-packages/library/models.py", "exec"), known)
    layers = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 3)}

    def made(forward: Any) -> nn.Module:
        module = type("Library", (nn.Module,), {"forward": forward})()
        for name, layer in layers.items():
            setattr(module, name, layer)
        return module.eval()

    sentence = said(made(known["forward"]), torch.rand(2, 4))
    assert "part of library: derive a class from the module it is in" in sentence
    mended = made(lambda self, x: self.two(torch.cat([torch.ones(len(x), 1), self.one(x)[:, 1:]], 1)))
    assert plrp.explain(mended, torch.rand(2, 4)).relevance.shape == (2, 4)
