"""Windows of a max pool that lie wholly in padding: nobody wins there, so what they hold is booked to the constant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import MAX_POOL, followed, network
from random_layers import BODIES, body
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules

PRUNINGS = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M")]
EVERYWHERE = plrp.Composite([(plrp.composites.is_any, rules.WSquare())], name="w²")
COMPOSITES = ["epsilon-plus-flat", "epsilon-plus", "epsilon", EVERYWHERE]
LEAST = -1e30  # stands for −∞, which a network cannot be asked to carry


class WithExplicitPadding(nn.Module):
    """The same network, its max pools without padding of their own: `pad` puts a constant there, which wins."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            for axes in MAX_POOL:
                patch.setitem(MAX_POOL, axes, _padded_explicitly(axes))
            return self.model(x)


def _padded_explicitly(axes: int) -> Any:
    plain = MAX_POOL[axes]

    def pool(
        x: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool = False, dilation: Any = 1
    ) -> Tensor:
        kernel, step, pad, gap = (
            (each,) * axes if isinstance(each, int) else tuple(each)
            for each in (kernel_size, stride, padding, dilation)
        )
        out = plain(torch.zeros(x.shape), kernel, step, pad, gap, ceil_mode).shape[2:]
        around: list[int] = []
        for axis in range(axes):
            reads = (out[axis] - 1) * step[axis] + (kernel[axis] - 1) * gap[axis] + 1
            around = [pad[axis], max(0, reads - pad[axis] - x.shape[2 + axis]), *around]
        return plain(F.pad(x, around, value=LEAST), kernel, step, 0, gap)

    return pool


def booked(explanation: Any, column: str) -> Tensor:
    """What a column of the ledger sums to, per sample."""
    rows = explanation.ledger
    return torch.tensor(
        [sum(r.get(column) or 0.0 for r in rows if r["sample"] == n) for n in range(len(explanation.relevance))]
    )


def check(model: nn.Module, x: Tensor, explicit: nn.Module, unit: float, **options: Any) -> None:
    """Fast and plain are the explanation with explicit padding, and their ledgers close."""
    with plrp.plain_walk():
        expected = plrp.trace(explicit, x).explain(**options)
        plain = plrp.trace(model, x).explain(**options)
        assert plain.ledger
        assert expected.ledger
    fast = plrp.trace(model, x).explain(**options)
    for found in (plain, fast):
        torch.testing.assert_close(found.logits, expected.logits)
        scale = max(1e-6, float(expected.relevance.abs().max()))
        torch.testing.assert_close(found.relevance, expected.relevance, rtol=unit, atol=unit * scale)
        scale = max(1.0, float(expected.score.abs().max()))
        torch.testing.assert_close(
            booked(found, "absorbed_constant"), booked(expected, "absorbed_constant"), rtol=unit, atol=unit * scale
        )
        oracles.assert_ledger_closes(found, found.score, unit)


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(0, 10_000), st.sampled_from(COMPOSITES), st.sampled_from(PRUNINGS), st.booleans())
def test_relevance_is_that_of_explicit_padding(
    name: str, axes: int, seed: int, composite: Any, pruning: plrp.Pruning | None, sparse: bool
) -> None:
    with body(name) as dtype, followed(1.0 if sparse else 0.0):
        model, x = network("Padded", axes, seed, dtype)
        unit = 2e-4 if dtype == torch.float32 else 1e-8
        check(model, x, WithExplicitPadding(model), unit, composite=composite, pruning=pruning)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=repr)
@pytest.mark.parametrize("name", ["compiled", "torch float64"])
def test_the_pool_whose_windows_wrote_outside_of_memory(name: str, pruning: plrp.Pruning | None) -> None:
    """Half of its windows lie in padding: they once vanished, and took the heap with them."""
    with body(name) as dtype, torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
        first, pool = nn.Conv2d(3, 64, 1), nn.MaxPool2d((2, 1), 1, (1, 0), (4, 1))
        model = nn.Sequential(first, pool, *layers).eval().to(dtype)
        explicit = nn.Sequential(
            first, nn.ConstantPad2d((0, 0, 1, 1), LEAST), nn.MaxPool2d((2, 1), 1, 0, (4, 1)), *layers
        )
        x = torch.randn(2, 3, 3, 8, dtype=dtype)
        unit = 2e-4 if dtype == torch.float32 else 1e-8
        for _ in range(5):
            check(model, x, explicit.eval(), unit, composite=EVERYWHERE, pruning=pruning)
