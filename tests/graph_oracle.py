"""Graph networks restated with dense matrices and autograd, in float64: a slow LRP that shares no code with the tape.

Every function computes what the layer computes, in a form in which input × gradient is its relevance. Sums follow
LRP-0. A linear layer with γ is z^γ · (z / z^γ), the quotient held constant. Attention, gates and the factor of an
activation are held constant. Messages go through the matrices `send` (edges, nodes) and `take` (nodes, edges).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from plrp.composites import is_any
from plrp.rules import Gamma, Zero


def composite_of(gamma: float) -> plrp.Composite:
    """γ in linear layers, LRP-0 elsewhere, without ε."""
    return plrp.Composite([(is_any, Gamma(gamma, epsilon=0.0) if gamma else Zero())], epsilon=0.0)


def held(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """An activation whose factor is constant, so that relevance passes it; its value at 0 is a constant."""
    at_zero = function(torch.zeros_like(x))
    return x * torch.where(x == 0, 0.0, (function(x) - at_zero) / torch.where(x == 0, 1.0, x)).detach() + at_zero


class Dense:
    """A graph's matrices and the γ of linear layers."""

    def __init__(self, nodes: int, edges: Tensor, gamma: float) -> None:
        self.nodes, self.edges, self.gamma = nodes, edges, gamma
        self.send = torch.eye(nodes, dtype=torch.float64)[edges[0]]
        self.take = torch.eye(nodes, dtype=torch.float64)[edges[1]].T

    # --- steps --------------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x Wᵀ + b with γ; weight is (out, in)."""
        b = torch.zeros(len(weight), dtype=x.dtype) if bias is None else bias
        above, below = (weight + self.gamma * part for part in (weight.clamp(min=0), weight.clamp(max=0)))
        x_above, x_below = x.clamp(min=0), x.clamp(max=0)
        up = x_above @ above.T + x_below @ below.T + b + self.gamma * b.clamp(min=0)
        down = x_above @ below.T + x_below @ above.T + b + self.gamma * b.clamp(max=0)
        z = x @ weight.T + b
        z_gamma = torch.where(z > 0, up, down)
        return z_gamma * torch.where(z == 0, 0.0, z / torch.where(z == 0, 1.0, z_gamma)).detach()

    def of(self, layer: Any, x: Tensor) -> Tensor:
        """A linear layer, or several with ReLUs between them."""
        if isinstance(layer, nn.Sequential):
            for one in layer:
                x = self.of(one, x)
            return x
        return x.relu() if isinstance(layer, nn.ReLU) else self.linear(x, layer.weight, layer.bias)

    def most(self, messages: Tensor, sign: float = 1.0) -> Tensor:
        """The largest message to each node (smallest: sign −1), 0 where there is none."""
        rows = []
        for node in range(self.nodes):
            mine = messages[self.edges[1] == node]
            rows.append(sign * (sign * mine).amax(0) if len(mine) else 0 * messages.sum(0))
        return torch.stack(rows)

    def mean(self, messages: Tensor) -> Tensor:
        return (self.take @ messages) / self.degrees.clamp(min=1)[:, None]

    @property
    def degrees(self) -> Tensor:
        return self.take.sum(1)

    def normalised(self, weight: Tensor, loops: bool) -> Tensor:
        """D^{−½} A D^{−½}, (receiver, sender); with loops every node without one gets one of weight 1."""
        a = (self.take * weight) @ self.send
        if loops:
            own = torch.zeros(self.nodes, dtype=torch.bool)
            own[self.edges[0][self.edges[0] == self.edges[1]]] = True
            a = a + torch.diag((~own).to(a))
            for edge in ((self.edges[0] == self.edges[1]) & (weight != 0)).nonzero()[:, 0]:  # the last loop counts
                node = int(self.edges[0, edge])
                a = a.index_put((torch.tensor(node), torch.tensor(node)), weight[edge])
        scale = torch.where(a.sum(1) > 0, a.sum(1).clamp(min=1e-30) ** -0.5, 0.0)
        return scale[:, None] * a * scale[None]

    # --- layers -------------------------------------------------------------------------------------------------------

    def GCN(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        z = self.normalised(weight, loops=True) @ self.linear(x, layer.lin.weight)
        return z if layer.bias is None else z + layer.bias

    def GIN(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        return self.of(layer.nn, self.take @ (self.send @ x) + (1 + layer.eps) * x)

    def GraphConv(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        return self.of(layer.lin_rel, self.take @ (weight[:, None] * (self.send @ x))) + self.of(layer.lin_root, x)

    def SAGE(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        return self.of(layer.lin_l, self.mean(self.send @ x)) + self.of(layer.lin_r, x)

    def SAGE_max(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        return self.of(layer.lin_l, self.most(self.send @ x)) + self.of(layer.lin_r, x)

    def Cheb(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        weight = torch.where(self.edges[0] == self.edges[1], 0.0, weight)  # loops are removed
        a, eye = (self.take * weight) @ self.send, torch.eye(self.nodes, dtype=x.dtype)
        sent = a.sum(0)
        scale = torch.where(sent > 0, sent.clamp(min=1e-30) ** -0.5, 0.0)
        entries = [-scale[r] * w * scale[s] for (s, r), w in zip(self.edges.T.tolist(), weight, strict=True) if s != r]
        largest = 2 * max([torch.tensor(1.0, dtype=x.dtype), *entries])  # λ as the layer guesses it
        laplacian = 2 * (eye - scale[:, None] * a * scale[None]) / largest - eye
        first, second = x, laplacian @ x
        out = self.of(layer.lins[0], first) + self.of(layer.lins[1], second)
        for linear in layer.lins[2:]:
            first, second = second, 2 * laplacian @ second - first
            out = out + self.of(linear, second)
        return out if layer.bias is None else out + layer.bias

    def ARMA(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        spread, stacks = self.normalised(weight, loops=False), []
        for stack in range(layer.num_stacks):
            out = x
            for t in range(layer.num_layers):
                matrix = layer.init_weight[stack] if t == 0 else layer.weight[t - 1, stack]
                out = spread @ self.linear(out, matrix.T) + self.linear(x, layer.root_weight[t, stack].T)
                out = (out if layer.bias is None else out + layer.bias[t, stack]).relu()
            stacks.append(out)
        return torch.stack(stacks).mean(0)

    def GatedGraph(self, layer: Any, x: Tensor, weight: Tensor) -> Tensor:
        h, cell = torch.cat([x, x.new_zeros(len(x), layer.out_channels - x.shape[1])], 1), layer.rnn
        b_in, b_own = (
            torch.zeros(3 * layer.out_channels).to(x) if b is None else b for b in (cell.bias_ih, cell.bias_hh)
        )
        for t in range(layer.num_layers):
            m = self.take @ (self.send @ self.linear(h, layer.weight[t].T))
            r, z, n = self.linear(m, cell.weight_ih, b_in).chunk(3, 1)
            own_r, own_z, own_n = self.linear(h, cell.weight_hh, b_own).chunk(3, 1)
            r, z = (r + own_r).sigmoid().detach(), (z + own_z).sigmoid().detach()
            h = (1 - z) * held(n + r * own_n, torch.tanh) + z * h
        return h

    def attention(self, layer: Any, x: Tensor, values: Tensor, edges: Tensor | None) -> Tensor:
        """Σ of the senders' values (edges' own ones beside them), with the layer's attention held constant."""
        with torch.no_grad():
            _, (pairs, weights) = layer(x, self.edges, edges, return_attention_weights=True)
        heads = []
        for head in range(layer.heads):
            own = values[:, head * layer.out_channels : (head + 1) * layer.out_channels]
            attention = torch.zeros(self.nodes, self.nodes, dtype=x.dtype)
            attention = attention.index_put((pairs[1], pairs[0]), weights[:, head], accumulate=True)
            heads.append(attention @ own)
        return torch.cat(heads, 1)

    def GAT(self, layer: Any, x: Tensor, weight: Tensor, edges: Tensor | None = None) -> Tensor:
        z = self.attention(layer, x, self.linear(x, layer.lin.weight), edges)
        return z if layer.bias is None else z + layer.bias

    def GATv2(self, layer: Any, x: Tensor, weight: Tensor, edges: Tensor | None = None) -> Tensor:
        z = self.attention(layer, x, self.of(layer.lin_l, x), edges)
        return z if layer.bias is None else z + layer.bias

    def Transformer(self, layer: Any, x: Tensor, weight: Tensor, edges: Tensor | None = None) -> Tensor:
        z = self.attention(layer, x, self.of(layer.lin_value, x), edges)
        if edges is not None:
            with torch.no_grad():
                _, (_, weights) = layer(x, self.edges, edges, return_attention_weights=True)
            each = weights.repeat_interleave(layer.out_channels, 1)
            z = z + self.take @ (each * self.of(layer.lin_edge, edges))
        return z + self.of(layer.lin_skip, x)

    def GINE(self, layer: Any, x: Tensor, weight: Tensor, edges: Tensor) -> Tensor:
        messages = (self.send @ x + self.of(layer.lin, edges)).relu()
        return self.of(layer.nn, self.take @ messages + (1 + layer.eps) * x)

    def PNA(self, layer: Any, x: Tensor, weight: Tensor, edges: Tensor | None = None) -> Tensor:
        parts = [self.take.T @ x, self.send @ x] + ([] if edges is None else [self.of(layer.edge_encoder, edges)])
        messages = self.of(layer.pre_nns[0], torch.cat(parts, 1))
        mean = self.mean(messages)
        var = self.mean(messages * messages.detach()) - mean * mean.detach()
        clamped = held(var, lambda v: v.clamp(min=1e-5))
        std = held(clamped, torch.sqrt).masked_fill(clamped <= 1e-5, 0.0)
        both = [mean, self.most(messages, -1.0), self.most(messages), std, self.take @ messages, var]
        log, average = (self.degrees + 1).log()[:, None], layer.aggr_module.avg_deg_log
        scales = [1.0, log / average, average / (self.degrees.clamp(min=1) + 1).log()[:, None]]
        scaled = torch.cat([torch.cat(both, 1) * scale for scale in scales], 1)
        return self.of(layer.lin, self.of(layer.post_nns[0], torch.cat([x, scaled], 1)))


def pooled(x: Tensor, batch: Tensor, pool: str) -> Tensor:
    """The nodes of each graph together, (graphs, features)."""
    parts = [x[batch == graph] for graph in range(int(batch.max()) + 1)]
    return torch.stack([{"add": p.sum(0), "mean": p.mean(0), "max": p.amax(0)}[pool] for p in parts])


def relevance_of(score: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Input × gradient of the restated score."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    slopes = torch.autograd.grad(score(*given), given, allow_unused=True)
    return [torch.zeros_like(x) if d is None else (x * d).detach() for x, d in zip(given, slopes, strict=True)]
