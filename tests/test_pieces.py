"""`micro_batch=`: a batch in pieces is the batch."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from peaks import peak_of
from plrp import explanation as explanation_module
from plrp.tape.seam import tape_bytes
from plrp.tape.trace import record


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
    assert seen == [0] * (7 + 6)  # seven pieces, and a second look at the first, also with inputs of other sizes


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


# A large batch, where nobody says how many samples to take at once


class Noting(nn.Module):
    """Notes how many samples it was given each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.sizes = network(), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.inner(x)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of more than a sample is large, and a tape has room for three samples."""
    monkeypatch.setattr(explanation_module, "SMALL_BATCH", IMAGES[0].nbytes)
    of_two = tape_bytes(record(network(), IMAGES[:2], frugal=True))
    monkeypatch.setattr(explanation_module, "PIECE", 3 * of_two // 2)


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M")])
@pytest.mark.parametrize("target", [None, 2, [0, 1, 2, 3, 4, 0, 1], plrp.targets.contrast(0, 1)])
@pytest.mark.filterwarnings("ignore::plrp.BrokenArithmetic")
def test_a_large_batch_is_explained_in_pieces_that_fit(small_room, target, pruning):
    model = Noting().eval()
    explanation = plrp.explain(model, IMAGES, target=target, pruning=pruning)
    assert [size for size in model.sizes if size > 2] == [3, 3]  # then one; two are measured and looked at
    for size, same in ((3, torch.equal), (7, torch.testing.assert_close)):
        asked = plrp.explain(network(), IMAGES, target=target, pruning=pruning, micro_batch=size)
        for name in ("relevance", "logits", "score"):
            assert same(getattr(explanation, name), getattr(asked, name)) in (True, None), name
        assert len(asked.ledger) == len(explanation.ledger)
    assert float(explanation.closing().max()) < 1e-5


STAYS_WHOLE = {
    "micro_batch is given": {"micro_batch": 7},
    "a function of the output": {"target": lambda output: output[torch.arange(7), torch.arange(7) % 5]},
    "layers are kept": {"layers": True},
    "a condition": {"condition": {"inner.3": torch.ones(7, 8, 4, 4, dtype=torch.bool)}},
}


@pytest.mark.parametrize("why", STAYS_WHOLE)
def test_a_large_batch_stays_whole_where_pieces_may_differ(small_room, why):
    model = Noting().eval()
    explanation = plrp.explain(model, IMAGES, **STAYS_WHOLE[why])
    assert [size for size in model.sizes if size != 2] == [7]
    assert explanation.relevance.shape == IMAGES.shape


def test_a_model_that_reads_samples_by_their_numbers_is_not_cut(small_room):
    """It holds a weight for each sample of the batch: a piece of the batch does not fit it."""

    class Weighted(Noting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.linspace(1, 2, 7)[:, None]

    found = plrp.explain(Weighted().eval(), IMAGES)
    torch.testing.assert_close(found.relevance, plrp.explain(Weighted().eval(), IMAGES, micro_batch=7).relevance)


def test_pieces_hold_two_samples_at_least(small_room, monkeypatch):
    """One sample alone does not show that it depends on another: a model that mixes samples is refused as before."""
    monkeypatch.setattr(explanation_module, "PIECE", 1)
    model = Noting().eval()
    plrp.explain(model, IMAGES)
    assert model.sizes[-7:] == [1] * 7  # the rest of seven, with the looks at its shape
    assert set(model.sizes[:-7]) == {2}

    class Mixing(Noting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + x.flip(0))

    with pytest.raises(plrp.UnsupportedOperation):
        plrp.explain(Mixing().eval(), IMAGES)


def test_the_memory_of_a_large_batch_is_that_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    ).eval()
    images = torch.randn(120, 3, 112, 112)  # 18 MB, with tapes of some 2 MB for each sample
    plrp.explain(model, images[:2])
    monkeypatch.setattr(explanation_module, "PIECE", 20_000_000)
    in_pieces = peak_of(lambda: plrp.explain(model, images))[1]
    at_once = peak_of(lambda: plrp.explain(model, images, micro_batch=120))[1]
    assert 2 * in_pieces < at_once
    assert in_pieces < 10 * images.nbytes


def test_what_may_hold_for_the_whole_batch_is_explained_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions as models, functions as rules, and bounds of each sample: none of them is cut by default."""
    monkeypatch.setattr(explanation_module, "SMALL_BATCH", 0)
    monkeypatch.setattr(explanation_module, "PIECE", 1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    x, scale = torch.rand(6, 3, 8, 8), torch.linspace(0.1, 3, 6)

    def by_place(x: Tensor) -> Tensor:
        return net(x) * scale[: len(x), None]

    score = plrp.explain(by_place, x, target=0, composite="epsilon").score
    assert torch.allclose(score, by_place(x)[:, 0], rtol=1e-4)
    box = plrp.composite("epsilon-gamma-box", low=x.amin((1, 2, 3), keepdim=True), high=x.amax((1, 2, 3), keepdim=True))
    assert torch.equal(
        plrp.explain(net, x, composite=box).relevance, plrp.explain(net, x, composite=box, micro_batch=6).relevance
    )


def test_layers_of_a_batch_that_came_in_pieces_are_computed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches and pieces are summed in another order, which is no change of the model."""
    monkeypatch.setattr(explanation_module, "SMALL_BATCH", 0)
    monkeypatch.setattr(explanation_module, "PIECE", 1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 3)).eval()
    explanation = plrp.explain(net, torch.rand(40, 300), pruning=plrp.Pruning(p=0.3))
    assert len(explanation.survivors("2")) == 40
    with torch.no_grad():
        net[0].weight += 0.01
    with pytest.raises(RuntimeError, match="has changed"):
        explanation.survivors("2")
