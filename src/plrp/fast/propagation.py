"""How relevance of few neurons is handed down: the same formulas as in `passing.py` and `explain.py`, neuron by neuron.

A rule's branches are the same; only the sums run over the neurons that hold relevance. What has no form here returns
None, and the walk goes on with an ordinary tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plrp.ledger import Mass, signed_mass
from plrp.passing import epsilon_for, pooling_geometry
from plrp.rules import ORPHANED, Booking, Branch, Handed, Part, quotient
from plrp.tape.maps import Convolution
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.values import Op

from . import native
from .neurons import (
    Geometry,
    Neurons,
    Plan,
    Relevance,
    Rows,
    Weight,
    contributions,
    gathered,
    handed,
    in_memory,
    nonzero_counts,
    offsets,
    plan,
    regrouped,
    seemingly_few,
    survivors,
    through,
    winners,
)
from .neurons import again as to_survivors
from .switch import fast
from .whole_tensors import channels_last

# A layer follows single neurons where at most this share of its outputs holds relevance. Measured with
# benchmarks/switch.py: on two cores the cost is flat between 0.06 and 0.15, and rises below.
NEURONS_BELOW = 0.15
# Where fewer of the samples than this share have few neurons, all go by whole tensors: to split a batch and to join it
# again costs some passes over its memory, which small convolutions of large batches do not save (sequences.py).
SPLIT_FROM = 0.25
# Without the compiled loops, whole positions are gathered: worth it where at most this share of them holds relevance.
POSITIONS_BELOW = 0.05
FEWEST = 4096  # smaller tensors are not worth the book-keeping


def followable(op: Op, dtype: torch.dtype, copies: int = 1) -> Geometry | None:
    """Where a layer reads, if single neurons can be followed through it; of a batch stacked up in several copies."""
    value, output = op.inputs[0], op.output
    if not fast() or not isinstance(op.map, Convolution) or not all(v.samples.leads(v.shape) for v in (value, output)):
        return None
    if len(value.shape) < 3 or copies * value.shape.numel() >= 1 << 31 or output.shape.numel() < FEWEST:
        return None
    if value.dtype != dtype or not value.data.is_contiguous():
        return None
    inputs, outputs = (torch.Size((copies * v.shape[0], *v.shape[1:])) for v in (value, output))
    return op.map.geometry(inputs, outputs)


class Few(NamedTuple):
    """The samples in which few neurons hold relevance: these neurons; and the samples in which many do."""

    neurons: Neurons
    others: Tensor | None  # numbers of samples, ascending; None: there are none


def neurons_of(relevance: Relevance) -> Few | None:
    """The neurons that hold relevance where they are few, sample by sample; None where they are in hardly any."""
    if not relevance.shape.numel() or len(relevance.shape) < 3:
        return None
    limit = NEURONS_BELOW * relevance.shape[1:].numel()
    if isinstance(relevance, Neurons):
        few = relevance.counts <= limit
        if not few.all():
            few = relevance.sum(relevance.values != 0) <= limit  # some may hold nothing: a summand that was zero
        found = relevance if bool(few.all()) else relevance.of(few)
    else:
        if isinstance(relevance, Tensor) and not channels_last(relevance):
            relevance = relevance.contiguous()
        counts = _counts(relevance)
        if counts is None:
            return None
        few = counts <= limit
        if int(few.sum()) < max(1, SPLIT_FROM * len(few)):
            return None
        stats = torch.zeros(len(counts), 8, dtype=torch.float64)
        stats[:, 6] = stats[:, 7] = torch.where(few, counts, 0)
        stats[:, :2] = torch.where(few, 0.0, torch.inf)[:, None]  # θ: of the others nothing
        found = survivors(relevance, stats, rescale=False)
    if not native.available(found.values):  # torch gathers positions, the compiled loops do not
        narrow = offsets(found.positions, found.shape).diff() <= POSITIONS_BELOW * found.shape[2:].numel()
        few, found = few & narrow, found if bool(narrow.all()) else found.of(narrow)
    number = int(few.sum())
    if number < max(1, SPLIT_FROM * len(few)):
        return None
    return Few(found, None if number == len(few) else (~few).nonzero().flatten())


def _counts(relevance: Tensor | Rows) -> Tensor | None:
    """How many neurons of each sample hold relevance; None where it is seen at a glance that they are many."""
    if isinstance(relevance, Rows):
        each = nonzero_counts(relevance.values)
        return torch.cat([each.new_zeros(1), each.cumsum(0)])[relevance.offsets].diff()
    if seemingly_few(relevance, 2 * NEURONS_BELOW) < max(1, SPLIT_FROM * len(relevance)):
        return None
    return nonzero_counts(in_memory(relevance))


@dataclass
class Followed:
    """What a branch did with the relevance of few neurons: kept for PLRP-M's second pass."""

    branch: Branch
    plan: Plan
    neurons: Neurons  # of the layer's output
    given: Tensor  # share_k R_k
    s: Tensor
    d: Tensor
    epsilon: float

    def rows(self, part: Part) -> Tensor:
        """What a part of the branch reads, at the positions of the plan."""
        return _rows(part, self.plan)

    def dense(self) -> Handed:
        """The same as ordinary tensors; where nothing is handed down the denominator is no matter."""
        given, s = self.neurons.holding(self.given).dense(), self.neurons.holding(self.s).dense()
        d = torch.ones_like(s)
        d.view(-1)[self.neurons.flat] = self.d
        return Handed(self.branch, given, s, d, self.epsilon)


