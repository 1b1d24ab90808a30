"""Logos: letters where they belong, files that repeat themselves, and the drawing done with few patches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from plrp.genomics import (  # noqa: E402
    draw_logo,
    encode,
    logo_page,
    plot_logos,
)
from plrp.genomics.logo import _GAP, COLOURS, _glyph, strongest_bases  # noqa: E402

RNG = np.random.default_rng(0)


def axes():
    return Figure().subplots()


def boxes(ax) -> dict[str, list[tuple[float, float, float, float]]]:
    """Bounding boxes of every drawn letter, by colour: (left, bottom, right, top)."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    names = {colour: letter for letter, colour in COLOURS.items()}
    for patch in ax.patches:
        letter = names[to_hex(patch.get_facecolor())]
        size = len(_glyph(letter)[0])
        vertices = patch.get_path().vertices.reshape(-1, size, 2)
        found[letter] = [(*v.min(0), *v.max(0)) for v in vertices]
    return found


def test_every_letter_stands_at_its_base_with_its_height() -> None:
    ax = axes()
    letters, values = "ACGTAC", np.array([1, 2, -3, 0, 0.5, -0.25])
    draw_logo(ax, values, letters, start=10)
    found = boxes(ax)
    assert set(found) == {"A", "C", "G"}  # T has no relevance: nothing is drawn
    for position, (letter, value) in enumerate(zip(letters, values, strict=True)):
        if value:
            box = next(b for b in found[letter] if abs((b[0] + b[2]) / 2 - (10 + position)) < 0.01)
            assert box[2] - box[0] == pytest.approx(1 - _GAP)
            assert (box[1], box[3]) == pytest.approx((min(0, value), max(0, value)))


def test_stacks_have_small_letters_at_the_axis_and_fill_the_column() -> None:
    ax = axes()
    draw_logo(ax, np.array([[3.0], [1.0], [-2.0], [-0.5]]))
    found = {letter: b[0] for letter, b in boxes(ax).items()}
    assert found["C"][1::2] == pytest.approx((0, 1))
    assert found["A"][1::2] == pytest.approx((1, 4))
    assert found["T"][1::2] == pytest.approx((-0.5, 0))
    assert found["G"][1::2] == pytest.approx((-2.5, -0.5))


def test_a_row_of_any_length_is_at_most_four_patches() -> None:
    ax = axes()
    draw_logo(ax, RNG.normal(size=1000), "".join(RNG.choice(list("ACGT"), 1000)))
    assert len(ax.patches) == 4


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_data_give_the_same_bytes(tmp_path: Path, kind: str) -> None:
    rows = {"truth": RNG.random(30) > 0.7, "LRP": RNG.normal(size=30)}
    for name in ("a", "b"):
        plot_logos(rows, "ACGTN" * 6, sites=[(3, 9, "GATA1")], path=tmp_path / f"{name}.{kind}", title="one")
    one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
    assert one == two
    assert len(one) > 1000


def test_a_page_has_one_row_per_track_and_sequence_on_one_axis() -> None:
    entry = ("s", {"truth": np.ones(40, bool), "LRP": RNG.normal(size=40)}, "ACGT" * 10, [(5, 9, "X")])
    figure = logo_page([entry, entry, entry], window=(10, 30))
    assert len(figure.axes) == 6
    assert {ax.get_xlim() for ax in figure.axes} == {(9.5, 29.5)}
    same = logo_page([entry], same_scale=True)
    assert len({ax.get_ylim() for ax in same.axes}) == 1


def test_ticks_are_round_numbers_also_around_a_variant() -> None:
    figure = plot_logos({"LRP": RNG.normal(size=60)}, "ACGT" * 15, window=(4, 57), first_base=-30)
    (ax,) = figure.axes
    shown = dict(zip([text.get_text() for text in ax.get_xticklabels()], ax.get_xticks(), strict=True))
    assert shown["0"] == 30
    assert all(int(text) % 5 == 0 and 4 <= place < 57 for text, place in shown.items())


def test_labels_and_motif_names_stay_on_the_page() -> None:
    rows = {"ground truth": np.ones(60, bool), "PLRP-λ\np=0.25": RNG.normal(size=60)}
    figure = plot_logos(rows, "ACGT" * 15, sites=[(2, 9, "TAL1::TCF3")], title="a sequence with a long title")
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    for ax in figure.axes:
        for text in (ax.yaxis.label, *ax.texts, *ax.get_xticklabels()):
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= width
            assert box.y1 <= height


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 values need as many letters; got 2"):
        draw_logo(axes(), np.ones(3), "AC")
    with pytest.raises(ValueError, match="NaN or infinity"):
        draw_logo(axes(), np.array([1, np.nan]), "AC")
    with pytest.raises(ValueError, match=r"\(position,\) or \(4, position\)"):
        draw_logo(axes(), np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"x\.gif should end in \.png, \.svg, \.pdf"):
        plot_logos({"x": np.ones(4)}, "ACGT", path=tmp_path / "x.gif")
    with pytest.raises(ValueError, match="0 or more and before the end"):
        plot_logos({"x": np.ones(4)}, "ACGT", window=(3, 2))
    with pytest.raises(ValueError, match="Nothing to draw"):
        logo_page([])
    assert not list(tmp_path.iterdir())


def test_a_share_of_the_mass_is_drawn_and_the_numbers_stay() -> None:
    values = np.random.default_rng(0).normal(size=(4, 30)) * encode("ACGTAC" * 5)
    before = values.copy()
    for mass in (0.3, 0.8, 1.0):
        drawn = strongest_bases(values, mass)
        kept = np.abs(drawn).sum(0) > 0
        size = np.abs(values).sum(0)
        assert size[kept].sum() >= mass * size.sum() * (1 - 1e-9)
        assert size[kept].sum() - size[kept].min() < mass * size.sum()  # one base less would be too few
        assert np.array_equal(drawn[:, kept], values[:, kept])
    assert np.array_equal(values, before)
    with pytest.raises(ValueError, match="mass=0"):
        strongest_bases(values, 0)
    figure = plot_logos({"LRP": values}, "ACGTAC" * 5, mass=0.5)
    assert figure.axes
