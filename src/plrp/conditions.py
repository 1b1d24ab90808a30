"""Conditions on the relevance that layers hand down, as in concept relevance propagation.

The method is that of Achtibat et al. (2022). At the output of a conditioned layer a mask chooses the neurons that hand
their relevance down, or a projection takes the place of all of it. A walk is linear in the relevance it starts from, so
the explanations under a partition of a layer's channels add up to the one without a condition. Pruning is not linear:
under a condition every neuron keeps the factor r̂_j / r_j of the walk without the condition (`passage.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .passing import transposed
from .spelling import nearest
from .tape.difference import DifferenceTrace
from .tape.operations import Family
from .tape.trace import Trace
from .tape.values import Op, Value
from .targets import Start, ranges

__all__ = ["Condition", "Projection"]

Condition = Mapping[str, Any]
"""By layer: channels, positions (tuples), a boolean mask, a callable (activation, gradient, relevance) → mask, or a
`Projection`."""


@dataclass(frozen=True)
class Projection:
    """A condition that replaces a layer's relevance a ⊙ c by its part in a subspace of the channels, a ⊙ U Uᵀ c.

    a are the activations that the next layers read, c their context (`contexts.py`, Chormai et al. 2022). basis: U,
    (channels, dimensions), with orthonormal columns. residual: the rest instead, so that both add up to a ⊙ c. at: a
    position, outside which nothing passes.
    """

    basis: Tensor
    residual: bool = False
    at: tuple[int, ...] | None = None
    label: str = "a subspace"

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", u := self.basis.detach().clone())  # the user may change theirs
        if u.dim() != 2 or not torch.allclose(u.mT @ u, torch.eye(u.shape[1]).to(u), atol=1e-4):
            raise ValueError(
                "A basis is (channels, dimensions) with orthonormal columns: try torch.linalg.qr(basis).Q."
            )


# --- conditions as users write them -----------------------------------------------------------------------------------


def checked(condition: Any, trace: Trace | None = None, only_through: bool = False) -> dict[str, Any] | None:
    """A copy of a condition, whose layers the trace knows; `mask_of` checks the part that concerns one layer."""
    if condition is None and only_through:
        raise ValueError("only_through needs a condition: name the layer to go through.")
    if condition is None:
        return None
    if not isinstance(condition, Mapping):
        hint = ": Trace.sweep takes several conditions at once" if isinstance(condition, list | tuple) else ""
        raise TypeError(
            "condition is a dict from layers to the channels that may pass, such as {'layer3.0.conv2': [12, 40]}, got "
            f"{type(condition).__name__}{hint}."
        )
    if not condition:
        raise ValueError("condition names no layer: name one, such as {'layer3.0.conv2': [12, 40]}, or leave it out.")
    if isinstance(trace, DifferenceTrace) and any(map(callable, condition.values())):
        raise ValueError("A callable condition reads activations, which differences have none of: name the channels.")
    names = list(condition) if trace is None else [op.name for op in trace.layers]
    for name in condition:
        if name not in names:
            known = trace is not None and any(op.name == name for op in trace.ops)
            what = f"'{name}' is no conv or linear layer" if known else f"The model has no layer '{name}'"
            raise ValueError(f"{what}: conditions hold at the outputs of such layers{nearest(name, names)}.")
    return {name: _copied(wanted) for name, wanted in condition.items()}


def _copied(wanted: Any) -> Any:
    """A copy, which the user's later changes do not reach."""
    if isinstance(wanted, Tensor):
        return wanted.clone()
    return list(wanted) if isinstance(wanted, Iterator | list) else copy(wanted)


def in_words(condition: Condition) -> str:
    """A condition in words."""
    return ", ".join(f"{name} ({label(wanted)})" for name, wanted in condition.items())


def storable(condition: Condition | None) -> Condition | None:
    """The condition with its callables replaced by their names, since functions cannot be stored."""
    if condition is None:
        return None
    return {name: label(wanted) if callable(wanted) else wanted for name, wanted in condition.items()}


