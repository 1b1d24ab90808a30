"""Random layers and random sparsity, and relevance of few neurons written down by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from plrp.fast import native
from plrp.fast.neuron_layers import Geometry
from plrp.fast.neurons import Neurons

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
PATTERNS = ("empty", "one", "all", "position", "few", "half")
BODIES = ("compiled", "torch float32", "torch float64")


@contextmanager
def body(name: str) -> Iterator[torch.dtype]:
    """Let one of a function's two bodies run; gives the precision to run it in. Skips where nothing was compiled."""
    if name == "compiled":
        if not native.available():
            pytest.skip("no compiled loops here")
        yield torch.float32
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_native", None)
        yield torch.float64 if name.endswith("64") else torch.float32


@dataclass(frozen=True)
class Layer:
    """A convolution with its input, and which of its outputs hold relevance; all in float64."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    relevance: Tensor  # (samples, outputs, *plane)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def conv(self, x: Tensor, weight: Tensor) -> Tensor:
        """torch's own dense convolution."""
        found: Tensor = CONV[len(self.stride)](x, weight, None, self.stride, self.padding, self.dilation, self.groups)
        return found

    def transposed(self, s: Tensor, weight: Tensor) -> Tensor:
        """Σ_k w_jk s_k: what autograd hands back."""
        x = torch.zeros_like(self.x).requires_grad_()
        return torch.autograd.grad(self.conv(x, weight), x, s)[0]

    @property
    def geometry(self) -> Geometry:
        kernel = tuple(self.weight.shape[2:])
        return Geometry(
            self.x.shape, self.relevance.shape, kernel, self.stride, self.padding, self.dilation, self.groups
        )


def relevance(shape: tuple[int, ...], pattern: str, generator: torch.Generator) -> Tensor:
    """Signed relevance at a share of neurons; eighths, so that ties occur and float32 holds them exactly."""
    values = torch.randint(1, 64, shape, generator=generator, dtype=torch.float64) / 8
    values *= 1 - 2.0 * torch.randint(0, 2, shape, generator=generator)
    if pattern == "empty" or not values.numel():
        return torch.zeros(shape, dtype=torch.float64)
    draw = torch.rand(shape, generator=generator)
    keep = {
        "all": torch.ones(shape, dtype=torch.bool),
        "one": torch.arange(values.numel()).view(shape) == int(draw.argmax()),
        "position": (torch.rand(shape[0], 1, *shape[2:], generator=generator) < 0.15).expand(shape),
        "few": draw < 0.05,
        "half": draw < 0.5,
    }[pattern]
    return torch.where(keep, values, 0.0)


@st.composite
def layers(draw: st.DrawFn, nonnegative: bool = False, whole: bool = False, groups: int = 3) -> Layer:
    """Any convolution; `nonnegative`: inputs and weights ≥ 0; `whole`: all numbers small integers."""
    axes = draw(st.integers(1, 3))
    samples, grouped = draw(st.integers(0, 3)), draw(st.integers(1, groups))
    inputs, outputs = draw(st.sampled_from([1, 2, 3, 5, 16, 21, 35])), draw(st.integers(1, 6))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * axes))
    stride = draw(st.tuples(*[st.integers(1, 3)] * axes))
    padding = draw(st.tuples(*[st.integers(0, 2)] * axes))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * axes))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    most = {1: 24, 2: 8, 3: 4}[axes]
    plane = tuple(draw(st.integers(max(1, r - 2 * p), most + r)) for r, p in zip(reach, padding, strict=True))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def numbers(*shape: int) -> Tensor:
        found = torch.randn(*shape, generator=generator).double()
        found = (2 * found).round() if whole else found
        return found.abs() if nonnegative else found

    x, weight = numbers(samples, inputs * grouped, *plane), numbers(outputs * grouped, inputs, *kernel)
    layer = Layer(x, weight, numbers(outputs * grouped), x, stride, padding, dilation, grouped)
    above = layer.conv(x, weight).shape
    held = relevance(above, draw(st.sampled_from(PATTERNS)), generator)
    return Layer(x, weight, layer.bias, held, stride, padding, dilation, grouped)


def neurons(held: Tensor, dtype: torch.dtype = torch.float64) -> Neurons:
    """The non-zero neurons of a tensor, position by position."""
    plane = held.shape[2:].numel()
    positions, begins, channels, values = [], [0], [], []
    for n, sample in enumerate(held.flatten(2).tolist() if held.numel() else []):
        for place in range(plane):
            column = [(c, row[place]) for c, row in enumerate(sample) if row[place] != 0]
            if column:
                positions.append(n * plane + place)
                channels += [c for c, _ in column]
                values += [v for _, v in column]
                begins.append(len(values))
    return Neurons(
        held.shape,
        torch.tensor(positions, dtype=torch.int64),
        torch.tensor(begins, dtype=torch.int64),
        torch.tensor(channels, dtype=torch.int32),
        torch.tensor(values, dtype=dtype),
    )


def assert_near(found: Tensor, expected: Tensor, magnitude: Tensor) -> None:
    """Equal to the rounding of sums whose terms have this magnitude."""
    assert found.shape == expected.shape
    unit = 1e-5 if found.dtype == torch.float32 else 1e-12
    off = (found.double() - expected).abs() - unit * magnitude.abs()
    assert not off.numel() or float(off.max()) <= unit * 1e-3, f"off by {float(off.max())}"
