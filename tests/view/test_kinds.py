"""Pages of sequences, of stored maps, of batches; what a notebook is given; figures."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import network, picture
from torch import nn

import plrp
from plrp.cli import main
from plrp.genomics.sequences import Sequences, write_fasta
from plrp.view import Page, explanation_bundle, maps_bundle, read_page, sequence_bundle
from plrp.view import page as page_module
from plrp.view.bundle import LEVELS, Bundle, dequantise
from plrp.view.layer_channels import Paths
from plrp.view.notebook import VIEW, Live, mime_bundle
from plrp.view.page_data import as_map

LETTERS = "ACGTTGACCTAGATAACGGTACGATAAGGCTAACCGGTTAGCATCGAT"


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Conv1d(6, 5, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(5, 3)).eval()


def test_the_channels_of_a_layer_add_up_to_the_explanation() -> None:
    """What passes each channel alone, with the cuts of the whole, sums to the whole: in a chain, at every layer."""
    trace = plrp.trace(network().double(), picture().double())
    composite = plrp.composite("epsilon-plus-flat")
    for pruning in (None, plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M-sign")):
        paths = Paths(trace, 1, composite, pruning, 0)
        whole = trace.explain(target=1, composite=composite, pruning=pruning).relevance[0].sum(0)
        for layer, channels in (("5", 8), ("2", 6), ("0", 3)):
            parts = [paths.through(layer, c, lambda r: as_map(r, (72, 72))) for c in range(channels)]
            assert torch.allclose(sum(parts), whole, atol=1e-12)
    with pytest.raises(ValueError, match="channels 0 to 7"):
        paths.through("5", 8, lambda r: r)
    with pytest.raises(ValueError, match="no layer"):
        paths.through("nowhere", 0, lambda r: r)


def test_of_a_deep_network_only_the_strongest_channels_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plrp.view.layer_channels.PATHS", 3)
    found = plrp.explain(network(), picture(), target=1)
    told: list[tuple[int, int]] = []
    bundle = explanation_bundle(found, proportions=(0.1,), targets=1, report=lambda *done: told.append(done))
    assert told == [(done, 3 + 2) for done in range(1, 6)]  # three maps, and a path from each of three depths
    rows = bundle.facts["channels"]
    assert all("through" in row[0] and not any("through" in one for one in row[1:]) for row in rows)
    assert len(bundle.arrays["through"]) == len(rows) < sum(map(len, rows))


def test_a_saved_page_holds_the_paths_of_its_strongest_channels(bundle: Bundle) -> None:
    trace = plrp.trace(network(), picture())
    target = bundle.facts["targets"][bundle.facts["start"]["target"]]["number"]
    paths = Paths(trace, target, plrp.composite("epsilon-plus-flat"), plrp.Pruning(p=0.15), 0)
    count = 0
    for layer, rows in zip(bundle.facts["layers"], bundle.facts["channels"], strict=True):
        for row in rows:
            exact = paths.through(layer["name"], row["channel"], lambda r: as_map(r, (72, 72))).numpy()
            largest = bundle.facts["largest"]["through"][row["through"]]
            stored = dequantise(bundle.arrays["through"][row["through"]], largest)
            assert np.array_equal(stored != 0, exact != 0)
            assert np.abs(stored - exact).max() <= 2.1 / LEVELS * np.abs(exact).max(initial=0)
            count += 1
    assert count == len(bundle.arrays["through"])
    assert count > len(bundle.facts["layers"])
    flow = bundle.facts["flow"]
    assert [level["layer"] for level in flow["levels"]][-1] == "input"
    assert all(edge["relevance"] for edge in flow["edges"])


def test_a_sequence_page_holds_letters_maps_and_seqlets() -> None:
    bundle = sequence_bundle(cnn(), Sequences(["one"], [LETTERS]), pruning=plrp.Pruning(p=0.1), proportions=(0.3,))
    onehot = torch.from_numpy(plrp.genomics.encode([LETTERS]))
    exact = plrp.explain(cnn(), onehot, composite="epsilon-gamma", pruning=plrp.Pruning(p=0.3)).relevance[0].sum(0)
    assert (bundle.facts["title"], bundle.facts["letters"]) == ("one", LETTERS)
    assert np.array_equal(bundle.relevance("maps", 2) != 0, exact.numpy() != 0)
    found = plrp.explain(cnn(), onehot, composite="epsilon-gamma", pruning=plrp.Pruning(p=0.1)).relevance[0].sum(0)
    seqlets = plrp.genomics.find_seqlets(found[None].numpy())
    marked = [(s["start"], s["end"]) for track in bundle.facts["tracks"] for s in track["sites"]]
    assert set(marked) <= set(zip(seqlets.start.tolist(), seqlets.end.tolist(), strict=True))


def test_the_genomics_command_writes_a_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), "
        "nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, 3))\n"
    )
    write_fasta("s.fa", ["one", "two", "three"], [LETTERS, LETTERS[::-1], LETTERS])
    run = ["genomics", "explain", "s.fa", "--model", "net.py:build", "-p", "0.2", "--no-match"]
    assert main([*run, "--out", "o", "--html", "x.html", "--html-sequences", "2"]) == 0
    page = read_page("x.html")
    assert [b.facts["title"] for b in page.bundles] == ["one", "two"]
    assert page.bundles[1].facts["letters"] == LETTERS[::-1]
    assert page.bundle.facts["p"][page.bundle.facts["start"]["p"]] == 0.2
    assert main([*run, "--out", "o2", "--html", "x.png"]) == 2
    assert main([*run, "--out", "o2", "--html", "x.html", "--reverse-complement"]) == 2


def test_stored_maps_make_a_page() -> None:
    rng = np.random.default_rng(0)
    lrp = rng.normal(size=40)
    maps = {"PLRP-λ": {0.1: lrp * (rng.random(40) > 0.5), 0.3: lrp * (rng.random(40) > 0.8)}}
    mask = np.arange(40) < 10
    about: dict[str, Any] = {"title": "t", "model": "m", "target": "class 1", "start": ("PLRP-λ", 0.3)}
    bundle = maps_bundle(lrp, maps, letters="ACGT" * 10, sites=[(0, 10, "site")], mask=mask, **about)
    assert (bundle.facts["p"], bundle.facts["start"]["p"], bundle.facts["layers"]) == ([0.1, 0.3], 1, [])
    for number, exact in enumerate((lrp, maps["PLRP-λ"][0.1], maps["PLRP-λ"][0.3])):
        assert np.array_equal(bundle.relevance("maps", number) != 0, exact != 0)
        positive = exact.clip(min=0)
        assert bundle.facts["curves"]["inside"][number] == pytest.approx(positive[mask].sum() / positive.sum())
    assert len(Page([bundle, bundle]).html()) < 1_000_000
    with pytest.raises(ValueError, match="same p"):
        maps_bundle(lrp, {**maps, "PLRP-M": {0.1: lrp}}, letters="ACGT" * 10, **about)


def test_a_gallery_comes_back_as_it_was(bundle: Bundle, tmp_path: Path) -> None:
    Page([bundle, bundle]).save(tmp_path / "x.html")
    found = read_page(tmp_path / "x.html")
    assert len(found.bundles) == 2
    assert np.array_equal(found.bundles[1].arrays["maps"], bundle.arrays["maps"])
    with pytest.raises(ValueError, match="none was given"):
        Page([])


def test_a_page_that_is_too_large_leaves_paths_out(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(Page(bundle).html().encode())
    monkeypatch.setattr(page_module, "LARGEST", whole - 1)
    Page(bundle).save(tmp_path / "x.html")
    found = read_page(tmp_path / "x.html").bundle
    assert 0 < len(found.arrays["through"]) < len(bundle.arrays["through"])
    for old, new in zip(bundle.facts["channels"], found.facts["channels"], strict=True):
        assert [row["channel"] for row in new] == [row["channel"] for row in old]
        for before, row in zip(old, new, strict=True):
            if "through" in row:
                a, b = before["through"], row["through"]
                assert np.array_equal(bundle.arrays["through"][a], found.arrays["through"][b])
                assert bundle.facts["largest"]["through"][a] == found.facts["largest"]["through"][b]


def test_a_notebook_is_given_a_page_and_a_widget_that_answers_it(
    explanation: plrp.Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is HTML, which exported notebooks keep; the widget is an output of its own, without words."""
    pytest.importorskip("anywidget", reason="no anywidget: pip install 'plrp[notebook]'")
    import IPython
    from IPython import display as display_module

    page = explanation.page()
    shown, _ = page._repr_mimebundle_()  # no notebook: no widget is shown
    assert sorted(shown) == ["text/html", "text/plain"]
    assert shown["text/html"].startswith("<iframe srcdoc=")
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr(display_module, "display", lambda output, raw: outputs.append(output))
    shown, _ = page._repr_mimebundle_()
    (output,) = outputs
    assert sorted(output) == [VIEW, "text/plain"]
    assert output["text/plain"] == ""
    assert "&quot;host&quot;:&quot;" in shown["text/html"]


