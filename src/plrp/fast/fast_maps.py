"""Linear maps at less cost: derived weights, channels last, inputs of mostly zeros, few live outputs, one channel."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch
from torch import Tensor

from plrp.tape.maps import Convolution, ConvolutionForm, Dense, LinearMap, Weight

from . import limits
from .channels_last import channels_last
from .weight_cache import FastWeight
from .whole_tensors import hand_one_by_one


def fast_map(plain: LinearMap, last: bool = False) -> LinearMap:
    """The same map at less cost, with weights for tensors with channels last if `last`; itself where there is none."""
    kind = FastConvolution if type(plain) is Convolution else FastDense if type(plain) is Dense else None
    if kind is None:
        return plain
    fast: _DerivedWeights = kind.__new__(kind)
    derived = ("whole", "positive", "negative", "flat")
    fast.__dict__.update((name, value) for name, value in vars(plain).items() if name not in derived)
    fast.last = last
    return fast


class _DerivedWeights(LinearMap):
    """A map whose weights are made by the compiled loops and remembered from one explanation to the next."""

    last = False

    def cut_weight(self, part: int) -> Weight:
        """W, W⁺ or W⁻."""
        return FastWeight(self.raw, self.scale, part, cached=True, last=self.last)

    def hand(self, s: Tensor, weight: Tensor, x: Tensor, like: Tensor) -> Tensor:
        """x · Wᵀs, in the memory of Wᵀs."""
        return self.transpose(s, weight, like).mul_(x)


class FastDense(_DerivedWeights, Dense):
    """A linear layer that hands relevance down only from the tokens, or the outputs, that hold any.

    Such as one output above the logits, the class token in the last block, values where queries and keys get nothing.
    """

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Wᵀs."""
        tokens = s.reshape(-1, s.shape[-1])
        most = limits.SOME_OUTPUTS if len(tokens) < limits.MANY_TOKENS else limits.SOME_TOKENS
        if (live := _some(tokens, limits.SOME_TOKENS)) is not None:
            received = tokens.new_zeros(len(tokens), weight.shape[1])
            received[live] = tokens[live] @ weight
        elif (live := _some(tokens.T, most)) is not None:
            some = [
                tokens[:, rows] @ weight[rows]
                for rows in live.nonzero()[:, 0].split(max(1, limits.COPIED // weight.shape[1]))
            ]
            received = sum(some[1:], some[0])
        else:
            return super().transpose(s, weight, like)
        return received.view(*s.shape[:-1], weight.shape[1])


def _some(rows: Tensor, most: float) -> Tensor | None:
    """Which rows are not all zero; None if that is `most` of them or more. A few columns mostly suffice to tell."""
    few = rows[:, :: 1 + rows.shape[1] // limits.GLANCE]
    for looked_at in (few, rows):
        live = looked_at.ne(0).any(1)
        if int(live.sum()) >= most * live.numel():
            return None
    return live


class FastConvolution(_DerivedWeights, Convolution):
    """A convolution; torch knows channels last of images only, so such sequences go as images of one line."""

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution of x with the weight."""
        if self.extra is None and x.dim() == 3 and channels_last(x):
            return self._of_images.apply(x.unsqueeze(2), weight.unsqueeze(2), bias).squeeze(2)
        return super().apply(x, weight, bias)

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The transposed convolution."""
        if self.extra is None and s.dim() == 3 and channels_last(s):
            return self._of_images.transpose(s.unsqueeze(2), weight.unsqueeze(2), like.unsqueeze(2)).squeeze(2)
        return super().transpose(s, weight, like)

    def hand(self, s: Tensor, weight: Tensor, x: Tensor, like: Tensor) -> Tensor:
        """x · Wᵀs; where x is mostly zeros, for the others alone."""
        plain = self.stride == self.dilation == (1,) and self.groups == 1 and not self.transposed and self.extra is None
        received = hand_one_by_one(s, weight, x, self.padding[0]) if plain else None
        return super().hand(s, weight, x, like) if received is None else received

    @cached_property
    def _of_images(self) -> Convolution:
        stride, padding, dilation, transposed, output_padding, groups = self.form
        axes = (1, *stride), (0, *padding), (1, *dilation), transposed, (0, *output_padding)
        return Convolution(self.raw.unsqueeze(2), None, ConvolutionForm(*axes, groups))

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
        kernel = tuple(one.raw.shape[2:])
        return _read_by_each(tuple(shape[1:]), kernel, one.form, one.extra, one.dtype, one.raw.device)

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> OneChannel:
        """The same geometry with another (constant) weight."""
        return OneChannel(self.single.with_parameters(weight, bias))


@lru_cache(maxsize=64)
def _read_by_each(
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    form: ConvolutionForm,
    extra: tuple[int, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    ones = torch.ones(1, 1, *kernel, dtype=dtype, device=device)
    single = Convolution(ones, None, form, extra)
    return OneChannel(single).apply(torch.ones(1, *shape, dtype=dtype, device=device), ones)
