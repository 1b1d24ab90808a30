"""Relevance on its way down the tape, from a score to the inputs: the plain walk.

Every step is stated here once, on ordinary tensors. `plrp.fast` derives a walk from this one that takes some of the
steps at less cost; nothing here knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .composites import Composite
from .ledger import Booking, Ledger, Mass, signed_mass
from .passing import book_branch, book_unshared, epsilon_for, pass_on
from .pruning import Arrived, Pruning, Site, prune
from .rules import AlphaBeta, Branch, FirstPass, Flat, Gamma, Pass, Rule, WSquare, ZBox, ZPlus, quotient
from .tape.maps import LinearMap
from .tape.operations import Family
from .tape.refusals import unsupported
from .tape.samples import Samples
from .tape.trace import Trace
from .tape.values import Op, Value, reached, tensors_in
from .targets import start

GROW_LITTLE = (AlphaBeta, Flat, Gamma, Pass, WSquare, ZBox, ZPlus)
"""Rules under which ‖R‖₁ grows little from layer to layer."""


class Walk:
    """One way of a relevance down the tape. `run` goes it; the four steps are

    - `prune`: thin the relevance of a tensor that conv or linear layers read;
    - `through_layer`: hand the relevance of a conv or linear layer's output to its input, by the layer's rule;
    - `pass_operation`: the same for any other operation;
    - `add_up`: sum what several readers of a tensor handed to it.
    """

    kind = "plain"  # walks of one kind share what they leave in the trace's memory

    def __init__(
        self,
        trace: Trace,
        target: Any,
        composite: Composite,
        pruning: Pruning | None,
        wanted: set[str],
        ledger: bool,
    ) -> None:
        self.trace, self.composite, self.pruning = trace, composite, pruning
        self.dtype = torch.float64 if _dtype(trace.output) == torch.float64 else torch.float32
        self.start = start(trace, target, self.dtype)
        self.sites = self._sites(pruning)
        if not ledger:  # nothing cut, nothing to write down
            self.sites = {key: site for key, site in self.sites.items() if site.cuts}
        self.names = [op.name for op in trace.layers]  # read now: a tape that is used once is gone after the walk
        self.wanted: dict[int, list[str]] = {}  # layers whose relevance the user wants, by the value they read
        for op in trace.layers:
            if op.name in wanted:
                self.wanted.setdefault(id(op.inputs[0]), []).append(op.name)
        self.layers: dict[str, Tensor] = {}
        self.scattered: set[str] = set()  # layers whose samples do not lie side by side
        self.ledger = Ledger(trace.batch) if ledger else None
        self.relevance: dict[int, Any] = {id(self.start.value): self.start.relevance}
        self.masses: dict[int, Mass] = {}
        self.first_mass: Tensor | None = None  # ‖R‖₁ that the first layer on the way handed down, (batch,)
        self.epsilon_layers = 0  # layers on the way under the ε-rule, or a rule of the user's
        self.arrived: dict[int, Arrived] = {}
        self.redistributes = pruning is not None and pruning.redistribution != "lambda"

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
            unpruned, book = relevance, Booking(self.ledger is not None)
            relevance, columns = self.prune(relevance, site, arrived, book)
            if self.ledger is not None:
                before = self._mass(value, unpruned)
                after = self.masses[id(value)] = self.mass(relevance, value.samples)
                masses = {"mass_in": before, "mass_out": after}
                self.ledger.add(layer=site.name, op="prune", rule=self.pruning.label, **masses, book=book, **columns)
        for name in self.wanted.get(id(value), ()):
            self.layers[name] = self.tensor(relevance)
            alone = value.samples.batch == 1 and value.shape[0] > 1  # one sample says nothing of how several would lie
            if alone or not value.samples.in_order:
                self.scattered.add(name)
        return relevance

    def hand_down(self, op: Op, given: Sequence[Any]) -> None:
        """Take the relevance of an operation's outputs to its inputs."""
        book = Booking(self.ledger is not None)
        branches: Sequence[Any] = ()
        handed: Sequence[Any]
        if op.is_layer:
            received, branches = self.through_layer(op, given[0], book)
            handed = [received]
            self.epsilon_layers += not isinstance(self.composite.rule(op), GROW_LITTLE)
            if self.first_mass is None:
                self.first_mass = self.size(received, op.inputs[0].samples)
        elif not op.supported(self.composite.products):
            raise unsupported(op, self.start.ops)
        else:
            handed = self.pass_operation(op, given, book)
        masses = self._write(op, given, handed, book)
        for value, relevance, mass in zip(op.inputs, handed, masses, strict=True):
            if relevance is not None:
                self._arrive(op, value, relevance, mass, branches)

    def _arrive(self, op: Op, value: Value, relevance: Any, mass: Mass | None, branches: Sequence[FirstPass]) -> None:
        key = id(value)
        before = self.relevance.get(key)
        self.relevance[key] = relevance if before is None else self.add_up(before, relevance)
        if before is None and mass is not None:
            self.masses[key] = mass
        else:
            self.masses.pop(key, None)
        if self.redistributes and key in self.sites:
            arrived = self.arrived.setdefault(key, Arrived())
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
        assert op.map is not None
        layer, x = op.map.to(self.dtype), op.inputs[0].data.to(self.dtype)
        return self.through_branches(op, rule, self.branches(op, rule, layer, x), x, given, book)

    def pass_operation(self, op: Op, given: Sequence[Any], book: Booking) -> Sequence[Any]:
        """Any other operation, by its family."""
        return pass_on(op, list(given), book, self.composite)

    def add_up(self, a: Any, b: Any) -> Any:
        """The sum of what two readers of a tensor handed to it."""
        return a + b

    # --- what they are made of ----------------------------------------------------------------------------------------

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
        self,
        op: Op,
        rule: Rule,
        branches: Sequence[Branch],
        x: Tensor,
        relevance: Tensor,
        book: Booking,
        samples: Samples | None = None,
    ) -> tuple[Tensor, list[FirstPass]]:
        """R_j = Σ over the branches of Σ_k n_jk share_k R_k / (d_k + ε sign d_k). `samples`: R_k's, if special."""
        samples = op.output.samples if samples is None else samples
        epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
        received: Tensor | None = None
        passes = []
        for number, branch in enumerate(branches):
            d = self.denominator(op, rule, number, branch)
            part = branch.part_of(relevance)
            s = self.quotient(part, d, epsilon, branch.one_sign)
            term = branch.hand(s, x)
            received = term if received is None else received + term
            book_branch(book, branch, part, s, d, epsilon, samples.sum, branch.bias)
            if self.redistributes and id(op.inputs[0]) in self.sites:
                passes.append(FirstPass(branch, part, s, d, epsilon))
        book_unshared(book, branches, lambda share: samples.sum(relevance * share))
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

    def tensor(self, relevance: Any) -> Tensor:
        """The relevance as an ordinary tensor, the user's own."""
        return relevance.contiguous()

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def mass(self, relevance: Any, samples: Samples) -> Mass:
        """The mass of the positive and of the negative part, per sample."""
        return signed_mass(samples.rows(relevance))

    def size(self, relevance: Any, samples: Samples) -> Tensor:
        """‖R‖₁ per sample."""
        return torch.linalg.vector_norm(samples.rows(relevance), 1, 1)

    def _mass(self, value: Value, relevance: Any) -> Mass:
        """The mass of a tensor's relevance, computed once."""
        known = self.masses.get(id(value))
        if known is None:
            known = self.masses[id(value)] = self.mass(relevance, value.samples)
        return known

    def _write(self, op: Op, given: Sequence[Any], handed: Sequence[Any], book: Booking) -> list[Mass | None]:
        """Enter an operation into the ledger if it moves mass; returns the mass that each input received."""
        if self.ledger is None:
            return [None] * len(op.inputs)
        moves = (
            op.family not in (Family.PASS, Family.REARRANGE, Family.EMBEDDING) or op.rule is not None or book.touched
        )
        if not moves:
            alone = len(op.inputs) == len(op.outputs) == 1
            return [self.masses.pop(id(v), None) if alone else None for v in op.outputs[:1]] * len(op.inputs)
        into = [self._mass(v, r) for v, r in zip(op.outputs, given, strict=True) if r is not None]
        out = [None if r is None else self.mass(r, v.samples) for v, r in zip(op.inputs, handed, strict=True)]
        self.ledger.add(
            layer=op.name,
            op=op.kind,
            rule=self.composite.rule_name(op),
            mass_in=_total(into),
            mass_out=_total([m for m in out if m is not None]),
            book=book,
        )
        return out


def _total(masses: Sequence[Mass]) -> Mass:
    positive, negative = masses[0]
    for more in masses[1:]:
        positive, negative = positive + more[0], negative + more[1]
    return positive, negative


def _dtype(output: Any) -> torch.dtype:
    return next(t.dtype for t in tensors_in(output) if t.is_floating_point())
