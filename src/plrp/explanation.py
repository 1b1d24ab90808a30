"""Explanations: what `explain` finds for the user, and what `check` finds out about a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .composites import Composite, names, resolve
from .conditions import Condition, checked, in_words, storable, survey
from .engine import CaseResult, choice, choose_walk, grouped, walk_group
from .errors import TraceError, UnsupportedOperation
from .health import VANISHED, Health, Problem, Scale, alarm, bound_for, examine, in_brief, mass_of, verdicts
from .ledger import Ledger, conservation
from .passage import Case
from .pieces import joined_structure, pieces
from .pruning import Pruning
from .spelling import nearest
from .tables import render_html, render_table
from .tape.own_rules import alone, rules_for, rules_in_force
from .tape.refusals import check_samples
from .tape.trace import Trace, record
from .tape.tracing import supported
from .tape.values import replaced, tensors_in, version
from .tape.verification import record_verified, verify
from .targets import Computed, Seed, as_target, start
from .walk import Walk

if TYPE_CHECKING:
    import plrp

CHANGED = "The model or its input has changed since this explanation was made; explain again."


@dataclass
class Survivors:
    """The neurons of a layer's input that hold relevance for one sample, strongest first."""

    index: Tensor  # (neurons, axes of the tensor without the batch)
    relevance: Tensor  # (neurons,)


