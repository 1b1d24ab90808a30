"""Where samples lie after operations that move them: each model is explained rightly, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp.tape import locating
from plrp.tape.locating import ADDS_ROWS, MIXES, TAKES_OUT
from plrp.tape.samples import Samples
from plrp.tape.trace import record
from plrp.tape.values import Op

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
    "a constant in the place of a sample": lambda h: h.index_fill(0, torch.tensor([1]), 0.5),
    "a constant written over a sample": lambda h: written_over(h),
    "an einsum with a gate whose samples nobody can locate": lambda h: torch.einsum(
        "bi,bj->bj", each_by_itself(h).sigmoid(), h
    ),
    "a gate whose samples nobody can locate": lambda h: h * each_by_itself(h).sigmoid(),
    "such a gate first": lambda h: each_by_itself(h).sigmoid() * h,
    "differences that cancel": lambda h: torch.einsum("nm,mf->nf", torch.eye(BATCH) - 2 * torch.eye(BATCH), h),
}


def written(h: Tensor) -> Tensor:
    rows = torch.zeros(BATCH, 2, FEATURES)
    for place in range(2):
        rows[:, place] = h
    return rows.mean(1)


def written_over(h: Tensor) -> Tensor:
    h = h.clone()
    h[1] = 0.5
    return h


def each_by_itself(h: Tensor) -> Tensor:
    """Each sample over its spread, by a norm whose first axis is not the batch."""
    return F.group_norm(h.reshape(1, -1), BATCH).view(h.shape)


@pytest.mark.parametrize("name", APART)
def test_samples_that_stay_apart_are_explained_as_if_alone(name: str) -> None:
    model, x, pruning = Around(APART[name]), drawn(), plrp.Pruning(p=0.2, unit="neuron")
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


# --- each operation by itself -----------------------------------------------------------------------------------------

LAID: dict[str, Step] = {
    "first": lambda h: h,
    "second": lambda h: h.transpose(0, 1),
    "last": lambda h: h.movedim(0, -1),
    "second, another order": lambda h: h[[2, 0, 3, 1]].transpose(0, 1),
}
PLACES = torch.tensor([[[1, 2, 3, 0]]])

# Calls of three axes of four. Shapes and axes alone decide where samples on the first axis go ...
DECIDED: dict[str, Step] = {
    "relu": lambda h: h.relu(),
    "product with itself": lambda h: h * h,
    "product with a constant of more axes": lambda h: h * torch.ones(2, 1, 1, 1),
    "sum of the last axis": lambda h: h.sum(2),
    "sum of the last axis, counted from the end": lambda h: h.sum(-1),
    "sum of the second axis": lambda h: h.sum(1),
    "sum of the second axis, which stays": lambda h: h.sum(1, keepdim=True),
    "sum of two axes": lambda h: h.sum((1, 2)),
    "sum by keyword": lambda h: h.sum(dim=1),
    "maximum of the last axis": lambda h: h.amax(2),
    "sorted": lambda h: h.sort().values,
    "the largest two": lambda h: h.topk(2).values,
    "cumulated": lambda h: h.cumsum(1),
    "transposed": lambda h: h.transpose(1, 2),
    "permuted by a list": lambda h: torch.movedim(h, (1, 2), (2, 1)),
    "rolled": lambda h: h.roll(1, 1),
    "rolled, with keywords": lambda h: h.roll(shifts=1, dims=1),
    "rolled in two axes": lambda h: h.roll((1, 2), (1, 2)),
    "flattened": lambda h: h.flatten(1),
    "with one more axis": lambda h: h[:, None],
    "a slice": lambda h: h[:, 1:],
    "a place": lambda h: h[:, 2],
    "two places": lambda h: h[:, 2, 1],
    "all": lambda h: h[:],
    "all and the end": lambda h: h[:, ..., 1],
    "several places": lambda h: h[:, [2, 0]],
    "joined": lambda h: torch.cat([h, h], 1),
    "joined along the last axis": lambda h: torch.cat([h, h.relu()], -1),
    "stacked along the last axis": lambda h: torch.stack([h, h], -1),
    "halves": lambda h: h.chunk(2, 2)[1],
    "halves of the second axis": lambda h: h.split(2, 1)[0],
    "gathered": lambda h: h.gather(1, PLACES.expand(4, 4, 4)),
    "read by places": lambda h: h.index_select(2, torch.tensor([1, 0])),
    "written": lambda h: h.index_add(1, torch.tensor([2, 0, 1, 3]), h),
    "matrices": lambda h: h @ torch.arange(16.0).view(4, 4),
    "matrices of each with themselves": lambda h: h @ h,
    "matrices of each with themselves, by bmm": lambda h: torch.bmm(h, h),
    "linear": lambda h: F.linear(h, torch.arange(12.0).view(3, 4)),
    "convolution": lambda h: F.conv1d(h, torch.ones(2, 4, 3)),
    "pooled": lambda h: F.avg_pool1d(h, 2),
    "maxima of windows": lambda h: F.max_pool1d(h, 2),
    "softmax": lambda h: h.softmax(-1),
    "softmax of the second axis": lambda h: F.softmax(h, 1),
    "softmax of the first axis": lambda h: h.softmax(0),
    "unit vectors": lambda h: F.normalize(h),
    "unit vectors along the last axis": lambda h: F.normalize(h, dim=-1),
    "over its neighbours": lambda h: F.local_response_norm(h, 3),
    "layer norm": lambda h: F.layer_norm(h, (4,)),
    "layer norm of two axes": lambda h: F.layer_norm(h, (4, 4)),
    "group norm": lambda h: F.group_norm(h, 2),
    "instance norm": lambda h: F.instance_norm(h),
    "batch norm": lambda h: F.batch_norm(h, torch.zeros(4), torch.ones(4)),
}
# ... and a trial says where they go here.
TRIED_OUT: dict[str, Step] = {
    "sum with a part of itself": lambda h: h + h[0],
    "sum with its transpose": lambda h: h + h.transpose(0, 1),
    "sum of the first two axes": lambda h: h.sum([0, -2]),
    "sum of the first axis": lambda h: h.sum(0),
    "sum of everything": lambda h: h.sum(),
    "maximum of the first axis": lambda h: h.amax(0),
    "sorted along the first axis": lambda h: h.sort(0).values,
    "transposed with the first": lambda h: h.transpose(0, 2),
    "permuted": lambda h: h.permute(0, 2, 1),
    "flipped": lambda h: h.flip(0),
    "flipped elsewhere": lambda h: h.flip(2),
    "rolled as one": lambda h: h.roll(4),
    "flattened from the first": lambda h: h.flatten(0, 1),
    "with one more axis in front": lambda h: h[None],
    "a slice of the first axis": lambda h: h[1:],
    "everything": lambda h: h[()],
    "the end": lambda h: h[..., 1],
    "places in two axes": lambda h: h[:, [2, 0], [1, 1]],
    "places apart": lambda h: h[:, [2, 0], None, [1, 1]],
    "places and a number": lambda h: h[:, [2, 0], 1],
    "places of the first axis": lambda h: h[[3, 1, 2, 0]],
    "joined with another order": lambda h: torch.cat([h, h.flip(0)], 1),
    "stacked along the first axis": lambda h: torch.stack([h, h]),
    "matrices of each": lambda h: h @ h.mT,
    "matrices of each, by bmm": lambda h: torch.bmm(h, torch.arange(64.0).view(4, 4, 4)),
    "matrices, one with more axes": lambda h: h[:, None] @ h,
    "an einsum of each": lambda h: torch.einsum("bij,bjk->ibk", h, h),
    "a vector": lambda h: h @ torch.arange(4.0),
}


def depends_on(step: Step, x: Tensor) -> Tensor:
    """Which samples an entry of a step's output depends on, (…, batch): some others take the place of each in turn."""
    before, seeds = step(x), range(1, 6)
    turns = torch.eye(len(x), dtype=torch.bool)[..., None, None]
    changed = [[step(torch.where(turn, seed * positive(seed), x)) != before for seed in seeds] for turn in turns]
    return torch.stack([torch.stack(each).any(0) for each in changed], -1)


