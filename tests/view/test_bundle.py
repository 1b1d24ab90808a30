"""What a page holds: the numbers that plrp computes, within quantisation, and nothing that can run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from discs import NAMES, PROPORTIONS, SIDE, mask, network, picture
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch import nn

import plrp
from plrp.cli import main
from plrp.models.preprocessing import Preprocessing
from plrp.view import Bundle, BundleError, Page, explanation_bundle, read_page
from plrp.view import page as page_module
from plrp.view.bundle import LEVELS, dequantise, quantise
from plrp.view.layer_channels import layer_facts, layer_inputs, strongest, survivors
from plrp.view.page import SCRIPTS, joined_script
from plrp.view.page_data import Grid
from plrp.view.page_kinds import input_picture, target_facts

# --- quantisation -----------------------------------------------------------------------------------------------------


@given(arrays(np.float64, (5, 4), elements=st.floats(-1e6, 1e6, allow_subnormal=False)))
def test_quantised_relevance_is_near_and_zero_stays_zero(values: np.ndarray) -> None:
    levels, largest = quantise(values)
    back = dequantise(levels, largest)
    assert np.array_equal(np.sign(back), np.sign(values))  # the pattern of survivors is exact
    root, there = (np.sqrt(np.abs(v) / max(largest, 1e-300)) for v in (values, back))
    lifted = (values != 0) & (root < 0.5 / LEVELS)
    assert np.all(np.abs(there - root)[~lifted] <= 0.5 / LEVELS + 1e-9)
    assert np.all(np.abs(there - root)[lifted] <= 1 / LEVELS)


def test_a_bundle_comes_back_as_it_was() -> None:
    given = Bundle(
        {"kind": "picture", "title": "ä <b> 𝛌", "largest": {"maps": [2.0]}},
        {"maps": np.array([[0, -127, 64]], np.int8), "left": np.array([[7, 2**31]], np.uint32)},
    )
    found = Bundle.unpack(*given.pack())
    assert found.facts == given.facts
    assert {name: (a.dtype, a.tolist()) for name, a in found.arrays.items()} == {
        name: (a.dtype, a.tolist()) for name, a in given.arrays.items()
    }
    assert found.relevance("maps", 0) == pytest.approx([0, -2, 2 * (64 / 127) ** 2])


@pytest.mark.parametrize("damage", ["format", "zlib", "type", "json", "letters", "short", "offset", "large"])
def test_a_damaged_bundle_is_refused(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, content = Bundle({}, {"maps": np.zeros((2, 3), np.int8)}).pack()
    if damage == "format":
        facts = facts.replace('"format":1', '"format":99')
    elif damage == "type":
        facts = facts.replace('"int8"', '"object"')
    elif damage == "json":
        facts = facts[:-2]
    elif damage == "letters":
        content = "€" + content
    elif damage == "short":
        facts = facts.replace("[2,3]", "[9,9]")
    elif damage == "offset":
        facts = facts.replace('"offset":0', '"offset":-4')
    elif damage == "large":
        monkeypatch.setattr("plrp.view.bundle.LARGEST", 4)
    else:
        content = content[:8]
    with pytest.raises(BundleError, match=r"write it again|version 1"):
        Bundle.unpack(facts, content)


@pytest.mark.parametrize(
    "settings", [{"p": None, "sparsity_gain": 1.0}, {"p": 0.0, "layers": {"5": 0.3}}, {"p": 0.0, "p_negative": 0.1}]
)
def test_what_the_slider_cannot_hold_is_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="explain with some p > 0"):
        Grid.around(plrp.Pruning(**settings), [0])


@pytest.mark.parametrize("samples", [1, 2])
def test_all_windows_of_a_sample_are_counted(samples: int) -> None:
    """A linear layer that reads (batch · windows, places, channels), as in a Swin transformer."""

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.mix, self.head = nn.Conv2d(3, 5, 1), nn.Linear(5, 5), nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.stem(x).relu().flatten(2).mT.reshape(-1, 4, 5)  # 4 windows of 4 places each
            return self.head(self.mix(rows).relu().reshape(len(x), 16, 5).mean(1))

    torch.manual_seed(0)
    trace = plrp.trace(Windows().eval(), torch.rand(samples, 3, 4, 4))
    found = trace.explain(target=1, composite="epsilon", layers=True)
    fact = next(row for row in layer_facts(trace) if row["name"] == "mix")
    assert (fact["channels"], fact["neurons"], fact["shape"]) == (5, 80, [4, 4, 5])
    place = [op.name for op in layer_inputs(trace)].index("mix")
    for sample in range(samples):
        own = found.layers["mix"].reshape(samples, 16, 5)[sample]
        expected = [int(own.ne(0).sum()), int(own.ne(0).any(0).sum()), int(own.ne(0).any(1).sum())]
        assert survivors(trace, found, sample)[place].tolist() == expected
        rows, *_ = strongest(trace, found, sample)
        assert {row["channel"]: row["relevance"] for row in rows[place]} == pytest.approx(
            {c: float(own[:, c].sum()) for c in range(5) if own[:, c].any()}, rel=1e-4, abs=1e-7
        )


def test_layers_that_step_over_pixels_are_counted() -> None:
    """A kernel smaller than its stride leaves pixels unread, from which the lattice of dots comes."""
    layers = [nn.Conv2d(3, 4, 1, stride=2), nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, (1, 3), stride=(2, 1))]
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2)).eval()
    model(torch.rand(1, 3, 16, 16))
    found = explanation_bundle(plrp.explain(model, torch.rand(1, 3, 16, 16)), proportions=(0.2,), targets=1)
    assert found.facts["skipping"] == 2


def test_the_methods_are_called_what_they_are() -> None:
    grid = Grid.around(plrp.Pruning(p=0.1, unit="channel", conserve=False), [0])
    assert [m["label"] for m in grid.facts()["methods"]] == [
        "PLRP-λ by channel (not conserving)",
        "PLRP-M± by channel (not conserving)",
    ]


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_every_map_is_what_plrp_computes(bundle: Bundle) -> None:
    trace = plrp.trace(network(), picture())
    grid = [(m, p) for m in ("lambda", "M-sign") for p in PROPORTIONS]
    prunings = [None, *(plrp.Pruning(p=p, redistribution=m) for m, p in grid)]
    classes = trace.output[0].topk(3).indices.tolist()
    assert [t["number"] for t in bundle.facts["targets"]] == classes
    number = 0
    for target in classes:
        for pruning in prunings:
            found = trace.explain(target=target, pruning=pruning)
            exact = found.relevance[0].double().sum(0).numpy()
            stored = bundle.relevance("maps", number)
            assert np.array_equal(stored != 0, exact != 0)
            root = np.sqrt(np.abs(exact).max())
            apart = np.abs(np.sqrt(np.abs(stored)) - np.sqrt(np.abs(exact))) / root
            assert apart.max() <= 1 / LEVELS + 1e-6
            curves = {name: values[number] for name, values in bundle.facts["curves"].items()}
            positive = exact.clip(min=0)
            assert curves["holding"] == pytest.approx((exact != 0).mean())
            assert curves["kept"] == pytest.approx(exact.sum() / float(found.score[0]), rel=1e-5)
            assert curves["inside"] == pytest.approx(positive[mask()].sum() / positive.sum(), rel=1e-6)
            number += 1
    assert number == len(bundle.arrays["maps"])


def test_the_layers_thin_as_plrp_says(bundle: Bundle) -> None:
    trace = plrp.trace(network(), picture())
    names = [layer["name"] for layer in bundle.facts["layers"]]
    assert names == ["9", "5", "2", "0"]
    found = trace.explain(target=bundle.facts["targets"][1]["number"], pruning=plrp.Pruning(p=0.4), layers=True)
    grid = Grid.around(None, [0, 1, 2], proportions=PROPORTIONS)
    stored = bundle.arrays["left"][grid.number(1, 0, PROPORTIONS.index(0.4))]
    for row, name in zip(stored, names, strict=True):
        relevance = found.layers[name][0]
        channels = relevance if name != "9" else relevance[:, None]
        alive = channels.flatten(1).ne(0)
        assert row.tolist() == [int(relevance.ne(0).sum()), int(alive.any(1).sum()), int(alive.any(0).sum())]
    assert survivors(trace, found).tolist() == stored.tolist()
    assert [op.name for op in layer_inputs(trace)] == names


def test_the_strongest_channels_are_those_of_the_setting_asked_for(bundle: Bundle) -> None:
    found = plrp.explain(network(), picture(), pruning=plrp.Pruning(p=0.15), layers=True)
    for layer, rows in zip(bundle.facts["layers"], bundle.facts["channels"], strict=True):
        relevance = found.layers[layer["name"]][0]
        relevance = relevance.reshape(len(relevance), -1).double()
        mass = relevance.abs().sum(1)
        best = mass.argsort(descending=True, stable=True)[: len(rows)].tolist()
        assert [row["channel"] for row in rows] == [c for c in best if mass[c] > 0]
        for row in rows:
            assert row["share"] == pytest.approx(float(mass[row["channel"]] / mass.sum()), rel=1e-5)
            if "offset" in row:
                size = int(np.prod(row["shape"]))
                levels = bundle.arrays["channels"][row["offset"] : row["offset"] + size]
                exact = relevance[row["channel"]].numpy()
                assert np.abs(dequantise(levels, row["largest"]) - exact).max() <= 2.1 / LEVELS * row["largest"]


def test_the_ledger_closes(bundle: Bundle) -> None:
    target = bundle.facts["start"]["target"]
    score = bundle.facts["scores"][target]
    grid = Grid.around(plrp.Pruning(p=0.15), [0, 1, 2], proportions=PROPORTIONS)
    reached = bundle.facts["curves"]["kept"][grid.number(*grid.start)] * score
    booked = sum(
        r["absorbed_bias"] + r["absorbed_epsilon"] + r["dropped"] - r["created"] for r in bundle.facts["ledger"]
    )
    assert reached + booked == pytest.approx(score, rel=1e-4)
    assert max(row.get("pruned", 0) for row in bundle.facts["ledger"]) <= 0.15


def test_the_grid_holds_what_was_asked_for() -> None:
    grid = Grid.around(plrp.Pruning(p=0.33, redistribution="M"), [5, 7], 1, (0.1, 0.5))
    assert grid.methods == ("lambda", "M-sign", "M")
    assert grid.proportions == (0.1, 0.33, 0.5)
    asked = grid.prunings[grid.number(0, *grid.start[1:])]
    assert asked == plrp.Pruning(p=0.33, redistribution="M")
    assert len({grid.number(t, m, p) for t in range(2) for m in range(3) for p in range(3)}) == 18
    assert len(grid) == 2 * (1 + 9)
    assert Grid.around(None, [0]).start[2] is None
    assert Grid.around(plrp.Pruning(p=0.0), [0]).start[2] is None
    with pytest.raises(ValueError, match="0 < p < 1"):
        Grid.around(None, [0], proportions=[0.1, 1.0])


# --- explanations of all kinds ----------------------------------------------------------------------------------------


def test_an_explanation_saves_its_page(explanation: plrp.Explanation, tmp_path: Path) -> None:
    explanation.save(tmp_path / "x.html", proportions=(0.2,), targets=1, title="t")
    found = read_page(tmp_path / "x.html").bundle
    assert found.facts["p"] == [0.15, 0.2]  # the one asked for too
    assert found.facts["kind"] == "picture"
    exact = explanation.relevance[0].double().sum(0).numpy()
    assert np.array_equal(found.relevance("maps", 1) != 0, exact != 0)
    with pytest.raises(ValueError, match=r"should end in \.html"):
        explanation.save(tmp_path / "x.docx", proportions=(0.2,), targets=1)
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_an_explanation_saves_its_figure(explanation: plrp.Explanation, tmp_path: Path, suffix: str) -> None:
    explanation.save(tmp_path / f"x{suffix}", names={int(explanation.target[0]): "tabby"})
    content = (tmp_path / f"x{suffix}").read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert suffix != ".svg" or b"tabby (" in content


def test_one_sample_of_a_batch_and_of_a_trace(explanation: plrp.Explanation) -> None:
    both = torch.cat([picture().flip(3), picture()])
    options = {"sample": 1, "proportions": (0.2,), "targets": 2}
    by_trace = plrp.trace(network(), both).explain(pruning=plrp.Pruning(p=0.15))
    whole = plrp.explain(network(), both, pruning=plrp.Pruning(p=0.15))
    alone = explanation_bundle(explanation, proportions=(0.2,), targets=2)
    for one in (by_trace, whole):
        found = explanation_bundle(one, **options)
        numbers, expected = ([t["number"] for t in b.facts["targets"]] for b in (found, alone))
        assert numbers == expected
        for number in range(len(alone.arrays["maps"])):
            assert found.relevance("maps", number) == pytest.approx(
                alone.relevance("maps", number), abs=0.05 * alone.facts["largest"]["maps"][number]
            )
    with pytest.raises(IndexError, match="There is no sample 2"):
        explanation_bundle(whole, sample=2)


def test_a_sequence_has_its_letters_and_sites() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Conv1d(6, 3, 3), nn.AdaptiveMaxPool1d(1), nn.Flatten())
    onehot = plrp.genomics.encode(["ACGTNACGTTTGACA"])
    found = plrp.explain(model.eval(), torch.from_numpy(onehot), composite="epsilon-plus")
    bundle = explanation_bundle(found, sites=[(2, 6, "<motif>")], proportions=(0.1, 0.3))
    assert bundle.facts["kind"] == "sequence"
    assert bundle.facts["letters"] == "ACGTNACGTTTGACA"
    assert bundle.facts["tracks"] == [{"sites": [{"start": 2, "end": 6, "name": "<motif>"}]}]
    assert bundle.arrays["maps"].shape == (3 * 5, 15)


def test_targets_that_are_no_classes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)).eval()
    for target, name in (((1, 4, 5), "output (1, 4, 5)"), (lambda y: y[:, 0].amax((1, 2)), "the given score")):
        found = plrp.explain(model, picture()[..., :16, :16], target=target, pruning=plrp.Pruning(p=0.1))
        bundle = explanation_bundle(found, proportions=(0.3,))
        assert [t["name"] for t in bundle.facts["targets"]] == [name]
        assert bundle.facts["targets"][0]["score"] == pytest.approx(float(found.score[0]), rel=1e-5)


def test_a_score_of_0_is_said(recwarn: pytest.WarningsRecorder) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    with torch.no_grad():
        model[2].weight[0] = 0
        model[2].bias[0] = 0
    found = plrp.explain(model, picture()[..., :8, :8], target=0, composite="epsilon")
    recwarn.clear()
    bundle = explanation_bundle(found, proportions=(0.2,), targets=1)
    assert not recwarn.list  # the page warns
    trace = plrp.trace(model, picture()[..., :8, :8])
    prunings = Grid.around(None, [0], proportions=(0.2,)).prunings
    said = [trace.explain(target=0, composite="epsilon", pruning=pruning).remarks()[0] for pruning in prunings]
    assert bundle.facts["remarks"] == said == ["the score is 0: there is nothing to hand down"] * 3
    assert bundle.facts["curves"]["kept"] == [None] * 3


def test_what_no_page_can_show_is_refused(explanation: plrp.Explanation) -> None:
    flat = plrp.explain(nn.Sequential(nn.Linear(4, 3)), torch.randn(1, 4))
    with pytest.raises(ValueError, match=r"token ids \(batch, tokens\); this one is \(1, 4\)"):
        explanation_bundle(flat)
    with pytest.raises(ValueError, match=r"the mask is \(3, 3\), the network sees \(72, 72\)"):
        explanation_bundle(explanation, mask=np.ones((3, 3)))
    with pytest.raises(ValueError, match="2 names were given for 4 classes"):
        explanation_bundle(explanation, categories=["a", "b"])
    with pytest.raises(ValueError, match=r"the picture is float64 \(72, 72, 3\)"):
        explanation_bundle(explanation, picture=np.zeros((SIDE, SIDE, 3)), proportions=(0.2,), targets=1)


def test_a_model_that_changed_is_seen() -> None:
    model = network()
    found = plrp.explain(model, picture())
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="has changed since"):
        explanation_bundle(found, proportions=(0.2,), targets=1)


def test_an_input_that_changed_is_seen_where_the_output_hardly_did() -> None:
    x = picture()
    found = plrp.explain(network(), x)
    x[0, 0, 0, 0] += 1e-6
    with pytest.raises(RuntimeError, match="has changed since"):
        explanation_bundle(found, proportions=(0.2,), targets=1)


def test_a_change_of_any_tensor_in_the_output_is_seen() -> None:
    """Neither weights nor input are written into: only the second tensor of the output tells."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shift = network(), 0.0

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.body(x)
            return out, out + self.shift

    model = Two().eval()
    found = plrp.explain(model, picture(), target=lambda out: out[0][:, 1])
    explanation_bundle(found, proportions=(0.2,), targets=1)
    model.shift = 1e-2
    with pytest.raises(RuntimeError, match="has changed since"):
        explanation_bundle(found, proportions=(0.2,), targets=1)


