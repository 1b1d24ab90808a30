"""Many prunings, or many conditions, in one walk: a sweep in stacks is the sweep one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.fast import limits, native, propagation
from plrp.fast import stacked_walk as stacking


class Branched(nn.Module):
    """Convolutions of several kinds, a skip, pools, a reshape with the batch size written into it, dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.right = nn.Conv2d(8, 8, 1, bias=False)
        self.down = nn.Conv2d(8, 12, 3, stride=2, dilation=2, padding=1)
        self.dense = nn.Linear(12 * 16, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = nn.functional.max_pool2d((self.left(x) + self.right(x)).relu(), 2)
        x = nn.functional.avg_pool2d(self.down(x).relu(), (1, 1))
        x = x.reshape(x.shape[0], 12 * 16)
        return self.head(self.dense(x).relu())


def network() -> nn.Module:
    torch.manual_seed(0)
    model = Branched().eval()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    return model


IMAGES = torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(1))
SHARES = [0.0, 0.05, 0.2, 0.3, 0.15, 0.5, 0.9, 0.95]


@pytest.fixture(autouse=True)
def _small_networks_are_followed(monkeypatch):
    monkeypatch.setattr(limits, "FEWEST", 1)
    monkeypatch.setattr(limits, "NEURONS_BELOW", 0.6)
    monkeypatch.setattr(limits, "POSITIONS_BELOW", 1.0)
    monkeypatch.setattr(limits, "STACKED_BYTES", 1)


@pytest.fixture
def walks(monkeypatch) -> list[int]:
    """How many copies each stacked walk of a test has."""
    if not native.available() or plrp.engine._PLAIN.get():
        pytest.skip("stacks are for the compiled loops")
    made: list[int] = []
    run = stacking.StackedWalk.run
    monkeypatch.setattr(stacking.StackedWalk, "run", lambda walk: made.append(walk.cases) or run(walk))
    return made


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon-plus", "epsilon", "epsilon-alpha2-beta1"])
def test_a_stack_is_its_explanations_one_by_one(walks, composite, batch):
    trace = plrp.trace(network(), IMAGES[:batch])
    prunings = [plrp.Pruning(p) for p in SHARES]
    found = list(trace.sweep(prunings, composite=composite, layers=True))
    assert walks == ([6] if batch == 1 else [5])
    for one, p in zip(found, prunings, strict=True):
        alone = trace.explain(pruning=p, composite=composite, layers=True)
        torch.testing.assert_close(one.relevance, alone.relevance, rtol=1e-5, atol=1e-7)
        assert one.layers.keys() == alone.layers.keys()
        for name in one.layers:
            torch.testing.assert_close(one.layers[name], alone.layers[name], rtol=1e-5, atol=1e-7)
        assert one.pruning == p
        assert torch.equal(one.score, alone.score)
        assert one.ledger == alone.ledger


def test_the_neurons_of_a_stack_are_followed(walks, monkeypatch):
    """Else the test above would compare dense propagation with itself."""
    seen: list[int] = []
    through = propagation.through_layer

    def watched(geometry, *rest):
        seen.append(geometry.inputs[0])
        return through(geometry, *rest)

    monkeypatch.setattr(propagation, "through_layer", watched)
    list(plrp.trace(network(), IMAGES).sweep([plrp.Pruning(0.8), plrp.Pruning(0.9), plrp.Pruning(0.95)]))
    assert walks == [3]
    assert set(seen) == {9}
    assert len(seen) >= 3


@pytest.mark.parametrize(
    "other",
    [
        None,
        plrp.Pruning(0.3, redistribution="M"),
        plrp.Pruning(0.3, sparsity_gain=1.0),
        plrp.Pruning(0.3, conserve=False),
        plrp.Pruning(None, sparsity_gain=1.0),
        plrp.Pruning(0.3, layers={"down": 0.05}),
    ],
)
def test_what_cannot_be_stacked_stands_alone_in_its_place(walks, other):
    trace = plrp.trace(network(), IMAGES)
    prunings = [plrp.Pruning(0.2), other, plrp.Pruning(0.4), plrp.Pruning(0.4, 0.6), other]
    found = list(trace.sweep(prunings))
    assert walks == [2]
    assert [e.pruning for e in found] == prunings
    for one, p in zip(found, prunings, strict=True):
        torch.testing.assert_close(one.relevance, trace.explain(pruning=p).relevance, rtol=1e-5, atol=1e-7)


def test_large_batches_are_not_stacked_and_stacks_are_bounded(walks, monkeypatch):
    many = [plrp.Pruning(0.2 + n / 100) for n in range(11)]
    list(plrp.trace(network(), IMAGES).sweep(many))  # 16 samples hold five copies of three
    assert walks == [5, 5]
    walks.clear()
    monkeypatch.setattr(limits, "STACKED_SAMPLES", 2)
    list(plrp.trace(network(), IMAGES).sweep(many))
    assert walks == []


def test_targets_and_refusals_of_a_stack(walks):
    trace = plrp.trace(network(), IMAGES)
    prunings = [plrp.Pruning(0.2), plrp.Pruning(0.4)]
    for target in ([0, 3, 1], 2, lambda output: output[:, 1] - output[:, 2]):
        found = list(trace.sweep(prunings, target=target))
        for one, p in zip(found, prunings, strict=True):
            torch.testing.assert_close(one.relevance, trace.explain(pruning=p, target=target).relevance)
    assert len(walks) == 3
    with pytest.raises(ValueError, match=r"no layer 'lft'.*left"):
        list(trace.sweep(prunings, layers=["lft"]))
    with pytest.raises(TypeError, match=r"plrp.Pruning\(p=0.3\)"):
        list(trace.sweep([plrp.Pruning(0.2), plrp.Pruning(0.4), 0.3]))