class LayerRelevance(dict[str, Tensor]):
    """Relevance by layer; a layer that is not there is answered with a sentence.

    `names` are all layers of the model, `wanted` those that were to be kept.
    """

    def __init__(self, relevance: Mapping[str, Tensor], names: Iterable[str], wanted: Iterable[str]) -> None:
        super().__init__(relevance)
        self.names, self.wanted = tuple(names), frozenset(wanted)

    def __missing__(self, name: str) -> Tensor:
        if name not in self.names:
            shown = ", ".join(self.names[:12]) + (" …" if len(self.names) > 12 else "")
            close = nearest(str(name), self.names) if len(self.names) > 12 else ""
            raise KeyError(
                f"There is no conv or linear layer {name!r} (relevance is kept at the inputs of these): {shown}{close}."
            )
        if name in self.wanted:
            raise KeyError(f"No relevance reaches layer {name!r} from this target.")
        kept = f"only that of {', '.join(self)}" if self else "and neither was that of any other"
        raise KeyError(
            f"The relevance of layer {name!r} was not kept, {kept}: explain with layers=True, or layers=[{name!r}]."
        )

    def like(self, relevance: Mapping[str, Tensor]) -> LayerRelevance:
        """Other relevance of the same layers."""
        return LayerRelevance(relevance, self.names, self.wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerRelevance, (dict(self), self.names, self.wanted)


@dataclass
class Explanation:
    """The relevance of a prediction.

    - `relevance`: of the input, in its shape (a tuple of tensors for a model with several inputs);
    - `logits`: the model's output, before a softmax or sigmoid at its end (`head` names it);
    - `target`: the classes that were explained, or the index tuple or callable that was given;
    - `score`: the explained score per sample, the relevance that was handed down;
    - `layers`: the (pruned) relevance at the input of each conv and linear layer by name, if it was asked for;
    - `ledger`: where the mass went, one record per entry of the tape and sample;
    - `health`: whether to believe it: how far relevance grew on the way, how much of the score arrived;
    - `condition`, `only_through`: what was let pass, None where all was.
    """

    relevance: Any
    logits: Any
    target: Any
    score: Tensor
    layers: LayerRelevance
    head: str | None
    composite: Composite
    pruning: Pruning | None
    condition: Condition | None = None
    only_through: bool = False
    _ledger: Ledger | None = field(default=None, repr=False)
    _recompute: Callable[[Sequence[str]], Explanation] | None = field(default=None, repr=False)
    _trace_sample: Callable[[int], tuple[Trace, int]] | None = field(default=None, repr=False)
    _scattered: frozenset[str] = field(default=frozenset(), repr=False)  # layers whose samples do not lie side by side
    _scale: Scale = field(default=Scale(), repr=False)  # what growth is measured against
    _whole: bool = field(default=False, repr=False)  # whether there is no batch axis

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
            self._ledger = self._recomputed([])._ledger
        assert self._ledger is not None
        return self._ledger

    def _recomputed(self, layers: Sequence[str]) -> Explanation:
        """The same explanation, computed once more with its ledger and these layers."""
        if self._recompute is None:
            raise ValueError("This explanation was stored without its model: read what you need before storing it.")
        try:
            found = self._recompute(layers)
        except ValueError:  # no such layer
            raise
        except Exception as error:
            raise RuntimeError(CHANGED) from error
        before, now = (list(tensors_in(e.logits)) for e in (self, found))
        if len(before) != len(now) or not all(map(torch.equal, before, now)):
            raise RuntimeError(CHANGED)
        return found

    def survivors(self, layer: str) -> list[Survivors]:
        """Which neurons of a layer's input hold relevance, per sample, strongest first.

        Uses `layers` if they were asked for, else propagates once more, down to that layer.
        """
        explanation = self if layer in self.layers else self._recomputed([layer])
        relevance, batch = explanation.layers[layer], len(self.score)
        if batch > 1 and layer in explanation._scattered:
            raise ValueError(
                f"The input of layer '{layer}' does not hold one sample after the other: explain one sample at a time."
            )
        if self._whole:
            relevance = relevance[None]
        elif len(relevance) != batch:  # (batch · time, …): a sample's own axes are (time, …)
            relevance = relevance.unflatten(0, (batch, -1))
        found = []
        for sample in relevance:
            index = sample.nonzero()
            values = sample[tuple(index.T)]
            order = values.abs().argsort(descending=True, stable=True)
            found.append(Survivors(index[order], values[order]))
        return found

    def trace_sample(self, sample: int = 0) -> tuple[Trace, int]:
        """A trace that holds this sample, to explain it further, and the sample's number in it."""
        if self._trace_sample is None:
            raise ValueError("This explanation was stored without its model: read what you need before storing it.")
        if not 0 <= sample < len(self.score):
            raise IndexError(f"There is no sample {sample}: this explanation has {len(self.score)}, from 0.")
        return self._trace_sample(sample)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the numbers (`.npz`), or a page of one sample (`.html`) in which p, method and target can be moved.

        - `.npz`: relevance, score, target, logits, the composite's name and the pruning, for `plrp.load` or `np.load`;
          no model, ledger or layers: `torch.save(explanation, path)` keeps these two as well, as a pickle.
        - `.html`: one file that needs no network. It explains the sample anew for every p of its slider, which takes up
          to some minutes for a large model; `show_progress=False` leaves out the bar. `options` are those of
          `plrp.view.explanation_bundle`: `sample`, `picture`, `mask`, `categories`, `title`, …; with a list as
          `sample`, the page is a gallery.
        """
        import plrp

        kind = Path(path).suffix.lower()
        if kind not in (".npz", ".html", ".htm"):
            raise ValueError(f"{path} should end in .html for a page, or in .npz for the numbers.")
        if kind != ".npz":
            self._page(**{"show_progress": None, **options}).save(path)
            return
        if options:
            raise TypeError(f"{', '.join(options)}: a page (.html) has options, a file of numbers (.npz) has none.")
        plrp.stored.save_explanation(path, self, plrp.__version__)

    def _page(self, **options: Any) -> Any:
        import plrp

        if isinstance(options.get("sample", 0), int):
            return plrp.view.Page(plrp.view.explanation_bundle(self, **options))
        return plrp.view.Page(plrp.view.explanation_bundles(self, list(options.pop("sample")), **options))

    def circuit(
        self,
        model: Callable[..., Any] | None = None,
        inputs: Tensor | Sequence[Tensor] | None = None,
        *,
        sample: int = 0,
        **options: Any,
    ) -> plrp.circuits.Circuit:
        """The survivors of one sample as a sub-network: neurons, edges, and what they keep of the prediction alone.

        - `model`, `inputs`: those that were explained, where this explanation was loaded from disk;
        - `positive=True`: only the survivors that speak for the score;
        - `ablate`: what the other neurons of the pruned tensors are set to: `"zero"`, their `"mean"` over `data`, or
          what they said for some of it (`"resample"`);
        - `data`: inputs like the explained ones, for these two; at most `batch_size` of them run at once;
        - `draws`: samples that stand in, and random circuits, over which figures are means; `seed` draws them;
        - `classes`: the axis of the classes, where the output is not (batch, classes).
        """
        import plrp

        return plrp.circuits.circuit_of(self, model, inputs, sample, **options)

    def plot(self, images: Any = None, **options: Any) -> Any:
        """The relevance as a matplotlib figure: over pictures, as logos of DNA, as coloured tokens, as bars.

        - `images`: inputs to draw it over, or pictures (height, width, 3) (default: what was explained);
        - `samples`: which of a batch, by number (default: the first 16);
        - `names`: of the classes, in their order or as a dict by number, for the titles;
        - `tokens`: what the token ids of a single sample stand for.
        """
        import plrp

        return plrp.view.plot(self, images, **options)

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """The page, in notebooks; None, where it cannot show this input, leaves the ledger's table."""
        import plrp

        try:
            return plrp.view.mime_bundle(self)
        except (ValueError, ImportError):  # another kind of input, or no Pillow
            return None

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        """The relevance of each of the model's inputs, samples along the first axis."""
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        return tuple(part[None] for part in parts) if self._whole else parts

    def closing(self) -> Tensor:
        """How far the ledger is from closing, per sample, relative to the largest ‖R‖₁ on the way."""
        return conservation(self.score, self._inputs, self.booked)

    @property
    def health(self) -> Health:
        """Whether to believe this explanation, in figures per sample; printed, it is a sentence. Reads the ledger."""
        return examine(self.score, self._scale, self._inputs, self.booked, self.pruning)

    def verdicts(self) -> list[Problem | None]:
        """What is wrong with each sample, None where nothing is, as seen at the input: needs no ledger."""
        return verdicts(self.score, self._scale, mass_of(self._inputs))

    def verdicts_in_brief(self) -> list[str | None]:
        """The same in the few words that fit under a picture: `unhealthy: the score is 0`."""
        sizes, masses = self._scale.size(self.score).tolist(), mass_of(self._inputs).tolist()
        grown = [mass / size if size else 0.0 for mass, size in zip(masses, sizes, strict=True)]
        return [in_brief(p, times, self._scale.of) for p, times in zip(self.verdicts(), grown, strict=True)]

    def warned(self) -> Explanation:
        """This explanation, with a `plrp.UnhealthyExplanation` warning if anything is wrong with it."""
        alarm(self.score, self._scale, self._inputs, self.pruning)
        return self

    def _title(self) -> str:
        batch = len(self.score)
        how = "LRP" if self.pruning is None else f"{self.pruning.label}, {self.pruning}"
        of = "no batch axis" if self._whole else f"{batch} sample{'s' * (batch != 1)}"
        why = "" if self.composite.reason is None else f" ({self.composite.reason})"
        lines = [f"{how}, {self.composite.name}{why}, {of}"]
        if batch:
            lines.append(as_target(self.target, self._whole).in_words(self.score))
        if self.condition is not None:
            lines.append(f"only what passes {in_words(self.condition)}{', and nothing around it' * self.only_through}")
        if self.head:
            lines.append(f"relevance starts before the model's final {self.head}")
        lines.append(repr(self.health))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self._title()}\n(for the ledger, layer by layer: print(explanation.booked))"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title()).replace(chr(10), '<br>')}</p>{self.booked._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        forgotten = {"_recompute": None, "_trace_sample": None}
        return {**self.__dict__, **forgotten, "_ledger": self.booked, "condition": storable(self.condition)}


