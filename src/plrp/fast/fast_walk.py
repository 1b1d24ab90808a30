"""The walk that costs less: the four steps of `Walk`, taken neuron by neuron where few hold relevance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from plrp import pruning, rules
from plrp.collection import collection_paused
from plrp.ledger import Booking, Mass
from plrp.passing import epsilon_for
from plrp.pruning import Arrived, Site
from plrp.rules import Branch, FirstPass, Rule
from plrp.tape.maps import Convolution, LinearMap
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.values import Op, Value
from plrp.walk import Walk

from . import native, propagation, whole_tensors
from .channels_last import channels_last, ordinary, select_samples, to_channels_last
from .fast_maps import FastConvolution, FastDense, OneChannel, fast_map
from .neuron_layers import layer_geometry, pool_geometry, to_winners
from .neuron_pruning import by_neurons, dense_arrived, prune_neurons, prune_positions
from .neurons import Neurons, Relevance, add, dense, dense_last, mass_of
from .propagation import DensePass, Few, neurons_of
from .selection import cut


class FastWalk(Walk):
    """A walk on which relevance is a tensor or, where few neurons hold any, `Neurons` or `Rows` of it."""

    kind = "fast"
    copies = 1  # how often the batch is stacked up in the relevance

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        cuts = any(site.cuts for site in self.sites.values())
        self.may_use_channels_last = not cuts  # pruned relevance keeps its layout
        self.may_begin = True  # a chain of layers that work with channels last
        self.last_inputs: dict[int, Tensor] = {}  # what layers read, with channels last
        self.scratch: Tensor | None = None  # a denominator that nobody else holds

    def run(self) -> list[Tensor]:
        """As in `Walk`."""
        with collection_paused():
            return super().run()

    # --- the four steps -----------------------------------------------------------------------------------------------

    def prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        """Single neurons where few survive, whole tokens; else whole tensors with θ by selection."""
        assert self.pruning is not None
        if by_neurons(relevance, site, self.pruning, arrived):
            found = prune_neurons(relevance, site.shares, self.pruning, arrived, book)
            if found is not None:
                return found
        if (tokens := prune_positions(relevance, site, self.pruning, book)) is not None:
            return tokens, {}
        arrived = None if arrived is None else dense_arrived(arrived)
        return pruning.prune(dense(relevance), site, self.pruning, arrived, book, cut)

    def through_layer(self, op: Op, given: Relevance, book: Booking) -> tuple[Relevance, list[Any]]:
        """Neuron by neuron in the samples in which few hold relevance; the others by whole tensors."""
        rule = self.composite.rule(op)
        if isinstance(rule, rules.Pass):
            return super().through_layer(op, given, book)
        value = op.inputs[0]
        x = value.data if value.dtype == self.dtype else value.data.to(self.dtype)
        few = self._few(op, rule, given)
        last = (few is None or few.others is not None) and self._channels_last(op, rule, x, given)
        layer = self._layer(op, rule, last and few is None)
        if few is None:
            if last:
                x, given = self._last_input(value, x), dense_last(given)
            return self._through_tensors(op, rule, self.branches(op, rule, layer, x), x, given, book)
        branches = self.branches(op, rule, layer, x)
        if not all(branch.map is layer for branch in branches):
            return self._through_tensors(op, rule, branches, x, given, book)
        geometry = layer_geometry(op, self.dtype, self.copies)
        assert geometry is not None
        known = [self._known(op, rule, number, branch) for number, branch in enumerate(branches)]
        epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
        rows, passes = propagation.through_layer(geometry, few.neurons, branches, known, epsilon, book)
        if few.others is None:
            return rows, passes
        # samples in which many neurons hold relevance go as a batch of their own
        where = few.others % len(x)
        smaller = [_of_samples(branch, d, where) for branch, d in zip(branches, known, strict=True)]
        many, x = _of(given, few.others), select_samples(x, where)
        theirs = Booking(book.active)
        found, dense_passes = self._through_tensors(op, rule, smaller, x, many, theirs)
        _add_booked(book, theirs, few.others, given.shape[0])
        whole = rows.dense_last() if last else rows.dense()
        whole[few.others] = found
        among = [
            _among(one, branch, few.others, given.shape[0]) for one, branch in zip(dense_passes, branches, strict=False)
        ]
        return whole, [*passes, *among]

    def pass_operation(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """Neurons as neurons, sums and max pools in one pass over the memory; else ordinary tensors."""
        found: Sequence[Relevance | None] | None = propagation.pass_on(op, given, book, self.composite)
        if found is None and op.rule is None:
            found = self._whole_tensors(op, given, book)
        return self.pass_tensors(op, given, book) if found is None else found

    def pass_tensors(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """The plain step, on ordinary tensors."""
        tensors = [None if r is None else dense(r) for r in given]
        if op.rule is not None or op.family is not Family.PASS:
            tensors = [None if t is None else ordinary(t) for t in tensors]
        return super().pass_operation(op, tensors, book)

    def add_up(self, a: Relevance, b: Relevance) -> Relevance:
        """The sum of two relevances of one tensor."""
        return add(a, b)

    # --- what they are made of ----------------------------------------------------------------------------------------

    def collect(self, value: Value) -> Any:
        """As in `Walk`; what a layer read is not needed beyond."""
        self.last_inputs.pop(id(value), None)
        return super().collect(value)

    def tensor(self, relevance: Relevance) -> Tensor:
        """Any relevance as an ordinary tensor."""
        return dense(relevance).contiguous()

    def mass(self, relevance: Relevance, samples: Samples) -> Mass:
        """The mass of the positive and of the negative part, per sample."""
        return mass_of(relevance, samples)

    def size(self, relevance: Relevance, samples: Samples) -> Tensor:
        """‖R‖₁ per sample."""
        if isinstance(relevance, Tensor):
            return super().size(relevance, samples)
        positive, negative = mass_of(relevance, samples)
        return positive + negative

    def _few(self, op: Op, rule: Rule, given: Relevance) -> Few | None:
        """The neurons to follow through a layer, if they are few enough in enough samples."""
        if isinstance(rule, rules.Flat) or layer_geometry(op, self.dtype, self.copies) is None:
            return None
        return neurons_of(given)

    def map(self, op: Op, rule: Rule) -> LinearMap:
        """The layer's map at less cost."""
        return self._layer(op, rule, False)

    def _layer(self, op: Op, rule: Rule, last: bool) -> LinearMap:
        """The layer's map at less cost; a rule of the user's gets the plain one, whose weights it may write into."""
        assert op.map is not None
        plain = op.map.to(self.dtype)
        if not _ours(rule):
            return plain
        memory = self.trace.memory
        if memory is None:
            return fast_map(plain, last)
        key = ("map", id(op), self.dtype, last)
        if key not in memory:
            memory[key] = op, fast_map(plain, last)  # holds the operation, so that its id stays its own
        found: LinearMap = memory[key][1]
        return found

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

    def samples_of(self, op: Op, relevance: Tensor) -> Samples:
        """As in `Walk`; some samples may go as a batch of their own."""
        samples = op.output.samples
        return Samples.first_axis(len(relevance)) if samples.ordinary and len(relevance) != samples.batch else samples

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
        memory = self.trace.memory
        if memory is None:
            return None
        if not channels_last(branch.parts[0].input):
            return super().denominator(op, rule, number, branch)
        key = (id(op), rule.key, number, "channels last")  # the same to rounding only, so it is another
        if key not in memory:
            memory[key] = (rule, op), branch.contributions(bias=branch.bias)
        known: Tensor = memory[key][1]
        return known

    def quotient(self, relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
        """R_k / (d_k + ε sign d_k) in one pass; over d where nobody else holds it."""
        found = None
        if epsilon:
            found = whole_tensors.divide(relevance, d, epsilon, one_sign, out=d if d is self.scratch else None)
        return super().quotient(relevance, d, epsilon, one_sign) if found is None else found

    def _whole_tensors(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> list[Tensor | None] | None:
        """Norms, products, sums of two and max pools by compiled loops; None where these do not serve."""
        if len(given) != 1 or given[0] is None or book.active:
            return None
        relevance = dense(given[0])
        if op.family is Family.AFFINE:
            return whole_tensors.through_norm(op, relevance, epsilon_for(op.output, composite=self.composite))
        if op.family in (Family.PRODUCT, Family.GATE):
            return whole_tensors.through_product(op, relevance, self.composite)
        if propagation.adds_in_proportion(op, self.composite):
            a, b = op.inputs
            if a.dtype == b.dtype == op.output.dtype == relevance.dtype:
                one_sign = a.nonnegative and b.nonnegative
                parts = whole_tensors.split(relevance, a.data, b.data, epsilon_for(op.output, a, b), one_sign)
                return None if parts is None else list(parts)
        if op.family is Family.WINNER and (geometry := pool_geometry(op)) is not None:
            value = op.inputs[0]
            if op.winners is not None and relevance.dim() == 4:
                found = whole_tensors.hand_to_winners(relevance, op.winners, value.shape)
                if found is not None:
                    return [found]
                planes = relevance.new_zeros(*value.shape[:2], value.shape[2:].numel())
                planes.scatter_add_(2, op.winners.flatten(2), relevance.flatten(2))
                return [planes.view(value.shape)]
            if relevance.dtype == value.dtype:
                found = to_winners(value.data, geometry, ordinary(relevance).contiguous())
                return None if found is None else [found]
        return None

    def _channels_last(self, op: Op, rule: Rule, x: Tensor, given: Relevance) -> bool:
        """Whether a layer is to work with channels last: a convolution that a chain of such begins or goes on.

        Laying tensors out anew where neither relevance above nor below is so would cost what it gains.
        """
        if not self.may_use_channels_last or not isinstance(op.map, Convolution) or op.map.transposed or x.dim() > 4:
            return False
        if rule.needs_output or isinstance(rule, rules.Flat) or not _ours(rule) or not native.available(x):
            return False
        begins, self.may_begin = self.may_begin, False
        return begins or not isinstance(given, Tensor) or channels_last(given)

    def _last_input(self, value: Value, x: Tensor) -> Tensor:
        """What a layer read, with channels last; laid out once for all layers that read it."""
        known = self.last_inputs.get(id(value))
        if known is None:
            known = self.last_inputs[id(value)] = to_channels_last(x)
        return known


def _ours(rule: Rule) -> bool:
    """Whether a rule's branches are our own: they take tensors in any layout and write into none, a user's need not."""
    return type(rule).branches.__module__ == rules.__name__


def _of(given: Relevance, samples: Tensor) -> Tensor:
    """The relevance of some samples, as an ordinary tensor."""
    if isinstance(given, Neurons):
        return given.only(samples).dense()
    return select_samples(dense(given), samples).contiguous()


def _add_booked(book: Booking, theirs: Booking, samples: Tensor, batch: int) -> None:
    """Add what was booked for some samples of the batch."""
    for name, booked in vars(theirs).items():
        if isinstance(booked, Tensor):
            setattr(book, name, getattr(book, name) + booked.new_zeros(batch).index_add_(0, samples, booked))


def _of_samples(branch: Branch, denominator: Tensor | None, samples: Tensor) -> Branch:
    """A branch for some samples of the batch."""
    parts = tuple(p if p.unit else p._replace(input=select_samples(p.input, samples)) for p in branch.parts)
    share = _each_of(branch.share, samples) if isinstance(branch.share, Tensor) else branch.share
    d = None if denominator is None else _each_of(denominator, samples)
    return replace(branch, parts=parts, share=share, denominator=d)


def _each_of(tensor: Tensor, samples: Tensor) -> Tensor:
    """Some samples of a tensor of the batch; all of one that is the same for every sample."""
    return tensor if len(tensor) == 1 else select_samples(tensor, samples)


def _among(one: FirstPass, branch: Branch, samples: Tensor, batch: int) -> FirstPass:
    """The pass of some samples as one of the whole batch, in which the others hand nothing down."""

    def placed(tensor: Tensor, fill: float) -> Tensor:
        return tensor.new_full((batch, *tensor.shape[1:]), fill).index_copy_(0, samples, tensor)

    d = one.denominator if len(one.denominator) == 1 else placed(one.denominator, 1.0)
    return replace(one, branch=branch, given=placed(one.given, 0.0), s=placed(one.s, 0.0), denominator=d)
