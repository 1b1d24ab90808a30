"""Relevance of few neurons, and layers that follow them.

After pruning, few neurons of a tensor (samples, channels, *plane) hold relevance. They are kept by position:

- `Neurons`: single neurons, for each position the channels that hold relevance;
- `Rows`: all channels at some positions: what a layer hands to the positions that it reads.

A layer then costs what its neurons cost: d_k and the products w_jk s_k are formed for the neurons k that hold relevance
and nobody else. Each function has two bodies: the compiled loop over single neurons (`_native.c`), and torch, which
gathers positions and takes all of their channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .weight_cache import Made, made, unkept
from .whole_tensors import channels_last, turned


@dataclass(frozen=True, eq=False)
class Neurons:
    """Relevance of single neurons of a tensor: position q holds neurons begins[q] … begins[q + 1]."""

    shape: torch.Size  # of the tensor: (samples, channels, *plane)
    positions: Tensor  # int64, sample · plane + place, ascending
    begins: Tensor  # int64, one longer than positions
    channels: Tensor  # int32
    values: Tensor

    def holding(self, values: Tensor) -> Neurons:
        """The same neurons with other values."""
        same = replace(self, values=values)
        for known in ("_places", "_in_batch"):  # where they stand has not changed
            if known in self.__dict__:
                same.__dict__[known] = self.__dict__[known]
        return same

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        width, plane = self.shape[1], self.shape[2:].numel()
        if native.available(self.values):
            flat, sample = torch.empty_like(self.channels, dtype=torch.int64), torch.empty_like(self.channels).long()
            count = len(self.positions)
            native.call("flat", self.positions, self.begins, count, self.channels, width, plane, flat, sample)
            return flat, sample
        at = self.positions.repeat_interleave(self.begins.diff())
        sample = at // plane
        return (sample * width + self.channels) * plane + at % plane, sample

    @property
    def flat(self) -> Tensor:
        """Where each neuron stands in the tensor, flattened."""
        return self._places[0]

    @property
    def sample(self) -> Tensor:
        """The sample that each neuron belongs to."""
        return self._places[1]

    @cached_property
    def _in_batch(self) -> dict[int, Tensor]:
        return {self.shape[0]: self.flat}

    def flat_in(self, batch: int) -> Tensor:
        """Where each neuron stands in a batch of which this tensor holds several copies, one after the other."""
        known = self._in_batch
        if batch not in known:
            known[batch] = self.flat % (batch * self.shape[1:].numel())
        return known[batch]

    def at(self, tensor: Tensor) -> Tensor:
        """What another tensor of this shape, or the batch that is stacked up here, holds at these neurons."""
        if tensor.shape[1:] == self.shape[1:] and len(tensor):
            flat = self.flat_in(len(tensor))
            if not native.available(tensor):
                return tensor.reshape(-1)[flat]
            found = torch.empty_like(flat, dtype=tensor.dtype)
            native.call("take", tensor, flat, len(found), found, native.threads())
            return found
        return tensor.expand(self.shape).reshape(-1)[self.flat]

    def sum(self, values: Tensor) -> Tensor:
        """The sum per sample of something that each neuron has, in float64."""
        return values.new_zeros(self.shape[0], dtype=torch.float64).index_add_(0, self.sample, values.double())

    @cached_property
    def counts(self) -> Tensor:
        """How many neurons each sample has, (samples,)."""
        return self.begins[offsets(self.positions, self.shape)].diff()

    def dense(self) -> Tensor:
        """As an ordinary tensor."""
        whole = self.values.new_zeros(self.shape.numel())
        whole[self.flat] = self.values
        return whole.view(self.shape)

    def dense_last(self) -> Tensor:
        """The same with channels last."""
        width = self.shape[1]
        whole = self.values.new_zeros(self.shape[0] * self.shape[2:].numel() * width)
        whole[self.positions.repeat_interleave(self.begins.diff()) * width + self.channels] = self.values
        return whole.view(self.shape[0], *self.shape[2:], width).movedim(-1, 1)

    def rows(self) -> Rows:
        """With all channels of their positions."""
        values = self.values.new_zeros(len(self.positions), self.shape[1])
        values[position_of(self), self.channels.long()] = self.values
        return Rows(self.shape, self.positions, values)

    def channel_sums(self) -> Tensor:
        """The sum over the channels, (samples, 1, *plane)."""
        whole = self.values.new_zeros(self.shape[0] * self.shape[2:].numel())
        at = self.positions.repeat_interleave(self.begins.diff())
        return whole.index_add_(0, at, self.values).view(self.shape[0], 1, *self.shape[2:])

    def of(self, chosen: Tensor) -> Neurons:
        """The neurons of some samples (samples,), the others without any."""
        living = chosen[self.positions // self.shape[2:].numel()]
        sizes = self.begins.diff()
        inside = living.repeat_interleave(sizes)
        begins = torch.cat([self.begins[:1] * 0, sizes[living].cumsum(0)])
        return Neurons(self.shape, self.positions[living], begins, self.channels[inside], self.values[inside])

    def only(self, samples: Tensor) -> Neurons:
        """The neurons of some samples (ascending), which become a batch of their own."""
        plane = self.shape[2:].numel()
        number = torch.full((self.shape[0],), -1, device=samples.device)
        number[samples] = torch.arange(len(samples), device=samples.device)
        sample = self.positions // plane
        chosen = number[sample] >= 0
        sizes = self.begins.diff()
        inside = chosen.repeat_interleave(sizes)
        begins = torch.cat([self.begins[:1] * 0, sizes[chosen].cumsum(0)])
        positions = (number[sample] * plane + self.positions % plane)[chosen]
        shape = torch.Size((len(samples), *self.shape[1:]))
        return Neurons(shape, positions, begins, self.channels[inside], self.values[inside])


@dataclass(frozen=True, eq=False)
class Rows:
    """Relevance at some positions of a tensor, all channels of each."""

    shape: torch.Size
    positions: Tensor  # int64, ascending
    values: Tensor  # (positions, channels)

    @cached_property
    def offsets(self) -> Tensor:
        """Where the rows of each sample begin, and where the last one's end."""
        return offsets(self.positions, self.shape)

    def dense(self) -> Tensor:
        """As an ordinary tensor."""
        samples, channels, plane = self.shape[0], self.shape[1], self.shape[2:].numel()
        whole = self.values.new_zeros(samples, channels, plane)
        if native.available(self.values):
            count = len(self.positions)
            native.call("spread", whole, self.positions, count, channels, plane, self.values, native.threads())
            return whole.view(self.shape)
        whole[self.positions // plane, :, self.positions % plane] = self.values
        return whole.view(self.shape)

    def dense_last(self) -> Tensor:
        """The same with channels last."""
        width = self.shape[1]
        whole = self.values.new_zeros(self.shape[0] * self.shape[2:].numel(), width)
        whole[self.positions] = self.values
        return whole.view(self.shape[0], *self.shape[2:], width).movedim(-1, 1)


Relevance = Tensor | Neurons | Rows


def offsets(positions: Tensor, shape: torch.Size) -> Tensor:
    """Where the positions of each sample begin, and where the last one's end."""
    if shape[0] == 1:
        return torch.tensor([0, len(positions)], device=positions.device)
    places = torch.arange(shape[0] + 1, device=positions.device) * shape[2:].numel()
    return torch.searchsorted(positions, places)


def dense(relevance: Relevance) -> Tensor:
    """Any relevance as an ordinary tensor."""
    return relevance if isinstance(relevance, Tensor) else relevance.dense()


def dense_last(relevance: Relevance) -> Tensor:
    """Any relevance of images as an ordinary tensor with its channels last."""
    if not isinstance(relevance, Tensor):
        return relevance.dense_last()
    return relevance if channels_last(relevance) else turned(relevance)


def at_neurons(relevance: Relevance, neurons: Neurons) -> Tensor:
    """What another relevance of the same tensor holds at these neurons."""
    if isinstance(relevance, Tensor):
        return neurons.at(relevance)
    rows = relevance.rows() if isinstance(relevance, Neurons) else relevance
    where = torch.searchsorted(rows.positions, neurons.positions).clamp(max=max(0, len(rows.positions) - 1))
    if len(rows.positions) == 0:
        return torch.zeros_like(neurons.values)
    here = (rows.positions[where] == neurons.positions).repeat_interleave(neurons.begins.diff())
    index = where.repeat_interleave(neurons.begins.diff()) * rows.shape[1] + neurons.channels
    return torch.where(here, rows.values.view(-1)[index], 0.0)


def added(a: Relevance, b: Relevance) -> Relevance:
    """The sum of two relevances of one tensor."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if any(isinstance(r, Tensor) and channels_last(r) for r in (a, b)):
            return dense_last(a) + dense_last(b)
        return dense(a) + dense(b)
    positions, where_a, where_b = _union(a.positions, b.positions)
    total = a.values.new_zeros(len(positions), a.shape[1])
    for part, where in ((a, where_a), (b, where_b)):
        if native.available(total, part.values):
            own = (None, None) if isinstance(part, Rows) else (part.begins, part.channels)
            native.call("add", total, a.shape[1], where, len(where), part.values, *own)
        elif isinstance(part, Rows):
            total.index_add_(0, where, part.values)
        else:
            index = where.repeat_interleave(part.begins.diff()) * a.shape[1] + part.channels
            total.view(-1).index_add_(0, index, part.values)
    return Rows(a.shape, positions, total)


def _union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The union of two ascending lists, and where each stands in it."""
    if native.available() and a.is_cpu:
        positions = torch.empty(len(a) + len(b), dtype=torch.int64, device="cpu")
        where_a, where_b = torch.empty_like(a), torch.empty_like(b)
        size = native.call("union", a, len(a), b, len(b), positions, where_a, where_b)
        return positions[:size], where_a, where_b
    positions, where = torch.cat([a, b]).unique(return_inverse=True)
    return positions, where[: len(a)], where[len(a) :]


# --- survivors --------------------------------------------------------------------------------------------------------


def survivors(relevance: Tensor | Rows, stats: Tensor, rescale: bool) -> Neurons:
    """The neurons above θ, times λ if wanted; `stats` as `selection.statistics` gives them, one row per sample."""
    samples, channels = relevance.shape[:2]
    values = relevance if isinstance(relevance, Tensor) else relevance.values
    kept = int(stats[:, 7].sum())
    plane = relevance.shape[2:].numel()
    if isinstance(relevance, Tensor) and channels_last(relevance):
        values = relevance.movedim(1, -1).reshape(-1, channels)
        relevance = Rows(relevance.shape, torch.arange(samples * plane, device=values.device), values)
    if native.available(values):
        most = min(kept, samples * plane)
        positions, begins = (
            torch.empty(most, dtype=torch.int64, device="cpu"),
            torch.empty(most + 1, dtype=torch.int64, device="cpu"),
        )
        found = torch.empty(kept, dtype=torch.int32, device="cpu"), torch.empty(kept, dtype=torch.float32, device="cpu")
        into = positions, begins, *found
        if isinstance(relevance, Rows):
            where = relevance.positions, relevance.offsets, samples, channels
            places = native.call("collect_rows", values, *where, stats, rescale, *into, native.threads())
        else:
            where_dense = samples, channels, plane
            places = native.call("collect_dense", values, *where_dense, stats, rescale, *into, native.threads())
        begins = begins[: places + 1]
        return Neurons(relevance.shape, positions[:places], begins, *(f[: int(begins[-1])] for f in found))
    if isinstance(relevance, Rows):
        rows, at = relevance.values, relevance.positions
    else:
        rows = relevance.flatten(2).transpose(1, 2).reshape(samples * plane, channels)
        at = torch.arange(samples * plane, device=relevance.device)
    of = at // plane
    up, down = stats[:, 0].to(rows)[of, None], -stats[:, 1].to(rows)[of, None]
    row, channel = ((rows > up) | (rows < down)).nonzero(as_tuple=True)
    held = rows[row, channel]
    if rescale:
        scales = rescaling(stats)[of[row]].to(rows)
        held = held * torch.where(held > 0, scales[:, 0], scales[:, 1])
    lived, sizes = row.unique_consecutive(return_counts=True)
    begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Neurons(relevance.shape, at[lived], begins, channel.int(), held)


def thinned(relevance: Tensor, stats: Tensor) -> Tensor:
    """The same survivors, times λ, in an ordinary tensor: for tensors of which many survive."""
    rows = relevance.flatten(1)
    if native.available(relevance):
        out = torch.empty_like(relevance)
        native.call("thin", relevance, *rows.shape, stats, out, native.threads())
        return out
    stats = stats.to(rows.device)
    up, down = stats[:, :1].to(rows.dtype), -stats[:, 1:2].to(rows.dtype)
    above, below = rescaling(stats).to(rows.dtype).unbind(1)
    kept = torch.where(rows > up, rows * above[:, None], torch.where(rows < down, rows * below[:, None], 0.0))
    return kept.view(relevance.shape)


def rescaling(stats: Tensor) -> Tensor:
    """λ per sample and sign, (samples, 2): mass before / mass after; 1 where nothing was pruned or nothing is left."""
    before, after = stats[:, 2:4], stats[:, 2:4] - stats[:, 4:6]
    scaled = (stats[:, 6:7] != stats[:, 7:8]) & (after > 0)
    return torch.where(scaled, before / torch.where(scaled, after, 1.0), 1.0)


def regrouped(shape: torch.Size, at: Tensor, channels: Tensor, values: Tensor) -> Neurons:
    """Neurons that stand at any positions in any order; what lands on one neuron is added up."""
    places, width = shape[0] * shape[2:].numel(), shape[1]
    if native.available(values):
        count = len(at)
        positions, begins = (
            torch.empty(count, dtype=torch.int64, device="cpu"),
            torch.empty(count + 1, dtype=torch.int64, device="cpu"),
        )
        found = torch.empty_like(channels), torch.empty_like(values)
        size = native.call("regroup", at, channels, values, count, places, width, positions, begins, *found)
        kept = int(begins[size])
        return Neurons(shape, positions[:size], begins[: size + 1], found[0][:kept], found[1][:kept])
    neurons, where = (at * width + channels).unique(return_inverse=True)
    held = values.new_zeros(len(neurons)).index_add_(0, where, values)
    positions, sizes = (neurons // width).unique_consecutive(return_counts=True)
    begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Neurons(shape, positions, begins, (neurons % width).int(), held)


# --- layers -----------------------------------------------------------------------------------------------------------


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
        taps = torch.empty(count, geometry.taps, dtype=torch.int32, device="cpu")
        most = min(samples * plane, count * geometry.taps)
        rows, scratch = (
            torch.empty(most, dtype=torch.int64, device="cpu"),
            torch.empty(samples * plane, dtype=torch.int32, device="cpu"),
        )
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
    positions, found = where[inside].unique(return_inverse=True)
    taps = torch.full(where.shape, -1, dtype=torch.int32, device=at.device)
    taps[inside] = found.int()
    return Plan(geometry, positions, taps)


def gathered(x: Tensor, positions: Tensor) -> Tensor:
    """The rows (positions, channels) of a tensor (samples, channels, *plane), or of several copies of it, stacked."""
    plane = x.shape[2:].numel()
    if len(positions) and int(positions[-1]) >= len(x) * plane:
        positions = positions % (len(x) * plane)
    if native.available(x):
        rows = x.new_empty(len(positions), x.shape[1])
        native.call("gather", x, positions, len(positions), x.shape[1], plane, rows, native.threads())
        return rows
    return x.flatten(2)[positions // plane, :, positions % plane]


class Weight:
    """A layer's weight (outputs, inputs / groups, *kernel), raw · scale, cut to a sign (1, −1; 0: whole).

    It is multiplied out when it is first needed: `full` for dense propagation; `inputs_last` for that of single
    neurons, in which only the channels asked for are filled in. `lasting`: `raw` outlives the explanation, so what is
    made of it is kept for the next (`kept.py`).
    """

    def __init__(self, raw: Tensor, scale: Tensor | None = None, part: int = 0, lasting: bool = False) -> None:
        self.raw, self.scale, self.part, self.lasting = raw, scale, part, lasting
        self._made: dict[bool, tuple[Made, Tensor | None]] = {}  # with inputs last or not; and which rows are right

    @cached_property
    def full(self) -> Tensor:
        """The weight, multiplied out."""
        if self.part == 0 and self.scale is None:
            return self.raw
        if self._compiled:
            return self._rows(None, last=False)
        whole = self.raw if self.scale is None else self.raw * self.scale
        if self.part == 0:
            return whole
        bounds = {"min": 0} if self.part > 0 else {"max": 0}
        return whole.clamp(**bounds) if self.scale is None else whole.clamp_(**bounds)

    def laid(self, like: Tensor) -> Tensor:
        """The weight, multiplied out, with channels last if `like` has: else torch would lay it out at every call."""
        if self.raw.dim() < 3 or self.raw.dim() != like.dim() or not channels_last(like) or not self._compiled:
            return self.full
        return self._last

    @cached_property
    def _last(self) -> Tensor:
        return self._rows(None, last=True)

    @property
    def _compiled(self) -> bool:
        """Whether the compiled loop can make it: scales are one number per output (not in transposed convolutions)."""
        if self.raw.dim() < 2:
            return False
        if self.scale is None:
            return native.available(self.raw)
        return self.scale.numel() == len(self.raw) and native.available(self.raw, self.scale)

    def inputs_last(self, channels: Tensor) -> Tensor:
        """The weight, in memory (outputs, taps, inputs / groups); the rows of these output channels are made."""
        if self._compiled:
            return self._rows(channels, last=True)
        return self.full.movedim(1, -1).contiguous().movedim(-1, 1)

    def _rows(self, channels: Tensor | None, last: bool) -> Tensor:
        """The weight, of which the rows of these output channels (None: all) are made unless they are there."""
        outputs, inputs, taps = self.raw.shape[0], self.raw.shape[1], self.raw.shape[2:].numel()
        last = last and taps > 1  # else it is all the same
        if self.part == 0 and self.scale is None and not last:
            return self.raw
        sizes = (outputs, inputs, taps, self.part) if last else (outputs, inputs * taps, 1, self.part)
        wanted = outputs if channels is None else len(channels)
        found, ready = self._made.get(last) or self._begun(last)
        while True:
            if ready is None and channels is not None:
                ready = torch.zeros(outputs, dtype=torch.uint8, device="cpu")
                self._made[last] = found, ready
            marks = found.marks if self.lasting else None
            arguments = channels, wanted, ready, found.rows, marks, native.threads()
            if not native.call("weights", self.raw, self.scale, *sizes, *arguments):
                return found.rows
            found, ready = self._begun(last, outdated=found)

    def _begun(self, last: bool, outdated: Made | None = None) -> tuple[Made, Tensor | None]:
        found = made(self.raw, self.part, last, outdated) if self.lasting else unkept(self.raw, last)
        self._made[last] = found, None
        return self._made[last]


def contributions(plan: Plan, neurons: Neurons, rows: Tensor, weight: Weight) -> Tensor:
    """Σ_j x_j w_jk for each neuron k; `rows` are the x at the plan's positions."""
    geometry = plan.geometry
    found = torch.zeros_like(neurons.values)
    if native.available(rows, found):
        _layer(1, plan, neurons, weight, rows=rows, d=found)
        return found
    patches = _padded(rows)[plan.taps.long()]  # (positions, taps, inputs)
    w = weight.full.flatten(2)  # (outputs, inputs / groups, taps)
    grouped = patches.unflatten(2, (geometry.groups, -1))
    per_group = w.unflatten(0, (geometry.groups, -1))
    sums = torch.einsum("qtgi,goit->qgo", grouped, per_group).flatten(1)
    return sums[position_of(neurons), neurons.channels.long()]


def handed(plan: Plan, neurons: Neurons, s: Tensor, weight: Weight, rows: Tensor | None = None) -> Tensor:
    """x_j Σ_k w_jk s_k over the neurons k, as rows at the plan's positions; `rows` are the x (None: ones)."""
    geometry = plan.geometry
    taken = s.new_zeros(len(plan.positions), geometry.inputs[1])
    if native.available(s, taken):
        _layer(2, plan, neurons, weight, rows=rows, s=s, taken=taken)
        return taken
    spread = s.new_zeros(len(neurons.positions), geometry.outputs[1])
    spread[position_of(neurons), neurons.channels.long()] = s
    per_group = weight.full.flatten(2).unflatten(0, (geometry.groups, -1))
    patches = torch.einsum("qgo,goit->qtgi", spread.unflatten(1, (geometry.groups, -1)), per_group).flatten(2)
    inside = plan.taps >= 0
    taken.index_add_(0, plan.taps[inside].long(), patches[inside])
    return taken if rows is None else taken.mul_(rows)


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
    taken = torch.zeros_like(rows)
    quotient = given, bias, float(epsilon), one_sign
    _layer(3, plan, neurons, weight, rows=rows, d=d, s=s, taken=taken, quotient=quotient)
    return d, s, taken


def _layer(
    what: int,
    plan: Plan,
    neurons: Neurons,
    weight: Weight,
    *,
    rows: Tensor | None = None,
    d: Tensor | None = None,
    s: Tensor | None = None,
    taken: Tensor | None = None,
    quotient: tuple[Tensor | None, Tensor | None, float, bool] = (None, None, 0.0, False),
) -> None:
    geometry = plan.geometry
    samples, outputs, axis, *inner = geometry.outputs
    native.call(
        "layer",
        *(what, len(neurons.positions), neurons.positions, neurons.begins, neurons.channels, plan.taps),
        *(geometry.taps, geometry.inputs[1], outputs, geometry.groups, weight.inputs_last(neurons.channels)),
        *(rows, d, s, taken, len(plan.positions), samples, axis, math.prod(inner), geometry.reach),
        *(*quotient, native.threads()),
    )


def again(
    plan: Plan,
    neurons: Neurons,
    s: Tensor,
    d: Tensor,
    bias: Tensor | None,
    weight: Weight,
    x: Tensor,
    kept: Neurons,
    where: Tensor,
    here: Tensor,
) -> tuple[Tensor, Tensor]:
    """What neurons hand to the survivors of their input alone, and what they find nobody for (contributions ≥ 0).

    `where` is the row of the plan at each position of the survivors `kept`, if it is `here`; `x` what they contribute
    with.
    """
    lowest, end = (torch.zeros(len(plan.positions), dtype=torch.int64, device="cpu") for _ in range(2))
    lowest[where[here]], end[where[here]] = kept.begins[:-1][here], kept.begins[1:][here]
    received, orphaned = torch.zeros_like(kept.values), torch.empty_like(s)
    geometry = plan.geometry
    samples, outputs, axis, *inner = geometry.outputs
    native.call(
        "again",
        *(len(neurons.positions), neurons.positions, neurons.begins, neurons.channels, plan.taps, geometry.taps),
        *(geometry.inputs[1], outputs, weight.inputs_last(neurons.channels), d, s, bias),
        *(samples, axis, math.prod(inner), geometry.reach),
        *(lowest, end, kept.channels, x, received, orphaned, native.threads()),
    )
    return received, orphaned


def winners(x: Tensor, geometry: Geometry, neurons: Neurons) -> Tensor | None:
    """For neurons of a max pool's output, the place in the plane of the input that won; None without compiled loops."""
    if not native.available(x, neurons.values):
        return None
    found = torch.empty_like(neurons.flat)
    native.call("winners", x, neurons.flat_in(len(x)), len(found), found, *geometry.numbers())
    return found


def to_winners(x: Tensor, geometry: Geometry, given: Tensor) -> Tensor | None:
    """The relevance of a max pool's whole output, handed to the inputs that won; None without compiled loops."""
    if not native.available(x, given):
        return None
    taken = torch.zeros_like(x)
    native.call("pool", x, given, taken, x.shape[0] * x.shape[1], native.threads(), *geometry.numbers())
    return taken


def nonzero_counts(rows: Tensor) -> Tensor:
    """How many entries of each row (samples, n) are not zero."""
    if not native.available(rows):
        return rows.count_nonzero(1)
    counts = torch.empty(len(rows), dtype=torch.int64, device="cpu")
    native.call("count", rows, *rows.shape, counts, native.threads())
    return counts


def seemingly_few(relevance: Tensor, share: float) -> int:
    """In how many samples at most about this share of the entries is not zero, as seen at a glance.

    The tensor is contiguous or has its channels last.
    """
    samples, size = relevance.shape[0], relevance.shape[1:].numel()
    looks = 256 if samples <= 16 else 64
    if native.available() and relevance.dtype is torch.float32 and relevance.is_cpu:
        return int(native.call("glance", relevance, samples, size, looks, int(share * looks)))
    at = torch.arange(looks, device=relevance.device) * size // looks
    return int((in_memory(relevance)[:, at].count_nonzero(1) <= int(share * looks)).sum())


def in_memory(relevance: Tensor) -> Tensor:
    """The entries of each sample (samples, n), in the order in which they lie."""
    return (relevance.movedim(1, -1) if channels_last(relevance) else relevance).flatten(1)


def position_of(neurons: Neurons) -> Tensor:
    """For each neuron, the number of its position."""
    number = torch.arange(len(neurons.positions), device=neurons.positions.device)
    return number.repeat_interleave(neurons.begins.diff())


def _padded(rows: Tensor) -> Tensor:
    """The rows and one more of zeros, which −1 names."""
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
