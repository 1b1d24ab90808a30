"""Conditions: what passes a layer adds up, paths are those of an explicit sum, and what is withheld is booked."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oracles
import plrp
from plrp import conditions, targets
from plrp.request import Request
from plrp.survey import Survey

PRUNINGS = {
    "LRP": None,
    "lambda": plrp.Pruning(p=0.3),
    "M": plrp.Pruning(p=0.3, redistribution="M"),
    "M-sign": plrp.Pruning(p=0.3, redistribution="M-sign"),
    "channels": plrp.Pruning(p=0.3, unit="channel"),
    "lossy": plrp.Pruning(p=0.3, conserve=False),
}


class Residual(nn.Module):
    """A block whose skip goes around two convolutions, one with a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.two = nn.Conv2d(12, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = (h + self.two(self.norm(self.one(h)).relu())).relu()
        return self.head(h.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x)).mean(1))


def made(kind: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, dict[str, int]]:
    """A model, an input, and the layers to try with their number of channels."""
    torch.manual_seed(1)
    if kind == "residual":
        model, x, layers = Residual(), torch.rand(2, 3, 7, 7), {"stem": 8, "one": 12, "two": 8}
        model.norm.running_mean.uniform_(-0.2, 0.2)
        model.norm.running_var.uniform_(0.5, 1.5)
    elif kind == "attention":
        model, x, layers = Attention(), torch.randn(2, 6, 5), {"embed": 8, "block.linear1": 16, "block.linear2": 8}
    else:
        model = nn.Sequential(nn.Conv1d(4, 10, 7), nn.ReLU(), nn.MaxPool1d(3), nn.Conv1d(10, 6, 5), nn.ReLU())
        model = nn.Sequential(*model, nn.Flatten(), nn.Linear(6 * 10, 2))
        x, layers = torch.rand(2, 4, 48), {"0": 10, "3": 6}
    return model.to(dtype).eval(), x.to(dtype), layers


def nothing(channels: int) -> Tensor:
    return torch.zeros(channels, dtype=torch.bool)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@contextmanager
def walking(kind: str) -> Iterator[None]:
    with plrp.plain_walk() if kind == "plain" else nullcontext():
        yield


WALKS = [*(("fast", how) for how in PRUNINGS), ("plain", "LRP"), ("plain", "lambda"), ("plain", "M")]


