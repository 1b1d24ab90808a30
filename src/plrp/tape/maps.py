"""The linear maps of a network: convolutions, linear layers and their like, each with its transpose.

A rule needs no more of a layer than `apply` (x ↦ Wx) and `transpose` (s ↦ Wᵀs), with the layer's own weight or a
modified one in its place.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plrp.fast.neurons import Geometry, Weight
from plrp.fast.switch import fast
from plrp.fast.whole_tensors import channels_last, pulled


class LinearMap(ABC):
    """x ↦ Wx + b for one call of a layer. `bias` broadcasts against the output; both are in the dtype of the walk.

    W is `raw · scale`: the layer's parameter, and what BatchNorms after it scale its channels by (None: nothing). It is
    multiplied out when it is first needed, which for most rules is never.
    """

    fresh = False  # whether what `apply` returns is nobody else's
    lasting = True  # whether W⁺ and its like are kept for the next explanation

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
        """x · Wᵀs: what the inputs, in the shape of `like`, receive."""
        return self.transpose(s, weight, like).mul_(x)

    def to(self, dtype: torch.dtype) -> LinearMap:
        """The same map in another precision (itself where nothing changes)."""
        if self.dtype == dtype and (self.bias is None or self.bias.dtype == dtype):
            return self
        return self.with_parameters(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    @abstractmethod
    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> LinearMap:
        """The same kind of map with other parameters."""

    def scaled(self, scale: Tensor, shift: Tensor) -> LinearMap | None:
        """The map followed by `scale · y + shift` per output channel, or None where channels are not its last word."""
        return None

    @cached_property
    def whole(self) -> Weight:
        """W, to be multiplied out when it is needed."""
        return Weight(self.raw, self.scale, lasting=self.lasting)

    @cached_property
    def positive(self) -> Weight:
        """W⁺, likewise."""
        return Weight(self.raw, self.scale, 1, lasting=self.lasting)

    @cached_property
    def negative(self) -> Weight:
        """W⁻, the negative part with its sign, likewise."""
        return Weight(self.raw, self.scale, -1, lasting=self.lasting)

    @cached_property
    def private(self) -> LinearMap:
        """The same map with W⁺ and its like of its own, for rules that are not ours: they may write into them."""
        found = copy.copy(self)
        for made in ("whole", "positive", "negative", "flat"):
            found.__dict__.pop(made, None)
        found.lasting = False
        return found

    @property
    def weight(self) -> Tensor:
        """W."""
        return self.whole.full

    def _times(self, scale: Tensor) -> Tensor:
        """One more scale on top of those there are."""
        return scale if self.scale is None else self.scale * scale

    @cached_property
    def flat(self) -> LinearMap:
        """The map with all weights one."""
        return self.with_parameters(torch.ones_like(self.raw, dtype=self.dtype), None)


class Dense(LinearMap):
    """`F.linear`: (..., in) ↦ (..., out) with a weight (out, in)."""

    fresh = True

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wx + b."""
        return F.linear(x, weight, bias)

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Wᵀs, from the outputs that hold any relevance where these are few (one, above the logits)."""
        if fast() and s.dim() == 2:
            live = s.ne(0).any(0)
            if live.sum() * 4 < live.numel():
                return s[:, live] @ weight[live]
        return s @ weight

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> Dense:
        """A dense layer with these parameters."""
        return Dense(weight, bias)

    def scaled(self, scale: Tensor, shift: Tensor) -> Dense:
        """Fold a per-feature scale and shift into the weight."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return Dense(self.raw, bias, self._times(scale[:, None]))