@pytest.mark.parametrize(
    ("prunings", "options", "message"),
    [
        (plrp.Pruning(0.2), {}, "a list of plrp.Pruning, got one Pruning"),
        (0.2, {}, "a list of plrp.Pruning, got one float"),
        (None, {}, "a list of plrp.Pruning"),
        ([plrp.Pruning(0.2), 0.3], {}, r"plrp.Pruning\(p=0.3\)"),
        ([plrp.Pruning(0.2, layers={"lft": 0.1})], {}, "names layer 'lft'"),
        ([None], {"layers": ["lft"]}, "no layer 'lft'"),
        ([None], {"target": 99}, "out of range"),
        ([None], {"target": 1.5}, "got float"),
        ([None], {"composite": "epsilon-pls"}, "No composite named"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said_at_the_call(prunings, options, message):
    trace = plrp.trace(network(), IMAGES)
    with pytest.raises((TypeError, ValueError), match=message):
        trace.sweep(prunings, **options)


def test_an_empty_batch_is_swept():
    trace = plrp.trace(network(), IMAGES[:0])
    assert [e.relevance.shape[0] for e in trace.sweep([plrp.Pruning(0.2), plrp.Pruning(0.4)])] == [0, 0]


def test_an_input_that_the_score_never_reads_gets_zeros_in_every_copy(walks):
    class Deaf(Branched):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(x)

    torch.manual_seed(0)
    trace = plrp.trace(Deaf().eval(), (IMAGES[:2], torch.randn(2, 4)))
    for one in trace.sweep([plrp.Pruning(0.2), plrp.Pruning(0.3)]):
        assert [tuple(r.shape) for r in one.relevance] == [(2, 3, 20, 20), (2, 4)]
        assert not one.relevance[1].any()
    assert walks == [2]


def test_a_misspelt_override_is_refused_in_a_sweep(walks):
    composite = plrp.Composite([(lambda op: True, plrp.rules.ZPlus())], layers={"lft": plrp.rules.ZPlus()})
    with pytest.raises(ValueError, match="lft"):
        list(plrp.trace(network(), IMAGES).sweep([plrp.Pruning(0.2), plrp.Pruning(0.3)], composite=composite))


def test_many_conditions_share_activations_and_the_way_above(monkeypatch):
    """Above the conditioned layer one relevance goes down, and below it all of them as one batch."""
    if plrp.engine._PLAIN.get():
        pytest.skip("the plain walk stacks nothing")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    trace = plrp.trace(model.eval(), torch.rand(1, 3, 8, 8))
    sizes: dict[str, list[int]] = {}
    plain = plrp.walk.Walk.through_branches

    def through_branches(self: Any, op: Any, rule: Any, branches: Any, x: Any, relevance: Tensor, *rest: Any) -> Any:
        sizes.setdefault(op.name, []).append(len(relevance))
        return plain(self, op, rule, branches, x, relevance, *rest)

    monkeypatch.setattr(limits, "FEWEST", 1 << 30)  # whole tensors alone
    with monkeypatch.context() as patch:
        patch.setattr(plrp.walk.Walk, "through_branches", through_branches)
        found = list(trace.sweep([None], condition=[{"2": [c]} for c in range(6)]))
    assert sizes == {"5": [1], "2": [6], "0": [6]}
    torch.testing.assert_close(sum(e.relevance for e in found), trace.explain().relevance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "pruning", [None, plrp.Pruning(0.2), plrp.Pruning(0.05), plrp.Pruning(0.2, redistribution="M")], ids=str
)
@pytest.mark.parametrize("small", [1, 1 << 16])
def test_many_targets_give_what_each_gives_alone(
    small: int, pruning: plrp.Pruning | None, walks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also small operations, which take the whole stack in one call, and targets that no stack can take."""
    monkeypatch.setattr(limits, "SMALL", small)
    trace, options = plrp.trace(network(), IMAGES), {"composite": "epsilon-plus", "layers": True}
    targets = [
        0,
        3,
        None,
        [1, 2, 0],
        plrp.targets.contrast(1, 2),
        plrp.targets.log_odds(1),
        lambda o: o[:, 1] - o[:, 2],
    ]
    found = list(trace.sweep([pruning], targets=targets, **options))
    stacked = [size for size in walks if size > 1]
    assert stacked == ([] if pruning is not None and pruning.redistribution == "M" else [5])
    for one, target in zip(found, targets, strict=True):
        alone = trace.explain(pruning=pruning, target=target, **options)
        torch.testing.assert_close(one.relevance, alone.relevance)
        torch.testing.assert_close(one.score, alone.score)
        assert set(one.layers) == set(alone.layers)
        for name, relevance in alone.layers.items():
            torch.testing.assert_close(one.layers[name], relevance)
        assert str(one.target) == str(alone.target)
        torch.testing.assert_close(one.closing(), alone.closing(), atol=1e-6, rtol=0)


def test_targets_and_conditions_and_their_refusals(walks: list[int]) -> None:
    trace = plrp.trace(network(), IMAGES[:1])
    conditions = [{"left": [0]}, {"left": [1]}]
    found = list(trace.sweep([None], targets=[0, 1], condition=conditions))
    asked = [(target, one) for target in (0, 1) for one in conditions]
    for explanation, (target, one) in zip(found, asked, strict=True):
        torch.testing.assert_close(explanation.relevance, trace.explain(target=target, condition=one).relevance)
    for wrong in (3, [], "0"):
        with pytest.raises(ValueError, match="targets is a list"):
            trace.sweep([None], targets=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in place of target"):
        trace.sweep([None], target=1, targets=[0])
    with pytest.raises(ValueError, match="out of range"):
        trace.sweep([None], targets=[0, 99])