# --- linearity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("walk", "how"), WALKS)
@pytest.mark.parametrize("kind", ["residual", "attention", "sequence"])
def test_a_partition_adds_up_to_what_passes_the_layer(walk, kind, how):
    model, x, layers = made(kind)
    trace, pruning = plrp.trace(model, x), PRUNINGS[how]
    layer, channels = list(layers.items())[len(how) % len(layers)]

    def under(wanted: Any, **options: Any) -> Tensor:
        return trace.explain(pruning=pruning, condition={layer: wanted}, **options).relevance

    with walking(walk):
        whole, around = trace.explain(pruning=pruning).relevance, under(nothing(channels))
        through = under(range(channels), only_through=True)
        close(around + through, whole)
        parts = [range(0, channels // 2, 2), range(1, channels // 2, 2), range(channels // 2, channels)]
        alone = [under(part, only_through=True) for part in parts]
        close(sum(alone), through)
        for part, found in zip(parts, alone, strict=True):  # the definition of only_through
            close(found, under(part) - around, 1e-11)
        assert (float(around.abs().max()) == 0) == (layer in ("stem", "embed", "0", "3"))


def test_pruned_afresh_a_partition_would_not_add_up():
    model, x, _ = made("residual")
    pruning = plrp.Pruning(p=0.3)
    trace = plrp.trace(model, x)
    through = trace.explain(pruning=pruning, condition={"one": range(12)}, only_through=True).relevance

    class Refreshed(plrp.walk.Walk):
        hold = plrp.walk.Walk.prune

    afresh = []
    for channel in range(12):
        plain, pruned = (
            Request(composite="epsilon-plus-flat", pruning=how, condition={"one": [channel]}, only_through=True).bound(
                trace
            )
            for how in (None, pruning)
        )
        passes = Survey(trace, plain).passage(plain)
        afresh.append(Refreshed(trace, pruned, passage=passes).run()[0])
    assert float((sum(afresh) - through).abs().sum()) > 0.05 * float(through.abs().sum())


@pytest.mark.parametrize("composite", ["epsilon-alpha2-beta1-flat", "epsilon-gamma-box", "epsilon", "epsilon-plus"])
def test_every_composite_is_linear(composite):
    model, x, _ = made("residual")
    rules = plrp.composite(composite, low=0.0, high=1.0) if "box" in composite else composite
    trace = plrp.trace(model, x)
    single = [trace.explain(composite=rules, condition={"two": [c]}, only_through=True).relevance for c in range(8)]
    around = trace.explain(composite=rules, condition={"two": nothing(8)}).relevance
    close(sum(single) + around, trace.explain(composite=rules).relevance)


def test_fast_and_plain_walks_agree_where_few_neurons_live():
    torch.manual_seed(3)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 5)),
    ).eval()
    x = torch.rand(3, 3, 40, 40)
    for pruning in (None, plrp.Pruning(p=0.4), plrp.Pruning(p=0.4, redistribution="M-sign")):
        options: dict[str, Any] = {"pruning": pruning, "condition": {"5": [3, 7, 11], "2": range(16)}, "layers": True}
        fast = plrp.trace(model, x).explain(**options)
        with plrp.plain_walk():
            plain = plrp.trace(model, x).explain(**options)
        close(fast.relevance, plain.relevance, 1e-4)
        for name in plain.layers:
            close(fast.layers[name], plain.layers[name], 1e-4)
        assert fast.relevance.abs().sum() > 0


# --- paths ------------------------------------------------------------------------------------------------------------


