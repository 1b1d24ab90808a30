"""Relevance on its way down the tape, from a score to the inputs: the plain walk.

Every step is stated here once, on ordinary tensors. `bookkeeping.py` writes the ledger. `plrp.fast` derives a walk from
this one that takes some of the steps at less cost; nothing here knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .bookkeeping import Bookkeeper
from .differences import pass_difference
from .ledger import Booking
from .passage import Mask, Passage, Record, held_columns, pruning_factor
from .passing import book_branch, book_unshared, epsilon_for, pass_on
from .pruning import Arrived, Site, prune
from .request import Request
from .rules import Branch, Differences, FirstPass, Pass, Rule, quotient
from .tape.difference import DifferenceOp, DifferenceTrace
from .tape.maps import LinearMap
from .tape.refusals import unsupported
from .tape.samples import Samples
from .tape.seam import collection_paused, let_go, remembered
from .tape.trace import Trace
from .tape.values import Op, Value, reached, tensors_in
from .targets import Start, start


class Walk(Bookkeeper):
    """One way of a relevance down the tape. `run` goes it; the four steps are

    - `prune`: thin the relevance of a tensor that conv or linear layers read;
    - `through_layer`: hand the relevance of a conv or linear layer's output to its input, by the layer's rule;
    - `pass_operation`: the same for any other operation;
    - `add_up`: sum the relevance that several readers of a tensor handed to it.

    The request is bound to the trace. With a `passage` the walk keeps to its constraints: `hold` takes the place of
    `prune`, and `withhold` masks the outputs of some layers. A `record` takes notes for later walks.
    """

    def __init__(
        self,
        trace: Trace,
        request: Request,
        *,
        ledger: bool = False,
        passage: Passage | None = None,
        record: Record | None = None,
    ) -> None:
        super().__init__(trace, request.layers, ledger)
        self.trace, self.pruning = trace, request.pruning
        if record is None and passage is not None and passage.watched:
            record = Record(passage.watched, factors=False)
        self.passage, self.record = passage, record
        given = next(t.dtype for t in tensors_in(trace.output) if t.is_floating_point())
        self.dtype = torch.float64 if given == torch.float64 else torch.float32
        self.start = start(trace, request.target, self.dtype)
        against = isinstance(trace, DifferenceTrace)
        self.composite = request.composite.on(self.start.ops, [self.start.value], against)
        last = self.start.value.producer
        if last is not None and self.start.classes is not None:  # of log-odds
            on_differences = Differences(self.composite.rule(last), self.start.classes)
            self.composite = self.composite.with_layers({last.name: on_differences})
        self.sites = live_sites(trace, self.start, request)
        if not ledger:  # nothing cut, nothing to write down
            self.sites = {key: site for key, site in self.sites.items() if site.cuts}
        self.redistributes = passage is None and self.pruning is not None and self.pruning.redistribution != "lambda"
        self.relevance: dict[int, Any] = {id(self.start.value): self.start.relevance}  # by the id of its value
        self.arrived: dict[int, Arrived] = {}

    def run(self, collect: Callable[[Value], Any] | None = None) -> list[Tensor]:
        """Walk from the score to the inputs; returns the relevance of the inputs, zero where it does not reach one."""
        ops, collect = self.start.ops, collect or self.collect
        with collection_paused(), torch.autocast(self.start.relevance.device.type, enabled=False):
            for position in range(len(ops) - 1, -1, -1):
                op = ops[position]
                given = [collect(v) for v in op.outputs]
                if any(r is not None for r in given):
                    self.hand_down(op, given)
                let_go(self.trace, ops, position)
            relevances = [collect(value) for value in self.trace.inputs]
        return [
            torch.zeros(value.shape, dtype=self.dtype, device=value.data.device) if r is None else self.tensor(r)
            for value, r in zip(self.trace.inputs, relevances, strict=True)
        ]

    def send(self, relevance: Tensor, upper: Value, ends: Sequence[Value]) -> list[Tensor | None]:
        """Hand `relevance`, which is pruned already, down from `upper` to each of `ends`, where it is pruned and stops.

        None where nothing arrives. A walk may send any number of relevances, one after the other.
        """
        stops, arrived = {id(value) for value in ends} - {id(upper)}, dict[int, Tensor]()

        def collect(value: Value) -> Any:
            if value is upper:
                return self.relevance.pop(id(upper), None)
            reaching = self.collect(value)
            if reaching is None or id(value) not in stops:
                return reaching
            arrived[id(value)] = self.tensor(reaching)
            return None

        self.relevance = {id(upper): relevance}
        self.run(collect)
        return [arrived.get(id(value)) for value in ends]

    def collect(self, value: Value) -> Any:
        """The whole relevance of a tensor, when all of its readers are done: pruned, and masked, where that is due."""
        key, passage, record = id(value), self.passage, self.record
        relevance = self.relevance.pop(key, None)
        arrived = self.arrived.pop(key, None)
        if relevance is not None:
            site = self.sites.get(key)
            if site is not None:
                assert self.pruning is not None
                book = self.booking()
                pruned, columns = (self.prune if passage is None else self.hold)(relevance, site, arrived, book)
                self.write_pruning(value, site.name, self.pruning.label, relevance, pruned, book, columns)
                self.write_growth(book)
                if record is not None and record.factors is not None:
                    record.factors[key] = pruning_factor(self.tensor(relevance), self.tensor(pruned), value.samples)
                relevance = pruned
        mask = None if passage is None else passage.masks.get(key)
        if mask is not None:
            relevance = self.withhold(relevance, mask)
        if relevance is not None:
            self.store_layers(value, relevance)
            if record is not None and key in record.watched:
                record.relevance[key] = self.tensor(relevance)
        return relevance

    def hold(self, relevance: Any, site: Site, arrived: Arrived | None, book: Booking) -> tuple[Any, dict[str, Any]]:
        """Multiply each neuron by its held factor, in place of pruning; book the difference."""
        assert self.passage is not None
        factor = self.passage.factors.get(id(site.value))
        if factor is None:  # no relevance came here without the constraints
            return relevance, {}
        after = self.scaled(relevance, factor)
        if not book.active:
            return after, {}
        tensors, samples = (self.tensor(relevance), self.tensor(after)), site.value.samples
        book.dropped = samples.sum(tensors[0] - tensors[1])
        return after, held_columns(*tensors, factor, samples)

    def withhold(self, relevance: Any, mask: Mask) -> Any:
        """The relevance that a mask lets through; `only_through` also withholds all relevance that waits further down,
        because it has gone around the masked layer.
        """
        assert self.passage is not None
        waiting: dict[int, Any] = {}
        if self.passage.only_through:
            waiting, self.relevance = self.relevance, {}
            self.masses.clear()
        if relevance is None or mask.replaced is None:
            passes = None if relevance is None else self.scaled(relevance, mask.keep)
        else:
            passes = mask.replaced(self, self.tensor(relevance))
        if self.ledger is not None:
            values = {id(v): v for v in (*self.trace.inputs, *(v for op in self.start.ops for v in op.outputs))}
            withheld = [(self.tensor(r), values[key]) for key, r in waiting.items()]
            if relevance is not None:
                withheld.append((self.tensor(relevance) - self.tensor(passes), mask.value))
            self.write_withheld(mask, passes, withheld)
        return passes

    def hand_down(self, op: Op, given: Sequence[Any]) -> None:
        """Take the relevance of an operation's outputs to its inputs."""
        book = self.booking()
        branches: Sequence[Any] = ()
        handed: Sequence[Any]
        if op.is_layer:
            received, branches = self.through_layer(op, given[0], book)
            handed = [received]
        elif op.supported(self.composite.products):
            handed = self.pass_operation(op, given, book)
        else:
            raise unsupported(op, self.start.ops)
        masses = self.write_operation(op, self.composite, given, handed, book)
        for value, relevance, mass in zip(op.inputs, handed, masses, strict=True):
            if relevance is not None:
                known = self.relevance.get(id(value))
                self.relevance[id(value)] = relevance if known is None else self.add_up(known, relevance)
                self.remember(value, mass if known is None else None)
                if self.redistributes and id(value) in self.sites:
                    arrived = self.arrived.setdefault(id(value), Arrived())
                    arrived.add(op.output.samples, relevance, branches, self.add_up)

    # --- the four steps -----------------------------------------------------------------------------------------------

    def prune(self, relevance: Any, site: Site, arrived: Arrived | None, book: Booking) -> tuple[Any, dict[str, Any]]:
        """Thin the relevance of a tensor; returns it with the ledger's columns."""
        assert self.pruning is not None
        return prune(relevance, site, self.pruning, arrived, book)

    def through_layer(self, op: Op, given: Any, book: Booking) -> tuple[Any, list[Any]]:
        """A conv or linear layer by its rule; returns its input's relevance, and the state that PLRP-M needs."""
        rule = self.composite.rule(op)
        if isinstance(rule, Pass):
            if op.output.shape != op.inputs[0].shape:
                raise ValueError(f"Pass needs a layer that keeps its input's shape; '{op.name}' does not.")
            return given, []
        assert op.map is not None
        x = op.inputs[0].data.to(self.dtype)
        return self.through_branches(op, rule, branches_of(op, rule, op.map.to(self.dtype), x), x, given, book)

    def pass_operation(self, op: Op, given: Sequence[Any], book: Booking) -> Sequence[Any]:
        """Any other operation, by its family."""
        if isinstance(op, DifferenceOp):
            return pass_difference(op, list(given), self.composite)
        return pass_on(op, list(given), book, self.composite)

    def add_up(self, a: Any, b: Any) -> Any:
        """The sum of the relevance that two readers of a tensor handed to it."""
        return a + b

    # --- their parts --------------------------------------------------------------------------------------------------

    def scaled(self, relevance: Any, factor: Tensor) -> Any:
        """The relevance of a tensor, each neuron times its factor, or by a boolean mask."""
        return relevance * factor

    def through_branches(
        self, op: Op, rule: Rule, branches: Sequence[Branch], x: Tensor, relevance: Tensor, book: Booking
    ) -> tuple[Tensor, list[FirstPass]]:
        """R_j = Σ over the branches of Σ_k n_jk share_k R_k / (d_k + ε sign d_k)."""
        total = _samples_of(op, relevance).sum
        epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
        received: Tensor | None = None
        passes = []
        for number, branch in enumerate(branches):
            d = self.denominator(op, rule, number, branch)
            part = branch.part_of(relevance)
            s = self.quotient(part, d, epsilon, branch.one_sign)
            term = branch.hand(s, x)
            received = term if received is None else received + term
            book_branch(book, branch, part, s, d, epsilon, total, branch.bias)
            if self.redistributes and id(op.inputs[0]) in self.sites:
                passes.append(FirstPass(branch, part, s, d, epsilon))
        book_unshared(book, branches, lambda share: total(relevance * share))
        assert received is not None
        return received, passes

    def denominator(self, op: Op, rule: Rule, number: int, branch: Branch) -> Tensor:
        """d_k = Σ_j n_jk + bias_k: on the tape, known from an earlier explanation of the trace, or computed."""
        if branch.denominator is not None:
            return branch.denominator
        key = (type(branch), type(branch.map), id(op), rule.key, number)  # other maps give the same to rounding only
        d: Tensor = remembered(self.trace, key, (rule, op), lambda: branch.contributions(bias=branch.bias))
        return d

    def quotient(self, relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
        """R_k / (d_k + ε sign d_k)."""
        return quotient(relevance, d, epsilon, one_sign)


def live_sites(trace: Trace, begin: Start, request: Request) -> dict[int, Site]:
    """The tensors to prune, by the id of their value: those with a conv or linear reader that the score depends on."""
    if request.pruning is None:
        return {}
    live = {id(op) for op in reached(begin.ops, [begin.value], request.composite.products)}
    sites = request.pruning.plan(trace).items()
    return {key: site for key, site in sites if any(id(op) in live for op in site.readers)}


def branches_of(op: Op, rule: Rule, layer: LinearMap, x: Tensor) -> list[Branch]:
    """The branches of a rule for a layer that read x."""
    z = None
    if rule.needs_output:
        z = op.output.data
        z = z if z.dtype == x.dtype else layer.apply(x, layer.weight, layer.bias)
    branches = rule.branches(layer, x, z, op.inputs[0].nonnegative)
    if not branches:
        raise ValueError(f"The rule {rule.name} has no branches for layer '{op.name}': it would hand nothing down.")
    return branches


def _samples_of(op: Op, relevance: Tensor) -> Samples:
    """Where in the relevance of an operation's output each sample lies; some samples may go as a batch of their own."""
    samples = op.output.samples
    return Samples.first_axis(len(relevance)) if samples.ordinary and len(relevance) != samples.batch else samples
