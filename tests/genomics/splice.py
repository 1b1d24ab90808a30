"""A real splice-site network (OpenSpliceAI, 2,000 bases of context), as a user would write it down."""

from __future__ import annotations

from torch import Tensor, nn

CONTEXT = 1000
"""Bases that are cropped at each end."""


class Unit(nn.Module):
    """x + conv2(f(bn2(conv1(f(bn1(x))))))."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        reach = dilation * (width - 1) // 2
        self.batchnorm1, self.batchnorm2 = nn.BatchNorm1d(32), nn.BatchNorm1d(32)
        self.conv1 = nn.Conv1d(32, 32, width, dilation=dilation, padding=reach)
        self.conv2 = nn.Conv1d(32, 32, width, dilation=dilation, padding=reach)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act(self.batchnorm2(self.conv1(self.act(self.batchnorm1(x))))))


class Skip(nn.Module):
    """y + a 1 × 1 convolution of x."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 1)


class SpliceNetwork(nn.Module):
    """(batch, 4, length + 2,000) to logits (batch, 3, length): neither, acceptor, donor."""

    def __init__(self) -> None:
        super().__init__()
        self.initial_conv, self.initial_skip = nn.Conv1d(4, 32, 1), Skip()
        units: list[nn.Module] = []
        for width, dilation in ((11, 1), (11, 4), (21, 10)):
            units += [*(Unit(width, dilation) for _ in range(4)), Skip()]
        self.residual_units = nn.ModuleList(units)
        self.final_conv = nn.Conv1d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.initial_conv(x)
        y = self.initial_skip.conv(x)
        for unit in self.residual_units:
            if isinstance(unit, Skip):
                y = y + unit.conv(x)
            else:
                x = unit(x)
        return self.final_conv(y[:, :, CONTEXT:-CONTEXT])


def build() -> nn.Module:
    return SpliceNetwork()