class Blocks(nn.Module):
    """x → first → three residual blocks u ↦ u + B u → last, all linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.last(h)


def share(weight: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """The matrix (in, out) by which the ε-rule hands relevance down: n_jk / (z_k + ε sign z_k)."""
    return x[:, None] * weight.T / oracles.stabilise(z)[None]


@pytest.mark.parametrize("walk", ["fast", "plain"])
def test_only_through_is_an_explicit_sum_over_paths(walk):
    with walking(walk):
        sum_over_paths()


def sum_over_paths() -> None:
    torch.manual_seed(5)
    model, x = Blocks().double().eval(), torch.randn(1, 4, dtype=torch.float64)
    masks = {0: [1, 2], 1: [0, 3, 4], 2: [2]}
    steps, h = [], model.first(x)
    for number, block in enumerate(model.blocks):
        inside, keep = block(h), torch.zeros(5, dtype=torch.float64)
        keep[masks[number]] = 1.0
        total = oracles.stabilise(h + inside)[0]
        over_skip = torch.diag(h[0] / total)
        within = share(block.weight, h[0], inside[0]) @ torch.diag(inside[0] / total)
        chosen = share(block.weight, h[0], inside[0]) @ torch.diag(keep) @ torch.diag(inside[0] / total)
        steps.append((over_skip, within, chosen))
        h = h + inside
    scores = model.last(h)[0]
    top = share(model.last.weight, h[0], scores)[:, 2] * scores[2]
    bottom = share(model.first.weight, x[0], model.first(x)[0])
    trace = plrp.trace(model, x)
    for layers in ((0,), (1,), (0, 2), (0, 1, 2)):
        condition = {f"blocks.{n}": masks[n] for n in layers}
        found = trace.explain(target=2, composite="epsilon", condition=condition, only_through=True)
        expected = torch.zeros(4, dtype=torch.float64)
        for path in itertools.product((0, 1), repeat=3):  # 0: over the skip, 1: through the block
            if all(path[n] for n in layers):
                relevance = top
                for n in (2, 1, 0):
                    relevance = steps[n][2 if n in layers else path[n]] @ relevance
                expected += bottom @ relevance
        close(found.relevance[0], expected.detach())
        if len(layers) == 2:  # inclusion and exclusion
            a, b = (f"blocks.{n}" for n in layers)

            def under(one: Any, other: Any, a: str = a, b: str = b) -> Tensor:
                return trace.explain(target=2, composite="epsilon", condition={a: one, b: other}).relevance[0]

            kept, none = (condition[a], condition[b]), (nothing(5), nothing(5))
            signed = under(*kept) - under(none[0], kept[1]) - under(kept[0], none[1]) + under(*none)
            close(signed, expected.detach(), 1e-10)


def test_no_path_goes_through_two_layers_side_by_side():
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.below(x).relu()
            return self.left(h) + self.right(h)

    trace = plrp.trace(Beside().eval(), torch.rand(2, 4))
    both = {"left": range(3), "right": range(3)}
    found = trace.explain(condition=both, only_through=True)
    assert not found.relevance.any()
    assert float(found.closing().max()) < 1e-6
    close(trace.explain(condition=both).relevance, trace.explain().relevance, 1e-6)
    one = trace.explain(condition={"left": range(3)}, only_through=True).relevance
    other = trace.explain(condition={"right": range(3)}, only_through=True).relevance
    close(one + other, trace.explain().relevance, 1e-5)


# --- what a condition may be ------------------------------------------------------------------------------------------


def test_channels_positions_and_masks_say_the_same():
    model, x, _ = made("residual")
    trace = plrp.trace(model, x)

    def under(wanted: Any) -> Tensor:
        return trace.explain(condition={"one": wanted}).relevance

    channels = nothing(12)
    channels[[2, 11]] = True
    expected = under(channels)
    for same in ([2, 11], (2, -1), {2, 11}, torch.tensor([2, 11]), channels.tolist(), channels[:, None, None]):
        assert torch.equal(under(same), expected)
    assert torch.equal(under(channels[None, :, None, None].expand(2, 12, 7, 7)), expected)
    assert torch.equal(under(3), under([3]))
    places = torch.zeros(7, 7, dtype=torch.bool)
    places[4, 5] = places[0, 6] = True
    assert torch.equal(under([(4, 5), (0, -1)]), under(places.expand(12, 7, 7)))
    per_sample = torch.zeros(2, 12, 7, 7, dtype=torch.bool)
    per_sample[0, 2], per_sample[1, 5] = True, True
    assert torch.equal(under(per_sample)[0], under([2])[0])
    assert torch.equal(under(per_sample)[1], under([5])[1])


def test_positions_of_tokens_and_channels_of_linear_layers():
    model, x, _ = made("attention")
    trace = plrp.trace(model, x)
    token = torch.zeros(6, 8, dtype=torch.bool)
    token[4] = True
    found = trace.explain(condition={"embed": [(4,)]}).relevance
    assert torch.equal(found, trace.explain(condition={"embed": token}).relevance)
    assert found[:, 4].any()
    assert not found[:, [0, 1, 2, 3, 5]].any()
    last = torch.zeros(2, 1, 8, dtype=torch.bool)
    last[:, :, 3] = True
    three = trace.explain(condition={"embed": [3]}).relevance
    assert torch.equal(three, trace.explain(condition={"embed": last}).relevance)


@pytest.mark.parametrize("kind", ["residual", "attention", "sequence"])
def test_callables_see_activation_gradient_and_relevance(kind):
    model, x, layers = made(kind)
    seen: dict[str, tuple[Tensor, ...]] = {}

    def positive_gradient(name: str) -> Any:
        def mask(activation: Tensor, gradient: Tensor, relevance: Tensor) -> Tensor:
            seen[name] = (activation.clone(), gradient.clone(), relevance.clone())
            activation.zero_()  # one's own
            return gradient > 0

        return mask

    trace = plrp.trace(model, x)
    target = [1, 0]
    found = trace.explain(target=target, condition={name: positive_gradient(name) for name in layers})
    outputs: dict[str, Tensor] = {}
    hooks = []
    for name in layers:
        module = model.get_submodule("norm" if name == "one" else name)  # a folded BatchNorm is part of the layer
        hooks.append(module.register_forward_hook(lambda _, __, y, name=name: outputs.__setitem__(name, y)))
    with torch.enable_grad():
        logits = model(x.clone().requires_grad_())
    for hook in hooks:
        hook.remove()
    slopes = torch.autograd.grad(logits[[0, 1], target].sum(), [outputs[name] for name in layers])
    for (name, channels), slope in zip(layers.items(), slopes, strict=True):
        activation, gradient, relevance = seen[name]
        close(activation, outputs[name].detach())
        close(gradient, slope)
        some = trace.explain(target=target, condition={name: relevance != 0}, only_through=True).relevance
        close(some, trace.explain(target=target, condition={name: range(channels)}, only_through=True).relevance)
        handed = trace.explain(target=target, condition={name: nothing(channels)}).booked
        withheld = next(row["withheld"] for row in handed._rows if row["op"] == "condition")
        close(withheld, relevance.flatten(1).sum(1))
    masks = {name: slope > 0 for name, slope in zip(layers, slopes, strict=True)}
    assert torch.equal(found.relevance, trace.explain(target=target, condition=masks).relevance)


def test_callables_are_asked_once_and_without_the_condition():
    model, x, _ = made("residual")
    asked = []

    def strongest(activation: Tensor, gradient: Tensor, relevance: Tensor) -> Tensor:
        asked.append(relevance)
        of_channel = relevance.abs().sum((2, 3), keepdim=True)
        return of_channel >= of_channel.topk(3, 1).values[:, -1:]

    pruning = plrp.Pruning(p=0.3)
    trace = plrp.trace(model, x)
    found = trace.explain(pruning=pruning, condition={"two": nothing(8), "one": strongest})
    assert len(asked) == 1
    alone = trace.explain(pruning=pruning, condition={"one": strongest})
    assert torch.equal(asked[0], asked[1])  # what 'two' withholds is not seen
    assert not torch.equal(found.relevance, alone.relevance)


def test_gradients_pass_what_relevance_does_not():
    """A gate's own branch, a softmax, a callable target: the gradient is the model's."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.gate, self.signal = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.below(x)
            return nn.functional.layer_norm(self.signal(h) * self.gate(h).sigmoid(), (6,)).softmax(-1).sqrt()

    torch.manual_seed(0)
    model, x = Gated().double().eval(), torch.randn(3, 4, dtype=torch.float64)
    trace = plrp.trace(model, x)
    start = targets.start(trace, lambda z: z[:, 1] * 2 - z[:, 2], torch.float64)
    value = next(op for op in trace.layers if op.name == "below").output
    found = conditions.gradients(start, [value])[id(value)]
    h = model.below(x).detach().requires_grad_()
    out = nn.functional.layer_norm(model.signal(h) * model.gate(h).sigmoid(), (6,)).softmax(-1).sqrt()
    close(found, torch.autograd.grad((2 * out[:, 1] - out[:, 2]).sum(), h)[0], 1e-10)


