"""Exemplars, the relevance of channels over a data set, and the channels and prototypes of classes."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.cli import main
from plrp.concepts import (
    Exemplars,
    channel_figure,
    class_channels,
    logo_figure,
    prototypes,
    receptive_field,
    token_contexts,
    token_figure,
)
from plrp.concepts.numbered_inputs import FromPhotographs
from plrp.concepts.search import Search
from plrp.models import LoadedModel
from plrp.runs.places import RunError, WrongPlace

torch.manual_seed(0)
DATA = torch.randn(11, 3, 10, 10)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
    ).eval()  # fmt: skip


def found(**options: object) -> Exemplars:
    return plrp.exemplars(net(), DATA, ["0", "2"], show_progress=False, part_size=4, batch_size=3, **options)


def outputs_relevance(model: nn.Sequential, x: Tensor, layer: int, **options: object) -> Tensor:
    """The relevance at a layer's output, restated: ReLU passes it from the next layer's input, the pool shares it."""
    following = {0: "2", 2: "6"}[layer]
    inputs = plrp.explain(model, x, layers=[following], **options).layers[following]
    if layer == 0:
        return inputs
    held = torch.nn.functional.adaptive_avg_pool2d  # the pool stands between: hand it down in proportion, in float64
    h = model[:4](x).detach().double()
    z = held(h, 2)
    r = inputs.double().reshape(z.shape)
    (back,) = torch.autograd.functional.vjp(lambda t: held(t, 2), h, r / (z + 1e-6 * torch.where(z >= 0, 1.0, -1.0)))[
        1:
    ]
    return h * back


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.2)])
def test_channels_hold_what_an_explanation_of_each_input_alone_gives_them(pruning: plrp.Pruning | None) -> None:
    model, all_ = net(), found(pruning=pruning, composite="epsilon-plus")
    for sample in range(len(DATA)):
        x = DATA[sample : sample + 1]
        for layer, name in ((0, "0"), (2, "2")):
            expected = outputs_relevance(model, x, layer, pruning=pruning, composite="epsilon-plus")[0].flatten(1)
            held = all_[name]
            assert np.allclose(held.relevance[sample], expected.sum(1), rtol=1e-4, atol=1e-5)
            assert np.allclose(held.absolute[sample], expected.abs().sum(1), rtol=1e-4, atol=1e-5)
            activation = model[: layer + 1](x)[0].flatten(1).detach()
            assert np.allclose(held.activation[sample], activation.amax(1), atol=1e-6)
            assert np.array_equal(held.active_at[sample], activation.argmax(1))
            strongest = expected.gather(1, torch.as_tensor(held.relevant_at[sample]).long()[:, None])[:, 0]
            assert torch.allclose(strongest, expected.amax(1), rtol=1e-4, atol=1e-6)
        assert all_.classes[sample] == int(model(x).argmax())


def test_exemplars_are_the_strongest_inputs_in_order() -> None:
    all_ = found()
    for by in ("relevance", "activation"):
        totals = all_["2"]
        values = (
            totals.activation if by == "activation" else totals.relevance / np.abs(totals.relevance).sum(1)[:, None]
        )
        for channel in range(6):
            best = all_.of("2", channel, 4, by)
            expected = sorted((v for v in values[:, channel] if v > 0), reverse=True)[:4]
            assert [example.value for example in best] == pytest.approx(expected)
            assert [example.name for example in best] == [str(example.sample) for example in best]
    strongest = all_.strongest("2", 3)
    assert strongest == np.argsort(-totals.shares.clip(min=0).sum(0))[:3].tolist()
    assert all(all_.of("2", channel) for channel in strongest)  # each has an exemplar to show


def test_an_input_with_a_large_score_counts_no_more_than_others() -> None:
    totals = found()["2"]
    scale = np.linspace(0.1, 100, len(totals.relevance), dtype=np.float32)[:, None]
    louder = replace(totals, relevance=totals.relevance * scale, absolute=totals.absolute * scale)
    plain, other = (
        Exemplars({"2": one}, list(map(str, range(len(scale)))), found().classes, {}) for one in (totals, louder)
    )
    assert plain.strongest("2") == other.strongest("2")
    for channel in range(6):
        assert [e.sample for e in plain.of("2", channel)] == [e.sample for e in other.of("2", channel)]


def test_shares_of_a_layers_channels_add_up_to_one() -> None:
    table = plrp.neuron_relevance(net(), DATA, ["0", "2"], show_progress=False)
    for layer, channels in (("0", 5), ("2", 6)):
        rows = [row for row in table if row["layer"] == layer]
        assert [row["channel"] for row in rows] == list(range(channels))
        assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_a_token_model_has_its_channels_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(9, 8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.Flatten(), nn.Linear(20, 3)
    ).eval()
    ids = torch.randint(9, (6, 4))
    all_ = plrp.exemplars(model, ids, ["1"], show_progress=False)
    assert all_["1"].relevance.shape == (6, 6)
    assert all_["1"].active_at.max() < 4  # a token


# Stored


def test_a_search_is_stored_resumed_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found()
    made: list[int] = []
    do = Search.do

    def dying(self: Search, index: int, *rest: object) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(index)
        do(self, index, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Search, "do", dying)
        with pytest.raises(KeyboardInterrupt):
            found(out=tmp_path / "run")
    with pytest.raises(RunError, match="holds 2 of 3 parts"):
        Exemplars.load(str(tmp_path / "run"))
    part = next((tmp_path / "run" / "parts").iterdir())
    part.write_bytes(part.read_bytes()[:-7])  # a damaged part is made again
    said: list[str] = []
    resumed = found(out=tmp_path / "run", say=said.append)
    assert "was damaged and will be made again" in said[0]
    for other in (resumed, Exemplars.load(str(tmp_path / "run"))):
        for layer in ("0", "2"):
            assert np.array_equal(other[layer].relevance, whole[layer].relevance)
        assert other.names == whole.names


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    found(out=tmp_path / "run")
    with pytest.raises(WrongPlace, match=r"another run: pruning\.p was absent and is 0\.1"):
        found(out=tmp_path / "run", pruning=plrp.Pruning(p=0.1))
    with pytest.raises(WrongPlace, match="the inputs changed"):
        plrp.exemplars(
            net(), DATA + 1, ["0", "2"], out=tmp_path / "run", part_size=4, batch_size=3, show_progress=False
        )
    other = net()
    other[1] = nn.Tanh()
    with pytest.raises(WrongPlace, match="the model changed"):
        plrp.exemplars(other, DATA, ["0", "2"], out=tmp_path / "run", part_size=4, batch_size=3, show_progress=False)
    with pytest.raises(TypeError, match="a target that can be compared"):
        found(out=tmp_path / "new", target=lambda output: output[:, 0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("dear")
    with pytest.raises(WrongPlace, match="holds other files"):
        found(out=tmp_path / "other")


def test_classes_per_input_come_as_an_array_or_in_a_seed() -> None:
    classes = [n % 2 for n in range(len(DATA))]
    by_list, by_array = (found(target=t)["0"].relevance for t in (classes, np.array(classes)))
    assert (by_list == by_array).all()
    each = found(target=plrp.targets.contrast(classes, [1 - c for c in classes]))["0"].relevance
    for c in (0, 1):
        one = found(target=plrp.targets.contrast(c, 1 - c))["0"].relevance
        np.testing.assert_allclose(each[c::2], one[c::2], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: plrp.exemplars(net(), DATA, ["layer9"]), ValueError, "no conv or linear layer 'layer9'"),
        (lambda: plrp.exemplars(net(), DATA, "2"), TypeError, r"layers=\['2'\]"),
        (lambda: plrp.exemplars(net(), iter(DATA), ["2"]), TypeError, "an iterator cannot be resumed"),
        (lambda: plrp.exemplars(net(), [], ["2"]), ValueError, "holds no inputs"),
        (lambda: plrp.exemplars(net(), ["a"], ["2"]), TypeError, "it should be a tensor"),
        (lambda: plrp.exemplars(net(), "photos", ["2"]), TypeError, "load it with plrp.models.load"),
        (lambda: plrp.exemplars(net(), DATA, ["2"], target=[0, 1]), ValueError, "for a batch of 11: give one class"),
        (lambda: plrp.exemplars(net(), DATA, ["2"], target=99), ValueError, "^target 99 is out of range"),
        (lambda: plrp.exemplars(net(), DATA, ["2"], part_size=0), ValueError, "a whole number from 1"),
        (lambda: found().of("2", 6), IndexError, "There is no channel 6 in '2': it has 6"),
        (lambda: found().of("2", 0, by="size"), ValueError, "'relevance' or 'activation'"),
        (lambda: found()["7"], KeyError, "was not searched"),
    ],
)
def test_bad_input_is_told(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]


# Classes


def planted() -> Exemplars:
    """Two classes; class 0 uses channel 1 in one half of its inputs, and channel 2 in the other."""
    rng = np.random.default_rng(0)
    relevance = np.abs(rng.normal(0, 0.01, (60, 8))).astype(np.float32)
    relevance[:20, 1] += 1
    relevance[20:40, 2] += 1
    relevance[40:, 5] += 1
    relevance[19] = [0, 0, 0, 0, 0, 0, 1, 0]  # an outlier
    nothing = np.zeros((60, 8), np.int32)
    from plrp.concepts.exemplar_results import LayerTotals

    totals = LayerTotals(relevance, relevance, relevance, nothing, nothing, (1,))
    return Exemplars({"fc": totals}, [str(i) for i in range(60)], np.repeat([0, 1], [40, 20]), {})


def test_the_channels_of_a_class_are_found() -> None:
    rows = class_channels(planted(), "fc", 0, count=2)
    assert {row["channel"] for row in rows} == {1, 2}
    assert all(row["lift"] > 5 for row in rows)
    assert class_channels(planted(), "fc", 1, count=1)[0]["channel"] == 5
    with pytest.raises(ValueError, match="No input was explained as class 7"):
        class_channels(planted(), "fc", 7)


def test_prototypes_are_the_ways_in_which_a_class_uses_channels() -> None:
    pytest.importorskip("sklearn")
    ways = prototypes(planted(), "fc", 0, components=2, dimensions=4)
    assert {ways.channels(k, 1)[0] for k in range(2)} == {1, 2}
    assert 19 in ways.outliers(3)
    for sample in ways.typical:
        assert sample < 40
    with pytest.raises(ValueError, match="too few for 30 prototypes"):
        prototypes(planted(), "fc", 1, components=30)


# Photographs


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(7):
        pixels = np.random.default_rng(number).integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40, 40)).save(folder / ("more" if number % 2 else "") / f"{number}.png")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom plrp.models import Preprocessing\n"
        "preprocessing = Preprocessing(resize=36, crop=32)\n"
        "def build():\n    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))\n"
    )
    return folder


def test_the_command_searches_draws_and_resumes(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = photographs.parent / "run"
    command = ["exemplars", photographs, "--model", f"{photographs.parent / 'net.py'}:build", "--layers", "0", "2"]
    words = [*map(str, command), "--out", str(out), "--part-size", "3"]
    assert main(words) == 0
    assert "Exemplars of 7 inputs" in capsys.readouterr().out
    with (out / "channels.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 10
    before = {path: path.stat().st_mtime_ns for path in (out / "parts").iterdir()}
    assert (out / "0.png").stat().st_size > 1000
    page = (out / "index.html").read_text("utf-8")
    assert "Channels of 2" in page
    assert "Prototypes in 0" in page
    assert main([*words, "--channels", "1"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "parts").iterdir()} == before
    assert json.loads((out / "run.json").read_text())["command"] == "exemplars"
    assert Exemplars.load(str(out)).names[0] == "0.png"


def test_a_damaged_photograph_is_named_with_what_to_do(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = sorted(photographs.rglob("*.png"))[3]
    damaged.write_bytes(damaged.read_bytes()[:-60])
    model = f"{photographs.parent / 'net.py'}:build"
    words = ["exemplars", str(photographs), "--model", model, "--layers", "0", "--out", str(photographs.parent / "run")]
    assert main([*words, "--part-size", "3", "--no-pictures"]) == 1
    said = capsys.readouterr().err
    assert "1 of 3 parts failed: part 1: " in said
    assert f"{damaged} is " in said
    assert said.rstrip().endswith("Remove or repair these files, and search anew into another folder.")


def test_the_flow_of_a_photograph_shows_patches_of_what_was_searched(
    photographs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from plrp.vision import photograph_explanation

    drawn: list[dict[str, dict[int, np.ndarray]]] = []
    figure = photograph_explanation.flow_figure
    monkeypatch.setattr(
        photograph_explanation,
        "flow_figure",
        lambda *a, patches, **k: (drawn.append(patches), figure(*a, patches=patches, **k))[1],
    )
    out, model = photographs.parent / "run", f"{photographs.parent / 'net.py'}:build"
    words = ["exemplars", str(photographs), "--model", model, "--layers", "0", "--out", str(out), "--no-pictures"]
    assert main(words) == 0
    explain = ["explain", str(photographs / "0.png"), "--model", model, "-o", str(photographs.parent / "why.png")]
    assert main([*explain, "--layers", "--exemplars", str(out)]) == 0
    assert (photographs.parent / "why-flow.png").stat().st_size > 1000
    (patches,) = drawn
    assert list(patches) == ["0"]  # layer 2 was not searched
    for pixels in patches["0"].values():
        assert pixels.shape[2] == 3
    assert main([*explain, "--exemplars", str(out)]) == 2
    assert "--exemplars goes with --layers" in capsys.readouterr().err
    assert main([*explain, "--layers", "--exemplars", str(photographs)]) == 2
    assert "holds no exemplars" in capsys.readouterr().err
    (photographs / "0.png").rename(photographs / "9.png")
    assert main([*explain[:1], str(photographs / "9.png"), *explain[2:], "--layers", "--exemplars", str(out)]) == 2
    assert "no longer holds the photographs" in capsys.readouterr().err
    other = photographs.parent / "net.py"
    other.write_text(other.read_text().replace("Linear(4, 3)", "Linear(4, 5)"))
    assert main([*explain[:1], str(photographs / "9.png"), *explain[2:], "--layers", "--exemplars", str(out)]) == 2
    assert "another model or other weights" in capsys.readouterr().err


def test_wrong_usage_of_the_command_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exemplars", str(tmp_path / "none"), "--model", "resnet18", "--weights", "random"]) == 2
    assert "is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["exemplars", str(tmp_path / "empty"), "--model", "resnet18", "--weights", "random"]) == 2
    assert "holds no photographs" in capsys.readouterr().err


def test_a_patch_is_the_region_that_a_channel_reads() -> None:
    """The network's channel 0 sees the left half alone: so do its patches."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 64, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
        weight = torch.zeros(2, 2, 8, 8)
        weight[0, 0, :, :4], weight[0, 1, :, 4:] = 1, 1
        model[3].weight.copy_(weight.flatten(1))
    data = torch.rand(3, 1, 8, 8) + 0.5
    all_ = plrp.exemplars(model, data, ["0"], target=0, composite="epsilon-plus", show_progress=False)
    assert (all_["0"].relevant_at[:, 0] % 8 < 4).all()
    assert (all_["0"].relevant_at[:, 1] % 8 >= 4).all()
    figure = channel_figure(all_, "0", [0, 1], model, data, count=3)
    assert len([ax for ax in figure.axes if ax.images]) == 6