def follow(one: Handed) -> Followed:
    """What a dense pass did, for its neurons that hold relevance: few survivors below make a second pass cheap."""
    assert one.geometry is not None
    s = one.s.contiguous()
    stats = torch.zeros(len(s), 8, dtype=torch.float64)
    stats[:, 6] = stats[:, 7] = nonzero_counts(s.flatten(1))
    neurons = survivors(s, stats, rescale=False)
    held = neurons.holding(neurons.at(one.given))
    d = neurons.at(one.denominator)
    return Followed(one.branch, plan(one.geometry, neurons), held, held.values, neurons.values, d, one.epsilon)


def _rows(part: Part, found: Plan) -> Tensor:
    if part.unit:
        return part.input.new_ones(len(found.positions), found.geometry.inputs[1])
    return gathered(part.input, found.positions)


def through_layer(
    geometry: Geometry,
    neurons: Neurons,
    branches: Sequence[Branch],
    denominators: Sequence[Tensor | None],
    epsilon: float,
    book: Booking,
) -> tuple[Rows, list[Followed]]:
    """A conv layer by its rule, for the neurons that hold relevance; d_k is computed where it is not given."""
    found = plan(geometry, neurons)
    taken: Tensor | None = None
    followed = []
    for branch, known in zip(branches, denominators, strict=True):
        share = branch.share
        held = neurons.values
        if isinstance(share, Tensor):
            held = held * neurons.at(share)
        elif share != 1.0:
            held = held * share
        rows = [_rows(part, found) for part in branch.parts]
        bias = None if branch.bias is None else branch.bias.flatten()
        if known is None and len(branch.parts) == 1 and native.available(held, rows[0]):
            sign = branch.one_sign
            d, s, term = through(found, neurons, held, rows[0], branch.parts[0].weight, bias, epsilon, sign)
            taken = term if taken is None else taken.add_(term)
        else:
            d = neurons.at(known) if known is not None else _contributions(found, neurons, rows, branch, bias)
            s = quotient(held, d, epsilon, branch.one_sign)
            for part, row in zip(branch.parts, rows, strict=True):
                term = handed(found, neurons, s, part.weight, None if part.unit else row)
                taken = term if taken is None else taken.add_(term)
        book_neurons(book, branch, neurons, held, s, d, epsilon)
        followed.append(Followed(branch, found, neurons, held, s, d, epsilon))
    assert taken is not None
    return Rows(geometry.inputs, found.positions, taken), followed


def _contributions(
    found: Plan, neurons: Neurons, rows: Sequence[Tensor], branch: Branch, bias: Tensor | None
) -> Tensor:
    total = torch.zeros_like(neurons.values)
    for part, row in zip(branch.parts, rows, strict=True):
        total += contributions(found, neurons, row, part.weight)
    return total if bias is None else total + bias[neurons.channels.long()]


def again(one: Followed, kept: Neurons) -> tuple[Tensor, Tensor]:
    """PLRP-M's second pass: m_k to the survivors alone. Returns what each survivor receives, and what is orphaned."""
    branch, found, above = one.branch, one.plan, one.neurons
    if not len(found.positions):  # nobody above, or nobody who reads more than padding: nothing was handed down
        return torch.zeros_like(kept.values), torch.zeros_like(one.s)
    where = torch.searchsorted(found.positions, kept.positions).clamp(max=len(found.positions) - 1)
    here = (
        found.positions[where] == kept.positions
    )  # a survivor may live by a skip alone, where this layer reads nothing
    if (
        branch.one_sign
        and len(branch.parts) == 1
        and found.geometry.groups == 1
        and native.available(one.s, kept.values)
    ):
        part = branch.parts[0]
        x = torch.ones_like(kept.values) if part.unit else kept.at(part.input)
        flat = None if branch.bias is None else branch.bias.flatten()
        return to_survivors(found, above, one.s, one.d, flat, part.weight, x, kept, where, here)
    sizes = kept.begins.diff()
    mine = here.repeat_interleave(sizes)
    channels = found.geometry.inputs[1]
    index = (where.repeat_interleave(sizes) * channels + kept.channels)[mine]
    alive = torch.zeros(len(found.positions), dtype=torch.bool, device=where.device)
    alive[where[here]] = True
    taps = torch.where(alive[found.taps.clamp(min=0).long()] & (found.taps >= 0), found.taps, -1)
    thinned = found._replace(taps=taps)
    bias = 0.0 if branch.bias is None else branch.bias.flatten()[above.channels.long()]
    m = one.s * (one.d - bias)
    reached, magnitudes = torch.zeros_like(m), torch.zeros_like(m)
    inputs = []
    for part in branch.parts:
        x = one.rows(part).view(-1)[index]
        masked = m.new_zeros(len(found.positions), channels)
        masked.view(-1)[index] = x
        reached += contributions(thinned, above, masked, part.weight)
        if not branch.one_sign:
            magnitudes += contributions(thinned, above, masked.abs(), Weight(part.weight.full.abs()))
        inputs.append(x)
    small = reached <= 0 if branch.one_sign else reached.abs() <= ORPHANED * magnitudes
    orphaned = torch.where(small, m, 0.0)
    q = torch.where(small, 0.0, m / torch.where(small, 1.0, reached))
    received = torch.zeros_like(kept.values)
    for part, x in zip(branch.parts, inputs, strict=True):
        received[mine] += handed(thinned, above, q, part.weight).view(-1)[index] * x
    return received, orphaned


