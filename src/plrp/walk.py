"""Relevance on its way down the tape, from a score to the inputs: the plain walk.

Every step is stated here once, on ordinary tensors. What is written down on the way stands in `bookkeeping.py`.
`plrp.fast` derives a walk from this one that takes some of the steps at less cost; nothing here knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .bookkeeping import Bookkeeper
from .composites import Composite
from .ledger import Booking
from .passing import book_branch, book_unshared, epsilon_for, pass_on
from .pruning import Arrived, Pruning, Site, prune
from .rules import Branch, FirstPass, Pass, Rule, quotient
from .tape.maps import LinearMap
from .tape.refusals import unsupported
from .tape.samples import Samples
from .tape.trace import Trace
from .tape.values import Op, Value, reached, tensors_in
from .targets import start


class Walk(Bookkeeper):
    """One way of a relevance down the tape. `run` goes it; the four steps are

    - `prune`: thin the relevance of a tensor that conv or linear layers read;
    - `through_layer`: hand the relevance of a conv or linear layer's output to its input, by the layer's rule;
    - `pass_operation`: the same for any other operation;
    - `add_up`: sum what several readers of a tensor handed to it.
    """

    kind = "plain"  # walks of one kind share what they leave in the trace's memory

    def __init__(
        self, trace: Trace, target: Any, composite: Composite, pruning: Pruning | None, wanted: set[str], ledger: bool
    ) -> None:
        super().__init__(trace, wanted, ledger)
        pruning = pruning and pruning.for_trace(trace)
        self.trace, self.composite, self.pruning = trace, composite, pruning
        self.dtype = torch.float64 if _dtype(trace.output) == torch.float64 else torch.float32
        self.start = start(trace, target, self.dtype)
        self.sites = self._sites(pruning)
        if not ledger:  # nothing cut, nothing to write down
            self.sites = {key: site for key, site in self.sites.items() if site.cuts}
        self.redistributes = pruning is not None and pruning.redistribution != "lambda"
        self.relevance: dict[int, Any] = {id(self.start.value): self.start.relevance}  # by the id of its value
        self.arrived: dict[int, Arrived] = {}

    def _sites(self, pruning: Pruning | None) -> dict[int, Site]:
        """The tensors to prune: those with a reader that the score depends on."""
        if pruning is None:
            return {}
        live = {id(op) for op in reached(self.start.ops, [self.start.value], self.composite.products)}
        sites = pruning.plan(self.trace).items()
        return {key: site for key, site in sites if any(id(op) in live for op in site.readers)}

    def run(self) -> list[Tensor]:
        """Walk from the score to the inputs; returns their relevance."""
        ops = self.start.ops
        for position in range(len(ops) - 1, -1, -1):
            op = ops[position]
            given = [self.collect(v) for v in op.outputs]
            if any(r is not None for r in given):
                self.hand_down(op, given)
            if self.trace.consumed:
                ops.pop().release()
        return [self.input_relevance(value) for value in self.trace.inputs]

    def input_relevance(self, value: Value) -> Tensor:
        """The relevance of an input of the model; zero where the score does not depend on it."""
        relevance = self.collect(value)
        if relevance is None:
            return torch.zeros(value.shape, dtype=self.dtype, device=value.data.device)
        return self.tensor(relevance)

    def collect(self, value: Value) -> Any:
        """The whole relevance of a tensor, all of its readers done; pruned where it is to be pruned."""
        relevance = self.relevance.pop(id(value), None)
        arrived = self.arrived.pop(id(value), None)
        if relevance is None:
            return None
        site = self.sites.get(id(value))
        if site is not None:
            assert self.pruning is not None
            book = self.booking()
            pruned, columns = self.prune(relevance, site, arrived, book)
            self.write_pruning(value, site.name, self.pruning.label, relevance, pruned, book, columns)
            relevance = pruned
        self.store_layers(value, relevance)
        return relevance

    def hand_down(self, op: Op, given: Sequence[Any]) -> None:
        """Take the relevance of an operation's outputs to its inputs."""
        book = self.booking()
        branches: Sequence[Any] = ()
        handed: Sequence[Any]
        if op.is_layer:
            received, branches = self.through_layer(op, given[0], book)
            self.write_layer(op, self.composite.rule(op), received)
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
                    self.arrive(op, value, relevance, branches)

    def arrive(self, op: Op, value: Value, relevance: Any, branches: Sequence[FirstPass]) -> None:
        """Hold apart, for PLRP-M, what a tensor received over its conv and linear readers and over all others."""
        arrived = self.arrived.setdefault(id(value), Arrived())
        if branches:
            arrived.layers.append((op.output.samples, branches))
        else:
            arrived.other = relevance if arrived.other is None else self.add_up(arrived.other, relevance)

    # --- the four steps -----------------------------------------------------------------------------------------------

    def prune(self, relevance: Any, site: Site, arrived: Arrived | None, book: Booking) -> tuple[Any, dict[str, Any]]:
        """Thin the relevance of a tensor; returns it with the ledger's columns."""
        assert self.pruning is not None
        return prune(relevance, site, self.pruning, arrived, book)

    def through_layer(self, op: Op, given: Any, book: Booking) -> tuple[Any, list[Any]]:
        """A conv or linear layer by its rule; returns its input's relevance, and what PLRP-M needs of this pass."""
        rule = self.composite.rule(op)
        if isinstance(rule, Pass):
            if op.output.shape != op.inputs[0].shape:
                raise ValueError(f"Pass needs a layer that keeps its input's shape; '{op.name}' does not.")
            return given, []
        layer, x = self.map(op, rule), op.inputs[0].data.to(self.dtype)
        return self.through_branches(op, rule, self.branches(op, rule, layer, x), x, given, book)

    def pass_operation(self, op: Op, given: Sequence[Any], book: Booking) -> Sequence[Any]:
        """Any other operation, by its family."""
        return pass_on(op, list(given), book, self.composite)

    def add_up(self, a: Any, b: Any) -> Any:
        """The sum of what two readers of a tensor handed to it."""
        return a + b

    # --- what they are made of ----------------------------------------------------------------------------------------

    def map(self, op: Op, rule: Rule) -> LinearMap:
        """A layer's map in the precision of the walk."""
        assert op.map is not None
        return op.map.to(self.dtype)

    def branches(self, op: Op, rule: Rule, layer: LinearMap, x: Tensor) -> list[Branch]:
        """The branches of a rule for a layer that read x."""
        z = None
        if rule.needs_output:
            z = op.output.data
            z = z if z.dtype == self.dtype else layer.apply(x, layer.weight, layer.bias)
        found = rule.branches(layer, x, z, op.inputs[0].nonnegative)
        if not found:
            raise ValueError(f"The rule {rule.name} has no branches for layer '{op.name}': it would hand nothing down.")
        return found

    def through_branches(
        self, op: Op, rule: Rule, branches: Sequence[Branch], x: Tensor, relevance: Tensor, book: Booking
    ) -> tuple[Tensor, list[FirstPass]]:
        """R_j = Σ over the branches of Σ_k n_jk share_k R_k / (d_k + ε sign d_k)."""
        total = self.samples_of(op, relevance).sum
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
        memory, key = self.trace.memory, (self.kind, id(op), rule.key, number)
        if memory is None:
            return branch.contributions(bias=branch.bias)
        if key not in memory:  # holds the rule and the operation, so that their ids stay their own
            memory[key] = (rule, op), branch.contributions(bias=branch.bias)
        known: Tensor = memory[key][1]
        return known

    def quotient(self, relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
        """R_k / (d_k + ε sign d_k)."""
        return quotient(relevance, d, epsilon, one_sign)

    def samples_of(self, op: Op, relevance: Tensor) -> Samples:
        """Where in the relevance of an operation's output each sample lies."""
        return op.output.samples


def _dtype(output: Any) -> torch.dtype:
    return next(t.dtype for t in tensors_in(output) if t.is_floating_point())