WAITS = """
import glob, os, time

class Network(nn.Sequential):
    def forward(self, x):
        while os.path.exists("held") and len(glob.glob("killed/parts/0*.npz")) == 2:
            time.sleep(0.01)
        return super().forward(x)
"""


@pytest.mark.slow
def test_workers_and_a_kill_give_the_same(photographs: Path) -> None:
    """The network waits once the killed search has stored two parts, so that the kill comes before its end."""
    folder = photographs.parent
    network = (folder / "net.py").read_text().replace("return nn.Sequential(", "return Network(")
    (folder / "net.py").write_text(f"{network}\n{WAITS}")
    command = [sys.executable, "-m", "plrp", "exemplars", photographs, "--model", "net.py:build", "--layers", "2"]

    def start(out: str, *more: str) -> subprocess.Popen[bytes]:
        words = [*map(str, command), "--out", str(folder / out), "--part-size", "1", "--no-pictures", *more]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=folder)

    assert start("whole").wait() == 0
    assert start("several", "--workers", "2").wait() == 0
    (folder / "held").touch()
    killed = start("killed")
    while killed.poll() is None and len(list((folder / "killed").glob("parts/0*.npz"))) < 2:
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert len(list((folder / "killed").glob("parts/0*.npz"))) == 2
    (folder / "held").unlink()
    assert start("killed").wait() == 0
    whole = Exemplars.load(folder / "whole")
    for out in ("several", "killed"):
        other = Exemplars.load(folder / out)
        assert (other.names, other.settings) == (whole.names, whole.settings)
        for column in ("relevance", "absolute", "activation"):  # the number of threads decides the last bits
            assert np.allclose(getattr(other["2"], column), getattr(whole["2"], column), rtol=1e-4, atol=1e-6)


