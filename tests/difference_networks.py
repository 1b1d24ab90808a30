"""Small networks of every kind whose differences are explained, with an input and a reference of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """A ResNet-like network: BatchNorm that is folded, one that is not, a skip, a reused ReLU module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.inner, self.outer = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.act, self.head = nn.ReLU(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(self.act(self.norm(self.stem(x))), 2)
        h = self.act(h + self.second(self.act(self.inner(self.first(h)))))
        h = self.act(self.outer(h))  # follows no convolution
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Vision(nn.Module):
    """A ViT-like network: patches, class token, positions, two pre-norm blocks with attention."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 10, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)[:, 0])


class Masked(nn.Module):
    """A transformer with a causal mask, RMSNorm, a gated MLP and attention over sequences (batch, 6, length)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed, self.heads = nn.Linear(6, width), 2
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 20), nn.Linear(width, 20), nn.Linear(20, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.transpose(1, 2))
        q, k, v = self.qkv(self.norms[0](h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        n = self.norms[1](h)
        h = h + self.down(F.silu(self.gate(n)) * self.up(n))
        return self.head(h[:, -1])


class Recurrent(nn.Module):
    """An LSTM or a GRU, both directions, over (batch, 6, length)."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn: Any = kind(6, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.transpose(1, 2))[0].mean(1))


class Functions(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor], wide: int = 12) -> None:
        super().__init__()
        self.below, self.above, self.function = nn.Linear(6, 12), nn.Linear(wide, 5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.function(self.below(x)))


def manual_norm(h: Tensor) -> Tensor:
    centred = h - h.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def hand_softmax(h: Tensor) -> Tensor:
    e = (h - h.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "exp": torch.exp,
    "square": torch.square,
    "abs": torch.abs,
    "clamp": lambda h: h.clamp(-0.5, 0.7),
    "log": lambda h: (h.square() + 0.1).log(),
    "rsqrt": lambda h: (h.square() + 0.1).rsqrt(),
    "reciprocal": lambda h: 1 / (h.square() + 0.1),
    "power": lambda h: 2**h,
    "product": lambda h: h * h.tanh(),
    "swish": lambda h: h * torch.sigmoid(1.7 * h),
    "same": lambda h: h * h + h,
    "shifts": lambda h: 3 * (h - 0.3) / 2 + torch.linspace(-1, 1, 12).to(h),
    "maximum": lambda h: torch.maximum(h, h.flip(1).square()),
    "minimum": lambda h: torch.minimum(h, 0.5 - h.flip(1)),
    "softmax": lambda h: h.softmax(-1),
    "steep softmax": lambda h: (40 * h).softmax(-1),
    "hand softmax": hand_softmax,
    "log softmax": lambda h: h.unflatten(1, (3, 4)).log_softmax(-1).flatten(1),
    "layer norm": lambda h: F.layer_norm(h, (12,), torch.linspace(-1, 1, 12).to(h), torch.ones(12).to(h)),
    "group norm": lambda h: F.group_norm(h.unflatten(1, (4, 3)), 2, torch.linspace(-1, 1, 4).to(h)).flatten(1),
    "instance norm": lambda h: F.instance_norm(h.unflatten(1, (4, 3))).flatten(1),
    "rms norm": lambda h: F.rms_norm(h, (12,), torch.linspace(-1, 1, 12).to(h)),
    "normalize": lambda h: F.normalize(h, dim=1),
    "manual norm": manual_norm,
    "quotient": lambda h: h[:, :6] / (1 + h[:, 6:].square()).repeat(1, 1) @ torch.eye(6, 12).to(h),
    "cosine": lambda h: F.cosine_similarity(h.unflatten(1, (3, 4)), h.flip(1).unflatten(1, (3, 4)), -1).repeat(1, 4),
    "matmul": lambda h: (h.unflatten(1, (3, 4)) @ h.flip(1).unflatten(1, (4, 3))).flatten(1).repeat(1, 2)[:, :12],
    "einsum": lambda h: (
        torch.einsum("bij,bkj->bik", h.unflatten(1, (3, 4)), h.tanh().unflatten(1, (3, 4)))
        .flatten(1)
        .repeat(1, 2)[:, :12]
    ),
    "glu": lambda h: F.glu(h, 1).repeat(1, 2),
    "cumsum": lambda h: h.cumsum(1),
    "max": lambda h: h.unflatten(1, (3, 4)).max(-1, keepdim=True).values.expand(-1, -1, 4).flatten(1) + h,
    "move": lambda h: F.pad(h.roll(3, 1)[:, 2:], (1, 1), value=3.0),
    "pieces": lambda h: torch.cat([part * (n + 1) for n, part in enumerate(h.chunk(3, 1))], 1),
}


def networks(dtype: torch.dtype = torch.float64) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """Each network with an input and a reference, both of two samples."""
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}

    def cnn(*inside: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 6, 3), *inside, nn.Conv2d(6, 8, 3), nn.GELU(), nn.Flatten(), nn.LazyLinear(5))

    torch.manual_seed(3)
    made["cnn"] = cnn(nn.ReLU()), (3, 12, 12)
    made["max pools"] = cnn(nn.ReLU(), nn.MaxPool2d(3, 2, 1)), (3, 12, 12)
    made["average pools"] = cnn(nn.SiLU(), nn.AvgPool2d(2), nn.GroupNorm(2, 6)), (3, 12, 12)
    made["resnet"] = Residual(), (3, 12, 12)
    made["vit"] = Vision(), (3, 12, 12)
    made["transformer"] = Masked(), (6, 7)
    made["lstm"] = Recurrent(nn.LSTM), (6, 7)
    made["gru"] = Recurrent(nn.GRU), (6, 7)
    made.update({name: (Functions(function), (6,)) for name, function in FUNCTIONS.items()})
    cases = {}
    for name, (model, shape) in made.items():
        model = model.to(dtype).eval()
        model(torch.zeros(1, *shape, dtype=dtype))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
                nn.init.normal_(module.bias)
        generator = torch.Generator().manual_seed(len(name))
        x, x0 = (torch.randn(2, *shape, generator=generator, dtype=dtype) for _ in range(2))
        cases[name] = model, x, x0 / math.sqrt(2)
    return cases
