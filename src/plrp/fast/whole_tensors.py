"""Passes over whole tensors: the arithmetic between convolutions in one pass, and channels last where that is faster.

Large maps are bound by memory, so what torch does step by step, one pass over the memory each, is done in one. The
formulas stand in `rules.py` and `passing.py`, whose results these equal to the last bit. Each function returns None
where the compiled loops cannot take its tensors.

Convolutions are faster on tensors with their channels last (`torch.channels_last`, and its like for sequences).
Activations are as the model left them; relevance may have its channels last, and the functions here take such relevance
beside ordinary activations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native


def channels_last(tensor: Tensor) -> bool:
    """Whether a tensor has its channels last in memory, and is not contiguous in the ordinary sense as well."""
    if tensor.is_contiguous():
        return False
    if tensor.dim() == 4:  # torch knows these itself
        return tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.dim() > 2 and tensor.movedim(1, -1).is_contiguous()


def empty_last(shape: torch.Size, like: Tensor) -> Tensor:
    """A tensor of this shape with its channels last."""
    if len(shape) == 4:
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return like.new_empty(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def turned(tensor: Tensor) -> Tensor:
    """The tensor with its channels last."""
    if not native.available(tensor):
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    found = empty_last(tensor.shape, tensor)
    native.call("turn", tensor, found, *tensor.shape[:2], tensor.shape[2:].numel(), native.threads())
    return found


def chosen(tensor: Tensor, samples: Tensor) -> Tensor:
    """Some samples of a tensor, laid out as it is."""
    if channels_last(tensor):
        return tensor.movedim(1, -1).index_select(0, samples).movedim(-1, 1)
    return tensor.index_select(0, samples)


def takes(*tensors: Tensor) -> bool:
    """Whether the compiled loops can take these tensors, with channels last or not, but all alike."""
    if not native.available() or not all(t.dtype is torch.float32 and t.is_cpu for t in tensors):
        return False
    return all(t.is_contiguous() for t in tensors) or all(channels_last(t) for t in tensors)


def divided(relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool, out: Tensor | None = None) -> Tensor | None:
    """R / (d + ε sign d), for ε > 0; `out` may be d itself."""
    if relevance.shape != d.shape or not takes(relevance, d):
        return None
    out = torch.empty_like(d) if out is None else out
    native.call("divide", relevance, d, d.numel(), float(epsilon), one_sign, out, native.threads())
    return out


def split(relevance: Tensor, a: Tensor, b: Tensor, epsilon: float, one_sign: bool) -> tuple[Tensor, Tensor] | None:
    """a R / (z + ε sign z) and b R / (z + ε sign z), z = a + b; laid out as the relevance."""
    last = channels_last(relevance)
    if not native.available(a, b) or not takes(relevance) or not relevance.shape == a.shape == b.shape:
        return None
    if relevance.dim() < 2 or epsilon == 0:
        return None
    found = torch.empty_like(relevance), torch.empty_like(relevance)
    sizes = a.shape[0], a.shape[1], a.shape[2:].numel()
    native.call("split", relevance, a, b, *found, *sizes, last, float(epsilon), one_sign, native.threads())
    return found


MANY_ZEROS = 0.3  # inputs of which at most this share is not zero are handed to one by one,
FEW_INPUTS = 16  # if they are of few channels: the weights are read again for each


def pulled(s: Tensor, weight: Tensor, x: Tensor, padding: int) -> Tensor | None:
    """x_j Σ_k w_jk s_k of a convolution of sequences with stride 1, for an x of mostly zeros: one-hot letters."""
    if x.dim() != 3 or x.shape[1] > FEW_INPUTS or x.shape[0] != s.shape[0] or not takes(s, x) or not channels_last(s):
        return None
    if x.count_nonzero() > MANY_ZEROS * x.numel():
        return None
    outputs, inputs, taps = weight.shape
    turned_weight = weight.flip(2).permute(1, 2, 0).contiguous()
    found = torch.empty_like(x)
    sizes = x.shape[0], x.shape[2], s.shape[2], inputs, outputs, taps, taps - 1 - padding
    native.call("pull", s, turned_weight, x, found, *sizes, native.threads())
    return found


def settled(relevance: Tensor, winners: Tensor, shape: torch.Size) -> Tensor | None:
    """The relevance of a max pool with its channels last, handed to known winners (places in the plane) of `shape`."""
    if not channels_last(relevance) or not takes(relevance) or not winners.is_contiguous():
        return None
    taken = empty_last(shape, relevance).zero_()
    sizes = *relevance.shape[:2], relevance.shape[2:].numel(), shape[2:].numel()
    native.call("settle", relevance, winners, taken, *sizes, native.threads())
    return taken