def label(wanted: Any) -> str:
    """A condition on one layer in words."""
    if isinstance(wanted, Projection):
        return wanted.label
    if callable(wanted):
        name = getattr(wanted, "__name__", type(wanted).__name__)
        return "a callable" if name == "<lambda>" else name
    if isinstance(wanted, str):  # of a stored explanation
        return wanted
    items = wanted.tolist() if isinstance(wanted, Tensor | np.ndarray) else wanted
    items = list(items) if isinstance(items, Iterable) else [items]
    if isinstance(items[0], bool | list):
        return "a mask"
    what = "positions" if isinstance(items[0], tuple) else "channels"
    return f"{what} {', '.join(map(str, items[:6]))}{' …' * (len(items) > 6)}"


def channel_axis(op: Op) -> int:
    """The axis of the channels in a layer's output: the one before the plane of a convolution, else the last."""
    assert op.map is not None
    dims = len(op.output.shape)
    axis = op.map.channel_axis(dims)
    return dims - 1 if axis is None else axis


def keeps_channels(op: Op, below: Value, axis: int) -> bool:
    """Whether an operation leaves every channel of its input to itself: activations, norms, gates, and pools."""
    above = op.output.shape
    if op.family in (Family.PASS, Family.OFFSET, Family.AFFINE, Family.GATE):
        return below.shape == above
    return "pool" in op.kind and len(below.shape) == len(above) and below.shape[axis] == above[axis]


def by_channel(x: Tensor, op: Op) -> Tensor:
    """A view of a layer's output, or of a tensor with its channels, as (batch, channels, *positions)."""
    samples, axis = op.output.samples, channel_axis(op)
    if samples.whole or (samples.batch > 1 and not samples.in_order):
        raise ValueError(f"The output of layer '{op.name}' does not hold one sample after the other: leave it out.")
    if len(x) != samples.batch:  # (batch · windows, …)
        x, axis = x.unflatten(0, (samples.batch, -1)), axis + 1
    return x.movedim(axis, 1) if x.dim() > 2 else x[..., None]


def mask_of(op: Op, wanted: Any, part: slice | None = None) -> Tensor:
    """The boolean mask of a layer's output; `part`: the explained samples of a larger batch."""
    what = f"condition['{op.name}']"
    if not isinstance(wanted, Tensor):
        wanted = [wanted] if hasattr(wanted, "__index__") and not isinstance(wanted, bool) else wanted
        if isinstance(wanted, str) or not isinstance(wanted, Iterable):
            kind = "text" if isinstance(wanted, str) else f"a {type(wanted).__name__}"
            raise TypeError(f"{what} is {kind}: give channels, positions, a boolean mask or a callable.")
        items = list(wanted)
        if items and all(isinstance(one, tuple) for one in items):
            return _of_positions(op, items)
        try:
            wanted = torch.as_tensor(np.asarray(items))
        except (TypeError, ValueError):
            raise TypeError(
                f"{what} mixes channels (whole numbers) with something else: give either channels, or positions "
                "(tuples), or a boolean mask."
            ) from None
    if wanted.numel() == 0:
        raise ValueError(
            f"{what} is empty, so that nothing passes '{op.name}': name a channel. (To see what goes around a layer, "
            "give a mask of False.)"
        )
    if wanted.dtype == torch.bool:
        return _of_mask(op, wanted, part)
    if wanted.is_floating_point() or wanted.is_complex():
        raise TypeError(f"{what} holds {wanted.dtype} values: a mask is boolean, channels are integers.")
    if wanted.dim() > 1:
        raise ValueError(f"{what} has shape {tuple(wanted.shape)}: channels are one list, a mask is boolean.")
    return _of_channels(op, wanted.flatten().tolist())


