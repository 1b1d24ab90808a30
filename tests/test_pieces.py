"""`micro_batch=`: a batch in pieces is the batch."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()),
        nn.Linear(128, 5),
    ).eval()


class TwoHeads(nn.Module):
    """Several inputs and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Any]:
        return {"scores": self.left(a).relu() + self.right(b).relu(), "raw": (a, b)}


IMAGES = torch.randn(7, 3, 14, 14, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M")])
def test_a_batch_in_pieces_is_the_batch(size, pruning):
    whole = plrp.explain(network(), IMAGES, pruning=pruning, layers=True)
    found = plrp.explain(network(), IMAGES, pruning=pruning, layers=True, micro_batch=size)
    for name in ("relevance", "logits", "score"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
    assert torch.equal(found.target, whole.target)
    assert list(found.layers) == list(whole.layers) == ["0", "3", "6"]
    for name, relevance in whole.layers.items():
        torch.testing.assert_close(found.layers[name], relevance)
    assert len(found.ledger) == len(whole.ledger)
    for one, other in zip(found.ledger, whole.ledger, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            near = isinstance(value, float)
            assert one[name] == (pytest.approx(value, rel=1e-4, abs=1e-6) if near else value), name
    assert float(found.closing().max()) < 1e-5
    survivors = found.survivors("3")
    assert [len(s.index) for s in survivors] == [len(s.index) for s in whole.survivors("3")]


@pytest.mark.parametrize("target", [[0, 1, 2, 3, 4, 0, 1], torch.arange(7) % 5, 2, lambda output: output[:, 1] * 2])
def test_targets_go_with_their_samples(target):
    whole = plrp.explain(network(), IMAGES, target=target)
    found = plrp.explain(network(), IMAGES, target=target, micro_batch=3)
    torch.testing.assert_close(found.relevance, whole.relevance)
    torch.testing.assert_close(found.score, whole.score)


def test_several_inputs_and_outputs_are_joined():
    model, inputs = TwoHeads().eval(), (torch.randn(5, 4), torch.randn(5, 3))
    pick = lambda output: output["scores"][:, 2]  # noqa: E731
    whole, found = (plrp.explain(model, inputs, target=pick, micro_batch=size) for size in (None, 2))
    for one, other in zip(found.relevance, whole.relevance, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(found.logits["scores"], whole.logits["scores"])
    assert [t.shape for t in found.logits["raw"]] == [(5, 4), (5, 3)]


def test_only_one_piece_is_held_at_a_time():
    alive: list[weakref.ref[Tensor]] = []
    seen = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(sum(ref() is not None for ref in alive))
            out = x * 2.0
            alive.append(weakref.ref(out))
            return out

    model = nn.Sequential(nn.Flatten(), nn.Linear(588, 16), nn.ReLU(), Watched(), nn.Linear(16, 5)).eval()
    plrp.explain(model, IMAGES, micro_batch=1)
    assert seen == [0] * (7 + 4)  # seven pieces, and a second look at the first


def test_an_empty_batch_and_bad_sizes():
    assert plrp.explain(network(), IMAGES[:0], micro_batch=2).relevance.shape == (0, 3, 14, 14)
    for wrong in (0, -1, 2.5, True, "8"):
        with pytest.raises(ValueError, match="micro_batch"):
            plrp.explain(network(), IMAGES, micro_batch=wrong)
    with pytest.raises(ValueError, match="one class per sample"):
        plrp.explain(network(), IMAGES, target=[0, 1], micro_batch=2)


class Crossed(nn.Module):
    """A layer that reads (time, batch, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.below(x).relu().transpose(0, 1)).sum(0)


def test_layers_that_hold_samples_on_another_axis_are_refused():
    x = torch.randn(4, 3, 6)
    model = Crossed().eval()
    whole = plrp.explain(model, x)
    torch.testing.assert_close(plrp.explain(model, x, micro_batch=2).relevance, whole.relevance)
    with pytest.raises(ValueError, match="'above' does not hold one sample after the other"):
        plrp.explain(model, x, micro_batch=2, layers=["above"])


def test_ledgers_of_pieces_that_ran_differently_are_not_joined():
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu()) if len(x) == 2 else self.b(x)

    found = plrp.explain(Fickle().eval(), torch.randn(3, 3), micro_batch=2)
    assert found.relevance.shape == (3, 3)
    with pytest.raises(ValueError, match="micro_batch"):
        _ = found.ledger