# --- the ledger, and the way home -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("walk", "how"), WALKS)
@pytest.mark.parametrize("kind", ["residual", "attention", "sequence"])
def test_the_ledger_books_what_is_withheld_and_closes(walk, kind, how):
    model, x, layers = made(kind)
    only_through = len(how) % 2 == 0
    condition = {name: range(0, channels, 2) for name, channels in list(layers.items())[1:]}
    with warnings.catch_warnings(), walking(walk):
        warnings.simplefilter("error")
        found = plrp.explain(model, x, pruning=PRUNINGS[how], condition=condition, only_through=only_through)
    oracles.assert_ledger_closes(found, found.score, 1e-12)
    rows = [row for row in found.ledger if row["op"] == "condition"]
    assert {row["layer"] for row in rows} == set(condition)
    assert any(row["withheld"] for row in rows)
    assert float(found.closing().max()) < 1e-12
    balance = found.balance
    shares = balance.reached + balance.to_bias + balance.to_constants + balance.to_epsilon + balance.to_softmax
    close(shares + balance.dropped + balance.withheld - balance.created, torch.ones(2, dtype=torch.float64), 1e-9)


def test_an_explanation_says_its_condition_and_keeps_it():
    model, x, _ = made("sequence")
    found = plrp.explain(model, x, condition={"3": [1, 2], "0": lambda a, g, r: r > 0}, only_through=True)
    assert "only what passes 3 (channels 1, 2), 0 (a callable), and nothing around it" in repr(found)
    assert found.condition["3"] == [1, 2]
    kept = pickle.loads(pickle.dumps(found))
    assert kept.condition == {"3": [1, 2], "0": "a callable"}
    assert kept.only_through
    assert "channels 1, 2" in repr(kept)
    assert torch.equal(kept.relevance, found.relevance)


