"""Colours mean what they say: symmetric, robust, visible to every eye, and not a pixel lost."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from plrp.files import new_file
from plrp.vision import Heatmap, heatmap, save_figure
from plrp.vision.heatmaps import COLOURS, colour_table, limits_of, outline_level

maps = arrays(np.float64, (12, 9), elements=st.floats(-1e3, 1e3, width=32))


def rgb(drawn: Heatmap) -> np.ndarray:
    return drawn.numpy()[..., :3].astype(int)


# Colours


@pytest.mark.parametrize("colours", [*COLOURS, "seismic"])
@settings(deadline=None, max_examples=20)
@given(relevance=maps)
def test_the_opposite_relevance_has_the_opposite_colour(colours: str, relevance: np.ndarray) -> None:
    table = np.rint(colour_table(colours)).astype(int).tolist()
    opposite: dict[tuple[int, ...], list[list[int]]] = {}
    for place, colour in enumerate(table):
        opposite.setdefault(tuple(colour), []).append(table[-1 - place])
    there = rgb(heatmap(relevance, colours=colours)).reshape(-1, 3).tolist()
    back = rgb(heatmap(-relevance, colours=colours)).reshape(-1, 3).tolist()
    assert all(b in opposite[tuple(a)] for a, b in zip(there, back, strict=True))


@pytest.mark.parametrize("colours", COLOURS)
def test_zero_is_neutral_and_the_ends_are_the_limits(colours: str) -> None:
    drawn = rgb(heatmap(np.array([[-2.0, 0.0, 2.0, 7.0]]), colours=colours, scale=2.0))
    table = np.rint(colour_table(colours)).astype(int)
    assert len(set(drawn[0, 1].tolist())) == 1  # grey of some lightness
    assert drawn[0].tolist() == [table[0].tolist(), table[255].tolist(), table[-1].tolist(), table[-1].tolist()]


def luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("colours", COLOURS)
def test_lightness_falls_evenly_from_zero_to_both_ends(colours: str) -> None:
    light = np.array([luminance(c / 255) for c in colour_table(colours)])
    light = light if light[255] > 0.5 else 1 - light
    assert (np.diff(light[:256]) >= -1e-9).all()
    assert (np.diff(light[255:]) <= 1e-9).all()


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(colour: np.ndarray, blindness: str) -> np.ndarray:
    """CIELAB of an sRGB colour (0 to 1) as a colour-blind eye sees it."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colours", COLOURS)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_positive_and_negative_stay_apart_for_colour_blind_eyes(colours: str, blindness: str) -> None:
    table = colour_table(colours) / 255
    for strength in (64, 128, 191, 255):  # of 255
        apart = lab(table[255 + strength], blindness) - lab(table[255 - strength], blindness)
        assert np.linalg.norm(apart) > 18, (strength, apart)


PAGE = {  # what lies side by side on the page, by the names of its style sheet
    "flow": ("for", "against"),
    "ledger": ("press", "bias", "epsilon", "inside", "cut"),
    "curves": ("sparsity", "kept", "inside"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_flow_ledger_and_curves_of_the_page_stay_apart_for_colour_blind_eyes(scheme: str, blindness: str) -> None:
    style = (resources.files("plrp.view") / "front" / "style.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): #(\w{6})", part)) for part in style.split("@media")[:2])
    colours = light if scheme == "light" else {**light, **dark}
    for names in PAGE.values():
        seen = {name: lab(np.array(list(bytes.fromhex(colours[name]))) / 255, blindness) for name in names}
        for one, other in combinations(names, 2):
            assert np.linalg.norm(seen[one] - seen[other]) > 18, (one, other)


def test_unknown_colours_are_named() -> None:
    with pytest.raises(ValueError, match="unknown colours 'rainbows': choose red-blue, orange-purple"):
        heatmap(np.ones((2, 2)), colours="rainbows")


def test_a_colour_map_of_matplotlib_is_taken_as_an_object_too() -> None:
    relevance = np.random.default_rng(0).normal(size=(5, 7))
    by_name, by_object = (heatmap(relevance, colours=c) for c in ("PuOr", matplotlib.colormaps["PuOr"]))
    assert np.array_equal(by_name.numpy(), by_object.numpy())
    assert "PuOr" in repr(by_object)


@pytest.mark.parametrize("colours", ["viridis", "Reds", "gray", matplotlib.colormaps["magma"]])
def test_colours_that_do_not_diverge_are_refused(colours: Any) -> None:
    with pytest.raises(ValueError, match=r"do not diverge from their middle.*choose red-blue"):
        heatmap(np.ones((2, 2)), colours=colours)


# Scale


def test_an_outlier_does_not_turn_the_rest_white() -> None:
    relevance = np.random.default_rng(0).normal(size=(100, 100))
    calm = limits_of(relevance[None])[0]
    relevance[3, 3] = 1e6
    assert limits_of(relevance[None])[0] < 1.2 * calm
    assert limits_of(relevance[None], percentile=100)[0] == 1e6


