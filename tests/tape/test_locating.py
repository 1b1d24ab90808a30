"""Where samples lie after operations that move them: each model is explained rightly, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp.tape.locating import ADDS_ROWS, MIXES, TAKES_OUT
from plrp.tape.trace import record

Step = Callable[[Tensor], Tensor]
BATCH, FEATURES = 4, 6


class Around(nn.Module):
    """A step between two layers: (batch, FEATURES) → (batch, 3)."""

    def __init__(self, *steps: Step, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.below = nn.Parameter(torch.randn(FEATURES, FEATURES, generator=generator))
        self.above = nn.Parameter(torch.randn(3, FEATURES, generator=generator))
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.below).relu()
        for step in self.steps:
            h = step(h)
        return F.linear(h, self.above)


def drawn(batch: int = BATCH, seed: int = 0) -> Tensor:
    return torch.randn(batch, FEATURES, generator=torch.Generator().manual_seed(seed))


def alone(model: nn.Module, x: Tensor, sample: int, pruning: plrp.Pruning | None = None) -> Tensor:
    """The relevance of all samples for one sample's score, by a trace that knows of no samples."""
    options = {"samples": None, "target": (sample, 0), "composite": "epsilon", "pruning": pruning}
    return plrp.explain(model, x, **options).relevance


# --- silent before ----------------------------------------------------------------------------------------------------

ISOLATED = torch.eye(BATCH)  # node 0 hears nobody and is heard by nobody
ISOLATED[1, 2] = ISOLATED[2, 3] = 1.0
TWO_TO_ONE = torch.tensor([0, 1, 1, 3])
CYCLE = torch.tensor([0, 2, 3, 1])


def wide(index: Tensor) -> Tensor:
    return index[:, None].expand(-1, FEATURES)


MIXING: dict[str, Step] = {
    "a graph in which node 0 is isolated": lambda h: ISOLATED @ h,
    "an einsum along the batch": lambda h: torch.einsum("nm,mf->nf", ISOLATED, h),
    "a linear layer along the batch": lambda h: F.linear(h.T, ISOLATED).T,
    "index_add": lambda h: torch.zeros(BATCH, FEATURES).index_add(0, TWO_TO_ONE, h),
    "index_add that cancels": lambda h: h.index_add(0, CYCLE, h, alpha=-1),
    "scatter_add": lambda h: torch.zeros(BATCH, FEATURES).scatter_add(0, wide(TWO_TO_ONE), h),
    "scatter_add_ into a float32 buffer": lambda h: torch.zeros(BATCH, FEATURES).scatter_add_(0, wide(TWO_TO_ONE), h),
    "index_copy": lambda h: h + h.index_copy(0, CYCLE, h),
    "scatter": lambda h: h + torch.zeros(BATCH, FEATURES).scatter(0, wide(CYCLE), h),
    "take": lambda h: h + h.take(torch.arange(BATCH * FEATURES).roll(FEATURES).view(BATCH, FEATURES)),
    "one sample for all": lambda h: h + h.expand(BATCH, BATCH, FEATURES)[..., 1, :],
    "a gate from the last sample": lambda h: h * torch.sigmoid(h[-1:]),
    "a gate from the third sample and on": lambda h: h * torch.sigmoid(h[2:].sum(0)),
    "a gate from the fourth sample": lambda h: h * torch.sigmoid(h[3:4]),
    "a maximum over the batch": lambda h: torch.maximum(h, h.expand(BATCH, BATCH, FEATURES).amax(1)),
}


def first_alone(h: Tensor) -> Tensor:
    """1 for the first sample, 0 for the others."""
    return (torch.arange(len(h)) == 0).float()[:, None]


def written_into_zeros(mask: Tensor) -> Tensor:
    room = torch.zeros(mask.shape)
    room[:] = mask
    return room