def explain(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    target: Any = None,
    composite: str | Composite = "auto",
    pruning: Pruning | None = None,
    layers: bool | Sequence[str] = False,
    micro_batch: int | None = None,
    samples: int | None = 0,
    rules: Mapping[Any, Any] | None = None,
    condition: Condition | None = None,
    only_through: bool = False,
) -> Explanation:
    """Explain a model's prediction: how much each input feature contributed to a score.

    - `inputs`: a tensor (batch, …), or a tuple of them for a model with several inputs. Of token ids (batch, tokens)
      that the model looks up in an embedding, the relevance of a token is the sum over its channels;
    - `target`: the score to explain. None is each sample's winning class; a class, one class per sample (list or
      tensor), an index tuple into the output (`(2, 141)` of (batch, 3, length)), or a callable from the output to one
      score per sample;
    - `composite`: which layer gets which rule, by name or as a `plrp.Composite`; `"auto"` chooses by the input, and
      printing the explanation says what;
    - `pruning`: a `plrp.Pruning`; None is plain LRP;
    - `layers`: keep the relevance at every layer's input (True), or at some (their names);
    - `micro_batch`: walk the batch in pieces of so many samples, so that memory is bounded by a piece. The numbers are
      the same: no sample's explanation depends on the others;
    - `samples`: None for a model without a batch axis (a graph of nodes, say): one explanation of the whole, of a score
      that `target` gives by an index into the output or a callable;
    - `rules`: your own rules for operations, by function, class of modules or entry of the tape, see `plrp.rules_for`;
    - `condition`: what may pass the outputs of some layers, such as `{"layer3.0.conv2": [12, 40]}`: channels (whole
      numbers), positions (tuples), a boolean mask, or a callable (activation, gradient of the score, relevance) → mask.
      Several layers all apply. With a pruning, neurons keep the factors they have without the condition;
    - `only_through`: drop relevance that goes around a conditioned layer, over a skip.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> plrp.explain(model, torch.randn(2, 4), pruning=plrp.Pruning(p=0.15)).relevance.shape
    torch.Size([2, 4])
    """

    target, chosen = as_target(target, samples is None), resolve(composite, tensors_in(inputs))
    condition = checked(condition)
    check_samples(samples)
    if samples is None and micro_batch is not None:
        raise ValueError("micro_batch cuts a batch into pieces; with samples=None there is no batch: leave it out.")
    parts = [(inputs, target)] if micro_batch is None else pieces(inputs, target, micro_batch)

    def explain_piece(number: int, given: Any, target: Any, layers: bool | Sequence[str], ledger: bool) -> Explanation:
        recorded = record_verified(model, given, frugal=not chosen.needs_outputs, samples=samples)
        by_tape = resolve(composite, tensors_in(inputs), recorded)
        found = supported(recorded, by_tape.products)
        options: dict[str, Any] = {"target": target, "composite": by_tape, "pruning": pruning, "layers": layers}
        if condition is None:
            found.forget_after_use()
            return explain_trace(found, **options, ledger=ledger)
        part = None if micro_batch is None else slice(number * micro_batch, (number + 1) * micro_batch)
        return explain_trace(found, **options, ledger=ledger, condition=condition, only_through=only_through, part=part)

    same_walk = choice()
    with rules_for(rules or {}):
        same_rules = rules_in_force()

    def state() -> list[tuple[int, int | None]]:
        weights = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
        return [(id(tensor), version(tensor)) for tensor in (*tensors_in(inputs), *weights)]

    def trace_sample(sample: int) -> tuple[Trace, int]:
        if state() != explained:
            raise RuntimeError(CHANGED)
        rows = slice(sample, sample + 1) if samples is not None else slice(None)
        given = inputs[rows] if isinstance(inputs, Tensor) else [x[rows] for x in inputs]
        with same_walk(), alone(same_rules):
            recorded = record(model, given, samples=samples)
            return supported(recorded, resolve(composite, tensors_in(inputs), recorded).products), 0

    def run(layers: bool | Sequence[str], ledger: bool) -> Explanation:
        with same_walk(), alone(same_rules):
            found = [explain_piece(number, *part, layers, ledger) for number, part in enumerate(parts)]
        whole = joined(found, recompute=lambda layers: run(layers, ledger=True))
        whole.target = target if isinstance(target, Seed) else whole.target
        whole._trace_sample = trace_sample
        return whole

    found = run(layers, ledger=False)
    explained = state()
    return found.warned()