def test_an_input_is_shown_as_the_picture_it_was() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    rgb = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    assert np.array_equal(input_picture(rgb), pixels)
    assert np.array_equal(input_picture(Preprocessing().normalise(rgb)), pixels)
    stretched = input_picture(rgb[:1] * 900 - 200)
    assert stretched is not None
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert input_picture(torch.zeros(2, 5, 7)) is None


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_without_addresses(page: Path, bundle: Bundle) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    assert text.count("<script") == 3  # facts, arrays, ours: what a name holds is not markup
    assert read_page(page).bundle.facts == json.loads(json.dumps(bundle.facts))
    assert read_page(page).bundle.facts["targets"][0]["name"] in NAMES


def test_a_page_shows_itself_in_a_notebook(bundle: Bundle) -> None:
    shown = Page(bundle)._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert '"' not in shown.split('srcdoc="')[1].split('" sandbox=')[0]


def test_a_page_that_is_too_large_is_refused(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "LARGEST", 10_000)
    with pytest.raises(ValueError, match="fewer targets or proportions"):
        Page(bundle).save(tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_page_is_refused(tmp_path: Path) -> None:
    for content in (b"<p>hello</p>", b"", b"\xff\x00\x82"):
        (tmp_path / "x.html").write_bytes(content)
        with pytest.raises(BundleError, match="is no page of plrp"):
            read_page(tmp_path / "x.html")


def test_the_modules_fit_together_as_one_script() -> None:
    script = joined_script()
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)), "one name in two modules"
    front = Path(page_module.__file__).parent / "front"
    assert {file.name for file in front.glob("*.js")} == set(SCRIPTS)
    for place, name in enumerate(SCRIPTS):  # a module imports those before it
        imported = re.findall(r'from "\./(\w+\.js)"', (front / name).read_text(encoding="utf-8"))
        assert set(imported) <= set(SCRIPTS[:place])


