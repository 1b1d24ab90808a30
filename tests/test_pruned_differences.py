"""Pruned differences restated with explicit matrices in float64: λ, M and M± under ε, γ and z⁺, by both walks."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import plrp
from plrp.composites import is_any
from plrp.rules import Epsilon, Gamma, Rule, ZPlus

WIDTH = 12
RULES: dict[str, Rule] = {"epsilon": Epsilon(), "gamma": Gamma(0.3), "plus": ZPlus()}
Handed = tuple[Tensor, Tensor, Tensor]  # contributions (out, in), their sums (out,), relevance of the outputs (out,)


class Net:
    """h = relu(A x + a), y = C relu(h + (B h + b) · tanh(D h)) + c: h is read by two layers and a skip."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.a, self.b, self.d = torch.randn(3, WIDTH, WIDTH, generator=generator).double() / 2
        self.c = torch.randn(3, WIDTH, generator=generator).double()
        self.bias = torch.randn(2, WIDTH, generator=generator).double() / 2
        self.x, self.x0 = torch.randn(2, WIDTH, generator=generator).double()

    def __call__(self, x: Tensor) -> Tensor:
        linear = torch.nn.functional.linear
        h = linear(x, self.a, self.bias[0]).relu()
        return linear((h + linear(h, self.b, self.bias[1]) * linear(h, self.d).tanh()).relu(), self.c)


def over(r: Tensor, d: Tensor) -> Tensor:
    return torch.where(d == 0, 0.0, r / torch.where(d == 0, 1.0, d))


def layer(weight: Tensor, delta: Tensor, relevance: Tensor, rule: str) -> Handed:
    """What a layer's outputs hand down."""
    n = weight * delta
    up = n.sum(1, keepdim=True) > 0
    favoured = torch.where(up, n.clamp(min=0), n.clamp(max=0))
    n = {"epsilon": n, "gamma": n + 0.3 * favoured, "plus": favoured}[rule]
    return n, n.sum(1), relevance


def survivors(r: Tensor, p: float) -> Tensor:
    """Entries of each sign above the largest entry up to which no more than p of the mass lies."""
    stays = torch.zeros(len(r), dtype=torch.bool)
    for sign in (1, -1):
        part = (sign * r).clamp(min=0)
        below = [v for v in part.tolist() if 0 < v < part.max() and part[part <= v].sum() <= p * part.sum()]
        stays |= part > max(below, default=0.0)
    return stays


def rescaled(r: Tensor, stays: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Survivors of each sign scaled to its mass, and the mass of a sign without survivors."""
    kept, lost = torch.zeros_like(r), []
    for sign in (1, -1):
        part = (sign * r).clamp(min=0)
        rest = (part * stays).sum()
        kept += sign * part * stays * over(part.sum(), rest)
        lost.append(sign * part.sum() * (rest == 0))
    return kept, lost


def pruned(readers: list[Handed], other: Tensor, how: str, p: float) -> Tensor:
    whole = other + sum((n * over(r, d)[:, None]).sum(0) for n, d, r in readers)
    stays = survivors(whole, p)
    if how == "lambda":
        return rescaled(whole, stays)[0]
    total, lost = rescaled(other, stays)
    for n, d, r in readers:
        for part in (n,) if how == "M" else (n.clamp(min=0), n.clamp(max=0)):
            m, left = over(r, d) * part.sum(1), part * stays
            orphaned = left.sum(1).abs() <= 1e-6 * (left if how == "M" else part).abs().sum(1)
            total = total + (left * over(m * ~orphaned, left.sum(1))[:, None]).sum(0)
            lost = [lost[0] + (m * orphaned).clamp(min=0).sum(), lost[1] + (m * orphaned).clamp(max=0).sum()]
    for sign, mass in zip((1, -1), lost, strict=True):
        shares = (sign * whole * stays).clamp(min=0)
        shares = shares if shares.any() else (whole * stays).abs()
        total = total + mass * shares / shares.sum()
    return total


def restated(net: Net, rule: str, how: str, p: float) -> Tensor:
    h, h0 = ((net.a @ x + net.bias[0]).relu() for x in (net.x, net.x0))
    (u, v), (u0, v0) = ((net.b @ t + net.bias[1], (net.d @ t).tanh()) for t in (h, h0))
    s, s0 = h + u * v, h0 + u0 * v0
    output = torch.zeros(3).double()
    output[1] = (net.c @ (s.relu() - s0.relu()))[1]
    r = pruned([layer(net.c, s.relu() - s0.relu(), output, rule)], torch.zeros(WIDTH).double(), how, p)
    m = over(r, s - s0)  # relu passes it on, the sum shares it out
    to_u, to_v = m * (u - u0) * (v + v0) / 2, m * (v - v0) * (u + u0) / 2
    readers = [layer(net.b, h - h0, to_u, rule), layer(net.d, h - h0, to_v, rule)]
    n, d, handed = layer(net.a, net.x - net.x0, pruned(readers, m * (h - h0), how, p), rule)
    return (n * over(handed, d)[:, None]).sum(0)


@pytest.mark.filterwarnings("ignore::plrp.BrokenArithmetic")  # of M under γ, as it should
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("how", ["lambda", "M", "M-sign"])
def test_pruned_differences_are_their_matrices(rule: str, how: str) -> None:
    for seed, p in ((0, 0.1), (1, 0.3), (2, 0.6)):
        net = Net(seed)
        expected = restated(net, rule, how, p)
        settings = {
            "composite": plrp.Composite([(is_any, RULES[rule])]),
            "pruning": plrp.Pruning(p, redistribution=how),
        }
        for walk in (nullcontext, plrp.plain_walk):
            with walk():
                ours = plrp.explain(net, net.x[None], reference=net.x0[None], target=1, **settings)
            assert torch.allclose(ours.relevance[0], expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))
            difference = (net(net.x) - net(net.x0))[1]
            assert abs(ours.relevance.sum() - difference) < 1e-10 * ours.relevance.abs().sum()
            assert ours.closing().max() < 1e-12
