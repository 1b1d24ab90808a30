"""Tensors with their channels last in memory, on which convolutions are faster.

Torch knows them for images (`torch.channels_last`); here are their like for sequences. Activations are as the model
left them; relevance may have its channels last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native
from .native.signatures import last_in_memory


def channels_last(tensor: Tensor) -> bool:
    """Whether a tensor has its channels last in memory, and is not contiguous in the ordinary sense as well."""
    return not tensor.is_contiguous() and tensor.dim() > 2 and last_in_memory(tensor)


def empty_last(shape: torch.Size, like: Tensor) -> Tensor:
    """A tensor of this shape with its channels last."""
    if len(shape) == 4:
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return like.new_empty(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def to_channels_last(tensor: Tensor) -> Tensor:
    """The tensor with its channels last."""
    if not native.available(tensor):
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    laid_out = empty_last(tensor.shape, tensor)
    native.call("to_channels_last", tensor, laid_out, *tensor.shape[:2], tensor.shape[2:].numel(), native.threads())
    return laid_out


def select_samples(tensor: Tensor, samples: Tensor) -> Tensor:
    """Some samples of a tensor, laid out as it is."""
    if channels_last(tensor):
        return tensor.movedim(1, -1).index_select(0, samples).movedim(-1, 1)
    return tensor.index_select(0, samples)


def ordinary(tensor: Tensor) -> Tensor:
    """The tensor laid out as activations are."""
    return tensor.contiguous() if channels_last(tensor) else tensor
