"""Where an operation takes the samples of the batch.

Shapes and axes decide the ordinary calls, wherever they leave no doubt. Any other call is tried out: it is replayed
with the number of a sample in place of each of its entries, and the numbers that arrive say which sample an entry of
the output belongs to. Calls of the same form are tried out once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .maps import Convolution, Dense
from .norms import leading_axes
from .operations import Family
from .recognition import softmax_axis
from .samples import Samples, in_turn
from .values import Op, gathered, replaced

MIXES = "it mixes the samples of the batch"
TAKES_OUT = "it takes some samples out of the batch, whose relevance could not be told apart"
ADDS_ROWS = "it puts rows into the batch that belong to no sample"
UNKNOWN = "plrp cannot tell which part of its output belongs to which sample of the batch"

NOBODY, SEVERAL = -1, -2  # in place of a sample's number: a constant, and an entry that several samples contribute to
CLOSE = 1e-4  # numbers of samples are 1 apart
MOST_FORMS = 4096


def layouts_of(op: Op, outputs: Sequence[Tensor]) -> list[Samples]:
    """Where the samples lie in an operation's outputs.

    A gate whose samples are mixed counts as a constant: relevance does not pass it.
    """
    layout = op.inputs[0].samples
    if layout.whole:
        return [Samples.of_whole(tensor) for tensor in outputs]
    if any(value.samples.mixed for value in op.inputs):
        if op.signal is None or op.signal.samples.mixed:
            return [Samples(layout.batch, mixed=MIXES)] * len(outputs)
        args, kwargs = replaced((op.args, op.kwargs), lambda value: value if value is op.signal else value.data)
        op = dataclasses.replace(op, args=args, kwargs=kwargs, inputs=[op.signal])
    if layout.batch <= 1:
        return [Samples.of_one(layout.batch, tensor) for tensor in outputs]
    decided = [_decided(op, tensor) for tensor in outputs]
    layouts = [layout for layout in decided if layout is not None]
    if len(layouts) == len(outputs):
        return layouts
    if op.family not in _LINEAR:
        return [Samples(layout.batch, mixed=UNKNOWN)] * len(outputs)
    return _tried_out(op, outputs)


# Families that are linear in their inputs, or select from them: numbers of samples come out as they went in.
_LINEAR = (Family.REARRANGE, Family.SPLIT, Family.WINNER, Family.LAYER, Family.GATE, Family.PRODUCT)


# --- decided by shapes and axes ---------------------------------------------------------------------------------------


def _decided(op: Op, output: Tensor) -> Samples | None:
    """The layout of an output where shapes and axes leave no doubt about it; else None."""
    value = op.inputs[0]
    layout, axis, dims = value.samples, value.samples.axis, len(value.shape)
    if op.traits.elementwise and op.family is not Family.UNSUPPORTED:
        return _aligned(op, output)
    if op.family is Family.EMBEDDING:  # new axes come last
        return layout
    if not all(layout.same(other.samples) for other in op.inputs[1:]):
        return None
    if output.dim() <= axis or output.shape[axis] != value.shape[axis] or (axis > 0 and output.dim() != dims):
        return None
    if op.family is Family.SOFTMAX:
        return layout if softmax_axis(op) % dims != axis else Samples(layout.batch, mixed=MIXES)
    if op.traits.statistic:
        return layout if _stays(op, axis, dims, output.dim()) else Samples(layout.batch, mixed=MIXES)
    if op.operation.registered or op.family in (Family.PASS, Family.OFFSET, Family.UNSUPPORTED):
        return layout  # element by element; or nothing more is known of the function
    return layout if _stays(op, axis, dims, output.dim()) else None


def _aligned(op: Op, output: Tensor) -> Samples:
    """The layout of an element-wise result: operands are broadcast, their last axes aligned."""
    layouts = []
    for value in op.inputs:
        layout, added = value.samples, output.dim() - len(value.shape)
        layouts.append(layout if not added else dataclasses.replace(layout, axis=layout.axis + added))
    first = layouts[0]
    return first if all(map(first.same, layouts[1:])) else Samples(first.batch, mixed=MIXES)


def _stays(op: Op, axis: int, dims: int, dims_after: int) -> bool:
    """Whether an operation leaves an axis of its inputs where it is, and computes each position of it by itself.

    The inputs have `dims` axes, the output has `dims_after`.
    """
    if op.family is Family.LAYER:
        return axis == 0 if isinstance(op.map, Convolution) else isinstance(op.map, Dense) and axis < dims - 1
    if op.family is Family.AFFINE:
        return axis < leading_axes(op)
    if op.operation.contracts:  # A·B: all axes but the last two are the batch's
        same = dims == dims_after and all(len(value.shape) == dims for value in op.inputs)
        return op.kind in ("matmul", "bmm") and axis < dims - 2 and same
    if op.kind == "getitem":
        return axis == 0 and _keeps_rows(op.args[1])
    if op.kind == "setitem":  # of a constant: nothing moves
        return op.inputs == [op.args[0]]
    if op.traits.reshapes or op.traits.batchwise:
        return axis == 0
    return bool(op.traits.dims) and axis not in _axes(op, max(dims, dims_after), axis)


def _keeps_rows(index: Any) -> bool:
    """Whether an index takes all of the first axis and leaves it first: advanced ones, if apart, would go before it."""
    parts = index if isinstance(index, tuple) else (index,)
    if not parts or parts[0].__class__ is not slice:  # of the whole length
        return False
    advanced = [part for part in parts if part is not None and part is not Ellipsis and type(part) is not slice]
    return len(advanced) <= 1 or all(type(part) is int for part in advanced)


def _axes(op: Op, dims: int, unknown: int) -> set[int]:
    """The axes that an operation acts along; `unknown` among them where a call does not say so."""
    axes: set[int] = set()
    for position in op.traits.dims:
        given = op.argument(position, "dim", op.kwargs.get("dims", op.traits.dim))
        for dim in given if isinstance(given, list | tuple) else (given,):
            axes.add(dim % dims if isinstance(dim, int) else unknown)
    return axes


# --- tried out --------------------------------------------------------------------------------------------------------

_FORMS: dict[Any, list[Samples]] = {}  # layouts by the form of a call and where the samples lay


def owned_rows(op: Op, outputs: Sequence[Tensor]) -> list[tuple[int, Tensor] | None]:
    """The axis of each output along which the samples of the inputs lie, and whose each position is (`NOBODY`: a
    constant's). Samples may be missing. None where several samples contribute to an entry, or nothing is known.
    """
    decided = [_decided(op, output) for output in outputs]
    if None not in decided or op.family not in _LINEAR:
        everyone = torch.arange(op.inputs[0].samples.batch, device=outputs[0].device)
        return [
            None if one is None or one.mixed else (one.axis, everyone if one.ids is None else one.ids)
            for one in decided
        ]
    weights = [None] if op.map is None else [torch.ones_like(op.map.weight).double(), op.map.weight.double()]
    rows: list[tuple[int, Tensor] | None] = [None] * len(outputs)
    for owners in (_owners(op, outputs, weight) for weight in weights if None in rows):
        rows = rows if owners is None else [next(_lines(each), None) for each in owners]
    return rows


def _tried_out(op: Op, outputs: Sequence[Tensor]) -> list[Samples]:
    """Where a call takes the samples, by its replay with their numbers.

    A layer is tried with weights of one first: if these do not mix samples, no weight does.
    """
    form = _form(op, outputs)
    layouts = None if form is None else _FORMS.get(form)
    if layouts is None:
        weight = None if op.map is None else torch.ones_like(op.map.weight, dtype=torch.float64)
        layouts = _replayed(op, outputs, weight)
        if form is not None:
            if len(_FORMS) >= MOST_FORMS:
                _FORMS.clear()
            _FORMS[form] = layouts
    if op.map is not None and layouts[0].mixed:
        layouts = _replayed(op, outputs, op.map.weight.double())
    return layouts


def _form(op: Op, outputs: Sequence[Tensor]) -> Any:
    """A key for all calls that take samples to the same places; None for calls with indices, which are too long."""
    if op.traits.boxes or not all(tensor.is_floating_point() for tensor in gathered(op.args, op.kwargs)):
        return None
    places = {id(value): place for place, value in enumerate(op.inputs)}
    form = replaced((op.args, op.kwargs), lambda value: places[id(value)] + 0.5)  # no index is a half
    form = repr(replaced(form, lambda tensor: ("constant", tensor.shape), of=Tensor))
    layouts = tuple((v.shape, v.samples.batch, v.samples.axis, v.samples.ids) for v in op.inputs)
    return op.kind, op.family, op.operation.replay, form, layouts, outputs[0].device, len(outputs)


def _replayed(op: Op, outputs: Sequence[Tensor], weight: Tensor | None) -> list[Samples]:
    """The layouts of the outputs, by the owners of their entries."""
    layout, owners = op.inputs[0].samples, _owners(op, outputs, weight)
    if owners is None:
        return [Samples(layout.batch, mixed=UNKNOWN)] * len(outputs)
    return [_locate(each, layout.batch, layout.vectors) for each in owners]


def _owners(op: Op, outputs: Sequence[Tensor], weight: Tensor | None) -> list[Tensor] | None:
    """The sample of every entry of the outputs, from two replays in which sample i has the number i + 1, and another
    one; None for a function that takes no other numbers.

    A sum is compared with that of random entries: if it is theirs times a number, only this number's sample is in it.
    Of products of two values, it is the square of the number. Maxima give the largest number, then the smallest; a sort
    turns round.
    """
    batch, device = op.inputs[0].samples.batch, outputs[0].device
    generator = torch.Generator().manual_seed(0)
    first = torch.arange(1.0, batch + 1, dtype=torch.float64)
    second = first.flip(0) + torch.rand(batch, generator=generator)
    sums = op.family in (Family.SPLIT, Family.LAYER, Family.GATE, Family.PRODUCT)
    entries = [torch.ones((), dtype=torch.float64).expand(value.shape) for value in op.inputs]
    if sums:  # random ones, since sums could cancel
        entries = [torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in op.inputs]
    blank = _without_constants(op)

    def run(numbers: Tensor) -> list[Tensor]:
        tensors = [
            value.data.double()
            if op.traits.boxes and value is not op.signal
            else value.samples.spread(numbers.to(device), len(value.shape)) * each.to(device)
            for value, each in zip(op.inputs, entries, strict=True)
        ]
        result = blank.call(tensors) if op.map is None or weight is None else op.map.apply(tensors[0], weight)
        return [tensor for tensor in gathered(result) if tensor.is_floating_point()]

    try:
        runs = [run(first), run(second), *([run(torch.ones_like(first))] if sums else [])]
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None
    owned = []
    for a, b, *rest in list(zip(*runs, strict=True))[: len(outputs)]:
        nobody = a == b if not rest else rest[0] == 0
        if rest:
            power = 1 / len(op.operands) if op.operation.contracts and op.map is None else 1.0
            a, b = ((tensor / rest[0]) ** power for tensor in (a, b))
        inside = (a.nan_to_num() - 1).round().long().clamp(0, batch - 1)
        right = ((a - first.to(device)[inside]).abs() < CLOSE) & ((b - second.to(device)[inside]).abs() < CLOSE)
        owned.append(torch.where(nobody, NOBODY, torch.where(right, inside, SEVERAL)))
    return owned


def _without_constants(op: Op) -> Op:
    """The call with zeros for constants, which belong to nobody; with ones where they are factors."""
    if op.traits.boxes:
        return op
    fill = torch.ones_like if op.operation.contracts else torch.zeros_like

    def blank(tensor: Tensor) -> Tensor:
        return fill(tensor, dtype=torch.float64) if tensor.is_floating_point() else tensor

    args, kwargs = replaced((op.args, op.kwargs), blank, of=Tensor)
    return dataclasses.replace(op, args=args, kwargs=kwargs)


def _locate(owners: Tensor, batch: int, vectors: tuple[Tensor, ...] = ()) -> Samples:
    """The axis along which the owners of entries change, if there is exactly one; constants may lie between them.

    Of groups, a row that nobody owns (a node without neighbours) is the sample's that has this row in the inputs, and a
    sample may be without rows (a graph without edges).
    """
    reason = MIXES if owners.numel() else TAKES_OUT
    for axis, ids in _lines(owners):
        named = (v for v in vectors if len(v) == len(ids) and bool(((v == ids) | (ids == NOBODY)).all()))
        ids = next(named, ids)
        if bool((ids == NOBODY).any()):
            reason = ADDS_ROWS
        elif not vectors and not bool((ids.bincount(minlength=batch) > 0).all()):
            reason = TAKES_OUT
        else:
            return Samples(batch, axis, in_turn(ids, batch), vectors=vectors)
    return Samples(batch, mixed=reason)


def _lines(owners: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The axes along which the owners of entries may be read, and the owners there."""
    for axis in range(owners.dim()) if owners.numel() and not bool((owners == SEVERAL).any()) else ():
        line = owners.movedim(axis, 0).reshape(owners.shape[axis], -1)
        ids = line.amax(1)
        if bool(((line == ids[:, None]) | (line == NOBODY)).all()):
            yield axis, ids
