"""The page in a real browser, opened from disk with the network off: pixels, keyboard, phone, names that try to run."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import NAMES, PROPORTIONS, SIDE, frame, network, picture
from torch import nn

import plrp
from plrp.view import Bundle, Page, explanation_bundle, read_page, text_bundle
from plrp.view.bundle import dequantise
from plrp.view.notebook import SCRIPT, Live
from plrp.view.page_data import Grid
from plrp.vision.heatmaps import heatmap, outline_level

Visit = Callable[..., Any]
TICKS_APART = """() => {
  const box = (one) => one.getBoundingClientRect();
  const ends = [...document.querySelectorAll("#curves .curve")].map((curve) => box(curve).right);
  const ticks = [...document.querySelectorAll("#curves .tick")].filter(({ textContent }) => textContent.endsWith("%"));
  return ticks.length === 3 && ticks.every((tick) => box(tick).left > Math.max(...ends));
}"""
GRID = Grid.around(plrp.Pruning(p=0.15), range(3), proportions=PROPORTIONS)
NOISE = 2  # of 255, from rounding on a canvas

PIXELS = """(side) => {
    const canvas = document.getElementById("picture");
    const scale = canvas.width / side, found = new Uint8Array(3 * side * side);
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) {
        const at = 4 * (Math.floor((y + 0.5) * scale) * canvas.width + Math.floor((x + 0.5) * scale));
        found.set(data.subarray(at, at + 3), 3 * (y * side + x));
    }
    return btoa(String.fromCharCode(...found));
}"""


def drawn(tab: Any) -> np.ndarray:
    """The canvas at the middle of each of the map's pixels: (SIDE, SIDE, 3)."""
    frame(tab)
    content = base64.b64decode(tab.evaluate(PIXELS, SIDE))
    return np.frombuffer(content, np.uint8).reshape(SIDE, SIDE, 3).astype(int)


def expected(bundle: Bundle, number: int, **options: Any) -> np.ndarray:
    """What Python draws for a map."""
    values, limit = bundle.relevance("maps", number), bundle.facts["limits"][number]
    return heatmap(values, scale=limit, **options).numpy()[..., :3].astype(int)


def press(tab: Any, group: str, value: object) -> None:
    tab.locator(f"#{group} label:has(input[value='{value}'])").click()


def only_heat(tab: Any) -> None:
    press(tab, "views", "heatmap")
    tab.evaluate("() => document.getElementById('options').open = true")
    tab.locator("#show-mask").uncheck()


def test_moving_p_draws_what_python_computes(visit: Visit, page: Path, bundle: Bundle) -> None:
    tab = visit(page)
    only_heat(tab)
    assert tab.locator("#p-value").inner_text() == "0.15"  # the p asked for
    assert tab.evaluate(TICKS_APART)
    seen = []
    for method, label in enumerate(("PLRP-λ", "PLRP-M±")):
        press(tab, "methods", label)
        for place in range(len(PROPORTIONS) + 1):
            tab.locator("#p").fill(str(place))
            found = drawn(tab)
            number = GRID.number(0, method, place - 1 if place else None)
            assert np.abs(found - expected(bundle, number)).max() <= NOISE
            seen.append(found)
        press(tab, "methods", "LRP")
        assert np.array_equal(drawn(tab), seen[0])
    exact = plrp.explain(network(), picture(), pruning=plrp.Pruning(p=PROPORTIONS[2])).relevance[0].sum(0)
    white = (seen[3] == 255).all(-1)
    assert np.array_equal(white, heatmap(exact).values[0] == 0)  # every survivor is coloured, and nothing else
    assert len({found.tobytes() for found in seen}) == 2 * len(PROPORTIONS) + 1


@pytest.mark.slow
def test_another_class_and_other_colours(visit: Visit, page: Path, bundle: Bundle) -> None:
    tab = visit(page)
    only_heat(tab)
    press(tab, "targets", 2)
    number = GRID.number(2, *GRID.start[1:])
    assert np.abs(drawn(tab) - expected(bundle, number)).max() <= NOISE
    tab.locator("#colours").select_option("orange-purple")
    assert np.abs(drawn(tab) - expected(bundle, number, colours="orange-purple")).max() <= NOISE
    tab.locator("#grow").uncheck()
    assert np.abs(drawn(tab) - expected(bundle, number, colours="orange-purple", dilate=0)).max() <= NOISE