# For batches of any size, from 2 on.
ANY_SIZE: dict[str, Step] = {
    "a linear layer": lambda h: F.linear(h.T, torch.eye(len(h)) + torch.eye(len(h)).roll(1, 0)).T,
    "an einsum": lambda h: torch.einsum("nm,mf->nf", torch.eye(len(h)) + torch.eye(len(h)).roll(1, 0), h),
    "a convolution": lambda h: F.conv1d(h.T[:, None], torch.tensor([[[0.5, 1.0, 0.5]]]), padding=1)[:, 0].T,
    "a convolution of all features": lambda h: F.conv1d(h.T[None], torch.ones(6, 6, 3), padding=1)[0].T,
    "a neighbour for one": lambda h: h + h.roll(-1, 0) * first_alone(h),
    "a weak neighbour for one": lambda h: h + 1e-3 * h.roll(-1, 0) * first_alone(h),
    "a gate from the last": lambda h: h * torch.sigmoid(h[-1:]),
    "a gate for one": lambda h: h * torch.where(first_alone(h) > 0, torch.sigmoid(h.detach()[-1:]), torch.ones(())),
    "a gate from two before": lambda h: h * torch.sigmoid(h.detach().roll(2 if len(h) > 2 else 1, 0)),
    "a divisor": lambda h: h / h.detach().abs().max(),
    "a norm": lambda h: h / h.norm(),
    "the norm of the first": lambda h: h / h[0].norm(),
    "a comparison with the last": lambda h: h * (h[-1:] > 1),
    "a comparison two before": lambda h: h * (h.roll(2 if len(h) > 2 else 1, 0) > 1).float(),
    "a comparison of sums": lambda h: h * (h.roll(2 if len(h) > 2 else 1, 0).sum(1, keepdim=True) > 5),
    "a comparison written into zeros": lambda h: h * written_into_zeros(h.roll(2 if len(h) > 2 else 1, 0) > 1),
    "a choice by another": lambda h: torch.where(h[-1:] > 1, h, 2 * h),
    "an order by another": lambda h: h.gather(1, h.roll(1, 0).argsort(1)),
    "masked by another": lambda h: (
        h.masked_fill(h.flip(0) > 1, 0.0) if len(h) % 2 == 0 else h.masked_fill(h[:1] > 1, 0)
    ),
}


@pytest.mark.parametrize("name", ANY_SIZE)
@pytest.mark.parametrize("batch", [2, 3, 5, 8])
def test_samples_that_are_mixed_in_batches_of_any_size_are_refused(name: str, batch: int) -> None:
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Around(ANY_SIZE[name]), drawn(batch), target=0)
    model = Around(ANY_SIZE[name])
    plrp.explain(model, drawn(1), target=0)  # one by itself may pass
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(model, drawn(batch), target=0)


MIXED_TARGETS: dict[str, Step] = {
    "times the last": lambda o: o[:, 0] * o[-1, 0].detach(),
    "over the largest": lambda o: o[:, 0] / o[:, 1].detach().abs().max(),
    "a neighbour for one": lambda o: o[:, 0] + o[:, 1].roll(1) * first_alone(o)[:, 0],
    "a convolution": lambda o: F.conv1d(o[None, None, :, 0], torch.ones(1, 1, 3), padding=1)[0, 0],
    "where the last is large": lambda o: o[:, 0] * (o[-1, 1] > 0),
}


@pytest.mark.parametrize("name", MIXED_TARGETS)
@pytest.mark.parametrize("batch", [2, 3, 5, 8])
def test_targets_that_mix_samples_are_refused(name: str, batch: int) -> None:
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Around(), drawn(batch), target=MIXED_TARGETS[name])


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_are_mixed_are_refused(name: str) -> None:
    with pytest.raises(plrp.UnsupportedOperation, match=r"mixes the samples|takes some samples out"):
        plrp.explain(Around(MIXING[name]), drawn(), target=0)


