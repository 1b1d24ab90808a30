"""The linear maps of a network: convolutions, linear layers and their like, each with its transpose.

A rule needs no more of a layer than `apply` (x ↦ Wx) and `transpose` (s ↦ Wᵀs), with the layer's own weight or a
modified one in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Weight:
    """A weight W = raw · scale, or its positive (`part` = 1) or negative part (−1); multiplied out when first needed.

    `scale` is the factor of each channel, by BatchNorms after the layer (None: no factor).
    """

    def __init__(self, raw: Tensor, scale: Tensor | None = None, part: int = 0) -> None:
        self.raw, self.scale, self.part = raw, scale, part

    @cached_property
    def full(self) -> Tensor:
        """W, W⁺ or W⁻ as a tensor."""
        whole = self.raw if self.scale is None else self.raw * self.scale
        if self.part == 0:
            return whole
        return whole.clamp(min=0) if self.part > 0 else whole.clamp(max=0)

    def cut(self, part: int) -> Weight:
        """The positive (1) or negative part (−1) of this weight."""
        return Weight(self.full, None, part)


class LinearMap(ABC):
    """x ↦ Wx + b for one call of a layer, W = raw · scale. `bias` broadcasts against the output."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> None:
        self.raw = weight
        self.scale = scale
        self.bias = bias

    @property
    def dtype(self) -> torch.dtype:
        """The precision of W."""
        if self.scale is None or self.scale.dtype == self.raw.dtype:
            return self.raw.dtype
        return torch.promote_types(self.raw.dtype, self.scale.dtype)

    @abstractmethod
    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wx, plus a bias if one is given."""

    @abstractmethod
    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Wᵀs, in the shape of the input `like`."""

    def hand(self, s: Tensor, weight: Tensor, x: Tensor, like: Tensor) -> Tensor:
        """x · Wᵀs: the relevance of the inputs, in the shape of `like`."""
        return self.transpose(s, weight, like) * x

    def ones(self, x: Tensor) -> Tensor:
        """Ones in place of x, for rules that ignore it: one position of its first axis, the batch, stands for all."""
        return x.new_ones(()).expand((1, *x.shape[1:]) if x.dim() > 1 else x.shape)

    def to(self, dtype: torch.dtype) -> LinearMap:
        """The same map in another precision (itself where nothing changes)."""
        if self.dtype == dtype and (self.bias is None or self.bias.dtype == dtype):
            return self
        return self.with_parameters(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    @abstractmethod
    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> LinearMap:
        """The same kind of map with other parameters."""

    def channel_axis(self, dims: int) -> int | None:
        """The axis of the channels, which the map contracts, in an input with `dims` axes; None where it has none."""
        return None

    def cut_weight(self, part: int) -> Weight:
        """W, or its positive (1) or negative part (−1)."""
        return Weight(self.raw, self.scale, part)

    @cached_property
    def whole(self) -> Weight:
        """W."""
        return self.cut_weight(0)

    @cached_property
    def positive(self) -> Weight:
        """W⁺."""
        return self.cut_weight(1)

    @cached_property
    def negative(self) -> Weight:
        """W⁻, the negative part with its sign."""
        return self.cut_weight(-1)

    @property
    def weight(self) -> Tensor:
        """W as a tensor."""
        return self.whole.full

    @cached_property
    def flat(self) -> LinearMap:
        """The map with all weights one."""
        return self.with_parameters(torch.ones_like(self.raw, dtype=self.dtype), None)


class Dense(LinearMap):
    """`F.linear`: (..., in) ↦ (..., out) with a weight (out, in)."""

    def channel_axis(self, dims: int) -> int | None:
        """The last."""
        return dims - 1

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wx + b."""
        return F.linear(x, weight, bias)

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Wᵀs."""
        return s @ weight

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> Dense:
        """A dense layer with these parameters."""
        return Dense(weight, bias)

    def scaled(self, scale: Tensor, shift: Tensor) -> Dense:
        """Fold a per-feature scale and shift into the weight."""
        bias = shift if self.bias is None else self.bias * scale + shift
        scale = scale[:, None]
        return Dense(self.raw, bias, scale if self.scale is None else self.scale * scale)


class ConvolutionForm(NamedTuple):
    """How a convolution reads its input, per axis of the plane; in the order in which torch takes these arguments."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)  # one number stands for all axes
    groups: int = 1


class Convolution(LinearMap):
    """conv1d/2d/3d and their transposed kin, with any stride, padding, dilation and groups."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        form: ConvolutionForm,
        extra: tuple[int, ...] | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__(weight, bias, scale)
        self.form = form
        self.stride, self.padding, self.dilation, self.transposed, _, self.groups = form
        self.extra = extra  # cells that 'same' pads on the far side only (even kernels), last axis first, as F.pad

    def channel_axis(self, dims: int) -> int | None:
        """The one before the plane."""
        return dims - len(self.stride) - 1

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution of x with the weight."""
        if self.extra is not None:
            x = F.pad(x, self.extra)
        return torch.ops.aten.convolution.default(x, weight, None if bias is None else bias.flatten(), *self.form)

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The transposed convolution, which autograd would hand back to the input."""
        if self.extra is not None:
            like = F.pad(like, self.extra)
        back = torch.ops.aten.convolution_backward.default(s, like, weight, None, *self.form, (True, False, False))[0]
        return back if self.extra is None else F.pad(back, tuple(-n for n in self.extra))

    def with_parameters(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> Convolution:
        """A convolution of the same geometry."""
        return Convolution(weight, bias, self.form, self.extra, scale)

    def scaled(self, scale: Tensor, shift: Tensor) -> Convolution:
        """Fold a per-channel scale and shift (a BatchNorm) into the weight."""
        space = (1,) * len(self.stride)
        if self.transposed:  # weight (in, out / groups, *kernel)
            per_group = scale.view(self.groups, 1, -1).expand(-1, self.raw.shape[0] // self.groups, -1)
            channels = per_group.reshape(self.raw.shape[0], -1, *space)
        else:
            channels = scale.view(-1, 1, *space)
        shift = shift.view(-1, *space)
        bias = shift if self.bias is None else self.bias * scale.view(-1, *space) + shift
        return self.with_parameters(self.raw, bias, channels if self.scale is None else self.scale * channels)


class Replayed(LinearMap):
    """Any function that is linear in one tensor and in one constant (`x @ W`, `einsum`, `bmm`), by calling it.

    `call(x, W)` is the function without its bias.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(weight, bias)
        self.call = call

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The function at x, with this weight."""
        return self.call(x, weight) if bias is None else self.call(x, weight) + bias

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The function's vector-Jacobian product with respect to x."""
        with torch.enable_grad():
            leaf = torch.nn.Parameter(torch.zeros_like(like))  # `requires_grad_` is forbidden within `vmap`
            output = self.call(leaf, weight)
        return torch.autograd.grad(output, leaf, s)[0]

    def ones(self, x: Tensor) -> Tensor:
        """Ones in the shape of x: its first axis need not be the batch."""
        return x.new_ones(()).expand(x.shape)

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> Replayed:
        """The same function with another constant."""
        return Replayed(weight, bias, self.call)


def unbiased(map: LinearMap) -> LinearMap:
    """The map without its bias, as differences see it."""
    same = copy(map)
    same.bias = None
    return same


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Convolution:
    """The map of one call of conv1d … conv_transpose3d, from its arguments."""
    transposed = "transpose" in kind
    given = {**dict(zip(_TRANSPOSED if transposed else _CONVOLUTION, args, strict=False)), **kwargs}
    weight, bias = given["weight"], given.get("bias")
    dims = weight.dim() - 2
    stride, dilation = per_axis(given.get("stride", 1), dims), per_axis(given.get("dilation", 1), dims)
    extra, padding = None, given.get("padding", 0)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        total = total if padding == "same" else [0] * dims
        padding = tuple(t // 2 for t in total)
        if any(t % 2 for t in total):
            extra = tuple(n for t in reversed(total) for n in (0, t % 2))
    padding, output_padding = per_axis(padding, dims), per_axis(given.get("output_padding", 0), dims)
    form = ConvolutionForm(stride, padding, dilation, transposed, output_padding, given.get("groups", 1))
    return Convolution(weight, None if bias is None else bias.view(-1, *(1,) * dims), form, extra)


def per_axis(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """An argument of a convolution or pool for each of its axes; torch takes one number for all."""
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)