@pytest.mark.slow
def test_two_settings_are_divided_by_a_swipe(visit: Visit, page: Path, bundle: Bundle) -> None:
    tab = visit(page)
    only_heat(tab)
    tab.locator("#compare").check()
    tab.locator("#other-method").select_option(label="PLRP-M±")
    tab.locator("#other-p").select_option(label="0.4")
    tab.locator("#swipe").fill("50")
    legend = tab.locator("#legend-high").inner_text()
    assert re.fullmatch(r"for: left ±\S+, right ±\S+", legend), legend
    found = drawn(tab)
    low, gap = SIDE // 8, SIDE // 12  # below the labels, beside the handle
    left, right = slice(0, SIDE // 2 - gap), slice(SIDE // 2 + gap, SIDE)
    for columns, number in ((left, GRID.number(*GRID.start)), (right, GRID.number(0, 1, 2))):
        assert np.abs(found[low:, columns] - expected(bundle, number)[low:, columns]).max() <= NOISE
    tab.locator("#exchange").click()
    frame(tab)
    assert tab.locator("#p-value").inner_text() == "0.4"
    assert tab.locator("#other-p").input_value() == str(1 + PROPORTIONS.index(0.15))
    box = tab.locator("#picture").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 200)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 210)
    tab.mouse.up()
    assert 88 <= float(tab.locator("#swipe").input_value()) <= 92