def positive(seed: int) -> Tensor:
    return torch.rand(4, 4, 4, generator=torch.Generator().manual_seed(seed))


def lines(owners: Tensor, batch: int) -> list[tuple[int, list[int]]]:
    """The axes along which entries have one owner per position, with those of the positions: no sample is missing."""
    rows = [(axis, owners.movedim(axis, 0).reshape(owners.shape[axis], -1)) for axis in range(owners.dim())]
    return [
        (a, row[:, 0].tolist()) for a, row in rows if bool((row == row[:, :1]).all()) and len(row.unique()) == batch
    ]


def located(step: Step, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Samples, list[str]]:
    """Where the samples lie in a step's output, and the calls that were tried out."""
    layouts: list[Samples] = []
    tried: list[str] = []
    locate, try_out = locating.layouts_of, locating._tried_out

    def noted(op: Op, outputs: Sequence[Tensor]) -> list[Samples]:
        layouts.append(locate(op, outputs)[0])
        return [layouts[-1]] * len(outputs)

    def model(x: Tensor) -> Tensor:
        step(x)
        return x + 0

    with monkeypatch.context() as patch:
        patch.setattr("plrp.tape.recorder.layouts_of", noted)
        patch.setattr(locating, "_tried_out", lambda op, outputs: tried.append(op.kind) or try_out(op, outputs))
        record(model, x)
    return layouts[-2], tried