def test_weak_channels_are_no_fault_of_the_explanation():
    model, x, _ = made("residual")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plrp.explain(model, x, condition={"one": nothing(12)}, only_through=True)
    assert found.balance.problems == [None] * len(x)
    assert not found.relevance.any()


@pytest.mark.parametrize("how", ["LRP", "lambda", "M-sign"])
def test_pieces_of_a_batch_and_single_samples_are_explained_alike(how):
    model, _, _ = made("residual")
    x = torch.rand(5, 3, 7, 7, dtype=torch.float64)
    mask = torch.rand(5, 12, 7, 7, generator=torch.Generator().manual_seed(0)) > 0.5
    options: dict[str, Any] = {"pruning": PRUNINGS[how], "only_through": True}
    for condition in (
        {"one": mask},
        {"one": mask[0], "two": [1]},
        {"one": lambda a, g, r: r > r.mean((1, 2, 3))[:, None, None, None]},
    ):
        whole = plrp.explain(model, x, condition=condition, **options)
        for size in (2, 3):
            pieces = plrp.explain(model, x, condition=condition, micro_batch=size, **options)
            close(pieces.relevance, whole.relevance)
            close(pieces.booked.total("withheld"), whole.booked.total("withheld"))


def test_layers_are_kept_and_the_tape_survives():
    model, x, _ = made("residual")
    found = plrp.explain(model, x, condition={"one": [4]}, layers=True, only_through=True)
    assert found.layers["head"].any()  # above the condition nothing is withheld
    assert found.survivors("two")
    trace = plrp.trace(model, x)
    before = trace.explain().relevance
    trace.explain(condition={"one": [4]}, pruning=plrp.Pruning())
    assert torch.equal(trace.explain().relevance, before)


@pytest.mark.parametrize("walk", ["fast", "plain"])
@pytest.mark.parametrize("kind", ["residual", "attention", "sequence"])
def test_a_stack_of_conditions_is_its_explanations_one_by_one(monkeypatch, walk, kind):
    if (limits := plrp.engine._fast("limits")) is not None:  # the plain walk stacks nothing
        monkeypatch.setattr(limits, "STACKED_SAMPLES", 6)  # of two samples each
        monkeypatch.setattr(limits, "STACKED_BYTES", 1)
    model, x, layers = made(kind)
    trace = plrp.trace(model, x)
    prunings = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M")]
    low, *_, high = layers
    several = [{high: [0, 3]}, {low: [2], high: range(4)}, {low: lambda a, g, r: g > 0}, {high: [1]}]
    with walking(walk):
        for only_through in (False, True):
            found = list(trace.sweep(prunings, condition=several, only_through=only_through, layers=True))
            expected = [(how, one) for how in prunings for one in several]
            assert len(found) == len(expected)
            for explanation, (pruning, condition) in zip(found, expected, strict=True):
                options: dict[str, Any] = {"condition": condition, "only_through": only_through, "layers": True}
                alone = trace.explain(pruning=pruning, **options)
                close(explanation.relevance, alone.relevance)
                for name in alone.layers:
                    close(explanation.layers[name], alone.layers[name])
                assert explanation.condition == condition
                assert explanation.pruning == alone.pruning
        assert float(found[1].closing().max()) < 1e-12  # its ledger is written by a walk of its own


