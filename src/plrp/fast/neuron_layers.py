"""Layers that follow single neurons: d_k and the products w_jk s_k for the neurons k that hold relevance, nobody else.

Each function has two bodies: the compiled loop over single neurons (`native/`), and torch, which gathers positions and
takes all of their channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from plrp.tape.maps import Convolution, Weight, per_axis
from plrp.tape.values import Op

from . import limits, native
from .neurons import Neurons, position_of
from .weight_cache import fast_weight


class Geometry(NamedTuple):
    """Where the outputs of a convolution read; three axes, ones where the layer has fewer."""

    inputs: torch.Size  # (samples, channels, *plane)
    outputs: torch.Size
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def numbers(self) -> list[int]:
        """All of it for the compiled loops."""
        axes = (self.inputs[2:], self.outputs[2:], self.kernel, self.stride, self.padding, self.dilation)
        missing = 3 - len(self.kernel)
        padded = [n for axis, one in zip(axes, (1, 1, 1, 1, 0, 1), strict=True) for n in (*axis, *(one,) * missing)]
        return [self.inputs[0], *padded]

    @property
    def taps(self) -> int:
        """How many positions one output reads."""
        return math.prod(self.kernel)

    @property
    def reach(self) -> int:
        """Along the first axis, outputs this far apart (and one further) read no input in common."""
        return -(-(self.kernel[0] - 1) * self.dilation[0] // self.stride[0])

    @property
    def lines(self) -> tuple[int, ...]:
        """The samples, the length and the rest of the output's plane, and the reach: loops share out lines by them."""
        samples, _, axis, *inner = self.outputs
        return samples, axis, math.prod(inner), self.reach


def layer_geometry(op: Op, dtype: torch.dtype, copies: int = 1) -> Geometry | None:
    """Where a layer reads, if single neurons can be followed through it; of a batch stacked up in several copies."""
    value, output, conv = op.inputs[0], op.output, op.map
    if not isinstance(conv, Convolution) or not all(v.samples.leads(v.shape) for v in (value, output)):
        return None
    if conv.transposed or conv.extra is not None or len(value.shape) < 3:
        return None
    if copies * value.shape.numel() >= 1 << 31 or output.shape.numel() < limits.FEWEST:
        return None
    if value.dtype != dtype or not value.data.is_contiguous():
        return None
    inputs, outputs = (torch.Size((copies * v.shape[0], *v.shape[1:])) for v in (value, output))
    return Geometry(inputs, outputs, tuple(conv.raw.shape[2:]), conv.stride, conv.padding, conv.dilation, conv.groups)


def pool_geometry(op: Op) -> Geometry | None:
    """Where the outputs of a max pool read; None for other operations, and for pools whose windows differ in size or
    may lie wholly in padding.
    """
    value, axes = op.inputs[0], len(op.inputs[0].shape) - 2
    if axes < 1 or len(op.inputs) != 1 or len(op.output.shape) != len(value.shape):
        return None

    if op.kind == f"max_pool{axes}d":
        kernel = per_axis(op.argument(1, "kernel_size"), axes)
        stride = op.argument(2, "stride")
        steps = kernel if stride is None or stride in ([], ()) else per_axis(stride, axes)
        padding = per_axis(op.argument(3, "padding", 0), axes)
        dilation = per_axis(op.argument(4, "dilation", 1), axes)
        if any(n > 0 and d > 1 for n, d in zip(padding, dilation, strict=True)):
            return None
    elif op.kind == f"adaptive_max_pool{axes}d" and op.output.shape[2:].numel() == 1:
        kernel = steps = tuple(value.shape[2:])
        padding, dilation = (0,) * axes, (1,) * axes
    else:
        return None
    return Geometry(value.shape, op.output.shape, kernel, steps, padding, dilation, 1)


class Plan(NamedTuple):
    """The input positions that some outputs read."""

    geometry: Geometry
    positions: Tensor  # int64, ascending: one row each
    taps: Tensor  # int32 (output positions, taps): the row that is read, −1 in the padding


def plan(geometry: Geometry, neurons: Neurons) -> Plan:
    """Which input positions the neurons' outputs read."""
    samples, plane = geometry.inputs[0], geometry.inputs[2:].numel()
    count = len(neurons.positions)
    if native.available(neurons.values):
        taps = native.empty(torch.int32, count, geometry.taps)
        rows = native.empty(torch.int64, min(samples * plane, count * geometry.taps))
        scratch = native.empty(torch.int32, samples * plane)
        size = native.call("plan", neurons.positions, count, scratch, rows, taps, *geometry.numbers())
        return Plan(geometry, rows[:size], taps)
    at = neurons.positions
    sample = at // geometry.outputs[2:].numel()
    where, inside = sample[:, None], torch.ones_like(at, dtype=torch.bool)[:, None]
    for axis, size in enumerate(geometry.outputs[2:]):
        step = torch.arange(geometry.kernel[axis], device=at.device) * geometry.dilation[axis]
        begin = at // math.prod(geometry.outputs[3 + axis :]) % size * geometry.stride[axis] - geometry.padding[axis]
        i = begin[:, None] + step
        held = (i >= 0) & (i < geometry.inputs[2 + axis])
        where = (where[:, :, None] * geometry.inputs[2 + axis] + i[:, None, :]).flatten(1)
        inside = (inside[:, :, None] & held[:, None, :]).flatten(1)
    positions, rows_read = where[inside].unique(return_inverse=True)
    taps = torch.full(where.shape, -1, dtype=torch.int32, device=at.device)
    taps[inside] = rows_read.int()
    return Plan(geometry, positions, taps)


