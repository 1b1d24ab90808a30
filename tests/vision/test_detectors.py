"""Boxes of detectors and areas of segmenters: what is explained is the class score of that place, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign, ps_roi_align, roi_align, roi_pool

import plrp
from plrp.cli import main
from plrp.errors import UsageError
from plrp.models.loading import load
from plrp.models.preprocessing import Preprocessing
from plrp.pruning import Pruning
from plrp.target_text import TargetError, WrittenTarget, class_number
from plrp.view.page_data import PageSettings
from plrp.view.uploads import open_photograph
from plrp.vision import detect, explain_photograph, network_picture, network_point, read_photograph
from plrp.vision.detection import _row

# --- maps read inside boxes -------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """A map, read inside one box per picture that depends on the picture, or two that do not."""

    def __init__(self, pool: Any, channels: int, moving: bool) -> None:
        super().__init__()
        self.pool, self.moving = pool, moving
        self.conv, self.where = nn.Conv2d(2, channels, 3, padding=1), nn.Linear(channels, 4)

    def boxes(self, features: Tensor) -> Tensor:
        batch = len(features)
        numbers = torch.arange(batch, dtype=features.dtype)[:, None]
        if self.moving:
            sides = self.where(features.mean((2, 3))).sigmoid()
            return torch.cat([numbers, 2 * sides[:, :2], 5 + 3 * sides[:, 2:]], 1)
        box = torch.tensor([[1.0, 0.5, 6.2, 7.0]], dtype=features.dtype).expand(batch, -1)
        return torch.cat([numbers, box], 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x)
        return self.pool(features, self.boxes(features), (2, 2)).flatten(1)


@pytest.mark.filterwarnings("ignore::plrp.BrokenArithmetic")
@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize(("pool", "channels"), [(roi_align, 3), (ps_roi_align, 4)])
def test_a_map_read_inside_boxes_is_a_linear_map_of_the_features(pool: Any, channels: int, moving: bool) -> None:
    torch.manual_seed(1)
    model, x = Pooled(pool, channels, moving).double().eval(), torch.randn(2, 2, 8, 8, dtype=torch.float64)
    found = plrp.explain(model, x, target=2, composite="epsilon")
    features = model.conv(x)
    boxes = model.boxes(features)

    def read(maps: Tensor) -> Tensor:
        return pool(maps, boxes, (2, 2)).flatten(1)

    assert float(found.closing().max()) < 1e-12
    for sample in range(2):  # the matrix column by column, as what a map of a single one becomes
        columns = []
        for neuron in range(features[0].numel()):
            one = torch.zeros_like(features)
            one[sample].view(-1)[neuron] = 1
            columns.append(read(one)[sample])
        matrix, z = torch.stack(columns, 1), read(features)[sample]
        given = torch.zeros_like(z)
        given[2] = z[2]
        expected = features[sample].flatten() * (matrix.T @ (given / (z + 1e-6 * z.sign())))
        back = plrp.explain(lambda maps: read(maps + 0), features.detach(), target=2, composite="epsilon").relevance
        torch.testing.assert_close(back[sample].flatten(), expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("moving", [False, True])
def test_each_window_of_a_pool_of_boxes_goes_to_its_winner(moving: bool) -> None:
    torch.manual_seed(2)
    model, x = Pooled(roi_pool, 3, moving).double().eval(), torch.randn(2, 2, 8, 8, dtype=torch.float64)
    features = model.conv(x).detach()
    found = plrp.explain(lambda m: roi_pool(m + 0, model.boxes(m), (2, 2)).flatten(1), features, target=5)
    z = roi_pool(features, model.boxes(features), (2, 2)).flatten(1)[:, 5]
    for sample in range(2):
        held = found.relevance[sample].nonzero()
        assert len(held) == 1
        assert float(features[sample][tuple(held[0])]) == float(z[sample].detach())


def test_boxes_that_depend_on_the_input_take_nothing_and_need_no_rule() -> None:
    class Odd(Pooled):
        def boxes(self, features: Tensor) -> Tensor:
            return super().boxes(features).fmod(100.0)  # fmod has no rule

    torch.manual_seed(0)
    model, x = Odd(roi_align, 3, True).double().eval(), torch.randn(1, 2, 8, 8, dtype=torch.float64)
    found = plrp.explain(model, x, target=0, composite="epsilon")
    assert "fmod" not in [row["op"] for row in found.booked]
    assert float(found.closing().max()) < 1e-12
    constant = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(plrp.UnsupportedOperation, match="a map that does not"):
        plrp.explain(lambda v: roi_align(constant, model.boxes(model.conv(v)), (2, 2)).flatten(1), x, target=0)


# --- detectors --------------------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    out_channels = 8

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.first(x).relu()
        return {"0": fine, "1": self.second(fine).relu()}


def detector(kind: str, classes: int = 5) -> nn.Module:
    torch.manual_seed(3)
    anchors = AnchorGenerator(((8, 16), (24, 32)), ((0.5, 1.0),) * 2)
    sizes: dict[str, Any] = {"min_size": 48, "max_size": 80}
    if kind == "FasterRCNN":
        pool = MultiScaleRoIAlign(["0", "1"], 3, 2)
        options: dict[str, Any] = {"rpn_anchor_generator": anchors, "box_roi_pool": pool, "box_score_thresh": 0.0}
        return FasterRCNN(Backbone(), classes, **options, **sizes).eval()
    if kind == "RetinaNet":
        model: nn.Module = RetinaNet(Backbone(), classes, anchor_generator=anchors, score_thresh=0.0, **sizes).eval()
    else:
        boxes = DefaultBoxGenerator([[2], [2]], scales=[0.1, 0.4, 0.8])
        backbone = Backbone()
        backbone.out_channels = [8, 8]  # type: ignore[assignment]
        model = SSD(backbone, boxes, (64, 64), classes, score_thresh=0.0).eval()
    for parameter in model.head.parameters():  # type: ignore[union-attr]
        nn.init.normal_(parameter, std=0.3)  # a fresh head gives every place the same score
    return model


KINDS = ("FasterRCNN", "RetinaNet", "SSD")


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_of_a_box_is_explained(kind: str) -> None:
    model, picture = detector(kind), torch.rand(3, 40, 60)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = detect(model, picture)
    own = model([picture])[0]
    scale = torch.tensor([60 / seen.size[1], 40 / seen.size[0]]).repeat(2)
    torch.testing.assert_close(torch.tensor([one.score for one in seen.boxes]), own["scores"].detach())
    for one, box, label in list(zip(seen.boxes, own["boxes"], own["labels"], strict=True))[:8]:
        torch.testing.assert_close(torch.tensor(one.box) * scale, box.detach(), rtol=1e-4, atol=1e-3)
        logits = one.scores(seen.inputs)[0].detach()  # of its own place: the probability is the detector's
        probabilities = logits.softmax(0) if seen.exclusive else logits.sigmoid()
        assert one.label == int(label)
        assert float(probabilities[one.label]) == pytest.approx(one.score, rel=1e-5)
    best = seen.boxes[0]
    for pruning in (None, plrp.Pruning(p=0.1)):
        found = plrp.explain(best.scores, seen.inputs, target=best.label, pruning=pruning, layers=True)
        assert float(found.closing().max()) < 1e-4
        assert "backbone.second" in found.layers.names  # as in the detector itself
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_another_size_is_the_detector_with_that_size(kind: str) -> None:
    model, picture = detector(kind), torch.rand(3, 40, 60)
    seen = detect(model, picture, resize=40)
    transform: Any = model.transform
    assert min(seen.size) == 40
    transform.min_size, transform.fixed_size = (40,), (40, 40) if kind == "SSD" else None
    torch.testing.assert_close(
        torch.tensor([one.score for one in seen.boxes]), model([picture])[0]["scores"].detach(), rtol=1e-4, atol=1e-6
    )


def test_what_is_no_known_detector_is_refused() -> None:
    picture = torch.rand(3, 40, 60)
    with pytest.raises(ValueError, match="Linear is no detector whose boxes"):
        detect(nn.Linear(2, 2), picture)
    fcos = FCOS.__new__(FCOS)
    nn.Module.__init__(fcos)
    with pytest.raises(ValueError, match="FCOS is no detector whose boxes"):
        detect(fcos, picture)
    with pytest.raises(ValueError, match=r"training mode.*model\.eval"):
        detect(detector("SSD").train(), picture)


# --- points and areas of segmenters -----------------------------------------------------------------------------------

NETWORK = """
import torch
from torch import nn
from plrp.models import Preprocessing

