"""Where samples lie after operations that move them: each model is explained rightly, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp.tape.locating import ADDS_ROWS, MIXES, TAKES_OUT
from plrp.tape.samples import Samples
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
        changed = torch.where(others[:, None], drawn(len(x), 7), x)
        if bool(slope[others].any()) or not torch.allclose(model(changed)[sample], scores[sample]):
            return False, own
    return True, own


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
