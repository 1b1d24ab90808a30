"""Small random networks of every kind, and the means to see which paths an explanation took."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plrp.fast import limits, neuron_pruning, propagation

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
SIDE = {1: 40, 2: 13, 3: 7}


class Straight(nn.Module):
    """Convolutions of any stride, dilation, groups and padding, some with a BatchNorm; pools between; a dense head."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        self.axes = axes
        self.convs, self.norms, self.pools = nn.ModuleList(), nn.ModuleList(), []
        channels = 2
        for depth in range(draw.randint(3, 4)):
            groups = draw.choice([1, 1, 2]) if channels % 2 == 0 else 1
            wider = groups * draw.randint(3, 9)
            kernel, stride, dilation = (
                tuple(draw.choice(options) for _ in range(axes)) for options in ([1, 2, 3], [1, 1, 2], [1, 2])
            )
            least = 0 if depth == 0 else 1  # so that no axis shrinks to nothing
            padding = tuple(draw.randint(least, 2) * d if k > 1 else 0 for k, d in zip(kernel, dilation, strict=True))
            self.convs.append(
                CONV[axes](channels, wider, kernel, stride, padding, dilation, groups, bool(draw.getrandbits(1)))
            )
            self.norms.append(NORM[axes](wider) if draw.random() < 0.4 else nn.Identity())
            self.pools.append(draw.choice(["max", "average", "none", "none"]))
            channels = wider
        self.hidden, self.head = nn.LazyLinear(12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm, pool in zip(self.convs, self.norms, self.pools, strict=True):
            x = norm(conv(x))
            x = F.relu(x)
            if pool != "none" and min(x.shape[2:]) >= 3:
                x = (MAX_POOL if pool == "max" else AVG_POOL)[self.axes](x, 3, 2, 1)
        x = F.relu(self.hidden(x.flatten(1)))
        return self.head(x)


class Residual(nn.Module):
    """A stem and blocks as in a ResNet: BatchNorms, ReLUs in place, skips with and without a convolution."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        conv, norm = CONV[axes], NORM[axes]
        self.axes, width = axes, draw.choice([4, 6, 8])
        self.stem, self.norm = conv(2, width, 3, padding=1, bias=False), norm(width)
        self.blocks, self.downs = nn.ModuleList(), nn.ModuleList()
        for stride in (1, draw.choice([1, 2])):
            wider = width if stride == 1 else width + 4
            self.blocks.append(
                nn.Sequential(
                    conv(width, wider, 3, stride, 1, bias=False), norm(wider), nn.ReLU(inplace=True),
                    conv(wider, wider, 3, 1, 1, bias=draw.random() < 0.5), norm(wider),
                )
            )  # fmt: skip
            down = nn.Sequential(conv(width, wider, 1, stride), norm(wider))
            self.downs.append(down if stride > 1 else nn.Identity())
            width = wider
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = MAX_POOL[self.axes](self.relu(self.norm(self.stem(x))), 3, 2, 1)
        for block, down in zip(self.blocks, self.downs, strict=True):
            y = block(x)
            y += down(x)
            x = self.relu(y)
        return self.head(x.flatten(2).mean(2))


class Branching(nn.Module):
    """One tensor read by several branches whose outputs are concatenated, one of them averaged; tied convolutions."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        conv = CONV[axes]
        self.axes, width = axes, draw.choice([4, 5, 7])
        self.stem, self.wide = conv(2, width, 3, padding=1), conv(width, 6, 3, padding=1, groups=1)
        self.thin, self.pooled = conv(width, 3, 1), conv(width, 4, 1, bias=False)
        self.tied = conv(13, 13, 3, padding=1)
        self.norm, self.head = NORM[axes](13), nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        around = AVG_POOL[self.axes](x, 3, 1, 1)
        x = F.relu(torch.cat([self.wide(x), self.thin(x), self.pooled(around)], 1))
        x = F.relu(self.norm(x))  # a BatchNorm that cannot be folded
        x = x + F.relu(self.tied(x))
        x = x + F.relu(self.tied(x))
        return self.head(x.flatten(2).mean(2))


class Growing(nn.Module):
    """As a DenseNet: every layer reads the stream of all earlier ones, after a BatchNorm and ReLU of its own."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        self.axes, grown = axes, draw.choice([3, 4])
        self.stem = CONV[axes](2, 6, 3, padding=1)
        self.norms = nn.ModuleList(NORM[axes](6 + i * grown) for i in range(3))
        self.convs = nn.ModuleList(CONV[axes](6 + i * grown, grown, 3, padding=1, bias=False) for i in range(3))
        self.head = nn.Linear(6 + 3 * grown, 5)

    def forward(self, x: Tensor) -> Tensor:
        stream = MAX_POOL[self.axes](self.stem(x), 2)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            stream = torch.cat([stream, conv(F.relu(norm(stream)))], 1)
        return self.head(F.relu(stream).flatten(2).mean(2))


class Everywhere(nn.Module):
    """A dense output, one score per position: relevance of single positions from the very top."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        conv = CONV[axes]
        self.first, self.last = conv(2, 8, 3, padding=1), conv(8, 3, 1)
        self.dilated = nn.ModuleList(conv(8, 8, 3, padding=d, dilation=d, groups=g) for d, g in ((1, 1), (2, 4)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for conv in self.dilated:
            x = x + F.relu(conv(x))
        return self.last(x)


class Odd(nn.Module):
    """Every geometry that torch allows: strides beyond the kernel, dilation, padding, ceil_mode, maps down to 1 × 1.

    Geometries are drawn at the first call, for the maps that come. Pools come before the ReLU, which a window wholly in
    padding needs: its maximum is −∞.
    """

    padded = False  # whether max pools may have windows wholly in padding

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        self.axes, self.draw = axes, draw
        self.convs, self.pools = nn.ModuleList(), []
        self.hidden, self.head = nn.LazyLinear(12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        for depth in range(3):
            if len(self.pools) == depth:
                self.convs.append(self._conv(x, depth))
                self.pools.append(self._pool(self.convs[-1](x)))
            kind, options = self.pools[depth]
            x = F.relu((MAX_POOL if kind == "max" else AVG_POOL)[self.axes](self.convs[depth](x), **options))
        return self.head(F.relu(self.hidden(x.flatten(1))))

    def _each(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self.draw.randint(least, most) for _ in range(self.axes))

    def _conv(self, x: Tensor, depth: int) -> nn.Module:
        while True:  # until the map is large enough for the kernel; what lies outside is padding
            kernel, stride, padding, dilation = self._each(1, 3), self._each(1, 2), self._each(0, 4), self._each(1, 3)
            stride = tuple(k + 1 if self.draw.random() < 0.2 else s for k, s in zip(kernel, stride, strict=True))
            conv = CONV[self.axes](x.shape[1], 6 + depth, kernel, stride, padding, dilation)
            try:
                conv(x)
            except RuntimeError:
                continue
            return conv

    def _pool(self, x: Tensor) -> tuple[str, dict[str, Any]]:
        while True:
            kind = self.draw.choice(["max", "max", "average"])
            stride = self._each(1, 4) if max(x.shape[2:]) < 12 else self._each(2, 4)
            options = {"kernel_size": self._each(1, 3), "stride": stride, "padding": self._each(0, 3)}
            options["ceil_mode"] = bool(self.draw.getrandbits(1))
            options |= (
                {"dilation": self._each(1, 4)} if kind == "max" else {"count_include_pad": self.draw.random() < 0.5}
            )
            try:
                pooled = (MAX_POOL if kind == "max" else AVG_POOL)[self.axes](x, **options)
            except RuntimeError:  # torch wants half a window inside
                continue
            if pooled.isfinite().all() or (self.padded and pooled.isfinite().any()):
                return kind, options


class Padded(Odd):
    """The same, and max pools may have windows that lie wholly in padding."""

    padded = True


class Soft(nn.Module):
    """Activations that are not zero at zero, so that outputs of either sign hold relevance."""

    def __init__(self, axes: int, draw: random.Random) -> None:
        super().__init__()
        conv, self.axes = CONV[axes], axes
        self.stem, self.norm = conv(2, 6, 3, padding=1), NORM[axes](8)
        self.convs = nn.ModuleList(conv(n, 8, 3, padding=1, groups=g) for n, g in ((6, 1), (8, 2), (8, 1)))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.softplus(self.stem(x))
        x = torch.sigmoid(self.norm(self.convs[0](x)))
        x = MAX_POOL[self.axes](self.convs[1](x) - 0.1, 2).exp()
        return self.head((F.relu(x - 0.5) + torch.sigmoid(self.convs[2](x))).flatten(2).mean(2))


KINDS = {kind.__name__: kind for kind in (Straight, Residual, Branching, Growing, Everywhere, Odd)}


def network(
    kind: str, axes: int, seed: int, dtype: torch.dtype = torch.float32, samples: int = 3, ties: bool = False
) -> tuple[nn.Module, Tensor]:
    """A network with random weights and statistics, and samples whose relevance is spread very differently.

    With `ties`, the second sample is zero but for one corner and the third nothing but zeros: neurons by the hundred
    have exactly the same relevance, until somebody rounds it differently.
    """
    draw = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (KINDS | {"Padded": Padded, "Soft": Soft})[kind](axes, draw).eval()
        x = torch.randn(3, 2, *[SIDE[axes] + draw.randint(0, 2) for _ in range(axes)])
        model(x)
        for module in model.modules():
            if isinstance(module, tuple(NORM.values())):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 2)
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.3)
    x[1] *= 0 if ties else 0.01
    x[1].flatten(1)[:, :3] = torch.tensor([3.0, -2.0, 1.0])
    x[2] *= 0 if ties else 20
    return model.to(dtype), x[:samples].to(dtype)


def target(kind: str, axes: int) -> Any:
    """What of the output is explained: the winning class, or one position of a dense output."""
    return (1, *(SIDE[axes] // 2,) * axes) if kind == "Everywhere" else None


@contextmanager
def followed(below: float) -> Iterator[Counter[str]]:
    """Follow single neurons through layers of any size where at most this share holds relevance; counts what ran."""
    taken: Counter[str] = Counter()

    def counting(module: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            taken[name] += result is not None
            return result

        patch.setattr(module, name, counted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "FEWEST", 0)
        patch.setattr(limits, "NEURONS_BELOW", below)
        patch.setattr(limits, "POSITIONS_BELOW", below)
        for name in ("through_layer", "pass_on"):
            counting(propagation, name, patch)
        for name in ("redistribute", "survivors", "thin"):
            counting(neuron_pruning, name, patch)
        yield taken
