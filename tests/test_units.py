"""Whole positions and whole channels stay or go: `Pruning(unit=…)`, against explicit groups and matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from oracles import Cut
from plrp.engine import choose_walk
from plrp.passage import pruning_factor
from plrp.request import Request
from plrp.tape.samples import Samples
from test_pruning_oracle import RULES, compare, prepared

# The maps (channels, plane) of two networks of the oracles that conv layers read; vectors have no positions.
MAPS = {
    "fan-out-and-pool": {"h": (4, 8)},
    "pictures": {"ha": (4, 25), "hb": (4, 9), "hc": (3, 36)},
}


def groups_of(network: str, unit: str) -> dict[str, list[int]]:
    """The group of each entry of a map that is laid out channel by channel."""
    return {
        name: [entry // plane if unit == "channel" else entry % plane for entry in range(channels * plane)]
        for name, (channels, plane) in MAPS[network].items()
    }


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("unit", ["position", "channel"])
@pytest.mark.parametrize("network", MAPS)
@pytest.mark.parametrize("rule", ["epsilon", "zplus"])
def test_groups_stay_or_go_as_in_the_matrices(
    rule: str, network: str, unit: str, redistribution: str, p: float
) -> None:
    model, x = prepared(network)
    how: dict[str, Any] = {"p": p, "redistribution": redistribution}
    cut = Cut(**how, groups=groups_of(network, unit))
    walks = compare(model, x, rule, plrp.Pruning(**how, unit=unit), cut)
    names = MAPS[network]
    assert any(bool((walk.pruned[name].mask == 0).any()) for walk in walks for name in names if name in walk.pruned)


@pytest.mark.parametrize("measure", ["zeros", "gini"])
@pytest.mark.parametrize("unit", ["position", "channel"])
def test_the_gain_counts_groups(unit: str, measure: str) -> None:
    model, x = prepared("pictures")
    how: dict[str, Any] = {"p": None, "sparsity_gain": 1.0, "measure": measure}
    compare(model, x, "zplus", plrp.Pruning(**how, unit=unit), Cut(**how, groups=groups_of("pictures", unit)))


class Tokens(nn.Module):
    """Tokens × channels, the batch merged with the tokens on the way, and a convolution over the tokens at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.conv, self.head = nn.Conv1d(6, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.embed(x))
        merged = F.relu(self.mix(h.flatten(0, 1)))
        h = F.relu(self.out(merged)).view(*x.shape[:2], 6)
        return self.head(F.relu(self.conv(h.transpose(1, 2))).mean(2))


def tokens(batch: int = 3) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Tokens().double().eval(), torch.randn(batch, 7, 5, dtype=torch.float64)


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize(("unit", "axis"), [("position", "tokens"), ("channel", "channels")])
def test_what_survives_is_whole_tokens_or_whole_channels_wherever_the_batch_lies(
    unit: str, axis: str, redistribution: str
) -> None:
    model, x = tokens()
    how = plrp.Pruning(p=0.5, unit=unit, redistribution=redistribution)
    found = plrp.explain(model, x, pruning=how, layers=True)
    for name, channels in (("mix", 2), ("out", 2), ("conv", 1)):
        held = found.layers[name]
        held = held.reshape(3, 7, 6) if name in ("mix", "out") else held
        left = (held != 0).any(channels if axis == "tokens" else 3 - channels)
        assert int(left.sum(1).min()) > 0
        assert int(left.sum()) < left.numel(), name
    for sample in range(3):  # batch mates do not matter
        alone = plrp.explain(model, x[sample : sample + 1], pruning=how)
        assert torch.allclose(alone.relevance[0], found.relevance[sample], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("unit", ["position", "channel"])
def test_mass_is_conserved_each_sign_keeps_its_share_and_p_0_is_lrp(unit: str, redistribution: str) -> None:
    model, x = prepared("pictures")
    how = plrp.Pruning(p=0.3, unit=unit, redistribution=redistribution)
    found = plrp.explain(model, x, target=0, pruning=how)
    assert float(found.closing().max()) < 1e-9
    rows = [row for row in found.ledger if row["op"] == "prune"]
    assert all(row["p_positive"] <= 0.3 + 1e-12 and row["p_negative"] <= 0.3 + 1e-12 for row in rows)
    assert any(row["neurons_after"] < row["neurons_before"] for row in rows)
    nothing = plrp.Pruning(p=0.0, unit=unit, redistribution=redistribution)
    lrp, none = plrp.explain(model, x, target=0), plrp.explain(model, x, target=0, pruning=nothing)
    assert torch.equal(lrp.relevance, none.relevance)


def test_the_fast_walk_and_a_sweep_agree_with_the_plain_walk() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, 5),
    ).eval()  # fmt: skip
    x = torch.randn(2, 3, 24, 24)
    ways = [plrp.Pruning(p=p, unit=unit) for unit in ("position", "channel") for p in (0.1, 0.3, 0.6)]
    swept = list(plrp.trace(model, x).sweep(ways))
    for how, found in zip(ways, swept, strict=True):
        with plrp.plain_walk():
            plain = plrp.explain(model, x, target=found.target, pruning=how)
        scale = float(plain.relevance.abs().max())
        assert float((plain.relevance - found.relevance).abs().max()) <= 1e-4 * scale


