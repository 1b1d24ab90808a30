"""Targets as text: parsed as names, indices and slices, and never evaluated."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.genomics import explain_sequences
from plrp.genomics.outputs import FileScore, OutputScore, target_from_text
from plrp.genomics.sequences import Sequences
from plrp.target_text import TargetError
from plrp.view import sequence_bundle

DENSE = torch.arange(24.0).reshape(2, 3, 4)
PAIR = (DENSE, DENSE[:, :, 0])
NAMED = {"profile": DENSE, "counts": PAIR[1]}
Both = namedtuple("Both", "profile counts")


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("outputs[:, 1]", PAIR[1], PAIR[1][:, 1]),
        ("output[:, -1]", PAIR[1], PAIR[1][:, -1]),
        ("outputs[1][:, 0]", PAIR, PAIR[1][:, 0]),
        ("outputs['counts'][:, 2]", NAMED, PAIR[1][:, 2]),
        ("outputs.counts[:, 2]", NAMED, PAIR[1][:, 2]),
        ("outputs.counts[:, 2]", Both(*PAIR), PAIR[1][:, 2]),
        ("outputs[:, 2, 1:3]", DENSE, DENSE[:, 2, 1:3].sum(1)),
        ("outputs[:, 2, 1:3].mean()", DENSE, DENSE[:, 2, 1:3].mean(1)),
        ("outputs[:, 2, ::2].max()", DENSE, DENSE[:, 2, 2]),
        ("outputs[..., 3].sum()", DENSE, DENSE[..., 3].sum(1)),
        ("outputs[0]", PAIR, DENSE.sum((1, 2))),
    ],
)
def test_indices(text: str, output: object, expected: torch.Tensor) -> None:
    torch.testing.assert_close(OutputScore(text)(output), expected)


def test_a_profile_is_weighted_by_its_softmax() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    for k, found in enumerate(OutputScore("profile(outputs[0])")((logits, None))):
        z = logits[k].flatten().numpy()
        weights = np.exp(z) / np.exp(z).sum()
        np.testing.assert_allclose(found, sum(w * (v - z.mean()) for w, v in zip(weights, z, strict=True)))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch evil')",
        "outputs.__class__.__init__",
        "outputs[open('evil', 'w')]",
        "outputs[:, (lambda: 1)()]",
        "outputs[1.5]",
        "outputs[True]",
        "outputs[:, 1] + outputs[:, 2]",
        "others[1]",
        "outputs[:, 1].exp()",
        "outputs[:, 1].mean(0)",
        "outputs[",
        "",
        "outputs" + "[0]" * 200,
        "[x for x in outputs]",
        "f'{outputs}'",
    ],
)
def test_nothing_else_is_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match="target"):
        OutputScore(text)(PAIR)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "output", "said"),
    [
        ("outputs[0]", DENSE, "begin with the batch"),
        ("outputs[:, 7]", PAIR[1], "has no"),
        ("outputs[5][:, 0]", PAIR, "a tuple of 2"),
        ("outputs.logits", NAMED, "'profile', 'counts'"),
        ("outputs", PAIR, "not a tensor"),
        ("outputs.mean()", PAIR, "needs a tensor"),
    ],
)
def test_what_does_not_fit_is_said(text: str, output: object, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        OutputScore(text)(output)


def test_a_difference_is_refused_with_what_works_instead() -> None:
    with pytest.raises(TargetError, match=r"- outputs\[:, 1\]': it is not an index .* net\.py:score\.$"):
        OutputScore("outputs[:, 0] - outputs[:, 1]")


def test_classes_and_files(tmp_path: Path) -> None:
    assert target_from_text("3") == 3
    assert target_from_text("-1") == -1
    assert target_from_text("0, 141") == (0, 141)
    file = tmp_path / "mine.py"
    file.write_text("def score(output):\n    return output[:, 0] * 2\n")
    found = target_from_text(f"{file}:score")
    assert isinstance(found, FileScore)
    torch.testing.assert_close(found(PAIR[1]), PAIR[1][:, 0] * 2)
    with pytest.raises(TargetError, match="no function 'scores'"):
        target_from_text(f"{file}:scores")


class Heads(nn.Module):
    """A BPNet in small: a profile and counts, as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(4, 8, 7)
        self.profile, self.counts = nn.Conv1d(8, 2, 5), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.body(x))
        return self.profile(h), self.counts(h.mean(2))


@pytest.mark.parametrize("text", ["outputs[1][:, 0]", "outputs[0][:, 1, 5:9].mean()", "profile(outputs[0])"])
def test_heads_of_real_models_are_explained(text: str) -> None:
    torch.manual_seed(0)
    model = Heads().eval()
    letters = ["ACGTTGCAGTTTACGATCAGCATGCA", "TTGACCAGTGGATTACAGATTACATG"]
    found = explain_sequences(model, letters, target=text, pruning=plrp.Pruning(p=0.2))
    x = torch.from_numpy(found.onehot)
    np.testing.assert_allclose(found.score, OutputScore(text)(model(x)).detach(), rtol=1e-4)
    assert np.abs(found.relevance).sum((1, 2)).min() > 0
    same = explain_sequences(model, letters, target=OutputScore(text), pruning=plrp.Pruning(p=0.2))
    np.testing.assert_array_equal(found.relevance, same.relevance)


@pytest.mark.parametrize("head", [nn.Identity(), nn.Sigmoid(), nn.Softmax(1)])
def test_a_page_shows_shares_of_classes_only_where_the_model_has_a_softmax(head: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3), head).eval()
    facts = sequence_bundle(model, Sequences(["one"], ["ACGTACGTAC"]), proportions=(0.3,)).facts["targets"]
    assert all((fact["probability"] is not None) == isinstance(head, nn.Softmax) for fact in facts)
    assert all(fact["score"] is not None for fact in facts)