categories = ["__background__", "cat", "dog", "owl"]
preprocessing = Preprocessing(resize=32, crop=None)


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        scores = self.head(self.body(x).relu())
        return {"out": nn.functional.interpolate(scores, x.shape[2:], mode="bilinear"), "aux": scores}


def build():
    model = Segmenter()
    model.head.bias.data[3] = -100.0        # no owls
    return model


def coarse():
    return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.Conv2d(8, 4, 1))


def find():
    from small_detectors import detector

    return detector("FasterRCNN", classes=4)
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with networks and a photograph of 80 x 60 pixels, where the command runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network.py").write_text(NETWORK)
    monkeypatch.setitem(sys.modules, "small_detectors", SimpleNamespace(detector=detector))  # type: ignore[misc]
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((80, 60)).save(tmp_path / "cat.png")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "name", "at"),
    [
        ("dog", "dog", None),
        ("dog at 120,80", "dog", (120, 80)),
        ("at 3, 4", None, (3, 4)),
        ("7 at 0,0", "7", (0, 0)),
        ("bird at feeder", "bird at feeder", None),
        (None, None, None),
        (5, 5, None),
    ],
)
def test_how_a_target_is_read(target: Any, name: Any, at: Any) -> None:
    assert WrittenTarget.read(target) == WrittenTarget(name, at)