def test_the_scale_is_that_of_relevant_pixels_however_few() -> None:
    relevance = np.zeros((100, 100))
    relevance[:2, :10] = np.linspace(1, 2, 20).reshape(2, 10)
    assert 1.9 < limits_of(relevance[None])[0] <= 2  # the 99.5th percentile of all pixels would be 0


def test_samples_have_their_own_scale_or_share_one() -> None:
    batch = torch.ones(2, 3, 4, 4)
    batch[1] *= 10
    assert heatmap(batch).limits.tolist() == [3.0, 30.0]
    assert heatmap(batch, scale="shared").limits.tolist() == [30.0, 30.0]
    assert heatmap(batch, scale=7).limits.tolist() == [7.0, 7.0]
    own = heatmap(batch).numpy()
    assert np.array_equal(own[0], own[1])
    shared = heatmap(batch, scale="shared").numpy()
    assert not np.array_equal(shared[0], shared[1])


def test_a_sample_is_drawn_alike_alone_and_in_a_batch() -> None:
    batch = torch.randn(3, 3, 20, 20)
    together = heatmap(batch).numpy()
    assert together.shape == (3, 20, 20, 4)
    for index in range(3):
        assert np.array_equal(together[index], heatmap(batch[index]).numpy())
        assert np.array_equal(together[index], heatmap(batch[index].sum(0)).numpy())


@settings(deadline=None, max_examples=20)
@given(relevance=maps, gamma=st.floats(0.2, 3))
def test_gamma_keeps_order_and_sign(relevance: np.ndarray, gamma: float) -> None:
    from plrp.vision.heatmaps import _strength

    limits = limits_of(relevance[None])
    plain, curved = _strength(relevance[None], limits, 1.0), _strength(relevance[None], limits, gamma)
    assert np.array_equal(np.sign(plain), np.sign(curved))
    order = np.argsort(plain, axis=None)
    assert (np.diff(curved.ravel()[order]) >= -1e-12).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_colour_bar_shows_the_colours_of_the_map(gamma: float) -> None:
    drawn = heatmap(np.array([[-1.0, -0.5, 0.0, 0.25, 1.0]]), gamma=gamma, scale=1.0)
    figure = drawn.figure()
    figure.draw_without_rendering()
    (bar,) = figure.axes[0].child_axes
    colours = bar.collections[-1]  # the mesh of the bar
    for value, wanted in zip((-1.0, -0.5, 0.0, 0.25, 1.0), rgb(drawn)[0], strict=True):
        shown = np.asarray(colours.cmap(colours.norm(value)))[:3] * 255
        assert np.abs(shown - wanted).max() <= 3


def test_a_map_of_zeros_is_blank() -> None:
    drawn = heatmap(torch.zeros(3, 80, 80))
    assert drawn.limits.tolist() == [0.0]
    assert (rgb(drawn) == 255).all()
    assert (heatmap(torch.zeros(3, 80, 80), background="transparent").numpy()[..., 3] == 0).all()
    assert (rgb(heatmap(torch.zeros(3, 80, 80), colours="red-blue-dark")) == 0).all()


# Sparse maps


def test_a_single_surviving_pixel_stays_visible() -> None:
    relevance = torch.zeros(3, 224, 224)
    relevance[1, 100, 50] = 1e-9
    strongest = np.rint(colour_table("red-blue")[-1]).astype(int).tolist()
    drawn = rgb(heatmap(relevance))
    assert all(drawn[y, x].tolist() == strongest for y in range(98, 103) for x in range(48, 53))
    assert (drawn != 255).any(-1).sum() == 25
    picture = Image.new("RGB", (224, 224), (90, 120, 150))
    over = rgb(heatmap(relevance, picture=picture))
    assert np.abs(over[100, 50] - over[0, 0]).sum() > 150
    assert (rgb(heatmap(relevance, dilate=0)) != 255).any(-1).sum() == 1


def test_dense_maps_are_not_grown() -> None:
    relevance = torch.randn(3, 224, 224)
    assert np.array_equal(heatmap(relevance).numpy(), heatmap(relevance, dilate=0).numpy())


