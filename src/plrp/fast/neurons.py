"""Relevance of few neurons. After pruning, few neurons of a tensor (samples, channels, *plane) hold any.

They are held by position:

- `Neurons`: single neurons, for each position the channels that hold relevance;
- `Rows`: all channels at some positions: the relevance that a layer hands to the positions it reads.

Functions have two bodies: a compiled loop (`native/`), and torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from plrp.ledger import Mass, signed_mass
from plrp.tape.samples import Samples

from . import native
from .channels_last import channels_last, to_channels_last
from .selection import cut_of


@dataclass(frozen=True, eq=False)
class Neurons:
    """Relevance of single neurons of a tensor: position q holds neurons begins[q] … begins[q + 1]."""

    shape: torch.Size  # of the tensor: (samples, channels, *plane)
    positions: Tensor  # int64, sample · plane + place, ascending
    begins: Tensor  # int64, one longer than positions
    channels: Tensor  # int32
    values: Tensor
    _in_batch: dict[int, Tensor] = field(default_factory=dict)  # of `flat_in`

    def holding(self, values: Tensor) -> Neurons:
        """The same neurons with other values."""
        same = replace(self, values=values)
        if "_places" in self.__dict__:  # where they stand has not changed
            same.__dict__["_places"] = self._places
        return same

    def each(self, per_position: Tensor) -> Tensor:
        """For each neuron, the entry of its position."""
        return per_position.repeat_interleave(self.begins.diff())

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        width, plane = self.shape[1], self.shape[2:].numel()
        if native.available(self.values):
            flat, sample = (torch.empty_like(self.channels, dtype=torch.int64) for _ in range(2))
            places = self.positions, self.begins, len(self.positions), self.channels
            native.call("flat", *places, width, plane, flat, sample)
            return flat, sample
        at = self.each(self.positions)
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

    def flat_in(self, batch: int) -> Tensor:
        """Where each neuron stands in a batch of which this tensor holds several copies, one after the other."""
        if batch == self.shape[0]:
            return self.flat
        if batch not in self._in_batch:
            self._in_batch[batch] = self.flat % (batch * self.shape[1:].numel())
        return self._in_batch[batch]

    def at(self, tensor: Tensor) -> Tensor:
        """The values at these neurons of another tensor of this shape, or of the batch that is stacked up here."""
        if tensor.shape[1:] == self.shape[1:] and len(tensor):
            flat = self.flat_in(len(tensor))
            if not native.available(tensor):
                return tensor.reshape(-1)[flat]
            values = torch.empty_like(flat, dtype=tensor.dtype)
            native.call("take", tensor, flat, len(values), values, native.threads())
            return values
        return tensor.expand(self.shape).reshape(-1)[self.flat]

    def sum(self, values: Tensor) -> Tensor:
        """The sum per sample of something that each neuron has, in float64."""
        return torch.segment_reduce(values.double(), "sum", lengths=self.counts, unsafe=True)

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
        whole[self.each(self.positions) * width + self.channels] = self.values
        return whole.view(self.shape[0], *self.shape[2:], width).movedim(-1, 1)

    def rows(self) -> Rows:
        """With all channels of their positions."""
        values = self.values.new_zeros(len(self.positions), self.shape[1])
        values[position_of(self), self.channels.long()] = self.values
        return Rows(self.shape, self.positions, values)

    def channel_sums(self) -> Tensor:
        """The sum over the channels, (samples, 1, *plane)."""
        whole = self.values.new_zeros(self.shape[0] * self.shape[2:].numel())
        return whole.index_add_(0, self.each(self.positions), self.values).view(self.shape[0], 1, *self.shape[2:])

    def of(self, chosen: Tensor) -> Neurons:
        """The neurons of some samples (samples,), the others without any."""
        return _at_some(self, chosen[self.positions // self.shape[2:].numel()], self.positions, self.shape)

    def only(self, samples: Tensor) -> Neurons:
        """The neurons of some samples (ascending), which become a batch of their own."""
        plane = self.shape[2:].numel()
        number = torch.full((self.shape[0],), -1, device=samples.device)
        number[samples] = torch.arange(len(samples), device=samples.device)
        sample = number[self.positions // plane]
        shape = torch.Size((len(samples), *self.shape[1:]))
        return _at_some(self, sample >= 0, sample * plane + self.positions % plane, shape)


def _at_some(neurons: Neurons, chosen: Tensor, positions: Tensor, shape: torch.Size) -> Neurons:
    """The neurons at the chosen positions, in a tensor of this shape, in which `positions` are their numbers."""
    inside, sizes = neurons.each(chosen), neurons.begins.diff()[chosen]
    begins = torch.cat([neurons.begins[:1] * 0, sizes.cumsum(0)])
    return Neurons(shape, positions[chosen], begins, neurons.channels[inside], neurons.values[inside])


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
        else:
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
    return relevance if channels_last(relevance) else to_channels_last(relevance)


def at_neurons(relevance: Relevance, neurons: Neurons) -> Tensor:
    """The values of another relevance of the same tensor at these neurons."""
    if isinstance(relevance, Tensor):
        return neurons.at(relevance)
    rows = relevance.rows() if isinstance(relevance, Neurons) else relevance
    where = torch.searchsorted(rows.positions, neurons.positions).clamp(max=max(0, len(rows.positions) - 1))
    if len(rows.positions) == 0:
        return torch.zeros_like(neurons.values)
    here = neurons.each(rows.positions[where] == neurons.positions)
    index = neurons.each(where) * rows.shape[1] + neurons.channels
    return torch.where(here, rows.values.view(-1)[index], 0.0)


def add(a: Relevance, b: Relevance) -> Relevance:
    """The sum of two relevances of one tensor."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if any(isinstance(r, Tensor) and channels_last(r) for r in (a, b)):
            return dense_last(a) + dense_last(b)
        return dense(a) + dense(b)
    positions, where_a, where_b = _union(a.positions, b.positions)
    total = a.values.new_zeros(len(positions), a.shape[1])
    for part, where in ((a, where_a), (b, where_b)):
        if native.available(total, part.values):
            entries = (None, None) if isinstance(part, Rows) else (part.begins, part.channels)
            native.call("add", total, a.shape[1], where, len(where), part.values, *entries)
        elif isinstance(part, Rows):
            total.index_add_(0, where, part.values)
        else:
            total.view(-1).index_add_(0, part.each(where) * a.shape[1] + part.channels, part.values)
    return Rows(a.shape, positions, total)


