"""Samples that share an axis with something else, alone and in batches, on the paths that follow single neurons."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.fast import limits, whole_tensors


@pytest.fixture(autouse=True)
def _small_networks_are_followed(monkeypatch):
    monkeypatch.setattr(limits, "FEWEST", 1)
    monkeypatch.setattr(limits, "NEURONS_BELOW", 0.6)
    monkeypatch.setattr(limits, "POSITIONS_BELOW", 1.0)


class Film(nn.Module):
    """Frames go through the convolutions as if each were a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.flatten(0, 1)
        frames = self.c(self.b(self.a(frames).relu()).relu()).relu()
        return frames.amax((2, 3)).unflatten(0, x.shape[:2]).sum(1)


class Crossed(nn.Module):
    """A layer that reads (time, batch, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.below(x).relu().transpose(0, 1)).sum(0)


FILMS = torch.randn(2, 5, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("redistribution", ["lambda", "M"])
def test_frames_of_one_film_are_pruned_together(redistribution):
    torch.manual_seed(0)
    model, how = Film().eval(), plrp.Pruning(0.3, redistribution=redistribution)
    both = plrp.explain(model, FILMS, pruning=how)
    for n in range(2):
        one = plrp.explain(model, FILMS[n : n + 1], pruning=how)
        with plrp.plain_walk():
            slowly = plrp.explain(model, FILMS[n : n + 1], pruning=how)
        for other in (both.relevance[n : n + 1], slowly.relevance):
            torch.testing.assert_close(one.relevance, other, rtol=1e-4, atol=1e-6)
        assert float(one.closing().max()) < 1e-5
    swept = list(plrp.trace(model, FILMS[:1]).sweep([how, plrp.Pruning(0.5)]))
    torch.testing.assert_close(swept[0].relevance, both.relevance[:1], rtol=1e-4, atol=1e-6)


def test_survivors_are_those_of_a_sample():
    torch.manual_seed(0)
    found = plrp.explain(Film().eval(), FILMS, pruning=plrp.Pruning(0.3)).survivors("b")
    assert len(found) == 2
    assert found[0].index.shape[1] == 4  # frame, channel, row, column
    assert len(plrp.explain(Film().eval(), FILMS[:1]).survivors("b")) == 1
    with pytest.raises(ValueError, match="'above' does not hold one sample after the other"):
        plrp.explain(Crossed().eval(), torch.randn(3, 5, 6)).survivors("above")


@pytest.mark.parametrize("size", [1, 2])
def test_pieces_never_join_what_they_cannot_order(size):
    with pytest.raises(ValueError, match="'above'"):
        plrp.explain(Crossed().eval(), torch.randn(3, 5, 6), micro_batch=size, layers=["above"])


def test_a_float32_model_is_explained_whatever_the_default_is(monkeypatch):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    model, x = nn.Sequential(*layers, nn.Linear(8 * 36, 3)).eval(), torch.randn(2, 3, 12, 12)
    expected = plrp.explain(model, x, pruning=plrp.Pruning(0.5)).relevance
    torch.set_default_dtype(torch.float64)
    try:
        found = plrp.explain(model, x, pruning=plrp.Pruning(0.5)).relevance
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_a_layer_beside_the_way_of_the_score_is_not_pruned():
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.two(self.one(x).relu())
            self.three(out)
            return out

    torch.manual_seed(0)
    model, x = Aside().eval(), torch.randn(2, 4)
    for redistribution in ("lambda", "M"):
        found = plrp.explain(model, x, pruning=plrp.Pruning(0.3, redistribution=redistribution))
        assert {row["layer"] for row in found.ledger if row["op"] == "prune"} == {"two"}


def test_the_ledger_is_that_of_the_target_as_it_was():
    torch.manual_seed(0)
    model, target = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.tensor([0, 1])
    found = plrp.explain(model, torch.randn(2, 4), target=target)
    target.fill_(2)
    assert float(found.closing().max()) < 1e-5


def test_a_registered_rule_that_returns_nan_is_refused():
    def odd(x: Tensor) -> Tensor:
        return torch.special.erfcx(x)

    plrp.register_rule(torch.special.erfcx, lambda relevance, output, x: relevance / torch.zeros_like(x))
    try:
        with pytest.raises(ValueError, match="NaN or infinite"):
            plrp.explain(lambda x: odd(x * 2.0).flatten(1)[:, :3], torch.randn(2, 4))
    finally:
        plrp.unregister_rule(torch.special.erfcx)


def test_a_batch_of_one_may_have_any_stride_along_the_batch() -> None:
    last = torch.rand(1, 2, 2, 5).permute(0, 3, 1, 2)  # channels last
    strange = last.as_strided(last.shape, (5, *last.stride()[1:]))  # the same memory: there is one sample
    assert torch.equal(strange, last)
    found = whole_tensors.divide(strange, last, 1e-6, False)
    assert found is None or torch.equal(found, last / (last + 1e-6))