@pytest.mark.slow
def test_overlay_outline_and_side_by_side(visit: Visit, page: Path, bundle: Bundle, explanation: Any) -> None:
    tab = visit(page)
    only_heat(tab)
    number = GRID.number(*GRID.start)
    photograph = (picture()[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    press(tab, "views", "overlay")
    apart = np.abs(drawn(tab) - expected(bundle, number, picture=photograph))
    assert apart.mean() < 5  # the photograph below is enlarged smoothly
    tab.locator("#blend").fill("0")
    grey = drawn(tab)
    assert np.abs(grey - grey.mean(-1, keepdims=True)).max() <= 1  # the faded photograph alone
    press(tab, "views", "outline")
    found = drawn(tab)
    line = (np.abs(found - (0xC2, 0x18, 0x5B)).max(-1) < 60).nonzero()
    field, level = outline_level(bundle.relevance("maps", number))
    inside = np.pad(field >= level, 1)
    edge = inside[1:-1, 1:-1] & ~(inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:])
    points = np.argwhere(edge)
    assert len(line[0]) > 10
    assert all(np.abs(points - at).max(1).min() <= 2 for at in np.stack(line, 1))
    press(tab, "views", "side")
    assert np.abs(drawn(tab) - expected(bundle, number)).max() <= NOISE
    assert tab.locator("#photograph").is_visible()


def test_the_layers_thin_and_show_their_channels(visit: Visit, page: Path, bundle: Bundle) -> None:
    tab = visit(page)
    heights = "() => [...document.querySelectorAll('#strip .now')].map((bar) => parseFloat(bar.style.height))"
    tab.locator("#p").fill("1")
    frame(tab)
    before = tab.evaluate(heights)
    tab.locator("#p").fill(str(len(PROPORTIONS)))
    frame(tab)
    after = tab.evaluate(heights)
    left = bundle.arrays["left"]
    neurons = [layer["neurons"] for layer in bundle.facts["layers"]]
    share = left[GRID.number(0, 0, len(PROPORTIONS) - 1), :, 0] / neurons
    assert after == pytest.approx(100 * np.clip(1 + np.log10(share) / 4, 0.02, 1), abs=0.01)
    assert sum(after) < sum(before)
    tab.locator("#strip label").nth(1).click()
    frame(tab)
    assert tab.locator("#layer h3").inner_text().startswith("5 conv2d, reads 8×18×18")
    shown = tab.locator(".channels button > span:not(.soft)").all_inner_texts()
    assert shown == [f"channel {one['channel']}" for one in bundle.facts["channels"][1]]
    one = bundle.facts["channels"][1][0]
    levels = bundle.arrays["channels"][one["offset"] : one["offset"] + 18 * 18].reshape(18, 18)
    colours = tab.evaluate(
        "() => Array.from(document.querySelector('.channels canvas').getContext('2d').getImageData(0, 0, 18, 18).data)"
    )
    values = np.sign(levels) * (levels / 127.0) ** 2
    assert np.abs(np.array(colours).reshape(18, 18, 4) - heatmap(values, scale=0.6, dilate=0).numpy()).max() <= NOISE


def test_a_channel_is_followed_to_the_input(visit: Visit, page: Path, bundle: Bundle) -> None:
    """A click shows what passes one channel alone; the channels of a layer that all relevance passes add up."""
    tab = visit(page)
    only_heat(tab)
    whole = drawn(tab)
    tab.locator("#strip label").nth(1).click()
    first = bundle.facts["channels"][1][0]
    tab.locator(f".channels button[data-channel='{first['channel']}']").click()
    values = dequantise(
        bundle.arrays["through"][first["through"]], bundle.facts["largest"]["through"][first["through"]]
    )
    alone = heatmap(values, scale=first["limit"]).numpy()[..., :3].astype(int)
    assert np.abs(drawn(tab) - alone).max() <= NOISE
    assert f"channel {first['channel']} of 5" in tab.locator("#path-text").inner_text()
    seen = "() => document.getElementById('picture').getBoundingClientRect().top"
    assert 0 <= tab.evaluate(seen) < 500  # the click was below: the page scrolled to the picture
    tab.locator("#path-back").click()
    assert tab.evaluate("() => document.activeElement.dataset.channel") == str(first["channel"])
    assert tab.evaluate(seen) < 0
    tab.locator("#path-off").click()
    assert np.array_equal(drawn(tab), whole)
    assert tab.locator("#path").is_hidden()
    # the same channel as a node of the graph, by keyboard; then the graph is panned and zoomed
    node = tab.locator(f"#flow-graph g[aria-label^='5, channel {first['channel']}:']")
    node.focus()
    tab.keyboard.press("Enter")
    assert np.abs(drawn(tab) - alone).max() <= NOISE
    tab.locator("#flow-tools button").first.click()
    box = [float(v) for v in tab.locator("#flow-graph").get_attribute("viewBox").split()]
    tab.locator("#flow-graph").focus()
    tab.keyboard.press("ArrowRight")
    moved = [float(v) for v in tab.locator("#flow-graph").get_attribute("viewBox").split()]
    assert moved[0] > box[0]
    assert moved[2:] == box[2:]
    tab.locator("#p").fill("2")
    frame(tab)
    assert tab.locator("#path").is_hidden()  # another p is another explanation


def test_a_click_on_a_pixel_lists_the_channels_that_reach_it(visit: Visit, page: Path, bundle: Bundle) -> None:
    tab = visit(page)
    values = {
        (layer["name"], one["channel"]): bundle.relevance("through", one["through"])
        for layer, ones in zip(bundle.facts["layers"], bundle.facts["channels"], strict=True)
        for one in ones
        if "through" in one
    }
    row, column = divmod(int(np.abs(next(iter(values.values()))).argmax()), SIDE)
    box = tab.locator("#picture").bounding_box()
    place = {"x": (column + 0.5) / SIDE * box["width"], "y": (row + 0.5) / SIDE * box["height"]}
    tab.locator("#picture").click(position=place)
    assert f"row {row}, column {column}" in tab.locator("#pixel").inner_text()
    ranked = sorted((key for key in values if values[key][row, column]), key=lambda k: -abs(values[k][row, column]))
    buttons = tab.locator("#pixel button")
    assert buttons.count() == min(8, len(ranked))
    assert buttons.first.inner_text().startswith(f"channel {ranked[0][1]} of {ranked[0][0]}")
    buttons.first.click()
    assert f"channel {ranked[0][1]} of {ranked[0][0]}" in tab.locator("#path-text").inner_text()


def test_everything_by_keyboard(visit: Visit, page: Path) -> None:
    tab = visit(page)
    reached = []
    for _ in range(60):
        tab.keyboard.press("Tab")
        where = tab.evaluate(
            "() => document.activeElement.id || document.activeElement.name || document.activeElement.tagName"
        )
        reached.append(where)
        if where == "p":
            tab.keyboard.press("ArrowRight")
            frame(tab)
            assert tab.locator("#p-value").inner_text() == "0.4"
            assert tab.locator("#p").get_attribute("aria-valuetext") == "PLRP-λ, p = 0.4"
            tab.keyboard.press("Home")
            frame(tab)
            assert tab.locator("#methods input:checked").input_value() == "LRP"
        elif where == "methods":
            tab.keyboard.press("ArrowRight")
            frame(tab)
            assert tab.locator("#p").get_attribute("aria-valuetext") == "PLRP-λ, p = 0.4"
        elif where == "targets":
            tab.keyboard.press("ArrowDown")
            frame(tab)
            assert tab.locator("#targets input:checked").input_value() == "1"
        elif where == "layer":
            tab.keyboard.press("ArrowRight")
            frame(tab)
            assert tab.locator("#layer h3").count() == 1
            break
    assert {"views", "blend", "play", "p", "methods", "targets", "compare", "SUMMARY", "layer"} <= set(reached)
    words = tab.locator("#picture").get_attribute("aria-label")
    assert "PLRP-λ, p = 0.4" in words
    assert "of pixels hold relevance" in words


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_phone_width_and_dark_mode(visit: Visit, page: Path, bundle: Bundle, scheme: str) -> None:
    tab = visit(page, width=360, color_scheme=scheme, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 360
    only_heat(tab)
    colours = "red-blue-dark" if scheme == "dark" else "red-blue"
    assert np.abs(drawn(tab) - expected(bundle, GRID.number(*GRID.start), colours=colours)).max() <= NOISE
    for one in ("#picture", "#p", "#curves", "#strip", "#totals"):
        box = tab.locator(one).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    contrast = tab.evaluate(
        """() => { const parts = (text) => text.match(/\\d+/g).slice(0, 3).map((v) => (v / 255) ** 2.2);
        const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
        const style = (id) => getComputedStyle(document.querySelector(id));
        const [a, b] = [light(parts(style("#p-help").color)), light(parts(style("#controls").backgroundColor))];
        return Math.max(a, b) / Math.min(a, b); }"""
    )
    assert contrast >= 4.5  # WCAG AA


def test_names_are_text_and_never_run(visit: Visit, page: Path) -> None:
    tab = visit(page)
    assert tab.locator("h1").inner_text() == 'a "picture" <i>of</i> it'
    assert tab.title().startswith('a "picture" <i>of</i> it · ')
    shown = tab.locator("#targets .name").all_inner_texts()
    assert set(shown) <= set(NAMES)
    assert tab.locator("h1 i, #targets b, #other b").count() == 0


@pytest.mark.slow
def test_a_sequence_is_zoomed_to_its_letters(visit: Visit, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Conv1d(6, 3, 3), nn.AdaptiveMaxPool1d(1), nn.Flatten())
    letters = "".join(np.random.default_rng(0).choice(list("ACGT"), 400))
    onehot = torch.from_numpy(plrp.genomics.encode([letters]))
    found = plrp.explain(model.eval(), onehot, composite="epsilon-plus", pruning=plrp.Pruning(p=0.1))
    bundle = explanation_bundle(found, sites=[(100, 110, "site")], proportions=(0.3,), targets=2)
    Page(bundle).save(tmp_path / "x.html")
    tab = visit(tmp_path / "x.html")
    number = Grid.around(plrp.Pruning(p=0.1), [0, 1], proportions=(0.3,)).number(0, 0, 0)
    at = np.flatnonzero(bundle.arrays["maps"][number])
    strongest = int(np.abs(bundle.arrays["maps"][number]).argmax())
    assert len(at) < 40
    ink = """() => { const canvas = document.getElementById("picture");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, found = new Set();
        const span = (rgb) => Math.max(...rgb) - Math.min(...rgb);
        const colourful = (i) => data[i + 3] > 200 && span(data.subarray(i, i + 3)) > 90;
        for (let i = 0; i < data.length; i += 4) if (colourful(i)) found.add((i / 4) % canvas.width);
        return [canvas.width, ...found]; }"""
    width, *columns = tab.evaluate(ink)
    assert {int(c / width * 400) for c in columns} <= set(range(at.min() - 1, at.max() + 2))
    assert columns
    tab.locator("#pan").wait_for()
    for _ in range(4):
        tab.locator("#zoom-in").click()
    tab.locator("#pan").fill(str(max(0, strongest - 12)))
    frame(tab)
    first = float(tab.locator("#pan").input_value())
    width, *columns = tab.evaluate(ink)
    bases = {int(first + c / width * 25) for c in columns}
    assert strongest in bases
    assert bases <= {b for a in at for b in (a - 1, a, a + 1)}  # a letter may touch its neighbour's cell
    tab.locator("#zoom-all").click()
    frame(tab)
    assert tab.locator("#pan").is_disabled()
    assert "Logo of bases 0 to 400" in tab.locator("#picture").get_attribute("aria-label")


@pytest.mark.slow
def test_a_text_is_coloured_and_its_span_is_a_matrix(visit: Visit, tmp_path: Path) -> None:
    small = pytest.importorskip("small_models")
    tokenizer = small.byte_tokenizer()
    model = small.built("llama", len(tokenizer))
    found = plrp.text.explain(model, tokenizer, "The capital of France is", span=3, pruning=plrp.Pruning(p=0.1))
    bundle = text_bundle(found, proportions=(0.3,))
    Page(bundle).save(tmp_path / "x.html")
    tab = visit(tmp_path / "x.html")
    names = [f"{number}. {target}" for number, target in enumerate(found.targets, 1)]  # a token may occur twice
    assert [t["name"] for t in bundle.facts["targets"]] == names
    for target in range(3):
        press(tab, "targets", target)
        frame(tab)
        values = found.relevance[target].numpy()
        shown = tab.evaluate(
            "() => [...document.querySelectorAll('#tokens-0 span')].map((s) => s.style.background.match(/\\d+/g))"
        )
        colours = heatmap(values[None], scale=float(np.abs(values).max()), dilate=0).numpy()[0, :, :3].astype(int)
        assert np.abs(np.array(shown, int) - colours).max() <= 4  # 255 levels
    texts = tab.locator("#tokens-0 span").all_inner_texts()
    assert "".join(texts) == "".join(t.text for t in found.tokens)
    tab.locator("#tokens-0 span").nth(2).hover()
    assert "relevance" in tab.locator("#probe").inner_text()
    tab.locator("#tokens-0").focus()
    tab.keyboard.press("ArrowRight")
    assert texts[0].strip() in tab.locator("#probe").inner_text()
    press(tab, "views", "words")
    frame(tab)
    assert tab.locator("#tokens-0 span").count() == len({t.word for t in found.tokens})
    words: dict[Any, float] = {}
    for number, token in enumerate(found.tokens):
        words[token.word] = words.get(token.word, 0.0) + float(found.relevance[2][number])
    end = float(tab.locator("#legend-high").inner_text().removesuffix(" for"))
    assert end == pytest.approx(max(map(abs, words.values())), rel=0.05)  # 255 levels; the scale is that of words
    press(tab, "views", "matrix")
    frame(tab)
    assert f"3 answers × {len(found.tokens)} tokens" in tab.locator("#picture").get_attribute("aria-label")


@pytest.mark.slow
def test_a_batch_is_a_gallery(visit: Visit, tmp_path: Path) -> None:
    both = plrp.explain(network(), torch.cat([picture(), picture().flip(3)]), pruning=plrp.Pruning(p=0.15))
    both.save(tmp_path / "x.html", sample=[0, 1], proportions=(0.2,), targets=1, title=["one", "<b>two</b>"])
    tab = visit(tmp_path / "x.html")
    press(tab, "views", "heatmap")
    first = drawn(tab)
    press(tab, "gallery", 1)
    tab.wait_for_function("() => document.getElementById('title').textContent === '<b>two</b>'")
    second = drawn(tab)
    assert tab.locator("#views input:checked").input_value() == "heatmap"  # what was chosen stays
    stored = read_page(tmp_path / "x.html").bundles[1]
    number = Grid.around(plrp.Pruning(p=0.15), [0], proportions=(0.2,)).number(0, 0, 0)
    assert np.array_equal(stored.relevance("maps", number) != 0, both.relevance[1].sum(0).numpy() != 0)
    assert np.abs(second - expected(stored, number)).max() <= NOISE
    assert not np.array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["page", "widget"])
def test_a_notebook_answers_a_click(browser: Any, explanation: plrp.Explanation, tmp_path: Path, first: str) -> None:
    """The widget's own script and two pages in a document that stands for a notebook, in either order: the page that is
    the widget's asks Python and draws its answers, the other one stands by itself.
    """
    live, other = (Live(explanation, proportions=(0.4,), targets=1) for _ in range(2))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        """<meta charset="utf-8"><body><script type="module">
        const listeners = [];
        const model = { get: () => window.session, off() {},
            on: (name, call) => listeners.push(call),
            send: (question) => window.answer(question).then((reply) => listeners.forEach((call) => call(reply))) };
        window.start = async (source) => {
            const blob = new Blob([source], { type: "text/javascript" });
            const { default: widget } = await import(URL.createObjectURL(blob));
            widget.render({ model, el: document.createElement("div") }); };
        window.add = (frame) => document.body.insertAdjacentHTML("beforeend", frame);
        </script>""",
        encoding="utf-8",
    )
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    context.set_default_timeout(300_000)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    asked: list[Any] = []

    def answer(question: Any) -> Any:
        asked.append(question)
        return live.answer(question)

    tab.expose_function("answer", answer)
    tab.goto(notebook.as_uri())
    tab.evaluate("(session) => { window.session = session; }", live.session)
    steps = {
        "page": lambda: [tab.evaluate("(frame) => window.add(frame)", one.page.frame()) for one in (live, other)],
        "widget": lambda: tab.evaluate("(source) => window.start(source)", SCRIPT),
    }
    for step in sorted(steps, reverse=first == "widget"):
        steps[step]()
        tab.wait_for_timeout(100)
    mine, others = (tab.frame_locator("iframe").nth(number) for number in (0, 1))
    for number, page in enumerate((mine, others)):
        tab.locator("iframe").nth(number).scroll_into_view_if_needed()
        page.locator("#page:not([hidden])").wait_for()
        page.locator("#strip label").nth(1).click()
    mine.locator(".any input").fill("3")
    mine.locator(".any button").click()
    mine.locator("#path").wait_for()
    assert "channel 3 of 5" in mine.locator("#path-text").inner_text()
    assert asked[0]["wanted"]["channel"] == 3
    mine.locator(".any input").fill("7")
    mine.locator(".any button").click()
    tab.wait_for_timeout(200)
    assert others.locator(".any").count() == 0
    assert others.locator(".channels button").first.is_disabled()
    context.close()
    assert problems == []


@pytest.mark.slow
def test_the_page_prints_without_its_controls(visit: Visit, page: Path) -> None:
    tab = visit(page, color_scheme="dark")
    tab.emulate_media(media="print")
    frame(tab)
    for one in ("#play", "#options", "#compare-block", "#flow-tools", "#views"):
        assert tab.locator(one).is_hidden()
    for one in ("#picture", "#curves", "#strip", "#totals", "#flow-graph", "#ledger"):
        assert tab.locator(one).is_visible()
    assert tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(tab.pdf()) > 10_000
