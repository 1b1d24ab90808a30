"""The test of explanations by every door: photographs, files of sequences, pages, the served page."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import plrp
from plrp import genomics, metrics
from plrp.cli import main
from plrp.models.loading import LoadedModel
from plrp.view.page_data import PageSettings
from plrp.view.page_kinds import photograph_bundle
from plrp.view.uploads import open_photograph, open_sequence

SEQUENCE_NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = nn.Conv1d(4, 6, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(48, 2), nn.Softmax(1)
    return nn.Sequential(*layers).eval()
"""
PICTURE_NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(392, 5)
    return nn.Sequential(*layers).eval()
"""
LETTERS = ["ACGTACGTTGCATTTACGGA", "TTGTNCCCCAACGATCGATC", "A" * 20, "GATTACAGATTACAGATTAC"]
MODEL = ("--model", "net.py:build", "--resize", "32", "--crop", "32")


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
    Path("s.fa").write_text("".join(f">{name}\n{one}\n" for name, one in zip("abcd", LETTERS, strict=True)))
    for n in range(2):
        Image.fromarray(pixels(n)).save(f"{n}.png")
    return tmp_path


def pixels(seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3)).astype(np.uint8)


# --- photographs ------------------------------------------------------------------------------------------------------


def test_photographs_are_tested_as_by_hand(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "0.png", "1.png", *MODEL, "--test", "-o", "out/", "--save", "out/"]) == 0
    out, err = capsys.readouterr()
    assert "--test asks the network: at most 2 × 128 more forward passes" in err
    for n in range(2):
        saved: Any = plrp.load(f"out/{n}.npz")
        ((name, facts),) = saved.settings["verdicts"].items()
        assert name == "PLRP-λ, p = 0.05"
        verdict = metrics.ask(
            built(PICTURE_NETWORK), saved.input[None], saved.relevance[name][None], target=saved.target
        )
        assert facts["words"] == verdict.words()
        assert f"{name}: {facts['words']}" in out
        assert facts["rho"] == pytest.approx(verdict.rho.item(), abs=1e-4)


def test_a_grid_shares_the_answers_of_one_test(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = plrp.vision.explain_photograph(pixels(0), built(PICTURE_NETWORK), prunings=[plrp.Pruning(0.1)])
    passes: list[int] = []
    explained.model.module.register_forward_hook(lambda module, given, output: passes.append(len(given[0])))
    both = explained.test(*explained.prunings)
    assert list(both) == ["LRP", "PLRP-λ, p = 0.1"]
    assert sum(passes) == both["LRP"].passes <= 128 + 28
    alone = plrp.vision.explain_photograph(pixels(0), built(PICTURE_NETWORK), prunings=[plrp.Pruning(0.1)]).test()
    assert alone["PLRP-λ, p = 0.1"].facts() == both["PLRP-λ, p = 0.1"].facts()
    assert main(["explain", "0.png", *MODEL, "--compare", "0.1,0.3", "--test", "-o", "a.png"]) == 0
    out, err = capsys.readouterr()
    assert out.count("Agreement with the network over 49 tiles") == 5
    assert f"at most {128 + 28 * 4} more" in err


def test_wrong_budgets_end_with_2(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "0.png", *MODEL, "--test", "--budget", "20", "-o", "a.png"]) == 2
    assert "budget=20 is too small: 49 tiles need 128 forward passes" in capsys.readouterr().err


# --- sequences --------------------------------------------------------------------------------------------------------


def rows_of(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines(), delimiter="\t"))


@pytest.mark.parametrize("options", [[], ["--reference", "zeros"], ["--target", "1"], ["--method", "gradient-input"]])
def test_the_first_sequences_of_a_file_are_tested(
    options: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["s.fa", "--model", "dna.py:build", "--part-size", "2", "--test", "3", "--out", "run", *options]
    assert main(["genomics", "explain", *asked]) == 0
    out, err = capsys.readouterr()
    assert "at most 3 × 128 more forward passes" in err
    assert "the network says of 3 maps: " in out
    rows = rows_of("run/verdicts.tsv")
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    with np.load("run/attributions.npz") as file:
        relevance = torch.from_numpy(file["arr_0"])
    x = torch.from_numpy(genomics.encode(LETTERS))
    headless = built(SEQUENCE_NETWORK)[:-1]
    target = 1 if "--target" in options else headless(x[:3]).argmax(1)
    verdict = metrics.ask(headless, x[:3], relevance[:3].sum(1), target=target)
    for n, row in enumerate(rows):
        assert row["judgement"] == verdict.judgements()[n]
        assert float(row["rho"] or "nan") == pytest.approx(verdict.rho[n].item(), abs=1e-3, nan_ok=True)
    assert rows[2]["judgement"] == "the network does not decide", "every shuffle of AAAA is AAAA"
    assert main(["genomics", "explain", *asked]) == 0, "a finished run is tested again"


@pytest.mark.filterwarnings("ignore:No p of the grid")
def test_p_auto_at_the_doors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "0.png", *MODEL, "-p", "auto", "-o", "a.png", "--save", "a.npz"]) == 0
    saved: Any = plrp.load("a.npz")
    net, x = built(PICTURE_NETWORK), saved.input[None]
    p = float(plrp.choose_p(plrp.trace(net, x)))
    assert list(saved.relevance) == ["LRP", f"PLRP-λ, p = {p:g}"]
    expected = plrp.explain(net, x, pruning=plrp.Pruning(p)).relevance[0]
    torch.testing.assert_close(saved.relevance[f"PLRP-λ, p = {p:g}"], expected, atol=1e-5, rtol=1e-4)
    asked = ["s.fa", "--model", "dna.py:build", "-p", "auto", "--out", "run", "--no-match"]
    assert main(["genomics", "explain", *asked]) == 0
    with np.load("run/attributions.npz") as file:
        relevance = torch.from_numpy(file["arr_0"])
    for n, letters in enumerate(LETTERS):
        one = torch.from_numpy(genomics.encode([letters]))
        trace = plrp.trace(built(SEQUENCE_NETWORK), one)
        how = {"composite": "epsilon-gamma"}
        pruning = plrp.Pruning(float(plrp.choose_p(trace, **how)))
        torch.testing.assert_close(
            relevance[n], trace.explain(pruning=pruning, **how).relevance[0], atol=1e-5, rtol=1e-4
        )
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["exemplars", ".", *MODEL, "-p", "auto", "--out", "e"])
    assert "'auto' is not a number" in capsys.readouterr().err


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_hold_the_verdict(here: Path) -> None:
    explained = plrp.vision.explain_photograph(pixels(0), built(PICTURE_NETWORK))
    assert "verdict" not in photograph_bundle(explained, proportions=(0.05,), targets=1, inside="nothing").facts
    explained.test()
    bundle = photograph_bundle(explained, proportions=(0.05,), targets=1, inside="nothing")
    assert bundle.facts["verdict"]["words"] == explained.verdicts["PLRP-λ, p = 0.05"].words()
    assert main(["explain", "0.png", *MODEL, "--test", "--page-p", "0.05", "--page-classes", "1", "-o", "a.html"]) == 0
    page = plrp.view.page.read_page("a.html")
    assert len(page.bundle.facts["verdict"]["relevance"]) == 49
    explanation = plrp.explain(built(PICTURE_NETWORK), torch.rand(2, 3, 32, 32))
    explanation.test()
    bundle = plrp.view.explanation_bundle(explanation, sample=1, proportions=(0.05,), targets=1, inside="nothing")
    assert explanation.verdict is not None
    assert bundle.facts["verdict"] == {"of": "LRP", **explanation.verdict.facts(1)}


def test_the_served_page_asks_for_a_test(here: Path) -> None:
    content = Path("0.png").read_bytes()
    model = LoadedModel(built(PICTURE_NETWORK), "net", "its own")
    pruning = plrp.Pruning(0.1)
    upload = open_photograph(content, "0.png", model, pruning=pruning, composite="auto")
    facts = upload.test(None, "lambda", 0.1)
    explained = plrp.vision.explain_photograph(pixels(0), model, prunings=[pruning])
    assert facts == json.loads(json.dumps(explained.test()["PLRP-λ, p = 0.1"].facts()))
    sequence = open_sequence(LETTERS[0].encode(), "a", built(SEQUENCE_NETWORK), pruning=None)
    assert sequence.test(1, "lambda", None)["unit"] == "base"
    assert PageSettings().targets