def test_a_notebook_shows_the_figure_at_once_and_explains_nothing_anew(
    explanation: plrp.Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plrp.explanation, "record", lambda *_, **__: pytest.fail("a forward pass for a picture"))
    shown, _ = mime_bundle(explanation)
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', shown["text/html"])
    assert picture is not None
    assert base64.b64decode(picture[1]).startswith(b"\x89PNG")
    assert "explanation.page()" in shown["text/html"]


def test_inputs_without_a_figure_show_the_ledger_in_a_notebook() -> None:
    other = plrp.explain(nn.Conv3d(1, 2, 2), torch.rand(1, 1, 3, 3, 3), target=(0, 0, 0, 0))
    assert other._repr_mimebundle_() is None
    assert "<table" in other._repr_html_()


def test_a_notebook_answers_with_the_path_that_was_asked_for(explanation: plrp.Explanation) -> None:
    live = Live(explanation, proportions=(0.4,), targets=1)
    wanted = {"session": "0", "layer": "5", "channel": 3, "number": 1, "method": "lambda", "p": 0.4}
    asked = {"id": "a", "what": "channel", "wanted": wanted}
    answer = live.answer(asked)
    paths = Paths(plrp.trace(network(), picture()), 1, plrp.composite("epsilon-plus-flat"), plrp.Pruning(p=0.4), 0)
    exact = paths.through("5", 3, lambda r: as_map(r, (72, 72)))
    assert (answer["id"], answer["session"]) == ("a", live.session)
    assert answer["answer"]["largest"] == pytest.approx(float(exact.abs().max()))
    for wrong in ({}, {"wanted": {**wanted, "layer": "x"}}, {"wanted": {**wanted, "session": "9"}}):
        assert "problem" in live.answer({**asked, **wrong} if wrong else {})
    assert "problem" in live.answer("text")


def test_every_kind_of_input_has_its_figure(explanation: plrp.Explanation) -> None:
    pytest.importorskip("matplotlib")
    assert len(explanation.plot().axes) >= 1
    onehot = torch.from_numpy(plrp.genomics.encode([LETTERS, LETTERS[::-1]]))
    assert len(plrp.explain(cnn(), onehot).plot().axes) == 2
    numbers = plrp.explain(nn.Linear(3, 2), torch.rand(2, 3))
    heights = [patch.get_height() for patch in numbers.plot(samples=[1]).axes[0].patches]
    assert heights == pytest.approx(numbers.relevance[1].tolist())
    embedded = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2)).eval()
    words = plrp.explain(embedded, torch.tensor([[1, 5, 2]])).plot(tokens=["a ", "b ", "c"])
    assert [text.get_text() for text in words.axes[0].texts][1:] == ["a ", "b ", "c"]
    with pytest.raises(ValueError, match="this input is"):
        plrp.explain(nn.Conv3d(1, 2, 2), torch.rand(1, 1, 3, 3, 3), target=(0, 0, 0, 0)).plot()