# Sequences and texts


def test_a_receptive_field_is_what_a_neuron_reads() -> None:
    """Restated by arithmetic: two convolutions of 5 and 3 with a pool of 2 between them."""
    model = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 3, 3)).eval()
    x = torch.randn(1, 4, 40)
    for place in (0, 4, 15):
        (field,) = receptive_field(model, x, "3", 1, (place,))
        assert field == (2 * place, 2 * place + 2 * 3 + 4)
    plane = nn.Sequential(nn.Conv2d(1, 2, (3, 5), padding=(1, 0)), nn.ReLU()).eval()
    assert receptive_field(plane, torch.randn(1, 1, 9, 12), "0", 0, (0, 2)) == [(0, 2), (2, 7)]


def motif_net() -> nn.Sequential:
    """Channel 0 looks for TATA, channel 1 for GGC; both speak for class 0."""
    model = nn.Sequential(
        nn.Conv1d(4, 2, 4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(2, 2, bias=False)
    ).eval()
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
        for channel, motif in enumerate(("TATA", "GGC")):
            model[0].weight[channel, :, len(motif) :] = 0
            for place, base in enumerate(motif):
                model[0].weight[channel, "ACGT".index(base), place] = 1
        model[0].bias.copy_(torch.tensor([-2.5, -1.5]))
        model[4].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    return model


def test_logos_show_the_motif_that_a_channel_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from plrp.genomics import logo

    drawn: list[tuple[np.ndarray, str, int]] = []
    draw = logo.draw_logo
    monkeypatch.setattr(
        logo, "draw_logo", lambda ax, v, s, start: (drawn.append((v, s, start)), draw(ax, v, s, start=start))
    )
    sequences = ["CCCCCTATACCCCCCC", "CCTATACCCCAACCCC", "CCCCCCCCCCGGCCCC", "AGGCAAAAAAAAAAAA"]
    data = torch.stack([torch.eye(4)[["ACGT".index(base) for base in one]].T for one in sequences])
    all_ = plrp.exemplars(motif_net(), data, ["0"], target=0, composite="epsilon", show_progress=False)
    assert {(e.sample, e.place) for e in all_.of("0", 0)} == {(0, (5,)), (1, (2,))}
    assert {(e.sample, e.place) for e in all_.of("0", 1)} == {(2, (10,)), (3, (1,))}
    figure = logo_figure(all_, "0", [0, 1], motif_net(), data, count=3)
    assert [letters for _, letters, _ in drawn] == ["TATA", "TATA", "GGCC", "GGCA"]
    assert {start for _, _, start in drawn[:2]} == {5, 2}
    for values, _, _ in drawn[:2]:
        assert (values > 0).all()
    for values, _, _ in drawn[2:]:
        assert (values[:3] > 0).all()
        assert values[3] == 0  # it reads the fourth base with weight zero
    assert sum(ax.axison for ax in figure.axes) == 4
    with pytest.raises(ValueError, match="one-hot sequences"):
        logo_figure(found(), "2", [0], net(), DATA)


def test_texts_mark_the_strongest_token_and_what_it_read() -> None:
    """A network that counts a word: its channel is strongest there, and reads nothing else."""
    words = ["the", "cat", "sat", "on", "mat"]
    model = nn.Sequential(
        nn.Embedding(5, 5), nn.Linear(5, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1, bias=False)
    ).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(5))
        model[1].weight.copy_(torch.tensor([[0.0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]))
        model[4].weight.fill_(1.0)
    ids = torch.tensor([[0, 1, 2, 3], [3, 0, 4, 0], [2, 2, 3, 1]])
    all_ = plrp.exemplars(model, ids, ["1"], target=0, show_progress=False)
    sentences = token_contexts(all_, "1", [0, 1], model, ids, words.__getitem__)
    shown = [" ".join(cell.text for cell in sentence.cells) for sentence in sentences]
    assert sorted(shown[:2]) == ["sat sat on ⟦cat⟧", "the ⟦cat⟧ sat on"]
    assert shown[2:] == ["on the ⟦mat⟧ the"]
    assert [cell.share for cell in sentences[2].cells] == pytest.approx([0, 0, 1, 0])
    assert len(token_figure(all_, "1", [1], model, ids, words.__getitem__).axes) == 1
    with pytest.raises(ValueError, match="a place for each"):
        token_contexts(found(), "2", [0], net(), DATA, words.__getitem__)


def test_hidden_files_are_no_photographs(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "folder.png").mkdir()
    for name in ("b.png", "inside/a.JPG", "._b.png", "inside/._a.JPG", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    inputs = FromPhotographs(tmp_path, LoadedModel(net(), "net", "its own"))
    assert inputs.names == ["b.png", "inside/a.JPG"]