def joined(found: Sequence[Explanation], recompute: Callable[[Sequence[str]], Explanation]) -> Explanation:
    """The explanations of a batch's pieces as that of the whole batch."""
    first = found[0]
    if len(found) == 1:
        first._recompute = recompute
        return first
    for name in frozenset().union(*(e._scattered for e in found)):
        raise ValueError(
            f"The input of layer '{name}' does not hold one sample after the other, so its relevance cannot be joined: "
            "leave out micro_batch or this layer."
        )
    layers = first.layers.like({name: torch.cat([e.layers[name] for e in found]) for name in first.layers})
    ledgers = [e._ledger for e in found if e._ledger is not None]
    firsts = [e._scale.first for e in found if e._scale.first is not None]
    begun = [e._scale.begun for e in found if e._scale.begun is not None]
    return Explanation(
        relevance=joined_structure([e.relevance for e in found]),
        logits=joined_structure([e.logits for e in found]),
        target=torch.cat([e.target for e in found]) if isinstance(first.target, Tensor) else first.target,
        score=torch.cat([e.score for e in found]),
        layers=layers,
        head=first.head,
        composite=first.composite,
        pruning=first.pruning,
        condition=first.condition,
        only_through=first.only_through,
        _scale=replace(
            first._scale,
            first=torch.cat(firsts) if len(firsts) == len(found) else None,
            begun=torch.cat(begun) if len(begun) == len(found) else None,
        ),
        _ledger=Ledger.joined(ledgers) if ledgers else None,
        _recompute=recompute,
    )