def _union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The union of two ascending lists, and where each stands in it."""
    if native.available() and a.is_cpu:
        positions = native.empty(torch.int64, len(a) + len(b))
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
    count = int(stats[:, 7].sum())
    plane = relevance.shape[2:].numel()
    if isinstance(relevance, Tensor) and channels_last(relevance):
        values = relevance.movedim(1, -1).reshape(-1, channels)
        relevance = Rows(relevance.shape, torch.arange(samples * plane, device=values.device), values)
    if native.available(values):
        most = min(count, samples * plane)
        positions, begins = native.empty(torch.int64, most), native.empty(torch.int64, most + 1)
        of_each, held = native.empty(torch.int32, count), native.empty(torch.float32, count)
        into = stats, rescale, positions, begins, of_each, held, native.threads()
        if isinstance(relevance, Rows):
            where = relevance.positions, relevance.offsets
            places = native.call("collect_rows", values, *where, samples, channels, *into)
        else:
            places = native.call("collect_dense", values, samples, channels, plane, *into)
        count = int(begins[places])
        return Neurons(relevance.shape, positions[:places], begins[: places + 1], of_each[:count], held[:count])
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
        above, below = (scale.to(rows)[of[row]] for scale in cut_of(stats).scales)
        held = held * torch.where(held > 0, above, below)
    lived, sizes = row.unique_consecutive(return_counts=True)
    begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Neurons(relevance.shape, at[lived], begins, channel.int(), held)


def thin(relevance: Tensor, stats: Tensor) -> Tensor:
    """The same survivors, times λ, in an ordinary tensor: for tensors of which many survive."""
    rows = relevance.flatten(1)
    if native.available(relevance):
        out = torch.empty_like(relevance)
        native.call("thin", relevance, *rows.shape, stats, out, native.threads())
        return out
    stats = stats.to(rows.device)
    up, down = stats[:, :1].to(rows.dtype), -stats[:, 1:2].to(rows.dtype)
    above, below = (scale.to(rows.dtype)[:, None] for scale in cut_of(stats).scales)
    surviving = torch.where(rows > up, rows * above, torch.where(rows < down, rows * below, 0.0))
    return surviving.view(relevance.shape)


def without_zeros(neurons: Neurons) -> Neurons:
    """The neurons that hold something."""
    held = neurons.values != 0
    if bool(held.all()):
        return neurons
    return regroup(neurons.shape, neurons.each(neurons.positions)[held], neurons.channels[held], neurons.values[held])


def regroup(shape: torch.Size, at: Tensor, channels: Tensor, values: Tensor) -> Neurons:
    """Neurons that stand at any positions in any order; relevance that lands on one neuron is added up."""
    places, width = shape[0] * shape[2:].numel(), shape[1]
    if native.available(values):
        count = len(at)
        positions, begins = native.empty(torch.int64, count), native.empty(torch.int64, count + 1)
        joined = torch.empty_like(channels), torch.empty_like(values)
        size = native.call("regroup", at, channels, values, count, places, width, positions, begins, *joined)
        count = int(begins[size])
        return Neurons(shape, positions[:size], begins[: size + 1], joined[0][:count], joined[1][:count])
    neurons, where = (at * width + channels).unique(return_inverse=True)
    held = values.new_zeros(len(neurons)).index_add_(0, where, values)
    positions, sizes = (neurons // width).unique_consecutive(return_counts=True)
    begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Neurons(shape, positions, begins, (neurons % width).int(), held)


def nonzero_counts(rows: Tensor) -> Tensor:
    """How many entries of each row (samples, n) are not zero."""
    if not native.available(rows):
        return rows.count_nonzero(1)
    counts = native.empty(torch.int64, len(rows))
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
    return neurons.each(torch.arange(len(neurons.positions), device=neurons.positions.device))


def mass_of(relevance: Relevance, samples: Samples) -> Mass:
    """The mass of the positive and of the negative part, per sample."""
    if isinstance(relevance, Tensor):
        return signed_mass(samples.rows(relevance))
    if isinstance(relevance, Neurons):
        return relevance.sum(relevance.values.clamp(min=0)), relevance.sum(relevance.values.clamp(max=0)).neg()
    sample = relevance.positions // relevance.shape[2:].numel()
    zero = relevance.values.new_zeros(relevance.shape[0], dtype=torch.float64)
    signs = relevance.values.clamp(min=0), relevance.values.clamp(max=0)
    up, down = (part.sum(1, dtype=torch.float64) for part in signs)
    return zero.index_add(0, sample, up), zero.index_add(0, sample, down).neg()
