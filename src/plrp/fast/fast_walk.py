"""The walk that costs less: the four steps of `Walk`, taken neuron by neuron where few hold relevance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plrp import rules
from plrp.ledger import Booking, Mass
from plrp.passing import epsilon_for
from plrp.pruning import Arrived, Site
from plrp.rules import Branch, FirstPass, Part, Rule
from plrp.tape.difference import DifferenceOp
from plrp.tape.maps import Convolution, LinearMap, Weight
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.seam import remembered
from plrp.tape.values import Op, Value
from plrp.walk import Walk, branches_of

from . import difference_steps, native, propagation, whole_tensors
from .channels_last import channels_last, ordinary, select_samples, to_channels_last
from .fast_maps import FastConvolution, FastDense, OneChannel, fast_map
from .neuron_layers import layer_geometry
from .neuron_pruning import by_neurons, dense_arrived, prune_neurons, prune_positions
from .neurons import Neurons, Relevance, Rows, add, dense, dense_last, mass_of, without_zeros
from .propagation import DensePass, neurons_of
from .selection import prune_tensor
from .signed_branch import SignedBranch, share


class ChannelsLastChain:
    """Decides, layer by layer, whether a walk works with channels last; holds the tensors that it laid out anew.

    A chain of such layers begins at one convolution and goes on where relevance comes with channels last: to lay out
    tensors anew in between would cost as much as it gains.
    """

    def __init__(self, possible: bool) -> None:
        self.possible = possible
        self.may_begin = True
        self.inputs: dict[int, Tensor] = {}  # the tensors that layers read, by the id of their value

    def serves(self, op: Op, rule: Rule, x: Tensor, given: Relevance) -> bool:
        """Whether a layer is to work with channels last."""
        if not self.possible or not isinstance(op.map, Convolution) or op.map.transposed or x.dim() > 4:
            return False
        if rule.needs_output or isinstance(rule, rules.Flat) or not built_in(rule) or not native.available(x):
            return False
        begins, self.may_begin = self.may_begin, False
        return begins or not isinstance(given, Tensor) or channels_last(given)

    def input(self, value: Value, x: Tensor) -> Tensor:
        """The tensor that a layer read, with channels last; laid out once for all layers that read it."""
        known = self.inputs.get(id(value))
        if known is None:
            known = self.inputs[id(value)] = to_channels_last(x)
        return known


def built_in(rule: Rule) -> bool:
    """Whether the branches of a rule are our own: they take tensors in any layout and write into none."""
    return type(rule).branches.__module__ == rules.__name__


class FastWalk(Walk):
    """A walk on which relevance is a tensor or, where few neurons hold any, `Neurons` or `Rows` of it."""

    copies = 1  # how often the batch is stacked up in the relevance

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        cuts = any(site.cuts for site in self.sites.values())
        self.chain = ChannelsLastChain(possible=not cuts)  # pruned relevance keeps its layout
        self.scratch: Tensor | None = None  # a denominator that nobody else holds

    # --- the four steps -----------------------------------------------------------------------------------------------

    def prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        """Single neurons where few survive, whole tokens; else whole tensors with θ by selection."""
        assert self.pruning is not None
        if by_neurons(relevance, site, self.pruning, arrived):
            neurons = prune_neurons(relevance, site.shares, self.pruning, arrived, book)
            if neurons is not None:
                return neurons
        if (tokens := prune_positions(relevance, site, self.pruning, book)) is not None:
            return tokens, {}
        arrived = None if arrived is None else dense_arrived(arrived)
        return prune_tensor(dense(relevance), site, self.pruning, arrived, book)

    def through_layer(self, op: Op, given: Relevance, book: Booking) -> tuple[Relevance, list[Any]]:
        """Neuron by neuron in the samples in which few hold relevance; the others by whole tensors."""
        rule = self.composite.rule(op)
        if isinstance(rule, rules.Pass):
            return super().through_layer(op, given, book)
        value = op.inputs[0]
        x = value.data if value.dtype == self.dtype else value.data.to(self.dtype)
        geometry = None if isinstance(rule, rules.Flat) else layer_geometry(op, self.dtype, self.copies)
        few = None if geometry is None else neurons_of(given)
        last = (few is None or few.others is not None) and self.chain.serves(op, rule, x, given)
        layer = self._map(op, rule, last and few is None)
        if few is None and last:
            x, given = self.chain.input(value, x), dense_last(given)
        branches = _branches(self, op, rule, layer, x)
        if few is None or geometry is None or not all(branch.map is layer for branch in branches):
            if self.copies > 1:
                where = torch.arange(given.shape[0], device=x.device) % len(x)
                known = [self.denominator(op, rule, number, branch) for number, branch in enumerate(branches)]
                branches = [_of_samples(branch, d, where) for branch, d in zip(branches, known, strict=True)]
                x = select_samples(x, where)
            return self._through_tensors(op, rule, branches, x, given, book)
        known_or_not = [self._known(op, rule, number, branch) for number, branch in enumerate(branches)]
        epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
        rows, passes = propagation.through_layer(geometry, few.neurons, branches, known_or_not, epsilon, book)
        if few.others is None:
            return rows, passes
        # samples in which many neurons hold relevance go as a batch of their own
        where = few.others % len(x)
        smaller = [_of_samples(branch, d, where) for branch, d in zip(branches, known_or_not, strict=True)]
        many = given.only(few.others) if isinstance(given, Neurons) else select_samples(dense(given), few.others)
        x = select_samples(x, where)
        theirs = Booking(book.active)
        received, dense_passes = self._through_tensors(op, rule, smaller, x, dense(many).contiguous(), theirs)
        _add_booked(book, theirs, few.others, given.shape[0])
        whole = rows.dense_last() if last else rows.dense()
        whole[few.others] = received
        pairs = zip(dense_passes, branches, strict=False)
        return whole, [*passes, *(_among(one, branch, few.others, given.shape[0]) for one, branch in pairs)]

    def pass_operation(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """Neurons as neurons, sums and max pools in one pass over the memory; else ordinary tensors."""
        ways = [propagation.pass_on, whole_tensors.pass_on]
        for pass_on in [difference_steps.pass_on] if isinstance(op, DifferenceOp) else ways:
            handed: Sequence[Relevance | None] | None = pass_on(op, given, book, self.composite)
            if handed is not None:
                return handed
        tensors = [None if r is None else dense(r) for r in given]
        if op.rule is not None or op.family is not Family.PASS:
            tensors = [None if t is None else ordinary(t) for t in tensors]
        return super().pass_operation(op, tensors, book)

    def add_up(self, a: Relevance, b: Relevance) -> Relevance:
        """The sum of two relevances of one tensor."""
        return add(a, b)

    # --- their parts --------------------------------------------------------------------------------------------------

    def collect(self, value: Value) -> Any:
        """As in `Walk`; the copy with channels last of a tensor is not needed below it."""
        self.chain.inputs.pop(id(value), None)
        return super().collect(value)

    def tensor(self, relevance: Relevance) -> Tensor:
        """Any relevance as an ordinary tensor."""
        return dense(relevance).contiguous()

    def mass(self, relevance: Relevance, samples: Samples) -> Mass:
        """The mass of the positive and of the negative part, per sample."""
        return mass_of(relevance, samples)

    def scaled(self, relevance: Relevance, factor: Tensor) -> Relevance:
        """Each neuron times its factor; single neurons stay single, without those that are left with nothing."""
        few = neurons_of(relevance) if isinstance(relevance, Rows) else None
        neurons = relevance if few is None or few.others is not None else few.neurons
        if isinstance(neurons, Neurons):
            return without_zeros(neurons.holding(neurons.values * neurons.at(factor)))
        return relevance * factor if isinstance(relevance, Tensor) else self.scaled(dense(relevance), factor)

    def _map(self, op: Op, rule: Rule, last: bool) -> LinearMap:
        """The layer's map at less cost; a rule of the user's gets the plain one, whose weights it may write into."""
        assert op.map is not None
        plain = op.map.to(self.dtype)
        if not built_in(rule):
            return plain
        layer: LinearMap = remembered(self.trace.now, (id(op.map), last), op.map, lambda: fast_map(plain, last))
        return layer

    def _through_tensors(
        self, op: Op, rule: Rule, branches: Sequence[Branch], x: Tensor, given: Relevance, book: Booking
    ) -> tuple[Tensor, list[Any]]:
        """A layer by whole tensors, with where it reads, for a second pass that follows single neurons."""
        if op.first and all(isinstance(branch.map, OneChannel) and branch.share == 1.0 for branch in branches):
            # d is the same for all channels: they hand down as one
            relevance = given.channel_sums() if isinstance(given, Neurons) else dense(given).sum(1, keepdim=True)
        else:
            relevance = dense(given)
        received, passes = self.through_branches(op, rule, branches, x, relevance, book)
        if not passes:
            return received, []
        geometry = None if isinstance(rule, rules.Flat) else layer_geometry(op, self.dtype)
        return received, [DensePass(**vars(one), geometry=geometry) for one in passes]

    def denominator(self, op: Op, rule: Rule, number: int, branch: Branch) -> Tensor:
        """d_k, from the tape, from an earlier explanation of the trace, or computed."""
        known = self._known(op, rule, number, branch)
        if known is not None:
            return known
        d = branch.contributions(bias=branch.bias)
        needed_once = self.ledger is None and not (self.redistributes and id(op.inputs[0]) in self.sites)
        self.scratch = d if needed_once and isinstance(branch.map, FastConvolution | FastDense) else None
        return d

    def _known(self, op: Op, rule: Rule, number: int, branch: Branch) -> Tensor | None:
        """d_k where it need not be computed now."""
        if branch.denominator is not None:
            return branch.denominator
        if isinstance(branch.map, OneChannel):
            return branch.map.of_ones(branch.parts[0].input.shape)
        if self.trace.memory is None:
            return None
        if not channels_last(branch.parts[0].input):
            return super().denominator(op, rule, number, branch)
        key = (id(op), rule.key, number, "channels last")  # the same to rounding only, so it is another
        d: Tensor = remembered(self.trace, key, (rule, op), lambda: branch.contributions(bias=branch.bias))
        return d

    def quotient(self, relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
        """R_k / (d_k + ε sign d_k) in one pass; over d where nobody else holds it."""
        s = None
        if epsilon:
            s = whole_tensors.divide(relevance, d, epsilon, one_sign, out=d if d is self.scratch else None)
        return super().quotient(relevance, d, epsilon, one_sign) if s is None else s


def _add_booked(book: Booking, theirs: Booking, samples: Tensor, batch: int) -> None:
    """Add the bookings of some samples of the batch."""
    for name, booked in vars(theirs).items():
        if isinstance(booked, Tensor):
            setattr(book, name, getattr(book, name) + booked.new_zeros(batch).index_add_(0, samples, booked))


def _branches(walk: FastWalk, op: Op, rule: Rule, layer: LinearMap, x: Tensor) -> Sequence[Branch]:
    """The branches of a rule; γ and z⁺ of a difference as one, unless PLRP-M asks for each."""
    g = None if walk.redistributes and id(op.inputs[0]) in walk.sites else share(rule, layer)
    if g is None or op.output.dtype != x.dtype:
        return branches_of(op, rule, layer, x)
    size = remembered(walk.trace.now, ("sizes", id(op.map)), op.map, lambda: Weight(layer.weight.abs()))
    return [SignedBranch(layer, (Part(x, layer.whole), Part(x.abs().mul_(g), size)), z=op.output.data)]


def _of_samples(branch: Branch, denominator: Tensor | None, samples: Tensor) -> Branch:
    """A branch for some samples of the batch."""

    def some(tensor: Tensor) -> Tensor:  # all of one that is the same for every sample
        return tensor if len(tensor) == 1 else select_samples(tensor, samples)

    parts = tuple(p if p.unit else p._replace(input=select_samples(p.input, samples)) for p in branch.parts)
    share = some(branch.share) if isinstance(branch.share, Tensor) else branch.share
    more = {"z": some(branch.z)} if isinstance(branch, SignedBranch) else {}
    known = None if denominator is None else some(denominator)
    return replace(branch, parts=parts, share=share, denominator=known, **more)  # type: ignore[arg-type]


def _among(one: FirstPass, branch: Branch, samples: Tensor, batch: int) -> FirstPass:
    """The pass of some samples as one of the whole batch, in which the others hand nothing down."""

    def placed(tensor: Tensor, fill: float) -> Tensor:
        return tensor.new_full((batch, *tensor.shape[1:]), fill).index_copy_(0, samples, tensor)

    d = one.denominator if len(one.denominator) == 1 else placed(one.denominator, 1.0)
    return replace(one, branch=branch, given=placed(one.given, 0.0), s=placed(one.s, 0.0), denominator=d)
