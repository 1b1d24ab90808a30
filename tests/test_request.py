"""One request: every door refuses a wrong argument with the same sentence, before the model runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import genomics, interop, targets
from plrp.metrics import Explainer
from plrp.request import Request


class Counting(nn.Module):
    """A network that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear, self.calls = nn.Conv1d(4, 3, 3), nn.Linear(18, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(self.conv(x).relu().flatten(1))


ONE_HOT = torch.eye(4)[torch.arange(16).reshape(2, 8) % 4].mT.contiguous()

DOORS: dict[str, Callable[..., Any]] = {
    "plrp.explain": lambda model, trace, **asked: plrp.explain(model, ONE_HOT, **asked),
    "in pieces": lambda model, trace, **asked: plrp.explain(model, ONE_HOT, micro_batch=1, **asked),
    "Trace.explain": lambda model, trace, **asked: trace.explain(**asked),
    "Trace.sweep": lambda model, trace, pruning=None, **asked: trace.sweep([pruning], **asked),
    "choose_p": lambda model, trace, **asked: plrp.choose_p(trace, **asked),
    "an Explainer": lambda model, trace, target=None, **asked: Explainer(model, **asked)(ONE_HOT, target),
    "Captum's door": lambda model, trace, target=None, **asked: interop.CaptumLRP(model, **asked).attribute(
        ONE_HOT, target
    ),
    "explain_sequences": lambda model, trace, **asked: genomics.explain_sequences(model, ONE_HOT.numpy(), **asked),
    "genomics.attribute": lambda model, trace, **asked: genomics.attribute(model, ONE_HOT, device="cpu", **asked),
}
NARROW = ("choose_p", "an Explainer", "Captum's door", "explain_sequences", "genomics.attribute")
TEXTS = ("explain_sequences", "genomics.attribute")  # these read targets and composites that are written as text

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a number for a pruning": (
        {"pruning": 0.1},
        r"^pruning is a plrp.Pruning or None, got float; plrp.Pruning\(p=0.1\)\?",
    ),
    "a class for a pruning": ({"pruning": plrp.Pruning}, "^pruning is a plrp.Pruning or None, got type"),
    "an unknown composite": ({"composite": "epsilon-minus"}, "^No composite named 'epsilon-minus'; choose 'auto'"),
    "no composite": ({"composite": 3}, "^composite is a name or a plrp.Composite, got int"),
    "a name for a target": ({"target": "meerkat"}, "got the name 'meerkat': a model knows its classes by number"),
    "a share for a target": ({"target": 0.5}, "^target is the number of a class, a sequence of them"),
    "truth values": ({"target": [True, False]}, "holds truth values, which name no class"),
    "shares for classes": ({"target": torch.tensor([0.5, 1.0])}, "^target holds torch.float32 values; classes are int"),
    "names for classes": ({"target": ["cat", "dog"]}, "one class per sample is a list of integers"),
    "too many classes": (
        {"target": [0, 1, 2]},
        r"^target has shape \(3,\) for a batch of 2: give one class per sample",
    ),
    "a seed with too few classes": ({"target": targets.clrp([1])}, r"^target has shape \(1,\) for a batch of 2"),
    "an index tuple of shares": ({"target": (0.5,)}, "an index tuple into the output holds whole numbers"),
    "a number for layers": ({"layers": 3}, "^layers is True or a list of layers' names, got int"),
    "a list for a condition": (
        {"condition": 3},
        "^condition is a dict from layers to the channels that may pass.*got int",
    ),
    "an empty condition": ({"condition": {}}, "^condition names no layer"),
    "only_through without a condition": ({"only_through": True}, "^only_through needs a condition"),
}


def takes(door: str, asked: dict[str, Any]) -> bool:
    """Whether a door has these arguments and does not read them as text."""
    if door in NARROW and not asked.keys() <= {"target", "composite", "pruning"}:
        return False
    return door not in TEXTS or not (isinstance(asked.get("target"), str) or "composite" in asked)


@pytest.mark.parametrize(
    ("door", "name"), [(d, n) for n, (asked, _) in WRONG.items() for d in DOORS if takes(d, asked)]
)
def test_wrong_arguments_are_refused_before_the_model_runs(door: str, name: str) -> None:
    asked, says = WRONG[name]
    model = Counting().eval()
    trace = plrp.trace(model, ONE_HOT)
    model.calls = 0
    with pytest.raises((TypeError, ValueError), match=says):
        DOORS[door](model, trace, **asked)
    assert model.calls == 0


