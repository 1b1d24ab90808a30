"""How relevance of few neurons is handed down: the formulas of `walk`, `passing` and `pruning`, neuron by neuron.

A rule's branches are the same; only the sums run over the neurons that hold relevance. Other cases return
None, and the walk goes on with an ordinary tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.ledger import Booking
from plrp.passing import book_branch, book_epsilon, book_unshared, cancellation, epsilon_for, ratio
from plrp.pruning import hand_to_survivors
from plrp.rules import Branch, FirstPass, Part, quotient
from plrp.tape.maps import Weight
from plrp.tape.operations import Family
from plrp.tape.values import Op

from . import limits, native, neuron_layers
from .channels_last import channels_last
from .neuron_layers import Geometry, Plan, plan, pool_geometry, read_by
from .neurons import Neurons, Relevance, Rows, in_memory, nonzero_counts, offsets, regroup, seemingly_few, survivors
from .signed_branch import SignedBranch
from .weight_cache import fast_weight


class Few(NamedTuple):
    """The samples in which few neurons hold relevance: these neurons; and the samples in which many do."""

    neurons: Neurons
    others: Tensor | None  # numbers of samples, ascending; None: there are none


def neurons_of(relevance: Relevance) -> Few | None:
    """The neurons that hold relevance where they are few, sample by sample; None where they are in hardly any."""
    if not relevance.shape.numel() or len(relevance.shape) < 3:
        return None
    limit = limits.NEURONS_BELOW * relevance.shape[1:].numel()
    if isinstance(relevance, Neurons):
        few = relevance.counts <= limit
        if not few.all():
            few = relevance.sum(relevance.values != 0) <= limit  # some may hold nothing: a summand that was zero
        neurons = relevance if bool(few.all()) else relevance.of(few)
    else:
        if isinstance(relevance, Tensor) and not channels_last(relevance):
            relevance = relevance.contiguous()
        counts = _counts(relevance)
        if counts is None:
            return None
        few = counts <= limit
        if int(few.sum()) < max(1, limits.SPLIT_FROM * len(few)):
            return None
        neurons = _nonzero(relevance, torch.where(few, counts, 0))
    if not native.available(neurons.values):  # torch gathers positions, the compiled loops do not
        narrow = offsets(neurons.positions, neurons.shape).diff() <= limits.POSITIONS_BELOW * neurons.shape[2:].numel()
        few, neurons = few & narrow, neurons if bool(narrow.all()) else neurons.of(narrow)
    number = int(few.sum())
    if number < max(1, limits.SPLIT_FROM * len(few)):
        return None
    return Few(neurons, None if number == len(few) else (~few).nonzero().flatten())


def _nonzero(relevance: Tensor | Rows, counts: Tensor) -> Neurons:
    """The neurons that hold relevance, as many as `counts` says of each sample; none of a sample with a count of 0."""
    stats = torch.zeros(len(counts), 8, dtype=torch.float64)
    stats[:, 6] = stats[:, 7] = counts
    stats[:, :2] = torch.where(counts > 0, 0.0, torch.inf)[:, None]  # θ
    return survivors(relevance, stats, rescale=False)


def _counts(relevance: Tensor | Rows) -> Tensor | None:
    """How many neurons of each sample hold relevance; None where it is seen at a glance that they are many."""
    if isinstance(relevance, Rows):
        each = nonzero_counts(relevance.values)
        return torch.cat([each.new_zeros(1), each.cumsum(0)])[relevance.offsets].diff()
    if seemingly_few(relevance, 2 * limits.NEURONS_BELOW) < max(1, limits.SPLIT_FROM * len(relevance)):
        return None
    return nonzero_counts(in_memory(relevance))


@dataclass
class SparsePass:
    """The pass of a branch over the relevance of few neurons: PLRP-M's second pass starts from it."""

    branch: Branch
    plan: Plan
    neurons: Neurons  # of the layer's output
    given: Tensor  # share_k R_k
    s: Tensor
    d: Tensor
    epsilon: float

    def dense(self) -> FirstPass:
        """The same as ordinary tensors; where nothing is handed down the denominator does not matter."""
        given, s = self.neurons.holding(self.given).dense(), self.neurons.holding(self.s).dense()
        d = torch.ones_like(s)
        d.view(-1)[self.neurons.flat] = self.d
        return FirstPass(self.branch, given, s, d, self.epsilon)


@dataclass
class DensePass(FirstPass):
    """The pass of a branch over a whole tensor; and where its layer reads, if neurons can be followed through."""

    geometry: Geometry | None = None

    def sparse(self) -> SparsePass:
        """The same for the neurons that hold relevance: few survivors below make a second pass cheap."""
        assert self.geometry is not None
        s = self.s.contiguous()
        neurons = _nonzero(s, nonzero_counts(s.flatten(1)))
        held = neurons.holding(neurons.at(self.given))
        d = neurons.at(self.denominator)
        return SparsePass(self.branch, plan(self.geometry, neurons), held, held.values, neurons.values, d, self.epsilon)


