"""Explanations: relevance walks the tape backwards, from a score to the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .composites import Composite, nearest, resolve
from .fast import native
from .fast import propagation as following
from .fast.neurons import Neurons, Relevance, added, dense, dense_last
from .fast.propagation import Followed, followable, mass_of, neurons_of
from .fast.whole_tensors import channels_last, chosen, turned
from .ledger import Ledger, Mass
from .passing import book_branch, epsilon_for, pass_on
from .pieces import joined, pieces
from .pruning import Arrived, Pruning, Site, prune
from .rules import Booking, Branch, Handed, Pass, Rule, each_of, quotient
from .tables import render_html, render_table
from .tape.maps import Convolution, OneChannel
from .tape.operations import Family
from .tape.refusals import unsupported, unsupported_reason
from .tape.samples import Samples
from .tape.trace import Trace, record, supported
from .tape.values import Op, Value, reached, replaced, tensors_in
from .targets import own, start


@dataclass
class Survivors:
    """The neurons of a layer's input that hold relevance for one sample, strongest first."""

    index: Tensor  # (neurons, axes of the tensor without the batch)
    relevance: Tensor  # (neurons,)


class KeptLayers(dict[str, Tensor]):
    """Relevance by layer; a layer that is not there is answered with a sentence.

    `names` are all layers of the model, `wanted` those that were to be kept.
    """

    def __init__(self, kept: Mapping[str, Tensor], names: Iterable[str], wanted: Iterable[str]) -> None:
        super().__init__(kept)
        self.names, self.wanted = tuple(names), frozenset(wanted)

    def __missing__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(f"The model has no layer {name!r}{nearest(str(name), self.names)}.")
        if name in self.wanted:
            raise KeyError(f"No relevance reaches layer {name!r} from this target.")
        kept = f"only that of {', '.join(self)}" if self else "nor that of any other"
        raise KeyError(
            f"The relevance of layer {name!r} was not kept, {kept}: explain with layers=True, or layers=[{name!r}]."
        )

    def like(self, kept: Mapping[str, Tensor]) -> KeptLayers:
        """Other relevance of the same layers."""
        return KeptLayers(kept, self.names, self.wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptLayers, (dict(self), self.names, self.wanted)


@dataclass
class Explanation:
    """The relevance of a prediction.

    - `relevance`: of the input, in its shape (a tuple of tensors for a model with several inputs);
    - `logits`: the model's output, before a softmax or sigmoid at its end (`head` names it);
    - `target`: the classes that were explained, or the index tuple or callable that was given;
    - `score`: the explained score per sample, the relevance that was handed down;
    - `layers`: the (pruned) relevance at the input of each conv and linear layer by name, if it was asked for;
    - `ledger`: where the mass went, one record per entry of the tape and sample.
    """

    relevance: Any
    logits: Any
    target: Any
    score: Tensor
    layers: KeptLayers
    head: str | None
    composite: Composite
    pruning: Pruning | None
    _ledger: Ledger | None = field(default=None, repr=False)
    _again: Callable[[Sequence[str]], Explanation] | None = field(default=None, repr=False)
    _scattered: frozenset[str] = field(default=frozenset(), repr=False)  # layers whose samples do not lie side by side

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The ledger as plain data: a list of records that pandas and polars take as it is.

        It is written when it is first read, by propagating once more: most explanations never need it.
        """
        return self.booked.records()

    @property
    def booked(self) -> Ledger:
        """The ledger with its columns as tensors (batch,)."""
        if self._ledger is None:
            self._ledger = self._once_more([])._ledger
        assert self._ledger is not None
        return self._ledger

    def _once_more(self, layers: Sequence[str]) -> Explanation:
        """The same explanation again, with its ledger and these layers kept."""
        if self._again is None:
            raise ValueError("This explanation was stored without its model: read what you need before storing it.")
        changed = "The model or its input has changed since this explanation was made; explain again."
        try:
            found = self._again(layers)
        except ValueError:  # no such layer
            raise
        except Exception as error:
            raise RuntimeError(changed) from error
        before, now = (list(tensors_in(e.logits)) for e in (self, found))
        if len(before) != len(now) or not all(map(torch.equal, before, now)):
            raise RuntimeError(changed)
        return found

    def survivors(self, layer: str) -> list[Survivors]:
        """Which neurons of a layer's input hold relevance, per sample, strongest first.

        Uses `layers` if they were kept, else propagates once more, down to that layer.
        """
        explanation = self if layer in self.layers else self._once_more([layer])
        relevance, batch = explanation.layers[layer], len(self.score)
        if batch > 1 and layer in explanation._scattered:
            raise ValueError(
                f"The input of layer '{layer}' does not hold one sample after the other: explain one sample at a time."
            )
        if len(relevance) != batch:  # (batch · time, …): a sample's own axes are (time, …)
            relevance = relevance.unflatten(0, (batch, -1))
        found = []
        for sample in relevance:
            index = sample.nonzero()
            values = sample[tuple(index.T)]
            order = values.abs().argsort(descending=True, stable=True)
            found.append(Survivors(index[order], values[order]))
        return found

    def closing(self) -> Tensor:
        """How far the ledger is from closing, per sample, relative to the largest ‖R‖₁ on the way."""
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.booked
        batch = ledger.batch
        held = torch.stack([p.reshape(batch, -1).sum(1, dtype=torch.float64).cpu() for p in parts]).sum(0)
        booked = torch.zeros(batch, dtype=torch.float64)
        for name, sign in (("absorbed_bias", 1), ("absorbed_epsilon", 1), ("dropped", 1), ("created", -1)):
            for column in ledger.column(name):
                booked = booked + sign * column.cpu()
        score = self.score.double().cpu()
        largest = torch.maximum(ledger.largest_mass().cpu(), score.abs())
        return (score - held - booked).abs() / largest.clamp(min=torch.finfo(torch.float64).tiny)

    def _title(self) -> str:
        batch = len(self.score)
        how = "LRP" if self.pruning is None else f"{self.pruning.label}, {self.pruning}"
        lines = [f"{how}, {self.composite.name}, {batch} sample{'s' * (batch != 1)}"]
        if isinstance(self.target, Tensor) and batch:
            shown = [f"{int(c)} ({float(s):.4g})" for c, s in zip(self.target[:8], self.score[:8], strict=True)]
            lines.append("target (score): " + ", ".join(shown) + (" …" if batch > 8 else ""))
        if self.head:
            lines.append(f"relevance starts before the model's final {self.head}")
        if batch > 1:
            lines.append("the ledger shows means over the samples")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self._title()}\n\n{self.booked!r}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title().replace(chr(10), '<br>')}</p>{self.booked._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_again": None, "_ledger": self.booked}


def explain(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    target: Any = None,
    composite: str | Composite = "epsilon-plus-flat",
    pruning: Pruning | None = None,
    layers: bool | Sequence[str] = False,
    micro_batch: int | None = None,
) -> Explanation:
    """Explain a model's prediction: how much each input feature contributed to a score.

    - `inputs`: a tensor (batch, …), or a tuple of them for a model with several inputs;
    - `target`: the score to explain. None is each sample's winning class; a class, one class per sample (list or
      tensor), an index tuple into the output (`(2, 141)` of (batch, 3, length)), or a callable from the output to one
      score per sample;
    - `composite`: which layer gets which rule, by name or as a `plrp.Composite`;
    - `pruning`: a `plrp.Pruning`; None is plain LRP;
    - `layers`: keep the relevance at every layer's input (True), or at some (their names);
    - `micro_batch`: walk the batch in pieces of so many samples, so that memory is bounded by a piece. The numbers are
      the same: no sample's explanation depends on the others.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> plrp.explain(model, torch.randn(2, 4), pruning=plrp.Pruning(p=0.15)).relevance.shape
    torch.Size([2, 4])
    """

    target = own(target)
    parts = [(inputs, target)] if micro_batch is None else pieces(inputs, target, micro_batch)

    def explain_one(given: Any, target: Any, layers: bool | Sequence[str], ledger: bool) -> Explanation:
        found = supported(record(model, given, frugal=not resolve(composite).needs_outputs))
        found.forget_after_use()
        return explain_trace(found, target=target, composite=composite, pruning=pruning, layers=layers, ledger=ledger)

    def run(layers: bool | Sequence[str], ledger: bool) -> Explanation:
        return joined([explain_one(*part, layers, ledger) for part in parts], lambda layers: run(layers, ledger=True))

    return run(layers, ledger=False)


def explain_trace(
    found: Trace,
    *,
    target: Any,
    composite: str | Composite,
    pruning: Pruning | None,
    layers: bool | Sequence[str],
    ledger: bool = False,
) -> Explanation:
    """Explain a recorded forward pass."""
    chosen, target = resolve(composite), own(target)
    chosen.check(found)
    check_pruning(pruning)
    walk = Walk(found, target, chosen, pruning, wanted_layers(found, layers), ledger)
    with torch.inference_mode(False), torch.no_grad():
        relevance = walk.run()
    return described(walk, relevance, walk.layers, pruning, target)


def check_pruning(pruning: Any) -> None:
    """Refuse what is neither a pruning nor None."""
    if pruning is not None and not isinstance(pruning, Pruning):
        hint = f"; plrp.Pruning(p={pruning!r})?" if isinstance(pruning, int | float) else "."
        raise TypeError(f"pruning is a plrp.Pruning or None, got {type(pruning).__name__}{hint}")


def wanted_layers(found: Trace, layers: bool | Sequence[str]) -> set[str]:
    """The names of the layers whose relevance is to be kept."""
    names = [op.name for op in found.layers]
    if isinstance(layers, str):
        layers = [layers]
    if not isinstance(layers, bool | Sequence | set):
        raise TypeError(f"layers is True or a list of layers' names, got {type(layers).__name__}.")
    wanted = set(names) if layers is True else set(layers or ())
    for name in wanted - set(names):
        if any(op.name == name for op in found.ops):
            raise ValueError(
                f"'{name}' is no conv or linear layer; relevance is kept at the inputs of these{nearest(name, names)}."
            )
        raise ValueError(f"The model has no layer '{name}'{nearest(name, names)}.")
    return wanted


def described(
    walk: Walk, relevance: Sequence[Tensor], layers: dict[str, Tensor], pruning: Pruning | None, target: Any
) -> Explanation:
    """What a walk found, for the user."""
    found, composite = walk.trace, walk.composite

    def again(layers: Sequence[str]) -> Explanation:
        return explain_trace(found, target=target, composite=composite, pruning=pruning, layers=layers, ledger=True)

    return Explanation(
        relevance=relevance[0] if found.single else tuple(relevance),
        logits=replaced(found.output, torch.Tensor.clone, of=Tensor),  # the user's own
        target=walk.start.target,
        score=walk.start.score,
        layers=KeptLayers(
            {name: layers[name] for name in walk.names if name in layers},
            walk.names,
            (name for names in walk.wanted.values() for name in names),
        ),
        head=found.head,
        composite=composite,
        pruning=pruning,
        _ledger=walk.ledger,
        _again=again,
        _scattered=frozenset(walk.scattered),
    )


class Walk:
    """One way of a relevance down the tape.

    Relevance is a tensor, or where few neurons hold any, `Neurons` or `Rows` of it; `sparse = False` keeps to tensors.
    """

    sparse = True
    copies = 1  # how often the batch is stacked up in the relevance
    may_begin = True  # a chain of layers that work with channels last

    def __init__(
        self,
        found: Trace,
        target: Any,
        composite: Composite,
        pruning: Pruning | None,
        wanted: set[str],
        ledger: bool,
    ) -> None:
        self.trace = found
        self.composite = composite
        self.pruning = pruning
        self.dtype = torch.float64 if _dtype(found.output) == torch.float64 else torch.float32
        self.start = start(found, target, self.dtype)
        self.sites = self._sites(pruning)
        if pruning is not None and pruning.sparsity_gain is None and not ledger:  # nothing cut, nothing to write down
            self.sites = {key: site for key, site in self.sites.items() if site.cuts}
        self.names = [op.name for op in found.layers]  # read now: a tape that is used once is gone after the walk
        self.wanted: dict[int, list[str]] = {}  # layers to keep, by the value they read
        for op in found.layers:
            if op.name in wanted:
                self.wanted.setdefault(id(op.inputs[0]), []).append(op.name)
        self.layers: dict[str, Tensor] = {}
        self.scattered: set[str] = set()
        self.ledger = Ledger(found.batch) if ledger else None
        self.relevance: dict[int, Relevance] = {id(self.start.value): self.start.relevance}
        self.masses: dict[int, Mass] = {}
        self.arrived: dict[int, Arrived] = {}
        self.again = pruning is not None and pruning.redistribution == "M"
        gains = pruning is not None and pruning.sparsity_gain is not None
        self.may_turn = not gains and not any(s.cuts for s in self.sites.values())  # pruned relevance stays as it is
        self.turned: dict[int, Tensor] = {}  # activations with their channels last

    def _sites(self, pruning: Pruning | None) -> dict[int, Site]:
        """The tensors to prune: those of whose readers the score depends on one."""
        if pruning is None:
            return {}
        live = {id(op) for op in reached(self.start.ops, [self.start.value])}
        sites = pruning.plan(self.trace).items()
        return {key: site for key, site in sites if any(id(op) in live for op in site.readers)}

    def run(self) -> list[Tensor]:
        """Walk from the score to the inputs; returns their relevance."""
        ops = self.start.ops
        for position in range(len(ops) - 1, -1, -1):
            op = ops[position]
            given = [self._collect(v) for v in op.outputs]
            if any(r is not None for r in given):
                self._hand_down(op, given)
            if self.trace.consumed:
                ops.pop().release()
        found = []
        for value in self.trace.inputs:
            relevance = self._collect(value)
            if relevance is None:  # an input that the score does not depend on
                shape = (self.copies * value.shape[0], *value.shape[1:])
                relevance = torch.zeros(shape, dtype=self.dtype, device=value.data.device)
            found.append(dense(relevance).contiguous())
        return found

    def _collect(self, value: Value) -> Relevance | None:
        """The whole relevance of a tensor, all of its readers done: prune it where it is to be pruned."""
        relevance = self.relevance.pop(id(value), None)
        arrived = self.arrived.pop(id(value), None)
        self.turned.pop(id(value), None)
        if relevance is None:
            return None
        site = self.sites.get(id(value))
        if site is not None:
            assert self.pruning is not None
            unpruned, book = relevance, Booking(self.ledger is not None)
            relevance, columns = self._prune(relevance, site, arrived, book)
            if self.ledger is not None:
                before = self._mass(value, unpruned)
                after = self.masses[id(value)] = mass_of(relevance, value.samples)
                self.ledger.add(
                    layer=site.name,
                    op="prune",
                    rule=self.pruning.label,
                    mass_in=before,
                    mass_out=after,
                    book=book,
                    **columns,
                )
        for name in self.wanted.get(id(value), ()):
            self.layers[name] = dense(relevance).contiguous()
            alone = value.samples.batch == 1 and value.shape[0] > 1  # one sample says nothing of how several would lie
            if alone or not value.samples.in_order:
                self.scattered.add(name)
        return relevance

    def _prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        assert self.pruning is not None
        return prune(relevance, site, self.pruning, arrived, book, self.sparse)

    def _mass(self, value: Value, relevance: Relevance) -> Mass:
        """The mass of a tensor's relevance, computed once."""
        known = self.masses.get(id(value))
        if known is None:
            known = self.masses[id(value)] = mass_of(relevance, value.samples)
        return known

    def _hand_down(self, op: Op, given: Sequence[Relevance | None]) -> None:
        book = Booking(self.ledger is not None)
        branches: Sequence[Handed | Followed] = []
        taken: Sequence[Relevance | None] | None
        if op.is_layer:
            assert given[0] is not None
            found, branches = self._through_layer(op, given[0], book)
            taken = [found]
        elif op.family is Family.UNSUPPORTED:
            raise unsupported(op, self.start.ops)
        else:
            taken = following.pass_on(op, given, book)
            if taken is None:
                taken = self._pass_on(op, given, book)
        masses = self._write(op, given, taken, book)
        for value, relevance, mass in zip(op.inputs, taken, masses, strict=True):
            if relevance is not None:
                self._arrive(op, value, relevance, mass, branches)

    def _pass_on(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        return pass_on(op, [None if r is None else dense(r) for r in given], book)

    def _write(
        self, op: Op, given: Sequence[Relevance | None], taken: Sequence[Relevance | None], book: Booking
    ) -> list[Mass | None]:
        """Enter an operation into the ledger if it moves mass; returns the mass that each input received."""
        if self.ledger is None:
            return [None] * len(op.inputs)
        moves = op.family not in (Family.PASS, Family.REARRANGE) or op.rule is not None or book.touched
        if not moves:
            alone = len(op.inputs) == len(op.outputs) == 1
            return [self.masses.pop(id(v), None) if alone else None for v in op.outputs[:1]] * len(op.inputs)
        into = [self._mass(v, r) for v, r in zip(op.outputs, given, strict=True) if r is not None]
        out = [None if r is None else mass_of(r, v.samples) for v, r in zip(op.inputs, taken, strict=True)]
        self.ledger.add(
            layer=op.name,
            op=op.kind,
            rule=self.composite.rule_name(op),
            mass_in=_total(into),
            mass_out=_total([m for m in out if m is not None]),
            book=book,
        )
        return out

    def _arrive(
        self,
        op: Op,
        value: Value,
        relevance: Relevance,
        mass: Mass | None,
        branches: Sequence[Handed | Followed],
    ) -> None:
        key = id(value)
        before = self.relevance.get(key)
        self.relevance[key] = relevance if before is None else added(before, relevance)
        if before is None and mass is not None:
            self.masses[key] = mass
        else:
            self.masses.pop(key, None)
        if self.again and key in self.sites:
            arrived = self.arrived.setdefault(key, Arrived())
            if branches:
                arrived.layers.append((op.output.samples, branches))
            else:
                arrived.other = relevance if arrived.other is None else added(arrived.other, relevance)

    def _through_layer(self, op: Op, given: Relevance, book: Booking) -> tuple[Relevance, Sequence[Handed | Followed]]:
        """A conv or linear layer by its rule: Σ over the branches of Σ_k n_jk share_k R_k / d_k."""
        rule, value = self.composite.rule(op), op.inputs[0]
        if isinstance(rule, Pass):
            if op.output.shape != value.shape:
                raise ValueError(f"Pass needs a layer that keeps its input's shape; '{op.name}' does not.")
            return given, []
        assert op.map is not None
        layer, x = op.map.to(self.dtype), value.data
        layer = layer if rule.ours else layer.private
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        z = None
        if rule.needs_output:
            z = op.output.data
            z = z if z.dtype == self.dtype else layer.apply(x, layer.weight, layer.bias)
        epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
        geometry = followable(op, self.dtype, self.copies) if self.sparse and rule.uses_layer else None
        few = None if geometry is None else neurons_of(given)
        turns = (few is None or few.others is not None) and self._turns(op, rule, x, given)
        if few is None and turns:
            x, given = self._turned(value, x), dense_last(given)
        branches = rule.branches(layer, x, z, value.nonnegative)
        if not branches:
            raise ValueError(f"The rule {rule.name} has no branches for layer '{op.name}': it would hand nothing down.")
        known = [self._known(op, rule, n, branch) for n, branch in enumerate(branches)]
        if geometry is None or few is None or not all(branch.map is layer for branch in branches):
            found, handed = self._through_dense_layer(op, branches, known, x, given, epsilon, book)
            return found, self._with_geometry(op, rule, handed)
        rows, followed = following.through_layer(geometry, few.neurons, branches, known, epsilon, book)
        self._book_unhanded(book, op.output.samples, branches, few.neurons)
        if few.others is None:
            return rows, followed
        # samples in which many neurons hold relevance go as a batch of their own
        where, many = few.others % len(x), _of(given, few.others)
        own, denominators = Booking(book.active), [None if d is None else each_of(d, where) for d in known]
        smaller = [branch.of(where) for branch in branches]
        found, handed = self._through_dense_layer(op, smaller, denominators, chosen(x, where), many, epsilon, own)
        book.add(own, few.others, given.shape[0])
        whole = rows.dense_last() if turns else rows.dense()
        whole[few.others] = found
        parts = zip(self._with_geometry(op, rule, handed), branches, strict=True) if handed else ()
        return whole, [*followed, *(one.among(branch, few.others, given.shape[0]) for one, branch in parts)]

    def _turns(self, op: Op, rule: Rule, x: Tensor, given: Relevance) -> bool:
        """Whether a layer is to work with channels last: a convolution that a chain of such begins or goes on.

        Laying tensors out anew where neither relevance above nor below is so would cost what it gains.
        """
        if not (self.may_turn and isinstance(op.map, Convolution) and not op.map.transposed and x.dim() < 5):
            return False
        if rule.needs_output or not rule.uses_layer or not rule.ours or not native.available(x):
            return False
        begins, self.may_begin = self.may_begin, False
        return begins or not isinstance(given, Tensor) or channels_last(given)

    def _turned(self, value: Value, x: Tensor) -> Tensor:
        """What a layer read, with channels last; made once for all layers that read it."""
        known = self.turned.get(id(value))
        if known is None:
            known = self.turned[id(value)] = turned(x)
        return known

    def _through_dense_layer(
        self,
        op: Op,
        branches: Sequence[Branch],
        denominators: Sequence[Tensor | None],
        x: Tensor,
        given: Relevance,
        epsilon: float,
        book: Booking,
    ) -> tuple[Tensor, list[Handed]]:
        """The same by whole tensors; d_k is computed where not given. Some samples may be a batch of their own."""
        value, samples = op.inputs[0], op.output.samples
        if samples.ordinary and given.shape[0] != samples.batch:
            samples = Samples.first_axis(given.shape[0])
        again = self.again and id(value) in self.sites
        taken: Tensor | None = None
        handed = []
        for branch, known in zip(branches, denominators, strict=True):
            d = branch.contributions(bias=branch.bias) if known is None else known
            if isinstance(branch.map, OneChannel) and op.first:  # d is the same for all channels: they hand down as one
                part = given.channel_sums() if isinstance(given, Neurons) else dense(given).sum(1, keepdim=True)
                part = part if branch.share == 1.0 else part * branch.share
            else:
                given = dense(given)
                part = given if isinstance(branch.share, float) and branch.share == 1.0 else given * branch.share
            own = known is None and branch.map.fresh and self.ledger is None and not again
            s = quotient(part, d, epsilon, branch.one_sign, out=d if own else None)
            term = branch.hand(s, x)
            taken = term if taken is None else taken.add_(term)
            book_branch(book, branch, part, s, d, epsilon, samples)
            if again:
                handed.append(Handed(branch, part, s, d, epsilon))
        self._book_unhanded(book, samples, branches, given)
        assert taken is not None
        return taken, handed

    def _with_geometry(self, op: Op, rule: Rule, handed: list[Handed]) -> list[Handed]:
        """Where the layer reads, for a second pass that follows single neurons."""
        geometry = followable(op, self.dtype) if handed and self.sparse and rule.uses_layer else None
        return [replace(one, geometry=geometry) for one in handed]

    @staticmethod
    def _book_unhanded(book: Booking, samples: Samples, branches: Sequence[Branch], given: Relevance) -> None:
        """Book the share of R_k that no branch hands down: γ hands nothing down where z = 0."""
        unhanded: Any = 1.0
        for branch in branches:
            unhanded = unhanded - branch.share
        if isinstance(unhanded, Tensor) and book.active:
            if isinstance(given, Neurons):
                book.epsilon = book.epsilon + given.sum(given.values * given.at(unhanded))
            else:
                book.epsilon = book.epsilon + samples.sum(dense(given) * unhanded)

    def _known(self, op: Op, rule: Rule, number: int, branch: Branch) -> Tensor | None:
        """d_k where it need not be computed: it stands on the tape, or is shared by the explanations of a trace."""
        if branch.denominator is not None:
            return branch.denominator
        cache = self.trace.denominators
        if cache is None:
            return None
        last = channels_last(branch.parts[0].input)  # the same to rounding only, so it is another
        key = (id(op), rule.key, number, last)
        if key not in cache:
            # holds the rule and the operation, so that their ids stay their own
            cache[key] = ((rule, op), branch.contributions(bias=branch.bias))
        return cache[key][1]


def _of(given: Relevance, samples: Tensor) -> Tensor:
    """The relevance of some samples, as an ordinary tensor."""
    if isinstance(given, Neurons):
        return given.only(samples).dense()
    return chosen(dense(given), samples).contiguous()


def _total(masses: Sequence[Mass]) -> Mass:
    positive, negative = masses[0]
    for more in masses[1:]:
        positive, negative = positive + more[0], negative + more[1]
    return positive, negative


def _dtype(output: Any) -> torch.dtype:
    return next(t.dtype for t in tensors_in(output) if t.is_floating_point())


class Check(NamedTuple):
    """What `plrp.check` found: the operations without a rule. True where there are none."""

    problems: list[tuple[str, str, str]]  # operation, nearest layer before it, reason
    layers: int
    operations: int

    def __bool__(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        seen = f"{self.operations} operations, {self.layers} conv and linear layers"
        if not self.problems:
            return f"Supported: {seen}."
        table = render_table(("operation", "after layer", "why"), self.problems)
        return f"No rule for {len(self.problems)} operations (of {seen}):\n{table}"

    def _repr_html_(self) -> str:
        return render_html(("operation", "after layer", "why"), self.problems) if self.problems else repr(self)


def check(model: Callable[..., Any], inputs: Tensor | Sequence[Tensor]) -> Check:
    """List every operation of a model that plrp has no rule for, by running it once.

    >>> import torch, plrp
    >>> plrp.check(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(1, 4))
    Supported: 2 operations, 1 conv and linear layers.
    """
    found = record(model, inputs)
    problems = []
    for op in reversed(found.unsupported):
        reason = unsupported_reason(op, found.ops)
        after = reason.split("after layer '")[1].split("'")[0] if "after layer '" in reason else ""
        problems.append((op.kind, after, op.reason or "unknown function"))
    return Check(problems, len(found.layers), len(found.ops))