# --- the command ------------------------------------------------------------------------------------------------------

NETWORK = """
from torch import nn
from plrp.models import Preprocessing
categories = ["cat", "dog", "fish", "tench"]
preprocessing = Preprocessing(resize=36, crop=32)
def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
"""


def test_the_command_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("network.py").write_text(NETWORK)
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.png")
    inside = np.zeros((60, 80), np.uint8)
    inside[10:40, 20:60] = 255
    Image.fromarray(inside).save("mask.png")
    run = ["explain", "photo.png", "--model", "network.py:build", "-p", "0.3", "--method", "M-sign"]
    assert main([*run, "--mask", "mask.png", "-o", "x.html"]) == 0
    assert capsys.readouterr().out.startswith("photo.png → x.html\n")
    facts = read_page("x.html").bundle.facts
    start = facts["start"]
    assert (facts["methods"][start["method"]]["label"], facts["p"][start["p"]]) == ("PLRP-M±", 0.3)
    assert (facts["title"], len(facts["p"]), len(facts["targets"])) == ("photo", 10, 3)
    assert len(facts["curves"]["inside"]) == 3 * 21
    assert main([*run, "--page-p", "0,0.1", "--page-classes", "2", "-o", "small.html"]) == 0
    small = read_page("small.html").bundle.facts
    assert (small["p"], len(small["targets"])) == ([0.1, 0.3], 2)  # with the p asked for
    assert main([*run, "--page-classes", "2", "-o", "x.png"]) == 2
    assert "--page-classes goes with a page: -o page.html." in capsys.readouterr().err
    assert main([*run, "--mask", "mask.png", "-o", "x.png"]) == 2
    assert "--mask goes with one photograph and a page" in capsys.readouterr().err
    assert main([*run, "--layers", "-o", "x.html"]) == 2