# --- operations other than layers -------------------------------------------------------------------------------------


def pass_on(op: Op, given: Sequence[Relevance | None], book: Booking) -> list[Relevance | None] | None:
    """The relevance of an operation's inputs, given that of few of its output's neurons; None: not in this form."""
    if op.rule is not None or len(given) != 1 or not isinstance(given[0], Neurons | Rows):
        return None
    relevance = given[0]
    if op.family is Family.PASS and op.inputs[0].shape == op.output.shape:
        return [relevance]
    if not isinstance(relevance, Neurons):
        return None
    if op.family is Family.WINNER:
        winners = _winners(op, relevance)
        return None if winners is None else [_to_winners(op, relevance, winners)]
    if op.kind == "add" and len(op.inputs) == 2 and op.kwargs.get("alpha", 1) == 1:
        return _split_sum(op, relevance, book)
    return None


def _winners(op: Op, relevance: Neurons) -> Tensor | None:
    """For each neuron of a max pool's output, the place of the input that won."""
    value = op.inputs[0]
    if op.winners is not None and len(value.shape) == 4:
        return relevance.at(op.winners)
    geometry = pooling_geometry(op)
    if geometry is None or value.dtype != relevance.values.dtype or not value.samples.leads(value.shape):
        return None
    return winners(value.data, geometry, relevance)


def _to_winners(op: Op, relevance: Neurons, at: Tensor) -> Neurons:
    shape = torch.Size((relevance.shape[0], *op.inputs[0].shape[1:]))
    return regrouped(shape, relevance.sample * shape[2:].numel() + at, relevance.channels, relevance.values)


def _split_sum(op: Op, relevance: Neurons, book: Booking) -> list[Relevance | None] | None:
    first, second = op.inputs
    dtype = relevance.values.dtype
    if any(v.shape != op.output.shape or v.dtype != dtype for v in op.inputs) or op.output.dtype != dtype:
        return None
    epsilon = epsilon_for(op.output, first, second)
    z = relevance.at(op.output.data)
    s = quotient(relevance.values, z, epsilon, first.nonnegative and second.nonnegative)
    if book.active:
        book.epsilon = book.epsilon + epsilon * relevance.sum(s * torch.copysign(torch.ones_like(z), z))
    return [relevance.holding(s * relevance.at(value.data)) for value in (first, second)]


# --- the ledger -------------------------------------------------------------------------------------------------------


def mass_of(relevance: Relevance, samples: Samples) -> Mass:
    """The mass of the positive and of the negative part, per sample."""
    if isinstance(relevance, Tensor):
        return signed_mass(samples.rows(relevance))
    if isinstance(relevance, Neurons):
        return relevance.sum(relevance.values.clamp(min=0)), relevance.sum(relevance.values.clamp(max=0)).neg()
    sample = relevance.positions // relevance.shape[2:].numel()
    zero = relevance.values.new_zeros(relevance.shape[0], dtype=torch.float64)
    up, down = (
        part.sum(1, dtype=torch.float64) for part in (relevance.values.clamp(min=0), relevance.values.clamp(max=0))
    )
    return zero.index_add(0, sample, up), zero.index_add(0, sample, down).neg()


def book_neurons(
    book: Booking, branch: Branch, neurons: Neurons, given: Tensor, s: Tensor, d: Tensor, epsilon: float
) -> None:
    """What the bias and ε took in one branch, and what an empty negative branch created; see `passing.book_branch`."""
    if not book.active:
        return
    if branch.bias is not None:
        book.bias = book.bias + neurons.sum(s * branch.bias.flatten()[neurons.channels.long()])
    signs = torch.copysign(torch.ones_like(d), d)
    if epsilon == 0:
        book.epsilon = book.epsilon + neurons.sum(given * (d == 0))
    elif isinstance(branch.share, float) and branch.share < 0:
        empty = d == 0
        book.created = book.created - neurons.sum(given * empty)
        book.epsilon = book.epsilon + epsilon * neurons.sum(s * ~empty * signs)
    else:
        book.epsilon = book.epsilon + epsilon * neurons.sum(s * signs)
