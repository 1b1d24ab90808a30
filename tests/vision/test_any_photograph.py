"""Photographs in any form, maps of other methods beside ours, and relevance read back from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import plrp
from plrp.models import Preprocessing, load
from plrp.models.loading import LoadedModel
from plrp.vision import BadImage, explain_photograph, heatmap
from plrp.vision.other_methods import gradcam, gradient_input, integrated_gradients, maps_beside

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip
    return LoadedModel(module, "small", "random", None, Preprocessing(resize=36, crop=32))


FORMS: dict[str, Any] = {
    "Pillow picture": Image.fromarray(PIXELS),
    "array of integers": PIXELS,
    "array of shares": PIXELS / 255,
    "tensor of integers": torch.from_numpy(PIXELS).permute(2, 0, 1),
    "tensor of shares": torch.from_numpy(PIXELS).permute(2, 0, 1).float() / 255,
    "batch of one": torch.from_numpy(PIXELS).permute(2, 0, 1)[None],
}


@pytest.mark.parametrize("form", [*FORMS, "path", "name", "address", "list"])
def test_every_form_of_a_photograph_is_explained_alike(form: str, model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "a picture.png"
    Image.fromarray(PIXELS).save(file)
    files = {"path": file, "name": str(file), "address": file.as_uri(), "list": [file]}
    expected = explain_photograph(file, model).relevance["LRP"]
    found = explain_photograph({**FORMS, **files}[form], model)
    assert torch.equal((found[0] if isinstance(found, list) else found).relevance["LRP"], expected)


def test_grey_and_transparent_arrays_are_photographs(model: LoadedModel) -> None:
    grey = explain_photograph(PIXELS[..., 0], model).picture
    assert np.array_equal(np.asarray(grey), np.asarray(explain_photograph(PIXELS[..., :1].repeat(3, 2), model).picture))
    opaque = np.concatenate([PIXELS, np.full((40, 48, 1), 255, np.uint8)], 2)
    assert np.array_equal(
        np.asarray(explain_photograph(opaque, model).picture), np.asarray(explain_photograph(PIXELS, model).picture)
    )


WRONG = {
    "normalised": (torch.randn(3, 8, 8), BadImage, "explain the normalised tensor with plrp.explain"),
    "not a number": (np.full((8, 8, 3), np.nan), BadImage, "nan"),
    "too many colours": (np.zeros((8, 8, 7)), BadImage, "3 or 4 colours last"),
    "truth values": (np.zeros((8, 8), bool), BadImage, "integers 0…255"),
    "no photograph": (12, TypeError, "got int"),
    "address of nothing": ("file:///no/such/file.png", BadImage, "cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_photograph_is_told(name: str, model: LoadedModel) -> None:
    given, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        explain_photograph(given, model)


# Beside


def test_other_methods_equal_captums(model: LoadedModel) -> None:
    net, x = model.module.double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    try:
        ours = gradient_input(net, x, lambda output: output[:, 1])
        assert torch.allclose(ours, captum.attr.InputXGradient(net).attribute(x, target=1))
        ours = integrated_gradients(net, x, lambda output: output[:, 1])
        theirs = captum.attr.IntegratedGradients(net).attribute(x, target=1, n_steps=32, method="riemann_middle")
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9)
        cam = captum.attr.LayerGradCam(net, net[3]).attribute(x, target=1, relu_attributions=True)
        assert torch.allclose(
            gradcam(net, x, lambda output: output[:, 1]), nn.functional.interpolate(cam, (32, 32), mode="bilinear")
        )
        assert not any(module._forward_hooks for module in net.modules())
    finally:
        net.float()


def test_gradcam_needs_a_convolution() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ValueError, match="needs a model with convolutions"):
        maps_beside(net, torch.randn(1, 3, 2, 2), lambda output: output[:, 0], ["gradcam"])


def test_pictures_show_the_other_methods(model: LoadedModel) -> None:
    prunings = [plrp.Pruning(p=p, redistribution=how) for how in ("lambda", "M-sign") for p in (0.1, 0.3)]
    found = explain_photograph(PIXELS, model, prunings=prunings, beside=["gradcam", "ig", "gradient-input"])
    for figure in (found.figure(), found.comparison()):
        titles = [ax.get_title() for ax in figure.axes]
        assert {"GradCAM", "integrated gradients", "gradient × input", "LRP"} <= set(titles)
    with pytest.raises(
        ValueError, match="Unknown method 'grad-cam': beside ours, gradcam, gradient-input, ig, lrp can be drawn"
    ):
        explain_photograph(PIXELS, model, beside=["grad-cam"])


def test_the_explained_class_is_among_the_bars(model: LoadedModel) -> None:
    module = nn.Sequential(model.module, nn.Linear(4, 12)).eval()
    ten = LoadedModel(module, "ten", "random", tuple(f"name {k}" for k in range(12)), model.preprocessing)
    weakest = int(explain_photograph(PIXELS, ten).logits.argmin())
    figure = explain_photograph(PIXELS, ten, target=weakest).figure()
    assert f"name {weakest}" in [text.get_text() for ax in figure.axes for text in ax.texts]


# Saved and loaded, shown


def test_what_was_saved_comes_back(model: LoadedModel, tmp_path: Path) -> None:
    found = explain_photograph(PIXELS, model, target=2)
    found.save(tmp_path / "relevance.npz")
    back = plrp.load(tmp_path / "relevance.npz")
    assert list(back.relevance) == list(found.relevance)
    for name, relevance in found.relevance.items():
        assert torch.equal(back.relevance[name], relevance)
    assert torch.equal(back.logits, found.logits)
    assert (back.target, back.target_name) == (2, "class 2")
    assert back.settings["composite"] == "epsilon-plus-flat"
    assert np.array_equal(back.picture, np.asarray(found.picture))
    assert len(back.figure().axes) >= 6
    assert "class 2" in repr(back)


def test_what_is_no_saved_relevance_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.npz does not exist"):
        plrp.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    for name, settings in (("number", "0"), ("list", "[]"), ("deep", "[" * 100_000)):
        np.savez(tmp_path / f"{name}.npz", settings=settings)
    for name in ("other.npz", "text.npz", "number.npz", "list.npz", "deep.npz"):
        with pytest.raises(ValueError, match=f"{name} is damaged, or was not written by `plrp explain --save`"):
            plrp.load(tmp_path / name)


def test_what_a_notebook_prints_is_short(model: LoadedModel) -> None:
    found = explain_photograph(PIXELS, model)
    for thing in (found, load("resnet18", weights="random"), heatmap(found.relevance["LRP"])):
        assert len(repr(thing)) < 300, repr(thing)
    assert found._repr_png_().startswith(b"\x89PNG")