@pytest.mark.parametrize("crop", [None, 24, (20, 40)])
@pytest.mark.parametrize("resize", [None, 32, (28, 64)])
def test_a_point_is_where_the_network_sees_it(resize: Any, crop: Any, tmp_path: Path) -> None:
    preprocessing = Preprocessing(resize, crop)
    for x, y in ((40, 30), (36, 26)):
        pixels = np.zeros((60, 80, 3), dtype=np.uint8)
        pixels[y - 4 : y + 5, x - 4 : x + 5] = 255
        Image.fromarray(pixels).save(tmp_path / "spot.png")
        seen = np.asarray(network_picture(read_photograph(tmp_path / "spot.png"), preprocessing), dtype=float)[..., 0]
        rows, columns = np.indices(seen.shape) + 0.5
        middle = (columns * seen).sum() / seen.sum(), (rows * seen).sum() / seen.sum()
        assert network_point((x, y), (80, 60), preprocessing) == pytest.approx(middle, abs=0.6)


@pytest.mark.parametrize("build", ["build", "coarse"])
def test_a_point_of_a_segmenter(build: str, photos: Path) -> None:
    model = load(f"network.py:{build}")
    explained = explain_photograph("cat.png", model, target="dog at 25,40")
    output = model.module(explained.trace.inputs[0].data)
    scores = output["out"] if build == "build" else output
    height, width = scores.shape[2:]
    logits = scores[0, :, int(40.5 / 60 * height), int(25.5 / 80 * width)]
    torch.testing.assert_close(explained.logits, logits)
    assert (explained.target, explained.place.words) == (2, "at 25,40")  # type: ignore[union-attr]
    lrp = explained.relevance["LRP"].sum(0)
    rows, columns = lrp.nonzero(as_tuple=True)  # only around the point, and around it
    assert int(rows.max() - rows.min()) < 12
    assert int(columns.max() - columns.min()) < 12
    assert explain_photograph("cat.png", model, target="at 25,40").target == int(logits.argmax())


def test_the_area_of_a_class(photos: Path) -> None:
    model = load("network.py:build")
    explained = explain_photograph("cat.png", model, target="cat")
    scores = model.module(explained.trace.inputs[0].data)["out"][0]
    area = scores.argmax(0) == 1
    torch.testing.assert_close(explained.logits, scores[:, area].mean(1))
    assert explained.place is not None
    assert np.array_equal(explained.place.area, area.numpy())  # type: ignore[arg-type]
    sizes = scores.argmax(0).flatten().bincount(minlength=4)
    sizes[0] = 0
    assert explain_photograph("cat.png", model).target == int(sizes.argmax())  # never the background of itself