FOR_A_MODEL: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown layer": ({"layers": ["conw"]}, "^The model has no layer 'conw'; nearest: conv"),
    "a layer without weights": ({"layers": ["relu"]}, "no layer 'relu'|'relu' is no conv or linear layer"),
    "a rule for an unknown layer": (
        {"composite": plrp.composite("epsilon").with_layers({"conw": plrp.rules.Epsilon()})},
        "^The composite names layer 'conw', which the model does not have",
    ),
    "a p for an unknown layer": ({"pruning": plrp.Pruning(layers={"linaer": 0.1})}, "^Pruning names layer 'linaer'"),
    "a p for a first layer": ({"pruning": plrp.Pruning(layers={"conv": 0.1})}, "^'conv' is a first layer"),
    "a condition on an unknown layer": (
        {"condition": {"conw": [0]}},
        "^The model has no layer 'conw': conditions hold",
    ),
    "a class that the output does not have": ({"target": 5}, "^target 5 is out of range: the output has 5 classes"),
}


TRACED = ("plrp.explain", "in pieces", "Trace.explain", "Trace.sweep", "choose_p")


@pytest.mark.parametrize(
    ("door", "name"), [(d, n) for n, (asked, _) in FOR_A_MODEL.items() for d in TRACED if takes(d, asked)]
)
def test_arguments_that_are_wrong_for_a_model_are_refused_alike(door: str, name: str) -> None:
    asked, says = FOR_A_MODEL[name]
    model = Counting().eval()
    with pytest.raises(ValueError, match=says):
        DOORS[door](model, plrp.trace(model, ONE_HOT), **asked)


def test_a_request_is_frozen_and_a_copy() -> None:
    classes, mask = np.array([0, 1]), torch.ones(3, dtype=torch.bool)
    request = Request(target=classes, condition={"conv": mask}, layers=["conv"])
    classes[:], mask[:] = 4, False
    assert request.target.given.tolist() == [0, 1]
    assert bool(request.condition["conv"].all())
    assert request.layers == frozenset(["conv"])
    with pytest.raises(FrozenInstanceError):
        request.pruning = plrp.Pruning()  # type: ignore[misc]


def test_a_sequence_that_the_user_changes_later_leaves_the_ledger_alone() -> None:
    classes = [0, 1]
    found = plrp.explain(Counting().eval(), ONE_HOT, target=classes)
    classes[0] = 3
    assert float(found.closing().max()) < 1e-5
    assert found.target.tolist() == [0, 1]


def test_inputs_by_name_are_explained_as_by_place() -> None:
    """`model(**batch)`: a padded batch with its mask gives each text the relevance that it has alone."""
    small_models = pytest.importorskip("small_models")
    tokenizer = small_models.word_tokenizer()
    bert = small_models.built("bert", len(tokenizer), num_labels=3)
    texts = ["a good film", "the film is not good to forget"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    asked = {"target": lambda output: output.logits[:, 1], "composite": "attnlrp"}
    bert.eval()
    found = plrp.explain(bert, {**batch, "return_dict": True}, **asked)
    relevance, of_mask = found.relevance
    assert not of_mask.any()
    for row, text in zip(relevance, texts, strict=True):
        alone = plrp.explain(bert, tokenizer(text, return_tensors="pt"), **asked).relevance[0][0]
        assert torch.allclose(row[: len(alone)], alone, atol=1e-6)
        assert not row[len(alone) :].any()
    assert "bert.encoder.layer.0.attention.self.query" in found.layers.names
    traced = plrp.trace(bert, batch).explain(**asked)
    assert torch.equal(traced.relevance[0], relevance)
    assert plrp.check(bert, batch)


def test_a_wrapped_model_keeps_the_flags_of_its_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(), torch.nn.Linear(3, 2))
    model[1].eval()
    from plrp.tape.live_tensors import ByName

    wrapped, (inputs, _) = ByName.of(model, {"a": torch.rand(1, 3), "b": torch.rand(1, 3)})
    assert wrapped.training
    assert [m.training for m in model] == [True, False, True]
    assert inputs.shape == (1, 3)