def test_a_sweep_of_prunings_takes_one_condition():
    model, x, _ = made("sequence")
    prunings = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.4)]
    found = list(plrp.trace(model, x).sweep(prunings, condition={"3": [2]}))
    assert [e.condition for e in found] == [{"3": [2]}] * 3
    assert [None if e.pruning is None else e.pruning.p for e in found] == [None, 0.2, 0.4]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "error", "says"),
    [
        ({"onee": [1]}, ValueError, "The model has no layer 'onee'.*nearest: one"),
        ({"add": [1]}, ValueError, "'add' is no conv or linear layer"),
        ({}, ValueError, "names no layer"),
        ([1, 2], TypeError, "condition is a dict.*got list: Trace.sweep"),
        ({"one": []}, ValueError, "is empty"),
        ({"one": [12]}, ValueError, r"no channel 12 in 'one': it has 12, 0…11"),
        ({"one": [-13]}, ValueError, "no channel -13"),
        ({"one": [1.5]}, TypeError, "a mask is boolean, channels are integers"),
        ({"one": "3"}, TypeError, "is text"),
        ({"one": None}, TypeError, "NoneType"),
        ({"one": [1, (2, 3)]}, TypeError, "mixes channels"),
        ({"one": [[1, 2], [3, 4]]}, ValueError, "channels are one list"),
        ({"one": [(1, 2, 3)]}, ValueError, r"no position \(1, 2, 3\).*\(0…6, 0…6\)"),
        ({"one": [(1, 12)]}, ValueError, "no position"),
        ({"head": [(1,)]}, ValueError, "has no positions"),
        ({"one": torch.ones(11, dtype=torch.bool)}, ValueError, r"shape \(11,\).*\(2, 12, 7, 7\).*12 channels"),
        ({"one": torch.ones(3, 12, 7, 7, dtype=torch.bool)}, ValueError, "has shape"),
        ({"one": torch.ones(12, 12, dtype=torch.bool)}, ValueError, "has shape"),
        ({"one": torch.rand(12)}, TypeError, "a mask is boolean"),
        ({"one": lambda a, g, r: r}, TypeError, "returned torch.float64 values"),
        ({"one": lambda a, g, r: 3}, TypeError, "returned a int"),
        ({"one": lambda a, g, r: (r > 0)[..., 0, 0, 0]}, ValueError, "has shape"),
    ],
)
def test_bad_conditions_are_refused(condition, error, says):
    model, x, _ = made("residual")
    with pytest.raises(error, match=says):
        plrp.explain(model, x, condition=condition)


def test_conditions_that_change_nothing_are_refused():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.signal, self.unused = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.signal(x) * self.gate(x).sigmoid(), self.unused(x)

    trace = plrp.trace(Gated().eval(), torch.rand(2, 4))
    for layer in ("gate", "unused"):
        with pytest.raises(ValueError, match=f"No relevance reaches layer '{layer}'"):
            trace.explain(target=lambda out: out[0][:, 1], condition={layer: [0]})
    with pytest.raises(ValueError, match="only_through needs a condition"):
        trace.explain(target=lambda out: out[0][:, 1], only_through=True)
    with pytest.raises(ValueError, match="there is an empty one"):
        trace.sweep([None], target=lambda out: out[0][:, 1], condition=[])
