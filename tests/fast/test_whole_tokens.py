"""Whole tokens: pruned, and left out of linear layers where they hold nothing, as the plain formulas have it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp import pruning
from plrp.fast import native, whole_tensors
from plrp.fast.fast_maps import fast_map
from plrp.fast.neuron_pruning import prune_positions
from plrp.ledger import Booking
from plrp.passing import epsilon_for, pass_on
from plrp.pruning import Pruning, Site
from plrp.tape.maps import Dense
from plrp.tape.samples import Samples

ONE_SAMPLE = Samples(1, 0, torch.zeros(7, dtype=torch.long))  # tokens first, as in nn.MultiheadAttention


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.2, 0.6])
@pytest.mark.parametrize(
    ("shape", "samples"),
    [((3, 7, 5), Samples.first_axis(3)), ((2, 3, 4, 13), Samples.first_axis(2)), ((7, 1, 5), ONE_SAMPLE)],
    ids=["tokens", "windows", "tokens-first"],
)
def test_tokens_are_pruned_as_by_the_formulas(
    shape: tuple[int, ...], samples: Samples, p: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("plrp.fast.neuron_pruning.native.available", lambda *_: False)
    torch.manual_seed(0)
    relevance = torch.randn(shape) * torch.rand(*shape[:-1], 1) ** 3
    value = SimpleNamespace(samples=samples, shape=relevance.shape)
    site = Site(value, [], p, None, len(shape) - 1)  # type: ignore[arg-type]
    how = Pruning(p, unit="position")
    expected, _ = pruning.prune(relevance, site, how, None, Booking(False))
    found = prune_positions(relevance, site, how, Booking(False))
    assert found is not None
    assert torch.equal(found == 0, expected == 0)
    assert bool((found == 0).any()) == (p > 0)
    assert torch.allclose(found, expected, rtol=1e-6, atol=0)


def test_what_is_no_number_stays_so_in_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    relevance = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    relevance[0, 1, 2], relevance[1, 3, 8], relevance[2] = torch.nan, torch.inf, 0.0
    value = SimpleNamespace(samples=Samples.first_axis(3), shape=relevance.shape)
    site = Site(value, [], 0.3, None, 2)  # type: ignore[arg-type]
    found = prune_positions(relevance, site, Pruning(0.3, unit="position"), Booking(False))
    monkeypatch.setattr("plrp.fast.neuron_pruning.native.available", lambda *_: False)
    expected = prune_positions(relevance, site, Pruning(0.3, unit="position"), Booking(False))
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("live", [0, 1, 3, 6])
def test_tokens_without_relevance_are_left_out_of_a_linear_layer(live: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    s = torch.randn(2, 3, 4)
    s.view(6, 4)[live:] = 0
    layer = fast_map(Dense(weight, None))
    found = layer.transpose(s, weight, torch.zeros(2, 3, 3))
    assert found.shape == (2, 3, 3)
    assert torch.allclose(found, s @ weight, atol=1e-6)


@pytest.mark.parametrize("tokens", [2, 40])
@pytest.mark.parametrize("live", [0, 1, 5, 8, 12])
def test_outputs_without_relevance_are_left_out_of_a_linear_layer(live: int, tokens: int) -> None:
    torch.manual_seed(0)
    weight, s = torch.randn(12, 3), torch.randn(1, tokens, 12)
    s[..., live:] = 0  # values hold relevance, queries and keys do not
    found = fast_map(Dense(weight, None)).transpose(s, weight, torch.zeros(1, tokens, 3))
    torch.testing.assert_close(found, s @ weight)


class Attends(nn.Module):
    """One head in single precision, with each norm that goes by its own loop."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.root = nn.LayerNorm(8), nn.RMSNorm(8)
        self.packed, self.last = nn.Linear(8, 24), nn.Linear(8, 3)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.packed(self.norm(x)).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.last(self.root(attended + x)).sum(1)


@pytest.mark.parametrize("composite", ["attnlrp", "cp-lrp"])
def test_norms_and_products_are_passed_as_by_the_formulas(composite: str) -> None:
    if not native.available():
        pytest.skip("no compiled loops here")
    rules, trace = plrp.composite(composite), plrp.trace(Attends().eval(), torch.randn(3, 5, 8))
    reached = {id(op) for op in trace.reached(rules.products)}
    seen = []
    for op in trace.ops:
        if id(op) not in reached or op.kind not in ("layer_norm", "rms_norm", "matmul"):
            continue
        given = torch.randn(op.output.shape)
        if op.kind == "matmul":
            found = whole_tensors.through_product(op, given, rules)
        else:
            found = whole_tensors.through_norm(op, given, epsilon_for(op.output, composite=rules))
        assert found is not None
        for fast, plain in zip(found, pass_on(op, [given], Booking(False), rules), strict=True):
            assert (fast is None) == (plain is None)
            if fast is not None and plain is not None:
                torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
        seen.append(op.kind)
    assert sorted(set(seen)) == ["layer_norm", "matmul", "rms_norm"]
    assert seen.count("matmul") == (2 if composite == "attnlrp" else 1)


@pytest.mark.parametrize("pruning_", [None, Pruning(0.2), Pruning(0.2, unit="position")], ids=["LRP", "λ", "tokens"])
@pytest.mark.parametrize("composite", ["attnlrp", "cp-lrp"])
def test_a_transformer_in_single_precision_is_explained_as_by_the_plain_walk(
    composite: str, pruning_: Pruning | None
) -> None:
    model, x = Attends().eval(), torch.randn(3, 40, 8)
    found = plrp.explain(model, x, target=0, composite=composite, pruning=pruning_).relevance
    with plrp.plain_walk():
        plain = plrp.explain(model, x, target=0, composite=composite, pruning=pruning_).relevance
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))