@pytest.mark.parametrize("rule", RULES)
def test_vectors_have_no_positions_and_are_pruned_by_neuron(rule: str) -> None:
    model, x = prepared("chain")
    make = RULES[rule][0]
    composite = plrp.Composite([(plrp.composites.is_any, make())], name=rule)
    by_neuron, *others = (
        plrp.explain(model, x, target=0, composite=composite, pruning=plrp.Pruning(p=0.3, unit=unit)).relevance
        for unit in ("neuron", "position", "channel")
    )
    assert all(torch.equal(by_neuron, other) for other in others)


class Disagreeing(nn.Module):
    """A convolution and a linear layer read the same tensor: channels are axis 1 for one, the last for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.linear = nn.Conv1d(3, 6, 3), nn.Conv1d(6, 4, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        return self.conv(h).mean(2) + self.linear(h).mean(1)


@pytest.mark.parametrize("unit", ["position", "channel"])
def test_a_tensor_whose_readers_disagree_about_channels_is_pruned_by_neuron(unit: str) -> None:
    torch.manual_seed(0)
    model, x = Disagreeing().double().eval(), torch.randn(2, 3, 10, dtype=torch.float64)
    options: dict[str, Any] = {"target": 0, "composite": "epsilon", "layers": True}
    found, by_neuron = (plrp.explain(model, x, pruning=plrp.Pruning(0.4, unit=u), **options) for u in (unit, "neuron"))
    assert torch.equal(found.layers["conv"], by_neuron.layers["conv"])
    assert bool(((by_neuron.layers["conv"] == 0).sum((1, 2)) > 0).all())


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unit is 'auto', 'neuron', 'position' or 'channel', got 'token'\."):
        plrp.Pruning(unit="token")


class Attends(nn.Module):
    """Attention over tokens, or a convolution over them."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) if attention else nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(x)).mean(1))


@pytest.mark.parametrize("attention", [True, False])
def test_auto_is_tokens_in_models_with_attention_and_neurons_elsewhere(attention: bool) -> None:
    torch.manual_seed(0)
    model, x = Attends(attention).eval(), torch.randn(2, 9, 5)
    unit = "position" if attention else "neuron"
    trace = plrp.trace(model, x)
    named = trace.explain(pruning=plrp.Pruning(p=0.3, unit=unit))
    for found in (
        plrp.explain(model, x, pruning=plrp.Pruning(p=0.3)),
        trace.explain(pruning=plrp.Pruning(p=0.3)),
        next(iter(trace.sweep([plrp.Pruning(p=0.3)]))),
    ):
        assert torch.equal(found.relevance, named.relevance)
        assert ("by position" in str(found)) == attention
    other = trace.explain(pruning=plrp.Pruning(p=0.3, unit="neuron" if attention else "position"))
    assert not torch.equal(other.relevance, named.relevance)


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.q, self.k, self.v, self.o = (nn.Linear(n, 16) for n in (6, 16, 16, 16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.e(x)
        weights = (self.q(h) @ self.k(h).transpose(1, 2) / 4).softmax(-1)
        return self.head(torch.relu(h + self.o(weights @ self.v(h))).mean(1))


def test_auto_means_the_same_in_every_walk() -> None:
    """What stands beside `explain`: a search for exemplars, a recorded walk."""
    torch.manual_seed(0)
    model, x = _Attending().eval(), torch.randn(2, 10, 6)
    auto, position = (plrp.Pruning(p=0.3, unit=unit) for unit in ("auto", "position"))
    one, other = (
        plrp.exemplars(model, x, ["v"], pruning=pruning, composite="attnlrp", show_progress=False)["v"].relevance
        for pruning in (auto, position)
    )
    assert (one == other).all()
    trace = plrp.trace(model, x)
    recorded = choose_walk(trace, Request(composite="attnlrp", pruning=auto).bound(trace))
    assert recorded.pruning == position
    explained = plrp.explain(model, x, pruning=auto, composite="attnlrp").relevance
    assert torch.allclose(recorded.run()[0], explained, atol=1e-6)


def test_what_pruning_made_of_a_neuron_is_stated_once() -> None:
    """r = 0: factor one in a sample that was left alone, and zero in one that was cut."""
    before = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    after = torch.tensor([[0.0, 2.0, 1.0], [0.0, 3.0, 0.0]])
    found = pruning_factor(before, after, Samples(2))
    assert found.tolist() == [[1.0, 1.0, 1.0], [0.0, 1.5, 0.0]]