@settings(deadline=None, max_examples=30)
@given(
    relevance=arrays(np.float64, (10, 8), elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.0, 3.0, -0.5])),
    radius=st.integers(1, 3),
)
def test_growing_takes_the_strongest_within_reach(relevance: np.ndarray, radius: int) -> None:
    grown = heatmap(relevance, dilate=radius).values[0]
    for y in range(10):
        for x in range(8):
            around = relevance[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
            if relevance[y, x] != 0:
                assert grown[y, x] == relevance[y, x]
            else:
                assert abs(grown[y, x]) == np.abs(around).max()
                assert grown[y, x] == 0 or grown[y, x] in around


# Outputs


def test_transparent_where_there_is_no_relevance(tmp_path: Path) -> None:
    relevance = np.zeros((100, 100))
    relevance[:50] = 1
    heatmap(relevance, background="transparent").save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        alpha = np.asarray(image)[..., 3]
    assert image.mode == "RGBA"
    assert (alpha[:50] == 255).all()
    assert (alpha[50:] == 0).all()


def test_an_overlay_shows_the_picture_where_there_is_no_relevance() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)
    relevance = np.zeros((80, 80))
    relevance[:40] = 1
    over = rgb(heatmap(relevance, picture=picture))
    grey = 0.55 * picture[40:] @ np.array([0.299, 0.587, 0.114]) + 0.45 * 255
    assert np.abs(over[40:, :, 0] - grey).max() <= 1
    assert (over[:40, :, 0] > over[:40, :, 2] + 50).all()  # red on top
    unseen = rgb(heatmap(relevance, picture=picture, opacity=0))
    assert np.array_equal(unseen[40:], over[40:])
    assert not (unseen[:40, :, 0] > unseen[:40, :, 2]).any()


def test_enlarged_pixels_are_squares() -> None:
    relevance = np.random.default_rng(0).normal(size=(5, 7))
    drawn = heatmap(relevance, enlarge=4).numpy()
    assert drawn.shape == (20, 28, 4)
    assert np.array_equal(drawn[2::4, 1::4], heatmap(relevance).numpy())


def test_png_holds_the_pixels(tmp_path: Path) -> None:
    drawn = heatmap(torch.randn(3, 30, 40))
    drawn.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.asarray(image), drawn.numpy())
    assert np.array_equal(np.asarray(drawn.pil()), drawn.numpy())
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_several_heatmaps_become_one_figure_without_room_for_titles(tmp_path: Path) -> None:
    heatmap(torch.randn(2, 3, 30, 60)).save(tmp_path / "two.png")
    with Image.open(tmp_path / "two.png") as image:
        pixels = np.asarray(image.convert("L"))
    rows = np.flatnonzero((pixels < 250).any(1))
    assert rows[0] < 0.1 * len(pixels)  # no blank band above
    assert rows[-1] > 0.9 * len(pixels)


def test_labels_stay_text_in_svg_and_pdf(tmp_path: Path) -> None:
    drawn = heatmap(torch.randn(2, 3, 30, 40))
    drawn.save(tmp_path / "a.svg", titles=["a schnauzer", "a terrier"])
    svg = (tmp_path / "a.svg").read_text()
    assert "a schnauzer</text>" in svg
    assert "a terrier</text>" in svg
    drawn.save(tmp_path / "a.pdf", titles=["a schnauzer", "a terrier"])
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf  # TrueType: text can be selected and searched
    drawn.save(tmp_path / "b.svg", titles=["a schnauzer", "a terrier"])
    assert (tmp_path / "b.svg").read_text() == svg  # the same input gives the same file


def test_titles_must_fit() -> None:
    with pytest.raises(ValueError, match="1 titles were given for 2 heatmaps"):
        heatmap(torch.randn(2, 3, 8, 8)).figure(["one"])


def test_a_figure_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = heatmap(torch.randn(3, 8, 8)).figure()
    save_figure(figure, tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()

    def torn(path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "savefig", torn)
    with pytest.raises(KeyboardInterrupt):
        save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(ValueError, match=r"a\.docx should end in \.png"):
        save_figure(figure, tmp_path / "a.docx")


def test_whole_files_have_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with new_file(tmp_path / "whole") as part:
        part.write_text("done")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


@settings(deadline=None, max_examples=20)
@given(relevance=arrays(np.float64, (16, 16), elements=st.floats(0, 1, width=32)), share=st.floats(0.1, 0.99))
def test_an_outline_holds_its_share_and_not_much_more(relevance: np.ndarray, share: float) -> None:
    field, level = outline_level(relevance, share)
    if relevance.sum() == 0:
        assert level == np.inf
        return
    inside = field[field >= level].sum()
    assert inside >= share * field.sum() * (1 - 1e-9)
    assert field[field > level].sum() <= share * field.sum() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"relevance": np.zeros(5)}, r"relevance is \(height, width\)"),
        ({"relevance": np.zeros((0, 5))}, r"relevance is \(height, width\)"),
        ({"relevance": np.array([[np.nan, 1.0]])}, "infinite or undefined"),
        ({"percentile": 0}, "percentile"),
        ({"background": "pink"}, '"white", "black" or "transparent"'),
        ({"gamma": 0}, "gamma is positive"),
        ({"opacity": 2}, "opacity between 0 and 1"),
        ({"dilate": -1}, 'pixels or "auto"'),
        ({"scale": "batch"}, '"sample", "shared" or a number'),
        ({"scale": -1}, "positive"),
        ({"picture": np.zeros((3, 3, 3))}, "pass the picture that the network saw"),
        ({"picture": [np.zeros((4, 4, 3))] * 2}, "2 pictures were given for 1 samples"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        heatmap(**{"relevance": np.ones((4, 4)), **arguments})  # type: ignore[arg-type]