def _of_channels(op: Op, channels: Sequence[int]) -> Tensor:
    size = op.output.shape[channel_axis(op)]
    for channel in channels:
        if not -size <= channel < size:
            raise ValueError(f"There is no channel {channel} in '{op.name}': it has {size}, 0…{size - 1}.")
    keep = torch.zeros(size, dtype=torch.bool, device=op.output.data.device)
    keep[list(channels)] = True
    return _of_mask(op, keep, None)


def _of_positions(op: Op, positions: Sequence[tuple[int, ...]]) -> Tensor:
    shape, samples, channels = op.output.shape, op.output.samples, channel_axis(op)
    apart = samples.whole or samples.ids is None
    axes = [a for a in range(len(shape)) if a != channels and (samples.whole or a != samples.axis)]
    if not apart or not axes:
        raise ValueError(
            f"The output of '{op.name}', {tuple(shape)}, has no positions beside the batch and its channels: give "
            "channels, or a boolean mask in its shape."
        )
    keep = torch.zeros(shape, dtype=torch.bool, device=op.output.data.device)
    by_position, sizes = keep.movedim(axes, list(range(len(axes)))), [shape[a] for a in axes]
    for position in positions:
        fits = len(position) == len(axes) and all(hasattr(i, "__index__") for i in position)
        if not fits or not all(-n <= i < n for i, n in zip(position, sizes, strict=True)):
            places = f"positions are ({ranges(sizes)})"
            raise ValueError(f"There is no position {position} in the output of '{op.name}': {places}.")
        by_position[tuple(map(int, position))] = True
    return keep


def _of_mask(op: Op, mask: Tensor, part: slice | None) -> Tensor:
    shape, axis = op.output.shape, channel_axis(op)
    mask, given = mask.to(op.output.data.device), tuple(mask.shape)
    if part is not None and mask.dim() == len(shape) > 1 and len(mask) > 1:
        mask = mask[part]
    if mask.dim() == 1:
        mask = mask.view(-1, *(1,) * (len(shape) - axis - 1))
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    if len(given) not in (1, len(shape) - 1, len(shape)) or any(have not in (1, size) for have, size in pairs):
        raise ValueError(
            f"The mask of '{op.name}' has shape {given}: give one in the shape of the layer's output, {tuple(shape)}, "
            f"in that of one sample, or a vector of its {shape[axis]} channels."
        )
    return mask


# --- gradients of the score -------------------------------------------------------------------------------------------


def gradients(start: Start, values: Sequence[Value]) -> dict[int, Tensor]:
    """The gradient of the score with respect to some tensors of the tape, by the id of their values."""
    wanted, slopes = {id(v) for v in values}, dict[int, Tensor]()
    cotangents = {id(start.value): start.seed}
    for op in reversed(start.ops):
        given = [cotangents.pop(id(v), None) for v in op.outputs]
        for value, cotangent in zip(op.outputs, given, strict=True):
            if id(value) in wanted:
                slopes[id(value)] = torch.zeros_like(value.data) if cotangent is None else cotangent.to(value.dtype)
        if len(slopes) == len(wanted):
            break
        if all(c is None for c in given):
            continue
        for value, cotangent in zip(op.inputs, _pulled_back(op, given), strict=True):
            if cotangent is not None:
                before = cotangents.get(id(value))
                cotangents[id(value)] = cotangent if before is None else before + cotangent
    return slopes


def _pulled_back(op: Op, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Jᵀ of an operation, for its inputs that are real numbers."""
    if op.map is not None:
        assert given[0] is not None
        dtype = op.map.dtype
        return [op.map.transpose(given[0].to(dtype), op.map.weight, op.inputs[0].data.to(dtype))]
    real = [v for v in op.inputs if v.dtype.is_floating_point]
    handed = iter(transposed(op, given, real[0].dtype, real) if real else ())
    return [next(handed) if v.dtype.is_floating_point else None for v in op.inputs]
