"""References by every door: photographs, files of sequences, comparisons, texts, sweeps, pages; and their refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import plrp
import plrp.text
from plrp import genomics, references
from plrp.cli import main
from plrp.experiments import ConfigError, Store
from plrp.experiments.measure import Bench
from plrp.experiments.part_files import read_parquet, split
from plrp.models.loading import LoadedModel
from plrp.settings import read_reference
from plrp.view.page_data import PageSettings
from plrp.view.page_kinds import photograph_bundle, sequence_bundle, text_bundle
from plrp.view.uploads import open_photograph, open_sequence, open_text
from plrp.vision.photograph_settings import PhotographSettings
from worlds import world

LETTERS = ["ACGTACGTTGCATTTACGGA", "TTGTNCCCCAACGATCGATC", "A" * 20]
SEQUENCE_NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = nn.Conv1d(4, 6, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(48, 2)
    return nn.Sequential(*layers).eval()
"""
PICTURE_NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)
    return nn.Sequential(*layers).eval()
"""


def built(source: str) -> nn.Module:
    space: dict[str, Any] = {}
    exec(source, space)
    made: nn.Module = space["build"]()
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("dna.py").write_text(SEQUENCE_NETWORK)
    Path("net.py").write_text(PICTURE_NETWORK)
    Path("s.fa").write_text("".join(f">{name}\n{one}\n" for name, one in zip("abc", LETTERS, strict=True)))
    Path("photos").mkdir()
    for n in range(2):
        pixels = np.random.default_rng(n).integers(0, 256, (32, 32, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(f"photos/{n}.png")
    return tmp_path


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_have_one_grammar() -> None:
    assert read_reference(" blur:2.5 ") == ("blur", 2.5)
    assert read_reference("shuffled") == ("shuffled", None)
    assert read_reference("mean:a/b") == ("mean", "a/b")
    assert read_reference("mask:7") == ("mask", 7)
    for text, sentence in {
        "blur:": "blur takes a number, as in 'blur:8'",
        "blur:0": "blur takes a number",
        "blur:inf": "blur takes a number",
        "shuffled:1.5": "shuffled takes a number, as in 'shuffled:20'",
        "mean": "mean takes a folder, as in 'mean:FOLDER'",
        "mean:": "mean takes a folder",
        "mask:word": "mask takes a number",
        "grey:1": "grey takes no number",
        "": "there is no reference ''",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            read_reference(text)
    with pytest.raises(ValueError, match=r"there is no reference 'mask' here; .*blur:8"):
        PhotographSettings(reference="mask")


# --- photographs ------------------------------------------------------------------------------------------------------

MODEL = ("--model", "net.py:build", "--resize", "32", "--crop", "32")


@pytest.mark.parametrize("name", ["blur:2", "grey", "zeros", "mean:photos"])
def test_a_photograph_against_each_reference(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "photos/0.png", *MODEL, "--reference", name, "-o", "a.png", "--save", "a.npz"]) == 0
    saved: Any = plrp.load("a.npz")
    facts, x = saved.settings["reference"], saved.input[None].double()
    if name == "mean:photos":
        assert main(["explain", "photos/1.png", *MODEL, "-o", "b.png", "--save", "b.npz", "-q"]) == 0
        other: Any = plrp.load("b.npz")
        x0 = (x + other.input.double()) / 2
    else:
        x0 = references.parse(name)(x)
    model = built(PICTURE_NETWORK).double()
    with torch.no_grad():
        now, before = (float(model(one)[0, saved.target]) for one in (x, x0))
    assert facts["reference"].startswith(name)
    assert (facts["score"], facts["reference_score"]) == pytest.approx((now, before), abs=1e-5)
    for relevance in saved.relevance.values():
        assert float(relevance.sum()) == pytest.approx(now - before, abs=1e-5)
    assert "against " + name in repr(saved)
    printed = capsys.readouterr().out
    assert f"against {name}" in printed
    assert f"difference {facts['difference']:.4g}" in printed


def test_a_grid_against_a_reference_has_lrp_beside_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    from plrp.vision.photograph_explanation import ExplainedPhotograph

    monkeypatch.setattr(ExplainedPhotograph, "comparison", lambda self, **_: drawn.append(self) or self.figure())
    assert main(["explain", "photos/0.png", *MODEL, "--compare", "0.1", "--reference", "blur:2", "-o", "a.png"]) == 0
    (explained,) = drawn
    assert list(explained.beside) == ["LRP, no reference"]
    plain = plrp.explain(built(PICTURE_NETWORK), explained.trace.now.inputs[0].data, target=explained.target)
    torch.testing.assert_close(explained.beside["LRP, no reference"], plain.relevance[0])
    assert "against blur:2: f(x) = " in explained.title


def test_the_page_of_a_photograph_names_reference_and_scores() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    explained = plrp.vision.explain_photograph(pixels, built(PICTURE_NETWORK), reference="grey")
    assert explained.reference is not None
    bundle = photograph_bundle(explained, proportions=(0.1,), targets=2, inside="nothing")
    assert bundle.facts["against"][bundle.facts["start"]["target"]] == explained.reference.words()
    assert len(bundle.facts["against"]) == len(bundle.facts["targets"]) == 2
    plain = plrp.vision.explain_photograph(pixels, built(PICTURE_NETWORK))
    assert "against" not in photograph_bundle(plain, proportions=(0.1,), targets=1, inside="nothing").facts


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--reference blurr:8", "there is no reference 'blurr:8' here; nearest: blur"),
        ("--reference blur:-1", "blur takes a number, as in 'blur:8'"),
        ("--reference shuffled:3", "possible are blur:8, grey, zeros, mean:FOLDER"),
        ("--reference mean:empty", "there is no folder empty with photographs in it"),
        ("--composite rescale", "'rescale' explains the difference to a reference: give --reference"),
        ("--reference zeros --composite epsilon-gamma-box", "has no meaning for differences to a reference"),
    ],
)
def test_refusals_of_photographs(words: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    try:
        code: Any = main(["explain", "photos/0.png", *MODEL, *words.split(), "-o", "a.png"])
    except SystemExit as exit:
        code = exit.code
    assert code in (1, 2)
    assert sentence in capsys.readouterr().err
    assert not Path("a.png").exists()


# --- sequences --------------------------------------------------------------------------------------------------------


def onehot() -> Tensor:
    return torch.from_numpy(genomics.encode(LETTERS))


@pytest.mark.parametrize("name", ["shuffled:4", "zeros"])
def test_sequences_hold_all_of_the_difference_at_their_own_letters(name: str) -> None:
    model, x = built(SEQUENCE_NETWORK), onehot()
    found = genomics.explain_sequences(model, x, target=1, reference=name)
    x0 = references.parse(name)(x)
    before = model(x0.reshape(-1, 4, 20))[:, 1].reshape(-1, 3).detach()
    np.testing.assert_allclose(found.reference_score, before.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.reference_spread, before.std(0, correction=0), atol=1e-6)
    np.testing.assert_allclose(found.score, model(x)[:, 1].detach() - before.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.relevance.sum((1, 2)), found.score, atol=1e-6)
    held = (found.onehot > 0) | (found.onehot.sum(1, keepdims=True) == 0)  # N has no letter of its own
    assert (found.relevance[~held] == 0).all()
    if name != "zeros":
        assert (found.relevance[2] == 0).all()  # every shuffle of AAAA is AAAA


def test_hypothetical_scores_against_references_restated() -> None:
    """c_b = m_b − Σ_a m_a x⁰_a, and x·c is the relevance; m by hand for one layer, a ReLU and a sum."""
    torch.manual_seed(0)
    conv, x = nn.Conv1d(4, 3, 20).eval(), onehot()[:1]
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(3, 1)).eval()
    x0 = references.shuffled(2)(x)
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for one in x0:
            z, z0 = conv(x)[0, :, 0], conv(one)[0, :, 0]
            slope = (z.relu() - z0.relu()) / (z - z0) * model[3].weight[0]
            m = (slope[:, None, None] * conv.weight).sum(0)[None]
            expected += (m - (m * one).sum(1, keepdim=True)) / 2
    found = genomics.explain_sequences(model, x, target=0, reference="shuffled:2", hypothetical=True)
    np.testing.assert_allclose(found.relevance, expected, atol=1e-5)
    plain = genomics.explain_sequences(model, x, target=0, reference="shuffled:2")
    np.testing.assert_allclose(found.relevance * found.onehot, plain.relevance, atol=1e-5)
    with pytest.raises(ValueError, match="against a reference they need composite='rescale'"):
        genomics.explain_sequences(model, x, reference="shuffled:2", composite="rescale-gamma", hypothetical=True)


def test_the_other_strand_has_the_same_references_reversed() -> None:
    model, x = built(SEQUENCE_NETWORK), onehot()[:1]
    both = genomics.explain_sequences(model, x, target=1, reference="shuffled:2", reverse_complement=True)
    x0 = references.shuffled(2)(x)
    here = plrp.explain(model, x, target=1, reference=x0).relevance.sum(1)
    there = plrp.explain(model, x.flip(1, 2), target=1, reference=x0.flip(2, 3)).relevance.sum(1).flip(1)
    np.testing.assert_allclose(both.per_base(), (here + there) / 2, atol=1e-6)


def test_a_file_against_shuffles_carries_its_reference(here: Path) -> None:
    explain = ["genomics", "explain", "s.fa", "--model", "dna.py:build", "--no-match"]
    assert main([*explain, "--reference", "shuffled:3", "-p", "0.1", "--out", "run", "--html", "p.html"]) == 0
    about = json.loads(Path("run/run.json").read_text())
    assert (about["reference"], about["composite"]) == ("shuffled:3", "rescale")
    rows = list(csv.DictReader(Path("run/scores.tsv").read_text().splitlines(), delimiter="\t"))
    expected = genomics.explain_sequences(built(SEQUENCE_NETWORK), LETTERS, reference="shuffled:3")
    for row, score, before, spread in zip(
        rows, expected.score, expected.reference_score, expected.reference_spread, strict=True
    ):
        assert float(row["score"]) == pytest.approx(score, abs=1e-5)
        assert float(row["relevance"]) == pytest.approx(score, abs=1e-5)
        assert float(row["reference_score"]) == pytest.approx(before, abs=1e-5)
        assert float(row["input_score"]) == pytest.approx(score + before, abs=1e-5)
        assert float(row["reference_spread"]) == pytest.approx(spread, abs=1e-5)
    assert Path("p.html").stat().st_size > 10_000
    assert genomics.motif_search.run_settings("run")["reference"] == "shuffled:3"
    assert main([*explain, "--out", "plain"]) == 0
    assert "reference" not in json.loads(Path("plain/run.json").read_text())
    assert Path("plain/scores.tsv").read_text().splitlines()[0] == "name\ttarget\tscore\trelevance\tremark"


def test_deeplift_is_short_for_shuffles(here: Path) -> None:
    explain = ["genomics", "explain", "s.fa", "--model", "dna.py:build", "--no-match", "--part-size", "2"]
    assert main([*explain, "--method", "deeplift", "--out", "one"]) == 0
    assert main([*explain, "--reference", "shuffled:20", "--out", "two"]) == 0
    one, two = (np.load(f"{folder}/attributions.npz")["arr_0"] for folder in ("one", "two"))
    np.testing.assert_array_equal(one, two)
    expected = genomics.deeplift(built(SEQUENCE_NETWORK), LETTERS)
    np.testing.assert_allclose(one, expected.relevance, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--reference blur:8", "possible are shuffled:20, zeros"),
        ("--reference shuffled:0", "shuffled takes a number"),
        ("--reference zeros --method ism", "--reference goes with --method lrp, not ism"),
        ("--composite rescale", "explains the difference to a reference"),
    ],
)
def test_refusals_of_sequences(words: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(["genomics", "explain", "s.fa", "--model", "dna.py:build", "--out", "run", *words.split()])
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert sentence in capsys.readouterr().err
    assert not Path("run").exists()
    with pytest.raises(TypeError, match="The reference of a file is a name"):
        genomics.explain_file("s.fa", "dna.py:build", "run", reference=torch.zeros(4, 20))


def test_the_comparison_shows_deeplift_plain_and_pruned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = built(SEQUENCE_NETWORK), onehot()[:2]
    compared = genomics.compare_methods(model, x, reference="zeros", pruning=plrp.Pruning(p=0.2))
    names = ["ISM", "LRP", "PLRP-λ p=0.2", "gradient × input", "DeepLIFT, zeros", "DeepLIFT, zeros, PLRP-λ p=0.2"]
    assert list(compared.per_base) == names
    assert compared.refused == {}
    winners = model(x).argmax(1)
    lrp = plrp.explain(model, x, target=winners, composite="epsilon-gamma").relevance
    rescale = plrp.explain(model, x, target=winners, reference=torch.zeros_like(x)).relevance
    for name, relevance in (("LRP", lrp), ("DeepLIFT, zeros", rescale)):
        np.testing.assert_allclose(compared.per_base[name], (relevance * x).sum(1), atol=1e-6)
    command = ["genomics", "compare", "s.fa", "--model", "dna.py:build", "--count", "1", "--out", "c.png"]
    assert main(command) == 0
    assert "DeepLIFT, shuffled:20, PLRP-λ p=0.05" in capsys.readouterr().out


def test_attribute_is_deeplift_where_references_are_given() -> None:
    model, x = built(SEQUENCE_NETWORK), onehot()[:2]
    asked: dict[str, Any] = {"target": 1, "device": "cpu", "batch_size": 1}
    ours, used = genomics.attribute(model, x, references="shuffled:3", return_references=True, **asked)
    expected = genomics.explain_sequences(model, x, target=1, reference="shuffled:3")
    torch.testing.assert_close(ours, torch.from_numpy(expected.relevance * expected.onehot))
    assert used.shape == (2, 3, 4, 20)
    assert torch.equal(used.transpose(0, 1), references.shuffled(3)(x))
    torch.testing.assert_close(genomics.attribute(model, x, references=used, **asked), ours)  # tangermeme's tensor

    def shuffles(X: Tensor, n: int, random_state: int) -> Tensor:  # tangermeme's function
        assert (n, random_state) == (3, 5)
        return references.shuffled(n)(X).transpose(0, 1)

    by_function = genomics.attribute(model, x, references=shuffles, n_shuffles=3, random_state=5, **asked)
    torch.testing.assert_close(by_function, ours)
    with pytest.raises(ValueError, match="no multipliers to return"):
        genomics.attribute(model, x, references="zeros", raw_outputs=True)
    with pytest.raises(ValueError, match="references only if they are given"):
        genomics.attribute(model, x, return_references=True)


def test_attribute_keeps_further_inputs_as_they_are() -> None:
    class WithControl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.output = nn.Conv1d(4, 6, 7), nn.Linear(6 + 3, 2)

        def forward(self, x: Tensor, control: Tensor) -> Tensor:
            return self.output(torch.cat([torch.relu(self.conv(x)).mean(2), control], 1))

    model, x, control = WithControl().eval(), onehot()[:1], torch.randn(1, 3)
    found = genomics.attribute(model, x, args=(control,), target=1, references="zeros", device="cpu")
    with torch.no_grad():
        wanted = model(x, control)[0, 1] - model(torch.zeros_like(x), control)[0, 1]
    assert float(found.sum()) == pytest.approx(float(wanted), abs=1e-6)


def test_the_page_of_a_sequence_sums_both_letters() -> None:
    model, sequences = built(SEQUENCE_NETWORK), genomics.Sequences(list("abc"), LETTERS)
    options: dict[str, Any] = {"proportions": (0.1,), "targets": 1, "reference": "shuffled:3"}
    bundle = sequence_bundle(model, sequences, 0, **options)
    assert bundle.facts["against"][0].startswith("against shuffled:3: f(x) = ")
    assert "±" in bundle.facts["against"][0]
    kept = bundle.facts["curves"]["kept"][0]
    assert kept == pytest.approx(1, abs=1e-4)  # of the letter that is there alone it would be less
    assert sequence_bundle(model, sequences, 2, **options).facts["scores"] == [0]  # AAAA, whose shuffles are itself


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_text_against_its_masked_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = pytest.importorskip("small_models")
    tokenizer = small.word_tokenizer()
    model = small.built("bert", len(tokenizer), id2label={0: "bad", 1: "good", 2: "neither"}, num_labels=3)
    found = plrp.text.explain(model, tokenizer, "A goodly film.", target="good", reference="mask")
    ids = torch.tensor([tokenizer("A goodly film.")["input_ids"]])
    masked = references.mask_token(tokenizer)(ids)
    with torch.no_grad():
        now, before = (float(model(one).logits[0, 1]) for one in (ids, masked))
    assert found.score == pytest.approx(now - before, abs=1e-5)
    assert float(found.relevance.sum()) == pytest.approx(now - before, abs=1e-4)
    assert found.relevance[[0, -1]].tolist() == [0, 0]  # special tokens stay
    assert found.explanation.composite.name == "rescale"
    assert "against mask token: f(x) = " in found.caption()
    assert found.records()[0]["reference"] == "mask token"
    assert found.records()[0]["reference_score"] == pytest.approx(before, abs=1e-5)
    same = plrp.text.explain(model, tokenizer, "A goodly film.", target=1, reference=f"mask:{tokenizer.mask_token_id}")
    assert torch.equal(same.relevance, found.relevance)
    bundle = text_bundle(found, proportions=(0.1,), targets=1, inside="nothing")
    assert bundle.facts["against"] == [found.explanation.reference.words()]
    for name, sentence in {"zeros": "there is no reference 'zeros' here", "mask:x": "mask takes a number"}.items():
        with pytest.raises(ValueError, match=sentence):
            plrp.text.explain(model, tokenizer, "A film.", reference=name)
    tokenizer.save_pretrained(tmp_path / "bert")
    model.save_pretrained(tmp_path / "bert")
    command = ["text", "A goodly film.", "--model", str(tmp_path / "bert"), "--target", "good"]
    assert main([*command, "--reference", "mask", "-o", str(tmp_path / "a.json")]) == 0
    assert "against mask token" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())[0]["reference"] == "mask token"
    with pytest.raises(SystemExit):
        main([*command, "--reference", "blur:8"])
    assert "possible are mask:103" in capsys.readouterr().err


def test_a_model_without_a_mask_token_says_so() -> None:
    small = pytest.importorskip("small_models")
    tokenizer = small.byte_tokenizer()
    model = small.built("llama", len(tokenizer))
    with pytest.raises(ValueError, match="has no mask token: name one by its id"):
        plrp.text.explain(model, tokenizer, "The capital", reference="mask")
    span = plrp.text.explain(model, tokenizer, "The capital", span=2, reference="mask:7")
    for one in span:
        assert float(one.relevance.sum()) == pytest.approx(one.score, rel=1e-3, abs=1e-4)


# --- the served page --------------------------------------------------------------------------------------------------


def test_uploads_are_explained_against_the_reference(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = pytest.importorskip("small_models")
    settings, how = PageSettings(proportions=(0.1,), targets=1, inside="nothing"), {"pruning": plrp.Pruning(p=0.1)}
    model = LoadedModel(built(PICTURE_NETWORK), "net", "its own")
    photograph = open_photograph(
        Path("photos/0.png").read_bytes(), "0.png", model, composite="rescale", reference="blur:2", **how
    )
    sequence = open_sequence(
        LETTERS[0].encode(), "a", built(SEQUENCE_NETWORK), composite="rescale", reference="zeros", **how
    )
    tokenizer = small.word_tokenizer()
    bert = small.built("bert", len(tokenizer), num_labels=3)
    text = open_text(b"A goodly film.", bert, tokenizer, composite=plrp.composite("rescale"), reference="mask", **how)
    for upload, name in ((photograph, "blur:2"), (sequence, "zeros"), (text, "mask token")):
        (line,) = upload.bundle(None, settings).facts["against"]
        assert line.startswith(f"against {name}: f(x) = ")
    for kind, name in (("photograph", "mask"), ("sequence", "blur:8"), ("text", "grey")):
        assert main(["view", "--model", "dna.py:build", "--input", kind, "--reference", name]) == 2
        assert f"there is no reference '{name}' here" in capsys.readouterr().err


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep_against_a_reference(tmp_path: Path) -> None:
    chosen = {"composite": "rescale", "reference": "zeros", "metrics": {"score_kept": {}}, "variants": ["LRP"]}
    config = world(tmp_path, 2).changed(**{"data.count": 2, **chosen})
    assert config.from_dict(config.to_dict()) == config
    assert config.to_dict()["reference"] == "zeros"
    bench = Bench(config, Store(tmp_path / "run"))
    _, scores, _ = split([read_parquet(bench.part(index).scores) for index in range(config.parts)])
    kept = scores[scores["metric"] == "score_kept"]["value"]
    assert len(kept) == 2
    np.testing.assert_allclose(kept, 1, atol=1e-3)  # all of the difference arrives
    assert "reference" not in world(tmp_path, 2).to_dict()  # and old runs resume
    with pytest.raises(ConfigError, match="there is no reference 'blurr'"):
        config.changed(reference="blurr")
    with pytest.raises(ConfigError, match="give `reference`"):
        world(tmp_path, 2).changed(composite="rescale")