def test_an_explanation_that_is_not_finite_has_a_page_that_says_so(tmp_path: Path) -> None:
    """Nine layers whose weights of 10⁵ cancel: ε hands down infinite relevance of either sign."""
    large = 1e5
    layers: list[nn.Module] = [nn.Flatten()]
    for rows in [[[large, 1 - large], [1 - large, large]]] * 9 + [[[1.0, 0.0], [0.0, 0.5]]]:
        layers.append(nn.Linear(2, 2, bias=False))
        layers[-1].weight.data = torch.tensor(rows)
    with pytest.warns(UserWarning, match="finite"):
        found = plrp.explain(
            nn.Sequential(*layers).eval(), torch.ones(1, 1, 1, 2), composite="epsilon", pruning=plrp.Pruning(p=0.05)
        )
    assert not found.relevance.isfinite().all()
    found.save(tmp_path / "x.html")
    (bundle,) = read_page(tmp_path / "x.html").bundles
    assert "relevance is not finite" in bundle.facts["remarks"]


def test_classes_that_do_not_exclude_each_other_have_probabilities_of_their_own() -> None:
    logits = torch.tensor([2.0, 1.0])
    for exclusive, expected in ((True, logits.softmax(0)), (False, logits.sigmoid())):
        shown = [row["probability"] for row in target_facts([0, 1], logits, None, exclusive)]
        assert shown == pytest.approx(expected.tolist(), rel=1e-6)
