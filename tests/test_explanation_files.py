"""Explanations as files: what comes back, and what is refused before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.explanation_files import SavedExplanation

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.left(left) + self.right(right)}


def stored(explanation: plrp.Explanation, folder: Path) -> SavedExplanation:
    explanation.save(folder / "x.npz")
    found = plrp.load(folder / "x.npz")
    assert isinstance(found, SavedExplanation)
    return found


def test_numbers_come_back(tmp_path: Path) -> None:
    pruning = plrp.Pruning(p=0.1, redistribution="M-sign")
    explanation = plrp.explain(MODEL, torch.randn(2, 4), pruning=pruning, composite="epsilon-plus")
    back = stored(explanation, tmp_path)
    for name in ("relevance", "logits", "target", "score"):
        assert torch.equal(getattr(back, name), getattr(explanation, name))
    assert (back.composite, back.pruning) == ("epsilon-plus", pruning)
    assert back.problems == tuple(p and p.value for p in explanation.problems())
    assert "2 × 4, PLRP-M±, Pruning(p=0.1, redistribution='M-sign'), epsilon-plus" in repr(back)


@pytest.mark.parametrize(
    ("target", "told"),
    [((1, 2), (1, 2)), (lambda output: output[:, 0], "function"), (plrp.targets.contrast(0, 1), "0")],
)
def test_any_target_is_told(target: Any, told: Any, tmp_path: Path) -> None:
    model = nn.Sequential(MODEL, nn.Linear(3, 6), nn.Unflatten(1, (2, 3))) if isinstance(target, tuple) else MODEL
    back = stored(plrp.explain(model.eval(), torch.randn(2, 4), target=target), tmp_path)
    assert back.target == told or told in back.target
    assert back.pruning is None


def test_several_inputs_and_an_output_that_is_no_tensor(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 4), torch.randn(2, 5))
    explanation = plrp.explain(Pair().eval(), inputs, target=lambda output: output["out"][:, 1])
    back = stored(explanation, tmp_path)
    assert all(map(torch.equal, back.relevance, explanation.relevance))
    assert len(back.relevance) == 2
    assert back.logits is None


def test_verdicts_of_an_older_version_are_not_taken_for_broken_arithmetic(tmp_path: Path) -> None:
    """Version 0.2.0 also stored 'vanished', 'exploded' and 'without a score'; 'not finite' has kept its meaning."""
    plrp.explain(MODEL, torch.randn(4, 4)).save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as stored_arrays:
        arrays = dict(stored_arrays)
    settings = json.loads(str(arrays["settings"]))
    settings["problems"] = ["vanished", "exploded", "without a score", "not finite"]
    np.savez(tmp_path / "old.npz", **{**arrays, "settings": np.array(json.dumps(settings))})
    back = plrp.load(tmp_path / "old.npz")
    assert back.problems == (None, None, None, "not finite")
    assert "the arithmetic broke in 1 of 4 samples" in repr(back)


def test_half_precision_is_stored_as_float32(tmp_path: Path) -> None:
    explanation = plrp.explain(MODEL, torch.randn(1, 4))
    explanation.relevance = explanation.relevance.bfloat16()
    assert torch.equal(stored(explanation, tmp_path).relevance, explanation.relevance.float())


def test_a_wrong_suffix_is_refused_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = plrp.explain(MODEL, torch.randn(1, 4))
    monkeypatch.setattr(plrp.view, "explanation_bundle", lambda *_, **__: pytest.fail("computed"))
    monkeypatch.setattr("plrp.view.plots.plot", lambda *_, **__: pytest.fail("drawn"))
    with pytest.raises(ValueError, match=r"x\.docx should end in \.html \(a page\), \.npz \(numbers\), or \.png"):
        explanation.save(tmp_path / "x.docx")
    with pytest.raises(TypeError, match="title: a page"):
        explanation.save(tmp_path / "x.npz", title="mine")


def test_a_page_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation, given = plrp.explain(MODEL, torch.randn(1, 4)), {}

    class Page:
        def __init__(self, bundle: None) -> None:
            assert bundle is None

        def save(self, path: Path) -> None:
            given["path"] = path

    monkeypatch.setattr(plrp.view, "explanation_bundle", lambda explained, **options: given.update(options))
    monkeypatch.setattr(plrp.view, "Page", Page)
    explanation.save(tmp_path / "x.html", title="mine")
    assert given == {"show_progress": None, "title": "mine", "path": tmp_path / "x.html"}