APART: dict[str, Step] = {
    "a diagonal matrix": lambda h: torch.diag(torch.arange(1.0, BATCH + 1)) @ h,
    "a permutation and back": lambda h: torch.eye(BATCH)[CYCLE].T @ (torch.eye(BATCH)[CYCLE] @ h),
    "index_add of each sample to itself": lambda h: h.index_add(0, torch.arange(BATCH), h * 0.5),
    "index_copy there and back": lambda h: h.index_copy(0, CYCLE, h)[CYCLE],
    "scatter there and back": lambda h: torch.zeros(BATCH, FEATURES).scatter(0, wide(CYCLE), h).gather(0, wide(CYCLE)),
    "scatter_add into a float32 buffer": lambda h: torch.zeros(BATCH, FEATURES).scatter_add_(
        0, wide(torch.arange(BATCH)), h
    ),
    "scatter along the features": lambda h: torch.zeros(BATCH, FEATURES).scatter(
        1, torch.arange(FEATURES).flip(0).expand(BATCH, FEATURES), h
    ),
    "take of everything": lambda h: h.take(torch.arange(BATCH * FEATURES)).view(BATCH, FEATURES),
    "a constant with one more axis": lambda h: (h + torch.ones(BATCH, BATCH, FEATURES)).mean(0),
    "rows written one by one": lambda h: written(h),
    "differences that cancel": lambda h: torch.einsum("nm,mf->nf", torch.eye(BATCH) - 2 * torch.eye(BATCH), h),
}


def written(h: Tensor) -> Tensor:
    rows = torch.zeros(BATCH, 2, FEATURES)
    for place in range(2):
        rows[:, place] = h
    return rows.mean(1)


@pytest.mark.parametrize("name", APART)
def test_samples_that_stay_apart_are_explained_as_if_alone(name: str) -> None:
    model, x, pruning = Around(APART[name]), drawn(), plrp.Pruning(p=0.2)
    relevance = plrp.explain(model, x, target=0, composite="epsilon", pruning=pruning).relevance
    for sample in range(BATCH):
        expected = torch.zeros_like(x)
        expected[sample] = relevance[sample]
        torch.testing.assert_close(alone(model, x, sample, pruning), expected)


def test_the_refusal_says_what_became_of_the_samples() -> None:
    steps = {
        MIXES: lambda h: ISOLATED @ h,
        TAKES_OUT: lambda h: h[[0, 1, 2, 2]],
        ADDS_ROWS: lambda h: torch.cat([h, torch.zeros(1, FEATURES)]),
    }
    for reason, step in steps.items():
        with pytest.raises(plrp.UnsupportedOperation, match=reason):
            plrp.explain(Around(step, lambda h: h[:BATCH]), drawn())


def test_calls_of_one_form_are_tried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def rolled(h: Tensor) -> Tensor:
        return h.T.flip(0).T

    x = drawn()
    record(Around(rolled), x)
    monkeypatch.setattr("plrp.tape.locating._replayed", lambda *_: calls.append(1))
    assert record(Around(rolled), x).ops
    assert not calls


@pytest.mark.parametrize("seed", [18, 24, 25, 35])
def test_tokens_of_an_expert_belong_to_their_samples(seed: int) -> None:
    """Samples have different numbers of such tokens, and the samples of a second look have others, or none."""
    torch.manual_seed(seed)
    first, inner, last = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(3))

    def experts(x: Tensor) -> Tensor:
        h = first(x).reshape(-1, 3)
        chosen = (h[:, 0] > 0).nonzero()[:, 0]
        return last(h.index_add(0, chosen, inner(h[chosen]).relu()).view(x.shape).mean(1))

    x = torch.randn(3, 4, 3, dtype=torch.float64)
    relevance = plrp.explain(experts, x, target=0, composite="epsilon").relevance
    for sample in range(3):
        one = plrp.explain(experts, x[sample : sample + 1], target=0, composite="epsilon").relevance
        torch.testing.assert_close(one[0], relevance[sample])


def test_a_constant_with_any_strides_is_looked_at() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(3, 3)
    assert plrp.explain(lambda x: layer(x) * torch.ones(1, 3).T, x, composite="epsilon").closing().max() < 1e-5