def explain_trace(
    trace: Trace,
    *,
    target: Any,
    composite: str | Composite,
    pruning: Pruning | None,
    layers: bool | Sequence[str],
    ledger: bool = False,
    condition: Condition | None = None,
    only_through: bool = False,
    part: slice | None = None,
) -> Explanation:
    """Explain a recorded forward pass; `part`: the samples of a larger batch, whose masks a condition may hold."""
    chosen = resolve(composite, (value.data for value in trace.inputs), trace)
    target = as_target(target, trace.samples is None)
    chosen.check(trace)
    check_pruning(pruning)
    pruning = pruning and pruning.for_trace(trace)
    trace.check_unchanged()
    wanted, condition = wanted_layers(trace, layers), checked(condition, trace, only_through)
    with torch.inference_mode(False), torch.no_grad():
        passage = None
        if condition is not None:
            passage = survey(trace, target, chosen, pruning, [condition]).passage(condition, only_through, part)
        walk = choose_walk(trace, target, chosen, pruning, wanted, ledger, passage=passage)
        result = CaseResult(walk.run(), walk.layers, walk.first_mass)
    return described(walk, result, pruning, target, condition, only_through, part)


def sweep_trace(
    trace: Trace,
    prunings: Iterable[Pruning | None],
    *,
    target: Any,
    composite: str | Composite,
    layers: bool | Sequence[str],
    condition: Condition | Sequence[Condition] | None = None,
    only_through: bool = False,
) -> Iterator[Explanation]:
    """One explanation per pruning, in their order, and of each one per condition; the arguments are checked now, not
    when the first is asked for.
    """
    if prunings is None or isinstance(prunings, Pruning | int | float | str):
        raise TypeError(f"prunings is a list of plrp.Pruning, got one {type(prunings).__name__}: write sweep([…]).")
    prunings, target = list(prunings), as_target(target, trace.samples is None)
    chosen = resolve(composite, (value.data for value in trace.inputs), trace)
    chosen.check(trace)
    wanted_layers(trace, layers)
    for pruning in prunings:
        check_pruning(pruning)
        if pruning is not None and pruning.layers:
            pruning.plan(trace)  # refuses unknown layers
    prunings = [pruning and pruning.for_trace(trace) for pruning in prunings]
    if not isinstance(target, Computed):
        start(trace, target, torch.float32)
    if condition is None:
        checked(condition, trace, only_through)
        return _sweep(trace, prunings, [None], only_through, choice(), target, chosen, layers)
    several = list(condition) if isinstance(condition, list | tuple) else [condition]
    conditions = [one for given in several if (one := checked(given, trace, only_through)) is not None]
    if len(conditions) < max(1, len(several)):
        raise ValueError("condition is a dict or a list of them, one explanation each: there is an empty one.")
    return _sweep(trace, prunings, conditions, only_through, choice(), target, chosen, layers)


def _sweep(
    trace: Trace,
    prunings: Sequence[Pruning | None],
    conditions: Sequence[Condition | None],
    only_through: bool,
    same_walk: Callable[[], Any],
    target: Any,
    composite: Composite,
    layers: bool | Sequence[str],
) -> Iterator[Explanation]:
    """One explanation per pruning and condition. Prunings are grouped with each other, or conditions of one pruning."""
    wanted = wanted_layers(trace, layers)
    for some in [prunings] if conditions == [None] else [[pruning] for pruning in prunings]:
        with same_walk(), torch.inference_mode(False), torch.no_grad():
            cases = [Case(pruning) for pruning in some]
            if given := [one for one in conditions if one is not None]:
                trace.check_unchanged()
                facts = survey(trace, target, composite, some[0], given)
                cases = [Case(some[0], facts.passage(one, only_through)) for one in given]
            groups = list(grouped(trace, cases))
        following = iter(conditions if given else [None] * len(cases))
        for group in groups:
            with same_walk(), torch.inference_mode(False), torch.no_grad():
                trace.check_unchanged()
                walk, results = walk_group(trace, target, composite, group, wanted)
            for case, result, condition in zip(group, results, following, strict=False):
                with same_walk():
                    explanation = described(walk, result, case.pruning, target, condition, only_through)
                yield explanation.warned()


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
    wanted = set(names) if layers is True else set(map(str, layers or ()))
    for name in wanted - set(names):
        if any(op.name == name for op in found.ops):
            raise ValueError(
                f"'{name}' is no conv or linear layer; relevance is kept at the inputs of these{nearest(name, names)}."
            )
        raise ValueError(f"The model has no layer '{name}'{nearest(name, names)}.")
    return wanted