@pytest.mark.parametrize(
    ("model", "target", "sentence"),
    [
        ("build", "dog at 80,10", "80,10 lies outside cat.png, 80 x 60 pixels"),
        ("build", "owl", "sees no owl in cat.png; it sees"),
        ("build", "fish", "no class is called 'fish'"),
        ("find", "dog at 200,300", "lies outside"),
        ("find", "9", "there is no class 9"),
        ("find", "cat", "finds no cat in cat.png; it finds dog (28%)."),
    ],
)
def test_places_that_are_not_there(
    model: str, target: str, sentence: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "cat.png", "--model", f"network.py:{model}", "--target", target]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_classifier_has_no_places(photos: Path) -> None:
    with pytest.raises(TargetError, match="one answer for the whole picture: leave out 'at x,y'"):
        explain_photograph(
            "cat.png", nn.Sequential(nn.Conv2d(3, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()), target="at 1,1"
        )


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        ("build", "dog at 25,40", "dog at 25,40"),
        ("build", "cat", "cat where it wins ("),
        ("find", "dog at 40,30", "dog in the box "),
    ],
)
def test_the_command_explains_a_place(
    model: str, target: str, said: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--target", target, "-o", "out.svg", "--layers", "--save", "out.npz", "--dpi", "40"]
    assert main(["explain", "cat.png", "--model", f"network.py:{model}", *arguments]) == 0
    assert capsys.readouterr().out.startswith(f"cat.png, {said}")
    assert said in (photos / "out.svg").read_text()
    assert (photos / "out-layers.svg").exists()
    assert said.partition(" ")[2] in str(np.load("out.npz")["settings"])


def test_the_page_of_a_place(photos: Path) -> None:
    assert main(["explain", "cat.png", "--model", "network.py:build", "--target", "dog at 25,40", "-o", "x.html"]) == 0
    assert (photos / "x.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "lraspp_mobilenet_v3_large"])
def test_detectors_and_segmenters_of_torchvision_load_by_name(name: str) -> None:
    loaded = load(name, weights="random")
    assert loaded.categories is not None
    assert loaded.categories[0] == "__background__"
    assert (loaded.preprocessing is None) == name.startswith("faster")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fasterrcnn_resnet50_fpn_v2",
        "maskrcnn_resnet50_fpn",
        "retinanet_resnet50_fpn_v2",
        "ssdlite320_mobilenet_v3_large",
    ],
)
def test_detectors_of_torchvision_at_full_depth(name: str) -> None:
    torch.manual_seed(0)
    threshold = "box_score_thresh" if "rcnn" in name else "score_thresh"
    model = models.get_model(name, weights=None, weights_backbone=None, **{threshold: 0.0}).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 1.5)
    seen = detect(model, torch.rand(3, 120, 160), resize=160)
    best = seen.boxes[0]
    found = plrp.explain(best.scores, seen.inputs, target=best.label, composite="epsilon-plus-flat")
    assert float(found.closing().max()) < 1e-4


@pytest.mark.parametrize("name", ["²", "--1", "-"])
def test_what_only_looks_like_a_number_is_a_name(name: str) -> None:
    with pytest.raises(TargetError, match=f"no class is called '{name}'"):
        class_number(name, ["cat", "dog"])


def test_a_box_whose_score_no_place_has_is_refused() -> None:
    probabilities, boxes = torch.tensor([0.2, 0.7]), torch.eye(4)[:2]
    assert _row(probabilities, boxes, torch.tensor(0.7), boxes[1]) == 1
    with pytest.raises(UsageError, match=r"No place .* score of its box, 0\.9000"):
        _row(probabilities, boxes, torch.tensor(0.9), boxes[1])


def test_a_visitor_who_asks_anew_gets_the_place_of_that_target(photos: Path) -> None:
    """After `dog at x,y`, nothing is the model's own area again, and a class is scored where it wins."""
    model = load("network.py:build")
    opened = open_photograph((photos / "cat.png").read_bytes(), "cat.png", model, pruning=Pruning(), composite="auto")
    own = opened.explained
    for target in ("dog at 25,40", None, own.target_name):
        bundle = opened.bundle(target, PageSettings((0.1,), 1, "nothing"))
        expected = explain_photograph("cat.png", model, target=target)
        assert opened.explained.place is not None
        assert expected.place is not None
        assert opened.explained.place.words == expected.place.words
        assert bundle.facts["targets"][0]["score"] == pytest.approx(float(expected.logits[expected.target]), rel=1e-5)