def test_two_samples_are_located_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert located(lambda h: h.permute(1, 0, 2), torch.rand(2, 3, 4), monkeypatch)[0].axis == 1
    assert located(lambda h: h.sum(0), torch.rand(2, 3, 4), monkeypatch)[0].mixed


def test_calls_with_different_indices_are_different_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda h, index: h[index],
        lambda h, index: h.index_select(0, index),
        lambda h, index: h.index_select(dim=0, index=index),
    ]
    for read in reads:
        for order in ([3, 1, 0, 2], [0, 3, 1, 2]):
            samples, _ = located(
                lambda h, order=order, read=read: read(h, torch.tensor(order)), positive(0), monkeypatch
            )
            assert samples.ids is not None
            assert samples.ids.tolist() == order


@pytest.mark.parametrize("name", [*DECIDED, *TRIED_OUT])
def test_samples_are_mixed_if_an_entry_depends_on_several_and_else_lie_along_an_axis(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {**DECIDED, **TRIED_OUT}[name]
    for laid, lay in LAID.items():
        samples, tried = located(lambda h, lay=lay: step(lay(h)), positive(0), monkeypatch)
        depends = depends_on(lambda h, lay=lay: step(lay(h)), positive(0))
        along = lines(depends.int().argmax(-1), 4) if bool((depends.sum(-1) == 1).all()) else []
        assert bool(samples.mixed) == (not along), laid
        if along:
            ids = range(4) if samples.ids is None else samples.ids.tolist()
            assert (samples.axis, list(ids)) in along, laid
        if laid == "first":
            assert bool(tried) == (name in TRIED_OUT)


# --- random models ----------------------------------------------------------------------------------------------------


def matrix(choose: random.Random, batch: int) -> Tensor:
    """The edges of a graph: a permutation, a diagonal, few edges or many."""
    kind = choose.choice(["permutation", "diagonal", "few", "isolated", "many"])
    if kind == "permutation":
        return torch.eye(batch)[choose.sample(range(batch), batch)]
    edges = torch.diag(torch.tensor([choose.uniform(0.5, 2) for _ in range(batch)]))
    number = {"diagonal": 0, "few": 1, "isolated": 1, "many": batch}[kind]
    for _ in range(number):
        first = 1 if kind == "isolated" and batch > 2 else 0
        edges[choose.randrange(first, batch), choose.randrange(first, batch)] = choose.choice([-1.0, 1.0])
    return edges


def order(choose: random.Random, batch: int) -> Tensor:
    """Numbers of samples: in order, in another, or some of them twice."""
    kind = choose.randrange(3)
    if kind == 0:
        return torch.arange(batch)
    return torch.tensor(choose.sample(range(batch), batch) if kind == 1 else choose.choices(range(batch), k=batch))


def random_step(choose: random.Random, batch: int) -> Step:
    """A step that may move, mix or repeat samples, or leaves them alone."""
    index, edges, cut, dim = (
        order(choose, batch),
        matrix(choose, batch),
        choose.randrange(1, batch),
        choose.randrange(2),
    )
    back, shift, buffer = index.argsort(), choose.randrange(batch), torch.zeros(batch, FEATURES)
    sign = choose.choice([-1, 1])
    features = torch.randperm(FEATURES, generator=torch.Generator().manual_seed(choose.randrange(99)))
    steps: list[Step] = [
        lambda h: h[index],
        lambda h: h[index][back],
        lambda h: h[:, features],
        lambda h: h.index_select(dim, index if dim == 0 else features),
        lambda h: h.roll(shift, dim),
        lambda h: h.roll(shift, 0).roll(-shift, 0),
        lambda h: h.flip(dim),
        lambda h: h.flip(0).flip(0),
        lambda h: h.sort(dim).values,
        lambda h: h.cumsum(dim),
        lambda h: torch.cat([h[cut:], h[:cut]]),
        lambda h: torch.cat([h[:cut], h[cut:]]),
        lambda h: torch.cat([h[:, cut:], h[:, :cut]], 1),
        lambda h: torch.stack(h.unbind(dim), dim),
        lambda h: edges @ h,
        lambda h: edges.T @ (edges @ h),
        lambda h: torch.einsum("nm,mf->nf", edges, h),
        lambda h: F.linear(h.T, edges).T,
        lambda h: torch.bmm(edges.expand(2, batch, batch), h.expand(2, batch, FEATURES)).sum(0),
        lambda h: h.index_copy(0, index, h),
        lambda h: buffer.index_copy(0, index, h),
        lambda h: h.index_add(0, index, h, alpha=sign),
        lambda h: buffer.index_add(0, index, h),
        lambda h: buffer.scatter(0, index[:, None].expand(-1, FEATURES), h),
        lambda h: buffer.scatter_add(0, index[:, None].expand(-1, FEATURES), h),
        lambda h: buffer.scatter(1, features.expand(batch, -1), h),
        lambda h: h.gather(0, index[:, None].expand(-1, FEATURES)),
        lambda h: h.gather(1, features.expand(batch, -1)),
        lambda h: h.take((index[:, None] * FEATURES + features).view(batch, FEATURES)),
        lambda h: h.T.reshape(batch, FEATURES),
        lambda h: h.T.contiguous().T,
        lambda h: h + h.mean(dim, keepdim=True),
        lambda h: h + h.amax(dim, keepdim=True),
        lambda h: h - h[shift],
        lambda h: h + h.expand(batch, batch, FEATURES)[:, shift],
        lambda h: torch.where(torch.arange(batch)[:, None] < cut, h, h.flip(0)),
        lambda h: torch.where(torch.arange(FEATURES) < cut, h, h.flip(1)),
        lambda h: h * torch.sigmoid(h.detach()[index]),
        lambda h: h * torch.sigmoid(h.detach()[shift:].sum(0)),
        lambda h: h * torch.sigmoid(h.detach().mean(dim, keepdim=True)),
        lambda h: h * torch.softmax(h.detach(), dim),
        lambda h: torch.softmax((h @ h.T).detach(), 1) @ h,
        lambda h: h.repeat_interleave(2, 0)[::2],
        lambda h: h.repeat(2, 1)[shift : shift + batch],
        lambda h: h.masked_scatter(torch.ones(batch, FEATURES) > 0, h.flip(dim)),
        lambda h: h + h.roll(shift, 0) * (torch.arange(batch) == cut)[:, None],
        lambda h: h / (1 + h.detach()[index].abs().amax(dim, keepdim=True)),
        lambda h: h / (1 + h.detach()[shift].norm()),
        lambda h: h * (h[index] > 0.5),
        lambda h: h * torch.where(h.roll(shift, 0) > 0.5, 2.0, 1.0),
        lambda h: torch.where(h.roll(shift, 0) > 0.5, h, 2 * h),
        lambda h: h.gather(1, h[index].argsort(1)),
        lambda h: F.conv1d(h.T[:, None], torch.tensor([[[0.0, 1.0, float(sign > 0)]]]), padding=1)[:, 0].T,
    ]
    return choose.choice(steps)


def independent(model: nn.Module, x: Tensor) -> tuple[bool, Tensor]:
    """Whether no sample's scores depend on another sample; and x · gradient of each sample's first score."""
    own = torch.zeros_like(x)
    leaf = x.clone().requires_grad_()
    scores = model(leaf)
    for sample in range(len(x)):
        (slope,) = torch.autograd.grad(scores[sample, 0], leaf, retain_graph=True)
        own[sample] = x[sample] * slope[sample]
        others = torch.arange(len(x)) != sample
        changed = [model(torch.where(others[:, None], drawn(len(x), seed), x))[sample] for seed in (7, 8, 9)]
        if bool(slope[others].any()) or not all(torch.allclose(one, scores[sample], atol=1e-5) for one in changed):
            return False, own
    return True, own


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_models_are_explained_rightly_or_refused() -> None:
    """Without biases LRP-0 is gradient · input, gates held constant: `detach` tells autograd so too."""
    explained = refused = 0
    for seed in range(300):
        choose = random.Random(seed)
        batch = choose.randrange(2, 6)
        model = Around(*(random_step(choose, batch) for _ in range(choose.randrange(1, 4))), seed=seed)
        x, pruning = drawn(batch, seed), plrp.Pruning(p=0.3)
        try:
            relevance = plrp.explain(model, x, target=0, composite="epsilon").relevance
        except (plrp.UnsupportedOperation, ValueError):
            refused += 1
            continue
        explained += 1
        apart, expected = independent(model, x)
        assert apart, seed
        assert torch.allclose(relevance, expected, atol=2e-2 * float(expected.abs().max())), seed  # ε takes some
        sample = choose.randrange(batch)
        pruned = plrp.explain(model, x, target=0, composite="epsilon", pruning=pruning).relevance
        assert torch.allclose(pruned[sample], alone(model, x, sample, pruning)[sample], atol=1e-4), seed
    assert explained > 60
    assert refused > 60


def test_rows_of_packed_samples_are_padded_to_the_longest_and_come_back() -> None:
    samples = Samples(3, ids=torch.tensor([1, 0, 1, 2, 1]))
    packed = torch.arange(1.0, 11).view(5, 2)
    rows = samples.rows(packed)
    assert rows.tolist() == [[3, 4, 0, 0, 0, 0], [1, 2, 5, 6, 9, 10], [7, 8, 0, 0, 0, 0]]
    assert torch.equal(samples.unrows(rows, packed.shape), packed)


@pytest.mark.parametrize(
    ("ids", "follow"), [(None, True), ([0, 0, 1, 1], True), ([0, 1, 0, 1], False), ([0, 0, 1], False)]
)
def test_batches_are_joined_where_one_sample_follows_the_other(ids: list[int] | None, follow: bool) -> None:
    assert Samples(2, ids=None if ids is None else torch.tensor(ids)).in_order == follow
    assert not Samples(2, axis=1).in_order