def _rows(part: Part, read: Plan) -> Tensor:
    if part.unit:
        return part.input.new_ones(len(read.positions), read.geometry.inputs[1])
    return neuron_layers.gather(part.input, read.positions)


def through_layer(
    geometry: Geometry,
    neurons: Neurons,
    branches: Sequence[Branch],
    denominators: Sequence[Tensor | None],
    epsilon: float,
    book: Booking,
) -> tuple[Rows, list[SparsePass]]:
    """A conv layer by its rule, for the neurons that hold relevance; d_k is computed where it is not given."""
    read = plan(geometry, neurons)
    received: Tensor | None = None
    passes = []
    for branch, known in zip(branches, denominators, strict=True):
        share = branch.share
        held = neurons.values
        if isinstance(share, Tensor):
            held = held * neurons.at(share)
        elif share != 1.0:
            held = held * share
        rows = [_rows(part, read) for part in branch.parts]
        bias = None if branch.bias is None else branch.bias.flatten()
        if known is None and len(branch.parts) == 1 and native.available(held, rows[0]):
            weight, sign = branch.parts[0].weight, branch.one_sign
            d, s, term = neuron_layers.through(read, neurons, held, rows[0], weight, bias, epsilon, sign)
            received = term if received is None else received.add_(term)
        else:
            parts = list(zip(branch.parts, rows, strict=True))
            z = neurons.at(branch.z) if isinstance(branch, SignedBranch) else None
            if known is not None:
                d = neurons.at(known)
            elif z is not None:
                d = neuron_layers.contributions(read, neurons, rows[1], branch.parts[1].weight).mul_(z.sign()).add_(z)
            else:
                d = torch.zeros_like(neurons.values)
                for part, row in parts:
                    d += neuron_layers.contributions(read, neurons, row, part.weight)
                d = d if bias is None else d + bias[neurons.channels.long()]
            s = quotient(held, d, epsilon, branch.one_sign)
            for number, (part, row) in enumerate(parts):
                at_each = s if z is None or number == 0 else s * z.sign()
                term = neuron_layers.hand(read, neurons, at_each, part.weight, None if part.unit else row)
                received = term if received is None else received.add_(term)
        if book.active:
            of_bias = None if bias is None else bias[neurons.channels.long()]
            book_branch(book, branch, held, s, d, epsilon, neurons.sum, of_bias)
        passes.append(SparsePass(branch, read, neurons, held, s, d, epsilon))
    book_unshared(book, branches, lambda share: neurons.sum(neurons.values * neurons.at(share)))
    assert received is not None
    return Rows(geometry.inputs, read.positions, received), passes


def redistribute(one: SparsePass, surviving: Neurons) -> tuple[Tensor, Tensor]:
    """PLRP-M's second pass, `pruning.hand_to_survivors`, for single survivors: their relevance, and orphaned mass."""
    branch, read = one.branch, one.plan
    if not len(read.positions):  # nobody above, or nobody who reads more than padding: nothing was handed down
        return torch.zeros_like(surviving.values), torch.zeros_like(one.s)
    where = torch.searchsorted(read.positions, surviving.positions).clamp(max=len(read.positions) - 1)
    # a survivor may live by a skip alone, where this layer reads nothing
    here = read.positions[where] == surviving.positions
    if compiled_second_pass(one) and native.available(surviving.values):
        (part,) = branch.parts
        x = torch.ones_like(surviving.values) if part.unit else surviving.at(part.input)
        bias = None if branch.bias is None else branch.bias.flatten()
        # the survivors at each row of the plan
        lowest, end = (torch.zeros(len(read.positions), dtype=torch.int64, device="cpu") for _ in range(2))
        lowest[where[here]], end[where[here]] = surviving.begins[:-1][here], surviving.begins[1:][here]
        received, orphaned = torch.zeros_like(surviving.values), torch.empty_like(one.s)
        geometry, weight = read.geometry, fast_weight(part.weight).inputs_last(one.neurons.channels)
        sizes = geometry.taps, geometry.inputs[1], geometry.outputs[1]
        above = *read_by(one.neurons, read), *sizes, weight, one.d, one.s, bias, *geometry.lines
        living = lowest, end, surviving.channels, x, received, orphaned
        native.call("redistribute", *above, *living, native.threads())
        return received, orphaned
    among = AmongSurvivors(one, surviving, where, here)
    (handed,) = hand_to_survivors(FirstPass(among, one.given, one.s, one.d, one.epsilon), None, None)  # type: ignore[arg-type]
    return handed


def compiled_second_pass(one: FirstPass | SparsePass) -> bool:
    """Whether the compiled second pass takes a branch: contributions ≥ 0, so that rounding is not amplified either."""
    geometry = one.plan.geometry if isinstance(one, SparsePass) else getattr(one, "geometry", None)
    if geometry is None or geometry.groups > 1 or not native.available(one.given):
        return False
    return one.branch.one_sign and len(one.branch.parts) == 1