class Convolution(LinearMap):
    """conv1d/2d/3d and their transposed kin, with any stride, padding, dilation and groups."""

    fresh = True

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        transposed: bool = False,
        output_padding: tuple[int, ...] | None = None,
        extra: tuple[int, ...] | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__(weight, bias, scale)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.transposed = transposed
        self.output_padding = output_padding or (0,) * len(stride)
        self.extra = extra  # cells that 'same' pads on the far side only (even kernels), last axis first, as F.pad

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution of x with the weight."""
        if self.extra is not None:
            x = F.pad(x, self.extra)
        if x.dim() == 3 and channels_last(x):  # torch knows channels last of images: those of one line
            return self._of_images.apply(x.unsqueeze(2), weight.unsqueeze(2), bias).squeeze(2)
        return torch.ops.aten.convolution.default(
            x,
            weight,
            None if bias is None else bias.flatten(),
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The transposed convolution: what autograd would hand back to the input."""
        if self.extra is not None:
            like = F.pad(like, self.extra)
        if s.dim() == 3 and channels_last(s):
            back = self._of_images.transpose(s.unsqueeze(2), weight.unsqueeze(2), like.unsqueeze(2)).squeeze(2)
            return back if self.extra is None else F.pad(back, tuple(-n for n in self.extra))
        back = torch.ops.aten.convolution_backward.default(
            s,
            like,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
            (True, False, False),
        )[0]
        return back if self.extra is None else F.pad(back, tuple(-n for n in self.extra))

    def hand(self, s: Tensor, weight: Tensor, x: Tensor, like: Tensor) -> Tensor:
        """x · Wᵀs; where x is mostly zeros, for the others alone."""
        plain = self.stride == self.dilation == (1,) and self.groups == 1 and not self.transposed and self.extra is None
        found = pulled(s, weight, x, self.padding[0]) if plain else None
        return super().hand(s, weight, x, like) if found is None else found

    @cached_property
    def _of_images(self) -> Convolution:
        """A convolution of sequences as one of images of one line, without what it pads on one side only."""
        return Convolution(
            self.raw.unsqueeze(2),
            None,
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            dilation=(1, *self.dilation),
            groups=self.groups,
            transposed=self.transposed,
            output_padding=(0, *self.output_padding),
        )

    def with_parameters(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> Convolution:
        """A convolution of the same geometry."""
        return Convolution(
            weight,
            bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            transposed=self.transposed,
            output_padding=self.output_padding,
            extra=self.extra,
            scale=scale,
        )

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
        return self.with_parameters(self.raw, bias, self._times(channels))

    def geometry(self, inputs: torch.Size, outputs: torch.Size) -> Geometry | None:
        """Where its outputs read, for propagation that follows single neurons; None where there is no such."""
        if self.transposed or self.extra is not None:
            return None
        kernel = tuple(self.raw.shape[2:])
        return Geometry(inputs, outputs, kernel, self.stride, self.padding, self.dilation, self.groups)

    @cached_property
    def flat(self) -> LinearMap:
        """The convolution with all weights one, in one channel where there are no groups."""
        if self.groups > 1:
            return super().flat
        ones = torch.ones(1, 1, *self.raw.shape[2:], dtype=self.dtype, device=self.raw.device)
        return OneChannel(self.with_parameters(ones, None))


class OneChannel(LinearMap):
    """A convolution whose weights are all equal: channels are summed first, every input channel receives the same."""

    def __init__(self, single: Convolution) -> None:
        super().__init__(single.weight, None)
        self.single = single

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wx, with one output channel that stands for all of them."""
        assert bias is None
        return self.single.apply(x.sum(1, keepdim=True), weight)

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Wᵀs, the same for every input channel."""
        return self.single.transpose(s.sum(1, keepdim=True), weight, like[:, :1]).expand_as(like)

    def of_ones(self, shape: torch.Size) -> Tensor:
        """W1 for an input of all ones: how many inputs each output reads, which depends on nothing but shapes."""
        one = self.single
        form = tuple(one.raw.shape[2:]), one.stride, one.padding, one.dilation, one.output_padding, one.extra
        return _read_by_each(tuple(shape[1:]), *form, one.transposed, one.dtype, one.raw.device)

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> OneChannel:
        """The same geometry with another (constant) weight."""
        return OneChannel(self.single.with_parameters(weight, bias))


@lru_cache(maxsize=64)
def _read_by_each(
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    extra: tuple[int, ...] | None,
    transposed: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    ones = torch.ones(1, 1, *kernel, dtype=dtype, device=device)
    single = Convolution(
        ones,
        None,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=1,
        transposed=transposed,
        output_padding=output_padding,
        extra=extra,
    )
    return OneChannel(single).apply(torch.ones(1, *shape, dtype=dtype, device=device), ones)


class Replayed(LinearMap):
    """Any function that is linear in one tensor and in one constant (`x @ W`, `einsum`, `bmm`), by calling it again.

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
            leaf = torch.zeros_like(like).requires_grad_()
            output = self.call(leaf, weight)
        return torch.autograd.grad(output, leaf, s)[0]

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> Replayed:
        """The same function with another constant."""
        return Replayed(weight, bias, self.call)


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Convolution:
    """The map of one call of conv1d … conv_transpose3d, from its arguments."""
    transposed = "transpose" in kind
    given = {**dict(zip(_TRANSPOSED if transposed else _CONVOLUTION, args, strict=False)), **kwargs}
    weight, bias = given["weight"], given.get("bias")
    dims = weight.dim() - 2
    stride, dilation = _per_axis(given.get("stride", 1), dims), _per_axis(given.get("dilation", 1), dims)
    extra, padding = None, given.get("padding", 0)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        total = total if padding == "same" else [0] * dims
        padding = tuple(t // 2 for t in total)
        if any(t % 2 for t in total):
            extra = tuple(n for t in reversed(total) for n in (0, t % 2))
    return Convolution(
        weight,
        None if bias is None else bias.view(-1, *(1,) * dims),
        stride=stride,
        padding=_per_axis(padding, dims),
        dilation=dilation,
        groups=given.get("groups", 1),
        transposed=transposed,
        output_padding=_per_axis(given.get("output_padding", 0), dims),
        extra=extra,
    )


def _per_axis(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    if value.__class__ is tuple and len(value) == dims:
        return value
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)
