"""The paper's figures: they show the numbers, name every line, look the same every time, and bear with gaps."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex  # noqa: E402

from made_runs import (  # noqa: E402
    SHARE,
    from_arrays,
    usual,
    usual_curve,
)
from plrp.experiments import score_figures  # noqa: E402
from plrp.experiments.aligned_scores import BASELINE, LRP, VARIANTS, AlignedScores, Flipping, Method  # noqa: E402
from plrp.experiments.pages import data_uri  # noqa: E402
from plrp.experiments.score_figures import STYLES, apart  # noqa: E402

SHARES = (0.05, 0.15, 0.3, 0.6, 0.9)
METRICS = ("gini", "relevance_mass_accuracy", "local_lipschitz", "pixel_flipping_auc")


def made(samples: int = 5, metrics=METRICS, variants=VARIANTS, shares=SHARES) -> AlignedScores:
    def column(variant: str, p: float, metric: str) -> np.ndarray:
        return np.array([usual(s, variant, p, metric) for s in range(samples)])

    values = {
        metric: {BASELINE: {0.0: column(BASELINE, 0.0, metric)}}
        | {v: {p: column(v, p, metric) for p in shares} for v in variants}
        for metric in metrics
    }
    m = from_arrays("net", values, samples)
    for variant, p in [(BASELINE, 0.0), *((v, p) for v in variants for p in shares)]:
        curves = np.array([usual_curve(s, variant, p) for s in range(samples)])
        m.flipping["pixel_flipping_auc", "most", variant, p] = Flipping(np.array(SHARE), curves)
    return m


def lines(ax) -> dict[str, np.ndarray]:
    """The drawn points (2, n) by colour, threads to names left out."""
    return {to_hex(line.get_color()): line.get_xydata().T for line in ax.lines if line.get_transform() == ax.transData}


def png(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50, metadata={"Software": None})
    return buffer.getvalue()


def test_lines_are_the_means_and_start_at_lrp() -> None:
    m = made()
    whole, zoom = score_figures.over_p([m], ["gini"]).axes
    for variant in VARIANTS:
        x, y = lines(whole)[STYLES[variant].colour]
        assert list(x) == [0, *SHARES]
        expected = [m.mean("gini", LRP), *m.means("gini", variant, SHARES)]
        np.testing.assert_allclose(y, expected)
        assert list(lines(zoom)[STYLES[variant].colour][0]) == [0, 0.05, 0.15, 0.3]
    assert whole.get_ylim() == (0, 1)
    assert zoom.get_ylim()[0] > 0.4
    assert len(whole.collections) == len(VARIANTS)  # the bands
    band = whole.collections[0].get_paths()[0].vertices[:, 1]
    mean, low, high = m.band("gini", "lambda")
    assert {*np.round(low, 9), *np.round(high, 9)} <= {*np.round(band, 9)}
    assert (low <= mean).all()
    assert (mean <= high).all()


def test_a_close_up_is_of_the_lines_however_wide_the_bands() -> None:
    """Samples that differ far more among themselves than methods do: the lines fill the panel."""
    apart_by = np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
    values = {"gini": {BASELINE: {0.0: 0.5 + apart_by}, "lambda": {p: 0.5 + 0.01 * p + apart_by for p in SHARES}}}
    _, zoom = score_figures.over_p([from_arrays("net", values, 5)], ["gini"]).axes
    _, y = lines(zoom)[STYLES["lambda"].colour]
    low, high = zoom.get_ylim()
    assert low < y.min()
    assert y.max() < high
    assert high - low < 4 * (y.max() - y.min())
    assert not zoom.collections  # a band that fills the panel tells nothing


def test_metrics_within_a_sentence() -> None:
    assert score_figures.metric("relevance_mass_accuracy").words == "relevance mass accuracy"
    assert score_figures.metric("gini").words == "Gini index"


def test_every_line_is_named_in_its_own_colour_and_names_do_not_overlap() -> None:
    for draw in (
        lambda: score_figures.over_p([made()], METRICS),
        lambda: score_figures.faithfulness([made()], "pixel_flipping_auc", 0.15),
        lambda: score_figures.over_p([made()], METRICS, differences=True, zoom=False, narrow=True),
    ):
        figure = draw()
        for ax in figure.axes:
            named = [text for text in ax.texts if text.get_text() in {score_figures.short(v) for v in STYLES}]
            if not named:  # where all flipping curves meet
                assert "left, p" in ax.get_title("left")
                continue
            assert {text.get_text() for text in named} == {"LRP", "λ", "λ gain", "M", "M gain", "M±", "M± gain"}
            colours = {score_figures.short(v): style.text for v, style in STYLES.items()}
            assert all(to_hex(text.get_color()) == colours[text.get_text()] for text in named)
            boxes = sorted((text.get_window_extent() for text in named), key=lambda box: box.y0)
            assert all(a.y1 - 0.3 * a.height <= b.y0 for a, b in pairwise(boxes))
        size = figure.bbox
        for text in [t for ax in figure.axes for t in ax.texts]:
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= size.width


def test_figures_are_the_same_every_time_and_not_empty() -> None:
    for draw in (
        lambda: score_figures.over_p([made()], METRICS[:1]),
        lambda: score_figures.faithfulness([made()], "pixel_flipping_auc", 0.15),
        lambda: score_figures.side_by_side(made(), made(3), METRICS[:1]),
    ):
        first = png(draw())
        assert first == png(draw())
        pixels = matplotlib.image.imread(io.BytesIO(first))[..., :3]
        assert (pixels < 0.9).any(2).mean() > 0.01


def test_differences_are_paired() -> None:
    m = made()
    (ax,) = score_figures.over_p([m], ["gini"], differences=True, zoom=False).axes
    _, y = lines(ax)[STYLES["M"].colour]
    np.testing.assert_allclose(y[1:], [m.difference("gini", Method("M", p), LRP).mean for p in SHARES])
    assert y[0] == 0


def test_gaps_one_sample_and_nan() -> None:
    alone = made(1)
    whole = score_figures.over_p([alone], ["gini"]).axes[0]
    assert not whole.collections  # one sample has no interval
    holes = made()
    holes.values["gini", "lambda"][0.3][:] = np.nan
    x, _ = lines(score_figures.over_p([holes], ["gini"]).axes[0])[STYLES["lambda"].colour]
    assert list(x) == [0, 0.05, 0.15, 0.6, 0.9]
    figure = score_figures.over_p([made(metrics=["gini"]), made()], ["gini", "local_lipschitz"])
    said = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert said.count("not measured") == 1
    nothing = AlignedScores("net", np.arange(3), {})
    png(score_figures.over_p([nothing], ["gini"]))
    png(
        score_figures.faithfulness(
            [made(metrics=["pixel_flipping_auc"], variants=("lambda",)), nothing], "pixel_flipping_auc", 0.15
        )
    )
    curve = made()
    for key, flips in curve.flipping.items():
        curve.flipping[key] = Flipping(flips.share, np.full_like(flips.score, np.nan))
    png(score_figures.faithfulness([curve], "pixel_flipping_auc", 0.15))


def test_other_grids_stand_side_by_side() -> None:
    figure = score_figures.side_by_side(made(), made(4, shares=(0.1, 0.5)), ["gini"])
    first = figure.axes[0]
    drawn = [line.get_xdata() for line in first.lines if line.get_transform() == first.transData]
    assert [list(x) for x in drawn] == [[0, *SHARES], [0, 0.1, 0.5]]


def test_large_spreads_get_a_logarithmic_axis() -> None:
    m = made(metrics=["local_lipschitz"])
    assert score_figures.over_p([m], ["local_lipschitz"]).axes[0].get_yscale() == "linear"
    m.values["local_lipschitz", "M"][0.9][:] = 100.0
    m._bands.clear()
    assert score_figures.over_p([m], ["local_lipschitz"]).axes[0].get_yscale() == "log"


def test_the_example_is_the_nearest_measured() -> None:
    assert list(score_figures.example_flips(made(shares=(0.1, 0.3)), "pixel_flipping_auc", 0.15))[1] == Method(
        "lambda", 0.1
    )
    assert (
        list(score_figures.example_flips(made(shares=(0.1, 0.2)), "pixel_flipping_auc", 0.15))[1].p == 0.1
    )  # of two, the lower


@pytest.mark.parametrize("seed", range(20))
def test_names_are_moved_apart_and_no_further(seed) -> None:
    rng = np.random.default_rng(seed)
    places, gap = rng.choice([0.0, 0.1, 0.5, 0.51, 1.0, rng.random()], 5), 0.09
    placed = apart(places, gap)
    order = np.argsort(places, kind="stable")
    assert (np.diff(placed[order]) >= gap - 1e-9).all()
    assert placed.min() >= -1e-9
    assert placed.max() <= 1 + 1e-9
    free = np.array([0.1, 0.4, 0.8])
    np.testing.assert_allclose(apart(free, gap), free)


def test_dark_pages_get_their_own_colours() -> None:
    import base64

    uri = data_uri(score_figures.over_p([made()], ["gini"]), dark=score_figures.DARK)
    svg = base64.b64decode(uri.partition(",")[2]).decode()
    assert "prefers-color-scheme:dark" in svg
    for variant in VARIANTS:
        colour = STYLES[variant].colour
        assert svg.count(colour) == 1  # in the list of variables alone
        assert score_figures.DARK[colour] in svg
    assert "http" not in svg.replace("http://www.w3.org/", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