class AmongSurvivors:
    """A branch of which only the survivors among its inputs contribute: the sums of `Branch`, neuron by neuron."""

    def __init__(self, one: SparsePass, surviving: Neurons, where: Tensor, here: Tensor) -> None:
        self.one, self.surviving, self.one_sign = one, surviving, one.branch.one_sign
        read, bias = one.plan, one.branch.bias
        self.bias = None if bias is None else bias.flatten()[one.neurons.channels.long()]
        self.mine = surviving.each(here)  # the survivors that the layer reads, and where they stand in the plan
        self.index = (surviving.each(where) * read.geometry.inputs[1] + surviving.channels)[self.mine]
        alive = torch.zeros(len(read.positions), dtype=torch.bool, device=where.device)
        alive[where[here]] = True
        living = alive[read.taps.clamp(min=0).long()] & (read.taps >= 0)
        self.plan = read._replace(taps=torch.where(living, read.taps, -1))
        self.inputs = [_rows(part, read).view(-1)[self.index] for part in one.branch.parts]

    def contributions(self, mask: None, magnitudes: bool = False) -> Tensor:
        """n̂_k = Σ_j mask_j n_jk."""
        total = torch.zeros_like(self.one.s)
        for part, x in zip(self.one.branch.parts, self.inputs, strict=True):
            rows = x.new_zeros(len(self.plan.positions), self.plan.geometry.inputs[1])
            rows.view(-1)[self.index] = x.abs() if magnitudes else x
            weight = Weight(part.weight.full.abs()) if magnitudes else part.weight
            total += neuron_layers.contributions(self.plan, self.one.neurons, rows, weight)
        return total

    def magnitudes(self, mask: None) -> Tensor:
        """Σ_j mask_j |n_jk|."""
        return self.contributions(mask, magnitudes=True)

    def hand(self, q: Tensor, like: None, mask: None) -> Tensor:
        """Σ_k n_jk q_k for each survivor."""
        received = torch.zeros_like(self.surviving.values)
        for part, x in zip(self.one.branch.parts, self.inputs, strict=True):
            rows = neuron_layers.hand(self.plan, self.one.neurons, q, part.weight)
            received[self.mine] += rows.view(-1)[self.index] * x
        return received


# --- operations other than layers -------------------------------------------------------------------------------------


def pass_on(
    op: Op, given: Sequence[Relevance | None], book: Booking, composite: Composite
) -> list[Relevance | None] | None:
    """The relevance of an operation's inputs, given that of few of its output's neurons; None: not in this form."""
    if op.rule is not None or len(given) != 1 or not isinstance(given[0], Neurons | Rows):
        return None
    relevance = given[0]
    if op.family is Family.PASS and op.inputs[0].shape == op.output.shape:
        return [relevance]
    if not isinstance(relevance, Neurons):
        return None
    if op.family is Family.WINNER:
        handed = to_winners(op, relevance)
        return None if handed is None else [handed]
    if adds_in_proportion(op, composite):
        return _split_sum(op, relevance, book)
    return None


def adds_in_proportion(op: Op, composite: Composite) -> bool:
    """Whether an operation is a plain sum of two values that splits in proportion, with the usual ε."""
    plain = op.kind == "add" and len(op.inputs) == 2 and op.kwargs.get("alpha", 1) == 1
    return plain and not composite.residual_gamma and composite.epsilon is None


def to_winners(op: Op, relevance: Neurons) -> Neurons | None:
    """The neurons of a max pool's output, each at the place of the input that won."""
    value, geometry = op.inputs[0], pool_geometry(op)
    if geometry is not None and op.winners is not None:
        at: Tensor | None = relevance.at(op.winners)
    elif geometry is None or value.dtype != relevance.values.dtype or not value.samples.leads(value.shape):
        return None
    else:
        at = neuron_layers.winners(value.data, geometry, relevance)
    if at is None:
        return None
    shape = torch.Size((relevance.shape[0], *value.shape[1:]))
    return regroup(shape, relevance.sample * shape[2:].numel() + at, relevance.channels, relevance.values)


def _split_sum(op: Op, relevance: Neurons, book: Booking) -> list[Relevance | None] | None:
    first, second = op.inputs
    dtype = relevance.values.dtype
    if any(v.shape != op.output.shape or v.dtype != dtype for v in op.inputs) or op.output.dtype != dtype:
        return None
    epsilon = epsilon_for(op.output, first, second)
    z = relevance.at(op.output.data)
    s = quotient(relevance.values, z, epsilon, first.nonnegative and second.nonnegative)
    book_epsilon(book, s, z, epsilon, relevance.sum)
    parts = [s * relevance.at(value.data) for value in (first, second)]
    if book.active:
        book.cancellation = cancellation([first.data, second.data], op.output.data, op.output.samples.sum)
        given = relevance.sum(relevance.values.abs())
        book.amplification = ratio(sum(relevance.sum(part.abs()) for part in parts), given)
    return [relevance.holding(part) for part in parts]