def gather(x: Tensor, positions: Tensor) -> Tensor:
    """The rows (positions, channels) of a tensor (samples, channels, *plane), or of several copies of it, stacked."""
    plane = x.shape[2:].numel()
    if len(positions) and int(positions[-1]) >= len(x) * plane:
        positions = positions % (len(x) * plane)
    if native.available(x):
        rows = x.new_empty(len(positions), x.shape[1])
        native.call("gather", x, positions, len(positions), x.shape[1], plane, rows, native.threads())
        return rows
    return x.flatten(2)[positions // plane, :, positions % plane]


def contributions(plan: Plan, neurons: Neurons, rows: Tensor, weight: Weight) -> Tensor:
    """Σ_j x_j w_jk for each neuron k; `rows` are the x at the plan's positions."""
    geometry = plan.geometry
    sums_of_each = torch.zeros_like(neurons.values)
    if native.available(rows, sums_of_each):
        _layer(1, plan, neurons, weight, (rows, sums_of_each, None, None))
        return sums_of_each
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])  # with a row of zeros, which −1 names
    patches = padded[plan.taps.long()]  # (positions, taps, inputs)
    w = weight.full.flatten(2)  # (outputs, inputs / groups, taps)
    grouped = patches.unflatten(2, (geometry.groups, -1))
    per_group = w.unflatten(0, (geometry.groups, -1))
    sums = torch.einsum("qtgi,goit->qgo", grouped, per_group).flatten(1)
    return sums[position_of(neurons), neurons.channels.long()]


def hand(plan: Plan, neurons: Neurons, s: Tensor, weight: Weight, rows: Tensor | None = None) -> Tensor:
    """x_j Σ_k w_jk s_k over the neurons k, as rows at the plan's positions; `rows` are the x (None: ones)."""
    geometry = plan.geometry
    received = s.new_zeros(len(plan.positions), geometry.inputs[1])
    if native.available(s, received):
        _layer(2, plan, neurons, weight, (rows, None, s, received))
        return received
    spread = s.new_zeros(len(neurons.positions), geometry.outputs[1])
    spread[position_of(neurons), neurons.channels.long()] = s
    per_group = weight.full.flatten(2).unflatten(0, (geometry.groups, -1))
    patches = torch.einsum("qgo,goit->qtgi", spread.unflatten(1, (geometry.groups, -1)), per_group).flatten(2)
    inside = plan.taps >= 0
    received.index_add_(0, plan.taps[inside].long(), patches[inside])
    return received if rows is None else received.mul_(rows)


def through(
    plan: Plan,
    neurons: Neurons,
    given: Tensor,
    rows: Tensor,
    weight: Weight,
    bias: Tensor | None,
    epsilon: float,
    one_sign: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """d = Σ_j x_j w_jk + b_k, s = given / (d + ε sign d) and x_j Σ_k w_jk s_k, while the weights are in the cache."""
    d, s = torch.zeros_like(given), torch.empty_like(given)
    received = torch.zeros_like(rows)
    _layer(3, plan, neurons, weight, (rows, d, s, received), (given, bias, float(epsilon), one_sign))
    return d, s, received


def _layer(
    what: int,
    plan: Plan,
    neurons: Neurons,
    weight: Weight,
    tensors: tuple[Tensor | None, ...],
    quotient: tuple[Tensor | None, Tensor | None, float, bool] = (None, None, 0.0, False),
) -> None:
    """The compiled loop: d (1), the relevance of the inputs (2) or both (3). `tensors`: x, d, s and that relevance."""
    geometry = plan.geometry
    sizes = geometry.taps, geometry.inputs[1], geometry.outputs[1], geometry.groups
    w = fast_weight(weight).inputs_last(neurons.channels)
    read = len(plan.positions), *geometry.lines
    native.call("layer", what, *read_by(neurons, plan), *sizes, w, *tensors, *read, *quotient, native.threads())


def read_by(neurons: Neurons, plan: Plan) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
    """The neurons of a layer's output, and the rows of the plan that they read, for the compiled loops."""
    return len(neurons.positions), neurons.positions, neurons.begins, neurons.channels, plan.taps


def winners(x: Tensor, geometry: Geometry, neurons: Neurons) -> Tensor | None:
    """For neurons of a max pool's output, the place in the plane of the input that won; None without compiled loops."""
    if not native.available(x, neurons.values):
        return None
    places = torch.empty_like(neurons.flat)
    native.call("winners", x, neurons.flat_in(len(x)), len(places), places, native.threads(), *geometry.numbers())
    return places


def to_winners(x: Tensor, geometry: Geometry, given: Tensor) -> Tensor | None:
    """The relevance of a max pool's whole output, handed to the inputs that won; None without compiled loops."""
    if not native.available(x, given):
        return None
    received = torch.zeros_like(x)
    native.call("pool", x, given, received, x.shape[0] * x.shape[1], native.threads(), *geometry.numbers())
    return received