def described(
    walk: Walk,
    result: CaseResult,
    pruning: Pruning | None,
    target: Any,
    condition: Condition | None = None,
    only_through: bool = False,
    part: slice | None = None,
) -> Explanation:
    """The result of a walk as an explanation for the user."""
    relevance, layers, first_mass = result
    found, composite = walk.trace, walk.composite

    same_walk = choice()

    def recompute(layers: Sequence[str]) -> Explanation:
        options: dict[str, Any] = {"target": target, "composite": composite, "pruning": pruning, "layers": layers}
        options |= {"condition": condition, "only_through": only_through, "part": part}
        with same_walk():
            return explain_trace(found, **options, ledger=True)

    return Explanation(
        relevance=relevance[0] if found.single else tuple(relevance),
        logits=replaced(found.output, torch.Tensor.clone, of=Tensor),  # the user's own
        target=walk.start.target,
        score=walk.start.score,
        layers=LayerRelevance(
            {name: layers[name] for name in walk.names if name in layers},
            walk.names,
            (name for names in walk.wanted.values() for name in names),
        ),
        head=found.head,
        composite=composite,
        pruning=pruning,
        condition=condition,
        only_through=only_through,
        _ledger=walk.ledger,
        _recompute=recompute,
        _trace_sample=lambda sample: (found, sample),
        _scattered=frozenset(walk.scattered),
        _scale=Scale(
            first_mass,
            bound_for(walk.epsilon_layers),
            VANISHED if condition is None else 0.0,
            walk.start.mass,
        ),
        _whole=found.samples is None,
    )


class Check(NamedTuple):
    """What `plrp.check` found: what cannot be explained. True where there is nothing of the kind."""

    problems: list[tuple[str, str, str]]  # operation, nearest layer before it, reason
    layers: int
    operations: int
    composites: tuple[str, ...] = ()  # the named composites that have a rule for all of them

    def __bool__(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        seen = f"{_counted(self.operations, 'operation')}, {_counted(self.layers, 'conv or linear layer')}"
        if not self.problems and len(self.composites) < len(names()):
            return f"Supported under {' and '.join(self.composites)}: {seen}."
        if not self.problems:
            return f"Supported: {seen}."
        table = render_table(("operation", "after layer", "why"), self.problems)
        advice = "`plrp.explain` says what to do about the last of them; `plrp.rules_for` gives operations a rule."
        return f"Not supported: {_counted(len(self.problems), 'problem')} (in {seen}):\n{table}\n{advice}"

    def _repr_html_(self) -> str:
        return render_html(("operation", "after layer", "why"), self.problems) if self.problems else escape(repr(self))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def check(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    samples: int | None = 0,
    rules: Mapping[Any, Any] | None = None,
) -> Check:
    """List everything in a model that plrp cannot explain, and find out whether the tape sees all that it does.

    `samples` and `rules` are those of `plrp.explain`.

    >>> import torch, plrp
    >>> plrp.check(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(1, 4))
    Supported: 2 operations, 1 conv or linear layer.
    """
    problems: list[tuple[str, str, str]] = []
    layers = operations = 0
    with rules_for(rules or {}):
        try:
            found = record(model, inputs, samples=samples, refused=problems)
            layers, operations = len(found.layers), len(found.ops)
            for op in reversed(found.unsupported):
                before = found.ops[: found.ops.index(op)]
                after = next((o.name for o in reversed(before) if o.is_layer), "")
                problems.append((op.kind, after, op.reason or "unknown function"))
            if not problems:
                verify(model, inputs, samples=samples, always=True)
        except (TraceError, UnsupportedOperation) as error:
            if not problems:  # else it may be no more than their consequence
                problems.append(("the whole model", "", str(error)))
    if problems:
        return Check(problems, layers, operations)
    fitting = tuple(name for name in names() if not found.unsupported_under(resolve(name).products))
    return Check(problems, layers, operations, fitting)
